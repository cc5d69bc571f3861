"""Plain data that operations give, read from the JSON that the command line prints for them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol, TypeAlias

Json: TypeAlias = dict[str, Any]

Progress: TypeAlias = Callable[[int, int], object]
"""Called with bytes done and bytes to do; the latter is 0 where nobody knows."""


class Bar(Protocol):
    """A progress bar such as ``tqdm``."""

    total: Any
    n: Any

    def refresh(self) -> object:
        """Draws it anew."""


def progress_of(progress: "Progress | Bar | None") -> Progress | None:
    """A call for progress; a ``tqdm`` is moved by one."""
    if progress is None or not hasattr(progress, "refresh"):
        return progress
    bar: Any = progress

    def move(done: int, total: int) -> None:
        bar.total = total or None
        bar.n = done
        bar.refresh()

    return move


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in a folder. ``kind`` is ``file``, ``directory``, ``symlink``, ``pipe`` or ``socket``; ``size`` is in bytes."""

    name: str
    kind: str
    size: int
    version: int
    mode: int
    mtime: datetime


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a file. ``stored_bytes``: bytes of its chunks that were new to the pool."""

    version: int
    size: int
    state: str
    committed_at: datetime
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a checkpoint set: its path below the application's folder, and the version that belongs to the set."""

    name: str
    rank: int | None
    version: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Exposed:
    """Chunks, with their bytes, that have fewer copies than the folder asks for: losing one more host may cost them."""

    chunks: int
    bytes: int
    since: datetime | None


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A newer set that can't be restarted from, and why. ``unavailable``: it can once hosts that are away are back."""

    timestep: str
    reason: str
    unavailable: bool


@dataclass(frozen=True, slots=True)
class SetState:
    """A checkpoint set as the pool lists it. ``state``: ``complete`` or ``incomplete``, with the ``reason``."""

    timestep: str
    state: str
    reason: str
    committed_at: datetime
    bytes: int
    sealed: bool
    files: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of ``put``: bytes in all, those that were new to the pool, and seconds."""

    files: int
    bytes: int
    stored_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of ``restore``. ``kept``: files that were there already and matched."""

    timestep: str
    files: int
    kept: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of a set at the end of its job, and why."""

    timestep: str
    goes: bool
    reason: str
    bytes: int


def time_of(text: str) -> datetime:
    """A time of the JSON, RFC 3339 in UTC with nanoseconds, to the microsecond."""
    seconds, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.strptime(seconds, "%Y-%m-%dT%H:%M:%S")
    return moment.replace(microsecond=int(fraction[:6] or 0), tzinfo=timezone.utc)


def timestep_of(value: Any) -> str:
    """A timestep as the code wrote it."""
    return str(value)


def entry_of(found: Json) -> Entry:
    return Entry(
        found["name"],
        found["kind"],
        found["size"],
        found["version"],
        int(found["mode"], 8),
        time_of(found["mtime"]),
    )


def entry(text: str) -> Entry:
    return entry_of(json.loads(text))


def entries(text: str) -> list[Entry]:
    return [entry_of(found) for found in json.loads(text)["entries"]]


def versions(text: str) -> list[Version]:
    files = json.loads(text)
    return [
        Version(found["version"], found["size"], found["state"], time_of(found["committed_at"]), found["stored_bytes"])
        for found in files[0]["versions"]
    ]


def member_of(found: Json) -> Member:
    return Member(found["name"], found["rank"], found["version"], found["bytes"])


def exposed_of(found: Json) -> Exposed:
    since = found["since"]
    return Exposed(found["chunks"], found["bytes"], time_of(since) if since else None)


def passed_over_of(found: Json) -> PassedOver:
    return PassedOver(timestep_of(found["timestep"]), found["reason"], found["unavailable"])


def set_fields(found: Json) -> tuple[str, tuple[Member, ...], Exposed, tuple[PassedOver, ...]]:
    """The fields of a set that can be restarted from, behind its folder."""
    members, passed_over = found["members"], found["passed_over"]
    return (
        timestep_of(found["timestep"]),
        tuple(map(member_of, members)),
        exposed_of(found["exposed"]),
        tuple(map(passed_over_of, passed_over)),
    )


def sets(text: str) -> list[SetState]:
    return [
        SetState(
            timestep_of(found["timestep"]),
            found["state"],
            found["reason"],
            time_of(found["committed_at"]),
            found["bytes"],
            found["sealed"],
            tuple(map(member_of, found["members"])),
        )
        for found in json.loads(text)["sets"]
    ]


def stored(text: str) -> Stored:
    found = json.loads(text)
    return Stored(len(found["files"]), found["bytes"], found["stored_bytes"], found["seconds"])


def restored(text: str) -> Restored:
    found = json.loads(text)
    files = found["members"]
    kept = sum(file["kept"] for file in files)
    return Restored(timestep_of(found["timestep"]), len(files), kept, found["bytes"], found["seconds"])


def fates(text: str) -> list[Fate]:
    return [
        Fate(timestep_of(found["timestep"]), found["goes"], found["reason"], found["bytes"]) for found in json.loads(text)["sets"]
    ]


def pairs(text: str) -> dict[str, str]:
    return dict(json.loads(text))


def mapping(text: str) -> Json:
    found: Json = json.loads(text)
    return found


def join(folder: str, name: str) -> str:
    """The path of a name below a folder."""
    return f"{folder}/{name}" if folder else name


def version_path(path: str, version: int) -> str:
    """The path of one version of a file."""
    return f"{path}@{version}"


def plain_path(path: str) -> str:
    """The path of a file whose own name may end like a version."""
    head, at, digits = path.rpartition("@")
    return f"{path}@" if at and head and (digits == "" or (digits.isascii() and digits.isdigit())) else path
