"""The file system ``stdchk://FOLDER/NAME`` of fsspec, for pandas, dask, xarray, PyTorch's distributed checkpoints and others.

Storage options are the arguments of :func:`stdchk.connect`: ``fsspec.filesystem("stdchk", data="/srv/pool")``.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from stdchk import _data
from stdchk._file import FileReader, FileWriter
from stdchk._pool import Folder, connect

RANGES_AT_ONCE = 8
"""Ranges that are read at the same time: as many as a stripe has hosts by default, and more than two cores can verify."""
COPY_BYTES = 8 << 20

Info = dict[str, Any]


class StdchkFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A pool as a file system of fsspec. A file appears, whole and durable, when it is closed."""

    protocol = "stdchk"
    root_marker = ""

    def __init__(self, *args: Any, **storage_options: Any) -> None:
        super().__init__(*args, **storage_options)
        ours = {key: value for key, value in storage_options.items() if key in _OPTIONS}
        self.pool = connect(*args, **ours)
        self._root: Folder = self.pool[""]

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        for prefix in ("stdchk://", "stdchk::"):
            path = path.removeprefix(prefix)
        return path.strip("/")

    def info(self, path: str, **kwargs: Any) -> Info:
        path = self._strip_protocol(path)
        if not path:
            return {"name": "", "size": 0, "type": "directory"}
        return _info(path, self._root.entry(path))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        found = self.info(path)
        if found["type"] == "directory":
            infos = [_info(_data.join(path, entry.name), entry) for entry in self._root.ls(path)]
        else:
            infos = [found]
        return infos if detail else [info["name"] for info in infos]

    def exists(self, path: str, **kwargs: Any) -> bool:
        path = self._strip_protocol(path)
        return not path or self._root.exists(path)

    def created(self, path: str) -> datetime:
        """When the oldest version that is kept was committed."""
        versions = self._root.versions(self._strip_protocol(path))
        return versions[0].committed_at if versions else self.modified(path)

    def modified(self, path: str) -> datetime:
        modified: datetime = self._root.entry(self._strip_protocol(path)).mtime
        return modified

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if self.exists(path):
            raise FileExistsError(path)
        parent = self._parent(path)
        if not create_parents and not self.exists(parent):
            raise FileNotFoundError(parent)
        self._root.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        if path:
            self._root.mkdir(path)

    def rmdir(self, path: str) -> None:
        self._root.rmdir(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self._root.remove(self._strip_protocol(path))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        for one in self.expand_path(path) if _has_magic(path) else _listed(path):
            self._root.remove(self._strip_protocol(one), recursive=recursive)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file. The pool has its chunks already, so what is stored anew is the version alone."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        with self._root.open(source) as reader, self._root.open(target, "wb") as writer:
            while piece := reader.read(COPY_BYTES):
                writer.write(piece)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Renames in one step where both are single names; what patterns and lists name is moved one by one."""
        if isinstance(path1, str) and isinstance(path2, str) and not _has_magic(path1) and maxdepth is None:
            source, target = self._strip_protocol(path1), self._strip_protocol(path2)
            if path2.endswith("/") or self.isdir(target):
                target = _data.join(target, source.rsplit("/", 1)[-1])
            parent = self._parent(target)
            if parent:
                self._root.mkdir(parent)
            self._root.rename(source, target)
            return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        source = self._root._native.read(_data.plain_path(self._strip_protocol(path)))
        first, last = _range(source.size, start, end)
        found: bytes = source.read(first, last - first)
        return found

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Reads ranges, several at a time; each file is opened once."""
        starts = [starts] * len(paths) if not isinstance(starts, list | tuple) else starts
        ends = [ends] * len(paths) if not isinstance(ends, list | tuple) else ends
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("there are not as many starts and ends as paths")
        opened: dict[str, Any] = {}
        for path in paths:
            if path not in opened:
                try:
                    opened[path] = self._root._native.read(_data.plain_path(self._strip_protocol(path)))
                except OSError as error:
                    if on_error != "return":
                        raise
                    opened[path] = error

        def one(path: str, start: int | None, end: int | None) -> Any:
            source = opened[path]
            if isinstance(source, Exception):
                return source
            try:
                first, last = _range(source.size, start, end)
                return source.read(first, last - first)
            except OSError as error:
                if on_error != "return":
                    raise
                return error

        with ThreadPoolExecutor(RANGES_AT_ONCE) as threads:
            return list(threads.map(one, paths, starts, ends))

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        with self._root.open(self._strip_protocol(path), "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        path = self._strip_protocol(path)
        if mode == "rb":
            return _Reader(self._root._native.read(_data.plain_path(path)), path)
        if mode not in ("wb", "ab", "xb"):
            raise ValueError(f"mode {mode!r} is not one of rb, wb, ab and xb")
        version = self._root._native.write(_data.plain_path(path), mode)
        return _Writer(version, path) if autocommit else _Deferred(version, path)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Makes an empty file; one that is there is emptied, or with ``truncate=False`` left as it is."""
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            with self._root.open(path, "wb"):
                pass

    def ukey(self, path: str) -> str:
        """A key that changes with the content."""
        entry = self._root.entry(self._strip_protocol(path))
        return f"{self.pool.manager} {path} {entry.version} {entry.mtime.isoformat()}"


class _Reader(FileReader):
    """A reader with the attributes that fsspec gives its files."""

    @property
    def path(self) -> str:
        return self.name

    @property
    def full_name(self) -> str:
        return f"stdchk://{self.name}"

    mode = "rb"


class _Writer(FileWriter):
    @property
    def path(self) -> str:
        return self.name

    mode = "wb"


class _Deferred(_Writer):
    """A file of a transaction: closed, and a version only once the transaction commits it."""

    _is_closed = False

    def close(self) -> None:
        if not self._is_closed and not self.closed:
            self.flush()
            self._is_closed = True

    def commit(self) -> None:
        """Makes it durable and the newest version."""
        self.close()
        super().close()


def _info(path: str, entry: Any) -> Info:
    kind = entry.kind if entry.kind in ("file", "directory") else "other"
    return {
        "name": path,
        "size": entry.size if kind == "file" else 0,
        "type": kind,
        "version": entry.version,
        "mtime": entry.mtime.timestamp(),
        "mode": entry.mode,
    }


def _range(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """First byte and the one behind the last; negative ones count from the end."""

    def at(place: int | None, default: int) -> int:
        if place is None:
            return default
        return min(max(place + size if place < 0 else place, 0), size)

    first, last = at(start, 0), at(end, size)
    return first, max(first, last)


def _has_magic(path: Any) -> bool:
    return any(sign in one for one in _listed(path) for sign in "*?[")


def _listed(path: Any) -> list[str]:
    return (
        [path]
        if isinstance(path, str)
        else [stringify_path(one) for one in path]
        if isinstance(path, list | tuple)
        else [stringify_path(path)]
    )


_OPTIONS = frozenset({"manager", "data", "keys", "encryption_keys", "window", "config", "patience"})
__all__ = ["StdchkFileSystem"]
