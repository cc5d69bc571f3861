//! No room: one disk is full, all are, the owner's floor or the donation is reached. Others take over, or the writer is
//! told so; the version before stays, and with room again everything goes on (I1, I2, I9).
//!
//! Disks are real file systems, filled by their owners.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::io::Errno;
use serde_json::Value;
use stdchk_tests::{Disk, Pool, Setup, random_bytes, wait_until, within};

use crate::program::{Writer, run};

const MIB: usize = 1 << 20;
/// What commands exit with when there is no space.
const NO_SPACE: i32 = 6;
const NO_SPACE_SAID: &str = "No space left on device";
/// Garbage is garbage after this time: longer than one of the writes here takes.
const GARBAGE_AGE_MS: u64 = 3000;

/// A mounted pool with an application whose chunks have one copy. The one benefactor on the common disk takes nothing:
/// its donation is smaller than a chunk.
fn pool_for_disks() -> Pool {
    let setup = Setup { donate: "64KiB".to_owned(), ..Setup::of(1) };
    let pool = with_short_leases(setup).up();
    single(&pool);
    pool
}

/// Until a manager has run for a client's lease it collects nothing.
fn with_short_leases(setup: Setup) -> Setup {
    setup.with("STDCHK_CLIENT_LEASE_MS", 8000).with("STDCHK_GARBAGE_AGE_MS", GARBAGE_AGE_MS)
}

fn single(pool: &Pool) {
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1"]);
}

fn free_bytes(pool: &Pool) -> u64 {
    pool.status()["space"]["free_bytes"].as_u64().unwrap()
}

/// Until the manager's figures of the space are those of now: a heartbeat has gone out since.
fn figures_of_now(pool: &Pool) {
    // One may be on its way already, with figures from before.
    for _ in 0..2 {
        let since = Instant::now();
        wait_until("every benefactor is heard again", || {
            let (elapsed, status) = (since.elapsed().as_millis(), pool.status());
            let heard = |benefactor: &Value| u128::from(benefactor["silent_ms"].as_u64().unwrap()) < elapsed;
            status["benefactors"].as_array().unwrap().iter().all(heard)
        });
    }
}

/// Copies a file of this content into the pool through the mount, and expects to be told that there is no space.
fn refused_by_the_mount(pool: &Pool, content: &[u8], name: &str) {
    let (source, target) = (PathBuf::from(pool.file("source", content)), pool.at(name));
    let copied = within("copying into a full pool", move || run("cp", &[&source, &target]));
    assert_eq!(copied.code, 1, "{copied:?}");
    assert!(copied.stderr.contains(NO_SPACE_SAID), "{copied:?}");
}

fn refused_by_put(pool: &Pool, content: &[u8], name: &str) {
    let outcome = pool.run_with(&["put", "-", name], content);
    assert_eq!(outcome.code, NO_SPACE, "{outcome:?}");
}

/// Collects until there is so much room.
fn collect(pool: &Pool, bytes: u64) {
    figures_of_now(pool);
    wait_until("removed content makes room", || {
        // A manager that has just started refuses.
        pool.run(&["gc"]);
        free_bytes(pool) >= bytes
    });
}

/// Space is set aside for a file that is being written, and returns with each commit.
#[test]
fn many_small_files_that_stay_open_keep_no_space_from_others() {
    let pool = Setup { donate: "64MiB".to_owned(), ..Setup::of(2) }.up();
    single(&pool);
    let open: Vec<fs::File> = (0..200)
        .map(|number| {
            let mut file = fs::File::create(pool.at(&format!("app/f{number}"))).unwrap();
            file.write_all(&random_bytes(100_000, number)).unwrap();
            file.sync_all().unwrap();
            file
        })
        .collect();
    let reserved = pool.status()["space"]["reserved_bytes"].as_u64().unwrap();
    assert_eq!(reserved, 0, "nothing is under way");
    // A file that is larger than what it may ask for at first.
    fs::write(pool.at("app/large"), random_bytes(40 * MIB, 999)).unwrap();
    drop(open);
    assert!(pool.get("app/large") == random_bytes(40 * MIB, 999));
}

