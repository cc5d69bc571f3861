//! The content of a life: a few different chunks, the chunk maps that can be made of them, and the blocks that can be made of each.
//!
//! Every chunk has a number. The first [`CHUNKS`] are data; every other number is that of the map of one list of data chunks,
//! so that the content of a chunk follows from its number alone. Chunks from [`SMALL_CHUNKS`] on are large: they can be compressed,
//! and codes make fragments of them. All others have copies alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, OnceLock};

use stdchk_model::{
    BlockId, ChunkId, ChunkMap, ChunkRef, Code, Encoding, EncodingId, Extent, Maker, MapRoot, Redundancy,
    Source,
};
use stdchk_net::Bytes;
use stdchk_protect::Blocks;
use stdchk_reduce::{Codec, Compressor, Effort};

use super::decode::{self, Form};
use super::model::{Content, Lies};
use super::segments::{Key, Record};

/// Number of a chunk.
pub type Number = u16;

/// Length of a small data chunk, bytes.
const SMALL_BYTES: usize = 300;
/// Length of a large data chunk, bytes: a third of its compressed bytes is longer than the shortest fragment.
const LARGE_BYTES: usize = 16_384;
/// How much of a large chunk can't be compressed, bytes.
const RANDOM_BYTES: usize = 12_300;
/// Small data chunks: so few that files share them all the time.
pub const SMALL_CHUNKS: Number = 6;
/// All data chunks.
const CHUNKS: Number = SMALL_CHUNKS + LARGE_CHUNKS;
/// Large data chunks.
pub const LARGE_CHUNKS: Number = 3;
/// Most chunks of a file.
pub const LENGTH_MAX: usize = 4;
/// Each place of a list holds a chunk or nothing.
const BASE: Number = CHUNKS + 1;
/// As whom clients code: those of two users.
pub const MAKERS: [Maker; 2] = [Maker([1; 8]), Maker([2; 8])];
/// What folders ask for, in lives that know codes.
pub const REDUNDANCIES: [&str; 6] =
    ["erasure:2,1", "erasure:2,2", "erasure:3,2", "replicate:1", "replicate:2", "replicate:3"];

struct Table {
    contents: Vec<(ChunkId, Vec<u8>)>,
    numbers: HashMap<ChunkId, Number>,
    /// All blocks of large chunks.
    blocks: HashMap<(ChunkId, EncodingId), Blocks>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let data = (0..CHUNKS).map(data);
        let mut contents: Vec<(ChunkId, Vec<u8>)> =
            data.map(|content| (ChunkId::of(&content), content)).collect();
        let ids: Vec<ChunkId> = contents.iter().map(|(id, _)| *id).collect();
        for number in CHUNKS..CHUNKS + BASE.pow(u32::try_from(LENGTH_MAX).unwrap()) {
            let map = map_of(&list_of(number), &ids).encode();
            contents.push((ChunkId::of(&map), map));
        }
        let mut numbers = HashMap::new();
        for (number, (id, _)) in (0..).zip(&contents) {
            numbers.entry(*id).or_insert(number);
        }
        let large = contents[usize::from(SMALL_CHUNKS)..usize::from(CHUNKS)].iter();
        let blocks = large.flat_map(|(id, content)| all_blocks(*id, content)).collect();
        Table { contents, numbers, blocks }
    })
}

/// The bytes of a data chunk.
fn data(number: Number) -> Vec<u8> {
    if number < SMALL_CHUNKS {
        let number = u8::try_from(number).unwrap();
        return (0..SMALL_BYTES).map(|place| u8::try_from(place % 250).unwrap() ^ number).collect();
    }
    let mut content = vec![0; LARGE_BYTES];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut content[..RANDOM_BYTES]);
    content
}

