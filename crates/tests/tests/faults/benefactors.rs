//! Benefactors that are killed while files are written and read: what `close` accepted comes back, or an error is told.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};

use stdchk_tests::{Pool, Setup, random_bytes, wait_until, within};

use crate::program::{Writer, Written};

const MIB: usize = 1 << 20;
const FILE_BYTES: usize = 40 * MIB;

/// Bytes that the files of a benefactor take on the disk.
fn taken_by(pool: &Pool, benefactor: &str) -> u64 {
    let (_, index) = benefactor.split_once('-').unwrap();
    let segments = pool.data().join("benefactors").join(index).join("segments");
    let files = fs::read_dir(segments).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(file).unwrap()) * 512).sum()
}

/// Overwrites `name` through the mount, and kills a benefactor that holds some of it half-way; `revive`: it is started
/// again before the file is closed.
fn write_and_kill(pool: &Pool, name: &str, content: &[u8], victim: &str, revive: bool) -> Written {
    let before = taken_by(pool, victim);
    let mut writer = Writer::start(&pool.at(name), &[]);
    let (first, rest) = content.split_at(content.len() * 3 / 4);
    writer.feed(first);
    wait_until("a part of the file is stored at the victim", || taken_by(pool, victim) > before + 1_000_000);
    pool.kill(victim);
    writer.feed(rest);
    if revive {
        pool.ok(&["up"]);
    }
    within("closing a file whose benefactor was killed", || writer.finish())
}

/// A write through a window much smaller than the file: what the benefactor had not made durable can't be sent again.
fn survives_a_kill(app: &str, policy: &[&str], revive: bool, must_succeed: bool) {
    let pool = Setup::of(4).with("STDCHK_WINDOW", "8MiB").up();
    pool.ok(&["put", &pool.file("seed", b"seed"), &format!("{app}/seed")]);
    pool.policy(app, policy);
    let name = format!("{app}/a.N0.T1");
    let (old, new) = (random_bytes(3 * MIB, 1), random_bytes(FILE_BYTES, 2));
    fs::write(pool.at(&name), &old).unwrap();
    let written = write_and_kill(&pool, &name, &new, "benefactor-1", revive);
    assert!(written.accepted || !must_succeed, "{written:?}");
    pool.ok(&["up"]);
    let expected = if written.accepted {
        &new
    } else {
        assert!(written.message.contains("Input/output error"), "{written:?}");
        assert!(pool.log("mount").contains("went away"), "the log says why: {}", pool.log("mount"));
        &old
    };
    // A write that failed leaves the version before, and nothing else.
    assert!(pool.get(&name) == *expected, "accepted: {}", written.accepted);
    assert_eq!(pool.versions(&name).len(), 1 + usize::from(written.accepted));
    let mounted = pool.at(&name);
    let read = within("reading it through the mount", move || fs::read(mounted).unwrap());
    assert!(read == *expected);
    assert_eq!(pool.json(&["verify", "--json"])["bad"], serde_json::json!([]));
}

#[test]
fn with_one_replica_a_killed_benefactor_costs_an_error_and_the_version_before_stays() {
    survives_a_kill("single", &["redundancy=replicate:1"], false, false);
}

#[test]
fn with_one_replica_a_benefactor_that_comes_back_costs_nothing() {
    survives_a_kill("revived", &["redundancy=replicate:1"], true, true);
}

#[test]
fn with_two_replicas_and_optimistic_writes_a_killed_benefactor_costs_at_most_an_error() {
    survives_a_kill("optimistic", &["redundancy=replicate:2"], false, false);
}

#[test]
fn with_two_replicas_and_pessimistic_writes_a_killed_benefactor_costs_nothing() {
    survives_a_kill("pessimistic", &["redundancy=replicate:2", "semantics=pessimistic"], false, true);
}

#[test]
fn what_the_window_still_holds_is_sent_again_when_a_benefactor_is_killed() {
    let pool = Setup::of(3).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1"]);
    let content = random_bytes(FILE_BYTES, 3);
    let written = write_and_kill(&pool, "app/a.N0.T1", &content, "benefactor-0", false);
    assert!(written.accepted, "{written:?}");
    assert!(pool.get("app/a.N0.T1") == content);
}

#[test]
fn reads_go_on_at_the_other_replica_when_a_benefactor_is_killed() {
    let pool = Setup::of(3).up();
    let content = random_bytes(FILE_BYTES, 4);
    pool.put(&content, "app/x");
    pool.wait_for_copies();
    let mut file = File::open(pool.at("app/x")).unwrap();
    let mut fetch = pool.command(&["get", "app/x", "-o", "-"]);
    let mut fetch = fetch.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stream = fetch.stdout.take().unwrap();
    let mut parts = [vec![0; 2 * MIB], vec![0; 2 * MIB]];
    file.read_exact(&mut parts[0]).unwrap();
    stream.read_exact(&mut parts[1]).unwrap();
    pool.kill("benefactor-2");
    let [mut mounted, mut fetched] = parts;
    let (mounted, fetched) = within("reading on", move || {
        file.read_to_end(&mut mounted).unwrap();
        stream.read_to_end(&mut fetched).unwrap();
        (mounted, fetched)
    });
    assert!(fetch.wait().unwrap().success());
    assert!(mounted == content && fetched == content);
}

