"""The agent keeps what a process put into its memory, and stores it whatever becomes of that process and of the pool's own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.numpy

import stdchk
from stdchk._agent import Agent, Piece, _Exchange, binary
from stdchk._layout import CHUNK_BYTES, Array, lay_out, parse


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: str) -> Iterator[stdchk.Pool]:
    """A pool's connection whose agent is this test's alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("STDCHK_BINARY", os.environ["STDCHK_BINARY"])
    with stdchk.connect(data=data) as pool:
        yield pool
        stop(pool)


def stop(pool: stdchk.Pool) -> None:
    socket = os.fspath(pool._native.agent_socket)
    if os.path.exists(socket):
        subprocess.run([binary(), "agent", "stop", "--socket", socket], check=True, stdout=subprocess.DEVNULL)
        wait_until(lambda: not os.path.exists(socket))


def wait_until(holds: object, seconds: float = 60.0) -> None:
    assert callable(holds)
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it does not come to hold"
        time.sleep(0.02)


def stored(agent: Agent, key: str, save: int) -> dict[str, object]:
    while (answer := agent.wait(key, save, 5))["answer"] == "storing":
        pass
    return answer


def fill(agent: Agent, name: str, content: bytes, file: str) -> int:
    memory = agent.region(name, len(content))
    filling = agent.begin(name)
    memory[:] = content
    return agent.staged(name, filling, file, len(content), [Piece(0, 0, len(content))])


def test_what_is_staged_becomes_a_file(runtime: stdchk.Pool) -> None:
    agent, folder = Agent(runtime), runtime["agent-file"]
    memory = agent.region("a", 3 << 20)
    filling = agent.begin("a")
    memory[:5] = b"begin"
    memory[64:67] = b"end"
    save = agent.staged("a", filling, "agent-file/deep/name", 10 << 30, [Piece(0, 0, 5), Piece((10 << 30) - 3, 64, 3)])
    assert stored(agent, "a", save)["answer"] == "durable"
    with folder.open("deep/name") as file:
        assert file.read(8) == b"begin\0\0\0" and file.seek(-3, 2) and file.read() == b"end"
    held = agent.held("agent-file/deep/name", 1)
    assert held is not None and held.length == 10 << 30 and held.memory[64:67] == b"end"
    with pytest.raises(TypeError):
        held.memory[0] = 1
    assert agent.held("agent-file/deep/name", 2) is None


