//! The tables of a container: its files, and where its sections stand.
//!
//! Relies on `minicbor`. The idea: records are CBOR with integer keys, so that fields can be added, and go through zstd,
//! because names and numbers of a set repeat.

use minicbor::{Decode, Encode};

use super::frame::HASH;

/// One file of the set.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct FileEntry {
    /// Path relative to the set's folder, with `/` between its parts.
    #[n(0)]
    pub name: String,
    /// Length in bytes.
    #[n(1)]
    pub size: u64,
    /// Permission bits.
    #[n(2)]
    pub mode: u32,
    /// Time of the last modification, nanoseconds since 1970.
    #[n(3)]
    pub modified_ns: i64,
}

/// Record of the files section, which comes first and again before the end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Files {
    /// The files; blocks refer to them by position.
    #[n(0)]
    pub files: Vec<FileEntry>,
    /// Identity of the container that holds the base set, where variables are coded against one.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub base: Option<[u8; HASH]>,
}

/// Record of the end section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct End {
    /// First byte of the files section.
    #[n(0)]
    pub files: u64,
    /// First byte of every block section, by number.
    #[n(1)]
    pub blocks: Vec<u64>,
    /// First byte of every index section, in order; without any, each block says for itself what it holds.
    #[n(2)]
    #[cbor(default)]
    pub index: Vec<u64>,
}

/// Record of an index section: what the headers and records of some blocks say, so that a reader of one file needn't look
/// at every block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Index {
    /// The blocks, by number.
    #[n(0)]
    pub blocks: Vec<IndexEntry>,
}

/// A block as an index has it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct IndexEntry {
    /// First byte of the payload.
    #[n(0)]
    pub offset: u64,
    /// Length of the payload, bytes.
    #[n(1)]
    pub length: u64,
    /// The block's record; earlier writers put the hash of the payload before it.
    #[cbor(n(3), with = "minicbor::bytes")]
    pub record: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use minicbor::bytes::ByteArray;

    use super::*;

    #[test]
    fn entries_of_an_index_are_read_with_and_without_the_hash_of_earlier_writers() {
        let entry = IndexEntry { offset: 72, length: 9000, record: vec![1, 2, 3] };
        let now = minicbor::to_vec(&entry).unwrap_or_default();
        let mut earlier = minicbor::Encoder::new(Vec::new());
        let written = earlier.array(4).and_then(|e| e.u64(72)?.u64(9000)?.encode(ByteArray::from([7; HASH])));
        assert!(written.and_then(|e| e.bytes(&[1, 2, 3]).map(|_| ())).is_ok());
        for bytes in [now, earlier.into_writer()] {
            assert_eq!(minicbor::decode::<IndexEntry>(&bytes).ok().as_ref(), Some(&entry));
        }
    }
}
