//! Blocks that are to go since the owner of a benefactor's disk needs the space: so many bytes of what it has, and no more.
//!
//! They are blocks that are to go like all of a benefactor that drains ([`Holder::leaves`]). Which ones is decided here, in the order of
//! the benefactor's list, which is about that in which they came. What is done for a benefactor takes as long as what it owes, not
//! as long as what it has: the next look goes on where the last one ended.

use std::collections::BTreeSet;

use stdchk_model::BenefactorId;

use super::super::benefactors::Registry;
use super::super::chunk::Holder;
use super::{Locations, Slot};

/// Those of one benefactor.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// What they take, bytes.
    pub(super) bytes: u64,
    /// Their chunks.
    pub(super) slots: BTreeSet<Slot>,
    /// Where in the benefactor's list the next ones are looked for.
    next: usize,
    /// Counts those that went.
    gone: u64,
}

impl Locations {
    /// Bytes of those blocks of a benefactor that are to go since its owner needs the space.
    pub fn owed_at(&self, id: BenefactorId) -> u64 {
        self.owed.get(&id).map_or(0, |owed| owed.bytes)
    }

    /// Rises with each of them that went.
    pub fn owed_gone(&self, id: BenefactorId) -> u64 {
        self.owed.get(&id).map_or(0, |owed| owed.gone)
    }

    /// Whether a benefactor has blocks beside them.
    pub fn has_others(&self, id: BenefactorId) -> bool {
        let chunks = self.owed.get(&id).map_or(0, |owed| owed.slots.len());
        self.blocks_at(id) > chunks as u64
    }

    /// Lets blocks stay that were to go, of at most `steps` chunks, as long as those left are of `bytes` or more; whether there may be
    /// more of them.
    pub fn let_stay(&mut self, id: BenefactorId, bytes: u64, steps: usize, registry: &Registry) -> bool {
        for _ in 0..steps {
            let Some(owed) = self.owed.get(&id) else { return false };
            let Some(slot) = owed.slots.first().copied() else { return false };
            if owed.bytes.saturating_sub(self.bytes_at(slot, id)) < bytes {
                return false;
            }
            self.set_owed(slot, id, false, registry);
        }
        true
    }

    /// Has blocks of wanted chunks go, looking at most at `steps` of the benefactor's list, until they are of `bytes` or more.
    /// How many places were looked at; `None`: that is so.
    pub fn let_go(
        &mut self,
        id: BenefactorId,
        bytes: u64,
        steps: usize,
        registry: &Registry,
    ) -> Option<usize> {
        for _ in 0..steps {
            if self.owed_at(id) >= bytes {
                return None;
            }
            let owed = self.owed.entry(id).or_default();
            let listed = self.held_at.get(&id).map_or(&[][..], Vec::as_slice);
            let place = if owed.next < listed.len() { owed.next } else { 0 };
            owed.next = place + 1;
            let slot = *listed.get(place)?;
            let chunk = self.at(slot);
            let stays = |holder: &Holder| holder.benefactor == id && !holder.is_owed();
            // What nothing refers to goes by itself.
            if chunk.wanted() > 0 && chunk.holders.iter().any(stays) {
                self.set_owed(slot, id, true, registry);
            }
        }
        Some(steps)
    }

    fn bytes_at(&self, slot: Slot, id: BenefactorId) -> u64 {
        let here = self.at(slot).holders.iter().filter(|holder| holder.benefactor == id);
        here.map(|holder| u64::from(holder.stored_length)).sum()
    }

    fn set_owed(&mut self, slot: Slot, id: BenefactorId, is_owed: bool, registry: &Registry) {
        let mut bytes = 0;
        let here = |holder: &&mut Holder| holder.benefactor == id && holder.is_owed() != is_owed;
        for holder in self.at_mut(slot).holders.iter_mut().filter(here) {
            holder.marks.set_owed(is_owed);
            bytes += u64::from(holder.stored_length);
        }
        let owed = self.owed.entry(id).or_default();
        if is_owed {
            owed.bytes += bytes;
            owed.slots.insert(slot);
        } else {
            owed.bytes -= bytes;
            owed.slots.remove(&slot);
        }
        self.count(slot, registry);
    }

    pub(super) fn owed_block_changed(&mut self, id: BenefactorId, before: u32, after: u32) {
        let Some(owed) = self.owed.get_mut(&id) else { unreachable!("a block that is to go is counted") };
        owed.bytes = owed.bytes - u64::from(before) + u64::from(after);
    }

    /// A block is gone that was to go; `holder` stands at the chunk no more.
    pub(super) fn owed_block_went(&mut self, slot: Slot, holder: &Holder) {
        let is_other = |other: &Holder| other.benefactor == holder.benefactor && other.is_owed();
        let has_others = self.at(slot).holders.iter().any(is_other);
        let Some(owed) = self.owed.get_mut(&holder.benefactor) else {
            unreachable!("a block that is to go is counted")
        };
        owed.bytes -= u64::from(holder.stored_length);
        owed.gone += 1;
        if !has_others {
            owed.slots.remove(&slot);
        }
    }

    /// The benefactor owes nothing any more.
    pub fn forget_owed(&mut self, id: BenefactorId) {
        if self.owed.get(&id).is_some_and(|owed| owed.slots.is_empty()) {
            self.owed.remove(&id);
        }
    }
}
