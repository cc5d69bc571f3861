//! A segment: a file of records, one behind the other, under one number. Knows files and headers, not what is live.
//!
//! ```text
//! unit 0       head, twice (at 0 and 2048), so that one bad sector costs no key
//! unit 1..     records; space without a valid header is a hole or the rest of a torn write
//! ```
//! A sealed segment was made durable after its last write: its headers can be believed without reading the blocks.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::disk::{UNIT, UNIT_LENGTH, Unit, UnitFile};
use super::error::is_of_the_medium;
use super::files::{Files, InUse};
use super::record::{HEADER_BYTES, Key, Kind, Place, Record, take};

const MAGIC: [u8; 8] = *b"SCKSEG01";
const CHECKED_BYTES: usize = 64;
const HEAD_BYTES: usize = CHECKED_BYTES + 32;
const SECOND_HEAD: usize = UNIT_LENGTH / 2;
/// Where the first record lies, bytes.
pub const FIRST_RECORD: u64 = UNIT;

/// What a segment's head says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The segment's number.
    pub number: u32,
    /// Secret of the store.
    pub key: Key,
    /// Whether its headers can be believed.
    pub sealed: bool,
}

/// A segment. Its file is opened when it is needed ([`Files`]), and stays open from a write to the sync that covers it: only a
/// descriptor that was open all the time is sure to be told of a write that failed later.
#[derive(Debug)]
pub struct Segment {
    /// Its number.
    pub number: u32,
    files: Arc<Files>,
    path: PathBuf,
    key: Key,
    unsynced: Mutex<Unsynced>,
    /// Held while it is synced; whether a sync has failed. The system tells of a failed write once, so no later sync counts.
    sync_failed: Mutex<bool>,
}

/// Writes that no sync covers yet.
#[derive(Debug, Default)]
struct Unsynced {
    file: Option<Arc<UnitFile>>,
    /// Writes under way.
    running: usize,
    /// Writes that have ended.
    ended: u64,
}

/// A segment's file, open.
enum Opened<'a> {
    Unsynced(Arc<UnitFile>),
    Used(InUse<'a>),
}

impl Opened<'_> {
    fn file(&self) -> &Arc<UnitFile> {
        match self {
            Self::Unsynced(file) => file,
            Self::Used(file) => file.file(),
        }
    }
}

impl Segment {
    /// The segment whose file is there.
    pub fn of(files: &Arc<Files>, number: u32, key: Key) -> Self {
        let (files, path) = (Arc::clone(files), files.path_of(number));
        Self { number, files, path, key, unsynced: Mutex::default(), sync_failed: Mutex::new(false) }
    }

    /// Makes a segment. Neither its name nor its head is durable yet.
    pub fn create(files: &Arc<Files>, number: u32, key: Key) -> io::Result<Self> {
        let file = files.create(number)?;
        let segment = Self::of(files, number, key);
        segment.unsynced.lock().file = Some(file);
        if let Err(error) = segment.write_head(false) {
            // Or its name would be in the way of the next attempt.
            let _ = segment.unlink();
            return Err(error);
        }
        Ok(segment)
    }

    /// Makes a segment whose name and head are durable.
    pub fn create_durably(files: &Arc<Files>, number: u32, key: Key) -> io::Result<Self> {
        let segment = Self::create(files, number, key)?;
        let made = segment.sync().and_then(|()| files.sync_names());
        if let Err(error) = made {
            let _ = segment.unlink();
            return Err(error);
        }
        Ok(segment)
    }

