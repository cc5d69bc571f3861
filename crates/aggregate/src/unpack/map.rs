//! From blocks back to files: for every file, which range of which block holds each of its bytes.
//!
//! Relies on [`crate::container`]. The idea: places with extents come first; what they leave of a file is its rest, and
//! only then can places in the rest be resolved: all of them or none, since where a lost block had its extents nobody
//! knows. A place that makes no sense is dropped, which leaves a gap, and a file with a gap is damaged.

use std::collections::BTreeMap;

use stdchk_formats::Extent;

use super::Block;
use crate::container::{Files, MemberRanges};
use crate::holes::data_within;
use crate::plan::complement;

/// A run of bytes of a file, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSlice {
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
    place: &'block MemberRanges,
    block: u64,
    start: u64,
}

/// The pieces of every file, in order and without overlap.
pub(super) fn maps(files: &Files, blocks: &BTreeMap<u64, Block>) -> Vec<Vec<BlockSlice>> {
    let located = locate(blocks);
    let mut maps: Vec<Vec<BlockSlice>> = vec![Vec::new(); files.files.len()];
    let mut held: Vec<Vec<Extent>> = vec![Vec::new(); files.files.len()];
    for member in &located {
        if let (MemberRanges::Extents(extents), Some(map), Some(held)) =
            (member.place, maps.get_mut(member.file), held.get_mut(member.file))
        {
            held.extend_from_slice(extents);
            put(map, extents, member.block, member.start);
        }
    }
    let sizes: Vec<u64> =
        files.files.iter().enumerate().map(|(position, file)| files.held_bytes(position, file)).collect();
    let rests: Vec<Vec<Extent>> = sizes
        .iter()
        .copied()
        .zip(held)
        .enumerate()
        .map(|(file, (size, mut held))| {
            held.extend_from_slice(files.holes_of(file));
            complement(size, held)
        })
        .collect();
    let mut in_rests: Vec<Vec<BlockSlice>> = vec![Vec::new(); files.files.len()];
    for member in &located {
        if let (MemberRanges::Rest(range), Some(in_rest)) = (member.place, in_rests.get_mut(member.file)) {
            in_rest.push(BlockSlice { file: *range, block: member.block, start: member.start });
        }
    }
    for (map, (rest, mut in_rest)) in maps.iter_mut().zip(rests.iter().zip(in_rests)) {
        let length = rest.iter().map(|extent| extent.length).sum();
        tidy(&mut in_rest, length);
        // A rest that is longer than what stands in it holds bytes of lost extents, no one knows where.
        if covers(&in_rest, length) {
            map.extend(laid_over(rest, &in_rest));
        }
    }
    for (file, (map, size)) in maps.iter_mut().zip(&sizes).enumerate() {
        let holes = files.holes_of(file);
        // Holes hold nothing, so bytes that claim to be in one are of a container that nobody wrote.
        map.retain(|piece| data_within(piece.file, holes).eq([piece.file]));
        tidy(map, *size);
    }
    assert_eq!(maps.len(), files.files.len(), "every file has a map, be it an empty one");
    maps
}

/// Pieces of a rest as pieces of the file; they are in order.
fn laid_over(rest: &[Extent], in_rest: &[BlockSlice]) -> Vec<BlockSlice> {
    let mut pieces = Vec::new();
    let mut extents = rest.iter();
    // The extent that is being filled, and the bytes of the rest before it.
    let (mut extent, mut before) = (extents.next(), 0);
    for BlockSlice { file: range, block, start } in in_rest {
        let mut position = range.offset;
        while let Some(here) = extent.filter(|_| position < range.end()) {
            let skip = position - before;
            let length = (here.length - skip).min(range.end() - position);
            let file = Extent { offset: here.offset + skip, length };
            pieces.push(BlockSlice {
                file,
                block: *block,
                start: start.saturating_add(position - range.offset),
            });
            position += length;
            if skip + length == here.length {
                (extent, before) = (extents.next(), before + here.length);
            }
        }
    }
    pieces
}

fn put(map: &mut Vec<BlockSlice>, extents: &[Extent], block: u64, mut start: u64) {
    for extent in extents {
        map.push(BlockSlice { file: *extent, block, start });
        start = start.saturating_add(extent.length);
    }
}

