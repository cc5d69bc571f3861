"""A pool of three benefactors for all tests of stdchk.torch; each test gets a folder, and thereby a region, of its own."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import stdchk

ROOT = Path(__file__).resolve().parent.parent.parent
os.environ.setdefault("STDCHK_BINARY", str(ROOT / "target" / "debug" / "stdchk"))
BINARY = os.environ["STDCHK_BINARY"]


@pytest.fixture(scope="session")
def data() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="stdchk-training-") as folder:
        subprocess.run([BINARY, "up", "--data", folder, "--benefactors", "3", "--donate", "4GiB"], check=True)
        os.environ["STDCHK_DATA"] = folder
        os.environ["XDG_RUNTIME_DIR"] = folder
        yield folder
        subprocess.run([BINARY, "agent", "stop", "--data", folder], check=False)
        subprocess.run([BINARY, "down", "--data", folder], check=True)


@pytest.fixture(scope="session")
def pool(data: str) -> Iterator[stdchk.Pool]:
    with stdchk.connect(data=data) as pool:
        yield pool


@pytest.fixture
def folder(pool: stdchk.Pool, request: pytest.FixtureRequest) -> stdchk.Folder:
    return pool[request.node.name.replace("[", "-").replace("]", "").replace("/", "-")[:60]]
