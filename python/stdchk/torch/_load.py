"""Loads a state from the newest set that is whole: each rank reads what it needs, from the agent's memory if possible."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stdchk import _data
from stdchk._agent import Agent, Held
from stdchk._data import Member
from stdchk._errors import DamagedError, Error, NotFoundError, make
from stdchk._layout import Array, Stored, damaged, parse, read_header
from stdchk._pool import Folder
from stdchk.torch import _state
from stdchk.torch._saver import FILE
from stdchk.torch._tensors import OF_SHORT, Shard, is_distributed, local_part, memory_of, storage_of

if TYPE_CHECKING:
    from stdchk.torch._checkpointer import Checkpointer

THREADS = 8
AGENT_PATIENCE_S = 60.0
"""Seconds for which a load waits for what an earlier trainer staged; then it takes what the pool has."""
PIECE_BYTES = 16 << 20
"""Bytes that one thread reads at once."""


@dataclass(frozen=True)
class Loaded:
    """The result of a load. ``state``: the values that are neither modules nor tensors nor other objects that were filled."""

    step: "int | str"
    state: dict[str, Any]
    bytes: int
    """Bytes that were filled."""
    memory_bytes: int
    """Those of them that came from the agent's memory."""
    seconds: float
    passed_over: tuple[tuple[str, str], ...]
    """Newer sets that can't be loaded, and why."""


