//! Operations on files by handle, and changes of attributes.

use std::sync::Arc;

use stdchk_model::message::manager::{Attr, Change, FileKind, TimeNs};
use stdchk_model::policy::Protocol;
use stdchk_model::{ErrorCode, Failure, Ino};

use super::names::New;
use super::nodes::NodeId;
use super::open_file::Handle;
use super::retry::Content;
use super::{FileSystem, OVERTAKEN_MAX, Shown, look_again};
use crate::caller::Caller;
use crate::descriptors::Opener;

/// The attributes that a program, or the kernel for it, wants to change.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<TimeNs>,
    pub mtime: Option<TimeNs>,
    /// The handle by which it is wanted. Programs have one to set a size; the kernel names one for its own reports.
    pub handle: Option<u64>,
}

impl Wanted {
    /// The kernel reports the modification time of what it wrote, alone or with a size. What a program sets of times comes without a handle.
    pub fn is_report(&self) -> bool {
        (self.handle.is_some() || self.size.is_some())
            && self.mtime.is_some()
            && self.atime.is_none()
            && self.mode.is_none()
            && self.uid.is_none()
            && self.gid.is_none()
    }

    fn is_empty(&self) -> bool {
        let owner = self.uid.is_none() && self.gid.is_none();
        owner && self.mode.is_none() && self.atime.is_none() && self.mtime.is_none()
    }
}

/// What became of the wish for a protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chosen {
    /// It holds.
    Done,
    /// Bytes were written by another one.
    TooLate,
    /// Nobody has the file open for writing.
    NotWritten,
}

/// A file that was opened.
pub(crate) struct Opened {
    /// Number of the new handle.
    pub number: u64,
    /// Whether it goes past the kernel's page cache.
    pub past_cache: bool,
}

/// How a file that may exist is created.
pub(crate) struct Handled {
    /// The entry.
    pub shown: Shown,
    /// Number of the new handle.
    pub handle: u64,
}

impl FileSystem {
    /// Opens a file for a task of the kernel.
    ///
    /// # Errors
    /// `Stale` if the file isn't what the kernel takes it for: it looks the name up again, and opens what it finds.
    pub async fn open(&self, id: NodeId, writable: bool, caller: u32) -> Result<Opened, Failure> {
        let prepared = self.retries.take(caller, id, writable).await;
        let opener = Opener::of(caller, writable);
        let opened = self.open_prepared(id, writable, prepared, opener).await;
        if opened.as_ref().is_err_and(|failure| failure.code == ErrorCode::Stale) {
            self.retries.expect(caller, writable).await;
        }
        let number = opened?;
        let past_cache = self.handle(number)?.file.goes_past_cache();
        Ok(Opened { number, past_cache })
    }

    async fn open_prepared(
        &self,
        id: NodeId,
        writable: bool,
        mut prepared: Option<Content>,
        opener: Opener,
    ) -> Result<u64, Failure> {
        let readable = self.report_lost_to_who_may_open(id.ino(), writable).await;
        let readable = readable.and_then(|()| self.check_left_alone(id.ino()));
        if let Err(failure) = readable {
            if let Some(content) = prepared {
                content.end().await;
            }
            return Err(failure);
        }
        for _ in 0..OVERTAKEN_MAX {
            let file = self.nodes.lock().open_or_new(id);
            let file =
                file.ok_or_else(|| Failure::new(ErrorCode::Stale, "the inode isn't known any more"))?;
            if let Some(handle) = file.open(self, writable, &mut prepared, opener).await? {
                let number = self.number();
                self.handles.lock().insert(number, Arc::new(handle));
                return Ok(number);
            }
        }
        Err(Failure::new(ErrorCode::Unavailable, "the file is opened and closed too fast: try again"))
    }

