//! A manager's store that is an older copy, or damaged: nothing that it doesn't know is lost by it, and it says so (I4, I7).

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stdchk_tests::{Pool, SetAtEnd, Setup, random_bytes, wait_until};

/// Age at which garbage is collected, and by far enough for a sweep after a start.
const GARBAGE_AGE_MS: u64 = 1_000;

fn store(pool: &Pool) -> PathBuf {
    pool.data().join("manager/store.redb")
}

fn log(pool: &Pool) -> PathBuf {
    store(pool).with_extension("log")
}

/// The two files of a store.
struct Copy {
    records: Vec<u8>,
    log: Vec<u8>,
}

/// A copy of the manager's store, made and put back as OPERATIONS says: while the pool is down.
fn copy(pool: &Pool) -> Copy {
    pool.ok(&["down"]);
    let copy = Copy { records: fs::read(store(pool)).unwrap(), log: fs::read(log(pool)).unwrap() };
    pool.ok(&["up"]);
    copy
}

fn replace(pool: &Pool, copy: &Copy) {
    pool.ok(&["down"]);
    fs::write(store(pool), &copy.records).unwrap();
    fs::write(log(pool), &copy.log).unwrap();
    pool.ok(&["up"]);
}

fn is(pool: &Pool, health: &str) -> bool {
    pool.shows(|status| status["health"] == health)
}

fn wait_until_garbage_is_old(pool: &Pool) {
    wait_until("garbage is old", || {
        pool.shows(|status| status["manager"]["uptime_seconds"].as_u64() > Some(GARBAGE_AGE_MS / 1000 + 2))
    });
}

#[test]
fn an_older_copy_of_the_managers_store_costs_nothing_until_somebody_accepts_it() {
    let setup = Setup { mounted: false, ..Setup::of(2) };
    let setup = setup.with("STDCHK_GARBAGE_AGE_MS", GARBAGE_AGE_MS).with("STDCHK_CLIENT_LEASE_MS", 500);
    let pool = setup.up();
    let (old, new) = (random_bytes(2 << 20, 1), random_bytes(2 << 20, 2));
    pool.put(&old, "app/old");
    pool.wait_for_copies();
    let older = copy(&pool);
    pool.put(&new, "app/new");
    pool.wait_for_copies();
    let newer = copy(&pool);

    replace(&pool, &older);
    wait_until("the older copy is noticed", || is(&pool, "set-back"));
    let status = pool.status();
    assert!(status["reasons"][0].as_str().unwrap().contains("accept-older-store"), "{status}");
    assert_eq!(pool.get("app/old"), old);
    wait_until_garbage_is_old(&pool);
    pool.fails(&["gc"], 1, &["accept-older-store"]);
    pool.fails(&["put", &pool.file("later", &old), "app/later"], 1, &["accept-older-store"]);
    pool.fails(&["rm", "app/old"], 1, &["accept-older-store"]);

    replace(&pool, &newer);
    wait_until("the newer store is whole", || is(&pool, "healthy"));
    pool.fails(&["accept-older-store"], 2, &["nothing to accept"]);
    wait_until_garbage_is_old(&pool);
    assert!(pool.ok(&["gc"]).contains("nothing to remove"));
    assert_eq!((pool.get("app/old"), pool.get("app/new")), (old.clone(), new.clone()));

    replace(&pool, &older);
    wait_until("the older copy is noticed again", || is(&pool, "set-back"));
    pool.ok(&["accept-older-store"]);
    assert!(is(&pool, "healthy"));
    pool.fails(&["get", "app/new", "-o", "-"], 4, &["app/new"]);
    wait_until_garbage_is_old(&pool);
    wait_until("what was given up is collected", || {
        pool.ok(&["gc"]);
        pool.holders_of(&new).is_empty()
    });
    pool.put(&new, "app/later");
    pool.ok(&["down"]);
    pool.ok(&["up"]);
    wait_until("it stays accepted", || is(&pool, "healthy"));
    assert_eq!((pool.get("app/old"), pool.get("app/later")), (old, new));
}

#[test]
fn a_benefactor_with_the_history_of_another_pool_or_of_another_benefactor_stops_nobody() {
    let setup = |benefactors| Setup { mounted: false, ..Setup::of(benefactors) };
    let (pool, other) = (setup(2).up(), setup(1).up());
    for pool in [&pool, &other] {
        pool.put(&random_bytes(2 << 20, 1), "app/old");
    }
    let history =
        |pool: &Pool, benefactor: &str| pool.data().join("benefactors").join(benefactor).join("history");
    let own_of_other = fs::read(history(&other, "0")).unwrap();
    other.ok(&["down"]);
    pool.ok(&["down"]);
    let own_of_first = fs::read(history(&pool, "0")).unwrap();
    for (whose, lie) in [("another pool", own_of_other), ("another benefactor", own_of_first)] {
        fs::write(history(&pool, "1"), lie).unwrap();
        pool.ok(&["up"]);
        wait_until("both benefactors are there", || pool.benefactors_in("online").len() == 2);
        assert!(!is(&pool, "set-back"), "by the history of {whose}");
        let (name, content) = (format!("app/beside {whose}"), random_bytes(2 << 20, 2));
        pool.put(&content, &name);
        pool.wait_for_copies();
        assert_eq!(pool.get(&name), content);
        pool.ok(&["down"]);
    }
}

