//! The chunk map of a version: which bytes of the file lie in which chunk (design decision 6).
//!
//! A map is a table of chunks and a list of extents in file order. An extent is a run of file bytes that lies in one
//! chunk at one offset, or a hole that reads as zeros. Extents may be smaller than chunks, so that pieces found by a
//! fine-grained search can be packed into chunks of a mebibyte. The map is content: encoded, it is stored in the pool
//! in pieces like any other content, and the manager keeps only its root.
//!
//! A map may also carry the names of its pieces, so that the next version finds them again (`pieces`): the manager
//! never hears of a piece. Many of them lie in lists, chunks of their own which versions share: a list is an encoded map
//! without extents.
//!
//! Layout of the encoded map: the four bytes `SCMP`, then CBOR `[1, size, [[id, length]…], [[length] | [length,
//! chunk, offset]…], [names, [[gap, length, …]…]], [list…]]`; 1 is the version of the layout, the last two elements may
//! be absent.

mod in_container;
mod pieces;

use minicbor::{Decode, Encode};

use crate::cbor;
use crate::exact::{narrow, part};
use crate::id::ChunkId;
use crate::limits::{CHUNK_BYTES_MAX, FILE_BYTES_MAX};
pub use in_container::InContainer;
use pieces::StoredPieces;
pub use pieces::{Piece, PieceName};

const MAGIC: [u8; 4] = *b"SCMP";
const LAYOUT: u16 = 1;

/// A chunk that a map refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ChunkRef {
    /// Its name.
    #[n(0)]
    pub id: ChunkId,
    /// Its plain length, bytes.
    #[n(1)]
    pub length: u32,
}

impl ChunkRef {
    /// The chunk that these bytes are.
    pub fn of(bytes: &[u8]) -> Self {
        Self { id: ChunkId::of(bytes), length: narrow(bytes.len()) }
    }
}

/// Where the bytes of an extent come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Zeros that were never stored.
    Hole,
    /// Bytes of a chunk.
    Chunk {
        /// Index into [`ChunkMap::chunks`].
        index: u32,
        /// First byte within the chunk.
        offset: u32,
    },
}

/// A run of file bytes from one source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes of the file that it covers; never 0.
    pub length: u64,
    /// Where they come from.
    pub source: Source,
}

/// What a file consists of. Built with [`ChunkMap::new`] or decoded, and valid from then on: extents cover exactly
/// `size` bytes and stay within their chunks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChunkMap {
    size: u64,
    chunks: Vec<ChunkRef>,
    extents: Vec<Extent>,
    pieces: Vec<Piece>,
    /// Chunks that hold lists of pieces, as indices.
    lists: Vec<u32>,
}

/// Why bytes or parts are not a chunk map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadChunkMap {
    /// The bytes don't start like a map.
    #[error("not a chunk map: it doesn't start with `SCMP`")]
    Magic,
    /// Written by a later stdchk.
    #[error("the chunk map has layout {0}, this stdchk reads layout 1: use a later stdchk")]
    Layout(u16),
    /// Not the CBOR of the layout.
    #[error("the chunk map can't be decoded: {0}")]
    Encoding(String),
    /// The parts contradict each other.
    #[error("the chunk map is inconsistent: {0}")]
    Inconsistent(&'static str),
}

impl ChunkMap {
    /// A map of these parts; neighbouring extents that continue each other are merged.
    ///
    /// # Errors
    /// An extent of length 0, beyond the file size limit, outside its chunk or of an unknown chunk; a chunk of
    /// length 0 or over the limit.
    pub fn new(
        chunks: Vec<ChunkRef>,
        extents: impl IntoIterator<Item = Extent>,
    ) -> Result<Self, BadChunkMap> {
        if chunks.iter().any(|chunk| chunk.length == 0 || chunk.length as usize > CHUNK_BYTES_MAX) {
            return Err(BadChunkMap::Inconsistent("a chunk is empty or over the limit"));
        }
        let mut map = Self { chunks, ..Self::default() };
        extents.into_iter().try_for_each(|extent| map.push(extent))?;
        Ok(map)
    }

