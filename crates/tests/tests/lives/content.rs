//! The content of a life: a few different chunks, the chunk maps that can be made of them, and the blocks that can be made of each.
//!
//! Every chunk has a number. The first [`CHUNKS`] are data; every other number is that of the map of one list of data chunks,
//! so that the content of a chunk follows from its number alone. Chunks from [`SMALL_CHUNKS`] on are large: they can be compressed,
//! and codes make fragments of them. All others have copies alone.

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use stdchk_model::{
    BlockId, ChunkId, ChunkMap, ChunkRef, Code, Encoding, EncodingId, Extent, Maker, MapRoot, Redundancy,
    Source,
};
use stdchk_net::Bytes;
use stdchk_protect::Blocks;
use stdchk_reduce::{Codec, Compressor, Effort};

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
    let blocks = codes.into_iter().flat_map(|code| {
        forms.clone().map(|(codec, encoded)| Blocks::of(chunk, codec.number(), encoded, code, Maker::LOCAL))
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
fn list_of(number: Number) -> Vec<Number> {
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
pub fn encoding_of(number: Number, redundancy: Redundancy, compresses: bool) -> EncodingId {
    let (id, codec) = (id(number), if compresses { Codec::Zstd } else { Codec::Store });
    let is_it = |blocks: &&Blocks| {
        let encoding = &blocks.encoding;
        blocks.chunk == id && encoding.codec == codec.number() && encoding.code == code(redundancy)
    };
    table().blocks.values().find(is_it).map_or(EncodingId::PLAIN, |blocks| blocks.encoding.id(id))
}

/// How the chunk of a block is encoded.
pub fn encoding(block: &BlockId) -> Encoding {
    let blocks = table().blocks.get(&(block.chunk, block.encoding));
    blocks.map_or_else(|| Encoding::plain(chunk(name(block))), |blocks| blocks.encoding.clone())
}

/// The stored bytes of a block.
pub fn stored(block: &BlockId) -> &'static [u8] {
    let blocks = table().blocks.get(&(block.chunk, block.encoding));
    blocks.map_or_else(|| content(name(block)), |blocks| blocks.stored(block.index).unwrap())
}

/// A block in words: the number of its chunk, its code with a `z` if it is compressed, and its index.
pub fn shown(block: &BlockId) -> String {
    let (number, encoding) = (name(block), encoding(block));
    let compressed = if encoding.codec == Codec::Store.number() { "" } else { "z" };
    match encoding.code.is_copy() {
        true => format!("{number}{compressed}"),
        false => {
            let (data, parity) = (encoding.code.data(), encoding.code.parity());
            format!("{number}:{data}+{parity}{compressed}.{}", block.index)
        }
    }
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

/// Where the map of a file of these chunks is: in its root, or in the pool.
pub fn root_of(list: &[Number], in_pool: bool) -> MapRoot {
    let number = map_number(list);
    let map = content(number);
    match in_pool {
        false => MapRoot::Inline { map: map.to_vec() },
        true => {
            let length = u32::try_from(map.len()).unwrap();
            MapRoot::Pieces { pieces: vec![ChunkRef { id: id(number), length }], length: length.into() }
        }
    }
}

/// The chunks of the file with this root, in the order of the file; and the chunk that its map is, if that lies in the pool.
pub fn list_of_root(root: &MapRoot) -> (Vec<Number>, Option<Number>) {
    match root {
        MapRoot::Inline { map } => (list_of(table().numbers[&ChunkId::of(map)]), None),
        MapRoot::Pieces { pieces, .. } => {
            let number = table().numbers[&pieces[0].id];
            (list_of(number), Some(number))
        }
    }
}

/// All chunks that a root needs: those of its container if it lies in one.
pub fn named_by(root: &MapRoot) -> BTreeSet<Number> {
    if let Some(place) = root.in_container().unwrap() {
        return named_by(&place.container);
    }
    let (list, map) = list_of_root(root);
    list.into_iter().chain(map).collect()
}
