//! Near copies in a store: a cache in the order in which they came, that gives way to everything else, on real files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use stdchk_benefactor::store::{Donation, Store, StoreError};
use stdchk_model::message::benefactor::BenefactorLoad;
use stdchk_model::{BlockId, ChunkId, ChunkRef, Code, Encoding, Maker};
use stdchk_net::{Buffer, BufferPool};
use stdchk_protect::Blocks;

const MIB: u64 = 1 << 20;
const SEGMENT: u64 = 4 << 20;
/// What a chunk is long here, and what its copy takes with its header.
const CHUNK: usize = (1 << 20) - 4096;
const CHUNK_TAKES: u64 = 1 << 20;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self, donated_bytes: u64, near_bytes: u64) -> Store {
        let donation = Donation { donated_bytes, floor_bytes: 0 };
        self.open_with(donation, near_bytes)
    }

    fn open_with(&self, donation: Donation, near_bytes: u64) -> Store {
        let store = Store::open(&self.0.path().join("segments"), donation, SEGMENT).unwrap().0;
        let store = store.with_near(&self.near(), near_bytes);
        store.learn_near();
        store
    }

    fn near(&self) -> PathBuf {
        self.0.path().join("near")
    }

    /// Bytes that files of near copies have.
    fn near_on_disk(&self) -> u64 {
        files(&self.near()).iter().map(|path| std::fs::metadata(path).unwrap().len()).sum()
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        std::fs::read_dir(folder).map_or(Vec::new(), |all| all.map(|entry| entry.unwrap().path()).collect());
    all.sort();
    all
}

fn content(seed: u8) -> Vec<u8> {
    let mut bytes = vec![0; CHUNK];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}

fn chunk(seed: u8) -> ChunkRef {
    ChunkRef { id: ChunkId::of(&content(seed)), length: u32::try_from(CHUNK).unwrap() }
}

