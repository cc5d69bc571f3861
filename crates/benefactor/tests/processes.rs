//! What needs processes of its own: killing a writer at any moment, a disk that is full, and descriptors that ran out.
//!
//! This program is its own child: `write DIR` writes and syncs until it is killed, `fill DIR` fills a small file system, `use up DIR`
//! takes all descriptors, `many DIR` has more segments than descriptors.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use stdchk_benefactor::store::{Cursor, Donation, Store, StoreError};
use stdchk_model::{BlockId, ChunkId, ChunkRef, Encoding, ErrorCode, Failure};
use stdchk_net::BufferPool;

const SEGMENT: u64 = 4 << 20;
const KILLS: u64 = 12;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["write", directory] => write_for_ever(Path::new(directory)),
        ["fill", directory] => fill(Path::new(directory)),
        ["use up", directory] => use_descriptors_up(Path::new(directory)),
        ["many", directory] => use_more_segments_than_descriptors(Path::new(directory)),
        _ => {
            all_that_was_synced_survives_sigkill();
            println!("test all_that_was_synced_survives_sigkill ... ok");
            a_full_disk_fails_puts_and_nothing_else();
            println!("test a_full_disk_fails_puts_and_nothing_else ... ok");
            a_store_without_descriptors_takes_nothing_and_goes_on_once_there_are_some();
            println!("test a_store_without_descriptors_takes_nothing_and_goes_on_once_there_are_some ... ok");
            a_store_of_more_segments_than_descriptors_starts_and_serves();
            println!("test a_store_of_more_segments_than_descriptors_starts_and_serves ... ok");
        }
    }
}

fn open(directory: &Path) -> Store {
    Store::open(directory, Donation { donated_bytes: 1 << 34, floor_bytes: 0 }, SEGMENT).unwrap().0
}