/// The blocks of a large chunk under every code, as it is and compressed.
fn all_blocks(id: ChunkId, content: &[u8]) -> Vec<((ChunkId, EncodingId), Blocks)> {
    let chunk = ChunkRef { id, length: u32::try_from(content.len()).unwrap() };
    let (codec, compressed) = Compressor::new(Effort::Zstd(1)).unwrap().compress(content);
    assert_eq!(codec, Codec::Zstd, "a large chunk can be compressed");
    let forms =
        [(Codec::Store, Bytes::copy_from_slice(content)), (codec, Bytes::from(compressed.into_owned()))];
    let redundancies = REDUNDANCIES.iter().map(|redundancy| code(redundancy.parse().unwrap()));
    let codes: BTreeSet<Code> = redundancies.collect();
    let makers = codes.into_iter().flat_map(|code| MAKERS.map(|maker| (code, maker)));
    let blocks = makers.flat_map(|(code, maker)| {
        forms.clone().map(|(codec, encoded)| Blocks::of(chunk, codec.number(), encoded, code, maker))
    });
    blocks.map(|blocks| ((id, blocks.encoding.id(id)), blocks)).collect()
}

/// The code of a large chunk in a folder with this redundancy.
fn code(redundancy: Redundancy) -> Code {
    match redundancy {
        Redundancy::Erasure(code) => code,
        Redundancy::Replicate(_) => Code::COPY,
    }
}

/// The list that the map chunk `number` describes.
pub fn list_of(number: Number) -> Vec<Number> {
    let mut rest = number - CHUNKS;
    let mut list = Vec::new();
    while rest > 0 {
        if !rest.is_multiple_of(BASE) {
            list.push(rest % BASE - 1);
        }
        rest /= BASE;
    }
    list
}

/// The number of the chunk that holds the map of `list`.
pub fn map_number(list: &[Number]) -> Number {
    assert!(list.len() <= LENGTH_MAX);
    CHUNKS + list.iter().rev().fold(0, |number, chunk| number * BASE + chunk + 1)
}

fn map_of(list: &[Number], ids: &[ChunkId]) -> ChunkMap {
    let distinct: Vec<Number> = list.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let chunk = |number: &Number| ChunkRef { id: ids[usize::from(*number)], length: length(*number) };
    let chunks = distinct.iter().map(chunk).collect();
    let extents = list.iter().map(|number| {
        let index = u32::try_from(distinct.binary_search(number).unwrap()).unwrap();
        Extent { length: length(*number).into(), source: Source::Chunk { index, offset: 0 } }
    });
    ChunkMap::new(chunks, extents).unwrap()
}

/// Length of a data chunk, bytes.
fn length(number: Number) -> u32 {
    u32::try_from(if number < SMALL_CHUNKS { SMALL_BYTES } else { LARGE_BYTES }).unwrap()
}

/// Length of the file of these chunks, bytes.
pub fn size(list: &[Number]) -> u64 {
    list.iter().map(|number| u64::from(length(*number))).sum()
}

pub fn content(number: Number) -> &'static [u8] {
    &table().contents[usize::from(number)].1
}

pub fn id(number: Number) -> ChunkId {
    table().contents[usize::from(number)].0
}

pub fn chunk(number: Number) -> ChunkRef {
    ChunkRef { id: id(number), length: u32::try_from(content(number).len()).unwrap() }
}

/// How a client encodes a chunk in a folder with this redundancy: small chunks and maps have copies that are not compressed.
pub fn encoding_of(number: Number, redundancy: Redundancy, compresses: bool, maker: Maker) -> EncodingId {
    let (id, codec) = (id(number), if compresses { Codec::Zstd } else { Codec::Store });
    let is_it = |blocks: &&Blocks| {
        let encoding = &blocks.encoding;
        let is_by = encoding.maker == maker || encoding.code.is_copy();
        blocks.chunk == id && encoding.codec == codec.number() && encoding.code == code(redundancy) && is_by
    };
    table().blocks.values().find(is_it).map_or(EncodingId::PLAIN, |blocks| blocks.encoding.id(id))
}

