//! Open file descriptions: who opened a file and how, and what each of their ends leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_client::{Pool, Reader, Sought, acting_user};
use stdchk_model::{ErrorCode, Failure, User};

use super::OpenFile;
use crate::descriptors::{Opener, holds, process_of};
use crate::fs::FileSystem;

/// One open file description.
pub(crate) struct Handle {
    pub file: Arc<OpenFile>,
    pub writable: bool,
    opener: Opener,
    /// For whom it was opened.
    user: Option<User>,
    /// Closes under way: by which process, and how many writes they cover.
    closing: Mutex<Vec<(Option<u32>, u64)>>,
    reader: Option<Arc<Reader>>,
    /// Value of `writes` at the last proper close.
    closed_at: AtomicU64,
    /// Whether a close of it has arrived, but for one by a program that goes on with another descriptor.
    was_closed: AtomicBool,
    torn: AtomicBool,
}

/// A close under way.
pub(crate) struct Closing<'a> {
    handle: &'a Handle,
    close: (Option<u32>, u64),
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let mut closing = self.handle.closing.lock();
        if let Some(at) = closing.iter().position(|other| *other == self.close) {
            closing.swap_remove(at);
        }
    }
}

impl Handle {
    pub fn new(file: Arc<OpenFile>, writable: bool, opener: Opener, reader: Option<Arc<Reader>>) -> Self {
        Self {
            file,
            writable,
            opener,
            user: acting_user(),
            closing: Mutex::default(),
            reader,
            closed_at: AtomicU64::new(u64::MAX),
            was_closed: AtomicBool::new(false),
            torn: AtomicBool::new(false),
        }
    }

    /// Up to `length` bytes at `offset`; short at the end of the file.
    pub async fn read(&self, offset: u64, length: usize) -> Result<Bytes, Failure> {
        if let Some(session) = self.file.writer() {
            self.file.debts.paid().await;
            let read = session.read_at(offset, length).await?;
            if read.len() < length && self.file.until_truncation_is_known().await {
                return session.read_at(offset, length).await;
            }
            return Ok(read);
        }
        self.read_from()?.read_at(offset, length).await
    }

    /// The first place at or behind `offset` that is sought, or nothing. The kernel must have handed over what it holds
    /// of a file that is being written.
    pub async fn seek(&self, offset: u64, sought: Sought) -> Result<Option<u64>, Failure> {
        if let Some(writer) = self.file.writer() {
            self.file.debts.paid().await;
            return Ok(writer.seek(offset, sought));
        }
        Ok(self.read_from()?.seek(offset, sought))
    }

    /// The version that a handle without a writer reads.
    fn read_from(&self) -> Result<Arc<Reader>, Failure> {
        if self.file.is_lost.load(Ordering::Acquire) {
            let what = "what was written to it since it was opened here is lost: open it again";
            return Err(Failure::new(ErrorCode::Stale, format!("file {}: {what}", self.file.ino())));
        }
        let latest = self.file.latest.read().clone();
        let reader = latest.or_else(|| self.reader.clone());
        reader.ok_or_else(|| Failure::new(ErrorCode::Stale, "the file isn't open any more"))
    }

