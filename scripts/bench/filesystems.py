"""File systems that a file is written to and read from: a local folder, stdchk, GlusterFS and MooseFS, each of four.

Relies on Debian's packages of the peers, on FUSE and on root. Each is started from nothing in a folder of its own, its
servers on this machine's own address, with one copy of the data; `how` says how it was configured. Settings that are not
named are the defaults.
"""

import contextlib
import json
import os
import shutil
import socket
from pathlib import Path

from bench.failure import Failure
from bench.processes import Processes, is_mounted, unmount, wait_until
from bench.programs import checked, require

SERVERS = 4
STARTS_WITHIN_SECONDS = 60  # MooseFS's chunkservers report within some seconds
COMMAND_SECONDS_MAX = 120
ASK_AGAIN_SECONDS = 0.05  # long beside what a question takes from a transfer


class Filesystem:
    """A file system below `folder`; files go to `mount`."""

    name = how = ""

    def __init__(self, folder, _stdchk):
        self.folder = folder
        self.mount = folder / "mount"
        self.mount.mkdir(parents=True)
        self.processes = Processes()
        try:
            self.start()
        except BaseException:
            with contextlib.suppress(Failure):  # the first failure is the one to tell
                self.close()
            raise

    def start(self):
        """Starts the servers and mounts."""

    def folders(self):
        """Pairs of a variant's name and the folder to write to."""
        return [("", self.mount)]

    def ways_to_make(self, _variant):
        """By what a small file is durable in the folder of a variant: `synced`, by fsync, or `closed`."""
        return ["synced"]

    def pids(self):
        return self.processes.pids()

    def settle(self, path, size):
        """Waits until what was written is where it stays, if `close` doesn't."""

    def close(self):
        unmount(self.mount)
        with self.processes:
            pass


class Plain(Filesystem):
    name = "plain file"
    how = "a folder on the same disk"


class Stdchk(Filesystem):
    name = "stdchk"
    how = "stdchk up --benefactors 4 --mount; policy redundancy=replicate:1, close=stored (OAB) or durable (ASB)"
    CLOSE = {"OAB": "stored", "ASB": "durable"}  # the policy under which each rate is taken
    SERVERS = SERVERS
    REDUNDANCY = "replicate:1"
    OPTIONS = ()
    POLICY = ()

    def __init__(self, folder, stdchk):
        self.stdchk = stdchk
        super().__init__(folder, stdchk)

    def start(self):
        self.up()
        for close in self.CLOSE.values():
            (self.mount / close).mkdir()
            self.run("policy", "set", close, f"redundancy={self.REDUNDANCY}", f"close={close}", *self.POLICY)

    def up(self):
        self.run("up", "--benefactors", self.SERVERS, "--mount", self.mount, "--floor", 0, *self.OPTIONS)

    def run(self, *arguments, data="data"):
        command = ["env", f"STDCHK_DATA={self.folder / data}", str(self.stdchk), *map(str, arguments)]
        return checked(command, self.folder, COMMAND_SECONDS_MAX)

    def folders(self):
        return [(f", {rate}", self.mount / close) for rate, close in self.CLOSE.items()]

    def ways_to_make(self, variant):
        return ["closed", "synced"] if variant == ", ASB" else []

    def settle(self, path, size):
        """Waits until the newest version of a file is committed, which may be after its close."""
        name = path.relative_to(self.mount)

        def is_committed():
            versions = json.loads(self.run("ls", name, "--versions", "--json"))[0]["versions"]
            return bool(versions) and versions[-1]["size"] == size

        wait_until(is_committed, COMMAND_SECONDS_MAX, f"the commit of {name}", poll_seconds=ASK_AGAIN_SECONDS)

    def pids(self):
        return self.recorded("data")

    def recorded(self, data):
        records = (self.folder / data / "run").glob("*.pid")
        # Links; files in older builds.
        texts = (str(record.readlink()) if record.is_symlink() else record.read_text() for record in records)
        return [int(text.split()[0]) for text in texts]

    def close(self):
        try:
            self.run("down")
        finally:
            unmount(self.mount)


