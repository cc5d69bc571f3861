//! The file below the engine: read and written at offsets, locked, and left alone once it was found damaged.
//!
//! The engine marks a file as in use when it opens it, and again when it lets go of it. A file that turns out to be damaged
//! in between gets the first page back that it had: the next start sees the same damage, and not a crash, after which a
//! damaged commit counts as one that was never finished.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redb::StorageBackend;
use stdchk_net::own::{self, Access};

/// Length of the part that the engine writes at an opening, bytes.
const HEAD_BYTES: usize = 4096;
/// How long an opening waits for the lock of another process, and how often it looks.
const LOCK_WAIT: Duration = Duration::from_secs(1);
const LOCK_LOOK: Duration = Duration::from_millis(20);

/// A store's file, shared with the engine.
#[derive(Clone, Debug)]
pub struct StoreFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: File,
    /// What the file began with when it was opened.
    head: Vec<u8>,
    condemned: AtomicBool,
}

/// Sees to it that what is read from `file` is on the disk. After a write that failed, or before the sync of one, the system has
/// pages in memory that a crash would take back.
///
/// # Errors
/// The disk refuses.
pub(super) fn read_from_disk(file: &File) -> io::Result<()> {
    file.sync_all()?;
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

impl StoreFile {
    /// Makes the file, empty.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::lock(own::file(path, Access::MakeNew)?)
    }

    /// Opens the file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = own::file(path, Access::Write)?;
        read_from_disk(&file)?;
        Self::lock(file)
    }

    fn lock(file: File) -> io::Result<Self> {
        Self::wait_for_lock(&file)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(HEAD_BYTES);
        let mut head = vec![0; length];
        file.read_exact_at(&mut head, 0)?;
        Ok(Self(Arc::new(Inner { file, head, condemned: AtomicBool::new(false) })))
    }

    /// Locks the file for this process. The lock of a process that was just killed goes once the system has taken it apart, and a
    /// child has it until it becomes another program: a restart at once must not fail by that.
    fn wait_for_lock(file: &File) -> io::Result<()> {
        let deadline = Instant::now() + LOCK_WAIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_LOOK),
                Err(TryLockError::WouldBlock) => return Err(io::Error::other("another process uses it")),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// The file is damaged: it gets its first page back, and nothing more is written to it.
    pub fn condemn(&self) {
        self.0.condemned.store(true, Ordering::Relaxed);
        let restored = self.0.file.write_all_at(&self.0.head, 0).and_then(|()| self.0.file.sync_data());
        if let Err(error) = restored {
            tracing::warn!(%error, "the damaged store can't be left as it was");
        }
    }

    fn is_condemned(&self) -> bool {
        self.0.condemned.load(Ordering::Relaxed)
    }
}

impl StorageBackend for StoreFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.file.read_exact_at(out, offset)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        if self.is_condemned() { Ok(()) } else { self.0.file.set_len(length) }
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_condemned() { Ok(()) } else { self.0.file.sync_data() }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.is_condemned() { Ok(()) } else { self.0.file.write_all_at(data, offset) }
    }
}
