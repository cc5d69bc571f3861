//! The chunks of a session: which it has dealt with, where they are, and which of them are durable.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Weak;

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_model::message::manager::StagedChunk;
use stdchk_model::{BenefactorId, ChunkId, ChunkRef, Incarnation};

use super::pieces::collect;
use super::sealed::Sealed;

/// Where the bytes of a chunk can be had again, should a benefactor lose them before they are durable.
pub(super) enum Origin {
    /// A cell, as long as the window holds it.
    Cell(Weak<Sealed>, Vec<Range<usize>>),
    /// Kept here: a piece of the chunk map.
    Own(Bytes),
    /// Not with this session: the pool has it.
    Elsewhere,
}

impl Origin {
    fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Cell(cell, ranges) => Some(collect(&cell.upgrade()?.bytes()?, ranges)),
            Self::Own(bytes) => Some(bytes.clone()),
            Self::Elsewhere => None,
        }
    }
}

struct Placed {
    benefactor: BenefactorId,
    incarnation: Incarnation,
    durable: bool,
}

struct Entry {
    chunk: ChunkRef,
    origin: Origin,
    /// The pool had it; the manager keeps it for this session.
    pinned: bool,
    placed: Vec<Placed>,
    /// Durable places that the manager has been told; `None`: it doesn't know of the chunk.
    reported: Option<usize>,
}

impl Entry {
    fn durable(&self) -> impl Iterator<Item = BenefactorId> + '_ {
        self.placed.iter().filter(|place| place.durable).map(|place| place.benefactor)
    }
}

#[derive(Default)]
struct Table {
    entries: HashMap<ChunkId, Entry>,
}

/// A chunk that is in too few places, with its bytes if they are still at hand.
pub(super) struct Lacking {
    pub(super) chunk: ChunkRef,
    pub(super) bytes: Option<Bytes>,
    pub(super) at: Vec<BenefactorId>,
}

/// All chunks that one session has dealt with.
///
/// That the version before has a chunk is no reason to take it for stored: its copies may have been damaged or lost since,
/// and writing the same content again is how they come back. So the manager is asked about every chunk that is written.
#[derive(Default)]
pub(super) struct Chunks {
    table: Mutex<Table>,
}

impl Chunks {
    /// Whether the caller is the first to come with `chunk` and must see to it that the pool has it.
    pub(super) fn claim(&self, chunk: ChunkRef, origin: Origin) -> bool {
        let mut table = self.table.lock();
        if table.entries.contains_key(&chunk.id) {
            return false;
        }
        let entry = Entry { chunk, origin, pinned: false, placed: Vec::new(), reported: None };
        table.entries.insert(chunk.id, entry);
        true
    }

    /// A chunk of an earlier version is referred to; the manager keeps it for this session.
    pub(super) fn adopt(&self, chunk: ChunkRef) {
        let entry =
            || Entry { chunk, origin: Origin::Elsewhere, pinned: true, placed: Vec::new(), reported: None };
        self.table.lock().entries.entry(chunk.id).or_insert_with(entry);
    }

    /// Whether the session stored, or stores, this chunk itself since the last commit.
    pub(super) fn is_own(&self, chunk: ChunkId) -> bool {
        self.table.lock().entries.get(&chunk).is_some_and(|entry| !entry.pinned)
    }

    fn with<R>(&self, chunk: ChunkId, change: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        self.table.lock().entries.get_mut(&chunk).map(change)
    }

    /// The pool has the chunk, and keeps it for this session.
    pub(super) fn pinned(&self, chunk: ChunkId) {
        self.with(chunk, |entry| entry.pinned = true);
    }

    /// A benefactor stored the chunk; whether it is durable there, a sync will tell.
    pub(super) fn placed(&self, chunk: ChunkId, benefactor: BenefactorId, incarnation: Incarnation) {
        self.with(chunk, |entry| entry.placed.push(Placed { benefactor, incarnation, durable: false }));
    }

    /// What must be synced: benefactors in the incarnation that stored, with the chunks that wait for it.
    pub(super) fn unsynced(&self) -> HashMap<(BenefactorId, Incarnation), Vec<ChunkId>> {
        let mut unsynced: HashMap<_, Vec<ChunkId>> = HashMap::new();
        for (id, entry) in &self.table.lock().entries {
            for place in entry.placed.iter().filter(|place| !place.durable) {
                unsynced.entry((place.benefactor, place.incarnation)).or_default().push(*id);
            }
        }
        unsynced
    }

    /// These chunks are durable at a benefactor.
    pub(super) fn synced(&self, chunks: &[ChunkId], benefactor: BenefactorId) {
        self.each_place(chunks, benefactor, |place| place.durable = true);
    }

    /// These chunks survived a restart of their benefactor, and must be synced with its new life.
    pub(super) fn restarted(&self, chunks: &[ChunkId], benefactor: BenefactorId, incarnation: Incarnation) {
        self.each_place(chunks, benefactor, |place| place.incarnation = incarnation);
    }

    fn each_place(&self, chunks: &[ChunkId], benefactor: BenefactorId, change: impl Fn(&mut Placed)) {
        let mut table = self.table.lock();
        for chunk in chunks {
            let places = table.entries.get_mut(chunk).into_iter().flat_map(|entry| entry.placed.iter_mut());
            places.filter(|place| place.benefactor == benefactor).for_each(&change);
        }
    }

