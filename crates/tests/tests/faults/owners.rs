//! The owners of donated disks: what they decide is done, and costs nothing that is stored.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use stdchk_tests::{Disk, Pool, SetAtEnd, Setup, random_bytes, wait_until};

const MIB: usize = 1 << 20;

/// A benefactor's line in `status`.
fn entry(pool: &Pool, index: u64) -> serde_json::Value {
    let status = pool.json(&["status", "--json"]);
    let entries = status["benefactors"].as_array().unwrap();
    entries.iter().find(|entry| entry["id"] == index).unwrap().clone()
}

fn wait_until_paused(pool: &Pool, index: u64, paused: bool) {
    let wish = if paused { "pause" } else { "serve" };
    wait_until("the owner's wish is known to the manager", || entry(pool, index)["wish"] == wish);
}

#[test]
fn a_paused_benefactor_takes_nothing_serves_what_it_has_and_stays_paused_through_a_kill() {
    let pool = Setup::of(3).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1", "stripe=3"]);
    let (before, meanwhile) = (random_bytes(12 * MIB, 50), random_bytes(12 * MIB, 51));
    pool.put(&before, "app/before");
    let status = pool.json(&["status", "--json"]);
    let first = status["benefactors"][0]["id"].as_u64().unwrap();
    let pid = status["benefactors"][0]["pid"].as_u64().unwrap();
    let index = (0..3)
        .find(|index| u64::from(pool.process(&format!("benefactor-{index}")).pid) == pid)
        .expect("one of them has this process");
    let folder = pool.data().join(format!("benefactors/{index}"));
    let folder = folder.to_str().unwrap();
    pool.ok(&["benefactor", "pause", folder]);
    wait_until_paused(&pool, first, true);
    let held = entry(&pool, first)["blocks"].clone();
    assert!(held.as_u64().unwrap() > 0, "it has some of the first file");
    assert_eq!(entry(&pool, first)["free_bytes"], 0);
    assert_eq!(pool.json(&["status", "--json"])["health"], "healthy");
    pool.put(&meanwhile, "app/meanwhile");
    assert!(pool.get("app/before") == before && pool.get("app/meanwhile") == meanwhile);
    assert_eq!(entry(&pool, first)["blocks"], held, "what was written went elsewhere");

    pool.kill(&format!("benefactor-{index}"));
    pool.ok(&["up"]);
    wait_until("it is back, paused", || {
        let entry = entry(&pool, first);
        entry["state"] == "online" && entry["wish"] == "pause" && entry["pid"] != pid
    });
    pool.put(&random_bytes(12 * MIB, 52), "app/after");
    assert_eq!(entry(&pool, first)["blocks"], held);
    assert!(pool.get("app/before") == before);

    pool.ok(&["benefactor", "resume", folder]);
    wait_until_paused(&pool, first, false);
    pool.put(&random_bytes(12 * MIB, 53), "app/again");
    wait_until("it takes blocks again", || entry(&pool, first)["blocks"].as_u64() > held.as_u64());
}

#[test]
fn a_writer_goes_on_elsewhere_when_an_owner_pauses_and_nothing_is_written_where_all_have() {
    let pool = Setup::of(2).up();
    pool.ok(&["put", &pool.file("seed", b"seed"), "app/seed"]);
    pool.policy("app", &["redundancy=replicate:1"]);
    let content = random_bytes(40 * MIB, 54);
    let mut writer = crate::program::Writer::start(&pool.at("app/x"), &[]);
    writer.feed(&content[..10 * MIB]);
    pool.ok(&["benefactor", "pause", pool.data().join("benefactors/0").to_str().unwrap()]);
    wait_until("one has taken note", || (0..2).any(|index| entry(&pool, index)["wish"] == "pause"));
    writer.feed(&content[10 * MIB..]);
    let written = writer.finish();
    assert!(written.accepted, "{written:?}");
    assert!(pool.get("app/x") == content);

    pool.ok(&["benefactor", "pause"]);
    wait_until_paused(&pool, 0, true);
    wait_until_paused(&pool, 1, true);
    let status = pool.json(&["status", "--json"]);
    assert_eq!(status["health"], "full");
    assert!(status["reasons"][0].as_str().unwrap().contains("benefactor resume"), "{status}");
    let new = pool.file("y", &random_bytes(MIB, 55));
    pool.fails(&["put", &new, "app/y"], 6, &["app/y", "benefactor resume"]);
    assert!(pool.get("app/x") == content);
    pool.ok(&["benefactor", "resume"]);
    wait_until_paused(&pool, 0, false);
    pool.ok(&["put", &new, "app/y"]);
    pool.fails(&["benefactor", "pause", pool.work().to_str().unwrap()], 4, &["no benefactor of a pool"]);
}

