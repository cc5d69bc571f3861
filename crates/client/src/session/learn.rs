//! `cutter=auto`: after a commit, samples of the version before and of the new one are compared, and what they have in
//! common decides how the folder's next files are cut (`stdchk_reduce::learn`).
//!
//! Where to look in the older version: around the places of the samples, for what stayed, and wherever the session found
//! their bytes, for what moved: the two chunk maps say that without a byte being read. A session that didn't look for
//! content can't say it, so that what lies further around is read in its stead.
//!
//! Beside the path: in the background, one comparison at a time. It reads and hashes at most 4 MiB of the new version and 24 MiB
//! of the older one, or 68 MiB where the session didn't look for content, and keeps 8 MiB of them in memory. What was learned
//! is noted with the folder, for everyone to see, and learned anew every now and then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use stdchk_model::message::manager::{Change, ManagerRequest, VersionInfo};
use stdchk_model::{ChunkId, Failure, OpId, SessionId};
use stdchk_reduce::is_zero;
use stdchk_reduce::learn::{self, AUTO, Comparison};

use super::Session;
use crate::map_view::{ChunkView, MapView};

/// Samples of a version, and bytes of each: enough to tell five points of a hundred, little enough to read in passing.
/// Of the older version whole blocks of as many bytes are looked at.
const SAMPLES: u64 = 4;
const SAMPLE_BYTES: u64 = 1 << 20;
/// How many blocks the older version is looked at before and behind each sample: as a rule, and where the session
/// can't tell what moved further.
const MARGIN_BLOCKS: (u64, u64) = (1, 8);
/// Blocks that are looked at for one sample because the session found bytes of it there: what moved as a whole lies in two.
const FOUND_BLOCKS_MAX: usize = 3;
/// Runs of a sample whose places in the older version are sought: all but those of content that is scattered page by page.
const RUNS_SOUGHT_MAX: usize = 64;
/// Blocks that are read together: as many as a cell has, so that few pieces are lost at the ends.
const STRETCH_BLOCKS_MAX: u64 = 4;
/// After so many versions of a file, or files, what was learned is looked at again: programs change their ways.
const VERSIONS_BETWEEN: u64 = 16;

impl Session {
    /// Learns from a version that was just committed, where that is asked for and of use. A file of less than one sample says
    /// nothing of those that matter, and one that is committed again and again no more each time, unless it has become
    /// twice as large.
    pub(super) fn learn_from(self: &Arc<Self>, info: &VersionInfo) {
        let due = self.policy.learned.is_empty() || is_looked_at_again(self.id, info.version);
        let size = info.size;
        let is_more = size / 2 >= self.learned_at.load(Ordering::Relaxed);
        if self.policy.cutter != AUTO || size < SAMPLE_BYTES || !due || !is_more {
            return;
        }
        let newer = Arc::clone(&self.state.lock().base);
        let session = Arc::clone(self);
        self.pool.background(async move {
            let Ok(_turn) = session.pool.learning.try_acquire() else { return };
            session.learned_at.store(size, Ordering::Relaxed);
            if let Err(failure) = session.learn(&newer).await {
                tracing::warn!(ino = %session.ino(), %failure, "nothing could be learned from a version");
            }
        });
    }

    async fn learn(&self, newer: &Arc<MapView>) -> Result<(), Failure> {
        let older = match self.first.size() {
            0 => self.similar().await?.map(MapView::new).map(Arc::new),
            _ => Some(Arc::clone(&self.first)),
        };
        let Some(older) = older.filter(|older| older.size() >= SAMPLE_BYTES) else { return Ok(()) };
        let found = self.compare(&older, newer).await?;
        if found.is_empty() {
            return Ok(());
        }
        let cutter = learn::choose(&found);
        tracing::info!(ino = %self.ino(), ?found, cutter, "compared two versions");
        if cutter == self.policy.learned {
            return Ok(());
        }
        let change = Change::Learn { ino: self.ino(), cutter: cutter.to_owned() };
        let id = OpId(crate::random()?);
        self.pool.manager.ask(&ManagerRequest::Change { id, change }).await.map(drop)
    }

    /// What each candidate finds; nothing where the samples are zeros, which say nothing.
    async fn compare(
        &self,
        older: &Arc<MapView>,
        newer: &Arc<MapView>,
    ) -> Result<Vec<learn::Found>, Failure> {
        let samples = places(newer.size());
        let mut blocks = around(&samples, older.size(), self.margin(older));
        let (maps, sought) = ((Arc::clone(older), Arc::clone(newer)), samples.clone());
        let moved = aside(move || match (maps.0.chunks(), maps.1.chunks()) {
            (Some(older), Some(newer)) => found_in(older, newer, &sought),
            // Of a file in a container no chunk can be found again.
            _ => BTreeSet::new(),
        });
        blocks.extend(moved.await?);
        let mut comparison = Comparison::new().map_err(|error| crate::internal(&error))?;
        for stretch in stretches(&blocks) {
            let end = (stretch.end * SAMPLE_BYTES).min(older.size());
            let bytes = self.pool.read_runs(older, stretch.start * SAMPLE_BYTES..end).await?;
            comparison = aside(move || {
                comparison.add(&bytes);
                comparison
            })
            .await?;
        }
        let mut new: Vec<Bytes> = Vec::new();
        for sample in samples {
            new.push(self.pool.read_runs(newer, sample).await?);
        }
        if new.iter().all(|sample| is_zero(sample)) {
            return Ok(Vec::new());
        }
        aside(move || comparison.found(&new.iter().map(AsRef::as_ref).collect::<Vec<_>>())).await
    }