fn buffer(bytes: &[u8]) -> Buffer {
    let mut buffer = BufferPool::new(8 << 20).try_take(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

fn put_near(store: &Store, seed: u8) -> Result<bool, StoreError> {
    store.put_near(chunk(seed).id, &Encoding::plain(chunk(seed)), &mut buffer(&content(seed)))
}

fn put(store: &Store, seed: u8) -> Result<bool, StoreError> {
    store.put(BlockId::plain(chunk(seed).id), Encoding::plain(chunk(seed)), &mut buffer(&content(seed)))
}

fn get_near(store: &Store, seed: u8) -> Option<Vec<u8>> {
    let found = store.find_near(chunk(seed).id).ok()?;
    let mut buffer = BufferPool::new(8 << 20).try_take(found.span()).unwrap();
    let (_, range) = store.read_near(&found, &mut buffer).ok()?;
    Some(buffer.get(range).unwrap().to_vec())
}

/// Which of the first chunks have near copies, each of which is right.
fn near(store: &Store, seeds: std::ops::Range<u8>) -> Vec<u8> {
    let has = |seed: &u8| match get_near(store, *seed) {
        None => false,
        Some(bytes) => {
            assert_eq!(bytes, content(*seed));
            true
        }
    };
    seeds.filter(has).collect()
}

fn near_bytes(store: &Store) -> u64 {
    store.load().near_bytes
}

#[test]
fn the_oldest_go_for_new_ones_and_a_restart_finds_the_others() {
    let place = Place::new();
    let store = place.open(1 << 30, 8 * MIB);
    for seed in 0..30 {
        assert!(!put_near(&store, seed).unwrap() && put_near(&store, seed).unwrap());
        assert!(near_bytes(&store) <= 8 * MIB && place.near_on_disk() <= near_bytes(&store));
    }
    let kept = near(&store, 0..30);
    assert!(kept.len() >= 4 && *kept.first().unwrap() == 30 - u8::try_from(kept.len()).unwrap(), "{kept:?}");
    drop(store);
    let store = place.open(1 << 30, 8 * MIB);
    assert_eq!(near(&store, 0..30), kept);
    put_near(&store, 30).unwrap();
    assert!(near(&store, 0..31).ends_with(&[29, 30]));
    drop(store);
    // Less is allowed, or none.
    let store = place.open(1 << 30, 4 * MIB);
    assert!(near_bytes(&store) <= 4 * MIB && near(&store, 0..31).ends_with(&[30]));
    drop(store);
    let store = place.open(1 << 30, 0);
    assert_eq!((near_bytes(&store), files(&place.near())), (0, Vec::new()));
    assert!(matches!(put_near(&store, 1), Err(StoreError::NoRoom(_))));
}

#[test]
fn they_are_in_nothing_that_the_manager_hears_of_but_one_number() {
    let place = Place::new();
    let store = place.open(64 * MIB, 32 * MIB);
    put(&store, 100).unwrap();
    store.sync().unwrap();
    let (before, changes) = (store.load(), store.take_changes());
    (0..10).for_each(|seed| assert!(!put_near(&store, seed).unwrap()));
    assert!(near_bytes(&store) >= 10 * CHUNK_TAKES);
    assert_eq!(BenefactorLoad { near_bytes: 0, ..store.load() }, before);
    assert_eq!(store.inventory().1.len(), 1);
    assert!(!store.is_unsynced() && changes.1.unwrap().added.len() == 1);
    assert_eq!(store.take_changes().1.unwrap(), Default::default());
    // A miss isn't told either, and the same chunk may be a block as well.
    assert!(store.find_near(chunk(50).id).is_err());
    assert!(!put(&store, 3).unwrap());
    assert_eq!(store.take_changes().1.unwrap(), Default::default());
    assert!(near(&store, 3..4) == [3]);
}

#[test]
fn what_is_donated_is_enough_for_both_and_blocks_come_first() {
    let place = Place::new();
    let donated = 24 * MIB;
    let store = place.open(donated, donated);
    let taken = |store: &Store| {
        let load = store.load();
        (load.used_bytes, load.near_bytes)
    };
    (0..40).for_each(|seed| {
        put_near(&store, seed).unwrap();
        let (used, near) = taken(&store);
        assert!(used + near <= donated);
    });
    assert!(taken(&store).1 > donated / 2);
    // As many as fit without any near copy.
    let empty = Place::new();
    let alone = empty.open(donated, 0);
    for seed in 100..130 {
        let expected = put(&alone, seed).is_ok();
        assert_eq!(put(&store, seed).is_ok(), expected, "{seed}");
        let (used, near) = taken(&store);
        assert!(used + near <= donated, "{used} + {near}");
        assert_eq!(used, taken(&alone).0);
    }
    assert!(put_near(&store, 1).is_err());
}

#[test]
fn they_go_before_anything_is_owed_to_the_owner() {
    let place = Place::new();
    let floor_bytes = 16 * MIB;
    let store = place.open_with(Donation { donated_bytes: 1 << 30, floor_bytes }, 512 * MIB);
    put(&store, 100).unwrap();
    (0..12).for_each(|seed| assert!(!put_near(&store, seed).unwrap()));
    // The owner's files leave less than the floor, and near copies make up for it.
    store.limit_free_bytes(floor_bytes - 4 * MIB);
    let load = store.load();
    assert_eq!(load.owed_bytes, 0, "{load:?}");
    assert!(load.free_bytes > 0);
    // The file system that is made up here never has more: all go, and then blocks are owed.
    store.tend_near(true);
    assert_eq!((near_bytes(&store), place.near_on_disk()), (0, 0));
    assert!(store.load().owed_bytes > 0);
    assert!(put_near(&store, 1).is_err());
    store.limit_free_bytes(u64::MAX);
    store.load();
    assert!(!put_near(&store, 1).unwrap());
    store.tend_near(true);
    assert_eq!(near(&store, 0..2), [1]);
    store.tend_near(false);
    assert_eq!((near(&store, 0..2), files(&place.near())), (Vec::new(), Vec::new()));
}

#[test]
fn wrong_bytes_are_neither_kept_nor_served_and_say_nothing_of_the_disk() {
    let place = Place::new();
    let store = place.open(1 << 30, 64 * MIB);
    let wrong = store.put_near(chunk(1).id, &Encoding::plain(chunk(1)), &mut buffer(&content(2)));
    assert!(matches!(wrong, Err(StoreError::Mismatch { .. })), "{wrong:?}");
    let fragments = Blocks::of(chunk(1), 0, content(1).into(), Code::erasure(2, 1).unwrap(), Maker::LOCAL);
    let fragment = fragments.stored(0).unwrap();
    let wrong = store.put_near(chunk(1).id, &fragments.encoding, &mut buffer(fragment));
    assert!(matches!(wrong, Err(StoreError::Mismatch { .. })), "{wrong:?}");
    (0..8).for_each(|seed| assert!(!put_near(&store, seed).unwrap()));
    // In each record one byte of its content.
    for path in files(&place.near()) {
        let mut bytes = std::fs::read(&path).unwrap();
        for at in (8192..bytes.len()).step_by(CHUNK) {
            *bytes.get_mut(at).unwrap() ^= 1;
        }
        std::fs::write(&path, &bytes).unwrap();
    }
    assert_eq!(near(&store, 0..8), Vec::<u8>::new());
    assert!(!store.has_near(&chunk(1).id) && !store.is_often_damaged() && !store.load().disk_failed);
    drop(store);
    // They don't come back, and can be kept again.
    let store = place.open(1 << 30, 64 * MIB);
    assert!((0..8).all(|seed| !store.has_near(&chunk(seed).id)));
    (0..8).for_each(|seed| assert!(!put_near(&store, seed).unwrap()));
    assert_eq!(near(&store, 0..8).len(), 8);
}

#[test]
fn who_takes_their_folder_away_costs_nothing_else() {
    let place = Place::new();
    let store = place.open(1 << 30, 64 * MIB);
    (0..8).for_each(|seed| assert!(!put_near(&store, seed).unwrap()));
    std::fs::remove_dir_all(place.near()).unwrap();
    // As long as its files are open here they may be read; nothing else is.
    near(&store, 0..8);
    put(&store, 100).unwrap();
    store.tend_near(true);
    assert_eq!(near_bytes(&store), 0);
    assert_eq!(near(&store, 0..8), Vec::<u8>::new());
    assert!(!put_near(&store, 9).unwrap());
    assert_eq!(near(&store, 0..10), [9]);
    store.check_presence().unwrap();
    store.sync().unwrap();
}

#[test]
fn many_threads_keep_and_read_while_segments_go() {
    let place = Place::new();
    let store = place.open(24 * MIB, 12 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..30_u8 {
                    let seed = (thread * 7 + round) % 40;
                    // A segment that takes records may go with what is being written into it.
                    let _ = put_near(store, seed);
                    near(store, seed..seed + 1);
                    if round % 10 == thread {
                        put(store, 200 + thread).unwrap();
                    }
                    store.load();
                }
            });
        }
    });
    let load = store.load();
    assert!(load.used_bytes + load.near_bytes <= 24 * MIB, "{load:?}");
    assert!(place.near_on_disk() <= load.near_bytes);
    // Whatever went amid it, near copies are kept.
    assert!(!put_near(&store, 41).unwrap());
    drop(store);
    let store = place.open(24 * MIB, 12 * MIB);
    assert!(!near(&store, 0..42).is_empty());
}