// --- drain

/// A mounted pool whose folder `app` is kept in this way, in which what is written counts as settled after two seconds.
fn pool_of(benefactors: u16, redundancy: &str) -> Pool {
    kept(Setup::of(benefactors), redundancy)
}

fn kept(setup: Setup, redundancy: &str) -> Pool {
    let pool = setup.with("STDCHK_GARBAGE_AGE_MS", 2000).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &[&format!("redundancy={redundancy}"), "stripe=8"]);
    pool
}

/// The folder of a benefactor of a local pool.
fn folder(pool: &Pool, index: u16) -> PathBuf {
    pool.data().join(format!("benefactors/{index}"))
}

/// What the owner of a benefactor asks for.
fn owner(pool: &Pool, words: &[&str], index: u16) -> Value {
    let folder = folder(pool, index);
    pool.json(&[&["benefactor"], words, &[folder.to_str().unwrap(), "--json"]].concat())
}

fn resume(pool: &Pool, index: u16) {
    pool.ok(&["benefactor", "resume", folder(pool, index).to_str().unwrap()]);
}

/// The number that the pool has given to a local benefactor.
fn number(pool: &Pool, index: u16) -> u64 {
    let status = pool.status();
    let pid = pool.process(&format!("benefactor-{index}")).pid;
    let entries = status["benefactors"].as_array().unwrap();
    entries.iter().find(|entry| entry["pid"] == pid).unwrap()["id"].as_u64().unwrap()
}

/// Stores files, waits for their copies, and says what they hold.
fn fill(pool: &Pool, files: u64, bytes: usize) -> Vec<Vec<u8>> {
    let contents: Vec<Vec<u8>> = (0..files).map(|seed| random_bytes(bytes, 700 + seed)).collect();
    for (at, content) in contents.iter().enumerate() {
        pool.put(content, &format!("app/f{at}"));
    }
    pool.wait_for_copies();
    // With the next heartbeat everybody has said how much it has.
    std::thread::sleep(Duration::from_secs(1));
    contents
}

/// Everything reads as it was written, and has all its copies.
fn check(pool: &Pool, contents: &[Vec<u8>]) {
    for (at, content) in contents.iter().enumerate() {
        assert!(pool.get(&format!("app/f{at}")) == *content, "f{at} is another");
    }
    let verified = pool.json(&["verify", "--json"]);
    assert!(verified["bad"] == serde_json::json!([]) && verified["at_risk_chunks"] == 0, "{verified}");
}

