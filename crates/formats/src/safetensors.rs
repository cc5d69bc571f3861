//! safetensors: a length, a JSON header, tensors one after the other.
//!
//! Relies on the bounded [`Reader`] and on `serde_json`. The idea: the header is complete, so there is nothing to walk; it
//! becomes variables as it is read, because there may be tens of thousands.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::reader::Reader;
use crate::reason::{Reason, Result};
use crate::variable::{ByteOrder, DataType, Extent, Kind, Storage, Variable};

/// Longest header in bytes: some hundred thousand tensors. The format's own library takes three times as much, but the
/// variables of a hostile header need some times its length in memory.
const HEADER_MAX: u64 = 32 << 20;
/// Bytes of the length in front of the header.
const LENGTH: u64 = 8;
/// Entries of the header whose names begin so are no tensors; `__metadata__` is the one in use.
const RESERVED: &str = "__";

const INVALID: Reason = Reason::Invalid { what: "safetensors header", offset: LENGTH };

/// All tensors of the file.
pub(crate) fn parse(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let length = reader.cursor("length of the header", 0, LENGTH)?.u64_le()?;
    if length > HEADER_MAX {
        return Err(INVALID);
    }
    let json = reader.bytes("safetensors header", LENGTH, length)?;
    let read = |any: bool| {
        let mut json = serde_json::Deserializer::from_slice(&json);
        let tensors = json.deserialize_map(Tensors { data_start: LENGTH + length, any });
        tensors.and_then(|tensors| json.end().map(|()| tensors))
    };
    // Entries of any other form take longer to read, and there are none in nearly all files.
    read(false).or_else(|_| read(true)).map_err(|_| INVALID)
}

/// Makes the header's entries variables; their places count from `data_start`.
struct Tensors {
    data_start: u64,
    /// Entries may have any form; those that aren't what they should be are no tensors.
    any: bool,
}

/// One entry of the header. What lacks any of these is no tensor, and stays residue.
#[derive(Deserialize)]
struct Entry<'json> {
    #[serde(borrow)]
    dtype: Option<Cow<'json, str>>,
    shape: Option<Vec<u64>>,
    data_offsets: Option<[u64; 2]>,
}

impl<'json> Visitor<'json> for Tensors {
    type Value = Vec<Variable>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a safetensors header")
    }

    fn visit_map<M: MapAccess<'json>>(self, mut header: M) -> std::result::Result<Self::Value, M::Error> {
        let mut variables = Vec::new();
        while let Some(path) = header.next_key::<String>()? {
            if path.starts_with(RESERVED) {
                header.next_value::<IgnoredAny>()?;
            } else if self.any {
                let value: Value = header.next_value()?;
                let entry = Entry::deserialize(&value).ok();
                variables.extend(entry.and_then(|entry| tensor(path, entry, self.data_start)));
            } else {
                variables.extend(tensor(path, header.next_value()?, self.data_start));
            }
        }
        Ok(variables)
    }
}

/// The variable of an entry; `None` when it says no place. Elements of less than a byte, and those of a type that isn't known, are
/// the bytes that hold them.
fn tensor(path: String, entry: Entry<'_>, data_start: u64) -> Option<Variable> {
    let ([start, end], name) = (entry.data_offsets?, entry.dtype?);
    let extent = Extent { offset: data_start.checked_add(start)?, length: end.checked_sub(start)? };
    let shape = entry.shape?;
    let (data_type, shape) = match data_type(&name) {
        Some(data_type) => (data_type, shape),
        None => (DataType::new(Kind::Opaque, 1, ByteOrder::Little), in_bytes(&name, shape, extent.length)),
    };
    let (group, name) = split_path(path);
    Some(Variable { group, name, data_type, shape, storage: Storage::Plain, extents: vec![extent] })
}

/// The shape of a tensor in bytes: its own, if its rows are whole bytes of elements of so few bits; else flat.
fn in_bytes(name: &str, mut shape: Vec<u64>, bytes: u64) -> Vec<u64> {
    let bits = match name {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        _ => return vec![bytes],
    };
    let Some(row) = shape.last_mut() else { return vec![bytes] };
    let Some(row_bits) = row.checked_mul(bits).filter(|bits| bits.is_multiple_of(8)) else {
        return vec![bytes];
    };
    *row = row_bits / 8;
    let all = shape.iter().try_fold(1_u64, |product, length| product.checked_mul(*length));
    if all == Some(bytes) { shape } else { vec![bytes] }
}

/// Tensor names are dotted paths; the last part is the parameter, the rest the module.
pub(crate) fn split_path(mut path: String) -> (String, String) {
    match path.rfind('.') {
        Some(dot) if dot > 0 && dot + 1 < path.len() => {
            let name = path.split_off(dot + 1);
            path.pop();
            (path, name)
        }
        _ => (String::new(), path),
    }
}

fn data_type(name: &str) -> Option<DataType> {
    let (kind, size) = match name {
        "F64" => (Kind::Float, 8),
        "F32" => (Kind::Float, 4),
        "F16" => (Kind::Float, 2),
        "BF16" => (Kind::BFloat, 2),
        "I64" => (Kind::Signed, 8),
        "I32" => (Kind::Signed, 4),
        "I16" => (Kind::Signed, 2),
        "I8" => (Kind::Signed, 1),
        "U64" => (Kind::Unsigned, 8),
        "U32" => (Kind::Unsigned, 4),
        "U16" => (Kind::Unsigned, 2),
        "U8" | "BOOL" => (Kind::Unsigned, 1),
        "C64" => (Kind::Complex, 8),
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => (Kind::Opaque, 1),
        _ => return None,
    };
    Some(DataType::new(kind, size, ByteOrder::Little))
}