/// Codes of what is made up.
pub const MADE_UP_CODES: [&str; 3] = ["erasure:2,1", "erasure:3,2", "erasure:2,2"];

/// What of an encoding is made up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MakeUp {
    /// The content: the fragments belong together, and make other bytes than the chunk's, more of them if the chunk is small.
    Content,
    /// The parity fragments of a large chunk: the data fragments make it.
    Parity,
}

/// Blocks that match their encoding, which is named after a chunk that they don't make, or that not all of them make.
pub struct MadeUp {
    pub encoding: Encoding,
    pub blocks: Vec<(BlockId, Bytes)>,
}

/// All encodings that were made up, in all lives. They follow from the chunk and what is asked for.
static ALL_MADE_UP: Mutex<BTreeMap<(ChunkId, EncodingId), &'static MadeUp>> = Mutex::new(BTreeMap::new());

/// An encoding that is named after a chunk, of which nobody could tell by looking at one block that it is made up.
pub fn made_up(number: Number, what: MakeUp, code: &str, maker: Maker) -> &'static MadeUp {
    let chunk = chunk(number);
    let Redundancy::Erasure(code) = code.parse().unwrap() else { panic!("{code} is no erasure code") };
    let has_good_data = what == MakeUp::Parity;
    let plain = if has_good_data { content(number).to_vec() } else { noise(chunk.id, LARGE_BYTES) };
    let claimed = ChunkRef { length: u32::try_from(plain.len()).unwrap(), ..chunk };
    let made = Blocks::of(claimed, Codec::Store.number(), Bytes::from(plain), code, maker);
    let (mut encoding, mut stored) =
        (made.encoding.clone(), made.iter().map(|(_, stored)| stored.clone()).collect::<Vec<_>>());
    if has_good_data {
        for parity in &mut stored[usize::from(code.data())..] {
            *parity = Bytes::from(noise(chunk.id, parity.len()));
        }
        encoding.hashes = stored.iter().map(|stored| ChunkId::of(stored)).collect();
    }
    let blocks = (0..).zip(stored).map(|(index, stored)| (encoding.block(chunk.id, index), stored)).collect();
    let key = (chunk.id, encoding.id(chunk.id));
    let mut all = ALL_MADE_UP.lock().unwrap();
    all.entry(key).or_insert_with(|| Box::leak(Box::new(MadeUp { encoding, blocks })))
}

/// Bytes that nobody wrote.
fn noise(chunk: ChunkId, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(b"made up").update(&chunk.0).finalize_xof().fill(&mut bytes);
    bytes
}

/// The encoding that a block is of, if somebody made it up.
fn made_up_of(block: &BlockId) -> Option<&'static MadeUp> {
    ALL_MADE_UP.lock().unwrap().get(&(block.chunk, block.encoding)).copied()
}

/// How the chunk of a block is encoded.
pub fn encoding(block: &BlockId) -> Encoding {
    if let Some(made_up) = made_up_of(block) {
        return made_up.encoding.clone();
    }
    let blocks = table().blocks.get(&(block.chunk, block.encoding));
    blocks.map_or_else(|| Encoding::plain(chunk(name(block))), |blocks| blocks.encoding.clone())
}

/// The stored bytes of a block.
pub fn stored(block: &BlockId) -> &'static [u8] {
    if let Some(made_up) = made_up_of(block) {
        return &made_up.blocks[usize::from(block.index)].1;
    }
    let blocks = table().blocks.get(&(block.chunk, block.encoding));
    blocks.map_or_else(|| content(name(block)), |blocks| blocks.stored(block.index).unwrap())
}

/// A block in words: the number of its chunk, its code with a `z` if it is compressed and a `!` if it is made up, and its index.
pub fn shown(block: &BlockId) -> String {
    let (number, encoding) = (name(block), encoding(block));
    let compressed = if encoding.codec == Codec::Store.number() { "" } else { "z" };
    match encoding.code.is_copy() {
        true => format!("{number}{compressed}"),
        false => {
            let (data, parity) = (encoding.code.data(), encoding.code.parity());
            let made_up = if is_made_up(block) { "!" } else { "" };
            format!("{number}:{data}+{parity}{compressed}{made_up}.{}", block.index)
        }
    }
}

