//! The store against a model, against flipped bits and against torn writes, on real files.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use stdchk_benefactor::store::{Cursor, Donation, Store, StoreError};
use stdchk_model::{BlockId, ChunkId, ChunkRef, Encoding};
use stdchk_net::BufferPool;

const DONATION: Donation = Donation { donated_bytes: 1 << 30, floor_bytes: 0 };
/// Small segments, so that a few blocks fill one.
const SEGMENT: u64 = 64 << 10;

fn content(seed: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}

fn block_of(bytes: &[u8]) -> BlockId {
    BlockId::plain(ChunkId::of(bytes))
}

fn open(directory: &Path) -> Store {
    Store::open(directory, DONATION, SEGMENT).unwrap().0
}

fn put(store: &Store, bytes: &[u8]) -> Result<bool, StoreError> {
    let mut buffer = BufferPool::new(8 << 20).try_take(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    let block = block_of(bytes);
    let chunk = ChunkRef { id: block.chunk, length: u32::try_from(bytes.len()).unwrap() };
    store.put(block, Encoding::plain(chunk), &mut buffer)
}

fn put_all(store: &Store, contents: &[Vec<u8>]) {
    for bytes in contents {
        put(store, bytes).unwrap();
    }
}

fn get(store: &Store, block: BlockId) -> Result<Vec<u8>, StoreError> {
    let found = store.find(block)?;
    let mut buffer = BufferPool::new(8 << 20).try_take(found.span()).unwrap();
    let (_, range) = store.read(&found, &mut buffer)?;
    Ok(buffer.get(range).unwrap().to_vec())
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// Space that the segments take on the disk, as `du` counts.
fn disk_usage(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    segments(directory).iter().map(|path| std::fs::metadata(path).unwrap().blocks() * 512).sum()
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize),
    Remove(u8, usize),
    Sync,
    Reopen,
    Scrub,
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop::sample::select(vec![1usize, 3936, 3937, 4096, 20_000, 70_000]);
    prop_oneof![
        6 => (0u8..12, length.clone()).prop_map(|(seed, length)| Step::Put(seed, length)),
        4 => (0u8..12, length).prop_map(|(seed, length)| Step::Remove(seed, length)),
        1 => Just(Step::Sync),
        1 => Just(Step::Reopen),
        1 => Just(Step::Scrub),
    ]
}

/// Space is accounted as the disk counts it, up to the file system's own map of a file with many holes: on ext4 a unit
/// per segment with as few holes as these tests make.
fn check_space(store: &Store, directory: &Path) {
    let (used, on_disk) = (store.load().used_bytes, disk_usage(directory));
    let slack = 4096 * segments(directory).len() as u64;
    assert!(used.abs_diff(on_disk) <= slack, "{used} bytes accounted, {on_disk} on the disk, slack {slack}");
}

fn check(store: &Store, model: &HashMap<BlockId, Vec<u8>>, directory: &Path) {
    assert_eq!(store.load().blocks, model.len() as u64);
    for (block, bytes) in model {
        assert!(get(store, *block).unwrap() == *bytes);
    }
    check_space(store, directory);
}

fn scrub_all(store: &Store) {
    let (buffers, mut cursor) = (BufferPool::new(16 << 20), Cursor::default());
    while let Some((next, _)) = store.scrub(cursor, &buffers).unwrap() {
        cursor = next;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_store_holds_exactly_what_was_put_and_not_removed(steps in prop::collection::vec(step(), 1..60)) {
        let place = tempfile::tempdir().unwrap();
        let mut store = open(place.path());
        let mut model = HashMap::new();
        for step in steps {
            match step {
                Step::Put(seed, length) => {
                    let bytes = content(seed, length);
                    let known = put(&store, &bytes).unwrap();
                    prop_assert_eq!(known, model.insert(block_of(&bytes), bytes).is_some());
                }
                Step::Remove(seed, length) => {
                    let block = block_of(&content(seed, length));
                    let removed = store.remove(&[block], u64::MAX).unwrap();
                    prop_assert_eq!(removed == 1, model.remove(&block).is_some());
                }
                Step::Sync => store.sync().unwrap(),
                Step::Reopen => {
                    drop(store);
                    store = open(place.path());
                }
                Step::Scrub => scrub_all(&store),
            }
        }
        store.sync().unwrap();
        check(&store, &model, place.path());
        drop(store);
        check(&open(place.path()), &model, place.path());
    }
}

/// Flips one bit of a file.
fn flip(path: &Path, offset: u64, bit: u32) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << bit)], offset).unwrap();
    file.sync_all().unwrap();
}

