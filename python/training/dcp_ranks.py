"""A sharded training of several ranks, for torchrun: dcp_ranks.py save|async|process|load FOLDER STEP."""

import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import trained, whole
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import stdchk
from stdchk.torch.dcp import StorageReader, StorageWriter


def state_of(steps: int, mark: int):
    net, optimizer = trained("fsdp", steps)
    model, its = get_state_dict(net, optimizer)
    # Two megabytes of a plain tensor, which DCP lets one rank write, and things that are no tensors.
    plain = torch.arange(1 << 19, dtype=torch.int32) + mark
    return net, optimizer, {"model": model, "optimizer": its, "plain": plain, "epoch": mark, "notes": {"a": [1, "two", (3.5,)]}}


def check_load(folder: str, step: int) -> None:
    _, _, expected = state_of(3, step)
    net, optimizer, found = state_of(0, 0)
    found["notes"] = {"a": None}
    reader = StorageReader(folder)
    dcp.load(found, storage_reader=reader)
    set_state_dict(net, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    assert reader.step == str(step) and reader.bytes > 0
    assert found["epoch"] == step and found["notes"] == expected["notes"] and torch.equal(found["plain"], expected["plain"])
    for name, one in expected["model"].items():
        assert torch.allclose(whole(found["model"][name]), whole(one), rtol=1e-4, atol=1e-5), name
    for name, held in expected["optimizer"]["state"].items():
        for key, one in held.items():
            assert torch.allclose(whole(found["optimizer"]["state"][name][key]), whole(one), rtol=1e-3, atol=1e-5), (name, key)


def main() -> None:
    what, folder, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    if what == "load":
        check_load(folder, step)
    else:
        writer = StorageWriter(stdchk.connect()[folder], step)
        _, _, state = state_of(3, step)
        if what == "save":
            dcp.save(state, storage_writer=writer)
        else:
            kind = AsyncCheckpointerType.PROCESS if what == "process" else AsyncCheckpointerType.THREAD
            future = dcp.async_save(state, storage_writer=writer, async_checkpointer_type=kind)
            # The state at the call is saved.
            for tensor in (state["plain"], *(one.to_local() for one in state["model"].values())):
                tensor.fill_(0)
            future.result()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
