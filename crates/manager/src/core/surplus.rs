//! Blocks beyond what any folder asks for: left over when a benefactor that counted as lost comes back after its blocks
//! were made elsewhere, when a policy asks for less, or when a chunk was stored in several encodings.
//!
//! The rule is narrow: those blocks that are beyond doubt (on-line, as many blocks there as the index believes, nothing to be deleted
//! there) must keep the chunk as far from loss as is wanted without the ones that go, and of the others none is touched. What is in
//! doubt now is looked at again later.
//!
//! What lies in memory is no affair of this: it goes by itself ([`super::memory`]).
//!
//! Nothing goes in favour of what its own holder has not seen ([`super::proofs`]): each block that is too much waits for that.
//!
//! Nothing goes in favour of an encoding that its own holder has not decoded, be it made up or right: copies go in favour of copies,
//! fragments in favour of copies or of their own encoding ([`superfluous`]). Where the pool would keep one encoding in place of another,
//! the holders of the other look at it as well, and decode it as they do.
//!
//! Blocks that are to go ([`Holder::is_to_go`]) count for nothing here: those that stay must keep the chunk as far from loss as is wanted
//! alone ([`in_favour_of`]). Then the others go, all that are beyond doubt. Blocks on machines that go soon count for nothing, too, and stay.
//!
//! A member that can read a chunk can store it at benefactors of its own. So of blocks that are merely too many those go first that came when nothing
//! was wanting, then those of members that have several; and none goes whose loss would leave fewer members than are wanted, as far as there are so
//! many, beside an encoding as well.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use stdchk_model::{BenefactorId, ChunkId, Tier, Trust};
use stdchk_protect::{Held, distance_at_best, favoured, in_favour_of, surplus as superfluous};

use super::chunk::{Chunk, Holder, held};
use super::locations::Slot;
use super::{Core, Now};

/// What of a chunk is too much.
pub(super) struct Spare {
    /// Blocks that may go now.
    pub gone: Vec<Holder>,
    /// Blocks that may go once their holders have seen the others.
    pub unseen: Vec<Holder>,
}

impl Core {
    /// Free space of each benefactor, bytes.
    pub(super) fn free_space(&self) -> HashMap<BenefactorId, u64> {
        self.registry.iter().map(|(id, benefactor)| (id, benefactor.load.free_bytes)).collect()
    }

