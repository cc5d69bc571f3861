//! Making a set of files durable, at a cost that follows the set and not the file system.
//!
//! Each file by itself, as long as they are few: `syncfs` also waits for what everyone else has written. Where a set is
//! so large that one journal commit per file costs more than that, it is the better way after all; so it is in a process
//! that has record locks, which it would lose with the files that are opened and closed here.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use stdchk_model::exact::part;

use crate::error::{Error, Result};
use crate::locks;
use crate::store::Store;

/// Up to here each file is made durable by itself: about a millisecond each, against seconds for a busy file system.
const EACH_ALONE_MAX: usize = 1000;

/// The directory of a path of the tree; the root is ".".
pub fn parent(path: &[u8]) -> Arc<[u8]> {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => part(path, ..slash).into(),
        None => b".".as_slice().into(),
    }
}

/// Makes all durable that was written to the file system.
pub fn sync_all(store: &Store) -> Result<()> {
    rustix::fs::syncfs(store.root()).map_err(Error::system("make durable", store.root_path()))
}

/// Makes the files and directories at `paths` durable. What does not exist is passed over.
pub fn sync(store: &Store, paths: &BTreeSet<Arc<[u8]>>) -> Result<()> {
    if paths.len() > EACH_ALONE_MAX || locks::are_taken() {
        return sync_all(store);
    }
    for path in paths {
        let synced = open(store, path).and_then(|file| file.map_or(Ok(()), rustix::fs::fsync));
        synced.map_err(Error::system("make durable", store.shown(path)))?;
    }
    Ok(())
}

/// Opens a regular file or directory; `None` for what is gone or lives in its directory alone. Anything else is not even
/// opened: to open a pipe for reading lets its writer go on.
fn open(store: &Store, path: &[u8]) -> std::result::Result<Option<OwnedFd>, Errno> {
    let kind = match rustix::fs::statat(store.root(), path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        other => FileType::from_raw_mode(other?.st_mode),
    };
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(store.root(), path, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        // Write-only for us: reopened that way.
        Err(Errno::ACCESS) => {
            match rustix::fs::openat(store.root(), path, flags | OFlags::WRONLY, Mode::empty()) {
                // Nothing for us at all.
                Err(Errno::ACCESS | Errno::ISDIR) => rustix::fs::syncfs(store.root()).map(|()| None),
                other => other.map(Some),
            }
        }
        other => other.map(Some),
    }
}
