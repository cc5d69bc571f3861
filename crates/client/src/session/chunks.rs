//! The chunks of a session: which it has dealt with, where they are, and of which their benefactors gave receipts.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Weak;

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_model::message::manager::Location;
use stdchk_model::{BenefactorId, BlockId, ChunkId, ChunkRef, Durability, EncodingId, Receipt, Trust};
use stdchk_protect::{is_readable_at, suffices_at};

use super::pieces::collect;
use super::sealed::Sealed;

/// Where the bytes of a chunk can be had again, should a benefactor lose them before they are durable.
pub(super) enum Origin {
    /// A cell, as long as the window holds it.
    Cell(Weak<Sealed>, Vec<Range<usize>>),
    /// Kept here until the next commit.
    Own(Bytes),
    /// Kept here until the next commit: a piece of the chunk map.
    Map(Bytes),
    /// Not with this session: the pool has it.
    Elsewhere,
}

impl Origin {
    fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Cell(cell, ranges) => Some(collect(&cell.upgrade()?.bytes()?, ranges)),
            Self::Own(bytes) | Self::Map(bytes) => Some(bytes.clone()),
            Self::Elsewhere => None,
        }
    }

    fn is_at_hand(&self) -> bool {
        match self {
            Self::Cell(cell, _) => cell.upgrade().is_some_and(|cell| cell.bytes().is_some()),
            Self::Own(_) | Self::Map(_) => true,
            Self::Elsewhere => false,
        }
    }
}

/// A benefactor that has a block of a chunk.
struct Place {
    at: Location,
    /// It gave a receipt for the block, which the manager has, or will have with the next commit.
    secured: bool,
}

struct Entry {
    chunk: ChunkRef,
    origin: Origin,
    /// The pool had it before.
    found: bool,
    /// Whoever claimed it is not done with it.
    storing: bool,
    places: Vec<Place>,
    /// How many commits had begun when a cell used it last.
    used: u64,
}

impl Entry {
    /// Whether the chunk is as safe as a commit needs it by the receipts that there are.
    fn is_secured(&self, needed: Durability) -> bool {
        let secured = self.places.iter().filter(|place| place.secured);
        suffices_at(secured.map(|place| &place.at), needed)
    }

    /// Whether it is if all places are what they seem.
    fn suffices(&self, needed: Durability) -> bool {
        suffices_at(self.at(), needed)
    }

    fn at(&self) -> impl Iterator<Item = &Location> + Clone + '_ {
        self.places.iter().map(|place| &place.at)
    }
}

#[derive(Default)]
struct Table {
    entries: HashMap<ChunkId, Entry>,
    /// Receipts that the manager has not been given yet.
    receipts: Vec<(BenefactorId, Receipt)>,
    /// Encodings of other makers that this client would have made just so, and whether the manager has heard of it.
    vouched: HashMap<(ChunkId, EncodingId), bool>,
    /// Commits that have begun.
    commits: u64,
}

impl Table {
    fn entry(&self, chunk: ChunkRef, origin: Origin) -> Entry {
        Entry { chunk, origin, found: false, storing: false, places: Vec::new(), used: self.commits }
    }

    /// The entry of a chunk that a cell uses now.
    fn used(&mut self, chunk: ChunkId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&chunk)?;
        entry.used = self.commits;
        Some(entry)
    }
}

/// A chunk that is not as safe as a commit wants it, with its bytes if they are still at hand.
pub(super) struct Lacking {
    pub(super) chunk: ChunkRef,
    pub(super) bytes: Option<Bytes>,
    pub(super) at: Vec<Location>,
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

    /// The bytes of a chunk stay at hand until a commit is done with it, whatever becomes of its cell.
    pub(super) fn keep(&self, chunk: ChunkId, bytes: Bytes) {
        self.with(chunk, |entry| entry.origin = Origin::Own(bytes));
    }

    /// The bytes of a chunk, while they are at hand.
    pub(super) fn bytes(&self, chunk: ChunkId) -> Option<Bytes> {
        self.table.lock().entries.get(&chunk)?.origin.bytes()
    }

