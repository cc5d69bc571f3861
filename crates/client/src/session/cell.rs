//! A cell of a file being written: a buffer with the ranges that were written, over what the cell held before.

use std::ops::Range;
use std::sync::Arc;
use tokio::time::Instant;

use bytes::{Bytes, BytesMut};
use stdchk_model::Failure;
use stdchk_model::exact::{part, part_mut};
use stdchk_net::Buffer;
use tokio::sync::OwnedSemaphorePermit;

use super::sealed::Sealed;
use crate::map_view::MapView;
use crate::pool::Inner;

/// Sizes of buffers for cells that have only been begun, bytes: many small files must fit into the window.
const BEGUN_BYTES: [usize; 2] = [64 << 10, 256 << 10];

/// Size of the buffer for a cell whose first `end` bytes are needed.
pub(super) fn capacity_for(end: usize, cell_bytes: usize) -> usize {
    BEGUN_BYTES.into_iter().find(|bytes| end <= *bytes).unwrap_or(cell_bytes).clamp(end, cell_bytes)
}

/// Memory of the window, with the session's share of it.
#[derive(Debug)]
pub(super) struct Held {
    buffer: Buffer,
    share: OwnedSemaphorePermit,
}

impl Held {
    pub(super) fn new(buffer: Buffer, share: OwnedSemaphorePermit) -> Self {
        Self { buffer, share }
    }

    /// All bytes of the buffer.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        // The share is only held; it is given back when this is dropped.
        let _ = &self.share;
        &self.buffer
    }
}

/// A cell.
pub(super) enum Cell {
    /// Being written.
    Dirty(Dirty),
    /// On its way to benefactors, or there.
    Sealed(Arc<Sealed>),
}

/// What a cell held before it was written to: its first `limit` bytes count, behind them it is zeros.
#[derive(Clone)]
pub(super) struct Under {
    source: UnderSource,
    limit: usize,
}

#[derive(Clone)]
enum UnderSource {
    Base { view: Arc<MapView>, start: u64 },
    Sealed(Arc<Sealed>),
}

impl Under {
    pub(super) fn base(view: Arc<MapView>, start: u64, limit: usize) -> Self {
        Self { source: UnderSource::Base { view, start }, limit }
    }

    pub(super) fn sealed(sealed: Arc<Sealed>) -> Self {
        Self { limit: sealed.length(), source: UnderSource::Sealed(sealed) }
    }

    /// The bytes of `range`, zeros behind the limit.
    async fn read(&self, pool: &Inner, range: Range<usize>) -> Result<Bytes, Failure> {
        let known = range.start..range.end.min(self.limit);
        if known.is_empty() {
            return Ok(pool.zeros(range.len()));
        }
        let bytes = match &self.source {
            UnderSource::Base { view, start } => {
                pool.read_runs(view, start + known.start as u64..start + known.end as u64).await?
            }
            UnderSource::Sealed(sealed) => sealed.read(pool, known.clone()).await?,
        };
        assert_eq!(bytes.len(), known.len(), "what lies below has all bytes up to its limit");
        Ok(match range.end - known.end {
            0 => bytes,
            missing => super::join(vec![bytes, pool.zeros(missing)]),
        })
    }
}

/// A cell being written.
pub(super) struct Dirty {
    held: Option<Held>,
    /// Written ranges, in order, apart from each other.
    written: Vec<Range<usize>>,
    under: Under,
    begun: Instant,
    /// Its part of what may be held back, while it is.
    held_back: Option<OwnedSemaphorePermit>,
}

impl Dirty {
    pub(super) fn new(held: Option<Held>, under: Under) -> Self {
        Self { held, written: Vec::new(), under, begun: Instant::now(), held_back: None }
    }

    /// A cell of which the first `length` bytes are written.
    pub(super) fn filled(held: Held, length: usize, under: Under) -> Self {
        let mut dirty = Self::new(Some(held), under);
        dirty.add(0..length);
        dirty
    }

    /// The cell is full and not sent yet.
    pub(super) fn hold_back(&mut self, room: OwnedSemaphorePermit) {
        self.held_back = Some(room);
    }

    pub(super) fn is_held_back(&self) -> bool {
        self.held_back.is_some()
    }

    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    pub(super) fn holds_window(&self) -> bool {
        self.held.is_some()
    }

    /// Bytes of the cell up to the last that is known; behind them it is zeros.
    pub(super) fn length(&self) -> usize {
        self.written.last().map_or(0, |last| last.end).max(self.under.limit)
    }

    /// Copies `data` to `within`; false if the buffer is too small for it.
    pub(super) fn write(&mut self, within: usize, data: &[u8]) -> bool {
        let range = within..within + data.len();
        let Some(held) = &mut self.held else { return false };
        if !held.buffer.set_len(held.buffer.len().max(range.end)) {
            return false;
        }
        part_mut(&mut held.buffer, range.clone()).copy_from_slice(data);
        self.add(range);
        true
    }

    fn add(&mut self, mut range: Range<usize>) {
        let first = self.written.partition_point(|old| old.end < range.start);
        let last = self.written.partition_point(|old| old.start <= range.end);
        for old in part(&self.written, first..last) {
            range = range.start.min(old.start)..range.end.max(old.end);
        }
        self.written.splice(first..last, [range]);
    }

