//! safetensors: a length, a JSON header, tensors one after the other.
//!
//! Relies on the bounded [`Reader`] and on `serde_json`. The idea: the header is complete, so there is nothing to walk; it
//! becomes variables as it is read, because there may be tens of thousands.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use crate::reader::Reader;
use crate::reason::{Reason, Result};
use crate::variable::{ByteOrder, DataType, Extent, Kind, Storage, Variable};

/// Longest header in bytes: some hundred thousand tensors. The format's own library takes three times as much, but the
/// variables of a hostile header need some times its length in memory.
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
    let mut json = serde_json::Deserializer::from_slice(&json);
    let tensors = json.deserialize_map(Tensors { data_start: LENGTH + length });
    let tensors = tensors.and_then(|tensors| json.end().map(|()| tensors));
    tensors.map_err(|_| INVALID)
}

/// Makes the header's entries variables; their places count from `data_start`.
struct Tensors {
    data_start: u64,
}

/// One entry of the header.
#[derive(Deserialize)]
struct Entry<'json> {
    #[serde(borrow)]
    dtype: Cow<'json, str>,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl<'json> Visitor<'json> for Tensors {
    type Value = Vec<Variable>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a safetensors header")
    }

    fn visit_map<M: MapAccess<'json>>(self, mut header: M) -> std::result::Result<Self::Value, M::Error> {
        let mut variables = Vec::new();
        while let Some(path) = header.next_key::<String>()? {
            if path == METADATA {
                header.next_value::<IgnoredAny>()?;
            } else {
                let variable = tensor(path, header.next_value()?, self.data_start);
                variables.push(variable.ok_or_else(|| M::Error::custom("a type or place that isn't known"))?);
            }
        }
        Ok(variables)
    }
}

/// The variable of an entry; `None` when it doesn't follow the format.
fn tensor(path: String, entry: Entry<'_>, data_start: u64) -> Option<Variable> {
    let [start, end] = entry.data_offsets;
    let extent = Extent { offset: data_start.checked_add(start)?, length: end.checked_sub(start)? };
    let (group, name) = split_path(path);
    Some(Variable {
        group,
        name,
        data_type: data_type(&entry.dtype)?,
        shape: entry.shape,
        storage: Storage::Plain,
        extents: vec![extent],
    })
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
