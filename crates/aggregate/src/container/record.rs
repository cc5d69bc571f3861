//! What stands in a block: which bytes of which files, in which order, coded by which chain.
//!
//! Relies on [`crate::codec`]. The idea: members are a stream of small numbers, differences wherever neighbours are
//! alike, because a set may have a million of them.

use minicbor::{Decode, Encode};
use stdchk_formats::Extent;
use stdchk_model::cbor;

use super::frame::HASH;
use crate::codec::{Shape, Step, put_signed, take_signed};
use crate::limits::{BLOCK_MAX, STEPS_MAX};

/// Where a member's bytes belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberRanges {
    /// These ranges of the file, in this order.
    Extents(Vec<Extent>),
    /// This range of what no member with extents holds, taken in order of the file.
    Rest(Extent),
}

impl MemberRanges {
    /// Bytes of the member.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Extents(extents) => extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.length)),
            Self::Rest(range) => range.length,
        }
    }
}

/// One run of bytes of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Position of the file in the files section.
    pub file: u32,
    /// Where the bytes belong.
    pub place: MemberRanges,
    /// Not in this block, or not here: the same bytes begin there (block, first byte) in an earlier one or in this.
    pub same_as: Option<(u64, u64)>,
    /// File of the base set that holds, in the same ranges, the bytes that this member is coded against.
    pub base_file: Option<u32>,
}

/// The record of a block section, before it is put into columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// Number of the block, from 0.
    pub number: u64,
    /// Key of the group.
    pub key: String,
    /// The chain that coded the members' bytes.
    pub steps: Vec<Step>,
    /// Bytes of all members that are not `same_as` another.
    pub raw_length: u64,
    /// Hash of these bytes.
    pub raw_hash: [u8; HASH],
    /// The members.
    pub members: Vec<Member>,
    /// Shapes of the members that are not `same_as` another; empty when the chain needs none.
    pub shapes: Vec<Shape>,
}

/// The record as it is stored.
#[derive(Encode, Decode)]
struct StoredRecord {
    #[n(0)]
    number: u64,
    #[n(1)]
    key: String,
    #[n(2)]
    steps: Vec<Step>,
    #[n(3)]
    raw_length: u64,
    #[cbor(n(4), with = "minicbor::bytes")]
    raw_hash: [u8; HASH],
    #[n(5)]
    member_count: u64,
    #[cbor(n(6), with = "minicbor::bytes")]
    members: Vec<u8>,
    /// How many members in a row have the shape.
    #[n(7)]
    shapes: Vec<(u64, Shape)>,
}

impl BlockRecord {
    /// The stored form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        for member in &self.members {
            writer.member(self.number, member);
        }
        let mut shapes: Vec<(u64, Shape)> = Vec::new();
        for shape in &self.shapes {
            match shapes.last_mut() {
                Some((count, last)) if last == shape => *count += 1,
                _ => shapes.push((1, shape.clone())),
            }
        }
        let stored = StoredRecord {
            number: self.number,
            key: self.key.clone(),
            steps: self.steps.clone(),
            raw_length: self.raw_length,
            raw_hash: self.raw_hash,
            member_count: self.members.len() as u64,
            members: writer.bytes,
            shapes,
        };
        cbor::encode(&stored)
    }

    /// The record, if the bytes are one of a block that is ever written; takes its ranges off `room`, and refuses a
    /// record with more than that.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], room: &mut usize) -> Option<Self> {
        let stored: StoredRecord = minicbor::decode(bytes).ok()?;
        if stored.steps.len() > STEPS_MAX || stored.raw_length > BLOCK_MAX {
            return None;
        }
        let mut reader = Reader { bytes: &stored.members, file: 0, position: 0, twin_end: 0, room: *room };
        let mut members = Vec::new();
        for _ in 0..stored.member_count {
            members.push(reader.member(stored.number)?);
        }
        *room = reader.room;
        let mut shapes = Vec::new();
        for (count, shape) in stored.shapes {
            let left = members.len() - shapes.len();
            let count = usize::try_from(count).ok().filter(|count| *count <= left)?;
            if shape.0.len() > RANK_MAX {
                return None;
            }
            shapes.extend(std::iter::repeat_n(shape, count));
        }
        let StoredRecord { number, key, steps, raw_length, raw_hash, .. } = stored;
        Some(Self { number, key, steps, raw_length, raw_hash, members, shapes })
    }
}

/// Most dimensions of a member: those of a variable, and one more along which its chunks follow each other.
const RANK_MAX: usize = 65;

const REST: u64 = 1;
const SAME: u64 = 2;
const BASE: u64 = 4;

/// Members as a stream of LEB128 numbers.
#[derive(Default)]
struct Writer {
    bytes: Vec<u8>,
    file: u32,
    position: u64,
    /// Where the last run of bytes that lie elsewhere ended.
    twin_end: u64,
}

impl Writer {
    fn number(&mut self, value: u64) {
        crate::codec::put_number(&mut self.bytes, value);
    }

    /// A position, as its signed distance from where the last range ended.
    fn position(&mut self, value: u64) {
        put_signed(&mut self.bytes, value.wrapping_sub(self.position).cast_signed());
    }

    fn range(&mut self, range: Extent) {
        self.position(range.offset);
        self.number(range.length);
        self.position = range.end();
    }

