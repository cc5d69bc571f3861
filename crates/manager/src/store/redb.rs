//! The embedded store: one redb file, one table, one transaction per batch.
//!
//! redb writes copy-on-write pages and makes a commit count by one checksummed root behind an fsync, so a crash at any
//! point leaves the state before or after a batch.

use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Batch, Store, StoreError, Visitor};

const RECORDS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("records");
/// Memory for the engine's own page cache, bytes: records are read once, at the start.
const CACHE_BYTES: usize = 32 << 20;

/// A store in one file.
pub struct RedbStore {
    database: Database,
    path: PathBuf,
}

impl RedbStore {
    /// Opens the store in the file `path`, or makes it.
    ///
    /// # Errors
    /// The file is no store, is damaged, or is in use by another process.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let refuse = |cause: String| StoreError::new(format!("opening the store {}", path.display()), cause);
        let database = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(path)
            .map_err(|error| refuse(error.to_string()))?;
        let store = Self { database, path: path.to_owned() };
        store.make_table().map_err(|error| refuse(error.to_string()))?;
        Ok(store)
    }

    fn make_table(&self) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(RECORDS)?;
        transaction.commit()?;
        Ok(())
    }

    fn apply(&self, batch: &Batch) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        let mut records = transaction.open_table(RECORDS)?;
        for (key, record) in batch.changes() {
            match record {
                Some(record) => records.insert(key.as_slice(), record.as_slice())?,
                None => records.remove(key.as_slice())?,
            };
        }
        drop(records);
        transaction.commit()?;
        Ok(())
    }
}

impl Store for RedbStore {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        let broken =
            |cause: redb::Error| StoreError::new(format!("reading the store {}", self.path.display()), cause);
        let transaction = self.database.begin_read().map_err(|error| broken(error.into()))?;
        let records = transaction.open_table(RECORDS).map_err(|error| broken(error.into()))?;
        for entry in records.iter().map_err(|error| broken(error.into()))? {
            let (key, record) = entry.map_err(|error| broken(error.into()))?;
            visit(key.value(), record.value())?;
        }
        Ok(())
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.apply(batch)
            .map_err(|cause| StoreError::new(format!("writing the store {}", self.path.display()), cause))
    }
}
