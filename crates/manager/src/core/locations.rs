//! The location index: which benefactor holds which block, how far from loss chunks should be, and which are nearer.
//!
//! Holders are soft state: built from what benefactors themselves say, in inventories, heartbeats and receipts that sessions pass
//! on. What refers to a chunk comes from the versions ([`super::references`]). How far a chunk is from loss, and what to make anew,
//! says `protect`. Chunks that are nearer to it than wanted are counted by the versions that they expose ([`Exposure`]) and stand in
//! the queues of those who can make blocks of them, ordered by how near they are, then by the age of what refers to them: so sets are
//! completed one after the other, the oldest first.
//!
//! Chunks are entries of a table, each at its [`Slot`]. Each benefactor has a list of the slots of its blocks, so what happens to
//! it costs as much as it holds, and not as much as the pool does. What a benefactor held in an earlier life, or before its
//! last inventory, ceases to count at once, by number ([`Holder::is_known`]); it is taken out later ([`super::walks`]).

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;

use stdchk_model::exact::{narrow, part, part_mut};
use stdchk_model::limits::REPLICAS_DEFAULT;
use stdchk_model::message::manager::{ChunkLocations, Location, StoredBlock, TimeNs};
use stdchk_model::{BenefactorId, BlockId, ChunkId, Durability, EncodingId, Trust};
use stdchk_protect::{Held, is_readable, is_readable_at};

use super::benefactors::Registry;
use super::chunk::{Care, Chunk, Holder, Marks, Reach, Risk, held};
use super::exposure::{Exposure, Lacking, SHARED, Span, joined};
use super::sessions::Session;
use super::table::GrowingTable;

mod brought;
mod holdings;
mod owed;

use brought::Brought;
pub use holdings::HeldSum;
use holdings::Holdings;
use owed::Owed;

/// Blocks of most chunks: room for more is not kept.
const COPIES_USUAL: usize = REPLICAS_DEFAULT as usize;

/// Where a chunk stands in the index. It stays there while anything refers to it or a benefactor has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(u32);

impl Slot {
    fn of(place: usize) -> Self {
        Self(narrow(place))
    }

    fn place(self) -> usize {
        self.0 as usize
    }
}

/// Place of a chunk in a queue: distance to loss once the machines have gone that are said to go soon, position of the oldest version that
/// refers to it, slot.
pub type Key = (u8, TimeNs, Slot);

/// Chunks of which one benefactor could make blocks. An entry holds only as long as the chunk's own state says the same.
#[derive(Debug, Default)]
struct Queue {
    ready: BTreeSet<Key>,
    /// For which no benefactor had room. Each stands there once, however often it is blocked.
    blocked: BTreeSet<Key>,
    /// The one of them that was looked at last: the next one follows, and after the last one the first.
    looked_at: Option<Key>,
}

/// What is left to be made elsewhere of what a benefactor has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Something is.
    Waits,
    /// What lies below this place was not looked at.
    Unknown(usize),
    /// Nothing is, or nothing can be.
    Nothing,
}

/// What is known of the past of a block that a benefactor has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockAge {
    /// It was stored since the benefactor told all that it has.
    New,
    /// It may have been there for long.
    Unknown,
}

/// Sums over all chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Chunks of which there are blocks.
    pub chunks: u64,
    /// Their plain bytes.
    pub unique_bytes: u64,
    /// Bytes of all blocks.
    pub stored_bytes: u64,
    /// Chunks that are referred to and can't be read until benefactors come back that have them.
    pub away: u64,
    /// Chunks that are referred to and of which nobody is known to have enough.
    pub gone: u64,
}

/// Chunks that have what is wanted, and some of it where it is not to stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moving {
    /// All.
    pub chunks: u64,
    /// Those of which no block can be made elsewhere now.
    pub stuck: u64,
}

impl Moving {
    fn count(&mut self, sign: i64, movable: bool) {
        for (total, counts) in [(&mut self.chunks, true), (&mut self.stuck, !movable)] {
            let Some(counted) = total.checked_add_signed(if counts { sign } else { 0 }) else {
                unreachable!("it was counted")
            };
            *total = counted;
        }
    }
}

