"""The same for asyncio: the names and arguments of :mod:`stdchk`, to be awaited.

A task that is cancelled ends its operation: what it had not finished did not happen.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

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
from stdchk._errors import NotFoundError
from stdchk._pool import PATIENCE_S, WATCH_EVERY_S, member_of

T = TypeVar("T")
Path = str | os.PathLike[str]


async def _ended(start: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The result of an operation, which ends if this is cancelled."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def done(result: Any, error: BaseException | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    progress = named.get("progress")
    if progress is not None:
        named["progress"] = lambda moved, total: loop.call_soon_threadsafe(progress, moved, total)
    underway = start(*arguments, done=done, **named)
    if underway is None:
        return None
    try:
        return await future
    except asyncio.CancelledError:
        underway.cancel()
        raise


async def connect(
    manager: str | None = None,
    *,
    data: Path | None = None,
    keys: Path | None = None,
    encryption_keys: Path | None = None,
    window: str | None = None,
    config: Path | None = None,
    patience: float = PATIENCE_S,
) -> "Pool":
    """Connects to a pool; see :func:`stdchk.connect`."""
    return Pool(
        await asyncio.to_thread(
            _stdchk.Pool,
            manager=manager,
            data=data,
            keys=keys,
            encryption_keys=encryption_keys,
            window=window,
            config=config,
            patience=patience,
        )
    )


class Pool:
    """A connection to a pool."""

    def __init__(self, connection: _stdchk.Pool) -> None:
        self._native = connection

    @property
    def manager(self) -> str:
        """Where the manager is."""
        return self._native.manager

    def __getitem__(self, path: str) -> "Folder":
        """A folder, whether it exists or not."""
        return Folder(self, path)

    async def folders(self) -> list[str]:
        """The names of the applications' folders."""
        entries = _data.entries(await _ended(self._native.list, ""))
        return [entry.name for entry in entries if entry.kind == "directory"]

    async def status(self) -> Json:
        """How the pool is."""
        return _data.mapping(await _ended(self._native.status))

    async def close(self) -> None:
        """Ends the connection."""
        await _ended(self._native.close)

    async def __aenter__(self) -> "Pool":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class FileReader:
    """One version of a file, which stays the same whatever is written meanwhile."""

    def __init__(self, source: _stdchk.Reader, name: str) -> None:
        self._source = source
        self._at = 0
        self.name = name
        self.size: int = source.size
        self.version: int | None = source.version

    async def read(self, length: int = -1) -> bytes:
        """Up to ``length`` bytes; all that is left by default."""
        left = max(self.size - self._at, 0)
        found: bytes = await _ended(self._source.read, self._at, left if length < 0 else min(length, left))
        self._at += len(found)
        return found

    async def readinto(self, buffer: "bytearray | memoryview") -> int:
        """Fills a buffer; the number of bytes, fewer only where the file ends."""
        count: int = await _ended(self._source.read_into, self._at, buffer)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to a place."""
        self._at = _file.position(offset, whence, self._at, self.size)
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    async def __aenter__(self) -> "FileReader":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class FileWriter:
    """A new version of a file: ``close`` makes it durable and the newest one, an exception inside ``async with`` gives it up."""

    def __init__(self, version: _stdchk.Writer, name: str) -> None:
        self._version = version
        self._at = version.size
        self.name = name
        self.version: int | None = None
        self.closed = False

    async def write(self, content: "bytes | bytearray | memoryview") -> int:
        """Writes all of it; waits while the window is full."""
        count: int = await _ended(self._version.write, self._at, content)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to a place."""
        self._at = _file.position(offset, whence, self._at, self._version.size)
        return self._at

    def tell(self) -> int:
        """The place."""
        return self._at

    async def close(self) -> None:
        """Commits; a second time it does nothing."""
        if not self.closed:
            self.closed = True
            self.version = await _ended(self._version.commit)

    async def discard(self) -> None:
        """Gives the version up: the file is as it was."""
        self.closed = True
        await _ended(self._version.discard)

    async def __aenter__(self) -> "FileWriter":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await (self.close() if kind is None else self.discard())


