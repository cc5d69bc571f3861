//! Small files beside large ones through one mount: many of them are read, appended to, synced and replaced, and the mount
//! goes on answering with the right bytes.
//!
//! `STDCHK_TREE_FILES` makes the tree larger, as `scripts/soak` does.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::process::Signal;
use serde_json::Value;
use stdchk_tests::{Mount, Setup, random_bytes, wait_until, within};

/// Files of the tree in the short form. What a mount's cache of 32 MiB kept of half as many once took all its memory for
/// answers of benefactors.
const TREE_FILES_DEFAULT: usize = 3000;
/// Files of one folder of the tree, which is a checkpoint set.
const FOLDER_FILES: usize = 1500;
const FILE_BYTES_MAX: usize = 64 << 10;
/// Threads that write the tree and read it.
const THREADS: usize = 8;
/// Time for a thousand files, many times what a slow machine takes; a mount that doesn't answer takes longer.
const PATIENCE_PER_THOUSAND: Duration = Duration::from_secs(180);
const MIB: usize = 1 << 20;

fn tree_files() -> usize {
    std::env::var("STDCHK_TREE_FILES").map_or(TREE_FILES_DEFAULT, |files| files.parse().unwrap())
}

fn name(number: usize) -> String {
    format!("tree/{}/f{}", number / FOLDER_FILES, number % FOLDER_FILES)
}

/// Files of all sizes, the empty one too.
fn content(number: usize) -> Vec<u8> {
    let word = random_bytes(8, number as u64);
    let length = u64::from_le_bytes(word.try_into().unwrap()) % (FILE_BYTES_MAX as u64 + 1);
    let length = if number.is_multiple_of(100) { 0 } else { length as usize };
    random_bytes(length, number as u64)
}

