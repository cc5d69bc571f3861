//! The tables of a container: its files, and where its sections stand.
//!
//! Relies on `minicbor`. The idea: records are CBOR with integer keys, so that fields can be added, and go through zstd,
//! because names and numbers of a set repeat. What is said of files stands in columns, each as its difference from the file
//! before: a set may be ten thousand files of a few hundred bytes.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};
use stdchk_formats::Extent;
use stdchk_model::cbor;
use stdchk_model::exact::part;

use super::frame::HASH;
use crate::codec::{put_number, put_signed, take_number, take_signed};
use crate::holes::bytes_of;
use crate::limits::{FILES_MAX, HOLES_MAX, RECORD_MAX};
use crate::name::{bytes_of_text, text_of_bytes};

/// One file of the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Path relative to the set's folder, with `/` between its parts, and behind it for an empty folder; bytes that are no UTF-8 as [`crate::text_of_name`] has them.
    pub name: String,
    /// Length in bytes.
    pub size: u64,
    /// Permission bits, with set-user-ID and such.
    pub mode: u32,
    /// Time of the last modification, nanoseconds since 1970.
    pub modified_ns: i64,
}

impl FileEntry {
    /// Whether it is a folder without anything in it: its name ends in `/`.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.name.ends_with('/')
    }
}

/// Who owns a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

/// The set-user-ID and the set-group-ID bit: what they give depends on the owner.
pub(crate) const SET_ID_BITS: u32 = 0o6000;

/// Record of the files section, which comes first and again before the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The files; blocks refer to them by position.
    pub files: Vec<FileEntry>,
    /// Owners of the files with [`SET_ID_BITS`], by position; of others nobody asks for them.
    pub owners: BTreeMap<usize, Owner>,
    /// Identity of the container that holds the base set, where variables are coded against one.
    pub base: Option<[u8; HASH]>,
    /// By position, the files that blocks hold in their unfolded form.
    pub unfolded: BTreeMap<usize, UnfoldedEntry>,
    /// The compressors that make their streams again, with versions.
    pub makers: Option<String>,
    /// By position, the ranges that no block holds of what blocks hold of a file otherwise: they are zeros. In order, and apart.
    pub holes: BTreeMap<usize, Vec<Extent>>,
}

/// The unfolded form of a file: its plain bytes, and the recipes that make the file of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfoldedEntry {
    /// Bytes of both.
    pub size: u64,
    /// Bytes of the recipes, which stand at the end.
    pub recipes: u64,
}

/// The record as it is stored.
#[derive(Encode, Decode)]
struct StoredFiles {
    #[n(0)]
    count: u64,
    #[cbor(n(1), with = "minicbor::bytes")]
    names: Vec<u8>,
    #[cbor(n(2), with = "minicbor::bytes")]
    sizes: Vec<u8>,
    #[cbor(n(3), with = "minicbor::bytes")]
    modes: Vec<u8>,
    #[cbor(n(4), with = "minicbor::bytes")]
    times: Vec<u8>,
    #[cbor(n(5), with = "minicbor::bytes")]
    base: Option<[u8; HASH]>,
    #[cbor(n(6), with = "minicbor::bytes")]
    owners: Option<Vec<u8>>,
    #[cbor(n(7), with = "minicbor::bytes")]
    unfolded: Option<Vec<u8>>,
    #[n(8)]
    makers: Option<String>,
    #[cbor(n(9), with = "minicbor::bytes")]
    holes: Option<Vec<u8>>,
}

impl Files {
    /// Bytes of what a container has of a file: those of its unfolded form, if it has one.
    pub(crate) fn held_bytes(&self, position: usize, file: &FileEntry) -> u64 {
        self.unfolded.get(&position).map_or(file.size, |unfolded| unfolded.size)
    }

    /// Bytes of it that blocks hold.
    pub(crate) fn data_bytes(&self, position: usize, file: &FileEntry) -> u64 {
        let held = self.held_bytes(position, file);
        let holes = bytes_of(self.holes_of(position));
        assert!(holes <= held, "holes lie inside the file");
        held - holes
    }

    /// The holes of what a container has of a file.
    pub(crate) fn holes_of(&self, position: usize) -> &[Extent] {
        self.holes.get(&position).map_or(&[], Vec::as_slice)
    }

