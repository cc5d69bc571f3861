//! Which byte ranges of two versions differ, and how many chunks they share.
//!
//! The chunk maps say at once which ranges are the same chunk at the same place. Only the rest is read and compared,
//! so that content cut in another way is not taken for different content. A file that lies in a container has no chunks of
//! its own, and is read.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use stdchk_client::{Pool as Client, Reader};
use stdchk_model::message::manager::Attr;
use stdchk_model::{ChunkId, ChunkMap, ErrorCode, Extent, Failure, Source};

use crate::error::{About, Code, Error, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::watch::{Watch, Work};

/// Ranges that are closer to each other than this are shown as one, bytes: a page.
const GAP_BYTES: u64 = 4096;
/// Bytes that are read and compared at once.
const COMPARE_BYTES: usize = 1 << 20;

/// One of the two sides.
struct Side {
    name: String,
    map: ChunkMap,
    /// It lies in a container, and the map is the container's.
    packed: bool,
    reader: Arc<Reader>,
}

/// A range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Range {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
}

/// How two versions differ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Difference {
    /// The older file or version.
    pub first: String,
    /// The newer one.
    pub second: String,
    /// Bytes of the first.
    pub first_bytes: u64,
    /// Bytes of the second.
    pub second_bytes: u64,
    /// Whether they have the same bytes.
    pub identical: bool,
    /// Where they differ. Ranges with less than a page between them are one.
    pub ranges: Vec<Range>,
    /// Bytes of these ranges.
    pub different_bytes: u64,
    /// Chunks that both have.
    pub shared_chunks: u64,
    /// Chunks that only the first has.
    pub chunks_only_in_first: u64,
    /// Chunks that only the second has.
    pub chunks_only_in_second: u64,
}

impl Pool {
    /// Compares two files or versions; without a second one, a version with the one before it.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such file or version, or none before it. [`Code::Damaged`] or [`Code::Unreachable`]:
    /// content can't be read.
    pub async fn diff(&self, first: &Target, second: Option<&Target>, watch: &Watch) -> Result<Difference> {
        let (first, second) = sides(&self.client, first, second).await?;
        let ranges = different(&first, &second, watch).await?;
        Ok(report(&first, &second, ranges))
    }
}

async fn sides(pool: &Client, first: &Target, second: Option<&Target>) -> Result<(Side, Side)> {
    if let Some(second) = second {
        return Ok((side(pool, first).await?, side(pool, second).await?));
    }
    let (older, newer) = neighbours(pool, first).await?;
    Ok((side(pool, &first.at(older)).await?, side(pool, &first.at(newer)).await?))
}

/// The version before the one that `target` names, and that one.
async fn neighbours(pool: &Client, target: &Target) -> Result<(u64, u64)> {
    let mut file = namespace::FileLooks::new(pool, target);
    loop {
        let attr = file.look().await?;
        match previous(pool, target, attr).await {
            Err(error) if file.is_replaced(&error).await? => {}
            outcome => return outcome,
        }
    }
}

async fn previous(pool: &Client, target: &Target, attr: Attr) -> Result<(u64, u64)> {
    let versions = namespace::kept_versions(pool, attr.ino).await.about(target.shown())?;
    let newest = target.version.unwrap_or(attr.version);
    let before = versions.iter().map(|info| info.version).filter(|version| *version < newest).max();
    let next = "name two files or versions";
    let none = || Error::new(Code::NotFound, target.shown(), "there is no version before it", next);
    Ok((before.ok_or_else(none)?, newest))
}

async fn side(pool: &Client, target: &Target) -> Result<Side> {
    let mut file = namespace::FileLooks::new(pool, target);
    loop {
        let attr = file.look().await?;
        match side_of(pool, target, &attr).await {
            Err(error) if file.is_replaced(&error).await? => {}
            outcome => return outcome,
        }
    }
}

