//! `stdchk diff`: which byte ranges of two versions differ, and how many chunks they share.
//!
//! The chunk maps say at once which ranges are the same chunk at the same place. Only the rest is read and compared,
//! so that content cut in another way is not taken for different content. A file that lies in a container has no chunks of
//! its own, and is read.

use std::collections::HashMap;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use stdchk_client::{Pool, Reader};
use stdchk_model::message::manager::Attr;
use stdchk_model::{ChunkId, ChunkMap, Extent, Failure, Source, size};

use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::paths::Target;
use crate::progress::Progress;
use crate::{namespace, output};

/// Ranges that are closer to each other than this are shown as one, bytes: a page.
const GAP_BYTES: u64 = 4096;
/// Bytes that are read and compared at once.
const COMPARE_BYTES: u64 = 1 << 20;
/// Lines that people get; JSON has all ranges.
const LINES_MAX: usize = 20;

/// What `diff` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
With one file its newest version is compared with the one before. Exit code 0 whether they differ or not.

Example:
  stdchk diff climate/restart.120000
  stdchk diff climate/restart.120000@1 climate/restart.120000@3
  stdchk diff climate/restart.120000 climate/restart.130000 --json")]
pub struct Arguments {
    /// The older file or version, APP/NAME[@VERSION]
    first: String,
    /// The newer one
    second: Option<String>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// One of the two sides.
struct Side {
    name: String,
    map: ChunkMap,
    /// It lies in a container, and the map is the container's.
    packed: bool,
    reader: Arc<Reader>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Range {
    offset: u64,
    length: u64,
}

#[derive(Serialize)]
struct Report {
    first: String,
    second: String,
    first_bytes: u64,
    second_bytes: u64,
    identical: bool,
    ranges: Vec<Range>,
    different_bytes: u64,
    shared_chunks: u64,
    chunks_only_in_first: u64,
    chunks_only_in_second: u64,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let pool = context.pool().await?;
    let (first, second) = sides(&pool, arguments).await?;
    let ranges = different(&first, &second, context.settings.quiet).await?;
    let report = report(&first, &second, ranges);
    match arguments.json {
        true => output::json(&report),
        false => print(&report),
    }
}

async fn sides(pool: &Pool, arguments: &Arguments) -> Outcome<(Side, Side)> {
    let first = Target::parse_entry(&arguments.first)?;
    if let Some(second) = &arguments.second {
        let second = Target::parse_entry(second)?;
        return Ok((side(pool, &first).await?, side(pool, &second).await?));
    }
    let (older, newer) =
        namespace::of_file(pool, &first, async |attr| previous(pool, &first, attr).await).await?;
    let at = |version| Target { version: Some(version), ..first.clone() };
    Ok((side(pool, &at(older)).await?, side(pool, &at(newer)).await?))
}

/// The version before the one that `target` names, and that one.
async fn previous(pool: &Pool, target: &Target, attr: Attr) -> Outcome<(u64, u64)> {
    let versions = namespace::kept_versions(pool, attr.ino).await.about(target.shown())?;
    let newest = target.version.unwrap_or(attr.version);
    let before = versions.iter().map(|info| info.version).filter(|version| *version < newest).max();
    let next = "name two files or versions";
    let none = || CommandError::new(Exit::NotFound, target.shown(), "there is no version before it", next);
    Ok((before.ok_or_else(none)?, newest))
}

async fn side(pool: &Pool, target: &Target) -> Outcome<Side> {
    let name = &target.shown();
    namespace::of_file(pool, target, async |attr: Attr| {
        let (info, map, _) = pool.chunk_map(attr.ino, target.version).await.about(name)?;
        // The version is pinned: a commit in between must not mix two of them.
        let version = target.version.or(info.as_ref().map(|info| info.version));
        let packed = info.is_some_and(|info| info.aggregated);
        let reader = pool.read(attr.ino, version).await.about(name)?;
        Ok(Side { name: name.clone(), map, packed, reader })
    })
    .await
}

/// The byte ranges that differ, in order.
async fn different(first: &Side, second: &Side, quiet: bool) -> Outcome<Vec<Range>> {
    let (short, long) = sizes(first, second);
    let candidates = match first.packed || second.packed {
        true if short > 0 => vec![Range { offset: 0, length: short }],
        true => Vec::new(),
        false => suspects(&first.map, &second.map),
    };
    let total = candidates.iter().map(|range| range.length).sum();
    let progress = Progress::start("diff", total, quiet);
    let mut ranges = Vec::new();
    for range in candidates {
        compare(first, second, range, &mut ranges)
            .await
            .about(format_args!("{} and {}", first.name, second.name))?;
        progress.add(range.length);
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
        let (Some((from_a, left_a)), Some((from_b, left_b))) = (a.at(offset), b.at(offset)) else { break };
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
        let length = usize::try_from(COMPARE_BYTES.min(end - offset)).unwrap_or(0);
        let (a, b) =
            tokio::try_join!(first.reader.read_at(offset, length), second.reader.read_at(offset, length))?;
        let length = a.len().min(b.len());
        if length == 0 {
            return Ok(());
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

fn report(first: &Side, second: &Side, ranges: Vec<Range>) -> Report {
    let (shared, only_first, only_second) = chunk_counts(&first.map, &second.map);
    Report {
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

fn print(report: &Report) -> Outcome {
    if report.identical {
        return output::line(format_args!("{} and {} are identical", report.first, report.second));
    }
    output::line(format_args!("--- {} ({} bytes)", report.first, report.first_bytes))?;
    output::line(format_args!("+++ {} ({} bytes)", report.second, report.second_bytes))?;
    for range in report.ranges.iter().take(LINES_MAX) {
        let last = range.offset + range.length - 1;
        output::line(format_args!("bytes {}-{last} ({})", range.offset, size::human(range.length)))?;
    }
    if let Some(more) = report.ranges.len().checked_sub(LINES_MAX).filter(|more| *more > 0) {
        output::line(format_args!("and {more} more ranges (--json has all)"))?;
    }
    output::line(format_args!(
        "{} in {} ranges; chunks: {} shared, {} only in the first, {} only in the second",
        size::human(report.different_bytes),
        report.ranges.len(),
        report.shared_chunks,
        report.chunks_only_in_first,
        report.chunks_only_in_second
    ))
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
