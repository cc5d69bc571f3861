//! The location index: which benefactor holds which block, how many copies there should be, and which are missing.
//!
//! Soft state: built from what benefactors themselves say, in inventories, heartbeats and receipts that sessions pass on.
//! How far a chunk is from loss, and what to make anew, says `protect`. Chunks that are nearer to it than wanted are counted by
//! the versions that they expose ([`Exposure`]) and stand in the queues of those who can make blocks of them, ordered by how near
//! they are, then by the age of what refers to them: so sets are completed one after the other, the oldest first.

use std::collections::{BTreeSet, HashMap, VecDeque};

use stdchk_model::message::manager::{ChunkLocations, Location, StoredBlock, TimeNs};
use stdchk_model::{BenefactorId, BlockId, ChunkId, EncodingId};
use stdchk_protect::{Held, Plan, distance, distance_at, plan, surplus};

use super::benefactors::Registry;
use super::exposure::{Exposure, Lacking, SHARED, Span, joined};

/// A block of a chunk at a benefactor.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub benefactor: BenefactorId,
    pub encoding: EncodingId,
    pub index: u8,
    /// The benefactor's inventory that saw it last.
    pub inventory: u32,
    /// Bytes that it takes there.
    pub stored_length: u32,
}

impl Holder {
    /// The block, for `protect`.
    pub fn held(&self) -> Held {
        Held { benefactor: self.benefactor, encoding: self.encoding, index: self.index }
    }

    /// Which block of `chunk` it is.
    pub fn block(&self, chunk: ChunkId) -> BlockId {
        BlockId { chunk, encoding: self.encoding, index: self.index }
    }
}

/// What is known of a chunk.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    pub length: u32,
    /// The distance to loss that the versions referring to it ask for; 0: none is known to refer to it.
    pub wanted: u8,
    /// The marking that last reached it.
    pub marked: u32,
    /// When a session or a benefactor last brought it up, milliseconds of the manager's life.
    pub touched_ms: u64,
    pub holders: Vec<Holder>,
    /// The versions that refer to it; `None`: none is known to.
    span: Option<Span>,
    /// How it is counted while it lacks copies.
    risk: Option<Risk>,
    /// What is being done about it.
    pub care: Care,
}

/// What is done about a chunk that lacks copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Care {
    /// Nothing: it stands in the queues of those who can make blocks of it.
    #[default]
    Waits,
    /// No benefactor had room for a block when one was looked for last.
    Blocked,
    /// Blocks are being made.
    Copied,
    /// Making blocks failed moments ago; it is tried again soon.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Risk {
    /// How many benefactors have to be lost before the chunk is.
    distance: u8,
    lacking: Lacking,
}

impl Risk {
    fn place(self) -> (u8, TimeNs) {
        (self.distance, self.lacking.span.first)
    }
}

/// Place of a chunk in a queue: distance to loss, position of the oldest version that refers to it, name.
type Key = (u8, TimeNs, ChunkId);

/// Chunks of which one benefactor could make blocks. An entry holds only as long as the chunk's own state says the same.
#[derive(Debug, Default)]
struct Queue {
    ready: BTreeSet<Key>,
    /// For which no benefactor had room.
    blocked: VecDeque<Key>,
}

/// The index.
#[derive(Debug, Default)]
pub struct Locations {
    chunks: HashMap<ChunkId, Chunk>,
    /// Chunks that are nearer to loss than wanted and not lost.
    at_risk: BTreeSet<Key>,
    queues: HashMap<BenefactorId, Queue>,
    exposure: Exposure,
    /// Counts what came into the queues.
    queued: u64,
    /// The time of the present request.
    pub clock: TimeNs,
    /// Since the manager's start it has not been found out what versions refer to. What lacks copies may have lacked them
    /// ever since it was committed.
    pub is_counting: bool,
    /// Blocks known per benefactor.
    blocks: HashMap<BenefactorId, u64>,
}

