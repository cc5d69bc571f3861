//! An owner who works on the disk of a benefactor: the benefactor notices, takes nothing new, and serves what it has.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use serde_json::Value;
use stdchk_tests::{Disk, Pool, SetAtEnd, random_bytes, wait_until};

const MIB: usize = 1 << 20;
/// What each of the owner's threads writes over and over.
const OWNED_BYTES: u64 = 64 << 20;
/// What it writes at once, bytes.
const WRITE_BYTES: usize = 16 << 20;
/// What direct I/O wants memory to be aligned to.
const ALIGNED: usize = 4096;
/// Time for which the owner's rate is measured.
const MEASURED: Duration = Duration::from_secs(6);
/// Time in which a benefactor notices a load.
const NOTICED: Duration = Duration::from_secs(6);

/// An owner whose program writes past the cache as fast as the disk lets it, until it is dropped: several mebibytes at a time, so that the disk
/// has something to do also while the program waits for a processor.
struct Owner {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Owner {
    fn begin(path: PathBuf) -> Self {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = |first: u64| {
            let (path, ends, counts) = (path.clone(), Arc::clone(&stop), Arc::clone(&written));
            std::thread::spawn(move || write_over_and_over(&path, first * OWNED_BYTES, &ends, &counts))
        };
        let threads = (0..3).map(thread).collect();
        Self { stop, written, threads }
    }

    /// Bytes a second, over some seconds.
    fn rate(&self) -> f64 {
        let (before, began) = (self.written.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(MEASURED);
        (self.written.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

fn write_over_and_over(path: &Path, from: u64, ends: &AtomicBool, counts: &AtomicU64) {
    let mut options = OpenOptions::new();
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap();
    options.write(true).create(true).truncate(false).custom_flags(direct);
    let file = options.open(path).unwrap();
    let memory = vec![7_u8; WRITE_BYTES + ALIGNED];
    let first = memory.as_ptr().align_offset(ALIGNED);
    let mut at = 0;
    while !ends.load(Ordering::Relaxed) {
        file.write_all_at(&memory[first..first + WRITE_BYTES], from + at).unwrap();
        at = (at + WRITE_BYTES as u64) % OWNED_BYTES;
        counts.fetch_add(WRITE_BYTES as u64, Ordering::Relaxed);
    }
}

/// Stores one checkpoint after the other, until that is to end.
fn store_again_and_again(pool: &Pool, ends: &AtomicBool) {
    for round in 0.. {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        pool.put(&random_bytes(24 * MIB, round), &format!("app/job.T{round}"));
    }
}

fn is_in(disk: &Disk, pool: &Pool, state: &str) -> bool {
    pool.shows(|status| disk.shown(status).is_some_and(|shown| shown["load"] == state))
}

fn blocks(disk: &Disk, status: &Value) -> u64 {
    disk.shown(status).unwrap()["blocks"].as_u64().unwrap()
}

fn all_blocks(status: &Value) -> u64 {
    let benefactors = status["benefactors"].as_array().unwrap();
    benefactors.iter().map(|shown| shown["blocks"].as_u64().unwrap()).sum()
}

/// Two benefactors that never refuse, since their disk is that of all tests, and one on a real disk of its own.
fn pool_with(more: &[&str]) -> (Pool, Disk) {
    let pool = Pool::up(2, &["--donate", "16GiB"]);
    let disk = Disk::on_loop(&pool, "disk", 2048, &[&["--donate", "2GiB"], more].concat());
    pool.ok(&["mkdir", "app"]);
    pool.policy("app", &["redundancy=replicate:1", "stripe=3", "codec=store"]);
    (pool, disk)
}

#[test]
fn an_owner_who_works_on_the_disk_has_it_and_what_lies_there_is_served() {
    let (pool, disk) = pool_with(&[]);
    let before = random_bytes(24 * MIB, 1);
    pool.put(&before, "app/before");
    wait_until("nobody works on the disk", || is_in(&disk, &pool, "running"));
    wait_until("the manager has heard of all blocks", || pool.shows(|status| all_blocks(status) >= 24));
    let had = blocks(&disk, &pool.status());
    assert!(had >= 6, "{had} of 24 blocks are on the disk");
    let owner = Owner::begin(disk.at("owner"));
    wait_until("the benefactor notices its owner's work", || is_in(&disk, &pool, "refusing"));
    assert!(disk.shown(&pool.status()).unwrap()["busy_percent"].as_u64().unwrap() >= 80);
    // New chunks go elsewhere, without any error; what is there is served.
    for number in 2..6 {
        pool.put(&random_bytes(12 * MIB, number), &format!("app/while{number}"));
    }
    wait_until("the manager has heard of all blocks", || pool.shows(|status| all_blocks(status) >= 72));
    assert_eq!(blocks(&disk, &pool.status()), had);
    assert!(pool.get("app/before") == before);
    let shown = pool.json(&["placement", "explain", "app", "--json"]);
    let hosts = shown["hosts"].as_array().unwrap();
    assert!(hosts.len() == 2 && hosts.iter().all(|host| host["state"] != "refusing"), "{shown}");
    drop(owner);
    wait_until("the benefactor notices that its owner has ended", || is_in(&disk, &pool, "running"));
    pool.put(&random_bytes(24 * MIB, 9), "app/after");
    wait_until("it takes blocks again", || blocks(&disk, &pool.status()) > had);
    let past = pool.json(&["placement", "explain", "app", "--json"]);
    let loaded = |host: &Value| host["loaded_week_ppm"].as_u64().is_some_and(|share| share > 0);
    assert!(past["hosts"].as_array().unwrap().iter().any(loaded), "{past}");
}

#[test]
fn work_of_the_pool_alone_never_makes_a_benefactor_refuse() {
    let (pool, disk) = pool_with(&[]);
    let began = Instant::now();
    let mut most = 0;
    for round in 0.. {
        pool.put(&random_bytes(48 * MIB, round), "app/all");
        pool.ok(&["rm", "app/all"]);
        let status = pool.status();
        let shown = disk.shown(&status).unwrap();
        most = most.max(shown["busy_percent"].as_u64().unwrap_or(0));
        assert_ne!(shown["load"], "refusing", "{shown}");
        if began.elapsed() > 2 * MEASURED {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("while clients write and nobody else does: load by others at most {most} %");
}

#[test]
fn the_pool_leaves_the_disk_to_an_owner_who_works_there() {
    let mut written = Vec::new();
    for (limit, states) in [("0", "without"), ("80", "with")] {
        let (pool, disk) = pool_with(&["--load-limit", limit]);
        let used = || disk.shown(&pool.status()).unwrap()["used_bytes"].as_u64().unwrap();
        let owner = Owner::begin(disk.at("owner"));
        let alone = owner.rate();
        if limit != "0" {
            wait_until("the benefactor notices its owner's work", || is_in(&disk, &pool, "refusing"));
        }
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = SetAtEnd(&ends);
            scope.spawn(|| store_again_and_again(&pool, &ends));
            std::thread::sleep(NOTICED);
            let before = used();
            let beside = owner.rate();
            let used = used() - before;
            written.push(used);
            println!(
                "{states} states: the owner writes {:.0} MB/s alone and {:.0} MB/s beside a job, of which {:.0} MB/s go to this disk",
                alone / 1e6,
                beside / 1e6,
                used as f64 / 1e6 / MEASURED.as_secs_f64()
            );
        });
    }
    // A look or two may find the owner idle, on a machine with other work.
    assert!(written[0] > 10 * MIB as u64 && 4 * written[1] < written[0], "{written:?}");
}
