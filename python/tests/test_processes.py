"""Processes that were forked or spawned use what their parent had."""

import multiprocessing
import os

import pytest

import stdchk


def content_of(reader):
    reader.seek(0)
    return reader.read()


def test_a_forked_child_reads_and_writes_with_its_parents_pool(folder):
    folder.write_bytes("x", b"parent" * 100_000)
    reader, writer = folder.open("x"), folder.open("half", "wb")
    writer.write(b"half")
    into, out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            folder.write_bytes("y", content_of(reader) + b"child")
            with pytest.raises(ValueError, match="fork"):
                writer.write(b"x" * (2 << 20))
            writer.discard()
            del writer, reader
            os.write(out, b"ok")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(out)
    assert os.read(into, 2) == b"ok"
    os.close(into)
    writer.close()
    assert folder.read_bytes("half") == b"half"
    assert folder.read_bytes("y") == b"parent" * 100_000 + b"child"
    assert content_of(reader) == b"parent" * 100_000


def work(path, data, number):
    folder = stdchk.connect(data=data)[path]
    folder.write_bytes(f"{number}", b"%d" % number)
    return folder.read_bytes("x")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes_works(folder, data, method):
    folder.write_bytes("x", b"shared")
    with multiprocessing.get_context(method).Pool(2) as workers:
        found = workers.starmap(work, [(folder.path, data, number) for number in range(4)])
    assert found == [b"shared"] * 4 and len(folder.ls()) == 5


def test_folders_and_pools_go_to_other_processes(folder):
    import pickle

    folder.write_bytes("x", b"1")
    assert pickle.loads(pickle.dumps(folder)).read_bytes("x") == b"1"
