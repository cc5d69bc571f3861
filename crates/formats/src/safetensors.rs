//! safetensors: a length, a JSON header, tensors one after the other.
//!
//! Relies on the bounded [`Reader`] and on `serde_json`. The idea: the header is complete, so there is nothing to walk.

use serde_json::Value;

use crate::reader::Reader;
use crate::reason::{Reason, Result};
use crate::variable::{ByteOrder, DataType, Extent, Kind, Storage, Variable};

/// Longest header in bytes: some hundred thousand tensors. The format's own library takes three times as much, but the
/// values of a hostile header need thirty times its length in memory.
const HEADER_MAX: u64 = 32 << 20;
/// Bytes of the length in front of the header.
const LENGTH: u64 = 8;
/// Entry of the header that is no tensor.
const METADATA: &str = "__metadata__";

const INVALID: Reason = Reason::Invalid { what: "safetensors header", offset: LENGTH };

/// All tensors of the file.
pub(crate) fn parse(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let length = reader.cursor("length of the header", 0, LENGTH)?.u64_le()?;
    if length > HEADER_MAX {
        return Err(INVALID);
    }
    let json = reader.bytes("safetensors header", LENGTH, length)?;
    let Ok(Value::Object(entries)) = serde_json::from_slice(&json) else { return Err(INVALID) };
    let tensors = entries.into_iter().filter(|(path, _)| path != METADATA);
    tensors.map(|(path, entry)| tensor(path, &entry, LENGTH + length).ok_or(INVALID)).collect()
}

/// One entry of the header; `None` when it doesn't follow the format.
fn tensor(path: String, entry: &Value, data_start: u64) -> Option<Variable> {
    let data_type = data_type(entry.get("dtype")?.as_str()?)?;
    let shape = entry.get("shape")?.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<_>>>()?;
    let offsets = entry.get("data_offsets")?.as_array()?;
    let [start, end] = offsets.as_slice() else { return None };
    let (start, end) = (start.as_u64()?, end.as_u64()?);
    let extent = Extent { offset: data_start.checked_add(start)?, length: end.checked_sub(start)? };
    let (group, name) = split_path(path);
    Some(Variable { group, name, data_type, shape, storage: Storage::Plain, extents: vec![extent] })
}

/// Tensor names are dotted paths; the last part is the parameter, the rest the module.
pub(crate) fn split_path(path: String) -> (String, String) {
    match path.rsplit_once('.') {
        Some((group, name)) if !group.is_empty() && !name.is_empty() => (group.to_owned(), name.to_owned()),
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
