"""The local pool of the demonstration, used only through the command line and the mount, as any user would.

Relies on the `stdchk` binary and on the JSON that its commands print. The idea: every command that fails ends the
demonstration with that command and its own message, and every wait has a limit.
"""

import json
import os
import subprocess
import time

from failure import Failure

COMMAND_SECONDS_MAX = 180  # no command here moves more than one checkpoint set
REPAIR_SECONDS_MAX = 240  # the manager notices the loss and copies a few hundred MB; the rest is margin
REPAIR_POLL_SECONDS = 0.2


class Pool:
    """A pool in `data`, mounted at `mount`."""

    def __init__(self, binary, data, mount):
        self.binary = binary
        self.data = data
        self.mount = mount
        self.is_up = False

    def command(self, *arguments):
        """Runs one `stdchk` command on this pool and returns what it prints."""
        command = [str(self.binary), *map(str, arguments)]
        environment = os.environ | {"STDCHK_DATA": str(self.data)}
        try:
            outcome = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX,
                start_new_session=True,  # Ctrl-C is for the demonstration, which then ends the pool in good order
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Failure(f"`{shown(command)}` did not end within {COMMAND_SECONDS_MAX} s") from None
        if outcome.returncode != 0:
            raise Failure(f"`{shown(command)}` failed with status {outcome.returncode}\n{outcome.stderr.strip()}")
        return outcome.stdout

    def up(self, benefactors):
        self.mount.mkdir(parents=True)
        self.is_up = True  # from here on something may run
        self.command("up", "--benefactors", benefactors, "--data", self.data, "--mount", self.mount)

    def down(self):
        """Ends the pool, if it was started; the mount is taken off even if `stdchk down` fails."""
        if not self.is_up:
            return
        self.is_up = False
        try:
            self.command("down", "--data", self.data)
        finally:
            if os.path.ismount(self.mount):
                subprocess.run(["fusermount3", "-u", "-z", self.mount], check=False)
            # A pool of root leaves a folder that can't be removed; some file systems know no such attribute.
            subprocess.run(["chattr", "-i", self.mount], check=False, stderr=subprocess.DEVNULL)

    def set_policy(self, application, **values):
        self.command("policy", "set", application, *(f"{key}={value}" for key, value in values.items()))

    def status(self):
        return json.loads(self.command("status", "--json"))

    def latest(self, application):
        """The newest complete, verified set, with the newer ones that were passed over and why."""
        return json.loads(self.command("latest", application, "--or-older", "--json"))

    def benefactor(self, pid):
        """The entry of the status of the benefactor with this process id."""
        return next(entry for entry in self.status()["benefactors"] if entry["pid"] == pid)

    def wait_for_repair(self, victim):
        """Waits until every chunk has its replicas again without `victim`; returns the status then."""
        deadline = time.monotonic() + REPAIR_SECONDS_MAX
        while not repaired(status := self.status(), victim):
            if time.monotonic() > deadline:
                raise Failure(
                    f"after {REPAIR_SECONDS_MAX} s, {status['chunks_at_risk']} chunks still lack a replica "
                    f"({status['repairs_pending']} copies are pending)"
                )
            time.sleep(REPAIR_POLL_SECONDS)
        return status


def repaired(status, victim):
    """Whether the pool counts `victim` as lost and has nothing left to copy.

    Chunks without any replica are beyond repair: with optimistic writes, those that only `victim` had when it died.
    """
    noticed = all(entry["state"] == "lost" for entry in status["benefactors"] if entry["pid"] == victim["pid"])
    return noticed and not (status["chunks_at_risk"] or status["repairs_pending"])


def shown(command):
    return " ".join(["stdchk", *command[1:]])
