"""The examples of the documents and of the package itself, as a user runs them: from top to bottom."""

import doctest
import os

import pytest
from conftest import ROOT

import stdchk


@pytest.fixture
def alone(pool, tmp_path, monkeypatch):
    """An empty folder `heat`, and an empty working directory."""
    monkeypatch.chdir(tmp_path)
    if pool["heat"].exists():
        pool["heat"].remove(recursive=True)
    assert os.environ["STDCHK_DATA"]


def test_every_example_of_the_page_runs(alone):
    found = doctest.testfile(str(ROOT / "docs" / "PYTHON.md"), module_relative=False, optionflags=doctest.FAIL_FAST)
    assert found.failed == 0
    assert found.attempted > 20


def test_the_examples_of_the_package_run(alone):
    found = doctest.testmod(stdchk)
    assert found.failed == 0
    assert found.attempted > 4
