//! Old contents that share their blocks with the file, on file systems that can (XFS, btrfs): nothing is copied.
//!
//! It relies on `copy_file_range`, which these file systems answer by sharing blocks, as far as whole blocks go, and the
//! kernel by a copy where they cannot. Each file has one kept file per process and interval, its old contents at their
//! own places; the statement about a range follows when the range is there.

use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use stdchk_model::exact::to_usize;

use crate::error::{Error, Result};
use crate::store::Store;

/// Whether the file system of `directory` shares blocks between files, tried on two empty ones.
pub(crate) fn can_share(directory: &OwnedFd) -> bool {
    const NAMES: [&str; 2] = ["clone.from", "clone.to"];
    let make = |name| {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))
    };
    let shares = make(NAMES[0]).and_then(|from| rustix::fs::ioctl_ficlone(make(NAMES[1])?, from)).is_ok();
    for name in NAMES {
        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    }
    shares
}

/// Gives `to` what `from` holds in `range`, at the same place. Where that ends: before the range does if `from` is shorter.
pub(crate) fn share(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    range: Range<u64>,
) -> std::result::Result<u64, Errno> {
    let (mut source, mut target) = (range.start, range.start);
    while source < range.end {
        let left = to_usize(range.end - source);
        let shared = rustix::io::retry_on_intr(|| {
            rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), left)
        })?;
        if shared == 0 {
            break;
        }
    }
    Ok(source)
}

/// Opens the kept file, made where there is none, to share blocks with it.
pub(crate) fn open_to_share(store: &Store, kept: &[u8]) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
    rustix::fs::openat(store.root(), kept, flags, Mode::from_raw_mode(0o600))
}

/// Opens the kept file for reading.
pub(crate) fn open(store: &Store, kept: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(store.root(), kept, flags, Mode::empty());
    opened.map_err(Error::system("open the old contents", store.shown(kept)))
}

/// Fills `bytes` with what the kept file holds at `offset`.
pub(crate) fn read_exact_at(store: &Store, kept: &[u8], offset: u64, bytes: &mut [u8]) -> Result<()> {
    let file = open(store, kept)?;
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let at = offset + filled as u64;
        let got =
            rustix::io::retry_on_intr(|| rustix::io::preadv(file.as_fd(), &mut [IoSliceMut::new(rest)], at));
        match got.map_err(Error::system("read", store.shown(kept)))? {
            0 => return Err(is_cut_off(store, kept)),
            count => filled += count,
        }
    }
    Ok(())
}

/// The kept file ends before a range that a statement speaks of.
pub(crate) fn is_cut_off(store: &Store, kept: &[u8]) -> Error {
    Error::Damaged { object: store.shown(kept), what: "old contents are cut off".to_owned() }
}