CHILD = """
import os, signal, sys, stdchk
from stdchk._agent import Agent, Piece
agent = Agent(stdchk.connect())
size = 40 << 20
memory = agent.region("killed", size)
filling = agent.begin("killed")
memory[:] = os.urandom(1) * size
if sys.argv[1] == "staged":
    agent.staged("killed", filling, f"agent-killed/{sys.argv[2]}", size, [Piece(0, 0, size)])
if sys.argv[1] == "orphan" and os.fork() == 0:
    import time
    time.sleep(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_one(how: str, name: str) -> None:
    killed = subprocess.run([sys.executable, "-c", CHILD, how, name], check=False)
    assert killed.returncode == -signal.SIGKILL


def test_a_process_that_is_killed_has_lost_nothing_that_it_staged(runtime: stdchk.Pool) -> None:
    folder = runtime["agent-killed"]
    for number in range(4):
        kill_one("staged", f"staged{number}")
        wait_until(lambda number=number: folder.exists(f"staged{number}") and folder.entry(f"staged{number}").size == 40 << 20)
        content = folder.read_bytes(f"staged{number}")
        assert content == content[:1] * (40 << 20)
        kill_one("half", "half")
        assert not folder.exists("half")
    agent = Agent(runtime)
    (region,) = agent.status()["regions"]
    wait_until(lambda: agent.status()["regions"][0]["state"] == "empty")
    assert region["key"] == "killed"


def test_a_child_that_lives_on_does_not_keep_its_parents_region(runtime: stdchk.Pool) -> None:
    kill_one("orphan", "orphan")
    # The child has its parent's connection, as workers of a DataLoader have.
    wait_until(lambda: Agent(runtime).status()["regions"][0]["process"] is None)
    fill(Agent(runtime), "killed", b"next", "agent-orphan/next")


def test_a_pool_that_is_away_gets_it_once_it_is_back(runtime: stdchk.Pool, data: str) -> None:
    agent, folder = Agent(runtime), runtime["agent-away"]
    first = fill(agent, "away", b"first" * 1000, "agent-away/1")
    assert stored(agent, "away", first)["answer"] == "durable"
    manager = int(os.readlink(Path(data, "run/manager.pid")).split()[0])
    os.kill(manager, signal.SIGKILL)
    second = fill(agent, "away", b"second" * 1000, "agent-away/2")
    assert agent.wait("away", second, 0.5)["answer"] == "storing"
    subprocess.run([binary(), "up", "--data", data], check=True, stdout=subprocess.DEVNULL)
    assert stored(agent, "away", second)["answer"] == "durable"
    assert folder.read_bytes("2") == b"second" * 1000


def test_an_agent_that_is_told_to_end_stores_what_it_has(runtime: stdchk.Pool) -> None:
    agent = Agent(runtime)
    process = agent.status()["process"]
    content = os.urandom(1 << 20) * 64
    fill(agent, "end", content, "agent-end/file")
    os.kill(process, signal.SIGTERM)
    wait_until(lambda: not Path(f"/proc/{process}").exists() or " Z " in Path(f"/proc/{process}/stat").read_text())
    assert runtime["agent-end"].read_bytes("file") == content


def test_a_hangup_has_the_log_opened_anew(runtime: stdchk.Pool) -> None:
    agent = Agent(runtime)
    process = agent.status()["process"]
    log = Path(f"{runtime._native.agent_socket}.log")
    log.rename(log.with_suffix(".before"))
    os.kill(process, signal.SIGHUP)
    wait_until(log.exists)
    assert agent.status()["process"] == process


def test_what_can_not_be_stored_is_said(runtime: stdchk.Pool) -> None:
    agent, folder = Agent(runtime), runtime["agent-refused"]
    folder.mkdir("taken")
    answer = stored(agent, "refused", fill(agent, "refused", b"x", "agent-refused/taken"))
    assert (answer["answer"], answer["code"]) == ("failed", "wrong-kind")
    # The region can be used again.
    assert stored(agent, "refused", fill(agent, "refused", b"x", "agent-refused/free"))["answer"] == "durable"


def test_bad_requests_are_refused(runtime: stdchk.Pool) -> None:
    agent = Agent(runtime)
    agent.region("bad", 100)
    with pytest.raises(stdchk.Error, match="filled with something else"):
        agent.staged("bad", 0, "bad/file", 10, [Piece(0, 0, 10)])
    for pieces, length in (
        ([Piece(0, 95, 10)], 10),
        ([Piece(0, 0, 20)], 10),
        ([Piece(5, 0, 5), Piece(0, 5, 5)], 10),
        ([Piece(-1, 0, 1)], 10),
    ):
        filling = agent.begin("bad")
        with pytest.raises(stdchk.InvalidError):
            agent.staged("bad", filling, "bad/file", length, pieces)
    for name in ("", "/", "bad/../../x"):
        filling = agent.begin("bad")
        with pytest.raises(stdchk.Error):
            agent.staged("bad", filling, name, 1, [Piece(0, 0, 1)])
    with pytest.raises(stdchk.NoSpaceError, match="this host has"):
        agent.region("huge", 1 << 50)
    other = Agent(runtime)
    with pytest.raises(stdchk.Error, match="puts its checkpoints there"):
        other.region("bad", 100)
    for line in (b"{}\n", b"null\n", b'{"do":"begin"}\n', b'{"do":"status","more":1}\n', b"\xff\n", b"[" * 10000 + b"\n"):
        exchange = _Exchange(line)
        other._exchanges.put(exchange)
        exchange.ended.get(timeout=30)
        assert exchange.answer["answer"] == "refused", line
    assert other.status()["process"] == agent.status()["process"]
    # An agent that ends waits a while for what is being filled.
    agent.close()


def test_only_one_agent_starts(runtime: stdchk.Pool) -> None:
    script = "import stdchk; from stdchk._agent import Agent; print(Agent(stdchk.connect()).status()['process'])"
    started = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert len({one.communicate()[0] for one in started}) == 1


def test_files_are_safetensors(runtime: stdchk.Pool) -> None:
    arrays = [
        Array("large", "F32", (1 << 19,)), Array("small", "I64", (3,)), Array("byte", "U8", (5,)), Array("scalar", "F64", ()),
        Array("empty", "F32", (0, 4)), Array("larger", "BF16", (3, 1 << 20)), Array("ü\n\"", "BOOL", (2,)),
    ]  # fmt: skip
    layout = lay_out(arrays, {"format": "pt", "about": "x" * 5000})
    region = bytearray(os.urandom(layout.region_bytes))
    region[: len(layout.header)] = layout.header
    whole = bytearray(layout.length)
    for piece in layout.pieces:
        whole[piece.file : piece.file + piece.length] = region[piece.region : piece.region + piece.length]
    found, about = parse(layout.header[8:], layout.length, "file")
    assert about["about"] == "x" * 5000 and set(found) == {array.name for array in arrays}
    for stored_array in found.values():
        at = layout.regions[stored_array.array.name]
        size = stored_array.array.bytes
        assert whole[stored_array.begin : stored_array.begin + size] == region[at : at + size]
        assert size < CHUNK_BYTES or stored_array.begin % CHUNK_BYTES == 0
    # The library reads it, too: what it has no type of numpy for is left out.
    plain = [array for array in arrays if array.dtype != "BF16"]
    layout = lay_out(plain, {"format": "pt"})
    whole = bytearray(layout.length)
    whole[: len(layout.header)] = layout.header
    tensors = safetensors.numpy.load(bytes(whole))
    assert {name: array.shape for name, array in tensors.items() if not name.startswith("__stdchk")} == {
        array.name: array.shape for array in plain
    }


def test_headers_that_lie_are_refused() -> None:
    good = lay_out([Array("a", "F32", (4,))], {}).header[8:]
    parse(good, len(good) + 24, "file")
    entry = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    bad: list[object] = [
        [], 1, None, {"a": 1}, {"a": []}, {"__metadata__": 3}, {"a": {**entry, "dtype": "X"}}, {"a": {**entry, "shape": [-4]}},
        {"a": {**entry, "shape": "x"}}, {"a": {**entry, "data_offsets": [0, 15]}}, {"a": {**entry, "data_offsets": [16, 0]}},
        {"a": {**entry, "data_offsets": [-16, 0]}}, {"a": {**entry, "data_offsets": [0]}},
        {"a": {**entry, "shape": [1 << 70], "data_offsets": [0, 1 << 72]}},
        {"a": {**entry, "data_offsets": [1 << 40, (1 << 40) + 16]}},
    ]  # fmt: skip
    for entries in bad:
        with pytest.raises(stdchk.DamagedError):
            parse(json.dumps(entries).encode(), 1000, "file")
    for text in (b"", b"{", b"\xff\xfe", b"[" * 100000):
        with pytest.raises(stdchk.DamagedError):
            parse(text, 1000, "file")


def test_an_interrupted_wait_does_not_mix_up_answers(runtime: stdchk.Pool) -> None:
    agent = Agent(runtime)
    memory = agent.region("interrupted", 1 << 20)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(50):
            signal.setitimer(signal.ITIMER_REAL, 0.001 * (number % 10 + 1))
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    agent.held(f"no/file{number}", 1)
            assert agent.region("interrupted", 1 << 20)[:1] == memory[:1]
            assert agent.status()["answer"] == "status"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_connection_that_was_closed_says_so(runtime: stdchk.Pool) -> None:
    agent = Agent(runtime)
    agent.close()
    with pytest.raises(stdchk.Error, match="it was closed"):
        agent.status()


def test_an_agent_that_stands_still_is_waited_for_no_longer_than_was_said(runtime: stdchk.Pool) -> None:
    agent = Agent(runtime)
    process = agent.status()["process"]
    save = fill(agent, "still", b"x", "agent-still/file")
    os.kill(process, signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert agent.wait("still", save, 0.1)["answer"] == "storing"
        assert time.monotonic() - began < 20
    finally:
        os.kill(process, signal.SIGCONT)
    assert stored(agent, "still", save)["answer"] == "durable"


def test_all_that_was_accepted_is_stored_before_the_agent_ends(runtime: stdchk.Pool) -> None:
    folder = runtime["agent-stop"]
    accepted = []
    for turn in range(6):
        agent = Agent(runtime)
        stopper = subprocess.Popen([binary(), "agent", "stop", "--socket", os.fspath(runtime._native.agent_socket)])
        with contextlib.suppress(stdchk.Error):
            for number in range(200):
                name = f"{turn}-{number}"
                stored(agent, "stop", fill(agent, "stop", name.encode(), f"agent-stop/{name}"))
                accepted.append(name)
        stopper.wait()
        agent.close()
        wait_until(lambda: not os.path.exists(runtime._native.agent_socket))
    assert accepted
    for name in accepted[-20:]:
        assert folder.read_bytes(name) == name.encode()


def test_another_users_agent_is_not_believed(runtime: stdchk.Pool) -> None:
    path = os.fspath(runtime._native.agent_socket)
    os.makedirs(os.path.dirname(path))
    code = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]);"
    code += "os.setuid(65534); s.listen(); print('up', flush=True); s.accept()"
    foreign = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    try:
        assert foreign.stdout is not None and foreign.stdout.readline() == b"up\n"
        with pytest.raises(stdchk.Error, match="user 65534"):
            Agent(runtime)
    finally:
        foreign.kill()
        foreign.wait()
        os.remove(path)
