//! Near copies: with `local=prefer` the benefactor of the job's machine keeps what the job writes as well. The job reads it without the
//! network, nothing that counts lies there, and nobody is worse off when it is gone, wrong, late or in the way (I1, I3, I9).

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use stdchk_tests::{Machines, outcome, random_bytes, wait_until};

const MIB: usize = 1 << 20;
/// The machine of the job, on which a benefactor runs as well.
const JOB: usize = 2;
/// Those of the other benefactors.
const OTHERS: std::ops::RangeInclusive<usize> = 3..=7;

/// A pool whose first benefactor is on the job's machine.
struct Pool(Machines);

impl Pool {
    fn start() -> Self {
        let machines = Machines::start(7);
        machines.make_pool(6, 0, "256MiB");
        let pool = Self(machines);
        let token = pool.0.token("client");
        pool.ok(&["pool", "join", &pool.0.address(1), "--token", &token]);
        pool
    }

    /// A command of the job.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.0.command(JOB, arguments);
        command.env("STDCHK_DATA", self.0.path(JOB, "job"));
        command
    }

    fn ok(&self, arguments: &[&str]) -> Vec<u8> {
        let outcome = outcome(self.command(arguments));
        assert_eq!(outcome.code, 0, "{arguments:?}: {outcome:?}");
        outcome.stdout
    }

    fn policy(&self, folder: &str, pairs: &[&str]) {
        self.ok(&["mkdir", folder]);
        self.ok(&[&["policy", "set", folder][..], pairs].concat());
    }

    fn put(&self, content: &[u8], name: &str) {
        let file = self.0.path(JOB, "source");
        fs::write(&file, content).unwrap();
        self.ok(&["put", file.to_str().unwrap(), name]);
    }

    /// Reads a file back; the time that took.
    fn get(&self, name: &str, content: &[u8]) -> Duration {
        let began = Instant::now();
        assert!(self.ok(&["get", name, "-o", "-"]) == content, "{name}");
        began.elapsed()
    }

    /// What the manager says of the benefactor on a machine.
    fn shown(&self, machine: usize) -> Value {
        let status: Value = serde_json::from_slice(&self.ok(&["status", "--json"])).unwrap();
        let at = format!("10.77.0.{machine}:");
        let is_it = |one: &&Value| one["address"].as_str().unwrap().starts_with(&at);
        status["benefactors"].as_array().unwrap().iter().find(is_it).cloned().unwrap_or_default()
    }

    fn near_bytes(&self) -> usize {
        self.shown(JOB)["near_bytes"].as_u64().unwrap_or(0).try_into().unwrap()
    }

    /// Stores a file, and the same once more under another name until all of it has near copies.
    fn put_near(&self, content: &[u8], name: &str) {
        // The chunk map of one that isn't small is a chunk as well.
        let map = usize::from(content.len() > 10 * MIB);
        let before = self.near_bytes();
        self.put(content, name);
        let mut round = 0;
        wait_until("all of it has near copies", || {
            // The manager hears of them with the next heartbeat.
            std::thread::sleep(Duration::from_millis(600));
            if self.near_bytes() >= before + content.len() + map {
                return true;
            }
            round += 1;
            self.put(content, &format!("{name}.again{round}"));
            false
        });
        println!("{name}: {round} more rounds until all has near copies");
    }

    /// Segments of near copies.
    fn near_files(&self) -> Vec<PathBuf> {
        let folder = self.folder().join("near");
        fs::read_dir(folder).map_or(Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect())
    }

    /// Of the benefactor on the job's machine.
    fn folder(&self) -> PathBuf {
        self.0.path(JOB, "pool/benefactors/0")
    }

    /// Bytes that came over the network to the job's machine.
    fn received(&self) -> u64 {
        let said = outcome(self.0.program(JOB, "cat".as_ref(), &["/proc/net/dev"])).text();
        let line = said.lines().find(|line| line.trim().starts_with("eth0:")).unwrap();
        line.split(':').next_back().unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }
}

