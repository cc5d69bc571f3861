"""Checkpoints of a training that cost its step almost nothing: docs/TRAINING.md.

with stdchk.torch.Checkpointer("run") as checkpointer:
    loaded = checkpointer.load(model=model, optimizer=optimizer)
    for step in range(loaded.step + 1 if loaded else 0, steps):
        ...
        checkpointer.save(step, model=model, optimizer=optimizer)
"""

from stdchk.torch._checkpointer import Checkpointer
from stdchk.torch._load import Loaded
from stdchk.torch._staging import Save
from stdchk.torch._state import Pickled

__all__ = ["Checkpointer", "Loaded", "Pickled", "Save"]