/// A store with one block of `length` bytes, in a segment that is sealed.
fn sealed_with(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    put(&store, bytes).unwrap();
    store.sync().unwrap();
    drop(store);
    let path = segments(place.path()).remove(0);
    drop(open(place.path()));
    (place, path)
}

#[test]
fn a_flipped_bit_anywhere_in_a_record_is_never_served_nor_comes_back() {
    let bytes = content(1, 5_000);
    let block = block_of(&bytes);
    let header = (0..160u64).map(|offset| 4096 + offset);
    let payload = [0, 1, 2_000, 4_095, 4_096, 4_999].map(|offset| 8192 + offset);
    for (index, offset) in header.chain(payload).enumerate() {
        let (place, path) = sealed_with(&bytes);
        flip(&path, offset, u32::try_from(index % 8).unwrap());
        let store = open(place.path());
        let refused = get(&store, block).unwrap_err();
        assert!(matches!(refused, StoreError::Damaged(_) | StoreError::Missing(_)), "{refused}");
        drop(store);
        let store = open(place.path());
        assert!(matches!(get(&store, block), Err(StoreError::Missing(_))), "offset {offset}");
        assert!(!put(&store, &bytes).unwrap());
        assert!(get(&store, block).unwrap() == bytes);
    }
}

#[test]
fn damage_under_a_running_store_is_found_by_scrubbing_and_reported_once() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let contents: Vec<Vec<u8>> = (0..8).map(|seed| content(seed, 9_000)).collect();
    put_all(&store, &contents);
    store.sync().unwrap();
    assert_eq!(store.take_changes().1.unwrap().added.len(), 8);
    flip(&segments(place.path())[0], 8192 + 17, 3);
    scrub_all(&store);
    let changes = store.take_changes().1.unwrap();
    assert_eq!((changes.removed, changes.damaged), (vec![block_of(&contents[0])], 1));
    assert_eq!(store.load().blocks, 7);
}

/// The descriptor under which this process has a file open.
fn descriptor_of(path: &Path) -> i32 {
    let mut open = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let found = open.find(|link| std::fs::read_link(link).is_ok_and(|target| target == path));
    found.unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// What a read of the block gives while every read and write of its segment fails as those of the file `broken` do.
#[expect(unsafe_code, reason = "the store's own descriptor is made to refuse")]
fn get_while_broken(store: &Store, segment: &Path, broken: &str, block: BlockId) -> StoreError {
    // SAFETY: the store has it open, and keeps it: it is forgotten below.
    let mut disk = unsafe { OwnedFd::from_raw_fd(descriptor_of(segment)) };
    let aside = rustix::io::dup(&disk).unwrap();
    rustix::io::dup2(std::fs::File::open(broken).unwrap(), &mut disk).unwrap();
    let refused = get(store, block).unwrap_err();
    rustix::io::dup2(&aside, &mut disk).unwrap();
    std::mem::forget(disk);
    refused
}

#[test]
fn a_disk_that_can_not_be_read_for_a_while_costs_no_block() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().canonicalize().unwrap();
    let store = open(&directory);
    let bytes = content(1, 9_000);
    put(&store, &bytes).unwrap();
    store.sync().unwrap();
    let segment = segments(&directory)[0].clone();
    // The system refuses: the block stays.
    let refused = get_while_broken(&store, &segment, "/", block_of(&bytes));
    assert!(matches!(refused, StoreError::Io { .. }), "{refused}");
    assert!(get(&store, block_of(&bytes)).unwrap() == bytes);
    // The disk is gone: the manager is told, and what it has is there again after a restart.
    let refused = get_while_broken(&store, &segment, "/proc/self/mem", block_of(&bytes));
    assert!(matches!(refused, StoreError::Damaged(_)), "{refused}");
    assert_eq!(store.load().blocks, 0);
    drop(store);
    assert!(get(&open(&directory), block_of(&bytes)).unwrap() == bytes);
}