async fn side_of(pool: &Client, target: &Target, attr: &Attr) -> Result<Side> {
    let name = target.shown();
    let (info, map, _) = pool.chunk_map(attr.ino, target.version).await.about(&name)?;
    // The version is pinned: a commit in between must not mix two of them.
    let version = target.version.or(info.as_ref().map(|info| info.version));
    let packed = info.is_some_and(|info| info.aggregated);
    let reader = pool.read(attr.ino, version).await.about(&name)?;
    Ok(Side { name, map, packed, reader })
}

/// The byte ranges that differ, in order.
async fn different(first: &Side, second: &Side, watch: &Watch) -> Result<Vec<Range>> {
    let (short, long) = sizes(first, second);
    let candidates = match first.packed || second.packed {
        true if short > 0 => vec![Range { offset: 0, length: short }],
        true => Vec::new(),
        false => suspects(&first.map, &second.map),
    };
    let total = candidates.iter().map(|range| range.length).sum();
    let stage = watch.begin(Work::Diff, total);
    let mut ranges = Vec::new();
    for range in candidates {
        compare(first, second, range, &mut ranges)
            .await
            .about(format_args!("{} and {}", first.name, second.name))?;
        stage.moved(range.length);
    }
    if long > short {
        add(&mut ranges, short, long - short);
    }
    Ok(ranges)
}

/// The shorter and the longer one, bytes.
fn sizes(first: &Side, second: &Side) -> (u64, u64) {
    let (one, other) = (first.reader.size(), second.reader.size());
    (one.min(other), one.max(other))
}

/// Ranges within both files that don't come from the same place of the same chunk.
fn suspects(first: &ChunkMap, second: &ChunkMap) -> Vec<Range> {
    let mut ranges = Vec::new();
    let (mut a, mut b) = (Cursor::new(first), Cursor::new(second));
    let end = first.size().min(second.size());
    let mut offset = 0;
    while offset < end {
        let (Some((from_a, left_a)), Some((from_b, left_b))) = (a.at(offset), b.at(offset)) else {
            // A map that says nothing of the rest doesn't say that it is equal.
            add(&mut ranges, offset, end - offset);
            break;
        };
        let length = left_a.min(left_b).min(end - offset);
        if from_a != from_b {
            add(&mut ranges, offset, length);
        }
        offset += length;
    }
    ranges
}

/// Goes through the extents of a map once.
struct Cursor<'a> {
    map: &'a ChunkMap,
    extents: std::slice::Iter<'a, Extent>,
    current: Option<&'a Extent>,
    start: u64,
}

impl<'a> Cursor<'a> {
    fn new(map: &'a ChunkMap) -> Self {
        let mut extents = map.extents().iter();
        let current = extents.next();
        Self { map, extents, current, start: 0 }
    }

    /// Where the byte at `offset` comes from (chunk and position in it, `None` for a hole), and how many bytes of the
    /// extent are left from there. Offsets must not fall.
    fn at(&mut self, offset: u64) -> Option<(Option<(ChunkId, u64)>, u64)> {
        loop {
            let extent = self.current?;
            let within = offset.checked_sub(self.start)?;
            if within < extent.length {
                return Some((self.source(extent, within), extent.length - within));
            }
            self.start += extent.length;
            self.current = self.extents.next();
        }
    }

    fn source(&self, extent: &Extent, within: u64) -> Option<(ChunkId, u64)> {
        let Source::Chunk { offset, .. } = extent.source else { return None };
        self.map.chunk_of(extent).map(|chunk| (chunk.id, u64::from(offset) + within))
    }
}

/// Reads a range of both sides and adds what differs.
async fn compare(first: &Side, second: &Side, range: Range, ranges: &mut Vec<Range>) -> Result<(), Failure> {
    let (mut offset, end) = (range.offset, range.offset + range.length);
    while offset < end {
        let length = usize::try_from(end - offset).map_or(COMPARE_BYTES, |left| left.min(COMPARE_BYTES));
        let (a, b) =
            tokio::try_join!(first.reader.read_at(offset, length), second.reader.read_at(offset, length))?;
        let length = a.len().min(b.len());
        if length == 0 {
            let what = format!("content ends at byte {offset}, before byte {end}");
            return Err(Failure::new(ErrorCode::Damaged, what).then("`stdchk verify` shows more"));
        }
        add_different(ranges, offset, &a, &b);
        offset += length as u64;
    }
    Ok(())
}