#[test]
fn a_benefactor_is_drained_while_writers_write_and_takes_blocks_again_when_it_is_resumed() {
    let pool = pool_of(4, "replicate:2");
    let mut contents = fill(&pool, 4, 6 * MIB);
    let first = number(&pool, 0);
    assert!(entry(&pool, first)["blocks"].as_u64().unwrap() > 0);
    let (is_over, worst) = (AtomicBool::new(false), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let end = SetAtEnd(&is_over);
        let writer = scope.spawn(|| {
            let mut written = Vec::new();
            while !is_over.load(Ordering::Relaxed) || written.is_empty() {
                let content = random_bytes(3 * MIB + 17, 800 + written.len() as u64);
                fs::write(pool.at(&format!("app/f{}", 4 + written.len())), &content).unwrap();
                written.push(content);
                // So slowly that there is room for as long as a drain takes.
                std::thread::sleep(Duration::from_millis(500));
            }
            written
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let status = pool.status();
                if status["health"] != "healthy" || status["chunks_lost"] != 0 {
                    worst.lock().unwrap().push(status);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let report = owner(&pool, &["drain", "--wait"], 0);
        assert!(report["done"] == true && report["blocks"] == 0, "{report}");
        drop(end);
        contents.extend(writer.join().unwrap());
    });
    let worst = worst.into_inner().unwrap();
    assert!(worst.is_empty(), "{}", worst[0]);
    pool.wait_for_copies();
    let entry_now = entry(&pool, first);
    assert!(entry_now["state"] == "online" && entry_now["wish"] == "drain" && entry_now["blocks"] == 0);
    assert!(contents.iter().all(|content| !pool.holders_of(content).contains(&0)), "a block is still there");
    check(&pool, &contents);
    // Again is no mistake, and what is drained stays so.
    assert_eq!(owner(&pool, &["drain", "--wait"], 0)["done"], true);

    resume(&pool, 0);
    wait_until_paused(&pool, first, false);
    fs::write(pool.at("app/again"), random_bytes(8 * MIB, 900)).unwrap();
    wait_until("it takes blocks again", || entry(&pool, first)["blocks"].as_u64() > Some(0));
    check(&pool, &contents);
}

#[test]
fn a_draining_benefactor_and_the_manager_may_be_killed_at_any_moment() {
    let setup =
        Setup::of(4).with("STDCHK_BENEFACTOR_LEASE_MS", 1500).with("STDCHK_BENEFACTOR_LOST_MS", 60_000);
    let pool = kept(setup, "replicate:2");
    let contents = fill(&pool, 6, 8 * MIB);
    let wish = ["benefactor", "drain", folder(&pool, 0).to_str().unwrap()].map(str::to_owned);
    for round in 0..6u64 {
        let wish: Vec<&str> = wish.iter().map(String::as_str).collect();
        assert_eq!(pool.run(&wish).code, 0);
        std::thread::sleep(Duration::from_millis(150 + 350 * round));
        match round % 3 {
            0 => pool.kill("benefactor-0"),
            1 => pool.kill("manager"),
            _ => ["benefactor-0", "manager"].iter().for_each(|role| pool.kill(role)),
        }
        pool.ok(&["up"]);
        check_readable(&pool, &contents);
        if round == 2 {
            resume(&pool, 0);
            pool.wait_for_copies();
        }
    }
    let report = owner(&pool, &["drain", "--wait"], 0);
    assert!(report["done"] == true, "{report}");
    pool.wait_for_copies();
    assert!(contents.iter().all(|content| !pool.holders_of(content).contains(&0)), "a block is still there");
    check(&pool, &contents);
}

fn check_readable(pool: &Pool, contents: &[Vec<u8>]) {
    for (at, content) in contents.iter().enumerate() {
        assert!(pool.get(&format!("app/f{at}")) == *content, "f{at} is another");
    }
}

#[test]
fn what_too_few_others_could_take_stays_and_the_reason_is_told() {
    // With codes, copies at fewer benefactors stand in for fragments.
    for (benefactors, redundancy) in [(2, "replicate:2"), (3, "replicate:3")] {
        let pool = pool_of(benefactors, redundancy);
        let contents = fill(&pool, 2, 4 * MIB);
        let (first, stored) = (number(&pool, 0), pool.status()["savings"]["stored_bytes"].clone());
        let held = entry(&pool, first)["blocks"].clone();
        let folder = folder(&pool, 0);
        let others = format!("{} others take blocks", benefactors - 1);
        let told = ["can't be copied elsewhere", "redundancy", "benefactor resume", others.as_str()];
        pool.fails(&["benefactor", "drain", folder.to_str().unwrap(), "--wait"], 6, &told);
        let status = pool.status();
        assert_eq!(status["health"], "degraded");
        assert!(status["reasons"].to_string().contains("can't be copied elsewhere"), "{status}");
        assert_eq!((&entry(&pool, first)["blocks"], &status["savings"]["stored_bytes"]), (&held, &stored));
        check(&pool, &contents);
        resume(&pool, 0);
        wait_until("nothing is amiss", || pool.shows(|status| status["health"] == "healthy"));
        assert_eq!(entry(&pool, first)["blocks"], held);
    }
}

#[test]
fn a_full_pool_lets_go_of_what_the_others_have_room_for_and_of_nothing_else() {
    let setup = Setup { donate: "24MiB".to_owned(), ..Setup::of(3) };
    let pool = kept(setup, "replicate:1");
    let contents = fill(&pool, 11, 5 * MIB);
    let first = number(&pool, 0);
    let held = entry(&pool, first)["blocks"].as_u64().unwrap();
    let folder = folder(&pool, 0);
    let drain = ["benefactor", "drain", folder.to_str().unwrap(), "--wait"];
    pool.fails(&drain, 6, &["can't be copied elsewhere", "free"]);
    let left = entry(&pool, first)["blocks"].as_u64().unwrap();
    assert!(left > 0 && left < held, "{left} of {held} blocks are left");
    check(&pool, &contents);
    // With room elsewhere it goes on by itself.
    pool.ok(&["up", "--benefactors", "4"]);
    pool.ok(&drain);
    check(&pool, &contents);
}

// --- space for the owner's own files

#[test]
fn when_the_owners_files_take_what_is_to_stay_free_blocks_move_to_others_within_a_minute() {
    const FLOOR: u64 = 24 << 20;
    let pool = pool_of(1, "replicate:1");
    let disk = Disk::start(&pool, "disk", 96, "24MiB");
    let contents = fill(&pool, 8, 6 * MIB);
    let entry = |pool: &Pool| disk.shown(&pool.status()).unwrap().clone();
    let before = entry(&pool)["used_bytes"].as_u64().unwrap();
    assert!(before > 10 << 20, "{before} bytes are there");
    let begin = std::time::Instant::now();
    disk.take(disk.free() - FLOOR + (8 << 20));
    assert!(disk.free() < FLOOR);
    wait_until("the manager knows", || entry(&pool)["owed_bytes"].as_u64() > Some(0));
    assert_eq!(entry(&pool)["free_bytes"], 0);
    wait_until("the owner has what is to stay free", || disk.free() >= FLOOR);
    assert!(begin.elapsed() < Duration::from_secs(60), "that took {:?}", begin.elapsed());
    check(&pool, &contents);
    wait_until("nothing is owed", || entry(&pool)["owed_bytes"] == 0);
    let after = entry(&pool);
    let used = after["used_bytes"].as_u64().unwrap();
    assert!(
        used > 0 && used < before && used > before - (14 << 20),
        "{used} of {before} bytes stay: not all went"
    );
    // It rests, however its free space goes up and down, and takes blocks again when there is plenty.
    assert_eq!(after["free_bytes"], 0);
    pool.put(&random_bytes(4 * MIB, 720), "app/rests");
    assert!(entry(&pool)["used_bytes"].as_u64().unwrap() <= used);
    disk.clear();
    wait_until("it has room again", || entry(&pool)["free_bytes"].as_u64() > Some(0));
    pool.put(&random_bytes(8 * MIB, 721), "app/again");
    wait_until("it takes blocks again", || entry(&pool)["used_bytes"].as_u64() > Some(used));
    check(&pool, &contents);
}

#[test]
fn a_slow_benefactor_that_others_read_from_gives_space_back_within_a_minute() {
    const FLOOR: u64 = 24 << 20;
    // The slowest rate there is.
    let pool = pool_of(1, "replicate:1");
    let disk = Disk::start_with(&pool, "disk", (128, "24MiB"), &["--io-limit", "4MiB"]);
    let contents = fill(&pool, 16, 6 * MIB);
    let entry = |pool: &Pool| disk.shown(&pool.status()).unwrap().clone();
    let before = entry(&pool)["used_bytes"].as_u64().unwrap();
    assert!(before > 20 << 20, "{before} bytes are there");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = SetAtEnd(&is_over);
        for reader in 0..3 {
            let (pool, is_over, contents) = (&pool, &is_over, &contents);
            scope.spawn(move || {
                for at in (reader..contents.len()).cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    assert!(pool.get(&format!("app/f{at}")) == contents[at], "f{at} is another");
                }
            });
        }
        let begin = std::time::Instant::now();
        disk.take(disk.free() - FLOOR + (8 << 20));
        wait_until("the owner has what is to stay free", || disk.free() >= FLOOR);
        println!("given back after {:.1?}", begin.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(60), "that took {:?}", begin.elapsed());
    });
    check(&pool, &contents);
}

