//! A file that is open through this mount, by however many handles of however many processes.
//!
//! While anyone may write, there is one session, and all handles read and write through it: that is what makes a write
//! seen at once by every process of the mount. Without a writer, a handle reads the version that was newest when it was
//! opened. Opening, closing, flushing and truncating take turns; reading and writing don't wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use stdchk_client::{Pool, Reader, Session};
use stdchk_model::message::manager::{Attr, Change, TimeNs, VersionInfo};
use stdchk_model::policy::CloseWaits;
use stdchk_model::{ErrorCode, Failure, Ino};

use super::FileSystem;
use super::nodes::{NodeId, Seen};
use crate::attr;

/// A version number that no version has: what the kernel believes of the file is of none.
const NO_VERSION: u64 = u64::MAX;
/// Zeros are written in pieces of this size, bytes: what the kernel sends in one write at most.
const ZERO_BYTES: usize = 1 << 20;

pub(crate) struct OpenFile {
    id: NodeId,
    turn: tokio::sync::Mutex<Turn>,
    session: RwLock<Option<Arc<Session>>>,
    /// What is read once a session has ended that some handles have outlived.
    latest: RwLock<Option<Arc<Reader>>>,
    mtime: Mutex<Mtime>,
    /// Counts writes, so that a handle knows whether anything came after its last close.
    writes: AtomicU64,
}

struct Turn {
    handles: usize,
    writers: usize,
    torn: bool,
    /// The last handle was closed: this is no longer the inode's open file.
    ended: bool,
    /// The content that the kernel's cache is of.
    seen: Seen,
    /// Keeps the chunks of a file that was removed while it is still being read.
    pin: Option<Arc<Session>>,
}

/// The kernel owns the modification time of files that it caches writes of, and says it before every flush.
#[derive(Clone, Copy)]
struct Mtime {
    at: TimeNs,
    saved: bool,
}

/// One open file description.
pub(crate) struct Handle {
    pub file: Arc<OpenFile>,
    pub writable: bool,
    reader: Option<Arc<Reader>>,
    /// Value of `writes` at the last proper close.
    closed_at: AtomicU64,
    torn: AtomicBool,
}

impl OpenFile {
    pub fn new(id: NodeId, seen: Seen) -> Self {
        Self {
            id,
            turn: tokio::sync::Mutex::new(Turn {
                handles: 0,
                writers: 0,
                torn: false,
                ended: false,
                seen,
                pin: None,
            }),
            session: RwLock::default(),
            latest: RwLock::default(),
            mtime: Mutex::new(Mtime { at: seen.mtime, saved: true }),
            writes: AtomicU64::new(0),
        }
    }

    pub fn id(&self) -> NodeId {
        self.id
    }

    fn ino(&self) -> Ino {
        self.id.ino()
    }

    /// The session, while anyone may write.
    pub fn session(&self) -> Option<Arc<Session>> {
        self.session.read().clone()
    }

    /// Opens one more handle; `None` if the last one was just closed: look for the file again. The kernel may keep the
    /// pages that it has of the inode: they are of the version that is opened.
    ///
    /// # Errors
    /// `Stale` if the file was changed elsewhere since the kernel looked: it looks again and opens what it finds.
    pub async fn open(self: &Arc<Self>, fs: &FileSystem, writable: bool) -> Result<Option<Handle>, Failure> {
        let mut turn = self.turn.lock().await;
        if turn.ended {
            return Ok(None);
        }
        let opened = match (self.session(), writable) {
            (Some(_), _) => Ok(None),
            (None, true) => self.open_session(&fs.pool, &mut turn).await,
            (None, false) => self.open_reader(&fs.pool, &mut turn).await,
        };
        let opened = opened.map_err(|failure| self.look_again(failure));
        let reader = opened.inspect_err(|_| self.end_if_unused(fs, &mut turn))?;
        turn.handles += 1;
        turn.writers += usize::from(writable);
        let handle = Handle {
            file: Arc::clone(self),
            writable,
            reader,
            closed_at: AtomicU64::new(u64::MAX),
            torn: AtomicBool::new(false),
        };
        Ok(Some(handle))
    }

    /// A file that is gone was removed or replaced elsewhere; the name that the kernel remembers may lead to another one.
    fn look_again(&self, failure: Failure) -> Failure {
        match failure.code {
            ErrorCode::NotFound => Failure { code: ErrorCode::Stale, ..failure },
            _ => failure,
        }
    }

    fn end_if_unused(&self, fs: &FileSystem, turn: &mut Turn) {
        if turn.handles == 0 {
            turn.ended = true;
            fs.nodes.lock().closed(self.id);
        }
    }

