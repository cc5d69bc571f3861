//! A pool whose managers stand by for each other, over a real etcd.

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::Value;
use stdchk_tests::{
    EtcdGate, EtcdServer, Outcome, command, outcome, outcome_with, random_bytes, send_signal, wait_until,
};

/// The longest time from the end of a manager to the first answer of another one.
pub const SWITCH_MAX: Duration = Duration::from_secs(10);

/// A pool whose managers stand by for each other.
pub struct Shared {
    pub home: tempfile::TempDir,
    /// Where in etcd the state is; empty: on the first manager's disk.
    pub place: String,
    /// What managers say to etcd of who they are.
    pub login: Option<String>,
    /// Variables of managers.
    pub variables: Vec<(&'static str, &'static str)>,
    pub managers: Vec<Mutex<Option<Child>>>,
    pub others: Vec<Child>,
    /// Through which each manager reaches etcd's members; none: it reaches them itself.
    pub gates: Vec<Vec<EtcdGate>>,
    /// The last, since all others need it.
    pub etcd: EtcdServer,
}

impl Shared {
    pub fn start(managers: usize) -> Self {
        let etcd = EtcdServer::start();
        let place = etcd.place();
        Self::start_at(managers, etcd, place)
    }

    /// With a gate of each manager to each member of etcd.
    pub fn start_behind_gates(managers: usize, members: usize) -> Self {
        let etcd = EtcdServer::start_members(members);
        let gates = || etcd.ports().into_iter().map(EtcdGate::open).collect();
        let gates = (0..managers).map(|_| gates()).collect();
        let place = etcd.place();
        Self::start_with(managers, (etcd, gates), place)
    }

    pub fn start_at(managers: usize, etcd: EtcdServer, place: String) -> Self {
        Self::start_with(managers, (etcd, Vec::new()), place)
    }

    fn start_with(managers: usize, (etcd, gates): (EtcdServer, Vec<Vec<EtcdGate>>), place: String) -> Self {
        let mut pool = Self::prepare(managers, etcd, place);
        pool.gates = gates;
        pool.begin(3);
        pool
    }

    /// One of which nothing runs yet.
    pub fn prepare(managers: usize, etcd: EtcdServer, place: String) -> Self {
        let home = tempfile::tempdir().unwrap();
        let managers = (0..managers).map(|_| Mutex::default()).collect();
        let (login, variables, gates) = (None, Vec::new(), Vec::new());
        Self { home, place, login, variables, managers, others: Vec::new(), gates, etcd }
    }

    /// Starts its managers and so many benefactors.
    pub fn begin(&mut self, benefactors: usize) {
        (0..self.managers.len()).for_each(|number| self.start_manager(number));
        for number in 0..benefactors {
            self.start_benefactor(number, &["--donate", "4GiB"]);
        }
        self.await_benefactors(benefactors);
    }

    /// Starts a benefactor whose place among all that run beside the managers is `number`.
    pub fn start_benefactor(&mut self, number: usize, more: &[&str]) {
        let mut command = self.command(&["benefactor", "run"]);
        // They all have one disk, and each would take the work of the others for its owner's.
        command
            .arg(self.benefactor(number))
            .args(["--floor", "1MiB", "--load-limit", "0", "--tier", "disk"])
            .args(more);
        let child = self.logged(command, &format!("benefactor-{number}"));
        match self.others.get_mut(number) {
            Some(place) => *place = child,
            None => self.others.push(child),
        }
    }

    /// SIGKILL to a benefactor.
    pub fn kill_benefactor(&mut self, number: usize) {
        self.others[number].kill().unwrap();
        self.others[number].wait().unwrap();
    }

    /// The folder of a benefactor.
    pub fn benefactor(&self, number: usize) -> PathBuf {
        self.path(&format!("benefactor-{number}"))
    }

    pub fn await_benefactors(&self, count: usize) {
        wait_until("the benefactors are there", || {
            self.status().is_some_and(|status| {
                let benefactors = status["benefactors"].as_array().unwrap();
                benefactors.iter().filter(|benefactor| benefactor["state"] == "online").count() == count
            })
        });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn address(&self, manager: usize) -> String {
        format!("unix:{}", self.path(&format!("socket-{manager}")).display())
    }

    /// A command that knows the addresses of all managers.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let addresses: Vec<String> = (0..self.managers.len()).map(|number| self.address(number)).collect();
        let mut command = command(arguments);
        command.env("STDCHK_MANAGER", addresses.join(","));
        command
    }