    /// Whether a chunk is a piece of the chunk map.
    pub(super) fn is_of_map(&self, chunk: ChunkId) -> bool {
        let table = self.table.lock();
        table.entries.get(&chunk).is_some_and(|entry| matches!(entry.origin, Origin::Map(_)))
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
    pub(super) fn adopt(&self, chunk: ChunkRef, there: &[Location]) {
        let mut table = self.table.lock();
        if table.used(chunk.id).is_none() {
            let entry =
                Entry { found: true, places: unsecured(there), ..table.entry(chunk, Origin::Elsewhere) };
            table.entries.insert(chunk.id, entry);
        }
    }

    /// Whether a cell can use this chunk because the session stored, or stores, it itself since the last commit.
    pub(super) fn is_own(&self, chunk: ChunkId) -> bool {
        self.table.lock().used(chunk).is_some_and(|entry| !entry.found)
    }

    fn with<R>(&self, chunk: ChunkId, change: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        self.table.lock().entries.get_mut(&chunk).map(change)
    }

    /// The pool has these blocks of the chunk, and keeps them for this session; `found`: they are enough to read it.
    pub(super) fn found(&self, chunk: ChunkId, there: &[Location], found: bool) {
        self.with(chunk, |entry| {
            entry.found = found;
            for at in there {
                match entry.places.iter_mut().find(|place| place.at.is_same(at)) {
                    // What this client vouches for, others may doubt.
                    Some(place) if at.trust != Trust::Claimed => place.at.trust = at.trust,
                    Some(_) => {}
                    None => entry.places.push(Place { at: *at, secured: false }),
                }
            }
        });
    }

    /// Those of these chunks that the session found in the pool, and that rest on encodings of others.
    pub(super) fn resting_on_others(&self, needed: &HashSet<ChunkId>) -> Vec<ChunkId> {
        let table = self.table.lock();
        let rests = |entry: &Entry| {
            let mut at = entry.at();
            entry.found && at.any(|at| !at.encoding.code.is_copy() && at.trust == Trust::Trusted)
        };
        needed.iter().filter(|chunk| table.entries.get(chunk).is_some_and(rests)).copied().collect()
    }

    /// The manager counts these blocks of a chunk so now: one that was started anew doesn't know who has decoded an encoding. What this client
    /// vouches for counts all the same. Returns whether less counts than before.
    pub(super) fn recounted(&self, chunk: ChunkId, there: &[Location]) -> bool {
        let mut table = self.table.lock();
        let Table { entries, vouched, .. } = &mut *table;
        let Some(entry) = entries.get_mut(&chunk) else { return false };
        let claimed =
            |at: &&Location| at.trust == Trust::Claimed && !vouched.contains_key(&(chunk, at.encoding));
        let mut is_less = false;
        for at in there.iter().filter(claimed) {
            let known = entry.places.iter_mut().filter(|place| place.at.is_same(at));
            for place in known.filter(|place| place.at.trust == Trust::Trusted) {
                place.at.trust = Trust::Claimed;
                is_less = true;
            }
        }
        is_less
    }

    /// This client would have made an encoding of another maker just so: what there is of it counts.
    pub(super) fn vouch(&self, chunk: ChunkId, encoding: EncodingId) {
        let mut table = self.table.lock();
        table.vouched.entry((chunk, encoding)).or_insert(false);
        if let Some(entry) = table.entries.get_mut(&chunk) {
            entry.found = true;
            let alike = entry.places.iter_mut().filter(|place| place.at.encoding == encoding);
            alike.for_each(|place| place.at.trust = Trust::Trusted);
        }
    }

    /// Encodings of these chunks for which this client vouches, of which the manager has not heard.
    pub(super) fn untold_vouched(&self, needed: &HashSet<ChunkId>) -> Vec<(ChunkId, EncodingId)> {
        let table = self.table.lock();
        let untold =
            table.vouched.iter().filter(|((chunk, _), is_told)| !**is_told && needed.contains(chunk));
        untold.map(|(vouched, _)| *vouched).collect()
    }

    /// The manager has heard of them.
    pub(super) fn told_vouched(&self, told: &[(ChunkId, EncodingId)]) {
        let mut table = self.table.lock();
        for vouched in told {
            if let Some(is_told) = table.vouched.get_mut(vouched) {
                *is_told = true;
            }
        }
    }

    /// A benefactor stored a block of the chunk, with a receipt if it is durable.
    pub(super) fn placed(&self, chunk: ChunkId, at: Location, receipt: Option<Receipt>) {
        let secured = receipt.as_ref().is_some_and(|receipt| names(receipt).contains(&at.block(chunk)));
        let mut table = self.table.lock();
        if let Some(entry) = table.entries.get_mut(&chunk) {
            entry.places.push(Place { at, secured });
        }
        table.receipts.extend(receipt.map(|receipt| (at.benefactor, receipt)));
    }

    /// Blocks of those of `needed` that are not as safe as is `wanted` by the receipts that there are, by those who could give one.
    pub(super) fn unsecured(
        &self,
        needed: &HashSet<ChunkId>,
        wanted: Durability,
    ) -> HashMap<BenefactorId, Vec<BlockId>> {
        let mut unsecured: HashMap<BenefactorId, Vec<BlockId>> = HashMap::new();
        for (id, entry) in self.table.lock().entries.iter().filter(|(id, _)| needed.contains(*id)) {
            if !entry.is_secured(wanted) {
                let counts = |place: &&Place| !place.secured && place.at.trust == Trust::Trusted;
                for place in entry.places.iter().filter(counts) {
                    unsecured.entry(place.at.benefactor).or_default().push(place.at.block(*id));
                }
            }
        }
        unsecured
    }

    /// A benefactor that was asked for these blocks gave a receipt. What the receipt doesn't name is not there. Whether it names all.
    pub(super) fn secured(&self, blocks: &[BlockId], benefactor: BenefactorId, receipt: Receipt) -> bool {
        let named = names(&receipt);
        let mut table = self.table.lock();
        for block in blocks {
            let Some(entry) = table.entries.get_mut(&block.chunk) else { continue };
            let is_it = |place: &Place| is_at(place, block, benefactor);
            match named.contains(block) {
                true => {
                    let places = entry.places.iter_mut().filter(|place| is_it(place));
                    places.for_each(|place| place.secured = true);
                }
                false => entry.places.retain(|place| !is_it(place)),
            }
        }
        table.receipts.push((benefactor, receipt));
        blocks.iter().all(|block| named.contains(block))
    }

    /// A benefactor can't be asked for these blocks.
    pub(super) fn gone(&self, blocks: &[BlockId], benefactor: BenefactorId) {
        let mut table = self.table.lock();
        for block in blocks {
            if let Some(entry) = table.entries.get_mut(&block.chunk) {
                entry.places.retain(|place| place.secured || !is_at(place, block, benefactor));
            }
        }
    }

    /// These benefactors are gone, and what is there, whoever gave receipts in their names.
    pub(super) fn leave(&self, gone: &HashSet<BenefactorId>) {
        let mut table = self.table.lock();
        table.receipts.retain(|(benefactor, _)| !gone.contains(benefactor));
        for entry in table.entries.values_mut() {
            entry.places.retain(|place| !gone.contains(&place.at.benefactor));
        }
    }

    /// Takes receipts for the manager: as many as have `limit` blocks together, at least one if there is any.
    pub(super) fn take_receipts(&self, limit: usize) -> Vec<(BenefactorId, Receipt)> {
        let mut table = self.table.lock();
        let mut blocks = 0;
        let fit = table.receipts.iter().take_while(|(_, receipt)| {
            blocks += receipt.blocks.len();
            blocks <= limit
        });
        let count = fit.count().max(1).min(table.receipts.len());
        table.receipts.drain(..count).collect()
    }

    /// Takes one receipt for the manager.
    pub(super) fn take_receipt(&self) -> Option<(BenefactorId, Receipt)> {
        self.table.lock().receipts.pop()
    }

    /// The manager may not have got the receipts that it was given, or has refused one: all are asked for again.
    pub(super) fn forget_receipts(&self) {
        let mut table = self.table.lock();
        table.receipts.clear();
        table.vouched.values_mut().for_each(|is_told| *is_told = false);
        let places = table.entries.values_mut().flat_map(|entry| &mut entry.places);
        places.for_each(|place| place.secured = false);
    }

    /// Whether losing this benefactor would lose a chunk of one of these blocks: the others don't suffice, and its bytes aren't at
    /// hand.
    pub(super) fn would_lose(&self, blocks: &[BlockId], benefactor: BenefactorId) -> bool {
        let table = self.table.lock();
        let lost = |entry: &Entry| {
            let others = entry.at().filter(|at| at.benefactor != benefactor);
            !is_readable_at(others) && !entry.origin.is_at_hand()
        };
        blocks.iter().filter_map(|block| table.entries.get(&block.chunk)).any(lost)
    }

    /// Those of `needed` that are not as safe as is `wanted` and that nobody is storing.
    pub(super) fn lacking(&self, needed: &HashSet<ChunkId>, wanted: Durability) -> Vec<Lacking> {
        let table = self.table.lock();
        let entries = table.entries.iter().filter(|(id, _)| needed.contains(*id)).map(|(_, entry)| entry);
        let near = entries.filter(|entry| !entry.storing && !entry.suffices(wanted));
        let lacking = |entry: &Entry| Lacking {
            chunk: entry.chunk,
            bytes: entry.origin.bytes(),
            at: entry.at().copied().collect(),
        };
        near.map(lacking).collect()
    }

    /// All chunks that the session deals with.
    pub(super) fn all(&self) -> Vec<ChunkId> {
        self.table.lock().entries.keys().copied().collect()
    }

    /// Where a chunk that the session has dealt with is.
    pub(super) fn places(&self, chunk: ChunkId) -> Vec<Location> {
        self.table.lock().entries.get(&chunk).map_or(Vec::new(), |entry| entry.at().copied().collect())
    }

    /// A commit begins: what cells use from now on is none of its affair.
    pub(super) fn begin_commit(&self) {
        self.table.lock().commits += 1;
    }

    /// The commit settled what was used before it began. A file that stays open for days doesn't gather a table of all that it
    /// ever wrote.
    pub(super) fn settled(&self) {
        let mut table = self.table.lock();
        let commits = table.commits;
        let Table { entries, vouched, .. } = &mut *table;
        entries.retain(|_, entry| entry.storing || entry.used == commits);
        vouched.retain(|(chunk, _), _| entries.contains_key(chunk));
        // What is part of a version can be read from the pool.
        for entry in table.entries.values_mut().filter(|entry| !entry.storing) {
            if matches!(entry.origin, Origin::Own(_) | Origin::Map(_)) {
                entry.origin = Origin::Elsewhere;
            }
        }
    }
}

fn unsecured(at: &[Location]) -> Vec<Place> {
    at.iter().map(|at| Place { at: *at, secured: false }).collect()
}

fn is_at(place: &Place, block: &BlockId, benefactor: BenefactorId) -> bool {
    place.at.benefactor == benefactor && place.at.block(block.chunk) == *block
}

fn names(receipt: &Receipt) -> HashSet<BlockId> {
    receipt.blocks.iter().map(|stored| stored.block).collect()
}

#[cfg(test)]
mod tests {
    use stdchk_model::message::manager::StoredBlock;
    use stdchk_model::{Code, Incarnation, Maker, ReceiptKey, Tier};