/// The index.
#[derive(Debug, Default)]
pub struct Locations {
    /// The slots by the names of their chunks, which stand there alone: a name takes more than all else in such a table.
    slots: GrowingTable<Slot>,
    hasher: RandomState,
    chunks: Vec<Option<Chunk>>,
    free: Vec<Slot>,
    /// What each benefactor holds, a slot for each block.
    held_at: HashMap<BenefactorId, Vec<Slot>>,
    /// Those blocks of each benefactor that are to go since its owner needs the space.
    owed: HashMap<BenefactorId, Owed>,
    /// Chunks to which nothing refers, by when the last version of them went or when they were last brought up.
    unnamed: BTreeSet<(u64, Slot)>,
    /// Blocks of chunks that no version refers to.
    brought: Brought,
    /// Chunks that states name to which somebody may return.
    pub holdings: Holdings,
    /// Chunks that may have more blocks than are wanted.
    spare: BTreeSet<Slot>,
    /// Chunks that are on disks, and of which memory has copies as well.
    spare_in_memory: BTreeSet<Slot>,
    /// Plain bytes of what some memory has, and no disk.
    in_memory_alone_bytes: u64,
    /// Chunks that are nearer to loss than wanted and not lost, or would be without the blocks that are to go.
    at_risk: BTreeSet<Key>,
    /// The latter.
    moving: Moving,
    queues: HashMap<BenefactorId, Queue>,
    exposure: Exposure,
    totals: Totals,
    /// In whose queues something is new.
    called: BTreeSet<BenefactorId>,
    /// Counts blocks that are known no longer.
    unlearned: u64,
    /// The time of the present request.
    pub clock: TimeNs,
    /// The time of the present request, milliseconds of the manager's life.
    pub now_ms: u64,
    /// Not all benefactors have said since the manager's start what they have. Chunks are counted once they have, all at once: until then
    /// most seem to lack copies. What lacks copies may have lacked them ever since it was committed.
    pub is_counting: bool,
    /// How many chunks have begun to lack blocks where these are to stay, ever.
    pub moves_begun: u64,
    /// All are being counted since that has ended.
    counts_all: bool,
}

impl Locations {
    fn slot(&self, id: &ChunkId) -> Option<Slot> {
        self.slots.find(self.hasher.hash_one(id), |slot| self.at(*slot).id == *id).copied()
    }

    /// The slot of a chunk, which enters the index if it isn't there.
    fn enter(&mut self, id: &ChunkId, now_ms: u64) -> Slot {
        let hash = self.hasher.hash_one(id);
        if let Some(slot) = self.slots.find(hash, |slot| self.at(*slot).id == *id) {
            return *slot;
        }
        let chunk = Some(Chunk::new(*id, self.holdings.begun(), now_ms));
        let slot = match self.free.pop() {
            Some(slot) => {
                *part_mut(&mut self.chunks, slot.place()) = chunk;
                slot
            }
            None => {
                self.chunks.push(chunk);
                Slot::of(self.chunks.len() - 1)
            }
        };
        self.slots.insert_unique(hash, slot);
        slot
    }

    /// The chunk at a slot that somebody keeps.
    pub fn at(&self, slot: Slot) -> &Chunk {
        at(&self.chunks, slot)
    }

    fn at_mut(&mut self, slot: Slot) -> &mut Chunk {
        let Some(chunk) = part_mut(&mut self.chunks, slot.place()) else {
            unreachable!("slot {slot:?} is empty")
        };
        chunk
    }

    /// Whether keepers that lag, and no version, hold a chunk.
    pub fn is_for_keepers(&self, id: &ChunkId) -> bool {
        self.slot(id).is_some_and(|slot| self.holdings.is_for_keepers(slot))
    }

    pub fn get(&self, id: &ChunkId) -> Option<&Chunk> {
        self.slot(id).map(|slot| self.at(slot))
    }

