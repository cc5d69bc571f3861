//! The embedded store: a log in front of a file of records.
//!
//! A commit is one write to the log, in one place of the disk. The records' file, in which a transaction writes some fifteen
//! pages, takes over what the log has once that is full, and when the store is closed; then the log starts anew. An opening takes over
//! what a crash left in the log. So the file's records with the changes of the log are the store, and [`super::log`] knows
//! whether the two belong together.
//!
//! | event | file | log | outcome |
//! |---|---|---|---|
//! | crash in a commit | before | its last entry torn, or whole | the state before or after the commit |
//! | crash while the file takes over | before or after | whole | the state after the last commit |
//! | crash after that | after | before, whole or one opening torn | the same |
//! | either is missing, damaged or of another time | | | an error; neither is written to |
//! | a write was refused | before or after | whole up to the last commit | an error, also for all later commits; an opening reads what is on the disk, not what the system keeps of it |

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;

use super::log::Log;
use super::redb::{RedbFile, RedbSnapshot};
use super::seal::Seal;
use super::{Batch, Snapshot, Store, StoreError, Stored, Visitor, up_to};

/// Most changes that wait in the log: the records write some 8 KiB for each, where it lies far from the others, and that fits into
/// the reserve for full disks.
const WAITING_MAX: usize = 1536;

/// A store in two files: records, and the log of the changes that they lack.
pub struct EmbeddedStore {
    records: RedbFile,
    log: Log,
    /// What the log has and the records lack, by keys: the last change of each.
    waiting: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// A write was refused: only reading anew tells what is there.
    failed: bool,
}

impl EmbeddedStore {
    /// Makes a store at `path`, where none is, with its log beside it under the same name with the extension `log`.
    ///
    /// # Errors
    /// The disk refuses, or there is a file.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        if path.exists() {
            return Err(StoreError::new(
                format!("making the store {}", path.display()),
                "there is a file already",
            ));
        }
        // Only with the file is it a store: a log alone is what a crash left in here.
        let log = Log::create(&path.with_extension("log"), Seal::default())?;
        let records = RedbFile::create(path)?;
        Ok(Self { records, log, waiting: BTreeMap::new(), failed: false })
    }

    /// Opens the store at `path`, looks at every page of it, and takes over what the log has.
    ///
    /// # Errors
    /// There is none, it is damaged, or it is in use by another process.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let records = RedbFile::open(path)?;
        let opened = Log::open(&path.with_extension("log"), records.seal());
        let (log, batches) = opened.inspect_err(|_| records.condemn())?;
        let mut store = Self { records, log, waiting: BTreeMap::new(), failed: false };
        batches.into_iter().for_each(|batch| store.wait(batch));
        store.take_over()?;
        Ok(store)
    }

    fn wait(&mut self, batch: Batch) {
        self.waiting.extend(batch.changes);
    }

    /// The records take over what the log has, and the log starts anew.
    fn take_over(&mut self) -> Result<(), StoreError> {
        self.failed = true;
        if self.log.sequence() != self.records.seal().sequence {
            let batch = Batch { changes: std::mem::take(&mut self.waiting).into_iter().collect() };
            self.records.commit(&batch, self.log.sequence())?;
        }
        self.log.start_anew(self.records.seal())?;
        self.failed = false;
        Ok(())
    }

    fn write(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let keys = self.waiting.len() + batch.changes().len();
        if !self.log.has_room(batch) || keys > WAITING_MAX {
            self.take_over()?;
        }
        self.failed = true;
        self.log.append(batch)?;
        self.failed = false;
        self.wait(batch.clone());
        Ok(())
    }
}

impl Store for EmbeddedStore {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        let mut waiting = self.waiting.iter().peekable();
        self.records.load(&mut |key, record| {
            while let Some((new, record)) = waiting.next_if(|(new, _)| new.as_slice() < key) {
                record.as_ref().map_or(Ok(()), |record| visit(new, record))?;
            }
            match waiting.next_if(|(new, _)| new.as_slice() == key) {
                Some((_, record)) => record.as_ref().map_or(Ok(()), |record| visit(key, record)),
                None => visit(key, record),
            }
        })?;
        waiting.try_for_each(|(key, record)| record.as_ref().map_or(Ok(()), |record| visit(key, record)))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::new("writing the store", "an earlier write failed"));
        }
        if batch.is_empty() { Ok(()) } else { self.write(batch) }
    }

    fn sequence(&self) -> u64 {
        self.log.sequence()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        let (records, waiting) = (self.records.snapshot()?, self.waiting.clone());
        Ok(Box::new(EmbeddedSnapshot { records, waiting, sequence: self.sequence() }))
    }
}

/// The records' file at one moment, and what they lacked then.
struct EmbeddedSnapshot {
    records: RedbSnapshot,
    waiting: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    sequence: u64,
}

impl Snapshot for EmbeddedSnapshot {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn read(&self, after: &[u8], bytes: usize) -> Result<Vec<Stored>, StoreError> {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let mut waiting = self.waiting.range::<[u8], _>(behind).peekable();
        let mut records = self.records.behind(after)?.peekable();
        up_to(
            bytes,
            std::iter::from_fn(|| {
                loop {
                    let stored = match records.peek() {
                        Some(Ok((key, _))) => Some(key),
                        Some(Err(_)) => return records.next(),
                        None => None,
                    };
                    match waiting.next_if(|(new, _)| stored.is_none_or(|key| *new <= key)) {
                        None => return records.next(),
                        Some((new, record)) => {
                            // The change of a record takes its place.
                            if stored == Some(new) {
                                records.next();
                            }
                            if let Some(record) = record {
                                return Some(Ok((new.clone(), record.clone())));
                            }
                        }
                    }
                }
            }),
        )
    }
}

impl Drop for EmbeddedStore {
    /// Damage to the end of a log can't be told from a torn entry, so a store that is closed keeps nothing there.
    fn drop(&mut self) {
        if !self.failed
            && !self.waiting.is_empty()
            && let Err(error) = self.take_over()
        {
            tracing::warn!(%error, "the store is closed with changes in its log alone");
        }
    }
}
