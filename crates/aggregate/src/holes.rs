//! Holes: ranges of a file that are zeros and stored nowhere, which neither packing nor unpacking touches.
//!
//! Relies on `lseek` (`SEEK_DATA`, `SEEK_HOLE`). The idea: a container says where the holes of its files are and holds no bytes of them,
//! so a sparse file costs what its data cost. A hole that counts as data costs time; data that count as a hole would be lost, so a
//! file system is believed only where it knows of writes at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{SeekFrom, fstatfs, seek};
use rustix::io::Errno;
use stdchk_formats::Extent;

use crate::limits::HOLE_MIN;
use crate::plan::complement;

/// Bytes of a block as `st_blocks` counts them.
const STAT_BLOCK_BYTES: u64 = 512;

/// The holes of a file of so many bytes that are long enough, in order.
pub(crate) fn holes_of(file: &File, size: u64) -> io::Result<Vec<Extent>> {
    let stored = file.metadata()?.blocks().saturating_mul(STAT_BLOCK_BYTES);
    if stored >= size || size < HOLE_MIN || !tells_holes(file) {
        return Ok(Vec::new());
    }
    let mut holes = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.clamp(at, size),
            Err(Errno::NXIO) => size,
            // The rest of the file is read.
            Err(_) => break,
        };
        if data - at >= HOLE_MIN {
            holes.push(Extent { offset: at, length: data - at });
        }
        if data == size {
            break;
        }
        match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) if hole > data => at = hole,
            _ => break,
        }
    }
    Ok(holes)
}

/// Whether the file system knows of data that were written a moment ago when it is asked for holes. ZFS had versions that didn't, and a file
/// system in user space may not hear of them yet.
#[must_use]
pub fn tells_holes(file: &File) -> bool {
    const OTHERS: [i64; 2] = [0x2fc1_2fc1, 0x6573_5546];
    fstatfs(file).is_ok_and(|found| !OTHERS.contains(&found.f_type))
}

/// The holes of a file of so many bytes, without the parts in `held`.
pub(crate) fn holes_beside(size: u64, holes: &[Extent], held: &[Extent]) -> Vec<Extent> {
    if holes.is_empty() {
        return Vec::new();
    }
    let mut taken = complement(size, holes.to_vec());
    taken.extend_from_slice(held);
    complement(size, taken)
}

/// The parts of a range that lie in no hole, in order.
pub(crate) fn data_within(range: Extent, holes: &[Extent]) -> impl Iterator<Item = Extent> {
    let first = holes.partition_point(|hole| hole.end() <= range.offset);
    let mut inside = holes.iter().skip(first).take_while(move |hole| hole.offset < range.end());
    let mut position = range.offset;
    std::iter::from_fn(move || {
        while position < range.end() {
            let hole = inside.next();
            let end = hole.map_or(range.end(), |hole| hole.offset);
            let next = hole.map_or(range.end(), Extent::end);
            let data = Extent { offset: position, length: end.saturating_sub(position) };
            position = next;
            if data.length > 0 {
                return Some(data);
            }
        }
        None
    })
}

/// Bytes of all of them.
pub(crate) fn bytes_of(extents: &[Extent]) -> u64 {
    extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.length))
}

/// The first range of several, in order, that ends behind a place.
pub(crate) fn first_behind(extents: &[Extent], place: u64) -> Option<Extent> {
    extents.get(extents.partition_point(|extent| extent.end() <= place)).copied()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const HOLES: [Extent; 2] = [Extent { offset: 10, length: 5 }, Extent { offset: 20, length: 1 }];

    #[test]
    fn every_byte_of_a_range_is_data_or_in_a_hole() {
        let in_hole = |at: u64| HOLES.iter().any(|hole| (hole.offset..hole.end()).contains(&at));
        for start in 0..30 {
            for end in start..30 {
                let parts: Vec<Extent> =
                    data_within(Extent { offset: start, length: end - start }, &HOLES).collect();
                for at in start..end {
                    let found = parts.iter().any(|part| (part.offset..part.end()).contains(&at));
                    assert_eq!(found, !in_hole(at), "{at} of {start}..{end}: {parts:?}");
                }
                assert_eq!(bytes_of(&parts), (start..end).filter(|at| !in_hole(*at)).count() as u64);
            }
        }
    }

    #[test]
    fn holes_lose_what_is_held() {
        let held = [Extent { offset: 12, length: 2 }, Extent { offset: 19, length: 3 }];
        let left = holes_beside(30, &HOLES, &held);
        let of = |offset, length| Extent { offset, length };
        assert_eq!(left, [of(10, 2), of(14, 1)]);
        assert_eq!(holes_beside(30, &[], &held), []);
    }

    #[test]
    fn the_holes_of_a_file_are_those_that_the_system_tells() {
        let file = tempfile::tempfile().unwrap();
        let size = 100 << 20;
        file.set_len(size).unwrap();
        file.write_all_at(&[7; 4096], 50 << 20).unwrap();
        let of = |offset, length| Extent { offset, length };
        let behind = (50 << 20) + 4096;
        assert_eq!(holes_of(&file, size).unwrap(), [of(0, 50 << 20), of(behind, size - behind)]);
    }
}
