//! Files that lie in containers of the pool: their bytes are decoded where they are read, a block at a time.
//!
//! A container is read like a file, chunk by chunk and verified, and opened once for all readers of its files. Decoding is
//! work for a processor, so it runs on threads of its own, a few at a time; decoded blocks are kept within a budget (I8).

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_aggregate::{AggregateError, BlockCache, Container};
use stdchk_formats::{Extent, Source};
use stdchk_model::exact::first;
use stdchk_model::{ChunkId, ErrorCode, Failure, InContainer, cbor};
use stdchk_net::waits::permits;
use tokio::sync::{OnceCell, Semaphore};

use crate::aggregation::fill;
use crate::map_view::ChunkView;
use crate::pool::Inner;

/// Largest block of a container in a pool, bytes: that of a chunk. Who reads a few bytes of one file decodes one block, of
/// which other ranks' variables may be the larger part.
pub(crate) const BLOCK_BYTES_MAX: u64 = 1 << 20;
/// Memory for decoded blocks, bytes: as much as for chunks that were read.
const DECODED_BYTES_MAX: u64 = 32 << 20;
/// Blocks being decoded at one time: each takes seven times its own length, a mebibyte as the aggregator makes them.
const DECODES_MAX: usize = 4;

type Slot = OnceCell<Opened>;

/// A container, and whether some of it could not be read when it was opened.
struct Opened {
    container: Arc<Container>,
    is_partial: bool,
}

/// The containers that readers have open, and what they share.
pub(crate) struct Containers {
    open: Mutex<HashMap<ChunkId, Weak<Slot>>>,
    decoded: Arc<BlockCache>,
    turns: Arc<Semaphore>,
}

impl Containers {
    pub(crate) fn new() -> Self {
        Self {
            open: Mutex::default(),
            decoded: Arc::new(BlockCache::new(DECODED_BYTES_MAX)),
            turns: Arc::new(Semaphore::new(DECODES_MAX)),
        }
    }

    fn slot(&self, key: ChunkId) -> Arc<Slot> {
        let mut open = self.open.lock();
        if let Some(slot) = open.get(&key).and_then(Weak::upgrade) {
            return slot;
        }
        open.retain(|_, slot| slot.strong_count() > 0);
        let slot = Arc::new(Slot::new());
        open.insert(key, Arc::downgrade(&slot));
        slot
    }

    /// The next reader opens the container again.
    fn forget(&self, slot: &Arc<Slot>) {
        self.open.lock().retain(|_, known| !Weak::ptr_eq(known, &Arc::downgrade(slot)));
    }
}

/// One file of an open container.
pub(crate) struct PackedFile {
    container: Arc<Container>,
    /// Keeps the container open for the readers of its other files.
    _slot: Arc<Slot>,
    file: usize,
    size: u64,
}

