//! The log in front of the records: each commit is one entry, written in one place and made durable by one sync.
//!
//! The file has its length and has been written before, so that a sync writes an entry and nothing of the file system. A
//! round begins with an opening, which holds the seal of the records at that time, and its entries follow one another from the same
//! place on. Checks are keyed by the seal: no other store, and no other state of this one, takes an entry for its own.
//! Openings take turns in two places, so that one is whole whenever the other is written. Everything begins at a block of its
//! own: what is durable isn't written again. `docs/FORMAT.md` has the layout.
//!
//! | newest opening | entries of its round | outcome |
//! |---|---|---|
//! | of the records | follow on from them; the last may be torn, then it was never promised | those are replayed |
//! | of older records | lead up to the records, no further | none: the records took them over |
//! | of older records | end before, or go on beyond the records | an error: a newer or an older copy of the records |
//! | of newer records, or of others | | an error: an older or another copy of the records |
//! | either | an entry is damaged, later ones are there | an error |

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stdchk_net::own::{self, Access};

use super::file::read_from_disk;
use super::seal::{CHECK_BYTES, Check, Checker, SEAL_BYTES, Seal};
use super::{Batch, StoreError};

/// What is written at once by a disk, bytes; each opening and each entry begins at such a block.
const BLOCK_BYTES: usize = 4096;
/// Blocks for openings, at the beginning of the file.
const OPENINGS: usize = 2;
/// Length of the file, bytes: some 500 small commits. When it is full the records take over its changes, for which all commits wait: a
/// few hundredths of a second. They fit into the reserve for full disks.
const LOG_BYTES: usize = 2 << 20;
/// Domain of the checks, so that they are those of nothing else.
const CONTEXT: &str = "stdchk manager's store, log, layout 1";
/// What checks of openings are keyed by.
const OPENING: &[u8] = b"opening";
/// Bytes of an entry before its changes: two checks, sequence and length.
const HEAD_BYTES: usize = 2 * CHECK_BYTES + 16;

/// An open log.
pub struct Log {
    file: File,
    path: PathBuf,
    checker: Checker,
    /// The records at the beginning of the round.
    round: Seal,
    /// Block of the next opening.
    opening: usize,
    /// Where the next entry goes, bytes from the beginning.
    end: usize,
    /// Number of the last commit.
    sequence: u64,
}

/// What stands before the changes of an entry.
struct Head {
    sequence: u64,
    length: usize,
    check: Check,
}

