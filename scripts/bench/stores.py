"""Stores that take successive images: a plain file, restic, borg, casync, and stdchk by `put`.

Relies on Debian's packages of the first, and on a built `stdchk`. Each store is made anew in a folder of its own, takes
one file at a time, and says how it was configured: as its users have it, compression with zstd where it offers that.
"""

import contextlib
import os
import shutil
from pathlib import Path

from bench.failure import Failure
from bench.programs import checked, require

COMMAND_SECONDS_MAX = 600  # the slowest store takes some seconds for a hundred megabytes


class Store:
    """A place for images, below `folder`; `how` says how it is configured."""

    name = how = ""

    def __init__(self, folder, _stdchk):
        self.folder = folder
        folder.mkdir(parents=True)

    def run(self, *command, **variables):
        environment = {key: str(value) for key, value in variables.items()}
        checked(["env", *(f"{key}={value}" for key, value in environment.items()), *map(str, command)],
                self.folder, COMMAND_SECONDS_MAX)  # fmt: skip

    def pids(self):
        """Processes that serve the store, beside the command that is run."""
        return []

    def close(self):
        """Stops what serves it."""


class PlainFile(Store):
    name = "plain file"
    how = "dd bs=1M conv=fsync to a local file"

    def put(self, image, timestep):
        self.run("dd", f"if={image}", f"of=image.T{timestep}", "bs=1M", "conv=fsync", "status=none")


class Restic(Store):
    name = "restic"
    how = "restic init (format 2: zstd, level auto; AES-256); restic backup, with a cache of its own"

    def __init__(self, folder, stdchk):
        require("restic")
        super().__init__(folder, stdchk)
        self.variables = {"RESTIC_PASSWORD": "bench", "RESTIC_CACHE_DIR": folder / "cache",
                          "RESTIC_REPOSITORY": folder / "repository"}  # fmt: skip
        self.run("restic", "init", "--quiet", **self.variables)

    def put(self, image, _timestep):
        self.run("restic", "backup", "--quiet", "--host", "bench", image, **self.variables)


class Borg(Store):
    name = "borg"
    how = "borg init --encryption none; borg create --compression zstd,3, with a cache of its own"

    def __init__(self, folder, stdchk):
        require("borg")
        super().__init__(folder, stdchk)
        self.variables = {"BORG_BASE_DIR": folder / "home", "BORG_REPO": folder / "repository",
                          "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes"}  # fmt: skip
        self.run("borg", "init", "--encryption", "none", **self.variables)

    def put(self, image, timestep):
        self.run("borg", "create", "--compression", "zstd,3", f"::T{timestep}", image, **self.variables)


class Casync(Store):
    name = "casync"
    how = "casync make --store of a blob index (.caibx), compression zstd, chunks of its default 64 KiB"

    def __init__(self, folder, stdchk):
        require("casync")
        super().__init__(folder, stdchk)

    def put(self, image, timestep):
        self.run("casync", "make", "--compression=zstd", "--store=store.castr", f"image.T{timestep}.caibx", image)


class Stdchk(Store):
    """A pool of four benefactors on this machine, one copy of each chunk, durable when `put` returns."""

    cutter = codec = ""

    def __init__(self, folder, stdchk):
        super().__init__(folder, stdchk)
        self.stdchk = Path(stdchk)
        try:
            self.run_stdchk("up", "--benefactors", 4, "--floor", 0)
            self.run_stdchk("policy", "set", "images", "redundancy=replicate:1", f"cutter={self.cutter}", f"codec={self.codec}")
        except BaseException:
            with contextlib.suppress(Failure):  # the first failure is the one to tell
                self.close()
            raise

    def run_stdchk(self, *arguments):
        self.run(self.stdchk, *arguments, STDCHK_DATA=self.folder / "data")

    def put(self, image, timestep):
        self.run_stdchk("put", image, f"images/image.N0.T{timestep}")

    def pids(self):
        records = (self.folder / "data" / "run").glob("*.pid")
        return [int(record.readlink().name.split()[0]) for record in records]

    def close(self):
        self.run_stdchk("down")


def stdchk_with(cutter, codec):
    """A kind of store: stdchk with this policy."""
    how = f"stdchk up --benefactors 4; policy redundancy=replicate:1 close=durable cutter={cutter} codec={codec}; stdchk put"
    return type("Stdchk", (Stdchk,), {"name": f"stdchk {cutter} {codec}", "how": how, "cutter": cutter, "codec": codec})


STORES = [
    PlainFile,
    stdchk_with("fsch:1MiB", "auto"),
    stdchk_with("fsch:4KiB", "zstd:1"),
    stdchk_with("cdc:16KiB", "zstd:1"),
    stdchk_with("cdc:16KiB", "zstd:3"),
    stdchk_with("cdc:64KiB", "zstd:1"),
    Restic,
    Borg,
    Casync,
]


def remove(folder):
    """Removes a store's folder; what casync makes may be read-only."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            os.chmod(os.path.join(parent, name), 0o700)
    shutil.rmtree(folder, ignore_errors=True)