impl Locations {
    pub fn get(&self, id: &ChunkId) -> Option<&Chunk> {
        self.chunks.get(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ChunkId, &Chunk)> {
        self.chunks.iter()
    }

    /// Blocks that a benefactor is known to hold.
    pub fn blocks_at(&self, id: BenefactorId) -> u64 {
        self.blocks.get(&id).copied().unwrap_or(0)
    }

    /// Rises whenever there is something new for sources to copy.
    pub fn orders(&self) -> u64 {
        self.queued
    }

    /// What lacks copies, counted.
    pub fn exposure(&self) -> &Exposure {
        &self.exposure
    }

    pub fn at_risk_count(&self) -> usize {
        self.at_risk.len()
    }

    /// How many benefactors have to be lost before the chunk is; 0: it is not there.
    pub fn distance(&self, id: &ChunkId, registry: &Registry) -> u8 {
        self.chunks.get(id).map_or(0, |chunk| distance_of(chunk, registry))
    }

    /// Whether blocks of the chunk could go and leave it at the distance `wanted`.
    pub fn has_surplus(&self, id: &ChunkId, wanted: u8, registry: &Registry) -> bool {
        let Some(chunk) = self.chunks.get(id) else { return false };
        let counted = chunk.holders.iter().filter(|holder| registry.counts(holder.benefactor));
        let counted: Vec<Held> = counted.map(Holder::held).collect();
        if wanted == 0 { !counted.is_empty() } else { !surplus(&counted, wanted).is_empty() }
    }

    /// A benefactor says that it holds the block, durable.
    pub fn confirm(&mut self, stored: &StoredBlock, at: BenefactorId, inventory: u32, now_ms: u64) {
        let chunk = self
            .chunks
            .entry(stored.block.chunk)
            .or_insert_with(|| Chunk { touched_ms: now_ms, ..Chunk::default() });
        chunk.length = stored.plain_length;
        let BlockId { encoding, index, .. } = stored.block;
        let holder =
            Holder { benefactor: at, encoding, index, inventory, stored_length: stored.stored_length };
        match find(chunk, at, &stored.block) {
            Some(known) => *known = holder,
            None => {
                chunk.holders.push(holder);
                *self.blocks.entry(at).or_insert(0) += 1;
            }
        }
    }

    /// The block is there no longer.
    pub fn remove(&mut self, block: &BlockId, at: BenefactorId) {
        let gone = |holder: &Holder| holder.benefactor == at && holder.block(block.chunk) == *block;
        self.retain_holders(&block.chunk, |holder| !gone(holder));
    }

    fn retain_holders(&mut self, id: &ChunkId, keep: impl Fn(&Holder) -> bool) {
        let Some(chunk) = self.chunks.get_mut(id) else { return };
        for holder in chunk.holders.iter().filter(|holder| !keep(holder)) {
            let count = self.blocks.entry(holder.benefactor).or_insert(0);
            *count = count.saturating_sub(1);
        }
        chunk.holders.retain(keep);
        if chunk.holders.is_empty() && chunk.wanted == 0 {
            self.forget(id);
        }
    }

    /// Removes the holders of one benefactor that `stays` refuses. Looks at every chunk: for registrations and inventories.
    pub fn sift(&mut self, at: BenefactorId, registry: &Registry, stays: impl Fn(&Holder) -> bool) {
        let gone = |holder: &Holder| holder.benefactor == at && !stays(holder);
        let affected = self.chunks.iter().filter(|(_, chunk)| chunk.holders.iter().any(gone));
        let affected: Vec<ChunkId> = affected.map(|(id, _)| *id).collect();
        for id in affected {
            self.retain_holders(&id, |holder| !gone(holder));
            self.requeue(&id, registry);
        }
    }

    /// Takes a chunk out of the index altogether; its blocks, to be deleted.
    pub fn forget(&mut self, id: &ChunkId) -> Vec<Holder> {
        let Some(chunk) = self.chunks.remove(id) else { return Vec::new() };
        if let Some(risk) = chunk.risk {
            self.discount(id, risk);
        }
        for holder in &chunk.holders {
            let count = self.blocks.entry(holder.benefactor).or_insert(0);
            *count = count.saturating_sub(1);
        }
        chunk.holders
    }

    /// A session counts on the chunk: it is brought up now.
    pub fn touch(&mut self, id: &ChunkId, now_ms: u64) {
        if let Some(chunk) = self.chunks.get_mut(id) {
            chunk.touched_ms = now_ms;
        }
    }

    /// Versions of `span` refer to the chunk and want `wanted` copies; `marking` is the present marking.
    pub fn refer(&mut self, id: &ChunkId, wanted: u8, span: Option<Span>, marking: u32, registry: &Registry) {
        let chunk = self.chunks.entry(*id).or_default();
        let wanted = if chunk.marked == marking { chunk.wanted.max(wanted) } else { wanted };
        chunk.marked = marking;
        let joined = joined(chunk.span, span);
        if (chunk.wanted, chunk.span) != (wanted, joined) {
            (chunk.wanted, chunk.span) = (wanted, joined);
            self.requeue(id, registry);
        }
    }

    /// No version refers to the chunk.
    pub fn unwant(&mut self, id: &ChunkId, registry: &Registry) {
        if let Some(chunk) = self.chunks.get_mut(id)
            && chunk.wanted != 0
        {
            (chunk.wanted, chunk.span) = (0, None);
            self.requeue(id, registry);
            self.retain_holders(id, |_| true);
        }
    }

    /// Counts the chunk as it is now, and puts it into the queues of those that can make blocks of it.
    pub fn requeue(&mut self, id: &ChunkId, registry: &Registry) {
        let Some(chunk) = self.chunks.get_mut(id) else { return };
        let distance = distance_of(chunk, registry);
        let sources: Vec<BenefactorId> = match distance {
            distance if distance >= chunk.wanted => Vec::new(),
            _ => sources(chunk, registry),
        };
        let span = chunk.span.unwrap_or(Span::at(SHARED, TimeNs::MIN));
        if chunk.care == Care::Blocked && chunk.risk.map(Risk::place) != Some((distance, span.first)) {
            // Its place among the blocked ones is no longer good.
            chunk.care = Care::Waits;
        }
        let risk = (distance < chunk.wanted).then(|| {
            let movable = match chunk.care {
                Care::Copied => distance > 0,
                Care::Waits => !sources.is_empty(),
                Care::Blocked | Care::Failed => false,
            };
            Risk { distance, lacking: Lacking { span, bytes: chunk.length, movable } }
        });
        let waits = chunk.care == Care::Waits;
        let before = std::mem::replace(&mut chunk.risk, risk);
        if before != risk {
            // First, so that what goes on to lack copies keeps its time.
            if let Some(risk) = risk {
                self.count(risk);
            }
            if let Some(before) = before {
                self.discount(id, before);
            }
            // Both may stand at the same place.
            if let Some(risk) = risk.filter(|risk| risk.distance > 0) {
                self.at_risk.insert((risk.distance, risk.lacking.span.first, *id));
            }
        }
        if let Some(risk) = risk.filter(|_| waits) {
            for source in sources {
                let queue = self.queues.entry(source).or_default();
                let is_new = queue.ready.insert((risk.distance, risk.lacking.span.first, *id));
                self.queued += u64::from(is_new);
            }
        }
    }

    fn count(&mut self, risk: Risk) {
        let since = if self.is_counting { risk.lacking.span.first } else { self.clock };
        self.exposure.add(risk.lacking, since);
    }

    fn discount(&mut self, id: &ChunkId, risk: Risk) {
        self.exposure.remove(risk.lacking);
        self.at_risk.remove(&(risk.distance, risk.lacking.span.first, *id));
    }

    /// Counts those chunks anew that are at risk: after benefactors went off-line or came on-line. Others can make copies now,
    /// and others have room.
    pub fn requeue_at_risk(&mut self, registry: &Registry) {
        let ids: Vec<ChunkId> = self.at_risk.iter().map(|(_, _, id)| *id).collect();
        for id in &ids {
            if let Some(chunk) = self.chunks.get_mut(id)
                && chunk.care == Care::Blocked
            {
                chunk.care = Care::Waits;
            }
            self.requeue(id, registry);
        }
    }

    // --- copies to be made

    /// Takes the next chunk out that `source` should copy.
    pub fn take_ready(&mut self, source: BenefactorId) -> Option<ChunkId> {
        let queue = self.queues.get_mut(&source)?;
        while let Some(key) = queue.ready.pop_first() {
            if is_queued(&self.chunks, &key, source) {
                return Some(key.2);
            }
        }
        None
    }

    /// How many chunks there may be for which no benefactor had room.
    pub fn blocked(&self, source: BenefactorId) -> usize {
        self.queues.get(&source).map_or(0, |queue| queue.blocked.len())
    }

    /// Takes a chunk out for which no benefactor had room when one was looked for.
    pub fn take_blocked(&mut self, source: BenefactorId) -> Option<ChunkId> {
        let queue = self.queues.get_mut(&source)?;
        while let Some(key) = queue.blocked.pop_front() {
            if is_queued(&self.chunks, &key, source) {
                return Some(key.2);
            }
        }
        None
    }

    /// There is no room for a copy of the chunk anywhere: nobody waits for it, and it is looked at again later.
    pub fn block(&mut self, id: &ChunkId, source: BenefactorId, registry: &Registry) {
        let Some(chunk) = self.chunks.get_mut(id) else { return };
        chunk.care = Care::Blocked;
        self.requeue(id, registry);
        let Some(risk) = self.chunks.get(id).and_then(|chunk| chunk.risk) else { return };
        let (distance, first) = risk.place();
        self.queues.entry(source).or_default().blocked.push_back((distance, first, *id));
    }

    /// There is room again: all that was blocked is looked at in its order.
    pub fn unblock(&mut self, source: BenefactorId) {
        if let Some(queue) = self.queues.get_mut(&source) {
            queue.ready.extend(queue.blocked.drain(..));
        }
    }

    /// Something else is done about the chunk from now on.
    pub fn care_for(&mut self, id: &ChunkId, care: Care, registry: &Registry) {
        if let Some(chunk) = self.chunks.get_mut(id) {
            chunk.care = care;
            self.requeue(id, registry);
        }
    }

    /// Puts every chunk where it belongs: after benefactors were lost or came back.
    pub fn requeue_all(&mut self, registry: &Registry) {
        let ids: Vec<ChunkId> = self.chunks.keys().copied().collect();
        ids.iter().for_each(|id| self.requeue(id, registry));
    }

    /// Where a chunk can be read: at benefactors that are on-line, then at those whose silence may mean nothing yet.
    pub fn locate(&self, id: &ChunkId, registry: &Registry) -> ChunkLocations {
        let holders = self.chunks.get(id).map_or(&[][..], |chunk| &chunk.holders);
        let (online, others): (Vec<&Holder>, Vec<&Holder>) =
            holders.iter().partition(|holder| registry.is_online(holder.benefactor));
        let (readable, lost): (Vec<&Holder>, Vec<&Holder>) =
            others.into_iter().partition(|holder| registry.counts(holder.benefactor));
        let is_readable = distance(online.iter().map(|holder| holder.held())) > 0;
        let pending = !is_readable && registry.is_pending();
        let at: Vec<Location> = online.into_iter().chain(readable).map(location).collect();
        let mut away: Vec<BenefactorId> = lost.iter().map(|holder| holder.benefactor).collect();
        if distance_at(&at) == 0 && away.is_empty() {
            away = registry.unreported().collect();
        }
        ChunkLocations { at, pending, away }
    }

    /// Whether the chunk could be read if those came back that are away and have blocks of it, or may have some.
    pub fn may_come_back(&self, chunk: &Chunk, registry: &Registry) -> bool {
        distance(chunk.holders.iter().map(Holder::held)) > 0 || registry.unreported().next().is_some()
    }

    /// Where a chunk is on-line and durable now.
    pub fn locate_durable(&self, id: &ChunkId, registry: &Registry) -> ChunkLocations {
        let holders = self.chunks.get(id).map_or(&[][..], |chunk| &chunk.holders);
        let online = holders.iter().filter(|holder| registry.is_online(holder.benefactor));
        let at: Vec<Location> = online.map(location).collect();
        let pending = distance_at(&at) == 0 && registry.is_pending();
        ChunkLocations { at, pending, away: Vec::new() }
    }
}

fn location(holder: &Holder) -> Location {
    Location { benefactor: holder.benefactor, encoding: holder.encoding, index: holder.index }
}

fn find<'a>(chunk: &'a mut Chunk, at: BenefactorId, block: &BlockId) -> Option<&'a mut Holder> {
    chunk.holders.iter_mut().find(|holder| holder.benefactor == at && holder.block(block.chunk) == *block)
}

