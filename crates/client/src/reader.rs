//! Reading a version: verified chunks, several at a time, ahead of a reader that goes front to back.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_model::message::manager::{Attr, TimeNs, VersionInfo};
use stdchk_model::{ChunkRef, ErrorCode, Failure, MapRoot};

use crate::cache::cost;
use crate::holes::Sought;
use crate::map_view::{ChunkView, MapView};
use crate::pool::Inner;

/// Read-ahead of a reader that has just turned out to be sequential, and its most, bytes. The most keeps a stripe of eight
/// busy with two mebibytes each.
pub(crate) const AHEAD_BYTES: (u64, u64) = (2 << 20, 16 << 20);
/// How far a read may lie from the end of the one before and still count as sequential, bytes: the kernel's own
/// read-ahead sends several requests, and they may overtake each other.
const SEQUENTIAL_SLACK: u64 = 4 << 20;
/// Chunks whose holders are asked for in one question.
const LOCATE_CHUNKS: usize = 4096;

#[derive(Default)]
struct Ahead {
    /// End of the furthest read so far.
    end: u64,
    /// Bytes to be ahead by; none behind a read at another place.
    bytes: u64,
    /// End of what was asked for ahead.
    asked: u64,
    /// Chunks that were asked for ahead and are not reached yet: where in the file they are needed first, and what they take of
    /// the cache.
    waiting: VecDeque<(u64, u64)>,
    /// What all of them take.
    waiting_bytes: u64,
    /// Held while there are such chunks.
    turn: Option<Turn>,
    /// Extents below this offset have had their holders asked for.
    located: u64,
}

impl Ahead {
    /// A read has come to `end`.
    fn reach(&mut self, end: u64) {
        self.end = self.end.max(end);
        self.bytes = (self.bytes * 2).clamp(AHEAD_BYTES.0, AHEAD_BYTES.1);
        while let Some((_, taken)) = self.waiting.pop_front_if(|(needed, _)| *needed < self.end) {
            self.waiting_bytes -= taken;
        }
    }

    fn expect(&mut self, needed: u64, chunk: ChunkRef) {
        let taken = cost(&chunk) as u64;
        self.waiting.push_back((needed, taken));
        self.waiting_bytes += taken;
    }
}

/// A reader that reads ahead: all of them share the cache.
struct Turn(Arc<Inner>);

