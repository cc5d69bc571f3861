"""The second part of the demonstration: the output files of a job go back together with its checkpoints.

Relies on output.in beside this file, and on job.py for all that is known of LAMMPS. The idea: one job writes its output
undisturbed; another one runs under `stdchk run --with-sets`, is killed three times together with `stdchk run` itself,
and goes on with `--resume`; then both must have left the same files.
"""

import os
import subprocess
from pathlib import Path

import job as lammps
from failure import Failure
from job import Job

INPUT = Path(__file__).resolve().with_name("output.in")
APPLICATION = "argon-output"
STORE = ".stdchk-files"
STEPS = 240  # about 2 s on two cores; a multiple of 40, as output.in asks
SEGMENT = 10  # steps between lines of the log
KILLED_IN = ((50, 80), (110, 150), (170, 200))  # steps; between two kills there is at least one checkpoint set
OVERSHOOT_MAX = 40  # steps that a job may go beyond the one in which it is to be killed, and still not be done

# The timestep is told by `stdchk run --resume`; without it, or before the first set, the job begins afresh.
COMMAND = 'exec mpirun -n "$1" lmp -in "$2" -log none -screen none -var start "${STDCHK_STEP:-0}" "${@:3}"'


class OutputJob(Job):
    """A run of LAMMPS in the directory of its output, under a `stdchk run` or by itself."""

    def start(self, prefix=(), until=STEPS):
        variables = {"steps": STEPS, "until": until, "checkpoints": self.checkpoints}
        command = [*prefix, "bash", "-c", COMMAND, "job", lammps.RANKS, INPUT]
        for name, value in variables.items():
            command += ["-var", name, value]
        with open(self.output, "ab") as output:
            self.process = subprocess.Popen(
                list(map(str, command)), cwd=self.run, env=self._environment(), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def output(self):
        """What the job says: beside its directory, as that is taken back."""
        return self.run.with_name(f"{self.run.name}.output")

    def last_step(self):
        return last_step(self.run / "log")

    def _last_words(self):
        return lammps.tail(self.output)


class OutputFiles:
    """The steps of this part; `end` may be called at any time."""

    def __init__(self, pool, work, shared_memory, random):
        self.pool = pool
        self.shared_memory = shared_memory
        self.random = random
        self.undisturbed = work / "output-undisturbed"
        self.killed = work / "output-killed"
        self.sets = pool.mount / APPLICATION
        self.plain_sets = work / "output-sets"
        self.job = None
        self.kills = []  # pairs: the step reached, the step gone back to
        self.compared = {}  # bytes by name

    def demonstrate(self, say):
        say(f"second part: a job with output files, undisturbed ({STEPS} steps)")
        self.plain_sets.mkdir()
        self.new_job(self.undisturbed, self.plain_sets).start()
        self.job.finish()
        self.pool.set_policy(APPLICATION, naming=lammps.NAMING, ranks=lammps.RANKS)
        flags = ["--with-sets", self.sets]
        for first, last in KILLED_IN:
            step = self.random.randrange(first, last, SEGMENT)
            say(f"the same under stdchk run, to be killed with it in step {step}")
            self.run_and_kill(flags, step)
            flags = ["--resume"]
        self.go_on(flags).finish()
        self.compare()
        say("all output files are those of the undisturbed run, byte for byte")

    def new_job(self, directory, sets):
        directory.mkdir(exist_ok=True)
        self.job = OutputJob(directory.name, sets, directory, self.shared_memory)
        return self.job

    def go_on(self, flags, until=STEPS):
        job = self.new_job(self.killed, self.sets)
        job.start([self.pool.binary.resolve(), "run", "--data", self.pool.data, *flags, "--"], until)
        return job

    def run_and_kill(self, flags, step):
        job = self.go_on(flags, until=step + OVERSHOOT_MAX)
        job.wait_for_step(step)
        job.kill()
        self.kills.append((job.last_step(), self.pool.latest(APPLICATION)["timestep"]))

    def compare(self):
        expected, found = files_of(self.undisturbed), files_of(self.killed)
        if different := [name for name in sorted(expected | found) if expected.get(name) != found.get(name)]:
            raise Failure(f"{self.killed}: {', '.join(different)} differ from those in {self.undisturbed}")
        self.compared = {name: len(content) for name, content in expected.items()}

    def end(self):
        if self.job:
            self.job.kill()


def files_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != STORE}


def last_step(log):
    """The step of the last whole line; -1 before the first."""
    try:
        lines = log.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return -1
    whole = [line.split() for line in lines if line.endswith("\n")]
    return int(whole[-1][1]) if whole else -1