/// Whether somebody made a block up.
pub fn is_made_up(block: &BlockId) -> bool {
    made_up_of(block).is_some()
}

/// Blocks in words.
pub fn all_shown<'a>(blocks: impl IntoIterator<Item = &'a BlockId>) -> String {
    let blocks: Vec<String> = blocks.into_iter().map(shown).collect();
    format!("[{}]", blocks.join(", "))
}

/// The number of a block's chunk.
pub fn name(block: &BlockId) -> Number {
    table().numbers[&block.chunk]
}

/// The root of a file that is written like this.
pub fn root_of(file: &Content) -> MapRoot {
    let number = map_number(&file.list);
    let map = content(number);
    match file.map_in_pool {
        false => MapRoot::Inline { map: map.to_vec() },
        true => {
            let length = u32::try_from(map.len()).unwrap();
            MapRoot::Pieces { pieces: vec![ChunkRef { id: id(number), length }], length: length.into() }
        }
    }
}

/// Where a version with this root lies.
pub fn lies(root: &MapRoot) -> Lies {
    match root.in_container().unwrap() {
        Some(place) => Lies::In { container: content_of_root(&place.container), file: place.file },
        None => Lies::AsItIs(content_of_root(root)),
    }
}

/// What the file with this root was written as.
pub fn content_of_root(root: &MapRoot) -> Content {
    let (map, map_in_pool) = match root {
        MapRoot::Inline { map } => (ChunkId::of(map), false),
        MapRoot::Pieces { pieces, .. } => (pieces[0].id, true),
    };
    Content { list: list_of(table().numbers[&map]), map_in_pool }
}

/// What was found on disks, in all lives. The hash of a block's bytes is in its identity.
static SEEN: Mutex<BTreeMap<Key, (Form, Vec<u8>)>> = Mutex::new(BTreeMap::new());

/// The block of a record that was found on a disk.
pub fn seen(record: &Record) -> BlockId {
    let (name, (data, parity), tag, maker, index) = record.key;
    let mut seen = SEEN.lock().unwrap();
    seen.entry(record.key).or_insert_with(|| (record.form.clone(), record.stored.clone()));
    let code = Code::from_number(u16::from_be_bytes([data, parity])).unwrap();
    BlockId { chunk: ChunkId(name), encoding: EncodingId { code, tag, maker: Maker(maker) }, index }
}

/// Whether these blocks of one encoding, which were found on disks, make their chunk.
pub fn make_the_chunk(chunk: ChunkId, encoding: EncodingId, indices: &BTreeSet<u8>) -> bool {
    static KNOWN: Mutex<BTreeMap<(ChunkId, EncodingId, u32), bool>> = Mutex::new(BTreeMap::new());
    let set = indices.iter().fold(0, |set, index| set | 1 << index);
    let key = (chunk, encoding, set);
    if let Some(known) = KNOWN.lock().unwrap().get(&key) {
        return *known;
    }
    let seen = SEEN.lock().unwrap();
    let code = (encoding.code.data(), encoding.code.parity());
    let key_of = |index| (chunk.0, code, encoding.tag, encoding.maker.0, index);
    let found: Vec<(u8, &(Form, Vec<u8>))> =
        indices.iter().map(|index| (*index, &seen[&key_of(*index)])).collect();
    let blocks: Vec<(u8, &[u8])> = found.iter().map(|(index, (_, stored))| (*index, &stored[..])).collect();
    let whole = found.first().is_some_and(|(_, (form, _))| decode::any(&chunk.0, form, &blocks));
    KNOWN.lock().unwrap().insert(key, whole);
    whole
}