    /// A benefactor doesn't have these chunks.
    pub(super) fn gone(&self, chunks: &[ChunkId], benefactor: BenefactorId) {
        let mut table = self.table.lock();
        for chunk in chunks {
            if let Some(entry) = table.entries.get_mut(chunk) {
                entry.placed.retain(|place| place.benefactor != benefactor || place.durable);
            }
        }
    }

    /// Whether losing this benefactor would lose one of these chunks: no other place and no bytes at hand.
    pub(super) fn would_lose(&self, chunks: &[ChunkId], benefactor: BenefactorId) -> bool {
        let table = self.table.lock();
        let only_there = |entry: &Entry| {
            entry.placed.iter().all(|place| place.benefactor == benefactor) && entry.origin.bytes().is_none()
        };
        chunks.iter().filter_map(|chunk| table.entries.get(chunk)).any(only_there)
    }

    /// Chunks with fewer than `copies` places.
    pub(super) fn lacking(&self, copies: usize) -> Vec<Lacking> {
        let table = self.table.lock();
        let few = table.entries.values().filter(|entry| !entry.pinned && entry.placed.len() < copies);
        let lacking = |entry: &Entry| Lacking {
            chunk: entry.chunk,
            bytes: entry.origin.bytes(),
            at: entry.placed.iter().map(|place| place.benefactor).collect(),
        };
        few.map(lacking).collect()
    }

    /// What the manager has not been told yet, at most `limit` chunks of it; counts as told from now on.
    pub(super) fn take_unreported(&self, limit: usize) -> Vec<StagedChunk> {
        let mut table = self.table.lock();
        let news = table.entries.values_mut().filter_map(|entry| {
            let at: Vec<BenefactorId> = entry.durable().collect();
            let news = !entry.pinned && !entry.placed.is_empty() && entry.reported != Some(at.len());
            news.then(|| {
                entry.reported = Some(at.len());
                StagedChunk { chunk: entry.chunk, at }
            })
        });
        news.take(limit).collect()
    }

    /// The manager has forgotten everything, or a report did not arrive: all is to be told again. Returns what was pinned.
    pub(super) fn forget_reports(&self) -> Vec<ChunkId> {
        let mut table = self.table.lock();
        table.entries.values_mut().for_each(|entry| entry.reported = None);
        table.entries.iter().filter(|(_, entry)| entry.pinned).map(|(id, _)| *id).collect()
    }

    /// Those of `chunks` that the manager has not been told of in this session, each once.
    pub(super) fn kept(&self, chunks: impl Iterator<Item = ChunkId>) -> Vec<ChunkId> {
        let table = self.table.lock();
        let kept: HashSet<ChunkId> = chunks.filter(|chunk| !table.entries.contains_key(chunk)).collect();
        kept.into_iter().collect()
    }

    /// Where a chunk that the session stored is.
    pub(super) fn places(&self, chunk: ChunkId) -> Vec<BenefactorId> {
        let table = self.table.lock();
        let placed = table.entries.get(&chunk).map(|entry| entry.placed.as_slice()).unwrap_or_default();
        placed.iter().map(|place| place.benefactor).collect()
    }

    /// A commit settled everything that was stored; the manager still holds it for the session. A file that stays open for
    /// days doesn't gather a table of all that it ever wrote.
    pub(super) fn settled(&self) {
        self.table.lock().entries.retain(|_, entry| entry.placed.is_empty() && !entry.pinned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Incarnation = Incarnation(1);

    fn chunk(byte: u8) -> ChunkRef {
        ChunkRef { id: ChunkId([byte; 32]), length: 1 }
    }

    fn own() -> Origin {
        Origin::Own(Bytes::from_static(b"x"))
    }

    #[test]
    fn a_chunk_is_claimed_once_and_what_nobody_claimed_is_kept() {
        let chunks = Chunks::default();
        assert!(chunks.claim(chunk(2), own()));
        assert!(!chunks.claim(chunk(2), own()));
        assert_eq!(chunks.kept([chunk(1).id, chunk(2).id, chunk(1).id].into_iter()), [chunk(1).id]);
    }

    #[test]
    fn only_durable_places_are_reported_and_each_once() {
        let chunks = Chunks::default();
        chunks.claim(chunk(1), own());
        assert!(chunks.take_unreported(9).is_empty(), "nothing is stored yet");
        chunks.placed(chunk(1).id, BenefactorId(7), LIFE);
        assert_eq!(chunks.take_unreported(9)[0].at, []);
        assert!(chunks.take_unreported(9).is_empty());
        chunks.synced(&[chunk(1).id], BenefactorId(7));
        assert_eq!(chunks.take_unreported(9)[0].at, [BenefactorId(7)]);
        assert!(chunks.take_unreported(9).is_empty());
        assert!(chunks.unsynced().is_empty());
    }

    #[test]
    fn a_chunk_lacks_places_again_when_its_benefactor_goes() {
        let chunks = Chunks::default();
        chunks.claim(chunk(1), own());
        chunks.placed(chunk(1).id, BenefactorId(7), LIFE);
        assert!(chunks.lacking(1).is_empty());
        assert!(!chunks.would_lose(&[chunk(1).id], BenefactorId(7)), "its bytes are at hand");
        chunks.gone(&[chunk(1).id], BenefactorId(7));
        assert_eq!(chunks.lacking(1).len(), 1);
    }
}
