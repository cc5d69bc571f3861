//! Blocks beyond what any folder asks for: left over when a benefactor that counted as lost comes back after its blocks
//! were made elsewhere, when a policy asks for less, or when a chunk was stored in several encodings.
//!
//! They go with a sweep, because only then it is known how far from loss each chunk should be. The rule is narrow: those blocks
//! that are beyond doubt (on-line, as many blocks there as the index believes, nothing to be deleted there) must keep the chunk as
//! far from loss as is wanted without the ones that go, and of the others none is touched. What is in doubt now is looked at again later.

use std::collections::{HashMap, HashSet};

use stdchk_model::{BenefactorId, ChunkId};
use stdchk_protect::{Held, surplus as superfluous};

use super::locations::{Chunk, Holder};
use super::{Core, Now};

/// Blocks that may go, and whether more may once doubts have passed.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    pub(super) blocks: Vec<(ChunkId, Holder)>,
    pub(super) in_doubt: bool,
}

/// The fewest blocks that can have the distance `wanted` if all of them are of one encoding; else 0: it has to be looked at.
fn fewest(chunk: &Chunk, wanted: u8) -> usize {
    let Some(first) = chunk.holders.first() else { return 0 };
    let is_one = chunk.holders.iter().all(|holder| holder.encoding == first.encoding);
    if is_one { usize::from(wanted) + usize::from(first.encoding.code.data()) - 1 } else { 0 }
}

impl Core {
    /// The surplus blocks of chunks that the marking `generation` reached, those of the fullest holders.
    pub(super) fn surplus(&self, generation: u32, held: &HashSet<&ChunkId>, now: Now) -> Surplus {
        let mut found = Surplus::default();
        let hosts = self.registry.iter();
        let mut free: HashMap<BenefactorId, u64> =
            hosts.map(|(id, benefactor)| (id, benefactor.load.free_bytes)).collect();
        let may_have = |(_, chunk): &(&ChunkId, &Chunk)| {
            let wanted = chunk.wanted;
            // What has no more blocks than the fewest that reach the distance has none to spare.
            chunk.marked == generation && wanted > 0 && chunk.holders.len() > fewest(chunk, wanted)
        };
        let mut chunks: Vec<(&ChunkId, &Chunk)> = self.locations.iter().filter(may_have).collect();
        // Each choice changes who is the fullest: the same choices each time.
        chunks.sort_by_key(|(id, _)| **id);
        for (id, chunk) in chunks {
            let counted = chunk.holders.iter().filter(|holder| self.registry.counts(holder.benefactor));
            let counted: Vec<Held> = counted.map(Holder::held).collect();
            if superfluous(&counted, chunk.wanted).is_empty() {
                continue;
            }
            let mut certain = self.certain(id, chunk, held, now);
            certain.sort_by_key(|holder| (free.get(&holder.benefactor).copied(), holder.benefactor));
            let blocks: Vec<Held> = certain.iter().map(Holder::held).collect();
            let gone = superfluous(&blocks, chunk.wanted);
            found.in_doubt |= gone.is_empty();
            for holder in certain.into_iter().filter(|holder| gone.contains(&holder.held())) {
                let room = free.entry(holder.benefactor).or_insert(0);
                *room = room.saturating_add(u64::from(holder.stored_length));
                found.blocks.push((*id, holder));
            }
        }
        found
    }

    /// The blocks of a chunk that surely are there and stay there; none while somebody is busy with the chunk.
    fn certain(&self, id: &ChunkId, chunk: &Chunk, held: &HashSet<&ChunkId>, now: Now) -> Vec<Holder> {
        let young = now.ms.saturating_sub(chunk.touched_ms) < self.setting.timing.garbage_age_ms;
        if young || held.contains(id) || self.copies.is_running(id) || self.registry.is_pending() {
            return Vec::new();
        }
        let certain = |holder: &&Holder| {
            let benefactor = self.registry.get(holder.benefactor);
            self.registry.is_online(holder.benefactor)
                // Fewer blocks than the index believes: one of those that it lacks may be this one.
                && benefactor.is_some_and(|benefactor| {
                    benefactor.reported && benefactor.load.blocks >= self.locations.blocks_at(holder.benefactor)
                })
                && self.deletions.get(&holder.benefactor).is_none_or(|queue| queue.is_empty())
        };
        chunk.holders.iter().filter(certain).copied().collect()
    }

    /// Has surplus copies deleted. The chunk counts as just brought up: it is left alone until the deletion is done.
    pub(super) fn trim(&mut self, surplus: &[(ChunkId, Holder)], now: Now) {
        for (id, holder) in surplus {
            let block = holder.block(*id);
            self.locations.remove(&block, holder.benefactor);
            self.locations.touch(id, now.ms);
            self.delete(block, holder.benefactor);
        }
    }
}