/// Does something with the numbers of all files, in several threads, within a time.
fn for_all(what: &str, files: usize, work: impl Fn(usize) + Send + Sync + 'static) {
    let (work, next, done) = (Arc::new(work), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (work, next, done) = (Arc::clone(&work), Arc::clone(&next), Arc::clone(&done));
            std::thread::spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= files {
                        return;
                    }
                    work(number);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let deadline = Instant::now() + PATIENCE_PER_THOUSAND * u32::try_from(files / 1000 + 1).unwrap();
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        let done = done.load(Ordering::Relaxed);
        assert!(Instant::now() < deadline, "{what}: {done} of {files} files are done in time");
        std::thread::sleep(Duration::from_millis(20));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// What a file holds, from the mount and not from the kernel's cache.
fn read_anew(path: &Path) -> Vec<u8> {
    let mut file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    bytes
}

#[test]
fn a_tree_of_small_files_is_read_whole_twice_through_one_mount_and_restored() {
    let files = tree_files();
    let pool = Setup { donate: "16GiB".to_owned(), ..Setup::of(2) }.up();
    pool.policy("tree", &["redundancy=replicate:1", "naming={step}/f{rank}"]);
    for folder in 0..files.div_ceil(FOLDER_FILES) {
        fs::create_dir(pool.at(&format!("tree/{folder}"))).unwrap();
    }
    let point = pool.mount_point();
    for_all("the tree is written", files, move |number| {
        fs::write(point.join(name(number)), content(number)).unwrap();
    });
    let mount = Mount::start(&pool, "other");
    let point = mount.point().to_owned();
    for pass in 1..=2 {
        let point = point.clone();
        for_all("the tree is read", files, move |number| {
            let bytes = read_anew(&point.join(name(number)));
            assert!(bytes == content(number), "pass {pass}: {} has other bytes", name(number));
        });
    }
    drop(mount);
    let target = pool.path("restored");
    pool.ok(&["restore", "tree", "--set", "0", "-o", target.to_str().unwrap()]);
    for number in 0..files.min(FOLDER_FILES) {
        let restored = fs::read(target.join("0").join(format!("f{number}"))).unwrap();
        assert!(restored == content(number), "{} is restored with other bytes", name(number));
    }
}

/// A shell that is ended with its test.
struct Shell(Child);

impl Shell {
    fn start(script: &str, path: &Path) -> Self {
        let mut command = Command::new("sh");
        command.args(["-ec", script, "sh"]).arg(path).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn finish(&mut self, what: &str) {
        wait_until(what, || self.0.try_wait().unwrap().is_some());
        assert!(self.0.wait().unwrap().success(), "{what}: it failed");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lines that each of four shells appends. With what the large file leaves in the cache, the versions of all of them once
/// took all the memory for answers.
const LINES: usize = 150;

#[test]
fn shells_append_lines_after_a_large_file_was_written_and_read_back() {
    const FILE_BYTES: usize = 48 * MIB;
    let pool = Setup { donate: "1GiB".to_owned(), ..Setup::of(2) }.up();
    pool.policy("app", &["redundancy=replicate:1"]);
    let large = pool.at("app/large");
    for round in 0..2 {
        let source = PathBuf::from(pool.file("source", &random_bytes(FILE_BYTES, round)));
        let copy = format!("dd if={} of=\"$1\" bs=1M status=none", source.display());
        Shell::start(&copy, &large).finish("the large file is written");
        let bytes = read_anew(&large);
        assert!(bytes == fs::read(&source).unwrap(), "round {round}: other bytes came back");
    }
    let append = format!("i=0; while [ $i -lt {LINES} ]; do echo line $i >> \"$1\"; i=$((i + 1)); done");
    let names = ["a", "b", "c", "d"];
    let mut shells: Vec<Shell> =
        names.iter().map(|name| Shell::start(&append, &pool.at(&format!("app/{name}")))).collect();
    shells.iter_mut().for_each(|shell| shell.finish("lines are appended"));
    let lines: String = (0..LINES).map(|line| format!("line {line}\n")).collect();
    for name in names {
        assert_eq!(read_anew(&pool.at(&format!("app/{name}"))), lines.as_bytes(), "{name}");
    }
}

#[test]
fn appenders_that_sync_go_on_beside_a_file_that_is_replaced_and_read() {
    const SYNCS: usize = 200;
    let pool = Setup { donate: "1GiB".to_owned(), ..Setup::of(2) }.up();
    pool.policy("app", &["redundancy=replicate:1"]);
    // What is read of it stays in the cache.
    let large = random_bytes(40 * MIB, 1);
    fs::write(pool.at("app/large"), &large).unwrap();
    assert!(read_anew(&pool.at("app/large")) == large);
    let (latest, stop) = (pool.at("app/latest"), Arc::new(AtomicBool::new(false)));
    let generation = |number: usize| format!("{number:8}").repeat(500);
    fs::write(&latest, generation(0)).unwrap();
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (latest, stop) = (latest.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let bytes = read_anew(&latest);
                    let first = bytes.get(..8).unwrap().to_vec();
                    assert!(bytes == first.repeat(500), "a file that is replaced is read torn");
                }
            })
        })
        .collect();
    let point = pool.mount_point();
    for_all("appenders and the one who replaces end", 4, move |number| match number {
        3 => {
            for number in 1..=SYNCS {
                let next = point.join("app/next");
                fs::write(&next, generation(number)).unwrap();
                fs::rename(next, point.join("app/latest")).unwrap();
            }
        }
        number => {
            let path = point.join(format!("app/log{number}"));
            let mut log = OpenOptions::new().create(true).append(true).open(path).unwrap();
            for line in 0..SYNCS {
                writeln!(log, "{line}").unwrap();
                log.sync_all().unwrap();
            }
        }
    });
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let lines: String = (0..SYNCS).map(|line| format!("{line}\n")).collect();
    for number in 0..3 {
        assert_eq!(pool.get(&format!("app/log{number}")), lines.as_bytes(), "log{number}");
    }
    assert_eq!(pool.get("app/latest"), generation(SYNCS).as_bytes());
}

#[test]
fn status_says_what_a_mount_waits_for_as_long_as_it_does() {
    let pool = Setup::of(1).with("STDCHK_LONG_WAIT_MS", 500).up();
    pool.policy("app", &["redundancy=replicate:1"]);
    let content = random_bytes(MIB, 1);
    // Not through the mount: what the kernel's cache keeps is asked of nobody.
    pool.put(&content, "app/x");
    let benefactor = pool.process("benefactor-0");
    benefactor.signal(Signal::STOP);
    let path = pool.at("app/x");
    let reader = std::thread::spawn(move || read_anew(&path));
    let waits = |status: &Value| status["mount"]["waits"].as_array().unwrap().len();
    wait_until("status says what the mount waits for", || pool.shows(|status| waits(status) > 0));
    let status = pool.status();
    assert_eq!(status["health"], "degraded", "{status}");
    let said = status["mount"]["waits"][0].as_str().unwrap().to_owned();
    assert!(said.contains("to be fetched"), "{said}");
    assert!(pool.log("mount").contains("this process waits for"), "{}", pool.log("mount"));
    benefactor.signal(Signal::CONT);
    assert!(within("the file is read", move || reader.join().unwrap()) == content);
    wait_until("nothing is waited for", || pool.shows(|status| waits(status) == 0));
}
