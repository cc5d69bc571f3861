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


def gcore(pid, image, seconds_max):
    """An ELF core of the process: its private memory, and zeros where it never touched its mappings."""
    require("gcore")
    prefix = image.with_name(f".{image.name}")
    checked(["gcore", "-o", str(prefix), str(pid)], image.parent, seconds_max)
    written = prefix.with_name(f"{prefix.name}.{pid}")
    if not written.exists():
        raise Failure(f"gcore made no image of process {pid}: is it alive, and may it be traced?")
    os.rename(written, image)


def criu(pid, image, seconds_max):
    """The pages of the process as CRIU keeps them (pages-1.img); its small files beside them are left out."""
    require("criu")
    with tempfile.TemporaryDirectory(prefix=".criu-", dir=image.parent) as folder:
        command = ["criu", "dump", "--tree", str(pid), "--images-dir", folder, "--leave-running", "--shell-job"]
        checked(command, image.parent, seconds_max)
        shutil.move(Path(folder) / "pages-1.img", image)


DUMPERS = {"gcore": gcore, "criu": criu}
