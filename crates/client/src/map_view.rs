//! The content of a version: a chunk map that can be asked for any range of its file, or a place in a container.

use std::ops::Range;
use std::sync::Arc;

use stdchk_model::exact::narrow;
use stdchk_model::{ChunkMap, ChunkRef, Failure, Source};

use crate::container::PackedFile;

/// A run of file bytes: where it starts, how long it is, and the chunk and offset that hold it (`None`: zeros).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) source: Option<(ChunkRef, u32)>,
}

/// The content of a version: chunks, a file in a container, or nothing but a reason. The one can't be asked for what only the other has, so
/// whoever uses a version says what becomes of it in each case.
pub(crate) enum MapView {
    /// A chunk map of its own.
    Chunks(ChunkView),
    /// A place in a container: it has a size and bytes, and no runs.
    Packed(Arc<PackedFile>),
    /// Where its bytes are can't be told: it has a size, and may be written over.
    Unreadable {
        /// Bytes.
        size: u64,
        /// Why.
        failure: Failure,
    },
}

impl MapView {
    pub(crate) fn new(map: ChunkMap) -> Self {
        Self::Chunks(ChunkView::new(map))
    }

    /// `None`: it lies in a container, or can't be read.
    pub(crate) fn chunks(&self) -> Option<&ChunkView> {
        match self {
            Self::Chunks(chunks) => Some(chunks),
            Self::Packed(_) | Self::Unreadable { .. } => None,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Chunks(chunks) => chunks.size(),
            Self::Packed(file) => file.size(),
            Self::Unreadable { size, .. } => *size,
        }
    }

    /// The first run of data that ends behind `offset`, its neighbours joined to it; it may begin before `offset`. A container
    /// says where its files have holes. All of a file counts as data that can't be read.
    pub(crate) fn data_at(&self, offset: u64) -> Option<Range<u64>> {
        match self {
            Self::Chunks(chunks) => chunks.data_at(offset),
            Self::Packed(file) => file.data_at(offset),
            Self::Unreadable { .. } => (offset < self.size()).then(|| 0..self.size()),
        }
    }
}

/// A chunk map with the file offset of each extent.
#[derive(Default)]
pub(crate) struct ChunkView {
    map: ChunkMap,
    starts: Vec<u64>,
}

impl ChunkView {
    pub(crate) fn new(map: ChunkMap) -> Self {
        let starts = map.extents().iter().scan(0u64, |end, extent| {
            let start = *end;
            *end += extent.length;
            Some(start)
        });
        let starts = starts.collect();
        Self { map, starts }
    }

    pub(crate) fn map(&self) -> &ChunkMap {
        &self.map
    }

    pub(crate) fn size(&self) -> u64 {
        self.map.size()
    }

    /// The runs that cover `range`, clipped to it and to the file.
    pub(crate) fn runs(&self, range: Range<u64>) -> impl Iterator<Item = Run> + '_ {
        let first = self.starts.partition_point(|start| *start <= range.start).saturating_sub(1);
        let extents = self.map.extents().iter().zip(&self.starts).skip(first);
        let (from, to) = (range.start, range.end);
        extents.take_while(move |(_, start)| **start < to).filter_map(move |(extent, start)| {
            let (begin, end) = ((*start).max(from), (start + extent.length).min(to));
            if begin >= end {
                return None;
            }
            let source = match extent.source {
                Source::Hole => None,
                Source::Chunk { index, offset } => {
                    let within: u32 = narrow(begin - start);
                    Some((*self.map.chunk(index), offset + within))
                }
            };
            Some(Run { offset: begin, length: end - begin, source })
        })
    }

    /// The first run of data that ends behind `offset`: see [`MapView::data_at`].
    fn data_at(&self, offset: u64) -> Option<Range<u64>> {
        let mut data = self.runs(offset..self.size()).skip_while(|run| run.source.is_none());
        let first = data.next()?;
        let rest = data.take_while(|run| run.source.is_some());
        let end = rest.map(|run| run.offset + run.length).last();
        Some(first.offset..end.unwrap_or(first.offset + first.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stdchk_model::{ChunkId, Extent};

    fn view() -> ChunkView {
        let chunks = vec![
            ChunkRef { id: ChunkId([1; 32]), length: 10 },
            ChunkRef { id: ChunkId([2; 32]), length: 20 },
        ];
        let of = |index, offset, length| Extent { length, source: Source::Chunk { index, offset } };
        let hole = Extent { length: 5, source: Source::Hole };
        ChunkView::new(ChunkMap::new(chunks, [of(0, 0, 10), hole, of(1, 4, 16)]).unwrap())
    }

    #[test]
    fn runs_cover_exactly_the_range_within_the_file() {
        let view = view();
        for start in 0..33u64 {
            for end in start..40 {
                let mut at = start;
                for run in view.runs(start..end) {
                    assert_eq!(run.offset, at);
                    at += run.length;
                }
                assert_eq!(at, end.min(31).max(start.min(at)), "{start}..{end}");
            }
        }
    }

    #[test]
    fn a_run_knows_its_place_in_the_chunk() {
        let runs: Vec<Run> = view().runs(12..20).collect();
        assert_eq!(runs[0].source, None);
        assert_eq!(runs[1].source.map(|(chunk, offset)| (chunk.id.0[0], offset)), Some((2, 4)));
        assert_eq!((runs[1].offset, runs[1].length), (15, 5));
    }
}
