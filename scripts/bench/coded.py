"""File systems that store with a (3,2) code: stdchk, and GlusterFS as a dispersed volume. Each can lose what one of its servers has, and
make it anew.

Relies on what `bench.filesystems` relies on. The idea: five servers, three data fragments and two of redundancy in both; the
server that loses everything comes back empty, and the time counts from the moment at which the file system is told, until as many bytes were
made anew.
"""

import json
import os
import shutil
import signal
import time

from bench.failure import Failure
from bench.filesystems import COMMAND_SECONDS_MAX, Gluster, Stdchk, own_address
from bench.processes import disk_bytes, wait_until

SERVERS = 5
REBUILT_WITHIN_SECONDS = 1800
WHOLE = 0.99  # of what the server had; what it has beside files may differ


class StdchkCoded(Stdchk):
    name = "stdchk (3,2)"
    how = (
        "stdchk up --benefactors 5 --mount; policy redundancy=erasure:3,2, semantics=pessimistic, close=stored (OAB) or durable "
        "(ASB); a benefactor is killed and forgotten, and a new one started before"
    )
    SERVERS = SERVERS
    REDUNDANCY = "erasure:3,2"
    POLICY = ("semantics=pessimistic",)

    def ways_to_make(self, _variant):
        return []

    def rebuild(self):
        """Loses a benefactor for good; seconds until the others have as much more as it had, and these bytes."""
        self.run("up", "--benefactors", SERVERS + 1)
        lost = max(self.status()["benefactors"], key=lambda one: one["used_bytes"])
        before = self.used_without(lost["id"])
        os.kill(lost["pid"], signal.SIGKILL)
        name = f"b{lost['id']}"
        wait_until(lambda: self.state(lost["id"]) != "online", COMMAND_SECONDS_MAX, f"the loss of {name}")
        began = time.monotonic()
        self.run("forget", name)
        made = WHOLE * lost["used_bytes"]
        wait_until(lambda: self.used_without(lost["id"]) - before >= made, REBUILT_WITHIN_SECONDS, "what it had")
        return time.monotonic() - began, lost["used_bytes"]

    def status(self):
        return json.loads(self.run("status", "--json"))

    def state(self, number):
        return next((one["state"] for one in self.status()["benefactors"] if one["id"] == number), None)

    def used_without(self, number):
        return sum(one["used_bytes"] for one in self.status()["benefactors"] if one["id"] != number)


class GlusterDispersed(Gluster):
    name = "GlusterFS, dispersed"
    how = (
        "glusterd; gluster volume create disperse 5 redundancy 2; mounted by glusterfs (FUSE); for the rebuild reset-brick and "
        "heal full, by its self-heal daemon"
    )
    BRICKS = SERVERS
    LAYOUT = ("disperse", str(SERVERS), "redundancy", "2")

    def ways_to_make(self, _variant):
        return []

    def rebuild(self):
        """Empties a brick; seconds until it has as much as before, and these bytes."""
        brick = self.folder / "brick0"
        place = f"{own_address()}:{brick}"
        os.sync()
        had = files_bytes(brick)
        self.gluster("volume", "reset-brick", self.VOLUME, place, "start")
        shutil.rmtree(brick)
        brick.mkdir()
        began = time.monotonic()
        self.gluster("volume", "reset-brick", self.VOLUME, place, place, "commit", "force")
        self.adopt()
        self.gluster("volume", "heal", self.VOLUME, "full")
        wait_until(lambda: files_bytes(brick) >= WHOLE * had, REBUILT_WITHIN_SECONDS, "what the brick had")
        return time.monotonic() - began, had


def files_bytes(brick):
    """Bytes that the files of a brick take, without GlusterFS's own links to them."""
    return sum(disk_bytes(folder) for folder in brick.iterdir() if folder.is_dir() and folder.name != ".glusterfs") + sum(
        path.stat().st_blocks * 512 for path in brick.iterdir() if path.is_file()
    )


FILESYSTEMS = [StdchkCoded, GlusterDispersed]
