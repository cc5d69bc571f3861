"""A training of several ranks, for torchrun: ranks.py save|load ddp|fsdp FOLDER EXPECTED."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from stdchk.torch import Checkpointer


def trained(how: str, steps: int):
    torch.manual_seed(0)
    # A first extent that 2 and 3 ranks share unevenly.
    net = torch.nn.Sequential(torch.nn.Linear(64, 301), torch.nn.ReLU(), torch.nn.Linear(301, 64))
    if how == "ddp":
        net = DistributedDataParallel(net)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (net[0], net[2], net):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for number in range(steps):
        torch.manual_seed(number + 1)
        x = torch.randn(16, 64)
        optimizer.zero_grad()
        (net(x) - x).square().mean().backward()
        optimizer.step()
    return net, optimizer


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def contents(net, optimizer):
    """All tensors as a whole, which is the same on every rank."""
    return [whole(tensor) for tensor in net.state_dict().values()] + [
        whole(tensor) for held in optimizer.state.values() for tensor in held.values()
    ]


def main():
    what, how, folder, expected = sys.argv[1:]
    dist.init_process_group("gloo")
    net, optimizer = trained(how, 3 if what == "save" else 0)
    if what == "save":
        with Checkpointer(folder) as checkpointer:
            checkpointer.save(1, net=net, optimizer=optimizer, epoch=1)
        saved = contents(net, optimizer)
        if dist.get_rank() == 0:
            torch.save(saved, expected)
    else:
        with Checkpointer(folder) as checkpointer:
            loaded = checkpointer.load(net=net, optimizer=optimizer)
        assert loaded.step == 1 and loaded.state["epoch"] == 1
        pairs = zip(contents(net, optimizer), torch.load(expected), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
