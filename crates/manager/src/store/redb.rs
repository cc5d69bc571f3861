//! Where records lie for good: one redb file, one table, one transaction per batch.
//!
//! redb writes copy-on-write pages and makes a commit count by one checksummed root behind an fsync, so a crash at any
//! point leaves the state before or after a batch. It also keeps a checksum of every page in the page above, and looks at
//! them when asked to: that is done at each start, before any page is believed. Above it stand checks of our own
//! ([`super::seal`]), compared whenever a record is read. redb panics on some damaged bytes; such a panic is an error
//! like any other here.
//!
//! | file | event | outcome |
//! |---|---|---|
//! | missing | create | a new store, which has its name once it is whole |
//! | missing, empty, cut short, of something else | open where a store should be | an error |
//! | damaged | open, load, commit | an error; the file is not written to any more |
//! | damaged where nothing is kept | open | what was stored |
//! | torn by a crash during a commit | open | the state before or after that commit |

use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{
    Builder, Database, ReadOnlyTable, ReadableDatabase, ReadableTable, StorageBackend, Table, TableDefinition,
};

use super::engine_panic::without_panic;
use super::file::StoreFile;
use super::seal::{Checker, Seal};
use super::{Batch, StoreError, Stored, Visitor};

const RECORDS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("records");
/// Key of the seal. No table of records has this number, and it is the last one.
const SEAL_KEY: &[u8] = &[u8::MAX];
/// Domain of the checks of records.
const CONTEXT: &str = "stdchk manager's store, checks of records, layout 2";
/// Memory for the engine's own page cache, bytes: records are read once, at the start.
const CACHE_BYTES: usize = 32 << 20;

/// The records in one file.
pub(super) struct RedbFile {
    /// `None` once it was found damaged.
    database: Option<Database>,
    file: StoreFile,
    path: PathBuf,
    checker: Checker,
    seal: Seal,
}

/// Why an operation of the engine failed.
enum Fault {
    /// The disk or the caller refuses.
    Refused(redb::Error),
    /// The file isn't what was written to it.
    Damaged(String),
    /// Who takes the records refuses one.
    Visitor(StoreError),
}

impl<E: Into<redb::Error>> From<E> for Fault {
    fn from(error: E) -> Self {
        use redb::Error as Cause;
        match error.into() {
            Cause::Io(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData) => {
                Self::Damaged(format!("it is cut short ({error})"))
            }
            error @ (Cause::Io(_)
            | Cause::PreviousIo
            | Cause::DatabaseAlreadyOpen
            | Cause::ValueTooLarge(_)) => Self::Refused(error),
            Cause::Corrupted(what) => Self::Damaged(what),
            error => Self::Damaged(error.to_string()),
        }
    }
}

impl RedbFile {
    /// Makes a store at `path`, where none is.
    ///
    /// # Errors
    /// The disk refuses, or there is a file.
    pub(super) fn create(path: &Path) -> Result<Self, StoreError> {
        let doing = || format!("making the store {}", path.display());
        if path.exists() {
            return Err(StoreError::new(doing(), "there is a file already"));
        }
        Self::create_whole(path).map_err(|fault| fault.told(path, doing()))
    }

