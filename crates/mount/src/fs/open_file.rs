//! A file that is open through this mount, by however many handles of however many processes.
//!
//! While anyone may write, there is one session, and all handles read and write through it: that is what makes a write
//! seen at once by every process of the mount. Without a writer, a handle reads the version that was newest when it was
//! opened. Opening, closing, flushing and truncating take turns; reading and writing don't wait for them.

mod handle;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use stdchk_client::{Pool, Reader, Session, Sought, Unpushed, Writer, acting_user, time};
use stdchk_model::exact::{part, to_usize};
use stdchk_model::message::manager::{Attr, Change, TimeNs, VersionInfo, VersionState};
use stdchk_model::policy::Protocol;
use stdchk_model::{ErrorCode, Failure, Ino, User};
use tokio::sync::{MutexGuard, Notify};

use super::debts::Debts;
use super::files::Chosen;
use super::habits::Made;
use super::nodes::{NodeId, Seen};
use super::retry::Content;
use super::{FileSystem, look_again};
use crate::caller::{LOOK_PAUSE, UNKNOWN};
use crate::descriptors::Opener;
use crate::killed::Dying;

pub(crate) use handle::Handle;

/// A version number that no version has: what the kernel believes of the file is of none.
const NO_VERSION: u64 = u64::MAX;
/// Zeros are written in pieces of this size, bytes: what the kernel sends in one write at most.
const ZERO_BYTES: usize = 1 << 20;
/// How long who looks a file up waits for the last close of it to arrive here: it is on its way, unless the program holds
/// another descriptor.
const LEAVING_PATIENCE: Duration = Duration::from_millis(250);
/// How long the kernel takes at most, on a busy machine, from our answer to a truncation to the new size.
const TRUNCATION_KNOWN_WITHIN: Duration = Duration::from_millis(50);

pub(crate) struct OpenFile {
    id: NodeId,
    pub(super) turn: tokio::sync::Mutex<Turn>,
    writer: RwLock<Option<Arc<Writer>>>,
    /// What is read once a session has ended that some handles have outlived.
    latest: RwLock<Option<Arc<Reader>>>,
    pub(super) mtime: Mutex<Mtime>,
    pub(super) made: OnceLock<Made>,
    /// Counts writes, so that a handle knows whether anything came after its last close.
    writes: AtomicU64,
    /// Value of `writes` at the last `close()` of any handle.
    flushed_at: AtomicU64,
    /// Value of `writes` at the last proper close of any handle.
    closed_at: AtomicU64,
    /// Handles that wrote and whose last descriptor is gone, on their way to [`Handle::release`].
    leaving: AtomicUsize,
    pub(super) left: Notify,
    /// What was taken of killed programs before there was room for it.
    pub debts: Arc<Debts>,
    /// The tasks that opened the handles that may write, and for whom.
    openers: Mutex<Vec<(u32, Option<User>)>>,
    /// A rename gave the version of the first number the second.
    renumbered: Mutex<Option<(u64, u64)>>,
    /// When its size was set last, and the value of `writes` then.
    truncated: Mutex<Option<(Instant, u64)>>,
    /// Whether what was written last is lost, and the kernel may take it for what is in the file.
    is_lost: AtomicBool,
}

pub(super) struct Turn {
    pub(super) handles: usize,
    writers: usize,
    pub(super) torn: bool,
    /// The last handle was closed: this is no longer the inode's open file.
    ended: bool,
    /// The content that the kernel's cache is of.
    seen: Seen,
    /// Nobody writes any more, and what was written is being pushed from the spool.
    pub(super) pushing: bool,
    /// Why the last attempt to push failed.
    pub(super) push_failure: Option<Failure>,
    /// Keeps the chunks of a file that was removed while it is still being read.
    pin: Option<Arc<Session>>,
}