    /// How far the older version is looked at around the samples, blocks.
    fn margin(&self, older: &MapView) -> u64 {
        let limits = self.cutter.limits();
        let has_names = older
            .chunks()
            .is_some_and(|older| !older.map().pieces().is_empty() || older.map().lists().next().is_some());
        match limits.min != limits.max && has_names {
            true => MARGIN_BLOCKS.0,
            false => MARGIN_BLOCKS.1,
        }
    }
}

/// One version in sixteen; of files that are written once, about one file in sixteen, by the session's random name.
fn is_looked_at_again(session: SessionId, version: u64) -> bool {
    let number = if version == 1 { u64::from(session.0[0]) } else { version };
    number.is_multiple_of(VERSIONS_BETWEEN)
}

/// Does what takes a while where nobody waits for it.
async fn aside<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> Result<R, Failure> {
    stdchk_net::elsewhere(work).await.map_err(|error| crate::internal(&error))
}

/// Where a file of this size is looked at: evenly spread, on the grid of whole samples; a small one everywhere.
fn places(size: u64) -> Vec<Range<u64>> {
    let step = (size / SAMPLES).max(SAMPLE_BYTES);
    let starts = (0..SAMPLES).map(|number| number * step / SAMPLE_BYTES * SAMPLE_BYTES);
    let place = |start: u64| start..(start + SAMPLE_BYTES).min(size);
    starts.map(place).filter(|place| !place.is_empty()).collect()
}

/// The blocks of an older version of this size at the places of the samples, and so many before and behind each.
fn around(samples: &[Range<u64>], size: u64, margin: u64) -> BTreeSet<u64> {
    let blocks = samples.iter().map(|sample| sample.start / SAMPLE_BYTES);
    let around = blocks.flat_map(|block| block.saturating_sub(margin)..=block + margin);
    around.filter(|block| block * SAMPLE_BYTES < size).collect()
}

/// The blocks of the older version in which the session found most of what the samples hold.
fn found_in(older: &ChunkView, newer: &ChunkView, samples: &[Range<u64>]) -> BTreeSet<u64> {
    let sought: Vec<Sought> = samples.iter().map(|sample| Sought::new(newer, sample)).collect();
    let mut weights: Vec<BTreeMap<u64, u64>> = vec![BTreeMap::new(); samples.len()];
    for run in older.runs(0..older.size()) {
        let Some((chunk, offset)) = run.source else { continue };
        let held = u64::from(offset)..u64::from(offset) + run.length;
        for (sought, weights) in sought.iter().zip(&mut weights) {
            for part in sought.in_chunk(chunk.id, &held) {
                let start = run.offset + part.start - held.start;
                add_weight(weights, start..start + (part.end - part.start));
            }
        }
    }
    weights.into_iter().flat_map(heaviest).collect()
}

/// The parts of chunks that a sample consists of.
struct Sought(HashMap<ChunkId, Vec<Range<u64>>>);

impl Sought {
    fn new(newer: &ChunkView, sample: &Range<u64>) -> Self {
        let runs: Vec<_> = newer.runs(sample.clone()).collect();
        let mut parts: HashMap<ChunkId, Vec<Range<u64>>> = HashMap::new();
        for run in runs.iter().step_by(runs.len().div_ceil(RUNS_SOUGHT_MAX).max(1)) {
            if let Some((chunk, offset)) = run.source {
                let start = u64::from(offset);
                parts.entry(chunk.id).or_default().push(start..start + run.length);
            }
        }
        Self(parts)
    }

    /// What of them lies in this part of a chunk.
    fn in_chunk(&self, chunk: ChunkId, held: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let parts = self.0.get(&chunk).into_iter().flatten();
        let common = move |part: &Range<u64>| part.start.max(held.start)..part.end.min(held.end);
        parts.map(common).filter(|part| !part.is_empty())
    }
}

/// Counts the bytes of a range for the blocks in which they lie.
fn add_weight(weights: &mut BTreeMap<u64, u64>, range: Range<u64>) {
    let mut at = range.start;
    while at < range.end {
        let block = at / SAMPLE_BYTES;
        let end = range.end.min((block + 1) * SAMPLE_BYTES);
        *weights.entry(block).or_default() += end - at;
        at = end;
    }
}

