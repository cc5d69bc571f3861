//! Room on the disk: what a store takes of it, and what it sets aside.
//!
//! The one idea: a job often dies *because* the disk is full, and what the restore would take away is what fills it. So a
//! store keeps a reserve, made with it, for the few blocks that a restore has to write before it frees others.

use std::ops::Range;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};

use crate::error::{Error, Result};
use crate::store::{self, KEPT, Store, TRASH};

const NAME: &str = "reserve";
/// A restore writes where it stands and a new index: a block or two each, and blocks of directories.
const RESERVE_BYTES: u64 = 256 * 1024;
/// Bytes of a block, as `stat` counts them.
const STAT_BLOCK_BYTES: u64 = 512;
/// What restores take away for good: see `take_away` in `restore`.
pub(crate) const GONE: &[u8] = b"gone.";

impl Store {
    /// Sets the reserve aside. A disk that has no room for it now is no reason to fail.
    pub(crate) fn set_reserve_aside(&self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.directory(), NAME, flags, Mode::from_raw_mode(0o600));
        let _ = file.and_then(|file| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES));
    }

    /// Gives the reserve to who needs it; false if there is none any more.
    pub(crate) fn give_reserve(&self) -> bool {
        rustix::fs::unlinkat(self.directory(), NAME, AtFlags::empty()).is_ok()
    }

    /// Does `work`; once more, with the reserve, if the disk is full.
    pub(crate) fn with_reserve<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(error) if error.is_no_space() && self.give_reserve() => work(),
            other => other,
        }
    }

    /// Removes what a restore that is under way has taken away for good; false if there was nothing.
    pub(crate) fn remove_gone(&self) -> Result<bool> {
        let failed = |cause| Error::system("clean", self.path().join(TRASH))(cause);
        let mut names = store::names_in(self.root(), TRASH.as_bytes()).map_err(failed)?;
        names.retain(|name| name.starts_with(GONE));
        for name in &names {
            store::remove_tree(self.root(), &[TRASH.as_bytes(), b"/", name].concat()).map_err(failed)?;
        }
        Ok(!names.is_empty())
    }

    /// The space that files take which were deleted or replaced in these intervals, in bytes.
    pub fn kept_bytes(&self, intervals: Range<u64>) -> Result<u64> {
        let failed = |cause| Error::system("list", self.path().join(KEPT))(cause);
        let mut sum = 0;
        for name in store::names_in(self.root(), KEPT.as_bytes()).map_err(failed)? {
            if Self::interval_of_kept(&name).is_some_and(|interval| intervals.contains(&interval)) {
                let path = [KEPT.as_bytes(), b"/", &name].concat();
                let about = rustix::fs::statat(self.root(), path.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
                // What a running job has moved on meanwhile takes no space here.
                // A file with several names is counted in parts.
                sum += about.map_or(0, |about| {
                    about.st_blocks.cast_unsigned() * STAT_BLOCK_BYTES / about.st_nlink.max(1)
                });
            }
        }
        Ok(sum)
    }
}
