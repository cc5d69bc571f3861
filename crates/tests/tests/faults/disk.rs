//! A disk that refuses writes for another reason than being full: its benefactor takes nothing more, says so and serves
//! on; clients go elsewhere (I1, I3).
//!
//! The refusal is real: a limit on the length of files, set on the running process, makes the kernel refuse its writes.

use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;
use stdchk_tests::{Pool, Setup, binary, random_bytes, wait_until};

const MIB: usize = 1 << 20;
/// Below the length of a chunk, above that of any log.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// Starts what doesn't run, in such a way that a write beyond the limit is an error and not a signal.
fn up_without_signal(pool: &Pool) {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" up"]).arg(binary()).env("STDCHK_DATA", pool.data());
    assert!(command.output().unwrap().status.success());
}

fn refuse_writes_of(pool: &Pool, role: &str) {
    let pid = Pid::from_raw(i32::try_from(pool.process(role).pid).unwrap());
    let limit = Rlimit { current: Some(FILE_BYTES_MAX), maximum: None };
    prlimit(pid, Resource::Fsize, limit).unwrap();
}

fn free_bytes(pool: &Pool, role: &str) -> u64 {
    let pid = pool.process(role).pid;
    let status = pool.status();
    let mut benefactors = status["benefactors"].as_array().unwrap().iter();
    benefactors
        .find(|entry| entry["pid"] == pid)
        .map_or(0, |entry: &Value| entry["free_bytes"].as_u64().unwrap())
}

/// Stores files of a chunk each, in turn at one benefactor each.
fn put_in_turn(pool: &Pool, seeds: std::ops::Range<u64>) -> Vec<(String, Vec<u8>)> {
    let file = |seed| (format!("app/x{seed}"), random_bytes(MIB, 900 + seed));
    let files: Vec<(String, Vec<u8>)> = seeds.map(file).collect();
    files.iter().for_each(|(name, content)| pool.put(content, name));
    files
}

#[test]
fn a_benefactor_whose_disk_refuses_writes_takes_nothing_more_and_serves_on() {
    let victim = "benefactor-1";
    let pool = Setup { mounted: false, ..Setup::of(3) }.up();
    pool.put(b"seed", "app/seed");
    pool.policy("app", &["redundancy=replicate:1", "stripe=1"]);
    let before = put_in_turn(&pool, 0..6);
    assert!(before.iter().any(|(_, content)| pool.holder_of(content) == Some(1)), "files take turns");
    pool.kill(victim);
    up_without_signal(&pool);
    pool.wait_for_state("online", 3);
    refuse_writes_of(&pool, victim);
    let during = put_in_turn(&pool, 6..12);
    assert!(during.iter().all(|(_, content)| pool.holder_of(content).is_some_and(|holder| holder != 1)));
    wait_until("it has no room to offer", || free_bytes(&pool, victim) == 0);
    let status = pool.status();
    assert_eq!(status["health"], "degraded", "{status}");
    assert!(status["reasons"][0].as_str().unwrap().contains("the disk of b"), "{status}");
    let log = pool.log(victim);
    assert_eq!(log.matches("the disk failed").count(), 1, "it says so once: {log}");
    for (name, content) in before.iter().chain(&during) {
        assert!(pool.get(name) == *content, "{name}");
    }
    assert_eq!(pool.json(&["verify", "--json"])["bad"], serde_json::json!([]));
    pool.kill(victim);
    pool.ok(&["up"]);
    wait_until("it has room again after a restart", || free_bytes(&pool, victim) > 0);
    wait_until("nothing is wrong any more", || pool.status()["health"] == "healthy");
    let after = put_in_turn(&pool, 12..18);
    assert!(after.iter().any(|(_, content)| pool.holder_of(content) == Some(1)), "it is used again");
}
