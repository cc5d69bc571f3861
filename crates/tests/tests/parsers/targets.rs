//! Every parser of outside bytes, as a function that takes any bytes: it must come back, without a panic and in bounded memory.
//! What is understood must also be the same when it is written and read again.
//!
//! Used by the test beside this file, and by the fuzzer in `fuzz/`, which is guided by the code that its inputs reach.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use minicbor::{Decode, Encode};
use stdchk_aggregate::{BlockCache, Container, try_chunk};
use stdchk_benefactor::journal::{JOURNAL_FILE, Kept};
use stdchk_benefactor::store::{Donation, Store};
use stdchk_filestate::log::Log;
use stdchk_filestate::store::Options;
use stdchk_formats::{Extent, Source, ZarrArray, parse};
use stdchk_manager::core::{Core, Now, Setting, Timing};
use stdchk_manager::recover;
use stdchk_manager::store::{Batch, Snapshot, Store as Records, StoreError, Visitor};
use stdchk_model::block::SEAL_BYTES;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest, Command};
use stdchk_model::message::handshake::{Greeted, Hello};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest};
use stdchk_model::naming::Naming;
use stdchk_model::{
    BenefactorId, ChunkId, ChunkMap, ChunkRef, Failure, InContainer, Ino, KeyId, MapRoot, MomentKey, Policy,
    PoolId, Receipt, ReceiptKey, cbor, name, size,
};
use stdchk_net::{BufferPool, frame};
use stdchk_protect::seal::{self, Key, Keys};
use stdchk_reduce::{Codec, decompress};

use super::seeds;

/// A parser.
pub struct Target {
    /// What it reads.
    pub name: &'static str,
    /// The parser.
    pub read: fn(&[u8]),
    /// Bytes that it understands, from which others are made.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// How many inputs the short test tries.
    #[allow(dead_code, reason = "the fuzzer goes on until it is stopped")]
    pub inputs: u32,
}

/// All parsers.
pub const TARGETS: [Target; 13] = [
    Target { name: "frames", read: frames, seeds: seeds::frames, inputs: 20_000 },
    Target { name: "messages", read: messages, seeds: seeds::messages, inputs: 100_000 },
    Target { name: "maps", read: maps, seeds: seeds::maps, inputs: 100_000 },
    Target { name: "blocks", read: blocks, seeds: seeds::blocks, inputs: 20_000 },
    Target { name: "sealed", read: sealed, seeds: seeds::sealed, inputs: 5_000 },
    Target { name: "containers", read: containers, seeds: seeds::containers, inputs: 3_000 },
    Target { name: "formats", read: formats, seeds: seeds::formats, inputs: 5_000 },
    Target { name: "chunks", read: chunks, seeds: seeds::chunks, inputs: 3_000 },
    Target { name: "logs", read: logs, seeds: seeds::logs, inputs: 20_000 },
    Target { name: "texts", read: texts, seeds: seeds::texts, inputs: 50_000 },
    Target { name: "segments", read: segments, seeds: seeds::segments, inputs: 500 },
    Target { name: "journals", read: journals, seeds: seeds::journals, inputs: 3_000 },
    Target { name: "records", read: records, seeds: seeds::records, inputs: 10_000 },
];

/// Memory for what a parser reads, bytes.
const BUFFER_BYTES: usize = 8 << 20;

fn frames(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let pool = BufferPool::new(BUFFER_BYTES);
    let read = |bytes: &[u8]| runtime.block_on(frame::read_one(bytes, &pool));
    let _as_it_is = read(bytes);
    // And with a check that matches, which chance never finds.
    let Some((head, _)) = bytes.split_at_checked(frame::HEAD_BYTES) else { return };
    let length = u32::from_le_bytes(head[16..20].try_into().unwrap()) as usize;
    let Some(body) = bytes.get(frame::HEAD_BYTES..).and_then(|rest| rest.get(..length)) else { return };
    let mut checked = bytes.to_vec();
    let check = blake3::Hasher::new().update(&head[..24]).update(body).finalize();
    checked[24..32].copy_from_slice(&check.as_bytes()[..8]);
    if let Ok(Some((head, body, payload))) = read(&checked) {
        let mut again = frame::encode(&head, &body, payload.len()).unwrap();
        again.extend_from_slice(&payload);
        let reread = read(&again).unwrap().unwrap();
        assert!((reread.0, reread.1) == (head, body) && *reread.2 == *payload, "a frame is another one");
    }
}

/// A message that is understood means the same when it is sent on.
fn message<T: Encode<()> + for<'b> Decode<'b, ()> + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(message) = cbor::decode::<T>(bytes) {
        let encoded = cbor::encode(&message);
        let again: T = cbor::decode(&encoded).unwrap();
        assert_eq!(cbor::encode(&again), encoded, "{message:?}");
    }
}