fn add_different(ranges: &mut Vec<Range>, offset: u64, a: &[u8], b: &[u8]) {
    if a == b {
        return;
    }
    for (position, _) in a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b) {
        add(ranges, offset + position as u64, 1);
    }
}

/// Adds a range, joined to the last one if the gap is small.
fn add(ranges: &mut Vec<Range>, offset: u64, length: u64) {
    match ranges.last_mut() {
        Some(last) if offset <= last.offset + last.length + GAP_BYTES => {
            last.length = offset + length - last.offset
        }
        _ => ranges.push(Range { offset, length }),
    }
}

fn report(first: &Side, second: &Side, ranges: Vec<Range>) -> Difference {
    let (shared, only_first, only_second) = chunk_counts(&first.map, &second.map);
    Difference {
        first: first.name.clone(),
        second: second.name.clone(),
        first_bytes: first.reader.size(),
        second_bytes: second.reader.size(),
        identical: ranges.is_empty(),
        different_bytes: ranges.iter().map(|range| range.length).sum(),
        ranges,
        shared_chunks: shared,
        chunks_only_in_first: only_first,
        chunks_only_in_second: only_second,
    }
}

fn chunk_counts(first: &ChunkMap, second: &ChunkMap) -> (u64, u64, u64) {
    let mut sides: HashMap<ChunkId, (bool, bool)> = HashMap::new();
    first.chunks().iter().for_each(|chunk| sides.entry(chunk.id).or_default().0 = true);
    second.chunks().iter().for_each(|chunk| sides.entry(chunk.id).or_default().1 = true);
    let count = |wanted| sides.values().filter(|sides| **sides == wanted).count() as u64;
    (count((true, true)), count((true, false)), count((false, true)))
}

#[cfg(test)]
mod tests {
    use stdchk_model::ChunkRef;

    use super::*;

    fn map(parts: &[(u8, u32, u64)]) -> ChunkMap {
        let chunks =
            parts.iter().map(|(id, ..)| ChunkRef { id: ChunkId([*id; 32]), length: 1 << 20 }).collect();
        let extents = parts.iter().enumerate().map(|(index, (_, offset, length))| Extent {
            length: *length,
            source: Source::Chunk { index: u32::try_from(index).unwrap(), offset: *offset },
        });
        ChunkMap::new(chunks, extents).unwrap()
    }

    #[test]
    fn the_same_place_of_the_same_chunk_is_no_suspect_however_it_is_split() {
        let first = map(&[(1, 0, 100_000), (2, 0, 100_000)]);
        let second = map(&[(1, 0, 50_000), (1, 50_000, 50_000), (3, 0, 100_000)]);
        assert_eq!(suspects(&first, &first), []);
        assert_eq!(suspects(&first, &second), [Range { offset: 100_000, length: 100_000 }]);
        let shifted = map(&[(1, 1, 100_000)]);
        assert_eq!(suspects(&first, &shifted), [Range { offset: 0, length: 100_000 }]);
    }

    #[test]
    fn differing_bytes_become_ranges_joined_over_small_gaps() {
        let a = vec![0; 20_000];
        let mut b = a.clone();
        for position in [10, 3000, 15_000] {
            b[position] = 1;
        }
        let mut ranges = Vec::new();
        add_different(&mut ranges, 100, &a, &b);
        assert_eq!(ranges, [Range { offset: 110, length: 2991 }, Range { offset: 15_100, length: 1 }]);
    }

    #[test]
    fn chunks_are_counted_by_side() {
        assert_eq!(
            chunk_counts(&map(&[(1, 0, 9), (2, 0, 9)]), &map(&[(2, 0, 9), (3, 0, 9), (4, 0, 9)])),
            (1, 1, 2)
        );
    }
}