#[test]
fn small_blocks_cost_a_search_for_damage_what_they_cost_a_disk() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    put_all(&store, &(0..40).map(|seed| content(seed, 100)).collect::<Vec<_>>());
    let (buffers, mut cursor, mut steps) = (BufferPool::new(16 << 20), store.segment_by_chance(u64::MAX), 0);
    let cost = loop {
        let (next, cost) = store.scrub_for(cursor, &buffers, 1 << 20).unwrap();
        let Some(next) = next else { break cost };
        assert!(cost >= 1 << 20 && next != cursor, "{cost} bytes, {next:?}");
        (cursor, steps) = (next, steps + 1);
    };
    // Sixteen places of a disk take as long as a mebibyte in one.
    assert_eq!(steps, 2);
    assert!(cost < 1 << 20, "{cost}");
}

#[test]
fn a_damaged_head_of_a_segment_costs_no_block() {
    let bytes = content(1, 5_000);
    for offset in [0, 9, 15, 20, 70] {
        let (place, path) = sealed_with(&bytes);
        let store = open(place.path());
        put(&store, &content(2, 5_000)).unwrap();
        store.sync().unwrap();
        drop(store);
        flip(&path, offset, 1);
        assert!(get(&open(place.path()), block_of(&bytes)).unwrap() == bytes);
        // Both copies gone: other segments still know the store's key.
        flip(&path, 2048 + offset, 1);
        assert!(get(&open(place.path()), block_of(&bytes)).unwrap() == bytes);
    }
}

#[test]
fn torn_writes_are_dropped_and_everything_around_them_stays() {
    let contents: Vec<Vec<u8>> = (0..3).map(|seed| content(seed, 9_000)).collect();
    // Units of the segment: 0 head; 1-4, 5-8, 9-12 the records.
    for torn_unit in 5..9u64 {
        let place = tempfile::tempdir().unwrap();
        let store = open(place.path());
        put_all(&store, &contents);
        drop(store);
        let path = segments(place.path()).remove(0);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 4096], torn_unit * 4096).unwrap();
        file.set_len(11 * 4096 + 100).unwrap();
        drop(file);
        for _ in 0..2 {
            let store = open(place.path());
            assert!(get(&store, block_of(&contents[0])).unwrap() == contents[0]);
            for lost in &contents[1..] {
                assert!(matches!(get(&store, block_of(lost)), Err(StoreError::Missing(_))), "{torn_unit}");
            }
        }
    }
}

#[test]
fn a_record_inside_a_blocks_content_is_no_record() {
    let inner = content(1, 5_000);
    let (place, path) = sealed_with(&inner);
    // Somebody stores a copy of the segment file itself as blocks, and a header is lost.
    let copy = std::fs::read(&path).unwrap();
    let store = open(place.path());
    put(&store, &copy).unwrap();
    store.sync().unwrap();
    store.remove(&[block_of(&inner)], u64::MAX).unwrap();
    let last = segments(place.path()).pop().unwrap();
    drop(store);
    flip(&last, 4096, 0);
    let store = open(place.path());
    assert_eq!(store.load().blocks, 0);
}

