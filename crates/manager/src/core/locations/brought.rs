//! How many blocks each benefactor has of chunks that no version refers to. A list of such blocks costs the manager memory for whatever a
//! benefactor makes up, so [`super::super::reports`] takes no more of them than a member's share.

use std::collections::HashMap;

use stdchk_model::BenefactorId;

use super::super::chunk::Chunk;
use super::{Locations, Slot};

/// Blocks of such chunks.
#[derive(Debug, Default)]
pub(super) struct Brought {
    by: HashMap<BenefactorId, u64>,
    all: u64,
}

impl Brought {
    pub(super) fn add(&mut self, at: BenefactorId) {
        *self.by.entry(at).or_default() += 1;
        self.all += 1;
    }

    pub(super) fn remove(&mut self, at: BenefactorId) {
        let Some(count) = self.by.get_mut(&at) else { unreachable!("what is removed was counted") };
        *count -= 1;
        if *count == 0 {
            self.by.remove(&at);
        }
        self.all -= 1;
    }
}

impl Chunk {
    /// Whether no version refers to it: nothing does, or only a state to which somebody may return.
    pub fn is_brought(&self) -> bool {
        self.wants.is_empty() || self.is_held
    }
}

impl Locations {
    /// Blocks of chunks that no version refers to.
    pub fn brought(&self) -> u64 {
        self.brought.all
    }

    /// Those of one benefactor.
    pub fn brought_by(&self, at: BenefactorId) -> u64 {
        self.brought.by.get(&at).copied().unwrap_or(0)
    }

    /// Versions have begun to refer to a chunk, or do so no longer.
    pub(super) fn count_brought(&mut self, slot: Slot) {
        let chunk = self.at_mut(slot);
        let is_brought = chunk.is_brought();
        if std::mem::replace(&mut chunk.counts_as_brought, is_brought) == is_brought {
            return;
        }
        let holders: Vec<BenefactorId> = chunk.holders.iter().map(|holder| holder.benefactor).collect();
        for at in holders {
            if is_brought { self.brought.add(at) } else { self.brought.remove(at) }
        }
    }
}
