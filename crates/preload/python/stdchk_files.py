"""File-state checkpoints from Python.

Under ``stdchk run`` these calls act; anywhere else they do nothing and succeed. Python's own file objects keep what
they buffer to themselves: flush them before a checkpoint.
"""

import ctypes
import os

_library = ctypes.CDLL(None, use_errno=True)


def _function(name, result, *arguments):
    function = getattr(_library, name, None)
    if function is not None:
        function.restype, function.argtypes = result, arguments
    return function


_checkpoint = _function("stdchk_checkpoint", ctypes.c_longlong)
_restore = _function("stdchk_restore", ctypes.c_int, ctypes.c_longlong)
_active = _function("stdchk_active", ctypes.c_int)


def active():
    """True under ``stdchk run``."""
    return _active is not None and bool(_active())


def checkpoint():
    """Take a checkpoint of the files now and return its index (0 when not active). Raises OSError."""
    index = _checkpoint() if _checkpoint is not None else 0
    if index < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "file-state checkpoint")
    return index


def restore(index):
    """Put files and descriptors back as they were at ``index``. Raises OSError."""
    if _restore is not None and _restore(index) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"restore of index {index}")
