//! One process of the run: a watch and its open descriptors, asked as the hooks of the preload library ask.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use stdchk_filestate::control::Control;
use stdchk_filestate::store::Store;
use stdchk_filestate::watch::data::Change;
use stdchk_filestate::watch::names::Open;
use stdchk_filestate::watch::{Next, Watch};

use crate::steps::{Access, DESCRIPTORS, How, Renaming};

/// A process.
pub struct Process {
    pub watch: Watch,
    root: OwnedFd,
    open: Vec<Option<OwnedFd>>,
}

impl Process {
    pub fn new(root: &Path) -> Self {
        let control = Control::open(&Store::open(root).unwrap()).unwrap();
        let watch = Watch::new(Store::open(root).unwrap(), control).unwrap();
        let root = rustix::fs::open(root, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        Self { watch, root, open: (0..DESCRIPTORS).map(|_| None).collect() }
    }

    pub fn close(&mut self, slot: usize) {
        if let Some(fd) = self.open[slot].take() {
            self.watch.closed(fd.as_raw_fd());
        }
    }

    pub fn open(&mut self, slot: usize, name: &str, how: How) {
        let mut flags = match how.access {
            Access::Write => OFlags::WRONLY,
            Access::Both => OFlags::RDWR,
            Access::Read => OFlags::RDONLY,
        };
        flags.set(OFlags::CREATE, how.create);
        flags.set(OFlags::TRUNC, how.cut);
        flags.set(OFlags::APPEND, how.append);
        flags.set(OFlags::EXCL, how.exclusive);
        self.open_with(slot, name, flags);
        if how.access == Access::Read {
            self.close(slot);
        }
    }

    /// Opens a file without a name, on the file system of a directory.
    pub fn open_unnamed(&mut self, slot: usize, directory: &str) {
        self.open_with(slot, directory, OFlags::RDWR | OFlags::TMPFILE);
    }

    fn open_with(&mut self, slot: usize, name: &str, flags: OFlags) {
        self.close(slot);
        let (flags, bits) = (flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644));
        if let Open::CallReal(opening) = self.watch.before_open(self.root.as_fd(), name.as_bytes(), flags)
            && let Ok(fd) = rustix::fs::openat(&self.root, name, flags, bits)
        {
            self.watch.opened(fd.as_fd(), fd.as_raw_fd(), opening);
            self.open[slot] = Some(fd);
        }
    }

    /// Gives an open file a name.
    pub fn name_opened(&self, slot: usize, name: &str) {
        let Some(fd) = &self.open[slot] else { return };
        let opened = format!("/proc/self/fd/{}", fd.as_raw_fd());
        answer(self.watch.before_create(self.root.as_fd(), name.as_bytes()), || {
            rustix::fs::linkat(&self.root, opened, &self.root, name, AtFlags::SYMLINK_FOLLOW)
        });
    }

    pub fn duplicate(&mut self, from: usize, to: usize) {
        let Some(copy) = self.copy(from) else { return };
        let original = self.open[from].as_ref().unwrap().as_raw_fd();
        self.watch.duplicated(original, copy.as_raw_fd());
        if from != to {
            self.close(to);
            self.open[to] = Some(copy);
        } else {
            self.watch.closed(copy.as_raw_fd());
        }
    }

