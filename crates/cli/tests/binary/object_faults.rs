//! What may happen between an aggregator and an object store: either of them is killed anywhere, the store is busy, away or
//! lies. The raw set is there or the aggregate, at every moment.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use stdchk_tests::{Asked, Deed, Gate, ObjectStore, outcome, random_bytes, wait_until};

use crate::across_time;
use crate::aggregate::{Files, Running, raw_is_there, set, write};
use crate::objects::{AtStore, objects, once};

/// A set that takes an upload in parts: 20 MiB that don't shrink.
fn large_set() -> Files {
    (0..4).map(|rank: u64| (format!("wave.N{rank}.T10"), random_bytes(5 << 20, rank))).collect()
}

/// Arguments for one container of it.
fn in_one<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let one = [
        "aggregate",
        "run",
        "-o",
        "s3://ckpt/run 7",
        "--ranks",
        "4",
        "--settle",
        "0",
        "--once",
        "--level",
        "fastest",
    ];
    [&one, more].concat()
}

fn comes_back_from_one(place: &AtStore, files: &Files) -> bool {
    let unpacked = place.run(&["unpack", "s3://ckpt/run 7/step-10.1of1.pack", "-o", "back"]);
    unpacked.code == 0
        && files.iter().all(|(name, bytes)| fs::read(place.path(&format!("back/{name}"))).unwrap() == *bytes)
}

/// Whether a request reads an object.
fn reads_object(asked: &Asked) -> bool {
    asked.method == "GET" && asked.target.contains("step-10")
}

#[test]
fn a_store_that_is_killed_in_an_upload_keeps_no_object_and_the_raw_set_stays() {
    let store = Arc::new(ObjectStore::start());
    let (killed, kills_at) = (Arc::clone(&store), AtomicU64::new(1));
    let gate = Gate::open(&store, move |asked| {
        let is_part = asked.target.contains("partNumber=");
        if is_part && kills_at.fetch_sub(1, Ordering::Relaxed) == 0 {
            killed.kill();
        }
        Deed::Pass
    });
    let mut place = AtStore::new(gate.endpoint());
    place.attempts = 2;
    let files = large_set();
    write(&place, &files);
    place.fails(&in_one(&["--remove-raw"]), 5, "can't upload s3://ckpt/run 7/step-10.1of1.pack");
    assert!(raw_is_there(&place, &files));
    assert_eq!(objects(&store), [""; 0]);
    store.restart();
    place.ok(&in_one(&["--remove-raw"]));
    assert!(comes_back_from_one(&place, &files));
    assert!(!raw_is_there(&place, &files));
    assert_eq!(place.drafts(), 0);
}

/// What a query says under a name, if it does.
fn said_in(target: &str, name: &str) -> Option<String> {
    let (_, query) = target.split_once('?')?;
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(known, _)| *known == name).map(|(_, value)| value.to_owned()).next()
}