    /// Gives the store its name once it is whole: what a crash leaves before is no store.
    fn create_whole(path: &Path) -> Result<Self, Fault> {
        let new = path.with_added_extension("new");
        if new.exists() {
            fs::remove_file(&new)?;
        }
        let file = StoreFile::create(&new)?;
        let database = builder().create_with_backend(file.clone())?;
        let (checker, seal) = (Checker::new(CONTEXT), Seal::default());
        let store = Self { database: Some(database), file, path: path.to_owned(), checker, seal };
        let transaction = store.database()?.begin_write()?;
        store.put_seal(&mut transaction.open_table(RECORDS)?, &seal)?;
        transaction.commit()?;
        fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())?;
        Ok(store)
    }

    /// Opens the store at `path`, and looks at every page of it.
    ///
    /// # Errors
    /// There is none, it is damaged, or it is in use by another process.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let doing = || format!("opening the store {}", path.display());
        let file = match StoreFile::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(StoreError::damaged(path, "it is missing"));
            }
            Err(error) => return Err(StoreError::new(doing(), error)),
        };
        match without_panic(|| Self::open_whole(path, &file))
            .unwrap_or_else(|panic| Err(Fault::Damaged(panic)))
        {
            Ok(store) => Ok(store),
            Err(fault) => {
                // What the engine wrote when it opened the file, and when it gave up.
                file.condemn();
                Err(fault.told(path, doing()))
            }
        }
    }

    fn open_whole(path: &Path, file: &StoreFile) -> Result<Self, Fault> {
        if file.len()? == 0 {
            return Err(Fault::Damaged("it is empty".to_owned()));
        }
        let mut builder = builder();
        let repaired = Arc::new(AtomicBool::new(false));
        let repairing = Arc::clone(&repaired);
        builder.set_repair_callback(move |_| repairing.store(true, Ordering::Relaxed));
        let mut database = builder.create_with_backend(file.clone())?;
        // After a crash the engine has just compared all checksums and made the list of free pages anew.
        if !repaired.load(Ordering::Relaxed) {
            let checked = database.check_integrity();
            if !checked.inspect_err(|_| file.condemn())? {
                tracing::warn!(path = %path.display(), "the store's list of free pages was damaged and is made anew");
            }
        }
        let (checker, file) = (Checker::new(CONTEXT), file.clone());
        let mut store =
            Self { database: Some(database), file, path: path.to_owned(), checker, seal: Seal::default() };
        store.seal = store.stored_seal().inspect_err(|_| store.file.condemn())?;
        Ok(store)
    }

    fn stored_seal(&self) -> Result<Seal, Fault> {
        let records = self.database()?.begin_read()?.open_table(RECORDS)?;
        let stored =
            records.get(SEAL_KEY)?.ok_or_else(|| Fault::Damaged("its seal is missing".to_owned()))?;
        let seal = self.checker.open(SEAL_KEY, stored.value()).and_then(|(seal, _)| Seal::decode(seal));
        seal.ok_or_else(|| Fault::Damaged("its seal doesn't match its checksum".to_owned()))
    }

    fn database(&self) -> Result<&Database, Fault> {
        self.database.as_ref().ok_or_else(|| Fault::Damaged("it was found damaged before".to_owned()))
    }

    fn put_seal(&self, records: &mut Table<'_, &[u8], &[u8]>, seal: &Seal) -> Result<(), Fault> {
        let (stored, _) = self.checker.close(SEAL_KEY, &seal.encode());
        records.insert(SEAL_KEY, stored.as_slice())?;
        Ok(())
    }

    fn apply(&self, batch: &Batch, sequence: u64) -> Result<Seal, Fault> {
        let transaction = self.database()?.begin_write()?;
        let mut records = transaction.open_table(RECORDS)?;
        let mut seal = Seal { sequence, ..self.seal };
        for (key, record) in batch.changes() {
            let before = match record {
                Some(record) => {
                    let (stored, check) = self.checker.close(key, record);
                    seal.add(check);
                    records.insert(key.as_slice(), stored.as_slice())?
                }
                None => records.remove(key.as_slice())?,
            };
            if let Some(before) = before {
                seal.subtract(checked(&self.checker, key, before.value())?.1);
            }
        }
        self.put_seal(&mut records, &seal)?;
        drop(records);
        transaction.commit()?;
        Ok(seal)
    }

    /// Lets go of a damaged store without a write; the engine may panic at it once more.
    fn give_up(&mut self, fault: &Fault) {
        if matches!(fault, Fault::Damaged(_)) {
            self.file.condemn();
            let database = self.database.take();
            if let Err(panic) = without_panic(|| drop(database)) {
                tracing::debug!(%panic, "closing a damaged store");
            }
        }
    }

    fn load_all(&self, visit: &mut Visitor<'_>) -> Result<(), Fault> {
        let records = self.database()?.begin_read()?.open_table(RECORDS)?;
        let mut found = Seal { sequence: self.seal.sequence, ..Seal::default() };
        for entry in records.iter()? {
            let (key, stored) = entry?;
            let key = key.value();
            let (record, check) = checked(&self.checker, key, stored.value())?;
            if key != SEAL_KEY {
                found.add(check);
                visit(key, record).map_err(Fault::Visitor)?;
            }
        }
        match found == self.seal {
            true => Ok(()),
            false => Err(Fault::Damaged(format!(
                "it has {} records where {} were stored, or old ones among them",
                found.records, self.seal.records
            ))),
        }
    }
}

