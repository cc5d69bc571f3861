//! The manager's store: a map from short keys to short records that survives crashes.
//!
//! The trait is tiny on purpose, so that several engines can stand behind it ([`crate::etcd`] is another one): read everything once at the
//! start, then commit batches, each atomically and durably. Everything else lives in memory. Keys and records are
//! described in `docs/FORMAT.md`.

mod embedded;
mod engine_panic;
mod file;
mod import;
mod log;
mod memory;
mod redb;
mod reserve;
mod seal;

use std::fmt;
use std::path::Path;

use stdchk_model::message::manager::{EtcdInfo, ManagerInfo};

pub use self::embedded::EmbeddedStore;
pub use self::import::Import;
pub use self::memory::MemoryStore;
pub use self::reserve::{Reserve, Reserved};
pub(crate) use self::seal::Checker;

/// What a record is about; the first byte of its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Table {
    /// Facts about the pool as a whole.
    Pool = 0,
    /// Inodes by number.
    Inode = 1,
    /// Directory entries by directory and name.
    Entry = 2,
    /// Versions by file and number.
    Version = 3,
    /// Policies by directory.
    Policy = 4,
    /// Benefactors by number.
    Benefactor = 5,
    /// Results of recent changes by the order in which they came.
    Operation = 6,
    /// Starts of the manager by their identity.
    Start = 7,
    /// Names of the chunks of maps that lie in the pool, by the identity of the map.
    Names = 8,
    /// What is noted of the checkpoint sets of folders, by directory.
    Noted = 9,
    /// Members that were shut out, by their identity.
    ShutOut = 10,
    /// When hosts were there: benefactors, and machines on which clients write.
    Past = 11,
    /// Backups that are registered, by the commits that they show.
    Backup = 12,
    /// Versions that are kept for files in spools, by file and session.
    Base = 13,
    /// Hosts that have joined, by their identity as members.
    Member = 14,
    /// Tokens that were used, by their identity; and from when on tokens count.
    Token = 15,
}

impl Table {
    /// The table of a key's first byte.
    pub fn of(byte: u8) -> Option<Self> {
        const ALL: [Table; 16] = [
            Table::Pool,
            Table::Inode,
            Table::Entry,
            Table::Version,
            Table::Policy,
            Table::Benefactor,
            Table::Operation,
            Table::Start,
            Table::Names,
            Table::Noted,
            Table::ShutOut,
            Table::Past,
            Table::Backup,
            Table::Base,
            Table::Member,
            Table::Token,
        ];
        ALL.get(usize::from(byte)).copied()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Changes that become durable together or not at all. A later change of a key wins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    changes: Vec<ChangeOf>,
}

impl Batch {
    /// Sets a record.
    pub fn put(&mut self, table: Table, key: &[u8], record: Vec<u8>) {
        self.changes.push((full_key(table, key), Some(record)));
    }

    /// Removes a record, if it is there.
    pub fn remove(&mut self, table: Table, key: &[u8]) {
        self.changes.push((full_key(table, key), None));
    }

    /// These changes.
    pub(crate) fn of(changes: impl IntoIterator<Item = ChangeOf>) -> Self {
        Self { changes: changes.into_iter().collect() }
    }

    /// Length of [`Batch::encode`], bytes.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let changes = self.changes.iter();
        changes.map(|(key, record)| 16 + key.len() + record.as_ref().map_or(0, Vec::len)).sum()
    }

    /// Each change as the length of its key, 1 plus the length of its record or 0 for a removal, key and record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_bytes());
        self.changes.iter().for_each(|(key, record)| encode_change(key, record.as_deref(), &mut bytes));
        bytes
    }

    /// What was encoded; `None`: it is something else.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (batch, rest) = Self::decode_front(bytes);
        rest.is_empty().then_some(batch)
    }

    /// The changes that are whole at the beginning of `bytes`, and what is left.
    pub(crate) fn decode_front(mut bytes: &[u8]) -> (Self, &[u8]) {
        let mut batch = Self::default();
        while let Some((change, rest)) = take_change(bytes) {
            batch.changes.push(change);
            bytes = rest;
        }
        (batch, bytes)
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// The changes in order: key with its table byte, and the record or `None` for a removal.
    pub fn changes(&self) -> &[ChangeOf] {
        &self.changes
    }
}

/// A key with its table byte, and the record or `None` for a removal.
pub type ChangeOf = (Vec<u8>, Option<Vec<u8>>);

pub(crate) fn encode_change(key: &[u8], record: Option<&[u8]>, bytes: &mut Vec<u8>) {
    let length = record.map_or(0, |record| 1 + record.len() as u64);
    bytes.extend((key.len() as u64).to_le_bytes());
    bytes.extend(length.to_le_bytes());
    bytes.extend(key);
    bytes.extend(record.unwrap_or_default());
}

fn take_change(bytes: &[u8]) -> Option<(ChangeOf, &[u8])> {
    let (key, rest) = bytes.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (key, length) = (u64::from_le_bytes(*key), u64::from_le_bytes(*length));
    let (key, rest) = take(rest, key)?;
    match length.checked_sub(1) {
        None => Some(((key, None), rest)),
        Some(length) => take(rest, length).map(|(record, rest)| ((key, Some(record)), rest)),
    }
}