/// How far the chunk is from loss, by the blocks that count.
fn distance_of(chunk: &Chunk, registry: &Registry) -> u8 {
    distance(chunk.holders.iter().filter(|holder| registry.counts(holder.benefactor)).map(Holder::held))
}

fn plan_of(chunk: &Chunk, registry: &Registry) -> Option<Plan> {
    let counted = chunk.holders.iter().filter(|holder| registry.counts(holder.benefactor)).map(Holder::held);
    let counted: Vec<Held> = counted.collect();
    let readable = counted.iter().filter(|held| registry.is_online(held.benefactor)).copied();
    plan(&readable.collect::<Vec<_>>(), &counted, chunk.wanted)
}

/// Who can make blocks of the chunk now.
fn sources(chunk: &Chunk, registry: &Registry) -> Vec<BenefactorId> {
    plan_of(chunk, registry).map_or(Vec::new(), |plan| plan.from.iter().map(|held| held.benefactor).collect())
}

/// Whether a queue's entry still says what the chunk's own state says.
fn is_queued(chunks: &HashMap<ChunkId, Chunk>, (distance, first, id): &Key, source: BenefactorId) -> bool {
    let in_queue = |chunk: &&Chunk| matches!(chunk.care, Care::Waits | Care::Blocked);
    let Some(chunk) = chunks.get(id).filter(in_queue) else { return false };
    let risk = chunk.risk.is_some_and(|risk| risk.place() == (*distance, *first));
    risk && chunk.holders.iter().any(|holder| holder.benefactor == source)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stdchk_model::Ino;

    use super::*;
    use crate::core::Timing;

    const BENEFACTORS: u32 = 4;
    const CHUNKS: u8 = 6;

    #[derive(Clone, Debug)]
    enum Event {
        Confirm(u8, u32),
        Remove(u8, u32),
        Refer(u8, u8, TimeNs),
        Unwant(u8),
        Forget(u8),
        Take(u32),
        Care(u8, Care),
        Silent(u32),
        Heard(u32),
    }

    fn event() -> impl Strategy<Value = Event> {
        let (chunk, benefactor) = (0..CHUNKS, 0..BENEFACTORS);
        let care = prop_oneof![Just(Care::Waits), Just(Care::Copied), Just(Care::Failed)];
        prop_oneof![
            (chunk.clone(), benefactor.clone()).prop_map(|(chunk, at)| Event::Confirm(chunk, at)),
            (chunk.clone(), benefactor.clone()).prop_map(|(chunk, at)| Event::Remove(chunk, at)),
            (chunk.clone(), 1..4u8, 1..9i64).prop_map(|(chunk, wanted, at)| Event::Refer(chunk, wanted, at)),
            chunk.clone().prop_map(Event::Unwant),
            chunk.clone().prop_map(Event::Forget),
            benefactor.clone().prop_map(Event::Take),
            (chunk, care).prop_map(|(chunk, care)| Event::Care(chunk, care)),
            benefactor.clone().prop_map(Event::Silent),
            benefactor.prop_map(Event::Heard),
        ]
    }

    fn id(chunk: u8) -> ChunkId {
        ChunkId([chunk; 32])
    }

    fn registry() -> Registry {
        let mut registry = Registry::new();
        for number in 0..BENEFACTORS {
            let id = registry.add_for_test();
            assert_eq!(id, BenefactorId(number));
        }
        registry.update_states(0, &Timing::default());
        registry
    }

    fn apply(locations: &mut Locations, registry: &mut Registry, event: Event, now_ms: u64) {
        match event {
            Event::Confirm(chunk, at) => {
                let block = BlockId::plain(id(chunk));
                let stored = StoredBlock { block, plain_length: 10, stored_length: 10 };
                locations.confirm(&stored, BenefactorId(at), 1, now_ms);
                locations.requeue(&id(chunk), registry);
            }
            Event::Remove(chunk, at) => {
                locations.remove(&BlockId::plain(id(chunk)), BenefactorId(at));
                locations.requeue(&id(chunk), registry);
            }
            Event::Refer(chunk, wanted, at) => {
                locations.refer(&id(chunk), wanted, Some(Span::at(Ino(2), at)), 1, registry);
            }
            Event::Unwant(chunk) => locations.unwant(&id(chunk), registry),
            Event::Forget(chunk) => drop(locations.forget(&id(chunk))),
            Event::Take(at) => {
                if let Some(chunk) = locations.take_ready(BenefactorId(at)) {
                    locations.block(&chunk, BenefactorId(at), registry);
                }
            }
            Event::Care(chunk, care) => locations.care_for(&id(chunk), care, registry),
            Event::Silent(at) => registry.get_mut(BenefactorId(at)).unwrap().heard_ms = 0,
            Event::Heard(at) => registry.get_mut(BenefactorId(at)).unwrap().heard_ms = now_ms,
        }
        let changes = registry.update_states(now_ms, &Timing::default());
        if !changes.counting.is_empty() {
            locations.requeue_all(registry);
        }
        if !changes.came.is_empty() || !changes.went.is_empty() {
            locations.requeue_at_risk(registry);
        }
    }

    proptest! {
        #[test]
        fn the_counts_are_always_those_that_a_look_at_every_chunk_gives(
            events in proptest::collection::vec(event(), 1..80),
        ) {
            let (mut locations, mut registry) = (Locations::default(), registry());
            // All are heard for as long as they are not silent; who is silent counts as lost at once.
            for (step, event) in (1..).zip(events) {
                let now_ms = 40_000 * step;
                for number in 0..BENEFACTORS {
                    let benefactor = registry.get_mut(BenefactorId(number)).unwrap();
                    if benefactor.heard_ms > 0 || step == 1 {
                        benefactor.heard_ms = now_ms;
                    }
                }
                apply(&mut locations, &mut registry, event, now_ms);
                let lacking = locations.chunks.values().filter(|chunk| distance_of(chunk, &registry) < chunk.wanted);
                let lacking: Vec<&Chunk> = lacking.collect();
                let movable = lacking.iter().filter(|chunk| match chunk.care {
                    Care::Copied => distance_of(chunk, &registry) > 0,
                    Care::Waits => !sources(chunk, &registry).is_empty(),
                    Care::Blocked | Care::Failed => false,
                });
                let total = locations.exposure.total();
                prop_assert_eq!(total.chunks, lacking.len() as u64);
                prop_assert_eq!(total.chunks - locations.exposure.stuck().chunks, movable.count() as u64);
                let covers = |chunk: &&&Chunk| chunk.span.is_some_and(|span| span.first <= 5 && span.last >= 5);
                let exposed = locations.exposure.exposed(Ino(2), &(5..=5)).count;
                prop_assert_eq!(exposed.chunks, lacking.iter().filter(covers).count() as u64);
                let at_risk = lacking.iter().filter(|chunk| distance_of(chunk, &registry) > 0).count();
                prop_assert_eq!(locations.at_risk_count(), at_risk);
                for (id, chunk) in &locations.chunks {
                    let queued = chunk.risk.filter(|_| chunk.care == Care::Waits).is_some();
                    for source in sources(chunk, &registry).into_iter().filter(|_| queued) {
                        let queue = locations.queues.get(&source);
                        prop_assert!(queue.is_some_and(|queue| queue.ready.iter().any(|(_, _, other)| other == id)));
                    }
                }
            }
        }
    }
}