#[test]
fn an_upload_that_was_cut_off_is_ended_at_the_next_start() {
    let store = Arc::new(ObjectStore::start());
    let is_cut_off = Arc::new(AtomicBool::new(false));
    let hangs_up = Arc::clone(&is_cut_off);
    // From the second part on nothing passes, not even the request to forget the upload.
    let gate = Gate::open(&store, move |asked| {
        let is_second = asked.target.contains("partNumber=2");
        let is_over = hangs_up.fetch_or(is_second, Ordering::Relaxed) || is_second;
        if is_over { Deed::HangUp } else { Deed::Pass }
    });
    let mut place = AtStore::new(gate.endpoint());
    place.attempts = 2;
    let files = large_set();
    write(&place, &files);
    place.fails(&in_one(&[]), 5, "can't upload");
    let upload = gate.asked().iter().find_map(|asked| said_in(&asked.target, "uploadId")).unwrap();

    // This store lists no uploads, so that the gate does. Of another prefix they are somebody else's.
    let (listed, asks) = (upload.clone(), Arc::new(AtomicU64::new(0)));
    let next = Gate::open(&store, move |asked| match asked.target.contains("uploads=&prefix=") {
        // Asked again, it answers.
        true if asks.fetch_add(1, Ordering::Relaxed) == 0 => Deed::Refuse(503, "SlowDown"),
        true => Deed::Answer(format!(
            "<ListMultipartUploadsResult><Upload><Key>run 7/step-10.1of1.pack</Key><UploadId>{listed}</UploadId></Upload>\
             <Upload><Key>run 8/step-10.1of1.pack</Key><UploadId>another</UploadId></Upload></ListMultipartUploadsResult>"
        )),
        false => Deed::Pass,
    });
    let place = AtStore::new(next.endpoint());
    write(&place, &files);
    place.ok(&in_one(&[]));
    let ended: Vec<_> = next.asked().into_iter().filter(|asked| asked.method == "DELETE").collect();
    assert_eq!(ended.len(), 1, "{ended:?}");
    assert_eq!(said_in(&ended[0].target, "uploadId"), Some(upload));
    assert!(comes_back_from_one(&place, &files));
}

#[test]
fn a_listing_that_is_none_or_only_a_part_is_not_taken_for_an_empty_one() {
    let store = Arc::new(ObjectStore::start());
    let near = AtStore::new(store.endpoint());
    let files = set(10);
    write(&near, &files);
    near.ok(&in_one(&[]));
    let cut_off = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>";
    for answer in ["<html></html>", "", cut_off] {
        let gate = Gate::open(&store, move |asked| match asked.target.contains("list-type") {
            true => Deed::Answer(answer.to_owned()),
            false => Deed::Pass,
        });
        let place = AtStore::new(gate.endpoint());
        write(&place, &files);
        place.fails(&in_one(&["--remove-raw"]), 1, "something else than a listing");
        assert!(raw_is_there(&place, &files));
    }
}

#[test]
fn killed_before_any_request_it_leaves_the_raw_set_or_the_aggregate() {
    let store = Arc::new(ObjectStore::start());
    let (kill_at, pid) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU32::new(0)));
    let (at, whom) = (Arc::clone(&kill_at), Arc::clone(&pid));
    let gate = Gate::open(&store, move |asked| {
        if asked.number < at.load(Ordering::Relaxed) {
            return Deed::Pass;
        }
        let pid = whom.load(Ordering::Relaxed).to_string();
        // It may be dead already, when another of its requests was the one.
        let _ = Command::new("kill").args(["-KILL", &pid]).stderr(Stdio::null()).status().unwrap();
        Deed::HangUp
    });
    let files = set(10);
    let arguments = [&once()[..], &["--remove-raw"]].concat();
    for kill in 0.. {
        let place = AtStore::new(gate.endpoint());
        write(&place, &files);
        let mut command = place.command(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        gate.reset();
        kill_at.store(u64::MAX, Ordering::Relaxed);
        let mut running = {
            // No request passes before it is known whom to kill.
            let all = gate.hold();
            let running = command.spawn().unwrap();
            pid.store(running.id(), Ordering::Relaxed);
            kill_at.store(kill, Ordering::Relaxed);
            drop(all);
            running
        };
        let ended = running.wait().unwrap();
        kill_at.store(u64::MAX, Ordering::Relaxed);
        let (raw, aggregate) = (raw_is_there(&place, &files), place.comes_back(10, &files));
        assert!(raw || aggregate, "killed at request {kill}");
        // Started again, it goes on to the end and leaves nothing half done.
        place.ok(&arguments);
        assert!(place.comes_back(10, &files), "killed at request {kill}");
        assert_eq!(
            fs::read_dir(place.path("run")).unwrap().count(),
            0,
            "raw files are left, killed at {kill}"
        );
        assert_eq!(objects(&store).len(), 2, "killed at request {kill}");
        assert_eq!(place.drafts(), 0, "killed at request {kill}");
        if ended.success() {
            assert!(kill >= 10, "it was killed at only {kill} requests");
            return;
        }
        fs::remove_dir_all(store.object("run 7")).unwrap();
    }
}

