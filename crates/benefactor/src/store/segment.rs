//! A segment: a file of records, one behind the other, under one number. Knows files and headers, not what is live.
//!
//! ```text
//! unit 0       head, twice (at 0 and 2048), so that one bad sector costs no key
//! unit 1..     records; space without a valid header is a hole or the rest of a torn write
//! ```
//! A sealed segment was made durable after its last write: its headers can be believed without reading the blocks.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::{UNIT, UNIT_LENGTH, Unit, UnitFile, sync_directory};
use super::record::{HEADER_BYTES, Key, Kind, Place, Record};

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

/// An open segment.
#[derive(Debug)]
pub struct Segment {
    /// Its number.
    pub number: u32,
    /// Its file.
    pub file: UnitFile,
    path: PathBuf,
    key: Key,
}

/// Name of a segment's file.
pub fn file_name(number: u32) -> String {
    format!("{number:010}.segment")
}

/// Number of the segment in the file `name`, if it is one's name.
pub fn number_of(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".segment")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

impl Segment {
    /// Makes a segment in `directory`. Neither its name nor its head is durable yet.
    pub fn create(directory: &Path, number: u32, key: Key) -> io::Result<Self> {
        let path = directory.join(file_name(number));
        let segment = Self { number, file: UnitFile::create(&path)?, path, key };
        if let Err(error) = segment.write_head(false) {
            // Or its name would be in the way of the next attempt.
            let _ = segment.unlink();
            return Err(error);
        }
        Ok(segment)
    }

    /// Makes a segment whose name and head are durable.
    pub fn create_durably(directory: &Path, number: u32, key: Key) -> io::Result<Self> {
        let segment = Self::create(directory, number, key)?;
        let made = segment.file.sync().and_then(|()| sync_directory(directory));
        if let Err(error) = made {
            let _ = segment.unlink();
            return Err(error);
        }
        Ok(segment)
    }

    /// Opens a segment and reads its head; `None` for a head that can't be believed, then `key` stands in.
    pub fn open(directory: &Path, number: u32) -> io::Result<(UnitFile, Option<Head>)> {
        let file = UnitFile::open(&directory.join(file_name(number)))?;
        let mut unit = Unit::with(&[]);
        let head = match file.read(&mut unit.0, 0) {
            Ok(()) => decode_head(&unit.0, number),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(error) => return Err(error),
        };
        Ok((file, head))
    }

    /// The segment of an opened file.
    pub fn of(directory: &Path, number: u32, file: UnitFile, key: Key) -> Self {
        Self { number, file, path: directory.join(file_name(number)), key }
    }

    /// Marks the segment as sealed or not. What was written before must be durable first.
    pub fn write_head(&self, sealed: bool) -> io::Result<()> {
        let head = encode_head(&Head { number: self.number, key: self.key, sealed });
        let mut unit = Unit::with(&head);
        unit.0.iter_mut().skip(SECOND_HEAD).zip(&head).for_each(|(to, from)| *to = *from);
        self.file.write(&[&unit.0], 0)
    }

    /// Writes a record. `tail` is what follows the header's unit, whole aligned units; `inline` shares its unit.
    pub fn write_record(&self, record: &Record, inline: &[u8], tail: &[u8]) -> io::Result<()> {
        let mut header = record.encode(&self.key);
        header.extend_from_slice(inline);
        let unit = Unit::with(&header);
        match tail {
            [] => self.file.write(&[&unit.0], record.place.offset()),
            tail => self.file.write(&[&unit.0, tail], record.place.offset()),
        }
    }

    /// Replaces the header at `place` by one that says `kind`, or by zeros if there is no valid one; not durable yet.
    pub fn mark(&self, place: Place, kind: Kind) -> io::Result<()> {
        let mut unit = Unit::with(&[]);
        let record = self.read_record(place, &mut unit.0).ok().flatten();
        let header = record.map(|record| Record { kind, ..record }.encode(&self.key));
        let header = header.unwrap_or_else(|| vec![0; HEADER_BYTES]);
        unit.0.iter_mut().zip(&header).for_each(|(to, from)| *to = *from);
        self.file.write(&[&unit.0], place.offset())
    }

    /// Reads the record at `place` into `bytes`, as long as its span, and returns its header if it is valid.
    pub fn read_record(&self, place: Place, bytes: &mut [u8]) -> io::Result<Option<Record>> {
        self.file.read(bytes, place.offset())?;
        Ok(Record::decode(bytes, &self.key, place))
    }

    /// The first record at or behind `offset`, skipping holes and anything that is no record.
    pub fn next_record(&self, mut offset: u64) -> io::Result<Option<Record>> {
        let length = self.file.length()?;
        let mut unit = Unit::with(&[]);
        while let Some(found) = self.file.next_data(offset)? {
            if found + UNIT > length {
                break;
            }
            let Ok(index) = u32::try_from(found / UNIT) else { break };
            let place = Place { segment: self.number, unit: index };
            // A unit that can't be read holds no record that can be served.
            if let Ok(Some(record)) = self.read_record(place, &mut unit.0) {
                return Ok(Some(record));
            }
            offset = found + UNIT;
        }
        Ok(None)
    }

    /// Takes the segment's name away; its space returns when the last reader is done.
    pub fn unlink(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
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
    let (checked, rest) = bytes.split_first_chunk::<CHECKED_BYTES>()?;
    let (check, _) = rest.split_first_chunk::<32>()?;
    if blake3::hash(checked) != *check {
        return None;
    }
    let (magic, rest) = checked.split_first_chunk::<8>()?;
    let (number, rest) = rest.split_first_chunk::<4>()?;
    let (sealed, rest) = rest.split_first_chunk::<4>()?;
    let (key, _) = rest.split_first_chunk::<32>()?;
    let head =
        Head { number: u32::from_le_bytes(*number), key: *key, sealed: u32::from_le_bytes(*sealed) == 1 };
    (*magic == MAGIC).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_half_of_the_head_is_survived() {
        let place = tempfile::tempdir().unwrap();
        Segment::create(place.path(), 3, [9; 32]).unwrap();
        let path = place.path().join(file_name(3));
        for half in [0, SECOND_HEAD] {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[half + 20] ^= 1;
            let other = tempfile::tempdir().unwrap();
            std::fs::write(other.path().join(file_name(3)), &bytes).unwrap();
            let (_, head) = Segment::open(other.path(), 3).unwrap();
            assert_eq!(head, Some(Head { number: 3, key: [9; 32], sealed: false }));
        }
    }

    #[test]
    fn names_and_numbers_belong_together() {
        assert_eq!(number_of(&file_name(12)), Some(12));
        assert_eq!((number_of("12.segment"), number_of("x")), (None, None));
    }
}
