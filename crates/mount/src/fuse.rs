//! From the kernel's requests to the file system and back: translation and nothing else.
//!
//! Requests are answered from tasks of the runtime, so that one that waits holds up no other. Only a write begins in the
//! thread that received it, because its bytes lie in that thread's buffer; as long as another thread is left to receive
//! requests it waits there for room in the window, else its bytes are copied and it waits as a task.

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use stdchk_model::Failure;
use stdchk_model::limits::NAME_BYTES_MAX;
use stdchk_model::message::manager::{Existing, FileKind, Space};
use tokio::runtime::Handle as Runtime;
use tokio_util::task::TaskTracker;

use crate::attr::{dot_attr, file_attr, file_type, requested};
use crate::errno::{errno, file_errno, is_common};
use crate::fs::{FileSystem, Handle, Listed, New, NodeId, Shown, Wanted};
use crate::killed::is_killed;

/// Largest write or read of one request, bytes: a chunk. Larger ones gain nothing (docs/design/0002).
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests of the kernel's own, read-ahead and write-back, that may wait at once: sixteen mebibytes keep a window busy
/// and bound what is copied while it is full.
const BACKGROUND_REQUESTS_MAX: u16 = 16;
/// Unit of the space that `statfs` reports, bytes.
const SPACE_UNIT: u32 = 4096;

/// The adapter.
pub(crate) struct Adapter {
    fs: Arc<FileSystem>,
    runtime: Runtime,
    tasks: TaskTracker,
    ttl: Duration,
    /// Writes that may wait in the thread that received them: one less than there are threads.
    waiting_max: usize,
    waiting: AtomicUsize,
    /// Whether the kernel's reports of modification times reach us: they come from root, whom fuser turns away at a
    /// mount that is another user's and for that user alone.
    reports_arrive: bool,
}

impl Adapter {
    /// An adapter of a file system for `threads` threads that receive requests.
    pub fn new(
        fs: Arc<FileSystem>,
        runtime: Runtime,
        tasks: TaskTracker,
        ttl: Duration,
        threads: usize,
        reports_arrive: bool,
    ) -> Self {
        let waiting_max = threads.saturating_sub(1);
        Self { fs, runtime, tasks, ttl, waiting_max, waiting: AtomicUsize::new(0), reports_arrive }
    }

    /// Runs the work of one request; `work` gets the file system.
    fn task<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Arc<FileSystem>) -> F) {
        self.tasks.spawn_on(work(Arc::clone(&self.fs)), &self.runtime);
    }

    /// Takes a place among the writes that wait in their thread.
    fn may_wait(&self) -> bool {
        let place = |waiting| (waiting < self.waiting_max).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, place).is_ok()
    }
}

/// Logs a failure that a person should see, and gives its error number.
fn refused(what: &str, number: u64, failure: &Failure) -> Errno {
    if !is_common(failure) {
        tracing::warn!(inode = number, %failure, "{what} failed");
    }
    errno(failure)
}

/// The same for content.
fn refused_content(what: &str, number: u64, failure: &Failure) -> Errno {
    refused(what, number, failure);
    file_errno(failure)
}

fn answer_empty(reply: ReplyEmpty, what: &str, ino: INodeNo, outcome: Result<(), Failure>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(failure) => reply.error(refused_content(what, ino.0, &failure)),
    }
}

fn answer_entry(
    reply: ReplyEntry,
    what: &str,
    parent: INodeNo,
    ttl: Duration,
    outcome: Result<Shown, Failure>,
) {
    match outcome {
        Ok(shown) => reply.entry(&ttl, &file_attr(shown.id.0, &shown.attr), Generation(0)),
        Err(failure) => reply.error(refused(what, parent.0, &failure)),
    }
}

/// A name as the pool takes it: any UTF-8 text.
fn text(name: &OsStr) -> Result<String, Errno> {
    name.to_str().map(str::to_owned).ok_or(Errno::EILSEQ)
}

/// Ends the request with an error, or goes on with the value.
macro_rules! or_refuse {
    ($value:expr, $reply:expr) => {
        match $value {
            Ok(value) => value,
            Err(errno) => return $reply.error(errno),
        }
    };
}

