//! A file system that throws its bytes away: the paper's `/stdchk/null` (section V.A, Table 1).
//!
//! It does nothing but what the kernel and its transport make every FUSE file system do, in the same mode as the pool's
//! mount: what it reaches is the bound that the pool's mount is measured against. One directory, files that have a name
//! and a size; they read as zeros.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, BsdFileFlags, Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, TimeOrNow,
    WriteFlags,
};
use parking_lot::Mutex;
use stdchk_model::Ino;
use stdchk_model::exact::{narrow, part, to_usize};
use stdchk_model::message::manager::{Attr, FileKind};

use crate::attr::file_attr;
use crate::fuse::REQUEST_BYTES_MAX;
use crate::point::{self, Error, Left};

/// Name of the file system for `mount` and `df`.
const NAME: &str = "stdchk-null";
/// How long the kernel believes what it was told: nothing changes behind its back.
const TTL: Duration = Duration::from_secs(60);
/// Largest read that is answered, bytes: the kernel asks for a mebibyte at most.
const READ_BYTES_MAX: usize = REQUEST_BYTES_MAX as usize;

/// How the kernel handles the bytes of the do-nothing file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NullMode {
    /// The page cache takes writes and writes them back: the mode of the pool's mount.
    WriteBack,
    /// Every write call goes through the page cache to the file system at once: the kernel's default.
    WriteThrough,
    /// No page cache.
    Direct,
}

/// How to mount it.
#[derive(Clone, Debug)]
pub struct NullConfig {
    /// An empty directory.
    pub mount_point: PathBuf,
    /// How the kernel handles the bytes.
    pub mode: NullMode,
    /// Threads that receive the kernel's requests, at least one.
    pub threads: usize,
}

/// The do-nothing file system, mounted until [`NullMounted::unmount`].
pub struct NullMounted {
    point: PathBuf,
    session: BackgroundSession,
}

/// Mounts a file system that throws its bytes away.
///
/// # Errors
/// As for [`crate::mount()`].
pub fn mount_null(config: &NullConfig) -> Result<NullMounted, Error> {
    let point = point::check(&config.mount_point)?;
    let refused = |error| Error::system(format!("mounting at {}", point.display()), error);
    let options = point::options(NAME, false, false, config.threads.max(1));
    let session = Session::new(Null::new(config.mode), &point, &options).map_err(refused)?;
    let session = session.spawn().map_err(refused)?;
    point::raise_read_ahead(&point);
    Ok(NullMounted { point, session })
}

impl NullMounted {
    /// The mount point, as a full path.
    pub fn mount_point(&self) -> &Path {
        &self.point
    }

    /// Unmounts it and waits until it is gone, unless files of it are still open.
    pub fn unmount(self) -> Result<(), Error> {
        if point::unmount(&self.point)? == Left::Detached {
            return Ok(());
        }
        self.session.join().map_err(|error| Error::system("ending the null mount", error))
    }
}

struct Null {
    mode: NullMode,
    files: Mutex<Files>,
    zeros: Vec<u8>,
}

#[derive(Default)]
struct Files {
    numbers: HashMap<OsString, u64>,
    sizes: HashMap<u64, u64>,
}

impl Files {
    fn attr(&self, ino: u64) -> Option<FileAttr> {
        if ino == INodeNo::ROOT.0 {
            return Some(attr(ino, FileKind::Directory, 0));
        }
        self.sizes.get(&ino).map(|size| attr(ino, FileKind::File, *size))
    }

    fn make(&mut self, name: &OsStr) -> u64 {
        let next = INodeNo::ROOT.0 + 1 + self.sizes.len() as u64;
        self.numbers.insert(name.to_owned(), next);
        self.sizes.insert(next, 0);
        next
    }
}

fn attr(ino: u64, kind: FileKind, size: u64) -> FileAttr {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (mode, links, version) = (0o755, 1, 0);
    let (atime, mtime, ctime, named, hole_bytes) = (0, 0, 0, 0, 0);
    let inode = Ino(ino);
    file_attr(
        ino,
        &Attr {
            ino: inode,
            kind,
            mode,
            uid,
            gid,
            links,
            size,
            atime,
            mtime,
            ctime,
            version,
            named,
            hole_bytes,
        },
    )
}

impl Null {
    fn new(mode: NullMode) -> Self {
        Self { mode, files: Mutex::default(), zeros: vec![0; READ_BYTES_MAX] }
    }

    fn open_flags(&self) -> FopenFlags {
        match self.mode {
            NullMode::Direct => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            NullMode::WriteBack | NullMode::WriteThrough => FopenFlags::FOPEN_KEEP_CACHE,
        }
    }
}

impl Filesystem for Null {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if self.mode == NullMode::WriteBack {
            let lacking = |_| io::Error::other("this kernel's FUSE has no write-back cache");
            config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE).map_err(lacking)?;
        }
        // Both are within what the kernel offers; a smaller value than asked for would serve as well.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let files = self.files.lock();
        match files.numbers.get(name).and_then(|ino| files.attr(*ino)) {
            Some(attr) => reply.entry(&TTL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.files.lock().attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut files = self.files.lock();
        if let (Some(size), Some(now)) = (size, files.sizes.get_mut(&ino.0)) {
            *now = size;
        }
        match files.attr(ino.0) {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn create(
        &self,
        _request: &Request,
        _parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mut files = self.files.lock();
        let ino = files.make(name);
        match files.attr(ino) {
            Some(attr) => reply.created(&TTL, &attr, Generation(0), FileHandle(ino), self.open_flags()),
            None => reply.error(Errno::EIO),
        }
    }

    fn open(&self, _request: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(ino.0), self.open_flags());
    }

    fn unlink(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.files.lock().numbers.remove(name) {
            Some(_) => reply.ok(),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut files = self.files.lock();
        if let Some(size) = files.sizes.get_mut(&ino.0) {
            *size = (*size).max(offset.saturating_add(data.len() as u64));
        }
        drop(files);
        reply.written(narrow(data.len()));
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = self.files.lock().sizes.get(&ino.0).copied().unwrap_or(0);
        let left = to_usize(end.saturating_sub(offset));
        let length = left.min(size as usize).min(READ_BYTES_MAX);
        reply.data(part(&self.zeros, ..length));
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        reply: ReplyDirectory,
    ) {
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // As much room as anyone could ask for: 2^44 units.
        let (units, files, unit) = (1 << 44, 1 << 20, 4096);
        reply.statfs(units, units, units, files, files, unit, 255, unit);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn bytes_written_are_counted_and_thrown_away_in_every_mode() {
        for mode in [NullMode::WriteBack, NullMode::WriteThrough, NullMode::Direct] {
            let folder = tempfile::tempdir().unwrap();
            let config = NullConfig { mount_point: folder.path().to_owned(), mode, threads: 1 };
            let mounted = mount_null(&config).unwrap();
            let path = folder.path().join("file");
            std::fs::File::create(&path).unwrap().write_all(&[7; 3 << 20]).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 << 20, "{mode:?}");
            assert_eq!(std::fs::read(&path).unwrap().len(), 3 << 20, "{mode:?}");
            std::fs::remove_file(&path).unwrap();
            mounted.unmount().unwrap();
            assert!(!path.exists());
        }
    }
}