    /// Creates a file and opens it for writing. One that another client made meanwhile is opened, unless `exclusive`.
    pub async fn create(
        self: &Arc<Self>,
        parent: NodeId,
        name: &str,
        new: New,
        caller: &Caller,
        exclusive: bool,
        truncate: bool,
    ) -> Result<Handled, Failure> {
        self.check_room().await?;
        let new = New { kind: FileKind::File, ..new };
        for _ in 0..OVERTAKEN_MAX {
            // The caller is looked at while the manager works.
            let (made, (opener, chosen)) =
                tokio::join!(caller.step(self.make_to_write(parent, name, new.clone(), exclusive)), async {
                    (Opener::of(caller.task(), true), self.choose(name, caller.task()))
                });
            let (shown, writer) = match made {
                Err(failure) if failure.code == ErrorCode::Exists && !exclusive => {
                    let found = match truncate {
                        true => self.look_up_emptied(parent, name).await,
                        false => self.look_up(parent, name).await,
                    };
                    if found.as_ref().is_err_and(|failure| failure.code == ErrorCode::Stale) {
                        self.retries.expect(caller.task(), true).await;
                    }
                    let found = found?;
                    (found, None)
                }
                made => made.map(|(shown, writer)| (shown, Some(writer)))?,
            };
            let (is_new, content) = (writer.is_some(), writer.map(Content::Writer));
            let opened = self.open_prepared(shown.id, true, content, opener).await;
            match opened.inspect_err(|_| self.forget(shown.id, 1)) {
                Err(failure) if failure.code == ErrorCode::Stale && !exclusive => {}
                opened => {
                    let number = opened?;
                    let file = Arc::clone(&self.handle(number)?.file);
                    if let Some(chosen) = chosen.filter(|_| is_new) {
                        // A file is made once.
                        let _ = file.made.set(chosen);
                    }
                    let shown = Shown { lasts: !file.goes_past_cache(), ..shown };
                    return self.created(shown, number, truncate, caller).await;
                }
            }
        }
        Err(Failure::new(ErrorCode::Stale, format!("`{name}` changes faster than it can be opened")))
    }

    async fn created(
        self: &Arc<Self>,
        mut shown: Shown,
        handle: u64,
        truncate: bool,
        caller: &Caller,
    ) -> Result<Handled, Failure> {
        if truncate && (shown.attr.size > 0 || shown.attr.version == 0) {
            let file = Arc::clone(&self.handle(handle)?.file);
            // The kernel takes its size from what it is shown now, and truncates nothing that it takes for new.
            shown.attr.size = 0;
            if let Err(failure) = caller.step(file.truncate(0)).await {
                self.give_back(handle).await;
                self.forget(shown.id, 1);
                return Err(failure);
            }
        }
        Ok(Handled { shown, handle })
    }

    /// The handle of this number.
    pub fn handle(&self, number: u64) -> Result<Arc<Handle>, Failure> {
        let handle = self.handles.lock().get(&number).cloned();
        handle.ok_or_else(|| Failure::new(ErrorCode::Stale, format!("no handle {number} is open")))
    }

    /// `close()`; how it came about: see [`Handle::flush`].
    pub async fn flush(&self, handle: &Handle, killed: bool, goes_on: bool) -> Result<(), Failure> {
        handle.flush(&self.pool, killed, goes_on).await
    }

    /// `fsync()`.
    pub async fn sync(&self, handle: &Handle) -> Result<(), Failure> {
        handle.file.sync(&self.pool).await
    }

    /// The last descriptor of a handle is gone. What it leaves must be released.
    pub fn leave(&self, number: u64) -> Option<Arc<Handle>> {
        let handle = self.handles.lock().remove(&number);
        handle.inspect(|handle| handle.leave())
    }

    /// Closes a handle that reached no program.
    pub async fn give_back(self: &Arc<Self>, number: u64) {
        if let Some(handle) = self.leave(number)
            && let Some(file) = handle.release(self).await
        {
            let fs = Arc::clone(self);
            tokio::spawn(async move { file.push(&fs).await });
        }
    }

    /// Chooses the write protocol of a file that is open for writing, for all who write it, until the last of them closes it.
    /// The kernel must have handed over what it holds of the file.
    pub async fn choose_protocol(
        &self,
        id: NodeId,
        protocol: Protocol,
        task: u32,
    ) -> Result<Chosen, Failure> {
        let open = self.nodes.lock().open_file(id);
        let Some(file) = open else { return Ok(Chosen::NotWritten) };
        file.check_may_write(&self.pool, task).await?;
        file.choose(protocol).await
    }

