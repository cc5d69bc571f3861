//! A store whose records a disk has damaged is found out, whatever was hit: never a panic, never a wrong record (I7, I10). What
//! damages do to its log is tested in `log.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use redb::ReadableTable as _;
use stdchk_manager::core::{Core, Now, Setting, Timing};
use stdchk_manager::store::{Batch, EmbeddedStore, MemoryStore, Store, StoreError, Table};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{Ino, MomentKey, OpId, PoolId};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Damages that each test tries unless the environment asks for more.
const DAMAGES: u64 = 250;
/// Time within which a damaged store is opened and found out: it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
const PAGE: usize = 4096;
/// Bytes of redb's header that are in use.
const HEADER: usize = 320;

/// A small generator: tests must find the same positions again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

fn batch(number: u64) -> Batch {
    let mut batch = Batch::default();
    let mut random = Random(number);
    for _ in 0..150 {
        let key = random.next() % 2000;
        let table = [Table::Inode, Table::Entry, Table::Version][random.below(3)];
        match random.below(5) {
            0 => batch.remove(table, &key.to_be_bytes()),
            _ => batch.put(table, &key.to_be_bytes(), vec![number.to_le_bytes()[0]; random.below(300)]),
        }
    }
    batch.put(Table::Pool, b"pool", number.to_be_bytes().to_vec());
    batch
}

fn all(store: &dyn Store) -> Result<Records, StoreError> {
    let mut records = Records::new();
    store.load(&mut |key, record| {
        records.insert(key.to_vec(), record.to_vec());
        Ok(())
    })?;
    Ok(records)
}

/// A store as a file with its log, and what is in it.
struct Sample {
    bytes: Vec<u8>,
    log: Vec<u8>,
    records: Records,
    sequence: u64,
}

/// The store of a manager that ended in order, or that was killed after its last commit.
fn sample(directory: &Path, killed: bool) -> Sample {
    const BATCHES: u64 = 40;
    let path = directory.join("sample");
    let log = path.with_extension("log");
    let mut store = EmbeddedStore::create(&path).unwrap();
    for number in 0..BATCHES {
        store.commit(&batch(number)).unwrap();
        if number == BATCHES - 5 {
            drop(store);
            store = EmbeddedStore::open(&path).unwrap();
        }
    }
    let (records, sequence) = (all(&store).unwrap(), store.sequence());
    let files = || (fs::read(&path).unwrap(), fs::read(&log).unwrap());
    let killed = killed.then(files);
    drop(store);
    let (bytes, log_bytes) = killed.unwrap_or_else(files);
    fs::remove_file(path).unwrap();
    fs::remove_file(log).unwrap();
    Sample { bytes, log: log_bytes, records, sequence }
}

/// Where to hit: in the header, in pages that hold something, or anywhere.
fn position(bytes: &[u8], used: &[usize], random: &mut Random) -> usize {
    match random.below(4) {
        0 => random.below(HEADER),
        1 => random.below(bytes.len()),
        _ => used[random.below(used.len())] * PAGE + random.below(PAGE),
    }
}

fn flip(bytes: &mut [u8], used: &[usize], random: &mut Random) -> String {
    let at = position(bytes, used, random);
    let mask = match random.below(2) {
        0 => 1 << random.below(8),
        _ => u8::try_from(1 + random.below(255)).unwrap(),
    };
    bytes[at] ^= mask;
    format!("byte {at} changed by {mask:#x}")
}

fn wipe(bytes: &mut [u8], used: &[usize], random: &mut Random) -> String {
    let page = used[random.below(used.len())];
    let range: Range<usize> = page * PAGE..(page + 1) * PAGE;
    let source = used[random.below(used.len())];
    match random.below(3) {
        0 => bytes[range].fill(0),
        1 => bytes[range].fill(0xff),
        // A write that went to another place.
        _ => bytes.copy_within(source * PAGE..(source + 1) * PAGE, range.start),
    }
    format!("page {page} overwritten (or by page {source})")
}

