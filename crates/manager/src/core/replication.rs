//! Replication and repair: copies of chunks that have fewer than their folder asks for (paper, section IV.A).
//!
//! The paper's shadow map, chunk by chunk: the manager selects a destination as for a new write, tells a source to copy,
//! and counts the copy once the destination reports it. Chunks with the fewest copies come first; while files are being
//! written, few copies run, because new files have priority.

use std::collections::HashMap;

use stdchk_model::message::benefactor::Command;
use stdchk_model::{BenefactorId, BlockId, ChunkId};
use stdchk_placement::{HostState, Wish};

use super::{Core, Now};

/// Copies that one source makes at a time while nobody writes.
const COPIES_PER_SOURCE: usize = 32;
/// The same while files are being written.
const COPIES_PER_SOURCE_BUSY: usize = 4;
/// A write counts as going on for so long after its last report, milliseconds.
const BUSY_MS: u64 = 1_000;
/// Time after which a copy that was neither reported nor refused is planned anew, milliseconds.
const COPY_LATE_MS: u64 = 60_000;
/// Time before a failed copy is planned anew, milliseconds: its cause may pass.
const COPY_RETRY_MS: u64 = 5_000;
/// Chunks at risk that are looked at for one source per heartbeat: bounds the time that an answer takes.
const CHUNKS_LOOKED_AT: usize = 8_192;

/// Copies under way.
#[derive(Debug, Default)]
pub struct Copies {
    running: HashMap<ChunkId, Running>,
    per_source: HashMap<BenefactorId, usize>,
    last_write_ms: Option<u64>,
    pub done: u64,
}

#[derive(Debug)]
struct Running {
    /// `None` after a failure, while the retry waits.
    from: Option<BenefactorId>,
    to: BenefactorId,
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

    /// A session writes.
    pub fn note_write(&mut self, now_ms: u64) {
        self.last_write_ms = Some(now_ms);
    }

    fn room(&self, source: BenefactorId, now_ms: u64) -> usize {
        let busy = self.last_write_ms.is_some_and(|last| now_ms.saturating_sub(last) < BUSY_MS);
        let most = if busy { COPIES_PER_SOURCE_BUSY } else { COPIES_PER_SOURCE };
        most.saturating_sub(self.per_source.get(&source).copied().unwrap_or(0))
    }

    fn start(&mut self, chunk: ChunkId, from: BenefactorId, to: BenefactorId, now_ms: u64) {
        *self.per_source.entry(from).or_insert(0) += 1;
        self.running.insert(chunk, Running { from: Some(from), to, until_ms: now_ms + COPY_LATE_MS });
    }

    fn free_source(&mut self, from: Option<BenefactorId>) {
        if let Some(count) = from.and_then(|from| self.per_source.get_mut(&from)) {
            *count = count.saturating_sub(1);
        }
    }

    /// The destination reports the chunk.
    pub fn arrived(&mut self, chunk: &ChunkId, at: BenefactorId) {
        if self.running.get(chunk).is_some_and(|running| running.to == at)
            && let Some(running) = self.running.remove(chunk)
        {
            self.free_source(running.from);
            self.done += 1;
        }
    }

    /// The source could not copy.
    pub fn failed(&mut self, chunk: &ChunkId, source: BenefactorId, now_ms: u64) {
        let Some(running) = self.running.get_mut(chunk).filter(|running| running.from == Some(source)) else {
            return;
        };
        running.until_ms = now_ms + COPY_RETRY_MS;
        let from = running.from.take();
        self.free_source(from);
    }

    /// Forgets copies that nothing was heard of, and failed ones whose time to retry has come.
    pub fn give_up_late(&mut self, now_ms: u64) {
        let late: Vec<ChunkId> = self
            .running
            .iter()
            .filter(|(_, running)| running.until_ms <= now_ms)
            .map(|(id, _)| *id)
            .collect();
        for chunk in late {
            let from = self.running.remove(&chunk).and_then(|running| running.from);
            self.free_source(from);
        }
    }
}

impl Core {
    /// The copies that benefactor `source` should make now.
    pub(super) fn plan_copies(&mut self, source: BenefactorId, now: Now) -> Vec<Command> {
        let room = self.copies.room(source, now.ms);
        if room == 0 || self.registry.is_pending() || self.locations.at_risk_count() == 0 {
            return Vec::new();
        }
        let hosts = self.registry.hosts();
        let candidates = self.locations.at_risk().take(CHUNKS_LOOKED_AT);
        let planned: Vec<(ChunkId, BenefactorId)> = candidates
            .filter_map(|chunk| Some((chunk, self.destination(&chunk, source, &hosts)?)))
            .take(room)
            .collect();
        planned.into_iter().filter_map(|(chunk, to)| self.copy(chunk, source, to, now)).collect()
    }

    fn destination(&self, id: &ChunkId, source: BenefactorId, hosts: &[HostState]) -> Option<BenefactorId> {
        let chunk = self.locations.get(id)?;
        let holders: Vec<BenefactorId> = chunk.holders.iter().map(|holder| holder.benefactor).collect();
        if self.copies.is_running(id) || !holders.contains(&source) {
            return None;
        }
        let turn = u64::from_le_bytes(*id.0.first_chunk::<8>()?);
        let room_bytes = u64::from(chunk.length).saturating_add(self.reserved_per_host(hosts));
        let wish = Wish { width: 1, avoid: &holders, room_bytes, turn };
        self.select.select(hosts, &wish).first().copied()
    }

    /// What each host keeps free for the files being written.
    fn reserved_per_host(&self, hosts: &[HostState]) -> u64 {
        let online = hosts.iter().filter(|host| host.online).count();
        self.sessions.reserved() / u64::try_from(online.max(1)).unwrap_or(1)
    }

    fn copy(&mut self, chunk: ChunkId, from: BenefactorId, to: BenefactorId, now: Now) -> Option<Command> {
        let address = self.registry.get(to)?.address.clone();
        self.copies.start(chunk, from, to, now.ms);
        Some(Command::Copy { block: BlockId::whole(chunk), to, address })
    }
}
