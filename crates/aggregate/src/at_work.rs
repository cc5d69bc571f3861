//! A folder in which new files are being made, known as such to other processes.
//!
//! Relies on the locks of the file system, where it has any. The idea: who makes files in a folder holds a shared lock on the
//! folder itself. Who finds that nobody does may remove what killed processes left of the files that it is about to make;
//! where there are no locks nobody can know, and nothing is removed. Locks that do not reach other machines say
//! nothing of these.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::new_file::{folder_of, part_prefix, prefix_of_part};

/// Longest wait for another process that clears the folder: it only lists and removes.
const CLEARING_MAX: Duration = Duration::from_secs(1);
/// Wait between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// Held while files are made in a folder or below it.
pub(crate) struct AtWork {
    _lock: Option<File>,
}

impl AtWork {
    /// Begins to make files at these paths, in `folder` or below; what killed processes left of those in `folder` itself goes,
    /// unless somebody else is at work there.
    pub(crate) fn begin<'a>(folder: &Path, paths: impl Iterator<Item = &'a Path>) -> Self {
        let Ok(lock) = File::open(folder) else { return Self { _lock: None } };
        if lock.try_lock().is_ok() {
            // What lies in folders below may be made by somebody who holds the lock of those.
            clear(paths.filter(|path| folder_of(path) == folder));
        }
        let deadline = Instant::now() + CLEARING_MAX;
        while let Err(TryLockError::WouldBlock) = lock.try_lock_shared() {
            // A lock that lasts is somebody's for another purpose.
            if Instant::now() > deadline {
                break;
            }
            sleep(PAUSE);
        }
        Self { _lock: Some(lock) }
    }
}

fn clear<'a>(paths: impl Iterator<Item = &'a Path>) {
    let mut prefixes: HashMap<&Path, HashSet<String>> = HashMap::new();
    for path in paths {
        prefixes.entry(folder_of(path)).or_default().insert(part_prefix(path));
    }
    for (folder, prefixes) in prefixes {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_left =
                prefix_of_part(&name.to_string_lossy()).is_some_and(|prefix| prefixes.contains(prefix));
            if is_left && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                // What can't be removed is somebody else's.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_left_of_the_same_files_goes_and_only_when_nobody_is_at_work() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let left =
            [".x.packAb12Cd.stdchk-part", ".xAb12Cd.stdchk-part", ".y.packAb12Cd.stdchk-part", "x.pack"];
        left.iter().for_each(|name| fs::write(file(name), b"").unwrap());
        let there = || left.iter().filter(|name| file(name).exists()).count();
        let path = file("x.pack");
        let begin = || AtWork::begin(folder.path(), std::iter::once(path.as_path()));

        let other = File::open(folder.path()).unwrap();
        other.lock_shared().unwrap();
        let first = begin();
        assert_eq!(there(), left.len(), "somebody else is at work");
        drop((first, other));
        let first = begin();
        assert_eq!(there(), left.len() - 1);
        assert!(!file(left[0]).exists());
        fs::write(file(left[0]), b"").unwrap();
        let second = begin();
        assert_eq!(there(), left.len(), "the first is at work");
        drop((first, second));
    }
}
