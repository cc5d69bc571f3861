//! The log in front of the store's records: what a crash leaves anywhere is replayed, and what a disk, a person or another pool has
//! done to it is found out (I7, I10).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use stdchk_manager::store::{Batch, EmbeddedStore, MemoryStore, Store, StoreError, Table};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

const BLOCK: usize = 4096;
const LOG: u64 = 2 << 20;
/// Where the first entry is.
const FIRST: usize = 2 * BLOCK;
/// Bytes of an entry before its changes.
const HEAD: usize = 48;
/// Set for the child, which is a test again, and writes until the system refuses: where, and what.
const WRITER: &str = "STDCHK_TEST_LOG_WRITER";

/// Between its fork and its exec a child holds copies of all descriptors of this process, and with them the locks of stores that
/// other tests close and open again: whoever starts one waits for them.
static FORKS: RwLock<()> = RwLock::new(());

fn without_forks() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

fn all(store: &dyn Store) -> Records {
    let mut records = Records::new();
    let collect = &mut |key: &[u8], record: &[u8]| {
        assert!(records.insert(key.to_vec(), record.to_vec()).is_none(), "a record comes twice");
        Ok(())
    };
    store.load(collect).unwrap();
    records
}

/// A place for a store, and its two files as they are at some moment.
struct Place(tempfile::TempDir);

