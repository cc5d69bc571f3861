//! Replication and repair: blocks of chunks that are nearer to loss than their folder asks for (paper, section IV.A).
//!
//! The paper's shadow map, chunk by chunk: the manager selects destinations as for a new write, tells a source to make the blocks
//! that `protect` names, and counts each once its destination reports it. Chunks that are nearest to loss come first, then those
//! of the oldest versions, so that checkpoint sets are completed one after the other. As many bytes are ordered as keep a source busy
//! until it asks again: disks and network are the limit, also while files are being written. How far writers may get
//! ahead of the copies is a matter of the folder's `exposure`, not of an order here.

use std::collections::HashMap;

use stdchk_model::message::benefactor::{Command, Make, NewBlock, SourceBlock};
use stdchk_model::{BenefactorId, ChunkId};
use stdchk_placement::{HostState, Wish};

use super::locations::Care;
use super::{Core, Now};

/// Plain bytes of copies that one source has on order: a fast disk and network have them done in a tenth of a second, and
/// the source asks for more when it has made some.
const ORDERED_BYTES_PER_SOURCE: u64 = 64 << 20;
/// Copies that one source has on order: bounds the answer to a heartbeat, where chunks are small, to some 100 kB.
const ORDERED_PER_SOURCE: usize = 1024;
/// Time after which a copy that was neither reported nor refused is planned anew, milliseconds.
const COPY_LATE_MS: u64 = 60_000;
/// Time before a failed copy is planned anew, milliseconds: its cause may pass.
const COPY_RETRY_MS: u64 = 1_000;
/// Time for which a source orders no copies to a destination to which one failed, milliseconds: as long as the manager
/// takes to notice that a benefactor is gone.
const AVOID_MS: u64 = 5_000;
/// Chunks for which there was no destination that are looked at for one source per heartbeat: bounds the time that an
/// answer takes.
const BLOCKED_LOOKED_AT: usize = 64;
/// The same for chunks that are looked at for the first time.
const READY_LOOKED_AT: usize = 8_192;

/// Copies under way.
#[derive(Debug, Default)]
pub struct Copies {
    running: HashMap<ChunkId, Running>,
    ordered: HashMap<BenefactorId, Ordered>,
    /// From where to where a copy failed, and until when none is tried again.
    avoided: HashMap<(BenefactorId, BenefactorId), u64>,
    pub done: u64,
    /// Copies that are not on order any more, however they went.
    pub ended: u64,
}

/// What a source has on order.
#[derive(Clone, Copy, Debug, Default)]
struct Ordered {
    copies: usize,
    bytes: u64,
}

#[derive(Debug)]
struct Running {
    /// `None` after a failure, while the retry waits.
    from: Option<BenefactorId>,
    /// Where blocks are still to arrive.
    to: Vec<BenefactorId>,
    bytes: u64,
    until_ms: u64,
}

impl Copies {
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Whether the chunk is being copied, or a copy of it failed moments ago.
    pub fn is_running(&self, chunk: &ChunkId) -> bool {
        self.running.contains_key(chunk)
    }

    fn has_room(&self, source: BenefactorId) -> bool {
        let ordered = self.ordered.get(&source).copied().unwrap_or_default();
        ordered.copies < ORDERED_PER_SOURCE && ordered.bytes < ORDERED_BYTES_PER_SOURCE
    }

    fn start(&mut self, chunk: ChunkId, bytes: u64, from: BenefactorId, to: Vec<BenefactorId>, now_ms: u64) {
        // The chunk may have been forgotten and stored again while a copy was under way.
        self.end(&chunk);
        let ordered = self.ordered.entry(from).or_default();
        ordered.copies += 1;
        ordered.bytes += bytes;
        self.running.insert(chunk, Running { from: Some(from), to, bytes, until_ms: now_ms + COPY_LATE_MS });
    }

    fn free_source(&mut self, from: Option<BenefactorId>, bytes: u64) {
        if let Some(ordered) = from.and_then(|from| self.ordered.get_mut(&from)) {
            self.ended += 1;
            ordered.copies -= 1;
            ordered.bytes -= bytes;
        }
    }

    fn end(&mut self, chunk: &ChunkId) -> bool {
        let Some(running) = self.running.remove(chunk) else { return false };
        self.free_source(running.from, running.bytes);
        true
    }

    /// A destination reports a block of the chunk. Tells whether that was the last one on order.
    pub fn arrived(&mut self, chunk: &ChunkId, at: BenefactorId) -> bool {
        let Some(running) = self.running.get_mut(chunk) else { return false };
        let before = running.to.len();
        running.to.retain(|to| *to != at);
        self.done += (before - running.to.len()) as u64;
        running.to.is_empty() && self.end(chunk)
    }

    /// The source could not copy. Tells whether it had that copy on order.
    pub fn failed(&mut self, chunk: &ChunkId, source: BenefactorId, now_ms: u64) -> bool {
        let Some(running) = self.running.get_mut(chunk).filter(|running| running.from == Some(source)) else {
            return false;
        };
        running.until_ms = now_ms + COPY_RETRY_MS;
        let (from, to, bytes) = (running.from.take(), running.to.clone(), running.bytes);
        // Which of them it was, the source doesn't say.
        self.avoided.extend(to.into_iter().map(|to| ((source, to), now_ms + AVOID_MS)));
        self.free_source(from, bytes);
        true
    }

