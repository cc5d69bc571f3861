//! Cells in pieces (design decision 6): what an earlier version or this session has already is referred to, and only what
//! is new is packed into chunks of about a mebibyte.
//!
//! Every cell is dealt with by itself, so cells stay parallel and a pack never waits for another cell. Three rules keep
//! restores sequential and the manager unaware of pieces: new pieces of a cell lie together, in its order; a cell
//! refers to a few earlier chunks at most, those that give most of its bytes (what others would give is stored again:
//! the container capping of Lillibridge, Eshghi and Bhagwat, FAST 2013); and the names of the pieces travel with the
//! chunk map of the version (`lists`).

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use stdchk_model::chunk_map::{Piece, PieceName};
use stdchk_model::exact::{narrow, part, part_mut};
use stdchk_model::limits::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest};
use stdchk_model::{ChunkId, ChunkMap, ChunkRef, Failure};
use stdchk_net::waits::permits;
use stdchk_protect::suffices_at;
use stdchk_reduce::{CutterSpec, cut, is_zero};
use tokio::sync::{OnceCell, OwnedSemaphorePermit};
use tokio::task::JoinSet;

use super::Session;
use super::chunks::Origin;
use super::grid::Turn;
use super::lists::List;
use super::sealed::{Part, Sealed};

/// Cutters of this average and below are for finding, and what they find is packed, bytes.
const PIECE_AVERAGE_MAX: usize = 256 << 10;
/// Bytes of a pack, about.
const PACK_BYTES: usize = CHUNK_BYTES_DEFAULT;
/// Chunks of earlier versions that one cell may refer to: with its own packs about a dozen for 4 MiB. Chunks of this session
/// are not counted: what repeats within a file lies wherever it came first.
const EARLIER_CHUNKS_MAX: usize = 8;
/// Bytes of chunks that a restore of one cell may read for each byte of it, so that the newest of many versions costs at most
/// so much more than the first.
const READ_FOR_USED_MAX: usize = 2;

/// Whether what this cutter finds is packed.
pub(super) fn are_packed(cutter: &CutterSpec) -> bool {
    cutter.limits().average <= PIECE_AVERAGE_MAX
}

/// Where a piece lies: index into [`Index::chunks`], offset and length.
#[derive(Clone, Copy)]
struct Place {
    chunk: u32,
    offset: u32,
    length: u32,
}

/// The pieces that can be referred to. About forty bytes each.
#[derive(Default)]
struct Index {
    chunks: Vec<ChunkRef>,
    by_id: HashMap<ChunkId, u32>,
    places: HashMap<PieceName, Place>,
    /// Chunks that may be referred to: stored by this session, or kept for it by the manager. False: gone.
    usable: HashMap<ChunkId, bool>,
    /// Lists of pieces that are in the pool.
    lists: Vec<List>,
    /// Chunks of earlier versions whose pieces were taken up.
    earlier: HashSet<ChunkId>,
}

impl Index {
    fn chunk(&mut self, chunk: ChunkRef) -> u32 {
        let next = narrow(self.chunks.len());
        *self.by_id.entry(chunk.id).or_insert_with(|| {
            self.chunks.push(chunk);
            next
        })
    }

    fn add(&mut self, chunk: ChunkRef, name: PieceName, offset: u32, length: u32) {
        let chunk = self.chunk(chunk);
        self.places.insert(name, Place { chunk, offset, length });
    }

    /// Forgets the pieces in all other chunks than these and those of earlier versions.
    fn keep(&mut self, kept: &HashSet<ChunkId>) {
        let is_kept = |chunk: &ChunkId| kept.contains(chunk) || self.earlier.contains(chunk);
        if self.chunks.iter().all(|chunk| is_kept(&chunk.id)) {
            return;
        }
        self.lists.retain(|list| list.chunks().any(is_kept));
        let before = std::mem::take(&mut self.chunks);
        self.by_id.clear();
        let mut now = Vec::with_capacity(before.len());
        for chunk in before {
            let is_kept = kept.contains(&chunk.id) || self.earlier.contains(&chunk.id);
            now.push(is_kept.then(|| self.chunk(chunk)));
        }
        self.places.retain(|_, place| match part(&now, place.chunk as usize) {
            Some(chunk) => {
                place.chunk = *chunk;
                true
            }
            None => false,
        });
        self.places.shrink_to(self.places.len() * 2);
    }

