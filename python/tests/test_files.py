"""Checkpoints of files under the real `stdchk run`."""

import subprocess
import sys

from conftest import BINARY

PROGRAM = """
import os, stdchk
with open("out", "w") as file:
    file.write("before ")
with stdchk.files("."):
    with open("out", "a") as file:
        file.write("inside")
try:
    with stdchk.files() as states:
        with open("out", "a") as file:
            file.write("lost")
        with open("new", "w") as file:
            file.write("lost")
        raise RuntimeError
except RuntimeError:
    pass
print(states.active, open("out").read(), os.path.exists("new"))
try:
    stdchk.files("/")
except ValueError as error:
    print("refused")
"""


def test_an_exception_takes_the_files_back(tmp_path):
    command = [BINARY, "run", "--root", str(tmp_path), "--", sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout == "True before inside False\nrefused\n"
    assert "not watched" not in ran.stderr
