"""Processes that a measurement starts, with their CPU time; all are ended by their ids, whatever happens.

Relies on /proc. The idea: what is started here is known here, so nothing is ever ended by name, and nothing stays.
"""

import contextlib
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

from bench.failure import Failure, Stopped

ENDS_WITHIN_SECONDS = 20  # after SIGTERM; then it is killed
KILLED_WITHIN_SECONDS = 300  # only a process stuck in the kernel takes longer than a moment
POLL_SECONDS = 0.02
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Processes:
    """A group of processes; leaving its context ends them, the last first."""

    def __init__(self):
        self.children = []
        self.others = []  # ids of processes that our children started on their own

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in reversed(self.children):
            end(child)
        for pid in self.others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, command, log, cwd=None):
        """Starts a process whose output goes to the file `log`."""
        with Path(log).open("ab") as output:
            child = subprocess.Popen(
                list(map(str, command)), cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,  # Ctrl-C is for the script, which then ends them in good order
            )  # fmt: skip
        self.children.append(child)
        return child

    def adopt(self, pids):
        """Takes charge of processes that a child started and that do not end with it."""
        self.others.extend(pids)

    def pids(self):
        return [child.pid for child in self.children] + self.others


def end(child):
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(ENDS_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(KILLED_WITHIN_SECONDS)


def wait_until(condition, seconds_max, what, child=None, poll_seconds=POLL_SECONDS):
    """Waits until `condition()` is true; fails at the limit, or at once when `child` has ended."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        if child and child.poll() is not None:
            raise Failure(f"{what} ended with status {child.returncode} while it started")
        if time.monotonic() > deadline:
            raise Failure(f"{what} was not there after {seconds_max} s")
        time.sleep(poll_seconds)


def cpu_seconds(pids):
    """CPU seconds used so far by this script, by its children that have ended, and by these processes."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime + sum(map(cpu_of, pids))


def cpu_of(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def disk_bytes(folder):
    """Bytes that everything below `folder` takes on its disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def drop_caches():
    """Empties the page cache, so that the next read is cold."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError as error:
        raise Failure(f"the page cache can't be emptied ({error.strerror}); run this as root") from None


def unmount(mount):
    """Takes a mount off; lazily, if its file system no longer answers."""
    if is_mounted(mount) and subprocess.run(["timeout", "10", "umount", mount], check=False).returncode != 0:
        subprocess.run(["umount", "-l", mount], check=False)
    # A pool of root leaves a folder in which nobody can write; some file systems know no such attribute.
    subprocess.run(["chattr", "-i", mount], check=False, stderr=subprocess.DEVNULL)


def is_mounted(mount):
    """Whether something is mounted there; asks the kernel's list, not the file system, which may hang."""
    escaped = str(mount).replace(" ", "\\040")
    return any(line.split()[1] == escaped for line in Path("/proc/mounts").read_text().splitlines())


def stop_at(seconds_max):
    """Lets everything be stopped in good order at the limit, and by the signals that end a script."""

    def stop(number, _frame):
        limit = number == signal.SIGALRM
        raise Stopped(f"{seconds_max} s were not enough" if limit else f"stopped by {signal.Signals(number).name}")

    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.alarm(seconds_max)