    use super::*;

    const HOLDER: BenefactorId = BenefactorId(7);
    const ONCE: Durability = Durability { distance: 1, in_memory: None };
    const PLACE: Location = Location {
        benefactor: HOLDER,
        encoding: EncodingId::PLAIN,
        index: 0,
        tier: Tier::Disk,
        trust: Trust::Trusted,
    };

    fn chunk(byte: u8) -> ChunkRef {
        ChunkRef { id: ChunkId([byte; 32]), length: 1 }
    }

    fn block(byte: u8) -> BlockId {
        BlockId::plain(chunk(byte).id)
    }

    fn own() -> Origin {
        Origin::Own(Bytes::from_static(b"x"))
    }

    fn receipt(chunks: &[ChunkRef]) -> Receipt {
        let stored = |chunk: &ChunkRef| {
            let (block, length) = (BlockId::plain(chunk.id), chunk.length);
            StoredBlock { block, plain_length: length, stored_length: length }
        };
        Receipt::new(&ReceiptKey([1; 32]), Incarnation(1), 1, chunks.iter().map(stored).collect())
    }

    /// The session has stored the chunk.
    fn store(chunks: &Chunks, chunk: ChunkRef) {
        assert!(chunks.claim(chunk, own()));
        chunks.placed(chunk.id, PLACE, None);
        chunks.unclaim(chunk.id);
    }