    fn find(&self, name: &PieceName, length: usize) -> Option<(ChunkRef, u32)> {
        let place = self.places.get(name).filter(|place| place.length as usize == length)?;
        Some((*part(&self.chunks, place.chunk as usize), place.offset))
    }
}

/// What one session knows of pieces.
#[derive(Default)]
pub(super) struct Pieces {
    /// Whether there are any of earlier versions, once those are taken up.
    loaded: OnceCell<bool>,
    index: Mutex<Index>,
}

/// A piece of a cell; without a name: zeros.
struct Cut {
    range: Range<usize>,
    name: Option<PieceName>,
    /// Chunk and offset where it is, or will be.
    source: Option<(ChunkRef, u32)>,
}

/// New pieces of one cell that become one chunk.
#[derive(Default)]
struct Pack {
    ranges: Vec<Range<usize>>,
    length: usize,
    /// The pieces, as indices into the cell's cuts.
    members: Vec<usize>,
}

impl Pieces {
    /// The pieces that lie in the chunks of a new map, whose places in its table are given.
    pub(super) fn of_map(&self, places: &HashMap<ChunkId, u32>) -> Vec<Piece> {
        let index = self.index.lock();
        let pieces = index.places.iter().filter_map(|(name, place)| {
            let chunk = part(&index.chunks, place.chunk as usize);
            let Place { offset, length, .. } = *place;
            Some(Piece { name: *name, index: *places.get(&chunk.id)?, offset, length })
        });
        pieces.collect()
    }

    /// The pieces of a map or a list, as far as they lie in `chunks`, can be found from now on.
    pub(super) fn add_pieces(&self, map: &ChunkMap, chunks: &HashSet<ChunkId>) {
        let mut index = self.index.lock();
        for piece in map.pieces() {
            let chunk = map.chunk(piece.index);
            if chunks.contains(&chunk.id) {
                index.earlier.insert(chunk.id);
                index.add(*chunk, piece.name, piece.offset, piece.length);
            }
        }
    }

    pub(super) fn add_list(&self, list: List) {
        let mut index = self.index.lock();
        if index.lists.iter().all(|known| known.chunk != list.chunk) {
            index.lists.push(list);
        }
    }

    pub(super) fn with_lists<R>(&self, look: impl FnOnce(&[List]) -> R) -> R {
        look(&self.index.lock().lists)
    }

    /// A commit has ended: what the session stored belongs to a version now, and is asked for like any other. What it stored before
    /// and neither that version nor a cell uses, which these chunks are of, isn't found again: a file that stays open doesn't gather
    /// all that it ever had.
    pub(super) fn settled(&self, used: &HashSet<ChunkId>) {
        let mut index = self.index.lock();
        index.usable.clear();
        index.keep(used);
    }

    /// The manager knows nothing any more of what was asked for.
    pub(super) fn forget_usable(&self) {
        self.index.lock().usable.clear();
    }
}

impl Session {
    /// Stores a cell in pieces; where its bytes are then.
    pub(super) async fn send_pieces(
        self: &Arc<Self>,
        sealed: &Arc<Sealed>,
        bytes: Bytes,
        turn: Turn,
    ) -> Result<Vec<Part>, Failure> {
        let any_earlier = *self.pieces.loaded.get_or_init(|| self.load_pieces()).await;
        let mut cuts = self.cut(&bytes, self.phase(&bytes, any_earlier, turn).await);
        self.refer(&mut cuts).await?;
        let packs = pack(&cuts);
        let mut stores = JoinSet::new();
        for pack in packs {
            let room = self.room_for_copy(&pack).await;
            let content = collect(&bytes, &pack.ranges);
            let chunk = self.chunk_of(&content);
            let claimed = self.chunks.claim(chunk, Origin::Cell(Arc::downgrade(sealed), pack.ranges));
            self.name_members(chunk, &pack.members, &mut cuts);
            if claimed {
                let session = Arc::clone(self);
                stores.spawn(async move {
                    let stored = session.store_claimed(chunk, content).await;
                    drop(room);
                    stored
                });
            }
        }
        while let Some(stored) = stores.join_next().await {
            stored.map_err(|error| crate::internal(&error))??;
        }
        // What other cells store at this moment, and this one refers to, must be there when a commit comes to it.
        let used: HashSet<ChunkId> = cuts.iter().filter_map(|cut| Some(cut.source?.0.id)).collect();
        for chunk in used {
            self.wait_for_other(chunk).await;
        }
        copy_repeats(&mut cuts);
        Ok(parts(&cuts))
    }

