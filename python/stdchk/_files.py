"""Checkpoints of the files that a program changes in place, under ``stdchk run``.

Anywhere else these calls do nothing and succeed. Python's own file objects keep what they buffer to themselves: flush them before
a checkpoint. This file stands alone, so that it can be used without the package.
"""

import ctypes
import os
from types import TracebackType
from typing import Any

_ROOT_VARIABLE = "STDCHK_FILESTATE"
_library = ctypes.CDLL(None, use_errno=True)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_library, name, None)
    if function is not None:
        function.restype, function.argtypes = result, arguments
    return function


_checkpoint = _function("stdchk_checkpoint", ctypes.c_longlong)
_restore = _function("stdchk_restore", ctypes.c_int, ctypes.c_longlong)
_active = _function("stdchk_active", ctypes.c_int)


def active() -> bool:
    """Whether the program runs under ``stdchk run``."""
    return _active is not None and bool(_active())


def checkpoint() -> int:
    """Takes a checkpoint of the files now; its index, 0 when not active."""
    index: int = _checkpoint() if _checkpoint is not None else 0
    if index < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "file-state checkpoint")
    return index


def restore(index: int) -> None:
    """Puts files and descriptors back as they were at ``index``; later checkpoints cease to exist."""
    if _restore is not None and _restore(index) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"restore of index {index}")


class FileStates:
    """The states of the files below the directory that ``stdchk run`` protects.

    ``with`` takes one at its beginning and one at its end; an exception inside takes the files back to the first.
    """

    def __init__(self, root: "str | os.PathLike[str] | None" = None) -> None:
        """Takes the directory that is meant: under ``stdchk run`` it must be the one that is protected."""
        protected = os.environ.get(_ROOT_VARIABLE)
        if root is not None and active() and protected and not os.path.samefile(root, protected):
            raise ValueError(f"`stdchk run` protects {protected}, not {os.fspath(root)}")
        self._begin = 0

    @property
    def active(self) -> bool:
        """Whether the program runs under ``stdchk run``."""
        return active()

    def checkpoint(self) -> int:
        """Takes a checkpoint of the files now; its index, 0 when not active."""
        return checkpoint()

    def restore(self, index: int) -> None:
        """Puts files and descriptors back as they were at ``index``."""
        restore(index)

    def __enter__(self) -> "FileStates":
        self._begin = checkpoint()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            checkpoint()
        elif active():
            restore(self._begin)


def files(root: "str | os.PathLike[str] | None" = None) -> FileStates:
    """The states of the files below ``root``, the directory that ``stdchk run`` protects."""
    return FileStates(root)