#[test]
fn a_job_reads_what_it_wrote_without_the_network_and_nothing_that_counts_lies_there() {
    let pool = Pool::start();
    for (number, redundancy) in (0..).zip(["erasure:3,2", "replicate:2"]) {
        let folder = format!("app{number}");
        let redundancy = format!("redundancy={redundancy}");
        pool.policy(&folder, &[&redundancy, "local=prefer", "semantics=pessimistic"]);
        let content = random_bytes(12 * MIB, number);
        let name = format!("{folder}/a.N0.T1");
        pool.put_near(&content, &name);
        let own = pool.shown(JOB);
        assert_eq!(own["blocks"], 0, "{own}");
        let before = pool.received();
        pool.get(&name, &content);
        let received = pool.received() - before;
        // On a busy machine one may be late, and come from elsewhere.
        assert!(received < content.len() as u64 / 2, "{received} bytes came over the network");
        OTHERS.for_each(|machine| pool.0.set_link(machine, false));
        let took = pool.get(&name, &content);
        println!("{redundancy}: {took:?} with all others cut off");
        OTHERS.for_each(|machine| pool.0.set_link(machine, true));
        wait_until("all are back", || {
            OTHERS.into_iter().all(|machine| pool.shown(machine)["state"] == "online")
        });
    }
    // Another machine needs none of it.
    assert!(pool.0.ok(1, &["get", "app1/a.N0.T1", "-o", "-"]).stdout == random_bytes(12 * MIB, 1));
    pool.ok(&["verify"]);
}

#[test]
fn near_copies_that_are_late_wrong_or_gone_cost_a_moment() {
    let pool = Pool::start();
    pool.policy("app", &["redundancy=replicate:2", "local=prefer"]);
    let (name, content) = ("app/a.N0.T1", random_bytes(12 * MIB, 3));
    pool.put_near(&content, name);
    // What it takes by itself is measured here, too.
    let usual = pool.get(name, &content);
    pool.0.freeze(JOB, true);
    let took = pool.get(name, &content);
    println!("{usual:?} as a rule, {took:?} while the benefactor stands still");
    assert!(took < usual + Duration::from_secs(3), "{took:?}");
    pool.0.freeze(JOB, false);
    // It was started again: what is there is found.
    pool.0.kill(JOB);
    pool.get(name, &content);
    pool.0.ok(JOB, &["up"]);
    wait_until("it is back", || pool.shown(JOB)["state"] == "online");
    assert!(pool.near_bytes() >= content.len());
    wait_until("near copies are known again", || {
        let before = pool.received();
        pool.get(name, &content);
        pool.received() - before < MIB as u64
    });
    // Bytes are flipped all over.
    for file in pool.near_files() {
        let mut bytes = fs::read(&file).unwrap();
        (5000..bytes.len()).step_by(10_000).for_each(|at| bytes[at] ^= 0x40);
        fs::write(&file, bytes).unwrap();
    }
    let before = pool.received();
    pool.get(name, &content);
    assert!(pool.received() - before > 8 * MIB as u64, "all of it came from others");
    let own = pool.shown(JOB);
    assert_eq!((&own["state"], &own["wish"]), (&"online".into(), &"serve".into()), "{own}");
    let status: Value = serde_json::from_slice(&pool.ok(&["status", "--json"])).unwrap();
    assert_eq!(status["health"], "healthy", "{status}");
    // They are taken away, and come anew.
    fs::remove_dir_all(pool.folder().join("near")).unwrap();
    pool.get(name, &content);
    wait_until("it has noticed", || pool.near_bytes() == 0);
    pool.put_near(&random_bytes(8 * MIB, 4), "app/a.N0.T2");
    pool.get("app/a.N0.T2", &random_bytes(8 * MIB, 4));
}

