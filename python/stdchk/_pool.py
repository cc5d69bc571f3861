"""The blocking face: a pool, its folders, and their checkpoint sets."""

import os
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, overload

from stdchk import _data, _file, _stdchk
from stdchk._data import (
    Bar,
    Entry,
    Exposed,
    Fate,
    Json,
    Member,
    PassedOver,
    Progress,
    Restored,
    SetState,
    Stored,
    Version,
    progress_of,
)
from stdchk._errors import InvalidError, NotFoundError
from stdchk._file import FileReader, FileWriter

PATIENCE_S = 60.0
"""Seconds for which a manager that is away is waited for: enough for its restart."""
WATCH_EVERY_S = 1.0

ReadMode = Literal["rb", "br"]
WriteMode = Literal["wb", "bw", "ab", "ba", "xb", "bx"]


def connect(
    manager: str | None = None,
    *,
    data: "str | os.PathLike[str] | None" = None,
    keys: "str | os.PathLike[str] | None" = None,
    encryption_keys: "str | os.PathLike[str] | None" = None,
    window: str | None = None,
    config: "str | os.PathLike[str] | None" = None,
    patience: float = PATIENCE_S,
) -> "Pool":
    """Connects to a pool: the local one that ``stdchk up`` started, unless another one is named.

    The arguments are the flags of the command line; ``STDCHK_*`` variables and the configuration file fill in what is left
    out. ``patience``: seconds for which a manager that is away is waited for.
    """
    return Pool(
        manager=manager,
        data=data,
        keys=keys,
        encryption_keys=encryption_keys,
        window=window,
        config=config,
        patience=patience,
    )


