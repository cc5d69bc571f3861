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
}
