//! A file of 4 KiB blocks on the donated disk: direct reads and writes, holes, free space.
//!
//! Direct I/O goes past the page cache, which belongs to the machine's owner, and costs a third of the CPU of buffered
//! writing (measured). Where the file system takes none, pages are written back and dropped right behind the writes.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use stdchk_net::own::OWNER_ONLY_FILE;

use super::work::OwnWork;

/// Unit of placing and writing, bytes: what direct I/O and hole punching want at most.
pub const UNIT: u64 = 4096;
/// [`UNIT`] as a length in memory.
pub const UNIT_LENGTH: usize = 4096;

/// `length` rounded up to whole units.
pub fn padded(length: u64) -> u64 {
    length.div_ceil(UNIT) * UNIT
}

/// One unit of memory that direct I/O takes.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct Unit(pub [u8; UNIT_LENGTH]);

impl Unit {
    /// A unit that starts with `bytes`, padded with zeros; bytes beyond a unit are left out.
    pub fn with(bytes: &[u8]) -> Self {
        let mut unit = Self([0; UNIT_LENGTH]);
        unit.0.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        unit
    }
}

/// A file that is read and written in whole units.
#[derive(Debug)]
pub struct UnitFile {
    file: File,
    direct: bool,
    /// Whether its file system counted a name of it when it was opened; a few never count.
    named: bool,
    /// Whether it was opened on a disk that is mounted read-only.
    read_only: bool,
    work: Arc<OwnWork>,
}

impl UnitFile {
    /// Makes the file `name` in `directory`; fails if it is there. What is done with it is counted as `work`.
    pub fn create(directory: impl AsFd, name: &str, work: &Arc<OwnWork>) -> io::Result<Self> {
        Self::with(directory, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, work)
    }

    /// Opens the file `name` in `directory`; on a disk that was mounted read-only, for reading alone.
    pub fn open(directory: impl AsFd, name: &str, work: &Arc<OwnWork>) -> io::Result<Self> {
        match Self::with(&directory, name, OFlags::RDWR, work) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                Ok(Self { read_only: true, ..Self::with(&directory, name, OFlags::RDONLY, work)? })
            }
            opened => opened,
        }
    }

    fn with(directory: impl AsFd, name: &str, flags: OFlags, work: &Arc<OwnWork>) -> io::Result<Self> {
        let mode = Mode::from_raw_mode(OWNER_ONLY_FILE);
        let open = || rustix::fs::openat(&directory, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode);
        let file = File::from(rustix::io::retry_on_intr(open)?);
        // Switched on after opening: a refusal must not leave an open with side effects to be repeated.
        let flags = rustix::fs::fcntl_getfl(&file)?;
        let direct = rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT).is_ok();
        let named = file.metadata()?.nlink() > 0;
        if !direct {
            work.goes_on_behind();
        }
        Ok(Self { file, direct, named, read_only: false, work: Arc::clone(work) })
    }

    /// Writes `parts` one behind the other at `offset`; each part and the offset are whole, aligned units.
    pub fn write(&self, parts: &[&[u8]], offset: u64) -> io::Result<()> {
        self.refuse_read_only()?;
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let _working = self.work.begin(total as u64);
        let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut rest = slices.as_mut_slice();
        let mut at = offset;
        while !rest.is_empty() {
            match rustix::io::pwritev(&self.file, rest, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    IoSlice::advance_slices(&mut rest, written);
                    at += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !self.direct {
            // Starts the writing back at once, so that the next sync finds little left to do.
            self.drop_pages(offset, total as u64);
        }
        Ok(())
    }

    fn refuse_read_only(&self) -> io::Result<()> {
        if self.read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    /// Fills `bytes`, whole aligned units, from `offset`.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let _working = self.work.begin(bytes.len() as u64);
        self.file.read_exact_at(bytes, offset)?;
        if !self.direct {
            self.drop_pages(offset, bytes.len() as u64);
        }
        Ok(())
    }

    fn drop_pages(&self, offset: u64, length: u64) {
        // Advice only: a file system that ignores it costs the owner some cache, nothing else.
        let _ = rustix::fs::fadvise(&self.file, offset, std::num::NonZeroU64::new(length), Advice::DontNeed);
    }

    /// Makes all that was written durable.
    pub fn sync(&self) -> io::Result<()> {
        let _working = self.work.begin(0);
        self.file.sync_data()
    }

    /// Gives the space of a range back to the file system; false if it can't do that.
    pub fn punch(&self, offset: u64, length: u64) -> io::Result<bool> {
        self.refuse_read_only()?;
        let _working = self.work.begin(0);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, offset, length) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Offset of the first unit with data at or behind `offset`; `None` if only a hole follows.
    pub fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(found) => Ok(Some(found / UNIT * UNIT)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether its name was taken away since it was opened: what it holds is gone when it is closed.
    pub fn is_removed(&self) -> bool {
        self.named && self.file.metadata().is_ok_and(|file| file.nlink() == 0)
    }

    /// Length of the file, bytes.
    pub fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Space that the file takes on the disk, bytes.
    pub fn allocated(&self) -> io::Result<u64> {
        /// Unit of `st_blocks`, bytes (POSIX leaves it open, Linux uses this for every file system).
        const STAT_BLOCK: u64 = 512;
        Ok(self.file.metadata()?.blocks() * STAT_BLOCK)
    }
}

/// Whether `path` no longer leads to the directory that was opened there: it was removed, moved or replaced. A path that
/// can't be looked at tells nothing.
pub fn is_elsewhere(path: &Path, opened: &File) -> bool {
    match (std::fs::metadata(path), opened.metadata()) {
        (Ok(now), Ok(opened)) => (now.dev(), now.ino()) != (opened.dev(), opened.ino()),
        (Err(error), _) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        (Ok(_), Err(_)) => false,
    }
}

/// Whether what is in `path` lies in memory alone, and is lost with the machine.
pub fn is_in_memory(path: &Path) -> io::Result<bool> {
    /// What the kernel calls its file systems in memory (linux/magic.h): tmpfs and ramfs.
    const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];
    Ok(IN_MEMORY.contains(&rustix::fs::statfs(path)?.f_type))
}

/// Space on the file system of `path` that an ordinary user may fill, bytes.
pub fn available(path: &Path) -> io::Result<u64> {
    let state = rustix::fs::statvfs(path)?;
    Ok(state.f_bavail.saturating_mul(state.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_skipped_and_take_no_space() {
        let place = tempfile::tempdir().unwrap();
        let file = UnitFile::create(File::open(place.path()).unwrap(), "f", &Arc::default()).unwrap();
        let unit = Unit::with(&[7; UNIT_LENGTH]);
        file.write(&[&unit.0, &unit.0, &unit.0], 0).unwrap();
        assert!(file.punch(UNIT, UNIT).unwrap());
        assert_eq!(file.next_data(UNIT).unwrap(), Some(2 * UNIT));
        assert_eq!(file.next_data(3 * UNIT).unwrap(), None);
        assert_eq!(file.allocated().unwrap(), 2 * UNIT);
    }
}
