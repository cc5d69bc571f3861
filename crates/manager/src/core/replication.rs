//! Replication and repair: blocks of chunks that are nearer to loss than their folder asks for (paper, section IV.A).
//!
//! The paper's shadow map, chunk by chunk: the manager selects destinations as for a new write, tells a source to make the blocks
//! that `protect` names, and counts each once its destination reports it. Chunks that are nearest to loss come first, then those
//! of the oldest versions, so that checkpoint sets are completed one after the other. As many bytes are ordered as keep a source busy
//! until it asks again: disks and network are the limit, also while files are being written. How far writers may get
//! ahead of the copies is a matter of the folder's `exposure`, not of an order here.
//!
//! | an order | what becomes of it | what becomes of the chunk |
//! |---|---|---|
//! | a block arrives | goes on, unless it was the last | waits in the queues for what else it lacks, its failures forgotten |
//! | a destination failed, or is gone | goes on without; the source avoids a failed one for a while | waits in the queues if nothing is on order |
//! | the source could not make the blocks, or is late | ends | waits for its retry, in another way if there is one |
//! | the source is gone, or registered anew | ends | waits in the queues |
//! | its chunk is forgotten | goes on until it arrives or is late | comes back with the block, for the next collection |

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use stdchk_model::limits::BESIDE_BLOCK_BYTES_MAX;
use stdchk_model::message::benefactor::{
    Command, FailedCopy, Make, NewBlock, OwnerWish, SourceBlock, StorageState,
};
use stdchk_model::{BenefactorId, ChunkId, EncodingId};
use stdchk_placement::{HostState, Wish};
use stdchk_protect::{Held, Plan, plan_at};

use super::benefactors::Registry;
use super::chunk::{Care, held};
use super::{Core, Now};

/// Plain bytes of copies that one source has on order: a fast disk and network have them done in a tenth of a second, and
/// the source asks for more when it has made some.
const ORDERED_BYTES_PER_SOURCE: u64 = 64 << 20;
/// Copies that one source has on order: bounds the answer to a heartbeat, where chunks are small, to some 100 kB.
const ORDERED_PER_SOURCE: usize = 1024;
/// Time after which a copy that was neither reported nor refused is planned anew, milliseconds.
const COPY_LATE_MS: u64 = 60_000;
/// Time before blocks of a chunk are tried again that could not be made, milliseconds: the cause may pass.
const COPY_RETRY_MS: u64 = 1_000;
/// How often that time doubles when they can't be made again and again, since some causes don't pass: up to a minute.
const RETRY_DOUBLINGS: u32 = 6;
/// Time after a retry for which it is remembered what failed before, milliseconds: longer than any retry takes.
const FAILURES_KEPT_MS: u64 = 300_000;
/// Time for which a source orders no copies to a destination to which one failed, milliseconds: as long as the manager
/// takes to notice that a benefactor is gone.
const AVOID_MS: u64 = 5_000;
/// Chunks for which there was no destination that are looked at for one source per heartbeat: bounds the time that an
/// answer takes.
const BLOCKED_LOOKED_AT: usize = 64;
/// Chunks that are looked at for the first time for one source per heartbeat.
const READY_LOOKED_AT: usize = 8_192;

/// Copies under way.
#[derive(Debug, Default)]
pub struct Copies {
    running: HashMap<ChunkId, Running>,
    ordered: HashMap<BenefactorId, Ordered>,
    /// From where to where a copy failed, and until when none is tried again.
    avoided: HashMap<(BenefactorId, BenefactorId), u64>,
    /// Chunks of which blocks could not be made since their holders changed last.
    failing: HashMap<ChunkId, Failing>,
    /// Chunks that stand in the queues of others, and of which this benefactor should make blocks.
    handed: HashMap<BenefactorId, BTreeSet<ChunkId>>,
    pub done: u64,
    /// Benefactors of which an order ended, however it went, or to which a chunk was handed.
    called: BTreeSet<BenefactorId>,
}

