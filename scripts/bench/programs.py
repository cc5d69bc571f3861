"""The programs whose images are taken: blastn over a generated database, and a numpy simulation.

Relies on Debian's ncbi-blast+ and on numpy (.venv, or the python3 that runs this). The idea: real programs that change
part of their memory over time, on input that a seed determines; when they are dumped is up to the clock, so images of
two runs differ, and figures must come from one series.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from bench.failure import Failure

ROOT = Path(__file__).resolve().parent.parent.parent
PREPARE_SECONDS_MAX = 600  # making a database takes seconds per hundred megabases
ENDS_WITHIN_SECONDS = 20  # a killed process ends at once, unless it waits for a disk


class Program:
    """A program to be started in `scratch`; `how` says what it is, for the record."""

    def __init__(self, scratch):
        self.scratch = scratch
        self.how = ""
        self.command = []

    @contextlib.contextmanager
    def running(self):
        """The running program; it is killed at the end."""
        with (self.scratch / "output").open("wb") as output:
            process = subprocess.Popen(self.command, cwd=self.scratch, stdout=output, stderr=output)
            try:
                yield process
            finally:
                kill(process)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait(ENDS_WITHIN_SECONDS)


def run_on(process, seconds):
    """Lets the program run for so long; fails if it ends before."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(seconds)
        raise Failure(f"the program ended with status {status} before all images were taken; give it more --megabytes")


class Blast(Program):
    """blastn: a nucleotide database of families of similar sequences, searched with mutated parts of them."""

    SEQUENCE_BASES = 100_000
    FAMILY = 16  # sequences of one family: what a query of it finds
    MUTATED_ONE_IN = 30
    QUERY_BASES = 1_000

    def __init__(self, scratch, seed, megabytes, queries=None):
        super().__init__(scratch)
        require("blastn", "makeblastdb")
        draw = random.Random(seed)
        sequences = list(self.sequences(draw, megabytes * 1_000_000 // self.SEQUENCE_BASES))
        write_fasta(scratch / "database.fasta", sequences)
        # A query takes some milliseconds for each hundred sequences; this many outlast any series.
        count = queries or 100_000
        write_fasta(scratch / "queries.fasta", (self.query(draw, sequences) for _ in range(count)))
        makeblastdb = ["makeblastdb", "-in", "database.fasta", "-dbtype", "nucl", "-out", "database"]
        checked(makeblastdb, scratch)
        self.command = "blastn -task blastn -num_threads 2 -db database -query queries.fasta -out hits.txt".split()
        self.how = (
            f"{' '.join(self.command)}; {len(sequences)} sequences of {self.SEQUENCE_BASES} bases, {count} queries"
        )

    def sequences(self, draw, count):
        for number in range(max(count, 1)):
            if number % self.FAMILY == 0:
                ancestor = bases(draw, self.SEQUENCE_BASES)
            yield mutated(draw, ancestor, self.MUTATED_ONE_IN)

    def query(self, draw, sequences):
        start = draw.randrange(self.SEQUENCE_BASES - self.QUERY_BASES)
        found = draw.choice(sequences)[start : start + self.QUERY_BASES]
        return mutated(draw, found, self.MUTATED_ONE_IN)


def bases(draw, count):
    """A random sequence of nucleotides."""
    letters = bytes(b"ACGT"[value & 3] for value in range(256))
    return draw.randbytes(count).translate(letters)


def mutated(draw, sequence, one_in):
    changed = bytearray(sequence)
    for _ in range(len(sequence) // one_in):
        changed[draw.randrange(len(changed))] = draw.choice(b"ACGT")
    return bytes(changed)


def write_fasta(path, sequences):
    with path.open("wb") as file:
        for number, sequence in enumerate(sequences):
            file.write(b">%d\n%s\n" % (number, sequence))


class Numpy(Program):
    """A simulation in numpy: a field that diffuses around moving sources, beside a mesh that stays as it is."""

    def __init__(self, scratch, seed, megabytes):
        super().__init__(scratch)
        side = int((megabytes * 1_000_000 / 8 / 3) ** 0.5)  # three arrays of doubles
        self.command = [python_with_numpy(), str(Path(__file__).with_name("simulation.py")), str(side), str(seed)]
        self.how = f"simulation.py {side} {seed} with numpy: {side} x {side} cells of three doubles"


def python_with_numpy():
    """A Python that has numpy: the project's own environment, or the one that runs this."""
    candidates = [str(ROOT / ".venv/bin/python"), sys.executable]
    for python in candidates:
        with contextlib.suppress(OSError):
            if subprocess.run([python, "-c", "import numpy"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                return python
    raise Failure("no Python here has numpy; run: scripts/setup bench")


def require(*commands):
    """Fails if one of these programs is not installed."""
    for command in commands:
        if not shutil.which(command):
            raise Failure(f"`{command}` is not installed; run: scripts/setup bench")


def checked(command, folder, seconds_max=PREPARE_SECONDS_MAX):
    """Runs a command that must succeed."""
    try:
        outcome = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=seconds_max, env=os.environ | {"LC_ALL": "C"}
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"`{' '.join(map(str, command))}` did not end within {seconds_max:.0f} s") from None
    if outcome.returncode != 0:
        said = (outcome.stderr or outcome.stdout).strip()[-2000:]
        raise Failure(f"`{' '.join(map(str, command))}` failed with status {outcome.returncode}: {said}")
    return outcome.stdout


PROGRAMS = {"blast": Blast, "numpy": Numpy}