    /// All chunks.
    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().flatten()
    }

    /// Blocks that a benefactor is known to hold, and those that were not taken out yet though they are known no longer.
    pub fn blocks_at(&self, id: BenefactorId) -> u64 {
        self.held_at.get(&id).map_or(0, |slots| slots.len() as u64)
    }

    /// The chunks of which a benefactor has blocks.
    pub fn chunks_at(&self, id: BenefactorId) -> impl Iterator<Item = &Chunk> {
        self.held_at.get(&id).into_iter().flatten().map(|slot| self.at(*slot))
    }

    /// Benefactors for which there is something new to copy, since this was asked last.
    pub fn take_called(&mut self) -> BTreeSet<BenefactorId> {
        std::mem::take(&mut self.called)
    }

    /// Copies can be made now for which there was no time before.
    pub fn call_all(&mut self) {
        let ready = self.queues.iter().filter(|(_, queue)| !queue.ready.is_empty());
        self.called.extend(ready.map(|(id, _)| *id));
    }

    /// Rises whenever a block is known no longer of a chunk that something refers to.
    pub fn unlearned(&self) -> u64 {
        self.unlearned
    }

    /// What lacks copies, counted.
    pub fn exposure(&self) -> &Exposure {
        &self.exposure
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Chunks of which blocks are to be made: they are nearer to loss than wanted and not lost, or have blocks that are to go.
    pub fn unfinished_count(&self) -> usize {
        self.at_risk.len()
    }

    /// Chunks that have what is wanted, and some of it where it is not to stay.
    pub fn moving(&self) -> Moving {
        self.moving
    }

    /// Whether the chunk is as safe as a commit of this session needs it.
    pub fn suffices(&self, id: &ChunkId, registry: &Registry, needed: Durability, session: &Session) -> bool {
        self.get(id).is_some_and(|chunk| chunk.suffices(registry, needed, session))
    }

    /// Whether it may be, if one of its encodings that aren't known to be broken makes it.
    pub fn may_suffice(&self, id: &ChunkId, registry: &Registry, needed: Durability) -> bool {
        self.get(id).is_some_and(|chunk| chunk.may_suffice(registry, needed))
    }

    // --- what benefactors have

    /// A benefactor says that it holds the block, durable. Tells whether that is news.
    pub fn confirm(
        &mut self,
        stored: &StoredBlock,
        from: BenefactorId,
        inventory: u32,
        age: BlockAge,
        now_ms: u64,
    ) -> bool {
        let slot = self.enter(&stored.block.chunk, now_ms);
        let is_it =
            |holder: &Holder| holder.benefactor == from && holder.block(stored.block.chunk) == stored.block;
        let is_new = !self.at(slot).holders.iter().any(is_it);
        let is_unknown = age == BlockAge::Unknown && is_new;
        let BlockId { encoding, index, .. } = stored.block;
        let before = self.sizes(slot);
        let chunk = self.at_mut(slot);
        // Who says less than others would have chunks copied to where they don't fit, and none says more than a chunk has.
        let told = if chunk.holders.is_empty() { 0 } else { chunk.length };
        chunk.length = stored.plain_length.max(told);
        if let Some(known) = chunk.find(from, &stored.block) {
            known.inventory = inventory;
            let before = std::mem::replace(&mut known.stored_length, stored.stored_length);
            if known.is_owed() && before != stored.stored_length {
                self.owed_block_changed(from, before, stored.stored_length);
            }
        } else {
            let alike = chunk.holders.iter().find(|other| other.encoding == encoding);
            let mut marks = Marks::default();
            if let Some(alike) = alike {
                marks.set_trust(alike.trust());
            }
            let listed = self.held_at.entry(from).or_default();
            let place = narrow(listed.len());
            listed.push(slot);
            let holder = Holder {
                benefactor: from,
                encoding,
                index,
                inventory,
                stored_length: stored.stored_length,
                listed: place,
                marks,
            };
            if self.at(slot).counts_as_brought {
                self.brought.add(from);
            }
            let holders = &mut self.at_mut(slot).holders;
            if holders.is_empty() {
                holders.reserve_exact(COPIES_USUAL);
            }
            holders.push(holder);
        }
        self.count_sizes(slot, before);
        if is_unknown {
            self.hold_unknown(slot);
        }
        self.place(slot);
        is_new
    }

    /// It was found out whether an encoding makes its chunk. That is remembered as long as any block of it is.
    pub fn judge(&mut self, id: &ChunkId, encoding: EncodingId, trust: Trust, registry: &Registry) {
        let Some(slot) = self.slot(id) else { return };
        let alike = self.at_mut(slot).holders.iter_mut().filter(|holder| holder.encoding == encoding);
        alike.for_each(|holder| holder.marks.set_trust(trust));
        self.requeue(id, registry);
    }

    /// The benefactor didn't show the block to another one: the chunk is to be as safe without it, and then it is to go. That is remembered as
    /// long as it says that it has it. Returns whether it says so.
    pub fn doubt(&mut self, block: &BlockId, at: BenefactorId, registry: &Registry) -> bool {
        let Some(slot) = self.slot(&block.chunk) else { return false };
        let Some(holder) = self.at_mut(slot).find(at, block) else { return false };
        holder.marks.doubt();
        self.count(slot, registry);
        true
    }

    /// A block that has just come is more than is wanted: it is the first to go again.
    pub fn set_beyond_need(&mut self, block: &BlockId, at: BenefactorId) {
        if let Some(slot) = self.slot(&block.chunk)
            && let Some(holder) = self.at_mut(slot).find(at, block)
        {
            holder.marks.set_beyond_need();
        }
    }

    /// The block is there no longer; whether anybody thought so.
    pub fn remove(&mut self, block: &BlockId, from: BenefactorId) -> bool {
        let Some(slot) = self.slot(&block.chunk) else { return false };
        let is_it = |holder: &Holder| holder.benefactor == from && holder.block(block.chunk) == *block;
        let was_there = self.at(slot).holders.iter().any(is_it);
        self.remove_holders(slot, is_it);
        was_there
    }

    fn remove_holders(&mut self, slot: Slot, is_gone: impl Fn(&Holder) -> bool) {
        let before = self.sizes(slot);
        // One after the other: another block of the chunk may get its place in the list of their benefactor.
        while let Some(at) = self.at(slot).holders.iter().position(&is_gone) {
            let holder = self.at_mut(slot).holders.remove(at);
            if self.at(slot).counts_as_brought {
                self.brought.remove(holder.benefactor);
            }
            self.unlearned += u64::from(!self.at(slot).wants.is_empty());
            if holder.is_owed() {
                self.owed_block_went(slot, &holder);
            }
            self.unlist(slot, &holder);
        }
        self.count_sizes(slot, before);
        self.place(slot);
    }

    /// Takes a block out of its benefactor's list. The last one of the list takes its place.
    fn unlist(&mut self, slot: Slot, holder: &Holder) {
        let Some(listed) = self.held_at.get_mut(&holder.benefactor) else {
            unreachable!("a holder is in its benefactor's list")
        };
        let last = narrow::<u32, _>(listed.len()) - 1;
        assert_eq!(listed.swap_remove(holder.listed as usize), slot, "a holder knows its place");
        let moved = listed.get(holder.listed as usize).copied();
        if listed.is_empty() {
            self.held_at.remove(&holder.benefactor);
        }
        let Some(moved) = moved else { return };
        let mut holders = self.at_mut(moved).holders.iter_mut();
        let moved = holders.find(|other| other.benefactor == holder.benefactor && other.listed == last);
        let Some(moved) = moved else { unreachable!("what is in a list has a holder") };
        moved.listed = holder.listed;
    }

    /// Bytes of the chunk and of its blocks; `None`: there are no blocks.
    fn sizes(&self, slot: Slot) -> Option<(u64, u64)> {
        let chunk = self.at(slot);
        let stored = chunk.holders.iter().map(|holder| u64::from(holder.stored_length)).sum();
        (!chunk.holders.is_empty()).then_some((u64::from(chunk.length), stored))
    }

    fn count_sizes(&mut self, slot: Slot, before: Option<(u64, u64)>) {
        if let Some((unique, stored)) = before {
            self.totals.chunks -= 1;
            self.totals.unique_bytes -= unique;
            self.totals.stored_bytes -= stored;
        }
        let sizes = self.sizes(slot);
        if let Some((unique, stored)) = sizes {
            self.totals.chunks += 1;
            self.totals.unique_bytes += unique;
            self.totals.stored_bytes += stored;
        }
        if self.at(slot).is_held {
            let stored = |sizes: Option<(u64, u64)>| sizes.map_or(0, |(_, stored)| stored);
            self.holdings.resize(slot, stored(before), stored(sizes));
        }
    }

    /// Takes a chunk, to which nothing refers, out of the index; its blocks, to be deleted.
    pub fn forget(&mut self, slot: Slot) -> Vec<Holder> {
        let chunk = self.at(slot);
        assert!(chunk.wants.is_empty(), "{} is referred to", chunk.id);
        let holders = chunk.holders.clone();
        self.remove_holders(slot, |_| true);
        holders
    }

    /// A session counts on the chunk: it is brought up now.
    pub fn touch(&mut self, id: &ChunkId, now_ms: u64) {
        let Some(slot) = self.slot(id) else { return };
        let chunk = self.at_mut(slot);
        chunk.touched_ms = now_ms;
        if let Some(before) = &mut chunk.unnamed_ms {
            let before = std::mem::replace(before, now_ms);
            self.unnamed.remove(&(before, slot));
            self.unnamed.insert((now_ms, slot));
        }
    }

    // --- what refers to chunks

    /// One more refers to the chunk, and wants this distance. Until [`Locations::count`] it is counted as before.
    pub fn name(&mut self, id: &ChunkId, wanted: u8) -> Slot {
        let slot = self.enter(id, 0);
        let (is_held, begun) = (self.at(slot).is_held, self.holdings.begun());
        let chunk = self.at_mut(slot);
        if chunk.wants.is_empty() {
            // No state names it that somebody may return to.
            chunk.born = begun;
        }
        chunk.wants.add(wanted);
        if is_held {
            let held = self.unhold(slot);
            self.at_mut(slot).wants.remove(held);
        }
        self.place(slot);
        slot
    }

    /// The slot of a chunk to which something refers.
    pub fn named(&self, id: &ChunkId) -> Slot {
        let Some(slot) = self.slot(id) else {
            unreachable!("chunk {id} is referred to and not in the index")
        };
        slot
    }

    /// What refers to the chunk and wanted one distance wants another. Until [`Locations::count`] it is counted as before.
    pub fn rename(&mut self, slot: Slot, before: u8, wanted: u8) {
        self.at_mut(slot).wants.change(before, wanted);
    }

    /// Versions of `span` refer to the chunk. Until [`Locations::count`] it is counted as before.
    pub fn extend(&mut self, slot: Slot, span: Option<Span>) {
        let chunk = self.at_mut(slot);
        chunk.span = joined(chunk.span, span);
    }

    /// One of those that refer to the chunk does so no longer.
    pub fn unname(&mut self, slot: Slot, wanted: u8, registry: &Registry) {
        let is_held = self.at(slot).wants.is_last() && self.hold(slot, wanted);
        let chunk = self.at_mut(slot);
        if !is_held {
            chunk.wants.remove(wanted);
        }
        if is_held || chunk.wants.is_empty() {
            chunk.span = None;
        }
        self.count(slot, registry);
        self.place(slot);
    }

    /// Lists the chunk as one to which nothing refers, or takes it from there, or out of the index.
    fn place(&mut self, slot: Slot) {
        if self.at(slot).is_held && self.at(slot).holders.is_empty() {
            self.unhold_gone(slot);
        }
        self.count_brought(slot);
        let chunk = self.at(slot);
        let is_unnamed = chunk.wants.is_empty();
        let is_gone = is_unnamed && chunk.holders.is_empty();
        let is_listed = is_unnamed && !is_gone;
        if chunk.unnamed_ms.is_some() != is_listed {
            let listed = is_listed.then_some(self.now_ms);
            let before = std::mem::replace(&mut self.at_mut(slot).unnamed_ms, listed);
            self.unnamed.extend(listed.map(|ms| (ms, slot)));
            before.map(|ms| self.unnamed.remove(&(ms, slot)));
        }
        if is_gone {
            self.settle(slot, None, None);
            self.spare.remove(&slot);
            self.spare_in_memory.remove(&slot);
            self.note_alone(slot, false);
            let hash = self.hasher.hash_one(self.at(slot).id);
            let listed = self.slots.remove(hash, |other| *other == slot);
            assert_eq!(listed, Some(slot), "a chunk is in the table");
            *part_mut(&mut self.chunks, slot.place()) = None;
            self.free.push(slot);
        }
    }

    /// Chunks to which nothing has referred, and that nobody has brought up, since `until_ms` or before, behind `after`.
    pub fn unnamed(
        &self,
        after: Option<(u64, Slot)>,
        until_ms: u64,
    ) -> impl Iterator<Item = (u64, Slot)> + '_ {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.unnamed.range((from, Bound::Unbounded)).copied().take_while(move |(ms, _)| *ms <= until_ms)
    }

    /// Chunks to which nothing refers, and that somebody named or brought up after `ms`.
    pub fn unnamed_since(&self, ms: u64) -> impl Iterator<Item = Slot> + '_ {
        self.unnamed.iter().rev().take_while(move |(at, _)| *at > ms).map(|(_, slot)| *slot)
    }

    /// Chunks that may have more blocks than are wanted, behind `after`.
    pub fn spare(&self, after: Option<Slot>) -> impl Iterator<Item = Slot> + '_ {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.spare.range((from, Bound::Unbounded)).copied()
    }

    /// Chunks that are on disks, and of which memory has copies as well, behind `after`.
    pub fn spare_in_memory(&self, after: Option<Slot>) -> impl Iterator<Item = Slot> + '_ {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.spare_in_memory.range((from, Bound::Unbounded)).copied()
    }

    /// The chunk has no more blocks than are wanted.
    pub fn is_not_spare(&mut self, slot: Slot) {
        self.spare.remove(&slot);
    }

    // --- counting

    /// Counts a chunk as [`Locations::count`] does, if it is in the index and not yet to be counted with all others.
    pub fn recount(&mut self, id: &ChunkId, registry: &Registry) {
        if !self.is_counting {
            self.requeue(id, registry);
        }
    }

    /// Counts a chunk as [`Locations::count`] does, if it is in the index.
    pub fn requeue(&mut self, id: &ChunkId, registry: &Registry) {
        if let Some(slot) = self.slot(id) {
            self.count(slot, registry);
        }
    }

    /// Counts the chunk as it is now, and puts it into the queues of those that can make blocks of it.
    pub fn count(&mut self, slot: Slot, registry: &Registry) {
        // Afterwards there are copies of it that somebody wanted elsewhere.
        if self.at(slot).is_held && (self.is_counting || self.counts_all) {
            let distance = self.at(slot).distance(registry);
            self.want_as_found(slot, distance);
        }
        let chunk = self.at(slot);
        let (distance, wanted) = (chunk.distance(registry), chunk.wanted());
        let is_moving = chunk.holders.iter().any(|holder| holder.leaves(registry));
        // What only lagging keepers hold goes within seconds.
        let lacks = if is_moving { chunk.distance_staying(registry) } else { distance } < wanted
            && !self.holdings.is_for_keepers(slot);
        let lasting = if is_moving { chunk.distance_lasting(registry) } else { distance };
        // No file needs what is held.
        let reach = (wanted > 0 && !chunk.is_held).then(|| chunk.reach(registry));
        // Nothing of it is on a disk, and some memory has it.
        let alone = distance == 0 && chunk.is_there(registry);
        let in_memory = alone && wanted > 0;
        let is_spare_in_memory =
            wanted > 0 && distance > 0 && chunk.holders.iter().any(|holder| holder.is_in_memory(registry));
        match is_spare_in_memory {
            true => self.spare_in_memory.insert(slot),
            false => self.spare_in_memory.remove(&slot),
        };
        self.note_alone(slot, alone);
        let chunk = self.at(slot);
        let may_go = |holder: &Holder| holder.leaves(registry) && holder.trust() == Trust::Broken;
        let is_spare = chunk.holders.len() > chunk.fewest(wanted) || chunk.holders.iter().any(may_go);
        if wanted > 0 && is_spare {
            self.spare.insert(slot);
        }
        let chunk = self.at(slot);
        let begins = lacks && is_moving && chunk.risk.is_none();
        let sources = if lacks { chunk.sources(registry) } else { Vec::new() };
        let span = chunk.span.unwrap_or(Span::at(SHARED, TimeNs::MIN));
        let is_elsewhere = chunk.place_at_risk() != Some((lasting, span.first)) || sources.is_empty();
        let moved = matches!(chunk.care, Care::Blocked | Care::Postponed) && is_elsewhere;
        // Its place among the blocked ones is no longer good, or nobody is left in whose queue it could stand.
        let care = if moved { Care::Waits } else { chunk.care };
        let risk = lacks.then(|| {
            let movable = match care {
                Care::Copied => distance > 0 || in_memory,
                Care::Waits => sources.iter().any(|source| !registry.cuts.is_off(*source)),
                Care::Blocked | Care::Postponed | Care::CopiedSlowly | Care::Failed => false,
            };
            let lacking = Lacking { span, bytes: chunk.length, movable, in_memory };
            Risk { distance, lasting, is_exposed: distance < wanted, lacking }
        });
        self.at_mut(slot).care = care;
        self.moves_begun += u64::from(begins);
        self.settle(slot, risk, reach);
        if let Some(risk) = risk.filter(|_| care == Care::Waits) {
            let (lasting, first) = risk.place();
            for source in sources {
                let queue = self.queues.entry(source).or_default();
                if queue.ready.insert((lasting, first, slot)) {
                    self.called.insert(source);
                }
            }
        }
    }

    /// Some memory has the chunk and no disk, or not so.
    fn note_alone(&mut self, slot: Slot, is_alone: bool) {
        let chunk = self.at_mut(slot);
        let bytes = if is_alone { chunk.length } else { 0 };
        let before = std::mem::replace(&mut chunk.alone_in_memory, bytes);
        let others = self.in_memory_alone_bytes.checked_sub(u64::from(before));
        let Some(others) = others else { unreachable!("it was added") };
        self.in_memory_alone_bytes = others + u64::from(bytes);
    }

    /// Plain bytes of what some memory has, and no disk.
    pub fn in_memory_alone_bytes(&self) -> u64 {
        self.in_memory_alone_bytes
    }

    /// The chunk is counted like this from now on.
    fn settle(&mut self, slot: Slot, risk: Option<Risk>, reach: Option<Reach>) {
        let chunk = self.at_mut(slot);
        let before = chunk.risk.as_deref().copied();
        if before != risk {
            chunk.risk = risk.map(Box::new);
        }
        let reached = std::mem::replace(&mut chunk.reach, reach);
        if reached != reach {
            for (reach, sign) in [(reached, -1), (reach, 1)] {
                let total = match reach {
                    Some(Reach::Away) => &mut self.totals.away,
                    Some(Reach::Gone) => &mut self.totals.gone,
                    Some(Reach::Readable) | None => continue,
                };
                let Some(counted) = total.checked_add_signed(sign) else { unreachable!("it was counted") };
                *total = counted;
            }
        }
        if before != risk {
            // First, so that what goes on to lack copies keeps its time.
            if let Some(risk) = risk.filter(|risk| risk.is_exposed) {
                let since = match self.is_counting || self.counts_all {
                    true => risk.lacking.span.first.min(self.clock),
                    false => self.clock,
                };
                self.exposure.add(risk.lacking, since);
            }
            if let Some(before) = before {
                if before.is_exposed {
                    self.exposure.remove(before.lacking);
                }
                let (lasting, first) = before.place();
                self.at_risk.remove(&(lasting, first, slot));
            }
            for (risk, sign) in [(before, -1), (risk, 1)] {
                if let Some(risk) = risk.filter(|risk| !risk.is_exposed) {
                    self.moving.count(sign, risk.lacking.movable);
                }
            }
            // Both may stand at the same place.
            if let Some(risk) = risk.filter(|risk| risk.distance > 0 || risk.lacking.in_memory) {
                let (lasting, first) = risk.place();
                self.at_risk.insert((lasting, first, slot));
            }
        }
    }

    // --- walks; each tells where to go on, or nothing once it has come to its end

    /// Counts all chunks.
    pub fn walk_all(&mut self, from: usize, steps: usize, registry: &Registry) -> Option<usize> {
        self.counts_all = true;
        let until = self.chunks.len().min(from + steps);
        for place in from..until {
            if part(&self.chunks, place).is_some() {
                self.count(Slot::of(place), registry);
            }
        }
        self.counts_all = false;
        (until < self.chunks.len()).then_some(until)
    }

    /// Counts what a benefactor has, and takes out what it is not known to have any more; downwards from the end, since what is taken out
    /// is replaced by the last.
    pub fn walk_benefactor(
        &mut self,
        id: BenefactorId,
        from: Option<usize>,
        steps: usize,
        registry: &Registry,
    ) -> Option<usize> {
        let mut next = from.unwrap_or(usize::MAX);
        for _ in 0..steps {
            let listed = self.held_at.get(&id).map_or(&[][..], Vec::as_slice);
            let Some(before) = next.min(listed.len()).checked_sub(1) else {
                self.let_rest(id, registry);
                return None;
            };
            next = before;
            let slot = *part(listed, next);
            // Of one that is about to tell what it has, what is known of its blocks is kept until it has: how they came, and what others missed.
            let tells =
                registry.counts(id) && registry.get(id).is_some_and(|benefactor| !benefactor.reported);
            let is_gone = |holder: &Holder| holder.benefactor == id && !holder.is_known(registry) && !tells;
            if self.at(slot).holders.iter().any(is_gone) {
                let chunk = self.at(slot).id;
                self.remove_holders(slot, is_gone);
                self.requeue(&chunk, registry);
            } else if !self.is_counting {
                self.count(slot, registry);
            }
        }
        Some(next)
    }

    /// Frees what is kept of a benefactor that makes no copies, all of whose chunks are counted without it.
    fn let_rest(&mut self, id: BenefactorId, registry: &Registry) {
        if !registry.counts(id) {
            self.queues.remove(&id);
        }
        if registry.get(id).is_none() {
            self.forget_owed(id);
        }
    }

    /// Counts those chunks that are at risk: after benefactors went off-line or came on-line. Others can make copies now, and others have
    /// room.
    pub fn walk_at_risk(&mut self, after: Option<Key>, steps: usize, registry: &Registry) -> Option<Key> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let keys: Vec<Key> = self.at_risk.range((from, Bound::Unbounded)).take(steps).copied().collect();
        for (_, _, slot) in &keys {
            let chunk = self.at_mut(*slot);
            if matches!(chunk.care, Care::Blocked | Care::Postponed) {
                chunk.care = Care::Waits;
            }
            self.count(*slot, registry);
        }
        keys.last().copied().filter(|_| keys.len() == steps)
    }

    /// Looks at what a benefactor has whose machine goes soon, downwards from `from`, or from the end.
    pub fn look_at_going(
        &self,
        id: BenefactorId,
        from: Option<usize>,
        steps: usize,
        registry: &Registry,
    ) -> Left {
        let listed = self.held_at.get(&id).map_or(&[][..], Vec::as_slice);
        let from = from.map_or(listed.len(), |from| from.min(listed.len()));
        for place in (from.saturating_sub(steps)..from).rev() {
            let chunk = self.at(*part(listed, place));
            let wanted = chunk.wanted();
            // Who is not yet counted without the benefactor has what is wanted as far as the counting knows.
            let may_move = || {
                let risk = chunk.risk.as_ref();
                let is_soon_tried = matches!(chunk.care, Care::Failed | Care::Postponed | Care::CopiedSlowly);
                risk.is_none_or(|risk| risk.lacking.movable || is_soon_tried)
            };
            if wanted > 0 && chunk.distance_staying(registry) < wanted && may_move() {
                return Left::Waits;
            }
        }
        match from.saturating_sub(steps) {
            0 => Left::Nothing,
            next => Left::Unknown(next),
        }
    }

    // --- copies to be made

    /// Takes the next chunk out that `source` should copy.
    pub fn take_ready(&mut self, source: BenefactorId) -> Option<ChunkId> {
        let queue = self.queues.get_mut(&source)?;
        while let Some(key) = queue.ready.pop_first() {
            if let Some(id) = queued(&self.chunks, &key, source) {
                return Some(id);
            }
        }
        None
    }

    /// How many chunks there may be for which no benefactor had room.
    pub fn blocked(&self, source: BenefactorId) -> usize {
        self.queues.get(&source).map_or(0, |queue| queue.blocked.len())
    }

    /// Takes a chunk out for which no benefactor had room when one was looked for: all of them in turn.
    pub fn take_blocked(&mut self, source: BenefactorId) -> Option<ChunkId> {
        let queue = self.queues.get_mut(&source)?;
        loop {
            let after = queue.looked_at.map_or(Bound::Unbounded, Bound::Excluded);
            let next = queue.blocked.range((after, Bound::Unbounded)).next();
            let key = next.or_else(|| queue.blocked.first()).copied()?;
            queue.blocked.remove(&key);
            queue.looked_at = Some(key);
            if let Some(id) = queued(&self.chunks, &key, source) {
                return Some(id);
            }
        }
    }

    /// No copy of the chunk can be made now, for the reason that `care` says: nobody waits for it, and it is looked at again later.
    pub fn block(&mut self, id: &ChunkId, source: BenefactorId, care: Care, registry: &Registry) {
        assert!(matches!(care, Care::Blocked | Care::Postponed), "{care:?} is another queue's");
        let Some(slot) = self.slot(id) else { return };
        self.at_mut(slot).care = care;
        self.count(slot, registry);
        let Some((lasting, first)) = self.at(slot).place_at_risk() else { return };
        self.queues.entry(source).or_default().blocked.insert((lasting, first, slot));
    }

    /// There is room again: all that was blocked is looked at in its order.
    pub fn unblock(&mut self, source: BenefactorId) {
        if let Some(queue) = self.queues.get_mut(&source) {
            queue.ready.append(&mut queue.blocked);
        }
    }

    /// Something else is done about the chunk from now on.
    pub fn care_for(&mut self, id: &ChunkId, care: Care, registry: &Registry) {
        let Some(slot) = self.slot(id) else { return };
        self.at_mut(slot).care = care;
        self.count(slot, registry);
    }

    // --- where chunks are

    /// Where a chunk can be read: at benefactors that are on-line, then at those whose silence may mean nothing yet; of either, in memory
    /// first.
    pub fn locate(&self, id: &ChunkId, registry: &Registry) -> ChunkLocations {
        let chunk = self.get(id);
        let known: Vec<&Holder> = chunk.map_or(Vec::new(), |chunk| chunk.known(registry).collect());
        let (mut online, others): (Vec<&Holder>, Vec<&Holder>) =
            known.into_iter().partition(|holder| registry.is_online(holder.benefactor));
        let (mut readable, lost): (Vec<&Holder>, Vec<&Holder>) =
            others.into_iter().partition(|holder| registry.counts(holder.benefactor));
        let is_readable = is_readable(held(online.iter().copied(), registry));
        let pending = !is_readable && registry.is_pending();
        online.sort_by_key(|holder| !holder.is_in_memory(registry));
        readable.sort_by_key(|holder| !holder.is_in_memory(registry));
        let at: Vec<Location> =
            online.into_iter().chain(readable).map(|holder| location(holder.held(registry))).collect();
        let returning = lost.iter().filter(|holder| holder.may_return(registry));
        let mut away: Vec<BenefactorId> = returning.map(|holder| holder.benefactor).collect();
        if !is_readable_at(&at) && away.is_empty() {
            away = registry.unreported().collect();
        }
        ChunkLocations { at, pending, away }
    }

    /// Where a chunk is on-line now: on disks, and in memory, which says so; and what of it counts for this session.
    pub fn locate_durable(&self, id: &ChunkId, registry: &Registry, session: &Session) -> ChunkLocations {
        let online = self.get(id).into_iter().flat_map(|chunk| chunk.online(registry));
        let at: Vec<Location> =
            online.map(|holder| location(holder.held_for(id, session, registry))).collect();
        let pending = !is_readable_at(&at) && registry.is_pending();
        ChunkLocations { at, pending, away: Vec::new() }
    }
}

fn at(chunks: &[Option<Chunk>], slot: Slot) -> &Chunk {
    let Some(chunk) = part(chunks, slot.place()) else { unreachable!("slot {slot:?} is empty") };
    chunk
}

fn location(Held { benefactor, encoding, index, tier, trust }: Held) -> Location {
    Location { benefactor, encoding, index, tier, trust }
}

/// The chunk of a queue's entry, if the entry still says what the chunk's own state says.
fn queued(chunks: &[Option<Chunk>], (lasting, first, slot): &Key, source: BenefactorId) -> Option<ChunkId> {
    let chunk = part(chunks, slot.place()).as_ref()?;
    let in_queue = matches!(chunk.care, Care::Waits | Care::Blocked | Care::Postponed);
    let risk = chunk.place_at_risk() == Some((*lasting, *first));
    let holds = chunk.holders.iter().any(|holder| holder.benefactor == source);
    (in_queue && risk && holds).then_some(chunk.id)
}

#[cfg(test)]
mod tests;