/// Garbage is a minute old before it goes by itself. A writer that finds no room doesn't wait for that.
#[test]
fn what_was_removed_makes_room_at_once_for_who_writes() {
    let pool = Setup { donate: "64MiB".to_owned(), ..Setup::of(1) }.up();
    single(&pool);
    for round in 0..3 {
        let name = format!("app/put{round}");
        let put = pool.run_with(&["put", "-", &name], &random_bytes(40 * MIB, round));
        assert_eq!(put.code, 0, "round {round}: {put:?}");
        pool.ok(&["rm", &name]);
    }
    for round in 0..2 {
        let (path, content) = (pool.at(&format!("app/copy{round}")), random_bytes(40 * MIB, 10 + round));
        fs::write(&path, &content).unwrap();
        assert!(fs::read(&path).unwrap() == content);
        fs::remove_file(&path).unwrap();
    }
    // Of what is there nothing can go.
    fs::write(pool.at("app/stays"), random_bytes(40 * MIB, 20)).unwrap();
    refused_by_put(&pool, &random_bytes(40 * MIB, 21), "app/too-much");
    assert!(pool.get("app/stays") == random_bytes(40 * MIB, 20));
}

#[test]
fn when_one_disk_fills_up_the_others_take_over() {
    let pool = pool_for_disks();
    let mut disks = ["disk0", "disk1", "disk2"].map(|name| Disk::start(&pool, name, 64, "0"));
    let content = random_bytes(48 * MIB, 1);
    let mut writer = Writer::start(&pool.at("app/x"), &["conv=notrunc"]);
    let (first, rest) = content.split_at(16 * MIB);
    writer.feed(first);
    wait_until("a part of the file is on the disk", || disks[0].free() < 62 << 20);
    let written = std::thread::scope(|threads| {
        threads.spawn(|| disks[0].fill());
        writer.feed(rest);
        within("closing a file with a full disk in its stripe", || writer.finish())
    });
    assert!(written.accepted, "{written:?}");
    // What a chunk had taken that didn't fit is given back.
    assert!(disks[0].free() < 2 << 20, "{}", disks[0].free());
    assert!(pool.get("app/x") == content, "what the full disk holds is served");
    let outcome = pool.run_with(&["put", "-", "app/y"], &random_bytes(20 * MIB, 2));
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(disks.iter_mut().all(Disk::is_served));
    assert_eq!(pool.json(&["verify", "--json"])["bad"], serde_json::json!([]));
}

#[test]
fn when_all_disks_are_full_the_writer_is_told_and_the_version_before_stays() {
    let pool = pool_for_disks();
    let mut disks = ["disk0", "disk1"].map(|name| Disk::start(&pool, name, 48, "0"));
    let (old, new) = (random_bytes(5 * MIB, 3), random_bytes(12 * MIB, 4));
    pool.put(&old, "app/x");
    // In the middle of a file: `write` or `fsync` says so.
    let mut writer = Writer::start(&pool.at("app/half"), &["conv=notrunc,fsync"]);
    writer.feed(&new[..6 * MIB]);
    wait_until("a part of the file is on a disk", || disks.iter().any(|disk| disk.free() < 43 << 20));
    disks.iter().for_each(Disk::fill);
    writer.feed(&new[6 * MIB..]);
    let written = within("writing to a pool that got full", || writer.finish());
    assert!(!written.accepted && written.message.contains(NO_SPACE_SAID), "{written:?}");
    // From the beginning.
    refused_by_the_mount(&pool, &new, "app/x");
    refused_by_put(&pool, &new, "app/x");
    assert!(pool.get("app/x") == old, "the version before stays");
    assert_eq!(pool.versions("app/x").len(), 1);
    assert!(fs::read(pool.at("app/x")).unwrap() == old);
    assert!(disks.iter_mut().all(Disk::is_served));

    disks.iter().for_each(Disk::clear);
    figures_of_now(&pool);
    wait_until("the benefactors see that there is room", || free_bytes(&pool) >= 2 * new.len() as u64);
    let (source, target) = (PathBuf::from(pool.file("source", &new)), pool.at("app/x"));
    let copied = within("copying again", move || run("cp", &[&source, &target]));
    assert_eq!(copied.code, 0, "{copied:?}");
    assert!(pool.get("app/x") == new && pool.get("app/x@1") == old);
}