    fn unsecured_of(chunks: &Chunks, needed: &HashSet<ChunkId>) -> HashSet<ChunkId> {
        chunks.unsecured(needed, ONCE).into_values().flatten().map(|block| block.chunk).collect()
    }

    #[test]
    fn a_chunk_is_claimed_once() {
        let chunks = Chunks::default();
        assert!(chunks.claim(chunk(2), own()) && !chunks.claim(chunk(2), own()));
        assert!(chunks.claim(chunk(1), own()));
    }

    #[test]
    fn what_the_manager_trusts_no_more_is_lacking_unless_this_client_vouches_for_it() {
        let of_others = EncodingId { code: Code::erasure(2, 1).unwrap(), tag: [7; 16], maker: Maker([9; 8]) };
        let there = |trust| -> Vec<Location> {
            let at = |index: u8| BenefactorId(u32::from(index));
            let place =
                |index| Location { benefactor: at(index), encoding: of_others, index, trust, ..PLACE };
            (0..3).map(place).collect()
        };
        let (trusted, claimed) = (there(Trust::Trusted), there(Trust::Claimed));
        let needed = HashSet::from([chunk(1).id, chunk(2).id]);
        let chunks = Chunks::default();
        for number in [1, 2] {
            assert!(chunks.claim(chunk(number), own()));
            chunks.found(chunk(number).id, &trusted, true);
            chunks.unclaim(chunk(number).id);
        }
        chunks.vouch(chunk(2).id, of_others);
        assert!(chunks.lacking(&needed, ONCE).is_empty());
        assert_eq!(chunks.resting_on_others(&needed).len(), 2);
        assert!(!chunks.recounted(chunk(1).id, &trusted) && !chunks.recounted(chunk(2).id, &claimed));
        assert!(chunks.recounted(chunk(1).id, &claimed));
        assert!(!chunks.recounted(chunk(1).id, &claimed), "once");
        let lacking = chunks.lacking(&needed, ONCE);
        assert!(matches!(lacking.as_slice(), [one] if one.chunk == chunk(1) && one.bytes.is_some()));
        assert_eq!(chunks.resting_on_others(&needed), [chunk(2).id]);
    }

