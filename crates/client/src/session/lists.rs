//! Lists of pieces: where the names of pieces are kept so that the next version finds them (docs/FORMAT.md, chunk map).
//!
//! A few names stand in the map itself. Many become a list, a chunk of its own that later versions name as well, so that a
//! version in which little is new costs little: with names in each map, an image of 4 KiB pages would cost half a percent
//! of its size however little changed. As in a log-structured store, a list of which less than half is in use is written
//! anew, and so is the smaller part of the lists when there are too many: what a version needs to know of earlier
//! pieces is read from a bounded number of chunks.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use stdchk_model::chunk_map::{BadChunkMap, Piece};
use stdchk_model::exact::narrow;
use stdchk_model::{ChunkId, ChunkMap, ChunkRef, ErrorCode, Failure};

use super::Session;
use super::chunks::Origin;

/// Pieces whose names stand in the map: about 20 KiB.
const PIECES_IN_MAP_MAX: usize = 1024;
/// Pieces of one list: about 640 KiB.
const PIECES_IN_LIST_MAX: usize = 32 << 10;
/// Lists of earlier versions that a map goes on naming.
const LISTS_KEPT_MAX: usize = 16;

/// A list that is in the pool.
pub(super) struct List {
    pub(super) chunk: ChunkRef,
    /// How many pieces it names in which chunk.
    pieces: HashMap<ChunkId, usize>,
}

impl List {
    pub(super) fn new(chunk: ChunkRef, list: &ChunkMap) -> Self {
        let mut pieces = HashMap::new();
        for piece in list.pieces() {
            *pieces.entry(list.chunk(piece.index).id).or_insert(0) += 1;
        }
        Self { chunk, pieces }
    }

    /// Where its pieces lie.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &ChunkId> {
        self.pieces.keys()
    }

    /// Its pieces that lie in chunks of a new map, and all.
    fn used(&self, places: &HashMap<ChunkId, u32>) -> (usize, usize) {
        let used = self.pieces.iter().filter(|(chunk, _)| places.contains_key(*chunk));
        (used.map(|(_, count)| count).sum(), self.pieces.values().sum())
    }
}

/// The lists that a new map goes on naming, and the chunks whose pieces they list.
fn worth_keeping(lists: &[List], places: &HashMap<ChunkId, u32>) -> Vec<(ChunkRef, Vec<ChunkId>)> {
    let used = lists.iter().map(|list| (list, list.used(places)));
    let mut worth: Vec<(&List, usize)> = used
        .filter(|(_, (used, all))| used * 2 >= *all && *used > 0)
        .map(|(list, (used, _))| (list, used))
        .collect();
    worth.sort_unstable_by_key(|(list, used)| (std::cmp::Reverse(*used), list.chunk.id));
    let most = if worth.len() > LISTS_KEPT_MAX { LISTS_KEPT_MAX / 2 } else { LISTS_KEPT_MAX };
    worth.truncate(most);
    worth.into_iter().map(|(list, _)| (list.chunk, list.pieces.keys().copied().collect())).collect()
}

impl Session {
    /// The map with the names of its pieces, in itself or in lists, which are stored.
    pub(super) async fn name_pieces(&self, map: ChunkMap) -> Result<ChunkMap, Failure> {
        let places: HashMap<ChunkId, u32> = map.chunks().iter().map(|chunk| chunk.id).zip(0..).collect();
        let worth = self.pieces.with_lists(|lists| worth_keeping(lists, &places));
        let gone: HashSet<ChunkId> =
            self.unusable(worth.iter().map(|(list, _)| *list).collect()).await?.into_iter().collect();
        let kept: Vec<_> = worth.into_iter().filter(|(list, _)| !gone.contains(&list.id)).collect();
        let listed: HashSet<ChunkId> = kept.iter().flat_map(|(_, chunks)| chunks).copied().collect();
        let mut pieces = self.pieces.of_map(&places);
        pieces.retain(|piece| !listed.contains(&map.chunk(piece.index).id));
        let mut lists: Vec<ChunkRef> = kept.into_iter().map(|(list, _)| list).collect();
        if pieces.len() > PIECES_IN_MAP_MAX {
            lists.extend(self.store_lists(&map, std::mem::take(&mut pieces)).await?);
        }
        map.with_pieces(pieces).and_then(|map| map.with_lists(&lists)).map_err(wrong)
    }