#[test]
fn a_store_that_gives_other_bytes_back_is_found_out_before_raw_files_go() {
    for damage in [|bytes: &mut Vec<u8>| bytes[5000] ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(5000)] {
        let store = Arc::new(ObjectStore::start());
        let (lies, done) = (Arc::clone(&store), OnceLock::new());
        let gate = Gate::open(&store, move |asked| {
            if reads_object(asked) {
                done.get_or_init(|| {
                    let object = lies.object("run 7/step-10.1of1.pack");
                    let mut bytes = fs::read(&object).unwrap();
                    damage(&mut bytes);
                    fs::write(object, bytes).unwrap();
                });
            }
            Deed::Pass
        });
        let place = AtStore::new(gate.endpoint());
        let files = set(10);
        write(&place, &files);
        place.fails(&in_one(&["--remove-raw"]), 7, "other bytes came back than were stored");
        assert!(raw_is_there(&place, &files));
        assert_eq!(objects(&store), [""; 0], "what is damaged has no name");
        place.ok(&in_one(&["--remove-raw"]));
        assert!(comes_back_from_one(&place, &files));
    }
}

#[test]
fn an_object_that_was_damaged_later_is_found_before_raw_files_go() {
    let store = ObjectStore::start();
    let place = AtStore::new(store.endpoint());
    let files = set(10);
    write(&place, &files);
    place.ok(&in_one(&[]));
    let object = store.object("run 7/step-10.1of1.pack");
    let mut bytes = fs::read(&object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&object, bytes).unwrap();
    place.fails(&["unpack", "s3://ckpt/run 7/step-10.1of1.pack", "--check"], 7, "damaged");
    // One raw file is gone: nothing can be packed again, and nothing more goes.
    let raw = place.path(&format!("run/{}", files.first_key_value().unwrap().0));
    fs::rename(&raw, place.path("aside")).unwrap();
    let ended = place.run(&in_one(&["--remove-raw", "--json"]));
    assert_eq!((ended.code, ended.json()["removed"].as_u64()), (3, Some(0)), "{ended:?}");
    assert_eq!(ended.json()["damaged"][0]["timestep"], 10, "{ended:?}");
    assert_eq!(fs::read_dir(place.path("run")).unwrap().count(), 3);
    // All are there: the set is packed again.
    fs::rename(place.path("aside"), &raw).unwrap();
    let ended = place.ok(&in_one(&["--remove-raw"]));
    assert!(ended.stderr.contains("timestep 10 don't hold what the raw files hold"), "{ended:?}");
    assert!(comes_back_from_one(&place, &files));
    assert!(!raw_is_there(&place, &files));
}

#[test]
fn a_busy_store_is_asked_again() {
    let store = Arc::new(ObjectStore::start());
    // Every request fails at first: refused, or cut off.
    let gate = Gate::open(&store, |asked| match asked.number % 4 {
        0 => Deed::Refuse(503, "SlowDown"),
        2 => Deed::HangUp,
        _ => Deed::Pass,
    });
    let mut place = AtStore::new(gate.endpoint());
    // Requests side by side may meet the bad turns more than once.
    place.attempts = 20;
    let files = set(10);
    write(&place, &files);
    place.aggregate(&["--remove-raw"]);
    assert!(place.comes_back(10, &files));
}