/// What became of a damaged store: an error in one line, or all that was stored, and a store that can be used.
fn judge(path: &Path, sample: &Sample) -> Result<bool, String> {
    let opened = EmbeddedStore::open(path).and_then(|store| Ok((all(&store)?, store)));
    let (records, mut store) = match opened {
        Ok(opened) => opened,
        Err(error @ StoreError::Damaged { .. }) => {
            let error = error.to_string();
            let name = path.with_extension("");
            let told = error.contains(&name.display().to_string()) && error.contains("backup");
            return if told && !error.contains('\n') { Ok(true) } else { Err(format!("it says: {error}")) };
        }
        Err(error) => return Err(format!("it is not taken for damage: {error}")),
    };
    if records != sample.records || store.sequence() != sample.sequence {
        return Err(format!("{} records are believed, commit {}", records.len(), store.sequence()));
    }
    // Harmless is what stays so: free space that isn't free would show now.
    for number in 100..103 {
        store.commit(&batch(number)).map_err(|error| format!("a later commit: {error}"))?;
    }
    let later = all(&store).map_err(|error| error.to_string())?;
    drop(store);
    let again =
        EmbeddedStore::open(path).and_then(|store| all(&store)).map_err(|error| format!("later: {error}"))?;
    if again == later { Ok(false) } else { Err("later commits are lost".to_owned()) }
}

