"""File objects of the standard library over files of the pool."""

import io
from types import TracebackType
from typing import TYPE_CHECKING

from stdchk import _stdchk

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

BUFFER_BYTES = 1 << 20
"""Bytes that a file object buffers: as much as one chunk, the unit in which the pool sends."""

READ_MODES = frozenset({"rb", "br"})
WRITE_MODES = {"wb": "wb", "bw": "wb", "ab": "ab", "ba": "ab", "xb": "xb", "bx": "xb"}


class _RawReader(io.RawIOBase):
    def __init__(self, source: _stdchk.Reader) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        self._check()
        count: int = self._source.read_into(self._at, buffer)
        self._at += count
        return count

    def readall(self) -> bytes:
        self._check()
        found: bytes = self._source.read(self._at, max(self._source.size - self._at, 0))
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check()
        self._at = position(offset, whence, self._at, self._source.size)
        return self._at

    def tell(self) -> int:
        self._check()
        return self._at

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


class _RawWriter(io.RawIOBase):
    def __init__(self, version: _stdchk.Writer) -> None:
        self._version = version
        self._at = version.size
        self._ended = False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def write(self, buffer: "ReadableBuffer", /) -> int:
        self._check()
        count: int = self._version.write(self._at, buffer)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check()
        self._at = position(offset, whence, self._at, self._version.size)
        return self._at

    def tell(self) -> int:
        self._check()
        return self._at

    def truncate(self, size: int | None = None, /) -> int:
        self._check()
        size = self._at if size is None else size
        self._version.truncate(size)
        return size

    def end(self, commits: bool) -> int | None:
        """Makes it a version, or gives it up; does nothing the second time."""
        if self._ended:
            return None
        self._ended = True
        if not commits:
            self._version.discard()
            return None
        version: int = self._version.commit()
        return version

    def close(self) -> None:
        # One that nobody closed by name is given up: its writer may have failed.
        if not self.closed:
            self.end(commits=False)
            super().close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


def position(offset: int, whence: int, now: int, size: int) -> int:
    """Where a seek leads to."""
    if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
        raise ValueError(f"whence {whence} is not 0, 1 or 2")
    to = offset + {io.SEEK_SET: 0, io.SEEK_CUR: now, io.SEEK_END: size}[whence]
    if to < 0:
        raise ValueError(f"a file has no position {to}")
    return to


class FileReader(io.BufferedReader):
    """One version of a file, which stays the same whatever is written meanwhile. Every byte is verified."""

    def __init__(self, source: _stdchk.Reader, name: str, buffer_bytes: int = BUFFER_BYTES) -> None:
        super().__init__(_RawReader(source), buffer_bytes)
        self._path = name
        self.size: int = source.size
        self.version: int | None = source.version

    @property
    def name(self) -> str:
        """The file's path in the pool."""
        return self._path


class FileWriter(io.BufferedWriter):
    """A new version of a file. ``close`` makes it durable and the newest one; before that nobody sees it.

    An exception inside ``with`` gives it up, ``discard`` does so by name, and so does letting go of it without a ``close``.
    """

    def __init__(self, version: _stdchk.Writer, name: str, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._writer = _RawWriter(version)
        super().__init__(self._writer, buffer_bytes)
        self._path = name
        self.version: int | None = None

    @property
    def name(self) -> str:
        """The file's path in the pool."""
        return self._path

    def close(self) -> None:
        """Commits; a second time it does nothing."""
        if self.closed:
            return
        try:
            self.flush()
            self.version = self._writer.end(commits=True)
        finally:
            self._let_go()

    def discard(self) -> None:
        """Gives the version up: the file is as it was."""
        self._let_go()

    def _let_go(self) -> None:
        if self.closed:
            return
        self._writer.close()
        try:
            super().close()
        except ValueError:
            # The rest of the buffer goes nowhere.
            pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        try:
            self.discard()
        except Exception:  # at the end of the interpreter anything may be gone already
            pass