#[test]
fn a_damaged_store_of_the_manager_is_refused_in_one_line_with_the_way_out() {
    let pool = Pool::up(1, &[]);
    pool.put(b"content", "app/x");
    pool.ok(&["down"]);
    let whole = fs::read(store(&pool)).unwrap();
    let shown = store(&pool).display().to_string();
    // The file's name, wherever it stands: it was believed under another one.
    let at = whole.windows(7).position(|window| window == b"\x00\x00\x00\x01app").unwrap() + 4;
    let flip =
        || fs::OpenOptions::new().write(true).open(store(&pool)).unwrap().write_all_at(b"b", at as u64);
    let wound: [(&str, &dyn Fn()); 3] = [
        ("a flipped byte", &|| flip().unwrap()),
        ("an empty file", &|| fs::write(store(&pool), b"").unwrap()),
        ("no file", &|| fs::remove_file(store(&pool)).unwrap()),
    ];
    for (what, wound) in wound {
        wound();
        let outcome = pool.fails(&["up"], 7, &[&shown, "is damaged", "backup", "docs/OPERATIONS.md"]);
        assert!(!outcome.stderr.contains("panicked"), "{what}: {}", outcome.stderr);
        pool.ok(&["down"]);
        fs::write(store(&pool), &whole).unwrap();
    }
    let other = Pool::up(1, &[]);
    other.ok(&["down"]);
    let own_log = fs::read(log(&pool)).unwrap();
    fs::copy(store(&other), store(&pool)).unwrap();
    pool.fails(
        &["up"],
        7,
        &[&log(&pool).display().to_string(), "is damaged", "of different pools", "backup"],
    );
    pool.ok(&["down"]);
    fs::copy(log(&other), log(&pool)).unwrap();
    pool.fails(&["up"], 7, &[&shown, "is that of pool"]);
    pool.ok(&["down"]);
    fs::write(store(&pool), &whole).unwrap();
    fs::write(log(&pool), &own_log).unwrap();
    pool.ok(&["up"]);
    assert_eq!(pool.get("app/x"), b"content");
}

/// Writes small files until it is told to stop; how many there are is counted once they are closed.
fn write_files(pool: &Pool, closed: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let number = closed.load(Ordering::Relaxed);
        fs::write(pool.at(&format!("app/{number}")), content(number)).unwrap();
        closed.fetch_add(1, Ordering::Relaxed);
    }
}

fn content(number: u64) -> Vec<u8> {
    random_bytes(100 + number as usize % 5000, number)
}

#[test]
fn a_backup_of_a_manager_at_work_brings_back_what_was_committed_before_it_and_costs_nothing_newer() {
    let pool = Setup::of(2).up();
    let large = random_bytes(3 << 20, 1);
    pool.put(&large, "app/large");
    pool.ok(&["policy", "set", "app", "semantics=pessimistic"]);
    let (closed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let backup = pool.path("backup");
    let before = std::thread::scope(|scope| {
        let _end = SetAtEnd(&stop);
        scope.spawn(|| write_files(&pool, &closed, &stop));
        wait_until("files are written", || closed.load(Ordering::Relaxed) > 100);
        let before = closed.load(Ordering::Relaxed);
        let said = pool.ok(&["manager", "backup", backup.to_str().unwrap()]);
        assert!(said.contains("read back and intact"), "{said}");
        let after = closed.load(Ordering::Relaxed);
        wait_until("more are written", || closed.load(Ordering::Relaxed) > after + 50);
        before
    });
    pool.fails(&["manager", "backup", backup.to_str().unwrap()], 2, &["there already"]);
    // Benefactors write down every two seconds what the manager has committed.
    pool.put(b"newer", "app/newer");
    pool.ok(&["down"]);
    let (manager, lost) = (pool.data().join("manager"), pool.path("lost"));
    fs::rename(&manager, &lost).unwrap();
    fs::rename(&backup, &manager).unwrap();
    pool.ok(&["up"]);
    assert_eq!(pool.get("app/large"), large);
    assert!(pool.ok(&["policy", "get", "app"]).contains("pessimistic"));
    for number in 0..before {
        assert_eq!(fs::read(pool.at(&format!("app/{number}"))).unwrap(), content(number), "{number}");
    }
    // The store that was lost is found again.
    pool.ok(&["down"]);
    fs::remove_dir_all(&manager).unwrap();
    fs::rename(&lost, &manager).unwrap();
    pool.ok(&["up"]);
    assert_eq!(pool.get("app/newer"), b"newer");
    let last = closed.load(Ordering::Relaxed) - 1;
    assert_eq!(fs::read(pool.at(&format!("app/{last}"))).unwrap(), content(last));
}
