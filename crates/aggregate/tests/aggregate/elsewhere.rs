//! Containers that lie where reading is dear or fails in places: what is looked at, and what comes back all the same.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use stdchk_aggregate::{
    AggregateError, BlockCache, Container, FileEntry, Output, Packing, SetFile, pack_into,
};
use stdchk_formats::{Extent, Source};

/// Files of the set, and bytes of each.
const FILES: usize = 16;
const LENGTH: usize = 300_000;

/// Takes a container into memory.
#[derive(Default)]
struct Memory(Vec<u8>);

impl Output for Memory {
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<(), AggregateError> {
        assert_eq!(offset, self.0.len() as u64, "front to back");
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// A container far away: counts what is read of it, and can't give what lies in the lost ranges.
#[derive(Default)]
struct Far {
    bytes: Vec<u8>,
    lost: Mutex<Vec<Range<u64>>>,
    read: AtomicU64,
}

impl Source for Far {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset + buffer.len() as u64;
        self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        if self.lost.lock().unwrap().iter().any(|lost| lost.start < end && offset < lost.end) {
            return Err(io::Error::other("lost"));
        }
        self.bytes.read_at(offset, buffer)
    }
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[6]
    };
    (0..length).map(|_| next()).collect()
}

fn content(file: usize) -> Vec<u8> {
    noise(LENGTH, file as u64 + 1)
}

fn set_file(file: usize, content: Vec<u8>) -> SetFile {
    let size = content.len() as u64;
    let entry = FileEntry { name: format!("rank{file}"), size, mode: 0o640, modified_ns: 7 };
    SetFile { entry, source: Arc::new(content) }
}

fn set() -> Vec<SetFile> {
    (0..FILES).map(|file| set_file(file, content(file))).collect()
}

fn options() -> Packing<'static> {
    Packing { index: true, block_max: 512 << 10, threads: 2, ..Packing::default() }
}

fn packed() -> Far {
    let mut memory = Memory::default();
    let packed = pack_into(&set(), &mut memory, &options()).unwrap();
    assert_eq!((packed.files, packed.stored_bytes), (FILES as u64, memory.0.len() as u64));
    Far { bytes: memory.0, ..Far::default() }
}

fn open(far: &Arc<Far>) -> Result<Container, AggregateError> {
    let cache = Arc::new(BlockCache::new(1 << 20));
    Container::open_source(Path::new("far away"), Box::new(Arc::clone(far)), cache, [1; 16])
}

fn read(container: &Container, file: usize, range: Range<usize>) -> Result<Vec<u8>, AggregateError> {
    let mut bytes = Vec::new();
    let extent = Extent { offset: range.start as u64, length: range.len() as u64 };
    container.read(file, extent, &mut bytes).map(|()| bytes)
}

#[test]
fn who_reads_one_file_reads_its_blocks_and_the_end_of_the_container() {
    let far = Arc::new(packed());
    let container = open(&far).unwrap();
    let opening = far.read.swap(0, Ordering::Relaxed);
    assert!(opening < far.size() / 50, "{opening} of {} bytes were read to open it", far.size());
    assert_eq!(read(&container, 9, 1000..LENGTH).unwrap(), content(9)[1000..]);
    let reading = far.read.swap(0, Ordering::Relaxed);
    assert!(reading < 3 * (512 << 10), "{reading} bytes were read for {LENGTH}");
    assert_eq!(read(&container, 9, 0..10).unwrap(), content(9)[..10]);
    assert_eq!(far.read.load(Ordering::Relaxed), 0, "the block was kept");
    assert!(container.files().map(|(name, _)| name.to_owned()).eq((0..FILES).map(|n| format!("rank{n}"))));
}

#[test]
fn the_container_is_compared_with_what_was_packed() {
    let container = open(&Arc::new(packed())).unwrap();
    container.compare_with(&set(), &options()).unwrap();
    let mut other = set();
    let mut changed = content(5);
    changed[LENGTH - 1] ^= 1;
    other[5] = set_file(5, changed);
    let outcome = container.compare_with(&other, &options());
    assert!(
        matches!(&outcome, Err(AggregateError::Changed { path }) if path == Path::new("rank5")),
        "{outcome:?}"
    );
}

#[test]
fn what_can_not_be_read_costs_the_files_that_lie_there() {
    let far = Arc::new(packed());
    let container = open(&far).unwrap();
    let middle = far.size() / 2;
    far.lost.lock().unwrap().push(middle..middle + 1);
    let given: Vec<bool> = (0..FILES).map(|file| read(&container, file, 0..LENGTH).is_ok()).collect();
    let lost = given.iter().filter(|given| !**given).count();
    assert!((1..=3).contains(&lost), "{given:?}");
    for file in (0..FILES).filter(|file| given[*file]) {
        assert_eq!(read(&container, file, 0..LENGTH).unwrap(), content(file));
    }
    far.lost.lock().unwrap().clear();
    assert!(
        (0..FILES).all(|file| read(&container, file, 0..LENGTH).unwrap() == content(file)),
        "no failure is kept"
    );
}

#[test]
fn a_list_of_what_can_not_be_read_fails_and_names_nothing_damaged() {
    let far = Arc::new(packed());
    let container = open(&far).unwrap();
    far.lost.lock().unwrap().push(0..far.size());
    let listed = container.list();
    assert!(matches!(listed, Err(AggregateError::Io { .. })), "{listed:?}");
    assert!(matches!(container.variable_npy("rank0", "x"), Err(AggregateError::Io { .. })));
    far.lost.lock().unwrap().clear();
    assert!(container.list().unwrap().iter().all(|file| !file.damaged));
}

#[test]
fn without_its_end_a_container_is_read_from_its_beginning() {
    let size = packed().size();
    for cut in [1, 40, 120, 500] {
        let far = Arc::new(packed());
        far.lost.lock().unwrap().push(size - cut..size);
        let container = open(&far).unwrap();
        for file in 0..FILES {
            assert!(read(&container, file, 0..LENGTH).unwrap() == content(file), "{cut}: {file}");
        }
    }
}

#[test]
fn a_hole_in_front_of_it_hides_only_what_lies_there() {
    let far = Arc::new(packed());
    let size = far.size();
    far.lost.lock().unwrap().extend([0..1, size - 1..size]);
    let container = open(&far).unwrap();
    let given =
        (0..FILES).filter(|file| read(&container, *file, 0..LENGTH).is_ok_and(|read| read == content(*file)));
    assert!(given.count() >= FILES - 3);
}
