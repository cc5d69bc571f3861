//! The names of a version's pieces, by where they lie: what tells whether bytes at hand are a part of a chunk, without the chunk.

use std::collections::HashMap;
use std::sync::Arc;

use stdchk_model::chunk_map::PieceName;
use stdchk_model::{ChunkId, ChunkMap, ChunkRef, ErrorCode, Failure};

use crate::keyring::KeyRing;
use crate::pool::{Inner, Pool};

/// Names of pieces. About sixty bytes each.
pub struct PieceNames {
    keys: Arc<KeyRing>,
    pieces: HashMap<(ChunkId, u32), (u32, PieceName)>,
}

impl Default for PieceNames {
    fn default() -> Self {
        Self::new(Arc::new(KeyRing::new(None)))
    }
}

impl PieceNames {
    fn new(keys: Arc<KeyRing>) -> Self {
        Self { keys, pieces: HashMap::new() }
    }

    fn add(&mut self, map: &ChunkMap) {
        for piece in map.pieces() {
            self.pieces.insert((map.chunk(piece.index).id, piece.offset), (piece.length, piece.name));
        }
    }

    /// Whether `bytes` are all of a chunk.
    pub fn are_all_of(&self, chunk: ChunkId, bytes: &[u8]) -> bool {
        self.keys.are_of(chunk, bytes)
    }

    /// Whether `bytes` are those of a chunk from `offset` on. False also where no pieces are known that make them up.
    pub fn are_at(&self, chunk: ChunkId, mut offset: u32, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some((length, name)) = self.pieces.get(&(chunk, offset)) else { return false };
            let Some((piece, rest)) = bytes.split_at_checked(*length as usize) else { return false };
            if self.keys.piece_of(chunk, piece) != *name {
                return false;
            }
            (offset, bytes) = (offset + length, rest);
        }
        true
    }
}

impl Inner {
    /// A list of pieces, which is an encoded map.
    pub(crate) async fn load_list(&self, chunk: ChunkRef) -> Result<ChunkMap, Failure> {
        self.fetcher.locate([chunk.id]).await?;
        let bytes = self.fetcher.fetch(chunk).await?;
        ChunkMap::decode(&bytes).map_err(|error| Failure::new(ErrorCode::Damaged, error.to_string()))
    }
}

impl Pool {
    /// The names of the pieces of a version, those in its lists included as far as these can be read.
    pub async fn piece_names(&self, map: &ChunkMap) -> PieceNames {
        let mut names = PieceNames::new(Arc::clone(&self.inner.encryption_keys));
        names.add(map);
        for list in map.lists() {
            match self.inner.load_list(list).await {
                Ok(list) => names.add(&list),
                Err(failure) => tracing::debug!(%failure, "a list of pieces can't be read"),
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use stdchk_model::chunk_map::Piece;

    use super::*;

    #[test]
    fn bytes_are_a_part_of_a_chunk_where_whole_pieces_make_them_up() {
        let chunk = ChunkRef { id: ChunkId([1; 32]), length: 30 };
        let piece = |offset: u32, bytes: &[u8]| Piece {
            name: PieceName::of(bytes),
            index: 0,
            offset,
            length: u32::try_from(bytes.len()).unwrap(),
        };
        let pieces = vec![piece(0, b"first"), piece(5, b"second"), piece(20, b"far")];
        let mut names = PieceNames::default();
        names.add(&ChunkMap::new(vec![chunk], []).unwrap().with_pieces(pieces).unwrap());
        assert!(names.are_at(chunk.id, 0, b"firstsecond") && names.are_at(chunk.id, 5, b"second"));
        assert!(!names.are_at(chunk.id, 5, b"Second"), "other bytes");
        assert!(!names.are_at(chunk.id, 5, b"sec"), "a part of a piece has no name");
        assert!(!names.are_at(chunk.id, 5, b"second and more"), "nothing is known of what follows");
        assert!(!names.are_at(ChunkId([2; 32]), 0, b"first"));
    }
}
