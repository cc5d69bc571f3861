//! Machines for a pool: network namespaces with addresses of their own on one switch, each with a folder for its data. Their links can
//! be slow, and can be cut.
//!
//! Making them takes no rights that a user hasn't. They live as long as processes that wait for the end of the test, and the processes
//! of the pool in them: nothing of it stays, however the test ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use rustix::process::Signal;

use crate::command::{Outcome, binary, clean, outcome};
use crate::process::Process;
use crate::wait::wait_until;

/// Bytes that a slow link takes at once after it was idle.
pub const LINK_BURST_BYTES: u64 = 256 << 10;
/// Port of the manager.
const PORT: u16 = 7400;

/// Names of the first machines, before `.example.org`.
const NAMES: [&str; 4] = ["a", "b", "c", "login"];

/// Makes the switch.
const SWITCH: &str =
    "ip link set lo up && ip link add br0 type bridge && ip link set br0 up && echo ready && exec cat";
/// Makes a machine.
const MACHINE: &str = "mount --make-rprivate / && mount --bind \"$1\" /etc/hosts && ip link set lo up && echo ready && exec cat";
/// On the switch: connects the machine with number `$1` whose process is `$2`.
const PLUG: &str = "ip link add m$1 type veth peer name eth0 netns $2 && ip link set m$1 master br0 up";
/// On the machine: its address.
const ADDRESS: &str = "ip addr add 10.77.0.$1/24 dev eth0 && ip link set eth0 up";
/// Shapes a device `$1` to `$2` Mbit/s (tc-tbf(8)).
const SHAPE: &str = "tc qdisc replace dev $1 root tbf rate $2mbit burst 256kb latency 200ms";

/// Machines on one switch.
pub struct Machines {
    all: Vec<Holder>,
    switch: Holder,
    home: tempfile::TempDir,
    /// Processes that were started in the foreground, and on which machine.
    running: Mutex<Vec<(usize, Child)>>,
}

/// A process that keeps namespaces.
struct Holder(Child);

