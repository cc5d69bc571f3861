"""fsspec's own suites, its transactions, and what its callers rely on."""

import fsspec
import fsspec.tests.abstract as abstract
import pytest

from stdchk.fs import StdchkFileSystem


@pytest.fixture(scope="session")
def filesystem(data):
    return fsspec.filesystem("stdchk", data=data)


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, filesystem):
        return filesystem

    @pytest.fixture
    def fs_path(self):
        return "abstract/place"

    @pytest.fixture(scope="class")
    def fs_join(self):
        return lambda *parts: "/".join(parts)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


def test_the_protocol_is_registered():
    assert fsspec.get_filesystem_class("stdchk") is StdchkFileSystem


def test_a_transaction_shows_its_files_when_it_ends_and_none_when_it_fails(filesystem):
    fs = filesystem
    with fs.transaction:
        with fs.open("transaction/a", "wb") as file:
            file.write(b"1")
        with fs.open("transaction/b", "wb") as file:
            file.write(b"2")
        assert not [info for info in fs.ls("transaction", detail=True) if info["size"]]
    assert fs.cat(["transaction/a", "transaction/b"]) == {"transaction/a": b"1", "transaction/b": b"2"}
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open("transaction/c", "wb") as file:
            file.write(b"3")
        raise RuntimeError
    assert not fs.exists("transaction/c")
    assert fs.cat("transaction/a") == b"1"


def test_ranges_of_several_files_come_in_their_order_and_errors_stand_in_their_places(filesystem):
    fs = filesystem
    fs.pipe({"ranges/a": bytes(range(100)), "ranges/b": bytes(range(100, 200))})
    paths = ["ranges/a", "ranges/b", "ranges/a", "ranges/none", "ranges/b"]
    found = fs.cat_ranges(paths, [0, 5, -3, 0, 90], [3, 7, None, 1, 500])
    assert [one for one in found if isinstance(one, bytes)] == [
        b"\0\1\2",
        bytes([105, 106]),
        bytes([97, 98, 99]),
        bytes(range(190, 200)),
    ]
    assert isinstance(found[3], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, [0] * 5, [1] * 5, on_error="raise")


def test_a_file_is_moved_in_one_step_with_its_versions(filesystem):
    fs = filesystem
    fs.pipe("moves/x", b"1")
    fs.pipe("moves/y", b"old")
    fs.mv("moves/x", "moves/y")
    assert fs.cat("moves/y") == b"1" and not fs.exists("moves/x")
    fs.mv("moves", "moved", recursive=True)
    assert fs.find("moved") == ["moved/y"] and not fs.exists("moves")


def test_what_is_written_on_grows(filesystem):
    fs = filesystem
    fs.pipe("appended/x", b"1")
    with fs.open("appended/x", "ab") as file:
        file.write(b"23")
    assert fs.cat("appended/x") == b"123"
    assert fs.created("appended/x") <= fs.modified("appended/x")
