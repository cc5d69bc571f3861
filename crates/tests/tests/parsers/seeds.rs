//! Bytes that the parsers understand, made by the code that writes them, so that they are never out of date.

use std::fs;
use std::path::{Path, PathBuf};

use stdchk_aggregate::{Packing, inputs_of, pack};
use stdchk_benefactor::store::{Donation, Store};
use stdchk_filestate::record::{Inode, Record};
use stdchk_filestate::store::Options;
use stdchk_manager::core::{Core, Now, Setting, Timing};
use stdchk_manager::journal::Sealer;
use stdchk_manager::store::{MemoryStore, Store as _};
use stdchk_model::journal;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, Moment, VersionState};
use stdchk_model::{
    BlockId, ChunkId, ChunkMap, ChunkRef, ClientId, Code, Encoding, Extent, InContainer, Ino, Maker, MapRoot,
    MomentKey, OpId, Policy, PoolId, SessionId, Source, cbor,
};
use stdchk_net::{BufferPool, frame};
use stdchk_protect::Blocks;
use stdchk_reduce::{Codec, Compressor, Effort};

/// Key of the logs here.
pub const LOG_KEY: [u8; 32] = [3; 32];
/// A vector of the protocol longer than this is one of many like it, bytes.
const SEED_BYTES_MAX: usize = 64 << 10;

fn crates() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().map(|above| above.join("crates")).find(|crates| crates.is_dir()).unwrap()
}

/// The messages of `docs/protocol-vectors.txt`, which has all kinds: number of the type, then the message.
pub fn messages() -> Vec<Vec<u8>> {
    const TYPES: [&str; 8] = [
        "Hello",
        "Greeted",
        "Failure",
        "ManagerRequest",
        "ManagerReply",
        "BenefactorRequest",
        "BenefactorReply",
        "Command",
    ];
    let text = fs::read_to_string(crates().join("../docs/protocol-vectors.txt")).unwrap();
    let (mut seeds, mut kind) = (Vec::new(), None);
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            kind = TYPES.iter().position(|name| *name == title);
        }
        let digits =
            !line.is_empty() && line.len() % 2 == 0 && line.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(kind) = kind.filter(|_| digits) {
            let hex = (0..line.len()).step_by(2).map(|at| u8::from_str_radix(&line[at..at + 2], 16).unwrap());
            seeds.push(std::iter::once(u8::try_from(kind).unwrap()).chain(hex).collect());
        }
    }
    let receipt = stdchk_model::Receipt::new(
        &stdchk_model::ReceiptKey([1; 32]),
        stdchk_model::Incarnation(5),
        7,
        Vec::new(),
    );
    seeds.push([vec![8], cbor::encode(&receipt)].concat());
    assert!(seeds.len() > 50, "the vectors of the protocol are not found");
    seeds
}

pub fn frames() -> Vec<Vec<u8>> {
    let head = frame::Head { kind: frame::Kind::Request, id: 7 };
    let framed = |body: &[u8], payload: &[u8]| {
        let mut bytes = frame::encode(&head, body, payload.len()).unwrap();
        bytes.extend_from_slice(payload);
        bytes
    };
    vec![framed(b"", b""), framed(b"body", b""), framed(b"body", &[5; 300])]
}

fn map() -> ChunkMap {
    let chunks = (1..4).map(|byte| ChunkRef { id: ChunkId([byte; 32]), length: 4096 }).collect();
    let extents = [
        Extent { length: 4096, source: Source::Chunk { index: 0, offset: 0 } },
        Extent { length: 70_000, source: Source::Hole },
        Extent { length: 100, source: Source::Chunk { index: 2, offset: 50 } },
    ];
    ChunkMap::new(chunks, extents).unwrap()
}

pub fn maps() -> Vec<Vec<u8>> {
    let inline = MapRoot::Inline { map: map().encode() };
    let pieces =
        MapRoot::Pieces { pieces: vec![ChunkRef { id: ChunkId([4; 32]), length: 900 }], length: 900 };
    let place = InContainer { size: 300, file: 2, container: pieces.clone() }.encode().unwrap();
    vec![
        map().encode(),
        ChunkMap::default().encode(),
        place.clone(),
        cbor::encode(&inline),
        cbor::encode(&pieces),
        cbor::encode(&MapRoot::Inline { map: place }),
    ]
}

fn plain() -> Vec<u8> {
    (0..6000_u32).flat_map(|number| (number / 7).to_le_bytes()).collect()
}