    fn cut(&self, bytes: &Bytes, phase: usize) -> Vec<Cut> {
        let (mut cutter, mut at) = (self.cutter.cutter_at(phase), 0);
        let cut = cut::pieces(&mut *cutter, bytes).map(|piece| {
            let range = at..at + piece.len();
            at = range.end;
            Cut { range, name: (!is_zero(piece)).then(|| self.piece_of(piece)), source: None }
        });
        cut.collect()
    }

    /// Takes up the pieces of the version before and of the version most like this file, if its own maker wrote them. Without them nothing is found
    /// again, which is no reason to refuse a checkpoint. Whether there are any.
    async fn load_pieces(&self) -> bool {
        let base = Arc::clone(&self.state.lock().base);
        let similar = self.similar().await;
        let similar =
            similar.inspect_err(|failure| tracing::warn!(ino = %self.ino(), %failure, "no earlier pieces"));
        if let Ok(Some(map)) = similar {
            self.take_up_pieces(&map).await;
        }
        // What lies in a container has no chunks of its own, and no pieces. What others call pieces may be something else.
        if let Some(base) = base.chunks().filter(|_| self.is_base_own) {
            self.take_up_pieces(base.map()).await;
        }
        !self.pieces.index.lock().places.is_empty()
    }

    /// Whether an earlier version has this piece.
    pub(super) fn has_earlier(&self, piece: &[u8]) -> bool {
        let found = self.pieces.index.lock().find(&self.piece_of(piece), piece.len());
        found.is_some_and(|(chunk, _)| !self.chunks.is_own(chunk.id))
    }

    /// The map of the version most like this file; `None` if there is none with chunks of its own.
    pub(super) async fn similar(&self) -> Result<Option<ChunkMap>, Failure> {
        let asked = ManagerRequest::Similar(self.ino());
        match crate::acting_for(self.user.clone(), self.pool.manager.ask(&asked)).await? {
            // What lies in a container has no chunks of its own.
            ManagerReply::Version { root: Some(root), .. } if !root.is_in_container() => {
                self.pool.load_map(Some(&root)).await.map(Some)
            }
            ManagerReply::Version { .. } => Ok(None),
            _ => Err(crate::unexpected("Similar")),
        }
    }

    /// Finds the pieces of a cell in chunks that may be referred to.
    async fn refer(&self, cuts: &mut [Cut]) -> Result<(), Failure> {
        let wanted = {
            let index = self.pieces.index.lock();
            let mut weights: HashMap<ChunkId, (ChunkRef, usize)> = HashMap::new();
            for cut in cuts.iter_mut() {
                cut.source = cut.name.and_then(|name| index.find(&name, cut.range.len()));
                if let Some((chunk, _)) = cut.source {
                    weights.entry(chunk.id).or_insert((chunk, 0)).1 += cut.range.len();
                }
            }
            let earlier = weights.into_values().filter(|(chunk, _)| !self.chunks.is_own(chunk.id));
            let mut earlier: Vec<(ChunkRef, usize)> = earlier.collect();
            earlier.sort_unstable_by_key(|(chunk, weight)| (std::cmp::Reverse(*weight), chunk.id));
            earlier
        };
        let all: usize = cuts.iter().filter(|cut| cut.name.is_some()).map(|cut| cut.range.len()).sum();
        let found: Vec<ChunkId> = wanted.iter().map(|(chunk, _)| chunk.id).collect();
        let worth = worth_reading(wanted, all);
        let asked: HashSet<ChunkId> = worth.iter().map(|chunk| chunk.id).collect();
        let mut refused: HashSet<ChunkId> =
            found.into_iter().filter(|chunk| !asked.contains(chunk)).collect();
        refused.extend(self.unusable(worth).await?);
        for cut in cuts {
            cut.source = cut.source.filter(|(chunk, _)| !refused.contains(&chunk.id));
        }
        Ok(())
    }

