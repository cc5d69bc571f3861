"""torch.save and torch.load over files of the package `stdchk`, and the tensors of safetensors from its bytes.

Relies on PyTorch, safetensors and the package; the pool is the one that STDCHK_DATA names. `torch_objects.py FOLDER`.
"""

import sys

import fsspec
import safetensors.torch
import torch

import stdchk

folder = stdchk.connect()[sys.argv[1]]
model = torch.nn.Sequential(torch.nn.Linear(500, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 500))
state = {"model": model.state_dict(), "step": 7, "half": torch.arange(1000, dtype=torch.bfloat16)}

with folder.open("state.pt", "wb") as file:
    torch.save(state, file)
with fsspec.open(f"stdchk://{folder.path}/again.pt", "wb") as file:
    torch.save(state, file)
for name in ("state.pt", "again.pt"):
    with folder.open(name) as file:
        back = torch.load(file, map_location="cpu", weights_only=True)
    assert back["step"] == 7 and torch.equal(back["half"], state["half"])
    assert all(torch.equal(back["model"][key], value) for key, value in state["model"].items())

folder.write_bytes("model.safetensors", safetensors.torch.save(dict(model.state_dict())))
back = safetensors.torch.load(folder.read_bytes("model.safetensors"))
assert all(torch.equal(back[key], value) for key, value in model.state_dict().items())

buffer = state["half"].view(torch.uint8).numpy()
with folder.open("tensor", "wb") as file:
    file.write(buffer)
filled = torch.empty(1000, dtype=torch.bfloat16)
with folder.open("tensor") as file:
    assert file.readinto(filled.view(torch.uint8).numpy()) == filled.nbytes
assert torch.equal(filled, state["half"])