pub fn blocks() -> Vec<Vec<u8>> {
    let plain = plain();
    let mut seeds = vec![[&[0], &plain[..100]].concat()];
    for effort in [Effort::Lz4, Effort::Zstd(3)] {
        let mut compressor = Compressor::new(effort).unwrap();
        let (codec, stored) = compressor.compress(&plain);
        assert_ne!(codec, Codec::Store);
        seeds.push([&[codec.number()], &*stored].concat());
    }
    seeds
}

/// The secret of the key with which [`sealed`] are sealed.
pub const SECRET: [u8; 32] = [9; 32];

pub fn sealed() -> Vec<Vec<u8>> {
    let (plain, key) = (plain(), stdchk_protect::seal::Key::new(SECRET));
    let mut seeds = Vec::new();
    for (codec, encoded) in [(0, &plain[..]), (0, &plain[..40]), (2, b"as a codec made it")] {
        let chunk = ChunkRef { id: key.name(encoded), length: u32::try_from(encoded.len()).unwrap() };
        let sealed = key.seal(chunk, codec, encoded);
        seeds.push([&chunk.id.0[..], &chunk.length.to_le_bytes(), &[codec], &sealed].concat());
    }
    seeds
}

pub fn containers() -> Vec<Vec<u8>> {
    let place = tempfile::tempdir().unwrap();
    let set = place.path().join("set");
    fs::create_dir(&set).unwrap();
    fs::copy(crates().join("formats/tests/fixtures/model.safetensors"), set.join("a.safetensors")).unwrap();
    fs::write(set.join("b"), plain()).unwrap();
    fs::write(set.join("c"), b"").unwrap();
    // Files that are held unfolded, in boxes and as chunks of Zarr.
    fs::copy(crates().join("formats/tests/fixtures/filtered.h5"), set.join("d.h5")).unwrap();
    for name in [".zarray", "0.0"] {
        fs::copy(crates().join("aggregate/tests/fixtures/zarr/v2lz4").join(name), set.join(name)).unwrap();
    }
    // A sparse file.
    fs::File::create(set.join("e")).unwrap().set_len(1 << 20).unwrap();
    let packed = place.path().join("packed");
    pack(&inputs_of(&[set]).unwrap().files, &packed, &Packing::default()).unwrap();
    vec![fs::read(packed).unwrap()]
}

pub fn chunks() -> Vec<Vec<u8>> {
    let names = [
        "v2lz4/.zarray",
        "v2lz4/1.0",
        "v2lz4hc/1.0",
        "v2zlib/1.0",
        "v3bitshuffle/c/1/0",
        "v3zstd/zarr.json",
        "v3zstd/c/1/0",
    ];
    let folder = crates().join("aggregate/tests/fixtures/zarr");
    names.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect()
}

pub fn formats() -> Vec<Vec<u8>> {
    let fixtures = fs::read_dir(crates().join("formats/tests/fixtures")).unwrap();
    let mut paths: Vec<PathBuf> = fixtures.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let files = paths.iter().filter(|path| path.is_file()).map(|path| fs::read(path).unwrap());
    files.filter(|bytes| bytes.len() <= SEED_BYTES_MAX).collect()
}

pub fn logs() -> Vec<Vec<u8>> {
    let (inode, path) = (Inode(5), b"a/file".to_vec());
    let records = [
        Record::Absent { path: path.clone() },
        Record::Moved { inode, from: path.clone(), to: b"b".to_vec(), directory: false },
        Record::Size { inode, path: path.clone(), size: 9, modified_ns: 5 },
        Record::Data { inode, offset: 77, bytes: b"old bytes".to_vec() },
        Record::Hole { inode, offset: 0, length: 4096 },
        Record::Mode { inode, path, bits: 0o644 },
    ];
    let mut seeds: Vec<Vec<u8>> = records.iter().map(|record| record.encode(&LOG_KEY).unwrap()).collect();
    seeds.push(seeds.concat());
    seeds.push(Options::default().to_lines().into_bytes());
    seeds
}

pub fn texts() -> Vec<Vec<u8>> {
    let mut texts = vec![
        "*.N{rank}.T{step}\nsim.N3.T40\nother".to_owned(),
        "restart.{rank}.{step}, chk_{step}\nrestart.9.0\nchk_7".to_owned(),
        "10GiB".to_owned(),
        "1.5 MB".to_owned(),
    ];
    texts.push(Policy::default().pairs().iter().map(|(key, value)| format!("{key}={value}\n")).collect());
    texts.into_iter().map(String::into_bytes).collect()
}