#[test]
fn a_file_that_fits_is_not_refused_for_the_space_that_it_has_taken_itself() {
    let setup = Setup { donate: "32MiB".to_owned(), ..Setup::of(2) };
    let pool = setup.up();
    single(&pool);
    let content = random_bytes(60 * MIB, 9);
    // Past the kernel's cache, which would keep some of it for itself.
    let mut writer = Writer::start(&pool.at("app/x"), &["conv=notrunc", "oflag=direct"]);
    // What is reserved first is used before more is asked for, and the manager knows.
    let (first, rest) = content.split_at(15 * MIB);
    writer.feed(first);
    wait_until("the manager knows of the first part", || {
        pool.shows(|status| status["space"]["used_bytes"].as_u64().unwrap() >= 15 << 20)
    });
    writer.feed(rest);
    let written = within("closing a file that nearly fills the pool", || writer.finish());
    assert!(written.accepted, "{written:?}");
    assert!(pool.get("app/x") == content);
}

#[test]
fn the_owners_floor_stays_free_and_what_is_stored_stays_readable_below_it() {
    const FLOOR: u64 = 24 << 20;
    /// What the benefactor notes beside blocks, such as its part of the manager's history, is written at any time.
    const RECORDS: u64 = 512 << 10;
    let pool = pool_for_disks();
    let disk = Disk::start(&pool, "disk", 64, "24MiB");
    let content = |number: u64| random_bytes(8 * MIB, 20 + number);
    let mut stored = 0;
    loop {
        let outcome = pool.run_with(&["put", "-", &format!("app/x{stored}")], &content(stored));
        assert!(disk.free() + RECORDS >= FLOOR, "{} are free", disk.free());
        match outcome.code {
            0 => stored += 1,
            NO_SPACE => break,
            _ => panic!("{outcome:?}"),
        }
    }
    // 40 MiB can be taken, less what the benefactor's own records need.
    assert_eq!(stored, 4);
    refused_by_the_mount(&pool, &content(9), "app/new");
    // The owner's own work goes first, below the floor, too.
    disk.take(20 << 20);
    assert!(disk.free() < FLOOR);
    refused_by_put(&pool, &content(9), "app/x0");
    let all_read =
        |from: u64| (from..stored).all(|number| pool.get(&format!("app/x{number}")) == content(number));
    assert!(all_read(0));

    disk.clear();
    pool.ok(&["rm", "app/x0"]);
    // More than the file needs: what was sent in vain has to go, too, for the benefactor's records take their part.
    collect(&pool, 12 << 20);
    pool.put(&content(9), "app/new");
    assert!(pool.get("app/new") == content(9) && all_read(1));
    assert!(disk.free() >= FLOOR);
}

/// A removal gives space back once the benefactors that keep the manager's store have its commit, for which a full disk has room.
#[test]
fn what_is_removed_goes_from_disks_that_their_owners_have_filled() {
    let pool = pool_for_disks();
    let disks = ["disk0", "disk1", "disk2"].map(|name| Disk::start(&pool, name, 64, "8MiB"));
    let (old, stays) = (random_bytes(36 * MIB, 30), random_bytes(6 * MIB, 31));
    pool.put(&old, "app/old");
    pool.put(&stays, "app/stays");
    disks.iter().for_each(Disk::fill);
    figures_of_now(&pool);
    assert!(free_bytes(&pool) < 64 << 10, "only the benefactor on the common disk has room");
    pool.ok(&["rm", "app/old"]);
    wait_until("what was removed goes from full disks", || {
        pool.run(&["gc"]);
        disks.iter().all(|disk| disk.free() > 4 << 20)
    });
    assert!(pool.get("app/stays") == stays);
}