/// The records at one moment.
pub(super) struct RedbSnapshot {
    records: ReadOnlyTable<&'static [u8], &'static [u8]>,
    path: PathBuf,
    checker: Checker,
}

impl RedbSnapshot {
    /// The records behind the key `after`, in order of their keys.
    pub(super) fn behind(
        &self,
        after: &[u8],
    ) -> Result<impl Iterator<Item = Result<Stored, StoreError>> + '_, StoreError> {
        let told =
            |fault: Fault| fault.told(&self.path, format!("reading the store {}", self.path.display()));
        let behind = (Bound::Excluded(after), Bound::Excluded(SEAL_KEY));
        let found = without_panic(|| self.records.range::<&[u8]>(behind).map_err(Fault::from));
        let mut entries = found.unwrap_or_else(|panic| Err(Fault::Damaged(panic))).map_err(told)?;
        let mut next = move || -> Option<Result<Stored, Fault>> {
            let entry = entries.next()?;
            Some(entry.map_err(Fault::from).and_then(|(key, stored)| {
                let key = key.value();
                let (record, _) = checked(&self.checker, key, stored.value())?;
                Ok((key.to_vec(), record.to_vec()))
            }))
        };
        Ok(std::iter::from_fn(move || {
            let entry = without_panic(&mut next).unwrap_or_else(|panic| Some(Err(Fault::Damaged(panic))))?;
            Some(entry.map_err(told))
        }))
    }
}

fn checked<'b>(
    checker: &Checker,
    key: &[u8],
    stored: &'b [u8],
) -> Result<(&'b [u8], super::seal::Check), Fault> {
    checker.open(key, stored).ok_or_else(|| {
        Fault::Damaged(format!("the record of {} doesn't match its checksum", super::told(key)))
    })
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

impl Fault {
    fn told(self, path: &Path, doing: String) -> StoreError {
        match self {
            Self::Refused(error) => StoreError::new(doing, error),
            Self::Damaged(what) => StoreError::damaged(path, what),
            Self::Visitor(error) => error,
        }
    }
}

impl RedbFile {
    /// Hands every record to `visit`, in order of their keys.
    pub(super) fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        let loaded =
            without_panic(|| self.load_all(visit)).unwrap_or_else(|panic| Err(Fault::Damaged(panic)));
        if matches!(loaded, Err(Fault::Damaged(_))) {
            self.file.condemn();
        }
        loaded.map_err(|fault| fault.told(&self.path, format!("reading the store {}", self.path.display())))
    }

    /// The records as they are now.
    pub(super) fn snapshot(&self) -> Result<RedbSnapshot, StoreError> {
        let opened = || -> Result<_, Fault> { Ok(self.database()?.begin_read()?.open_table(RECORDS)?) };
        let opened = without_panic(opened).unwrap_or_else(|panic| Err(Fault::Damaged(panic)));
        let (path, checker) = (self.path.clone(), self.checker.clone());
        match opened {
            Ok(records) => Ok(RedbSnapshot { records, path, checker }),
            Err(fault) => Err(fault.told(&path, format!("reading the store {}", path.display()))),
        }
    }

    /// Makes durable a part of records that are no store yet: their number is that of no commit.
    pub(super) fn fill(&mut self, batch: &Batch) -> Result<(), StoreError> {
        assert_eq!(self.seal.sequence, 0, "nothing is filled in behind a commit");
        self.put(batch, 0)
    }

    /// Makes durable what commits up to the one of number `sequence` have changed, all of it or nothing.
    pub(super) fn commit(&mut self, batch: &Batch, sequence: u64) -> Result<(), StoreError> {
        assert!(sequence > self.seal.sequence, "commits go on");
        self.put(batch, sequence)
    }

    fn put(&mut self, batch: &Batch, sequence: u64) -> Result<(), StoreError> {
        match without_panic(|| self.apply(batch, sequence)).unwrap_or_else(|panic| Err(Fault::Damaged(panic)))
        {
            Ok(seal) => {
                self.seal = seal;
                Ok(())
            }
            Err(fault) => {
                self.give_up(&fault);
                Err(fault.told(&self.path, format!("writing the store {}", self.path.display())))
            }
        }
    }

    /// What the records add up to.
    pub(super) fn seal(&self) -> Seal {
        self.seal
    }

    /// What lies beside the file doesn't belong to it: it is not written to any more.
    pub(super) fn condemn(&self) {
        self.file.condemn();
    }
}