impl Holder {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let holder = Self(child);
        assert_eq!(said, "ready\n", "no network could be made; the message of `ip` is above");
        holder
    }

    /// A command that runs in its namespaces.
    fn enter(&self, namespaces: &[&str]) -> Command {
        let mut entering = Command::new("nsenter");
        clean(&mut entering);
        entering
            .arg(format!("--target={}", self.0.id()))
            .args(namespaces)
            .args(["--preserve-credentials", "--"]);
        entering.stdin(Stdio::null());
        entering
    }

    fn sh(&self, script: &str, arguments: &[String]) {
        let mut command = self.enter(&["--user", "--net"]);
        command.args(["sh", "-c", script, "sh"]).args(arguments);
        assert!(command.status().unwrap().success(), "{script} {arguments:?}");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machines {
    /// So many machines, numbered from 1.
    pub fn start(count: usize) -> Self {
        Self::start_in(&std::env::temp_dir(), count)
    }

    /// So many machines, whose disks are folders in `directory`.
    pub fn start_in(directory: &Path, count: usize) -> Self {
        let mut switch = Command::new("unshare");
        switch.args(["--map-root-user", "--net", "sh", "-c", SWITCH]);
        let home = tempfile::tempdir_in(directory).unwrap();
        let mut machines =
            Self { all: Vec::new(), switch: Holder::start(switch), home, running: Mutex::default() };
        let hosts = machines.home.path().join("hosts");
        let name = |number| format!("10.77.0.{number} {}.example.org\n", NAMES[number - 1]);
        std::fs::write(&hosts, (1..=count.min(NAMES.len())).map(name).collect::<String>()).unwrap();
        for number in 1..=count {
            let mut machine = machines.switch.enter(&["--user"]);
            machine.args(["unshare", "--net", "--mount", "sh", "-c", MACHINE, "sh"]).arg(&hosts);
            let machine = Holder::start(machine);
            machines.switch.sh(PLUG, &[number.to_string(), machine.0.id().to_string()]);
            machine.sh(ADDRESS, &[number.to_string()]);
            machines.all.push(machine);
        }
        machines
    }

    /// Lets a machine's link carry so many Mbit/s from now on, in both directions.
    pub fn shape(&self, machine: usize, mbit: u32) {
        self.switch.sh(SHAPE, &[format!("m{machine}"), mbit.to_string()]);
        self.holder(machine).sh(SHAPE, &["eth0".to_owned(), mbit.to_string()]);
    }

    /// Cuts a machine's link, or mends it.
    pub fn set_link(&self, machine: usize, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        self.switch.sh("ip link set m$1 $2", &[machine.to_string(), state.to_owned()]);
    }

    fn holder(&self, machine: usize) -> &Holder {
        &self.all[machine - 1]
    }

    /// Where a machine's manager serves others.
    pub fn address(&self, machine: usize) -> String {
        format!("10.77.0.{machine}:{PORT}")
    }

    /// A folder of a machine, or a file in it.
    pub fn path(&self, machine: usize, name: &str) -> PathBuf {
        let folder = self.home.path().join(machine.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        folder.join(name)
    }

    /// A path as processes of the machine see it, mounts included.
    pub fn inside(&self, machine: usize, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder(machine).0.id()));
        root.join(self.path(machine, name).strip_prefix("/").unwrap())
    }

    /// A command on a machine.
    pub fn command(&self, machine: usize, arguments: &[&str]) -> Command {
        let mut command = self.program(machine, &binary(), arguments);
        command.env("STDCHK_DATA", self.path(machine, "pool"));
        // They share the identity of the one that they run on.
        command.env("STDCHK_HOST", format!("machine{machine}"));
        command
    }

    /// Another program on a machine.
    pub fn program(&self, machine: usize, program: &Path, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = self.holder(machine).enter(&["--user", "--net", "--mount"]);
        command.arg(program).args(arguments);
        command
    }

    /// Runs a command on a machine.
    pub fn run(&self, machine: usize, arguments: &[&str]) -> Outcome {
        outcome(self.command(machine, arguments))
    }

    /// Runs a command that must succeed.
    pub fn ok(&self, machine: usize, arguments: &[&str]) -> Outcome {
        let outcome = self.run(machine, arguments);
        assert_eq!(outcome.code, 0, "{arguments:?} on machine {machine}: {outcome:?}");
        outcome
    }

    /// Starts a command in the foreground of a machine; it is ended with the test.
    pub fn begin(&self, machine: usize, arguments: &[&str]) {
        self.begin_as(machine, "foreground", self.command(machine, arguments));
    }

    /// Starts a command of this machine in the foreground; what it says goes to `NAME.log` in its folder.
    pub fn begin_as(&self, machine: usize, name: &str, mut command: Command) {
        let log = self.path(machine, &format!("{name}.log"));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.running.lock().unwrap().push((machine, child));
    }

    /// Runs a line of a shell on a machine, as a user with a home directory of their own.
    pub fn shell(&self, machine: usize, line: &str) -> Outcome {
        let home = self.path(machine, "home");
        std::fs::create_dir_all(&home).unwrap();
        let programs = binary().parent().unwrap().to_str().unwrap().to_owned();
        let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
        let mut command = self.program(machine, Path::new("bash"), &["-c", line]);
        command.env_clear().env("HOME", &home).env("PATH", path).current_dir(&home);
        outcome(command)
    }

    /// Where the folders of all machines are.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Ends all processes of pools on machines whose folders are in `home`; for who can't wait until they are dropped.
    pub fn kill_all(home: &Path) {
        let machines = std::fs::read_dir(home).into_iter().flatten().flatten();
        let entries = machines.filter_map(|machine| std::fs::read_dir(machine.path().join("pool/run")).ok());
        let records = entries.flatten().filter_map(Result::ok);
        records.filter_map(|entry| Process::recorded_in(&entry.path())).for_each(Process::kill);
    }

    /// The number of the machine with this name.
    pub fn named(name: &str) -> Option<usize> {
        NAMES.iter().position(|known| *known == name).map(|at| at + 1)
    }

    /// The processes of a machine's part of the pool.
    pub fn processes(&self, machine: usize) -> Vec<Process> {
        let places = ["pool/run", "home/.local/state/stdchk/run"];
        let entries = places.iter().filter_map(|place| std::fs::read_dir(self.path(machine, place)).ok());
        entries.flatten().filter_map(|entry| Process::recorded_in(&entry.unwrap().path())).collect()
    }

    /// Ends all processes of a machine's part of the pool, those in the foreground as well.
    pub fn kill(&self, machine: usize) {
        self.processes(machine).into_iter().for_each(Process::kill);
        let mut running = self.running.lock().unwrap();
        for (_, child) in running.iter_mut().filter(|(on, _)| *on == machine) {
            // It may have ended.
            let _ = child.kill();
            child.wait().unwrap();
        }
        running.retain(|(on, _)| *on != machine);
    }

    /// Lets the processes of a machine's part of the pool stand still, connections and all, or go on.
    pub fn freeze(&self, machine: usize, is_frozen: bool) {
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        self.processes(machine).into_iter().for_each(|process| process.signal(signal));
    }

    /// A pool: machine 1 has the manager, the next ones have a benefactor each, the one after these is a client, and the last one
    /// has nothing to do with it.
    pub fn with_pool(benefactors: usize) -> Self {
        let machines = Self::start(benefactors + 3);
        machines.make_pool(benefactors, 1, "256MiB");
        machines
    }

    /// Makes a pool of them: machine 1 has the manager, the next ones have a benefactor each, and the ones after these are clients.
    pub fn make_pool(&self, benefactors: usize, clients: usize, donate: &str) {
        let manager = self.address(1);
        self.ok(1, &["pool", "init", "--listen", &manager]);
        for machine in 2..benefactors + 2 {
            let token = self.token("benefactor");
            let join = [
                "benefactor",
                "join",
                &manager,
                "--token",
                &token,
                "--donate",
                donate,
                "--floor",
                "1MiB",
                "--tier",
                "disk",
            ];
            // They all have one disk, and each would take the work of the others for its owner's.
            self.ok(machine, &[&join[..], &["--load-limit", "0"]].concat());
        }
        for machine in benefactors + 2..benefactors + clients + 2 {
            let token = self.token("client");
            self.ok(machine, &["pool", "join", &manager, "--token", &token]);
        }
    }

    /// Mounts the pool at `mnt` of a client's machine; the root of the pool, as processes of the test see it.
    pub fn mount(&self, machine: usize) -> PathBuf {
        let point = self.path(machine, "mnt");
        self.begin(machine, &["mount", point.to_str().unwrap()]);
        let root = self.inside(machine, "mnt");
        // The mount point is a plain directory before.
        let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
        let outside = device(root.parent().unwrap());
        wait_until("the pool is mounted", || device(&root).is_some_and(|inside| Some(inside) != outside));
        root
    }

    /// A token for a host in this role.
    pub fn token(&self, role: &str) -> String {
        self.ok(1, &["pool", "token", "--for", role]).text().trim().to_owned()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        (1..=self.all.len()).for_each(|machine| self.kill(machine));
    }
}