#[test]
fn a_mostly_dead_segment_is_rewritten_and_its_file_goes() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let contents: Vec<Vec<u8>> = (0..12).map(|seed| content(seed, 9_000)).collect();
    put_all(&store, &contents);
    store.sync().unwrap();
    let first = segments(place.path()).remove(0);
    // Two of the three blocks of the first segment are damaged: their space isn't given back piece by piece.
    for record in 0..2u64 {
        flip(&first, 4096 + record * 4 * 4096 + 4096, 0);
    }
    scrub_all(&store);
    assert_eq!(store.load().blocks, 10);
    let buffers: Arc<BufferPool> = BufferPool::new(8 << 20);
    let found = store.find(block_of(&contents[2])).unwrap();
    assert_eq!(store.compact(&buffers, &|_| {}).unwrap(), 4 * 4096);
    assert!(!first.exists());
    assert!(get(&store, block_of(&contents[2])).unwrap() == contents[2]);
    // Who found it before reads it where it is now.
    let mut buffer = buffers.try_take(found.span()).unwrap();
    let (_, range) = store.read(&found, &mut buffer).unwrap();
    assert_eq!(buffer.get(range).unwrap(), contents[2]);
    check_space(&store, place.path());
    drop(store);
    let store = open(place.path());
    for bytes in &contents[2..] {
        assert!(get(&store, block_of(bytes)).unwrap() == *bytes);
    }
}

#[test]
fn a_segment_whose_rewriting_was_cut_short_goes_all_the_same() {
    let place = tempfile::tempdir().unwrap();
    let donation = Donation { donated_bytes: 1 << 30, floor_bytes: 0 };
    let store = Store::open(place.path(), donation, 128 << 10).unwrap().0;
    let contents: Vec<Vec<u8>> = (0..20).map(|seed| content(seed, 9_000)).collect();
    put_all(&store, &contents);
    store.sync().unwrap();
    let first = segments(place.path()).remove(0);
    // Most of the first segment is damaged, and found to be.
    for record in 2..7u64 {
        flip(&first, 4096 + record * 4 * 4096 + 4096, 0);
    }
    scrub_all(&store);
    assert_eq!(store.load().blocks, 15);
    // One more can't be read while the rest is moved away: the first one is by then.
    flip(&first, 4096 + 4 * 4096 + 4096, 0);
    let buffers: Arc<BufferPool> = BufferPool::new(8 << 20);
    store.compact(&buffers, &|_| {}).unwrap_err();
    check_space(&store, place.path());
    assert!(get(&store, block_of(&contents[0])).unwrap() == contents[0]);
    scrub_all(&store);
    while store.compact(&buffers, &|_| {}).unwrap() > 0 {}
    assert!(!first.exists());
    assert_eq!(store.load().blocks, 14);
    assert!(get(&store, block_of(&contents[0])).unwrap() == contents[0]);
    check_space(&store, place.path());
}

#[test]
fn segments_of_which_little_is_left_do_not_pile_up() {
    let place = tempfile::tempdir().unwrap();
    let donation = Donation { donated_bytes: 1 << 30, floor_bytes: 0 };
    let store = Store::open(place.path(), donation, 512 << 10).unwrap().0;
    let contents: Vec<Vec<u8>> = (0..250).map(|seed| content(seed, 50_000)).collect();
    put_all(&store, &contents);
    store.sync().unwrap();
    let before = segments(place.path()).len();
    assert!(before > 19);
    // One block of ten stays, about one in each segment.
    let (kept, gone): (Vec<_>, Vec<_>) =
        contents.iter().enumerate().partition(|(number, _)| number % 10 == 0);
    let blocks: Vec<BlockId> = gone.iter().map(|(_, bytes)| block_of(bytes)).collect();
    assert_eq!(store.remove(&blocks, u64::MAX).unwrap(), 225);
    let buffers: Arc<BufferPool> = BufferPool::new(8 << 20);
    while store.compact(&buffers, &|_| {}).unwrap() > 0 {}
    assert!(segments(place.path()).len() <= 18, "{before} segments became {}", segments(place.path()).len());
    check_space(&store, place.path());
    drop(store);
    let store = open(place.path());
    for (_, bytes) in kept {
        assert!(get(&store, block_of(bytes)).unwrap() == *bytes);
    }
}