    /// Reads the segment's head; `None`: it can't be believed.
    pub fn read_head(files: &Files, number: u32) -> io::Result<Option<Head>> {
        let mut unit = Unit::with(&[]);
        match files.get(number)?.read(&mut unit.0, 0) {
            Ok(()) => Ok(decode_head(&unit.0, number)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn open(&self) -> io::Result<Opened<'_>> {
        match self.unsynced.lock().file.clone() {
            Some(file) => Ok(Opened::Unsynced(file)),
            None => self.files.get(self.number).map(Opened::Used),
        }
    }

    /// Does something that only a sync makes durable.
    fn change<T>(&self, change: impl FnOnce(&UnitFile) -> io::Result<T>) -> io::Result<T> {
        let opened = self.open()?;
        let file = {
            let mut unsynced = self.unsynced.lock();
            unsynced.running += 1;
            // All writers between two syncs use one descriptor, which the sync then asks.
            Arc::clone(unsynced.file.get_or_insert_with(|| Arc::clone(opened.file())))
        };
        let changed = change(&file);
        let mut unsynced = self.unsynced.lock();
        unsynced.running -= 1;
        unsynced.ended += 1;
        changed
    }

    /// Makes all writes durable that have ended.
    pub fn sync(&self) -> io::Result<()> {
        let mut failed = self.sync_failed.lock();
        if *failed {
            return Err(io::Error::other("an earlier sync of it failed"));
        }
        let (file, ended) = {
            let unsynced = self.unsynced.lock();
            (unsynced.file.clone(), unsynced.ended)
        };
        let Some(file) = file else { return Ok(()) };
        file.sync().inspect_err(|_| *failed = true)?;
        let mut unsynced = self.unsynced.lock();
        if unsynced.running == 0 && unsynced.ended == ended {
            unsynced.file = None;
        }
        Ok(())
    }

    /// What was written will never be made durable by a sync: the file need not stay open for one.
    pub fn leave_unsynced(&self) {
        self.unsynced.lock().file = None;
    }

    /// Makes durable what earlier lives have written.
    pub fn sync_earlier_writes(&self) -> io::Result<()> {
        self.open()?.file().sync()
    }

    /// Gives the space of a range back to the file system; false if it can't do that.
    pub fn punch(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.change(|file| file.punch(offset, length))
    }

    /// Space that the file takes on the disk, bytes.
    pub fn allocated(&self) -> io::Result<u64> {
        self.open()?.file().allocated()
    }

    /// Whether its name was taken away.
    pub fn is_removed(&self) -> bool {
        let unsynced = self.unsynced.lock().file.clone();
        self.files.is_removed(self.number) || unsynced.is_some_and(|file| file.is_removed())
    }

    /// Marks the segment as sealed or not. What was written before must be durable first.
    pub fn write_head(&self, sealed: bool) -> io::Result<()> {
        let unit = self.head(sealed);
        self.change(|file| file.write(&[&unit.0], 0))
    }

    /// Marks the segment as sealed, not for sure: no sync follows. What was written before must be durable first.
    pub fn seal_if_possible(&self) -> io::Result<()> {
        let unit = self.head(true);
        self.open()?.file().write(&[&unit.0], 0)
    }

    fn head(&self, sealed: bool) -> Unit {
        let head = encode_head(&Head { number: self.number, key: self.key, sealed });
        let mut unit = Unit::with(&head);
        unit.0.iter_mut().skip(SECOND_HEAD).zip(&head).for_each(|(to, from)| *to = *from);
        unit
    }

    /// Writes a record. `tail` is what follows the header's unit, whole aligned units; `inline` shares its unit.
    pub fn write_record(&self, record: &Record, inline: &[u8], tail: &[u8]) -> io::Result<()> {
        let mut header = record.encode(&self.key);
        header.extend_from_slice(inline);
        let unit = Unit::with(&header);
        self.change(|file| match tail {
            [] => file.write(&[&unit.0], record.place.offset()),
            tail => file.write(&[&unit.0, tail], record.place.offset()),
        })
    }

    /// Replaces the header at `place` by one that says `kind`, or by zeros if there is none that can be read; not durable yet.
    pub fn mark(&self, place: Place, kind: Kind) -> io::Result<()> {
        let mut unit = Unit::with(&[]);
        let record = self.read_record(place, &mut unit.0).ok().flatten();
        let header = record.map(|record| Record { kind, ..record }.encode(&self.key));
        let header = header.unwrap_or_else(|| vec![0; HEADER_BYTES]);
        unit.0.iter_mut().zip(&header).for_each(|(to, from)| *to = *from);
        self.change(|file| file.write(&[&unit.0], place.offset()))
    }

    /// Reads the record at `place` into `bytes`, as long as its span, and returns its header if it is valid.
    pub fn read_record(&self, place: Place, bytes: &mut [u8]) -> io::Result<Option<Record>> {
        self.open()?.file().read(bytes, place.offset())?;
        Ok(Record::decode(bytes, &self.key, place))
    }

    /// The first record at or behind `offset`, skipping holes and anything that is no record.
    pub fn next_record(&self, mut offset: u64) -> io::Result<Option<Record>> {
        let opened = self.open()?;
        let length = opened.file().length()?;
        let mut unit = Unit::with(&[]);
        while let Some(found) = opened.file().next_data(offset)? {
            if found + UNIT > length {
                break;
            }
            let Ok(index) = u32::try_from(found / UNIT) else { break };
            let place = Place { segment: self.number, unit: index };
            match self.read_record(place, &mut unit.0) {
                // A unit that the disk has lost holds no record that can be served.
                Err(error) if is_of_the_medium(&error) => {
                    tracing::error!(path = %self.path.display(), %error, "a part of a segment can't be read");
                }
                Ok(None) => {}
                found => return found,
            }
            offset = found + UNIT;
        }
        Ok(None)
    }

    /// Takes the segment's name away; its space returns when the last reader is done.
    pub fn unlink(&self) -> io::Result<()> {
        self.files.remove(self.number)
    }

    /// Where its file is, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn encode_head(head: &Head) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    bytes.extend(MAGIC);
    bytes.extend(head.number.to_le_bytes());
    bytes.extend(u32::from(head.sealed).to_le_bytes());
    bytes.extend(head.key);
    bytes.resize(CHECKED_BYTES, 0);
    bytes.extend(blake3::hash(&bytes).as_bytes());
    bytes
}

fn decode_head(unit: &[u8; UNIT_LENGTH], number: u32) -> Option<Head> {
    let (first, second) = unit.split_at(SECOND_HEAD);
    let heads = [decode_one(first), decode_one(second)];
    heads.into_iter().flatten().find(|head| head.number == number)
}

fn decode_one(bytes: &[u8]) -> Option<Head> {
    let (mut checked, check) = bytes.split_at_checked(CHECKED_BYTES)?;
    if !check.starts_with(blake3::hash(checked).as_bytes()) || take(&mut checked)? != MAGIC {
        return None;
    }
    let (number, sealed) = (u32::from_le_bytes(take(&mut checked)?), u32::from_le_bytes(take(&mut checked)?));
    Some(Head { number, key: take(&mut checked)?, sealed: sealed == 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_half_of_the_head_is_survived() {
        let place = tempfile::tempdir().unwrap();
        Segment::create(&Arc::new(Files::open(place.path(), &Arc::default()).unwrap()), 3, [9; 32]).unwrap();
        let path = place.path().join(super::super::files::file_name(3));
        for half in [0, SECOND_HEAD] {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[half + 20] ^= 1;
            let other = tempfile::tempdir().unwrap();
            std::fs::write(other.path().join(super::super::files::file_name(3)), &bytes).unwrap();
            let head = Segment::read_head(&Files::open(other.path(), &Arc::default()).unwrap(), 3).unwrap();
            assert_eq!(head, Some(Head { number: 3, key: [9; 32], sealed: false }));
        }
    }
}
