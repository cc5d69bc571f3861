//! States that somebody may return to: what they list is there, whatever was removed since (I4).

use std::fs;
use std::path::Path;

use serde_json::Value;
use stdchk_tests::{Pool, Setup, random_bytes, wait_until};

/// Age at which garbage is collected.
const GARBAGE_AGE_MS: u64 = 1_000;
const RANKS: u64 = 2;
const SETS: u64 = 4;

fn setup(benefactors: u16) -> Setup {
    let setup = Setup { mounted: false, ..Setup::of(benefactors) };
    setup.with("STDCHK_GARBAGE_AGE_MS", GARBAGE_AGE_MS).with("STDCHK_CLIENT_LEASE_MS", 500)
}

fn name(rank: u64, timestep: u64) -> String {
    format!("job.N{rank}.T{timestep}")
}

fn content(rank: u64, timestep: u64) -> Vec<u8> {
    random_bytes(700 << 10, 10 * timestep + rank)
}

fn collect(pool: &Pool) {
    drop(pool.run(&["gc"]));
}

fn wait_until_gone(pool: &Pool, content: &[u8]) {
    wait_until("what was removed is collected", || {
        collect(pool);
        pool.holders_of(content).is_empty()
    });
}

/// Sets are packed, removed by hand and by a lifetime after a backup that is kept for `keep`, and their chunks collected.
fn back_up_and_remove(pool: &Pool, backup: &Path, keep: &str) {
    pool.ok(&["mkdir", "sim"]);
    pool.policy("sim", &["ranks=2"]);
    for timestep in 1..=SETS {
        (0..RANKS)
            .for_each(|rank| pool.put(&content(rank, timestep), &format!("sim/{}", name(rank, timestep))));
    }
    pool.wait_for_copies();
    let said = pool.ok(&["manager", "backup", backup.to_str().unwrap(), "--keep", keep]);
    assert!(said.contains("read back and intact"), "{said}");
    let (packed, scratch) =
        (pool.json(&["aggregate", "sim", "--once", "--json"]), random_bytes(700 << 10, 1));
    assert!(!packed["sets"].as_array().unwrap().is_empty(), "{packed}");
    pool.put(&scratch, "scratch/file");
    pool.ok(&["rm", "scratch/file"]);
    (0..RANKS).for_each(|rank| drop(pool.ok(&["rm", &format!("sim/{}", name(rank, 2))])));
    pool.policy("sim", &["lifetime=replace:1"]);
    wait_until("all sets but the newest go", || !pool.ok(&["ls", "sim"]).contains(&name(0, 1)));
    wait_until_gone(pool, &scratch);
    collect(pool);
}

fn put_back(pool: &Pool, backup: &Path) {
    pool.ok(&["down"]);
    let manager = pool.data().join("manager");
    fs::rename(&manager, pool.path("newer")).unwrap();
    fs::rename(backup, &manager).unwrap();
    pool.ok(&["up"]);
    wait_until("the older copy is noticed", || pool.shows(|status| status["health"] == "set-back"));
    pool.ok(&["accept-older-store"]);
    // Of a backup that was not kept something is damaged.
    let has_begun = |status: &Value| status["health"] != "set-back" && status["health"] != "starting";
    wait_until("the pool has begun", || pool.shows(has_begun));
    std::thread::sleep(std::time::Duration::from_millis(3 * GARBAGE_AGE_MS));
    collect(pool);
}

/// Sets that the put-back store lists and that are restored byte for byte.
fn restored(pool: &Pool) -> Vec<u64> {
    let comes_back = |timestep: &u64| {
        let (number, out) = (timestep.to_string(), pool.path(&format!("out{timestep}")));
        pool.run(&["restore", "sim", "--set", &number, "-o", out.to_str().unwrap()]).code == 0
            && (0..RANKS)
                .all(|rank| fs::read(out.join(name(rank, *timestep))).unwrap() == content(rank, *timestep))
    };
    (1..=SETS).filter(comes_back).collect()
}

#[test]
fn all_sets_that_a_registered_backup_lists_are_restored_after_it_was_put_back() {
    let pool = setup(2).up();
    let backup = pool.path("backup");
    back_up_and_remove(&pool, &backup, "7d");
    let held = pool.status()["held_back"].clone();
    assert!(held["bytes"].as_u64() > Some((6 * 700) << 10), "{held}");
    let shown = pool.ok(&["status"]);
    assert!(shown.contains("of removed files") && shown.contains("--release"), "{shown}");
    put_back(&pool, &backup);
    assert_eq!(restored(&pool), [1, 2, 3, 4]);
    // It knows of itself, and is given up by its commit.
    let commit = pool.status()["held_back"]["backups"][0]["commit"].to_string();
    (0..RANKS).for_each(|rank| drop(pool.ok(&["rm", &format!("sim/{}", name(rank, 1))])));
    assert!(pool.ok(&["manager", "backup", "--release", &commit]).contains("given up"));
    pool.fails(&["manager", "backup", "--release", &commit], 4, &["no backup of commit"]);
    wait_until_gone(&pool, &content(0, 1));
    assert_eq!(restored_again(&pool), [2, 3, 4]);
}

fn restored_again(pool: &Pool) -> Vec<u64> {
    (1..=SETS).for_each(|timestep| drop(fs::remove_dir_all(pool.path(&format!("out{timestep}")))));
    restored(pool)
}

#[test]
fn a_backup_that_is_not_kept_says_so_and_keeps_nothing() {
    let pool = setup(2).up();
    let backup = pool.path("backup");
    back_up_and_remove(&pool, &backup, "0");
    let held = pool.status()["held_back"].clone();
    assert_eq!((held["backups"].as_array().unwrap().len(), held["bytes"].as_u64()), (0, Some(0)), "{held}");
    wait_until_gone(&pool, &content(0, 2));
    put_back(&pool, &backup);
    assert!(!restored(&pool).contains(&2));
    let other = pool.path("other");
    let said = pool.run(&["manager", "backup", other.to_str().unwrap(), "--keep", "0"]);
    assert!(said.stderr.contains("doesn't keep"), "{said:?}");
    let refused = pool.path("refused");
    pool.fails(
        &["manager", "backup", refused.to_str().unwrap(), "--keep", "soon"],
        2,
        &["number and a unit"],
    );
}

#[test]
fn a_backup_that_fails_holds_nothing() {
    let pool = setup(1).up();
    pool.put(b"content", "app/x");
    // The folder can't be made where a file is.
    let at = pool.file("file", b"");
    let outcome = pool.run(&["manager", "backup", &format!("{at}/backup")]);
    assert_ne!(outcome.code, 0);
    assert_eq!(pool.status()["held_back"]["backups"].as_array().unwrap().len(), 0);
}

#[test]
fn nothing_is_collected_that_keepers_which_lack_commits_may_bring_back() {
    let pool = setup(3).up();
    let kept = random_bytes(700 << 10, 1);
    pool.put(&kept, "app/x");
    pool.wait_for_copies();
    pool.wait_for_recovery();
    let slow = ["benefactor-1", "benefactor-2"].map(|role| pool.process(role));
    let stop = |signal| slow.iter().for_each(|process| process.signal(signal));
    stop(rustix::process::Signal::STOP);
    pool.ok(&["rm", "app/x"]);
    let before = pool.holders_of(&kept);
    std::thread::sleep(std::time::Duration::from_secs(8));
    collect(&pool);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(pool.holders_of(&kept), before);
    stop(rustix::process::Signal::CONT);
    wait_until_gone(&pool, &kept);
}
