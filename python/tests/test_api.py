"""The blocking face, against a real pool."""

import errno
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import zipfile
from datetime import datetime, timezone

import pytest

import stdchk

MIB = 1 << 20


def names(folder):
    return [entry.name for entry in folder.ls()]


def test_a_file_is_whole_or_not_there(folder):
    with folder.open("x", "wb") as file:
        file.write(b"one")
        assert file.tell() == 3
        assert not folder.ls()[0].version
    assert file.version == 1 and folder.read_bytes("x") == b"one"
    with pytest.raises(RuntimeError), folder.open("x", "wb") as file:
        file.write(b"other" * MIB)
        raise RuntimeError
    assert folder.read_bytes("x") == b"one"
    with pytest.raises(RuntimeError), folder.open("new", "wb") as file:
        file.write(b"other")
        raise RuntimeError
    assert names(folder) == ["x"]


def test_what_nobody_closed_is_given_up(folder):
    folder.mkdir()
    file = folder.open("x", "wb")
    file.write(b"abc")
    del file
    assert names(folder) == []
    file = folder.open("x", "wb")
    file.discard()
    file.discard()
    file.close()
    assert file.closed and names(folder) == []


def test_modes_are_those_of_python(folder):
    with folder.open("x", "xb") as file:
        file.write(b"1")
    with pytest.raises(FileExistsError):
        folder.open("x", "xb")
    with folder.open("x", "ab") as file:
        assert file.tell() == 1
        file.write(b"23")
    assert folder.read_bytes("x") == b"123"
    assert [version.size for version in folder.versions("x")] == [1, 3]
    assert folder.open("x", version=1).read() == b"1"
    for mode in ["r", "w", "r+b", "rbx"]:
        with pytest.raises(ValueError, match="mode"):
            folder.open("x", mode)
    with pytest.raises(IsADirectoryError):
        folder.open("", "rb")