    #[test]
    fn a_receipt_is_given_to_the_manager_once_and_asked_for_again_when_that_came_to_nothing() {
        let (chunks, needed) = (Chunks::default(), HashSet::from([chunk(1).id, chunk(2).id]));
        [1, 2].into_iter().for_each(|number| store(&chunks, chunk(number)));
        assert_eq!(unsecured_of(&chunks, &needed), needed);
        assert!(unsecured_of(&chunks, &HashSet::new()).is_empty());
        chunks.secured(&[block(1), block(2)], HOLDER, receipt(&[chunk(1)]));
        assert!(unsecured_of(&chunks, &needed).is_empty());
        assert_eq!(chunks.lacking(&needed, ONCE).len(), 1, "the other is not there");
        assert_eq!(chunks.take_receipts(9).len(), 1);
        assert!(chunks.take_receipts(9).is_empty());
        chunks.forget_receipts();
        assert_eq!(unsecured_of(&chunks, &needed), HashSet::from([chunk(1).id]));
    }

    #[test]
    fn receipts_go_to_the_manager_in_parts_of_a_bounded_number_of_blocks() {
        let chunks = Chunks::default();
        for number in 0..5 {
            chunks.secured(&[], HOLDER, receipt(&[chunk(number), chunk(number + 100)]));
        }
        let parts: Vec<usize> = [4, 1, 9].iter().map(|limit| chunks.take_receipts(*limit).len()).collect();
        assert_eq!(parts, [2, 1, 2], "a large one goes alone");
    }

    #[test]
    fn a_chunk_lacks_places_again_when_its_benefactor_goes() {
        let (chunks, needed) = (Chunks::default(), HashSet::from([chunk(1).id]));
        store(&chunks, chunk(1));
        assert!(chunks.lacking(&needed, ONCE).is_empty());
        assert!(!chunks.would_lose(&[block(1)], HOLDER), "its bytes are at hand");
        chunks.gone(&[block(1)], HOLDER);
        assert_eq!(chunks.lacking(&needed, ONCE).len(), 1);
        assert!(chunks.lacking(&HashSet::new(), ONCE).is_empty(), "no version needs it");
    }

    #[test]
    fn bytes_that_left_the_window_are_at_hand_again_once_they_are_written_again() {
        let (chunks, needed) = (Chunks::default(), HashSet::from([chunk(1).id]));
        chunks.claim(chunk(1), Origin::Cell(Weak::new(), Vec::new()));
        chunks.placed(chunk(1).id, PLACE, None);
        chunks.unclaim(chunk(1).id);
        assert!(chunks.would_lose(&[block(1)], HOLDER));
        assert!(!chunks.claim(chunk(1), own()));
        assert!(!chunks.would_lose(&[block(1)], HOLDER));
        chunks.gone(&[block(1)], HOLDER);
        assert!(chunks.lacking(&needed, ONCE)[0].bytes.is_some());
    }

    #[test]
    fn a_chunk_that_is_being_stored_is_not_stored_a_second_time() {
        let (chunks, needed) = (Chunks::default(), HashSet::from([chunk(1).id]));
        chunks.claim(chunk(1), own());
        assert!(chunks.is_storing(chunk(1).id) && chunks.lacking(&needed, ONCE).is_empty());
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
        assert_eq!(unsecured_of(&chunks, &all), HashSet::from([chunk(2).id, chunk(3).id]));
        assert!(chunks.is_storing(chunk(4).id));
    }
}