fn heaviest(weights: BTreeMap<u64, u64>) -> impl Iterator<Item = u64> {
    let mut blocks: Vec<(u64, u64)> = weights.into_iter().collect();
    blocks.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    blocks.into_iter().take(FOUND_BLOCKS_MAX).map(|(block, _)| block)
}

/// Blocks that follow each other, in stretches of a few.
fn stretches(blocks: &BTreeSet<u64>) -> Vec<Range<u64>> {
    let mut stretches: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match stretches.last_mut() {
            Some(last) if last.end == *block && last.end - last.start < STRETCH_BLOCKS_MAX => last.end += 1,
            _ => stretches.push(*block..block + 1),
        }
    }
    stretches
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

    use stdchk_model::{ChunkMap, ChunkRef, Extent, Source};

    use super::*;

    #[test]
    fn samples_lie_on_the_grid_within_the_file_and_apart_from_each_other() {
        for size in [1, 4096, SAMPLE_BYTES, SAMPLE_BYTES + 1, 5 << 20, 1 << 30] {
            let places = places(size);
            assert!(
                places.iter().all(|place| place.start % SAMPLE_BYTES == 0 && place.end <= size),
                "{size}"
            );
            assert!(places.windows(2).all(|two| two[0].end <= two[1].start), "{size}: {places:?}");
            let covered: u64 = places.iter().map(|place| place.end - place.start).sum();
            assert_eq!(covered, size.min(SAMPLES * SAMPLE_BYTES), "{size}");
        }
    }

    #[test]
    fn one_version_in_sixteen_is_looked_at_again_and_one_file_in_sixteen_where_each_has_a_single_version() {
        let versions = (1..=64).filter(|version| is_looked_at_again(SessionId([1; 16]), *version));
        assert_eq!(versions.collect::<Vec<_>>(), [16, 32, 48, 64]);
        let first = (0..=255).filter(|byte| is_looked_at_again(SessionId([*byte; 16]), 1));
        assert_eq!(first.count(), 16);
    }

    #[test]
    fn the_older_version_is_looked_at_around_the_samples_as_far_as_it_goes() {
        let samples = places(40 << 20);
        assert_eq!(samples.iter().map(|sample| sample.start >> 20).collect::<Vec<_>>(), [0, 10, 20, 30]);
        let blocks = |size, margin| around(&samples, size, margin).into_iter().collect::<Vec<_>>();
        assert_eq!(blocks(40 << 20, 1), [0, 1, 9, 10, 11, 19, 20, 21, 29, 30, 31]);
        assert_eq!(blocks((10 << 20) + 1, 1), [0, 1, 9, 10]);
        assert_eq!(blocks(40 << 20, 8), (0..39).collect::<Vec<_>>());
        assert!(blocks(0, 8).is_empty());
        assert_eq!(stretches(&around(&samples, 10 << 20, 8)), [0..4, 4..8, 8..10]);
    }

    fn chunk(number: u8) -> ChunkRef {
        ChunkRef { id: ChunkId([number; 32]), length: 4 << 20 }
    }

    fn view(extents: &[(u32, u32, u64)]) -> ChunkView {
        let extent = |(index, offset, length): &(u32, u32, u64)| Extent {
            length: *length,
            source: Source::Chunk { index: *index, offset: *offset },
        };
        ChunkView::new(ChunkMap::new((0..8).map(chunk).collect(), extents.iter().map(extent)).unwrap())
    }

    #[test]
    fn what_moved_is_looked_at_where_the_session_found_it() {
        let whole = |index| (index, 0, 4 << 20);
        let older = view(&[whole(0), whole(1), whole(2), whole(3)]);
        // Nine mebibytes and a half are inserted at the front: chunks 4, 5 and 6.
        let newer = view(&[whole(4), whole(5), (6, 0, 3 << 19), whole(0), whole(1)]);
        let found = |sample: u64| {
            let sample = sample << 20..(sample + 1) << 20;
            found_in(&older, &newer, &[sample]).into_iter().collect::<Vec<_>>()
        };
        assert!(found(3).is_empty(), "it is new");
        assert_eq!(found(9), [0], "half of it is new");
        assert_eq!(found(10), [0, 1]);
        assert_eq!(found(16), [6, 7]);
    }

    #[test]
    fn of_what_is_scattered_the_heaviest_blocks_are_looked_at() {
        let pages = 1u32 << 8;
        let older = view(&[(0, 0, 4 << 20), (1, 0, 4 << 20), (2, 0, 4 << 20)]);
        // Page after page from another chunk, each with holes between, so that no two are one run.
        let extents: Vec<_> = (0..pages).map(|page| (page % 3, page << 13, 4096)).collect();
        let newer = view(&extents);
        let found = found_in(&older, &newer, &places(SAMPLE_BYTES));
        assert_eq!(found.len(), FOUND_BLOCKS_MAX);
    }
}
