"""The exceptions of the package: an ``OSError`` each, with a code for programs, and object, cause and next step for people."""

import errno
from collections.abc import Mapping, Sequence


class Error(OSError):
    """An operation failed.

    ``code`` is what the command line's JSON and exit codes stand on (``not-found``, ``damaged``, ``unreachable``, …), ``object``
    is what it is about, ``cause`` what happened, ``next_step`` what a person can do. ``failures`` holds the errors of single
    objects where an operation works on several.
    """

    code: str = "other"
    object: str = ""
    cause: str = ""
    next_step: str = ""
    failures: Sequence["Error"] = ()

    def __str__(self) -> str:
        said = f"{self.object}: {self.cause}" if self.object else self.cause
        return f"{said}; {self.next_step}" if self.next_step else said


class NotFoundError(Error, FileNotFoundError):
    """There is no such file, folder, version or set."""


class ExistsError(Error, FileExistsError):
    """The name is taken."""


class NotEmptyError(Error):
    """A folder is not empty, or a folder stands where something else is needed, or the other way round."""


class InvalidError(Error, ValueError):
    """A name, a value or a combination of arguments can't be used."""


class WrongKindError(Error, IsADirectoryError):
    """The object is of another kind than the operation works on, such as a folder where a file is needed."""


class NoSpaceError(Error):
    """There is no space in the pool or on the local disk."""


class UnreachableError(Error, ConnectionError):
    """The pool, or a part of it, can't be reached now: try again."""


class DamagedError(Error):
    """Content is damaged and no intact copy was found."""


class DeniedError(Error, PermissionError):
    """The pool doesn't let this user do this, or this host lacks the key for it."""


class OtherPoolError(Error, ConnectionError):
    """The process at the manager's address is of another pool, or its keys and those of this host don't fit."""


class PartialError(Error):
    """A part of the work succeeded, a part failed: see ``failures``."""


class StoppedError(Error, InterruptedError):
    """The operation was told to stop; unfinished parts of it did not happen."""


_BY_CODE: dict[str, tuple[type[Error], int]] = {
    "not-found": (NotFoundError, errno.ENOENT),
    "exists": (ExistsError, errno.EEXIST),
    "conflict": (NotEmptyError, errno.ENOTEMPTY),
    "invalid": (InvalidError, errno.EINVAL),
    "wrong-kind": (WrongKindError, errno.EISDIR),
    "no-space": (NoSpaceError, errno.ENOSPC),
    "unreachable": (UnreachableError, errno.EHOSTUNREACH),
    "damaged": (DamagedError, errno.EIO),
    "denied": (DeniedError, errno.EACCES),
    "other-pool": (OtherPoolError, errno.EPROTO),
    "partial": (PartialError, errno.EIO),
    "interrupted": (StoppedError, errno.EINTR),
    "broken-pipe": (Error, errno.EPIPE),
}


def make(facts: Mapping[str, str], failures: Sequence[Mapping[str, str]]) -> Error:
    """The exception for an error of the library; of one that failed alone, its own error."""
    if len(failures) == 1 and facts["code"] == failures[0]["code"]:
        return make(failures[0], [])
    kind, number = _BY_CODE.get(facts["code"], (Error, errno.EIO))
    error = kind(number, facts["cause"])
    error.code, error.object = facts["code"], facts["object"]
    error.cause, error.next_step = facts["cause"], facts["next_step"]
    error.failures = [make(failure, []) for failure in failures]
    return error