fn messages(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 9 {
        0 => message::<Hello>(bytes),
        1 => message::<Greeted>(bytes),
        2 => message::<Failure>(bytes),
        3 => message::<ManagerRequest>(bytes),
        4 => message::<ManagerReply>(bytes),
        5 => message::<BenefactorRequest>(bytes),
        6 => message::<BenefactorReply>(bytes),
        7 => message::<Command>(bytes),
        _ => {
            message::<Receipt>(bytes);
            if let Ok(receipt) = cbor::decode::<Receipt>(bytes) {
                assert!(!receipt.is_genuine(&ReceiptKey([9; 32])), "a forged receipt counts");
            }
        }
    }
}

fn maps(bytes: &[u8]) {
    if let Ok(map) = ChunkMap::decode(bytes) {
        let covered: u64 = map.extents().iter().map(|extent| extent.length).sum();
        assert_eq!(covered, map.size());
        assert!(map.hole_bytes() <= map.size());
        assert_eq!(ChunkMap::decode(&map.encode()).as_ref(), Ok(&map));
    }
    if let Ok(Some(place)) = InContainer::decode(bytes) {
        let encoded = place.encode().unwrap();
        assert_eq!(InContainer::decode(&encoded), Ok(Some(place)));
    }
    message::<MapRoot>(bytes);
    if let Ok(root) = cbor::decode::<MapRoot>(bytes) {
        let _is_none = root.of_chunks();
    }
}

fn blocks(bytes: &[u8]) {
    let Some((number, stored)) = bytes.split_first() else { return };
    /// Longest plain block here, bytes.
    const PLAIN_BYTES_MAX: usize = 1 << 20;
    if let Ok(codec) = Codec::from_number(number % 8)
        && let Ok(plain) = decompress(codec, stored, PLAIN_BYTES_MAX)
    {
        assert!(plain.len() <= PLAIN_BYTES_MAX.max(stored.len()), "{} bytes", plain.len());
    }
}

/// Keys of which one made the seeds.
#[derive(Debug)]
struct FixedKey;

impl Keys for FixedKey {
    fn key(&self, id: KeyId) -> Option<Arc<Key>> {
        let key = Key::new(seeds::SECRET);
        (key.id() == id).then(|| Arc::new(key))
    }
}

/// Sealed bytes behind the name, the length and the codec of the chunk that they are said to be.
fn sealed(bytes: &[u8]) {
    let Some((name, rest)) = bytes.split_first_chunk() else { return };
    let Some((length, rest)) = rest.split_first_chunk() else { return };
    let Some((codec, sealed)) = rest.split_first() else { return };
    let chunk = ChunkRef { id: ChunkId(*name), length: u32::from_le_bytes(*length) };
    let is_signed = seal::is_signed(chunk, *codec, sealed);
    if let Ok((key, encoded)) = seal::open(&FixedKey, chunk, *codec, sealed) {
        assert_eq!(encoded.len() + SEAL_BYTES as usize, sealed.len());
        // Nobody else can have made them, and the key makes no others of this content.
        let again = key.seal(chunk, *codec, &encoded);
        assert_eq!(is_signed, again == sealed, "other bytes are signed");
    }
}

/// A source that must not be asked for bytes that it doesn't have.
struct Strict(Vec<u8>);

impl Source for Strict {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        assert!(end.is_some_and(|end| end <= self.size()), "read outside the file");
        self.0.read_at(offset, buffer)
    }
}

fn containers(bytes: &[u8]) {
    let cache = Arc::new(BlockCache::new(BUFFER_BYTES as u64));
    let source = Box::new(bytes.to_vec());
    let Ok(container) = Container::open_source(Path::new("fuzzed"), source, cache, [0; 16]) else { return };
    let files: Vec<u64> = container.files().map(|(_, size)| size).collect();
    for (file, size) in files.into_iter().enumerate().take(20) {
        /// Bytes of each file that are read.
        const READ_BYTES: u64 = 64 << 10;
        for offset in [0, size / 2, size.saturating_sub(READ_BYTES)] {
            let (length, mut buffer) = (READ_BYTES.min(size - offset), Vec::new());
            if container.read(file, Extent { offset, length }, &mut buffer).is_ok() {
                assert_eq!(buffer.len() as u64, length);
            }
        }
    }
}

/// Chunks of Zarr, and what describes them.
fn chunks(bytes: &[u8]) {
    try_chunk(bytes);
    let Some(array) = ZarrArray::described(bytes) else { return };
    assert!(array.chunk_bytes().is_some_and(|bytes| bytes > 0), "a chunk has elements");
    let _any = array.is_chunk("c/0/1");
}

fn formats(bytes: &[u8]) {
    let parsed = parse(&Strict(bytes.to_vec()));
    let mut taken: Vec<Extent> = parsed
        .variables
        .iter()
        .flat_map(|variable| variable.extents.clone())
        .chain(parsed.residue())
        .collect();
    taken.sort_unstable();
    let mut position = 0;
    for extent in taken {
        assert_eq!(extent.offset, position, "the bytes of the file are no longer all there once");
        position += extent.length;
    }
    assert_eq!(position, bytes.len() as u64);
}

