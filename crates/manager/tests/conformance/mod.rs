//! What every store must do, whatever engine it is.
#![allow(clippy::cast_possible_truncation, reason = "numbers of rounds are small")]
#![allow(dead_code, reason = "not every test file uses all of it")]

use std::collections::BTreeMap;

use stdchk_manager::store::{Batch, Snapshot, Store, StoreError, Table};

pub type Records = BTreeMap<Vec<u8>, Vec<u8>>;

pub fn all(store: &dyn Store) -> Records {
    let (mut records, mut last) = (Records::new(), Vec::new());
    store
        .load(&mut |key, record| {
            assert!(key > &last[..], "records come in order of their keys");
            last = key.to_vec();
            records.insert(key.to_vec(), record.to_vec());
            Ok(())
        })
        .unwrap();
    records
}

/// All that a snapshot holds, read in steps of so many bytes.
pub fn all_of(snapshot: &dyn Snapshot, bytes: usize) -> Records {
    let (mut records, mut after) = (Records::new(), Vec::new());
    loop {
        let read = snapshot.read(&after, bytes).unwrap();
        let Some((last, _)) = read.last() else { return records };
        after = last.clone();
        for (key, record) in read {
            assert!(records.last_key_value().is_none_or(|(before, _)| *before < key));
            records.insert(key, record);
        }
    }
}

/// What every implementation must pass; `reopen` gives the store as a later process would find it.
pub fn conforms(mut store: Box<dyn Store>, reopen: impl Fn(Box<dyn Store>) -> Box<dyn Store>) {
    assert!(all(&store).is_empty());
    let mut batch = Batch::default();
    assert!(batch.is_empty());
    batch.put(Table::Version, b"b", b"1".to_vec());
    batch.put(Table::Inode, b"a", vec![0; 100_000]);
    batch.put(Table::Inode, b"", Vec::new());
    batch.put(Table::Entry, b"gone", b"x".to_vec());
    batch.remove(Table::Entry, b"gone");
    batch.remove(Table::Entry, b"never there");
    assert_eq!(store.sequence(), 0);
    store.commit(&batch).unwrap();
    store.commit(&Batch::default()).unwrap();
    assert_eq!(store.sequence(), 1);
    let expected = |version: &[u8]| {
        let inode = |name: &[u8]| [&[Table::Inode as u8], name].concat();
        let version = (vec![Table::Version as u8, b'b'], version.to_vec());
        Records::from([version, (inode(b"a"), vec![0; 100_000]), (inode(b""), Vec::new())])
    };
    assert_eq!(all(&store), expected(b"1"));
    let refused = store.load(&mut |_, _| Err(StoreError::new("visiting", "no")));
    assert!(refused.is_err(), "a visitor's error ends the loading");
    store = reopen(store);
    assert_eq!((all(&store), store.sequence()), (expected(b"1"), 1));
    let snapshot = store.snapshot().unwrap();
    let mut batch = Batch::default();
    batch.remove(Table::Version, b"b");
    batch.put(Table::Version, b"b", b"2".to_vec());
    store.commit(&batch).unwrap();
    assert_eq!(all(&store), expected(b"2"));
    for bytes in [1, 1 << 20] {
        assert_eq!(all_of(&*snapshot, bytes), expected(b"1"), "what is committed later is not in it");
    }
    assert_eq!(snapshot.sequence(), 1);
    drop(snapshot);
    assert_eq!(all_of(&*store.snapshot().unwrap(), 10), expected(b"2"));
    store = reopen(store);
    assert_eq!(all(&store), expected(b"2"));
    conforms_with_large_batches(store, reopen);
}

/// More records than one transaction of any engine takes, and records that are longer.
fn conforms_with_large_batches(mut store: Box<dyn Store>, reopen: impl Fn(Box<dyn Store>) -> Box<dyn Store>) {
    let record = |length: usize, seed: u8| -> Vec<u8> {
        (0..length).map(|at| seed.wrapping_add((at / 251 * 7 + at) as u8)).collect()
    };
    let mut expected = all(&store);
    let sequence = store.sequence();
    let rounds: [&[(u32, Option<usize>)]; 4] = [
        &[(0, Some(3 << 20)), (1, Some(2049)), (2, Some(2048)), (3, Some(600_000))],
        &[(0, Some(300_000)), (1, Some(10)), (2, Some(4_000_000)), (3, None)],
        &[(0, Some(5_000_000)), (1, None), (2, Some(1))],
        &[(0, None), (3, Some(2_500_000))],
    ];
    for (round, changes) in rounds.into_iter().enumerate() {
        let mut batch = Batch::default();
        let mut set = |number: u32, content: Option<Vec<u8>>| {
            let key = number.to_be_bytes();
            match &content {
                Some(record) => batch.put(Table::Names, &key, record.clone()),
                None => batch.remove(Table::Names, &key),
            }
            let full = [&[Table::Names as u8], &key[..]].concat();
            match content {
                Some(record) => expected.insert(full, record),
                None => expected.remove(&full),
            };
        };
        for (number, length) in changes {
            set(*number, length.map(|length| record(length, round as u8)));
        }
        for number in 100..100 + 400 * (round as u32 % 2 + 1) {
            set(number, Some(vec![round as u8; 40]));
        }
        store.commit(&batch).unwrap();
        assert!(all(&store) == expected, "round {round}");
        let snapshot = store.snapshot().unwrap();
        assert!(all_of(&*snapshot, 100_000) == expected, "snapshot of round {round}");
        drop(snapshot);
        store = reopen(store);
        assert!(all(&store) == expected, "round {round}, opened anew");
        assert_eq!(store.sequence(), sequence + 1 + round as u64);
    }
}
