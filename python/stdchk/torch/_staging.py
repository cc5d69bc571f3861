"""Copies a state into a region of the agent: at once what a program may change at any time, and the rest while it computes on."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from stdchk import _errors
from stdchk._agent import Agent
from stdchk._layout import Layout
from stdchk.torch._tensors import Kept

JOIN_S = 60.0
"""Longest time for which the end of a program waits for its last copies."""
WAIT_S = 0.2
"""Seconds for which one request to the agent waits, and others for it."""


class Region:
    """Shared memory of the agent, as a tensor. On a device it is registered with CUDA, so that copies go beside the computing."""

    def __init__(self, agent: Agent, key: str, size: int) -> None:
        self.key = key
        self.size = size
        self._memory = agent.region(key, size)
        self.bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._is_registered = False

    def register(self) -> None:
        """Lets the device copy into it by itself."""
        if not self._is_registered:
            outcome = torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), self.size, 0)
            if int(outcome) != 0:
                cause = f"CUDA does not register {self.size} bytes of shared memory: error {int(outcome)}"
                next_step = "raise the limit of locked memory (`ulimit -l`)"
                raise _errors.make({"code": "other", "object": self.key, "cause": cause, "next_step": next_step}, [])
            self._is_registered = True

    def close(self) -> None:
        """Takes the registration back. The memory goes with its last tensor."""
        if self._is_registered:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
            self._is_registered = False


@dataclass(eq=False)
class Save:
    """A checkpoint on its way: being copied, given to the agent, durable."""

    step: int | str
    file: str
    bytes: int
    waited_s: float
    """Seconds that ``save`` waited for the checkpoint before."""
    staged_s: float | None = None
    """Seconds from the beginning of ``save`` until the agent had it."""
    version: int | None = None
    """The version of its file, once it is durable."""
    error: Exception | None = None
    """Why it came to nothing."""
    _staged: threading.Event = field(default_factory=threading.Event, repr=False)
    _is_told: bool = field(default=False, repr=False)
    """Its error was raised by :meth:`wait`."""
    _wait: Callable[[float | None], None] | None = field(default=None, repr=False)

    @property
    def is_durable(self) -> bool:
        """Whether the pool has it, as far as was heard: :meth:`wait` asks."""
        return self.version is not None

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it is durable; the version of its file.

        Raises ``TimeoutError`` after ``timeout`` seconds, and the error of a save that came to nothing.
        """
        if self._wait is not None:
            self._wait(timeout)
        if self.error is not None:
            self._is_told = True
            raise self.error
        assert self.version is not None
        return self.version


class Staging:
    """The copying of one save."""

    def __init__(self, agent: Agent, region: Region, filling: int, save: Save, layout: Layout) -> None:
        self._agent, self._region, self._filling, self._save, self._layout = agent, region, filling, save, layout
        self._key = region.key
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._is_released = False
        self._versions: list[tuple[Kept, int]] = []
        self._device: Any = None
        self._event: Any = None
        self._host_copied = threading.Event()
        self.number = 0
        """The agent's number of the save, once it was staged."""

    def begin(self, kept: list[Kept]) -> None:
        """Copies what can't wait, and lets a thread do the rest."""
        try:
            later = self._copy_now(kept)
            threading.Thread(target=self._finish, args=(later,), name="stdchk-stage", daemon=True).start()
        except BaseException as error:
            # Where the thread has begun after all, what it stages is another filling by then, and refused.
            self._save.error = error if isinstance(error, Exception) else InterruptedError("the save was interrupted")
            self._save._is_told = True
            self._host_copied.set()
            self._save._staged.set()
            raise

    def _target(self, kept: Kept) -> torch.Tensor:
        at = self._layout.regions[kept.array.name]
        return self._region.bytes[at : at + kept.array.bytes].view(kept.tensor.dtype).view(kept.tensor.shape)

    def _copy_now(self, kept: list[Kept]) -> list[Kept]:
        """Copies what may change at any time; begins the copies of a device; gives what is left for the thread."""
        region = self._region.bytes
        header = self._layout.header
        region[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        later = []
        on_device = [one for one in kept if one.tensor.is_cuda and one.array.bytes]
        for one in kept:
            if not one.array.bytes or one.tensor.is_cuda:
                continue
            if one.later:
                later.append(one)
                self._versions.append((one, one.tensor._version))
            else:
                self._target(one).copy_(one.tensor)
        if on_device:
            self._copy_on_device(on_device)
        return later

    def _copy_on_device(self, kept: list[Kept]) -> None:
        self._region.register()
        self._device = device = kept[0].tensor.device
        now, beside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        # Tensors that may change at any time are copied on the device, in the order of the computation.
        sources = [one.tensor if one.later else one.tensor.clone() for one in kept]
        beside.wait_stream(now)
        with torch.cuda.stream(beside):
            for one, source in zip(kept, sources, strict=True):
                self._target(one).copy_(source, non_blocking=True)
                source.record_stream(beside)
            self._event = torch.cuda.Event()
            self._event.record(beside)
        self._versions += [(one, one.tensor._version) for one in kept if one.later]

    def release(self) -> None:
        """The optimizer is going to change what is being copied: waits for the copies. On a device, only the device waits."""
        with self._lock:
            if not self._is_released:
                self._is_released = True
                self._check_versions()
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        self._host_copied.wait()

    def join(self) -> None:
        """Waits until the agent has it, or it has come to nothing."""
        self._save._staged.wait(JOIN_S)

    def _check_versions(self) -> None:
        changed = [one.array.name for one, version in self._versions if one.tensor._version != version]
        if changed and self._save.error is None:
            cause = f"{changed[0]!r} and {len(changed) - 1} more tensors were changed while they were copied"
            next_step = "call `before_update()` before what changes them"
            self._save.error = _errors.make(
                {"code": "invalid", "object": self._save.file, "cause": cause, "next_step": next_step}, []
            )

    def _finish(self, later: list[Kept]) -> None:
        try:
            for one in later:
                self._target(one).copy_(one.tensor)
            self._host_copied.set()
            if self._event is not None:
                self._event.synchronize()
            with self._lock:
                if not self._is_released:
                    self._is_released = True
                    self._check_versions()
            if self._save.error is None:
                file, layout = self._save.file, self._layout
                self.number = self._agent.staged(self._key, self._filling, file, layout.length, layout.pieces)
                self._save.staged_s = time.monotonic() - self._began
        except Exception as error:
            self._save.error = error
        finally:
            # The memory of the region goes with its last tensor.
            self._versions.clear()
            del self._region
            self._host_copied.set()
            self._save._staged.set()

    def wait_durable(self, timeout: float | None) -> None:
        """Waits until the agent has stored it, or it has come to nothing."""
        until = None if timeout is None else time.monotonic() + timeout
        if not self._save._staged.wait(timeout):
            raise TimeoutError(f"{self._save.file} is not staged yet")
        while not self._save.is_durable and self._save.error is None:
            left = WAIT_S if until is None else min(WAIT_S, until - time.monotonic())
            if left < 0:
                raise TimeoutError(f"{self._save.file} is not durable yet")
            with contextlib.suppress(InterruptedError):
                self.look(left)

    def look(self, seconds: float = 0.0) -> None:
        """Hears from the agent what became of it."""
        if not self._save._staged.is_set() or self._save.error is not None or self._save.is_durable:
            return
        answer = self._agent.wait(self._key, self.number, seconds)
        if answer["answer"] == "durable":
            self._save.version = answer["version"]
        elif answer["answer"] == "failed":
            self._save.error = _errors.make(answer, [])
