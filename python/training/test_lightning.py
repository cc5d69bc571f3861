"""Lightning saves through the engine: a training that was killed ends with the same weights as one that wasn't."""

import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

import stdchk
from stdchk.torch.lightning import CheckpointIO

TRAINING = Path(__file__).with_name("lightning_training.py")


def train(folder: str, kill_at: int, output: Path, *steps_and_devices: int) -> int:
    command = [sys.executable, str(TRAINING), folder, str(kill_at), str(output), *map(str, steps_and_devices)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=output.parent)
    assert done.returncode in (0, -signal.SIGKILL), done.stdout[-3000:] + done.stderr[-3000:]
    return done.returncode


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def test_a_killed_training_ends_with_the_same_weights(folder: stdchk.Folder, tmp_path: Path) -> None:
    assert train(f"{folder.path}/whole", 0, tmp_path / "whole.pt") == 0
    # Before the next checkpoint, and right behind one; both are in an epoch of eight steps.
    for kill_at in (7, 18):
        assert train(f"{folder.path}/killed", kill_at, tmp_path / "killed.pt") == -signal.SIGKILL
    assert train(f"{folder.path}/killed", 0, tmp_path / "killed.pt") == 0
    whole, killed = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "killed.pt"))
    assert whole.pop("newest") is None and killed.pop("newest") == f"stdchk://{folder.path}/killed/last.ckpt"
    assert equal(whole, killed)
    # Of the two best and the last one, all are there and no others.
    names = sorted(entry.name for entry in folder["whole"].ls())
    assert len(names) == 3 and names[-1] == "last.ckpt" and all(name.startswith("epoch=") for name in names[:2])


def test_ranks_that_are_alike_save_once_and_all_load(folder: stdchk.Folder, tmp_path: Path) -> None:
    train(f"{folder.path}/whole", 0, tmp_path / "whole.pt", 6, 2)
    train(f"{folder.path}/twice", 0, tmp_path / "twice.pt", 3, 2)
    train(f"{folder.path}/twice", 0, tmp_path / "twice.pt", 6, 2)
    whole, twice = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "twice.pt"))
    assert whole.pop("newest") is None and twice.pop("newest") == f"stdchk://{folder.path}/twice/last.ckpt"
    assert equal(whole, twice)


def checkpoint() -> dict[str, Any]:
    net = torch.nn.BatchNorm1d(3)
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.5)
    callbacks = {"one": {"best": torch.tensor(0.5), "paths": {"a": 1}, "none": None}}
    plain = {"epoch": 3, "callbacks": callbacks, "hyper_parameters": {"x": (1, 2.5)}}
    return {"state_dict": net.state_dict(), "optimizer_states": [optimizer.state_dict()], **plain}


def test_a_checkpoint_comes_back_as_it_was(folder: stdchk.Folder) -> None:
    checkpoints = CheckpointIO(pool=folder.pool)
    path = f"stdchk://{folder.path}/sub/epoch=1-step=2.ckpt"
    given = checkpoint()
    checkpoints.save_checkpoint(given, path)
    expected = checkpoint()
    given["state_dict"]["weight"].data.fill_(9)
    # `pathlib` makes one slash of two.
    for name in (path, Path(path)):
        found = checkpoints.load_checkpoint(name)
        assert equal(found, expected)
        assert found["state_dict"]._metadata == expected["state_dict"]._metadata
    assert equal(checkpoints.load_checkpoint(path, map_location="cpu"), expected)
    assert equal(checkpoints.load_checkpoint(path, map_location=lambda storage, _: storage), expected)
    meta = checkpoints.load_checkpoint(path, map_location=torch.device("meta"))
    assert meta["state_dict"]["weight"].is_meta and meta["state_dict"]._metadata
    checkpoints.teardown()
    assert checkpoints.newest(f"stdchk://{folder.path}/sub") == path
    checkpoints.remove_checkpoint(path)
    checkpoints.remove_checkpoint(path)
    assert checkpoints.newest(f"stdchk://{folder.path}/sub") is None
    with pytest.raises(FileNotFoundError):
        checkpoints.load_checkpoint(path)


def test_what_has_no_form_is_pickled_only_where_it_is_said(folder: stdchk.Folder) -> None:
    path = f"stdchk://{folder.path}/x.ckpt"
    given = {"hyper_parameters": {"since": [date(2020, 1, 2)], "width": 3}}
    plain, trusting = CheckpointIO(pool=folder.pool), CheckpointIO(pool=folder.pool, pickle=True)
    with pytest.raises(ValueError, match=r"hyper_parameters.since.0: a datetime.date is no tensor and no plain value"):
        plain.save_checkpoint(given, path)
    plain.teardown()
    trusting.save_checkpoint(given, path)
    assert trusting.load_checkpoint(path) == given
    with pytest.raises(PermissionError, match="pickled"):
        plain.load_checkpoint(path)
    trusting.teardown()


def test_paths_elsewhere_are_refused(folder: stdchk.Folder) -> None:
    checkpoints = CheckpointIO(pool=folder.pool)
    for path in ("/tmp/x.ckpt", "x.ckpt", "stdchk://x.ckpt", "s3://a/x.ckpt"):
        with pytest.raises(ValueError, match="no path"):
            checkpoints.save_checkpoint({}, path)
    with pytest.raises(TypeError):
        checkpoints.save_checkpoint({}, f"stdchk://{folder.path}/x", storage_options={})