@dataclass
class SavedFile:
    """A file of a set: from the agent's memory, or from the pool."""

    name: str
    tensors: dict[str, Stored]
    about: dict[str, Any]
    held: Held | None
    reader: Any
    _whole: "torch.Tensor | None" = field(default=None, repr=False)

    def in_memory(self, stored: Stored) -> "torch.Tensor | None":
        """The tensor in the agent's memory, not to be changed; ``None``: it is to be read."""
        if self.held is None:
            return None
        if self._whole is None:
            self._whole = _bytes_of(self.held)
        at = _in_region(self.held, stored.begin, stored.array.bytes, self.name)
        found = self._whole[at : at + stored.array.bytes]
        return found.view(OF_SHORT[stored.array.dtype]).view(stored.array.shape)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills a buffer with the bytes of the file from ``offset`` on."""
        read = self.reader.read_into(offset, buffer)
        if read != len(buffer):
            raise damaged(self.name, f"it has no {len(buffer)} bytes at {offset}")


def _bytes_of(held: Held) -> torch.Tensor:
    import warnings

    with warnings.catch_warnings():
        # It is memory that can't be written to, and nothing writes to it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(held.memory, dtype=torch.uint8)


def _in_region(held: Held, begin: int, size: int, name: str) -> int:
    for piece in held.pieces:
        if piece.file <= begin and begin + size <= piece.file + piece.length:
            return piece.region + begin - piece.file
    if size == 0:
        return 0
    raise damaged(name, "the agent's memory does not have all of it")


class Files:
    """The files of a set, opened as they are needed."""

    def __init__(self, folder: Folder, agent: Agent, timestep: str, members: tuple[Member, ...]) -> None:
        self._folder, self._agent = folder, agent
        self.timestep = timestep
        self._members = {member.rank: member for member in members if member.rank is not None}
        self._open: dict[int, SavedFile] = {}
        self.ranks = len(self._members)
        self.run: str | None = None

    def of(self, rank: int) -> SavedFile:
        """The file of a rank. All files of a set are of one save."""
        if rank not in self._open:
            file = self._opened(self._members[rank])
            if self.run is None:
                self.run = file.about["run"]
            if (file.about["run"], file.about["rank"], file.about["ranks"]) != (self.run, rank, self.ranks):
                raise damaged(file.name, "it is of another save than the set's other files: the job was started again meanwhile")
            self._open[rank] = file
        return self._open[rank]

    def all(self) -> list[SavedFile]:
        """Those of all ranks."""
        return [self.of(rank) for rank in range(self.ranks)]

    def _opened(self, member: Member) -> SavedFile:
        path = _data.plain_path(f"{self._folder.path}/{member.name}")
        reader = self._folder._native.read(_data.version_path(path, member.version))
        length = read_header(reader.read(0, 8), member.name)
        text, size = reader.read(8, length), reader.size
        held = self._agent.held(path, member.version)
        # A file that was removed and made anew has the versions of the old one; each save has a header of its own.
        if held is not None and held.memory[8 : 8 + length] != text:
            held = None
        tensors, metadata = parse(text, size, member.name)
        try:
            about = json.loads(metadata["stdchk"])
            missing = [
                key
                for key in ("format", "run", "rank", "ranks", "alike", "sharded", "shards", "state", "step")
                if key not in about
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(member.name, "it was not saved by stdchk.torch") from error
        if missing or about["format"] != 1:
            raise damaged(member.name, f"its format is {about.get('format')}, and this version of stdchk knows 1")
        return SavedFile(member.name, tensors, about, held, reader)


class Copies:
    """Copies into tensors: gathered first, then done by several threads."""

    def __init__(self) -> None:
        self._jobs: list[Callable[[], None]] = []
        self.bytes = self.memory_bytes = 0

    def copy(self, local: torch.Tensor, wanted: Shard, file: SavedFile, stored: Stored, part: Shard) -> int:
        """Copies what a stored part has of the wanted one; the number of elements."""
        inside, there = [], []
        for at, extent, from_at, from_extent in zip(wanted.at, local.shape, part.at, stored.array.shape, strict=True):
            begin, end = max(at, from_at), min(at + extent, from_at + from_extent)
            if begin >= end:
                return 0
            inside.append(slice(begin - at, end - at))
            there.append(slice(begin - from_at, end - from_at))
        target = local[tuple(inside)]
        stored, there = _rows(stored, there)
        size = target.numel() * target.element_size()
        self.bytes += size
        is_whole = tuple(target.shape) == stored.array.shape
        source = file.in_memory(stored)
        if source is not None:
            self.memory_bytes += size
            self._in_pieces(target, source[tuple(there)])
        elif is_whole and target.device.type == "cpu" and target.is_contiguous() and target.dtype == OF_SHORT[stored.array.dtype]:
            self._read(file, stored.begin, memory_of(target), keep=target)
        else:
            self._jobs.append(lambda: _through_memory(target, file, stored, tuple(there)))
        return int(target.numel())

    def _in_pieces(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies of a large tensor by several threads."""
        rows = target.shape[0] if target.dim() else 1
        step = max(1, rows * PIECE_BYTES // max(1, target.numel() * target.element_size()))
        if rows <= step or target.dim() == 0:
            self._jobs.append(lambda: _copied(target, source))
            return
        for begin in range(0, rows, step):
            to, out = target[begin : begin + step], source[begin : begin + step]
            self._jobs.append(lambda to=to, out=out: _copied(to, out))  # type: ignore[misc]

    def _read(self, file: SavedFile, begin: int, memory: memoryview, keep: torch.Tensor) -> None:
        for at in range(0, len(memory), PIECE_BYTES):
            piece = memory[at : at + PIECE_BYTES]
            # The tensor has to outlive its memory's view.
            self._jobs.append(lambda at=at, piece=piece, keep=keep: file.read_into(begin + at, piece))  # type: ignore[misc]

    def run(self) -> None:
        """Does it all."""
        with ThreadPoolExecutor(THREADS, thread_name_prefix="stdchk-load") as threads:
            for done in [threads.submit(job) for job in self._jobs]:
                done.result()
        self._jobs.clear()


class Filling(Copies):
    """The copies that fill a state's tensors."""

    def __init__(self, files: Files, rank: int, ranks: int) -> None:
        super().__init__()
        self._files = files
        self._is_same = files.ranks == ranks
        self.own = files.of(rank) if self._is_same else files.of(0)
        self._alike = set(self.own.about["alike"])
        self._sharded = set(self.own.about["sharded"])

    def is_sharded(self, name: str) -> bool:
        """Whether ranks have parts of this tensor."""
        return name in self._sharded

    def _shards(self, name: str, wanted: Shard, shape: tuple[int, ...]) -> list[tuple[SavedFile, Stored, Shard]]:
        """Where the parts of a tensor are; only this rank's own file if that has all that is wanted."""
        is_own = _part(self.own, name) == wanted and self.own.tensors[name].array.shape == shape
        files = [self.own] if is_own else self._files.all()
        found = [(file, part) for file in files if (part := _part(file, name)) is not None]
        return [(file, file.tensors[name], part) for file, part in found]

    def whole_file(self, name: str) -> SavedFile:
        """The file with a tensor that isn't sharded."""
        if name in self._alike:
            return self._files.of(0)
        if self._is_same or self._files.ranks == 1:
            return self.own
        cause = f"each of {self._files.ranks} ranks saved its own, and it can't be given to another number of ranks"
        next_step = "leave this part out of `load`, or start as many ranks as it was saved by"
        raise make({"code": "invalid", "object": name, "cause": cause, "next_step": next_step}, [])

    def stored(self, name: str) -> tuple[SavedFile, Stored]:
        """A tensor that isn't sharded."""
        file = self.whole_file(name)
        if name not in file.tensors:
            raise damaged(file.name, f"it has no tensor {name!r}, which its state names")
        return file, file.tensors[name]

    def fill(self, target: torch.Tensor, name: str) -> None:
        """Fills a tensor, or this rank's part of it."""
        local, shard, _ = local_part(target)
        wanted = shard or Shard(tuple(local.shape), (0,) * local.dim())
        if self.is_sharded(name):
            parts = self._shards(name, wanted, tuple(local.shape))
        else:
            file, stored = self.stored(name)
            parts = [(file, stored, Shard(stored.array.shape, (0,) * len(stored.array.shape)))]
        filled = 0
        for file, stored, part in parts:
            if part.of != wanted.of:
                cause = f"it was saved with the shape {part.of}, and is to be loaded into one of {wanted.of}"
                next_step = "load it into a model of the same shape"
                raise make({"code": "invalid", "object": name, "cause": cause, "next_step": next_step}, [])
            filled += self.copy(local, wanted, file, stored, part)
        if filled != local.numel():
            raise damaged(self.own.name, f"the ranks' files have {filled} of {local.numel()} elements of {name!r}")

    def new(self, name: str, like: "torch.Tensor | None" = None) -> torch.Tensor:
        """A new tensor of the host with a stored content, or one that lies as ``like`` does where it is sharded."""
        if self.is_sharded(name):
            if like is None:
                cause = "ranks saved parts of it, and there is no tensor to say which part belongs here"
                next_step = "load it into a module, an optimizer or a DTensor"
                raise make({"code": "invalid", "object": name, "cause": cause, "next_step": next_step}, [])
            sharded = next(file for file in [self.own, *self._files.all()] if name in file.tensors)
            found = torch.empty_like(like, dtype=OF_SHORT[sharded.tensors[name].array.dtype])
        else:
            _, stored = self.stored(name)
            found = torch.empty(stored.array.shape, dtype=OF_SHORT[stored.array.dtype], device="cpu")
        self.fill(found, name)
        return found


def _rows(stored: Stored, there: list[slice]) -> tuple[Stored, list[slice]]:
    """The wanted part of a tensor, as a tensor of its own if it is some of its rows: the others are not read then."""
    shape = stored.array.shape
    if not shape or any(part != slice(0, extent) for part, extent in zip(there[1:], shape[1:], strict=True)):
        return stored, there
    rows = Array(stored.array.name, stored.array.dtype, (there[0].stop - there[0].start, *shape[1:]))
    row_bytes = stored.array.bytes // shape[0]
    return Stored(rows, stored.begin + there[0].start * row_bytes), [slice(0, extent) for extent in rows.shape]


def _part(file: SavedFile, name: str) -> Shard | None:
    """The part of a sharded tensor that a file has."""
    if name not in file.about["shards"]:
        return None
    of, at = file.about["shards"][name]
    return Shard(tuple(of), tuple(at))


def _copied(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)


def _through_memory(target: torch.Tensor, file: SavedFile, stored: Stored, there: tuple[slice, ...]) -> None:
    read = torch.empty(stored.array.shape, dtype=OF_SHORT[stored.array.dtype], device="cpu")
    if stored.array.bytes:
        file.read_into(stored.begin, memory_of(read))
    _copied(target, read[there])


def load(owner: "Checkpointer", step: str | None, wanted: dict[str, Any]) -> Loaded | None:
    """See :meth:`stdchk.torch.Checkpointer.load`."""
    began = time.monotonic()
    owner._together(lambda: await_staged(owner.folder, owner._agent))
    # Ranks without torch.distributed hear nothing from rank 0: each looks for itself.
    looks = owner.rank == 0 or not owner._is_collective
    sets: list[tuple[str, tuple[Member, ...]]] = []
    owner._together(lambda: sets.extend(complete_sets(owner.folder, step)) if looks else None)
    candidates = owner._agreed(sets)
    passed: list[tuple[str, str]] = []
    for timestep, members in candidates:
        files = Files(owner.folder, owner._agent, timestep, members)
        found: list[tuple[dict[str, Any], Filling]] = []
        error: Exception | None = None
        try:
            if looks:
                error = failure(files.all)
            files.run = owner._agreed(files.run)
            if error is None:
                error = failure(partial(_load_into, found, owner, files, wanted))
        finally:
            owner._agent.release()
        outcomes = owner._gathered(_verdict(error))
        if all(outcome is None for outcome in outcomes):
            ((state, filling),) = found
            seconds = time.monotonic() - began
            number = int(timestep) if timestep.lstrip("-").isdigit() else timestep
            return Loaded(number, state, filling.bytes, filling.memory_bytes, seconds, tuple(passed))
        fatal = [outcome for outcome in outcomes if outcome is not None and not outcome[0]]
        if fatal:
            raise error or make({"code": "other", "object": timestep, "cause": fatal[0][1], "next_step": ""}, [])
        passed.append((timestep, next(outcome[1] for outcome in outcomes if outcome is not None)))
    if passed or step is not None:
        causes = "; ".join(f"{timestep}: {why}" for timestep, why in passed) or f"there is no complete set {step}"
        next_step = "see `stdchk ls --sets` and `stdchk verify`; a host that is away may have what is missing"
        code = "damaged" if passed else "not-found"
        raise make({"code": code, "object": owner.folder.path, "cause": causes, "next_step": next_step}, [])
    return None


def await_staged(folder: Folder, agent: Agent) -> None:
    """Lets the agent store what an earlier trainer of the folder left with it."""
    until = time.monotonic() + AGENT_PATIENCE_S
    below = f"{folder.path}/"
    while time.monotonic() < until:
        regions = agent.status()["regions"]
        if not any(region["state"] == "storing" and region["file"].startswith(below) for region in regions):
            return
        time.sleep(0.02)


def failure(work: Callable[[], object]) -> Exception | None:
    """The error of some work: no rank leaves the others alone with it."""
    try:
        work()
    except Exception as error:
        return error
    return None


def _verdict(error: Exception | None) -> tuple[bool, str] | None:
    """Whether an older set may be taken after this error, and its text; ``None``: there is none."""
    return None if error is None else (isinstance(error, DamagedError | NotFoundError), str(error) or repr(error))


def complete_sets(folder: Folder, step: str | None) -> list[tuple[str, tuple[Member, ...]]]:
    """The complete sets, newest first; the others are of a job that was killed while it saved.

    Several starts of a job may have saved one step, and not all of them whole: each save is looked at for itself.
    """
    try:
        sets = folder.sets()
    except Error as error:
        if error.code == "not-found":
            return []
        raise
    found = []
    for one in sets:
        if step in (None, one.timestep):
            saves = _whole_saves(one.files)
            if len(saves) > 1:
                written = {f"{one.timestep}/{entry.name}": entry.mtime for entry in folder.ls(one.timestep)}
                saves.sort(key=lambda save: max(written[member.name] for member in save), reverse=True)
            found += [(one.timestep, save) for save in saves]
    return found


def _whole_saves(files: tuple[Member, ...]) -> list[tuple[Member, ...]]:
    """The files of each save of a step that has those of all its ranks."""
    saves: dict[tuple[int, str], dict[int, Member]] = {}
    for member in files:
        if matched := FILE.fullmatch(member.name):
            rank, ranks, tag = matched.groups()
            saves.setdefault((int(ranks), tag), {})[int(rank)] = member
    return [tuple(found.values()) for (ranks, _), found in saves.items() if found.keys() == set(range(ranks))]


def _load_into(found: list[tuple[dict[str, Any], Filling]], owner: "Checkpointer", files: Files, wanted: dict[str, Any]) -> None:
    found.append(load_set(files, owner.rank, owner.ranks, wanted))


def load_set(files: Files, rank: int, ranks: int, wanted: dict[str, Any]) -> tuple[dict[str, Any], Filling]:
    """Loads one set: what is wanted of it, and its values without tensors."""
    filling = Filling(files, rank, ranks)
    _, *parts = filling.own.about["state"]
    trees = dict(parts)
    missing = [part for part in wanted if part not in trees]
    if missing:
        cause = f"the set has no part {missing[0]!r}; it has {', '.join(map(repr, trees))}"
        raise make(
            {"code": "invalid", "object": f"timestep {files.timestep}", "cause": cause, "next_step": "load what was saved"}, []
        )
    later: list[Callable[[], None]] = []
    state: dict[str, Any] = {}
    for part, tree in trees.items():
        if part in wanted or not _state.names(tree):
            _load_part(filling, part, tree, wanted.get(part), state, later)
    filling.run()
    for job in later:
        job()
    return state, filling


def _load_part(
    filling: Filling, part: str, tree: Any, value: Any, state: dict[str, Any], later: list[Callable[[], None]]
) -> None:
    """Fills one part; ``later`` gets what is done once all is read."""
    if isinstance(value, torch.Tensor) and tree[:1] == ["x"]:
        filling.fill(value, tree[1])
    elif isinstance(value, torch.nn.Module):
        _load_module(filling, part, tree, value, later)
    elif isinstance(value, torch.optim.Optimizer):
        build = _optimizer_state(filling, tree, value)
        later.append(lambda: value.load_state_dict(build()))
    else:
        build = _built(filling, tree)
        if hasattr(value, "load_state_dict"):
            later.append(lambda: value.load_state_dict(build()))
        else:
            later.append(lambda: state.__setitem__(part, build()))


def _load_module(filling: Filling, part: str, tree: Any, module: torch.nn.Module, later: list[Callable[[], None]]) -> None:
    saved = dict(tree[1:])
    here = module.state_dict()
    if saved.keys() != here.keys():
        lacks, extra = sorted(here.keys() - saved.keys()), sorted(saved.keys() - here.keys())
        cause = f"it was saved from another model: the set lacks {lacks[:3]}, and has {extra[:3]} besides"
        raise make({"code": "invalid", "object": part, "cause": cause, "next_step": "load into the model that was saved"}, [])
    own = {storage_of(tensor) for tensor in (*module.parameters(), *module.buffers())}
    rest: list[Any] = ["d"]
    like: dict[str, torch.Tensor] = {}
    for key, held in here.items():
        if isinstance(held, torch.Tensor) and (storage_of(held) in own or not held.numel()):
            filling.fill(held, saved[key][1])
        else:
            # A module that gives copies, or extra state, takes them back by `load_state_dict`.
            rest.append([key, saved[key]])
            if isinstance(held, torch.Tensor) and is_distributed(held):
                like |= dict.fromkeys(_state.names(saved[key]), held)
    if len(rest) > 1:
        tensors = {name: filling.new(name, like.get(name)) for name in _state.names(rest)}
        later.append(lambda: module.load_state_dict(_state.rebuild(rest, tensors.__getitem__), strict=False))


def _built(filling: Filling, tree: Any, like: "torch.Tensor | None" = None) -> Callable[[], Any]:
    """Gives a value once its tensors are filled. A sharded tensor lies as ``like`` does."""
    tensors = {name: filling.new(name, like) for name in _state.names(tree)}
    return lambda: _state.rebuild(tree, tensors.__getitem__)


def _optimizer_state(filling: Filling, tree: Any, optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """Gives the dictionary for ``load_state_dict``. The state of a sharded parameter is sharded as that is."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    saved = dict(tree[1:])
    by_parameter = {}
    for key, held in saved["state"][1:]:
        like = parameters[key] if isinstance(key, int) and key < len(parameters) else None
        by_parameter[key] = _built(filling, held, like)
    rest = _built(filling, ["d", *([key, held] for key, held in saved.items() if key != "state")])
    return lambda: {**rest(), "state": {key: build() for key, build in by_parameter.items()}}