#[test]
fn a_store_that_goes_away_while_it_is_read_is_not_taken_for_damage() {
    let store = Arc::new(ObjectStore::start());
    let gate = Gate::open(&store, move |asked| {
        // The first look at the end is answered, and nothing after it.
        let is_first = asked.target.contains("step-10") && asked.number > 0;
        if is_first { Deed::HangUp } else { Deed::Pass }
    });
    let near = AtStore::new(store.endpoint());
    let files = large_set();
    write(&near, &files);
    near.ok(&in_one(&[]));
    let mut place = AtStore::new(gate.endpoint());
    place.attempts = 2;
    for arguments in [
        &["unpack", "s3://ckpt/run 7/step-10.1of1.pack", "-o", "back"][..],
        &["pack", "--list", "s3://ckpt/run 7/step-10.1of1.pack"],
    ] {
        gate.reset();
        let ended = place.run(arguments);
        assert!(ended.code == 5 || (ended.code == 0 && arguments[0] == "pack"), "{ended:?}");
        assert!(gate.asked().len() <= 12, "it gives up soon: {:?}", gate.asked());
    }
}

#[test]
fn a_list_of_a_container_whose_store_went_away_says_so_and_nothing_of_damage() {
    let store = Arc::new(ObjectStore::start());
    // It is opened, and no block is read.
    let gate = Gate::open(&store, |asked| if asked.number < 2 { Deed::Pass } else { Deed::HangUp });
    let near = AtStore::new(store.endpoint());
    write(&near, &large_set());
    near.ok(&in_one(&[]));
    let mut place = AtStore::new(gate.endpoint());
    place.attempts = 2;
    let ended = place.run(&["pack", "--list", "s3://ckpt/run 7/step-10.1of1.pack"]);
    assert_eq!(ended.code, 5, "{ended:?}");
    assert!(ended.stderr.contains("can't read s3://ckpt/run 7/step-10.1of1.pack"), "{ended:?}");
    assert!(ended.stderr.contains("then try again") && !ended.stderr.contains("damaged"), "{ended:?}");
    assert_eq!(ended.text(), "");
}

/// An aggregator that runs until it is told to stop.
fn watching(place: &AtStore, more: &[&str]) -> Running {
    let all = ["aggregate", "run", "-o", "s3://ckpt/run 7", "--ranks", "4", "--settle", "0"];
    let mut command = place.command(&[&all, more].concat());
    let says = fs::File::create(place.path("says")).unwrap();
    Running(command.stdout(Stdio::null()).stderr(says).spawn().unwrap())
}

fn said(place: &AtStore) -> String {
    fs::read_to_string(place.path("says")).unwrap()
}

fn lists(gate: &Gate) -> usize {
    gate.asked().iter().filter(|asked| asked.target.contains("list-type")).count()
}

/// Has the aggregator look so many times more.
fn look_again(place: &AtStore, gate: &Gate, times: usize) {
    let before = lists(gate);
    wait_until("it looks again", || {
        place.file("run/wakes it", b"");
        lists(gate) >= before + times
    });
}

#[test]
fn a_container_in_an_archive_is_told_once_and_the_others_are_looked_after() {
    const ARCHIVED: &str = "step-10.1of2.pack";
    let store = Arc::new(ObjectStore::start());
    let is_archived = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&is_archived);
    let gate = Gate::open(&store, move |asked| {
        let refuses =
            asks.load(Ordering::Relaxed) && asked.method == "GET" && asked.target.contains(ARCHIVED);
        if refuses { Deed::Refuse(403, "InvalidObjectState") } else { Deed::Pass }
    });
    let place = AtStore::new(gate.endpoint());
    write(&place, &set(10));
    place.aggregate(&[]);
    is_archived.store(true, Ordering::Relaxed);
    write(&place, &set(20));
    let ended = place.run(&[&once()[..], &["--remove-raw", "--json"]].concat());
    assert_eq!(ended.code, 3, "{ended:?}");
    let report = ended.json();
    assert_eq!(report["sets"][0]["timestep"], 20, "{report}");
    assert_eq!(report["withheld"][0]["container"], format!("s3://ckpt/run 7/{ARCHIVED}"), "{report}");
    assert_eq!(report["waiting"][0]["timestep"], 10, "{report}");
    assert!(raw_is_there(&place, &set(10)) && !raw_is_there(&place, &set(20)));
    assert_eq!(objects(&store).len(), 4);
    place.fails(&["unpack", &format!("s3://ckpt/run 7/{ARCHIVED}"), "-o", "back"], 5, "InvalidObjectState");

    gate.reset();
    let mut running = watching(&place, &["--containers", "2", "--remove-raw"]);
    wait_until("it is told", || said(&place).contains(ARCHIVED));
    write(&place, &set(30));
    wait_until("the next set is aggregated", || said(&place).contains("timestep 30"));
    look_again(&place, &gate, 3);
    running.terminate();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    assert_eq!(said(&place).matches("InvalidObjectState").count(), 1, "{}", said(&place));
    let asked = gate.asked().iter().filter(|asked| asked.target.contains(ARCHIVED)).count();
    assert_eq!(asked, 1, "to ask again soon costs money");

    is_archived.store(false, Ordering::Relaxed);
    place.aggregate(&["--remove-raw"]);
    assert!(!raw_is_there(&place, &set(10)) && place.comes_back(10, &set(10)));
}

