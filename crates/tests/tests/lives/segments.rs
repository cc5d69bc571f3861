//! What lies on the disk of a benefactor, read by docs/FORMAT.md alone: the test's own reader of segments.
//!
//! A block counts only if its record's check, the tag of its encoding and the hash of its bytes are right. So what is known of a block once is
//! true of every other one with the same identity.

use std::collections::BTreeMap;

use super::decode::Form;

const UNIT: usize = 4096;
/// Bytes of a record's header before the hashes of its blocks.
const FIXED: usize = 96;
const HASH: usize = 32;

/// Which block: its chunk, its code, the tag of its encoding, who coded it, and its number.
pub type Key = ([u8; 32], (u8, u8), [u8; 16], [u8; 8], u8);

/// A record of a segment.
#[derive(Clone, Debug)]
pub struct Record {
    pub key: Key,
    pub form: Form,
    sequence: u64,
    /// It is there, was not removed, and its bytes are those that its encoding says.
    is_good: bool,
    /// The stored bytes.
    pub stored: Vec<u8>,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(number(bytes)).unwrap()
}

/// The secret of the store and the number of a segment, if a copy of its head is valid.
pub fn head(segment: &[u8]) -> Option<([u8; 32], u64)> {
    let copies = [0, UNIT / 2].into_iter().filter_map(|at| segment.get(at..at + 96));
    let valid =
        |copy: &&[u8]| copy.starts_with(b"SCKSEG01") && *blake3::hash(&copy[..64]).as_bytes() == copy[64..];
    let mut valid = copies.filter(valid);
    valid.next().map(|copy| (copy[16..48].try_into().unwrap(), number(&copy[8..12])))
}

/// All records of a segment, `key` being the secret of its store.
pub fn records(segment: &[u8], key: &[u8; 32], number_of_segment: u64) -> Vec<Record> {
    let (mut records, mut unit) = (Vec::new(), 1);
    while unit * UNIT < segment.len() {
        match record(segment, unit, key, number_of_segment) {
            Some((record, units)) => {
                records.push(record);
                unit += units;
            }
            None => unit += 1,
        }
    }
    records
}

/// The record that begins with a unit, and its length in units.
fn record(segment: &[u8], unit: usize, key: &[u8; 32], number_of_segment: u64) -> Option<(Record, usize)> {
    let start = unit * UNIT;
    let bytes = segment.get(start..)?;
    let fixed = bytes.get(..FIXED)?;
    if !fixed.starts_with(b"SCKR") || fixed[4] != 1 {
        return None;
    }
    let (data, parity) = (fixed[33], fixed[32]);
    let hashes = bytes.get(FIXED..FIXED + HASH * (usize::from(data) + usize::from(parity)))?;
    let checked = FIXED + hashes.len();
    let check = bytes.get(checked..checked + HASH)?;
    let is_here = number(&fixed[16..20]) == number_of_segment && number(&fixed[20..24]) == unit as u64;
    if blake3::keyed_hash(key, &bytes[..checked]).as_bytes() != check || !is_here {
        return None;
    }
    let cipher = (fixed[7] == 1).then_some(fixed[35]);
    let form = Form {
        codec: fixed[6],
        cipher,
        plain_length: length(&fixed[24..28]),
        encoded_length: length(&fixed[28..32]),
        data,
        parity,
    };
    let (index, tag, name): (u8, [u8; 16], [u8; 32]) =
        (fixed[34], fixed[36..52].try_into().unwrap(), fixed[52..84].try_into().unwrap());
    let maker: [u8; 8] = fixed[84..92].try_into().unwrap();
    let count = form.encoded_length.div_ceil(u32::from(data)) as usize;
    let is_copy = (data, parity) == (1, 0);
    let header = checked + HASH;
    let from = if is_copy && header + count <= UNIT { header } else { header.next_multiple_of(UNIT) };
    let units = (from + count).div_ceil(UNIT);
    let stored = bytes.get(from..from + count).unwrap_or_default().to_vec();
    let own = hashes.chunks(HASH).nth(usize::from(index));
    let is_good = fixed[5] == 1
        && stored.len() == count
        && own.is_some_and(|own| own == blake3::hash(&stored).as_bytes())
        && (!is_copy || maker == [0; 8])
        && tag == tag_of(&name, &maker, &form, hashes);
    let (key, sequence) = ((name, (data, parity), tag, maker, index), number(&fixed[8..16]));
    Some((Record { key, form, sequence, is_good, stored }, units))
}

/// What an encoding is called.
fn tag_of(name: &[u8; 32], maker: &[u8; 8], form: &Form, hashes: &[u8]) -> [u8; 16] {
    let is_plain = (form.codec, form.cipher, form.data, form.parity) == (0, None, 1, 0);
    if is_plain && hashes == name && form.encoded_length == form.plain_length {
        return [0; 16];
    }
    let mut hasher = blake3::Hasher::new_derive_key("stdchk encoding of a chunk");
    hasher.update(name);
    hasher.update(maker);
    hasher.update(&[form.codec, u8::from(form.cipher.is_some()), form.cipher.unwrap_or(0)]);
    hasher.update(&[form.parity, form.data]);
    hasher.update(&form.plain_length.to_le_bytes());
    hasher.update(&form.encoded_length.to_le_bytes());
    hasher.update(hashes);
    let mut tag = [0; 16];
    hasher.finalize_xof().fill(&mut tag);
    tag
}

/// The blocks of which the youngest record among `records` says that they are there.
pub fn blocks<'a>(records: impl Iterator<Item = &'a Record>) -> BTreeMap<Key, &'a Record> {
    let mut youngest: BTreeMap<Key, &Record> = BTreeMap::new();
    for record in records {
        let place = youngest.entry(record.key).or_insert(record);
        if record.sequence > place.sequence {
            *place = record;
        }
    }
    youngest.retain(|_, record| record.is_good);
    youngest
}
