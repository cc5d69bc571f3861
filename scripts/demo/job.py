"""The job of the demonstration: LAMMPS on four MPI ranks, watched and killed from outside.

Relies on Debian's `lmp` and `mpirun`, on argon.in beside this file, and on /proc. The idea: LAMMPS is unmodified and
knows nothing of stdchk; all that is known of a run comes from two files that its input makes it write, the progress
file (a line a step, before the checkpoint of that step) and the log (a line a checkpoint, after it).
"""

import os
import signal
import subprocess
import time
from pathlib import Path

from failure import Failure, tail

INPUT = Path(__file__).resolve().with_name("argon.in")
RANKS = 4
STEPS = 400  # about 20 s on two cores
CHECKPOINT_EVERY = 40  # steps, about 2 s; a multiple of 20, as argon.in asks
NAMING = "argon.{step}.{rank} argon.{step}.base"  # what LAMMPS makes of `restart N argon.*.%`

RUN_SECONDS_MAX = 400  # a run takes about 20, on a machine with other work several times as long; a stuck one must end
KILL_SECONDS_MAX = 60  # a killed process ends at once, unless it waits in a mount that does not answer
POLL_SECONDS = 0.002  # well under the time of one checkpoint, so that a kill can hit the middle of it

MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",  # containers run as root
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # four ranks also on fewer cores,
    "OMPI_MCA_mpi_yield_when_idle": "1",  # where waiting ranks must not spin,
    "OMPI_MCA_hwloc_base_binding_policy": "none",  # nor be tied to one core
    "OMPI_MCA_btl": "self,vader",  # shared memory only: all ranks are on this machine
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",  # containers forbid reading another process's memory
    "OMPI_MCA_plm": "isolated",  # no remote shell is looked for
    "OMP_NUM_THREADS": "1",
}


def members(step):
    """Names of the files of the checkpoint set of one timestep."""
    return [f"argon.{step}.{member}" for member in ("base", *range(RANKS))]


def checkpoint_steps(first, last):
    """Timesteps after `first`, up to `last`, at which a set is written."""
    return range(first + CHECKPOINT_EVERY, last + 1, CHECKPOINT_EVERY)


class Job:
    """One run of LAMMPS: `checkpoints` is where its sets go, `run` where everything else goes."""

    def __init__(self, name, checkpoints, run, shared_memory):
        self.name = name
        self.checkpoints = checkpoints
        self.run = run
        self.shared_memory = shared_memory  # for MPI; outside the run, so that a killed job leaves nothing in /dev/shm
        self.process = None

    def start(self, from_step=0):
        """Starts the run, from the set of a timestep or afresh, in a session of its own."""
        self.run.mkdir(parents=True)
        variables = {
            "start": from_step, "steps": STEPS, "every": CHECKPOINT_EVERY,
            "checkpoints": self.checkpoints, "run": self.run,
        }  # fmt: skip
        command = ["mpirun", "-n", str(RANKS), "lmp", "-in", INPUT, "-log", self.run / "log", "-screen", "none"]
        for name, value in variables.items():
            command += ["-var", name, str(value)]
        with open(self.run / "output", "wb") as output:
            self.process = subprocess.Popen(
                command, cwd=self.run, env=self._environment(), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _environment(self):
        shared_memory = str(self.shared_memory)
        places = {"TMPDIR": shared_memory, "OMPI_MCA_btl_vader_backing_directory": shared_memory}
        return os.environ | MPI_ENVIRONMENT | places

    def finish(self):
        """Waits for the end of the run, which must be a good one."""
        try:
            status = self.process.wait(RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.name}: LAMMPS did not end within {RUN_SECONDS_MAX} s\n{self._last_words()}") from None
        if status != 0:
            raise Failure(f"{self.name}: LAMMPS failed with status {status}\n{self._last_words()}")

    def kill(self):
        """SIGKILL to every process of the job at once; returns how many there were."""
        if self.process is None or self.process.returncode is not None:
            return 0
        killed, deadline = set(), time.monotonic() + KILL_SECONDS_MAX
        while alive := processes_of_session(self.process.pid):
            if time.monotonic() > deadline:
                raise Failure(f"{self.name}: processes {sorted(alive)} outlive SIGKILL; they hang in the mount")
            for pid in alive - killed:
                kill_if_there(pid)
            killed |= alive
            time.sleep(POLL_SECONDS)
        self.process.wait()
        return len(killed)

    def wait_for_step(self, step):
        """Returns as soon as the job has computed `step`, that is, when its checkpoint of it (if any) begins."""
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while self.last_step() < step:
            if self.process.poll() is not None:
                raise Failure(f"{self.name}: LAMMPS ended before step {step}\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise Failure(f"{self.name}: no step {step} within {RUN_SECONDS_MAX} s\n{self._last_words()}")
            time.sleep(POLL_SECONDS)

    def progress(self):
        """Seconds into the run at which each step was computed, by step."""
        return numbers_by_step(self.run / "progress", columns=2)

    def last_step(self):
        return max(self.progress(), default=-1)

    def waits(self):
        """Seconds that the job waited for each checkpoint it completed, by step."""
        began, ended = self.progress(), numbers_by_step(self.run / "log", columns=6)
        return {step: ended[step] - began[step] for step in ended if step in began and ended[step] > 0}

    def _last_words(self):
        return "\n".join(filter(None, (tail(self.run / "log"), tail(self.run / "output"))))


def numbers_by_step(path, columns):
    """First and last number of every line that holds `columns` numbers, as a table; other lines are skipped.

    The last line may be half written while the job runs, so only lines with an end count.
    """
    try:
        lines = path.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    rows = (line.split() for line in lines if line.endswith("\n"))
    return {int(row[0]): float(row[-1]) for row in rows if len(row) == columns and all(map(is_number, row))}


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def processes_of_session(session):
    """Process ids of a session that still run (field 6 of /proc/PID/stat; zombies are dead already)."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_fields(entry)):
            state, process_session = fields[0], int(fields[3])
            if process_session == session and state not in "ZX":
                found.add(int(entry.name))
    return found


def stat_fields(process):
    """Fields of /proc/PID/stat after the command's name, which may hold spaces; None once the process is gone."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def kill_if_there(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
