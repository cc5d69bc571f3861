//! What every store must do, and that the embedded one survives SIGKILL at any moment.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod conformance;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use stdchk_manager::store::{Batch, EmbeddedStore, MemoryStore, Store, Table};

use conformance::{all, conforms};

/// Set for the child, which is this test again, and writes until it is killed.
const WRITER: &str = "STDCHK_TEST_STORE_WRITER";
/// Records that one batch of the writer sets, all to the number of the batch.
const RECORDS_PER_BATCH: u32 = 20;

#[test]
fn the_store_in_memory_conforms() {
    let store = MemoryStore::default();
    let kept = store.clone();
    conforms(Box::new(store), |_| Box::new(kept.clone()));
}

#[test]
fn the_embedded_store_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    conforms(Box::new(EmbeddedStore::create(&path).unwrap()), |store| {
        drop(store);
        Box::new(EmbeddedStore::open(&path).unwrap())
    });
}

#[test]
fn a_store_in_use_and_a_file_of_something_else_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let held = EmbeddedStore::create(&path).unwrap();
    assert!(EmbeddedStore::create(&path).is_err(), "a store is never made in the place of another");
    let error = EmbeddedStore::open(&path).err().unwrap().to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
    drop(held);
    std::fs::write(&path, b"a text of somebody else, long enough to be taken for a header".repeat(100))
        .unwrap();
    assert!(EmbeddedStore::open(&path).is_err());
}

/// What the child does until it is killed: batch after batch, each acknowledged by a line.
fn write_until_killed(path: &Path) {
    let mut store =
        if path.exists() { EmbeddedStore::open(path) } else { EmbeddedStore::create(path) }.unwrap();
    for number in newest_batch(&store).map_or(0, |number| number + 1).. {
        let mut batch = Batch::default();
        for key in 0..RECORDS_PER_BATCH {
            batch.put(Table::Inode, &key.to_be_bytes(), u64::to_be_bytes(number).to_vec());
        }
        store.commit(&batch).unwrap();
        println!("batch {number}");
    }
}

/// The number in all records; panics if they differ, that is if half a batch is there.
fn newest_batch(store: &dyn Store) -> Option<u64> {
    let records = all(store);
    let numbers: Vec<u64> =
        records.values().map(|record| u64::from_be_bytes(record[..8].try_into().unwrap())).collect();
    assert!(numbers.is_empty() || numbers.len() == RECORDS_PER_BATCH as usize);
    assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]), "half a batch: {numbers:?}");
    numbers.first().copied()
}

fn batch_number(line: &str) -> Option<u64> {
    line.split_once("batch ").and_then(|(_, number)| number.trim().parse().ok())
}

#[test]
fn a_killed_writer_leaves_whole_batches_and_all_that_it_acknowledged() {
    if let Some(path) = std::env::var_os(WRITER) {
        return write_until_killed(Path::new(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    for round in 0..8u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_killed_writer_leaves_whole_batches_and_all_that_it_acknowledged",
                "--nocapture",
            ])
            .env(WRITER, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let acknowledged = lines.by_ref().map_while(Result::ok).find_map(|line| batch_number(&line)).unwrap();
        std::thread::sleep(Duration::from_millis(30 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let rest = lines.map_while(Result::ok).filter_map(|line| batch_number(&line));
        let acknowledged = rest.max().unwrap_or(acknowledged);
        let found = newest_batch(&EmbeddedStore::open(&path).unwrap()).unwrap();
        assert!(found >= acknowledged, "{found} is there, {acknowledged} was acknowledged");
    }
}
