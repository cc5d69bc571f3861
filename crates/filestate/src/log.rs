//! The undo log of a store: one file, appended to by every process of a run, read back by restore and history.
//!
//! It relies on `O_APPEND`: the kernel makes each append of one record whole and gives all records one order, so
//! processes need no lock among themselves. A writer that was killed inside an append leaves a torn record; reading
//! passes over it to the next authentic one. Nothing is lost by that: a change follows its record, so the change of a
//! torn record never happened.

use std::io::{IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::Advice;
use rustix::io::Errno;

use stdchk_model::exact::{part, part_mut, to_usize};

use crate::error::{Error, Result};
use crate::record::{HEAD_BYTES, Head, Inode, Key, MAGIC, Record, TAIL_BYTES, frame_data};

/// How much of the log is read at a time: holds many small records, and the head of any.
const WINDOW_BYTES: usize = 128 * 1024;

/// The open log.
#[derive(Debug)]
pub struct Log {
    file: OwnedFd,
    key: Key,
    /// For messages.
    path: PathBuf,
    /// Whether every record is made durable before the change that it precedes.
    synced: bool,
}

/// A record in the log, old contents left where they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Offset of its first byte in the log.
    pub at: u64,
    /// What it states.
    pub statement: Statement,
}

/// What a record in the log states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Statement {
    /// A statement about a name, a length or permissions: never [`Record::Data`] or [`Record::Hole`].
    Small(Record),
    /// Old contents, to be read from the log when they are needed.
    Contents {
        /// The file.
        inode: Inode,
        /// Where in the file.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// Where the bytes lie in the log.
        payload_at: u64,
    },
    /// A hole.
    Hole {
        /// The file.
        inode: Inode,
        /// Where in the file.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
}

impl Log {
    /// Takes over the open file `file` (opened for reading and `O_APPEND`).
    pub fn new(file: OwnedFd, key: Key, path: PathBuf, synced: bool) -> Self {
        Self { file, key, path, synced }
    }

    /// Moves the log's descriptor to a number from `least` on.
    pub(crate) fn raise_descriptor(&mut self, least: i32) -> std::result::Result<(), Errno> {
        self.file = rustix::io::fcntl_dupfd_cloexec(&self.file, least)?;
        Ok(())
    }

    /// The length of the log in bytes: the position of the next record.
    pub fn len(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.file).map_err(Error::system("measure", &self.path))?;
        Ok(stat.st_size.cast_unsigned())
    }

    /// Whether the log holds no record.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Appends one statement. On failure the change that it precedes must not be made.
    pub fn append(&self, record: &Record) -> std::result::Result<(), Errno> {
        let bytes = record.encode(&self.key).ok_or(Errno::NAMETOOLONG)?;
        self.append_parts(&[IoSlice::new(&bytes)])
    }

    /// Appends old contents of at most [`PAYLOAD_BYTES_MAX`](crate::record::PAYLOAD_BYTES_MAX) bytes, without copying
    /// or allocating.
    pub fn append_data(&self, inode: Inode, offset: u64, bytes: &[u8]) -> std::result::Result<(), Errno> {
        let (head, tail) = frame_data(&self.key, inode, offset, bytes).ok_or(Errno::FBIG)?;
        self.append_parts(&[IoSlice::new(&head), IoSlice::new(bytes), IoSlice::new(&tail)])
    }

    fn append_parts(&self, parts: &[IoSlice<'_>]) -> std::result::Result<(), Errno> {
        let wanted: usize = parts.iter().map(|part| part.len()).sum();
        let written = rustix::io::retry_on_intr(|| rustix::io::writev(&self.file, parts))?;
        if written < wanted {
            return Err(Errno::NOSPC);
        }
        if self.synced { rustix::fs::fdatasync(&self.file) } else { Ok(()) }
    }

    /// Has the kernel begin to write `from..to` to the disk, so that it goes along with what is made durable next: then
    /// [`Log::sync`] finds little left to do. The hint that does so also lets go of what is written already.
    pub fn begin_sync(&self, from: u64, to: u64) {
        let length = NonZeroU64::new(to.saturating_sub(from));
        let _ = length.map(|_| rustix::fs::fadvise(&self.file, from, length, Advice::DontNeed));
    }

    /// Makes everything appended so far durable.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.file).map_err(Error::system("make durable", &self.path))
    }

    /// Cuts the log off at `position`: the records behind it were undone.
    pub fn truncate(&self, position: u64) -> Result<()> {
        rustix::fs::ftruncate(&self.file, position).map_err(Error::system("shorten", &self.path))
    }

    /// Gives the disk space before `position` back, where the file system can; positions stay as they are.
    pub fn forget_before(&self, position: u64) -> Result<()> {
        use rustix::fs::FallocateFlags as Flags;
        let flags = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, 0, position) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(Errno::INVAL) if position == 0 => Ok(()),
            Err(cause) => Err(Error::system("free the beginning of", &self.path)(cause)),
        }
    }

    /// Fills `buffer` with the bytes at `position`; false when the log ends before.
    pub fn read_exact_at(&self, position: u64, buffer: &mut [u8]) -> Result<bool> {
        Ok(self.read_at(position, buffer)? == buffer.len())
    }

    fn read_at(&self, position: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let at = position + filled as u64;
            let got = rustix::io::retry_on_intr(|| {
                rustix::io::preadv(&self.file, &mut [IoSliceMut::new(rest)], at)
            });
            match got.map_err(Error::system("read", &self.path))? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    /// The digest of the log's bytes `from..to`.
    pub fn digest(&self, from: u64, to: u64) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; WINDOW_BYTES];
        let mut at = from;
        while at < to {
            let wanted = to_usize(to - at).min(buffer.len());
            let got = self.read_at(at, part_mut(&mut buffer, ..wanted))?;
            if got == 0 {
                break;
            }
            hasher.update(part(&buffer, ..got));
            at += got as u64;
        }
        Ok(hasher.finalize())
    }

    /// The authentic records that begin in `from..to`, oldest first; torn ones are passed over.
    pub fn scan(&self, mut from: u64, to: u64) -> Result<Vec<Located>> {
        self.scan_on(&mut from, to)
    }

    /// The authentic records that begin in `from..to`, oldest first, while others append. Moves `from` behind the last record
    /// found: what follows is torn, or is just being appended, and the next scan finds out which.
    pub fn scan_on(&self, from: &mut u64, to: u64) -> Result<Vec<Located>> {
        let mut window = Window { log: self, start: 0, bytes: Vec::new() };
        let mut found = Vec::new();
        let mut at = *from;
        while at + (HEAD_BYTES + TAIL_BYTES) as u64 <= to {
            match window.record(at)? {
                Some((length, statement)) => {
                    found.push(Located { at, statement });
                    at += length;
                    *from = at;
                }
                None => at = window.next_magic(at + 1, to)?,
            }
        }
        Ok(found)
    }
}

