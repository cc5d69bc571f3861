"""Saves a training's state beside the training, and loads the newest one that is whole."""

import uuid
from collections.abc import Callable, Collection
from typing import Any

import torch

from stdchk._errors import make
from stdchk._pool import Folder, Pool, connect
from stdchk.torch import _load
from stdchk.torch._load import Loaded
from stdchk.torch._saver import Saver, name_sets, set_file
from stdchk.torch._staging import Save
from stdchk.torch._tensors import gather


class Checkpointer(Saver):
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
        place = folder if isinstance(folder, Folder) else (pool or connect())[folder]
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
        self._count = 0
        self._hooked: list[tuple[Any, Any]] = []
        self._together(lambda: name_sets(place) if self.rank == 0 else None)
        self._together(lambda: super(Checkpointer, self).__init__(place, f"{self.rank}-of-{self.ranks}", buffers))

    def save(self, step: "int | str", /, **state: Any) -> Save:
        """Begins to save a state as the set of this step, and returns while it is copied and stored.

        A value is a module, an optimizer or another object with ``state_dict``, a tensor, or plain Python. The parameters and the
        state of an optimizer that is saved are copied while the program computes on: the optimizer waits for the copies before it
        steps, and :meth:`before_update` is for whatever else changes them. Everything else is copied before this returns. Where
        the memory is in use by the save before, it waits: ``waited_s`` of the result. An earlier save that failed raises its
        error here.
        """
        return self._save(step, state)

    def _save(self, step: "int | str", state: dict[str, Any], alike: Collection[str] = ()) -> Save:
        """Saves. ``alike``: parts that the caller knows to be the same on all ranks."""
        # Counted first: a rank whose save fails stays in step with the others.
        self._count += 1
        run = f"{self._run}:{self._count}"
        name = set_file(step, self.rank, self.ranks, run)
        gathered = gather(state, self.rank, self.ranks, alike)
        save = self._put(step, name, gathered, run, self.rank, self.ranks)
        self._hook(state)
        return save

    def load(self, *, step: "int | str | None" = None, **state: Any) -> Loaded | None:
        """Loads the newest set that is complete and intact, or that of ``step``; ``None`` if there is none.

        Modules, and tensors of the host or a device, are filled in place; an object with ``load_state_dict`` gets it called. All
        other values are in the result's ``state``: those without tensors always, others if they are named, as in ``rng=None``.
        A set that is damaged is passed over, on all ranks. The number of ranks may be another one than when it was
        saved, as far as the state is sharded or the same on all ranks.
        """
        # Tensors that are being copied may be those that are going to be filled.
        self.before_update()
        for staging in self._stagings:
            if staging is not None:
                staging.join()
        return _load.load(self, None if step is None else str(step), state)

    def _end(self) -> None:
        """See :meth:`Saver._end`. Optimizers are let go."""
        for _, hook in self._hooked:
            hook.remove()
        self._hooked.clear()
        super()._end()

    def _hook(self, state: dict[str, Any]) -> None:
        for value in state.values():
            is_new = all(value is not known for known, _ in self._hooked)
            if isinstance(value, torch.optim.Optimizer) and is_new:
                self._hooked.append((value, value.register_step_pre_hook(lambda *_: self.before_update())))

    def _together(self, work: Callable[[], object]) -> None:
        """Does what each rank does for itself. It fails on all if it fails on one: nobody waits for a rank that has gone."""
        error = _load.failure(work)
        failed = [text for text in self._gathered(None if error is None else str(error) or repr(error)) if text is not None]
        if error is not None:
            raise error
        if failed:
            next_step = "see what that rank says"
            raise make({"code": "other", "object": "another rank", "cause": failed[0], "next_step": next_step}, [])

    def _agreed(self, value: Any) -> Any:
        """The value of rank 0, on all ranks."""
        if not self._is_collective or self.ranks == 1:
            return value
        values = [value]
        first = 0 if self._group is None else torch.distributed.get_global_rank(self._group, 0)
        torch.distributed.broadcast_object_list(values, src=first, group=self._group)
        return values[0]

    def _gathered(self, value: Any) -> list[Any]:
        """The values of all ranks, on all ranks."""
        if not self._is_collective or self.ranks == 1:
            return [value]
        values: list[Any] = [None] * self.ranks
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values
