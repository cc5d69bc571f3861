//! Checkpoints of GROMACS (`.cpt`), as far as their layout is public (`checkpoint.cpp`): the vectors of the state.
//!
//! Relies on the bounded [`Reader`]. The idea: every vector of the state is written as a count, a type code and the
//! values, in XDR (big-endian); the header before them depends on the program's version, so the first vector over all
//! atoms is found by its count, which must be three times the number of atoms that the header holds.

use crate::cursor::Cursor;
use crate::reader::Reader;
use crate::reason::{Reason, Result};
use crate::variable::{ByteOrder, DataType, Extent, Kind, Storage, Variable};

const MAGIC: [u8; 4] = [0x00, 0x02, 0x9f, 0x29];
/// The header and the small vectors before the first one over all atoms fit in this many bytes.
const HEADER_MAX: u64 = 64 << 10;
/// Bytes of count and type code.
const VECTOR_HEAD: u64 = 8;
/// Fewest elements of a vector that is taken for one: the box has nine.
const COUNT_MIN: u64 = 9;

pub(crate) fn is_checkpoint(head: &[u8]) -> bool {
    head.starts_with(&MAGIC)
}

/// The vectors of the state, from the first one over all atoms on.
pub(crate) fn parse(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let words = header_words(reader)?;
    let mut offset =
        first_vector(reader, &words).ok_or(Reason::Unsupported("this layout of a GROMACS checkpoint"))?;
    let mut vectors = Vec::new();
    while let Some((extent, size)) = vector(reader, offset)? {
        if extent.length / u64::from(size) >= COUNT_MIN {
            reader.keep::<Variable>(0)?;
            vectors.push(variable(vectors.len(), extent, size));
        }
        offset = extent.end();
    }
    Ok(vectors)
}

fn header_words(reader: &Reader<'_>) -> Result<Vec<u32>> {
    let mut cursor: Cursor = reader.cursor_up_to("checkpoint header", 0, HEADER_MAX)?;
    let mut words = Vec::new();
    while cursor.remaining() >= 4 {
        words.push(cursor.u32_be()?);
    }
    Ok(words)
}

/// Where the first vector over all atoms begins: three times a number that stood in the header.
fn first_vector(reader: &Reader<'_>, words: &[u32]) -> Option<u64> {
    let mut seen = std::collections::HashSet::new();
    for (index, pair) in words.windows(2).enumerate() {
        let [count, code] = pair else { continue };
        let atoms = count / 3;
        let fits = matches!(code, 1 | 2)
            && count % 3 == 0
            && u64::from(*count) >= COUNT_MIN
            && seen.contains(&atoms);
        let offset = index as u64 * 4;
        if fits && u64::from(*count) > COUNT_MIN && matches!(vector(reader, offset), Ok(Some(_))) {
            return Some(offset);
        }
        seen.insert(*count);
    }
    None
}

/// The vector whose count stands at `offset`, and the size of its elements; `None` where the state ends.
fn vector(reader: &Reader<'_>, offset: u64) -> Result<Option<(Extent, u32)>> {
    if offset.saturating_add(VECTOR_HEAD) > reader.size() {
        return Ok(None);
    }
    let mut head = reader.cursor("vector of the state", offset, VECTOR_HEAD)?;
    let (count, code) = (u64::from(head.u32_be()?), head.u32_be()?);
    let size = match code {
        1 => 4,
        2 => 8,
        _ => return Ok(None),
    };
    let extent = Extent { offset: offset + VECTOR_HEAD, length: count * u64::from(size) };
    Ok((count > 0 && extent.end() <= reader.size()).then_some((extent, size)))
}

/// Vectors over atoms have three components each.
fn variable(number: usize, extent: Extent, size: u32) -> Variable {
    let count = extent.length / u64::from(size);
    let shape = if count.is_multiple_of(3) && count > COUNT_MIN { vec![count / 3, 3] } else { vec![count] };
    let data_type = DataType::new(Kind::Float, size, ByteOrder::Big);
    let name = format!("vector {number}");
    Variable {
        group: "state".to_owned(),
        name,
        data_type,
        shape,
        storage: Storage::Plain,
        extents: vec![extent],
    }
}
