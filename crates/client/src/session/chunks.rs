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

    fn is_at_hand(&self) -> bool {
        match self {
            Self::Cell(cell, _) => cell.upgrade().is_some_and(|cell| cell.bytes().is_some()),
            Self::Own(_) => true,
            Self::Elsewhere => false,
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
    /// Where the pool had it, if it did; the manager keeps it for this session.
    pinned: Vec<BenefactorId>,
    /// Whoever claimed it is not done with it.
    storing: bool,
    placed: Vec<Placed>,
    /// Durable places that the manager has been told; `None`: it doesn't know of the chunk.
    reported: Option<usize>,
    /// How many commits had begun when a cell used it last.
    used: u64,
}

impl Entry {
    fn durable(&self) -> impl Iterator<Item = BenefactorId> + '_ {
        self.placed.iter().filter(|place| place.durable).map(|place| place.benefactor)
    }

    fn places(&self) -> impl Iterator<Item = BenefactorId> + '_ {
        self.pinned.iter().copied().chain(self.placed.iter().map(|place| place.benefactor))
    }
}

#[derive(Default)]
struct Table {
    entries: HashMap<ChunkId, Entry>,
    /// Commits that have begun.
    commits: u64,
}

impl Table {
    fn entry(&self, chunk: ChunkRef, origin: Origin) -> Entry {
        let (pinned, storing, placed, reported) = (Vec::new(), false, Vec::new(), None);
        Entry { chunk, origin, pinned, storing, placed, reported, used: self.commits }
    }

