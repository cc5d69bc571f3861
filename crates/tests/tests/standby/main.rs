//! Several managers share the pool's state in etcd: one leads, and another one follows when that one ends, stands still or is told to stop.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use stdchk_tests::{EtcdGate, EtcdServer, Outcome, command, outcome, outcome_with, random_bytes, wait_until};

/// The longest time from the end of a manager to the first answer of another one.
const SWITCH_MAX: Duration = Duration::from_secs(10);
/// How often the leader is killed; a variable for longer runs.
const KILLS: &str = "STDCHK_TEST_KILLS";
/// Pause of a writer between two files.
const WRITER_PAUSE: Duration = Duration::from_millis(100);

/// A pool whose managers stand by for each other.
struct Shared {
    home: tempfile::TempDir,
    /// Where in etcd the state is; empty: on the first manager's disk.
    place: String,
    /// What managers say to etcd of who they are.
    login: Option<String>,
    managers: Vec<Option<Child>>,
    others: Vec<Child>,
    /// The last, since all others need it.
    etcd: EtcdServer,
}

impl Shared {
    fn start(managers: usize) -> Self {
        let etcd = EtcdServer::start();
        let place = etcd.place();
        Self::start_at(managers, etcd, place)
    }

    fn start_at(managers: usize, etcd: EtcdServer, place: String) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut pool = Self { home, place, login: None, managers: Vec::new(), others: Vec::new(), etcd };
        pool.managers.resize_with(managers, || None);
        (0..managers).for_each(|number| pool.start_manager(number));
        for number in 0..3 {
            let folder = pool.path(&format!("benefactor-{number}"));
            let mut command = pool.command(&["benefactor", "run"]);
            command.arg(folder).args(["--donate", "256MiB", "--floor", "1MiB"]);
            let child = pool.logged(command, &format!("benefactor-{number}"));
            pool.others.push(child);
        }
        wait_until("the benefactors are there", || {
            pool.status().is_some_and(|status| {
                let benefactors = status["benefactors"].as_array().unwrap();
                benefactors.iter().filter(|benefactor| benefactor["state"] == "online").count() == 3
            })
        });
        pool
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn address(&self, manager: usize) -> String {
        format!("unix:{}", self.path(&format!("socket-{manager}")).display())
    }

    /// A command that knows the addresses of all managers.
    fn command(&self, arguments: &[&str]) -> Command {
        let addresses: Vec<String> = (0..self.managers.len()).map(|number| self.address(number)).collect();
        let mut command = command(arguments);
        command.env("STDCHK_MANAGER", addresses.join(","));
        command
    }

