"""A connection to the agent of this host, which keeps checkpoints in shared memory and stores them. ``stdchk help agent``."""

import contextlib
import json
import mmap
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from stdchk import _errors
from stdchk._pool import Pool

START_TIMEOUT_S = 30.0
"""For a loaded machine: an agent that starts answers within milliseconds."""
LINE_BYTES_MAX = 16 << 20


class Piece(NamedTuple):
    """A run of bytes: where it lies in the file and in the region, and its length."""

    file: int
    region: int
    length: int


class Held(NamedTuple):
    """A file that the agent still has in memory."""

    memory: mmap.mmap
    length: int
    pieces: list[Piece]


class Agent:
    """One connection, which threads share: a request at a time. A process that was forked can't use it."""

    def __init__(self, pool: Pool) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._rest = b""
        self._owed = 0
        """Answers to requests whose wait was interrupted, by Ctrl-C: they come first."""
        self._socket = _connected(pool)

    def close(self) -> None:
        """Ends it. What was being filled counts no longer; what was staged is stored."""
        self._socket.close()

    def region(self, key: str, size: int) -> mmap.mmap:
        """The memory of this name, which belongs to this connection until it ends.

        Waits for those who load from it, if it has another size.
        """
        answer, descriptors = self._ask_until_free({"do": "region", "key": key, "bytes": size})
        with _descriptor(descriptors) as descriptor:
            return mmap.mmap(descriptor, answer["bytes"])

    def begin(self, key: str) -> None:
        """The region is going to be filled. Waits for those who load from it."""
        self._ask_until_free({"do": "begin", "key": key})

    def _ask_until_free(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        while True:
            try:
                return self._ask(request)
            except _errors.Error as error:
                if error.code != "busy":
                    raise
                time.sleep(0.01)

    def staged(self, key: str, file: str, length: int, pieces: list[Piece]) -> int:
        """The region is whole, and the agent stores it as ``file``; the number of this save."""
        answer, _ = self._ask({"do": "staged", "key": key, "file": file, "length": length, "pieces": pieces})
        return int(answer["save"])

    def wait(self, key: str, save: int, seconds: float) -> dict[str, Any]:
        """What became of a save within so many seconds: an answer ``storing``, ``durable`` or ``failed``."""
        answer, _ = self._ask({"do": "wait", "key": key, "save": save, "seconds": seconds})
        return answer

    def held(self, file: str, version: int) -> Held | None:
        """A version of a file, if the agent has it in memory still. Nobody writes to it before :meth:`release`."""
        try:
            answer, descriptors = self._ask({"do": "held", "file": file, "version": version})
        except _errors.NotFoundError:
            return None
        with _descriptor(descriptors) as descriptor:
            memory = mmap.mmap(descriptor, answer["bytes"], access=mmap.ACCESS_READ)
        return Held(memory, answer["length"], [Piece(*piece) for piece in answer["pieces"]])

    def release(self) -> None:
        """Nothing that was :meth:`held` is read any more."""
        self._ask({"do": "release"})

    def status(self) -> dict[str, Any]:
        """What ``stdchk agent status --json`` prints."""
        answer, _ = self._ask({"do": "status"})
        return answer

    def _ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        if os.getpid() != self._process:
            raise _error("the agent", "its connection belongs to the process that made it", "open a new one after a fork")
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise _error("the checkpoint", f"it has {len(request.get('pieces', []))} pieces", "save fewer tensors at once")
        with self._lock:
            try:
                while self._owed:
                    self._skip()
                self._send(line)
                self._owed = 1
                answer, descriptors = self._read()
                self._owed = 0
            except OSError as error:
                raise _lost(str(error)) from error
        if answer["answer"] == "refused":
            raise _errors.make(answer, [])
        return answer, descriptors

    def _send(self, line: bytes) -> None:
        try:
            self._socket.sendall(line)
        except BaseException:
            # Nobody knows how much of it was sent.
            self._socket.close()
            raise

    def _skip(self) -> None:
        _, descriptors = self._read()
        for descriptor in descriptors:
            os.close(descriptor)
        self._owed -= 1

    def _read(self) -> tuple[dict[str, Any], list[int]]:
        descriptors: list[int] = []
        while b"\n" not in self._rest:
            read, more, _, _ = socket.recv_fds(self._socket, 1 << 16, 1)
            descriptors += more
            if not read:
                raise _lost("it ended")
            self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer, descriptors


def _error(about: str, cause: str, next_step: str, code: str = "other") -> _errors.Error:
    return _errors.make({"code": code, "object": about, "cause": cause, "next_step": next_step}, [])


def _lost(cause: str) -> _errors.Error:
    next_step = "what was staged is lost unless the agent's log says that it was stored; make a new Checkpointer, and save again"
    return _error("the agent", f"the connection to it ended: {cause}", next_step, "unreachable")


@contextlib.contextmanager
def _descriptor(descriptors: list[int]) -> Iterator[int]:
    (descriptor,) = descriptors
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _connected(pool: Pool) -> socket.socket:
    path = os.fspath(pool._native.agent_socket)
    until = time.monotonic() + START_TIMEOUT_S
    started: subprocess.Popen[bytes] | None = None
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            return connection
        except (FileNotFoundError, ConnectionRefusedError) as error:
            connection.close()
            if started is not None and started.poll() not in (None, 0):
                raise _error("the agent", f"it ended with code {started.returncode}", f"see {path}.log") from error
            if time.monotonic() >= until:
                raise _error("the agent", f"it does not answer at {path}", f"see {path}.log", "unreachable") from error
        if started is None or started.poll() is not None:
            started = _start(pool, path)
        time.sleep(0.02)


def _start(pool: Pool, path: str) -> "subprocess.Popen[bytes]":
    options = pool._options
    named = ("data", "manager", "keys", "encryption_keys", "window", "config")
    flags = [f"--{name.replace('_', '-')}={os.fspath(options[name])}" for name in named if options.get(name) is not None]
    command = [binary(), *flags, "agent", f"--socket={path}", f"--log={path}.log"]
    folder = Path(path).parent
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(os.devnull, "r+b") as nothing:
        # A session of its own: what ends the job's process group does not end the agent.
        return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True, cwd="/")


def binary() -> str:
    """The command of this installation: ``STDCHK_BINARY``, beside the interpreter, or on the path."""
    given = os.environ.get("STDCHK_BINARY")
    beside = Path(sys.executable).parent / "stdchk"
    found = given or (str(beside) if beside.exists() else shutil.which("stdchk"))
    if found is None:
        raise _error("stdchk", "the command is neither beside the interpreter nor on the path", "set STDCHK_BINARY")
    return found