#[test]
fn the_owners_floor_holds_and_removals_make_room() {
    let place = tempfile::tempdir().unwrap();
    let donation = Donation { donated_bytes: 100_000, floor_bytes: 0 };
    let (store, _) = Store::open(place.path(), donation, SEGMENT).unwrap();
    let mut stored = Vec::new();
    let refused = loop {
        let bytes = content(u8::try_from(stored.len()).unwrap(), 9_000);
        match put(&store, &bytes) {
            Ok(_) => stored.push(block_of(&bytes)),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::NoRoom(_)) && stored.len() >= 4, "{refused}");
    assert!(disk_usage(place.path()) <= 100_000);
    store.remove(&stored, u64::MAX).unwrap();
    put(&store, &content(99, 9_000)).unwrap();
    drop(store);
    let floor = Donation { donated_bytes: 1 << 30, floor_bytes: u64::MAX };
    let (store, _) = Store::open(place.path(), floor, SEGMENT).unwrap();
    let refused = put(&store, &content(100, 9_000)).unwrap_err();
    assert!(refused.to_string().contains("the owner keeps"), "{refused}");
    assert_eq!(store.load().free_bytes, 0);
    assert!(get(&store, block_of(&content(99, 9_000))).is_ok(), "what is stored is served all the same");
}

#[test]
fn the_heads_of_segments_count_as_taken() {
    /// Bytes of a unit: the head of a segment, or a small block.
    const UNIT: u64 = 4096;
    let place = tempfile::tempdir().unwrap();
    let donated_bytes = 7 * UNIT;
    let open = || {
        let donation = Donation { donated_bytes, floor_bytes: 0 };
        Store::open(place.path(), donation, 4 * UNIT).unwrap().0
    };
    let store = open();
    let stored = (0..20).take_while(|seed| put(&store, &content(*seed, 300)).is_ok()).count();
    assert_eq!(stored, 5, "two segments have a head each");
    assert_eq!(store.load().used_bytes, donated_bytes);
    store.sync().unwrap();
    drop(store);
    let store = open();
    let refused = put(&store, &content(0, 300)).unwrap_err();
    assert!(matches!(refused, StoreError::NoRoom(_)), "the first put of a life makes a segment: {refused}");
    assert!(store.load().used_bytes <= donated_bytes);
    assert!(get(&store, block_of(&content(0, 300))).is_ok());
}

#[test]
fn many_threads_store_one_block_once() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let contents: Vec<Vec<u8>> = (0..50).map(|seed| content(seed, 9_000)).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| put_all(&store, &contents));
        }
    });
    store.sync().unwrap();
    assert_eq!(store.load().blocks, 50);
    check_space(&store, place.path());
    drop(store);
    assert_eq!(open(place.path()).load().blocks, 50);
}

#[test]
fn after_a_failed_sync_nothing_more_is_stored_and_reads_go_on() {
    let place = tempfile::tempdir().unwrap();
    let (directory, away) = (place.path().join("segments"), place.path().join("away"));
    let store = open(&directory);
    let [durable, doubtful, late] = [1, 2, 3].map(|seed| content(seed, 60_000));
    put(&store, &durable).unwrap();
    store.sync().unwrap();
    // Its segment can't be called durable while the directory is away.
    put(&store, &doubtful).unwrap();
    std::fs::rename(&directory, &away).unwrap();
    let failure = store.sync().unwrap_err();
    assert!(matches!(failure, StoreError::Gone(_)), "{failure}");
    std::fs::rename(&away, &directory).unwrap();
    for refused in [put(&store, &late).map(|_| ()), store.sync()] {
        assert!(matches!(&refused, Err(StoreError::Poisoned(_))), "{refused:?}");
    }
    assert_eq!(store.load().free_bytes, 0);
    for bytes in [&durable, &doubtful] {
        assert!(get(&store, block_of(bytes)).unwrap() == *bytes);
    }
    let reported: Vec<BlockId> = store.inventory().1.iter().map(|stored| stored.block).collect();
    assert_eq!(reported, [block_of(&durable)], "what may not be durable is not reported");
    drop(store);
    let store = open(&directory);
    assert!(get(&store, block_of(&durable)).unwrap() == durable);
    put(&store, &late).unwrap();
    store.sync().unwrap();
}

fn sequence(store: &Store) -> u64 {
    store.take_changes().0
}

