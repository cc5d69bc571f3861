//! From a stream into a directory.
//!
//! The one idea: a stream comes from elsewhere, so its names may lead anywhere. The kernel resolves each of them below the
//! directory, without following a link (`openat2`), and refuses the others.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use stdchk_reduce::ranges_to_write;
use tar::{Archive, Entry, EntryType};

use super::STATE;

/// Contents are written in pieces of this size.
const PIECE_BYTES: usize = 64 * 1024;

/// Makes in the empty directory `to` what `stream` holds.
pub fn extract(stream: impl Read, to: &Path) -> io::Result<()> {
    let root =
        rustix::fs::openat(CWD, to, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut tree = Tree { root, directories: Vec::new(), buffer: vec![0; PIECE_BYTES] };
    let mut archive = Archive::new(stream);
    for entry in archive.entries()? {
        tree.add(entry?)?;
    }
    // Whoever writes the stream into a pipe wants to get rid of its padding as well.
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink())?;
    tree.close_directories()
}

struct Tree {
    root: OwnedFd,
    /// Permissions that are set in the end: a directory may be closed to writing.
    directories: Vec<(PathBuf, Mode)>,
    buffer: Vec<u8>,
}

impl Tree {
    fn add(&mut self, mut entry: Entry<'_, impl Read>) -> io::Result<()> {
        let path = entry.path()?.into_owned();
        if path == Path::new(STATE) {
            return Ok(());
        }
        let bits = Mode::from_raw_mode(entry.header().mode()? & 0o7777);
        match entry.header().entry_type() {
            EntryType::Directory => self.directory(path, bits),
            EntryType::Regular => self.file(&mut entry, &path, bits),
            EntryType::Link => self.second_name(&target(&entry)?, &path),
            EntryType::Symlink => {
                let target = target(&entry)?;
                let (parent, name) = self.parent(&path)?;
                Ok(rustix::fs::symlinkat(target, parent, name)?)
            }
            EntryType::Fifo => {
                let (parent, name) = self.parent(&path)?;
                rustix::fs::mknodat(&parent, name, FileType::Fifo, bits, 0)?;
                Ok(rustix::fs::chmodat(&parent, name, bits, AtFlags::empty())?)
            }
            other => Err(refused(&path, &format!("an entry of kind {other:?}"))),
        }
    }

    fn directory(&mut self, path: PathBuf, bits: Mode) -> io::Result<()> {
        if path != Path::new(".") {
            let (parent, name) = self.parent(&path)?;
            rustix::fs::mkdirat(parent, name, Mode::RWXU)?;
        }
        self.directories.push((path, bits));
        Ok(())
    }

    fn file(&mut self, entry: &mut Entry<'_, impl Read>, path: &Path, bits: Mode) -> io::Result<()> {
        let modified = modified(entry)?;
        let size = entry.size();
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
        file.set_len(size)?;
        let mut at = 0;
        while at < size {
            let wanted = usize::try_from(size - at).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
            let piece = self.buffer.get_mut(..wanted).ok_or(ErrorKind::InvalidInput)?;
            entry.read_exact(piece)?;
            for range in ranges_to_write(piece, at) {
                let place = at + range.start as u64;
                file.write_all_at(piece.get(range).ok_or(ErrorKind::InvalidInput)?, place)?;
            }
            at += wanted as u64;
        }
        rustix::fs::fchmod(&file, bits)?;
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = Timestamps { last_access: now, last_modification: modified };
        Ok(rustix::fs::futimens(&file, &times)?)
    }

    fn second_name(&self, first: &Path, path: &Path) -> io::Result<()> {
        let (from, old) = self.parent(first)?;
        let (to, new) = self.parent(path)?;
        Ok(rustix::fs::linkat(from, old, to, new, AtFlags::empty())?)
    }

    /// The directory that holds `path`, and the name in it.
    fn parent<'path>(&self, path: &'path Path) -> io::Result<(OwnedFd, &'path Path)> {
        let name = path.file_name().ok_or_else(|| refused(path, "a name that leads out of the tree"))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = open_below(self.root.as_fd(), parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok((directory, Path::new(name)))
    }

    fn close_directories(&self) -> io::Result<()> {
        for (path, bits) in self.directories.iter().rev() {
            let directory = open_below(self.root.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            rustix::fs::fchmod(directory, *bits)?;
        }
        Ok(())
    }
}

fn open_below(root: std::os::fd::BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

fn target(entry: &Entry<'_, impl Read>) -> io::Result<PathBuf> {
    let bytes = entry.link_name_bytes().ok_or_else(|| io::Error::from(ErrorKind::InvalidData))?;
    Ok(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes)))
}

fn refused(path: &Path, why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{}: {why}", path.display()))
}

/// The modification time: with nanoseconds where the stream has them.
fn modified(entry: &mut Entry<'_, impl Read>) -> io::Result<Timespec> {
    let seconds = i64::try_from(entry.header().mtime()?).map_err(io::Error::other)?;
    let mut modified = Timespec { tv_sec: seconds, tv_nsec: 0 };
    for record in entry.pax_extensions()?.into_iter().flatten() {
        let record = record?;
        if record.key_bytes() == b"mtime" {
            let time = record.value().ok().and_then(parse_time);
            modified = time.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a time that is none"))?;
        }
    }
    Ok(modified)
}

/// A time of POSIX's extension: seconds, perhaps negative, perhaps with a fraction.
fn parse_time(text: &str) -> Option<Timespec> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let places: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let (seconds, ns): (i64, i64) = (whole.parse().ok()?, places.parse().ok()?);
    let is_negative = whole.starts_with('-');
    Some(match is_negative && ns > 0 {
        true => Timespec { tv_sec: seconds - 1, tv_nsec: 1_000_000_000 - ns },
        false => Timespec { tv_sec: seconds, tv_nsec: ns },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_count_backwards() {
        let time = |text| parse_time(text).map(|time| (time.tv_sec, time.tv_nsec));
        assert_eq!(time("12.000000034"), Some((12, 34)));
        assert_eq!(time("12.5"), Some((12, 500_000_000)));
        assert_eq!(time("-0.25"), Some((-1, 750_000_000)));
        assert_eq!(time("-3"), Some((-3, 0)));
        assert_eq!(time("soon"), None);
    }
}
