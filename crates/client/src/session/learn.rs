//! `cutter=auto`: after a commit, samples of the version before and of the new one are compared, and what they have in
//! common decides how the folder's next files are cut (`stdchk_reduce::learn`).
//!
//! Beside the path: in the background, one comparison at a time, of a few mebibytes. What was learned is noted with the
//! folder, for everyone to see, and learned anew every now and then.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use stdchk_model::message::manager::{Change, ManagerRequest, VersionInfo};
use stdchk_model::{Failure, OpId};
use stdchk_reduce::learn::{self, AUTO};

use super::Session;
use crate::map_view::MapView;

/// Samples of a version, and bytes of each: enough to tell five points of a hundred, little enough to read in passing.
const SAMPLES: u64 = 4;
const SAMPLE_BYTES: u64 = 1 << 20;
/// How much further the older version is looked at, before and behind a sample: bytes may have moved by as much.
const MARGIN_BYTES: u64 = 1 << 20;
/// After so many versions of a file what was learned is looked at again: programs change their ways.
const VERSIONS_BETWEEN: u64 = 16;

impl Session {
    /// Learns from a version that was just committed, where that is asked for and of use.
    pub(super) fn learn_from(self: &Arc<Self>, info: &VersionInfo) {
        let due = self.policy.learned.is_empty() || info.version.is_multiple_of(VERSIONS_BETWEEN);
        if self.policy.cutter != AUTO || !due {
            return;
        }
        let newer = Arc::clone(&self.state.lock().base);
        let session = Arc::clone(self);
        self.pool.background(async move {
            let Ok(_turn) = session.pool.learning.try_acquire() else { return };
            if let Err(failure) = session.learn(&newer).await {
                tracing::warn!(ino = %session.ino(), %failure, "nothing could be learned from a version");
            }
        });
    }

    async fn learn(&self, newer: &MapView) -> Result<(), Failure> {
        let older = match self.first.size() {
            0 => self.similar().await?.map(MapView::new).map(Arc::new),
            _ => Some(Arc::clone(&self.first)),
        };
        let Some(older) = older.filter(|older| older.size() > 0 && newer.size() > 0) else { return Ok(()) };
        let places = places(newer.size());
        let around: Vec<Range<u64>> = places.iter().map(|place| margin(place, older.size())).collect();
        let new = self.samples(newer, &places).await?;
        let old = self.samples(&older, &around).await?;
        let compared = tokio::task::spawn_blocking(move || {
            let old: Vec<&[u8]> = old.iter().map(AsRef::as_ref).collect();
            let new: Vec<&[u8]> = new.iter().map(AsRef::as_ref).collect();
            learn::compare(&old, &new)
        });
        let found = compared.await.map_err(|error| crate::internal(&error))?;
        let found = found.map_err(|error| crate::internal(&error))?;
        let cutter = learn::choose(&found);
        tracing::info!(ino = %self.ino(), ?found, cutter, "compared two versions");
        if cutter == self.policy.learned {
            return Ok(());
        }
        let change = Change::Learn { ino: self.ino(), cutter: cutter.to_owned() };
        let id = OpId(crate::random()?);
        self.pool.manager.ask(&ManagerRequest::Change { id, change }).await.map(drop)
    }

    async fn samples(&self, view: &MapView, places: &[Range<u64>]) -> Result<Vec<Bytes>, Failure> {
        let mut samples = Vec::with_capacity(places.len());
        for place in places {
            samples.push(self.pool.read_runs(view, place.clone()).await?);
        }
        Ok(samples)
    }
}

/// Where a file of this size is looked at: evenly spread, on the grid of whole samples; a small one everywhere.
fn places(size: u64) -> Vec<Range<u64>> {
    let step = (size / SAMPLES).max(SAMPLE_BYTES);
    let starts = (0..SAMPLES).map(|number| number * step / SAMPLE_BYTES * SAMPLE_BYTES);
    let place = |start: u64| start..(start + SAMPLE_BYTES).min(size);
    starts.map(place).filter(|place| !place.is_empty()).collect()
}

/// The place in the older version, with what lies around it.
fn margin(place: &Range<u64>, size: u64) -> Range<u64> {
    let end = place.end.saturating_add(MARGIN_BYTES).min(size);
    place.start.saturating_sub(MARGIN_BYTES).min(end)..end
}

#[cfg(test)]
mod tests {
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
        assert_eq!(margin(&(0..SAMPLE_BYTES), 10), 0..10);
        assert_eq!(margin(&(8 << 20..9 << 20), 1 << 20), 1 << 20..1 << 20);
    }
}
