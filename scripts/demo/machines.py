"""The third part of the demonstration: a pool over several machines, which are network namespaces with addresses of their own.

Relies on `unshare`, `nsenter`, `ip` and etcd, and on nothing that only root may. The idea: two managers stand by for each other over an
etcd; hosts join with tokens as on real machines; a job on one of them writes timesteps into the mount while a host dies, the machine of
the manager that leads dies, too, and another host is cut off for a while; then all timesteps must be there, byte for byte.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time

from failure import Failure

MANAGERS, ETCD, BENEFACTORS, CLIENT = (1, 2), 3, (4, 5, 6, 7), 8
ADDRESS = "10.88.0.{}"
PORT, ETCD_PORT, ETCD_PEER_PORT = 7400, 2379, 2380
TIMESTEPS = 12
BYTES = 8 << 20
COMMAND_SECONDS_MAX = 120
TROUBLE_SECONDS = 1.5  # between two events, in which the job goes on
PAUSE_SECONDS = 0.5  # between two timesteps: the job computes

SWITCH = "ip link set lo up && ip link add br0 type bridge && ip link set br0 up && echo ready && exec cat"
MACHINE = "mount --make-rprivate / && ip link set lo up && echo ready && exec cat"
PLUG = "ip link add m$1 type veth peer name eth0 netns $2 && ip link set m$1 master br0 up"


class Machines:
    """A pool over machines that live as long as this object."""

    def __init__(self, binary, etcd, folder):
        self.binary, self.etcd, self.folder = binary, etcd, folder
        self.holders = {}
        self.services = {number: [] for number in (*MANAGERS, ETCD)}
        self.mount = None

    def start(self):
        self.holders[0] = hold(["unshare", "--map-root-user", "--net", "sh", "-c", SWITCH])
        for number in (*MANAGERS, ETCD, *BENEFACTORS, CLIENT):
            (self.folder / str(number)).mkdir(parents=True)
            entered = self.enter(0, "--user")
            self.holders[number] = hold([*entered, "unshare", "--net", "--mount", "sh", "-c", MACHINE])
            run([*self.enter(0, "--user", "--net"), "sh", "-c", PLUG, "sh", number, self.holders[number].pid])
            address = f"ip addr add {ADDRESS.format(number)}/24 dev eth0 && ip link set eth0 up"
            run([*self.enter(number, "--user", "--net"), "sh", "-c", address])

    def enter(self, number, *namespaces):
        return ["nsenter", f"--target={self.holders[number].pid}", *namespaces, "--preserve-credentials", "--"]

    def command(self, number, *arguments):
        data = f"STDCHK_DATA={self.folder / str(number) / 'pool'}"
        return [*self.enter(number, "--user", "--net", "--mount"), "env", data, self.binary, *arguments]

    def stdchk(self, number, *arguments):
        return run(self.command(number, *arguments))

    def set_link(self, number, state):
        run([*self.enter(0, "--user", "--net"), "ip", "link", "set", f"m{number}", state])

    def serve(self, number, name, command):
        """Starts a service in the foreground of a machine; what it says goes to a file in the machine's folder."""
        command = [str(word) for word in command]
        with open(self.folder / str(number) / f"{name}.log", "ab") as log:
            service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.services[number].append(service)

    def serve_etcd(self):
        client, peer = (f"http://{ADDRESS.format(ETCD)}:{port}" for port in (ETCD_PORT, ETCD_PEER_PORT))
        self.serve(ETCD, "etcd", [
            *self.enter(ETCD, "--user", "--net", "--mount"), self.etcd, "--data-dir", self.folder / str(ETCD) / "data",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
        ])  # fmt: skip

    def serve_manager(self, number):
        store = f"etcd://{ADDRESS.format(ETCD)}:{ETCD_PORT}/demo"
        arguments = "manager", "run", self.manager_folder(number), "--listen", address_of(number), "--store", store
        self.serve(number, "manager", self.command(number, *arguments))

    def manager_folder(self, number):
        return self.folder / str(number) / "manager"

    def token(self, role):
        return self.stdchk(MANAGERS[0], "pool", "token", "--for", role, "--folder", self.manager_folder(MANAGERS[0])).strip()

    def form_pool(self):
        self.serve_etcd()
        self.serve_manager(MANAGERS[0])
        authority = self.manager_folder(MANAGERS[0]) / "authority"
        wait_until(lambda: (authority / "certificate.pem").exists(), "no manager leads")
        managers = ",".join(map(address_of, MANAGERS))
        for number in BENEFACTORS:
            token = self.token("benefactor")
            self.stdchk(number, "benefactor", "join", managers, "--token", token, "--donate", "1GiB", "--floor", "64MiB")
        self.stdchk(CLIENT, "pool", "join", managers, "--token", self.token("client"))
        # The other manager needs what the first one made: with it members of the pool know it for their manager.
        shutil.copytree(authority, self.manager_folder(MANAGERS[1]) / "authority")
        self.serve_manager(MANAGERS[1])
        point = self.folder / "mnt"
        self.stdchk(CLIENT, "up", "--mount", point)
        # Nothing that is closed may be lost, the newest timestep included: a close waits for both copies.
        self.stdchk(CLIENT, "policy", "set", "wave", "semantics=pessimistic")
        # The mount is in the machine's own namespace.
        self.mount = f"/proc/{self.holders[CLIENT].pid}/root{point.resolve()}"

    def kill(self, number):
        """Ends all processes of a machine's part of the pool, as a loss of power does."""
        for record in (self.folder / str(number) / "pool" / "run").glob("*.pid"):
            try:
                os.kill(int(record.readlink().as_posix().split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                pass
        for service in self.services.get(number, ()):
            service.kill()
            service.wait()

    def close(self):
        for number in self.holders:
            self.kill(number)
        for holder in reversed(self.holders.values()):
            holder.kill()
            holder.wait()


def address_of(manager):
    return f"{ADDRESS.format(manager)}:{PORT}"


def hold(command):
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    if holder.stdout.readline() != b"ready\n":
        raise Failure("no machines could be made of network namespaces; what `ip` or `unshare` said is above")
    return holder


def run(command):
    command = [str(word) for word in command]
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX,
                                 stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Failure(f"`{' '.join(command)}` did not end within {COMMAND_SECONDS_MAX} s") from None
    if outcome.returncode:
        raise Failure(f"`{' '.join(command)}` failed with status {outcome.returncode}\n{outcome.stderr.strip()}")
    return outcome.stdout


class Writer(threading.Thread):
    """The job: a timestep after the other, until it is told to end; the last one is begun after that."""

    def __init__(self, folder, seed):
        super().__init__()
        self.folder, self.random = folder, random.Random(seed)
        self.sums, self.error, self.trouble_is_over = [], None, threading.Event()

    def run(self):
        try:
            os.makedirs(self.folder, exist_ok=True)
            while len(self.sums) < TIMESTEPS or not self.trouble_is_over.is_set():
                content = self.random.randbytes(BYTES)
                with open(f"{self.folder}/wave.N0.T{len(self.sums) + 1}", "wb") as file:
                    file.write(content)
                self.sums.append(hashlib.sha256(content).hexdigest())
                time.sleep(PAUSE_SECONDS)
        except OSError as error:
            self.error = error


def demonstrate(binary, etcd, folder, seed, say):
    """Returns how many timesteps were compared."""
    machines = Machines(binary, etcd, folder)
    try:
        say(f"making {len(machines.services) + len(BENEFACTORS) + 1} machines of network namespaces: two managers, an etcd in which they "
            f"keep the pool's state, {len(BENEFACTORS)} benefactors, a client")  # fmt: skip
        machines.start()
        machines.form_pool()
        job = Writer(f"{machines.mount}/wave", seed)
        job.start()
        trouble(machines, job, say)
        job.trouble_is_over.set()
        job.join()
        if job.error:
            raise Failure(f"the job on the client's machine failed: {job.error}")
        return compare(machines, job, say)
    finally:
        machines.close()


def trouble(machines, job, say):
    wait_for(job, 2)
    dead, cut = BENEFACTORS[0], BENEFACTORS[1]
    say(f"the machine at {ADDRESS.format(dead)} dies, while the job writes timestep {len(job.sums) + 1}")
    machines.set_link(dead, "down")
    machines.kill(dead)
    wait_for(job, len(job.sums) + 2)
    time.sleep(TROUBLE_SECONDS)
    lose_leader(machines, say)
    wait_for(job, len(job.sums) + 2)
    wait_for_copies(machines)
    say(f"the link of {ADDRESS.format(cut)} is cut, while the job writes timestep {len(job.sums) + 1}")
    machines.set_link(cut, "down")
    wait_for(job, len(job.sums) + 2)
    time.sleep(TROUBLE_SECONDS)
    machines.set_link(cut, "up")


def lose_leader(machines, say):
    """The machine of the manager that leads dies; nobody starts it again."""
    lead, stand_by = MANAGERS
    wait_until(lambda: len(status(machines)["managers"]) == len(MANAGERS), "no manager stands by")
    say(f"the machine at {ADDRESS.format(lead)}, whose manager leads, dies")
    died = time.monotonic()
    machines.set_link(lead, "down")
    machines.kill(lead)
    wait_until(lambda: leads(machines, stand_by), "no other manager leads")
    say(f"the manager at {ADDRESS.format(stand_by)} leads after {time.monotonic() - died:.1f} s")


def status(machines):
    return json.loads(machines.stdchk(CLIENT, "status", "--json"))


def leads(machines, number):
    try:
        leading = [manager["addresses"] for manager in status(machines)["managers"] if manager["leads"]]
    except Failure:
        return False  # nobody leads yet
    return leading == [[address_of(number)]]


def wait_for(job, count):
    wait_until(lambda: len(job.sums) >= count or job.error, "the job wrote no timestep")


def wait_for_copies(machines):
    """What the dead machine had is copied before the next one is cut off: two losses at once are one too many for two copies."""

    def are_made():
        now = status(machines)
        return any(entry["state"] == "lost" for entry in now["benefactors"]) and now["chunks_at_risk"] == 0

    wait_until(are_made, "chunks lack a copy")


def wait_until(holds, otherwise):
    deadline = time.monotonic() + COMMAND_SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise Failure(f"{otherwise} after {COMMAND_SECONDS_MAX} s")
        time.sleep(0.1)


def compare(machines, job, say):
    latest = json.loads(machines.stdchk(CLIENT, "latest", "wave", "--json"))
    if latest["timestep"] != len(job.sums):
        raise Failure(f"`stdchk latest` names timestep {latest['timestep']}, and the job closed {len(job.sums)}")
    for number, expected in enumerate(job.sums, 1):
        with open(f"{machines.mount}/wave/wave.N0.T{number}", "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() != expected:
                raise Failure(f"timestep {number} differs from what the job wrote")
    say(f"the job went on through all of it: {len(job.sums)} timesteps are complete and as they were written")
    return len(job.sums)
