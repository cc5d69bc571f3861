"""CRIU: a program at work is dumped into the current folder, ends with that, and goes on from the image.

Relies on a CRIU that runs here, from criu-of-debian-13, and on root. The idea: the program counts into a local file, and
checks a large table in its memory at each step; restored it counts on from where it was dumped.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CRIU = ROOT / "out/criu/criu"
SECONDS_MAX = 60  # for each thing that is waited for

PROGRAM = """
import os, sys, time
table, number = bytes(range(256)) * 100_000, 0
while True:
    number += 1
    assert table[number] == number % 256
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(number))
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(0.01)
"""


def counted(path):
    return int(path.read_text()) if path.exists() else 0


def wait_above(path, number):
    give_up = time.monotonic() + SECONDS_MAX
    while counted(path) <= number:
        assert time.monotonic() < give_up, f"the program does not count on from {number}"
        time.sleep(0.02)


def criu(action, *arguments):
    subprocess.run([CRIU, action, "--images-dir", ".", "--log-file", f"{action}.log", *arguments], check=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "count"
        quiet = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
        program = subprocess.Popen([sys.executable, "-c", PROGRAM, path], start_new_session=True, cwd="/", **quiet)
        wait_above(path, 10)
        criu("dump", "--tree", str(program.pid))
        program.wait()
        dumped = counted(path)
        criu("restore", "--restore-detached", "--pidfile", f"{folder}/pid")
        restored = int(Path(folder, "pid").read_text())
        try:
            wait_above(path, dumped)
            # Counted on, and not from the beginning.
            assert counted(path) < dumped + SECONDS_MAX * 1000
        finally:
            os.kill(restored, signal.SIGKILL)


main()
