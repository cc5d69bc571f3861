//! A store in memory: for tests of what stands on a store, and as the reference that others are compared with.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Batch, Snapshot, Store, StoreError, Stored, Table, Visitor, up_to};
use crate::backup::without_given_up_inos;
use crate::record::POOL_KEY;

/// Records in a map. Clones share it, so that a "restart" can open what a predecessor left.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Clone, Debug, Default)]
struct Kept {
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    sequence: u64,
}

impl MemoryStore {
    /// A store of its own that holds what this one holds now.
    pub fn copy(&self) -> Self {
        Self { kept: Arc::new(Mutex::new(self.kept.lock().clone())) }
    }

    /// The store that a backup of this one is made into.
    ///
    /// # Errors
    /// The record of the pool can't be read.
    pub fn backup(&self) -> Result<Self, StoreError> {
        let backup = self.copy();
        let key = [&[Table::Pool as u8], POOL_KEY].concat();
        if let Some(pool) = backup.kept.lock().records.get_mut(&key) {
            *pool = without_given_up_inos(pool, None)?;
        }
        Ok(backup)
    }
}

impl Store for MemoryStore {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        self.kept.lock().records.iter().try_for_each(|(key, record)| visit(key, record))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        let Kept { records, sequence } = &mut *self.kept.lock();
        *sequence += 1;
        for (key, record) in batch.changes() {
            match record {
                Some(record) => records.insert(key.clone(), record.clone()),
                None => records.remove(key),
            };
        }
        Ok(())
    }

    fn sequence(&self) -> u64 {
        self.kept.lock().sequence
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        Ok(Box::new(self.kept.lock().clone()))
    }
}

impl Snapshot for Kept {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn read(&self, after: &[u8], bytes: usize) -> Result<Vec<Stored>, StoreError> {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let records = self.records.range::<[u8], _>(behind);
        up_to(bytes, records.map(|(key, record)| Ok((key.clone(), record.clone()))))
    }
}
