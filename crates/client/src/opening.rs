//! Opening a version: from the manager's answer, the root of a chunk map, to the map.
//!
//! A reader waits for this before its first byte, so the chunks that hold a large map are fetched together, and each is
//! copied and let go as it arrives: a map may be larger than the memory for answers under way.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use stdchk_model::chunk_map::BadChunkMap;
use stdchk_model::exact::part_mut;
use stdchk_model::limits::MAP_BYTES_MAX;
use stdchk_model::message::manager::{Attr, ManagerReply, ManagerRequest, VersionInfo};
use stdchk_model::{ChunkMap, ChunkRef, ErrorCode, Failure, Ino, MapRoot};
use tokio::task::JoinSet;

use crate::container::PackedFile;
use crate::map_view::MapView;
use crate::pool::Inner;
use crate::reader::Reader;

/// Chunks of one map that are fetched at the same time: those of a gibibyte in scattered pages of 4 KiB.
const MAP_FETCHES_MAX: usize = 8;

impl Inner {
    pub(crate) async fn read_version(
        self: &Arc<Self>,
        ino: Ino,
        version: Option<u64>,
    ) -> Result<Arc<Reader>, Failure> {
        let (info, root, attr) = self.open_version(ino, version).await?;
        let view = self.load_view(root.as_ref()).await?;
        Ok(Arc::new(Reader::new(Arc::clone(self), info, attr, (root, Arc::new(view)))))
    }

    pub(crate) async fn open_version(
        &self,
        ino: Ino,
        version: Option<u64>,
    ) -> Result<(Option<VersionInfo>, Option<MapRoot>, Attr), Failure> {
        self.opened.store(true, Ordering::Relaxed);
        match self
            .manager
            .ask(&ManagerRequest::OpenVersion { ino, version, client: Some(self.client) })
            .await?
        {
            ManagerReply::Version { info, root, attr, .. } => Ok((info, root, attr)),
            _ => Err(crate::unexpected("OpenVersion")),
        }
    }

    /// What a root leads to: a chunk map, or a file in a container; nothing for a file that was never committed.
    pub(crate) async fn load_view(self: &Arc<Self>, root: Option<&MapRoot>) -> Result<MapView, Failure> {
        let place = root.map(MapRoot::in_container).transpose().map_err(|error| bad_map(&error))?;
        match place.flatten() {
            Some(place) => PackedFile::open(self, &place).await.map(MapView::Packed),
            None => self.load_map(root).await.map(MapView::new),
        }
    }

    /// The chunk map at a root; the empty one for a file that was never committed.
    pub(crate) async fn load_map(self: &Arc<Self>, root: Option<&MapRoot>) -> Result<ChunkMap, Failure> {
        let encoded = match root {
            None => return Ok(ChunkMap::default()),
            Some(MapRoot::Inline { map }) => Bytes::copy_from_slice(map),
            Some(MapRoot::Pieces { pieces, length }) => self.load_pieces(pieces, *length).await?,
        };
        ChunkMap::decode(&encoded).map_err(|error| bad_map(&error))
    }

    async fn load_pieces(self: &Arc<Self>, pieces: &[ChunkRef], length: u64) -> Result<Bytes, Failure> {
        let total: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        if total != length || length > MAP_BYTES_MAX {
            return Err(Failure::new(ErrorCode::Damaged, "the pieces of the chunk map don't fit together"));
        }
        self.fetcher.locate(pieces.iter().map(|piece| piece.id)).await?;
        let pool = Arc::clone(self);
        together(pieces, |piece| {
            let pool = Arc::clone(&pool);
            async move { pool.fetcher.fetch(piece).await }
        })
        .await
    }
}

/// The bytes of these chunks, one behind the other, fetched [`MAP_FETCHES_MAX`] at a time.
async fn together<F>(chunks: &[ChunkRef], fetch: impl Fn(ChunkRef) -> F) -> Result<Bytes, Failure>
where
    F: Future<Output = Result<Bytes, Failure>> + Send + 'static,
{
    let mut all = BytesMut::zeroed(chunks.iter().map(|chunk| chunk.length as usize).sum());
    let mut waiting = chunks.iter().scan(0, |end, chunk| {
        let start = *end;
        *end += chunk.length as usize;
        Some((start, *chunk))
    });
    let mut fetches = JoinSet::new();
    loop {
        while fetches.len() < MAP_FETCHES_MAX
            && let Some((start, chunk)) = waiting.next()
        {
            let fetched = fetch(chunk);
            fetches.spawn(async move { fetched.await.map(|bytes| (start, bytes)) });
        }
        let Some(fetched) = fetches.join_next().await else { return Ok(all.freeze()) };
        let (start, bytes) = fetched.map_err(|error| crate::internal(&error))??;
        part_mut(&mut all, start..start + bytes.len()).copy_from_slice(&bytes);
    }
}

pub(crate) fn bad_map(error: &BadChunkMap) -> Failure {
    Failure::new(ErrorCode::Damaged, error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use stdchk_model::ChunkId;
    use tokio::sync::Barrier;

    use super::*;

    /// The content of the chunk of this length.
    fn content(length: u32) -> Vec<u8> {
        vec![u8::try_from(length).unwrap(); length as usize]
    }

    fn chunks(count: u32) -> Vec<ChunkRef> {
        (1..=count).map(|length| ChunkRef { id: ChunkId::of(&content(length)), length }).collect()
    }

    #[tokio::test]
    async fn so_many_chunks_are_fetched_together_and_no_more_and_stand_in_their_order() {
        let chunks = chunks(24);
        assert!(chunks.len().is_multiple_of(MAP_FETCHES_MAX));
        // Nobody is answered before as many have asked as may ask at the same time.
        let (all_ask, asking) = (Arc::new(Barrier::new(MAP_FETCHES_MAX)), Arc::new(AtomicUsize::new(0)));
        let fetched = together(&chunks, |chunk| {
            let (all_ask, asking) = (Arc::clone(&all_ask), Arc::clone(&asking));
            async move {
                assert!(asking.fetch_add(1, Ordering::AcqRel) < MAP_FETCHES_MAX);
                all_ask.wait().await;
                asking.fetch_sub(1, Ordering::AcqRel);
                Ok(Bytes::from(content(chunk.length)))
            }
        });
        let fetched = tokio::time::timeout(Duration::from_secs(60), fetched).await;
        let expected: Vec<u8> = (1..=24).flat_map(content).collect();
        assert_eq!(fetched.expect("one waits for another").unwrap(), expected);
    }

    #[tokio::test]
    async fn a_chunk_that_cannot_be_had_fails_the_map() {
        let lost = Failure::new(ErrorCode::Damaged, "lost");
        let chunks = chunks(20);
        let fetched = together(&chunks, |chunk| {
            let bytes = Bytes::from(content(chunk.length));
            let answer = if chunk.length == 13 { Err(lost.clone()) } else { Ok(bytes) };
            async move { answer }
        });
        assert_eq!(fetched.await.unwrap_err().code, ErrorCode::Damaged);
    }
}
