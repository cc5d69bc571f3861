"""A training's state comes back bit for bit, whatever is killed, damaged or changed meanwhile."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import stdchk
import stdchk.torch
from stdchk._agent import Agent
from stdchk.torch import Checkpointer, Pickled
from stdchk.torch._load import Copies, Files
from stdchk.torch._staging import Staging
from stdchk.torch._tensors import Shard


class Net(torch.nn.Module):
    """With what models have: tied weights, buffers that the forward pass changes, frozen parameters."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(width, width).requires_grad_(False)
        self.one = torch.nn.Linear(width, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.other = torch.nn.Linear(width, width, bias=False)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(self.norm(self.one(self.frozen(x))))


def training(seed: int, width: int = 64) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    net = Net(width)
    return net, torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)


def step(net: Net, optimizer: torch.optim.Optimizer, width: int = 64) -> None:
    x = torch.randn(8, width)
    optimizer.zero_grad()
    (net(x) - x).square().mean().backward()
    optimizer.step()


def snapshot(*values: Any) -> list[torch.Tensor]:
    """Copies of all tensors of modules and optimizers."""
    found = []
    for value in values:
        if isinstance(value, torch.nn.Module):
            found += [tensor.clone() for tensor in value.state_dict().values()]
        else:
            found += [tensor.clone() for held in value.state.values() for tensor in held.values()]
    return found


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


