//! Backups of the store while the manager runs: a copy of one moment, handed out in parts, and made a store again elsewhere.
//!
//! The copy costs the manager a moment: the records' file keeps the pages of that moment for whoever reads them, and the changes that it
//! lacks are few. Each part is read between two requests. Whoever makes a store of the parts reads that as a start of the manager does.
//!
//! | event | outcome |
//! |---|---|
//! | another copy is taken | the one before is let go: its reader is told; it is registered no longer unless it was read to its end |
//! | nobody reads on for a minute | as if another one were taken |
//! | the manager is started again | its reader is told, and gives up what is registered |

use std::path::Path;

use stdchk_model::message::manager::{ManagerReply, Moment};
use stdchk_model::{ErrorCode, Failure, MomentKey, PoolId, cbor};

use crate::core::{Core, Counts, Now, Setting, TOKENS_FROM_KEY, Timing, second, tokens_from};
use crate::owner::wall_clock;
use crate::record::{GIVEN_UP_INOS, POOL_KEY, PoolRecord, decode};
use crate::store::{Batch, EmbeddedStore, Import, Snapshot, Store, StoreError, Table, encode_change};

/// Length of a part, bytes: reading it takes some milliseconds.
const PART_BYTES: usize = 1 << 20;
/// Changes are put into a new store when they take so many bytes.
const PUT_BYTES: usize = 8 << 20;
/// A copy that nobody reads for so long is let go, milliseconds.
const UNREAD_MS: u64 = 60_000;
/// Time in which a copy must be read, milliseconds: as long as it is there, the store can't use old pages again.
const READ_MAX_MS: u64 = 3_600_000;

/// A copy that is being read.
pub(crate) struct Reading {
    snapshot: Box<dyn Snapshot>,
    /// The last key that was read.
    after: Vec<u8>,
    /// Bytes that were read and not handed out yet.
    ahead: Vec<u8>,
    read_all: bool,
    /// Part that comes next.
    next: u32,
    /// When it was taken.
    begun_ms: u64,
    /// The part before it.
    last: Vec<u8>,
    used_ms: u64,
}

impl Reading {
    pub(crate) fn new(snapshot: Box<dyn Snapshot>, now_ms: u64) -> Self {
        let (after, ahead, last) = (Vec::new(), Vec::new(), Vec::new());
        Self { snapshot, after, ahead, read_all: false, next: 0, last, begun_ms: now_ms, used_ms: now_ms }
    }

    /// Whether nobody has read it for long, or somebody reads it without end.
    pub(crate) fn is_left(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.used_ms) > UNREAD_MS || now_ms.saturating_sub(self.begun_ms) > READ_MAX_MS
    }

    /// Whether it can hand out this part.
    pub(crate) fn gives(&self, part: u32) -> bool {
        part == self.next || part.checked_add(1) == Some(self.next)
    }

    /// Number of the last commit in it.
    pub(crate) fn sequence(&self) -> u64 {
        self.snapshot.sequence()
    }

    /// A part: the next one, or the one that was read last.
    pub(crate) fn part(&mut self, part: u32, now_ms: u64) -> Result<(Vec<u8>, bool), Failure> {
        self.used_ms = now_ms;
        if part == self.next {
            self.read_ahead().map_err(unreadable)?;
            let rest = self.ahead.split_off(self.ahead.len().min(PART_BYTES));
            self.last = std::mem::replace(&mut self.ahead, rest);
            self.next += 1;
        } else if part + 1 != self.next {
            let message = format!("part {part} of a backup was asked for, and part {} comes next", self.next);
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        Ok((self.last.clone(), self.read_all && self.ahead.is_empty()))
    }

    fn read_ahead(&mut self) -> Result<(), StoreError> {
        // One byte more than a part shows whether there is another one.
        while !self.read_all && self.ahead.len() <= PART_BYTES {
            let records = self.snapshot.read(&self.after, PART_BYTES)?;
            match records.last() {
                Some((key, _)) => self.after.clone_from(key),
                None => self.read_all = true,
            }
            records.iter().for_each(|(key, record)| encode_change(key, Some(record), &mut self.ahead));
        }
        Ok(())
    }
}