fn take(bytes: &[u8], count: u64) -> Option<(Vec<u8>, &[u8])> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(count).ok()?)?;
    Some((taken.to_vec(), rest))
}

fn full_key(table: Table, key: &[u8]) -> Vec<u8> {
    let mut full = Vec::with_capacity(key.len() + 1);
    full.push(table as u8);
    full.extend_from_slice(key);
    full
}

/// Why a store can't be used (any more).
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Something failed.
    #[error(
        "{doing} failed: {cause}; see to the disk (room, permissions, health), then start the manager again"
    )]
    Failed {
        /// What was being done, with the object.
        doing: String,
        /// What the engine said.
        cause: String,
    },
    /// This manager leads no more, and nothing of the commit counts that etcd didn't have by then.
    #[error("this manager leads no more: its lease is over, or another one leads")]
    Deposed,
    /// The etcd in which it is takes nothing more: nothing of what was to be written counts.
    #[error("{doing} failed: {cause}")]
    EtcdFull {
        /// The work that failed.
        doing: String,
        /// The answer of etcd, and the next step.
        cause: String,
    },
    /// The store isn't what was written to it.
    #[error(
        "the manager's store {path} is damaged: {what}; put the manager's folder back from a backup while the pool is \
         down, as docs/OPERATIONS.md describes (files stored since that backup are lost), and look after the disk"
    )]
    Damaged {
        /// The store.
        path: String,
        /// What was found.
        what: String,
    },
}

impl StoreError {
    /// An error while `doing` something.
    pub fn new(doing: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::Failed { doing: doing.into(), cause: cause.to_string() }
    }

    /// The store at `path` isn't what was written to it.
    pub fn damaged(path: &Path, what: impl fmt::Display) -> Self {
        Self::Damaged { path: path.display().to_string(), what: what.to_string() }
    }
}

/// A key in words: its table, and the rest as hexadecimal digits.
pub(crate) fn told(key: &[u8]) -> String {
    let Some((table, rest)) = key.split_first() else { return "an empty key".to_owned() };
    let table = Table::of(*table).map_or_else(|| format!("table {table}"), |table| table.to_string());
    let digits: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{table} {digits}")
}

/// The first of these records, until they take `bytes`.
fn up_to(
    bytes: usize,
    records: impl Iterator<Item = Result<Stored, StoreError>>,
) -> Result<Vec<Stored>, StoreError> {
    let (mut taken, mut found) = (0, Vec::new());
    for record in records {
        let (key, record) = record?;
        taken += key.len() + record.len();
        found.push((key, record));
        if taken >= bytes {
            break;
        }
    }
    Ok(found)
}

/// Receives one record: its key, table byte included, and its value.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), StoreError> + 'a;

/// A record: its key, table byte included, and its value.
pub type Stored = (Vec<u8>, Vec<u8>);

/// All records of a store at one moment, whatever is committed later.
pub trait Snapshot: Send {
    /// Number of the last commit that is in it.
    fn sequence(&self) -> u64;

    /// The records behind the key `after`, in order of their keys, until they take `bytes`; none: there are no more.
    fn read(&self, after: &[u8], bytes: usize) -> Result<Vec<Stored>, StoreError>;
}

/// A crash-safe map of records. After an error of `commit` the store must not be used further: what is on the disk is
/// then either the state before or after the batch, and only reading it anew tells which.
pub trait Store: Send {
    /// Hands every record to `visit`, in order of their keys.
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError>;

    /// Makes the batch durable, all of it or nothing. A batch without changes is no commit.
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError>;

    /// Number of the last commit, counted from 1; 0: there was none.
    fn sequence(&self) -> u64;

    /// What the store holds now, to be read while it goes on.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError>;

    /// Whether so many bytes more fit, and then still what makes room again. Without, only that should be committed.
    fn has_room(&self, _bytes: u64) -> bool {
        true
    }

    /// Whether what was read may be told to others: nobody else can have changed the store since.
    fn is_held(&self) -> bool {
        true
    }

    /// Which time of leading it is, if managers share the store.
    fn leadership(&self) -> Option<u64> {
        None
    }

    /// The managers that share the store: the one that leads, then those that stand by.
    fn managers(&self) -> Vec<ManagerInfo> {
        Vec::new()
    }

    /// The etcd in which it is, and how that is.
    fn etcd(&self) -> Option<EtcdInfo> {
        None
    }
}

impl Store for Box<dyn Store> {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        (**self).load(visit)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        (**self).commit(batch)
    }

    fn sequence(&self) -> u64 {
        (**self).sequence()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        (**self).snapshot()
    }

    fn has_room(&self, bytes: u64) -> bool {
        (**self).has_room(bytes)
    }

    fn is_held(&self) -> bool {
        (**self).is_held()
    }

    fn leadership(&self) -> Option<u64> {
        (**self).leadership()
    }

    fn managers(&self) -> Vec<ManagerInfo> {
        (**self).managers()
    }

    fn etcd(&self) -> Option<EtcdInfo> {
        (**self).etcd()
    }
}