    /// Those of earlier chunks that are in the pool less safe than a commit wants them; the others are kept for
    /// this session from now on.
    pub(super) async fn unusable(&self, chunks: Vec<ChunkRef>) -> Result<Vec<ChunkId>, Failure> {
        let unknown: Vec<ChunkRef> = {
            let index = self.pieces.index.lock();
            chunks.iter().filter(|chunk| !index.usable.contains_key(&chunk.id)).copied().collect()
        };
        let found = if unknown.is_empty() {
            Vec::new()
        } else {
            self.ask_known(unknown.iter().map(|chunk| chunk.id).collect()).await?
        };
        let mut index = self.pieces.index.lock();
        for (chunk, found) in unknown.into_iter().zip(found) {
            let usable = suffices_at(&found.at, self.policy.at_commit());
            if usable {
                self.chunks.adopt(chunk, &found.at);
            }
            index.usable.insert(chunk.id, usable);
        }
        let unusable = |chunk: &ChunkRef| index.usable.get(&chunk.id) == Some(&false);
        Ok(chunks.iter().filter(|chunk| unusable(chunk)).map(|chunk| chunk.id).collect())
    }

    /// Pieces that don't lie together are copied together, beside the window: only so many packs at a time.
    async fn room_for_copy(&self, pack: &Pack) -> Option<OwnedSemaphorePermit> {
        match pack.ranges.len() {
            0 | 1 => None,
            _ => Some(permits(&self.pool.copied_packs, 1).await),
        }
    }

    /// The members of a pack are in `chunk` from now on.
    fn name_members(&self, chunk: ChunkRef, members: &[usize], cuts: &mut [Cut]) {
        let mut index = self.pieces.index.lock();
        let mut offset = 0u32;
        for member in members {
            let cut = part_mut(cuts, *member);
            let length = narrow(cut.range.len());
            cut.source = Some((chunk, offset));
            if let Some(name) = cut.name {
                index.add(chunk, name, offset, length);
            }
            offset += length;
        }
    }
}

/// Of the chunks that hold so many bytes each of a cell with `all` bytes, heaviest first: those that may be referred to, so
/// that few chunks are read for it, and not many more bytes than it has.
fn worth_reading(mut weights: Vec<(ChunkRef, usize)>, all: usize) -> Vec<ChunkRef> {
    weights.truncate(EARLIER_CHUNKS_MAX);
    // Those go first of which the smallest part is used: used / length, compared crosswise.
    weights.sort_by(|(one, used), (other, other_used)| {
        (other_used * one.length as usize).cmp(&(used * other.length as usize))
    });
    let unused = |weights: &[(ChunkRef, usize)]| -> usize {
        weights.iter().map(|(chunk, used)| (chunk.length as usize).saturating_sub(*used)).sum()
    };
    while unused(&weights) > all * (READ_FOR_USED_MAX - 1) {
        weights.pop();
    }
    weights.into_iter().map(|(chunk, _)| chunk).collect()
}

/// Groups the pieces that are nowhere yet, in their order, into packs of about the same length.
fn pack(cuts: &[Cut]) -> Vec<Pack> {
    let mut seen = HashSet::new();
    let is_new = |cut: &Cut| cut.source.is_none() && cut.name.is_some();
    let new = cuts.iter().enumerate().filter(|(_, cut)| is_new(cut) && seen.insert(cut.name));
    let new: Vec<(usize, Range<usize>)> = new.map(|(place, cut)| (place, cut.range.clone())).collect();
    let total: usize = new.iter().map(|(_, range)| range.len()).sum();
    let wanted = total.div_ceil(((total + PACK_BYTES / 2) / PACK_BYTES).max(1));
    let mut packs: Vec<Pack> = Vec::new();
    for (place, range) in new {
        let full = |pack: &Pack| pack.length >= wanted || pack.length + range.len() > CHUNK_BYTES_MAX;
        let last = packs.pop_if(|last| !full(last));
        let pack = packs.push_mut(last.unwrap_or_default());
        pack.length += range.len();
        pack.members.push(place);
        match pack.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => pack.ranges.push(range),
        }
    }
    packs
}

