//! Shared writable mappings: the one kind of change that no call announces.
//!
//! A range that a process maps so is saved when it is mapped and again at the start of every later interval, as long as
//! it is mapped. Which files that concerns is a file of the store, one line per mapping, appended to by the processes.
//! Who has them mapped by then, and what they are called by then, is asked of the kernel: children inherit mappings, and
//! files are renamed under them.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use stdchk_model::exact::{narrow, part, part_mut, to_usize};

use crate::control::Control;
use crate::error::{Error, Result};
use crate::index::read_whole;
use crate::locks;
use crate::log::Log;
use crate::pieces;
use crate::record::{Inode, PAYLOAD_BYTES_MAX, Record, RelativePath};
use crate::store::Store;
use crate::watch::place::descriptor_path;

const NAME: &str = "mapped";

/// A range of a file that is mapped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Mapping {
    inode: Inode,
    /// From, to.
    range: (u64, u64),
    path: RelativePath,
}

impl Mapping {
    fn line(&self, pid: u32) -> String {
        let path: String = self.path.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{pid} {} {} {} {path}\n", self.inode.0, self.range.0, self.range.1)
    }

    /// Where the file stands. One that was opened without a name (`O_TMPFILE`) is called `#INODE (deleted)` by the kernel for
    /// ever, also when it was given a name since.
    fn path_by_now(&self, store: &Store) -> std::result::Result<RelativePath, Errno> {
        if !self.path.ends_with(format!("#{} (deleted)", self.inode.0).as_bytes()) {
            return Ok(self.path.clone());
        }
        let device = rustix::fs::fstat(store.root())?.st_dev;
        Ok(store.find((self.inode.0, device)).unwrap_or_else(|| self.path.clone()))
    }

    /// Reads a line of `/proc/PID/maps`, `start-end rwxs offset device inode path`, if it is of a shared mapping of a
    /// file below `prefix`.
    fn parse_of_kernel(line: &[u8], prefix: &[u8]) -> Option<Self> {
        let (about, path) = line.split_at_checked(line.iter().position(|byte| *byte == b'/')?)?;
        let mut fields = std::str::from_utf8(about).ok()?.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        fields.next().filter(|permissions| permissions.ends_with('s'))?;
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let from = number(fields.next()?)?;
        let inode = Inode(fields.nth(1)?.parse().ok()?);
        let range = (from, from.checked_add(number(end)?.checked_sub(number(start)?)?)?);
        Some(Self { inode, range, path: unescape(path).strip_prefix(prefix)?.to_vec() })
    }
}

/// The kernel writes the end of a line, within a name, in octal.
fn unescape(path: &[u8]) -> Vec<u8> {
    const ESCAPED: &[u8] = b"\\012";
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        let (byte, left) = match rest.strip_prefix(ESCAPED) {
            Some(behind) => (b'\n', behind),
            None => (*first, behind),
        };
        plain.push(byte);
        rest = left;
    }
    plain
}

/// Writes down that this process maps `range` of the file `inode` at `path` shared and writable.
pub fn note(store: &Store, inode: Inode, path: &[u8], range: Range<u64>) -> std::result::Result<(), Errno> {
    let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
    let mapping = Mapping { inode, range: (range.start, range.end), path: path.to_vec() };
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(store.directory(), NAME, flags, Mode::from_raw_mode(0o600))?;
    rustix::io::write(&file, mapping.line(pid).as_bytes()).map(drop)
}

/// Saves what living processes have mapped, at the start of `interval`.
pub fn save_again(store: &Store, control: &Control, interval: u64) -> Result<()> {
    let noted = noted(store)?;
    let mut mapped = BTreeSet::new();
    if !noted.is_empty() {
        for pid in Control::participants(store)? {
            mapped.extend(mapped_by(store, pid, &noted));
        }
    }
    for mapping in mapped {
        save_mapping(store, control, interval, &mapping)
            .map_err(Error::system("save the mapped file", store.shown(&mapping.path)))?;
    }
    Ok(())
}

/// What was ever noted, with the processes that noted it.
fn noted(store: &Store) -> Result<Vec<(u32, Mapping)>> {
    let shown = store.path().join(NAME);
    let opened = rustix::fs::openat(store.directory(), NAME, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let file = match opened {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        other => other.map_err(Error::system("open", &shown))?,
    };
    let text = read_whole(&file).map_err(Error::system("read", &shown))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parse_noted).collect())
}

