//! How a block lies in a segment: one header, then the stored bytes. Pure; `docs/FORMAT.md` describes the same bytes.
//!
//! The header's check is keyed with a secret of the store and covers the record's own place, so that neither a copy of
//! a record inside some block's content nor one left in reused space is ever taken for a record.

use stdchk_model::message::benefactor::{Erasure, Form};
use stdchk_model::{BlockId, ChunkId};

use super::disk::{UNIT, UNIT_LENGTH, padded};

const MAGIC: [u8; 4] = *b"SCKR";
/// Version of the layout of records.
///
/// History: 1, the first.
const LAYOUT: u8 = 1;
const CHECKED_BYTES: usize = 128;
const CHECK_BYTES: usize = 32;
/// Length of a header, bytes.
pub const HEADER_BYTES: usize = CHECKED_BYTES + CHECK_BYTES;
/// Longest stored bytes that share the header's unit, bytes: small blocks take one unit, not two.
pub const INLINE_BYTES_MAX: usize = UNIT_LENGTH - HEADER_BYTES;

/// Secret of a store; its check can't be forged by who only sends blocks.
pub type Key = [u8; 32];

/// Where a record lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Number of the segment.
    pub segment: u32,
    /// First unit of the record within it.
    pub unit: u32,
}

impl Place {
    /// Offset within the segment's file, bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.unit) * UNIT
    }
}

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A block.
    Block,
    /// A block that was removed; its bytes may be gone already.
    Removed,
    /// A block whose bytes don't match its name, kept out of use.
    SetAside,
}

/// A header's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it is.
    pub kind: Kind,
    /// Where it lies.
    pub place: Place,
    /// The block's name.
    pub block: BlockId,
    /// How its bytes were made.
    pub form: Form,
    /// Length of its stored bytes.
    pub stored_length: u32,
    /// Order of records: of two for one block the later holds.
    pub put_sequence: u64,
}

/// Space that a record with `stored_length` bytes takes, whole units, bytes.
pub fn span(stored_length: u32) -> u64 {
    match payload_start(stored_length) {
        HEADER_BYTES => UNIT,
        _ => UNIT + padded(u64::from(stored_length)),
    }
}

/// Where the stored bytes start within a record.
pub fn payload_start(stored_length: u32) -> usize {
    if stored_length as usize <= INLINE_BYTES_MAX { HEADER_BYTES } else { UNIT_LENGTH }
}

impl Record {
    /// Space that the record takes, bytes.
    pub fn span(&self) -> u64 {
        span(self.stored_length)
    }

    /// The header's bytes.
    pub fn encode(&self, key: &Key) -> Vec<u8> {
        let erasure = self.form.erasure.unwrap_or(Erasure { data: 0, parity: 0 });
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend([LAYOUT, kind_number(self.kind), self.form.codec]);
        bytes.push(u8::from(self.form.cipher.is_some()));
        bytes.extend(self.put_sequence.to_le_bytes());
        bytes.extend(self.place.segment.to_le_bytes());
        bytes.extend(self.place.unit.to_le_bytes());
        bytes.extend(self.form.plain_length.to_le_bytes());
        bytes.extend(self.stored_length.to_le_bytes());
        bytes.extend(self.block.fragment.to_le_bytes());
        bytes.extend(erasure.data.to_le_bytes());
        bytes.extend(erasure.parity.to_le_bytes());
        bytes.extend([self.form.cipher.unwrap_or(0), 0]);
        bytes.extend(self.block.chunk.0);
        bytes.extend(self.form.stored_id.0);
        bytes.resize(CHECKED_BYTES, 0);
        bytes.extend(blake3::keyed_hash(key, &bytes).as_bytes());
        bytes
    }

    /// The record whose header starts `bytes`, if there is one, intact and in its own place.
    pub fn decode(bytes: &[u8], key: &Key, place: Place) -> Option<Self> {
        let (checked, rest) = bytes.split_first_chunk::<CHECKED_BYTES>()?;
        let (check, _) = rest.split_first_chunk::<CHECK_BYTES>()?;
        if !checked.starts_with(&MAGIC) || blake3::keyed_hash(key, checked) != *check {
            return None;
        }
        let record = parse(checked)?;
        (record.place == place).then_some(record)
    }
}

fn parse(mut bytes: &[u8]) -> Option<Record> {
    let from = &mut bytes;
    take::<4>(from)?;
    let [layout, kind, codec, encrypted] = take::<4>(from)?;
    let put_sequence = u64::from_le_bytes(take(from)?);
    let place = Place { segment: u32::from_le_bytes(take(from)?), unit: u32::from_le_bytes(take(from)?) };
    let (plain_length, stored_length) = (u32::from_le_bytes(take(from)?), u32::from_le_bytes(take(from)?));
    let fragment = u16::from_le_bytes(take(from)?);
    let erasure = Erasure { data: u16::from_le_bytes(take(from)?), parity: u16::from_le_bytes(take(from)?) };
    let [cipher, _] = take::<2>(from)?;
    let (chunk, stored_id) = (ChunkId(take(from)?), ChunkId(take(from)?));
    let form = Form {
        codec,
        plain_length,
        stored_id,
        cipher: (encrypted != 0).then_some(cipher),
        erasure: (erasure.data != 0).then_some(erasure),
    };
    let block = BlockId { chunk, fragment };
    let record = Record { kind: kind_of(kind)?, place, block, form, stored_length, put_sequence };
    (layout == LAYOUT).then_some(record)
}

fn take<const LENGTH: usize>(from: &mut &[u8]) -> Option<[u8; LENGTH]> {
    let (first, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(*first)
}

fn kind_number(kind: Kind) -> u8 {
    match kind {
        Kind::Block => 1,
        Kind::Removed => 2,
        Kind::SetAside => 3,
    }
}

fn kind_of(number: u8) -> Option<Kind> {
    [Kind::Block, Kind::Removed, Kind::SetAside].into_iter().find(|kind| kind_number(*kind) == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let chunk = ChunkId::of(b"plain");
        let form = Form {
            codec: 2,
            plain_length: 9_000,
            stored_id: ChunkId::of(b"stored"),
            cipher: Some(0),
            erasure: Some(Erasure { data: 4, parity: 2 }),
        };
        let place = Place { segment: 7, unit: 11 };
        let block = BlockId { chunk, fragment: 3 };
        Record { kind: Kind::Block, place, block, form, stored_length: 5_000, put_sequence: 1 << 41 }
    }

    #[test]
    fn a_header_survives_and_every_flipped_bit_is_noticed() {
        let (record, key) = (record(), [5; 32]);
        let bytes = record.encode(&key);
        assert_eq!(bytes.len(), HEADER_BYTES);
        assert_eq!(Record::decode(&bytes, &key, record.place), Some(record.clone()));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&bad, &key, record.place), None, "bit {bit}");
        }
    }

    #[test]
    fn a_record_counts_in_its_own_store_and_place_only() {
        let (record, key) = (record(), [5; 32]);
        let bytes = record.encode(&key);
        assert_eq!(Record::decode(&bytes, &[6; 32], record.place), None);
        assert_eq!(Record::decode(&bytes, &key, Place { segment: 7, unit: 12 }), None);
    }

    #[test]
    fn small_blocks_share_the_unit_of_their_header() {
        assert_eq!((span(0), span(3936), span(3937), span(1 << 20)), (4096, 4096, 8192, 4096 + (1 << 20)));
    }
}