    fn logged(&self, mut command: Command, name: &str) -> Child {
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(self.path(&format!("{name}.log")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
        command.spawn().unwrap()
    }

    fn start_manager(&mut self, number: usize) {
        let mut command = command(&["manager", "run"]);
        command.arg(self.path(&format!("manager-{number}")));
        command.args(["--listen", &self.address(number)]);
        if !self.place.is_empty() {
            command.args(["--store", &self.place]);
        }
        if let Some(login) = &self.login {
            command.env("STDCHK_STORE_LOGIN", login);
        }
        self.managers[number] = Some(self.logged(command, &format!("manager-{number}")));
    }

    fn mount(&mut self) -> PathBuf {
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

    fn run(&self, arguments: &[&str]) -> Outcome {
        outcome(self.command(arguments))
    }

    fn put(&self, name: &str, content: &[u8]) -> Outcome {
        outcome_with(self.command(&["put", "-", name]), content)
    }

    fn get(&self, name: &str) -> Vec<u8> {
        let outcome = self.run(&["get", name, "-o", "-"]);
        assert_eq!(outcome.code, 0, "get {name}: {outcome:?}");
        outcome.stdout
    }

    /// What `status` says; none: no manager answers yet.
    fn status(&self) -> Option<Value> {
        let outcome = self.run(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&outcome.stdout).ok()?;
        (status["manager"]["state"] == "online").then_some(status)
    }

    /// Who leads.
    fn leader(&self) -> Option<usize> {
        let pid = self.status()?["manager"]["pid"].as_u64()?;
        self.managers
            .iter()
            .position(|manager| manager.as_ref().is_some_and(|child| u64::from(child.id()) == pid))
    }

    /// Waits until a manager leads; which one.
    fn await_leader(&self) -> usize {
        let mut leader = None;
        wait_until("a manager leads", || {
            leader = self.leader();
            leader.is_some()
        });
        leader.unwrap()
    }

    /// Waits until so many managers are known, and one leads.
    fn await_managers(&self, count: usize) {
        wait_until(&format!("{count} managers are known"), || {
            self.status().is_some_and(|status| {
                let managers = status["managers"].as_array().unwrap();
                managers.len() == count
                    && managers.iter().filter(|manager| manager["leads"] == true).count() == 1
            })
        });
    }

    /// Waits until another one than `before` leads; how long that took.
    fn await_other(&self, before: usize) -> Duration {
        let begun = Instant::now();
        wait_until("another manager leads", || self.leader().is_some_and(|leader| leader != before));
        begun.elapsed()
    }

    fn signal(&self, manager: usize, signal: Signal) {
        let pid = self.managers[manager].as_ref().unwrap().id();
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
    }

    fn kill(&mut self, manager: usize) {
        let mut child = self.managers[manager].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn log(&self, manager: usize) -> String {
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
        for child in self.others.iter_mut().chain(self.managers.iter_mut().flatten()) {
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
            // It may have ended.
            let _ = kill_process(pid, Signal::CONT);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn content(seed: u64, generation: usize) -> Vec<u8> {
    random_bytes(300_000, seed * 10_000 + generation as u64)
}

/// Stores generation after generation until told to stop; all are accepted, whatever becomes of managers.
fn write_on(pool: &Shared, seed: u64, done: &AtomicBool) -> usize {
    let mut generation = 0;
    while !done.load(Ordering::Acquire) {
        let outcome = pool.put(&format!("app/line{seed}"), &content(seed, generation));
        assert_eq!(outcome.code, 0, "line {seed}, generation {generation}: {outcome:?}");
        generation += 1;
        std::thread::sleep(WRITER_PAUSE);
    }
    generation
}

/// Copies small files to the mount, each under a name of its own.
fn copy_on(pool: &Shared, mount: &std::path::Path, done: &AtomicBool) -> usize {
    let source = pool.path("source");
    let mut made = 0;
    while !done.load(Ordering::Acquire) {
        std::fs::write(&source, content(77, made)).unwrap();
        let target = mount.join(format!("app/copied{made}"));
        let mut copy = Command::new("cp");
        copy.arg(&source).arg(&target).stdin(Stdio::null());
        let outcome = outcome(copy);
        assert_eq!(outcome.code, 0, "copy {made}: {outcome:?}");
        made += 1;
        std::thread::sleep(WRITER_PAUSE);
    }
    made
}

#[test]
fn a_manager_that_is_killed_is_followed_within_ten_seconds_and_nothing_acknowledged_is_lost() {
    let kills: u32 = std::env::var(KILLS).map_or(3, |kills| kills.parse().unwrap());
    let mut pool = Shared::start(2);
    let mount = pool.mount();
    std::fs::create_dir(mount.join("app")).unwrap();
    let done = AtomicBool::new(false);
    let mut managers = std::mem::take(&mut pool.managers);
    // The writers know the addresses of two.
    pool.managers.resize_with(2, || None);
    let (written, copied) = std::thread::scope(|scope| {
        let lines = [1, 2].map(|seed| {
            let (pool, done) = (&pool, &done);
            scope.spawn(move || write_on(pool, seed, done))
        });
        let copies = scope.spawn(|| copy_on(&pool, &mount, &done));
        let killing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..kills {
                kill_leader(&pool, &mut managers, round);
            }
        }));
        done.store(true, Ordering::Release);
        let written = lines.map(|line| line.join());
        let copied = copies.join();
        killing.unwrap();
        (written.map(Result::unwrap), copied.unwrap())
    });
    pool.managers = managers;
    for (seed, generations) in [1, 2].into_iter().zip(written) {
        assert!(generations > 0);
        assert!(pool.get(&format!("app/line{seed}")) == content(seed, generations - 1), "line {seed}");
    }
    for number in 0..copied {
        assert!(pool.get(&format!("app/copied{number}")) == content(77, number), "copy {number}");
    }
}

/// Kills who leads, waits for the other one, and starts the first again.
fn kill_leader(pool: &Shared, managers: &mut [Option<Child>], round: u32) {
    let pid_of = |status: &Value| status["manager"]["pid"].as_u64();
    let mut before = None;
    wait_until("both managers are there", || {
        let Some(status) = pool.status() else { return false };
        before = pid_of(&status);
        status["managers"].as_array().unwrap().len() == 2
    });
    let is_leader = |child: &Option<Child>| child.as_ref().map(|child| u64::from(child.id())) == before;
    let leader = managers.iter().position(is_leader).unwrap();
    std::thread::sleep(Duration::from_millis(u64::from(round) * 137 % 1000));
    let mut child = managers[leader].take().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    wait_until("the other manager leads", || pool.status().is_some_and(|status| pid_of(&status) != before));
    let took = begun.elapsed();
    eprintln!("round {round}: followed within {took:?}");
    assert!(took < SWITCH_MAX, "{took:?}");
    let mut command = command(&["manager", "run"]);
    command.arg(pool.path(&format!("manager-{leader}")));
    command.args(["--store", &pool.place, "--listen", &pool.address(leader)]);
    managers[leader] = Some(pool.logged(command, &format!("manager-{leader}")));
}

#[test]
fn a_manager_that_stands_still_and_goes_on_does_not_act_any_more() {
    let mut pool = Shared::start(2);
    assert_eq!(pool.put("app/before", b"before").code, 0);
    pool.await_managers(2);
    let stale = pool.await_leader();
    pool.signal(stale, Signal::STOP);
    // A client that has asked the one that stands still turns to the other one.
    let begun = Instant::now();
    assert_eq!(pool.put("app/meanwhile", b"meanwhile").code, 0);
    assert!(begun.elapsed() < 2 * SWITCH_MAX, "{:?}", begun.elapsed());
    let leader = pool.await_leader();
    assert_ne!(leader, stale);
    wait_until("the benefactors have turned to it", || {
        pool.status().is_some_and(|status| {
            status["benefactors"].as_array().unwrap().iter().all(|benefactor| benefactor["state"] == "online")
        })
    });
    let outcome = pool.run(&["rm", "app/before"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    pool.signal(stale, Signal::CONT);
    wait_until("it notices", || pool.log(stale).contains("leads no more"));
    pool.await_managers(2);
    assert_eq!(pool.await_leader(), leader);
    pool.kill(leader);
    let took = pool.await_other(leader);
    assert!(took < SWITCH_MAX, "{took:?}");
    assert_eq!(pool.leader(), Some(stale), "it has read everything anew");
    assert_eq!(pool.get("app/meanwhile"), b"meanwhile");
    assert_ne!(pool.run(&["get", "app/before", "-o", "-"]).code, 0, "it was removed");
}

#[test]
fn a_pool_moves_from_the_disk_of_its_manager_into_an_etcd_with_a_password() {
    let etcd = EtcdServer::start();
    etcd.protect("secret: it is");
    let place = etcd.place();
    let mut pool = Shared::start_at(1, etcd, String::new());
    for number in 0..200 {
        let name = format!("app/file{number}");
        let content = content(5, number);
        let stored = match number {
            0..20 => pool.put(&name, &content),
            // More records than go into one transaction of etcd.
            _ => pool.run(&["mkdir", &format!("app/folder{number}")]),
        };
        assert_eq!(stored.code, 0, "{name}: {stored:?}");
    }
    let listed = pool.run(&["ls", "app", "--json"]).text();
    pool.signal(0, Signal::TERM);
    assert!(pool.managers[0].take().unwrap().wait().unwrap().success());
    pool.place = place;
    pool.login = Some("root:wrong".to_owned());
    pool.start_manager(0);
    wait_until("etcd refuses", || pool.log(0).contains("authentication failed"));
    pool.kill(0);
    assert!(pool.path("manager-0/store.redb").exists());
    pool.login = Some("root:secret: it is".to_owned());
    pool.start_manager(0);
    pool.await_leader();
    assert_eq!(pool.run(&["ls", "app", "--json"]).text(), listed);
    let intact = |pool: &Shared| {
        for number in 0..20 {
            assert!(pool.get(&format!("app/file{number}")) == content(5, number), "file {number}");
        }
    };
    intact(&pool);
    assert!(!pool.path("manager-0/store.redb").exists() && pool.path("manager-0/store.redb.moved").exists());
    assert_eq!(pool.put("app/later", b"later").code, 0);
    // The older state is taken for the pool's no more, wherever it comes from.
    pool.kill(0);
    let swap = |pool: &Shared, from: &str, to: &str| {
        let path = |name: &str, end: &str| pool.path(&format!("manager-0/{name}{end}"));
        for file in ["store.redb", "store.log"] {
            std::fs::rename(path(file, from), path(file, to)).unwrap();
        }
    };
    swap(&pool, ".moved", "");
    pool.start_manager(0);
    wait_until("it refuses", || pool.log(0).contains("one of the two is old"));
    pool.kill(0);
    swap(&pool, "", ".moved");
    pool.start_manager(0);
    pool.await_leader();
    assert_eq!(pool.get("app/later"), b"later");
    intact(&pool);
}

#[test]
fn a_manager_that_is_told_to_stop_hands_over_at_once() {
    let mut pool = Shared::start(2);
    assert_eq!(pool.put("app/file", b"content").code, 0);
    pool.await_managers(2);
    let leader = pool.await_leader();
    pool.signal(leader, Signal::TERM);
    let took = pool.await_other(leader);
    // A lease takes four seconds to end by itself.
    assert!(took < Duration::from_millis(3500), "{took:?}");
    assert!(pool.managers[leader].take().unwrap().wait().unwrap().success());
    assert_eq!(pool.get("app/file"), b"content");
}

#[test]
fn etcd_that_ends_and_is_started_again_costs_a_pause() {
    let pool = Shared::start(2);
    assert_eq!(pool.put("app/before", &content(1, 0)).code, 0);
    pool.etcd.kill();
    let (first, second) = std::thread::scope(|scope| {
        let put = scope.spawn(|| pool.put("app/meanwhile", &content(2, 0)));
        // Longer than a lease, so that nobody leads for a while.
        std::thread::sleep(Duration::from_secs(7));
        pool.etcd.restart();
        (put.join().unwrap(), pool.put("app/after", &content(3, 0)))
    });
    assert_eq!((first.code, second.code), (0, 0), "{first:?}, {second:?}");
    for (name, seed) in [("before", 1), ("meanwhile", 2), ("after", 3)] {
        assert!(pool.get(&format!("app/{name}")) == content(seed, 0), "{name}");
    }
}

#[test]
fn answers_of_etcd_that_are_slow_or_lost_cost_nothing_that_was_acknowledged() {
    let etcd = EtcdServer::start();
    let gate = EtcdGate::open(etcd.port());
    let place = gate.place();
    let pool = Shared::start_at(1, etcd, place);
    gate.delay(Duration::from_millis(150));
    for (number, loses) in (0..12).zip((0..3).cycle()) {
        gate.lose(loses);
        let outcome = pool.put(&format!("app/file{number}"), &content(5, number));
        assert_eq!(outcome.code, 0, "{outcome:?}");
    }
    assert!(gate.lost() > 0);
    for number in 0..12 {
        assert!(pool.get(&format!("app/file{number}")) == content(5, number), "file {number}");
    }
}