/// What a source has on order.
#[derive(Clone, Copy, Debug, Default)]
struct Ordered {
    copies: usize,
    bytes: u64,
}

/// An order that a source has.
#[derive(Debug)]
struct Running {
    from: BenefactorId,
    /// What it makes the blocks from.
    encoding: EncodingId,
    /// Where blocks are still to arrive.
    to: Vec<BenefactorId>,
    bytes: u64,
    until_ms: u64,
}

/// What failed of a chunk.
#[derive(Debug, Default)]
struct Failing {
    times: u32,
    /// When it is tried again, or was.
    retry_ms: u64,
    /// Whether that is still to come.
    waits: bool,
    /// Who could not make blocks, and from what.
    tried: Vec<(BenefactorId, EncodingId)>,
}

impl Copies {
    pub fn len(&self) -> usize {
        self.running.len() + self.failing.values().filter(|failing| failing.waits).count()
    }

    /// Whether the chunk is being copied, or that is to be tried again.
    pub fn is_running(&self, chunk: &ChunkId) -> bool {
        self.running.contains_key(chunk) || self.failing.get(chunk).is_some_and(|failing| failing.waits)
    }

    /// Whether a benefactor is to get a block of the chunk that was ordered.
    pub fn is_ordered_for(&self, chunk: &ChunkId, at: BenefactorId) -> bool {
        self.running.get(chunk).is_some_and(|running| running.to.contains(&at))
    }

    pub fn take_called(&mut self) -> BTreeSet<BenefactorId> {
        std::mem::take(&mut self.called)
    }

    fn has_room(&self, source: BenefactorId) -> bool {
        let ordered = self.ordered.get(&source).copied().unwrap_or_default();
        ordered.copies < ORDERED_PER_SOURCE && ordered.bytes < ORDERED_BYTES_PER_SOURCE
    }

    fn start(&mut self, chunk: ChunkId, running: Running) {
        // The chunk may have been forgotten and stored again while a copy was under way, or a retry waited.
        self.end(&chunk);
        if let Some(failing) = self.failing.get_mut(&chunk) {
            failing.waits = false;
        }
        let ordered = self.ordered.entry(running.from).or_default();
        ordered.copies += 1;
        ordered.bytes += running.bytes;
        self.running.insert(chunk, running);
    }

    fn end(&mut self, chunk: &ChunkId) -> Option<Running> {
        let running = self.running.remove(chunk)?;
        if let Some(ordered) = self.ordered.get_mut(&running.from) {
            self.called.insert(running.from);
            ordered.copies -= 1;
            ordered.bytes -= running.bytes;
        }
        Some(running)
    }

    /// A destination reports a block of the chunk. Tells whether nothing of the chunk is on order or waits any more.
    pub fn arrived(&mut self, chunk: &ChunkId, at: BenefactorId) -> bool {
        let waited = self.holders_changed(chunk);
        let Some(running) = self.running.get_mut(chunk) else { return waited };
        let before = running.to.len();
        running.to.retain(|to| *to != at);
        self.done += (before - running.to.len()) as u64;
        running.to.is_empty() && self.end(chunk).is_some()
    }

    /// What failed may succeed with other holders. Tells whether a retry waited.
    pub fn holders_changed(&mut self, chunk: &ChunkId) -> bool {
        self.failing.remove(chunk).is_some_and(|failing| failing.waits)
    }

    /// The source could not make blocks, or could not put one at its destination. What is to be done about the chunk from now on, if
    /// that was the last one on order.
    pub fn failed(&mut self, failed: &FailedCopy, source: BenefactorId, now_ms: u64) -> Option<Care> {
        let FailedCopy { chunk, to } = failed;
        let running = self.running.get_mut(chunk).filter(|running| running.from == source)?;
        self.avoided.extend(to.map(|to| ((source, to), now_ms + AVOID_MS)));
        let Some(to) = to else {
            self.fail(chunk, now_ms);
            return Some(Care::Failed);
        };
        running.to.retain(|other| other != to);
        // Another destination can be tried at once.
        (running.to.is_empty() && self.end(chunk).is_some()).then_some(Care::Waits)
    }