    /// To whom the source orders no copies now.
    fn avoided(&self, source: BenefactorId) -> impl Iterator<Item = BenefactorId> + '_ {
        self.avoided.keys().filter(move |(from, _)| *from == source).map(|(_, to)| *to)
    }

    /// Forgets copies that nothing was heard of, and failed ones whose time to retry has come: these.
    #[must_use]
    pub fn give_up_late(&mut self, now_ms: u64) -> Vec<ChunkId> {
        self.avoided.retain(|_, until_ms| *until_ms > now_ms);
        self.give_up(|running| running.until_ms <= now_ms)
    }

    /// Forgets copies from or to benefactors that are not on-line any more: these.
    #[must_use]
    pub fn give_up_with(&mut self, gone: &[BenefactorId]) -> Vec<ChunkId> {
        self.give_up(|running| {
            running.to.iter().any(|to| gone.contains(to))
                || running.from.is_some_and(|from| gone.contains(&from))
        })
    }

    fn give_up(&mut self, is_given_up: impl Fn(&Running) -> bool) -> Vec<ChunkId> {
        let given_up = self.running.iter().filter(|(_, running)| is_given_up(running));
        let given_up: Vec<ChunkId> = given_up.map(|(id, _)| *id).collect();
        given_up.iter().for_each(|chunk| {
            self.end(chunk);
        });
        given_up
    }
}

impl Core {
    /// The copies that benefactor `source` should make now.
    pub(super) fn plan_copies(&mut self, source: BenefactorId, now: Now) -> Vec<Command> {
        if self.registry.is_pending() {
            return Vec::new();
        }
        let hosts = self.registry.hosts();
        let mut commands = Vec::new();
        for _ in 0..READY_LOOKED_AT {
            if !self.copies.has_room(source) {
                break;
            }
            let Some(chunk) = self.locations.take_ready(source) else { break };
            match self.make(chunk, source, &hosts, now) {
                Some(command) => commands.push(command),
                None => self.locations.block(&chunk, source, &self.registry),
            }
        }
        commands
    }

    /// Looks whether there is room now for a chunk that had no destination; then there may be for others, in their order.
    pub(super) fn plan_blocked(&mut self, source: BenefactorId, now: Now) -> Vec<Command> {
        if !self.copies.has_room(source) || self.registry.is_pending() {
            return Vec::new();
        }
        let hosts = self.registry.hosts();
        for _ in 0..self.locations.blocked(source).min(BLOCKED_LOOKED_AT) {
            let Some(chunk) = self.locations.take_blocked(source) else { break };
            if let Some(command) = self.make(chunk, source, &hosts, now) {
                self.locations.unblock(source);
                return vec![command];
            }
            self.locations.block(&chunk, source, &self.registry);
        }
        Vec::new()
    }

    /// The order to `source` to make what the chunk lacks, as far as there are benefactors with room for it; `None` if there is
    /// none, or nothing is lacking any more.
    fn make(&mut self, id: ChunkId, source: BenefactorId, hosts: &[HostState], now: Now) -> Option<Command> {
        let plan = self.locations.plan(&id, &self.registry)?;
        let chunk = self.locations.get(&id)?;
        let own = plan.from.iter().position(|held| held.benefactor == source)?;
        let avoid: Vec<BenefactorId> = plan.taken.into_iter().chain(self.copies.avoided(source)).collect();
        let turn = u64::from_le_bytes(*id.0.first_chunk::<8>()?);
        let bytes = u64::from(chunk.length);
        let wish = Wish { width: plan.make.len(), avoid: &avoid, room_bytes: bytes, turn };
        let destinations = self.select.select(hosts, &wish);
        let address = |id: BenefactorId| Some(self.registry.get(id)?.address.clone());
        let mut from = plan.from;
        from.swap(0, own);
        if from.first().is_some_and(|own| own.encoding.code.is_copy()) {
            from.truncate(1); // Each copy suffices alone.
        }
        let new = |(to, index): (&BenefactorId, &Option<u8>)| {
            Some(NewBlock { index: *index, to: *to, address: address(*to)? })
        };
        let blocks: Vec<NewBlock> = destinations.iter().zip(&plan.make).filter_map(new).collect();
        let source_block = |held: &stdchk_protect::Held| {
            let address = address(held.benefactor)?;
            Some(SourceBlock { encoding: held.encoding, index: held.index, address })
        };
        let from: Vec<SourceBlock> = from.iter().filter_map(source_block).collect();
        if blocks.is_empty() {
            return None;
        }
        let to = blocks.iter().map(|block| block.to).collect();
        let ordered = bytes.saturating_mul(blocks.len() as u64);
        self.copies.start(id, ordered, source, to, now.ms);
        self.locations.care_for(&id, Care::Copied, &self.registry);
        Some(Command::Make(Make { chunk: id, from, blocks }))
    }

    /// No copies of these chunks are being made any more.
    pub(super) fn copies_ended(&mut self, chunks: &[ChunkId]) {
        chunks.iter().for_each(|chunk| self.locations.care_for(chunk, Care::Waits, &self.registry));
    }
}