/// Tries `damage` many times; how often it was noticed.
fn try_damages(seed: u64, killed: bool, damage: fn(&mut [u8], &[usize], &mut Random) -> String) -> u64 {
    let count = std::env::var("STDCHK_DAMAGES").map_or(DAMAGES, |text| text.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let sample = sample(directory.path(), killed);
    let used: Vec<usize> = (0..sample.bytes.len() / PAGE)
        .filter(|page| sample.bytes[page * PAGE..(page + 1) * PAGE].iter().any(|byte| *byte != 0))
        .collect();
    let (send, outcomes) = channel();
    std::thread::spawn(move || {
        for trial in 0..count {
            let mut random = Random(seed + trial * 7919);
            let mut bytes = sample.bytes.clone();
            let what = damage(&mut bytes, &used, &mut random);
            let path = directory.path().join("store.redb");
            fs::write(&path, &bytes).unwrap();
            // Only what was written of it: the rest are zeros.
            let written = sample.log.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            fs::write(path.with_extension("log"), &sample.log[..written]).unwrap();
            let log = fs::OpenOptions::new().write(true).open(path.with_extension("log")).unwrap();
            log.set_len(sample.log.len() as u64).unwrap();
            let outcome = judge(&path, &sample).and_then(|noticed| {
                // It must be found damaged again, and not be taken for one that was used since.
                let changed = noticed && !killed && fs::read(&path).unwrap() != bytes;
                if changed { Err("the damaged store was changed".to_owned()) } else { Ok(noticed) }
            });
            fs::remove_file(&path).unwrap();
            if send.send((what, outcome)).is_err() {
                return;
            }
        }
    });
    let mut noticed = 0;
    for trial in 0..count {
        let received = outcomes.recv_timeout(PATIENCE);
        let (what, outcome) =
            received.unwrap_or_else(|error| panic!("trial {trial} of seed {seed}: {error}"));
        noticed += u64::from(outcome.unwrap_or_else(|error| panic!("{what}, killed: {killed}: {error}")));
    }
    assert!(noticed > 0, "no damage was noticed in {count} trials");
    noticed
}

#[test]
fn a_flipped_byte_anywhere_is_noticed_or_harmless() {
    try_damages(1, false, flip);
}

#[test]
fn a_flipped_byte_in_the_store_of_a_killed_manager_is_noticed_or_harmless() {
    try_damages(2, true, flip);
}

#[test]
fn a_page_that_is_lost_or_written_to_another_place_is_noticed() {
    try_damages(3, false, wipe);
    try_damages(4, true, wipe);
}

#[test]
fn a_store_that_is_missing_empty_or_cut_short_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let sample = sample(directory.path(), false);
    let path = directory.path().join("store.redb");
    let refused = |path: &Path| match EmbeddedStore::open(path).and_then(|store| all(&store)) {
        Err(StoreError::Damaged { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    assert!(refused(&path).contains("missing"));
    fs::write(path.with_extension("log"), &sample.log).unwrap();
    let length = sample.bytes.len();
    for length in [0, 1, HEADER, PAGE, length / 2, length - PAGE, length - 1] {
        fs::write(&path, &sample.bytes[..length]).unwrap();
        refused(&path);
        fs::remove_file(&path).unwrap();
    }
    fs::write(&path, vec![0; length]).unwrap();
    refused(&path);
}

#[test]
fn records_that_are_whole_but_not_those_that_were_stored_together_are_refused() {
    // What redb itself can't see: a store whose records were changed through redb, one by one.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let make = || {
        let _ = fs::remove_file(&path);
        let mut store = EmbeddedStore::create(&path).unwrap();
        let mut batch = Batch::default();
        batch.put(Table::Inode, b"a", b"first".to_vec());
        batch.put(Table::Inode, b"b", b"second".to_vec());
        store.commit(&batch).unwrap();
    };
    type Change = fn(&mut redb::Table<'_, &[u8], &[u8]>);
    let changes: [Change; 3] = [
        |records| drop(records.remove(&b"\x01a"[..]).unwrap()),
        |records| {
            let stored = records.get(&b"\x01a"[..]).unwrap().unwrap().value().to_vec();
            drop(records.insert(&b"\x01b"[..], stored.as_slice()).unwrap());
        },
        |records| drop(records.remove(&b"\xff"[..]).unwrap()),
    ];
    for change in changes {
        make();
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        change(&mut transaction.open_table(redb::TableDefinition::new("records")).unwrap());
        transaction.commit().unwrap();
        drop(database);
        let refused = EmbeddedStore::open(&path).and_then(|store| all(&store));
        assert!(matches!(refused, Err(StoreError::Damaged { .. })), "{refused:?}");
    }
}

fn load(store: &MemoryStore) -> Result<Core, StoreError> {
    let setting = Setting {
        new_pool: PoolId([7; 16]),
        new_key: MomentKey([7; 32]),
        owner: (0, 0),
        pid: 1,
        start: 1,
        timing: Timing::default(),
        steps: 64,
    };
    Core::load(store, setting, Now::default())
}

fn make_directory(core: &mut Core, parent: Ino, name: &str) -> Ino {
    let (name, target) = (name.to_owned(), String::new());
    let kind = FileKind::Directory;
    let id = OpId([u8::try_from(parent.0).unwrap(); 16]);
    let change = Change::Make { parent, name, kind, mode: 0o755, uid: 0, gid: 0, target };
    match core.handle(ManagerRequest::Change { id, change }, Now::default()).unwrap() {
        ManagerReply::Entry(attr) => attr.ino,
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_whose_directories_lie_in_themselves_are_refused() {
    let mut store = MemoryStore::default();
    let mut core = load(&store).unwrap();
    let above = make_directory(&mut core, Ino::ROOT, "above");
    let below = make_directory(&mut core, above, "below");
    store.commit(&core.take_changes()).unwrap();
    assert!(load(&store).is_ok());
    let key = |parent: Ino, name: &str| [&parent.0.to_be_bytes(), name.as_bytes()].concat();
    let stored = [vec![Table::Entry as u8], key(Ino::ROOT, "above")].concat();
    let entry = all(&store).unwrap()[&stored].clone();
    let mut batch = Batch::default();
    batch.put(Table::Entry, &key(below, "again"), entry);
    let mut twice = store.copy();
    twice.commit(&batch).unwrap();
    assert!(load(&twice).is_err_and(|error| error.to_string().contains("two names")));
    batch.remove(Table::Entry, &key(Ino::ROOT, "above"));
    let mut circle = store.copy();
    circle.commit(&batch).unwrap();
    assert!(load(&circle).is_err_and(|error| error.to_string().contains("below the root")));
}