#[test]
fn with_all_replicas_of_a_chunk_gone_that_file_alone_fails_until_one_is_back() {
    let pool = Setup::of(2).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1", "stripe=1"]);
    let contents: Vec<Vec<u8>> = (0..4).map(|seed| random_bytes(MIB, 10 + seed)).collect();
    for (number, content) in contents.iter().enumerate() {
        pool.put(content, &format!("app/x{number}"));
    }
    let holders: Vec<u16> = contents.iter().map(|content| pool.holder_of(content).unwrap()).collect();
    let lost = holders[0];
    assert!(holders.iter().any(|holder| *holder != lost), "files take turns: {holders:?}");
    pool.kill(&format!("benefactor-{lost}"));
    for (number, content) in contents.iter().enumerate() {
        let path = pool.at(&format!("app/x{number}"));
        let read = within("reading a file, there or not", move || fs::read(path));
        match read {
            Ok(bytes) => assert!(holders[number] != lost && bytes == *content),
            Err(error) => {
                assert_eq!((holders[number], error.raw_os_error()), (lost, Some(libc_eio())), "{error}");
            }
        }
    }
    let log = pool.log("mount");
    assert!(log.contains("chunk") && log.contains("can't be read"), "{log}");
    pool.fails(&["get", "app/x0", "-o", "-"], 5, &["app/x0"]);
    pool.ok(&["up"]);
    assert!(fs::read(pool.at("app/x0")).unwrap() == contents[0]);
    assert!(
        Command::new("cmp")
            .arg(pool.at("app/x0"))
            .arg(pool.file("x0", &contents[0]))
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_benefactor_whose_folder_is_removed_ends_and_its_chunks_are_copied_from_others() {
    let setup = Setup { mounted: false, ..Setup::of(3) };
    let pool = setup.with("STDCHK_BENEFACTOR_LOST_MS", 3000).up();
    let contents: Vec<Vec<u8>> = (0..6).map(|seed| random_bytes(MIB, 40 + seed)).collect();
    for (number, content) in contents.iter().enumerate() {
        pool.put(content, &format!("app/x{number}"));
    }
    pool.wait_for_copies();
    let victim = pool.process("benefactor-1");
    fs::remove_dir_all(pool.data().join("benefactors/1")).unwrap();
    wait_until("it notices and ends", || !victim.is_alive());
    let log = pool.log("benefactor-1");
    assert!(log.contains("was removed, moved or replaced"), "{log}");
    pool.wait_for_state("lost", 1);
    pool.wait_for_copies();
    // What is left has two copies at two benefactors, so either is enough.
    pool.kill("benefactor-0");
    for (number, content) in contents.iter().enumerate() {
        assert!(pool.get(&format!("app/x{number}")) == *content, "file {number}");
    }
}

#[test]
fn a_set_whose_chunk_maps_are_out_of_reach_is_counted_as_such() {
    let pool = Setup::of(2).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1", "stripe=1", "ranks=1"]);
    // Their maps are too large to lie with the manager.
    let contents: Vec<Vec<u8>> = (0..4).map(|seed| random_bytes(20 * MIB, 20 + seed)).collect();
    for (step, content) in contents.iter().enumerate() {
        pool.put(content, &format!("app/a.N0.T{step}"));
    }
    let holders: Vec<u16> = contents.iter().map(|content| pool.holder_of(content).unwrap()).collect();
    let lost = holders[3];
    let left = holders.iter().rposition(|holder| *holder != lost).expect("files take turns");
    pool.kill(&format!("benefactor-{lost}"));
    let latest = pool.json(&["latest", "app", "--or-older", "--json"]);
    assert_eq!(latest["timestep"], left, "{latest}");
    assert_eq!(latest["passed_over"].as_array().unwrap().len(), 3 - left, "{latest}");
    assert!(
        latest["passed_over"][0]["reason"].as_str().unwrap().contains("can't be reached now"),
        "{latest}"
    );
    let away = holders.iter().filter(|holder| **holder == lost).count();
    pool.fails(&["verify", "app"], 5, &["app", &format!("{away} of 4 versions")]);
    pool.ok(&["restore", "app", "--or-older", "-o", "restart"]);
    assert!(fs::read(pool.path("restart").join(format!("a.N0.T{left}"))).unwrap() == contents[left]);
}

fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}
