//! Chains that served an earlier set, by the key of what they coded.
//!
//! Relies on [`crate::container`]. The idea: timesteps of a job are alike, so the first block of a group is coded by what
//! sampling found for this group before, and sampling is done again only where that no longer shrinks it as much. Plain
//! data, which the blocks of the earlier container hold anyway.

use std::collections::HashMap;

use crate::codec::Step;
use crate::container::BlockRecord;

/// A first block that is shorter, in bytes, says nothing about others: a small member stood before a large one.
pub(super) const LEAD_MIN: u64 = 32 << 10;

/// A chain, and how often what it coded shrank by it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chosen {
    pub(super) steps: Vec<Step>,
    pub(super) ratio: f64,
}

/// What coded the groups of a set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chains(HashMap<String, Chosen>);

impl Chains {
    /// The chains of blocks, which come in order and with the lengths of their payloads: for each key that of the first block
    /// that tells. Stored blocks don't, since their bytes may shrink the next time; nor do chains that need a base, which is
    /// not always there.
    pub(crate) fn of<'a>(blocks: impl Iterator<Item = (&'a BlockRecord, u64)>) -> Self {
        let mut chains = HashMap::new();
        for (record, stored) in blocks {
            let tells = record.raw_length >= LEAD_MIN && !record.steps.is_empty();
            if tells && !chains.contains_key(&record.key) && !record.steps.iter().any(Step::needs_base) {
                let ratio = record.raw_length as f64 / stored.max(1) as f64;
                chains.insert(record.key.clone(), Chosen { steps: record.steps.clone(), ratio });
            }
        }
        Self(chains)
    }

    pub(super) fn get(&self, key: &str) -> Option<&Chosen> {
        self.0.get(key)
    }
}
