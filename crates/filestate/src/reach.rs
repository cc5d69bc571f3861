//! The way to what can't be reached by its name alone: files without one, and files and directories that are closed to
//! their owner.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode as Permissions, OFlags};
use rustix::io::Errno;

use crate::record::Inode;
use crate::store::{self, Store};

/// The descriptors of the process that restores.
const OWN_DESCRIPTORS: &[u8] = b"/proc/self/fd";

/// The files without a name of the root's file system that this process has open, each by one of its descriptors.
pub(crate) fn nameless_files(store: &Store) -> std::result::Result<HashMap<Inode, RawFd>, Errno> {
    let device = rustix::fs::fstat(store.root())?.st_dev;
    let mut found = HashMap::new();
    for name in store::names_in(store.root(), OWN_DESCRIPTORS)? {
        let Some(number) = std::str::from_utf8(&name).ok().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A number that another thread closes meanwhile is none of them.
        match rustix::fs::stat(link_to(number)) {
            Ok(stat) if stat.st_dev == device && stat.st_nlink == 0 => {
                found.insert(Inode(stat.st_ino), number);
            }
            _ => {}
        }
    }
    Ok(found)
}

pub(crate) fn link_to(number: RawFd) -> String {
    format!("/proc/self/fd/{number}")
}

/// Renames within the tree. A directory that its owner may not write to is not moved to another one by the kernel.
pub(crate) fn rename(root: BorrowedFd<'_>, from: &[u8], to: &[u8]) -> std::result::Result<(), Errno> {
    let renamed = || rustix::fs::renameat(root, from, root, to);
    match renamed() {
        Err(Errno::ACCESS) => with_directory_open(root, from, to, renamed),
        other => other,
    }
}

/// Does `work`, by which the directory at `from` gets to `to`, while its owner may write to it.
pub(crate) fn with_directory_open(
    root: BorrowedFd<'_>,
    from: &[u8],
    to: &[u8],
    work: impl FnOnce() -> std::result::Result<(), Errno>,
) -> std::result::Result<(), Errno> {
    let stat = rustix::fs::statat(root, from, AtFlags::SYMLINK_NOFOLLOW)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::ACCESS);
    }
    let bits = Permissions::from_raw_mode(stat.st_mode & 0o7777);
    rustix::fs::chmodat(root, from, bits | Permissions::WUSR, AtFlags::empty()).map_err(|_| Errno::ACCESS)?;
    let done = work();
    let stands_at = if done.is_ok() { to } else { from };
    rustix::fs::chmodat(root, stands_at, bits, AtFlags::empty())?;
    done
}

/// Held by the one process that lifts the mode of a file: who looked at it meanwhile would take the lifted mode for the
/// file's own, and leave it so.
pub(crate) struct Lifting(OwnedFd);

impl Lifting {
    /// Waits for its turn.
    pub(crate) fn begin(store: &Store) -> std::result::Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(store.directory(), ".", flags, Permissions::empty())?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&directory, FlockOperation::LockExclusive))?;
        Ok(Self(directory))
    }

    /// Opens the file behind `probe`, with `lifted` added to its mode for the moment of opening.
    pub(crate) fn open(
        &self,
        probe: BorrowedFd<'_>,
        flags: OFlags,
        lifted: Permissions,
    ) -> std::result::Result<OwnedFd, Errno> {
        let path = link_to(probe.as_raw_fd());
        let bits = Permissions::from_raw_mode(rustix::fs::fstat(probe)?.st_mode & 0o7777);
        rustix::fs::chmod(&path, bits | lifted).map_err(|_| Errno::ACCESS)?;
        let opened = rustix::fs::open(&path, flags | OFlags::CLOEXEC, Permissions::empty());
        rustix::fs::chmod(&path, bits)?;
        opened
    }
}

impl Drop for Lifting {
    fn drop(&mut self) {
        // Closing is not enough: a process that was forked at this moment holds a copy until it executes its program.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}
