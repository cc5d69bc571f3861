//! From the kernel's requests to the file system and back: translation and nothing else.
//!
//! The list of requests is here; what each of them does stands in [`names`], [`files`] and [`protocol`], how it is
//! answered in [`reply`]. Requests are answered from tasks of the runtime, so that one that waits holds up no other. Only a write
//! begins in the thread that received it, because its bytes lie in that thread's buffer; as long as another thread is
//! left to receive requests it waits there for room in the window, else its bytes are copied and it waits as a task.
//!
//! No program waits here that was told to end: every request that has a caller goes through [`Adapter::asked`] or
//! [`Adapter::carried`], writes do the same in [`files`]. There the pool is asked for the user of the request, too; what was opened for a
//! user before is written and closed by the mount itself.

mod files;
mod names;
mod protocol;
mod reply;

use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner, Notifier,
    OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use stdchk_client::acting_for;
use stdchk_model::Failure;
use stdchk_model::message::manager::FileKind;
use tokio::runtime::Handle as Runtime;
use tokio_util::task::TaskTracker;

use crate::attr::requested;
use crate::begun::begin;
use crate::caller::{Caller, told_to_end, unless_told_to_end};
use crate::descriptors::Silence;
use crate::fs::{FileSystem, Handle, NodeId, Wanted};
use crate::killed::Dying;
use crate::user::{Groups, Origin};
use files::drop_pages;
use names::new;
use reply::{Refuse, answer_attr, answer_empty, answer_space, or_refuse, refused, text};

/// Largest write or read of one request, bytes: a chunk. Larger ones gain nothing (docs/design/0002).
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests of the kernel's own, read-ahead and write-back, that may wait at once: sixteen mebibytes keep a window busy
/// and bound what is copied while it is full.
const BACKGROUND_REQUESTS_MAX: u16 = 16;

/// The adapter.
pub(crate) struct Adapter {
    fs: Arc<FileSystem>,
    runtime: Runtime,
    tasks: TaskTracker,
    ttl: Duration,
    /// Writes that may wait in the thread that received them: one less than there are threads.
    waiting_max: usize,
    waiting: AtomicUsize,
    dying: Arc<Dying>,
    silence: Arc<Silence>,
    /// Whether the kernel's reports of modification times reach us: they come from root, whom fuser turns away at a
    /// mount that is another user's and for that user alone.
    reports_arrive: bool,
    /// Tells the kernel what to do; there is one once the pool is mounted.
    kernel: Arc<OnceLock<Notifier>>,
    groups: Groups,
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
        kernel: Arc<OnceLock<Notifier>>,
    ) -> Self {
        let (waiting_max, waiting) = (threads.saturating_sub(1), AtomicUsize::new(0));
        let (dying, silence, groups) = (Arc::default(), Arc::default(), Groups::default());
        let notifier = Arc::clone(&kernel);
        fs.may_drop_pages(move |id| {
            if let Err(error) = drop_pages(&notifier, INodeNo(id.0)) {
                tracing::debug!(inode = id.0, %error, "the kernel did not drop its pages");
            }
        });
        Self { fs, runtime, tasks, ttl, waiting_max, waiting, dying, silence, reports_arrive, kernel, groups }
    }

    /// Runs a task of the file system that no caller waits for.
    fn task<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Arc<FileSystem>) -> F) {
        self.spawn(work(Arc::clone(&self.fs)));
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.runtime);
    }

    /// Runs a task that begins in the thread that received the request: what needs nobody else is answered there, and a
    /// question to the pool wakes no other thread. Not for what may have to do with disks.
    fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        begin(&self.runtime, self.tasks.track_future(work));
    }

    /// Runs the work of a request of the task `caller` that can be given up wherever it waits, and is if the caller is
    /// told to end.
    fn ask<R, T, F>(
        &self,
        caller: Origin,
        reply: R,
        work: impl FnOnce(Arc<FileSystem>) -> F,
        answer: impl FnOnce(R, T) + Send + 'static,
    ) where
        R: Refuse,
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.spawn(self.asked(caller, reply, work(Arc::clone(&self.fs)), answer));
    }

    /// The work of a request, for the user who makes it.
    fn asked<R, T, W, A>(
        &self,
        caller: Origin,
        reply: R,
        work: W,
        answer: A,
    ) -> impl Future<Output = ()> + Send + 'static + use<R, T, W, A>
    where
        R: Refuse,
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
        A: FnOnce(R, T) + Send + 'static,
    {
        asked(caller.task, reply, acting_for(self.groups.user(caller), work), answer)
    }

    /// The work of a request, done to its end, also if the task `caller` is told to end before; then `undo` gives back
    /// what came of it.
    fn carried<R, T, F, U, W, A, B>(
        &self,
        caller: Origin,
        reply: R,
        work: W,
        answer: A,
        undo: B,
    ) -> impl Future<Output = ()> + Send + 'static + use<R, T, F, U, W, A, B>
    where
        R: Refuse,
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
        U: Future<Output = ()> + Send + 'static,
        W: FnOnce(Arc<FileSystem>, Caller) -> F,
        A: FnOnce(R, T) + Send + 'static,
        B: FnOnce(Arc<FileSystem>, T) -> U + Send + 'static,
    {
        let user = self.groups.user(caller);
        let (fs, caller) = (Arc::clone(&self.fs), Caller::of(caller.task));
        let work = acting_for(user, work(Arc::clone(&fs), caller.clone()));
        async move {
            let leaves = told_to_end(caller.task());
            let late = caller.serve(reply, work, leaves, answer, |reply| reply.refuse(Errno::EINTR)).await;
            if let Some(outcome) = late {
                undo(fs, outcome).await;
            }
        }
    }

    /// Takes a place among the writes that wait in their thread.
    fn may_wait(&self) -> bool {
        let place = |waiting| (waiting < self.waiting_max).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, place).is_ok()
    }
}

