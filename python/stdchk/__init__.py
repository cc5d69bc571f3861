"""Checkpoint storage for long-running jobs: the operations of stdchk from Python.

>>> import stdchk
>>> pool = stdchk.connect()                     # the local pool, which ``stdchk up`` started
>>> heat = pool["heat"]
>>> heat.policy.update(naming="restart.{step}.{rank}", ranks=1)
>>> with heat.open("restart.100.0", "wb") as file:
...     _ = file.write(b"temperatures")
>>> heat.latest().timestep
'100'

``stdchk.aio`` is the same for asyncio, ``stdchk.fs`` the file system ``stdchk://`` of fsspec.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stdchk._data import (
    Entry,
    Exposed,
    Fate,
    Member,
    PassedOver,
    Restored,
    SetState,
    Stored,
    Version,
)
from stdchk._errors import (
    DamagedError,
    DeniedError,
    Error,
    ExistsError,
    InvalidError,
    NoSpaceError,
    NotEmptyError,
    NotFoundError,
    OtherPoolError,
    PartialError,
    StoppedError,
    UnreachableError,
    WrongKindError,
)
from stdchk._files import FileStates, files

if TYPE_CHECKING:
    from stdchk._file import FileReader, FileWriter
    from stdchk._pool import CheckpointSet, Folder, Policy, Pool, connect

_BY_MODULE = {
    "stdchk._file": {"FileReader", "FileWriter"},
    "stdchk._pool": {"CheckpointSet", "Folder", "Policy", "Pool", "connect"},
}


def __getattr__(name: str) -> Any:
    """Imports the compiled module at its first use: it calls the kernel itself, which ``files`` does not need."""
    for module, names in _BY_MODULE.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CheckpointSet",
    "DamagedError",
    "DeniedError",
    "Entry",
    "Error",
    "ExistsError",
    "Exposed",
    "Fate",
    "FileReader",
    "FileStates",
    "FileWriter",
    "Folder",
    "InvalidError",
    "Member",
    "NoSpaceError",
    "NotEmptyError",
    "NotFoundError",
    "OtherPoolError",
    "PartialError",
    "PassedOver",
    "Policy",
    "Pool",
    "Restored",
    "SetState",
    "StoppedError",
    "Stored",
    "UnreachableError",
    "Version",
    "WrongKindError",
    "connect",
    "files",
]
