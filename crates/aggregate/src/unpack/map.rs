//! From blocks back to files: for every file, which range of which block holds each of its bytes.
//!
//! Relies on [`crate::container`]. The idea: places with extents come first; what they leave of a file is its rest, and
//! only then can places in the rest be resolved. A place that makes no sense is dropped, which leaves a gap, and a file
//! with a gap is damaged.

use std::collections::{BTreeMap, HashMap};

use stdchk_formats::Extent;

use super::Block;
use crate::container::{Files, Place};
use crate::plan::{complement, part_of_extents};

/// A run of bytes of a file, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Range of the file.
    pub(crate) file: Extent,
    /// Number of the block.
    pub(crate) block: u64,
    /// First byte in the block.
    pub(crate) start: u64,
}

/// A member with the place of its bytes resolved.
struct Located<'block> {
    file: usize,
    place: &'block Place,
    block: u64,
    start: u64,
}

/// The pieces of every file, in order and without overlap.
pub(super) fn maps(files: &Files, blocks: &BTreeMap<u64, Block>) -> Vec<Vec<Piece>> {
    let located = locate(blocks);
    let mut maps: Vec<Vec<Piece>> = vec![Vec::new(); files.files.len()];
    let mut held: Vec<Vec<Extent>> = vec![Vec::new(); files.files.len()];
    for member in &located {
        if let (Place::Extents(extents), Some(map), Some(held)) =
            (member.place, maps.get_mut(member.file), held.get_mut(member.file))
        {
            held.extend_from_slice(extents);
            put(map, extents, member.block, member.start);
        }
    }
    let sizes = files.files.iter().map(|file| file.size);
    let rests: Vec<Vec<Extent>> = sizes.zip(held).map(|(size, held)| complement(size, held)).collect();
    for member in &located {
        if let (Place::Rest(range), Some(map), Some(rest)) =
            (member.place, maps.get_mut(member.file), rests.get(member.file))
        {
            put(map, &part_of_extents(rest, *range), member.block, member.start);
        }
    }
    for (map, file) in maps.iter_mut().zip(&files.files) {
        tidy(map, file.size);
    }
    maps
}

fn put(map: &mut Vec<Piece>, extents: &[Extent], block: u64, mut start: u64) {
    for extent in extents {
        map.push(Piece { file: *extent, block, start });
        start = start.saturating_add(extent.length);
    }
}

/// Sorts the pieces; drops those that leave the file or repeat bytes.
fn tidy(map: &mut Vec<Piece>, size: u64) {
    map.sort_by_key(|piece| piece.file);
    let mut position = 0;
    map.retain(|piece| {
        let fits = piece.file.offset >= position && piece.file.end() <= size && piece.file.length > 0;
        if fits {
            position = piece.file.end();
        }
        fits
    });
}

/// Where each member of a block begins in it, and its length; none for those that lie elsewhere.
fn starts(block: &Block) -> Vec<Option<(u64, u64)>> {
    let mut start = 0_u64;
    let own = block.record.members.iter().map(|member| {
        member.same_as.is_none().then(|| {
            let (here, length) = (start, member.place.length());
            start = start.saturating_add(length);
            (here, length)
        })
    });
    own.collect()
}

/// Every member with the block and byte where it is, its own or that of its twin.
fn locate(blocks: &BTreeMap<u64, Block>) -> Vec<Located<'_>> {
    let starts: HashMap<u64, _> = blocks.values().map(|block| (block.record.number, starts(block))).collect();
    let find = |number: u64, position: usize| starts.get(&number)?.get(position).copied()?;
    let mut located = Vec::new();
    for block in blocks.values() {
        for (position, member) in block.record.members.iter().enumerate() {
            let twin = |(number, position)| (number, usize::try_from(position).unwrap_or(usize::MAX));
            let (block, position) = member.same_as.map_or((block.record.number, position), twin);
            let Some((start, length)) = find(block, position) else { continue };
            let file = usize::try_from(member.file).unwrap_or(usize::MAX);
            if length == member.place.length() {
                located.push(Located { file, place: &member.place, block, start });
            }
        }
    }
    located
}

/// Whether the pieces cover the whole file.
pub(super) fn covers(map: &[Piece], size: u64) -> bool {
    map.iter().map(|piece| piece.file.length).sum::<u64>() == size
}
