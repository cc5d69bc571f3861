"""Hugging Face's Trainer saves through the engine: a training that was killed has the same losses as one that wasn't."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

import stdchk
from stdchk.torch.transformers import Checkpoints

TRAINING = Path(__file__).with_name("transformers_training.py")
STEPS = 24
"""60 samples by 4, two batches a step, 3 epochs."""


def train(folder: str, kill_at: int, output: Path, ranks: int = 1, **arguments: Any) -> int:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, str(TRAINING), folder, str(kill_at), str(output), json.dumps(arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=output.parent)
    killed = -signal.SIGKILL if ranks == 1 else 1
    assert done.returncode == (killed if kill_at else 0), done.stdout[-3000:] + done.stderr[-3000:]
    return done.returncode


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


def compare(tmp_path: Path, expected_from: int) -> None:
    whole, killed = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "killed.pt"))
    assert (whole.pop("from"), killed.pop("from")) == (None, expected_from)
    assert [step for step, _ in whole["loss"]] == list(range(1, STEPS + 1))
    for key in whole:
        assert equal(whole[key], killed[key]), key
    # The Trainer itself has written nothing.
    assert whole["files"] == []


def test_a_killed_training_has_the_same_losses(folder: stdchk.Folder, tmp_path: Path) -> None:
    train(f"{folder.path}/whole", 0, tmp_path / "whole.pt")
    # In an epoch of eight steps, and at its end: step 16 is one.
    for kill_at in (5, 20):
        train(f"{folder.path}/killed", kill_at, tmp_path / "killed.pt", save_steps=4)
    train(f"{folder.path}/killed", 0, tmp_path / "killed.pt")
    compare(tmp_path, 16)
    assert [one.timestep for one in folder["whole"].sets()] == ["24", "21", "18", "15", "12", "9", "6", "3"]


def test_it_saves_at_the_ends_of_epochs(folder: stdchk.Folder, tmp_path: Path) -> None:
    # Without a sampler of its own, the order of the data is drawn from the random numbers of the training.
    arguments: dict[str, Any] = {"save_strategy": "epoch", "accelerator_config": {"use_seedable_sampler": False}}
    train(f"{folder.path}/whole", 0, tmp_path / "whole.pt", **arguments)
    train(f"{folder.path}/killed", 18, tmp_path / "killed.pt", **arguments)
    train(f"{folder.path}/killed", 0, tmp_path / "killed.pt", **arguments)
    compare(tmp_path, 16)
    assert [one.timestep for one in folder["whole"].sets()] == ["24", "16", "8"]


def test_ranks_save_together(folder: stdchk.Folder, tmp_path: Path) -> None:
    arguments = {"per_device_train_batch_size": 2}
    train(f"{folder.path}/whole", 0, tmp_path / "whole.pt", ranks=2, **arguments)
    train(f"{folder.path}/killed", 11, tmp_path / "killed.pt", ranks=2, **arguments)
    train(f"{folder.path}/killed", 0, tmp_path / "killed.pt", ranks=2, **arguments)
    compare(tmp_path, 9)
    # Replicas are saved once.
    first, second = (entry.size for entry in folder["whole/24"].ls())
    assert second < first
    train(f"{folder.path}/killed", 0, tmp_path / "other.pt", ranks=1)


def test_what_it_cannot_do_is_refused(folder: stdchk.Folder, tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    best = {"load_best_model_at_end": True, "save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 500}
    trainer = Trainer(model, TrainingArguments(str(tmp_path), use_cpu=True, **best), train_dataset=[], eval_dataset=[])
    with pytest.raises(ValueError, match="load_best_model_at_end"):
        Checkpoints(folder).train(trainer)
    data = [{"input": torch.ones(1)}]
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Checkpoints(folder)])
    with pytest.raises(ValueError, match=r"train\(trainer\)"):
        trainer.train()