    /// Ends an order that came to nothing at `now_ms`. After a while it is tried in another way, if there is one.
    fn fail(&mut self, chunk: &ChunkId, now_ms: u64) {
        let Some(Running { from, encoding, .. }) = self.end(chunk) else { return };
        let failing = self.failing.entry(*chunk).or_default();
        let pause = COPY_RETRY_MS << failing.times.min(RETRY_DOUBLINGS);
        (failing.waits, failing.retry_ms) = (true, now_ms + pause);
        failing.times += 1;
        if !failing.tried.contains(&(from, encoding)) {
            failing.tried.push((from, encoding));
        }
    }

    /// Whether the benefactor was ordered to make blocks of the chunk from this encoding, and hasn't said what became of all of them.
    pub fn was_asked(&self, chunk: &ChunkId, from: BenefactorId, encoding: EncodingId) -> bool {
        self.running.get(chunk).is_some_and(|running| (running.from, running.encoding) == (from, encoding))
    }

    /// Whether this holder could not make blocks of the chunk from what it has.
    fn is_tried(&self, chunk: &ChunkId, held: &Held) -> bool {
        let tried = |failing: &Failing| failing.tried.contains(&(held.benefactor, held.encoding));
        self.failing.get(chunk).is_some_and(tried)
    }

    /// Whether blocks of the chunk were made in vain from this block, or together with it from others of its encoding.
    fn was_in_vain(&self, chunk: &ChunkId, held: &Held) -> bool {
        let is_one = |(at, encoding): &(BenefactorId, EncodingId)| {
            *encoding == held.encoding && (!encoding.code.is_copy() || *at == held.benefactor)
        };
        self.failing.get(chunk).is_some_and(|failing| failing.tried.iter().any(is_one))
    }

    /// Lets another benefactor make blocks of the chunk than those in whose queues it stands.
    fn hand(&mut self, chunk: ChunkId, to: BenefactorId) {
        self.handed.entry(to).or_default().insert(chunk);
        self.called.insert(to);
    }

    /// The next chunk that was handed to `source`, and about which nothing else is done.
    fn take_handed(&mut self, source: BenefactorId) -> Option<ChunkId> {
        loop {
            let chunk = self.handed.get_mut(&source)?.pop_first()?;
            if !self.is_running(&chunk) {
                return Some(chunk);
            }
        }
    }

    /// To whom the source orders no copies now.
    fn avoided(&self, source: BenefactorId) -> impl Iterator<Item = BenefactorId> + '_ {
        self.avoided.keys().filter(move |(from, _)| *from == source).map(|(_, to)| *to)
    }

    /// Gives up copies that nothing was heard of, and ends waits whose time has come. The chunks that can be tried again.
    #[must_use]
    pub fn give_up_late(&mut self, now_ms: u64) -> Vec<ChunkId> {
        self.avoided.retain(|_, until_ms| *until_ms > now_ms);
        let is_late = |running: &Running| running.until_ms <= now_ms;
        for chunk in self.running_ones(is_late) {
            // It has waited long enough.
            self.fail(&chunk, now_ms.saturating_sub(COPY_LATE_MS));
        }
        let mut again = Vec::new();
        let running = &self.running;
        self.failing.retain(|chunk, failing| {
            if failing.waits && failing.retry_ms <= now_ms {
                failing.waits = false;
                again.push(*chunk);
            }
            running.contains_key(chunk) || failing.retry_ms + FAILURES_KEPT_MS > now_ms
        });
        again
    }

    /// Other benefactors are there than before: forgets orders from or to those that are gone, and what failed. The chunks
    /// that can be tried again.
    #[must_use]
    pub fn benefactors_changed(&mut self, gone: &[BenefactorId]) -> Vec<ChunkId> {
        self.running.values_mut().for_each(|running| running.to.retain(|to| !gone.contains(to)));
        gone.iter().for_each(|id| {
            self.handed.remove(id);
        });
        let ended = self.running_ones(|running| running.to.is_empty() || gone.contains(&running.from));
        ended.iter().for_each(|chunk| {
            self.end(chunk);
        });
        let waited = self.failing.drain().filter(|(_, failing)| failing.waits).map(|(chunk, _)| chunk);
        ended.into_iter().chain(waited).collect()
    }

    /// The source registered anew: it may never have heard of its orders, or told in vain what became of them. The chunks of these.
    #[must_use]
    pub fn source_registered(&mut self, source: BenefactorId) -> Vec<ChunkId> {
        let ended = self.running_ones(|running| running.from == source);
        ended.iter().for_each(|chunk| {
            self.end(chunk);
        });
        ended
    }

    fn running_ones(&self, is_one: impl Fn(&Running) -> bool) -> Vec<ChunkId> {
        self.running.iter().filter(|(_, running)| is_one(running)).map(|(chunk, _)| *chunk).collect()
    }
}