// --- damage

#[test]
fn a_benefactor_of_which_blocks_are_damaged_again_and_again_is_drained_until_its_owner_takes_it_back() {
    let pool = pool_of(4, "replicate:2");
    let contents = fill(&pool, 12, MIB);
    let at_first: Vec<usize> = (0..12).filter(|at| pool.holders_of(&contents[*at]).contains(&0)).collect();
    assert!(at_first.len() >= 4, "{at_first:?} are there");
    let (first, folder) = (number(&pool, 0), folder(&pool, 0));
    let damage = |at: usize| assert_eq!(pool.damage_below(&folder, &contents[at]), 1);
    let verify = || pool.run(&["verify"]);
    at_first[..2].iter().for_each(|at| damage(*at));
    verify();
    wait_until("two are found", || pool.shows(|status| status["damaged_found"] == 2));
    assert_eq!(entry(&pool, first)["wish"], "serve", "that may happen");
    // They count on after a kill.
    wait_until("they are noted", || {
        fs::read_to_string(folder.join("damages")).is_ok_and(|noted| noted.lines().count() == 2)
    });
    pool.kill("benefactor-0");
    pool.ok(&["up"]);
    pool.wait_for_state("online", 4);
    damage(at_first[2]);
    verify();
    wait_until("three are too many", || entry(&pool, first)["wish"] == "damaged");
    let status = pool.status();
    assert_eq!(status["health"], "degraded");
    let reasons = status["reasons"].to_string();
    assert!(reasons.contains(&format!("b{first} ")) && reasons.contains("benefactor resume"), "{reasons}");
    // Also through a kill.
    pool.kill("benefactor-0");
    pool.ok(&["up"]);
    wait_until("nothing is left there", || {
        let entry = entry(&pool, first);
        entry["wish"] == "damaged" && entry["state"] == "online" && entry["blocks"] == 0
    });
    pool.wait_for_copies();
    check(&pool, &contents);

    resume(&pool, 0);
    wait_until_paused(&pool, first, false);
    wait_until("nothing is amiss", || pool.shows(|status| status["health"] == "healthy"));
    pool.put(&random_bytes(8 * MIB, 740), "app/again");
    wait_until("it takes blocks again", || entry(&pool, first)["blocks"].as_u64() > Some(0));
}