class Pool:
    """A connection to a pool. It may be used by many threads, after a fork by the child, and where it is unpickled."""

    def __init__(self, **options: Any) -> None:
        """Takes the arguments of :func:`connect`, all of them."""
        self._options = options
        self._native = _stdchk.Pool(**options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _connected, (self._options,)

    @property
    def manager(self) -> str:
        """Where the manager is."""
        return self._native.manager

    def __getitem__(self, path: str) -> "Folder":
        """A folder, whether it exists or not: what is written into it makes it."""
        return Folder(self, path)

    def folders(self) -> list[str]:
        """The names of the applications' folders."""
        return [entry.name for entry in _data.entries(self._native.list("")) if entry.kind == "directory"]

    def status(self) -> Json:
        """How the pool is: what ``stdchk status --json`` prints."""
        return _data.mapping(self._native.status())

    def close(self) -> None:
        """Ends the connection, after what operations have left to the background."""
        self._native.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<stdchk.Pool {self.manager}>"


def _connected(options: dict[str, Any]) -> Pool:
    return Pool(**options)


class Folder:
    """A folder of a pool, with the files and checkpoint sets of an application. Names may lead to folders in it."""

    def __init__(self, pool: Pool, path: str) -> None:
        self.pool = pool
        self.path = path.strip("/")

    @property
    def _native(self) -> _stdchk.Pool:
        return self.pool._native

    def __getitem__(self, name: str) -> "Folder":
        return Folder(self.pool, self._join(name))

    def _join(self, name: str) -> str:
        return _data.join(self.path, name.strip("/"))

    def _plain(self, name: str) -> str:
        return _data.plain_path(self._join(name))

    @overload
    def open(self, name: str, mode: ReadMode = "rb", *, version: int | None = None) -> FileReader: ...
    @overload
    def open(self, name: str, mode: WriteMode, *, permissions: int = 0o644) -> FileWriter: ...
    def open(
        self, name: str, mode: str = "rb", *, version: int | None = None, permissions: int = 0o644
    ) -> FileReader | FileWriter:
        """Opens a file: ``rb`` reads, ``wb`` writes a new version, ``ab`` writes on, ``xb`` only if there is no such file."""
        path = self._plain(name)
        if mode in _file.READ_MODES:
            at = path if version is None else _data.version_path(self._join(name), version)
            return FileReader(self._native.read(at), self._join(name))
        if mode not in _file.WRITE_MODES or version is not None:
            raise ValueError(f"mode {mode!r} is not one of rb, wb, ab and xb, or a version is not there to be written")
        version_to_be = self._native.write(path, _file.WRITE_MODES[mode], permissions=permissions)
        return FileWriter(version_to_be, self._join(name))

    def put(
        self,
        source: "str | os.PathLike[str]",
        name: str | None = None,
        *,
        recursive: bool = False,
        progress: "Progress | Bar | None" = None,
    ) -> Stored:
        """Stores a local file under its own name or ``name``; with ``recursive`` a folder with all that is in it."""
        path = self._plain(name) if name is not None else self.path
        into_folder = name is None
        stored = self._native.put(source, path, into_folder, recursive, progress=progress_of(progress))
        return _data.stored(stored)

    def get(
        self,
        name: str,
        output: "str | os.PathLike[str]" = ".",
        *,
        version: int | None = None,
        progress: "Progress | Bar | None" = None,
    ) -> str:
        """Fetches a file to a local path, or into a local folder. The path, where the file is whole and on disk."""
        path = self._plain(name) if version is None else _data.version_path(self._join(name), version)
        found = _data.mapping(self._native.get(path, output, progress=progress_of(progress)))
        return str(found["path"])

    def read_bytes(self, name: str) -> bytes:
        """All bytes of a file."""
        source = self._native.read(self._plain(name))
        found: bytes = source.read(0, source.size)
        return found

    def write_bytes(self, name: str, content: "bytes | bytearray | memoryview") -> None:
        """Makes ``content`` the newest version of a file."""
        with self.open(name, "wb") as file:
            file.write(content)

    def ls(self, name: str = "") -> list[Entry]:
        """The entries of the folder, in the order of the names."""
        return _data.entries(self._native.list(self._join(name)))

    def entry(self, name: str = "") -> Entry:
        """The entry of this name."""
        return _data.entry(self._native.entry(self._plain(name) if name else self.path))

    def exists(self, name: str = "") -> bool:
        """Whether there is something of this name."""
        try:
            self.entry(name)
        except NotFoundError:
            return False
        return True

    def versions(self, name: str) -> list[Version]:
        """The versions of a file, oldest first."""
        return _data.versions(self._native.versions(self._plain(name)))

    def mkdir(self, name: str = "") -> None:
        """Makes a folder, and those above it, where they are missing."""
        self._native.make_folder(self._join(name))

    def rmdir(self, name: str = "") -> None:
        """Removes a folder that is empty."""
        self._native.remove_folder(self._join(name))

    def remove(self, name: str = "", *, recursive: bool = False, version: int | None = None) -> None:
        """Removes a file, one version of it, or with ``recursive`` a folder with all that is in it."""
        path = self._plain(name) if name else self.path
        at = path if version is None else _data.version_path(self._join(name), version)
        self._native.remove(at, recursive)

    def rename(self, name: str, to: str, *, replace: bool = True) -> None:
        """Renames a file or folder in one step; a file that has the new name gets the moved one as its newest version."""
        self._native.rename(self._plain(name), self._plain(to), replace)

    def sets(self) -> list[SetState]:
        """The checkpoint sets, newest timestep first."""
        return _data.sets(self._native.sets(self.path))

    def latest(self, *, wait: float | None = None, or_older: bool = False, check: bool = False) -> "CheckpointSet | None":
        """The newest checkpoint set that is complete and intact; ``None`` if there is none.

        ``wait``: seconds for which hosts that are away are waited for. ``or_older``: takes an older set in place of one that is
        away. ``check``: reads every block of it now.
        """
        return set_of(self, self._native.latest(self.path, wait, or_older, check))

    def restore(
        self,
        output: "str | os.PathLike[str]",
        timestep: "str | int | None" = None,
        *,
        wait: float | None = None,
        or_older: bool = False,
        progress: "Progress | Bar | None" = None,
    ) -> Restored:
        """Fetches the files of a set into a local folder; of the newest one that is intact, unless ``timestep`` names one."""
        wanted = None if timestep is None else str(timestep)
        restored = self._native.restore(self.path, wanted, output, wait, or_older, progress=progress_of(progress))
        return _data.restored(restored)

    def watch(self, *, every: float = WATCH_EVERY_S, timeout: float | None = None) -> "Iterator[CheckpointSet]":
        """Yields each new complete set, from the newest one that is there on; ends after ``timeout`` seconds without one."""
        last = None
        since = time.monotonic()
        while True:
            found = self.latest(or_older=True)
            if found is not None and found.timestep != last:
                last, since = found.timestep, time.monotonic()
                yield found
                continue
            if timeout is not None and time.monotonic() - since >= timeout:
                return
            time.sleep(every)

    @property
    def policy(self) -> "Policy":
        """How files here are stored, protected and named."""
        return Policy(self)

    def seal(self, timestep: "str | int", sealed: bool = True) -> None:
        """Lets no lifetime remove a set; with ``sealed=False`` takes that back."""
        self._native.seal(self.path, str(timestep), sealed)

    def done(self, *, dry_run: bool = False) -> list[Fate]:
        """The job has succeeded: all sets but the newest complete one go, except what is sealed or kept by the lifetime."""
        return _data.fates(self._native.done(self.path, dry_run))

    def verify(self, *, progress: "Progress | Bar | None" = None) -> Json:
        """Reads every block where it lies: what ``stdchk verify --json`` prints."""
        return _data.mapping(self._native.verify(self.path, progress=progress_of(progress)))

    def usage(self) -> Json:
        """The bytes that the versions hold, as ``stdchk du --json`` prints them."""
        return _data.mapping(self._native.usage(self.path))

    def __repr__(self) -> str:
        return f"<stdchk.Folder {self.path}>"


class Policy(MutableMapping[str, str]):
    """The policy of a folder, as ``stdchk policy`` has it. A change holds for later writes."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def _pairs(self) -> dict[str, str]:
        native = self._folder._native
        try:
            return _data.pairs(native.policy(self._folder.path))
        except NotFoundError:
            # A folder that is still to be made gets the pool's own.
            return _data.pairs(native.policy(""))

    def __getitem__(self, key: str) -> str:
        return self._pairs()[key]

    def __setitem__(self, key: str, value: object) -> None:
        self.update({key: str(value)})

    def __delitem__(self, key: str) -> None:
        """Takes a key back to its default."""
        self.update({key: ""})

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs())

    def __len__(self) -> int:
        return len(self._pairs())

    def update(self, *others: Any, **pairs: object) -> None:
        """Sets several keys in one step, all or none."""
        given = {key: str(value) for key, value in dict(*others, **pairs).items()}
        folder = self._folder
        folder._native.set_policy(folder.path, list(given.items()))

    def __repr__(self) -> str:
        return f"Policy({self._pairs()!r})"


@dataclass(frozen=True)
class CheckpointSet:
    """The files of one timestep, all of them committed and intact as far as the pool knows.

    ``timestep`` is as the code wrote it. ``passed_over``: newer sets that can't be restarted from, and why.
    """

    folder: Folder
    timestep: str
    files: tuple[Member, ...]
    exposed: Exposed
    passed_over: tuple[PassedOver, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.bytes for file in self.files)

    def member(self, rank: "int | str") -> Member:
        """The file of a rank, or of a name."""
        return member_of(self.files, rank, self.timestep)

    def open(self, rank: "int | str" = 0) -> FileReader:
        """Opens the file of a rank, or of a name, at the version that belongs to the set."""
        member = self.member(rank)
        return self.folder.open(member.name, version=member.version)

    def restore(self, output: "str | os.PathLike[str]", *, progress: "Progress | Bar | None" = None) -> Restored:
        """Fetches its files into a local folder. Files that are there already and match are left alone."""
        return self.folder.restore(output, self.timestep, progress=progress)


def member_of(files: tuple[Member, ...], rank: "int | str", timestep: str) -> Member:
    """The file of a rank, of a name, or the only one."""
    fitting = [file for file in files if rank in (file.rank, file.name)]
    if not fitting and rank == 0 and len(files) == 1:
        return files[0]
    if len(fitting) != 1:
        error = InvalidError(0, "")
        error.code, error.object = "invalid", f"timestep {timestep}"
        error.cause = f"{len(fitting)} of its {len(files)} files are of rank or name {rank!r}"
        error.next_step = "give the name of a file, as `files` lists them"
        raise error
    return fitting[0]


def set_of(folder: Folder, text: str) -> CheckpointSet | None:
    """The set that an answer tells of, if it does."""
    found = _data.mapping(text)
    if found is None:
        return None
    return CheckpointSet(folder, *_data.set_fields(found))