    async fn open_session(&self, pool: &Pool, turn: &mut Turn) -> Result<Option<Arc<Reader>>, Failure> {
        let session = pool.write(self.ino()).await?;
        // Nothing was written yet: this commits nothing and says which version the session builds on.
        let base = session.commit(0).await?.map_or(0, |version| version.version);
        if let Err(stale) = self.check(turn, base, session.size()) {
            session.close(false).await?;
            return Err(stale);
        }
        *self.session.write() = Some(session);
        Ok(None)
    }

    async fn open_reader(&self, pool: &Pool, turn: &mut Turn) -> Result<Option<Arc<Reader>>, Failure> {
        let reader = pool.read(self.ino(), None).await?;
        self.check(turn, reader.version().unwrap_or(0), reader.size())?;
        Ok(Some(reader))
    }

    /// Compares what the pool has with what the kernel was told.
    fn check(&self, turn: &mut Turn, version: u64, size: u64) -> Result<(), Failure> {
        let same = turn.seen.version.is_none_or(|seen| seen == version) && turn.seen.size == size;
        if !same {
            let what = format!("file {} was changed elsewhere: open it again", self.ino());
            return Err(Failure::new(ErrorCode::Stale, what));
        }
        turn.seen.version = Some(version);
        Ok(())
    }

    /// Sets the size.
    pub async fn truncate(&self, size: u64) -> Result<(), Failure> {
        let session = self.written()?;
        self.wrote(false);
        session.truncate(size).await
    }

    /// The session of a file that is open for writing.
    pub fn written(&self) -> Result<Arc<Session>, Failure> {
        self.session()
            .ok_or_else(|| Failure::new(ErrorCode::Stale, "the file isn't open for writing any more"))
    }

    /// A write is about to reach the session; `timed`: the kernel has said or will say when it was made.
    pub fn wrote(&self, timed: bool) {
        self.writes.fetch_add(1, Ordering::AcqRel);
        if timed {
            return;
        }
        *self.mtime.lock() = Mtime { at: attr::now(), saved: false };
    }

    /// Writes zeros over a part of the file, not beyond its end.
    pub async fn zero(&self, offset: u64, length: u64) -> Result<(), Failure> {
        let session = self.written()?;
        self.wrote(false);
        let zeros = vec![0; ZERO_BYTES];
        let end = offset.saturating_add(length).min(session.size());
        let mut at = offset;
        while at < end {
            let piece = usize::try_from(end - at).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
            session.write_at(at, zeros.get(..piece).unwrap_or(&zeros)).await?;
            at += piece as u64;
        }
        Ok(())
    }

    /// The modification time that the kernel or a user gave; `saved`: the manager has it.
    pub fn set_mtime(&self, at: TimeNs, saved: bool) {
        *self.mtime.lock() = Mtime { at, saved };
    }

    /// What `stat` says of the file while it is being written.
    pub fn overlay(&self, attr: &mut Attr) {
        if let Some(session) = self.session() {
            attr.size = session.size();
            attr.mtime = self.mtime.lock().at;
        }
    }

    /// `fsync`: everything written so far is durable and a version when this returns.
    pub async fn sync(&self, pool: &Pool) -> Result<(), Failure> {
        let _turn = self.turn.lock().await;
        let Some(session) = self.session() else { return Ok(()) };
        self.commit(pool, &session).await.map(|_| ())
    }

    /// Before a rename: what is under the old name is committed, so that the new name never shows less.
    pub async fn settle(&self, pool: &Pool) -> Result<(), Failure> {
        self.sync(pool).await
    }

    async fn commit(&self, pool: &Pool, session: &Arc<Session>) -> Result<Option<VersionInfo>, Failure> {
        let mtime = *self.mtime.lock();
        let dirty = session.is_dirty();
        let version = session.commit(mtime.at).await?;
        self.save_mtime(pool, mtime, dirty).await?;
        Ok(version)
    }

    /// What `close()` waits for.
    async fn save(&self, pool: &Pool, session: &Arc<Session>) -> Result<(), Failure> {
        let mtime = *self.mtime.lock();
        let dirty = session.is_dirty();
        match session.policy().close {
            CloseWaits::Durable => session.commit(mtime.at).await.map(|_| ())?,
            CloseWaits::Stored => session.flush(mtime.at).await?,
        }
        self.save_mtime(pool, mtime, dirty).await
    }

    async fn save_mtime(&self, pool: &Pool, mtime: Mtime, committed: bool) -> Result<(), Failure> {
        if !mtime.saved && !committed {
            let (mode, uid, gid, atime, ino) = (None, None, None, None, self.ino());
            pool.change(Change::SetAttr { ino, mode, uid, gid, atime, mtime: Some(mtime.at) }).await?;
        }
        let mut now = self.mtime.lock();
        now.saved |= now.at == mtime.at;
        Ok(())
    }