    /// The surplus blocks of a chunk, in the order in which they go; the space of those that go counts as free from now on. There is none while
    /// there is doubt. `None`: the chunk has no surplus.
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
        if wanted == 0 || self.too_much(&counted, wanted).is_empty() {
            return None;
        }
        let mut certain = self.certain(chunk, spared, now);
        let all: Vec<Held> = held(certain.iter(), &self.registry).collect();
        certain.sort_by_cached_key(|holder| self.order_of_going(&chunk.id, holder, &all, free));
        let mut staying: Vec<Holder> =
            certain.iter().filter(|holder| !holder.leaves(&self.registry)).copied().collect();
        let (mut gone, mut unseen) = (Vec::new(), Vec::new());
        for block in self.too_much(&certain, wanted) {
            let held = block.held(&self.registry);
            let is_other = |other: &&Holder| other.held(&self.registry) != held;
            let others: Vec<Holder> = staying.iter().filter(is_other).copied().collect();
            let is_worthless = || self.is_worthless(&chunk.id, &block);
            if !self.has_seen_enough(&chunk.id, &block, &others, wanted) && !is_worthless() {
                unseen.push(block);
                continue;
            }
            staying = others;
            gone.push(block);
            let room = free.entry(block.benefactor).or_insert(0);
            *room = room.saturating_add(u64::from(block.stored_length));
        }
        Some(Spare { gone, unseen })
    }

    /// Which of the blocks that are too many go first: those on disks whose owners need the space; then those that came when nothing was wanting; then
    /// those of members that have several of `all`; then those of the member that chance chooses, since members say themselves how full their disks
    /// are; then those at the fullest benefactor.
    fn order_of_going(
        &self,
        chunk: &ChunkId,
        holder: &Holder,
        all: &[Held],
        free: &HashMap<BenefactorId, u64>,
    ) -> (bool, bool, Reverse<usize>, u8, u64, BenefactorId) {
        let at = holder.benefactor;
        let first = self.first_of_member(at, all);
        let of_member =
            all.iter().filter(|other| self.first_of_member(other.benefactor, all) == first).count();
        let benefactor = self.registry.get(at);
        let owes = benefactor.is_some_and(|benefactor| benefactor.load.owed_bytes > 0);
        let member = benefactor.and_then(|benefactor| benefactor.member);
        // Nobody outside can choose a member that comes last.
        let mut hasher = blake3::Hasher::new_keyed(&self.key.0);
        hasher.update(b"order of going").update(&chunk.0).update(&member.map_or([0; 16], |member| member.0));
        let [chance, ..] = *hasher.finalize().as_bytes();
        let free = free.get(&at).copied().unwrap_or(0);
        (!owes, !holder.marks.is_beyond_need(), Reverse(of_member), chance, free, at)
    }

    /// The blocks that are too many: the others that stay keep the distance `wanted`. Where these are more than one encoding needs, and nothing
    /// else is too much, all beside the one that the pool would keep.
    fn too_much(&self, blocks: &[Holder], wanted: u8) -> Vec<Holder> {
        let (mut gone, mut staying): (Vec<Holder>, Vec<Holder>) =
            blocks.iter().partition(|holder| holder.leaves(&self.registry));
        gone.retain(|holder| holder.is_to_go(&self.registry));
        let held: Vec<Held> = held(staying.iter(), &self.registry).collect();
        // A broken block keeps nobody's space.
        gone.retain(|holder| {
            let block = holder.held(&self.registry);
            block.trust == Trust::Broken || in_favour_of(&block, &held, wanted).is_some()
        });
        let superfluous = match (superfluous(&held, wanted).is_empty(), favoured(&held, wanted)) {
            (false, _) => self.spare_members(&held, wanted, |block, others| {
                let first: Vec<Held> = std::iter::once(*block).chain(others.iter().copied()).collect();
                superfluous(&first, wanted).contains(block)
            }),
            (true, Some(favoured)) => {
                self.spare_members(&held, wanted, |block, _| block.encoding != favoured)
            }
            (true, None) => Vec::new(),
        };
        staying.retain(|holder| superfluous.contains(&holder.held(&self.registry)));
        gone.append(&mut staying);
        gone
    }

    /// Those blocks that may go beside the others, one after the other, without which as many members have blocks as are wanted, as far as there are
    /// so many.
    fn spare_members(&self, held: &[Held], wanted: u8, may_go: impl Fn(&Held, &[Held]) -> bool) -> Vec<Held> {
        let mut left = held.to_vec();
        let least = wanted.min(self.distance_of_members(&left));
        let mut gone = Vec::new();
        for block in held {
            let others: Vec<Held> = left.iter().filter(|other| *other != block).copied().collect();
            if may_go(block, &others) && self.distance_of_members(&others) >= least {
                left = others;
                gone.push(*block);
            }
        }
        gone
    }

    /// How many members have to be lost before a chunk is of which these blocks are there, if they make it: of that the holders of those that go
    /// make sure. Benefactors of the manager's machine are members by themselves here.
    fn distance_of_members(&self, held: &[Held]) -> u8 {
        let of_member = |block: &Held| self.first_of_member(block.benefactor, held);
        distance_at_best(held.iter().map(|block| Held { benefactor: of_member(block), ..*block }))
    }

    /// The first of the benefactors that have these blocks of the member that a benefactor is of.
    fn first_of_member(&self, id: BenefactorId, held: &[Held]) -> BenefactorId {
        let member = |id: BenefactorId| self.registry.get(id).and_then(|benefactor| benefactor.member);
        let Some(of) = member(id) else { return id };
        let mut all = held.iter().map(|block| block.benefactor);
        all.find(|other| member(*other) == Some(of)).unwrap_or(id)
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
        self.proofs.forget(&id);
    }
}