fn writable(flags: OpenFlags) -> bool {
    flags.acc_mode() != OpenAccMode::O_RDONLY
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let needed = InitFlags::FUSE_WRITEBACK_CACHE
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS;
        config.add_capabilities(needed).map_err(|lacking| {
            io::Error::other(format!("this kernel's FUSE lacks {lacking:?}: Linux 4.7 or newer is needed"))
        })?;
        let _ = config.add_capabilities(InitFlags::FUSE_CACHE_SYMLINKS);
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        // What can't be a name here is not found here.
        let name = or_refuse!(text(name).map_err(|_| Errno::ENOENT), reply);
        let ttl = self.ttl;
        self.task(|fs| async move {
            answer_entry(reply, "a lookup", parent, ttl, fs.lookup(NodeId(parent.0), &name).await);
        });
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.forget(NodeId(ino.0), nlookup);
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let ttl = self.ttl;
        self.task(|fs| async move {
            match fs.attr(NodeId(ino.0)).await {
                Ok(attr) => reply.attr(&ttl, &file_attr(ino.0, &attr)),
                Err(failure) => reply.error(refused("stat", ino.0, &failure)),
            }
        });
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (atime, mtime) = (atime.map(requested), mtime.map(requested));
        let wanted = Wanted { mode: mode.map(|mode| mode & 0o7777), uid, gid, size, atime, mtime };
        let ttl = self.ttl;
        self.task(|fs| async move {
            match fs.set_attr(NodeId(ino.0), wanted).await {
                Ok(attr) => reply.attr(&ttl, &file_attr(ino.0, &attr)),
                Err(failure) => reply.error(refused_content("a change of attributes", ino.0, &failure)),
            }
        });
    }

    fn readlink(&self, _request: &Request, ino: INodeNo, reply: ReplyData) {
        self.task(|fs| async move {
            match fs.read_link(NodeId(ino.0)).await {
                Ok(target) => reply.data(target.as_bytes()),
                Err(failure) => reply.error(refused("reading a link", ino.0, &failure)),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        if !matches!(mode & libc::S_IFMT, 0 | libc::S_IFREG) {
            return reply.error(Errno::EPERM);
        }
        let new = new(request, FileKind::File, mode, String::new());
        self.make(parent, name, new, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let new = new(request, FileKind::Directory, mode, String::new());
        self.make(parent, name, new, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = or_refuse!(text(target.as_os_str()), reply);
        let new = new(request, FileKind::Symlink, 0o777, target);
        self.make(parent, link_name, new, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = or_refuse!(text(name), reply);
        self.task(|fs| async move {
            answer_empty(reply, "a removal", parent, fs.unlink(NodeId(parent.0), &name).await);
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = or_refuse!(text(name), reply);
        self.task(|fs| async move {
            answer_empty(reply, "a removal", parent, fs.rmdir(NodeId(parent.0), &name).await);
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let existing = or_refuse!(existing(flags), reply);
        let (name, new_name) = (or_refuse!(text(name), reply), or_refuse!(text(newname), reply));
        self.task(|fs| async move {
            let (from, to) = (NodeId(parent.0), NodeId(newparent.0));
            let renamed = fs.rename((from, &name), (to, &new_name), existing).await;
            match renamed {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(refused("a rename", parent.0, &failure)),
            }
        });
    }

    fn link(&self, _request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let name = or_refuse!(text(newname), reply);
        let ttl = self.ttl;
        self.task(|fs| async move {
            let linked = fs.link(NodeId(ino.0), NodeId(newparent.0), &name).await;
            answer_entry(reply, "a link", newparent, ttl, linked);
        });
    }

    fn open(&self, _request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.task(|fs| async move {
            match fs.open(NodeId(ino.0), writable(flags)).await {
                Ok(number) => reply.opened(FileHandle(number), FopenFlags::FOPEN_KEEP_CACHE),
                Err(failure) => reply.error(refused("open", ino.0, &failure)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let name = or_refuse!(text(name), reply);
        let new = new(request, FileKind::File, mode, String::new());
        let (exclusive, truncate) = (flags & libc::O_EXCL != 0, flags & libc::O_TRUNC != 0);
        let ttl = self.ttl;
        self.task(|fs| async move {
            match fs.create(NodeId(parent.0), &name, new, exclusive, truncate).await {
                Ok(made) => {
                    let attr = file_attr(made.shown.id.0, &made.shown.attr);
                    let (handle, keep) = (FileHandle(made.handle), FopenFlags::FOPEN_KEEP_CACHE);
                    reply.created(&ttl, &attr, Generation(0), handle, keep);
                }
                Err(failure) => reply.error(refused("creating a file", parent.0, &failure)),
            }
        });
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.task(|fs| async move {
            let read = match fs.handle(fh.0) {
                Ok(handle) => handle.read(offset, size as usize).await,
                Err(failure) => Err(failure),
            };
            match read {
                Ok(bytes) => reply.data(&bytes),
                Err(failure) => reply.error(refused_content("a read", ino.0, &failure)),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let timed = self.reports_arrive && write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        if self.may_wait() {
            let written = self.runtime.block_on(write(&self.fs, fh.0, offset, data, timed));
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            return answer_write(reply, ino, written);
        }
        let data = data.to_vec();
        self.task(|fs| async move {
            answer_write(reply, ino, write(&fs, fh.0, offset, &data, timed).await);
        });
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        if !handle.writable {
            return reply.ok();
        }
        let caller = request.pid();
        self.task(|fs| async move {
            let killed = is_killed(caller).await;
            answer_empty(reply, "close", ino, fs.flush(&handle, killed).await);
        });
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.task(|fs| async move {
            fs.release(fh.0).await;
            reply.ok();
        });
    }

    fn fsync(&self, _request: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.with_handle(fh, reply, "fsync", ino, |fs, handle| async move { fs.sync(&handle).await });
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match mode {
            0 => self.with_handle(fh, reply, "fallocate", ino, move |_, handle| async move {
                extend(&handle, offset.saturating_add(length)).await
            }),
            PUNCH => self.with_handle(fh, reply, "fallocate", ino, move |_, handle| async move {
                handle.file.zero(offset, length).await
            }),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn opendir(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.fs.open_directory(NodeId(ino.0))), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.task(|fs| async move {
            let add = |entry: Listed<'_>| {
                reply.add(INodeNo(entry.id.0), entry.next, file_type(entry.kind), entry.name)
            };
            match fs.list(fh.0, offset, false, add).await {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(refused("listing a directory", ino.0, &failure)),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let ttl = self.ttl;
        self.task(|fs| async move {
            let add = |entry: Listed<'_>| add_plus(&mut reply, ttl, &entry);
            match fs.list(fh.0, offset, true, add).await {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(refused("listing a directory", ino.0, &failure)),
            }
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.fs.close_directory(fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        // The manager answers a change of names once it is durable.
        reply.ok();
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.task(|fs| async move {
            match fs.space().await {
                Ok(space) => answer_space(reply, &space),
                Err(failure) => reply.error(refused("statfs", ino.0, &failure)),
            }
        });
    }
}

impl Adapter {
    fn make(&self, parent: INodeNo, name: &OsStr, new: New, reply: ReplyEntry) {
        let name = or_refuse!(text(name), reply);
        let ttl = self.ttl;
        self.task(|fs| async move {
            answer_entry(reply, "making an entry", parent, ttl, fs.make(NodeId(parent.0), &name, new).await);
        });
    }

    /// Does something with an open file whose only answer is whether it succeeded.
    fn with_handle<F: Future<Output = Result<(), Failure>> + Send + 'static>(
        &self,
        fh: FileHandle,
        reply: ReplyEmpty,
        what: &'static str,
        ino: INodeNo,
        work: impl FnOnce(Arc<FileSystem>, Arc<Handle>) -> F,
    ) {
        let handle = or_refuse!(self.fs.handle(fh.0).map_err(|failure| errno(&failure)), reply);
        let work = work(Arc::clone(&self.fs), handle);
        self.task(|_| async move { answer_empty(reply, what, ino, work.await) });
    }
}

fn new(request: &Request, kind: FileKind, mode: u32, target: String) -> New {
    New { kind, mode: mode & 0o7777, uid: request.uid(), gid: request.gid(), target }
}

fn existing(flags: RenameFlags) -> Result<Existing, Errno> {
    if flags == RenameFlags::RENAME_NOREPLACE {
        return Ok(Existing::Refuse);
    }
    if flags == RenameFlags::RENAME_EXCHANGE {
        return Ok(Existing::Exchange);
    }
    if flags.is_empty() { Ok(Existing::Replace) } else { Err(Errno::EINVAL) }
}

async fn write(
    fs: &FileSystem,
    handle: u64,
    offset: u64,
    data: &[u8],
    timed: bool,
) -> Result<usize, Failure> {
    let handle = fs.handle(handle)?;
    let session = handle.file.written()?;
    handle.file.wrote(timed);
    session.write_at(offset, data).await.map(|()| data.len())
}

fn answer_write(reply: ReplyWrite, ino: INodeNo, written: Result<usize, Failure>) {
    match written {
        // A request is never larger than what was agreed with the kernel.
        Ok(length) => reply.written(u32::try_from(length).unwrap_or(REQUEST_BYTES_MAX)),
        Err(failure) => reply.error(refused_content("a write", ino.0, &failure)),
    }
}

async fn extend(handle: &Handle, end: u64) -> Result<(), Failure> {
    if end > handle.file.written()?.size() { handle.file.truncate(end).await } else { Ok(()) }
}

fn add_plus(reply: &mut ReplyDirectoryPlus, ttl: Duration, entry: &Listed<'_>) -> bool {
    let attr = match entry.attr {
        Some(attr) => file_attr(entry.id.0, attr),
        // Of `.` and `..` the kernel takes number and kind only.
        None => dot_attr(entry.id.0),
    };
    reply.add(attr.ino, entry.next, entry.name, &ttl, &attr, Generation(0))
}

fn answer_space(reply: ReplyStatfs, space: &Space) {
    let units = |bytes: u64| bytes / u64::from(SPACE_UNIT);
    let (free, files) = (units(space.free_bytes), space.inodes);
    let total = units(space.used_bytes.saturating_add(space.free_bytes));
    // The number of files has no limit of its own: as many as there are units free.
    let name_max = u32::try_from(NAME_BYTES_MAX).unwrap_or(u32::MAX);
    reply.statfs(total, free, free, files.saturating_add(free), free, SPACE_UNIT, name_max, SPACE_UNIT);
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_name_that_is_not_text_is_refused_with_the_error_that_says_so() {
        assert_eq!(text(OsStr::from_bytes(b"a\xff")).unwrap_err().code(), libc::EILSEQ);
    }

    #[test]
    fn a_rename_with_flags_that_we_do_not_know_is_refused() {
        assert!(existing(RenameFlags::RENAME_WHITEOUT).is_err());
        assert_eq!(existing(RenameFlags::empty()), Ok(Existing::Replace));
    }
}
