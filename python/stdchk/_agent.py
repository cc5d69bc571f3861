"""A connection to the agent of this host, which keeps checkpoints in shared memory and stores them. ``stdchk help agent``."""

import json
import mmap
import os
import queue
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from stdchk import _errors
from stdchk._pool import Pool

START_TIMEOUT_S = 30.0
"""For a loaded machine: an agent that starts answers within milliseconds."""
LINE_BYTES_MAX = 16 << 20
BUSY_S = 60.0
"""Seconds for which a region is waited for that somebody loads from."""
CONFLICT_S = 5.0
"""Seconds for which a region is waited for that belongs to another process."""
SILENCE_S = 2.0
"""Seconds for which an agent may be silent beyond a wait that was asked for."""


PATHS = ("data", "keys", "encryption_keys", "config")
PATH_VARIABLES = ("STDCHK_DATA", "STDCHK_KEYS", "STDCHK_ENCRYPTION_KEYS", "STDCHK_CONFIG")


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
        self._exchanges: queue.SimpleQueue[_Exchange | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._is_closed = False
        connection = _connected(pool)
        # A thread of its own: a signal interrupts a wait for an answer, and never the reading of one.
        threading.Thread(target=_exchange_all, args=(connection, self._exchanges), name="stdchk-agent", daemon=True).start()

    def close(self) -> None:
        """Ends it. A region that was being filled counts no longer; a staged one is stored."""
        if os.getpid() == self._process:
            with self._closing:
                self._is_closed = True
                self._exchanges.put(None)

    def region(self, key: str, size: int) -> mmap.mmap:
        """The memory of this name, which belongs to this connection until it ends.

        Waits for those who load from it, if it has another size.
        """
        answer, descriptors = self._ask_until_free({"do": "region", "key": key, "bytes": size})
        return mmap.mmap(descriptors[0].number, answer["bytes"])

    def begin(self, key: str) -> int:
        """The region is going to be filled; the number of this filling. Waits for those who load from it."""
        answer, _ = self._ask_until_free({"do": "begin", "key": key})
        return int(answer["filling"])

    def _ask_until_free(self, request: dict[str, Any]) -> "tuple[dict[str, Any], list[_Descriptor]]":
        began = time.monotonic()
        while True:
            try:
                return self._ask(request)
            except _errors.Error as error:
                # A trainer that has just been killed is the owner until the agent has seen that.
                patience = {"busy": BUSY_S, "conflict": CONFLICT_S}.get(error.code, 0.0)
                if time.monotonic() - began >= patience:
                    raise
                time.sleep(0.01)

    def staged(self, key: str, filling: int, file: str, length: int, pieces: list[Piece]) -> int:
        """A filling is whole, and the agent stores it as ``file``; the number of this save."""
        request = {"do": "staged", "key": key, "filling": filling, "file": file, "length": length, "pieces": pieces}
        answer, _ = self._ask(request)
        return int(answer["save"])

    def wait(self, key: str, save: int, seconds: float) -> dict[str, Any]:
        """The state of a save after at most so many seconds: an answer ``storing``, ``durable`` or ``failed``."""
        try:
            answer, _ = self._ask({"do": "wait", "key": key, "save": save, "seconds": seconds}, seconds + SILENCE_S)
        except TimeoutError:
            # An agent that is stopped, or a machine without time for it: nothing is known to be wrong.
            return {"answer": "storing"}
        return answer

    def held(self, file: str, version: int) -> Held | None:
        """A version of a file, if the agent has it in memory still. Nobody writes to it before :meth:`release`."""
        try:
            answer, descriptors = self._ask({"do": "held", "file": file, "version": version})
        except _errors.NotFoundError:
            return None
        memory = mmap.mmap(descriptors[0].number, answer["bytes"], access=mmap.ACCESS_READ)
        return Held(memory, answer["length"], [Piece(*piece) for piece in answer["pieces"]])

    def release(self) -> None:
        """Nothing that was :meth:`held` is read any more."""
        self._ask({"do": "release"})

    def status(self) -> dict[str, Any]:
        """The output of ``stdchk agent status --json``."""
        answer, _ = self._ask({"do": "status"})
        return answer

    def _ask(self, request: dict[str, Any], patience: float | None = None) -> "tuple[dict[str, Any], list[_Descriptor]]":
        if os.getpid() != self._process:
            raise _error("the agent", "its connection belongs to the process that made it", "open a new one after a fork")
        line = json.dumps(request, separators=(",", ":")).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise _error("the checkpoint", f"it has {len(request.get('pieces', []))} pieces", "save fewer tensors at once")
        exchange = _Exchange(line)
        with self._closing:
            if self._is_closed:
                raise _error("the checkpointer", "it was closed", "make a new one")
            self._exchanges.put(exchange)
        try:
            exchange.ended.get(timeout=patience)
        except queue.Empty:
            raise TimeoutError("the agent does not answer") from None
        if exchange.error is not None:
            raise _lost(str(exchange.error)) from exchange.error
        answer = exchange.answer
        if answer["answer"] == "refused":
            raise _errors.make(answer, [])
        return answer, exchange.descriptors


class _Descriptor:
    """A descriptor that goes with its object."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _Exchange:
    """A request and its answer."""

    def __init__(self, line: bytes) -> None:
        self.line = line
        # A queue and no event: an exception of a signal's handler within `Event.wait` can leave it in disorder.
        self.ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.answer: dict[str, Any] = {}
        self.descriptors: list[_Descriptor] = []
        self.error: Exception | None = None


def _exchange_all(connection: socket.socket, exchanges: "queue.SimpleQueue[_Exchange | None]") -> None:
    rest, lost = b"", None
    with connection:
        while (exchange := exchanges.get()) is not None:
            try:
                if lost is not None:
                    raise lost
                connection.sendall(exchange.line)
                rest = _read(connection, rest, exchange)
            except Exception as error:
                # An answer that is not understood is the last one: nobody knows what the next ones belong to.
                exchange.error = lost = error
            exchange.ended.put(None)


def _read(connection: socket.socket, rest: bytes, exchange: _Exchange) -> bytes:
    """Reads an answer; what was read behind it."""
    pieces = [rest]
    while b"\n" not in pieces[-1]:
        read, more, _, _ = socket.recv_fds(connection, 1 << 16, 1)
        exchange.descriptors += map(_Descriptor, more)
        if not read:
            raise ConnectionResetError("it ended")
        pieces.append(read)
    line, _, rest = b"".join(pieces).partition(b"\n")
    exchange.answer = json.loads(line)
    return rest


def _error(about: str, cause: str, next_step: str, code: str = "other") -> _errors.Error:
    return _errors.make({"code": code, "object": about, "cause": cause, "next_step": next_step}, [])


def _lost(cause: str) -> _errors.Error:
    next_step = "what was staged is lost unless the agent's log says that it was stored; make a new Checkpointer, and save again"
    return _error("the agent", f"the connection to it ended: {cause}", next_step, "unreachable")


def _connected(pool: Pool) -> socket.socket:
    path = os.fspath(pool._native.agent_socket)
    until = time.monotonic() + START_TIMEOUT_S
    started: subprocess.Popen[bytes] | None = None
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            _check_owner(connection, path)
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


def _check_owner(connection: socket.socket, path: str) -> None:
    """In a folder of all users another one could have been faster."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if user != os.geteuid():
        connection.close()
        raise _error("the agent", f"user {user} serves at {path}", "set XDG_RUNTIME_DIR to a folder of your own")


def _start(pool: Pool, path: str) -> "subprocess.Popen[bytes]":
    options = pool._options
    named = ("data", "manager", "keys", "encryption_keys", "window", "config")
    given = {name: os.fspath(options[name]) for name in named if options.get(name) is not None}
    given |= {name: os.path.abspath(given[name]) for name in PATHS if name in given}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    more = {name: os.path.abspath(os.environ[name]) for name in PATH_VARIABLES if os.environ.get(name)}
    command = [binary(), *flags, "agent", f"--socket={path}", f"--log={path}.log"]
    folder = Path(path).parent
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(os.devnull, "r+b") as nothing:
        # A session of its own: what ends the job's process group does not end the agent.
        return subprocess.Popen(
            command,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
            cwd="/",
            env={**os.environ, **more},
        )


def binary() -> str:
    """The command of this installation: ``STDCHK_BINARY``, beside the interpreter, or on the path."""
    given = os.environ.get("STDCHK_BINARY")
    beside = Path(sys.executable).parent / "stdchk"
    found = given or (str(beside) if beside.exists() else shutil.which("stdchk"))
    if found is None:
        raise _error("stdchk", "the command is neither beside the interpreter nor on the path", "set STDCHK_BINARY")
    return found
