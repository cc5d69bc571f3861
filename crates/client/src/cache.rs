//! Verified chunks in memory: each fetched once, however many readers want it at the same time.
//!
//! The budget counts what an entry takes: the memory of its bytes in the unit in which that is had ([`kept_bytes`]) and its
//! place in the tables. An entry is counted before its chunk is fetched, and older ones go to make room for it: nobody waits
//! for what the cache keeps.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use stdchk_model::{ChunkId, ChunkRef, Failure};
use stdchk_net::{Bytes, kept_bytes, waits};
use tokio::sync::{OnceCell, Semaphore};

use crate::fetch::Fetcher;

/// Fetches under way at one time: enough to keep all benefactors of a stripe busy, few enough to stay in the budget.
pub(crate) const FETCHES_MAX: usize = 16;
/// What an entry takes beside its bytes: its places in the table and in the order, its slot, and the allocator's own.
const ENTRY_BYTES: usize = 512;

/// Where the bytes of a chunk are or will be.
pub(crate) type Slot = Arc<OnceCell<Bytes>>;

/// What a chunk takes of the budget, bytes.
pub(crate) fn cost(chunk: &ChunkRef) -> usize {
    ENTRY_BYTES + kept_bytes(chunk.length as usize)
}

#[derive(Default)]
struct Entries {
    slots: HashMap<ChunkId, Slot>,
    /// In order of arrival. A checkpoint is read front to back: the oldest chunk is the one that is done with.
    order: VecDeque<ChunkRef>,
    bytes: usize,
}

/// A cache of verified chunks with a budget.
pub(crate) struct ChunkCache {
    fetcher: Arc<Fetcher>,
    bytes_max: usize,
    entries: Mutex<Entries>,
    fetches: Arc<Semaphore>,
    fetched_bytes: AtomicU64,
}

impl ChunkCache {
    pub(crate) fn new(fetcher: Arc<Fetcher>, bytes_max: usize) -> Self {
        let (entries, fetches) = (Mutex::default(), Arc::new(Semaphore::new(FETCHES_MAX)));
        Self { fetcher, bytes_max, entries, fetches, fetched_bytes: AtomicU64::new(0) }
    }

    /// What it keeps at most, bytes.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes of all chunks that were fetched.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.fetched_bytes.load(Ordering::Relaxed)
    }

    /// The plain bytes of `chunk`: from memory, from a fetch under way, or fetched now.
    pub(crate) async fn get(&self, chunk: ChunkRef) -> Result<Bytes, Failure> {
        let (slot, _) = self.slot(chunk);
        self.fill(chunk, slot).await
    }

    /// A place for a chunk that is neither there nor on its way, to be filled by [`ChunkCache::fill`].
    pub(crate) fn place(&self, chunk: ChunkRef) -> Option<Slot> {
        let (slot, new) = self.slot(chunk);
        new.then_some(slot)
    }

    /// The plain bytes of the chunk of a place, fetched unless somebody else does so.
    pub(crate) async fn fill(&self, chunk: ChunkRef, slot: Slot) -> Result<Bytes, Failure> {
        let fetched = slot.get_or_try_init(|| async {
            let _turn = waits::permits(&self.fetches, 1).await;
            self.fetched_bytes.fetch_add(u64::from(chunk.length), Ordering::Relaxed);
            self.fetcher.fetch(chunk).await
        });
        match waits::on(move || format!("chunk {} to be fetched", chunk.id), fetched).await {
            Ok(bytes) => Ok(bytes.clone()),
            Err(failure) => {
                self.forget(chunk.id);
                Err(failure)
            }
        }
    }

    /// The place of a chunk, and whether it is new.
    fn slot(&self, chunk: ChunkRef) -> (Slot, bool) {
        let mut entries = self.entries.lock();
        if let Some(slot) = entries.slots.get(&chunk.id) {
            return (Arc::clone(slot), false);
        }
        let slot = Slot::default();
        entries.slots.insert(chunk.id, Arc::clone(&slot));
        entries.order.push_back(chunk);
        entries.bytes += cost(&chunk);
        while entries.bytes > self.bytes_max && entries.order.len() > 1 {
            let Some(oldest) = entries.order.pop_front() else { break };
            entries.slots.remove(&oldest.id);
            entries.bytes -= cost(&oldest);
        }
        (slot, true)
    }

    fn forget(&self, chunk: ChunkId) {
        let mut entries = self.entries.lock();
        if entries.slots.remove(&chunk).is_some() {
            let gone: usize = entries.order.iter().filter(|entry| entry.id == chunk).map(cost).sum();
            entries.order.retain(|entry| entry.id != chunk);
            entries.bytes -= gone;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stdchk_net::BufferPool;

    use super::*;
    use crate::benefactors::Benefactors;
    use crate::keyring::KeyRing;
    use crate::manager::ManagerLink;
    use crate::near::Near;

    fn cache(bytes_max: usize) -> ChunkCache {
        let manager = Arc::new(ManagerLink::new("unix:/no/manager", None, Duration::ZERO, false));
        let benefactors = Arc::new(Benefactors::new(Arc::clone(&manager), BufferPool::new(1 << 20)));
        let keys = Arc::new(KeyRing::new(None));
        let near = Near::new(Arc::clone(&manager), Arc::clone(&benefactors), Arc::clone(&keys));
        ChunkCache::new(Arc::new(Fetcher::new(manager, benefactors, Arc::new(near), keys)), bytes_max)
    }

    fn has(cache: &ChunkCache, chunk: &ChunkRef) -> bool {
        cache.entries.lock().slots.contains_key(&chunk.id)
    }

    /// Chunks of these lengths, each with a name of its own.
    fn chunks(lengths: impl Iterator<Item = u32>) -> Vec<ChunkRef> {
        let chunk = |(n, length): (u32, u32)| ChunkRef { id: ChunkId::of(&n.to_le_bytes()), length };
        (0..).zip(lengths).map(chunk).collect()
    }

    #[test]
    fn the_cache_keeps_within_its_budget_and_lets_go_of_the_oldest() {
        let cache = cache(10 * (1000 + ENTRY_BYTES));
        let chunks = chunks((0..20).map(|_| 1000));
        for chunk in &chunks {
            assert!(cache.place(*chunk).is_some());
            let held = chunks.iter().filter(|chunk| has(&cache, chunk)).count();
            assert!(held <= 10, "{held}");
        }
        assert!(chunks[10..].iter().all(|chunk| has(&cache, chunk) && cache.place(*chunk).is_none()));
        assert!(!has(&cache, &chunks[9]));
    }

    #[test]
    fn chunks_of_all_sizes_in_any_order_take_no_more_memory_than_the_budget() {
        const BYTES_MAX: usize = 4 << 20;
        let (cache, memory) = (cache(BYTES_MAX), BufferPool::new(1 << 20));
        let lengths = (0..4000u32).map(|n| 1 + n.wrapping_mul(2_654_435_761) % (1 << (n % 21)));
        for chunk in chunks(lengths) {
            let slot = cache.place(chunk).unwrap();
            // As it comes from a benefactor: with what it is kept in, memory for answers is there for the next one.
            let received =
                memory.try_take(chunk.length as usize).expect("the cache holds memory for answers");
            slot.set(received.keep()).unwrap();
            let entries = cache.entries.lock();
            let kept: usize = entries.order.iter().map(|chunk| kept_bytes(chunk.length as usize)).sum();
            assert!(kept <= entries.bytes && entries.bytes <= BYTES_MAX, "{kept} of {}", entries.bytes);
            assert_eq!(entries.order.len(), entries.slots.len());
        }
    }
}