/// What the process has mapped of files that were noted. One that lets nobody look is believed to have what it noted,
/// where it noted it.
fn mapped_by(store: &Store, pid: u32, noted: &[(u32, Mapping)]) -> Vec<Mapping> {
    match list_of_kernel(store, pid) {
        Ok(mut mapped) => {
            mapped.retain(|mapping| noted.iter().any(|(_, noted)| noted.inode == mapping.inode));
            mapped
        }
        Err(_) => noted.iter().filter(|(by, _)| *by == pid).map(|(_, mapping)| mapping.clone()).collect(),
    }
}

/// The files of the tree that the process has mapped shared.
fn list_of_kernel(store: &Store, pid: u32) -> std::result::Result<Vec<Mapping>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let text = read_whole(&rustix::fs::open(format!("/proc/{pid}/maps"), flags, Mode::empty())?)?;
    let prefix = [descriptor_path(store.root())?.as_slice(), b"/"].concat();
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| Mapping::parse_of_kernel(line, &prefix)).collect())
}

/// The process and the mapping of a line that it wrote.
fn parse_noted(line: &str) -> Option<(u32, Mapping)> {
    let mut fields = line.split(' ');
    let pid = fields.next()?.parse().ok()?;
    let inode = Inode(fields.next()?.parse().ok()?);
    let range = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((pid, Mapping { inode, range, path: crate::store::unhex(fields.next()?)? }))
}

fn save_mapping(
    store: &Store,
    control: &Control,
    interval: u64,
    mapping: &Mapping,
) -> std::result::Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let path = mapping.path_by_now(store)?;
    let stat = match rustix::fs::statat(store.root(), path.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    if stat.st_ino != mapping.inode.0 {
        return Ok(());
    }
    let open = || rustix::fs::openat(store.root(), path.as_slice(), flags, Mode::empty());
    let file = locks::opened(&stat, open)?;
    let size = stat.st_size.cast_unsigned();
    store.log.append(&size_record(&stat, path))?;
    let range = mapping.range.0..mapping.range.1.min(size);
    // Kept files are durable with the next checkpoint only.
    match store.options.synced {
        true => save_range(&store.log, file.as_fd(), mapping.inode, range, &mut Vec::new()),
        false => pieces::save(store, control, interval, file.as_fd(), mapping.inode, range),
    }
}

/// The statement of a file's present length and modification time.
pub fn size_record(stat: &rustix::fs::Stat, path: Vec<u8>) -> Record {
    let (inode, size) = (Inode(stat.st_ino), stat.st_size.cast_unsigned());
    Record::Size { inode, path, size, modified_ns: modified_ns(stat) }
}

/// The modification time, in nanoseconds since the epoch.
pub(crate) fn modified_ns(stat: &rustix::fs::Stat) -> i64 {
    let seconds = stat.st_mtime.saturating_mul(1_000_000_000);
    seconds.saturating_add(narrow(stat.st_mtime_nsec))
}

/// How much is copied into the log at a time.
const PIECE_BYTES: usize = 64 * 1024;
const _: () = assert!(PIECE_BYTES <= PAYLOAD_BYTES_MAX);

/// From this length on it is looked for holes, which are stated instead of saved: a look opens the file.
const LOOK_FOR_HOLES_FROM_BYTES: u64 = 1 << 20;

/// Appends the present contents of `range` of `file` to the log, by way of `buffer`. Stops where the file ends.
pub fn save_range(
    log: &Log,
    file: BorrowedFd<'_>,
    inode: Inode,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
) -> std::result::Result<(), Errno> {
    if range.end.saturating_sub(range.start) < LOOK_FOR_HOLES_FROM_BYTES {
        return save_bytes(log, file, inode, range, buffer);
    }
    // Opened anew: the look moves the offset, which may be the program's.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let open = || rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let looking = locks::opened(&rustix::fs::fstat(file)?, open);
    let mut at = range.start;
    while at < range.end {
        let data =
            looking.as_ref().map_or(at..range.end, |looking| next_data(looking.as_fd(), at, range.end));
        if data.start > at {
            log.append(&Record::Hole { inode, offset: at, length: data.start - at })?;
        }
        save_bytes(log, file, inode, data.clone(), buffer)?;
        at = data.end;
    }
    Ok(())
}

