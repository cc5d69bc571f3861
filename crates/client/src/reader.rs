//! Reading a version: verified chunks, several at a time, ahead of a reader that goes front to back.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_model::message::manager::{Attr, VersionInfo};
use stdchk_model::{ChunkRef, Failure, MapRoot};

use crate::holes::Sought;
use crate::map_view::MapView;
use crate::pool::Inner;

/// Read-ahead of a reader that has just turned out to be sequential, and its most, bytes. The most keeps a stripe of eight
/// busy with two mebibytes each.
const AHEAD_BYTES: (u64, u64) = (2 << 20, 16 << 20);
/// How far a read may lie from the end of the one before and still count as sequential, bytes: the kernel's own
/// read-ahead sends several requests, and they may overtake each other.
const SEQUENTIAL_SLACK: u64 = 4 << 20;
/// Chunks whose holders are asked for in one question.
const LOCATE_CHUNKS: usize = 4096;

#[derive(Default)]
struct Ahead {
    /// End of the furthest read so far.
    end: u64,
    /// Bytes to be ahead by.
    bytes: u64,
    /// End of what was asked for ahead.
    asked: u64,
    /// Extents below this offset have had their holders asked for.
    located: u64,
}

/// One version of a file, open for reading. All methods may be called concurrently.
pub struct Reader {
    pool: Arc<Inner>,
    info: Option<VersionInfo>,
    opened: Attr,
    /// Where the content is, and what is known of that. A version may move into a container, with the same content.
    content: Mutex<(Option<MapRoot>, Arc<MapView>)>,
    ahead: Mutex<Ahead>,
}

impl Reader {
    pub(crate) fn new(
        pool: Arc<Inner>,
        info: Option<VersionInfo>,
        opened: Attr,
        content: (Option<MapRoot>, Arc<MapView>),
    ) -> Self {
        Self { pool, info, opened, content: Mutex::new(content), ahead: Mutex::default() }
    }

    fn view(&self) -> Arc<MapView> {
        Arc::clone(&self.content.lock().1)
    }

    /// The file as it was when the version was opened.
    pub fn opened(&self) -> &Attr {
        &self.opened
    }

    /// Size of the version, bytes.
    pub fn size(&self) -> u64 {
        self.view().size()
    }

    /// Number of the version; `None` for a file that was never committed, which reads as empty.
    pub fn version(&self) -> Option<u64> {
        self.info.as_ref().map(|info| info.version)
    }

    /// Up to `length` bytes at `offset`, every one verified against the name of its chunk; short at the end of the file.
    ///
    /// # Errors
    /// `Damaged` or `Unavailable` if no intact copy of a chunk could be had; other ranges of the file aren't affected.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, Failure> {
        let view = self.view();
        let end = offset.saturating_add(length as u64).min(view.size());
        if offset >= end {
            return Ok(Bytes::new());
        }
        match self.read_in(&view, offset, end).await {
            Err(failure) => match self.moved().await {
                Some(view) => self.read_in(&view, offset, end).await,
                None => Err(failure),
            },
            read => read,
        }
    }

    async fn read_in(&self, view: &MapView, offset: u64, end: u64) -> Result<Bytes, Failure> {
        self.locate(view, end).await?;
        self.read_ahead(view, offset, end);
        self.pool.read_runs(view, offset..end).await
    }

    /// Where the content is now, if it is elsewhere than when the version was opened: what it lay in may be collected.
    async fn moved(&self) -> Option<Arc<MapView>> {
        let (info, before) = (self.info.as_ref()?, self.content.lock().0.clone());
        let (now, root, _) = self.pool.open_version(self.opened.ino, Some(info.version)).await.ok()?;
        let is_same = now.is_some_and(|now| (now.size, now.session) == (info.size, info.session));
        if root == before || !is_same {
            return None;
        }
        let loaded = self.pool.load_view(root.as_ref()).await;
        let view = Arc::new(loaded.inspect_err(|failure| tracing::debug!(%failure, "a version moved")).ok()?);
        *self.content.lock() = (root, Arc::clone(&view));
        *self.ahead.lock() = Ahead::default();
        Some(view)
    }

    /// The first place at or behind `offset` that is sought; `None` if `offset` or all data lie before it: see
    /// [`Sought`].
    pub fn seek(&self, offset: u64, sought: Sought) -> Option<u64> {
        let view = self.view();
        sought.find(offset, view.size(), |at| view.data_at(at))
    }

    /// Asks for the holders of the chunks up to `end` and of many behind, unless that was done before.
    async fn locate(&self, view: &MapView, end: u64) -> Result<(), Failure> {
        let from = self.ahead.lock().located;
        if from >= end {
            return Ok(());
        }
        let mut located = from;
        let runs = view.runs(from..view.size()).take(LOCATE_CHUNKS);
        let chunks: HashSet<_> = runs
            .filter_map(|run| {
                located = run.offset + run.length;
                run.source.map(|(chunk, _)| chunk.id)
            })
            .collect();
        self.pool.fetcher.locate(chunks).await?;
        let mut ahead = self.ahead.lock();
        ahead.located = ahead.located.max(located);
        Ok(())
    }

    fn read_ahead(&self, view: &MapView, offset: u64, end: u64) {
        let wanted = {
            let mut ahead = self.ahead.lock();
            if offset.abs_diff(ahead.end) > SEQUENTIAL_SLACK {
                *ahead = Ahead { end, located: ahead.located, ..Ahead::default() };
                return;
            }
            ahead.end = ahead.end.max(end);
            ahead.bytes = (ahead.bytes * 2).clamp(AHEAD_BYTES.0, AHEAD_BYTES.1);
            let to = (ahead.end + ahead.bytes).min(view.size());
            let from = ahead.asked.max(end).min(to);
            ahead.asked = ahead.asked.max(to);
            from..to
        };
        let mut seen = HashSet::new();
        let mut bytes = 0;
        for run in view.runs(wanted) {
            let Some((chunk, _)) = run.source.filter(|(chunk, _)| seen.insert(chunk.id)) else { continue };
            bytes += u64::from(chunk.length);
            if bytes > AHEAD_BYTES.1 {
                // Scattered pieces: more would push out what is read first.
                return;
            }
            self.fetch_ahead(chunk);
        }
    }

    fn fetch_ahead(&self, chunk: ChunkRef) {
        if self.pool.cache.has(chunk.id) {
            return;
        }
        let pool = Arc::clone(&self.pool);
        self.pool.runtime.spawn(async move {
            // A failure shows when the chunk is read.
            let _ = pool.cache.get(chunk).await;
        });
    }
}