    /// The map with the pieces that can be found again in its chunks, in any order; each counts once.
    ///
    /// # Errors
    /// A piece that is empty, leaves its chunk or lies in an unknown one.
    pub fn with_pieces(mut self, mut pieces: Vec<Piece>) -> Result<Self, BadChunkMap> {
        for piece in &pieces {
            let source = Source::Chunk { index: piece.index, offset: piece.offset };
            self.check(&Extent { length: u64::from(piece.length), source })?;
        }
        pieces.sort_unstable_by_key(|piece| (piece.index, piece.offset, piece.length));
        // Pieces of one cut don't overlap; of two that do, from different cuts, the first is kept.
        let mut end = (0, 0);
        pieces.retain(|piece| {
            let follows = (piece.index, piece.offset) >= end;
            if follows {
                end = (piece.index, piece.offset.saturating_add(piece.length));
            }
            follows
        });
        self.pieces = pieces;
        Ok(self)
    }

    /// The map with chunks added that hold lists of the pieces of other chunks.
    pub fn with_lists(mut self, lists: &[ChunkRef]) -> Result<Self, BadChunkMap> {
        let first = narrow(self.chunks.len());
        self.chunks.extend(lists);
        self.lists = (first..).take(lists.len()).collect();
        self.checked_lists()
    }

    fn checked_lists(self) -> Result<Self, BadChunkMap> {
        match self.lists.iter().all(|list| self.chunks.get(*list as usize).is_some()) {
            true => Ok(self),
            false => Err(BadChunkMap::Inconsistent("a list of pieces lies in an unknown chunk")),
        }
    }

    fn push(&mut self, extent: Extent) -> Result<(), BadChunkMap> {
        self.check(&extent)?;
        self.size = self
            .size
            .checked_add(extent.length)
            .filter(|size| *size <= FILE_BYTES_MAX)
            .ok_or(BadChunkMap::Inconsistent("the file would be too large"))?;
        match self.extents.last_mut() {
            Some(last) if continues(last, &extent) => last.length += extent.length,
            _ => self.extents.push(extent),
        }
        Ok(())
    }

    fn check(&self, extent: &Extent) -> Result<(), BadChunkMap> {
        if extent.length == 0 {
            return Err(BadChunkMap::Inconsistent("an extent is empty"));
        }
        let Source::Chunk { index, offset } = extent.source else { return Ok(()) };
        let chunk = self
            .chunks
            .get(index as usize)
            .ok_or(BadChunkMap::Inconsistent("an extent names an unknown chunk"))?;
        match u64::from(offset).checked_add(extent.length) {
            Some(end) if end <= u64::from(chunk.length) => Ok(()),
            _ => Err(BadChunkMap::Inconsistent("an extent leaves its chunk")),
        }
    }

    /// Size of the file, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that lie in holes.
    pub fn hole_bytes(&self) -> u64 {
        let holes = self.extents.iter().filter(|extent| extent.source == Source::Hole);
        holes.map(|extent| extent.length).sum()
    }

    /// The chunks that the file refers to, lists of pieces included, each once per place in the table.
    pub fn chunks(&self) -> &[ChunkRef] {
        &self.chunks
    }

    /// The extents in file order; their lengths add up to [`ChunkMap::size`].
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// The pieces that a later version may find in the chunks, by chunk and offset. May be empty.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The chunks that hold lists of further pieces: each an encoded map of chunks and pieces.
    pub fn lists(&self) -> impl Iterator<Item = ChunkRef> + '_ {
        self.lists.iter().map(|list| *self.chunk(*list))
    }

    /// The chunk to which an extent or a piece of this map refers by `index`.
    pub fn chunk(&self, index: u32) -> &ChunkRef {
        part(&self.chunks, index as usize)
    }

    /// The chunk that an extent's source refers to; `None` for a hole.
    pub fn chunk_of(&self, extent: &Extent) -> Option<&ChunkRef> {
        match extent.source {
            Source::Hole => None,
            Source::Chunk { index, .. } => Some(self.chunk(index)),
        }
    }

    /// The map as bytes, in the current layout.
    pub fn encode(&self) -> Vec<u8> {
        let stored = Stored {
            layout: LAYOUT,
            size: self.size,
            chunks: self.chunks.clone(),
            extents: self.extents.iter().map(StoredExtent::from).collect(),
            pieces: StoredPieces::of(&self.pieces, self.chunks.len()),
            lists: (!self.lists.is_empty()).then(|| self.lists.clone()),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(cbor::encode(&stored));
        bytes
    }

    /// The map that `bytes` hold. Never panics, whatever they are.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadChunkMap> {
        let (layout, body) = layout_of(bytes)?;
        if layout != LAYOUT {
            return Err(BadChunkMap::Layout(layout));
        }
        let stored: Stored = cbor::decode(body).map_err(damaged)?;
        let map = Self::new(stored.chunks, stored.extents.iter().map(Extent::from))?;
        if map.size != stored.size {
            return Err(BadChunkMap::Inconsistent("its extents don't add up to its size"));
        }
        let map = Self { lists: stored.lists.unwrap_or_default(), ..map }.checked_lists()?;
        match stored.pieces {
            Some(pieces) => map.with_pieces(pieces.read()?),
            None => Ok(map),
        }
    }
}