    pub(super) fn is_full(&self, cell_bytes: usize) -> bool {
        matches!(self.written.as_slice(), [only] if only.start == 0 && only.end >= cell_bytes)
    }

    /// Takes a larger buffer, or a first one.
    pub(super) fn provide(&mut self, mut held: Held) {
        if let Some(old) = &self.held {
            if held.buffer.capacity() <= old.buffer.capacity() {
                return;
            }
            held.buffer.set_len(old.buffer.len());
            held.buffer.copy_from_slice(&old.buffer);
        } else {
            held.buffer.set_len(0);
        }
        self.held = Some(held);
    }

    /// Forgets all behind `length`.
    pub(super) fn truncate(&mut self, length: usize) {
        self.under.limit = self.under.limit.min(length);
        self.written.retain(|range| range.start < length);
        if let Some(last) = self.written.last_mut() {
            last.end = last.end.min(length);
        }
    }

    /// What a read of `length` bytes at `within` sees: copies of what was written, and the rest of what is under it.
    pub(super) fn view(&self, within: usize, length: usize) -> View {
        let wanted = within..within + length;
        let common = |range: &Range<usize>| range.start.max(wanted.start)..range.end.min(wanted.end);
        // What is written is in the buffer; without a buffer nothing is.
        let held = self.held.as_ref().map_or(&[][..], |held| &held.buffer);
        let seen = self.written.iter().map(common).filter(|range| !range.is_empty());
        let written = seen.map(|range| (range.start, Bytes::copy_from_slice(part(held, range)))).collect();
        View { wanted: wanted.clone(), written, under: self.under.clone() }
    }

    /// The whole content of the cell, gaps filled from below.
    pub(super) async fn complete(mut self, pool: &Inner) -> Result<Bytes, Failure> {
        let length = self.length();
        let Some(mut held) = self.held.take_if(|held| held.buffer.set_len(length)) else {
            // Only truncated, or begun in a small buffer.
            let view = self.view(0, length);
            drop(self);
            return view.read(pool).await;
        };
        for gap in gaps(&self.written, length) {
            let bytes = self.under.read(pool, gap.clone()).await?;
            part_mut(&mut held.buffer, gap).copy_from_slice(&bytes);
        }
        // The share of the window returns with the last of these bytes.
        Ok(Bytes::from_owner(held))
    }
}

fn gaps(written: &[Range<usize>], length: usize) -> Vec<Range<usize>> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in written {
        if range.start > at {
            gaps.push(at..range.start);
        }
        at = range.end;
    }
    if at < length {
        gaps.push(at..length);
    }
    gaps
}

/// A consistent picture of a part of a cell, taken at one moment and read without holding the session.
pub(super) struct View {
    wanted: Range<usize>,
    written: Vec<(usize, Bytes)>,
    under: Under,
}

impl View {
    pub(super) fn under(under: Under, within: usize, length: usize) -> Self {
        Self { wanted: within..within + length, written: Vec::new(), under }
    }

    pub(super) async fn read(self, pool: &Inner) -> Result<Bytes, Failure> {
        match self.written.as_slice() {
            [] => self.under.read(pool, self.wanted).await,
            [(start, bytes)] if *start == self.wanted.start && bytes.len() == self.wanted.len() => {
                Ok(bytes.clone())
            }
            _ => self.assemble(pool).await,
        }
    }

    async fn assemble(self, pool: &Inner) -> Result<Bytes, Failure> {
        let mut all = BytesMut::zeroed(self.wanted.len());
        let mut put = |at: usize, bytes: &[u8]| {
            let start = at - self.wanted.start;
            part_mut(&mut all, start..start + bytes.len()).copy_from_slice(bytes);
        };
        let known = self.wanted.start..self.under.limit.clamp(self.wanted.start, self.wanted.end);
        if !known.is_empty() {
            put(known.start, &self.under.read(pool, known.clone()).await?);
        }
        self.written.iter().for_each(|(at, bytes)| put(*at, bytes));
        Ok(all.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_ranges_merge() {
        let view = Arc::new(MapView::new(stdchk_model::ChunkMap::default()));
        let mut dirty = Dirty::new(None, Under::base(view, 0, 0));
        for range in [10..20, 30..40, 20..25, 0..5, 24..31, 100..100] {
            if !range.is_empty() {
                dirty.add(range);
            }
        }
        assert_eq!(dirty.written, [0..5, 10..40]);
        assert_eq!(gaps(&dirty.written, 50), [5..10, 40..50]);
        dirty.truncate(12);
        assert_eq!(dirty.written, [0..5, 10..12]);
        assert!(!dirty.is_full(12));
        dirty.add(5..10);
        assert!(dirty.is_full(12));
    }

    #[test]
    fn buffers_of_begun_cells_are_small() {
        let cell = 1 << 20;
        assert_eq!(capacity_for(1, cell), 64 << 10);
        assert_eq!(capacity_for(100_000, cell), 256 << 10);
        assert_eq!(capacity_for(300_000, cell), cell);
        assert_eq!(capacity_for(4096, 4096), 4096);
    }
}
