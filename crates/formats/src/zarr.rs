//! Arrays of Zarr, versions 2 and 3: what their metadata say of the files that hold their chunks.
//!
//! Relies on `serde_json`. The idea: an array is a folder with a description in it and a file for each chunk, whose name is the place of the
//! chunk. An array whose description has something unknown isn't read; others are.

use serde_json::Value;

use crate::numpy;
use crate::variable::{ByteOrder, DataType, Kind};

/// Longest description that is read, in bytes: attributes of users stand in it.
pub const DESCRIPTION_MAX: u64 = 1 << 20;

/// The compressor of the chunks of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZarrCoder {
    /// Zstandard, at this level.
    Zstd(u32),
    /// Blosc; all but its level stands in each chunk.
    Blosc,
    /// A zlib stream, at this level.
    Zlib(u32),
}

/// An array, as far as the files of its chunks need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZarrArray {
    /// Type of the elements.
    pub data_type: DataType,
    /// Elements of a chunk in each dimension, in the order in which they stand, slowest first.
    pub chunk: Vec<u64>,
    /// The compressor of the chunks.
    pub coder: ZarrCoder,
    /// The beginning of the names of chunks.
    prefix: &'static str,
    /// The text between the numbers of a chunk.
    separator: char,
}

/// Names of descriptions, by version.
const VERSION_2: &str = ".zarray";
const VERSION_3: &str = "zarr.json";

/// The folder of the array that a file describes, without a slash at its end; `None`: it is no description.
#[must_use]
pub fn zarr_folder(name: &str) -> Option<&str> {
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    [VERSION_2, VERSION_3].contains(&file).then_some(folder)
}

impl ZarrArray {
    /// The array that a description tells; `None`: something of it isn't known here, or its chunks aren't compressed.
    #[must_use]
    pub fn described(description: &[u8]) -> Option<Self> {
        let description: Value = serde_json::from_slice(description).ok()?;
        match description.get("zarr_format")?.as_u64()? {
            2 => Self::version_2(&description),
            3 => Self::version_3(&description),
            _ => None,
        }
    }

    /// Whether a file of this name in the folder of the array is one of its chunks.
    #[must_use]
    pub fn is_chunk(&self, name: &str) -> bool {
        let Some(numbers) = name.strip_prefix(self.prefix) else { return false };
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let mut parts = numbers.split(self.separator);
        let count = parts.clone().count();
        count == self.chunk.len().max(1) && parts.all(is_number)
    }

    /// Bytes of a plain chunk; `None` when the product leaves 64 bits.
    #[must_use]
    pub fn chunk_bytes(&self) -> Option<u64> {
        let size = u64::from(self.data_type.size);
        self.chunk.iter().try_fold(size, |product, length| product.checked_mul(*length))
    }

    fn version_2(description: &Value) -> Option<Self> {
        let data_type = numpy::data_type(description.get("dtype")?.as_str()?)?;
        let mut chunk = lengths(description.get("chunks")?)?;
        if description.get("order").and_then(Value::as_str) == Some("F") {
            chunk.reverse();
        }
        let has_filters = description.get("filters").is_some_and(|filters| !is_empty(filters));
        let compressor = description.get("compressor").filter(|_| !has_filters)?;
        let level = |key: &str| u32::try_from(compressor.get(key)?.as_u64()?).ok();
        let coder = match compressor.get("id")?.as_str()? {
            "zstd" => ZarrCoder::Zstd(level("level")?),
            "blosc" => ZarrCoder::Blosc,
            "zlib" => ZarrCoder::Zlib(level("level")?),
            _ => return None,
        };
        let separator = description.get("dimension_separator").and_then(Value::as_str);
        let separator = separator_of(separator.unwrap_or("."))?;
        Self { data_type, chunk, coder, prefix: "", separator }.sound()
    }

    fn version_3(description: &Value) -> Option<Self> {
        let grid = description.get("chunk_grid").filter(|grid| name_of(grid) == Some("regular"))?;
        let chunk = lengths(grid.get("configuration")?.get("chunk_shape")?)?;
        let keys = description.get("chunk_key_encoding")?;
        let configured = keys.get("configuration").and_then(|keys| keys.get("separator"));
        let (prefix, usual) = match name_of(keys)? {
            "default" => (true, "/"),
            "v2" => (false, "."),
            _ => return None,
        };
        let separator = separator_of(configured.and_then(Value::as_str).unwrap_or(usual))?;
        let prefix = match (prefix, separator) {
            (true, '/') => "c/",
            (true, _) => "c.",
            (false, _) => "",
        };
        let [bytes, coder] = description.get("codecs")?.as_array()?.as_slice() else { return None };
        let endian = bytes.get("configuration").and_then(|bytes| bytes.get("endian")).and_then(Value::as_str);
        let order = match endian {
            None | Some("little") => ByteOrder::Little,
            Some("big") => ByteOrder::Big,
            Some(_) => return None,
        };
        let data_type = type_of(description.get("data_type")?.as_str()?, order)?;
        let coder = match (name_of(bytes)?, name_of(coder)?) {
            ("bytes", "zstd") => {
                let level = coder.get("configuration")?.get("level")?.as_u64()?;
                ZarrCoder::Zstd(u32::try_from(level).ok()?)
            }
            ("bytes", "blosc") => ZarrCoder::Blosc,
            _ => return None,
        };
        Self { data_type, chunk, coder, prefix, separator }.sound()
    }