#[test]
fn a_life_without_a_put_writes_nothing_and_sequences_never_go_back() {
    let place = tempfile::tempdir().unwrap();
    drop(open(place.path()));
    assert!(segments(place.path()).is_empty(), "nothing was put");
    let [kept, gone] = [1, 2].map(|seed| content(seed, 20_000));
    let mut last = 0;
    for round in 0..6 {
        let store = open(place.path());
        assert!(sequence(&store) >= last, "round {round}");
        // In turn: a new block, a block that is here, a block that goes again and leaves its segment empty, nothing.
        match round {
            0 => assert!(!put(&store, &kept).unwrap()),
            1 => assert!(put(&store, &kept).unwrap()),
            2 => {
                put(&store, &gone).unwrap();
                store.remove(&[block_of(&gone)], u64::MAX).unwrap();
            }
            _ => {
                let files = segments(place.path());
                let decided = sequence(&store);
                drop(store);
                let store = open(place.path());
                assert_eq!(segments(place.path()), files, "round {round}");
                assert!(put(&store, &kept).unwrap(), "round {round}");
                store.remove(&[block_of(&kept)], decided).unwrap();
                assert!(
                    get(&store, block_of(&kept)).is_ok(),
                    "round {round}: it was put after that was decided"
                );
                last = sequence(&store);
                assert!(last > decided);
                continue;
            }
        }
        store.sync().unwrap();
        assert!(sequence(&store) > last, "round {round}");
        last = sequence(&store);
    }
}

#[test]
fn what_is_put_into_a_folder_that_was_taken_away_never_counts_as_durable() {
    type Loss = fn(&Path);
    let losses: [(&str, Loss); 4] = [
        ("removed", |directory| std::fs::remove_dir_all(directory).unwrap()),
        ("moved", |directory| std::fs::rename(directory, directory.with_extension("old")).unwrap()),
        ("replaced", |directory| {
            std::fs::rename(directory, directory.with_extension("old")).unwrap();
            std::fs::create_dir(directory).unwrap();
        }),
        ("emptied", |directory| {
            segments(directory).iter().for_each(|file| std::fs::remove_file(file).unwrap())
        }),
    ];
    for (what, lose) in losses {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("segments");
        let store = open(&directory);
        let [before, after] = [1, 2].map(|seed| content(seed, 5_000));
        put(&store, &before).unwrap();
        store.sync().unwrap();
        store.check_presence().unwrap();
        lose(&directory);
        // Where it is noticed by the put, there is nothing to make durable.
        let refused = put(&store, &after).and_then(|_| store.sync());
        for refused in [refused, store.check_presence()] {
            assert!(matches!(refused, Err(StoreError::Gone(_))), "{what}: {refused:?}");
        }
        assert!(matches!(store.sync(), Err(StoreError::Poisoned(_))), "{what}");
        let reported: Vec<BlockId> = store.inventory().1.iter().map(|stored| stored.block).collect();
        assert_eq!(reported, [block_of(&before)], "{what}");
    }
}

#[test]
fn one_lost_segment_among_many_is_noticed_and_those_that_the_store_removes_are_no_loss() {
    let place = tempfile::tempdir().unwrap();
    let store = open(place.path());
    let contents: Vec<Vec<u8>> = (0..12).map(|seed| content(seed, 40_000)).collect();
    put_all(&store, &contents);
    store.sync().unwrap();
    let dead: Vec<BlockId> = contents.iter().take(4).map(|bytes| block_of(bytes)).collect();
    let before = segments(place.path());
    store.remove(&dead, u64::MAX).unwrap();
    let after = segments(place.path());
    assert!(after.len() < before.len(), "dead segments went");
    (0..2 * after.len()).for_each(|_| store.check_presence().unwrap());
    std::fs::remove_file(after.get(after.len() / 2).unwrap()).unwrap();
    let noticed = (0..after.len()).any(|_| matches!(store.check_presence(), Err(StoreError::Gone(_))));
    assert!(noticed, "after as many looks as there are segments");
}