    /// The name was removed: whoever still reads keeps its chunks.
    pub async fn pin(&self, pool: &Pool) -> Result<(), Failure> {
        let mut turn = self.turn.lock().await;
        if turn.handles > 0 && turn.pin.is_none() && self.session().is_none() {
            turn.pin = Some(pool.write(self.ino()).await?);
        }
        Ok(())
    }

    /// Ends a session that no handle writes to any more. Errors can't reach any program here: they are logged.
    async fn end_session(&self, fs: &FileSystem, turn: &mut Turn) {
        let Some(session) = self.session() else { return };
        // Pages that were written through a mapping after the last close, or a flush that failed and may be repeated.
        let committed = self.commit(&fs.pool, &session).await;
        turn.seen = self.seen_after(&committed, &session);
        fs.nodes.lock().saw(self.id, |seen| *seen = turn.seen);
        if let Err(failure) = &committed {
            tracing::error!(ino = %self.ino(), %failure, "what was written last to a closed file is lost");
        }
        if turn.handles > 0 && !self.hand_over(&fs.pool).await {
            return;
        }
        *self.session.write() = None;
        end(&session, turn.torn || committed.is_err()).await;
        turn.torn = false;
    }

    fn seen_after(&self, committed: &Result<Option<VersionInfo>, Failure>, session: &Session) -> Seen {
        let version = match committed {
            Ok(version) => version.as_ref().map_or(0, |version| version.version),
            Err(_) => NO_VERSION,
        };
        Seen { size: session.size(), mtime: self.mtime.lock().at, version: Some(version) }
    }

    /// Handles that only read go on with the version that the session leaves; a removed file has none and keeps the session.
    async fn hand_over(&self, pool: &Pool) -> bool {
        let latest = pool.read(self.ino(), None).await.ok();
        let handed = latest.is_some();
        *self.latest.write() = latest;
        handed
    }

    /// The mount goes away with the file open: what was written is kept, as the work of a writer that never finished.
    pub async fn abandon(&self, fs: &FileSystem) {
        let mut turn = self.turn.lock().await;
        turn.torn |= turn.writers > 0;
        (turn.handles, turn.writers) = (0, 0);
        self.end_session(fs, &mut turn).await;
        self.end(fs, &mut turn).await;
    }

    async fn end(&self, fs: &FileSystem, turn: &mut Turn) {
        self.end_if_unused(fs, turn);
        if let Some(pin) = turn.pin.take() {
            end(&pin, false).await;
        }
    }
}

/// Ends a session; that a session that is gone can't be ended changes nothing for anyone.
async fn end(session: &Arc<Session>, interrupted: bool) {
    if let Err(failure) = session.close(interrupted).await {
        tracing::warn!(ino = %session.ino(), %failure, "a session did not end well");
    }
}

impl Handle {
    /// Up to `length` bytes at `offset`; short at the end of the file.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Bytes, Failure> {
        if let Some(session) = self.file.session() {
            return session.read_at(offset, length).await;
        }
        let latest = self.file.latest.read().clone();
        match latest.or_else(|| self.reader.clone()) {
            Some(reader) => reader.read_at(offset, length).await,
            None => Err(Failure::new(ErrorCode::Stale, "the file isn't open any more")),
        }
    }

    /// One `close()` of a descriptor of this handle; `killed`: not by the program, but because a signal killed it.
    ///
    /// A killed program leaves the file torn, unless a proper close of the same handle came before (another process
    /// holds a copy of the descriptor) and nothing was written since.
    pub async fn flush(&self, pool: &Pool, killed: bool) -> Result<(), Failure> {
        if !self.writable {
            return Ok(());
        }
        let _turn = self.file.turn.lock().await;
        let writes = self.file.writes.load(Ordering::Acquire);
        if killed && self.closed_at.load(Ordering::Acquire) != writes {
            self.torn.store(true, Ordering::Release);
        }
        if let Some(session) = self.file.session() {
            self.file.save(pool, &session).await?;
        }
        if !killed {
            self.closed_at.store(writes, Ordering::Release);
            self.torn.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// The last descriptor of this handle is gone.
    pub async fn release(&self, fs: &FileSystem) {
        let mut turn = self.file.turn.lock().await;
        turn.handles = turn.handles.saturating_sub(1);
        if self.writable {
            turn.writers = turn.writers.saturating_sub(1);
            turn.torn |= self.torn.load(Ordering::Acquire);
        }
        if turn.writers == 0 {
            self.file.end_session(fs, &mut turn).await;
        }
        if turn.handles == 0 {
            self.file.end(fs, &mut turn).await;
        }
    }
}