pub(crate) fn unreadable(error: StoreError) -> Failure {
    Failure::new(ErrorCode::Damaged, error.to_string())
}

/// The copy that an operator reads.
#[derive(Default)]
pub(crate) struct Backups {
    count: u64,
    reading: Option<Reading>,
    /// The commit by which it is registered, until it was read to its end.
    unread: Option<u64>,
}

impl Backups {
    /// Takes a copy, which shows the commit `registered` if it is registered; with the answer the registered one before it that was not read to
    /// its end.
    pub(crate) fn begin(
        &mut self,
        store: &dyn Store,
        start: u64,
        registered: Option<u64>,
        now_ms: u64,
    ) -> Result<(ManagerReply, Option<u64>), Failure> {
        let reading = Reading::new(store.snapshot().map_err(unreadable)?, now_ms);
        let moment = Moment { start, commit: reading.sequence() };
        assert!(registered.is_none_or(|commit| commit == moment.commit), "a backup knows of itself");
        self.count += 1;
        self.reading = Some(reading);
        let left = std::mem::replace(&mut self.unread, registered);
        Ok((ManagerReply::Backup { id: self.count, moment }, left))
    }

    pub(crate) fn read(&mut self, id: u64, part: u32, now_ms: u64) -> Result<ManagerReply, Failure> {
        let reading = self.reading.as_mut().filter(|_| id == self.count).ok_or_else(|| {
            let message = "the copy of the store was let go: another one was taken since, the manager was started again, or \
                           nobody read on for a minute";
            Failure::new(ErrorCode::Stale, message).then("begin the backup anew")
        })?;
        let (bytes, last) = reading.part(part, now_ms)?;
        if last {
            self.unread = None;
        }
        Ok(ManagerReply::BackupPart { bytes, last })
    }

    /// Lets go of a copy that nobody reads; the commit by which it is registered, unless it was read to its end.
    pub(crate) fn tick(&mut self, now_ms: u64) -> Option<u64> {
        self.reading.take_if(|reading| reading.is_left(now_ms))?;
        self.unread.take()
    }
}

/// A store that is made of the parts of a backup.
pub struct NewStore {
    import: Import,
    /// The end of the last part that is no whole change.
    rest: Vec<u8>,
    /// The pool's record, as it came last.
    pool: Option<Vec<u8>>,
}

impl NewStore {
    /// Begins a store in the manager's folder `directory`, which has none.
    ///
    /// # Errors
    /// The disk refuses, or there is one.
    pub fn begin(directory: &Path) -> Result<Self, StoreError> {
        Ok(Self { import: Import::begin(&directory.join(crate::STORE_FILE))?, rest: Vec::new(), pool: None })
    }