def test_a_writer_goes_back_and_behind_its_end(folder):
    with folder.open("x", "wb") as file:
        file.write(b"hello world")
        file.seek(0)
        file.write(b"J")
        file.seek(2 * MIB)
        file.write(b"end")
        assert file.seek(0, io.SEEK_END) == 2 * MIB + 3
        file.truncate(2 * MIB + 2)
    content = folder.read_bytes("x")
    assert content == b"Jello world" + bytes(2 * MIB - 11) + b"en"
    with folder.open("archive.zip", "wb") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", b"content")
    with folder.open("archive.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("a") == b"content"


def test_a_reader_is_a_buffered_file(folder):
    content = os.urandom(5 * MIB + 17)
    folder.write_bytes("x", content)
    with folder.open("x") as file:
        assert isinstance(file, io.BufferedReader) and file.size == len(content)
        assert file.read(3) == content[:3]
        assert file.seek(-5, io.SEEK_END) == len(content) - 5 and file.read() == content[-5:]
        file.seek(1)
        buffer = bytearray(3 * MIB)
        assert file.readinto(memoryview(buffer)) == len(buffer) and buffer == content[1 : 1 + len(buffer)]
        with pytest.raises(ValueError, match="position"):
            file.seek(-1)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


def test_a_version_that_is_read_stays_the_same(folder):
    folder.write_bytes("x", b"old" * MIB)
    with folder.open("x") as file:
        assert file.read(3) == b"old"
        folder.write_bytes("x", b"new" * MIB)
        assert file.read() == (b"old" * MIB)[3:]


def test_memory_of_any_kind_is_written(folder):
    import array

    with folder.open("x", "wb") as file:
        file.write(bytearray(b"a"))
        file.write(memoryview(b"bc"))
        file.write(array.array("H", [1, 2]))
        with pytest.raises(TypeError):
            file.write("text")
    assert folder.read_bytes("x") == b"abc" + array.array("H", [1, 2]).tobytes()
    with pytest.raises(BufferError):
        folder.open("x").raw._source.read_into(0, b"constant")


def test_errors_have_number_code_object_cause_and_next_step(folder):
    with pytest.raises(FileNotFoundError) as caught:
        folder.open("nothing")
    error = caught.value
    assert isinstance(error, stdchk.NotFoundError) and error.errno == errno.ENOENT
    assert (error.code, error.object) == ("not-found", f"{folder.path}/nothing")
    assert error.cause and error.next_step and str(error) == f"{error.object}: {error.cause}; {error.next_step}"
    assert pickle.loads(pickle.dumps(error)).code == "not-found"
    with pytest.raises(stdchk.InvalidError):
        folder.open("a/../b")
    with pytest.raises(stdchk.UnreachableError):
        stdchk.connect("unix:/nowhere/socket", patience=0.2)
    with pytest.raises(stdchk.OtherPoolError, match="token"):
        stdchk.connect("127.0.0.1:1", patience=0.2)
    with pytest.raises(stdchk.NotFoundError, match="stdchk up"):
        stdchk.connect(data="/nowhere")


def test_a_name_may_end_like_a_version(folder):
    folder.write_bytes("x@5", b"at")
    folder.write_bytes("x", b"x")
    assert folder.read_bytes("x@5") == b"at" and folder.exists("x@5") and not folder.exists("x@6")
    folder.rename("x@5", "y@7")
    folder.remove("y@7")
    assert names(folder) == ["x"]


def test_folders_are_made_renamed_and_removed(folder):
    folder.mkdir("a/b")
    folder["a"]["b"].write_bytes("x", b"1")
    with pytest.raises(stdchk.NotEmptyError):
        folder.rmdir("a")
    folder.rename("a", "c")
    assert folder.read_bytes("c/b/x") == b"1"
    folder.remove("c", recursive=True)
    folder.rmdir()
    assert not folder.exists()


def checkpoint(folder, timestep, ranks=2, content=b"state"):
    for rank in range(ranks):
        folder.write_bytes(f"restart.{timestep}.{rank}", content + b" %d %d" % (timestep, rank))


def test_the_newest_complete_set_comes_back(folder, tmp_path):
    assert folder.latest() is None
    folder.policy.update(naming="restart.{step}.{rank}", ranks=2)
    assert folder.latest() is None
    checkpoint(folder, 100)
    checkpoint(folder, 200)
    checkpoint(folder, 300, ranks=1)
    newest = folder.latest()
    assert newest.timestep == "200" and [file.rank for file in newest.files] == [0, 1]
    assert [passed.timestep for passed in newest.passed_over] == ["300"]
    assert newest.open(1).read() == b"state 200 1" == newest.open("restart.200.1").read()
    with pytest.raises(stdchk.InvalidError):
        newest.open(7)
    moved = []
    restored = newest.restore(tmp_path / "out", progress=lambda done, total: moved.append((done, total)))
    assert restored.files == 2 and restored.timestep == "200"
    assert moved[-1] == (newest.bytes, newest.bytes)
    assert (tmp_path / "out" / "restart.200.1").read_bytes() == b"state 200 1"
    assert newest.restore(tmp_path / "out").kept == 2
    assert folder.restore(tmp_path / "old", 100).timestep == "100"
    states = {one.timestep: one.state for one in folder.sets()}
    assert states == {"100": "complete", "200": "complete", "300": "incomplete"}


def test_new_sets_are_watched_for(folder):
    folder.policy.update(naming="restart.{step}.{rank}", ranks=1)
    checkpoint(folder, 1, ranks=1)
    seen, writers = [], []
    for found in folder.watch(every=0.05, timeout=60):
        seen.append(found.timestep)
        if found.timestep == "3":
            break
        following = int(found.timestep) + 1
        writers.append(threading.Timer(0.2, checkpoint, (folder, following), {"ranks": 1}))
        writers[-1].start()
    for writer in writers:
        writer.join()
    assert seen == ["1", "2", "3"]
    assert [found.timestep for found in folder.watch(every=0.05, timeout=0.1)] == ["3"]


def test_seals_and_the_end_of_a_job(folder):
    folder.policy.update(naming="restart.{step}.{rank}", ranks=1)
    for timestep in (1, 2, 3):
        checkpoint(folder, timestep, ranks=1)
    folder.seal(1)
    fates = {fate.timestep: fate.goes for fate in folder.done(dry_run=True)}
    assert fates == {"1": False, "2": True, "3": False}
    with pytest.raises(stdchk.NotFoundError):
        folder.seal(7)
    with pytest.raises(stdchk.InvalidError):
        folder.seal("no timestep")


def test_a_policy_is_a_mapping(folder):
    policy = folder.policy
    assert policy["redundancy"] == "replicate:2" and not folder.exists()
    policy["redundancy"] = "replicate:1"
    assert dict(policy)["redundancy"] == "replicate:1"
    del policy["redundancy"]
    assert policy["redundancy"] == "replicate:2"
    with pytest.raises(stdchk.InvalidError):
        policy.update(redundancy="replicate:1", colour="red")
    assert policy["redundancy"] == "replicate:2"
    with pytest.raises(KeyError):
        policy["colour"]


def test_files_and_trees_are_stored_and_fetched(folder, tmp_path):
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "a").write_bytes(b"1" * MIB)
    (tree / "below" / "b").write_bytes(b"2")
    assert folder.put(tree / "a").bytes == MIB
    assert folder.put(tree / "a", "other").stored_bytes == 0
    moved = []
    assert folder.put(tree, recursive=True, progress=lambda *done: moved.append(done)).files == 2
    assert moved[-1] == (MIB + 1, MIB + 1)
    assert folder.read_bytes("tree/below/b") == b"2"
    assert folder.get("other", tmp_path) == str(tmp_path / "other")
    with pytest.raises(stdchk.NotFoundError):
        folder.put(tree / "nothing")
    entry = folder.entry("a")
    assert (entry.kind, entry.size, entry.mode) == ("file", MIB, 0o644)
    assert abs((datetime.now(timezone.utc) - entry.mtime).total_seconds()) < 60


