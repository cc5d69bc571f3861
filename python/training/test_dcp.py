"""PyTorch's distributed checkpoint over the engine: saved by some ranks, loaded by others, and damaged or half there."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

import stdchk
from stdchk.torch import Checkpointer
from stdchk.torch.dcp import StorageReader, StorageWriter

RANKS = Path(__file__).with_name("dcp_ranks.py")


@pytest.fixture(autouse=True)
def in_one_process() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def run(ranks: int, what: str, folder: stdchk.Folder, step: int) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*launcher, str(RANKS), what, folder.path, str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def files(folder: stdchk.Folder, start: str) -> list[str]:
    """The names of files of ranks that start so."""
    return [entry.name for entry in folder.ls() if entry.name.startswith(start)]


def header(folder: stdchk.Folder, rank: int) -> dict[str, Any]:
    (name,) = files(folder, f"{rank}-of-2.")
    with folder.open(name) as file:
        found: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return found


def test_two_ranks_save_and_other_numbers_of_them_load(folder: stdchk.Folder) -> None:
    run(2, "save", folder, 1)
    for ranks in (3, 2, 1):
        run(ranks, "load", folder, 1)
    run(2, "async", folder, 2)
    run(3, "load", folder, 2)
    assert [one.timestep for one in folder.sets() if one.state == "complete"] == ["2", "1"]
    assert sorted(name[:7] for name in files(folder["1"], "")) == ["0-of-2.", "1-of-2."]
    for rank in (0, 1):
        weight = header(folder["1"], rank)["model.0.weight"]
        assert weight["dtype"] == "F32" and weight["shape"] == [151 - rank, 64]


def test_a_process_of_its_own_saves(folder: stdchk.Folder) -> None:
    run(2, "process", folder, 4)
    run(3, "load", folder, 4)


def state_of(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {
        "big": torch.randn(1 << 19),
        "half": torch.randn(3, 5).bfloat16(),
        "number": torch.tensor(seed),
        "empty": torch.empty(0, 4),
        "turned": torch.randn(30, 50).t(),
        "list": [torch.ones(2) * seed, {"deep": torch.zeros(1, dtype=torch.bool)}],
        "plain": {"a": (1, "x"), "none": None},
        "a.b": seed,
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_one_process_saves_and_loads(folder: stdchk.Folder) -> None:
    writer = StorageWriter(folder)
    for step in (1, 2, 10):
        dcp.save(state_of(step), checkpoint_id=str(step), storage_writer=writer)
    for wanted, expected in ((None, 10), (2, 2)):
        found = state_of(5)
        dcp.load(found, storage_reader=StorageReader(folder, wanted))
        assert same(found, state_of(expected))
    # The metadata is whole: the state is rebuilt without knowing what was saved.
    found = _load_state_dict_from_keys(storage_reader=StorageReader(folder))
    assert found.pop("plain") == state_of(10)["plain"]
    assert same(found, {key: value for key, value in state_of(10).items() if key != "plain"})


def test_a_planner_that_keeps_its_plans_saves(folder: stdchk.Folder) -> None:
    for step in (1, 2, 3):
        dcp.save(state_of(step), storage_writer=StorageWriter(folder, step), planner=DefaultSavePlanner(enable_plan_caching=True))
    found = state_of(0)
    dcp.load(found, storage_reader=StorageReader(folder))
    assert same(found, state_of(3))


def test_tensors_that_did_not_change_are_stored_once(folder: stdchk.Folder) -> None:
    state: dict[str, Any] = {f"{number}": torch.randn(1 << 19) for number in range(8)}
    dcp.save(state, storage_writer=StorageWriter(folder, 1))
    first = folder.usage()["total"]["distinct_bytes"]
    state["3"] = torch.randn(1 << 19)
    state["a new one"] = {"in": "front"}
    dcp.save(state, storage_writer=StorageWriter(folder, 2))
    assert folder.usage()["total"]["distinct_bytes"] - first < (2 << 20) + (1 << 20)


def test_what_cannot_be_loaded_is_passed_over_or_refused(folder: stdchk.Folder) -> None:
    with pytest.raises(CheckpointException, match="no complete set"):
        dcp.load(state_of(1), storage_reader=StorageReader(folder))
    dcp.save(state_of(1), storage_writer=StorageWriter(folder, 1))
    # A rank's file alone, a file that is none of ours, and a set of the other kind.
    (one,) = files(folder["1"], "0-of-1.")
    folder.write_bytes("2/0-of-2.0123456789abcdef.safetensors", folder["1"].read_bytes(one))
    folder.write_bytes("3/0-of-1.0123456789abcdef.safetensors", b"no header")
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(4, number=torch.ones(1))
    reader = StorageReader(folder)
    found = state_of(0)
    dcp.load(found, storage_reader=reader)
    assert reader.step == "1" and same(found, state_of(1))
    assert [step for step, _ in reader.passed_over] == ["4", "3"]
    with pytest.raises(CheckpointException, match=r"Checkpointer"):
        dcp.load(found, storage_reader=StorageReader(folder, 4))
    with Checkpointer(folder) as checkpointer, pytest.raises(ValueError, match="no part 'number'"):
        checkpointer.load(step=1, number=None)


def test_files_of_two_starts_are_no_set(folder: stdchk.Folder) -> None:
    run(2, "save", folder, 1)
    first = files(folder["1"], "")
    run(2, "save", folder, 1)
    (late,) = [name for name in files(folder["1"], "1-of-2.") if name not in first]
    (early,) = [name for name in first if name.startswith("1-")]
    folder["1"].write_bytes(late, folder["1"].read_bytes(early))
    reader = StorageReader(folder)
    reader.read_metadata()
    assert "another save" in reader.passed_over[0][1]
    folder["1"].remove(early)
    reader = StorageReader(folder)
    with pytest.raises(stdchk.DamagedError, match="another save"):
        reader.read_metadata()


def test_what_ranks_cannot_agree_on_is_refused(folder: stdchk.Folder) -> None:
    with pytest.raises(ValueError, match="use_collectives"):
        dcp.save(state_of(1), storage_writer=StorageWriter(folder, 1), use_collectives=False)
    with pytest.raises(CheckpointException, match="no step"):
        dcp.save(state_of(1), storage_writer=StorageWriter(folder))
    with pytest.raises(CheckpointException, match="whole number"):
        dcp.save(state_of(1), storage_writer=StorageWriter(folder, "last"))


def test_a_reader_holds_up_no_save(folder: stdchk.Folder) -> None:
    dcp.save(state_of(1), storage_writer=StorageWriter(folder, 1))
    reader = StorageReader(folder)
    reader.read_metadata()
    with pytest.raises(CheckpointException, match="Missing key"):
        dcp.load({"other": torch.ones(1)}, storage_reader=reader)
    dcp.save(state_of(2), storage_writer=StorageWriter(folder, 2))
    found = state_of(0)
    dcp.load(found, storage_reader=reader)
    assert same(found, state_of(2)) and reader.memory_bytes == reader.bytes > 0


def test_the_writer_goes_to_another_process(folder: stdchk.Folder) -> None:
    import pickle

    writer = pickle.loads(pickle.dumps(StorageWriter(folder, 3)))
    assert writer.step == 3 and writer.folder.path == folder.path
