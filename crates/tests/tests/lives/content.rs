//! The content of a life: a few different chunks, and the chunk maps that can be made of them.
//!
//! Every chunk has a number. The first [`CHUNKS`] are data; every other number is that of the map of one list of data chunks,
//! so that the content of a chunk follows from its number alone.

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use stdchk_model::{BlockId, ChunkId, ChunkMap, ChunkRef, Extent, MapRoot, Source};

/// Number of a chunk.
pub type Number = u16;

/// Length of a data chunk, bytes.
pub const CHUNK_BYTES: usize = 300;
/// Different data chunks: so few that files share them all the time.
pub const CHUNKS: Number = 6;
/// Most chunks of a file.
pub const LENGTH_MAX: usize = 4;
/// Each place of a list holds a chunk or nothing.
const BASE: Number = CHUNKS + 1;

struct Table {
    contents: Vec<(ChunkId, Vec<u8>)>,
    numbers: HashMap<ChunkId, Number>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let data = (0..CHUNKS).map(|number| {
            let number = u8::try_from(number).unwrap();
            (0..CHUNK_BYTES).map(|place| u8::try_from(place % 250).unwrap() ^ number).collect()
        });
        let mut contents: Vec<(ChunkId, Vec<u8>)> =
            data.map(|content: Vec<u8>| (ChunkId::of(&content), content)).collect();
        let ids: Vec<ChunkId> = contents.iter().map(|(id, _)| *id).collect();
        for number in CHUNKS..CHUNKS + BASE.pow(u32::try_from(LENGTH_MAX).unwrap()) {
            let map = map_of(&list_of(number), &ids).encode();
            contents.push((ChunkId::of(&map), map));
        }
        let mut numbers = HashMap::new();
        for (number, (id, _)) in (0..).zip(&contents) {
            numbers.entry(*id).or_insert(number);
        }
        Table { contents, numbers }
    })
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
    let length = u32::try_from(CHUNK_BYTES).unwrap();
    let chunks = distinct.iter().map(|number| ChunkRef { id: ids[usize::from(*number)], length }).collect();
    let extents = list.iter().map(|number| {
        let index = u32::try_from(distinct.binary_search(number).unwrap()).unwrap();
        Extent { length: CHUNK_BYTES as u64, source: Source::Chunk { index, offset: 0 } }
    });
    ChunkMap::new(chunks, extents).unwrap()
}

pub fn content(number: Number) -> &'static [u8] {
    &table().contents[usize::from(number)].1
}

pub fn id(number: Number) -> ChunkId {
    table().contents[usize::from(number)].0
}

pub fn block(number: Number) -> BlockId {
    BlockId::plain(id(number))
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

/// All chunks that a root needs.
pub fn named_by(root: &MapRoot) -> BTreeSet<Number> {
    let (list, map) = list_of_root(root);
    list.into_iter().chain(map).collect()
}