    fn member(&mut self, block: u64, member: &Member) {
        let rest = if matches!(member.place, MemberRanges::Rest(_)) { REST } else { 0 };
        let same = if member.same_as.is_some() { SAME } else { 0 };
        let base = if member.base_file.is_some() { BASE } else { 0 };
        self.number(rest | same | base);
        let step = i64::from(member.file) - i64::from(self.file);
        put_signed(&mut self.bytes, step);
        if step != 0 {
            (self.file, self.position) = (member.file, 0);
        }
        match &member.place {
            MemberRanges::Rest(range) => self.range(*range),
            MemberRanges::Extents(extents) => {
                self.number(extents.len() as u64);
                extents.iter().for_each(|extent| self.range(*extent));
            }
        }
        if let Some((number, start)) = member.same_as {
            self.number(block.wrapping_sub(number));
            // Runs that follow each other there as here begin where the last one ended.
            put_signed(&mut self.bytes, start.wrapping_sub(self.twin_end).cast_signed());
            self.twin_end = start.wrapping_add(member.place.length());
        }
        if let Some(file) = member.base_file {
            self.number(u64::from(file));
        }
    }
}

struct Reader<'bytes> {
    bytes: &'bytes [u8],
    file: u32,
    position: u64,
    /// Where the last run of bytes that lie elsewhere ended.
    twin_end: u64,
    /// Ranges that may still come; a member without any takes room as well.
    room: usize,
}

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        crate::codec::take_number(&mut self.bytes)
    }

    fn signed(&mut self) -> Option<i64> {
        take_signed(&mut self.bytes)
    }

    fn range(&mut self) -> Option<Extent> {
        self.room = self.room.checked_sub(1)?;
        let offset = self.position.wrapping_add_signed(self.signed()?);
        let length = self.number()?;
        self.position = offset.checked_add(length)?;
        Some(Extent { offset, length })
    }

    fn member(&mut self, block: u64) -> Option<Member> {
        let flags = self.number()?;
        let step = self.signed()?;
        if step != 0 {
            self.file = u32::try_from(i64::from(self.file).checked_add(step)?).ok()?;
            self.position = 0;
        }
        let place = if flags & REST != 0 {
            MemberRanges::Rest(self.range()?)
        } else {
            let count = self.number()?;
            if count == 0 {
                self.room = self.room.checked_sub(1)?;
            }
            MemberRanges::Extents((0..count).map(|_| self.range()).collect::<Option<Vec<_>>>()?)
        };
        let same_as = if flags & SAME != 0 {
            let number = block.checked_sub(self.number()?)?;
            let start = self.twin_end.wrapping_add_signed(self.signed()?);
            self.twin_end = start.checked_add(place.length())?;
            Some((number, start))
        } else {
            None
        };
        let base_file = if flags & BASE != 0 { Some(u32::try_from(self.number()?).ok()?) } else { None };
        Some(Member { file: self.file, place, same_as, base_file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> BlockRecord {
        let extent = |offset, length| Extent { offset, length };
        let member = |file, place, same_as, base_file| Member { file, place, same_as, base_file };
        BlockRecord {
            number: 7,
            key: "Grid#/Density_F64LE_Array2D".to_owned(),
            steps: vec![Step::Shuffle(8), Step::Zstd(3)],
            raw_length: 96,
            raw_hash: [9; HASH],
            members: vec![
                member(0, MemberRanges::Extents(vec![extent(100, 8), extent(40, 8)]), None, None),
                member(3, MemberRanges::Extents(vec![extent(u64::MAX - 8, 8)]), Some((7, 0)), Some(2)),
                member(1, MemberRanges::Rest(extent(0, 80)), Some((2, 5)), None),
            ],
            shapes: vec![Shape(vec![2]), Shape(vec![2])],
        }
    }

    fn read(bytes: &[u8]) -> Option<BlockRecord> {
        BlockRecord::from_bytes(bytes, &mut 1000)
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        assert_eq!(read(&record().to_bytes()), Some(record()));
    }

    #[test]
    fn a_record_that_needs_more_ranges_than_there_is_room_for_is_refused() {
        let mut room = 4;
        assert_eq!(BlockRecord::from_bytes(&record().to_bytes(), &mut room), Some(record()));
        assert_eq!((room, BlockRecord::from_bytes(&record().to_bytes(), &mut 3)), (0, None));
    }

    #[test]
    fn members_without_ranges_take_room_as_well() {
        let nothing =
            Member { file: 0, place: MemberRanges::Extents(Vec::new()), same_as: None, base_file: None };
        let empty = BlockRecord { members: vec![nothing; 10], shapes: Vec::new(), ..record() };
        let read = |mut room| BlockRecord::from_bytes(&empty.to_bytes(), &mut room).is_some();
        assert_eq!((read(10), read(9)), (true, false));
    }

    #[test]
    fn shapes_of_more_members_than_there_are_and_chains_without_end_are_refused() {
        let stored = |count, steps| {
            let (key, raw_hash, shapes) = (String::new(), [0; HASH], vec![(count, Shape(vec![2]))]);
            let empty = Vec::new();
            let stored = StoredRecord {
                number: 0,
                key,
                steps: vec![Step::XorBase; steps],
                raw_length: 0,
                raw_hash,
                member_count: 0,
                members: empty,
                shapes,
            };
            read(&cbor::encode(&stored))
        };
        assert!(stored(0, 1).is_some());
        assert_eq!((stored(1, 1), stored(u64::MAX, 1), stored(0, 1000)), (None, None, None));
    }

    #[test]
    fn cut_and_changed_records_are_refused_or_decoded_without_panic() {
        let bytes = record().to_bytes();
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), None);
        }
        for position in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[position] = value;
                drop(read(&changed));
            }
        }
    }
}
