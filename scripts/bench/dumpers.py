"""What makes an image of a running process that then runs on: gdb's gcore, or CRIU.

Relies on Debian's gdb and criu (root; not every kernel lets it). Each dumper writes one file, under a name of its own
first, so that a half-written image never has an image's name.
"""

import os
import shutil
import tempfile
from pathlib import Path

from bench.failure import Failure
from bench.programs import checked, require


def gcore_as(pid, prefix, seconds_max):
    """An ELF core of the process: its private memory, and zeros where it never touched its mappings.

    The name is gcore's own, PREFIX.PID. Raises ProcessLookupError if the process has ended meanwhile.
    """
    require("gcore")
    written = prefix.with_name(f"{prefix.name}.{pid}")
    try:
        checked(["gcore", "-o", str(prefix), str(pid)], prefix.parent, seconds_max)
    except Failure:
        if not is_running(pid):
            raise ProcessLookupError(pid) from None
        raise
    if not written.exists():
        raise Failure(f"gcore made no image of process {pid}: may it be traced?")
    return written


def is_running(pid):
    """Whether the process is there and not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gcore(pid, image, seconds_max):
    """The same under the name of `image`."""
    try:
        written = gcore_as(pid, image.with_name(f".{image.name}"), seconds_max)
    except ProcessLookupError:
        raise Failure("the program ended while its image was made; give it more --megabytes") from None
    os.rename(written, image)


def criu(pid, image, seconds_max):
    """The pages of the process as CRIU keeps them (pages-1.img); its small files beside them are left out."""
    require("criu")
    with tempfile.TemporaryDirectory(prefix=".criu-", dir=image.parent) as folder:
        command = ["criu", "dump", "--tree", str(pid), "--images-dir", folder, "--leave-running", "--shell-job"]
        checked(command, image.parent, seconds_max)
        shutil.move(Path(folder) / "pages-1.img", image)


DUMPERS = {"gcore": gcore, "criu": criu}
