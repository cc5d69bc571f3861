//! A store in memory: for tests of what stands on a store, and as the reference that others are compared with.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Batch, Store, StoreError, Visitor};

/// Records in a map. Clones share it, so that a "restart" can open what a predecessor left.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    records: Arc<Mutex<BTreeMap<Vec<u8>, Vec<u8>>>>,
}

impl Store for MemoryStore {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        self.records.lock().iter().try_for_each(|(key, record)| visit(key, record))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let mut records = self.records.lock();
        for (key, record) in batch.changes() {
            match record {
                Some(record) => records.insert(key.clone(), record.clone()),
                None => records.remove(key),
            };
        }
        Ok(())
    }
}
