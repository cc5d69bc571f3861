//! Datatype messages: class, size and byte order, as far as a numeric codec can use them.
//!
//! Relies on [`ObjectHeader`] for types that stand in another object. The idea: a type without a plain numeric meaning
//! is opaque bytes of its size, which still says where one record ends.

use super::file::File;
use super::object_header::{Message, ObjectHeader};
use crate::cursor::Cursor;
use crate::reason::Result;
use crate::variable::{ByteOrder, DataType, Kind};

const DATATYPE: u16 = 0x03;

/// An element type, and the lengths of the fixed array that every element is (empty for none).
pub(crate) struct ElementType {
    pub(crate) data_type: DataType,
    pub(crate) inner_shape: Vec<u64>,
    /// Bytes that one element of the dataset takes: the array's, for array types.
    pub(crate) size: u64,
}

/// The type of a dataset; `None` where it is kept in a way that isn't read here.
pub(crate) fn element_type(file: &File<'_, '_>, header: &ObjectHeader) -> Result<Option<ElementType>> {
    let Some(message) = header.first(DATATYPE) else { return Ok(None) };
    if !message.is_shared() {
        return read_any(&mut message.cursor()).map(Some);
    }
    let Some(address) = shared_address(file, message)? else { return Ok(None) };
    let committed = ObjectHeader::read(file, address)?;
    match committed.first(DATATYPE) {
        Some(message) if !message.is_shared() => read_any(&mut message.cursor()).map(Some),
        _ => Ok(None),
    }
}

/// Object header that holds a committed type; `None` for the shared message heap.
fn shared_address(file: &File<'_, '_>, message: &Message) -> Result<Option<u64>> {
    let mut cursor = message.cursor();
    let (version, kind) = (cursor.u8()?, cursor.u8()?);
    match (version, kind) {
        (1, _) => cursor.skip(6)?,
        (2, _) | (3, 2) => {}
        _ => return Ok(None),
    }
    file.address(&mut cursor)
}

/// The type that stands here; one that isn't understood is bytes of the length that every type begins with.
fn read_any(cursor: &mut Cursor) -> Result<ElementType> {
    let start = cursor.clone();
    read(cursor, 0).or_else(|_| {
        let mut start = start;
        start.skip(4)?; // class, version, bits of the class
        Ok(atomic(Kind::Opaque, start.u32_le()?, ByteOrder::Little))
    })
}

/// Deepest nesting of array types.
const DEPTH_MAX: usize = 8;

fn read(cursor: &mut Cursor, depth: usize) -> Result<ElementType> {
    let class_and_version = cursor.u8()?;
    let (class, version) = (class_and_version & 15, class_and_version >> 4);
    let bits = cursor.uint_le(3)?;
    let size = cursor.u32_le()?;
    let order = if bits & 1 == 0 { ByteOrder::Little } else { ByteOrder::Big };
    let kind = match class {
        0 => integer(cursor, bits, size)?,
        1 => float(cursor, bits, size)?,
        3 => Kind::Text,
        4 => Kind::Unsigned,
        8 => return enumeration(cursor, depth, size),
        10 if depth < DEPTH_MAX => return array(cursor, version, depth, size),
        11 if depth < DEPTH_MAX => return complex(cursor, depth, size),
        6 => compound(cursor, version, bits, size),
        _ => Kind::Opaque,
    };
    Ok(atomic(kind, size, order))
}

fn atomic(kind: Kind, size: u32, order: ByteOrder) -> ElementType {
    let standard = matches!(size, 1 | 2 | 4 | 8 | 16);
    let kind = if standard || kind == Kind::Text { kind } else { Kind::Opaque };
    ElementType {
        data_type: DataType::new(kind, size, order),
        inner_shape: Vec::new(),
        size: u64::from(size),
    }
}

