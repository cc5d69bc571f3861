//! How a block lies in a segment: one header, then the stored bytes. Pure; `docs/FORMAT.md` describes the same bytes.
//!
//! The header's check is keyed with a secret of the store and covers the record's own place, so that neither a copy of
//! a record inside some block's content nor one left in reused space is ever taken for a record.

use stdchk_model::limits::CODE_BLOCKS_MAX;
use stdchk_model::{BlockId, ChunkId, Code, Encoding, EncodingId, Maker};

use super::disk::{UNIT, UNIT_LENGTH, padded};

const MAGIC: [u8; 4] = *b"SCKR";
/// Version of the layout of records.
///
/// History: 1, the first.
const LAYOUT: u8 = 1;
/// Length of what every header has before the hashes of its encoding's blocks, bytes.
const FIXED_BYTES: usize = 96;
const HASH_BYTES: usize = 32;
const CHECK_BYTES: usize = 32;
/// Length of the header of a copy, bytes. Each further block of the encoding adds a hash.
pub const HEADER_BYTES: usize = FIXED_BYTES + HASH_BYTES + CHECK_BYTES;
// Every header fits into a unit, so that one read of a unit tells what a record is.
const _: () = assert!(FIXED_BYTES + CODE_BLOCKS_MAX * HASH_BYTES + CHECK_BYTES <= UNIT_LENGTH);
// Fragments never share the unit of their header, which may be longer than that of a copy.
const _: () = assert!(stdchk_model::limits::FRAGMENT_BYTES_MIN as usize > INLINE_BYTES_MAX);
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
    pub encoding: Encoding,
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
        let encoding = &self.encoding;
        assert_eq!(encoding.hashes.len(), usize::from(encoding.code.blocks()), "a hash for each block");
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend([LAYOUT, kind_number(self.kind), encoding.codec]);
        bytes.push(u8::from(encoding.cipher.is_some()));
        bytes.extend(self.put_sequence.to_le_bytes());
        bytes.extend(self.place.segment.to_le_bytes());
        bytes.extend(self.place.unit.to_le_bytes());
        bytes.extend(encoding.plain_length.to_le_bytes());
        bytes.extend(encoding.encoded_length.to_le_bytes());
        bytes.extend(encoding.code.number().to_le_bytes());
        bytes.extend([self.block.index, encoding.cipher.unwrap_or(0)]);
        bytes.extend(self.block.encoding.tag);
        bytes.extend(self.block.chunk.0);
        bytes.extend(encoding.maker.0);
        bytes.resize(FIXED_BYTES, 0);
        bytes.extend(encoding.hashes.iter().flat_map(|hash| hash.0));
        bytes.extend(blake3::keyed_hash(key, &bytes).as_bytes());
        bytes
    }

    /// The record whose header starts `bytes`, if there is one, intact and in its own place.
    pub fn decode(bytes: &[u8], key: &Key, place: Place) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(FIXED_BYTES)?;
        if !fixed.starts_with(&MAGIC) {
            return None;
        }
        let code = code_of(fixed)?;
        let (hashes, rest) = rest.split_at_checked(usize::from(code.blocks()) * HASH_BYTES)?;
        let (check, _) = rest.split_first_chunk::<CHECK_BYTES>()?;
        let checked = bytes.get(..FIXED_BYTES + hashes.len())?;
        if blake3::keyed_hash(key, checked) != *check {
            return None;
        }
        let record = parse(fixed, hashes)?;
        (record.place == place).then_some(record)
    }
}

/// Where the number of the code stands in a header.
const CODE_AT: usize = 32;

fn code_of(fixed: &[u8]) -> Option<Code> {
    let number = fixed.get(CODE_AT..)?.split_first_chunk::<2>()?.0;
    Code::from_number(u16::from_le_bytes(*number))
}

