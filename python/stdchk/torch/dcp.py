"""PyTorch's distributed checkpoints in a pool, without a file system between, and without `.metadata`.

    dcp.save(state, storage_writer=StorageWriter("run", step))
    dcp.load(state, storage_reader=StorageReader("run"))

Each rank's file is as :class:`stdchk.torch.Checkpointer` makes it: safetensors, stored by the agent. An item of DCP's plan is a
tensor of the file; an object that DCP turned into bytes is one of type U8. JSON in the file's header says where items belong, so
that a reader plans from the headers of the set's files. Nothing is pickled here; DCP's own planner pickles objects that aren't
tensors.
"""

import io
import os
import uuid
from collections import ChainMap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader as DcpReader
from torch.distributed.checkpoint.storage import StorageWriter as DcpWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from stdchk._agent import Agent
from stdchk._data import Member
from stdchk._errors import DamagedError, NotFoundError, make
from stdchk._layout import damaged
from stdchk._pool import Folder, Pool, connect
from stdchk.torch import _state
from stdchk.torch._load import THREADS, Copies, Files, SavedFile, await_staged, complete_sets
from stdchk.torch._saver import Saver, name_sets, set_file
from stdchk.torch._tensors import OF_SHORT, Gathered, Kept, Shard, array_of, memory_of

__all__ = ["StorageReader", "StorageWriter"]

_STARTED = uuid.uuid4().hex
"""Tells this start of the job from others. The coordinator's counts; it stays, since planners keep plans from save to save."""
_TRIES: dict[str, tuple[str, int]] = {}
"""The step that this process saved last into a folder, and how often: all ranks count alike."""


@dataclass(frozen=True)
class _Place:
    """The coordinator's word to a rank."""

    rank: int
    ranks: int
    started: str