    /// Takes the next bytes of the backup.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.rest.extend(bytes);
        if self.rest.len() >= PUT_BYTES { self.put() } else { Ok(()) }
    }

    fn put(&mut self) -> Result<(), StoreError> {
        let (batch, rest) = Batch::decode_front(&self.rest);
        self.import.put(&batch)?;
        let is_pool = |key: &[u8]| key.split_first() == Some((&(Table::Pool as u8), POOL_KEY));
        for (_, record) in batch.changes().iter().filter(|(key, _)| is_pool(key)) {
            self.pool.clone_from(record);
        }
        self.rest = rest.to_vec();
        Ok(())
    }

    fn leave_out_given_up_inos(&mut self, era: Option<u64>) -> Result<(), StoreError> {
        let Some(bytes) = &self.pool else { return Ok(()) };
        let mut batch = Batch::default();
        batch.put(Table::Pool, POOL_KEY, without_given_up_inos(bytes, era)?);
        // What was used since is not in the copy.
        batch.put(Table::Token, TOKENS_FROM_KEY, tokens_from(second(wall_clock()), 0));
        self.import.put(&batch)
    }

    /// Makes it the store after the commit `sequence`.
    ///
    /// # Errors
    /// The disk refuses, or a part was missing.
    pub fn finish(self, sequence: u64) -> Result<(), StoreError> {
        self.finish_in(sequence, None)
    }

    /// Makes it the store after the commit `sequence`, in a new era with this random identity: whoever has heard of it takes no manager with
    /// another copy for the pool's.
    ///
    /// # Errors
    /// Those of [`Self::finish`].
    pub fn finish_in_new_era(self, sequence: u64, era: u64) -> Result<(), StoreError> {
        self.finish_in(sequence, Some(era))
    }

    fn finish_in(mut self, sequence: u64, era: Option<u64>) -> Result<(), StoreError> {
        self.put()?;
        if !self.rest.is_empty() {
            return Err(StoreError::new("making a store of a backup", "the backup ends within a record"));
        }
        self.leave_out_given_up_inos(era)?;
        self.import.finish(sequence)
    }
}

/// The record of the pool in a copy of the store. It leaves out the numbers of files that were made after the copy: clients that have these
/// open come back with their numbers, and must not find other files there. Not each manager is told that its store is older than what it
/// had acknowledged.
pub(crate) fn without_given_up_inos(pool: &[u8], era: Option<u64>) -> Result<Vec<u8>, StoreError> {
    let mut record: PoolRecord = decode(pool, "the pool")?;
    if let Some(id) = era {
        record.begin_era(id);
    }
    record.ino_ceiling = record.ino_ceiling.saturating_add(GIVEN_UP_INOS);
    Ok(cbor::encode(&record))
}