fn content(seed: u64) -> Vec<u8> {
    let length = match seed % 4 {
        0 => 100,
        1 => 4_000,
        2 => 30_000,
        _ => 300_000,
    };
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn block_of(bytes: &[u8]) -> BlockId {
    BlockId::plain(ChunkId::of(bytes))
}

fn put(store: &Store, bytes: &[u8]) -> Result<bool, StoreError> {
    let mut buffer = BufferPool::new(1 << 20).try_take(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    let block = block_of(bytes);
    let chunk = ChunkRef { id: block.chunk, length: u32::try_from(bytes.len()).unwrap() };
    store.put(block, Encoding::plain(chunk), &mut buffer)
}

fn holds(store: &Store, bytes: &[u8]) -> bool {
    let Ok(found) = store.find(block_of(bytes)) else { return false };
    let mut buffer = BufferPool::new(1 << 20).try_take(found.span()).unwrap();
    store.read(&found, &mut buffer).is_ok_and(|(_, range)| buffer.get(range) == Some(bytes))
}

/// Puts blocks from two threads, syncs after every few, prints how far it is durable, and removes every seventh.
fn write_for_ever(directory: &Path) {
    let store = open(directory);
    for first in (0..).step_by(8) {
        std::thread::scope(|scope| {
            for half in 0..2 {
                let store = &store;
                scope.spawn(move || {
                    (first..first + 8).filter(|seed| seed % 2 == half).for_each(|seed| {
                        put(store, &content(seed)).unwrap();
                    });
                });
            }
        });
        store.sync().unwrap();
        println!("{}", first + 8);
        std::io::stdout().flush().unwrap();
        if first % 7 == 0 && first > 0 {
            store.remove(&[block_of(&content(first))], u64::MAX).unwrap();
        }
    }
}

fn all_that_was_synced_survives_sigkill() {
    for round in 0..KILLS {
        let place = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([std::ffi::OsStr::new("write"), place.path().as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(60 + round * 37));
        child.kill().unwrap();
        child.wait().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let durable: u64 =
            lines.map_while(Result::ok).filter_map(|line| line.parse().ok()).last().unwrap_or(0);
        assert!(durable > 0 || round < KILLS / 2, "the writer got somewhere");
        for _ in 0..2 {
            let store = open(place.path());
            for seed in 0..durable {
                // The last removals may or may not have been done when the kill came; a block is whole or gone.
                let removable = seed % 8 == 0 && seed % 7 == 0 && seed > 0;
                assert!(
                    removable || holds(&store, &content(seed)),
                    "round {round}: block {seed} of {durable}"
                );
            }
        }
    }
}

fn a_store_without_descriptors_takes_nothing_and_goes_on_once_there_are_some() {
    let place = tempfile::tempdir().unwrap();
    let script = "ulimit -n 64 && exec \"$1\" \"use up\" \"$2\"";
    let child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .arg(place.path())
        .status()
        .unwrap();
    assert!(child.success(), "a store without descriptors failed: {child}");
}

/// A store of 600 segments with 256 descriptors.
fn a_store_of_more_segments_than_descriptors_starts_and_serves() {
    let place = tempfile::tempdir().unwrap();
    for life in ["first", "second"] {
        let script = "ulimit -n 256 && exec \"$1\" many \"$2\"";
        let child = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(std::env::current_exe().unwrap())
            .arg(place.path())
            .status()
            .unwrap();
        assert!(child.success(), "the {life} life of a store with many segments failed: {child}");
    }
}

fn use_more_segments_than_descriptors(directory: &Path) {
    const SEGMENTS: u64 = 600;
    const READERS: u64 = 100;
    let donation = Donation { donated_bytes: 1 << 34, floor_bytes: 0 };
    // A block of 30 kB fills a segment.
    let (store, recovered) = Store::open(directory, donation, 32 << 10).unwrap();
    let contents = |number: u64| content(4 * number + 2);
    if recovered.blocks == 0 {
        // None of them is made durable by anybody until the end.
        (0..SEGMENTS).for_each(|number| assert!(!put(&store, &contents(number)).unwrap()));
        store.sync().unwrap();
    }
    assert!(std::fs::read_dir(directory).unwrap().count() as u64 >= SEGMENTS);
    let most = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(most < 128, "{most} descriptors are open");
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (store, contents) = (&store, &contents);
            scope.spawn(move || {
                (0..SEGMENTS).filter(|number| (number + reader) % 7 == 0).for_each(|number| {
                    assert!(holds(store, &contents(number)));
                });
            });
        }
    });
    let (buffers, mut cursor, mut blocks) = (BufferPool::new(1 << 20), Cursor::default(), 0);
    while let Some((next, read)) = store.scrub(cursor, &buffers).unwrap() {
        (cursor, blocks) = (next, blocks + u64::from(read > 0));
    }
    assert_eq!(blocks, SEGMENTS);
    assert_eq!(store.compact(&buffers, &|_| {}).unwrap(), 0);
    let gone = block_of(&contents(0));
    assert!(recovered.blocks == 0 || store.remove(&[gone], u64::MAX).unwrap() == 1);
    for _ in 0..SEGMENTS + 2 {
        store.check_presence().unwrap();
    }
    if recovered.blocks > 0 {
        assert_eq!((recovered.blocks, recovered.verified_segments), (SEGMENTS, 1));
        // A segment that is closed is missed when it is read.
        std::fs::remove_file(directory.join("0000000002.segment")).unwrap();
        let found = store.find(block_of(&contents(1))).unwrap();
        let mut buffer = buffers.try_take(found.span()).unwrap();
        assert!(matches!(store.read(&found, &mut buffer), Err(StoreError::Gone(_))));
        assert!(store.sync().is_err(), "nothing counts as durable any more");
        assert!((0..SEGMENTS + 2).any(|_| store.check_presence().is_err()));
    }
}

fn use_descriptors_up(directory: &Path) {
    let store = open(directory);
    put(&store, &content(3)).unwrap();
    let others: Vec<File> = std::iter::from_fn(|| File::open(directory).ok()).collect();
    // A sync of new names needs none, a further segment does.
    store.sync().unwrap();
    let refused = (1..).find_map(|number| put(&store, &content(4 * number + 3)).err()).unwrap();
    assert!(matches!(refused, StoreError::Io { .. }), "{refused}");
    store.sync().unwrap();
    assert!(holds(&store, &content(3)));
    drop(others);
    (1..40).for_each(|number| assert!(put(&store, &content(4 * number + 3)).is_ok()));
    store.sync().unwrap();
    drop(store);
    let store = open(directory);
    assert!((0..40).all(|number| holds(&store, &content(4 * number + 3))));
}

