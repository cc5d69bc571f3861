//! Files that are opened beside the descriptors of the program, without a loss to its record locks (`fcntl`, `lockf`).
//!
//! A process that closes *any* descriptor of a file loses all record locks that it holds on that file. The one idea: in a
//! process that has ever taken one, a file that was opened here stays open, and is found again by its inode.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::Stat;
use rustix::io::Errno;

/// Most files that stay open, enough for a few data bases. The program loses its locks on files that are opened beyond that; it
/// never runs out of descriptors because of us.
const HELD_MAX: usize = 64;

static TAKEN: AtomicBool = AtomicBool::new(false);
static HELD: Mutex<BTreeMap<(u64, u64), Arc<OwnedFd>>> = Mutex::new(BTreeMap::new());

/// Notes that the program takes a record lock.
pub fn take() {
    TAKEN.store(true, Ordering::Relaxed);
}

/// Forgets the files that are held open under these descriptor numbers, which the program is about to close or to reuse.
pub fn lose(numbers: RangeInclusive<RawFd>) {
    let Some(mut held) = are_taken().then(|| HELD.try_lock().ok()).flatten() else { return };
    let is_lost = |file: &Arc<OwnedFd>| numbers.contains(&file.as_raw_fd());
    let lost: Vec<_> = held.iter().filter(|(_, file)| is_lost(file)).map(|(key, _)| *key).collect();
    for key in lost {
        // The number is closed by the program.
        std::mem::forget(held.remove(&key));
    }
}

/// Whether this process may hold record locks.
pub(crate) fn are_taken() -> bool {
    TAKEN.load(Ordering::Relaxed)
}

/// The file of this `stat`, opened by `open` where it isn't open here.
pub(crate) fn opened(
    stat: &Stat,
    open: impl FnOnce() -> Result<OwnedFd, Errno>,
) -> Result<Arc<OwnedFd>, Errno> {
    // Not waited for: in a child that was forked meanwhile nobody would let go of it.
    let Some(mut held) = are_taken().then(|| HELD.try_lock().ok()).flatten() else {
        return open().map(Arc::new);
    };
    let key = (stat.st_dev, stat.st_ino);
    let is_it =
        |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|found| (found.st_dev, found.st_ino) == key);
    if let Some(file) = held.get(&key).filter(|file| is_it(file)) {
        return Ok(Arc::clone(file));
    }
    let file = Arc::new(open()?);
    if held.len() < HELD_MAX {
        // One that is no longer it: the program has closed that number, which may be its own by now.
        if let Some(lost) = held.insert(key, Arc::clone(&file)) {
            std::mem::forget(lost);
        }
    }
    Ok(file)
}
