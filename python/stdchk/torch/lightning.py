"""Lightning's checkpoints in a pool, stored by the agent while the training goes on.

    checkpoints = CheckpointIO()
    trainer = Trainer(plugins=[checkpoints], callbacks=[ModelCheckpoint(dirpath="stdchk://run", save_top_k=-1)])
    trainer.fit(model, ckpt_path=checkpoints.newest("stdchk://run"))

A checkpoint is one file at the path that Lightning says, ``stdchk://FOLDER/NAME``: safetensors, with what is no tensor as JSON.
The dictionaries that Lightning, its callbacks and loops make themselves hold nothing else. A value that has neither form, from a
hook or a hyperparameter of one's own, is refused, or pickled with ``CheckpointIO(pickle=True)``.
"""

import os
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO as LightningIO

from stdchk._agent import Agent
from stdchk._data import Member
from stdchk._errors import make
from stdchk._pool import Folder, Pool, connect
from stdchk.torch import _state
from stdchk.torch._load import Files, await_staged, load_set
from stdchk.torch._saver import Saver
from stdchk.torch._tensors import gather

__all__ = ["CheckpointIO"]

SCHEME = "stdchk://"
VERSIONS = "_metadata"
"""Where ``Module.state_dict`` keeps the versions of its modules: an attribute of the dictionary."""


class CheckpointIO(LightningIO):  # type: ignore[misc]
    """Saves and loads Lightning's checkpoints, of strategies that gather them on one rank: one device, DDP.

    ``pool``: a connection, or what :func:`stdchk.connect` finds. ``pickle``: whether a value that is neither a tensor nor a plain
    one is pickled; loading such a checkpoint runs code of whoever wrote it, and needs ``pickle=True``, too. :meth:`teardown`
    waits until all is durable, and so does :meth:`remove_checkpoint`: an older checkpoint goes once the newer one is there.
    """

    def __init__(self, *, pool: Pool | None = None, pickle: bool = False) -> None:
        self._pool = pool
        self._pickle = pickle
        self._run = uuid.uuid4().hex
        self._savers: dict[str, Saver] = {}
        self._count = 0

    def save_checkpoint(self, checkpoint: dict[str, Any], path: "str | os.PathLike[str]", storage_options: Any = None) -> None:
        """Returns once the state is copied. An earlier save into this folder that failed raises its error here."""
        if storage_options is not None:
            raise TypeError("`storage_options` says nothing to stdchk: connect with `CheckpointIO(pool=stdchk.connect(…))`")
        folder, name = self._place(path)
        if folder.path not in self._savers:
            folder.mkdir()
            self._savers[folder.path] = Saver(folder, "lightning")
        self._count += 1
        versions = getattr(checkpoint.get("state_dict"), VERSIONS, None)
        held = _state.with_pickled(checkpoint) if self._pickle else checkpoint
        state = {"checkpoint": held, "versions": dict(versions) if isinstance(versions, Mapping) else None}
        saver = self._savers[folder.path]
        save = saver._put(self._count, name, gather(state, 0, 1), f"{self._run}:{self._count}")
        # Lightning may change the state at once, and whatever it is, it was copied.
        save._staged.wait()

    def load_checkpoint(
        self, path: "str | os.PathLike[str]", map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The dictionary that was saved: on the host, or where ``map_location`` says, a device or a function."""
        folder, name = self._place(path)
        self.wait()
        version = folder.versions(name)[-1]
        agent = Agent(folder.pool)
        try:
            files = Files(folder, agent, name, (Member(name, 0, version.version, version.size),))
            if not self._pickle and _state.has_pickled(files.of(0).about["state"]):
                cause, next_step = "it has pickled values", "load it with CheckpointIO(pickle=True) if you trust its writer"
                raise make({"code": "denied", "object": str(path), "cause": cause, "next_step": next_step}, [])
            state, _ = load_set(files, 0, 1, {"checkpoint": None, "versions": None})
        finally:
            agent.close()
        found: dict[str, Any] = state["checkpoint"]
        if state["versions"] is not None:
            found["state_dict"] = OrderedDict(found["state_dict"])
            setattr(found["state_dict"], VERSIONS, OrderedDict(state["versions"]))
        return found if map_location is None else _mapped(found, map_location)

    def remove_checkpoint(self, path: "str | os.PathLike[str]") -> None:
        """Removes it, once what was saved is durable."""
        folder, name = self._place(path)
        self.wait()
        if folder.exists(name):
            folder.remove(name)

    def newest(self, dirpath: "str | os.PathLike[str]") -> str | None:
        """The path of the checkpoint that was saved last into a folder, for ``ckpt_path``; ``None`` if there is none.

        Lightning's own ``ckpt_path="last"`` looks for files of the host alone.
        """
        self.wait()
        folder, _ = self._place(os.path.join(dirpath, "any"))
        agent = Agent(folder.pool)
        try:
            await_staged(folder, agent)
        finally:
            agent.close()
        entries = folder.ls() if folder.exists() else []
        files = [entry for entry in entries if entry.kind == "file" and entry.name.endswith(".ckpt")]
        newest = max(files, key=lambda entry: entry.mtime, default=None)
        return None if newest is None else f"{SCHEME}{folder.path}/{newest.name}"

    def wait(self, timeout: float | None = None) -> None:
        """Waits until all that was saved is durable. Raises ``TimeoutError``, and the error of a save that came to nothing."""
        for saver in self._savers.values():
            saver.wait(timeout)

    def teardown(self) -> None:
        """Waits for all saves, and gives the memory back to the agent."""
        while self._savers:
            _, saver = self._savers.popitem()
            saver.close()

    def _place(self, path: "str | os.PathLike[str]") -> tuple[Folder, str]:
        """The folder and the name of a path of Lightning's. It may have lost a slash on its way through ``pathlib``."""
        text = os.fspath(path)
        at, _, name = text.removeprefix("stdchk:").strip("/").rpartition("/")
        if not text.startswith("stdchk:/") or not at or not name:
            next_step = 'give the pool\'s folder: ModelCheckpoint(dirpath="stdchk://FOLDER")'
            cause = "it is no path `stdchk://FOLDER/NAME`"
            raise make({"code": "invalid", "object": text, "cause": cause, "next_step": next_step}, [])
        if self._pool is None:
            self._pool = connect()
        return self._pool[at], name


def _mapped(value: Any, location: Any) -> Any:
    """A value with its tensors where they are to be."""
    if isinstance(value, torch.Tensor):
        if not callable(location):
            return value.to(location)
        storage = location(value.untyped_storage(), "cpu")
        return value if storage is None else value.to(storage.device)
    if isinstance(value, dict):
        mapped = type(value)((key, _mapped(held, location)) for key, held in value.items())
        if hasattr(value, VERSIONS):
            setattr(mapped, VERSIONS, getattr(value, VERSIONS))
        return mapped
    if isinstance(value, list | tuple):
        return type(value)(_mapped(held, location) for held in value)
    return value