impl Log {
    /// Makes the log of new records that add up to `records`.
    pub fn create(path: &Path, records: Seal) -> Result<Self, StoreError> {
        let made = || {
            let file = own::file(path, Access::Make)?;
            file.set_len(0)?;
            // Block by block: what is written at once, Linux keeps as one large page, and looks through all of it at each sync.
            for at in (0..LOG_BYTES).step_by(BLOCK_BYTES) {
                file.write_all_at(&[0; BLOCK_BYTES], at as u64)?;
            }
            file.sync_all()?;
            path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())?;
            Ok(file)
        };
        let file = made().map_err(|error: io::Error| refused(path, &error))?;
        let mut log = Self::of(file, path);
        log.sequence = records.sequence;
        log.start_anew(records)?;
        Ok(log)
    }

    fn of(file: File, path: &Path) -> Self {
        let (path, checker, round) = (path.to_owned(), Checker::new(CONTEXT), Seal::default());
        Self { file, path, checker, round, opening: 0, end: 0, sequence: 0 }
    }

    /// Opens the log beside records that add up to `records`; what they lack, in order. Nothing may be appended before the records
    /// have that and the log was started anew.
    pub fn open(path: &Path, records: Seal) -> Result<(Self, Vec<Batch>), StoreError> {
        let file = match own::file(path, Access::Write) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(StoreError::damaged(path, "it is missing"));
            }
            Err(error) => return Err(refused(path, &error)),
        };
        let bytes = read_from_disk(&file)
            .and_then(|()| std::fs::read(path))
            .map_err(|error| refused(path, &error))?;
        if bytes.len() < LOG_BYTES {
            return Err(StoreError::damaged(path, "it is cut short"));
        }
        let mut log = Self::of(file, path);
        let batches = log.replay(&bytes, records).map_err(|what| StoreError::damaged(path, what))?;
        Ok((log, batches))
    }

    fn replay(&mut self, bytes: &[u8], records: Seal) -> Result<Vec<Batch>, String> {
        let openings = (0..OPENINGS).filter_map(|block| Some((self.opening_at(bytes, block)?, block)));
        let (round, block) = openings
            .max_by_key(|(round, _)| round.sequence)
            .ok_or("it has no beginning that is whole".to_owned())?;
        self.opening = (block + 1) % OPENINGS;
        self.round = round;
        let batches = self.entries(bytes)?;
        self.sequence = round.sequence + batches.len() as u64;
        if round == records {
            return Ok(batches);
        }
        if round.sequence < records.sequence && self.sequence == records.sequence {
            return Ok(Vec::new());
        }
        Err(format!(
            "it goes from commit {} to commit {}, and the records beside it are those of commit {}{}: they are of different times, or of different pools",
            round.sequence,
            self.sequence,
            records.sequence,
            if round.sequence == records.sequence { ", but others" } else { "" },
        ))
    }

    fn opening_at(&self, bytes: &[u8], block: usize) -> Option<Seal> {
        let stored = bytes.get(block * BLOCK_BYTES..)?.get(..CHECK_BYTES + SEAL_BYTES)?;
        Seal::decode(self.checker.open(OPENING, stored)?.0)
    }

    /// The changes of this round's entries. Damage that isn't at the end is an error.
    fn entries(&self, bytes: &[u8]) -> Result<Vec<Batch>, String> {
        let mut batches = Vec::new();
        let mut at = OPENINGS * BLOCK_BYTES;
        while let Some((head, changes)) = self.entry_at(bytes, at) {
            if head.sequence != self.round.sequence + 1 + batches.len() as u64 {
                return Err(format!("commit {} stands in the place of another", head.sequence));
            }
            batches.push(
                Batch::decode(changes).ok_or_else(|| format!("commit {} makes no sense", head.sequence))?,
            );
            at += blocks(HEAD_BYTES + head.length);
        }
        // Each entry was durable before the next was written: nothing follows one that is torn.
        let behind = (at..bytes.len()).step_by(BLOCK_BYTES).skip(1);
        match behind.filter_map(|at| self.head_at(bytes, at)).next() {
            None => Ok(batches),
            Some(later) => Err(format!(
                "commit {} is damaged, and commit {} is there",
                self.round.sequence + 1 + batches.len() as u64,
                later.sequence
            )),
        }
    }

    fn entry_at<'b>(&self, bytes: &'b [u8], at: usize) -> Option<(Head, &'b [u8])> {
        let head = self.head_at(bytes, at)?;
        let changes = bytes.get(at + HEAD_BYTES..)?.get(..head.length)?;
        (self.checker.check(&self.round.encode(), changes) == head.check).then_some((head, changes))
    }

    fn head_at(&self, bytes: &[u8], at: usize) -> Option<Head> {
        let stored = bytes.get(at..)?.get(..HEAD_BYTES)?;
        let (head, _) = self.checker.open(&self.round.encode(), stored)?;
        let (check, head) = head.split_first_chunk::<CHECK_BYTES>()?;
        let (sequence, length) = head.split_first_chunk::<8>()?;
        let length = u64::from_le_bytes(length.try_into().ok()?);
        Some(Head {
            sequence: u64::from_le_bytes(*sequence),
            length: usize::try_from(length).ok()?,
            check: Check::from_le_bytes(*check),
        })
    }

    /// Number of the last commit.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether the changes of `batch` have room before the log starts anew. A batch that is larger than a log has room in an empty one:
    /// the file grows for it.
    pub fn has_room(&self, batch: &Batch) -> bool {
        let is_empty = self.end == OPENINGS * BLOCK_BYTES;
        is_empty || self.end + blocks(HEAD_BYTES + batch.encoded_bytes()) <= LOG_BYTES
    }

    /// Makes `batch` durable as the next commit. After an error the log must not be used further.
    pub fn append(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let entry = self.entry(batch);
        self.write(&entry, self.end)?;
        self.end += entry.len();
        self.sequence += 1;
        Ok(())
    }

    /// Starts a new round: the records add up to `records` and have all that was logged. After an error the log must not be used
    /// further.
    pub fn start_anew(&mut self, records: Seal) -> Result<(), StoreError> {
        assert_eq!(records.sequence, self.sequence, "the records have what was logged");
        let (mut opening, _) = self.checker.close(OPENING, &records.encode());
        opening.resize(BLOCK_BYTES, 0);
        self.write(&opening, self.opening * BLOCK_BYTES)?;
        // Only now: before, the entries were the proof that the records are no newer copy.
        let length = self.file.metadata().map(|file| file.len());
        if length.map_err(|error| refused(&self.path, &error))? > LOG_BYTES as u64 {
            self.file.set_len(LOG_BYTES as u64).map_err(|error| refused(&self.path, &error))?;
        }
        self.opening = (self.opening + 1) % OPENINGS;
        (self.round, self.end) = (records, OPENINGS * BLOCK_BYTES);
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: usize) -> Result<(), StoreError> {
        let written = self.file.write_all_at(bytes, at as u64).and_then(|()| self.file.sync_data());
        written.map_err(|error| refused(&self.path, &error))
    }

    fn entry(&self, batch: &Batch) -> Vec<u8> {
        let (round, changes) = (self.round.encode(), batch.encode());
        let check = self.checker.check(&round, &changes);
        let (sequence, length) = (self.sequence + 1, changes.len() as u64);
        let head = [&check.to_le_bytes()[..], &sequence.to_le_bytes(), &length.to_le_bytes()].concat();
        let (mut entry, _) = self.checker.close(&round, &head);
        entry.extend(changes);
        entry.resize(blocks(entry.len()), 0);
        entry
    }
}

fn refused(path: &Path, error: &io::Error) -> StoreError {
    StoreError::new(format!("using the store's log {}", path.display()), error)
}

fn blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}
