//! Bytes gathered from the chunks that hold them: each chunk is had once, and all that is wanted of it copied before the
//! next one is waited for.
//!
//! The pieces of a range lie in a few chunks in turn, in page after page another one. Taken in the order of the file, a chunk
//! that the cache has let go meanwhile would be fetched anew for each of its pages. Taken chunk by chunk it is fetched
//! once, and whoever gathers keeps a single chunk in memory, so that nobody waits for what another one keeps.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use stdchk_model::exact::part_mut;
use stdchk_model::{ChunkId, ChunkRef, Failure};

use crate::pool::Inner;

/// So many bytes, and the chunk and offset where they are; none for zeros.
pub(crate) type Piece = (usize, Option<(ChunkRef, u32)>);

/// What is wanted of one chunk: where in the chunk, where to.
struct Share {
    chunk: ChunkRef,
    copies: Vec<(Range<usize>, Range<usize>)>,
}

impl Inner {
    /// The bytes of these pieces, one behind the other.
    pub(crate) async fn gather(&self, pieces: &[Piece]) -> Result<Bytes, Failure> {
        match pieces {
            [] => Ok(Bytes::new()),
            [(length, None)] => Ok(self.zeros(*length)),
            [(length, Some((chunk, offset)))] => {
                let (bytes, from) = (self.cache.get(*chunk).await?, *offset as usize);
                Ok(bytes.slice_ref(part(&bytes, from..from + length)?))
            }
            pieces => self.gather_many(pieces).await,
        }
    }

    async fn gather_many(&self, pieces: &[Piece]) -> Result<Bytes, Failure> {
        let mut all = self.gathered.take_now(pieces.iter().map(|(length, _)| length).sum());
        for zeros in zeros(pieces) {
            part_mut(&mut all, zeros).fill(0);
        }
        for share in shares(pieces) {
            let bytes = self.cache.get(share.chunk).await?;
            for (from, to) in share.copies {
                part_mut(&mut all, to).copy_from_slice(part(&bytes, from)?);
            }
        }
        Ok(all.into_bytes())
    }
}

fn part(chunk: &[u8], range: Range<usize>) -> Result<&[u8], Failure> {
    chunk.get(range).ok_or_else(|| crate::internal(&"a map points beyond its chunk"))
}

/// Where zeros go.
fn zeros(pieces: &[Piece]) -> impl Iterator<Item = Range<usize>> {
    let to = pieces.iter().scan(0, |end, (length, source)| {
        *end += length;
        Some((*end - length..*end, source))
    });
    to.filter(|(_, source)| source.is_none()).map(|(range, _)| range)
}

/// The chunks in the order in which they are needed first, each with all that is wanted of it.
fn shares(pieces: &[Piece]) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    let mut places: HashMap<ChunkId, usize> = HashMap::new();
    let mut at = 0;
    for (length, source) in pieces {
        let to = at..at + length;
        at = to.end;
        let Some((chunk, offset)) = source else { continue };
        let place = *places.entry(chunk.id).or_insert(shares.len());
        if place == shares.len() {
            shares.push(Share { chunk: *chunk, copies: Vec::new() });
        }
        let from = *offset as usize;
        part_mut(&mut shares, place).copies.push((from..from + length, to));
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_comes_once_with_all_that_is_wanted_of_it() {
        let [one, two] = [1, 2].map(|byte| ChunkRef { id: ChunkId([byte; 32]), length: 100 });
        let pieces = [(10, Some((one, 50))), (5, None), (20, Some((two, 0))), (30, Some((one, 0)))];
        let shares = shares(&pieces);
        let found: Vec<_> = shares.iter().map(|share| (share.chunk, share.copies.clone())).collect();
        assert_eq!(found, [(one, vec![(50..60, 0..10), (0..30, 35..65)]), (two, vec![(0..20, 15..35)])]);
    }
}
