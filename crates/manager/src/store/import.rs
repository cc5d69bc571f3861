//! A store that is made of what another one held: of a backup, or of what benefactors keep of it.

use std::path::{Path, PathBuf};

use super::log::Log;
use super::redb::RedbFile;
use super::{Batch, StoreError};

/// A store in the making. Without [`Import::finish`] it has no log, and is none.
pub struct Import {
    records: RedbFile,
    path: PathBuf,
}

impl Import {
    /// Begins a store at `path`, where none is.
    ///
    /// # Errors
    /// The disk refuses, or there is a file.
    pub fn begin(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { records: RedbFile::create(path)?, path: path.to_owned() })
    }

    /// Adds, replaces and removes records.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn put(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if batch.is_empty() { Ok(()) } else { self.records.fill(batch) }
    }

    /// Makes a store of it whose last commit has the number `sequence`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn finish(mut self, sequence: u64) -> Result<(), StoreError> {
        if sequence > 0 {
            self.records.commit(&Batch::default(), sequence)?;
        }
        Log::create(&self.path.with_extension("log"), self.records.seal())?;
        Ok(())
    }
}