/// Whether `next` starts where `last` ends, in the file by construction and in the source by this test.
fn continues(last: &Extent, next: &Extent) -> bool {
    match (last.source, next.source) {
        (Source::Hole, Source::Hole) => true,
        (Source::Chunk { index, offset }, Source::Chunk { index: next_index, offset: next_offset }) => {
            index == next_index && u64::from(offset) + last.length == u64::from(next_offset)
        }
        _ => false,
    }
}

/// The layout of an encoded map, and what follows the magic.
fn layout_of(bytes: &[u8]) -> Result<(u16, &[u8]), BadChunkMap> {
    let body = bytes.strip_prefix(&MAGIC).ok_or(BadChunkMap::Magic)?;
    let layout: Layout = cbor::decode(body).map_err(damaged)?;
    Ok((layout.layout, body))
}

fn damaged(error: minicbor::decode::Error) -> BadChunkMap {
    BadChunkMap::Encoding(error.to_string())
}

/// The part of every layout that says which layout follows.
#[derive(Decode)]
struct Layout {
    #[n(0)]
    layout: u16,
}

#[derive(Encode, Decode)]
struct Stored {
    #[n(0)]
    layout: u16,
    #[n(1)]
    size: u64,
    #[n(2)]
    chunks: Vec<ChunkRef>,
    #[n(3)]
    extents: Vec<StoredExtent>,
    #[n(4)]
    pieces: Option<StoredPieces>,
    #[n(5)]
    lists: Option<Vec<u32>>,
}

/// `[length]` for a hole, `[length, chunk, offset]` else.
#[derive(Encode, Decode)]
struct StoredExtent {
    #[n(0)]
    length: u64,
    #[n(1)]
    chunk: Option<u32>,
    #[n(2)]
    offset: Option<u32>,
}

impl From<&Extent> for StoredExtent {
    fn from(extent: &Extent) -> Self {
        let (chunk, offset) = match extent.source {
            Source::Hole => (None, None),
            Source::Chunk { index, offset } => (Some(index), Some(offset)),
        };
        Self { length: extent.length, chunk, offset }
    }
}

impl From<&StoredExtent> for Extent {
    fn from(stored: &StoredExtent) -> Self {
        let source = match stored.chunk {
            None => Source::Hole,
            Some(index) => Source::Chunk { index, offset: stored.offset.unwrap_or(0) },
        };
        Self { length: stored.length, source }
    }
}

/// Where the chunk map of a version is. This is all that the manager keeps of a file's content.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum MapRoot {
    /// The encoded map itself, for small files.
    #[n(0)]
    Inline {
        /// At most [`crate::limits::MAP_INLINE_BYTES_MAX`] bytes.
        #[cbor(n(0), with = "minicbor::bytes")]
        map: Vec<u8>,
    },
    /// The encoded map was cut into pieces, which are chunks of the pool.
    #[n(1)]
    Pieces {
        /// The pieces in order.
        #[n(0)]
        pieces: Vec<ChunkRef>,
        /// Length of the encoded map, bytes.
        #[n(1)]
        length: u64,
    },
}