    /// Another number of an open file.
    pub fn copy(&self, slot: usize) -> Option<OwnedFd> {
        self.open[slot].as_ref().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 0).unwrap())
    }

    /// Begins with a descriptor of its parent's.
    pub fn inherit(&mut self, slot: usize, fd: OwnedFd) {
        self.close(slot);
        self.watch.adopt(&fd, fd.as_raw_fd());
        self.open[slot] = Some(fd);
    }

    pub fn set_append(&self, slot: usize, append: bool) {
        let Some(fd) = &self.open[slot] else { return };
        let mut flags = rustix::fs::fcntl_getfl(fd).unwrap();
        flags.set(OFlags::APPEND, append);
        rustix::fs::fcntl_setfl(fd, flags).unwrap();
        self.watch.flags_changed(fd.as_raw_fd(), append);
    }

    fn change(&self, slot: usize, change: Change, real: impl FnOnce(&OwnedFd)) {
        let Some(fd) = &self.open[slot] else { return };
        assert!(self.watch.is_watched(fd.as_raw_fd()));
        if self.watch.is_free(fd.as_fd(), change) {
            return real(fd);
        }
        match self.watch.before(fd.as_fd(), change) {
            Next::CallReal(_inside) => real(fd),
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&self, slot: usize, bytes: &[u8]) {
        self.change(slot, Change::Here { length: bytes.len() as u64 }, |fd| {
            rustix::io::write(fd, bytes).unwrap();
        });
    }

    pub fn write_at(&self, slot: usize, offset: u64, bytes: &[u8]) {
        self.change(slot, Change::At { offset, length: bytes.len() as u64 }, |fd| {
            rustix::io::pwrite(fd, bytes, offset).unwrap();
        });
    }

    pub fn punch(&self, slot: usize, offset: u64, length: u64) {
        self.change(slot, Change::At { offset, length }, |fd| {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(fd, flags, offset, length).unwrap();
        });
    }

    pub fn cut(&self, slot: usize, size: u64) {
        self.change(slot, Change::Resize { size }, |fd| rustix::fs::ftruncate(fd, size).unwrap());
    }

    pub fn cut_path(&self, name: &str, size: u64) {
        let next = self.watch.before_path_change(self.root.as_fd(), name.as_bytes(), Change::Resize { size });
        answer(next, || {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&self.root, name, flags, Mode::empty())?;
            rustix::fs::ftruncate(file, size)
        });
    }

    pub fn touch(&self, name: &str) {
        let next = self.watch.before_path_change(self.root.as_fd(), name.as_bytes(), Change::Touch);
        let time = Timespec { tv_sec: 1_000_000, tv_nsec: 7 };
        let times = Timestamps { last_access: time, last_modification: time };
        answer(next, || rustix::fs::utimensat(&self.root, name, &times, AtFlags::empty()));
    }

    pub fn unlink(&self, name: &str) {
        let next = self.watch.before_unlink(self.root.as_fd(), name.as_bytes());
        answer(next, || rustix::fs::unlinkat(&self.root, name, AtFlags::empty()));
    }

    pub fn make_directory(&self, name: &str) {
        let next = self.watch.before_create(self.root.as_fd(), name.as_bytes());
        answer(next, || rustix::fs::mkdirat(&self.root, name, Mode::from_raw_mode(0o755)));
    }

    pub fn remove_directory(&self, name: &str) {
        let next = self.watch.before_rmdir(self.root.as_fd(), name.as_bytes());
        answer(next, || rustix::fs::unlinkat(&self.root, name, AtFlags::REMOVEDIR));
    }

    pub fn rename(&self, from: &str, to: &str, how: Renaming) {
        let flags = match how {
            Renaming::Plain => RenameFlags::empty(),
            Renaming::Exchange => RenameFlags::EXCHANGE,
            Renaming::NoReplace => RenameFlags::NOREPLACE,
        };
        let root = self.root.as_fd();
        let next = self.watch.before_rename((root, from.as_bytes()), (root, to.as_bytes()), flags);
        if !answer(next, || rustix::fs::renameat_with(root, from, root, to, flags)) {
            self.watch.control.void_knowledge();
        }
    }

    pub fn link(&self, from: &str, to: &str) {
        let next = self.watch.before_create(self.root.as_fd(), to.as_bytes());
        answer(next, || rustix::fs::linkat(&self.root, from, &self.root, to, AtFlags::empty()));
    }

    pub fn symlink(&self, name: &str, target: &str) {
        let next = self.watch.before_create(self.root.as_fd(), name.as_bytes());
        answer(next, || rustix::fs::symlinkat(target, &self.root, name));
    }

    pub fn set_mode(&self, name: &str, read_only: bool) {
        let next = self.watch.before_mode(self.root.as_fd(), Some(name.as_bytes()));
        answer(next, || rustix::fs::chmodat(&self.root, name, bits(read_only), AtFlags::empty()));
    }

    pub fn set_mode_opened(&self, slot: usize, read_only: bool) {
        let Some(fd) = &self.open[slot] else { return };
        answer(self.watch.before_mode(fd.as_fd(), None), || rustix::fs::fchmod(fd, bits(read_only)));
    }
}

fn bits(read_only: bool) -> Mode {
    Mode::from_raw_mode(if read_only { 0o444 } else { 0o755 })
}

/// Carries out what the watch decided; whether that succeeded.
fn answer(next: Next<'_>, real: impl FnOnce() -> rustix::io::Result<()>) -> bool {
    match next {
        Next::CallReal(_inside) => real().is_ok(),
        Next::Done => true,
        // The kernel's own answer to a name that leads nowhere.
        Next::Fail(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => false,
        Next::Fail(cause) => panic!("the watch failed: {cause}"),
    }
}