class StdchkTwice(Stdchk):
    """Beside one copy also what nobody has to ask for: two of them, and writers that wait for those of the timestep before."""

    how = "stdchk up --benefactors 4 --mount; close=stored (OAB) or durable (ASB) with redundancy=replicate:1, default: no policy set"
    DEFAULT = "default"

    def start(self):
        super().start()
        (self.mount / self.DEFAULT).mkdir()

    def folders(self):
        return [*super().folders(), (", default policy", self.mount / self.DEFAULT)]

    def ways_to_make(self, _variant):
        return ["closed"]

    def settle(self, path, size):
        super().settle(path, size)

        def is_copied():
            status = json.loads(self.run("status", "--json"))
            return not (status["chunks_at_risk"] or status["repairs_pending"])

        wait_until(is_copied, COMMAND_SECONDS_MAX, "copies", poll_seconds=ASK_AGAIN_SECONDS)


class StdchkOverTls(StdchkTwice):
    """A pool that serves other machines, and a client that has joined it: all its connections are TCP with TLS."""

    how = "stdchk pool init --listen 127.0.0.1:PORT; up --benefactors 4; for the mount pool join; then as at sockets"

    def start(self):
        (port,) = free_ports(1)
        address = f"127.0.0.1:{port}"
        self.serve("pool", "init", "--listen", address)
        self.serve("up", "--benefactors", SERVERS, "--floor", 0)
        token = self.serve("pool", "token", "--for", "client").strip()
        self.run("pool", "join", address, "--token", token)
        super().start()

    def up(self):
        self.run("up", "--mount", self.mount)

    def serve(self, *arguments):
        return self.run(*arguments, data="servers")

    def pids(self):
        return super().pids() + self.recorded("servers")

    def close(self):
        try:
            super().close()
        finally:
            self.serve("down")


class StdchkEarly(Stdchk):
    """Its rate is that of files that fit the window, so it has a mount of its own; a burst may take half of the window."""

    how = (
        "a second pool, for files of up to 1280 MiB: stdchk up --window 2560MiB; "
        "policy redundancy=replicate:1, close=early, window=2560MiB"
    )
    CLOSE = {"OAB-early": "early"}
    OPTIONS = ("--window", "2560MiB")
    POLICY = ("window=2560MiB",)


class Gluster(Filesystem):
    """glusterd insists on its own port and on an address that is not loopback; its bricks log to /var/log/glusterfs."""

    name = "GlusterFS"
    how = f"glusterd; gluster volume create, distributed over {SERVERS} bricks; mounted by glusterfs (FUSE)"
    VOLUME = "bench"
    BRICKS = SERVERS
    LAYOUT = ()  # distributed, unless something is said

    def start(self):
        require("glusterd", "gluster", "glusterfs")
        volfile, self.socket = self.folder / "glusterd.vol", self.folder / "glusterd.socket"
        bricks = [self.folder / f"brick{number}" for number in range(self.BRICKS)]
        for name in ("work", "run", *bricks):
            (self.folder / name).mkdir()
        options = {
            "working-directory": self.folder / "work",
            "run-directory": self.folder / "run",
            "glusterd-sockfile": self.socket,
            "transport-type": "socket",
            "transport.address-family": "inet",
        }
        lines = [f"    option {key} {value}" for key, value in options.items()]
        volfile.write_text("\n".join(["volume management", "    type mgmt/glusterd", *lines, "end-volume", ""]))
        log = self.folder / "glusterd.log"
        daemon = ["glusterd", "--no-daemon", "-f", volfile, "-p", self.folder / "glusterd.pid", "-l", log]
        child = self.processes.start(daemon, self.folder / "glusterd.out")
        wait_until(self.socket.exists, STARTS_WITHIN_SECONDS, "glusterd", child)
        places = [f"{own_address()}:{brick}" for brick in bricks]
        self.gluster("volume", "create", self.VOLUME, *self.LAYOUT, *places, "force")
        try:
            self.gluster("volume", "start", self.VOLUME)
        finally:
            self.adopt()
        client = ["glusterfs", "--no-daemon", "--volfile-server=127.0.0.1", f"--volfile-id={self.VOLUME}"]
        child = self.processes.start(
            [*client, "-l", self.folder / "client.log", self.mount], self.folder / "client.out"
        )
        wait_until(lambda: is_mounted(self.mount), STARTS_WITHIN_SECONDS, "the mount of GlusterFS", child)

    def gluster(self, *arguments):
        checked(
            ["gluster", "--mode=script", f"--glusterd-sock={self.socket}", *arguments], self.folder, COMMAND_SECONDS_MAX
        )

    def adopt(self):
        """Takes charge of what glusterd has started: its bricks, and the daemon that heals them."""
        texts = [record.read_text() for record in (self.folder / "run").rglob("*.pid")]
        self.processes.adopt({int(text) for text in texts if text.strip()} - set(self.processes.pids()))


