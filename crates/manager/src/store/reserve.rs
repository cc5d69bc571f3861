//! Room on the manager's disk that is given up when the disk is full.
//!
//! When the store takes over its log it writes new pages, also for commits that remove files or take note of a benefactor that was
//! started again. On a full disk a manager without room could not start, and nobody could read, or remove anything to make room. So a file of
//! zeros is kept beside the store, and removed when a commit might not fit any more; it is made anew once there is room. What only adds to
//! the store is refused before it comes to that ([`Store::has_room`]).

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use super::{Batch, Store, StoreError, Visitor};

/// Name of the file beside the store.
const FILE: &str = "reserve";
/// What is kept, bytes: several times what a log has, of which most takes the place of earlier records.
const RESERVE_BYTES: u64 = 16 << 20;
/// Free space below which a commit might not fit, bytes: the log and a batch of the largest requests take less.
const ROOM_BYTES: u64 = 4 << 20;
/// Free space at which the reserve is made again, bytes: well above what giving it up frees.
const PLENTY_BYTES: u64 = 4 * RESERVE_BYTES;

/// A store that has a reserve on its disk.
pub struct Reserved<S> {
    store: S,
    reserve: Reserve,
}

/// The file.
pub struct Reserve {
    path: PathBuf,
    kept: bool,
}

impl Reserve {
    /// The reserve in the manager's directory; given up already if the disk is full, so that a store can be opened there.
    pub fn open(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let kept = fs::metadata(&path).is_ok_and(|file| file.len() == RESERVE_BYTES);
        let mut reserve = Self { path, kept };
        reserve.adapt();
        reserve
    }

    /// A store that gives this reserve up when it finds no room.
    pub fn of<S>(self, store: S) -> Reserved<S> {
        Reserved { store, reserve: self }
    }

    /// Gives the reserve up if the disk is full, and makes it if there is plenty of room.
    fn adapt(&mut self) {
        let Some(free) = self.free_bytes() else { return };
        if self.kept && free < ROOM_BYTES {
            self.kept = false;
            match fs::remove_file(&self.path) {
                Ok(()) => tracing::error!(
                    path = %self.path.display(),
                    "the manager's disk is full: it lives on a reserve of 16 MiB; make room on that disk soon"
                ),
                Err(error) => {
                    tracing::error!(path = %self.path.display(), %error, "the reserve can't be given up")
                }
            }
        } else if !self.kept && free > PLENTY_BYTES {
            let made = self.make();
            self.kept = made.is_ok();
            if let Err(error) = made {
                tracing::debug!(path = %self.path.display(), %error, "there is no reserve for a full disk");
            }
        }
    }

    /// Whether changes of `bytes` fit without the reserve: in the log, in the records, and in those that they replace.
    fn has_room_beside(&self, bytes: u64) -> bool {
        let reserve = if self.kept { 0 } else { RESERVE_BYTES };
        // Where nobody can say what is free, it is tried.
        self.free_bytes()
            .is_none_or(|free| free >= (ROOM_BYTES + reserve).saturating_add(bytes.saturating_mul(4)))
    }

    fn free_bytes(&self) -> Option<u64> {
        let disk = statvfs(self.path.parent()?).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn make(&self) -> io::Result<()> {
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(&self.path)?;
        let made = fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES).map_err(io::Error::from);
        made.and_then(|()| file.sync_all()).inspect_err(|_| drop(fs::remove_file(&self.path)))
    }
}

impl<S: Store> Store for Reserved<S> {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        self.store.load(visit)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.reserve.adapt();
        self.store.commit(batch)
    }

    fn sequence(&self) -> u64 {
        self.store.sequence()
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.reserve.has_room_beside(bytes)
    }
}
