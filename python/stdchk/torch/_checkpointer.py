"""Saves a training's state beside the training, and loads the newest one that is whole."""

import json
import time
import uuid
from typing import Any

import torch

from stdchk import _errors
from stdchk._agent import Agent
from stdchk._layout import lay_out
from stdchk._pool import Folder, Pool, connect
from stdchk.torch import _load
from stdchk.torch._load import Loaded
from stdchk.torch._staging import Region, Save, Staging
from stdchk.torch._tensors import gather

NAMING = "{step}/{rank}-of-{ranks}.safetensors"
FORMAT = 1
"""Of what stands in ``__metadata__`` below ``stdchk``."""


class Checkpointer:
    """Saves and loads the state of a training in a folder of a pool.

    ``folder``: its name, or a :class:`stdchk.Folder`; it should be the run's own. ``pool``: a connection, or what
    :func:`stdchk.connect` finds. ``rank`` and ``ranks``: those of ``torch.distributed``, of ``group``, or 0 of 1. All ranks make
    their checkpointer, save and load in the same order. ``run``: what tells this start of the job from others, the same on
    all ranks; needed only where there are several ranks without ``torch.distributed``. ``buffers=2`` takes the memory of a second
    region on the host, so that a save need not wait for the one before.
    """

    def __init__(
        self,
        folder: "str | Folder",
        *,
        pool: Pool | None = None,
        rank: int | None = None,
        ranks: int | None = None,
        group: Any = None,
        run: str | None = None,
        buffers: int = 1,
    ) -> None:
        if buffers not in (1, 2):
            raise ValueError("buffers is 1 or 2")
        self.folder = folder if isinstance(folder, Folder) else (pool or connect())[folder]
        self._group = group
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._is_collective = is_distributed and rank is None and ranks is None
        self.rank = torch.distributed.get_rank(group) if self._is_collective else rank or 0
        self.ranks = torch.distributed.get_world_size(group) if self._is_collective else ranks or 1
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is none of {self.ranks} ranks")
        if self.ranks > 1 and not self._is_collective and run is None:
            raise ValueError("several ranks without torch.distributed need `run`, the same text on each of them")
        self._run = run if run is not None else self._agreed(uuid.uuid4().hex)
        self._saves = 0
        self._buffers: list[Region | None] = [None] * buffers
        self._stagings: list[Staging | None] = [None] * buffers
        self._staged_as: list[Save | None] = [None] * buffers
        self._hooked: list[tuple[Any, Any]] = []
        if self.rank == 0:
            self._name_sets()
        self._agreed(None)
        self._agent = Agent(self.folder.pool)

    def save(self, step: "int | str", /, **state: Any) -> Save:
        """Begins to save a state as the set of this step, and returns while it is copied and stored.

        A value is a module, an optimizer or another object with ``state_dict``, a tensor, or plain Python. Parameters and the
        optimizer's own state are copied while the program computes on: an optimizer that is saved, too, waits for the copies
        before it steps; else call :meth:`before_update`. Everything else is copied before this returns. Where the memory is in
        use by the save before, it waits: ``waited_s`` of the result. An earlier save that failed raises its error here.
        """
        began = time.monotonic()
        number = self._saves % len(self._buffers)
        self._settle(number)
        waited = time.monotonic() - began
        self._saves += 1
        gathered = gather(state, self.rank, self.ranks)
        about = {
            "format": FORMAT,
            "run": f"{self._run}:{self._saves}",
            "step": str(step),
            "rank": self.rank,
            "ranks": self.ranks,
            "alike": gathered.alike,
            "sharded": gathered.sharded,
            "shards": {one.array.name: [one.shard.of, one.shard.at] for one in gathered.kept if one.shard is not None},
            "state": gathered.tree,
        }
        metadata = {"format": "pt", "stdchk": json.dumps(about, separators=(",", ":"))}
        layout = lay_out((one.array for one in gathered.kept), metadata)
        region = self._region(number, layout.region_bytes)
        self._agent.begin(region.key)
        name = NAMING.format(step=step, rank=self.rank, ranks=self.ranks)
        save = Save(step, f"{self.folder.path}/{name}", layout.region_bytes, waited)
        staging = Staging(self._agent, region, save, layout, gathered.kept)
        save._wait = staging.wait_durable
        self._stagings[number], self._staged_as[number] = staging, save
        self._hook(state)
        return save

    def before_update(self) -> None:
        """To be called before parameters change: waits for the copies of saves under way, on a device without the host."""
        for staging in self._stagings:
            if staging is not None:
                staging.release()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all saves are durable. Raises ``TimeoutError`` after ``timeout`` seconds, and the error of a failed one."""
        until = None if timeout is None else time.monotonic() + timeout
        for number in self._oldest_first():
            self._settle(number, None if until is None else max(0.0, until - time.monotonic()))

    def load(self, *, step: "int | str | None" = None, **state: Any) -> Loaded | None:
        """Loads the newest set that is complete and intact, or that of ``step``; ``None`` if there is none.

        Modules, and tensors of the host or a device, are filled in place; an object with ``load_state_dict`` gets it called. All
        other values are in the result's ``state``: those without tensors always, others if they are named, as in ``rng=None``.
        A set that is damaged is passed over, on all ranks. The number of ranks may be another one than when it was
        saved, as far as the state is sharded or the same on all ranks.
        """
        return _load.load(self, None if step is None else str(step), state)

    def close(self) -> None:
        """Waits for all saves, and gives the memory back to the agent."""
        try:
            self.wait()
        finally:
            self._end()

    def _end(self) -> None:
        for _, hook in self._hooked:
            hook.remove()
        self._hooked.clear()
        for region in self._buffers:
            if region is not None:
                region.close()
        self._buffers = [None] * len(self._buffers)
        self._agent.close()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            # What is staged is stored by the agent; what is not must not hold up the error.
            self._end()

    def _name_sets(self) -> None:
        self.folder.mkdir()
        naming = self.folder.policy.get("naming", "")
        if naming != NAMING:
            if self.folder.sets():
                cause = f"it has sets of files named {naming}"
                next_step = "give the run a folder of its own"
                raise _errors.make({"code": "conflict", "object": self.folder.path, "cause": cause, "next_step": next_step}, [])
            self.folder.policy["naming"] = NAMING

    def _region(self, number: int, size: int) -> Region:
        region = self._buffers[number]
        if region is None or region.size < size:
            if region is not None:
                region.close()
            key = f"{self.folder.path}/{self.rank}-of-{self.ranks}.{number}"
            region = Region(self._agent, key, size)
            self._buffers[number] = region
        return region

    def _settle(self, number: int, timeout: float | None = None) -> None:
        """Waits until a buffer's save is durable. An error that nobody was told of is raised."""
        staging, save = self._stagings[number], self._staged_as[number]
        if staging is None or save is None:
            return
        staging.wait_durable(timeout)
        self._stagings[number] = self._staged_as[number] = None
        if save.error is not None and not save._is_told:
            raise save.error

    def _oldest_first(self) -> list[int]:
        count = len(self._buffers)
        return [(self._saves + number) % count for number in range(count)]

    def _hook(self, state: dict[str, Any]) -> None:
        for value in state.values():
            is_new = all(value is not known for known, _ in self._hooked)
            if isinstance(value, torch.optim.Optimizer) and is_new:
                self._hooked.append((value, value.register_step_pre_hook(lambda *_: self.before_update())))

    def _agreed(self, value: Any) -> Any:
        """The value of rank 0, on all ranks."""
        if not self._is_collective or self.ranks == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, group=self._group, group_src=0)
        return values[0]

    def _gathered(self, value: Any) -> list[Any]:
        """The values of all ranks, on all ranks."""
        if not self._is_collective or self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values
