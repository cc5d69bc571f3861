"""Checkpoints of the files that a program writes in place, under ``stdchk run``."""

import ctypes
import os
from types import TracebackType

_library = ctypes.CDLL(None, use_errno=True)


def _function(name: str, result: type, *arguments: type) -> "ctypes._NamedFuncPointer | None":
    function = getattr(_library, name, None)
    if function is not None:
        function.restype, function.argtypes = result, arguments
    return function


_checkpoint = _function("stdchk_checkpoint", ctypes.c_longlong)
_restore = _function("stdchk_restore", ctypes.c_int, ctypes.c_longlong)
_active = _function("stdchk_active", ctypes.c_int)


class FileStates:
    """The states of the files below a directory: taken, and gone back to.

    Inside ``with`` an exception takes the files back to the state at its beginning. Anywhere but under ``stdchk run`` nothing is
    taken and ``active`` is false. Python's own file objects keep what they buffer to themselves: flush them before.
    """

    def __init__(self, root: "str | os.PathLike[str]" = ".") -> None:
        self.root = os.path.abspath(root)
        self._begin = 0

    @property
    def active(self) -> bool:
        """Whether the program runs under ``stdchk run``."""
        return _active is not None and bool(_active())

    def checkpoint(self) -> int:
        """Takes a checkpoint of the files now; its index, 0 when not active."""
        index = int(_checkpoint()) if _checkpoint is not None else 0
        if index < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.root)
        return index

    def restore(self, index: int) -> None:
        """Puts files and descriptors back as they were at ``index``."""
        if _restore is not None and _restore(index) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.root)

    def __enter__(self) -> "FileStates":
        self._begin = self.checkpoint()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.active:
            return
        if kind is None:
            self.checkpoint()
        else:
            self.restore(self._begin)


def files(root: "str | os.PathLike[str]" = ".") -> FileStates:
    """The states of the files below the directory that ``stdchk run --root`` protects."""
    return FileStates(root)