/// Pieces that occur again in the same cell are where their first is.
fn copy_repeats(cuts: &mut [Cut]) {
    let firsts: HashMap<PieceName, (ChunkRef, u32)> =
        cuts.iter().filter_map(|cut| Some((cut.name?, cut.source?))).collect();
    for cut in cuts.iter_mut().filter(|cut| cut.source.is_none()) {
        cut.source = cut.name.and_then(|name| firsts.get(&name).copied());
    }
}

/// The parts of a cell; neighbours in file and chunk are one.
fn parts(cuts: &[Cut]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for cut in cuts {
        let length = cut.range.len();
        match parts.last_mut() {
            Some(last) if last.continues_at() == cut.source => last.length += length,
            _ => parts.push(Part { length, source: cut.source }),
        }
    }
    parts
}

/// The bytes of some ranges: shared where there is one, copied together where there are several.
pub(super) fn collect(bytes: &Bytes, ranges: &[Range<usize>]) -> Bytes {
    if let [range] = ranges {
        return bytes.slice(range.clone());
    }
    let mut all = BytesMut::with_capacity(ranges.iter().map(ExactSizeIterator::len).sum());
    for range in ranges {
        all.extend_from_slice(part(bytes, range.clone()));
    }
    all.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(number: u8, length: u32, used: usize) -> (ChunkRef, usize) {
        (ChunkRef { id: ChunkId([number; 32]), length }, used)
    }

    fn kept(weights: &[(ChunkRef, usize)], all: usize) -> Vec<u8> {
        worth_reading(weights.to_vec(), all).iter().map(|chunk| chunk.id.0[0]).collect()
    }

    #[test]
    fn what_would_be_read_in_vain_is_bounded_and_the_best_used_chunks_stay() {
        let weights = [weight(1, 1000, 900), weight(2, 1000, 500), weight(3, 400, 390), weight(4, 300, 100)];
        assert_eq!(kept(&weights, 810), [3, 1, 2, 4], "as many are read in vain as are read for use");
        assert_eq!(kept(&weights, 809), [3, 1, 2]);
        assert_eq!(kept(&weights, 500), [3, 1]);
        assert_eq!(kept(&weights, 50), [3]);
        assert!(kept(&weights, 9).is_empty());
    }

    #[test]
    fn what_no_version_has_any_more_is_forgotten_and_the_rest_is_found_where_it_is() {
        let mut index = Index::default();
        let chunk = |number: u8| ChunkRef { id: ChunkId([number; 32]), length: 100 };
        let piece = |number: u8| PieceName([number; 16]);
        for number in 0..9 {
            index.add(chunk(number), piece(number), u32::from(number), 10);
        }
        index.earlier.insert(chunk(2).id);
        index.keep(&[5, 7].map(|number| chunk(number).id).into());
        let found = |index: &Index, number| index.find(&piece(number), 10);
        for number in 0..9 {
            let expected = [2, 5, 7].contains(&number).then(|| (chunk(number), u32::from(number)));
            assert_eq!(found(&index, number), expected, "{number}");
        }
        assert_eq!((index.chunks.len(), index.by_id.len(), index.places.len()), (3, 3, 3));
        index.add(chunk(9), piece(9), 1, 10);
        assert_eq!(found(&index, 9), Some((chunk(9), 1)));
    }

    #[test]
    fn few_chunks_are_read_those_that_give_most() {
        let weights: Vec<_> =
            (0..20).map(|number| weight(number, 1000, 1000 - usize::from(number))).collect();
        assert_eq!(kept(&weights, 1 << 20), (0..8).collect::<Vec<u8>>());
    }
}
