"""torch.distributed.checkpoint: a tensor sharded over some ranks is saved, and loaded over another number of ranks.

Relies on PyTorch with gloo; started by torch.distributed.run. Saved three times: at once, in the background, and over
the one before. `sharded.py save [PREFIX]`, then `sharded.py load [PREFIX]` in the same folder; a PREFIX such as `stdchk://run/` leads
elsewhere.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros

SHAPE = (1200, 800)
PREFIX = "".join(sys.argv[2:])


def whole(step):
    return torch.arange(SHAPE[0] * SHAPE[1], dtype=torch.float32).reshape(SHAPE) + step


def save(mesh):
    state = {"w": distribute_tensor(whole(1), mesh, [Shard(0)]), "step": torch.tensor(1)}
    dcp.save(state, checkpoint_id=f"{PREFIX}once")
    dcp.save(state, checkpoint_id=f"{PREFIX}again")
    state = {"w": distribute_tensor(whole(2), mesh, [Shard(0)]), "step": torch.tensor(2)}
    dcp.save(state, checkpoint_id=f"{PREFIX}again")
    dcp.async_save(state, checkpoint_id=f"{PREFIX}background").result()


def load(mesh):
    for name, step in (("once", 1), ("again", 2), ("background", 2)):
        state = {"w": zeros(SHAPE, device_mesh=mesh, placements=[Shard(0)]), "step": torch.tensor(0)}
        dcp.load(state, checkpoint_id=f"{PREFIX}{name}")
        assert state["step"] == step and torch.equal(state["w"].full_tensor(), whole(step)), name


dist.init_process_group("gloo")
{"save": save, "load": load}[sys.argv[1]](init_device_mesh("cpu", (dist.get_world_size(),)))
dist.destroy_process_group()