/// All benefactors while copies are planned for one source.
struct Hosts {
    all: Arc<Vec<HostState>>,
    /// The numbers of those that keep what they have, in order.
    ids: Vec<BenefactorId>,
}

impl Hosts {
    fn new(registry: &Registry) -> Self {
        let all = registry.hosts();
        let ids = all.iter().map(|host| host.id).filter(|id| !registry.leaves(*id)).collect();
        Self { all, ids }
    }
}

/// The ways from one benefactor to others.
struct Reach<'a> {
    registry: &'a Registry,
    from: BenefactorId,
}

impl Reach<'_> {
    /// Whether the benefactor can get as many of these blocks as make the chunk, with the one that it has.
    fn gathers(&self, from: &[Held], own: &Held) -> bool {
        let unreached: Vec<BenefactorId> = self.registry.unreached(self.from, true).collect();
        let is_got = |held: &&Held| held.encoding == own.encoding && !unreached.contains(&held.benefactor);
        unreached.is_empty() || from.iter().filter(is_got).count() >= usize::from(own.encoding.code.data())
    }

    /// Whether there are destinations without these and those that it can't send to.
    fn any(&self, never: &[BenefactorId], are_some: impl FnOnce(&[BenefactorId]) -> bool) -> bool {
        let avoid: Vec<BenefactorId> =
            never.iter().copied().chain(self.registry.unreached(self.from, true)).collect();
        avoid.len() == never.len() || are_some(&avoid)
    }
}

/// Space that a copy of a chunk of so many bytes takes at a benefactor, at most, bytes.
fn needs_at_most(length: u32) -> u64 {
    u64::from(length) + BESIDE_BLOCK_BYTES_MAX
}

impl Core {
    /// The copies that benefactor `source` should make now.
    pub(super) fn plan_copies(&mut self, source: BenefactorId, now: Now) -> Vec<Command> {
        if self.registry.is_pending() {
            return Vec::new();
        }
        let mut hosts = None;
        let mut commands = Vec::new();
        for _ in 0..READY_LOOKED_AT {
            if !self.copies.has_room(source) {
                break;
            }
            let handed = self.copies.take_handed(source);
            let Some(chunk) = handed.or_else(|| self.locations.take_ready(source)) else { break };
            let hosts = hosts.get_or_insert_with(|| Hosts::new(&self.registry));
            match self.make(chunk, source, hosts, now) {
                Ok(command) => commands.push(command),
                Err(care) => self.locations.block(&chunk, source, care, &self.registry),
            }
        }
        commands
    }

    /// Looks whether there is room now for a chunk that had no destination; then there may be for others, in their order.
    pub(super) fn plan_blocked(&mut self, source: BenefactorId, now: Now) -> Vec<Command> {
        if !self.copies.has_room(source) || self.registry.is_pending() {
            return Vec::new();
        }
        let mut hosts = None;
        for _ in 0..self.locations.blocked(source).min(BLOCKED_LOOKED_AT) {
            let Some(chunk) = self.locations.take_blocked(source) else { break };
            let hosts = hosts.get_or_insert_with(|| Hosts::new(&self.registry));
            match self.make(chunk, source, hosts, now) {
                Ok(command) => {
                    self.locations.unblock(source);
                    return vec![command];
                }
                Err(care) => self.locations.block(&chunk, source, care, &self.registry),
            }
        }
        Vec::new()
    }