/// The first stretch of `from..to` that is not hole, empty at `to` if there is none. What the file system does not tell
/// counts as data.
pub(crate) fn next_data(file: BorrowedFd<'_>, from: u64, to: u64) -> Range<u64> {
    use rustix::fs::{SeekFrom, seek};
    let start = match seek(file, SeekFrom::Data(from)) {
        Ok(start) => start.min(to),
        Err(Errno::NXIO) => to,
        Err(_) => return from..to,
    };
    // Not beyond its start where it was emptied meanwhile: then the rest counts as data.
    let end = seek(file, SeekFrom::Hole(start)).ok().filter(|end| *end > start).map_or(to, |end| end.min(to));
    start..end
}

/// The holes in `range`.
pub(crate) fn holes(file: BorrowedFd<'_>, range: Range<u64>) -> std::result::Result<Vec<Range<u64>>, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let open = || rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let looking = locks::opened(&rustix::fs::fstat(file)?, open)?;
    let (mut holes, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let data = next_data(looking.as_fd(), at, range.end);
        if data.start > at {
            holes.push(at..data.start);
        }
        at = data.end;
    }
    Ok(holes)
}

fn save_bytes(
    log: &Log,
    file: BorrowedFd<'_>,
    inode: Inode,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
) -> std::result::Result<(), Errno> {
    buffer.resize(PIECE_BYTES, 0);
    let mut at = range.start;
    while at < range.end {
        let wanted = to_usize(range.end - at).min(PIECE_BYTES);
        let piece = part_mut(buffer, ..wanted);
        let got = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *piece, at))?;
        if got == 0 {
            return Ok(());
        }
        log.append_data(inode, at, part(piece, ..got))?;
        at += got as u64;
    }
    Ok(())
}

/// Makes `length` bytes at `offset` read as zeros: a hole where the file system can, else zeros as far as the file goes.
pub(crate) fn empty_range(file: BorrowedFd<'_>, offset: u64, length: u64) -> std::result::Result<(), Errno> {
    use rustix::fs::FallocateFlags as Flags;
    match rustix::fs::fallocate(file, Flags::PUNCH_HOLE | Flags::KEEP_SIZE, offset, length) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        other => return other,
    }
    let end = rustix::fs::fstat(file)?.st_size.cast_unsigned().min(offset.saturating_add(length));
    let zeros = vec![0; PIECE_BYTES];
    let mut at = offset;
    while at < end {
        let piece = to_usize(end - at).min(PIECE_BYTES);
        write_all_at(file, part(&zeros, ..piece), at)?;
        at += piece as u64;
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`.
pub(crate) fn write_all_at(
    file: BorrowedFd<'_>,
    bytes: &[u8],
    offset: u64,
) -> std::result::Result<(), Errno> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        at += rustix::io::retry_on_intr(|| {
            rustix::io::pwritev(file, &[IoSlice::new(rest)], offset + at as u64)
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping() -> Mapping {
        Mapping { inode: Inode(3), range: (4096, 8192), path: b"a b\n\xff".to_vec() }
    }

    #[test]
    fn a_mapping_comes_back_from_its_line_and_a_torn_line_does_not() {
        assert_eq!(parse_noted(mapping().line(12).trim_end()), Some((12, mapping())));
        assert_eq!(parse_noted("12 3 4096"), None);
    }

    #[test]
    fn the_kernels_list_tells_shared_mappings_of_the_tree() {
        let parse = |range: &str, permissions: &str, path: &[u8]| {
            let about = format!("{range} {permissions} 00001000 fd:00 3                  ");
            Mapping::parse_of_kernel(&[about.as_bytes(), path].concat(), b"/tree/")
        };
        let path = b"/tree/a b\\012\xff";
        assert_eq!(parse("7f1000-7f2000", "rw-s", path), Some(mapping()));
        assert_eq!(parse("7f1000-7f2000", "rw-p", path), None);
        assert_eq!(parse("7f1000-7f2000", "rw-s", b"/trees/a"), None);
        assert_eq!(parse("7f2000-7f1000", "rw-s", path), None);
        assert_eq!(parse("7f1000-7f2000", "rw-s", b"[heap]"), None);
    }
}