class _Opening:
    """The result of ``open``: to be awaited, or entered with ``async with``."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self._file: Any = None

    def __await__(self) -> Any:
        return self._opened.__await__()

    async def __aenter__(self) -> Any:
        self._file = await self._opened
        return self._file

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._file.__aexit__(kind, error, trace)


class Folder:
    """A folder of a pool; see :class:`stdchk.Folder`."""

    def __init__(self, pool: Pool, path: str) -> None:
        self.pool = pool
        self.path = path.strip("/")
        self._native = pool._native

    def __getitem__(self, name: str) -> "Folder":
        return Folder(self.pool, self._join(name))

    def _join(self, name: str) -> str:
        return _data.join(self.path, name.strip("/"))

    def _plain(self, name: str) -> str:
        return _data.plain_path(self._join(name))

    def open(self, name: str, mode: str = "rb", *, version: int | None = None, permissions: int = 0o644) -> Any:
        """Opens a file: await it, or enter it with ``async with``."""
        return _Opening(self._open(name, mode, version, permissions))

    async def _open(self, name: str, mode: str, version: int | None, permissions: int) -> FileReader | FileWriter:
        path = self._plain(name)
        if mode in _file.READ_MODES:
            at = path if version is None else _data.version_path(self._join(name), version)
            return FileReader(await _ended(self._native.read, at), self._join(name))
        if mode not in _file.WRITE_MODES or version is not None:
            raise ValueError(f"mode {mode!r} is not one of rb, wb, ab and xb, or a version is not there to be written")
        begun = await _ended(self._native.write, path, _file.WRITE_MODES[mode], permissions=permissions)
        return FileWriter(begun, self._join(name))

    async def put(
        self,
        source: Path,
        name: str | None = None,
        *,
        recursive: bool = False,
        progress: "Progress | Bar | None" = None,
    ) -> Stored:
        """Stores a local file, or with ``recursive`` a folder."""
        path = self._plain(name) if name is not None else self.path
        start, moved = self._native.put, progress_of(progress)
        return _data.stored(await _ended(start, source, path, name is None, recursive, progress=moved))

    async def get(
        self,
        name: str,
        output: Path = ".",
        *,
        version: int | None = None,
        progress: "Progress | Bar | None" = None,
    ) -> str:
        """Fetches a file."""
        path = self._plain(name) if version is None else _data.version_path(self._join(name), version)
        found = await _ended(self._native.get, path, output, progress=progress_of(progress))
        return str(_data.mapping(found)["path"])

    async def read_bytes(self, name: str) -> bytes:
        """All bytes of a file."""
        async with self.open(name) as file:
            found: bytes = await file.read()
        return found

    async def write_bytes(self, name: str, content: "bytes | bytearray | memoryview") -> None:
        """Makes ``content`` the newest version of a file."""
        async with self.open(name, "wb") as file:
            await file.write(content)

    async def ls(self, name: str = "") -> list[Entry]:
        """The entries of the folder."""
        return _data.entries(await _ended(self._native.list, self._join(name)))

    async def entry(self, name: str = "") -> Entry:
        """The entry of this name."""
        return _data.entry(await _ended(self._native.entry, self._plain(name) if name else self.path))

    async def exists(self, name: str = "") -> bool:
        """Whether there is something of this name."""
        try:
            await self.entry(name)
        except NotFoundError:
            return False
        return True

    async def versions(self, name: str) -> list[Version]:
        """The versions of a file, oldest first."""
        return _data.versions(await _ended(self._native.versions, self._plain(name)))

    async def mkdir(self, name: str = "") -> None:
        """Makes a folder."""
        await _ended(self._native.make_folder, self._join(name))

    async def rmdir(self, name: str = "") -> None:
        """Removes a folder that is empty."""
        await _ended(self._native.remove_folder, self._join(name))

    async def remove(self, name: str = "", *, recursive: bool = False, version: int | None = None) -> None:
        """Removes a file, one version of it, or a folder."""
        path = self._plain(name) if name else self.path
        at = path if version is None else _data.version_path(self._join(name), version)
        await _ended(self._native.remove, at, recursive)

    async def rename(self, name: str, to: str, *, replace: bool = True) -> None:
        """Renames a file or folder in one step."""
        await _ended(self._native.rename, self._plain(name), self._plain(to), replace)

    async def sets(self) -> list[SetState]:
        """The checkpoint sets, newest timestep first."""
        return _data.sets(await _ended(self._native.sets, self.path))

    async def latest(self, *, wait: float | None = None, or_older: bool = False, check: bool = False) -> "CheckpointSet | None":
        """The newest checkpoint set that is complete and intact."""
        found = _data.mapping(await _ended(self._native.latest, self.path, wait, or_older, check))
        return None if found is None else CheckpointSet(self, *_data.set_fields(found))

    async def restore(
        self,
        output: Path,
        timestep: "str | int | None" = None,
        *,
        wait: float | None = None,
        or_older: bool = False,
        progress: "Progress | Bar | None" = None,
    ) -> Restored:
        """Fetches the files of a set."""
        wanted = None if timestep is None else str(timestep)
        start, moved = self._native.restore, progress_of(progress)
        return _data.restored(await _ended(start, self.path, wanted, output, wait, or_older, progress=moved))

    async def watch(self, *, every: float = WATCH_EVERY_S, timeout: float | None = None) -> "AsyncIterator[CheckpointSet]":
        """Yields each new complete set, from the newest one that is there on."""
        last = None
        since = time.monotonic()
        while True:
            found = await self.latest(or_older=True)
            if found is not None and found.timestep != last:
                last, since = found.timestep, time.monotonic()
                yield found
                continue
            if timeout is not None and time.monotonic() - since >= timeout:
                return
            await asyncio.sleep(every)

    async def policy(self) -> dict[str, str]:
        """How files here are stored, protected and named."""
        try:
            return _data.pairs(await _ended(self._native.policy, self.path))
        except NotFoundError:
            return _data.pairs(await _ended(self._native.policy, ""))

    async def set_policy(self, **pairs: object) -> None:
        """Sets several keys in one step, all or none; an empty value takes a key back to its default."""
        given = [(key, str(value)) for key, value in pairs.items()]
        await _ended(self._native.set_policy, self.path, given)

    async def seal(self, timestep: "str | int", sealed: bool = True) -> None:
        """Lets no lifetime remove a set."""
        await _ended(self._native.seal, self.path, str(timestep), sealed)

    async def done(self, *, dry_run: bool = False) -> list[Fate]:
        """The job has succeeded."""
        # The operation's own name is that of the argument of all others.
        return _data.fates(await asyncio.to_thread(self._native.done, self.path, dry_run))

    async def verify(self, *, progress: "Progress | Bar | None" = None) -> Json:
        """Reads every block where it lies."""
        return _data.mapping(await _ended(self._native.verify, self.path, progress=progress_of(progress)))

    async def usage(self) -> Json:
        """The bytes that the versions hold."""
        return _data.mapping(await _ended(self._native.usage, self.path))


@dataclass(frozen=True)
class CheckpointSet:
    """The files of one timestep; see :class:`stdchk.CheckpointSet`."""

    folder: Folder
    timestep: str
    files: tuple[Member, ...]
    exposed: Exposed
    passed_over: tuple[PassedOver, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.bytes for file in self.files)

    def open(self, rank: "int | str" = 0) -> Any:
        """Opens the file of a rank, or of a name."""
        member = member_of(self.files, rank, self.timestep)
        return self.folder.open(member.name, version=member.version)

    async def restore(self, output: Path, *, progress: "Progress | Bar | None" = None) -> Restored:
        """Fetches its files into a local folder."""
        return await self.folder.restore(output, self.timestep, progress=progress)