fn integer(cursor: &mut Cursor, bits: u64, size: u32) -> Result<Kind> {
    let (offset, precision) = (cursor.u16_le()?, cursor.u16_le()?);
    let whole = offset == 0 && u32::from(precision) == size.saturating_mul(8);
    Ok(match (whole, bits & 8 != 0) {
        (false, _) => Kind::Opaque,
        (true, true) => Kind::Signed,
        (true, false) => Kind::Unsigned,
    })
}

fn float(cursor: &mut Cursor, bits: u64, size: u32) -> Result<Kind> {
    let (offset, precision) = (cursor.u16_le()?, cursor.u16_le()?);
    let (_, exponent_bits) = (cursor.u8()?, cursor.u8()?);
    let (_, mantissa_bits) = (cursor.u8()?, cursor.u8()?);
    let vax = bits & 0x40 != 0;
    let whole = offset == 0 && u32::from(precision) == size.saturating_mul(8);
    Ok(match (size, exponent_bits, mantissa_bits) {
        (2, 5, 10) | (4, 8, 23) | (8, 11, 52) if whole && !vax => Kind::Float,
        (2, 8, 7) if whole && !vax => Kind::BFloat,
        _ => Kind::Opaque,
    })
}

/// An enumeration is its base integer; h5py stores booleans so.
fn enumeration(cursor: &mut Cursor, depth: usize, size: u32) -> Result<ElementType> {
    if depth >= DEPTH_MAX {
        return cursor.invalid();
    }
    let base = read(cursor, depth + 1)?;
    Ok(if base.size == u64::from(size) { base } else { atomic(Kind::Opaque, size, ByteOrder::Little) })
}

/// A pair of numbers of the type that follows.
fn complex(cursor: &mut Cursor, depth: usize, size: u32) -> Result<ElementType> {
    let part = read(cursor, depth + 1)?.data_type;
    let whole = part.kind == Kind::Float && size == part.size.saturating_mul(2);
    Ok(atomic(if whole { Kind::Complex } else { Kind::Opaque }, size, part.order))
}

fn array(cursor: &mut Cursor, version: u8, depth: usize, size: u32) -> Result<ElementType> {
    let rank = usize::from(cursor.u8()?);
    cursor.skip(if version < 3 { 3 } else { 0 })?;
    let lengths = (0..rank).map(|_| cursor.u32_le().map(u64::from)).collect::<Result<Vec<_>>>()?;
    cursor.skip(if version < 3 { 4 * rank } else { 0 })?; // permutation
    let base = read(cursor, depth + 1)?;
    let inner_shape: Vec<u64> = lengths.into_iter().chain(base.inner_shape).collect();
    Ok(ElementType { data_type: base.data_type, inner_shape, size: u64::from(size) })
}

/// h5py writes complex numbers as a compound of two equal floats, `r` and `i`; other compounds are opaque records.
fn compound(cursor: &mut Cursor, version: u8, bits: u64, size: u32) -> Kind {
    let is_pair = bits & 0xffff == 2 && matches!(size, 8 | 16);
    let mut pair =
        || Ok::<_, crate::Reason>((member(cursor, version, b'r')?, member(cursor, version, b'i')?));
    match pair() {
        Ok((Kind::Float, Kind::Float)) if is_pair => Kind::Complex,
        _ => Kind::Opaque,
    }
}

/// One member of a compound; names are padded to eight bytes before version 3, arrays are spelt out in version 1.
fn member(cursor: &mut Cursor, version: u8, name: u8) -> Result<Kind> {
    cursor.expect(&[name, 0])?;
    cursor.skip(match version {
        1 => 6 + 4 + 28,
        2 => 6 + 4,
        _ => 1,
    })?;
    read_member(cursor)
}

fn read_member(cursor: &mut Cursor) -> Result<Kind> {
    const FLOAT: u8 = 1;
    if cursor.u8()? & 15 != FLOAT {
        return cursor.invalid();
    }
    let bits = cursor.uint_le(3)?;
    let size = cursor.u32_le()?;
    let kind = float(cursor, bits, size)?;
    cursor.skip(4)?; // bias of the exponent
    Ok(kind)
}