    pub fn logged(&self, mut command: Command, name: &str) -> Child {
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(self.path(&format!("{name}.log")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
        command.spawn().unwrap()
    }

    pub fn start_manager(&self, number: usize) {
        let mut command = command(&["manager", "run"]);
        command.arg(self.path(&format!("manager-{number}")));
        command.args(["--listen", &self.address(number)]);
        if let Some(place) = self.place_of(number) {
            command.args(["--store", &place]);
        }
        command.envs(self.variables.iter().copied());
        if let Some(login) = &self.login {
            command.env("STDCHK_STORE_LOGIN", login);
        }
        *self.managers[number].lock().unwrap() = Some(self.logged(command, &format!("manager-{number}")));
    }

    /// Where the state is, as this manager reaches it; none: on its disk.
    fn place_of(&self, number: usize) -> Option<String> {
        let place =
            self.gates.get(number).map_or_else(|| self.place.clone(), |gates| EtcdGate::place_of(gates));
        Some(place).filter(|place| !place.is_empty())
    }

    pub fn mount(&mut self) -> PathBuf {
        let point = self.path("mnt");
        std::fs::create_dir(&point).unwrap();
        let mut command = self.command(&["mount"]);
        command.arg(&point);
        let child = self.logged(command, "mount");
        self.others.push(child);
        let device = |path: PathBuf| std::os::unix::fs::MetadataExt::dev(&path.metadata().unwrap());
        wait_until("it is mounted", || device(point.clone()) != device(self.home.path().to_owned()));
        point
    }

    pub fn run(&self, arguments: &[&str]) -> Outcome {
        outcome(self.command(arguments))
    }

    pub fn put(&self, name: &str, content: &[u8]) -> Outcome {
        outcome_with(self.command(&["put", "-", name]), content)
    }

    pub fn get(&self, name: &str) -> Vec<u8> {
        let outcome = self.run(&["get", name, "-o", "-"]);
        assert_eq!(outcome.code, 0, "get {name}: {outcome:?}");
        outcome.stdout
    }

    /// What `status` says; none: no manager answers yet.
    pub fn status(&self) -> Option<Value> {
        let outcome = self.run(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&outcome.stdout).ok()?;
        (status["manager"]["state"] == "online").then_some(status)
    }

    /// Who leads.
    pub fn leader(&self) -> Option<usize> {
        let pid = self.status()?["manager"]["pid"].as_u64()?;
        self.managers.iter().position(|manager| {
            manager.lock().unwrap().as_ref().is_some_and(|child| u64::from(child.id()) == pid)
        })
    }

    /// Waits until a manager leads; which one.
    pub fn await_leader(&self) -> usize {
        let mut leader = None;
        wait_until("a manager leads", || {
            leader = self.leader();
            leader.is_some()
        });
        leader.unwrap()
    }

    /// Waits until so many managers are known, and one leads.
    pub fn await_managers(&self, count: usize) {
        wait_until(&format!("{count} managers are known"), || {
            self.status().is_some_and(|status| {
                let managers = status["managers"].as_array().unwrap();
                managers.len() == count
                    && managers.iter().filter(|manager| manager["leads"] == true).count() == 1
            })
        });
    }

    /// Waits until another one than `before` leads; how long that took.
    pub fn await_other(&self, before: usize) -> Duration {
        let begun = Instant::now();
        wait_until("another manager leads", || self.leader().is_some_and(|leader| leader != before));
        begun.elapsed()
    }

    pub fn signal(&self, manager: usize, signal: Signal) {
        send_signal(self.managers[manager].lock().unwrap().as_ref().unwrap().id(), signal);
    }

    pub fn kill(&self, manager: usize) {
        self.signal(manager, Signal::KILL);
        self.end(manager);
    }

    /// Waits for the end of a manager that was told to.
    pub fn end(&self, manager: usize) -> ExitStatus {
        let status = || self.managers[manager].lock().unwrap().as_mut().unwrap().try_wait().unwrap();
        wait_until("the manager ends", || status().is_some());
        let status = status().unwrap();
        *self.managers[manager].lock().unwrap() = None;
        status
    }

    pub fn log(&self, manager: usize) -> String {
        std::fs::read_to_string(self.path(&format!("manager-{manager}.log"))).unwrap()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for entry in std::fs::read_dir(self.home.path()).unwrap().map(|entry| entry.unwrap().path()) {
                if entry.extension().is_some_and(|extension| extension == "log") {
                    let log = std::fs::read_to_string(&entry).unwrap();
                    let lines: Vec<&str> = log.lines().collect();
                    eprintln!("--- {}", entry.display());
                    lines.iter().skip(lines.len().saturating_sub(25)).for_each(|line| eprintln!("{line}"));
                }
            }
        }
        // Nothing is mounted there in most tests.
        let _ = unmount(self.path("mnt"), UnmountFlags::DETACH);
        let managers = self.managers.iter_mut().filter_map(|manager| manager.get_mut().unwrap().as_mut());
        for child in self.others.iter_mut().chain(managers) {
            // It may have ended. SIGKILL ends also one that stands still.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn content(seed: u64, generation: usize) -> Vec<u8> {
    random_bytes(300_000, seed * 10_000 + generation as u64)
}