/// What the files below a directory take on the disk, bytes.
fn taken_below(directory: &Path) -> u64 {
    let of = |path: PathBuf| match fs::symlink_metadata(&path) {
        Ok(metadata) if metadata.is_dir() => taken_below(&path),
        // A segment may be given back meanwhile.
        metadata => metadata.map_or(0, |metadata| metadata.blocks() * 512),
    };
    fs::read_dir(directory).unwrap().map(|entry| of(entry.unwrap().path())).sum()
}

#[test]
fn a_donation_is_never_exceeded_and_with_something_removed_writing_works_again() {
    const DONATED: u64 = 24 << 20;
    let setup = Setup { donate: "24MiB".to_owned(), ..Setup::of(2) };
    let pool = with_short_leases(setup).up();
    single(&pool);
    let (old, new) = (random_bytes(20 * MIB, 5), random_bytes(18 * MIB, 6));
    pool.put(&old, "app/old");
    let within_donation = || {
        let status = pool.status();
        for (index, benefactor) in status["benefactors"].as_array().unwrap().iter().enumerate() {
            assert!(benefactor["used_bytes"].as_u64().unwrap() <= DONATED, "{benefactor}");
            let taken = taken_below(&pool.data().join(format!("benefactors/{index}/segments")));
            assert!(taken <= DONATED, "{taken} bytes are taken");
        }
    };
    refused_by_the_mount(&pool, &random_bytes(50 * MIB, 7), "app/old");
    within_donation();
    assert!(pool.get("app/old") == old);
    // What was sent in vain goes, as nothing refers to it.
    collect(&pool, new.len() as u64 + (1 << 20));
    pool.put(&new, "app/new");
    refused_by_put(&pool, &random_bytes(18 * MIB, 8), "app/third");
    within_donation();
    pool.fails(&["get", "app/third", "-o", "-"], 4, &["app/third"]);
    let removed = fs::remove_file(pool.at("app/old"));
    removed.unwrap_or_else(|error| panic!("removing from a full pool: {error}"));
    collect(&pool, new.len() as u64 + (1 << 20));
    pool.put(&old[..18 * MIB], "app/third");
    assert!(pool.get("app/third") == old[..18 * MIB] && pool.get("app/new") == new);
    within_donation();
    assert_eq!(
        fs::metadata(pool.at("app/old")).unwrap_err().raw_os_error(),
        Some(Errno::NOENT.raw_os_error())
    );
}

#[test]
fn a_full_pool_refuses_what_needs_bytes_to_follow_and_leaves_no_empty_name() {
    let pool = pool_for_disks();
    let disk = Disk::start(&pool, "disk", 48, "0");
    fs::write(pool.at("app/old"), "old").unwrap();
    disk.fill();
    wait_until("the manager knows that the disk is full", || {
        // As soon as it does, a new file is refused.
        fs::write(pool.at("app/probe"), "").is_err()
    });
    for (command, name) in [
        ("echo hi > small", "small"),
        ("echo hi >> small", "small"),
        ("cp old small", "small"),
        ("echo hi > old", "old"),
        ("echo hi >> old", "old"),
    ] {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", command]).current_dir(pool.at("app")).env("LC_ALL", "C");
        let ended = within("writing a line to a full pool", move || shell.output().unwrap());
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains(NO_SPACE_SAID), "{command}: {said}");
        assert_eq!(fs::read_to_string(pool.at("app/old")).unwrap(), "old", "{command}");
        assert_eq!(pool.at("app").join(name).exists(), name == "old", "{command}");
    }
    disk.clear();
    wait_until("the pool takes files again", || fs::write(pool.at("app/small"), "hi").is_ok());
    assert_eq!(pool.get("app/small"), b"hi");
}
