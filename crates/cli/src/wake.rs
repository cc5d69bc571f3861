//! Waiting for something to change below a folder.
//!
//! Relies on inotify where it tells: on a local file system. Others (the pool's mount on another host, NFS) change without
//! a word, so that every wait ends after a while all the same, and whoever waits looks for itself.

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use stdchk_model::exact::narrow;

/// Folders that are watched; changes in others are found by looking.
const FOLDERS_MAX: usize = 1024;

/// Wakes when files are closed after writing, renamed or made below a folder.
pub struct Wake {
    folder: PathBuf,
    /// None: the system has no inotify to give.
    descriptor: Option<OwnedFd>,
    /// There may be folders that aren't watched.
    stale: Cell<bool>,
}

impl Wake {
    /// Watches `folder` and the folders below it.
    pub fn on(folder: &Path) -> Self {
        let descriptor = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        Self { folder: folder.to_owned(), descriptor, stale: Cell::new(true) }
    }

    /// Waits until something changes, at most for `longest`; says whether something did.
    ///
    /// # Errors
    /// When the system refuses to wait.
    pub fn wait(&self, longest: Duration) -> io::Result<bool> {
        let Some(descriptor) = &self.descriptor else {
            std::thread::sleep(longest);
            return Ok(false);
        };
        // To look for folders takes longer the more files there are, and a new one tells of itself.
        if self.stale.get() {
            self.stale.set(!self.watch(descriptor, &self.folder, &mut 0));
        }
        let timeout = Timespec { tv_sec: narrow(longest.as_secs()), tv_nsec: longest.subsec_nanos().into() };
        let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
        let changed = match poll(&mut polled, Some(&timeout)) {
            Ok(ready) => ready > 0,
            Err(rustix::io::Errno::INTR) => false,
            Err(error) => return Err(error.into()),
        };
        self.stale.set(self.stale.get() || changed);
        // What it says doesn't matter, only that it says something.
        let mut said = [0_u8; 4096];
        while rustix::io::read(descriptor, &mut said).is_ok_and(|length| length > 0) {}
        Ok(changed)
    }

    /// Watches a folder and those below it; says whether there is such a folder.
    fn watch(&self, descriptor: &OwnedFd, folder: &Path, watched: &mut usize) -> bool {
        *watched += 1;
        if *watched > FOLDERS_MAX {
            return true;
        }
        let changes =
            WatchFlags::CLOSE_WRITE | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        let is_watched = inotify::add_watch(descriptor, folder, changes).is_ok();
        let below = fs::read_dir(folder).into_iter().flatten().flatten();
        for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            self.watch(descriptor, &entry.path(), watched);
        }
        is_watched
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_folder_that_comes_later_is_watched_from_the_next_wait_on() {
        let folder = tempfile::tempdir().unwrap();
        let wake = Wake::on(folder.path());
        assert!(!wake.wait(Duration::from_millis(1)).unwrap());
        fs::create_dir(folder.path().join("below")).unwrap();
        assert!(wake.wait(Duration::from_secs(60)).unwrap());
        // Some of what the folder's own creation told may still come.
        while wake.wait(Duration::from_millis(1)).unwrap() {}
        fs::write(folder.path().join("below/file"), b"content").unwrap();
        assert!(wake.wait(Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn a_file_in_a_folder_below_ends_the_wait() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("below")).unwrap();
        let wake = Wake::on(folder.path());
        let (path, started) = (folder.path().join("below/file"), Instant::now());
        std::thread::scope(|threads| {
            threads.spawn(|| {
                // The watch may begin after a write: then the next one is seen.
                while started.elapsed() < Duration::from_secs(60) && !path.with_extension("seen").exists() {
                    fs::write(&path, b"content").unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            assert!(wake.wait(Duration::from_secs(60)).unwrap());
            fs::write(path.with_extension("seen"), b"").unwrap();
        });
    }
}