    /// The order to `source` to make what the chunk lacks, as far as there are benefactors with room for it. Else what becomes of the
    /// chunk: `Blocked` if there is none, or nothing is lacking any more; `Postponed` if another one should make it, or the only ones with
    /// room are avoided.
    fn make(&mut self, id: ChunkId, source: BenefactorId, hosts: &Hosts, now: Now) -> Result<Command, Care> {
        let Plan { from, make, taken } = self.plan(&id, hosts).ok_or(Care::Blocked)?;
        // One that its owner has paused, or whose disk the owner's work needs, only where nobody else can.
        let is_to_rest = |held: &Held| {
            self.registry.get(held.benefactor).is_some_and(|one| {
                one.load.wish == OwnerWish::Pause || one.load.state == StorageState::Refusing
            })
        };
        let chunk = self.locations.get(&id).ok_or(Care::Blocked)?;
        let holders = taken.clone();
        // Who is to let go of the chunk isn't given it anew.
        let never: Vec<BenefactorId> = taken.into_iter().chain(chunk.owing()).collect();
        let turn = u64::from_le_bytes(*id.0.first_chunk::<8>().ok_or(Care::Blocked)?);
        let room_bytes = needs_at_most(chunk.length);
        // A chunk that survives a loss waits for those that are busy; one that doesn't, they take.
        let survives = chunk.distance_staying(&self.registry) > 1;
        let insist_until = usize::from(!survives);
        let wish = Wish { width: make.len(), avoid: &never, room_bytes, turn, insist_until };
        // Another source should send what this one can't.
        let has_way = |held: &Held| {
            let reach = Reach { registry: &self.registry, from: held.benefactor };
            reach.gathers(&from, held)
                && reach.any(&never, |avoid| {
                    !self.destinations(&hosts.all, &Wish { avoid, ..wish }, &holders).is_empty()
                })
        };
        let ways: Vec<bool> = from.iter().map(has_way).collect();
        let mut ordered: Vec<(Held, bool)> = from.into_iter().zip(ways).collect();
        ordered.sort_by_key(|(held, has_way)| {
            (self.copies.is_tried(&id, held), !has_way, is_to_rest(held), held.benefactor != source)
        });
        let mut from: Vec<Held> = ordered.into_iter().map(|(held, _)| held).collect();
        let Held { benefactor, encoding, .. } = *from.first().ok_or(Care::Blocked)?;
        if benefactor != source {
            self.copies.hand(id, benefactor);
            return Err(Care::Postponed);
        }
        match encoding.code.is_copy() {
            true => from.truncate(1), // Each copy suffices alone.
            // Those last of which it can't get any.
            false => {
                let unreached: Vec<BenefactorId> = self.registry.unreached(source, true).collect();
                from.sort_by_key(|held| (held.benefactor != source, unreached.contains(&held.benefactor)));
            }
        }
        let avoided: Vec<BenefactorId> = never.iter().copied().chain(self.copies.avoided(source)).collect();
        let bytes = u64::from(chunk.length);
        let mut care = Care::Copied;
        let mut avoid = [&avoided[..], &Vec::from_iter(self.registry.unreached(source, true))].concat();
        let mut destinations = self.destinations(&hosts.all, &Wish { avoid: &avoid, ..wish }, &holders);
        if destinations.is_empty() && self.registry.cuts.is_any() {
            care = Care::CopiedSlowly;
            avoid = [&avoided[..], &Vec::from_iter(self.registry.unreached(source, false))].concat();
            destinations = self.destinations(&hosts.all, &Wish { avoid: &avoid, ..wish }, &holders);
        }
        let address = |id: BenefactorId| Some(self.registry.get(id)?.address.clone());
        let new = |(to, index): (&BenefactorId, &Option<u8>)| {
            let made = if index.is_some() { encoding } else { EncodingId::PLAIN };
            let permit = self.registry.permit(*to, (&id, made), source)?;
            Some(NewBlock { index: *index, to: *to, address: address(*to)?, permit })
        };
        let blocks: Vec<NewBlock> = destinations.iter().zip(&make).filter_map(new).collect();
        let source_block = |held: &Held| {
            let address = address(held.benefactor)?;
            let permit = self.registry.permit(held.benefactor, (&id, held.encoding), source)?;
            Some(SourceBlock {
                encoding: held.encoding,
                index: held.index,
                address,
                permit,
                at: held.benefactor,
            })
        };
        let sources: Vec<SourceBlock> = from.iter().filter_map(source_block).collect();
        if blocks.is_empty() {
            let is_avoided =
                never.len() < avoid.len() && !self.destinations(&hosts.all, &wish, &holders).is_empty();
            return Err(if is_avoided { Care::Postponed } else { Care::Blocked });
        }
        let to = blocks.iter().map(|block| block.to).collect();
        let bytes = bytes.saturating_mul(blocks.len() as u64);
        let until_ms = now.ms + COPY_LATE_MS;
        self.copies.start(id, Running { from: source, encoding, to, bytes, until_ms });
        self.locations.care_for(&id, care, &self.registry);
        Ok(Command::Make(Make { chunk: id, from: sources, blocks }))
    }