    fn sound(self) -> Option<Self> {
        let fits = self.chunk.len() <= crate::parsed::RANK_MAX && self.data_type.size > 0;
        self.chunk_bytes().filter(|bytes| fits && *bytes > 0).map(|_| self)
    }
}

fn is_empty(filters: &Value) -> bool {
    filters.is_null() || filters.as_array().is_some_and(Vec::is_empty)
}

fn name_of(codec: &Value) -> Option<&str> {
    codec.get("name")?.as_str()
}

fn lengths(values: &Value) -> Option<Vec<u64>> {
    values.as_array()?.iter().map(Value::as_u64).collect()
}

fn separator_of(text: &str) -> Option<char> {
    match text {
        "." => Some('.'),
        "/" => Some('/'),
        _ => None,
    }
}

/// A type by its name in version 3.
fn type_of(name: &str, order: ByteOrder) -> Option<DataType> {
    let (kind, bits) = match name {
        "bool" => (Kind::Unsigned, 8),
        "bfloat16" => (Kind::BFloat, 16),
        _ => {
            let digits = name.find(|letter: char| letter.is_ascii_digit())?;
            let (kind, bits) = name.split_at_checked(digits)?;
            let kind = match kind {
                "int" => Kind::Signed,
                "uint" => Kind::Unsigned,
                "float" => Kind::Float,
                "complex" => Kind::Complex,
                _ => return None,
            };
            (kind, bits.parse::<u32>().ok()?)
        }
    };
    let known = matches!(bits, 8 | 16 | 32 | 64 | 128) && (bits < 128 || kind == Kind::Complex);
    known.then(|| DataType::new(kind, bits / 8, order))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"{"zarr_format":2,"shape":[100,90],"chunks":[10,30],"dtype":"<f4","compressor":
        {"id":"blosc","cname":"lz4","clevel":5,"shuffle":1,"blocksize":0},"fill_value":0,"order":"C","filters":null}"#;
    const THREE: &str = r#"{"zarr_format":3,"node_type":"array","shape":[100,90],"data_type":"float64",
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[10,30]}},
        "chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"fill_value":0.0,
        "codecs":[{"name":"bytes","configuration":{"endian":"big"}},
        {"name":"zstd","configuration":{"level":0,"checksum":false}}],"attributes":{}}"#;

    #[test]
    fn arrays_of_both_versions_are_described() {
        let two = ZarrArray::described(TWO.as_bytes()).unwrap();
        assert_eq!((two.data_type.to_string().as_str(), two.coder), ("F32LE", ZarrCoder::Blosc));
        assert_eq!((two.chunk.as_slice(), two.chunk_bytes()), (&[10, 30][..], Some(1200)));
        assert!(
            two.is_chunk("3.12") && !two.is_chunk("3") && !two.is_chunk("3.x") && !two.is_chunk(".zarray")
        );
        let three = ZarrArray::described(THREE.as_bytes()).unwrap();
        assert_eq!((three.data_type.to_string().as_str(), three.coder), ("F64BE", ZarrCoder::Zstd(0)));
        assert!(three.is_chunk("c/3/12") && !three.is_chunk("3/12") && !three.is_chunk("c/3"));
        assert_eq!(
            (zarr_folder("a/b/zarr.json"), zarr_folder(".zarray"), zarr_folder("a/c/0")),
            (Some("a/b"), Some(""), None)
        );
    }

    #[test]
    fn what_is_not_known_of_an_array_makes_it_one_that_is_not_read() {
        for (known, other) in [
            ("\"zarr_format\":3", "\"zarr_format\":4"),
            ("float64", "string"),
            ("float64", "float128"),
            ("regular", "rectilinear"),
            ("\"name\":\"bytes\"", "\"name\":\"vlen-utf8\""),
            ("\"name\":\"zstd\"", "\"name\":\"brotli\""),
            ("\"level\":0,", ""),
            ("[10,30]", "[0,30]"),
            ("[10,30]", "[10,18446744073709551615]"),
            ("default", "hilbert"),
            ("\"big\"", "\"middle\""),
        ] {
            assert!(THREE.contains(known));
            assert_eq!(ZarrArray::described(THREE.replace(known, other).as_bytes()), None, "{other}");
        }
        for (known, other) in [
            ("\"filters\":null", "\"filters\":[{\"id\":\"delta\"}]"),
            ("\"id\":\"blosc\"", "\"id\":\"lzma\""),
            ("\"<f4\"", "[[\"a\",\"<f4\"]]"),
            ("\"compressor\":", "\"compressor_of\":"),
        ] {
            assert!(TWO.contains(known));
            assert_eq!(ZarrArray::described(TWO.replace(known, other).as_bytes()), None, "{other}");
        }
        for length in 0..THREE.len() {
            assert_eq!(ZarrArray::described(&THREE.as_bytes()[..length]), None);
        }
    }
}
