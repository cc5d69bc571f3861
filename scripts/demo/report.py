"""What the demonstration found, and the short text that tells it.

Relies on the runs (job.py) and on the pool's status; computes nothing that it was not told or did not read there.
"""

import textwrap
from dataclasses import dataclass, field
from statistics import median

WIDTH = 100  # columns



@dataclass
class Run:
    """One run of the job: where it wrote, the seconds it ran, and the seconds it waited for each checkpoint."""

    place: str
    seconds: float
    waits: list


@dataclass
class Facts:
    seed: int
    runs: list = field(default_factory=list)
    bytes_written: int = 0  # by the job, through the mount, what it wrote twice counted twice
    compared_bytes: int = 0
    victim: dict = None  # the killed benefactor, as the status showed it before
    reached_step: int = 0  # last step computed before the kill
    restored_step: int = 0
    lost_seconds: float = 0.0
    passed_over: list = field(default_factory=list)
    status: dict = None  # of the pool, after repair
    repair_wait_seconds: float = 0.0
    output_kills: list = field(default_factory=list)  # of the second part: the step reached, the step gone back to
    output_files: dict = field(default_factory=dict)  # bytes by name, equal in both of its runs
    timesteps_on_machines: int = 0  # of the third part, all of which were there in the end

    def add_run(self, place, job):
        self.runs.append(Run(place, max(job.progress().values()), list(job.waits().values())))

    def lose(self, job, latest):
        """What the kill cost: everything that the job computed after the state that it can go back to."""
        progress = job.progress()
        self.reached_step = max(progress)
        self.restored_step = latest["timestep"]
        self.lost_seconds = progress[self.reached_step] - progress[self.restored_step]
        self.passed_over = latest["passed_over"]


def size(count):
    """Bytes for people, in decimal units."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def text(facts, seconds):
    lines = ["", "The job was killed and restarted, and ended with the same bytes as if nothing had happened.", ""]
    for label, value in rows(facts):
        lines.append(textwrap.fill(value, WIDTH, initial_indent=f"  {label:<20}", subsequent_indent=" " * 22))
    lines += ["", "  waited for checkpoints       run  checkpoints     median    longest     in all"]
    lines += [f"    {row_of_run(run)}" for run in facts.runs]
    lines += ["", f"  {seconds:.0f} s in all; the same kills again: make demo DEMO='--seed {facts.seed}'"]
    return "\n".join(lines)


def rows(facts):
    status = facts.status
    online = [entry for entry in status["benefactors"] if entry["state"] == "online"]
    used = sum(entry["used_bytes"] for entry in online)
    yield "bytes written", f"{size(facts.bytes_written)} by the job into the mount"
    yield "bytes stored", (
        f"{size(used)} at the {len(online)} benefactors that are left, all replicas counted; "
        f"{size(status['savings']['unique_bytes'])} are distinct"
    )
    yield "work lost", (
        f"{facts.reached_step - facts.restored_step} of {facts.reached_step} steps, {facts.lost_seconds:.1f} s "
        f"(killed at step {facts.reached_step}, restarted from {facts.restored_step})"
    )
    for passed_over in facts.passed_over:
        yield "passed over", f"step {passed_over['timestep']}: {passed_over['reason']}"
    yield "benefactor killed", f"{facts.victim['id']}, which held {size(facts.victim['used_bytes'])}"
    yield "repaired", (
        f"no chunk lacks a replica any more, {facts.repair_wait_seconds:.1f} s after the job ended; "
        f"benefactors made {status['repairs_done']} copies in all, second replicas included"
    )
    if status["chunks_lost"]:
        yield "beyond repair", f"{status['chunks_lost']} chunks, of which only the killed benefactor had a replica yet"
    yield "compared", (
        f"{size(facts.compared_bytes)}: the restored and the final checkpoint set, and all atoms at the end"
    )
    kills = ", ".join(f"in step {reached} (back to {restored})" for reached, restored in facts.output_kills)
    yield "output files", (
        f"{', '.join(sorted(facts.output_files))} ({size(sum(facts.output_files.values()))}) of a job under `stdchk run`, "
        f"killed {kills}: as of one that nobody disturbed"
    )
    yield "machines", (
        f"a pool over several machines, of which one died, one was cut off and one had the manager that led: "
        f"all {facts.timesteps_on_machines} timesteps of the job are there"
    )


def row_of_run(run):
    waits = run.waits
    return (
        f"{run.place:<20} {run.seconds:6.1f} s {len(waits):>11} {median(waits):8.3f} s {max(waits):8.3f} s "
        f"{sum(waits):8.3f} s"
    )
