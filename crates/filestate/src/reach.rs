//! The way to what a restore can't reach by its name alone: files without one, and directories that their owner may not
//! write to.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::fs::{AtFlags, FileType, Mode as Permissions};
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
    match rustix::fs::renameat(root, from, root, to) {
        Err(Errno::ACCESS) => {
            let stat = rustix::fs::statat(root, from, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                return Err(Errno::ACCESS);
            }
            let bits = Permissions::from_raw_mode(stat.st_mode & 0o7777);
            rustix::fs::chmodat(root, from, bits | Permissions::WUSR, AtFlags::empty())?;
            let renamed = rustix::fs::renameat(root, from, root, to);
            let stands_at = if renamed.is_ok() { to } else { from };
            rustix::fs::chmodat(root, stands_at, bits, AtFlags::empty())?;
            renamed
        }
        other => other,
    }
}