    /// The entry of a chunk that a cell uses now.
    fn used(&mut self, chunk: ChunkId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&chunk)?;
        entry.used = self.commits;
        Some(entry)
    }
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
        if let Some(entry) = table.used(chunk.id) {
            // Its bytes may have left the window with the cell that had them first.
            if !entry.origin.is_at_hand() {
                entry.origin = origin;
            }
            return false;
        }
        let entry = Entry { storing: true, ..table.entry(chunk, origin) };
        table.entries.insert(chunk.id, entry);
        true
    }

    /// Who claimed the chunk is done with it.
    pub(super) fn unclaim(&self, chunk: ChunkId) {
        self.with(chunk, |entry| entry.storing = false);
    }

    /// Whether somebody who claimed the chunk is not done with it.
    pub(super) fn is_storing(&self, chunk: ChunkId) -> bool {
        self.table.lock().entries.get(&chunk).is_some_and(|entry| entry.storing)
    }

    /// A chunk of an earlier version, which is there, is referred to; the manager keeps it for this session.
    pub(super) fn adopt(&self, chunk: ChunkRef, there: Vec<BenefactorId>) {
        let mut table = self.table.lock();
        if table.used(chunk.id).is_none() {
            let entry = Entry { pinned: there, ..table.entry(chunk, Origin::Elsewhere) };
            table.entries.insert(chunk.id, entry);
        }
    }

    /// Whether a cell can use this chunk because the session stored, or stores, it itself since the last commit.
    pub(super) fn is_own(&self, chunk: ChunkId) -> bool {
        self.table.lock().used(chunk).is_some_and(|entry| entry.pinned.is_empty())
    }

    fn with<R>(&self, chunk: ChunkId, change: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        self.table.lock().entries.get_mut(&chunk).map(change)
    }

    /// The pool has the chunk there, and keeps it for this session.
    pub(super) fn pinned(&self, chunk: ChunkId, there: &[BenefactorId]) {
        self.with(chunk, |entry| entry.pinned = there.to_vec());
    }

    /// A benefactor stored the chunk; unless it is `durable` there, a sync will tell whether it is.
    pub(super) fn placed(
        &self,
        chunk: ChunkId,
        benefactor: BenefactorId,
        incarnation: Incarnation,
        durable: bool,
    ) {
        self.with(chunk, |entry| entry.placed.push(Placed { benefactor, incarnation, durable }));
    }

    /// What must be synced of `needed`: benefactors in the incarnation that stored, with the chunks that wait for it.
    pub(super) fn unsynced(
        &self,
        needed: &HashSet<ChunkId>,
    ) -> HashMap<(BenefactorId, Incarnation), Vec<ChunkId>> {
        let mut unsynced: HashMap<_, Vec<ChunkId>> = HashMap::new();
        for (id, entry) in self.table.lock().entries.iter().filter(|(id, _)| needed.contains(*id)) {
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

    /// Chunks of `needed` that were found in the pool, by where, unless so many copies of them were stored since.
    pub(super) fn found(
        &self,
        needed: &HashSet<ChunkId>,
        copies: usize,
    ) -> HashMap<BenefactorId, Vec<ChunkId>> {
        let mut found: HashMap<BenefactorId, Vec<ChunkId>> = HashMap::new();
        for (id, entry) in self.table.lock().entries.iter().filter(|(id, _)| needed.contains(*id)) {
            if entry.durable().count() < copies {
                entry.pinned.iter().for_each(|holder| found.entry(*holder).or_default().push(*id));
            }
        }
        found
    }

    /// These chunks were found at a benefactor, and can't be had there after all.
    pub(super) fn not_found(&self, chunks: &[ChunkId], benefactor: BenefactorId) {
        let mut table = self.table.lock();
        for chunk in chunks {
            if let Some(entry) = table.entries.get_mut(chunk) {
                entry.pinned.retain(|holder| *holder != benefactor);
            }
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

    /// Of these chunks the pool has none any more, whatever was known of them.
    pub(super) fn collected(&self, chunks: &[ChunkId]) {
        let mut table = self.table.lock();
        for chunk in chunks {
            if let Some(entry) = table.entries.get_mut(chunk) {
                entry.reported = None;
                entry.pinned.clear();
                entry.placed.clear();
            }
        }
    }

    /// Whether losing this benefactor would lose one of these chunks: no other place and no bytes at hand.
    pub(super) fn would_lose(&self, chunks: &[ChunkId], benefactor: BenefactorId) -> bool {
        let table = self.table.lock();
        let only_there =
            |entry: &Entry| entry.places().all(|place| place == benefactor) && !entry.origin.is_at_hand();
        chunks.iter().filter_map(|chunk| table.entries.get(chunk)).any(only_there)
    }

    /// Those of `needed` with fewer than `copies` places that nobody is storing.
    pub(super) fn lacking(&self, needed: &HashSet<ChunkId>, copies: usize) -> Vec<Lacking> {
        let table = self.table.lock();
        let entries = table.entries.iter().filter(|(id, _)| needed.contains(*id)).map(|(_, entry)| entry);
        let few = entries.filter(|entry| !entry.storing && entry.places().count() < copies);
        let lacking = |entry: &Entry| Lacking {
            chunk: entry.chunk,
            bytes: entry.origin.bytes(),
            at: entry.places().collect(),
        };
        few.map(lacking).collect()
    }

    /// What the manager has not been told yet, at most `limit` chunks of it, and only those of `needed` if it is given;
    /// counts as told from now on.
    pub(super) fn take_unreported(
        &self,
        limit: usize,
        needed: Option<&HashSet<ChunkId>>,
    ) -> Vec<StagedChunk> {
        let mut table = self.table.lock();
        let entries = table.entries.iter_mut();
        let entries = entries.filter(|(id, _)| needed.is_none_or(|needed| needed.contains(*id)));
        let news = entries.filter_map(|(_, entry)| {
            let at: Vec<BenefactorId> = entry.durable().collect();
            let news = !entry.placed.is_empty() && entry.reported != Some(at.len());
            news.then(|| {
                entry.reported = Some(at.len());
                StagedChunk { chunk: entry.chunk, at }
            })
        });
        news.take(limit).collect()
    }

    /// The manager has forgotten everything, or a report did not arrive: all is to be told again. Returns what the pool has.
    pub(super) fn forget_reports(&self) -> Vec<ChunkId> {
        let mut table = self.table.lock();
        table.entries.values_mut().for_each(|entry| entry.reported = None);
        let there = table.entries.iter().filter(|(_, entry)| entry.places().next().is_some());
        there.map(|(id, _)| *id).collect()
    }

    /// Those of `chunks` of which the manager has not heard in this session since the last commit.
    pub(super) fn untold(&self, chunks: &[ChunkId]) -> Vec<ChunkId> {
        let table = self.table.lock();
        let is_told = |chunk: &ChunkId| {
            table.entries.get(chunk).is_some_and(|entry| !entry.pinned.is_empty() || entry.reported.is_some())
        };
        chunks.iter().filter(|chunk| !is_told(chunk)).copied().collect()
    }

    /// Where a chunk that the session stored is.
    pub(super) fn places(&self, chunk: ChunkId) -> Vec<BenefactorId> {
        let table = self.table.lock();
        let placed = table.entries.get(&chunk).map(|entry| entry.placed.as_slice()).unwrap_or_default();
        placed.iter().map(|place| place.benefactor).collect()
    }

    /// A commit begins: what cells use from now on is none of its affair.
    pub(super) fn begin_commit(&self) {
        self.table.lock().commits += 1;
    }

    /// The commit settled what was used before it began; the manager still holds that for the session. A file that stays
    /// open for days doesn't gather a table of all that it ever wrote.
    pub(super) fn settled(&self) {
        let mut table = self.table.lock();
        let commits = table.commits;
        table.entries.retain(|_, entry| entry.storing || entry.used == commits);
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

    /// The session has stored the chunk at benefactor 7.
    fn store(chunks: &Chunks, chunk: ChunkRef) {
        assert!(chunks.claim(chunk, own()));
        chunks.placed(chunk.id, BenefactorId(7), LIFE, false);
        chunks.unclaim(chunk.id);
    }

    fn unsynced(chunks: &Chunks, needed: &HashSet<ChunkId>) -> HashSet<ChunkId> {
        chunks.unsynced(needed).into_values().flatten().collect()
    }

    #[test]
    fn a_chunk_is_claimed_once_and_told_of_once() {
        let chunks = Chunks::default();
        let both = [chunk(1).id, chunk(2).id];
        assert!(chunks.claim(chunk(2), own()));
        assert!(!chunks.claim(chunk(2), own()));
        assert_eq!(chunks.untold(&both).len(), 2);
        chunks.placed(chunk(2).id, BenefactorId(7), LIFE, false);
        assert_eq!(chunks.take_unreported(9, None).len(), 1);
        assert_eq!(chunks.untold(&both), [chunk(1).id]);
    }

    #[test]
    fn only_durable_places_are_reported_and_each_once() {
        let chunks = Chunks::default();
        chunks.claim(chunk(1), own());
        assert!(chunks.take_unreported(9, None).is_empty(), "nothing is stored yet");
        chunks.placed(chunk(1).id, BenefactorId(7), LIFE, false);
        assert!(chunks.take_unreported(9, Some(&HashSet::new())).is_empty(), "nothing of it is asked for");
        assert_eq!(chunks.take_unreported(9, None)[0].at, []);
        assert!(chunks.take_unreported(9, None).is_empty());
        chunks.synced(&[chunk(1).id], BenefactorId(7));
        assert_eq!(chunks.take_unreported(9, None)[0].at, [BenefactorId(7)]);
        assert!(chunks.take_unreported(9, None).is_empty());
        assert!(unsynced(&chunks, &HashSet::from([chunk(1).id])).is_empty());
    }

    #[test]
    fn a_chunk_lacks_places_again_when_its_benefactor_goes() {
        let (chunks, needed) = (Chunks::default(), HashSet::from([chunk(1).id]));
        store(&chunks, chunk(1));
        assert!(chunks.lacking(&needed, 1).is_empty());
        assert!(!chunks.would_lose(&[chunk(1).id], BenefactorId(7)), "its bytes are at hand");
        chunks.gone(&[chunk(1).id], BenefactorId(7));
        assert_eq!(chunks.lacking(&needed, 1).len(), 1);
        assert!(chunks.lacking(&HashSet::new(), 1).is_empty(), "no version needs it");
    }

    #[test]
    fn bytes_that_left_the_window_are_at_hand_again_once_they_are_written_again() {
        let (chunks, needed) = (Chunks::default(), HashSet::from([chunk(1).id]));
        chunks.claim(chunk(1), Origin::Cell(Weak::new(), Vec::new()));
        chunks.placed(chunk(1).id, BenefactorId(7), LIFE, false);
        chunks.unclaim(chunk(1).id);
        assert!(chunks.would_lose(&[chunk(1).id], BenefactorId(7)));
        assert!(!chunks.claim(chunk(1), own()));
        assert!(!chunks.would_lose(&[chunk(1).id], BenefactorId(7)));
        chunks.gone(&[chunk(1).id], BenefactorId(7));
        assert!(chunks.lacking(&needed, 1)[0].bytes.is_some());
    }

    #[test]
    fn a_chunk_that_is_being_stored_is_not_stored_a_second_time() {
        let (chunks, needed) = (Chunks::default(), HashSet::from([chunk(1).id]));
        chunks.claim(chunk(1), own());
        assert!(chunks.is_storing(chunk(1).id) && chunks.lacking(&needed, 1).is_empty());
        chunks.unclaim(chunk(1).id);
        assert!(!chunks.is_storing(chunk(1).id));
    }

    #[test]
    fn a_commit_settles_what_was_stored_before_it_and_leaves_what_came_meanwhile_to_the_next_one() {
        let chunks = Chunks::default();
        [1, 2].into_iter().for_each(|number| store(&chunks, chunk(number)));
        chunks.begin_commit();
        store(&chunks, chunk(3));
        chunks.claim(chunk(4), own());
        assert!(chunks.is_own(chunk(2).id), "a cell of after the commit uses it, too");
        chunks.settled();
        let all: HashSet<ChunkId> = (1..5).map(|number| chunk(number).id).collect();
        assert_eq!(unsynced(&chunks, &all), HashSet::from([chunk(2).id, chunk(3).id]));
        assert!(chunks.is_storing(chunk(4).id));
    }
}
