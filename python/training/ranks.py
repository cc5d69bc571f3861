"""A training of several ranks, for torchrun: ranks.py save|load ddp|fsdp FOLDER. What comes back is compared."""

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
        # All ranks have the same data, so that the result doesn't depend on their number.
        torch.manual_seed(number + 1)
        x = torch.randn(16, 64)
        optimizer.zero_grad()
        (net(x) - x).square().mean().backward()
        optimizer.step()
    return net, optimizer


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def main():
    what, how, folder = sys.argv[1:]
    dist.init_process_group("gloo")
    if what == "save":
        net, optimizer = trained(how, 3)
        with Checkpointer(folder) as checkpointer:
            checkpointer.save(1, net=net, optimizer=optimizer, epoch=1)
    else:
        expected, its = trained(how, 3)
        net, optimizer = trained(how, 0)
        with Checkpointer(folder) as checkpointer:
            loaded = checkpointer.load(net=net, optimizer=optimizer)
        assert loaded.step == 1 and loaded.state["epoch"] == 1
        for (name, one), other in zip(net.state_dict().items(), expected.state_dict().values(), strict=True):
            assert torch.allclose(whole(one), whole(other), rtol=1e-4, atol=1e-5), name
        pairs = zip(optimizer.state.values(), its.state.values(), strict=True)
        for one, other in pairs:
            for key in one:
                assert torch.allclose(whole(one[key]), whole(other[key]), rtol=1e-3, atol=1e-5), key
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
