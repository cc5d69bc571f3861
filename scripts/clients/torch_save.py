"""PyTorch's own file: written twice under one name, read whole and mapped by another process.

Relies on PyTorch. `torch_save.py save`, then `torch_save.py load` in the same folder.
"""

import os
import sys

import torch

ROWS = 2000
PATH = "model.pt"


def state(step):
    torch.manual_seed(7)
    weights = {f"layer{number}": torch.randn(ROWS, 300) for number in range(6)}
    return {"step": step, "weights": weights, "momentum": {name: w * step for name, w in weights.items()}}


def save():
    for step in (1, 2):
        torch.save(state(step), PATH)
        # What a training run does with the newest one.
        torch.save(state(step), PATH + ".tmp")
        os.replace(PATH + ".tmp", "latest.pt")


def load():
    for path in (PATH, "latest.pt"):
        for mapped in (False, True):
            found, expected = torch.load(path, mmap=mapped), state(2)
            assert found["step"] == 2
            for kind in ("weights", "momentum"):
                assert all(torch.equal(found[kind][name], tensor) for name, tensor in expected[kind].items())


{"save": save, "load": load}[sys.argv[1]]()