/// Sorts the pieces; drops those that leave the file or repeat bytes.
fn tidy(map: &mut Vec<BlockSlice>, size: u64) {
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

/// Every member with the block and byte where its bytes are.
fn locate(blocks: &BTreeMap<u64, Block>) -> Vec<Located<'_>> {
    let mut located = Vec::new();
    for block in blocks.values() {
        let mut end = 0_u64;
        for member in &block.record.members {
            let length = member.place.length();
            let (number, start) = match member.same_as {
                Some(elsewhere) => elsewhere,
                None => {
                    let start = end;
                    end = end.saturating_add(length);
                    (block.record.number, start)
                }
            };
            let holder = blocks.get(&number);
            if holder.is_some_and(|holder| start.saturating_add(length) <= holder.record.raw_length) {
                located.push(Located {
                    file: member.file as usize,
                    place: &member.place,
                    block: number,
                    start,
                });
            }
        }
    }
    located
}

/// Whether the pieces, which are in order and don't overlap, are all of so many bytes.
pub(super) fn covers(map: &[BlockSlice], size: u64) -> bool {
    map.iter().map(|piece| piece.file.length).sum::<u64>() == size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{BlockRecord, FileEntry, Member};

    fn extent(offset: u64, length: u64) -> Extent {
        Extent { offset, length }
    }

    fn member(place: MemberRanges, same_as: Option<(u64, u64)>) -> Member {
        Member { file: 0, place, same_as, base_file: None }
    }

    /// The map of one file of so many bytes, whose members are all in one block.
    fn map_of(size: u64, members: Vec<Member>) -> Vec<BlockSlice> {
        let entry = FileEntry { name: "x".to_owned(), size, mode: 0, modified_ns: 0 };
        let record = BlockRecord {
            number: 0,
            key: String::new(),
            steps: Vec::new(),
            raw_length: size,
            raw_hash: [0; 16],
            members,
            shapes: Vec::new(),
        };
        let block = Block { record, payload: extent(0, size) };
        maps(&Files { files: vec![entry], ..Files::default() }, &BTreeMap::from([(0, block)])).remove(0)
    }

    #[test]
    fn what_extents_leave_is_filled_in_order_of_the_file() {
        let members = vec![
            member(MemberRanges::Rest(extent(5, 3)), None),
            member(MemberRanges::Extents(vec![extent(6, 2), extent(2, 1)]), None),
            member(MemberRanges::Rest(extent(0, 5)), None),
        ];
        let pieces = map_of(11, members).into_iter().map(|piece| (piece.file.offset, piece.start));
        assert_eq!(pieces.collect::<Vec<_>>(), [(0, 6), (2, 5), (3, 8), (6, 3), (8, 0)]);
    }

    #[test]
    fn bytes_that_claim_to_be_in_a_hole_stand_for_nothing() {
        let entry = FileEntry { name: "x".to_owned(), size: 20, mode: 0, modified_ns: 0 };
        let holes = BTreeMap::from([(0, vec![extent(5, 10)])]);
        let files = Files { files: vec![entry], holes, ..Files::default() };
        let record = |members| BlockRecord {
            number: 0,
            key: String::new(),
            steps: Vec::new(),
            raw_length: 20,
            raw_hash: [0; 16],
            members,
            shapes: Vec::new(),
        };
        let of = |members| {
            let block = Block { record: record(members), payload: extent(0, 20) };
            maps(&files, &BTreeMap::from([(0, block)])).remove(0)
        };
        let whole = of(vec![member(MemberRanges::Rest(extent(0, 10)), None)]);
        assert_eq!(whole.iter().map(|piece| piece.file).collect::<Vec<_>>(), [extent(0, 5), extent(15, 5)]);
        let inside = MemberRanges::Extents(vec![extent(0, 5), extent(10, 5)]);
        let map = of(vec![member(inside, None)]);
        assert_eq!(map.iter().map(|piece| piece.file).collect::<Vec<_>>(), [extent(0, 5)]);
    }

    #[test]
    fn a_rest_of_which_something_is_missing_is_nowhere() {
        let held = member(MemberRanges::Extents(vec![extent(2, 1)]), None);
        let map = map_of(11, vec![held, member(MemberRanges::Rest(extent(0, 9)), None)]);
        assert_eq!(map.len(), 1, "{map:?}");
    }

    #[test]
    fn members_that_all_claim_a_rest_in_pieces_take_no_more_room_than_one() {
        const COUNT: u64 = 1000;
        let held = (0..COUNT).map(|n| extent(2 * n, 1)).collect();
        let whole = || MemberRanges::Rest(extent(0, COUNT));
        let twins = (0..COUNT).map(|_| member(whole(), Some((0, COUNT))));
        let members =
            [member(MemberRanges::Extents(held), None), member(whole(), None)].into_iter().chain(twins);
        let map = map_of(2 * COUNT, members.collect());
        assert_eq!(map.len() as u64, 2 * COUNT);
        assert!((map.capacity() as u64) < 10 * COUNT, "there was room for {}", map.capacity());
    }
}