// --- terms

/// A local benefactor's process.
fn process_of(pool: &Pool, index: u16) -> u32 {
    pool.process(&format!("benefactor-{index}")).pid
}

#[test]
fn a_benefactor_reads_and_writes_no_faster_than_its_owner_lets_it_and_nobody_takes_it_for_dead() {
    const RATE: f64 = (8 * MIB) as f64;
    let pool = Pool::up(1, &["--io-limit", "8MiB"]);
    pool.ok(&["put", &pool.file("seed", b"seed"), "app/seed"]);
    pool.policy("app", &["redundancy=replicate:1"]);
    let content = random_bytes(16 * MIB, 730);
    let is_over = AtomicBool::new(false);
    let timed = |work: &(dyn Fn() + Sync), bytes: usize, threads: usize| {
        let begin = std::time::Instant::now();
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let (taken, least) = (begin.elapsed().as_secs_f64(), (bytes * threads) as f64 / RATE);
        assert!(taken > 0.8 * least - 0.2, "{taken} s, {least} at the rate");
        assert!(taken < 4.0 * least + 10.0, "{taken} s, {least} at the rate: others wait for the turn");
    };
    std::thread::scope(|scope| {
        let _end = SetAtEnd(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(entry(&pool, 0)["state"], "online");
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        timed(&|| pool.put(&content, "app/x"), content.len(), 1);
        // More than it may do within the time for which clients wait for an answer.
        timed(&|| assert!(pool.get("app/x") == content), content.len(), 5);
    });
    let verified = pool.json(&["verify", "--json"]);
    assert!(verified["bad"] == serde_json::json!([]), "{verified}");
    // The terms stay until others are given.
    let command_line = || fs::read_to_string(format!("/proc/{}/cmdline", process_of(&pool, 0))).unwrap();
    pool.ok(&["down"]);
    pool.ok(&["up"]);
    assert!(command_line().contains("--io-limit\08388608\0"), "{}", command_line());
    pool.fails(&["up", "--io-limit", "16MiB"], 2, &["the terms", "stdchk down"]);
    pool.ok(&["down"]);
    pool.fails(&["up", "--net-limit", "1MiB"], 2, &["--net-limit 1MiB", "at least 4MiB"]);
    pool.ok(&["up", "--io-limit", "0"]);
    assert!(!command_line().contains("--io-limit"), "{}", command_line());
}

#[test]
fn outside_of_its_hours_a_benefactor_is_paused_and_what_its_owner_wishes_holds_at_any_hour() {
    let today = std::process::Command::new("date").arg("+%u").output().unwrap().stdout;
    let today: usize = String::from_utf8(today).unwrap().trim().parse().unwrap();
    // Days away from now.
    let day = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"][(today + 2) % 7];
    let hours = format!("{day} 11:00-12:00");
    let pool = Pool::up(2, &["--hours", &hours, "--priority", "idle"]);
    wait_until_paused(&pool, 0, true);
    wait_until_paused(&pool, 1, true);
    let new = pool.file("y", &random_bytes(MIB, 731));
    pool.fails(&["put", &new, "app/y"], 6, &["app/y"]);
    let reasons = pool.status()["reasons"].to_string();
    assert!(reasons.contains("--hours"), "{reasons}");
    let stat = fs::read_to_string(format!("/proc/{}/stat", process_of(&pool, 0))).unwrap();
    let nice = stat.rsplit_once(") ").unwrap().1.split_whitespace().nth(16).unwrap().to_owned();
    assert!(nice.parse::<i32>().unwrap() >= 10, "{nice}");
    // What the owner wishes beats the hours; that the benefactor is to serve, it does in its hours.
    let first = number(&pool, 0);
    let report = owner(&pool, &["drain", "--wait"], 0);
    assert!(report["done"] == true, "{report}");
    assert_eq!(entry(&pool, first)["wish"], "drain");
    resume(&pool, 0);
    wait_until_paused(&pool, first, true);

    pool.ok(&["down"]);
    pool.fails(&["up", "--hours", "mon-fry 20:00-07:00"], 2, &["mon-fry 20:00-07:00", "--hours always"]);
    pool.ok(&["up", "--hours", "always", "--priority", "normal"]);
    wait_until_paused(&pool, 0, false);
    wait_until_paused(&pool, 1, false);
    pool.ok(&["put", &new, "app/y"]);
}

// --- leave

#[test]
fn a_benefactor_leaves_with_what_it_alone_had_copied_elsewhere_and_joins_again_when_it_is_resumed() {
    let pool = pool_of(3, "replicate:1");
    let contents = fill(&pool, 3, 6 * MIB);
    let first = number(&pool, 0);
    assert!(entry(&pool, first)["blocks"].as_u64().unwrap() > 0);
    let process = pool.process("benefactor-0");
    let report = owner(&pool, &["leave", "--wait"], 0);
    assert!(report["done"] == true, "{report}");
    wait_until("its process has ended", || !process.is_alive());
    let status = pool.status();
    assert_eq!((status["benefactors"].as_array().unwrap().len(), &status["health"]), (2, &"healthy".into()));
    assert!(contents.iter().all(|content| !pool.holders_of(content).contains(&0)), "a block is still there");
    check(&pool, &contents);

    // Twice is no mistake; nothing starts it again but its owner.
    assert_eq!(owner(&pool, &["leave", "--wait"], 0)["done"], true);
    let folder = folder(&pool, 0);
    let folder = folder.to_str().unwrap();
    pool.fails(&["benefactor", "drain", folder], 2, &["has left", "resume"]);
    let said = pool.ok(&["up"]);
    assert!(said.contains("left the pool"), "{said}");
    assert!(!pool.process("benefactor-0").is_alive());
    let run = ["benefactor", "run", folder, "--donate", "64MiB", "--floor", "1MiB"];
    pool.fails(&run, 1, &["has left its pool", "resume"]);

    pool.ok(&["benefactor", "resume", folder]);
    pool.ok(&["up"]);
    wait_until("it is back under its number", || {
        pool.shows(|status| status["benefactors"].as_array().unwrap().len() == 3)
    });
    assert_eq!((number(&pool, 0), &entry(&pool, first)["wish"]), (first, &"serve".into()));
    check(&pool, &contents);
}

#[test]
fn a_benefactor_with_fragments_leaves_although_it_is_killed_and_its_owner_hesitates() {
    let pool = pool_of(6, "erasure:3,2");
    let contents = fill(&pool, 3, 6 * MIB);
    let folder_of_it = folder(&pool, 0);
    let words = ["benefactor", "leave", folder_of_it.to_str().unwrap()];
    pool.ok(&words);
    pool.kill("benefactor-0");
    // It waits for its process.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(pool.status()["benefactors"].as_array().unwrap().len(), 6);
    pool.ok(&["up"]);
    resume(&pool, 0);
    pool.wait_for_copies();
    check(&pool, &contents);
    let report = owner(&pool, &["leave", "--wait"], 0);
    assert!(report["done"] == true, "{report}");
    assert_eq!(pool.status()["benefactors"].as_array().unwrap().len(), 5);
    pool.wait_for_copies();
    check(&pool, &contents);
}