def test_a_training_comes_back_bit_for_bit(folder: stdchk.Folder) -> None:
    net, optimizer = training(1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with Checkpointer(folder) as checkpointer:
        assert checkpointer.load(net=net, optimizer=optimizer) is None
        for _ in range(3):
            step(net, optimizer)
            schedule.step()
        rng = torch.get_rng_state()
        checkpointer.save(3, net=net, optimizer=optimizer, schedule=schedule, rng=rng, epoch=7)
    expected = snapshot(net, optimizer)
    for is_in_memory in (True, False):
        if not is_in_memory:
            stop_agent(folder)
        net, optimizer = training(2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        with Checkpointer(folder) as checkpointer:
            loaded = checkpointer.load(net=net, optimizer=optimizer, schedule=schedule, rng=None)
        assert loaded is not None and (loaded.step, loaded.state["epoch"]) == (3, 7)
        assert same(snapshot(net, optimizer), expected)
        assert torch.equal(loaded.state["rng"], rng) and schedule.last_epoch == 3
        assert loaded.memory_bytes == (loaded.bytes if is_in_memory else 0)
        assert net.one.weight is net.other.weight


def stop_agent(folder: stdchk.Folder) -> None:
    socket = os.fspath(folder.pool._native.agent_socket)
    subprocess.run([os.environ["STDCHK_BINARY"], "agent", "stop", "--socket", socket], check=True)
    while os.path.exists(socket):
        time.sleep(0.02)


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64,
]  # fmt: skip


def test_tensors_of_all_types_and_shapes(folder: stdchk.Folder) -> None:
    torch.manual_seed(3)
    state: dict[str, Any] = {}
    for dtype in DTYPES:
        for shape in ((), (0,), (1,), (3, 5), (2, 0, 4), (1 << 18, 9)):
            size = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
            content = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8)
            state[f"{dtype} {shape}"] = content.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
    state["transposed"] = torch.randn(300, 500).t()
    state["strided"] = torch.randn(100, 100)[::3, 5:]
    state["expanded"] = torch.randn(1, 7).expand(5, 7)
    state['a name with " and \n and ü'] = torch.ones(2)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, tensors=state, single=state["strided"])
    stop_agent(folder)
    with Checkpointer(folder) as checkpointer:
        single = torch.zeros_like(state["strided"])
        loaded = checkpointer.load(tensors=None, single=single)
    assert loaded is not None
    for name, tensor in state.items():
        found = loaded.state["tensors"][name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
        assert (
            found.contiguous().view(-1).view(torch.uint8).tolist() == tensor.contiguous().view(-1).view(torch.uint8).tolist()
        ), name
    assert torch.equal(single, state["strided"])


def test_plain_values_come_back_as_they_were(folder: stdchk.Folder) -> None:
    import random

    state = {
        "nothing": None, "yes": True, "large": 1 << 80, "pi": 3.14, "infinite": [float("inf"), float("-inf")], "text": "ü\x00\n",
        "bytes": b"\x00\xff", "pair": (1, (2, [3])), 5: {True: "t", (1, "x"): "tuple", 2.5: "float", None: "none"},
        "random": random.getstate(),
        "dtype": torch.bfloat16, "empty": {}, "mark": ["d", ["x", "y"]],
    }  # fmt: skip
    with Checkpointer(folder) as checkpointer:
        checkpointer.save("007", state=state)
        loaded = checkpointer.load() if checkpointer.wait() is None else None
    assert loaded is not None and loaded.state["state"] == state


def test_objects_are_pickled_only_where_it_is_said(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as checkpointer:
        with pytest.raises(ValueError, match=r"state\.here: a pathlib"):
            checkpointer.save(1, state={"here": Path("/")})
        checkpointer.save(1, state={"here": Pickled(Path("/"))}).wait()
        loaded = checkpointer.load(state=None)
        assert loaded is not None and loaded.state["state"]["here"] == Path("/")


def test_what_the_next_forward_pass_changes_is_saved_as_it_was(folder: stdchk.Folder) -> None:
    net, optimizer = training(4, width=1024)
    with Checkpointer(folder) as checkpointer:
        for number in range(3):
            step(net, optimizer, 1024)
            expected = snapshot(net, optimizer)
            checkpointer.save(number, net=net, optimizer=optimizer)
            # The batch norm's running statistics and the parameters change at once.
            step(net, optimizer, 1024)
            other, its = training(5, width=1024)
            checkpointer.wait()
            checkpointer.load(net=other, optimizer=its)
            assert same(snapshot(other, its), expected), number


def test_a_torn_copy_is_no_checkpoint(folder: stdchk.Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Staging._finish

    def slowly(staging: Staging, later: list[Any]) -> None:
        time.sleep(0.5)
        finish(staging, later)

    monkeypatch.setattr(Staging, "_finish", slowly)
    net, optimizer = training(6)
    with Checkpointer(folder) as checkpointer:
        save = checkpointer.save(1, net=net, optimizer=optimizer)
        # Without `before_update`: nobody says that the parameters change.
        with torch.no_grad():
            net.one.weight.add_(1)
        with pytest.raises(ValueError, match="before_update"):
            save.wait()
        # An error that was seen isn't raised once more by the end.
    with Checkpointer(folder) as checkpointer:
        assert checkpointer.load(net=net) is None


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_what_changes_after_the_save_is_not_in_it(folder: stdchk.Folder, with_optimizer: bool) -> None:
    net, optimizer = training(7, width=2048)
    fused = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1.0, fused=True)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    with Checkpointer(folder) as checkpointer:
        expected = snapshot(net)
        if with_optimizer:
            checkpointer.save(1, net=net, optimizer=optimizer)
            checkpointer.before_update()
        else:
            checkpointer.save(1, net=net)
        # Its changes are not counted by PyTorch.
        fused.step()
        for parameter in net.parameters():
            parameter.data.mul_(2)
        checkpointer.wait()
        other, _ = training(8, width=2048)
        checkpointer.load(net=other)
        assert same(snapshot(other), expected)


def test_a_load_right_behind_a_save_does_not_change_what_is_saved(folder: stdchk.Folder) -> None:
    net, optimizer = training(9, width=2048)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, net=net, optimizer=optimizer).wait()
        before = snapshot(net)
        step(net, optimizer, 2048)
        after = snapshot(net)
        checkpointer.save(2, net=net, optimizer=optimizer)
        checkpointer.load(step=1, net=net)
        assert same(snapshot(net), before)
        checkpointer.wait()
        checkpointer.load(step=2, net=net)
        assert same(snapshot(net), after)


def test_files_of_other_starts_do_not_harm_a_set(folder: stdchk.Folder) -> None:
    def save(run: str, rank: int, ranks: int, step: int) -> None:
        with Checkpointer(folder, rank=rank, ranks=ranks, run=run) as checkpointer:
            checkpointer.save(step, state={"of": run})

    def loaded() -> tuple[object, object]:
        with Checkpointer(folder, run="reader") as checkpointer:
            found = checkpointer.load(state=None)
        assert found is not None
        return found.step, found.state["state"]["of"]

    save("one", 0, 1, 100)
    save("two", 0, 2, 100)
    assert loaded() == (100, "one")
    save("two", 1, 2, 100)
    assert loaded() == (100, "two")
    save("three", 0, 1, 100)
    assert loaded() == (100, "three")
    save("four", 1, 2, 100)
    save("four", 0, 3, 110)
    assert loaded() == (100, "three")


def test_memory_of_a_file_that_was_removed_is_not_loaded(folder: stdchk.Folder) -> None:
    for value in (1.0, 2.0):
        folder.remove(recursive=True) if folder.exists() else None
        # The same run, as with a job that was requeued.
        with Checkpointer(folder, run="run", buffers=1 if value == 1.0 else 2) as checkpointer:
            checkpointer.save(1, state=torch.full((1 << 20,), value))
    with Checkpointer(folder, run="run") as checkpointer:
        loaded = checkpointer.load(state=None)
    assert loaded is not None and torch.equal(loaded.state["state"], torch.full((1 << 20,), 2.0))


class Copying(torch.nn.Module):
    """Gives copies by `state_dict`, and keeps a tensor as extra state."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), value))
        self.extra = torch.full((3,), value)
        self.register_state_dict_post_hook(lambda module, state, *_: state.update({k: v.clone() for k, v in state.items()}))

    def get_extra_state(self) -> torch.Tensor:
        return self.extra

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.extra = state


def test_a_module_that_gives_copies_is_loaded(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, net=Copying(7.0)).wait()
        net = Copying(1.0)
        checkpointer.load(net=net)
        assert net.weight.tolist() == [7.0] * 4 and net.extra.tolist() == [7.0] * 3


def test_views_that_differ_only_in_their_signs_are_two(folder: stdchk.Folder) -> None:
    t = torch.randn(5, dtype=torch.complex64)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, state={"t": t, "u": t.conj(), "v": t.conj().imag}).wait()
        loaded = checkpointer.load(state=None)
    assert loaded is not None
    found = loaded.state["state"]
    assert torch.equal(found["t"], t) and torch.equal(found["u"], t.conj()) and torch.equal(found["v"], t.conj().imag)


def test_a_checkpointer_that_was_closed_says_so(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, state=1)
    with pytest.raises(stdchk.Error, match="closed"):
        checkpointer.save(2, state=2)
    with pytest.raises(stdchk.Error, match="closed"):
        checkpointer.load()


def test_a_state_that_grows_keeps_no_old_memory(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as checkpointer:
        saves = []
        for number in range(5):
            saves.append(checkpointer.save(number, state=torch.zeros(1 << 24, dtype=torch.uint8).repeat(number + 1)))
            saves[-1].wait()
        shared = sum(
            int(line.split()[1]) << 10
            for line in Path(f"/proc/{checkpointer._agent.status()['process']}/status").read_text().splitlines()
            if line.startswith("RssShmem")
        )
    assert shared < (5 + 2) << 24


def test_a_child_steps_its_copy_of_the_optimizer(folder: stdchk.Folder) -> None:
    net, optimizer = training(11)
    with Checkpointer(folder) as checkpointer:
        step(net, optimizer)
        checkpointer.save(1, net=net, optimizer=optimizer)
        child = os.fork()
        if child == 0:
            step(net, optimizer)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_tensors_that_did_not_change_are_stored_once(folder: stdchk.Folder) -> None:
    torch.manual_seed(9)
    state = {f"{number}": torch.randn(1 << 19) for number in range(16)}
    state |= {f"small{number}": torch.randn(100) for number in range(50)}
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, state=state).wait()
        first = folder.usage()
        state["3"] = torch.randn(1 << 19)
        state["a new one in front"] = torch.randn(7)
        state["tied"] = state["5"].clone()
        checkpointer.save(2, state=state).wait()
    new = folder.usage()["total"]["distinct_bytes"] - first["total"]["distinct_bytes"]
    # One tensor of 2 MiB is new; the small ones and the header are within some chunks.
    assert new < (2 << 20) + (2 << 20), (first, new)


TRAINER = """
import os, signal, sys, torch, stdchk.torch
checkpointer = stdchk.torch.Checkpointer(sys.argv[1])
state = {"number": torch.full((1 << 21,), float(sys.argv[2]))}
save = checkpointer.save(sys.argv[2], state=state)
if sys.argv[3] == "staged":
    save._staged.wait()
    assert save.error is None and not save.is_durable
elif sys.argv[3] == "half":
    os._exit(0) if save._staged.is_set() else None
os.kill(os.getpid(), signal.SIGKILL)
"""


def run_trainer(folder: stdchk.Folder, number: int, how: str) -> None:
    killed = subprocess.run([sys.executable, "-c", TRAINER, folder.path, str(number), how], check=False)
    assert killed.returncode == -signal.SIGKILL


def test_a_trainer_that_is_killed_once_it_has_staged_has_lost_nothing(folder: stdchk.Folder) -> None:
    for number in range(5):
        run_trainer(folder, number, "staged")
        with Checkpointer(folder) as checkpointer:
            until = time.monotonic() + 30
            while (loaded := checkpointer.load(state=None)) is None or loaded.step != number:
                assert time.monotonic() < until, loaded
            assert torch.equal(loaded.state["state"]["number"], torch.full((1 << 21,), float(number)))


def test_what_a_later_start_saved_in_part_does_not_count(folder: stdchk.Folder) -> None:
    for run, number in (("first", 1), ("first", 2), ("second", 2)):
        for rank in (0, 1) if run == "first" else (0,):
            with Checkpointer(folder, rank=rank, ranks=2, run=f"{run}{number}") as checkpointer:
                checkpointer.save(number, state={"rank": rank, "of": run})
    for rank in (0, 1):
        with Checkpointer(folder, rank=rank, ranks=2, run="third") as checkpointer:
            loaded = checkpointer.load(state=None)
        assert loaded is not None and loaded.step == 2
        assert loaded.state["state"] == {"rank": rank, "of": "first"}


def test_state_of_each_rank_is_not_given_to_another_number_of_them(folder: stdchk.Folder) -> None:
    for rank in (0, 1):
        with Checkpointer(folder, rank=rank, ranks=2, run="run") as checkpointer:
            checkpointer.save(1, rng=torch.get_rng_state(), epoch=3)
    with Checkpointer(folder, rank=0, ranks=3, run="run") as checkpointer:
        loaded = checkpointer.load()
        assert loaded is not None and loaded.state == {"epoch": 3}
        with pytest.raises(ValueError, match="each of 2 ranks saved its own"):
            checkpointer.load(rng=None)


def test_a_damaged_set_is_passed_over(folder: stdchk.Folder, data: str) -> None:
    folder.mkdir()
    torch.manual_seed(10)
    first, second = torch.randn(1 << 20), torch.randn(1 << 20)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, state=first).wait()
        checkpointer.save(2, state=second).wait()
    stop_agent(folder)
    assert flip(data, second) > 0
    found = torch.zeros(1 << 20)
    with Checkpointer(folder) as checkpointer:
        loaded = checkpointer.load(state=found)
    assert loaded is not None and loaded.step == 1 and torch.equal(found, first)
    assert loaded.passed_over[0][0] == "2"
    with Checkpointer(folder) as checkpointer, pytest.raises(stdchk.DamagedError):
        checkpointer.load(step=2, state=found)


def flip(data: str, content: torch.Tensor) -> int:
    """Flips a bit wherever the benefactors keep this content; the number of places."""
    wanted = bytes(content.view(torch.uint8)[4096:4160].tolist())
    places = 0
    for path in Path(data, "benefactors").rglob("*"):
        if path.is_file():
            whole = path.read_bytes()
            if (at := whole.find(wanted)) >= 0:
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes([wanted[0] ^ 1]))
                places += 1
    return places


def test_a_model_of_another_shape_is_refused(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, net=torch.nn.Linear(3, 4)).wait()
        with pytest.raises(ValueError, match="another model"):
            checkpointer.load(net=torch.nn.Linear(3, 4, bias=False))
        with pytest.raises(ValueError, match="shape"):
            checkpointer.load(net=torch.nn.Linear(3, 5))
        with pytest.raises(ValueError, match="no part 'other'"):
            checkpointer.load(other=None)
        with pytest.raises(FileNotFoundError):
            checkpointer.load(step=5, net=None)


def test_a_second_trainer_of_the_same_rank_is_refused(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as one, Checkpointer(folder) as other:
        one.save(1, state=1).wait()
        with pytest.raises(stdchk.Error, match="puts its checkpoints there"):
            other.save(2, state=2)


def test_two_buffers_let_a_save_begin_before_the_one_before_is_stored(folder: stdchk.Folder) -> None:
    state = torch.randn(1 << 22)
    with Checkpointer(folder, buffers=2) as checkpointer:
        saves = [checkpointer.save(number, state=state + number) for number in range(5)]
        checkpointer.wait()
        assert [save.wait() for save in saves] == [1] * 5
        found = torch.zeros_like(state)
        loaded = checkpointer.load(state=found)
        assert loaded is not None and loaded.step == 4 and torch.equal(found, state + 4)


def test_names_that_the_format_needs_itself_are_refused(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as checkpointer:
        for name in ("__metadata__", "__stdchk_hole.3"):
            with pytest.raises(ValueError, match="another name"):
                checkpointer.save(1, **{name: torch.ones(3)})
        assert checkpointer.load() is None


def test_a_step_that_names_no_set_is_refused(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as checkpointer:
        for step in ("best", "a/1", -1, 1.5, ""):
            with pytest.raises(ValueError, match="whole number"):
                checkpointer.save(step, state=1)  # type: ignore[arg-type]
        assert checkpointer.load() is None


def test_a_rank_whose_save_failed_stays_in_step(folder: stdchk.Folder) -> None:
    ranks = [Checkpointer(folder, rank=rank, ranks=2, run="run") for rank in (0, 1)]
    saves = [checkpointer.save(1, state=1) for checkpointer in ranks]
    assert [save.wait() for save in saves] == [1, 1]
    saves[0].error = ValueError("lost")
    with pytest.raises(ValueError, match="lost"):
        ranks[0].save(2, state=2)
    ranks[1].save(2, state=2)
    for checkpointer in ranks:
        checkpointer.save(3, state=3)
    for checkpointer in ranks:
        checkpointer.wait()
    loaded = ranks[0].load()
    assert loaded is not None and (loaded.step, loaded.passed_over) == (3, ())
    for checkpointer in ranks:
        checkpointer.close()


def test_a_state_that_grows_waits_for_those_who_load(folder: stdchk.Folder) -> None:
    with Checkpointer(folder) as checkpointer:
        save = checkpointer.save(1, state=torch.zeros(1))
        reader = Agent(folder.pool)
        held = reader.held(save.file, save.wait())
        assert held is not None
        first = bytes(held.memory[:4096])
        seen: list[bytes] = []

        def end() -> None:
            time.sleep(0.5)
            seen.append(bytes(held.memory[:4096]))
            reader.close()

        thread = threading.Thread(target=end)
        thread.start()
        checkpointer.save(2, state=torch.zeros(1 << 22)).wait()
        thread.join()
        assert seen == [first]


@pytest.mark.parametrize(("part", "share"), [((20, 0, 30, 7), 0.3), ((0, 2, 100, 5), 1.0), ((99, 6, 1, 1), 1.0)])
def test_a_part_of_a_tensor_is_read_without_the_rows_around_it(
    folder: stdchk.Folder, part: tuple[int, int, int, int], share: float
) -> None:
    state = torch.arange(700, dtype=torch.float64).view(100, 7)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, state=state).wait()
    stop_agent(folder)
    agent = Agent(folder.pool)
    file = Files(folder, agent, "1", folder.sets()[0].files).of(0)
    agent.close()
    reads = []

    class Counted:
        def read_into(self, offset: int, buffer: memoryview) -> int:
            reads.append(len(buffer))
            return original.read_into(offset, buffer)

    original, file.reader = file.reader, Counted()
    top, left, rows, columns = part
    for like in (torch.zeros(rows, columns, dtype=torch.float64), torch.zeros(columns, rows, dtype=torch.float64).t()):
        reads.clear()
        copies = Copies()
        copies.copy(like, Shard((100, 7), (top, left)), file, file.tensors["state"], Shard((100, 7), (0, 0)))
        copies.run()
        assert torch.equal(like, state[top : top + rows, left : left + columns])
        assert sum(reads) == share * 5600, reads


RANKS = Path(__file__).with_name("ranks.py")


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_ranks_save_together_and_others_load(folder: stdchk.Folder, tmp_path: Path, how: str) -> None:
    for ranks, what in ((2, "save"), (2, "load"), (3, "load"), (1, "load")):
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*launcher, str(RANKS), what, how, folder.path, str(tmp_path / "expected")],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    files = [json.loads(header(folder["1"], rank)) for rank in (0, 1)]
    sizes = [
        sum(held["data_offsets"][1] - held["data_offsets"][0] for name, held in file.items() if name != "__metadata__")
        for file in files
    ]
    if how == "ddp":
        assert sizes[1] == 0 < sizes[0]
    else:
        assert 0.8 < sizes[0] / sizes[1] < 1.3


def header(folder: stdchk.Folder, rank: int) -> bytes:
    (name,) = [entry.name for entry in folder.ls() if entry.name.startswith(f"{rank}-of-2.")]
    with folder.open(name) as file:
        return file.read(int.from_bytes(file.read(8), "little"))


def test_a_program_that_ends_without_close_hands_over_what_it_saved(folder: stdchk.Folder) -> None:
    code = "import sys, torch, stdchk.torch; c = stdchk.torch.Checkpointer(sys.argv[1]); c.save(1, state=torch.ones(1 << 25))"
    for ending in ("", "; raise SystemExit(3)", "; 1 / 0"):
        folder.remove(recursive=True) if folder.exists() else None
        subprocess.run([sys.executable, "-c", code + ending, folder.path], check=False, stderr=subprocess.DEVNULL)
        with Checkpointer(folder) as checkpointer:
            loaded = checkpointer.load(state=None)
        assert loaded is not None and torch.equal(loaded.state["state"], torch.ones(1 << 25)), ending