/// A small file system in a mount namespace of its own, filled by two stores at once.
fn a_full_disk_fails_puts_and_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=24m stdchk \"$2\" && exec \"$1\" fill \"$2\"";
    let status = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .arg(place.path())
        .status()
        .unwrap();
    assert!(status.success(), "filling a small file system failed: {status}");
}

fn fill(directory: &Path) {
    let paths = [directory.join("one"), directory.join("two")];
    let stores = paths.each_ref().map(|path| open(path));
    let stored: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let fill = |index: u64| {
            let stores = &stores;
            let [one, two] = stores;
            scope.spawn(move || fill_one(if index.is_multiple_of(2) { one } else { two }, index << 32))
        };
        let threads: Vec<_> = (0..6).map(fill).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for store in &stores {
        store.sync().unwrap();
    }
    drop(stores);
    serves_where_nothing_can_be_written(directory, &paths, &stored);
    let stores = paths.each_ref().map(|path| open(path));
    for (index, seeds) in stored.iter().enumerate() {
        let store = stores.get(index % 2).unwrap();
        store.sync().unwrap();
        assert!(!seeds.is_empty() && seeds.iter().all(|seed| holds(store, &content(*seed))));
        let blocks: Vec<BlockId> = seeds.iter().map(|seed| block_of(&content(*seed))).collect();
        if index >= 2 {
            assert_eq!(store.remove(&blocks, u64::MAX).unwrap(), blocks.len() as u64);
        }
    }
    put(stores.first().unwrap(), &content(3)).unwrap();
    drop(stores);
    let stores = paths.each_ref().map(|path| open(path));
    assert!(holds(stores.first().unwrap(), &content(3)), "after removals there is room again");
    for (store, seeds) in stores.iter().zip(&stored) {
        assert!(seeds.iter().all(|seed| holds(store, &content(*seed))));
    }
}

/// Stores open on a disk without a free byte, and on one that was mounted read-only, and have what they had; also in a
/// second life, since the first has left nothing behind.
fn serves_where_nothing_can_be_written(directory: &Path, paths: &[PathBuf; 2], stored: &[Vec<u64>]) {
    let rest = directory.join("rest");
    let mut owner = File::create(&rest).unwrap();
    while owner.write_all(&[7; 4096]).is_ok() {}
    // A file that is open for writing keeps a disk from being mounted read-only.
    drop(owner);
    for disk in ["rw", "ro", "rw"] {
        let remounted =
            Command::new("mount").args(["-o", &format!("remount,{disk}")]).arg(directory).status();
        assert!(remounted.unwrap().success());
        for life in 0..2 {
            let stores = paths.each_ref().map(|path| open(path));
            for (index, seeds) in stored.iter().enumerate() {
                let store = stores.get(index % 2).unwrap();
                assert!(seeds.iter().all(|seed| holds(store, &content(*seed))), "{disk}, life {life}");
                let known = seeds.first().unwrap();
                for bytes in [content(u64::MAX), content(*known)] {
                    let refused = Failure::from(put(store, &bytes).unwrap_err()).code;
                    assert!(
                        disk == "ro" || refused == ErrorCode::NoSpace,
                        "{disk}, life {life}: {refused:?}"
                    );
                }
                store.sync().unwrap();
            }
        }
    }
    std::fs::remove_file(rest).unwrap();
}

/// Puts until the disk is full; returns what was stored.
fn fill_one(store: &Store, first: u64) -> Vec<u64> {
    let mut stored = Vec::new();
    let mut refusals = 0;
    for seed in first.. {
        match put(store, &content(seed)) {
            Ok(_) => stored.push(seed),
            Err(error) => {
                assert_eq!(Failure::from(error).code, ErrorCode::NoSpace);
                refusals += 1;
            }
        }
        if refusals > 20 {
            return stored;
        }
    }
    stored
}
