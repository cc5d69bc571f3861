"""The loop of the page runs as it stands, and goes on where it was."""

import os
import re
import subprocess
import sys
from pathlib import Path

import stdchk

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "TRAINING.md"


def test_the_loop_of_the_page(pool: stdchk.Pool) -> None:
    (loop,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    half = loop.replace("range(first, 1000)", "range(first, 550)")
    assert half != loop
    for code in (half, loop + "\nprint(first)"):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=True
        )
    assert done.stdout == "500\n"
    assert [one.timestep for one in pool["my-run"].sets()] == [str(step) for step in range(999, 0, -100)]
