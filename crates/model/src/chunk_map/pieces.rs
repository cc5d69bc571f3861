//! The pieces of a chunk map: what a fine search found in the chunks, by name and place.
//!
//! A piece is known by 128 bits of its BLAKE3: two different pieces of a folder never share a name by accident, and
//! what a reader verifies is the whole chunk. Stored per chunk as the gaps between pieces and their lengths, since
//! pieces mostly follow each other: about twenty bytes each.

use std::fmt;

use minicbor::{Decode, Encode};

use super::BadChunkMap;
use crate::id::ChunkId;

/// Bytes of a piece's name.
const NAME_BYTES: usize = 16;

/// Name of a piece: the first half of the BLAKE3-256 of its bytes, or of their hash with a key in sealed files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PieceName(pub [u8; NAME_BYTES]);

impl PieceName {
    /// The name of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self::first_of(ChunkId::of(bytes))
    }

    /// The first half of the name that a chunk of the same bytes would have.
    pub fn first_of(ChunkId(id): ChunkId) -> Self {
        Self(std::array::from_fn(|place| id.get(place).copied().unwrap_or(0)))
    }
}

impl fmt::Debug for PieceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A run of bytes within a chunk that a later version may name again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its name.
    pub name: PieceName,
    /// Index into [`super::ChunkMap::chunks`].
    pub index: u32,
    /// First byte within the chunk.
    pub offset: u32,
    /// Bytes; never 0.
    pub length: u32,
}

/// `[names, [[gap, length, …]…]]`: a list for each chunk of the map in its order.
#[derive(Encode, Decode)]
pub(super) struct StoredPieces {
    #[cbor(n(0), with = "minicbor::bytes")]
    names: Vec<u8>,
    #[n(1)]
    places: Vec<Vec<u32>>,
}

impl StoredPieces {
    /// `pieces` in order and apart from each other, of a map with so many chunks; `None` for none.
    pub(super) fn of(pieces: &[Piece], chunks: usize) -> Option<Self> {
        if pieces.is_empty() {
            return None;
        }
        let (mut names, mut places) =
            (Vec::with_capacity(pieces.len() * NAME_BYTES), vec![Vec::new(); chunks]);
        for run in pieces.chunk_by(|one, next| one.index == next.index) {
            let Some(place) = run.first().and_then(|first| places.get_mut(first.index as usize)) else {
                continue;
            };
            let mut end = 0;
            for piece in run {
                names.extend(piece.name.0);
                place.extend([piece.offset - end, piece.length]);
                end = piece.offset + piece.length;
            }
        }
        Some(Self { names, places })
    }

    /// The pieces, as far as numbers and names fit together; whether they fit the chunks is for the map to see.
    pub(super) fn read(&self) -> Result<Vec<Piece>, BadChunkMap> {
        const BAD: BadChunkMap =
            BadChunkMap::Inconsistent("the names and places of its pieces don't fit together");
        let mut names = self.names.chunks_exact(NAME_BYTES);
        let mut pieces = Vec::with_capacity(names.len());
        for (place, index) in self.places.iter().zip(0u32..) {
            let mut end = 0u32;
            for pair in place.chunks(2) {
                let (&[gap, length], Some(name)) = (pair, names.next()) else { return Err(BAD) };
                let offset = end.checked_add(gap).ok_or(BAD)?;
                end = offset.checked_add(length).ok_or(BAD)?;
                let name = PieceName(name.try_into().map_err(|_| BAD)?);
                pieces.push(Piece { name, index, offset, length });
            }
        }
        match names.next().is_none() && names.remainder().is_empty() {
            true => Ok(pieces),
            false => Err(BAD),
        }
    }
}