/// The kernel owns the modification time of files that it caches writes of, and says it before every flush.
#[derive(Clone, Copy)]
pub(super) struct Mtime {
    pub(super) at: TimeNs,
    /// What the kernel takes it for: of writes past its cache it notes none.
    pub(super) told: TimeNs,
    pub(super) saved: bool,
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
                pushing: false,
                push_failure: None,
                pin: None,
            }),
            writer: RwLock::default(),
            latest: RwLock::default(),
            mtime: Mutex::new(Mtime { at: seen.mtime, told: seen.mtime, saved: true }),
            made: OnceLock::new(),
            writes: AtomicU64::new(0),
            flushed_at: AtomicU64::new(u64::MAX),
            closed_at: AtomicU64::new(u64::MAX),
            leaving: AtomicUsize::new(0),
            left: Notify::new(),
            debts: Arc::default(),
            openers: Mutex::default(),
            renumbered: Mutex::new(None),
            truncated: Mutex::new(None),
            is_lost: AtomicBool::new(false),
        }
    }

    /// A file that waits in the spool, which nobody has open.
    pub(super) fn in_spool(id: NodeId, file: Unpushed, push_failure: Option<Failure>) -> Self {
        let Unpushed { writer, mtime, state } = file;
        let mut file = Self::new(id, Seen::of(writer.opened()));
        let turn = file.turn.get_mut();
        (turn.pushing, turn.push_failure) = (true, push_failure);
        turn.torn = state == VersionState::Interrupted;
        *file.mtime.get_mut() = Mtime { at: mtime, told: mtime, saved: true };
        *file.writer.get_mut() = Some(writer);
        file
    }

    pub fn id(&self) -> NodeId {
        self.id
    }

    pub(super) fn ino(&self) -> Ino {
        self.id.ino()
    }

    /// Whether all handles of it go past the kernel's page cache. They are of one kind: the kernel doesn't see to it that
    /// pages which one handle reads are those that another one is writing at that moment.
    pub fn goes_past_cache(&self) -> bool {
        self.made.get().is_some_and(|made| made.past_cache)
    }

    /// Of a file that goes past the page cache, waits for the last close to arrive if it seems to be on its way: then the kernel
    /// can be shown the time of the last write.
    pub async fn until_left(&self) {
        if !self.goes_past_cache() {
            return;
        }
        let left = self.left.notified();
        let flushed_at = self.flushed_at.load(Ordering::Acquire);
        let flushed = flushed_at == self.writes.load(Ordering::Acquire);
        let pushing = self.turn.try_lock().is_ok_and(|turn| turn.pushing);
        if flushed
            && !pushing
            && self.writer().is_some()
            && tokio::time::timeout(LEAVING_PATIENCE, left).await.is_err()
        {
            // Another descriptor is open: nobody waits for this close again.
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = self.flushed_at.compare_exchange(flushed_at, u64::MAX, order, failed);
        }
    }

    /// The writer, while anyone may write, and until what was written is pushed.
    pub fn writer(&self) -> Option<Arc<Writer>> {
        self.writer.read().clone()
    }

    /// Opens one more handle; `None` if the last one was just closed: look for the file again. The kernel may keep the
    /// pages that it has of the inode: they are of the version that is opened. `prepared`: what was opened for this very
    /// open when its name was looked up; it is taken as it is.
    ///
    /// # Errors
    /// `Stale` if the file or its names were changed elsewhere since the kernel looked: it looks again and opens what it
    /// finds.
    pub async fn open(
        self: &Arc<Self>,
        fs: &FileSystem,
        writable: bool,
        prepared: &mut Option<Content>,
        opener: Opener,
    ) -> Result<Option<Handle>, Failure> {
        let mut turn = self.turn_of_those_who_stay(writable).await?;
        if turn.ended {
            return Ok(None);
        }
        let opened = match (self.writer(), writable) {
            (Some(_), _) => self.share_session(fs, writable, prepared.take()).await.map(|()| None),
            (None, true) => self.open_session(fs, &mut turn, prepared.take()).await.map(|()| None),
            (None, false) => self.open_reader(fs, &mut turn, prepared.take()).await.map(Some),
        };
        let opened = opened.map_err(look_again);
        let reader = opened.inspect_err(|_| self.end_if_unused(fs, &mut turn))?;
        turn.handles += 1;
        turn.writers += usize::from(writable);
        if writable {
            self.openers.lock().push((opener.task, acting_user()));
        }
        Ok(Some(Handle::new(Arc::clone(self), writable, opener, reader)))
    }

    /// The turn, after those writers who are gone have left their session behind if they are all that there were: who
    /// opens the file now doesn't share it. Who opens it to write waits until what they left is pushed.
    async fn turn_of_those_who_stay(&self, writable: bool) -> Result<MutexGuard<'_, Turn>, Failure> {
        loop {
            let left = self.left.notified();
            let turn = self.turn.lock().await;
            let gone = turn.writers > 0 && self.leaving.load(Ordering::Acquire) == turn.writers;
            let waits = gone || turn.pushing && writable;
            if !waits || self.writer().is_none() {
                return Ok(turn);
            }
            if let Some(failure) = turn.push_failure.clone().filter(|_| turn.pushing) {
                return Err(failure);
            }
            drop(turn);
            left.await;
        }
    }

    /// The file is being written here: whoever opens it sees what is written, if it still is what the name leads to. That somebody has it
    /// open gives nobody else a right to it, so the manager is asked for the user who opens it now.
    async fn share_session(
        &self,
        fs: &FileSystem,
        writable: bool,
        prepared: Option<Content>,
    ) -> Result<(), Failure> {
        match prepared {
            // The manager has let this user open it just now.
            Some(content @ (Content::Writer(_) | Content::Version(_))) => content.end().await,
            Some(Content::Shared) => {
                fs.pool.may_open(self.ino(), writable).await?;
            }
            None => self.check_names(fs, &fs.pool.may_open(self.ino(), writable).await?)?,
        }
        Ok(())
    }

    /// Asks the manager whether the user for whom the present task works may write the file, unless the program `task` has opened it for
    /// that user to write, and could do all by that handle.
    pub async fn check_may_write(&self, pool: &Pool, task: u32) -> Result<(), Failure> {
        let opener = (task, acting_user());
        if task != UNKNOWN && self.openers.lock().contains(&opener) {
            return Ok(());
        }
        pool.may_open(self.ino(), true).await.map(drop).map_err(look_again)
    }

    async fn open_session(
        &self,
        fs: &FileSystem,
        turn: &mut Turn,
        prepared: Option<Content>,
    ) -> Result<(), Failure> {
        let (writer, fresh) = match prepared {
            Some(Content::Writer(writer)) => (writer, false),
            _ => (fs.writer(self.ino()).await?, true),
        };
        if let Err(stale) = self.check(fs, turn, writer.opened(), fresh) {
            writer.close(false).await?;
            return Err(stale);
        }
        *self.writer.write() = Some(writer);
        Ok(())
    }

    async fn open_reader(
        &self,
        fs: &FileSystem,
        turn: &mut Turn,
        prepared: Option<Content>,
    ) -> Result<Arc<Reader>, Failure> {
        let is_last_try = prepared.is_some();
        let (reader, fresh) = match prepared {
            Some(Content::Version(reader)) => (reader, false),
            _ => (fs.pool.read(self.ino(), None).await?, true),
        };
        match self.check(fs, turn, reader.opened(), fresh) {
            // The kernel looks no more. What it believes of the inode is of a version that was the newest a moment ago.
            Err(_) if is_last_try => fs.pool.read(self.ino(), Some(turn.seen.version)).await,
            checked => checked.map(|()| reader),
        }
    }

    /// Compares what the pool has with what the kernel was told; `fresh`: and the names, by one of which it came here.
    fn check(&self, fs: &FileSystem, turn: &Turn, now: &Attr, fresh: bool) -> Result<(), Failure> {
        if (turn.seen.version, turn.seen.size) != (now.version, now.size) {
            return Err(self.changed_elsewhere());
        }
        if fresh { self.check_names(fs, now) } else { Ok(()) }
    }

    fn check_names(&self, fs: &FileSystem, now: &Attr) -> Result<(), Failure> {
        if fs.nodes.lock().is_named(self.id, now) { Ok(()) } else { Err(self.changed_elsewhere()) }
    }

    fn changed_elsewhere(&self) -> Failure {
        let what = format!("file {} was changed or renamed elsewhere: open it again", self.ino());
        Failure::new(ErrorCode::Stale, what)
    }

    fn end_if_unused(&self, fs: &FileSystem, turn: &mut Turn) {
        if turn.handles == 0 {
            turn.ended = true;
            fs.nodes.lock().closed(self.id);
        }
    }

    /// Comes once a program that opened the file to write was killed and isn't gone yet.
    pub async fn writer_killed(&self, dying: &Dying) {
        loop {
            let openers: Vec<_> = self.openers.lock().iter().map(|(task, _)| *task).collect();
            if openers.iter().any(|opener| dying.knows(*opener)) {
                return;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
            for opener in openers {
                if dying.look(opener).await {
                    return;
                }
            }
        }
    }

    /// Whether the file is empty because its writers emptied it, which no version shows yet.
    pub fn is_emptied(&self) -> bool {
        self.writer().is_some_and(|session| session.size() == 0 && session.is_dirty())
    }

    /// A rename changed the number of a version.
    pub(super) fn renumbered(&self, turn: &mut Turn, from: u64, to: u64) {
        if turn.seen.version == from {
            turn.seen.version = to;
        }
        *self.renumbered.lock() = Some((from, to));
    }

    /// Sets the size.
    pub async fn truncate(&self, size: u64) -> Result<(), Failure> {
        self.debts.paid().await;
        let session = self.written()?;
        self.wrote(false);
        session.truncate(size).await?;
        *self.truncated.lock() = Some((Instant::now(), self.writes.load(Ordering::Acquire)));
        Ok(())
    }

    /// Waits until the kernel knows of the truncation that came last. It takes the new size over once its request is
    /// answered; until then, what a read lacks of the old size counts as a hole, and the reader would see zeros. Who wrote since
    /// has seen the answer. False: there was nothing to wait for.
    async fn until_truncation_is_known(&self) -> bool {
        let Some((at, writes)) = *self.truncated.lock() else { return false };
        let left = TRUNCATION_KNOWN_WITHIN.saturating_sub(at.elapsed());
        if left.is_zero() || writes != self.writes.load(Ordering::Acquire) {
            return false;
        }
        tokio::time::sleep(left).await;
        true
    }

    /// Chooses the write protocol; of a file that is on its way out of the spool nothing can be chosen.
    pub async fn choose(&self, protocol: Protocol) -> Result<Chosen, Failure> {
        let turn = self.turn.lock().await;
        match self.writer().filter(|_| turn.writers > 0) {
            None => Ok(Chosen::NotWritten),
            Some(writer) if writer.choose(protocol).await? => Ok(Chosen::Done),
            Some(_) => Ok(Chosen::TooLate),
        }
    }

    /// The session of a file that is open for writing.
    pub fn written(&self) -> Result<Arc<Writer>, Failure> {
        self.writer()
            .ok_or_else(|| Failure::new(ErrorCode::Stale, "the file isn't open for writing any more"))
    }

    /// A write is about to reach the session; `timed`: the kernel has said or will say when it was made.
    pub fn wrote(&self, timed: bool) {
        self.writes.fetch_add(1, Ordering::AcqRel);
        if timed {
            return;
        }
        let mut mtime = self.mtime.lock();
        *mtime = Mtime { at: time::now(), saved: false, ..*mtime };
    }

    /// Makes a part of the file a hole, not beyond its end. Zeros are written where there is data, and nothing where there is none.
    pub async fn punch(&self, offset: u64, length: u64) -> Result<(), Failure> {
        self.debts.paid().await;
        let session = self.written()?;
        self.wrote(false);
        let end = offset.saturating_add(length).min(session.size());
        let mut at = offset;
        while let Some(data) = session.seek(at, Sought::Data).filter(|data| *data < end) {
            at = session.seek(data, Sought::Hole).map_or(end, |hole| hole.min(end));
            write_zeros(&session, data..at).await?;
        }
        Ok(())
    }

    /// The modification time that the kernel or a user gave; `saved`: the manager has it.
    pub fn set_mtime(&self, at: TimeNs, saved: bool) {
        *self.mtime.lock() = Mtime { at, told: at, saved };
    }

    /// What `stat` says of the file while it is being written.
    pub fn overlay(&self, attr: &mut Attr) {
        if let Some(session) = self.writer() {
            attr.size = session.size();
            if session.is_dirty() {
                // Of what is being written nobody counts the holes.
                attr.hole_bytes = 0;
            }
            attr.mtime = self.mtime.lock().at;
        }
    }

    /// `fsync`: everything written so far is durable when this returns, and a version but for complete local writes.
    pub async fn sync(&self, pool: &Pool) -> Result<(), Failure> {
        let _turn = self.turn.lock().await;
        let Some(writer) = self.writer() else { return Ok(()) };
        self.debts.paid().await;
        let mtime = *self.mtime.lock();
        let dirty = writer.is_dirty();
        writer.sync(mtime.at).await?;
        self.save_mtime(pool, mtime, dirty).await
    }

    /// Before a rename: what is under the old name is committed, so that the new name never shows less. What was closed and
    /// waits in the spool stays there, and is pushed under whatever name the file has by then; true if that is so.
    pub async fn settle(&self, pool: &Pool) -> Result<bool, Failure> {
        let turn = self.turn.lock().await;
        let Some(writer) = self.writer() else { return Ok(false) };
        if turn.pushing || writer.is_closed_in_spool() {
            return Ok(true);
        }
        self.commit(pool, &writer).await.map(|_| false)
    }

    async fn commit(&self, pool: &Pool, session: &Arc<Writer>) -> Result<Option<VersionInfo>, Failure> {
        self.debts.paid().await;
        let mtime = *self.mtime.lock();
        let dirty = session.is_dirty();
        let version = session.commit(mtime.at).await?;
        self.save_mtime(pool, mtime, dirty).await?;
        Ok(version)
    }

    /// What `close()` waits for; `closed`: see [`Writer::flush`].
    async fn save(&self, pool: &Pool, session: &Arc<Writer>, closed: bool) -> Result<(), Failure> {
        self.debts.paid().await;
        let mtime = *self.mtime.lock();
        let dirty = session.is_dirty();
        session.flush(mtime.at, closed).await?;
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
        if turn.handles > 0 && turn.pin.is_none() && self.writer().is_none() {
            turn.pin = Some(pool.write(self.ino()).await?);
        }
        Ok(())
    }

    /// Ends a session that no handle writes to any more. Errors can't reach any program here: they are logged. What it couldn't save
    /// and is in the spool, where it was promised to be, is to be pushed from there now: that is returned.
    async fn end_session(&self, fs: &FileSystem, turn: &mut Turn) -> Option<Arc<Self>> {
        let session = self.writer()?;
        // Pages that were written through a mapping after the last close, or a flush that failed and may be repeated.
        let committed = self.commit(&fs.pool, &session).await;
        let was_closing = session.is_closing();
        if let Err(failure) = &committed
            && let Some(promised) = session.take_back()
        {
            if was_closing {
                fs.note_lost(self.ino(), failure);
            }
            tracing::warn!(ino = %self.ino(), %failure, "a file can't be committed: what was promised of it stays in the spool");
            let file = fs.wait_in_spool(Some(self.id), promised, Some(failure.clone()));
            self.lose(fs, turn);
            return Some(file);
        }
        self.leave_session(fs, turn, &session, committed).await;
        None
    }

    /// What was written last is lost: what the kernel has of it counts for nothing. Whoever has the file open is told so and doesn't get it
    /// for the content of a version; who opens it by its name gets another inode.
    fn lose(&self, fs: &FileSystem, turn: &mut Turn) {
        turn.seen.version = NO_VERSION;
        fs.nodes.lock().saw(self.id, |seen| *seen = turn.seen);
        self.is_lost.store(true, Ordering::Release);
        *self.writer.write() = None;
        fs.drop_pages(self.id);
    }

    /// Nothing more comes of a session; `committed`: what came of it last.
    pub(super) async fn leave_session(
        &self,
        fs: &FileSystem,
        turn: &mut Turn,
        session: &Arc<Writer>,
        committed: Result<Option<VersionInfo>, Failure>,
    ) {
        self.teach(fs);
        turn.seen = self.seen_after(&committed, session);
        fs.nodes.lock().saw(self.id, |seen| *seen = turn.seen);
        match &committed {
            Err(failure) if session.is_closing() => fs.note_lost(self.ino(), failure),
            Err(failure) => {
                tracing::error!(ino = %self.ino(), %failure, "what was written last to a closed file is lost");
            }
            Ok(_) => {}
        }
        if turn.handles > 0 {
            match &committed {
                Err(failure) if !(fs.pool.is_gone(failure).await && self.is_removed(&fs.pool).await) => {
                    self.lose(fs, turn);
                }
                _ if !self.hand_over(&fs.pool, turn.seen.version).await => return,
                _ => {}
            }
        }
        *self.writer.write() = None;
        match turn.torn || committed.is_err() {
            true => end_writer(session).await,
            // Who opens the file next doesn't wait for the end of this session.
            false => session.close_later(),
        }
        turn.torn = false;
    }

    /// Whether there is no such file any more. What it was written over may be gone and the file be there.
    async fn is_removed(&self, pool: &Pool) -> bool {
        pool.attr(self.ino()).await.is_err_and(|failure| failure.code == ErrorCode::NotFound)
    }

    fn seen_after(&self, committed: &Result<Option<VersionInfo>, Failure>, session: &Writer) -> Seen {
        let version = match committed {
            Ok(version) => version.as_ref().map_or(0, |version| version.version),
            Err(_) => NO_VERSION,
        };
        let version = match *self.renumbered.lock() {
            Some((from, to)) if from == version => to,
            _ => version,
        };
        let mtime = *self.mtime.lock();
        let mtime = if self.goes_past_cache() { mtime.told } else { mtime.at };
        Seen { size: session.size(), mtime, version }
    }

    /// Handles that only read go on with the version that the session leaves; a removed file has none and keeps the session.
    async fn hand_over(&self, pool: &Pool, version: u64) -> bool {
        // Not the newest: that may come from elsewhere by now, and the kernel knows nothing of it.
        let version = Some(version).filter(|version| !matches!(*version, 0 | NO_VERSION));
        let latest = pool.read(self.ino(), version).await.ok();
        let handed = latest.is_some();
        *self.latest.write() = latest;
        handed
    }

    /// The mount goes away with the file open: what was written is kept, as the work of a writer that never finished.
    /// What waits in the spool stays there for the next mount.
    pub async fn abandon(&self, fs: &FileSystem) {
        let mut turn = self.turn.lock().await;
        turn.torn |= turn.writers > 0;
        (turn.handles, turn.writers) = (0, 0);
        if self.is_left_in_spool(&turn) {
            return;
        }
        if let Some(left) = self.end_session(fs, &mut turn).await {
            left.is_left_in_spool(&*left.turn.lock().await);
        }
        self.end(fs, &mut turn).await;
    }

    pub(super) async fn end(&self, fs: &FileSystem, turn: &mut Turn) {
        self.end_if_unused(fs, turn);
        if let Some(pin) = turn.pin.take() {
            end(&pin, false).await;
        }
    }
}

async fn write_zeros(session: &Arc<Writer>, range: Range<u64>) -> Result<(), Failure> {
    let zeros = vec![0; ZERO_BYTES.min(to_usize(range.end - range.start))];
    let mut at = range.start;
    while at < range.end {
        let piece = to_usize(range.end - at).min(zeros.len());
        session.write_at(at, part(&zeros, ..piece)).await?;
        at += piece as u64;
    }
    Ok(())
}

/// Ends a session; that a session that is gone can't be ended changes nothing for anyone.
async fn end(session: &Arc<Session>, interrupted: bool) {
    if let Err(failure) = session.close(interrupted).await {
        tracing::warn!(ino = %session.ino(), %failure, "a session did not end well");
    }
}

/// Ends a writer that was killed or failed, and leaves the version interrupted.
async fn end_writer(writer: &Writer) {
    if let Err(failure) = writer.close(true).await {
        tracing::warn!(ino = %writer.ino(), %failure, "a session did not end well");
    }
}