/// Reads the store in the manager's folder `directory` as a start of the manager does; what it holds.
///
/// # Errors
/// It is no whole store, or that of another pool than `pool`.
pub fn check(directory: &Path, pool: PoolId) -> Result<Counts, StoreError> {
    let path = directory.join(crate::STORE_FILE);
    let store = EmbeddedStore::open(&path)?;
    let (timing, steps) = (Timing::default(), 1);
    let setting = Setting {
        new_pool: pool,
        new_key: MomentKey([0; 32]),
        owner: (0, 0),
        pid: 0,
        start: 0,
        timing,
        steps,
    };
    let core = Core::load(&store, setting, Now::default())?;
    if core.pool() != pool {
        return Err(StoreError::damaged(&path, format!("it is that of pool {}, not of {pool}", core.pool())));
    }
    Ok(core.counts())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Records = BTreeMap<Vec<u8>, Vec<u8>>;

    fn all(store: &dyn Store) -> Records {
        let mut records = Records::new();
        let insert = &mut |key: &[u8], record: &[u8]| {
            records.insert(key.to_vec(), record.to_vec());
            Ok(())
        };
        store.load(insert).unwrap();
        records
    }

    /// Changes of records of all lengths, among them some that are longer than a part; some are removed again.
    fn batch(number: u32) -> Batch {
        let mut batch = Batch::default();
        for record in 0..40 {
            let key = ((number * 7 + record * 13) % 300).to_be_bytes();
            match (number + record) % 5 {
                0 => batch.remove(Table::Inode, &key),
                _ => batch.put(
                    Table::Inode,
                    &key,
                    vec![
                        number.to_le_bytes()[0];
                        if record == 7 { 1_700_000 } else { record as usize * 100 }
                    ],
                ),
            }
        }
        batch
    }

    #[test]
    fn a_store_of_a_backup_holds_what_was_committed_when_it_began() {
        let directory = tempfile::tempdir().unwrap();
        let (own, other) = (directory.path().join("own"), directory.path().join("other"));
        [&own, &other].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let mut store = EmbeddedStore::create(&own.join(crate::STORE_FILE)).unwrap();
        (0..12).for_each(|number| store.commit(&batch(number)).unwrap());
        let (expected, mut backups) = (all(&store), Backups::default());
        let ManagerReply::Backup { id, moment } = backups.begin(&store, 7, Some(12), 0).unwrap().0 else {
            panic!()
        };
        assert_eq!(moment, Moment { start: 7, commit: 12 });
        let (mut new, mut part) = (NewStore::begin(&other).unwrap(), 0);
        loop {
            store.commit(&batch(12 + part)).unwrap();
            let read = backups.read(id, part, 0).unwrap();
            assert_eq!(backups.read(id, part, 0).unwrap(), read, "an answer may be lost");
            let ManagerReply::BackupPart { bytes, last } = read else { panic!() };
            new.take(&bytes).unwrap();
            part += 1;
            if last {
                break;
            }
        }
        assert!(part > 3, "{part}");
        new.finish(moment.commit).unwrap();
        let mut made = EmbeddedStore::open(&other.join(crate::STORE_FILE)).unwrap();
        assert_eq!((all(&made) == expected, made.sequence()), (true, 12));
        made.commit(&batch(1)).unwrap();
        drop(made);
        assert_eq!(EmbeddedStore::open(&other.join(crate::STORE_FILE)).unwrap().sequence(), 13);
    }

    #[test]
    fn a_store_of_a_backup_gives_no_number_of_a_file_that_was_made_after_it() {
        let directory = tempfile::tempdir().unwrap();
        let record = |ino_ceiling| {
            let (layout, pool) = (crate::record::LAYOUT, PoolId([7; 16]));
            PoolRecord {
                layout,
                pool,
                ino_ceiling,
                next_benefactor: 3,
                lived_ms: 4,
                term: 5,
                key: MomentKey([6; 32]),
                managers: Vec::new(),
                eras: Vec::new(),
            }
        };
        let mut new = NewStore::begin(directory.path()).unwrap();
        for ino_ceiling in [1_000, 5_096] {
            let mut batch = batch(1);
            batch.put(Table::Pool, POOL_KEY, cbor::encode(&record(ino_ceiling)));
            new.take(&batch.encode()).unwrap();
        }
        new.finish(1).unwrap();
        let made = all(&EmbeddedStore::open(&directory.path().join(crate::STORE_FILE)).unwrap());
        let pool = &made[&[&[Table::Pool as u8], POOL_KEY].concat()];
        assert_eq!(decode::<PoolRecord>(pool, "the pool").unwrap(), record(5_096 + GIVEN_UP_INOS));
    }

    #[test]
    fn a_copy_is_let_go_when_another_one_is_taken_or_nobody_reads_on() {
        let store = crate::store::MemoryStore::default();
        let mut backups = Backups::default();
        assert_eq!(backups.begin(&store, 7, None, 0).unwrap().1, None);
        backups.begin(&store, 7, None, 0).unwrap();
        assert_eq!(backups.read(1, 0, 0).unwrap_err().code, ErrorCode::Stale);
        backups.tick(UNREAD_MS);
        assert_eq!(backups.read(2, 1, UNREAD_MS).unwrap_err().code, ErrorCode::Invalid);
        assert!(backups.read(2, 0, UNREAD_MS).is_ok());
        backups.tick(2 * UNREAD_MS);
        assert!(backups.read(2, 0, 2 * UNREAD_MS).is_ok());
        backups.tick(3 * UNREAD_MS + 1);
        assert_eq!(backups.read(2, 0, 0).unwrap_err().code, ErrorCode::Stale);
    }

    #[test]
    fn a_backup_that_ends_early_makes_no_store() {
        let directory = tempfile::tempdir().unwrap();
        let mut new = NewStore::begin(directory.path()).unwrap();
        let mut bytes = batch(1).encode();
        bytes.pop();
        new.take(&bytes).unwrap();
        assert!(new.finish(1).is_err());
        assert!(EmbeddedStore::open(&directory.path().join(crate::STORE_FILE)).is_err());
    }
}
