//! Files that are closed early (`close=early`): the close returns while the window drains, and what fails then is never
//! silent. It is in `ls --versions` and `status`, the next open is told, and if there is none, the end of the mount.

use std::fs;

use rustix::process::Signal;
use stdchk_tests::{Disk, Mount, Pool, Setup, random_bytes, send_signal, wait_until, within};

use crate::program::{Writer, run};

const MIB: usize = 1 << 20;

/// A mounted pool whose one benefactor that takes anything has a disk of its own, and a folder that closes early.
fn pool_with_disk(setup: Setup) -> (Pool, Disk) {
    let pool = Setup { donate: "64KiB".to_owned(), ..setup }.up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1", "close=early"]);
    let disk = Disk::start(&pool, "disk", 64, "0");
    (pool, disk)
}

fn signal(disk: &Disk, pool: &Pool, signal: Signal) {
    let pid = disk.shown(&pool.status()).unwrap()["pid"].as_u64().unwrap();
    send_signal(u32::try_from(pid).unwrap(), signal);
}

/// Writes a file whose bytes no benefactor takes for now; its close succeeds.
fn write_early(mount: &std::path::Path, name: &str, content: &[u8]) {
    let mut writer = Writer::start(&mount.join(name), &["conv=notrunc"]);
    writer.feed(content);
    let written = within("closing early", || writer.finish());
    assert!(written.accepted, "{written:?}");
}

fn states(pool: &Pool, name: &str) -> Vec<String> {
    pool.versions(name).iter().map(|version| version["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_early_close_returns_before_anything_is_stored_and_the_commit_follows() {
    let (pool, disk) = pool_with_disk(Setup::of(1));
    let content = random_bytes(8 * MIB, 1);
    signal(&disk, &pool, Signal::STOP);
    write_early(&pool.mount_point(), "app/x", &content);
    assert_eq!(states(&pool, "app/x"), [""; 0]);
    signal(&disk, &pool, Signal::CONT);
    wait_until("the version is committed", || states(&pool, "app/x") == ["closed"]);
    assert!(pool.get("app/x") == content);
}

#[test]
fn a_mount_that_dies_while_an_early_close_drains_leaves_a_lost_version_on_record() {
    // Longer than the pause between two signs of life.
    let (pool, disk) = pool_with_disk(Setup::of(1).with("STDCHK_CLIENT_LEASE_MS", 8000));
    let old = random_bytes(MIB, 2);
    write_early(&pool.mount_point(), "app/x.N0.T1", &old);
    wait_until("the old version is there", || states(&pool, "app/x.N0.T1") == ["closed"]);
    signal(&disk, &pool, Signal::STOP);
    write_early(&pool.mount_point(), "app/x.N0.T1", &random_bytes(8 * MIB, 3));
    write_early(&pool.mount_point(), "app/x.N0.T2", &random_bytes(8 * MIB, 4));
    pool.kill("mount");
    wait_until("the manager has noticed", || states(&pool, "app/x.N0.T1") == ["closed", "lost"]);
    wait_until("both losses count", || {
        pool.shows(|status| status["versions_lost"] == 2 && status["health"] != "healthy")
    });
    signal(&disk, &pool, Signal::CONT);
    assert!(pool.get("app/x.N0.T1") == old, "the version before is what is read");
    assert_eq!(pool.json(&["latest", "app", "--json"])["timestep"], 1, "what is lost makes no set");
    pool.fails(&["get", "app/x.N0.T1@2"], 4, &["closed early"]);
}

#[test]
fn a_failure_after_an_early_close_is_told_to_the_next_open_or_at_the_end_of_the_mount() {
    let (pool, disk) = pool_with_disk(Setup::of(1));
    let mut second = Mount::start(&pool, "second");
    let old = random_bytes(MIB, 5);
    for name in ["app/told", "app/untold"] {
        write_early(second.point(), name, &old);
        wait_until("the old version is there", || states(&pool, name) == ["closed"]);
    }
    signal(&disk, &pool, Signal::STOP);
    for (name, seed) in [("app/told", 6), ("app/untold", 7)] {
        write_early(second.point(), name, &random_bytes(8 * MIB, seed));
    }
    disk.fill();
    signal(&disk, &pool, Signal::CONT);
    for name in ["app/told", "app/untold"] {
        wait_until("the loss is on record", || states(&pool, name) == ["closed", "lost"]);
    }
    let read = || run("cat", &[&second.at("app/told")]);
    let told = read();
    assert!(told.code == 1 && told.stderr.contains("No space left on device"), "{told:?}");
    let again = read();
    assert!(again.code == 0 && again.stdout == old, "the version before is read: {}", again.stderr);
    assert!(!second.end(), "the end of the mount tells of the other one");
    let said = fs::read_to_string(pool.path("second.log")).unwrap();
    assert!(said.contains("1 files that were closed early are lost"), "{said}");
}
