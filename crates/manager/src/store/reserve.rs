//! Room on the manager's disk that is given up when the disk is full.
//!
//! When the store takes over its log it writes new pages, also for commits that remove files or take note of a benefactor that was
//! started again. On a full disk a manager without room could not start, and nobody could read, or remove anything to make room. So a file of
//! zeros is kept beside the store, and removed when a commit might not fit any more; it is made anew once there is room. What only adds to
//! the store is refused before it comes to that ([`Store::has_room`]).

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use stdchk_net::own::{self, Access};

use super::{Batch, Snapshot, Store, StoreError, Visitor};

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
    /// The manager's directory. It is open, so no other one gets its number.
    directory: Option<File>,
}

impl Reserve {
    /// The reserve in the manager's directory; given up already if the disk is full, so that a store can be opened there.
    pub fn open(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let kept = fs::metadata(&path).is_ok_and(|file| file.len() == RESERVE_BYTES);
        let mut reserve = Self { path, kept, directory: File::open(directory).ok() };
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

    /// Refuses to write into files without names, which are gone when the manager ends.
    fn check_directory(&self) -> Result<(), StoreError> {
        let (Some(opened), Some(directory)) = (&self.directory, self.path.parent()) else { return Ok(()) };
        if identity(opened.metadata()) != identity(fs::metadata(directory)) {
            let cause = format!(
                "{} was removed or replaced while the manager ran: put it back and start the pool again",
                directory.display()
            );
            return Err(StoreError::new("writing the store", cause));
        }
        Ok(())
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
        let file = own::file(&self.path, Access::Make)?;
        file.set_len(0)?;
        let made = fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES).map_err(io::Error::from);
        made.and_then(|()| file.sync_all()).inspect_err(|_| drop(fs::remove_file(&self.path)))
    }
}

/// Device and number of a directory; `None`: it isn't there.
fn identity(directory: io::Result<Metadata>) -> Option<(u64, u64)> {
    directory.ok().map(|directory| (directory.dev(), directory.ino()))
}

impl<S: Store> Store for Reserved<S> {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        self.store.load(visit)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if batch.is_empty() {
            return Ok(());
        }
        self.reserve.check_directory()?;
        self.reserve.adapt();
        self.store.commit(batch)
    }

    fn sequence(&self) -> u64 {
        self.store.sequence()
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        self.store.snapshot()
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.reserve.has_room_beside(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemoryStore, Table};
    use super::*;

    #[test]
    fn nothing_is_promised_once_the_directory_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("manager");
        fs::create_dir(&directory).unwrap();
        let mut store = Reserve::open(&directory).of(MemoryStore::default());
        let mut batch = Batch::default();
        batch.put(Table::Pool, b"", vec![1]);
        store.commit(&batch).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        let refused = store.commit(&batch).unwrap_err().to_string();
        assert!(refused.contains("was removed or replaced"), "{refused}");
        // Another one of the name isn't the one that the store is in.
        fs::create_dir(&directory).unwrap();
        assert!(store.commit(&batch).is_err());
    }
}