fn parse(mut fixed: &[u8], hashes: &[u8]) -> Option<Record> {
    let from = &mut fixed;
    take::<4>(from)?;
    let [layout, kind, codec, encrypted] = take::<4>(from)?;
    let put_sequence = u64::from_le_bytes(take(from)?);
    let place = Place { segment: u32::from_le_bytes(take(from)?), unit: u32::from_le_bytes(take(from)?) };
    let (plain_length, encoded_length) = (u32::from_le_bytes(take(from)?), u32::from_le_bytes(take(from)?));
    let code = Code::from_number(u16::from_le_bytes(take(from)?))?;
    let [index, cipher] = take::<2>(from)?;
    let (tag, chunk, maker) = (take(from)?, ChunkId(take(from)?), Maker(take(from)?));
    let (hashes, _) = hashes.as_chunks::<HASH_BYTES>();
    let hashes = hashes.iter().map(|hash| ChunkId(*hash)).collect();
    let cipher = (encrypted != 0).then_some(cipher);
    let encoding = Encoding { codec, plain_length, cipher, code, encoded_length, hashes, maker };
    let block = BlockId { chunk, encoding: EncodingId { code, tag, maker }, index };
    let stored_length = encoding.block_length();
    let record = Record { kind: kind_of(kind)?, place, block, encoding, stored_length, put_sequence };
    (layout == LAYOUT && index < code.blocks()).then_some(record)
}

pub(super) fn take<const LENGTH: usize>(from: &mut &[u8]) -> Option<[u8; LENGTH]> {
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
    use stdchk_model::ChunkRef;

    use super::*;

    #[test]
    fn a_record_takes_little_beside_its_block() {
        for length in (1..20_000).chain([1 << 20, (1 << 20) + 1, (4 << 20) + 1]) {
            let beside = span(length) + crate::store::segment::FIRST_RECORD - u64::from(length);
            assert!(beside <= stdchk_model::limits::BESIDE_BLOCK_BYTES_MAX, "{length}: {beside}");
        }
    }

    fn records() -> [Record; 2] {
        let chunk = ChunkRef { id: ChunkId::of(b"plain"), length: 9_000 };
        let (code, hashes) = (Code::erasure(4, 2).unwrap(), (0..6).map(|byte| ChunkId([byte; 32])).collect());
        let coded = Encoding {
            codec: 2,
            cipher: Some(1),
            code,
            hashes,
            maker: Maker([3; 8]),
            ..Encoding::plain(chunk)
        };
        [(Encoding::plain(chunk), 0), (coded, 5)].map(|(encoding, index)| Record {
            kind: Kind::Block,
            place: Place { segment: 7, unit: 11 },
            block: encoding.block(chunk.id, index),
            stored_length: encoding.block_length(),
            encoding,
            put_sequence: 1 << 41,
        })
    }

    #[test]
    fn a_header_survives_and_every_flipped_bit_is_noticed() {
        let key = [5; 32];
        for record in records() {
            let bytes = record.encode(&key);
            assert_eq!(bytes.len(), HEADER_BYTES + (record.encoding.hashes.len() - 1) * HASH_BYTES);
            assert_eq!(Record::decode(&bytes, &key, record.place), Some(record.clone()));
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Record::decode(&bad, &key, record.place), None, "bit {bit}");
            }
            for length in 0..bytes.len() {
                assert_eq!(Record::decode(&bytes[..length], &key, record.place), None);
            }
        }
    }

    #[test]
    fn a_record_counts_in_its_own_store_and_place_only() {
        let ([record, _], key) = (records(), [5; 32]);
        let bytes = record.encode(&key);
        assert_eq!(Record::decode(&bytes, &[6; 32], record.place), None);
        assert_eq!(Record::decode(&bytes, &key, Place { segment: 7, unit: 12 }), None);
    }

    #[test]
    fn small_blocks_share_the_unit_of_their_header() {
        assert_eq!((span(0), span(3936), span(3937), span(1 << 20)), (4096, 4096, 8192, 4096 + (1 << 20)));
    }
}