pub fn segments() -> Vec<Vec<u8>> {
    let place = tempfile::tempdir().unwrap();
    let donation = Donation { donated_bytes: 1 << 40, floor_bytes: 0 };
    let (store, _) = Store::open(place.path(), donation, 1 << 20).unwrap();
    for length in [300, 5000] {
        let bytes = &plain()[..length];
        let mut payload = BufferPool::new(1 << 20).try_take(length).unwrap();
        payload.copy_from_slice(bytes);
        let chunk = ChunkRef { id: ChunkId::of(bytes), length: u32::try_from(length).unwrap() };
        store.put(BlockId::plain(chunk.id), Encoding::plain(chunk), &mut payload).unwrap();
    }
    let chunk = ChunkRef { id: ChunkId::of(&plain()), length: u32::try_from(plain().len()).unwrap() };
    let coded = Blocks::of(chunk, 0, plain().into(), Code::erasure(2, 1).unwrap(), Maker::LOCAL);
    for (block, stored) in coded.iter() {
        let mut payload = BufferPool::new(1 << 20).try_take(stored.len()).unwrap();
        payload.copy_from_slice(stored);
        store.put(block, coded.encoding.clone(), &mut payload).unwrap();
    }
    store.sync().unwrap();
    let segment = fs::read_dir(place.path()).unwrap().next().unwrap().unwrap().path();
    vec![fs::read(segment).unwrap()]
}

/// What the pieces of journals here are sealed with.
pub fn sealer() -> Sealer {
    Sealer::new(PoolId([7; 16]), None)
}

/// A journal with a base in two parts and commits of two starts.
pub fn journals() -> Vec<Vec<u8>> {
    let at = |start, commit| Moment { start, commit };
    let sealer = sealer();
    let pieces = [
        sealer.base(at(1, 5), 0, false, vec![0; 3]),
        sealer.base(at(1, 5), 1, true, vec![1; 100]),
        sealer.commit(at(1, 6), 1, vec![2; 50]),
        sealer.commit(at(2, 7), 1, vec![3; 50]),
    ];
    vec![pieces.iter().flat_map(journal::frame).collect()]
}

/// The records of a manager that has a folder and a file with a version.
pub fn records() -> Vec<Vec<u8>> {
    let now = Now { wall: 1, ms: 1 };
    let mut store = MemoryStore::default();
    let setting = Setting {
        new_pool: PoolId([7; 16]),
        new_key: MomentKey([7; 32]),
        owner: (0, 0),
        pid: 1,
        start: 1,
        timing: Timing::default(),
        steps: 64,
    };
    let mut core = Core::load(&store, setting, now).unwrap();
    let make = |core: &mut Core, number: u8, parent: Ino, name: &str, kind: FileKind| {
        let (name, target) = (name.to_owned(), String::new());
        let change = Change::Make { parent, name, kind, mode: 0o755, uid: 0, gid: 0, target };
        let request = ManagerRequest::Change { id: OpId([number; 16]), change };
        match core.handle(request, now).unwrap() {
            ManagerReply::Entry(attr) => attr.ino,
            other => panic!("{other:?}"),
        }
    };
    let folder = make(&mut core, 1, Ino::ROOT, "app", FileKind::Directory);
    let file = make(&mut core, 2, folder, "a.N0.T1", FileKind::File);
    let pairs = vec![("redundancy".to_owned(), "replicate:2".to_owned())];
    let change = Change::SetPolicy { ino: folder, pairs };
    core.handle(ManagerRequest::Change { id: OpId([3; 16]), change }, now).unwrap();
    let session = SessionId([4; 16]);
    let open =
        ManagerRequest::OpenSession { session, client: ClientId([5; 16]), ino: file, durability: None };
    core.handle(open, now).unwrap();
    let hole = Extent { length: 4096, source: Source::Hole };
    let commit = ManagerRequest::Commit {
        session,
        root: MapRoot::Inline { map: ChunkMap::new(Vec::new(), [hole]).unwrap().encode() },
        size: 4096,
        mtime: 1,
        stored_bytes: 0,
        named: Vec::new(),
        named_before: 0,
        state: VersionState::Closed,
        hole_bytes: 4096,
        receipts: Vec::new(),
        key: None,
        changes: 0,
    };
    core.handle(commit, now).unwrap();
    store.commit(&core.take_changes()).unwrap();
    let mut bytes = Vec::new();
    let load = store.load(&mut |key, record| {
        bytes.push(u8::try_from(key.len()).unwrap());
        bytes.extend(u16::try_from(record.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(record);
        Ok(())
    });
    load.unwrap();
    vec![bytes]
}