async fn asked<R: Refuse, T>(
    caller: u32,
    reply: R,
    work: impl Future<Output = T>,
    answer: impl FnOnce(R, T),
) {
    match unless_told_to_end(caller, work).await {
        Some(outcome) => answer(reply, outcome),
        None => reply.refuse(Errno::EINTR),
    }
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
        if config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok() {
            self.fs.allow_past_cache();
        }
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.look_up(Origin::of(request), parent, name, reply);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.forget(NodeId(ino.0), nlookup);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let ttl = self.ttl;
        let fs = Arc::clone(&self.fs);
        let work = async move { fs.stat(NodeId(ino.0), ttl).await };
        self.begin(self.asked(Origin::of(request), reply, work, move |reply, found: Result<_, Failure>| {
            let ttl = found.as_ref().map_or(ttl, |(_, lasts)| *lasts);
            answer_attr(reply, "stat", ino, ttl, found.map(|(attr, _)| attr));
        }));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (atime, mtime) = (atime.map(requested), mtime.map(requested));
        let mode = mode.map(|mode| mode & 0o7777);
        let wanted = Wanted { mode, uid, gid, size, atime, mtime, handle: handle.map(|handle| handle.0) };
        let ttl = self.ttl;
        let change = self.carried(
            Origin::of(request),
            reply,
            |fs, caller| async move { fs.set_attr(NodeId(ino.0), wanted, &caller).await },
            move |reply, changed| answer_attr(reply, "a change of attributes", ino, ttl, changed),
            |_, _| async {},
        );
        // Before each close the kernel reports when the file was written, which is merely noted.
        match wanted.is_report() && size.is_none() {
            true => self.begin(change),
            false => self.spawn(change),
        }
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let fs = Arc::clone(&self.fs);
        let work = async move { fs.read_link(NodeId(ino.0)).await };
        self.begin(self.asked(
            Origin::of(request),
            reply,
            work,
            move |reply, target: Result<Arc<str>, _>| match target {
                Ok(target) => reply.data(target.as_bytes()),
                Err(failure) => reply.error(refused("reading a link", ino.0, &failure)),
            },
        ));
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
        let kind = match mode & libc::S_IFMT {
            0 | libc::S_IFREG => FileKind::File,
            libc::S_IFIFO => FileKind::Pipe,
            libc::S_IFSOCK => FileKind::Socket,
            _ => return reply.error(Errno::EPERM),
        };
        let new = new(request, kind, mode, String::new());
        self.make(Origin::of(request), parent, name, new, reply);
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
        self.make(Origin::of(request), parent, name, new, reply);
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
        self.make(Origin::of(request), parent, link_name, new, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(Origin::of(request), parent, name, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_directory(Origin::of(request), parent, name, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.move_name(Origin::of(request), (parent, name), (newparent, newname), flags, reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.add_name(Origin::of(request), ino, newparent, newname, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.open_file(Origin::of(request), ino, flags, reply);
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
        let new = new(request, FileKind::File, mode, String::new());
        self.make_open(parent, name, new, (Origin::of(request), flags), reply);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_file(Origin::of(request), ino, fh, offset, size, reply);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // The kernel's own write-back has no caller.
        let cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let caller = if cached { None } else { Some(request.pid()) };
        self.write_file(caller, ino, fh, offset, data, reply);
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.flush_file(request.pid(), ino, fh, reply);
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
        self.release_file(fh, reply);
    }

    fn fsync(&self, request: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        // Like a close, it keeps what was promised when the file was opened.
        let work = |fs: Arc<FileSystem>, handle: Arc<Handle>, _| {
            acting_for(None, async move { fs.sync(&handle).await })
        };
        self.with_handle(Origin::of(request), fh, reply, "fsync", ino, work);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.choose_protocol(Origin::of(request), ino, name, value, reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.allocate(Origin::of(request), ino, fh, (offset, length), mode, reply);
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.seek(Origin::of(request), ino, fh, offset, whence, reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.open_folder(Origin::of(request), ino, reply);
    }

    fn readdir(&self, request: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.list(Origin::of(request), ino, fh, offset, reply);
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list_plus(Origin::of(request), ino, fh, offset, reply);
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
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        // The manager answers a change of names once it is durable, but for the making of files that nobody has synced yet.
        self.task(|fs| async move { answer_empty(reply, "fsync", ino, fs.sync_names().await) });
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        let work = |fs: Arc<FileSystem>| async move { fs.space().await };
        self.ask(Origin::of(request), reply, work, move |reply, space| match space {
            Ok(space) => answer_space(reply, &space),
            Err(failure) => reply.error(refused("statfs", ino.0, &failure)),
        });
    }
}
