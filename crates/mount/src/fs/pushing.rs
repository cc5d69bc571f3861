//! Files that are closed and wait in the spool: pushed in the background, read from the spool until they are at the pool.
//!
//! The file stays open here while it is pushed, so that readers of this mount share what is in the spool and everyone else
//! sees the version before. Who opens it to write, or renames it, waits. A push that fails is tried again until the file is
//! gone or the mount ends; then it is left to the next mount with this spool.

use std::sync::Arc;
use std::time::Duration;

use stdchk_client::{Unpushed, Writer};
use stdchk_model::message::manager::{VersionInfo, VersionState};
use stdchk_model::{ErrorCode, Failure};
use stdchk_net::Retry;

use super::FileSystem;
use super::nodes::NodeId;
use super::open_file::{OpenFile, Turn};

/// First and longest pause between attempts to push a file.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Files that are pushed at a time: as many as keep a pool busy, however many wait.
pub(super) const PUSHES_MAX: usize = 64;

impl OpenFile {
    /// The last writer is gone: if what it wrote is in the spool it is to be pushed.
    pub(super) fn begin_push(&self, turn: &mut Turn) -> bool {
        let spooled = self.writer().filter(|writer| writer.is_spooled());
        let Some(writer) = spooled.filter(|_| !turn.pushing) else { return false };
        if let Err(failure) = writer.note_state(self.mtime.lock().at, !turn.torn) {
            tracing::warn!(ino = %self.ino(), %failure, "the spool does not know that the file is closed");
        }
        (turn.pushing, turn.push_failure) = (true, None);
        true
    }

    /// Pushes the file, however long it takes.
    pub async fn push(&self, fs: &FileSystem) {
        let (mut ending, mut going) = (fs.ending.subscribe(), fs.going.subscribe());
        let mut retry = Retry::endless(RETRY_PAUSE);
        let Some(writer) = self.writer() else { return };
        loop {
            // Who can't have a turn any more is left to the next mount.
            let Ok(turn) = fs.pushes.acquire().await else { return };
            let outcome = self.push_once(&writer).await;
            drop(turn);
            let is_over = match &outcome {
                Err(failure) => fs.gives_up(&writer, failure).await,
                Ok(_) => true,
            };
            let mut turn = self.turn.lock().await;
            match outcome {
                Err(failure) if !is_over => {
                    tracing::warn!(ino = %self.ino(), %failure, "a file stays in the spool: it could not be pushed");
                    if *ending.borrow() && failure.code == ErrorCode::Unavailable {
                        // Nor could others.
                        fs.pushes.close();
                    }
                    turn.push_failure = Some(failure);
                }
                outcome => return self.pushed(fs, &mut turn, &writer, outcome).await,
            }
            drop(turn);
            self.left.notify_waiters();
            if *going.borrow_and_update() {
                retry.progressed();
            }
            tokio::select! {
                _ = ending.wait_for(|is_ending| *is_ending) => return,
                _ = going.changed() => {}
                _ = retry.pause() => {}
            }
        }
    }

    async fn push_once(&self, writer: &Arc<Writer>) -> Result<Option<VersionInfo>, Failure> {
        let torn = self.turn.lock().await.torn;
        let state = if torn { VersionState::Interrupted } else { VersionState::Closed };
        let mtime = self.mtime.lock().at;
        writer.push(mtime, state).await
    }

    async fn pushed(
        &self,
        fs: &FileSystem,
        turn: &mut Turn,
        writer: &Arc<Writer>,
        outcome: Result<Option<VersionInfo>, Failure>,
    ) {
        (turn.pushing, turn.push_failure) = (false, None);
        self.leave_session(fs, turn, writer, outcome).await;
        if turn.handles == 0 {
            self.end(fs, turn).await;
        }
        self.left.notify_waiters();
    }

    /// Waits until the file is pushed, if it is being pushed; false: it isn't.
    ///
    /// # Errors
    /// An attempt to push it failed.
    pub(super) async fn wait_for_push(&self) -> Result<bool, Failure> {
        let mut waited = false;
        loop {
            let left = self.left.notified();
            let turn = self.turn.lock().await;
            if !turn.pushing {
                return Ok(waited);
            }
            if let Some(failure) = turn.push_failure.clone() {
                return Err(failure);
            }
            drop(turn);
            waited = true;
            left.await;
        }
    }

    /// Whether the mount may end without the file: the next one finds it in the spool.
    pub(super) fn is_left_in_spool(&self, turn: &Turn) -> bool {
        if turn.pushing {
            tracing::warn!(ino = %self.ino(), "a file stays in the spool: the next mount with it pushes it");
        }
        turn.pushing
    }
}

impl FileSystem {
    /// Takes up what the mount before left in the spool; what is to be pushed now.
    ///
    /// # Errors
    /// The spool can't be read, or the pool doesn't answer.
    pub async fn take_up_spool(&self) -> Result<Vec<Arc<OpenFile>>, Failure> {
        let Some(spool) = &self.spool else { return Ok(Vec::new()) };
        let (unpushed, left_alone) = self.pool.take_up(spool).await?;
        *self.left_alone.lock() = left_alone;
        Ok(unpushed.into_iter().map(|file| self.wait_in_spool(None, file, None)).collect())
    }

    /// Has a file open that waits in the spool: under a new inode, where the kernel takes what it has of `before` for its content.
    pub(super) fn wait_in_spool(
        &self,
        before: Option<NodeId>,
        file: Unpushed,
        push_failure: Option<Failure>,
    ) -> Arc<OpenFile> {
        let mut nodes = self.nodes.lock();
        before.into_iter().for_each(|before| nodes.replace(before));
        let id = nodes.id_of(file.writer.ino());
        let file = Arc::new(OpenFile::in_spool(id, file, push_failure));
        nodes.adopt(Arc::clone(&file));
        file
    }

    /// Whether nothing will come of what waits in the spool: the file was removed, or the loss is on record.
    async fn gives_up(&self, writer: &Writer, failure: &Failure) -> bool {
        if !writer.is_lost() && !self.pool.is_gone(failure).await {
            return false;
        }
        let (ino, given_up) = (writer.ino(), writer.discard(&self.pool).await);
        match &given_up {
            Ok(()) => {
                tracing::warn!(%ino, %failure, "a file can't be pushed any more: it was removed, or is lost and on record");
            }
            Err(unknown) => {
                tracing::error!(%ino, %failure, %unknown, "a closed file is lost, which can't be put on record yet");
            }
        }
        given_up.is_ok()
    }

    /// The machine is said to go soon, or no longer. While it is, nothing new goes into the spool, which would go with it, and what is
    /// there is pushed without long pauses.
    pub fn set_going(&self, is_going: bool) {
        match is_going {
            true => {
                tracing::warn!("this machine is said to go soon: files go to the pool and not into the spool")
            }
            false => tracing::info!("this machine is no longer said to go soon"),
        }
        self.spool.iter().for_each(|spool| spool.close_for_new(is_going));
        self.going.send_replace(is_going);
    }

    /// The mount is about to end: what can't be pushed now is left in the spool.
    pub fn begin_end(&self) {
        self.ending.send_replace(true);
        self.pool.ends();
    }
}
