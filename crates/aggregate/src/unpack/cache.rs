//! Decoded blocks that are kept for the next read, each decoded once however many readers want it at the same time.
//!
//! Relies on the standard library. The idea: a budget in bytes, shared by all containers that are given the same cache; the
//! block that was used longest ago goes first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;

pub(super) type Decoded = Arc<Vec<u8>>;

/// A container and the number of a block in it.
type Key = ([u8; 16], u64);

/// Empty until the first who wants the block has decoded it; the others wait.
type Slot = Arc<Mutex<Option<Decoded>>>;

/// Decoded blocks, with a budget.
pub struct BlockCache {
    bytes_max: u64,
    /// The slots by key with their lengths in bytes, the one that was used last in front.
    slots: Mutex<VecDeque<(Key, Slot, u64)>>,
}

impl BlockCache {
    /// A cache of at most so many bytes, and the block that was used last however large it is.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, slots: Mutex::default() }
    }

    /// The block: as it was decoded before, or decoded now. A failure isn't kept.
    pub(super) fn get(&self, key: Key, decode: impl FnOnce() -> Result<Vec<u8>>) -> Result<Decoded> {
        let slot = self.slot(key);
        let mut content = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decoded) = &*content {
            return Ok(Arc::clone(decoded));
        }
        let decoded = Arc::new(decode().inspect_err(|_| self.forget(key, &slot))?);
        *content = Some(Arc::clone(&decoded));
        drop(content);
        self.account(key, decoded.len() as u64);
        Ok(decoded)
    }

    fn slot(&self, key: Key) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let known = slots.iter().position(|(known, ..)| *known == key).and_then(|at| slots.remove(at));
        let entry = known.unwrap_or_else(|| (key, Slot::default(), 0));
        let slot = Arc::clone(&entry.1);
        slots.push_front(entry);
        slot
    }

    fn forget(&self, key: Key, slot: &Slot) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|(known, kept, _)| *known != key || !Arc::ptr_eq(kept, slot));
    }

    /// Notes the length of a block, and lets go of others where that is too much.
    fn account(&self, key: Key, length: u64) {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = slots.iter_mut().find(|(known, ..)| *known == key) {
            entry.2 = length;
        }
        let mut total: u64 = 0;
        let mut newest = true;
        slots.retain(|(_, _, length)| {
            total = total.saturating_add(*length);
            // A block that nobody has decoded yet has no length, and stays for those who wait for it.
            std::mem::take(&mut newest) || *length == 0 || total <= self.bytes_max
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::AggregateError;

    fn key(number: u64) -> Key {
        ([7; 16], number)
    }

    #[test]
    fn blocks_stay_within_the_budget_and_those_used_longest_ago_go_first() {
        let cache = BlockCache::new(3000);
        let decoded = AtomicUsize::new(0);
        let get = |number| {
            let decode = || {
                decoded.fetch_add(1, Ordering::Relaxed);
                Ok(vec![0; 1000])
            };
            cache.get(key(number), decode).unwrap()
        };
        for number in [1, 2, 3, 1, 4, 1] {
            get(number);
        }
        assert_eq!(decoded.load(Ordering::Relaxed), 4, "1 was kept, being used");
        get(2);
        assert_eq!(decoded.load(Ordering::Relaxed), 5, "2 was not");
        assert_eq!(cache.slots.lock().unwrap().len(), 3);
    }

    #[test]
    fn a_block_that_many_want_is_decoded_once_and_a_failure_is_not_kept() {
        let cache = BlockCache::new(1 << 20);
        let refused = cache.get(key(1), || Err(AggregateError::Invalid("no".to_owned())));
        assert!(refused.is_err());
        assert!(cache.slots.lock().unwrap().is_empty());
        let decoded = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let decode = || {
                        decoded.fetch_add(1, Ordering::Relaxed);
                        Ok(vec![1; 10])
                    };
                    assert_eq!(*cache.get(key(1), decode).unwrap(), [1; 10]);
                });
            }
        });
        assert_eq!(decoded.load(Ordering::Relaxed), 1);
    }
}