class Moose(Filesystem):
    name = "MooseFS"
    how = f"mfsmaster, {SERVERS} chunkservers, mfssetgoal -r 1, mounted by mfsmount (FUSE); syncs nothing to the disk"
    MASTER = {}
    CHUNKSERVER = {}

    def start(self):
        require("mfsmaster", "mfschunkserver", "mfsmount", "mfssetgoal")
        address = own_address()
        to_masters, to_chunkservers, to_clients, *ports = free_ports(3 + SERVERS)
        (self.folder / "master").mkdir()
        (self.folder / "master" / "metadata.mfs").write_text("MFSM NEW")
        (self.folder / "exports.cfg").write_text("* / rw,alldirs,maproot=0\n")
        master = {
            "DATA_PATH": self.folder / "master",
            "EXPORTS_FILENAME": self.folder / "exports.cfg",
            "MATOML_LISTEN_PORT": to_masters,
            "MATOCS_LISTEN_PORT": to_chunkservers,
            "MATOCL_LISTEN_PORT": to_clients,
            **self.MASTER,
        }
        child = self.serve("mfsmaster", "master", master)
        wait_until(lambda: listens(address, to_clients), STARTS_WITHIN_SECONDS, "mfsmaster", child)
        for number, port in enumerate(ports):
            disk = self.folder / f"disk{number}"
            disk.mkdir()
            (self.folder / f"chunkserver{number}").mkdir()
            (self.folder / f"disk{number}.cfg").write_text(f"{disk}\n")
            chunkserver = {
                "DATA_PATH": self.folder / f"chunkserver{number}",
                "HDD_CONF_FILENAME": self.folder / f"disk{number}.cfg",
                "MASTER_HOST": address,
                "MASTER_PORT": to_chunkservers,
                "CSSERV_LISTEN_PORT": port,
                **self.CHUNKSERVER,
            }
            self.serve("mfschunkserver", f"chunkserver{number}", chunkserver)
        client = ["mfsmount", "-f", "-H", address, "-P", to_clients, self.mount]
        child = self.processes.start(client, self.folder / "client.log")
        wait_until(lambda: is_mounted(self.mount), STARTS_WITHIN_SECONDS, "the mount of MooseFS", child)
        wait_until(self.has_room, STARTS_WITHIN_SECONDS, "room on MooseFS's chunkservers", child)
        checked(["mfssetgoal", "-r", "1", str(self.mount)], self.folder, COMMAND_SECONDS_MAX)

    def serve(self, program, name, settings):
        settings = {"WORKING_USER": "root", "WORKING_GROUP": "root"} | settings
        config = self.folder / f"{name}.cfg"
        config.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        return self.processes.start([program, "-c", config, "-f"], self.folder / f"{name}.log")

    def has_room(self):
        room = os.statvfs(self.mount)
        return room.f_blocks > 0


class MooseSynced(Moose):
    """With its defaults MooseFS answers an fsync before anything is on a disk; so it does what the others do."""

    name = "MooseFS, synced"
    how = "the same with HDD_FSYNC_BEFORE_CLOSE = 1 and CHANGELOG_SAVE_MODE = 2: what was acknowledged is on the disk"
    MASTER = {"CHANGELOG_SAVE_MODE": 2}
    CHUNKSERVER = {"HDD_FSYNC_BEFORE_CLOSE": 1}


def own_address():
    """An address of this machine that is not loopback, which the peers insist on; traffic to it stays on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            raise Failure("this machine has no address but loopback") from None
        return probe.getsockname()[0]


def listens(address, port):
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def free_ports(count):
    """TCP ports that are free now."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


FILESYSTEMS = [Plain, StdchkEarly, Stdchk, Gluster, Moose, MooseSynced]


def remove(folder):
    """Removes what a file system left; never through a mount that stayed."""
    if is_mounted(Path(folder) / "mount"):
        raise Failure(f"{folder}/mount is still mounted; take it off and remove {folder}")
    shutil.rmtree(folder, ignore_errors=True)