    /// Stores lists of these pieces of a map.
    async fn store_lists(&self, map: &ChunkMap, mut pieces: Vec<Piece>) -> Result<Vec<ChunkRef>, Failure> {
        pieces.sort_unstable_by_key(|piece| piece.index);
        let mut lists = Vec::new();
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let (part, after) = rest.split_at(part_of(rest));
            rest = after;
            lists.push(self.store_list(&list_of(map, part).map_err(wrong)?).await?);
        }
        Ok(lists)
    }

    async fn store_list(&self, list: &ChunkMap) -> Result<ChunkRef, Failure> {
        let bytes = Bytes::from(list.encode());
        let chunk = self.chunk_of(&bytes);
        self.see_to(chunk, Origin::Own(bytes.clone()), bytes).await?;
        self.pieces.add_list(List::new(chunk, list));
        Ok(chunk)
    }

    /// Takes up the pieces of an earlier version. A list that can't be had is done without.
    pub(super) async fn take_up_pieces(&self, map: &ChunkMap) {
        let of_map: HashSet<ChunkId> = map.chunks().iter().map(|chunk| chunk.id).collect();
        for chunk in map.lists() {
            if self.pieces.with_lists(|lists| lists.iter().any(|list| list.chunk.id == chunk.id)) {
                continue;
            }
            match self.pool.load_list(chunk).await {
                Ok(list) => {
                    self.pieces.add_pieces(&list, &of_map);
                    self.pieces.add_list(List::new(chunk, &list));
                }
                Err(failure) => tracing::warn!(ino = %self.ino(), %failure, "a list of pieces can't be read"),
            }
        }
        self.pieces.add_pieces(map, &of_map);
    }
}

/// How many of these pieces, sorted by chunk, become one list: those of a chunk stay together.
fn part_of(pieces: &[Piece]) -> usize {
    let mut length = 0;
    for chunk in pieces.chunk_by(|one, next| one.index == next.index) {
        if length > 0 && length + chunk.len() > PIECES_IN_LIST_MAX {
            break;
        }
        length += chunk.len();
    }
    length
}

/// A list of these pieces, sorted by chunk, of a map.
fn list_of(map: &ChunkMap, pieces: &[Piece]) -> Result<ChunkMap, BadChunkMap> {
    let (mut chunks, mut renumbered) = (Vec::new(), Vec::with_capacity(pieces.len()));
    for of_chunk in pieces.chunk_by(|one, next| one.index == next.index) {
        let index = narrow(chunks.len());
        chunks.extend(of_chunk.first().map(|piece| *map.chunk(piece.index)));
        renumbered.extend(of_chunk.iter().map(|piece| Piece { index, ..*piece }));
    }
    ChunkMap::new(chunks, [])?.with_pieces(renumbered)
}

fn wrong(error: BadChunkMap) -> Failure {
    Failure::new(ErrorCode::Internal, format!("the pieces of the chunk map came out wrong: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

    use stdchk_model::chunk_map::PieceName;

    use super::*;

    fn chunk(number: u32) -> ChunkRef {
        ChunkRef { id: ChunkId::of(&number.to_le_bytes()), length: 1 << 20 }
    }

    fn map_of(chunks: std::ops::Range<u32>, pieces_each: u32) -> ChunkMap {
        let pieces = chunks.clone().zip(0..).flat_map(|(chunk, index)| {
            (0..pieces_each).map(move |place| Piece {
                name: PieceName::of(&[chunk.to_le_bytes(), place.to_le_bytes()].concat()),
                index,
                offset: place * 4096,
                length: 4096,
            })
        });
        let pieces = pieces.collect();
        ChunkMap::new(chunks.map(chunk).collect(), []).unwrap().with_pieces(pieces).unwrap()
    }

    fn places(chunks: std::ops::Range<u32>) -> HashMap<ChunkId, u32> {
        chunks.map(|number| chunk(number).id).zip(0..).collect()
    }

    #[test]
    fn a_list_is_kept_while_half_of_it_is_in_use() {
        let lists = [List::new(chunk(100), &map_of(0..10, 7)), List::new(chunk(101), &map_of(10..12, 7))];
        let kept =
            |used| worth_keeping(&lists, &places(used)).into_iter().map(|(list, _)| list).collect::<Vec<_>>();
        assert_eq!(kept(5..20), [chunk(100), chunk(101)]);
        assert_eq!(kept(6..11), [chunk(101)]);
        assert_eq!(kept(20..30), []);
    }

    #[test]
    fn of_too_many_lists_the_small_ones_are_written_anew() {
        let list =
            |number: u32| List::new(chunk(1000 + number), &map_of(number * 20..number * 20 + number + 1, 1));
        let lists: Vec<List> = (0..17).map(list).collect();
        assert_eq!(worth_keeping(&lists[1..], &places(0..400)).len(), 16);
        let kept = worth_keeping(&lists, &places(0..400));
        assert_eq!(
            kept.iter().map(|(list, _)| *list).collect::<Vec<_>>(),
            (1009..1017).rev().map(chunk).collect::<Vec<_>>()
        );
    }

    #[test]
    fn lists_hold_all_pieces_and_those_of_a_chunk_together() {
        let map = map_of(0..300, 256);
        let (mut rest, mut seen) = (map.pieces(), 0);
        while !rest.is_empty() {
            let (part, after) = rest.split_at(part_of(rest));
            rest = after;
            let list = list_of(&map, part).unwrap();
            assert!(list.pieces().len() <= PIECES_IN_LIST_MAX && list.encode().len() < 1 << 20);
            assert_eq!(list.pieces().len(), list.chunks().len() * 256);
            assert_eq!(list.chunks()[0], map.chunks()[seen / 256]);
            seen += list.pieces().len();
        }
        assert_eq!(seen, 300 * 256);
    }
}