class StorageWriter(DcpWriter):  # type: ignore[misc]
    """Saves one step into a folder of a pool.

    ``dcp.save`` returns, and the future of ``dcp.async_save`` is done, once it is durable.
    ``folder``: its name, or a :class:`stdchk.Folder`; it should be the run's own. ``step``: a whole number; the argument
    ``checkpoint_id`` of ``dcp.save`` stands for it as well. ``pool``: a connection, or what :func:`stdchk.connect` finds.
    """

    def __init__(self, folder: "str | Folder", step: "int | str | None" = None, *, pool: Pool | None = None) -> None:
        self.folder = folder if isinstance(folder, Folder) else (pool or connect())[folder]
        self.step = step

    def reset(self, checkpoint_id: "str | os.PathLike[str] | int | None" = None) -> None:
        """Takes another step."""
        if checkpoint_id is not None:
            self.step = str(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Refuses ranks that agree on nothing."""
        if not kwargs.get("use_collectives", True):
            raise ValueError("`use_collectives=False`: the files of a set are of one save, on which ranks have to agree")
        if self.step is None:
            raise ValueError("no step: give it to the StorageWriter, or as `checkpoint_id`")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leaves it as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tells each rank its place in the set."""
        name_sets(self.folder)
        return [replace(plan, storage_data=_Place(rank, len(plans), _STARTED)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        """Puts the items into this rank's file, and waits until it is durable."""
        assert self.step is not None and isinstance(plan.storage_data, _Place)
        place = plan.storage_data
        kept, items = _kept(plan, planner)
        sharded = [one.array.name for one in kept if one.shard is not None]
        dcp = {"items": items, "planner": _state.flatten(plan.planner_data, "planner_data", _no_tensor)}
        run = f"{place.started}:{_try_number(self.folder.path, str(self.step))}"
        name = set_file(self.step, place.rank, place.ranks, run)
        with Saver(self.folder, f"dcp-{place.rank}-of-{place.ranks}") as saver:
            saver._put(self.step, name, Gathered(["d"], kept, [], sharded), run, place.rank, place.ranks, dcp=dcp).wait()
        pairs = zip(plan.items, kept, strict=True)
        return _done([WriteResult(item.index, one.array.bytes, one.array.name) for item, one in pairs])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Has nothing to do: the set is complete once each rank's file is there."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:
        """Whether it is a step."""
        return str(checkpoint_id).isdigit()


def _kept(plan: SavePlan, planner: SavePlanner) -> tuple[list[Kept], list[Any]]:
    """The tensors that a plan writes, and for each of them its name in the file and in DCP; of a part also the whole shape."""
    kept: list[Kept] = []
    items: list[Any] = []
    used: set[str] = set()
    for item in plan.items:
        name = item.index.fqn
        while name in used:
            name += "'"
        used.add(name)
        content = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            view = content.getbuffer()
            tensor = torch.frombuffer(view, dtype=torch.uint8) if len(view) else torch.empty(0, dtype=torch.uint8)
            kept.append(Kept(array_of(name, tensor), tensor, None, later=False))
            items.append([name, item.index.fqn])
        else:
            tensor, chunk = content.detach(), item.tensor_data.chunk
            shard = Shard(tuple(item.tensor_data.size), tuple(chunk.offsets))
            if tuple(tensor.shape) != tuple(chunk.sizes):
                raise ValueError(f"the planner gave {tuple(tensor.shape)} for {name!r}, which is to be {tuple(chunk.sizes)}")
            kept.append(Kept(array_of(name, tensor), tensor, shard, later=False))
            items.append([name, item.index.fqn, list(shard.of)])
    return kept, items


def _no_tensor(name: str, tensor: torch.Tensor) -> str:
    raise ValueError(f"{name} is a tensor: what a planner keeps beside its items has to be plain values")


def _try_number(folder: str, step: str) -> int:
    last, count = _TRIES.get(folder, (step, 0))
    _TRIES[folder] = (step, count + 1 if last == step else 1)
    return _TRIES[folder][1]


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@dataclass(frozen=True)
class _Chosen:
    """The set that a rank is going to load."""

    timestep: str
    run: str


class StorageReader(DcpReader):  # type: ignore[misc]
    """Loads the newest set of a folder that is complete and whose headers can be read, or the one of ``step``.

    All ranks choose for themselves; where a save ended meanwhile, so that they chose different ones, ``dcp.load`` fails. After
    it, ``step`` is the one that was loaded, and ``passed_over`` has newer sets that couldn't be, and why. Content that turns out
    damaged while it is read fails as well: name an older step then.
    """

    def __init__(self, folder: "str | Folder", step: "int | str | None" = None, *, pool: Pool | None = None) -> None:
        self.folder = folder if isinstance(folder, Folder) else (pool or connect())[folder]
        self.step: str | None = None if step is None else str(step)
        self._wanted = self.step
        self._members: tuple[Member, ...] = ()
        self._run = ""
        self._where: dict[tuple[str, torch.Size | None], tuple[int, str]] = {}
        self.passed_over: list[tuple[str, str]] = []
        self.bytes = self.memory_bytes = 0

    def reset(self, checkpoint_id: "str | os.PathLike[str] | int | None" = None) -> None:
        """Takes another step."""
        if checkpoint_id is not None:
            self._wanted = str(checkpoint_id)

    def read_metadata(self) -> Metadata:
        """Rebuilds DCP's metadata from the headers of the set's files.

        It takes no ``rank``: where one rank fails, DCP would let it go on without the others.
        """
        self.passed_over = []
        agent = Agent(self.folder.pool)
        try:
            await_staged(self.folder, agent)
            for timestep, members in complete_sets(self.folder, self._wanted):
                try:
                    return self._read_headers(agent, timestep, members)
                except (DamagedError, NotFoundError) as error:
                    self.passed_over.append((timestep, str(error)))
        finally:
            agent.close()
        causes = "; ".join(f"{timestep}: {why}" for timestep, why in self.passed_over)
        cause = causes or f"there is no complete set{'' if self._wanted is None else ' ' + self._wanted}"
        code = "damaged" if causes else "not-found"
        raise make({"code": code, "object": self.folder.path, "cause": cause, "next_step": "see `stdchk ls --sets`"}, [])

    def _read_headers(self, agent: Agent, timestep: str, members: tuple[Member, ...]) -> Metadata:
        files = Files(self.folder, agent, timestep, members)
        files.of(0)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="stdchk-headers") as threads:
            opened = list(threads.map(files.of, range(files.ranks)))
        metadata, where = _metadata(opened)
        self.step, self._members, self._where, self._run = timestep, members, where, opened[0].about["run"]
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Needs nothing more."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Says which set this rank has chosen."""
        assert self.step is not None
        return replace(plan, storage_data=_Chosen(self.step, self._run))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Sees to it that all ranks have chosen the same."""
        chosen = {plan.storage_data for plan in plans}
        if len(chosen) != 1:
            found = ", ".join(sorted(str(one.timestep) for one in chosen))
            cause = f"ranks chose different sets, since a save ended meanwhile: {found}"
            raise make({"code": "busy", "object": self.folder.path, "cause": cause, "next_step": "load again"}, [])
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        """Fills what the plan wants, from the agent's memory where it lies there still."""
        agent = Agent(self.folder.pool)
        try:
            assert self.step is not None
            files = Files(self.folder, agent, self.step, self._members)
            files.run = self._run
            copies = Copies()
            wanted = [item for item in plan.items if item.type == LoadItemType.TENSOR]
            tensors = [(item, self._fill(copies, files, item, planner)) for item in wanted]
            copies.run()
            for item, tensor in tensors:
                planner.commit_tensor(item, tensor)
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, self._bytes(files, item))
            self.bytes, self.memory_bytes = copies.bytes, copies.memory_bytes
        finally:
            agent.close()
        return _done(None)

    def _file(self, files: Files, index: MetadataIndex) -> tuple[SavedFile, str]:
        rank, name = self._where[index.fqn, index.offset]
        return files.of(rank), name

    def _fill(self, copies: Copies, files: Files, item: ReadItem, planner: LoadPlanner) -> torch.Tensor:
        target: torch.Tensor = planner.resolve_tensor(item).detach()
        file, name = self._file(files, item.storage_index)
        of, at = file.about["shards"][name]
        begin = tuple(here + inside for here, inside in zip(at, item.storage_offsets, strict=True))
        copies.copy(target, Shard(tuple(of), begin), file, file.tensors[name], Shard(tuple(of), tuple(at)))
        return target

    def _bytes(self, files: Files, item: ReadItem) -> io.BytesIO:
        file, name = self._file(files, item.storage_index)
        stored = file.tensors[name]
        content = file.in_memory(stored)
        if content is None:
            content = torch.empty(stored.array.shape, dtype=torch.uint8)
            if stored.array.bytes:
                file.read_into(stored.begin, memory_of(content))
        return io.BytesIO(content.numpy().tobytes())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:
        """Whether it is a step."""
        return str(checkpoint_id).isdigit()


def _metadata(files: Iterable[SavedFile]) -> tuple[Metadata, dict[tuple[str, torch.Size | None], tuple[int, str]]]:
    """DCP's metadata of a set, and of each item the rank in whose file it is, and its name there."""
    found: dict[str, Any] = {}
    where: dict[tuple[str, torch.Size | None], tuple[int, str]] = {}
    planners = []
    for file in files:
        if "dcp" not in file.about:
            raise damaged(file.name, "it is of a stdchk.torch.Checkpointer, which loads it")
        planners.append(_state.rebuild(file.about["dcp"]["planner"], _state.no_tensors))
        for name, fqn, *shape in file.about["dcp"]["items"]:
            if name not in file.tensors:
                raise damaged(file.name, f"it has no tensor {name!r}, which its header names")
            offset = None
            if shape:
                array = file.tensors[name].array
                offset = torch.Size(file.about["shards"][name][1])
                properties = TensorProperties(dtype=OF_SHORT[array.dtype])
                tensor = found.setdefault(fqn, TensorStorageMetadata(properties, torch.Size(shape[0]), []))
                tensor.chunks.append(ChunkStorageMetadata(offset, torch.Size(array.shape)))
            else:
                found[fqn] = BytesStorageMetadata()
            where[fqn, offset] = (file.about["rank"], name)
    mappings = all(isinstance(planner, dict) for planner in planners)
    return Metadata(found, planner_data=dict(ChainMap(*planners)) if mappings else planners[0]), where