    /// Takes note that `task` closes a descriptor, as long as what is returned lives.
    pub fn closes(&self, task: u32) -> Closing<'_> {
        // Now: the kernel may let go of the handle before anybody gets to the rest.
        self.was_closed.store(true, Ordering::Release);
        let process = if task == self.opener.task { self.opener.process } else { process_of(task) };
        let close = (process, self.file.writes.load(Ordering::Acquire));
        self.closing.lock().push(close);
        Closing { handle: self, close }
    }

    /// Whether `task` is one of the process that opened the file, as far as that can be seen.
    pub fn is_opened_by(&self, task: u32) -> bool {
        task == self.opener.task || self.opener.process.is_some() && process_of(task) == self.opener.process
    }

    /// Whether `task` closes what it only inherited: the process that opened the file is another one, and either has a
    /// descriptor to write to inode `number` with, or is closing its last one and waits for all that was written.
    pub async fn is_inherited(&self, task: u32, number: u64) -> bool {
        let Some(process) = self.opener.process.filter(|_| task != self.opener.task) else { return false };
        if process_of(task).is_none_or(|closes| closes == process) {
            return false;
        }
        let writes = self.file.writes.load(Ordering::Acquire);
        let covered = (Some(process), writes);
        self.closing.lock().contains(&covered) || holds(process, number).await
    }

    /// One `close()` of a descriptor of this handle; `killed`: not by the program, but because a signal killed it.
    ///
    /// A killed program leaves the file torn, unless a proper close of the same handle came before (another process
    /// holds a copy of the descriptor) and nothing was written since.
    ///
    /// `goes_on`: a program that has it open holds another descriptor to write with. If the file was emptied so far and nothing
    /// more, the commit waits for the next close, or for the end of the handle. What there is then stays what a writer wrote who has
    /// not finished, as what is in the spool does where other handles can write.
    pub async fn flush(&self, pool: &Pool, killed: bool, goes_on: bool) -> Result<(), Failure> {
        if !self.writable {
            return Ok(());
        }
        self.was_closed.store(!goes_on, Ordering::Release);
        // Before anything waits: the kernel may let go of the handle before this is done.
        let is_torn = || self.closed_at.load(Ordering::Acquire) != self.file.writes.load(Ordering::Acquire);
        if killed && is_torn() {
            self.torn.store(true, Ordering::Release);
        }
        let turn = self.file.turn.lock().await;
        let writes = self.file.writes.load(Ordering::Acquire);
        if killed && is_torn() {
            self.torn.store(true, Ordering::Release);
        }
        if let Some(session) = self.file.writer()
            && !(goes_on && self.file.is_emptied())
        {
            let leaving = self.file.leaving.load(Ordering::Acquire);
            let others_write = turn.writers.saturating_sub(leaving) > 1;
            self.file.save(pool, &session, !killed && !goes_on && !others_write).await?;
        }
        self.file.flushed_at.store(writes, Ordering::Release);
        if !killed && !goes_on {
            self.closed_at.store(writes, Ordering::Release);
            self.file.closed_at.store(writes, Ordering::Release);
            self.torn.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// The last descriptor of this handle is gone; [`Handle::release`] follows.
    pub fn leave(&self) {
        self.file.leaving.fetch_add(usize::from(self.writable), Ordering::AcqRel);
    }

    /// Whether the handle ends without any close although the file was written to since somebody closed it properly, or never
    /// was closed. An `open()` that failed behind its truncation ends so, one whose program was killed meanwhile, and a
    /// program whose last pages the kernel could not hand over.
    fn was_cut_off(&self) -> bool {
        let closed_at = self.file.closed_at.load(Ordering::Acquire);
        !self.was_closed.load(Ordering::Acquire) && closed_at != self.file.writes.load(Ordering::Acquire)
    }

    /// Takes the handle from the file; the last one that could write ends the session. Returns the file if it is to be
    /// pushed from the spool now.
    pub async fn release(&self, fs: &FileSystem) -> Option<Arc<OpenFile>> {
        let mut turn = self.file.turn.lock().await;
        self.file.leaving.fetch_sub(usize::from(self.writable), Ordering::AcqRel);
        turn.handles -= 1;
        if self.writable {
            turn.writers -= 1;
            let mut openers = self.file.openers.lock();
            if let Some(at) =
                openers.iter().position(|(task, user)| (*task, user) == (self.opener.task, &self.user))
            {
                openers.swap_remove(at);
            }
            drop(openers);
            turn.torn |= self.torn.load(Ordering::Acquire) || turn.writers == 0 && self.was_cut_off();
        }
        let begins = turn.writers == 0 && self.file.begin_push(&mut turn);
        let mut pushed = begins.then(|| Arc::clone(&self.file));
        if turn.writers == 0 && !turn.pushing {
            pushed = self.file.end_session(fs, &mut turn).await;
        }
        if turn.handles == 0 && !turn.pushing {
            self.file.end(fs, &mut turn).await;
        }
        drop(turn);
        self.file.left.notify_waiters();
        pushed
    }
}