#[test]
fn near_copies_give_way_to_blocks_and_a_drain_or_leave_ends() {
    let pool = Pool::start();
    pool.0.kill(JOB);
    pool.0.ok(JOB, &["up", "--near", "250MiB"]);
    wait_until("it is back", || pool.shown(JOB)["state"] == "online");
    pool.policy("app", &["redundancy=replicate:1", "local=prefer"]);
    for step in 0..6 {
        pool.put(&random_bytes(48 * MIB, 10 + step), &format!("app/a.N0.T{step}"));
    }
    let own = pool.shown(JOB);
    let (near, donated) = (own["near_bytes"].as_u64().unwrap(), own["donated_bytes"].as_u64().unwrap());
    println!("{near} of {donated} bytes are near copies");
    assert!(near > donated / 2 && near <= donated, "{own}");
    assert!(own["free_bytes"].as_u64().unwrap() > donated - donated / 16, "{own}");
    // Everybody is needed for these.
    pool.policy("all", &["redundancy=replicate:6", "semantics=pessimistic"]);
    let content = random_bytes(160 * MIB, 20);
    pool.put(&content, "all/b.N0.T1");
    wait_until("it has its copy", || {
        let own = pool.shown(JOB);
        let (near, used) = (own["near_bytes"].as_u64().unwrap(), own["used_bytes"].as_u64().unwrap());
        assert!(near > 0 && near + used <= donated, "{own}");
        used >= content.len() as u64
    });
    pool.ok(&["rm", "all/b.N0.T1"]);
    // They are no reason to stay.
    let folder = pool.folder();
    let folder = folder.to_str().unwrap();
    pool.0.ok(JOB, &["benefactor", "drain", folder]);
    wait_until("near copies go with a drain", || pool.near_bytes() == 0 && pool.near_files().is_empty());
    pool.put(&random_bytes(8 * MIB, 30), "app/a.N0.T7");
    assert_eq!(pool.near_bytes(), 0, "one that drains keeps none");
    pool.0.ok(JOB, &["benefactor", "resume", folder]);
    wait_until("it serves", || pool.shown(JOB)["wish"] == "serve");
    pool.put_near(&random_bytes(8 * MIB, 31), "app/a.N0.T8");
    pool.0.ok(JOB, &["benefactor", "leave", folder, "--wait"]);
    assert!(pool.near_files().is_empty());
    pool.get("app/a.N0.T8", &random_bytes(8 * MIB, 31));
}

/// Bytes of the file that is measured: 256 MiB where `STDCHK_NEAR_MIB` says so.
fn measured_mib() -> usize {
    std::env::var("STDCHK_NEAR_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(48)
}

#[test]
fn a_restart_runs_at_the_speed_of_the_disk_and_writing_costs_little_more() {
    let pool = Pool::start();
    pool.0.kill(JOB);
    pool.0.ok(JOB, &["up", "--donate", "1GiB", "--near", "768MiB"]);
    wait_until("it is back", || pool.shown(JOB)["state"] == "online");
    let mib = measured_mib();
    let mut seconds = [[0.0; 2]; 2];
    for local in ["no", "prefer"] {
        pool.policy(local, &["redundancy=replicate:1", "codec=store", &format!("local={local}")]);
    }
    let mut plain = [0.0; 2];
    for (way, local) in ["no", "prefer"].into_iter().enumerate() {
        let began = Instant::now();
        pool.put(&random_bytes(mib * MIB, 50 + way as u64), &format!("{local}/a.N0.T0"));
        plain[way] = began.elapsed().as_secs_f64();
    }
    std::thread::sleep(Duration::from_secs(1));
    let fast = pool.near_bytes() / MIB;
    pool.0.shape(JOB, 1000);
    for (way, local) in ["no", "prefer"].into_iter().enumerate() {
        let began = Instant::now();
        pool.put(&random_bytes(mib * MIB, 40 + way as u64), &format!("{local}/a.N0.T1"));
        seconds[way][0] = began.elapsed().as_secs_f64();
    }
    std::thread::sleep(Duration::from_secs(1));
    let near = pool.near_bytes() / MIB - fast;
    pool.0.shape(JOB, 100);
    for (way, local) in ["no", "prefer"].into_iter().enumerate() {
        let name = format!("{local}/a.N0.T1");
        seconds[way][1] = pool.get(&name, &random_bytes(mib * MIB, 40 + way as u64)).as_secs_f64();
    }
    let [[write_no, read_no], [write_near, read_near]] = seconds;
    println!(
        "{mib} MiB: written over a network without bounds in {:.2} s, with near copies ({fast} MiB kept) in {:.2} s; over 1 Gbit/s in {write_no:.2} s, with near copies ({near} MiB kept) in {write_near:.2} s; \
         read over 100 Mbit/s in {read_no:.2} s, from near copies in {read_near:.2} s",
        plain[0], plain[1]
    );
    assert!(near * 10 >= mib * 9, "{near} of {mib} MiB have near copies");
    assert!(read_near < read_no / 2.0, "{read_near:.2} s and not {read_no:.2} s");
}