impl AsFd for Log {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A piece of the log in memory.
struct Window<'log> {
    log: &'log Log,
    start: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// The `length` bytes at `at`; fewer where the log ends.
    fn get(&mut self, at: u64, length: usize) -> Result<&[u8]> {
        let inside = at >= self.start && at + length as u64 <= self.start + self.bytes.len() as u64;
        if !inside {
            self.bytes.resize(length.max(WINDOW_BYTES), 0);
            let got = self.log.read_at(at, &mut self.bytes)?;
            self.bytes.truncate(got);
            self.start = at;
        }
        let rest = part(&self.bytes, to_usize(at - self.start)..);
        Ok(part(rest, ..length.min(rest.len())))
    }

    fn record(&mut self, at: u64) -> Result<Option<(u64, Statement)>> {
        let Some(head) = self.get(at, HEAD_BYTES)?.try_into().ok().and_then(Head::decode) else {
            return Ok(None);
        };
        let payload_at = at + HEAD_BYTES as u64;
        let tail = self.get(payload_at + head.payload_len() as u64, TAIL_BYTES)?;
        if !tail.try_into().is_ok_and(|tail| head.is_closed_by(tail)) {
            return Ok(None);
        }
        let key = self.log.key;
        let statement = if let Some((inode, offset, length)) = head.as_data() {
            head.is_authentic(&key, &[]).then_some(Statement::Contents { inode, offset, length, payload_at })
        } else if let Some((inode, offset, length)) = head.as_hole() {
            head.is_authentic(&key, &[]).then_some(Statement::Hole { inode, offset, length })
        } else {
            let payload = self.get(payload_at, head.payload_len())?;
            let record = head.is_authentic(&key, payload).then(|| Record::decode(&head, payload)).flatten();
            record.map(Statement::Small)
        };
        Ok(statement.map(|statement| (head.record_len(), statement)))
    }

    /// The position in `from..to` of the next bytes that may begin a record, else `to`.
    fn next_magic(&mut self, from: u64, to: u64) -> Result<u64> {
        let mut at = from;
        while at < to {
            let bytes = self.get(at, WINDOW_BYTES)?;
            if let Some(skip) = bytes.windows(4).position(|four| four == MAGIC.to_le_bytes()) {
                return Ok(at + skip as u64);
            }
            // The last three bytes may begin a magic that the window cuts.
            at += bytes.len().saturating_sub(3).max(1) as u64;
        }
        Ok(to)
    }
}

#[cfg(test)]
mod tests {
    //! Records survive torn neighbours, whatever the tear.

    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    const KEY: Key = [3; 32];

    fn log_with(bytes: &[u8]) -> Log {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Log::new(file.into(), KEY, "log".into(), false)
    }

    fn record(number: u64) -> Record {
        Record::Size { inode: Inode(number), path: b"a/file".to_vec(), size: number, modified_ns: 5 }
    }

    #[test]
    fn old_contents_are_found_where_they_lie() {
        let file = tempfile::tempfile().unwrap();
        let log = Log::new(file.into(), KEY, "log".into(), false);
        log.append(&record(1)).unwrap();
        log.append_data(Inode(1), 77, b"old bytes").unwrap();
        let found = log.scan(0, log.len().unwrap()).unwrap();
        let Statement::Contents { offset: 77, length: 9, payload_at, .. } = found[1].statement else {
            panic!("{found:?}")
        };
        let mut bytes = [0; 9];
        assert!(log.read_exact_at(payload_at, &mut bytes).unwrap());
        assert_eq!(&bytes, b"old bytes");
    }

    proptest! {
        #[test]
        fn a_torn_record_hides_no_other(contents in prop::collection::vec(any::<u8>(), 0..5000), cut in any::<prop::sample::Index>(), is_data in any::<bool>()) {
            let torn = if is_data {
                Record::Data { inode: Inode(9), offset: 0, bytes: contents }
            } else {
                record(9)
            };
            let torn = torn.encode(&KEY).unwrap();
            let mut bytes = record(1).encode(&KEY).unwrap();
            bytes.extend(&torn[..cut.index(torn.len())]);
            bytes.extend(record(2).encode(&KEY).unwrap());
            bytes.extend(record(3).encode(&KEY).unwrap());
            let log = log_with(&bytes);
            let found: Vec<_> = log.scan(0, bytes.len() as u64).unwrap().into_iter().map(|located| located.statement).collect();
            let expected: Vec<_> = [1, 2, 3].map(|number| Statement::Small(record(number))).into();
            prop_assert_eq!(found, expected);
        }
    }
}