    /// What should be made anew of a chunk, and from what: not from what failed, if there is anything else.
    fn plan(&self, id: &ChunkId, hosts: &Hosts) -> Option<Plan> {
        let chunk = self.locations.get(id)?;
        let staying: Vec<Held> = held(chunk.staying(&self.registry), &self.registry).collect();
        let readable = held(chunk.online(&self.registry), &self.registry);
        let (in_vain, others): (Vec<Held>, Vec<Held>) =
            readable.partition(|held| self.copies.was_in_vain(id, held));
        let of = |readable: &[Held], hosts: &[BenefactorId]| {
            plan_at(readable, &staying, chunk.wanted(), Some(hosts))
        };
        let plan = |hosts: &[BenefactorId]| {
            of(&others, hosts).or_else(|| of(&[&others[..], &in_vain[..]].concat(), hosts))
        };
        let has_room = |host: &&HostState| host.online && host.free_bytes >= needs_at_most(chunk.length);
        // Some that are there may be to let go of this chunk alone.
        let owing: Vec<BenefactorId> = chunk.owing().collect();
        let stays = |id: &BenefactorId| !self.registry.leaves(*id) && !owing.contains(id);
        let without_owing: Vec<BenefactorId>;
        let ids = if owing.is_empty() {
            &hosts.ids
        } else {
            without_owing = hosts.ids.iter().copied().filter(stays).collect();
            &without_owing
        };
        // Copies in place of fragments take several times the space. So fragments wait as long as some can be placed, and for benefactors
        // that are away: all of them if the chunk survives a loss, else only those that may be restarting. They don't wait for room:
        // a benefactor may be full for ever.
        let usual = plan(ids)?;
        let is_placed = hosts.all.iter().filter(has_room).any(|host| !usual.taken.contains(&host.id));
        if is_placed {
            return Some(usual);
        }
        let survives = chunk.distance_staying(&self.registry) > 1;
        let may_return = |host: &HostState| !host.online && (survives || self.registry.counts(host.id));
        let is_one = |host: &&HostState| has_room(host) || may_return(host);
        let some: Vec<BenefactorId> =
            hosts.all.iter().filter(is_one).map(|host| host.id).filter(stays).collect();
        plan(&some)
    }

    /// No copies of these chunks are being made any more.
    pub(super) fn copies_ended(&mut self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| self.locations.care_for(chunk, Care::Waits, &self.registry));
    }
}