impl PackedFile {
    pub(crate) async fn open(pool: &Arc<Inner>, place: &InContainer) -> Result<Arc<Self>, Failure> {
        let slot = pool.containers.slot(ChunkId::of(&cbor::encode(&place.container)));
        let opened = slot.get_or_try_init(|| open_container(pool, place)).await?;
        if opened.is_partial {
            // What counts as lost now may be there again when the next one looks.
            pool.containers.forget(&slot);
        }
        let container = Arc::clone(&opened.container);
        let file = place.file as usize;
        if container.files().nth(file).map(|(_, size)| size) != Some(place.size) {
            return Err(Failure::new(
                ErrorCode::Damaged,
                "the container doesn't hold the file that it should",
            ));
        }
        Ok(Arc::new(Self { container, _slot: slot, file, size: place.size }))
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The first run that isn't known to be zeros and ends behind `offset`.
    pub(crate) fn data_at(&self, offset: u64) -> Option<Range<u64>> {
        self.container.data_at(self.file, offset).map(|data| data.offset..data.end())
    }

    /// The bytes of a range, which lies within the file.
    pub(crate) async fn read(&self, pool: &Inner, range: Range<u64>) -> Result<Bytes, Failure> {
        let turn = permits(&pool.containers.turns, 1).await;
        let (container, file) = (Arc::clone(&self.container), self.file);
        let extent = Extent { offset: range.start, length: range.end - range.start };
        let reading = pool.runtime.spawn_blocking(move || {
            let _turn = turn;
            let mut bytes = Vec::new();
            container.read(file, extent, &mut bytes).map(|()| Bytes::from(bytes))
        });
        reading.await.map_err(|error| crate::internal(&error))?.map_err(failure_of)
    }
}

async fn open_container(pool: &Arc<Inner>, place: &InContainer) -> Result<Opened, Failure> {
    let view = Arc::new(ChunkView::new(pool.load_map(Some(&place.container)).await?));
    let opening = Arc::new(Mutex::new(Opening::default()));
    let source = PoolSource { pool: Arc::clone(pool), view, opening: Arc::clone(&opening) };
    let identity = first(&ChunkId::of(&cbor::encode(&place.container)).0);
    let cache = Arc::clone(&pool.containers.decoded);
    let opened = pool.runtime.spawn_blocking(move || {
        Container::open_source(Path::new("a container of the pool"), Box::new(source), cache, identity)
    });
    let container = opened.await.map_err(|error| crate::internal(&error))?;
    let Opening { away, is_partial, .. } = std::mem::replace(&mut *opening.lock(), Opening::over());
    // What is only away now must not count as lost for as long as the container is open.
    match away {
        Some(failure) => Err(failure),
        None => {
            let container = Arc::new(container.map_err(failure_of)?);
            check_blocks(&container)?;
            Ok(Opened { container, is_partial })
        }
    }
}

/// Refuses what would take more memory than decoding is reckoned with here.
fn check_blocks(container: &Container) -> Result<(), Failure> {
    let largest = container.largest_block();
    if largest <= BLOCK_BYTES_MAX {
        return Ok(());
    }
    let message =
        format!("a container of the pool has a block of {largest} bytes: {BLOCK_BYTES_MAX} are allowed");
    Err(Failure::new(ErrorCode::Unsupported, message))
}

/// What reading a container led to while it was being opened.
#[derive(Default)]
struct Opening {
    /// The container is open: from now on each failure concerns one read.
    is_over: bool,
    /// Why something can't be read that may be there again later. Nothing more is read then: opening would look for the
    /// same elsewhere in the container, and wait each time.
    away: Option<Failure>,
    /// Something was damaged or lost, so that blocks may be missing.
    is_partial: bool,
}

impl Opening {
    fn over() -> Self {
        Self { is_over: true, ..Self::default() }
    }

    fn note(&mut self, failure: &Failure) {
        match failure.code {
            _ if self.is_over => {}
            ErrorCode::Damaged => self.is_partial = true,
            _ => self.away = Some(failure.clone()),
        }
    }
}

/// A container as its own code reads it, on a thread that may wait.
struct PoolSource {
    pool: Arc<Inner>,
    view: Arc<ChunkView>,
    opening: Arc<Mutex<Opening>>,
}

impl Source for PoolSource {
    fn size(&self) -> u64 {
        self.view.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.size());
        let range = offset..end.ok_or(io::ErrorKind::UnexpectedEof)?;
        if let Some(failure) = self.opening.lock().away.clone() {
            return Err(io::Error::other(failure));
        }
        let read = self.pool.runtime.block_on(self.pool.read_located(&self.view, range));
        let bytes =
            read.inspect_err(|failure| self.opening.lock().note(failure)).map_err(io::Error::other)?;
        fill(buffer, &bytes)
    }
}

/// What kept a block from being read or decoded.
fn failure_of(error: AggregateError) -> Failure {
    let damaged = || Failure::new(ErrorCode::Damaged, format!("a container of the pool: {error}"));
    failure_within(&error).cloned().unwrap_or_else(damaged)
}

/// The failure of the pool that made reading or writing fail, if it was one.
pub(crate) fn failure_within(error: &AggregateError) -> Option<&Failure> {
    match error {
        AggregateError::Io { source, .. } => source.get_ref()?.downcast_ref(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_shared_until_it_is_forgotten_or_nobody_holds_it() {
        let containers = Containers::new();
        let key = ChunkId::of(b"a container");
        let slot = containers.slot(key);
        assert!(Arc::ptr_eq(&slot, &containers.slot(key)));
        containers.forget(&slot);
        let next = containers.slot(key);
        assert!(!Arc::ptr_eq(&slot, &next));
        containers.forget(&slot);
        assert!(Arc::ptr_eq(&next, &containers.slot(key)), "another's slot stays");
    }

    #[test]
    fn only_what_fails_while_a_container_is_being_opened_is_noted() {
        let failure = |code| Failure::new(code, "no");
        let mut opening = Opening::default();
        opening.note(&failure(ErrorCode::Damaged));
        assert!(opening.is_partial && opening.away.is_none());
        opening.note(&failure(ErrorCode::Unavailable));
        assert!(opening.away.is_some());
        let mut over = Opening::over();
        over.note(&failure(ErrorCode::Damaged));
        over.note(&failure(ErrorCode::Unavailable));
        assert!(!over.is_partial && over.away.is_none());
    }
}