impl Turn {
    fn take(pool: &Arc<Inner>) -> Self {
        pool.reading_ahead.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(pool))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.reading_ahead.fetch_sub(1, Ordering::Relaxed);
    }
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
        if let Some(info) = &info {
            *pool.reads.lock().entry(info.session).or_default() += 1;
        }
        Self { pool, info, opened, content: Mutex::new(content), ahead: Mutex::default() }
    }

    fn view(&self) -> Arc<MapView> {
        Arc::clone(&self.content.lock().1)
    }

    /// The file as it was when the version was opened.
    pub fn opened(&self) -> &Attr {
        &self.opened
    }

    /// When the content was last written; of the newest version, or without any, what was set as the file's time counts.
    pub fn mtime(&self) -> TimeNs {
        match &self.info {
            Some(info) if info.version != self.opened.version => info.mtime,
            _ => self.opened.mtime,
        }
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
    /// `Damaged` or `Unavailable` if no intact copy of a chunk could be had; other ranges of the file aren't affected. `Stale` if
    /// the version was removed, and its chunks collected, while it was being read.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, Failure> {
        let view = self.view();
        let end = offset.saturating_add(length as u64).min(view.size());
        if offset >= end {
            return Ok(Bytes::new());
        }
        match self.read_in(&view, offset, end).await {
            Err(failure) => match self.moved().await {
                Ok(Some(view)) => self.read_in(&view, offset, end).await,
                Err(removed) if failure.code == ErrorCode::Damaged => Err(removed),
                _ => Err(failure),
            },
            read => read,
        }
    }

    async fn read_in(&self, view: &MapView, offset: u64, end: u64) -> Result<Bytes, Failure> {
        // A container asks for its own chunks as it reads them.
        if let MapView::Chunks(chunks) = view {
            self.locate(chunks, end).await?;
            self.read_ahead(chunks, offset, end);
        }
        self.pool.read_runs(view, offset..end).await
    }

    /// Where the content is now, if it is elsewhere than when the version was opened: what it lay in may be collected.
    ///
    /// # Errors
    /// `Stale` if the version is gone.
    async fn moved(&self) -> Result<Option<Arc<MapView>>, Failure> {
        let (Some(info), before) = (self.info.as_ref(), self.content.lock().0.clone()) else {
            return Ok(None);
        };
        let now = match self.pool.open_version(self.opened.ino, Some(info.version)).await {
            Err(failure) if failure.code == ErrorCode::NotFound => return Err(removed(info)),
            now => now.ok(),
        };
        let is_same = |now: &VersionInfo| (now.size, now.session) == (info.size, info.session);
        let Some((Some(now), root, _)) = now else { return Ok(None) };
        if root == before || !is_same(&now) {
            return Ok(None);
        }
        let loaded = self.pool.load_view(root.as_ref()).await;
        let Ok(view) = loaded.inspect_err(|failure| tracing::debug!(%failure, "a version moved")) else {
            return Ok(None);
        };
        let view = Arc::new(view);
        *self.content.lock() = (root, Arc::clone(&view));
        *self.ahead.lock() = Ahead::default();
        Ok(Some(view))
    }

    /// The first place at or behind `offset` that is sought; `None` if `offset` or all data lie before it: see
    /// [`Sought`].
    pub fn seek(&self, offset: u64, sought: Sought) -> Option<u64> {
        let view = self.view();
        sought.find(offset, view.size(), |at| view.data_at(at))
    }

    /// Asks for the holders of the chunks up to `end` and of many behind, unless that was done before.
    async fn locate(&self, view: &ChunkView, end: u64) -> Result<(), Failure> {
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

    /// Asks for the chunks of a read, all at once, and if it goes on where another one ended, for those behind it. What is asked
    /// for and not reached yet has a limit in what the chunks take of the cache, not in bytes of the file: a file of small
    /// pieces reads more than it has, and what is fetched beyond the cache is fetched in vain.
    fn read_ahead(&self, view: &ChunkView, offset: u64, end: u64) {
        let mut ahead = self.ahead.lock();
        let goes_on = offset.abs_diff(ahead.end) <= SEQUENTIAL_SLACK;
        if goes_on {
            ahead.reach(end);
        } else {
            *ahead = Ahead { end, located: ahead.located, ..Ahead::default() };
        }
        let to = (ahead.end + ahead.bytes).min(view.size());
        let from = ahead.asked.max(offset).min(to);
        let share = self.pool.ahead_bytes_max();
        for run in view.runs(from..to) {
            if ahead.waiting_bytes >= share {
                break;
            }
            if let Some((chunk, _)) = run.source
                && self.pool.fetch_ahead(chunk)
            {
                ahead.expect(run.offset, chunk);
            }
            ahead.asked = run.offset + run.length;
        }
        ahead.turn = match ahead.waiting.is_empty() {
            true => None,
            false => ahead.turn.take().or_else(|| Some(Turn::take(&self.pool))),
        };
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let Some(info) = &self.info else { return };
        let mut reads = self.pool.reads.lock();
        if let Some(readers) = reads.get_mut(&info.session) {
            *readers -= 1;
            if *readers == 0 {
                reads.remove(&info.session);
            }
        }
    }
}

fn removed(info: &VersionInfo) -> Failure {
    let what = format!("version {} was removed while it was being read", info.version);
    Failure::new(ErrorCode::Stale, what).then("`stdchk ls --versions` shows what there is")
}