fn logs(bytes: &[u8]) {
    let mut file = tempfile::tempfile_in(memory()).unwrap();
    io::Write::write_all(&mut file, bytes).unwrap();
    let log = Log::new(file.into(), seeds::LOG_KEY, "log".into(), false);
    let length = bytes.len() as u64;
    let _records = log.scan(0, length).unwrap();
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(options) = Options::from_lines(text)
    {
        assert!(Options::from_lines(&options.to_lines()).is_some(), "{text:?}");
    }
}

fn texts(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    if let Ok(naming) = first.parse::<Naming>() {
        for path in rest.lines() {
            let _reading = naming.read(path);
        }
        for pattern in naming.patterns() {
            assert!(
                pattern.text().parse::<Naming>().is_ok(),
                "{:?} is a pattern only among others",
                pattern.text()
            );
        }
    }
    let mut policy = Policy::default();
    for line in text.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        if policy.set(key, value).is_ok() {
            let mut again = Policy::default();
            for (key, value) in policy.pairs() {
                again.set(key, &value).unwrap_or_else(|failure| panic!("{key}={value}: {failure:?}"));
            }
            assert_eq!(again.pairs(), policy.pairs());
        }
    }
    if let Ok(bytes) = size::parse(first) {
        let (_, _) = (size::human(bytes), size::exact(bytes));
        assert_eq!(size::parse(&size::exact(bytes)).ok(), Some(bytes), "{first:?}");
    }
    let _is_a_name = name::check(first);
}

fn memory() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}

fn segments(bytes: &[u8]) {
    let place = tempfile::tempdir_in(memory()).unwrap();
    fs::write(place.path().join("0000000001.segment"), bytes).unwrap();
    let donation = Donation { donated_bytes: 1 << 40, floor_bytes: 0 };
    let Ok((store, _)) = Store::open(place.path(), donation, 1 << 20) else { return };
    for stored in store.inventory().1 {
        let Ok(found) = store.find(stored.block) else { continue };
        let mut buffer = BufferPool::new(BUFFER_BYTES).try_take(found.span()).unwrap();
        if let Ok((encoding, range)) = store.read(&found, &mut buffer) {
            let is_it = encoding.check_bytes(stored.block.index, &buffer[range]);
            assert_eq!(is_it, Ok(()), "what is served is another block");
        }
    }
}

fn journals(bytes: &[u8]) {
    let place = tempfile::tempdir_in(memory()).unwrap();
    let path = place.path().join(JOURNAL_FILE);
    fs::write(&path, bytes).unwrap();
    let vouched = recover::read(&path, &seeds::sealer(), BenefactorId(0));
    let kept = Kept::open(place.path());
    let read = kept.read(0, 0).map(|(length, _)| length);
    assert_eq!(read.unwrap(), fs::metadata(&path).unwrap().len(), "what doesn't follow is cut off");
    if let Ok(vouched) = vouched {
        assert!(kept.bytes() > 0, "a benefactor keeps what opens");
        assert!(vouched.journal.reach().is_some());
    }
}

/// A store of the manager that holds the records which bytes describe: length of the key, length of the record (two bytes),
/// both.
struct Described<'b>(&'b [u8]);

impl Records for Described<'_> {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        let mut rest = self.0;
        while let [key, low, high, more @ ..] = rest {
            let record = usize::from(u16::from_le_bytes([*low, *high]));
            let Some((key, more)) = more.split_at_checked(usize::from(*key)) else { break };
            let Some((record, more)) = more.split_at_checked(record) else { break };
            visit(key, record)?;
            rest = more;
        }
        Ok(())
    }

    fn commit(&mut self, _: &Batch) -> Result<(), StoreError> {
        Ok(())
    }

    fn sequence(&self) -> u64 {
        7
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Err(StoreError::new("copying", "it is only described"))
    }
}

fn records(bytes: &[u8]) {
    let setting = Setting {
        new_pool: PoolId([7; 16]),
        new_key: MomentKey([7; 32]),
        owner: (0, 0),
        pid: 1,
        start: 1,
        timing: Timing::default(),
        steps: 64,
    };
    let now = Now { wall: 1, ms: 1 };
    let Ok(mut core) = Core::load(&Described(bytes), setting, now) else { return };
    core.tick(Now { wall: 2, ms: 100_000 });
    let reading = [
        ManagerRequest::Status,
        ManagerRequest::ReadDir { ino: Ino::ROOT, after: None, limit: 100 },
        ManagerRequest::Sets(Ino(2)),
        ManagerRequest::OpenVersion { ino: Ino(3), version: None, client: None },
        ManagerRequest::Space,
    ];
    for request in reading {
        let _answer = core.handle(request, now);
    }
    while core.work(now) {}
    let _batch = core.take_changes();
}