impl MapRoot {
    /// The chunks of the pool that hold the map.
    pub fn pieces(&self) -> &[ChunkRef] {
        match self {
            Self::Inline { .. } => &[],
            Self::Pieces { pieces, .. } => pieces,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(byte: u8, length: u32) -> ChunkRef {
        ChunkRef { id: ChunkId([byte; 32]), length }
    }

    fn of_chunk(index: u32, offset: u32, length: u64) -> Extent {
        Extent { length, source: Source::Chunk { index, offset } }
    }

    #[test]
    fn a_map_survives_its_encoding() {
        let hole = Extent { length: 1 << 30, source: Source::Hole };
        let chunks = vec![chunk(1, 100), chunk(2, 50)];
        let map = ChunkMap::new(chunks, [of_chunk(0, 0, 100), hole, of_chunk(1, 10, 40)]).unwrap();
        assert_eq!(map.size(), (1 << 30) + 140);
        assert_eq!(ChunkMap::decode(&map.encode()), Ok(map));
    }

    #[test]
    fn extents_that_continue_each_other_become_one() {
        let hole = Extent { length: 7, source: Source::Hole };
        let extents = [of_chunk(0, 0, 10), of_chunk(0, 10, 20), hole, hole, of_chunk(0, 30, 5)];
        let map = ChunkMap::new(vec![chunk(1, 100)], extents).unwrap();
        let lengths: Vec<u64> = map.extents().iter().map(|extent| extent.length).collect();
        assert_eq!(lengths, [30, 14, 5]);
    }

    #[test]
    fn pieces_survive_the_encoding_and_cost_little() {
        let chunks = vec![chunk(1, 1 << 20), chunk(2, 500), chunk(3, 1 << 20)];
        let whole: Vec<Extent> =
            chunks.iter().zip(0..).map(|(chunk, index)| of_chunk(index, 0, chunk.length.into())).collect();
        let bare = ChunkMap::new(chunks, whole).unwrap();
        let piece =
            |index, offset, length, name| Piece { name: PieceName([name; 16]), index, offset, length };
        let mut pieces: Vec<Piece> = (0..256).map(|page| piece(0, page * 4096, 4096, 7)).collect();
        pieces.extend([piece(2, 5000, 100, 3), piece(2, 100, 4000, 4)]);
        let size = bare.encode().len();
        let map = bare.clone().with_pieces(pieces).unwrap();
        assert_eq!(map.pieces().len(), 258);
        assert_eq!(map.pieces()[256], piece(2, 100, 4000, 4), "in order");
        assert!(map.encode().len() - size < 21 * 258, "twenty bytes each");
        assert_eq!(ChunkMap::decode(&map.encode()), Ok(map));
        for bad in [piece(3, 0, 1, 1), piece(1, 499, 2, 1), piece(1, 0, 0, 1), piece(1, u32::MAX, 1, 1)] {
            assert!(bare.clone().with_pieces(vec![bad]).is_err(), "{bad:?}");
        }
        let overlapping = vec![piece(0, 0, 100, 1), piece(0, 50, 100, 2), piece(0, 100, 10, 3)];
        assert_eq!(bare.with_pieces(overlapping).unwrap().pieces().len(), 2);
    }

    #[test]
    fn lists_of_pieces_are_chunks_of_the_map() {
        let map = ChunkMap::new(vec![chunk(1, 100)], [of_chunk(0, 0, 100)]).unwrap();
        let map = map.with_lists(&[chunk(8, 500), chunk(9, 20)]).unwrap();
        assert_eq!(map.lists().collect::<Vec<_>>(), [chunk(8, 500), chunk(9, 20)]);
        assert_eq!((map.chunks().len(), map.size()), (3, 100), "who keeps the chunks keeps the lists");
        assert_eq!(ChunkMap::decode(&map.encode()).as_ref(), Ok(&map));
        assert!(ChunkMap { lists: vec![3], ..map }.checked_lists().is_err());
    }

    #[test]
    fn contradictions_are_refused() {
        let refused = |chunks: Vec<ChunkRef>, extent| ChunkMap::new(chunks, [extent]).is_err();
        assert!(refused(vec![], of_chunk(0, 0, 1)));
        assert!(refused(vec![chunk(1, 10)], of_chunk(0, 5, 6)));
        assert!(refused(vec![chunk(1, 10)], of_chunk(0, 0, 0)));
        assert!(refused(vec![chunk(1, 0)], of_chunk(0, 0, 1)));
        assert!(refused(vec![], Extent { length: u64::MAX, source: Source::Hole }));
    }

    #[test]
    fn damaged_bytes_are_refused_or_still_a_valid_map() {
        let extents = (0..40u32).map(|index| of_chunk(index, 3, 60));
        let map = ChunkMap::new((0..40).map(|byte| chunk(byte, 100)).collect(), extents).unwrap();
        let piece = |index| Piece { name: PieceName([9; 16]), index, offset: 3, length: 50 };
        let map = map.with_pieces((0..40).map(piece).collect()).unwrap();
        let map = map.with_lists(&[chunk(99, 7)]).unwrap();
        let good = map.encode();
        for position in 0..good.len() {
            for flip in [1u8, 0x20, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[position] ^= flip;
                if let Ok(read) = ChunkMap::decode(&bad) {
                    assert_eq!(read.extents().iter().map(|extent| extent.length).sum::<u64>(), read.size());
                }
            }
            assert!(ChunkMap::decode(&good[..position]).is_err());
        }
    }

    #[test]
    fn a_later_layout_is_named() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(minicbor::to_vec((9u16, "something else")).unwrap());
        assert_eq!(ChunkMap::decode(&bytes), Err(BadChunkMap::Layout(9)));
    }
}
