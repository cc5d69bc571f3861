//! Blocks beyond what any folder asks for: left over when a benefactor that counted as lost comes back after its blocks
//! were made elsewhere, when a policy asks for less, or when a chunk was stored in several encodings.
//!
//! The rule is narrow: those blocks that are beyond doubt (on-line, as many blocks there as the index believes, nothing to be deleted
//! there) must keep the chunk as far from loss as is wanted without the ones that go, and of the others none is touched. What is in
//! doubt now is looked at again later.
//!
//! What lies in memory is no affair of this: it goes by itself ([`super::memory`]).
//!
//! Nothing goes in favour of an encoding that its own holder has not decoded, be it made up or right: copies go in favour of copies,
//! fragments in favour of copies or of their own encoding ([`superfluous`]). Where the pool would keep one encoding in place of another,
//! both stay until the holders of the other have looked: one after the other is asked to ([`super::checks`]), and then gives up its own blocks.
//!
//! Blocks that are to go ([`Holder::is_to_go`]) count for nothing here: those that stay must keep the chunk as far from loss as is wanted
//! alone, by what the block that goes is one of, or by copies ([`can_spare`]). Then the others go, all that are beyond doubt. Blocks on machines that go soon count for nothing, too, and stay.

use std::collections::{HashMap, HashSet};

use stdchk_model::{BenefactorId, ChunkId, EncodingId, Tier};
use stdchk_protect::{Held, can_spare, surplus as superfluous};

use super::chunk::{Chunk, Holder, held};
use super::locations::Slot;
use super::{Core, Now};

/// What of a chunk is too much.
pub(super) struct Spare {
    /// Blocks that may go now.
    pub gone: Vec<Holder>,
    /// An encoding that is enough alone, and the blocks beside it.
    pub beside: Option<(EncodingId, Vec<Holder>)>,
}

impl Core {
    /// Free space of each benefactor, bytes.
    pub(super) fn free_space(&self) -> HashMap<BenefactorId, u64> {
        self.registry.iter().map(|(id, benefactor)| (id, benefactor.load.free_bytes)).collect()
    }

    /// The surplus blocks of a chunk that may go now, those of the fullest holders; their space counts as free from now on. None may while
    /// there is doubt. With them what stands beside an encoding that is enough, until its holders have decoded that. `None`: the chunk has no
    /// surplus.
    pub(super) fn surplus(
        &self,
        slot: Slot,
        spared: &HashSet<ChunkId>,
        free: &mut HashMap<BenefactorId, u64>,
        now: Now,
    ) -> Option<Spare> {
        let chunk = self.locations.at(slot);
        let wanted = chunk.wanted();
        let on_disk = |holder: &&Holder| !holder.is_in_memory(&self.registry);
        let counted: Vec<Holder> = chunk.counted(&self.registry).filter(on_disk).copied().collect();
        let is_beside = self.beside(&counted, wanted).is_some();
        if wanted == 0 || self.too_much(counted, wanted).is_empty() && !is_beside {
            return None;
        }
        let mut certain = self.certain(chunk, spared, now);
        certain.sort_by_key(|holder| (free.get(&holder.benefactor).copied(), holder.benefactor));
        let beside = self.beside(&certain, wanted);
        let mut gone = self.too_much(certain, wanted);
        if let Some((favoured, beside)) = &beside
            && gone.is_empty()
        {
            gone = self.given_up(&chunk.id, *favoured, beside.clone());
        }
        for holder in &gone {
            let room = free.entry(holder.benefactor).or_insert(0);
            *room = room.saturating_add(u64::from(holder.stored_length));
        }
        Some(Spare { gone, beside })
    }

    /// What of these blocks may go, so that the others that stay keep the distance `wanted`.
    fn too_much(&self, blocks: Vec<Holder>, wanted: u8) -> Vec<Holder> {
        let (mut gone, mut staying): (Vec<Holder>, Vec<Holder>) =
            blocks.into_iter().partition(|holder| holder.leaves(&self.registry));
        gone.retain(|holder| holder.is_to_go(&self.registry));
        let held: Vec<Held> = held(staying.iter(), &self.registry).collect();
        gone.retain(|holder| can_spare(&holder.held(&self.registry), held.iter().copied(), wanted));
        let superfluous = superfluous(&held, wanted);
        staying.retain(|holder| superfluous.contains(&holder.held(&self.registry)));
        gone.append(&mut staying);
        gone
    }

    /// The blocks of a chunk that surely are on disks and stay there; none while somebody is busy with the chunk.
    fn certain(&self, chunk: &Chunk, spared: &HashSet<ChunkId>, now: Now) -> Vec<Holder> {
        let young = now.ms.saturating_sub(chunk.touched_ms()) < self.setting.timing.garbage_age_ms;
        if young
            || spared.contains(&chunk.id)
            || self.copies.is_running(&chunk.id)
            || self.registry.is_pending()
        {
            return Vec::new();
        }
        self.surely_there(chunk).copied().collect()
    }

    /// The blocks of a chunk that surely are on disks and stay there, unless somebody is busy with it.
    pub(super) fn surely_there<'a>(&'a self, chunk: &'a Chunk) -> impl Iterator<Item = &'a Holder> + Clone {
        chunk.online(&self.registry).filter(move |holder| {
            let benefactor = self.registry.get(holder.benefactor);
            // Fewer blocks than the index believes: one of those that it lacks may be this one.
            benefactor.is_some_and(|benefactor| {
                benefactor.tier == Tier::Disk
                    && benefactor.reported
                    && benefactor.load.blocks >= self.locations.blocks_at(holder.benefactor)
                    // A disk that has failed is no place to rely on; what is to go from it may.
                    && (!benefactor.load.disk_failed || holder.leaves(&self.registry))
            }) && self.deletions.get(&holder.benefactor).is_none_or(|queue| queue.is_empty())
        })
    }

    /// Has surplus blocks deleted. What is still doubted beside them is looked at again at once: what goes now leaves enough without it.
    pub(super) fn trim(&mut self, slot: Slot, surplus: &[Holder]) {
        let id = self.locations.at(slot).id;
        for holder in surplus {
            let block = holder.block(id);
            self.locations.remove(&block, holder.benefactor);
            self.delete(block, holder.benefactor);
        }
    }
}