    /// The stored form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (mut names, mut sizes, mut modes, mut times) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut name_before, mut mode_before, mut time_before) = (Vec::new(), 0_u32, 0_i64);
        for file in &self.files {
            let name = bytes_of_text(&file.name);
            let shared = name.iter().zip(&name_before).take_while(|(one, other)| one == other).count();
            let own = part(&name, shared..);
            put_number(&mut names, shared as u64);
            put_number(&mut names, own.len() as u64);
            names.extend_from_slice(own);
            put_number(&mut sizes, file.size);
            put_signed(&mut modes, i64::from(file.mode) - i64::from(mode_before));
            put_signed(&mut times, file.modified_ns.wrapping_sub(time_before));
            (name_before, mode_before, time_before) = (name, file.mode, file.modified_ns);
        }
        let mut owners = Vec::new();
        for (position, Owner { uid, gid }) in &self.owners {
            let numbers = [*position as u64, u64::from(*uid), u64::from(*gid)];
            numbers.iter().for_each(|number| put_number(&mut owners, *number));
        }
        let mut unfolded = Vec::new();
        for (position, UnfoldedEntry { size, recipes }) in &self.unfolded {
            [*position as u64, *size, *recipes].iter().for_each(|number| put_number(&mut unfolded, *number));
        }
        let (count, base) = (self.files.len() as u64, self.base);
        let owners = Some(owners).filter(|owners| !owners.is_empty());
        let unfolded = Some(unfolded).filter(|unfolded| !unfolded.is_empty());
        let makers = self.makers.clone();
        let mut holes = Vec::new();
        for (position, found) in &self.holes {
            put_holes(&mut holes, *position, found);
        }
        let holes = Some(holes).filter(|holes| !holes.is_empty());
        cbor::encode(&StoredFiles {
            count,
            names,
            sizes,
            modes,
            times,
            base,
            owners,
            unfolded,
            makers,
            holes,
        })
    }

    /// The record, if the bytes are one that is ever written.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let stored: StoredFiles = minicbor::decode(bytes).ok()?;
        let count = usize::try_from(stored.count).ok().filter(|count| *count <= FILES_MAX)?;
        let (mut names, mut sizes) = (stored.names.as_slice(), stored.sizes.as_slice());
        let (mut modes, mut times) = (stored.modes.as_slice(), stored.times.as_slice());
        let (mut name, mut mode, mut modified_ns) = (Vec::new(), 0_u32, 0_i64);
        // Each name may repeat all of the one before, so that a short record may unfold far.
        let mut room = RECORD_MAX;
        let mut files = Vec::new();
        for _ in 0..count {
            let shared =
                usize::try_from(take_number(&mut names)?).ok().filter(|shared| *shared <= name.len())?;
            let length = usize::try_from(take_number(&mut names)?).ok()?;
            let (own, rest) = names.split_at_checked(length)?;
            names = rest;
            name.truncate(shared);
            name.extend_from_slice(own);
            room = room.checked_sub(name.len() as u64)?;
            mode = u32::try_from(i64::from(mode).checked_add(take_signed(&mut modes)?)?).ok()?;
            modified_ns = modified_ns.wrapping_add(take_signed(&mut times)?);
            let size = take_number(&mut sizes)?;
            files.push(FileEntry { name: text_of_bytes(&name), size, mode, modified_ns });
        }
        let owners = match &stored.owners {
            Some(column) => owners_in(column)?,
            None => BTreeMap::new(),
        };
        let unfolded = match &stored.unfolded {
            Some(column) => unfolded_in(column, files.len())?,
            None => BTreeMap::new(),
        };
        let (base, makers, holes) = (stored.base, stored.makers, BTreeMap::new());
        let mut tables = Self { files, owners, base, unfolded, makers, holes };
        if let Some(column) = &stored.holes {
            tables.holes = holes_in(column, &tables)?;
        }
        Some(tables)
    }
}

fn put_holes(column: &mut Vec<u8>, position: usize, holes: &[Extent]) {
    put_number(column, position as u64);
    put_number(column, holes.len() as u64);
    let mut end = 0;
    for hole in holes {
        assert!(hole.offset >= end && hole.length > 0, "holes are in order, and apart");
        put_number(column, hole.offset - end);
        put_number(column, hole.length);
        end = hole.end();
    }
}

/// The holes that a column tells of the files of these tables.
fn holes_in(mut column: &[u8], tables: &Files) -> Option<BTreeMap<usize, Vec<Extent>>> {
    let (mut all, mut room) = (BTreeMap::new(), HOLES_MAX as u64);
    while !column.is_empty() {
        let position = usize::try_from(take_number(&mut column)?).ok()?;
        let size = tables.held_bytes(position, tables.files.get(position)?);
        let count = take_number(&mut column)?;
        room = room.checked_sub(count)?;
        let (mut holes, mut end) = (Vec::new(), 0_u64);
        for _ in 0..count {
            let offset = end.checked_add(take_number(&mut column)?)?;
            let length = take_number(&mut column).filter(|length| *length > 0)?;
            end = offset.checked_add(length).filter(|end| *end <= size)?;
            holes.push(Extent { offset, length });
        }
        if all.insert(position, holes).is_some() {
            return None;
        }
    }
    Some(all)
}

