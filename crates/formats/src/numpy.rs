//! `.npy` (format versions 1 to 3), and `.npz`, which is a zip archive of them.
//!
//! Relies on [`crate::zip`]. The idea: the header is a Python literal of three known keys, found by their names.

use crate::reader::Reader;
use crate::reason::{Reason, Result, found};
use crate::variable::{ByteOrder, DataType, Extent, Kind, Storage, Variable};
use crate::zip::{self, Method};

/// Longest header in bytes: structured types of thousands of fields stay far below.
const HEADER_MAX: u64 = 1 << 20;

/// The one array of a `.npy`.
pub(crate) fn parse_npy(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let whole = Extent { offset: 0, length: reader.size() };
    Ok(vec![array(reader, whole, "array".to_owned())?])
}

/// The arrays of an archive: stored ones by their elements, compressed ones as opaque bytes.
pub(crate) fn parse_npz(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let (mut variables, mut unread) = (Vec::new(), None);
    for entry in zip::entries(reader, reader.size())?.entries {
        let Some(name) = entry.name.strip_suffix(".npy") else { continue };
        let name = name.to_owned();
        let read = match entry.method {
            Method::Stored => array(reader, entry.data, name),
            Method::Deflated => Ok(encoded(entry.data, name, Storage::DeflatedNpy)),
            Method::Other => Ok(encoded(entry.data, name, Storage::Encoded)),
        };
        match read {
            Ok(variable) => variables.push(variable),
            // An array of objects, for one, has no elements of a length.
            Err(reason) if !reason.is_the_end() => unread = unread.or(Some(reason)),
            Err(reason) => return Err(reason),
        }
    }
    found(variables, unread)
}

fn encoded(data: Extent, name: String, storage: Storage) -> Variable {
    let data_type = DataType::bytes();
    let (shape, extents) = (vec![data.length], vec![data]);
    Variable { group: String::new(), name, data_type, shape, storage, extents }
}

/// The array whose `.npy` bytes are `whole`.
fn array(reader: &Reader<'_>, whole: Extent, name: String) -> Result<Variable> {
    let mut cursor = reader.cursor_up_to("npy header", whole.offset, 12.min(whole.length))?;
    cursor.expect(b"\x93NUMPY")?;
    let version = cursor.u8()?;
    cursor.skip(1)?;
    let length = if version == 1 { u64::from(cursor.u16_le()?) } else { u64::from(cursor.u32_le()?) };
    if length > HEADER_MAX {
        return cursor.invalid();
    }
    let header = reader.bytes("npy header", cursor.offset(), length)?;
    let data = cursor.offset() + length;
    let invalid = Reason::Invalid { what: "npy header", offset: whole.offset };
    let end = whole.offset.saturating_add(whole.length);
    let bytes = end.checked_sub(data).ok_or_else(|| invalid.clone())?;
    let literal = String::from_utf8_lossy(&header).into_owned();
    let extent = Extent { offset: data, length: bytes };
    described(&literal, extent, name).ok_or(invalid)
}

/// The variable that a header describes; `None` when the header is not understood.
fn described(literal: &str, data: Extent, name: String) -> Option<Variable> {
    let (group, name) =
        name.rsplit_once('/').map_or((String::new(), name.clone()), |(g, n)| (g.into(), n.into()));
    let shape = shape(value_of(literal, "shape")?)?;
    let elements = shape.iter().try_fold(1_u64, |product, length| product.checked_mul(*length))?;
    let column_major = value_of(literal, "fortran_order")?.starts_with("True");
    let storage = if column_major { Storage::ColumnMajor } else { Storage::Plain };
    let description = value_of(literal, "descr")?;
    let data_type = if description.starts_with('[') {
        let size = u32::try_from(data.length.checked_div(elements)?).ok()?;
        DataType::new(Kind::Opaque, size, ByteOrder::Little)
    } else {
        data_type(description.trim_start_matches(['\'', '"']))?
    };
    let mut variable = Variable { group, name, data_type, shape, storage, extents: vec![data] };
    let used = variable.element_bytes().filter(|used| *used <= data.length)?;
    variable.extents = vec![Extent { length: used, ..data }];
    Some(variable)
}

/// What follows a key of the literal.
fn value_of<'text>(literal: &'text str, key: &str) -> Option<&'text str> {
    let (_, after) = literal.split_once(&format!("'{key}'"))?;
    Some(after.trim_start().strip_prefix(':')?.trim_start())
}

fn shape(value: &str) -> Option<Vec<u64>> {
    let (inside, _) = value.strip_prefix('(')?.split_once(')')?;
    let lengths = inside.split(',').map(str::trim).filter(|part| !part.is_empty());
    lengths.map(|part| part.trim_end_matches('L').parse().ok()).collect()
}

/// A type string such as `<f8`, `>i4`, `|u1`, `|S5`.
pub(crate) fn data_type(description: &str) -> Option<DataType> {
    let quoted = description.split(['\'', '"']).next()?;
    let (order, rest) = match quoted.as_bytes().first()? {
        b'>' => (ByteOrder::Big, quoted.get(1..)?),
        b'<' | b'|' | b'=' => (ByteOrder::Little, quoted.get(1..)?),
        _ => (ByteOrder::Little, quoted),
    };
    // Dates have their unit behind the size: `M8[ns]`.
    let digits = rest.get(1..)?.split(|letter: char| !letter.is_ascii_digit()).next()?;
    let size: u32 = digits.parse().ok()?;
    let (kind, size) = match rest.get(..1)? {
        "i" | "m" | "M" => (Kind::Signed, size),
        "u" | "b" => (Kind::Unsigned, size),
        "f" if size <= 8 => (Kind::Float, size),
        "c" if size <= 16 => (Kind::Complex, size),
        "S" => (Kind::Text, size),
        "U" => (Kind::Opaque, size.checked_mul(4)?),
        _ => (Kind::Opaque, size),
    };
    Some(DataType::new(kind, size, order))
}
