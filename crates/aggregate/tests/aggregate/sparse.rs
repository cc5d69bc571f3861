//! Sparse files: holes are neither read, nor stored, nor written.
//!
//! Relies on a file system with holes under the folder for temporary files. The idea: files of a hundred gibibytes with some megabytes of data
//! in them, which no test could wait for if anybody read them, and which every way out of a container gives back.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stdchk_aggregate::{Container, FileEntry, Packing, SetFile, Unpacking, inputs_of, pack};
use stdchk_formats::{Extent, Source};
use tempfile::TempDir;

const GIB: u64 = 1 << 30;

/// Pieces of data, each with its place.
type Pieces = Vec<(u64, Vec<u8>)>;

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[6]
    };
    (0..length).map(|_| next()).collect()
}

fn field(count: u32) -> Vec<u8> {
    (0..count).flat_map(|n| (f64::from(n) / 800.0).sin().to_le_bytes()).collect()
}

fn make(path: &Path, size: u64, pieces: &Pieces) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    pieces.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
}

/// The files of the set: a disk image, an array whose header leaves its elements across blocks of the disk, one that is all hole, small
/// tensors beside a large one of zeros, and a file with deflated chunks and a hole behind them.
fn files() -> Vec<(&'static str, u64, Pieces)> {
    let npy = |count: u64| {
        let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({count},), }}\n");
        let length = u16::try_from(header.len()).unwrap().to_le_bytes();
        [b"\x93NUMPY\x01\0", &length[..], header.as_bytes()].concat()
    };
    let elements = 8 * GIB;
    let header = npy(elements);
    let array = header.len() as u64 + 8 * elements;
    let tensors: Vec<String> = (0..200)
        .map(|n| {
            format!(r#""t{n}":{{"dtype":"F64","shape":[20],"data_offsets":[{},{}]}}"#, n * 160, n * 160 + 160)
        })
        .chain([r#""zero":{"dtype":"F64","shape":[1000000],"data_offsets":[32000,8032000]}"#.to_owned()])
        .collect();
    let head = format!("{{{}}}", tensors.join(","));
    let head = [&(head.len() as u64).to_le_bytes(), head.as_bytes(), &field(4000)].concat();
    let tensors = head.len() as u64 + 8_000_000;
    let filtered = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures/filtered.h5");
    vec![
        ("array.npy", array, vec![(0, header), (GIB + 4096, field(100_000)), (60 * GIB, field(999))]),
        ("empty", 100 * GIB, Vec::new()),
        ("filtered.h5", GIB, vec![(0, fs::read(filtered).unwrap())]),
        (
            "image",
            100 * GIB,
            vec![(5 * GIB, noise(1 << 20, 1)), (70 * GIB, noise(100_000, 2)), (99 * GIB, noise(9, 3))],
        ),
        ("tensors.safetensors", tensors, vec![(0, head)]),
    ]
}

fn check(folder: &Path) {
    for (name, size, pieces) in files() {
        let file = File::open(folder.join(name)).unwrap();
        let metadata = file.metadata().unwrap();
        assert_eq!(metadata.len(), size, "{name}");
        let data: u64 = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        assert!(metadata.blocks() * 512 < data + (1 << 20), "{name}: {} blocks", metadata.blocks());
        for (at, bytes) in pieces {
            let mut found = vec![0; bytes.len()];
            file.read_exact_at(&mut found, at).unwrap();
            assert!(found == bytes, "{name} at {at}");
        }
    }
}

/// A sparse file, and how many of its bytes were read.
struct Counted {
    file: File,
    size: u64,
    holes: Vec<Extent>,
    read: AtomicU64,
}

impl Source for Counted {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(buffer, offset)
    }

    fn holes(&self) -> io::Result<Vec<Extent>> {
        Ok(self.holes.clone())
    }
}

fn counted(folder: &Path) -> Vec<(SetFile, Arc<Counted>)> {
    let of = |(name, size, pieces): (&str, u64, Pieces)| {
        let (mut holes, mut end) = (Vec::new(), 0);
        for (at, bytes) in pieces.iter().map(|(at, bytes)| (*at, bytes.len() as u64)).chain([(size, 0)]) {
            holes.extend((at > end).then(|| Extent { offset: end, length: at - end }));
            end = at + bytes;
        }
        let file = File::open(folder.join(name)).unwrap();
        let source = Arc::new(Counted { file, size, holes, read: AtomicU64::new(0) });
        let entry = FileEntry { name: name.to_owned(), size, mode: 0o644, modified_ns: 0 };
        (SetFile { entry, source: Arc::clone(&source) as _ }, source)
    };
    files().into_iter().map(of).collect()
}

#[test]
fn files_of_a_hundred_gibibytes_cost_what_their_data_cost() {
    let folder = TempDir::new().unwrap();
    let raw = folder.path().join("raw");
    fs::create_dir(&raw).unwrap();
    files().iter().for_each(|(name, size, pieces)| make(&raw.join(name), *size, pieces));
    check(&raw);
    let data: u64 = files().iter().flat_map(|(.., pieces)| pieces).map(|(_, bytes)| bytes.len() as u64).sum();
    let inputs = inputs_of(std::slice::from_ref(&raw)).unwrap().files;
    let path = folder.path().join("container");
    let packed = pack(&inputs, &path, &Packing::default()).unwrap();
    assert!(packed.raw_bytes > 264 * GIB && packed.stored_bytes < data, "{packed:?} of {data}");

    let container = Container::open(&path).unwrap();
    for (threads, budget) in [(1, 0), (2, 16 << 20)] {
        let back = folder.path().join(format!("back{threads}"));
        container.unpack(&back, &Unpacking { threads, budget, ..Unpacking::default() }).unwrap();
        check(&back);
    }
    container.check(&Unpacking::default()).unwrap();

    // Alone, the small file with small tensors is put together in memory.
    let names = ["tensors.safetensors".to_owned()];
    let alone = folder.path().join("alone");
    container.unpack(&alone, &Unpacking { names: &names, ..Unpacking::default() }).unwrap();
    let name = "tensors.safetensors";
    assert!(fs::read(alone.join(name)).unwrap() == fs::read(raw.join(name)).unwrap());

    let sources = counted(&raw);
    let set: Vec<SetFile> = sources.iter().map(|(file, _)| file.clone()).collect();
    let as_is: Vec<&Arc<Counted>> =
        sources.iter().map(|(_, source)| source).filter(|source| source.size != GIB).collect();
    container.compare_with(&set, &Packing::default()).unwrap();
    let read: u64 = as_is.iter().map(|source| source.read.load(Ordering::Relaxed)).sum();
    assert!(read < 2 * data, "{read} bytes were compared of {data}");
}

#[test]
fn bytes_that_were_written_into_a_hole_are_seen_when_containers_are_compared() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("image");
    make(&path, 10 << 20, &vec![(0, noise(5000, 1))]);
    let container = folder.path().join("container");
    let inputs = inputs_of(std::slice::from_ref(&path)).unwrap().files;
    pack(&inputs, &container, &Packing::default()).unwrap();
    File::options().write(true).open(&path).unwrap().write_all_at(&[1], 7 << 20).unwrap();
    let source = Arc::new(fs::read(&path).unwrap());
    let entry = FileEntry { name: "image".to_owned(), size: 10 << 20, mode: 0o644, modified_ns: 0 };
    let container = Container::open(&container).unwrap();
    assert!(container.compare_with(&[SetFile { entry, source }], &Packing::default()).is_err());
}

#[test]
fn ranges_in_and_across_holes_are_zeros_and_a_reader_learns_where_they_are() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("image");
    let pieces = vec![(1 << 20, noise(8192, 1)), (3 << 20, noise(4096, 2))];
    make(&path, 4 << 20, &pieces);
    let container = folder.path().join("container");
    let inputs = inputs_of(std::slice::from_ref(&path)).unwrap().files;
    pack(&inputs, &container, &Packing::default()).unwrap();
    let (container, raw) = (Container::open(&container).unwrap(), fs::read(&path).unwrap());
    for (offset, length) in
        [(0, 100), (0, 4 << 20), ((1 << 20) - 5, 10), ((1 << 20) + 8000, 3 << 20 >> 1), (4 << 20, 0)]
    {
        let mut bytes = Vec::new();
        container.read(0, Extent { offset, length }, &mut bytes).unwrap();
        let range = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
        assert!(bytes == raw[range], "{offset}, {length}");
    }
    assert_eq!(container.data_at(0, 0), Some(Extent { offset: 1 << 20, length: 8192 }));
    assert_eq!(container.data_at(0, 2 << 20), Some(Extent { offset: 3 << 20, length: 4096 }));
    assert_eq!(container.data_at(0, (3 << 20) + 4096), None);
}