def test_a_bar_of_tqdm_is_moved(folder, tmp_path):
    class Bar:
        total, n, drawn = None, 0, 0

        def refresh(self):
            self.drawn += 1

    (tmp_path / "x").write_bytes(b"1" * MIB)
    bar = Bar()
    folder.put(tmp_path / "x", progress=bar)
    assert (bar.total, bar.n) == (MIB, MIB) and bar.drawn


def test_an_exception_of_progress_ends_the_work(folder, tmp_path):
    (tmp_path / "x").write_bytes(os.urandom(64 * MIB))

    def stop(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        folder.put(tmp_path / "x", progress=stop)


def test_many_threads_use_one_pool(folder):
    errors = []

    def work(number):
        try:
            for turn in range(10):
                folder.write_bytes(f"{number}", b"%d" % turn * 1000)
                assert folder.read_bytes(f"{number}") == b"%d" % turn * 1000
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(folder.ls()) == 8


def test_others_run_while_it_waits(folder):
    """A pipe that nobody writes to keeps `put` waiting; another thread goes on, and Ctrl-C ends the wait."""
    script = (
        "import os, sys, threading, time, stdchk\n"
        "ticks = []\n"
        "def tick():\n"
        "    while True:\n"
        "        ticks.append(1); time.sleep(0.01)\n"
        "threading.Thread(target=tick, daemon=True).start()\n"
        "os.mkfifo(sys.argv[1]); held = os.open(sys.argv[1], os.O_RDWR)\n"
        "print('waits', flush=True)\n"
        "begun = len(ticks)\n"
        "try:\n"
        "    stdchk.connect()['interrupted'].put(sys.argv[1], 'x')\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', len(ticks) - begun > 20, flush=True)\n"
        "    os._exit(0)\n"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        process = subprocess.Popen([sys.executable, "-c", script, f"{place}/pipe"], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "waits\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        assert process.communicate(timeout=20)[0] == "interrupted True\n"
        assert time.monotonic() - begun < 5


def test_status_is_that_of_the_command(pool):
    assert pool.status()["benefactors"]
    assert "heat" not in pool.folders() or pool["heat"].exists()


def test_nothing_is_printed(folder, capfd):
    folder.write_bytes("x", b"1")
    with pytest.raises(stdchk.NotFoundError):
        folder.get("nothing", "/tmp/none")
    assert folder.verify()["files"] == 1 and folder.usage()["total"]["files"] == 1
    assert capfd.readouterr() == ("", "")