/// The unfolded forms that a column tells, of so many files.
fn unfolded_in(mut column: &[u8], files: usize) -> Option<BTreeMap<usize, UnfoldedEntry>> {
    let mut unfolded = BTreeMap::new();
    while !column.is_empty() {
        let position =
            usize::try_from(take_number(&mut column)?).ok().filter(|position| *position < files)?;
        let (size, recipes) = (take_number(&mut column)?, take_number(&mut column)?);
        let entry = UnfoldedEntry { size, recipes };
        unfolded.insert(position, entry);
        if recipes > size {
            return None;
        }
    }
    Some(unfolded)
}

/// The owners that a column tells.
fn owners_in(mut column: &[u8]) -> Option<BTreeMap<usize, Owner>> {
    let mut owners = BTreeMap::new();
    while !column.is_empty() {
        let position = usize::try_from(take_number(&mut column)?).ok()?;
        let uid = u32::try_from(take_number(&mut column)?).ok()?;
        let gid = u32::try_from(take_number(&mut column)?).ok()?;
        owners.insert(position, Owner { uid, gid });
    }
    Some(owners)
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
    /// The block's record.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub record: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use stdchk_model::exact::to_usize;

    use super::*;

    fn files() -> Files {
        let entry = |name: &[u8], size, mode, modified_ns| FileEntry {
            name: text_of_bytes(name),
            size,
            mode,
            modified_ns,
        };
        let files = vec![
            entry(b"run/rank.0", 1 << 40, 0o644, 1_700_000_000_123_456_789),
            entry(b"run/rank.10", 0, 0o600, i64::MIN),
            entry(b"run/rank\xff.2", 17, 0, i64::MAX),
            entry(b"a", u64::MAX, u32::MAX, -1),
        ];
        let owners = [(1, Owner { uid: 0, gid: 17 }), (3, Owner { uid: u32::MAX, gid: 1000 })];
        let unfolded = [(0, UnfoldedEntry { size: 1 << 41, recipes: 3 })];
        let unfolded = BTreeMap::from(unfolded);
        Files {
            files,
            owners: BTreeMap::from(owners),
            base: Some([7; HASH]),
            unfolded,
            makers: Some("a 1".to_owned()),
            holes: BTreeMap::from([
                (0, vec![Extent { offset: 1 << 20, length: 1 << 40 }]),
                (3, vec![Extent { offset: 0, length: 5 }, Extent { offset: 6, length: u64::MAX - 6 }]),
            ]),
        }
    }

    #[test]
    fn holes_outside_their_file_and_of_no_length_are_refused() {
        let of = |position, offset, length| {
            let holes = BTreeMap::from([(position, vec![Extent { offset, length }])]);
            Files::from_bytes(&Files { holes, ..files() }.to_bytes())
        };
        assert!(of(2, 3, 14).is_some());
        assert_eq!((of(2, 3, 15), of(2, u64::MAX, 1), of(4, 0, 1)), (None, None, None));
        assert!(of(0, 1 << 40, 1 << 40).is_some(), "it is held unfolded, and longer");
    }

    #[test]
    fn every_entry_of_a_table_comes_back() {
        assert_eq!(Files::from_bytes(&files().to_bytes()), Some(files()));
        assert_eq!(Files::from_bytes(&Files::default().to_bytes()), Some(Files::default()));
    }

    #[test]
    fn cut_and_changed_tables_are_refused_or_decoded_without_panic() {
        let bytes = files().to_bytes();
        (0..bytes.len()).for_each(|length| assert_eq!(Files::from_bytes(&bytes[..length]), None));
        for position in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[position] = value;
                drop(Files::from_bytes(&changed));
            }
        }
    }

    #[test]
    fn names_that_unfold_without_end_are_refused() {
        let long = vec![b'x'; 1 << 20];
        let mut names = Vec::new();
        put_number(&mut names, 0);
        put_number(&mut names, long.len() as u64);
        names.extend_from_slice(&long);
        let count = 1 + 100_000_u64;
        for _ in 1..count {
            put_number(&mut names, long.len() as u64);
            put_number(&mut names, 0);
        }
        let zeros = || vec![0; to_usize(count)];
        let stored = StoredFiles {
            count,
            names,
            sizes: zeros(),
            modes: zeros(),
            times: zeros(),
            base: None,
            owners: None,
            unfolded: None,
            makers: None,
            holes: None,
        };
        assert_eq!(Files::from_bytes(&cbor::encode(&stored)), None);
    }
}