    /// Changes attributes.
    pub async fn set_attr(
        self: &Arc<Self>,
        id: NodeId,
        wanted: Wanted,
        caller: &Caller,
    ) -> Result<Attr, Failure> {
        if wanted.size == Some(0) {
            self.check_room().await?;
        }
        let open = self.nodes.lock().open_file(id).filter(|open| open.writer().is_some());
        if let Some(size) = wanted.size {
            match &open {
                Some(open) if !open.wait_for_push().await? => {
                    if !self.may_write_by(wanted.handle, id) {
                        open.check_may_write(&self.pool, caller.task()).await?;
                    }
                    caller.step(open.truncate(size)).await?;
                }
                _ => self.truncate_closed(id, size, wanted.mtime, caller).await?,
            }
        }
        if let (Some(open), true, Some(mtime)) = (&open, wanted.is_report(), wanted.mtime) {
            open.set_mtime(mtime, false);
            return self.attr_of_open(id).await;
        }
        if wanted.size.is_some() && (wanted.is_report() || wanted.is_empty()) {
            return self.attr(id).await;
        }
        match caller.step(self.set_attr_at_manager(id, wanted)).await {
            // The file was replaced or removed meanwhile, and somebody still has it open.
            Err(failure) if wanted.is_report() && failure.code == ErrorCode::Stale => {
                self.attr_of_open(id).await
            }
            changed => changed,
        }
    }

    /// Whether the kernel has let a program have a handle to write this inode with.
    fn may_write_by(&self, handle: Option<u64>, id: NodeId) -> bool {
        let handle = handle.and_then(|number| self.handle(number).ok());
        handle.is_some_and(|handle| handle.writable && handle.file.id() == id)
    }

    /// Fails, once, if what was written to the file last is lost: for who may open it, as nobody else is to learn of it.
    async fn report_lost_to_who_may_open(&self, ino: Ino, writable: bool) -> Result<(), Failure> {
        if self.is_lost(ino) {
            self.pool.may_open(ino, writable).await.map_err(look_again)?;
        }
        self.report_lost(ino)
    }

    /// The kernel only wants to know that its report arrived.
    async fn attr_of_open(&self, id: NodeId) -> Result<Attr, Failure> {
        let known = {
            let nodes = self.nodes.lock();
            nodes.last_attr(id).cloned().zip(nodes.open_file(id))
        };
        match known {
            Some((mut attr, open)) => {
                open.overlay(&mut attr);
                Ok(attr)
            }
            None => self.attr(id).await,
        }
    }

    async fn truncate_closed(
        self: &Arc<Self>,
        id: NodeId,
        size: u64,
        mtime: Option<TimeNs>,
        caller: &Caller,
    ) -> Result<(), Failure> {
        let number = self.open_prepared(id, true, None, Opener::of(caller.task(), true)).await?;
        let handle = self.handle(number)?;
        let truncated = caller.step(handle.file.truncate(size)).await;
        if let Some(mtime) = mtime {
            handle.file.set_mtime(mtime, false);
        }
        let flushed = self.flush(&handle, false, false).await;
        self.give_back(number).await;
        truncated.and(flushed)
    }

    async fn set_attr_at_manager(&self, id: NodeId, wanted: Wanted) -> Result<Attr, Failure> {
        let Wanted { mode, uid, gid, atime, mtime, .. } = wanted;
        let ino = id.ino();
        let change = Change::SetAttr { ino, mode, uid, gid, atime, mtime };
        let asked_at = self.nodes.lock().changes_in_folders();
        let mut attr = self.changed(change).await.map_err(look_again)?;
        let mut nodes = self.nodes.lock();
        nodes.changed_otherwise();
        nodes.learned(id, &attr, asked_at);
        let open = nodes.open_file(id);
        if let Some(mtime) = mtime {
            nodes.saw(id, |seen| seen.mtime = mtime);
            open.as_ref().inspect(|open| open.set_mtime(mtime, true));
        }
        drop(nodes);
        open.inspect(|open| open.overlay(&mut attr));
        Ok(attr)
    }
}
