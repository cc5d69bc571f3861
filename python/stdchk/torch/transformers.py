"""The checkpoints of Hugging Face's ``Trainer`` in a pool, copied while it computes on.

    Checkpoints("run").train(Trainer(model, TrainingArguments(save_steps=100), train_dataset=data))

Whenever the Trainer is to save, model, optimizer, scheduler, scaler, the states of random numbers and the Trainer's own state go
into the pool, in place of the folders ``checkpoint-N``. ``train`` goes on from the newest of them. How long they stay is for the
pool's lifetime (``stdchk policy``), not for ``save_total_limit``.
"""

import dataclasses
import json
import os
import random
import tempfile
from typing import Any

import numpy
import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from stdchk._pool import Folder, Pool
from stdchk.torch._checkpointer import Checkpointer
from stdchk.torch._load import Loaded

__all__ = ["Checkpoints"]


class Checkpoints(TrainerCallback):  # type: ignore[misc]
    """Saves a Trainer's state into a folder of a pool, on one device or under DDP, and trains from the newest one on.

    ``folder``: its name, or a :class:`stdchk.Folder`; it should be the run's own. ``pool``: a connection, or what
    :func:`stdchk.connect` finds. ``buffers``: see :class:`stdchk.torch.Checkpointer`.
    """

    def __init__(self, folder: "str | Folder", *, pool: Pool | None = None, buffers: int = 1) -> None:
        self._folder, self._pool, self._buffers = folder, pool, buffers
        self._trainer: Any = None
        self._checkpointer: Checkpointer | None = None
        self._is_due = False
        self._saved_step = -1
        self._resumed: dict[str, Any] = {}
        self.loaded: Loaded | None = None
        """The checkpoint from which :meth:`train` went on, without the state itself."""

    def train(self, trainer: Trainer, **arguments: Any) -> Any:
        """Trains from the newest checkpoint that is complete and intact, or from the beginning; what ``Trainer.train`` returns.

        All checkpoints are durable when it returns.
        """
        _check(trainer)
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        self._trainer, self._is_due, self._saved_step = trainer, False, -1
        with Checkpointer(self._folder, pool=self._pool, buffers=self._buffers) as checkpointer:
            self._checkpointer = checkpointer
            try:
                self.loaded = checkpointer.load(model=trainer.model, optimizer=None, scheduler=None)
                if self.loaded is None:
                    return trainer.train(**arguments)
                self._resumed, self.loaded = self.loaded.state, dataclasses.replace(self.loaded, state={})
                return self._go_on(arguments)
            finally:
                self._trainer = self._checkpointer = None

    def _go_on(self, arguments: dict[str, Any]) -> Any:
        """Trains from a folder with the Trainer's own state alone. The model is loaded, the rest waits for ``on_train_begin``."""
        with tempfile.TemporaryDirectory(prefix="stdchk-trainer-") as folder:
            with open(os.path.join(folder, "trainer_state.json"), "w") as file:
                file.write(self._resumed["trainer"])
            # Without this the Trainer looks for the model in the folder, and refuses to go on. It does so, too, if a later
            # release has another name for the method.
            self._trainer._load_from_checkpoint = lambda *_: None
            try:
                return self._trainer.train(resume_from_checkpoint=folder, **arguments)
            finally:
                del self._trainer._load_from_checkpoint

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Gives optimizer, scheduler and scaler what was loaded."""
        if self._trainer is None:
            raise ValueError("start the training with `Checkpoints(…).train(trainer)`, which goes on from the newest checkpoint")
        if self._resumed:
            kwargs["optimizer"].load_state_dict(self._resumed.pop("optimizer"))
            kwargs["lr_scheduler"].load_state_dict(self._resumed.pop("scheduler"))
            scaler = self._scaler()
            if scaler is not None and self._resumed["scaler"] is not None:
                scaler.load_state_dict(self._resumed["scaler"])

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Saves what is due from the end of the epoch before. An epoch draws its order of the data behind this."""
        self._save_if_due(state, control, kwargs)
        if self._resumed and float(state.epoch or 0).is_integer():
            self._restore_random()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Saves what is due from the step before, which has been logged and evaluated. In an epoch, this is where it goes on."""
        self._save_if_due(state, control, kwargs)
        if self._resumed:
            self._restore_random()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Takes the Trainer's saving over."""
        if control.should_save:
            self._is_due, control.should_save = True, False

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Saves what is due from the last step, and takes the Trainer's saving over."""
        is_wanted, control.should_save = control.should_save, False
        self._save_if_due(state, control, kwargs)
        self._is_due = is_wanted

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Saves as well where the Trainer did so itself, since an evaluation or another callback asked for it."""
        self._is_due = True
        self._save_if_due(state, control, kwargs)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Saves what is due from the end of the last epoch."""
        self._save_if_due(state, control, kwargs)

    def _save_if_due(self, state: TrainerState, control: TrainerControl, given: dict[str, Any]) -> None:
        is_due, self._is_due = self._is_due, False
        if not is_due or state.global_step == self._saved_step:
            return
        assert self._checkpointer is not None
        self._saved_step = state.global_step
        scaler = self._scaler()
        optimizer = given["optimizer"]
        self._checkpointer._save(
            state.global_step,
            {
                "model": given["model"],
                # Accelerate's wrapper has no hooks.
                "optimizer": getattr(optimizer, "optimizer", optimizer),
                "scheduler": given["lr_scheduler"],
                "scaler": None if scaler is None else scaler.state_dict(),
                "trainer": self._state_text(state, control),
                "random": _random_states(self._checkpointer.ranks),
                "ranks": self._checkpointer.ranks,
            },
            alike={"model", "optimizer", "scheduler"},
        )

    def _state_text(self, state: TrainerState, control: TrainerControl) -> str:
        """The content of the Trainer's `trainer_state.json`."""
        held = [one for one in (*self._trainer.callback_handler.callbacks, control) if isinstance(one, ExportableState)]
        current = dataclasses.replace(state, stateful_callbacks=held)
        return json.dumps(dataclasses.asdict(current))

    def _scaler(self) -> Any:
        return getattr(self._trainer.accelerator, "scaler", None)

    def _restore_random(self) -> None:
        """Goes on with the random numbers of the checkpoint, if as many ranks save as did then."""
        assert self._checkpointer is not None
        if self._resumed["ranks"] == self._checkpointer.ranks:
            _set_random_states(self._resumed["random"])
        self._resumed = {}


def _check(trainer: Trainer) -> None:
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError("a Trainer with FSDP or DeepSpeed keeps its state elsewhere: let it save into a mount of the pool")
    if trainer.args.load_best_model_at_end:
        raise ValueError("`load_best_model_at_end` needs the Trainer's own folders: let it save into a mount of the pool")


def _random_states(ranks: int) -> dict[str, Any]:
    state: Any = numpy.random.get_state()
    kind, keys, *rest = state
    is_used = torch.cuda.is_initialized()
    devices = range(torch.cuda.device_count() if is_used else 0) if ranks == 1 or not is_used else [torch.cuda.current_device()]
    return {
        "python": random.getstate(),
        "numpy": (kind, keys.tobytes(), *rest),
        "host": torch.get_rng_state().numpy().tobytes(),
        "devices": [torch.cuda.get_rng_state(device).numpy().tobytes() for device in devices],
    }


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(_byte_tensor(states["host"]))
    is_one = len(states["devices"]) == 1
    for number, state in enumerate(states["devices"]):
        if number < torch.cuda.device_count():
            torch.cuda.set_rng_state(_byte_tensor(state), torch.cuda.current_device() if is_one else number)


def _byte_tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