#[derive(Clone, PartialEq)]
struct Files {
    records: Vec<u8>,
    log: Vec<u8>,
}

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("store.redb")
    }

    fn files(&self) -> Files {
        let read = |path: &Path| fs::read(path).unwrap();
        Files { records: read(&self.path()), log: read(&self.path().with_extension("log")) }
    }

    fn put(&self, files: &Files) {
        fs::write(self.path(), &files.records).unwrap();
        let log = self.path().with_extension("log");
        let written = files.log.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        fs::write(&log, &files.log[..written]).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&log).unwrap();
        file.set_len(files.log.len() as u64).unwrap();
    }

    /// The number of the last commit that a start on these files finds; panics if what it finds isn't that commit.
    fn found(&self, files: &Files) -> Result<u64, String> {
        self.put(files);
        match EmbeddedStore::open(&self.path()) {
            Ok(store) => {
                assert_eq!(all(&store), expected(store.sequence()));
                let sequence = store.sequence();
                drop(store);
                let again = EmbeddedStore::open(&self.path()).unwrap();
                assert_eq!((again.sequence(), all(&again)), (sequence, expected(sequence)));
                Ok(sequence)
            }
            Err(StoreError::Damaged { what, .. }) => {
                assert!(!what.contains('\n'), "{what}");
                Err(what)
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// The changes of a commit: of one block, or of several.
fn batch(number: u64) -> Batch {
    let mut batch = Batch::default();
    batch.put(Table::Pool, b"last", number.to_be_bytes().to_vec());
    let length = if number.is_multiple_of(4) { 3 * BLOCK } else { 100 };
    batch.put(Table::Inode, &number.to_be_bytes(), vec![number.to_le_bytes()[0]; length]);
    if !number.is_multiple_of(2) {
        batch.remove(Table::Inode, &number.saturating_sub(2).to_be_bytes());
    }
    batch
}

/// All records after the commit of that number.
fn expected(number: u64) -> Records {
    let mut store = MemoryStore::default();
    (1..=number).for_each(|number| store.commit(&batch(number)).unwrap());
    all(&store)
}

fn commit(store: &mut EmbeddedStore, count: u64) {
    (0..count).for_each(|_| store.commit(&batch(store.sequence() + 1)).unwrap());
}

/// The bytes of commits that are in the log, with the places of their entries.
fn logged(place: &Place, count: u64) -> Files {
    let mut store = EmbeddedStore::create(&place.path()).unwrap();
    commit(&mut store, count);
    let files = place.files();
    drop(store);
    files
}

#[test]
fn it_is_one_store_with_its_records_however_often_it_is_opened_and_starts_anew() {
    let _forks = without_forks();
    let place = Place::new();
    let mut store = EmbeddedStore::create(&place.path()).unwrap();
    let (mut reference, mut rounds) = (MemoryStore::default(), 0);
    let mut records = place.files().records;
    for number in 0..900u64 {
        let mut batch = Batch::default();
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        batch.put(Table::Inode, &[key.to_le_bytes()[0] % 64], key.to_be_bytes().to_vec());
        batch.remove(Table::Inode, &[key.to_le_bytes()[1] % 64]);
        batch.put(Table::Entry, &[key.to_le_bytes()[2]], Vec::new());
        if number == 700 {
            // Larger than the log.
            batch.put(Table::Version, b"large", vec![7; 5 << 20]);
        }
        store.commit(&batch).unwrap();
        reference.commit(&batch).unwrap();
        if number % 97 == 0 {
            assert_eq!(all(&store), all(&reference));
        }
        if number == 300 {
            drop(store);
            store = EmbeddedStore::open(&place.path()).unwrap();
        }
        if number % 50 == 0 {
            let now = place.files().records;
            rounds += u64::from(now != records);
            records = now;
        }
    }
    assert!(rounds >= 3, "the log started anew {rounds} times");
    assert_eq!(place.files().log.len() as u64, LOG, "it keeps its length");
    drop(store);
    let store = EmbeddedStore::open(&place.path()).unwrap();
    assert_eq!((all(&store), store.sequence()), (all(&reference), 900));
}

#[test]
fn an_entry_that_is_torn_at_any_byte_was_never_committed() {
    let _forks = without_forks();
    let (place, torn) = (Place::new(), Place::new());
    let mut store = EmbeddedStore::create(&place.path()).unwrap();
    commit(&mut store, 2);
    let mut at = FIRST + 2 * BLOCK;
    // One of one block and one of several.
    for number in [3, 4] {
        let before = place.files();
        commit(&mut store, 1);
        let after = place.files();
        let length = after.log[at..].iter().rposition(|byte| *byte != 0).unwrap() + 1;
        let changes = (HEAD..length).step_by(if length < BLOCK { 7 } else { 997 });
        let cuts = (0..HEAD).chain(changes).chain(length - 3..=length);
        for cut in cuts {
            let mut files = before.clone();
            files.log[at..at + cut].copy_from_slice(&after.log[at..at + cut]);
            let found = torn.found(&files);
            assert!(
                found == Ok(number - 1) || found == Ok(number) && cut == length,
                "cut at {cut}: {found:?}"
            );
            // A disk may write the blocks of an entry in any order.
            let mut files = after.clone();
            files.log[at..at + cut].copy_from_slice(&before.log[at..at + cut]);
            let found = torn.found(&files);
            assert!(found == Ok(number - 1) || found == Ok(number) && cut == 0, "from {cut} on: {found:?}");
        }
        at += BLOCK;
    }
}

#[test]
fn a_flipped_byte_takes_back_the_last_commit_or_is_found_out() {
    let _forks = without_forks();
    let (place, other) = (Place::new(), Place::new());
    let files = logged(&place, 6);
    // The entries, of which the fourth has four blocks.
    let places = [0, 1, 2, 3, 7, 8].map(|block| FIRST + block * BLOCK);
    let inside = |at: usize| (0..HEAD + 130).step_by(3).map(move |byte| at + byte);
    for at in places.into_iter().flat_map(inside) {
        let mut damaged = files.clone();
        damaged.log[at] ^= 0x40;
        match other.found(&damaged) {
            Err(what) => {
                assert!(what.contains("damaged") && at < places[5], "byte {at}: {what}");
                assert!(other.files() == damaged, "what is damaged is left as it is");
            }
            Ok(found) => assert!(found == 6 || at >= places[5] && found == 5, "byte {at}: commit {found}"),
        }
    }
    // The only opening that counts, and the place of the other one.
    for at in 0..HEAD {
        let mut damaged = files.clone();
        damaged.log[at] ^= 1;
        assert!(other.found(&damaged).is_err(), "byte {at} of the opening");
        let mut damaged = files.clone();
        damaged.log[BLOCK + at] ^= 1;
        assert_eq!(other.found(&damaged), Ok(6));
    }
    // An entry in the place of another.
    let mut damaged = files.clone();
    damaged.log.copy_within(places[2]..places[3], places[1]);
    assert!(other.found(&damaged).is_err());
}

#[test]
fn records_and_log_of_different_times_are_found_out_and_those_that_a_crash_leaves_are_one_store() {
    let _forks = without_forks();
    let (place, other) = (Place::new(), Place::new());
    let mut store = EmbeddedStore::create(&place.path()).unwrap();
    // Each moment: the commit that the records have, the one that the log begins behind, and its last one.
    let mut moments = vec![(0, 0, 0, place.files())];
    for (count, closes) in [(2, false), (1, true), (0, true), (3, false), (2, true), (1, false)] {
        let begin = moments.last().unwrap().1;
        commit(&mut store, count);
        moments.push((begin, begin, store.sequence(), place.files()));
        if closes {
            let last = store.sequence();
            drop(store);
            store = EmbeddedStore::open(&place.path()).unwrap();
            moments.push((last, last, last, place.files()));
        }
    }
    let (mut accepted, mut refused) = (0, 0);
    for (records, .., file) in &moments {
        for (.., begin, last, log) in &moments {
            let files = Files { records: file.records.clone(), log: log.log.clone() };
            let found = other.found(&files);
            // The records took over what the log has, and it was about to start anew.
            let taken_over = last == records && begin < records;
            if begin == records || taken_over {
                assert_eq!(found, Ok(*last), "records {records}, log {begin} to {last}");
                accepted += 1;
            } else {
                assert!(found.is_err(), "records {records}, log {begin} to {last}: {found:?}");
                refused += 1;
            }
        }
    }
    assert!(accepted > 20 && refused > 20, "{accepted} and {refused}");
}

#[test]
fn an_opening_that_is_torn_at_any_byte_leaves_the_one_before() {
    let _forks = without_forks();
    let (place, other) = (Place::new(), Place::new());
    let mut store = EmbeddedStore::create(&place.path()).unwrap();
    for round in 1..4u64 {
        commit(&mut store, 3);
        let before = place.files();
        drop(store);
        let after = place.files();
        store = EmbeddedStore::open(&place.path()).unwrap();
        for cut in 0..HEAD {
            let mut files = Files { records: after.records.clone(), log: before.log.clone() };
            for block in [0, BLOCK] {
                files.log[block..block + cut].copy_from_slice(&after.log[block..block + cut]);
            }
            assert_eq!(other.found(&files), Ok(3 * round), "cut at {cut}");
        }
    }
}

#[test]
fn a_log_that_is_missing_cut_short_or_of_another_store_is_refused() {
    let _forks = without_forks();
    let (place, other) = (Place::new(), Place::new());
    let files = logged(&place, 5);
    place.put(&files);
    fs::remove_file(place.path().with_extension("log")).unwrap();
    assert!(matches!(EmbeddedStore::open(&place.path()), Err(StoreError::Damaged { .. })));
    for length in [0, 1, BLOCK, FIRST, FIRST + BLOCK, files.log.len() - 1] {
        let cut = Files { log: files.log[..length].to_vec(), ..files.clone() };
        assert!(other.found(&cut).unwrap_err().contains("cut short"));
    }
    // The same number of commits, and another content.
    let stranger = Place::new();
    let mut store = EmbeddedStore::create(&stranger.path()).unwrap();
    let mut batch = Batch::default();
    batch.put(Table::Pool, b"pool", b"another".to_vec());
    (0..5).for_each(|_| store.commit(&batch).unwrap());
    drop(store);
    let mine = {
        place.put(&files);
        drop(EmbeddedStore::open(&place.path()).unwrap());
        place.files()
    };
    let mixed = Files { records: mine.records, log: stranger.files().log };
    assert!(other.found(&mixed).unwrap_err().contains("but others"));
}

/// Writes until it is refused; tells how many commits were acknowledged.
fn write_until_refused(path: &Path, large: bool) {
    let mut store = EmbeddedStore::create(path).unwrap();
    let refused = loop {
        let mut batch = batch(store.sequence() + 1);
        if large && store.sequence() == 5 {
            batch.put(Table::Version, b"large", vec![7; 5 << 20]);
        }
        if let Err(error) = store.commit(&batch) {
            break error;
        }
    };
    assert!(matches!(refused, StoreError::Failed { .. }), "{refused}");
    println!("acknowledged {}", store.sequence());
    assert!(store.commit(&batch(store.sequence() + 1)).is_err(), "it goes on after a failure");
}

#[test]
fn on_a_full_disk_commits_are_refused_from_then_on_and_nothing_acknowledged_is_lost() {
    const NAME: &str = "on_a_full_disk_commits_are_refused_from_then_on_and_nothing_acknowledged_is_lost";
    if let Some(path) = std::env::var_os(WRITER) {
        return write_until_refused(Path::new(&path), std::env::var_os("LARGE").is_some());
    }
    let _alone = FORKS.write().unwrap_or_else(PoisonError::into_inner);
    for large in [false, true] {
        let place = Place::new();
        // No file may become larger than 3 MB: the records of some thousand commits, or an entry of the log that is larger than the log.
        let mut child = Command::new("sh");
        child.args(["-c", "trap '' XFSZ; exec prlimit --fsize=3000000 \"$@\"", "sh"]);
        child.arg(std::env::current_exe().unwrap()).args(["--exact", NAME, "--nocapture"]);
        child.env(WRITER, place.path());
        if large {
            child.env("LARGE", "");
        }
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
        let told = text.split("acknowledged ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let acknowledged: u64 = told.unwrap().parse().unwrap();
        assert!(if large { acknowledged == 5 } else { acknowledged > 400 }, "{acknowledged}");
        assert_eq!(place.found(&place.files()), Ok(acknowledged));
    }
}