/// The requests that hang, the command, and the code with which it ends.
type Case<'a> = (fn(&Asked) -> bool, &'a [&'a str], i32);

#[test]
fn a_store_that_does_not_answer_keeps_nobody_from_ending() {
    let store = Arc::new(ObjectStore::start());
    let near = AtStore::new(store.endpoint());
    write(&near, &large_set());
    near.ok(&in_one(&[]));
    let is_list = |asked: &Asked| asked.target.contains("list-type");
    let is_upload = |asked: &Asked| asked.method != "GET" && asked.target.contains("step-11");
    let is_download = |asked: &Asked| asked.method == "GET" && asked.target.contains("step-");
    let aggregate =
        ["aggregate", "run", "-o", "s3://ckpt/run 7", "--ranks", "4", "--settle", "0", "--remove-raw"];
    let unpack = ["unpack", "s3://ckpt/run 7/step-10.1of1.pack", "-o", "back"];
    let cases: [Case<'_>; 4] = [
        (is_list, &aggregate, 0),
        (is_upload, &aggregate, 0),
        (is_download, &aggregate, 0),
        (is_download, &unpack, 130),
    ];
    for (number, (stalls, arguments, code)) in cases.into_iter().enumerate() {
        let (is_stalled, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (stalled, over) = (Arc::clone(&is_stalled), Arc::clone(&is_over));
        let gate = Gate::open(&store, move |asked| {
            if !stalls(asked) {
                return Deed::Pass;
            }
            stalled.store(true, Ordering::Relaxed);
            wait_until("the test is over", || over.load(Ordering::Relaxed));
            Deed::HangUp
        });
        let mut place = AtStore::new(gate.endpoint());
        // Without being cut off this would take more than an hour.
        place.attempts = 100;
        let files: Files = set(11);
        write(&place, &files);
        let mut command = place.command(arguments);
        let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        wait_until("the store is asked", || is_stalled.load(Ordering::Relaxed));
        running.terminate();
        wait_until("it ends", || running.0.try_wait().unwrap().is_some());
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(running.0.wait().unwrap().code(), Some(code), "case {number}");
        assert!(raw_is_there(&place, &files), "case {number}");
        assert_eq!(place.drafts(), 0, "case {number}");
        if let Ok(back) = fs::read_dir(place.path("back")) {
            assert_eq!(back.count(), 0, "case {number}");
        }
    }
}

#[test]
fn what_is_kept_as_a_base_is_read_back_before_its_original_goes() {
    let store = Arc::new(ObjectStore::start());
    let (lies, done) = (Arc::clone(&store), OnceLock::new());
    let gate = Gate::open(&store, move |asked| {
        if asked.method == "GET" && asked.target.contains("/base-") {
            done.get_or_init(|| {
                let mut entries = fs::read_dir(lies.object("t")).unwrap().map(|entry| entry.unwrap().path());
                let base = entries.find(|path| path.to_string_lossy().contains("/base-")).unwrap();
                let mut bytes = fs::read(&base).unwrap();
                bytes[5000] ^= 1;
                fs::write(base, bytes).unwrap();
            });
        }
        Deed::Pass
    });
    let place = AtStore::new(gate.endpoint());
    let options = ["--ranks", "2", "--settle", "0", "--once", "--across-time", "4", "--remove-raw"];
    let aggregate = [&["aggregate", "run", "-o", "s3://ckpt/t"], &options[..]].concat();
    let (first, second, again) = (across_time::set(1, 1), across_time::set(2, 2), across_time::set(1, 7));
    for files in [&first, &second] {
        across_time::write(&place, files);
        place.ok(&aggregate);
    }
    let comes_back = |step: u64, files: &Files| {
        place.ok(&["unpack", &format!("s3://ckpt/t/step-{step}.1of1.pack"), "-o", "back"]);
        files.iter().all(|(name, bytes)| fs::read(place.path(&format!("back/{name}"))).unwrap() == *bytes)
    };
    across_time::write(&place, &again);
    place.fails(&aggregate, 7, "other bytes came back than were stored");
    assert!(comes_back(1, &first) && comes_back(2, &second), "the original stays");
    assert!(raw_is_there(&place, &again));
    place.ok(&aggregate);
    assert!(comes_back(1, &again) && comes_back(2, &second));
}

#[test]
fn a_set_that_was_found_damaged_is_not_read_again_at_each_look() {
    let store = Arc::new(ObjectStore::start());
    let gate = Gate::open(&store, |_| Deed::Pass);
    let place = AtStore::new(gate.endpoint());
    let files = large_set();
    write(&place, &files);
    place.ok(&in_one(&[]));
    let object = store.object("run 7/step-10.1of1.pack");
    let mut bytes = fs::read(&object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&object, bytes).unwrap();
    fs::remove_file(place.path("run/wave.N0.T10")).unwrap();
    let mut running = watching(&place, &["--remove-raw"]);
    wait_until("it is found", || said(&place).contains("the containers of timestep 10 don't hold"));
    let reads = || gate.asked().iter().filter(|asked| reads_object(asked)).count();
    let before = reads();
    look_again(&place, &gate, 3);
    assert_eq!(reads(), before);
    running.terminate();
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    assert_eq!(
        said(&place).matches("the containers of timestep 10 don't hold").count(),
        1,
        "{}",
        said(&place)
    );
    assert_eq!(fs::read_dir(place.path("run")).unwrap().count(), 4, "three of the set, and what woke it");
}

#[test]
fn a_scratch_disk_that_is_full_is_named() {
    let store = ObjectStore::start();
    let place = AtStore::new(store.endpoint());
    let files = large_set();
    write(&place, &files);
    fs::create_dir(place.path("small")).unwrap();
    let script = "mount -t tmpfs -o size=4m stdchk small && exec \"$@\"";
    let inner = place.command(&in_one(&["--remove-raw", "--scratch", "small"]));
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]);
    command.arg(inner.get_program()).args(inner.get_args()).current_dir(place.path("")).stdin(Stdio::null());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = outcome(command);
    assert_eq!(ended.code, 6, "{ended:?}");
    assert!(ended.stderr.contains("--scratch") && ended.stderr.contains("small/"), "{ended:?}");
    assert!(raw_is_there(&place, &files));
    assert_eq!(objects(&store), [""; 0]);
}

#[test]
fn two_aggregators_of_a_machine_do_not_share_a_prefix() {
    let store = Arc::new(ObjectStore::start());
    let place = AtStore::new(store.endpoint());
    write(&place, &set(10));
    let mut first =
        place.command(&["aggregate", "run", "-o", "s3://ckpt/run 7", "--ranks", "4", "--settle", "0"]);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    stdchk_tests::wait_until("it works", || !objects(&store).is_empty());
    let second = place.run(&in_one(&[]));
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(second.code, 2, "{second:?}");
    assert!(second.stderr.contains("another aggregator works on s3://ckpt/run 7"), "{second:?}");
}
