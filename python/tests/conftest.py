"""A pool of three benefactors for all tests, on this machine; each test gets a folder of its own."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import stdchk

ROOT = Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("STDCHK_BINARY", str(ROOT / "target" / "debug" / "stdchk"))


@pytest.fixture(scope="session")
def data() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="stdchk-python-") as folder:
        subprocess.run([BINARY, "up", "--data", folder, "--benefactors", "3", "--donate", "4GiB"], check=True)
        os.environ["STDCHK_DATA"] = folder
        yield folder
        subprocess.run([BINARY, "down", "--data", folder], check=True)


@pytest.fixture(scope="session")
def pool(data: str) -> Iterator[stdchk.Pool]:
    with stdchk.connect(data=data) as pool:
        yield pool


@pytest.fixture
def folder(pool: stdchk.Pool, request: pytest.FixtureRequest) -> stdchk.Folder:
    return pool[request.node.name.replace("[", "-").replace("]", "").replace("/", "-")[:60]]
