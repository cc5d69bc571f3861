"""Puts tensors into files of a folder, one behind the other, each through a region of the agent."""

import atexit
import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any

from stdchk import _errors
from stdchk._agent import Agent
from stdchk._layout import lay_out
from stdchk._pool import Folder
from stdchk.torch._staging import Region, Save, Staging
from stdchk.torch._tensors import Gathered

if TYPE_CHECKING:
    from typing_extensions import Self

NAMING = "{step}/{rank}-of-{ranks}.*.safetensors"
"""The ``*`` stands for what tells a save from others of the same step: no start of a job replaces files of another one."""
FILE = re.compile(r"(?:.*/)?(\d+)-of-(\d+)\.([0-9a-f]{16})\.safetensors")
FORMAT = 1
"""Of what stands in ``__metadata__`` below ``stdchk``."""
REGION_STEP_BYTES = 2 << 20
"""Sizes of regions are multiples of it, so that a state that grows by some bytes keeps its memory."""


def set_file(step: "int | str", rank: int, ranks: int, run: str) -> str:
    """The name of a rank's file in the set of a save, which ``run`` tells from all others.

    A step that is no whole number would name no set, and never be loaded.
    """
    if not str(step).isdecimal() or not str(step).isascii():
        cause = f"the step {step!r} is no whole number"
        raise _errors.make({"code": "invalid", "object": "step", "cause": cause, "next_step": "give the number of the step"}, [])
    tag = hashlib.sha256(run.encode()).hexdigest()[:16]
    return NAMING.format(step=int(step), rank=rank, ranks=ranks).replace("*", tag)


def name_sets(folder: Folder) -> None:
    """Makes the folder, and its files sets of this naming."""
    folder.mkdir()
    naming = folder.policy.get("naming", "")
    if naming != NAMING:
        if folder.sets():
            cause, next_step = f"it has sets of files named {naming}", "give the run a folder of its own"
            raise _errors.make({"code": "conflict", "object": folder.path, "cause": cause, "next_step": next_step}, [])
        folder.policy["naming"] = NAMING


class Saver:
    """Saves into a folder of the pool. ``name`` tells its regions from others of the folder; one process at a time has them."""

    def __init__(self, folder: Folder, name: str, buffers: int = 1) -> None:
        self.folder = folder
        self._name = name
        self._saves = 0
        self._buffers: list[Region | None] = [None] * buffers
        self._stagings: list[Staging | None] = [None] * buffers
        self._staged_as: list[Save | None] = [None] * buffers
        self._agent = Agent(folder.pool)
        self._process = os.getpid()
        # A program that ends without `close` hands over what it began to save.
        atexit.register(self._end)

    def _put(
        self, step: "int | str", name: str, gathered: Gathered, run: str, rank: int = 0, ranks: int = 1, **more: Any
    ) -> Save:
        """Begins to save what was gathered as the file of this name. ``more`` is JSON that goes along with it.

        ``run`` is the same in all files that belong together, and in no others.
        """
        began = time.monotonic()
        number = self._saves % len(self._buffers)
        self._settle(number)
        waited = time.monotonic() - began
        self._saves += 1
        about = {
            "format": FORMAT,
            "run": run,
            "step": str(step),
            "rank": rank,
            "ranks": ranks,
            "alike": gathered.alike,
            "sharded": gathered.sharded,
            "shards": {one.array.name: [one.shard.of, one.shard.at] for one in gathered.kept if one.shard is not None},
            "state": gathered.tree,
            **more,
        }
        metadata = {"format": "pt", "stdchk": json.dumps(about, separators=(",", ":"))}
        layout = lay_out((one.array for one in gathered.kept), metadata)
        region = self._region(number, layout.region_bytes)
        filling = self._agent.begin(region.key)
        save = Save(step, f"{self.folder.path}/{name}", layout.region_bytes, waited)
        staging = Staging(self._agent, region, filling, save, layout)
        save._wait = staging.wait_durable
        self._stagings[number], self._staged_as[number] = staging, save
        staging.begin(gathered.kept)
        return save

    def before_update(self) -> None:
        """To be called before parameters change: waits for the copies of saves under way, on a device without the host."""
        for staging in self._stagings if os.getpid() == self._process else ():
            if staging is not None:
                staging.release()

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all saves are durable. Raises ``TimeoutError`` after ``timeout`` seconds, and the error of a failed one."""
        until = None if timeout is None else time.monotonic() + timeout
        for number in self._oldest_first():
            self._settle(number, None if until is None else max(0.0, until - time.monotonic()))

    def close(self) -> None:
        """Waits for all saves, and gives the memory back to the agent."""
        try:
            self.wait()
        finally:
            self._end()

    def _end(self) -> None:
        """Hands what is being copied over to the agent, which stores it, and gives the memory back."""
        atexit.unregister(self._end)
        if os.getpid() != self._process:
            return
        for staging in self._stagings:
            if staging is not None:
                staging.join()
        for region in self._buffers:
            if region is not None:
                region.close()
        self._buffers = [None] * len(self._buffers)
        self._agent.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self._end()

    def _region(self, number: int, size: int) -> Region:
        region = self._buffers[number]
        if region is None or region.size < size:
            if region is not None:
                region.close()
                self._buffers[number] = None
            key = f"{self.folder.path}/{self._name}.{number}"
            region = Region(self._agent, key, -(-size // REGION_STEP_BYTES) * REGION_STEP_BYTES)
            self._buffers[number] = region
        return region

    def _settle(self, number: int, timeout: float | None = None) -> None:
        """Waits until a buffer's save is durable. An error that nobody was told of is raised."""
        staging, save = self._stagings[number], self._staged_as[number]
        if staging is None or save is None:
            return
        if os.getpid() != self._process:
            cause, next_step = "it belongs to the process that made it", "make one in the child"
            raise _errors.make({"code": "other", "object": "the checkpointer", "cause": cause, "next_step": next_step}, [])
        staging.wait_durable(timeout)
        self._stagings[number] = self._staged_as[number] = None
        if save.error is not None and not save._is_told:
            raise save.error

    def _oldest_first(self) -> list[int]:
        count = len(self._buffers)
        return [(self._saves + number) % count for number in range(count)]
