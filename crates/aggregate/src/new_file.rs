//! A file that appears under its name only when it is whole and on disk.
//!
//! Relies on `tempfile`. The idea: until then it has a hidden name beside its own, which is removed whatever goes wrong; what a
//! killed process leaves is known by that name ([`crate::at_work`]).

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use stdchk_model::exact::{part, part_mut};
use stdchk_reduce::{is_zero, ranges_to_write};
use tempfile::TempPath;

use crate::container::{FileEntry, Owner, SET_ID_BITS};
use crate::error::{AggregateError, Result};
use crate::pack::Output;

/// What hidden names end in.
const PART_SUFFIX: &str = ".stdchk-part";
/// Characters before that which are drawn by lot.
const PART_RANDOM: usize = 6;

/// What hidden names of a file at this path begin with.
pub(crate) fn part_prefix(path: &Path) -> String {
    // A path without a name, like `/`, can't become a file: the system says so when it is to appear there.
    let name = path.file_name().map_or(Cow::Borrowed(""), OsStr::to_string_lossy);
    // A long name leaves no room for more around it.
    std::iter::once('.').chain(name.chars().take(40)).collect()
}

/// What a hidden name begins with, if it is one.
pub(crate) fn prefix_of_part(name: &str) -> Option<&str> {
    let rest = name.strip_suffix(PART_SUFFIX).filter(|rest| rest.starts_with('.'))?;
    let (prefix, random) = rest.split_at_checked(rest.len().checked_sub(PART_RANDOM)?)?;
    random.bytes().all(|byte| byte.is_ascii_alphanumeric()).then_some(prefix)
}

/// A file on its way.
pub(crate) struct NewFile {
    /// `None`: opened for every write.
    file: Option<File>,
    temporary: TempPath,
    path: PathBuf,
}

impl NewFile {
    /// Starts a file that will be at `path`, with these permissions as far as the process's mask allows them.
    pub(crate) fn start(path: &Path, mode: u32) -> Result<Self> {
        let prefix = part_prefix(path);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).rand_bytes(PART_RANDOM).suffix(PART_SUFFIX);
        builder.permissions(Permissions::from_mode(mode));
        let temporary =
            builder.tempfile_in(folder_of(path)).map_err(AggregateError::io("create a file beside", path))?;
        let (file, temporary) = temporary.into_parts();
        Ok(Self { file: Some(file), temporary, path: path.to_owned() })
    }

    /// Where it is until it is finished.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// From now on it is opened for every write.
    pub(crate) fn close(&mut self) {
        self.file = None;
    }

    /// Appends a range of what was written to `buffer`.
    pub(crate) fn append_range(&self, offset: u64, length: usize, buffer: &mut Vec<u8>) -> Result<()> {
        let start = buffer.len();
        buffer.resize(start + length, 0);
        let read = |file: &File| file.read_exact_at(part_mut(buffer, start..), offset);
        self.with(read).map_err(AggregateError::io("read", &self.path))
    }

    /// Sets the length, which may end in a hole.
    pub(crate) fn set_length(&self, length: u64) -> Result<()> {
        self.with(|file| file.set_len(length)).map_err(AggregateError::io("write", &self.path))
    }

    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.with(|file| file.write_all_at(bytes, offset)).map_err(AggregateError::io("write", &self.path))
    }

    /// Writes bytes at an offset where nothing was written before, all but blocks of zeros, which become holes.
    /// [`Self::finish_as`] sets the file's length, which may end in a hole.
    pub(crate) fn write_around_zeros(&self, bytes: &[u8], offset: u64) -> Result<()> {
        // Zeros that are part of a block which other calls write become zeros by these.
        if is_zero(bytes) {
            return Ok(());
        }
        let write = |file: &File| {
            ranges_to_write(bytes, offset).try_for_each(|range| {
                let at = offset + range.start as u64;
                file.write_all_at(part(bytes, range), at)
            })
        };
        self.with(write).map_err(AggregateError::io("write", &self.path))
    }

    /// Makes the file durable as [`Self::becomes`] makes it, and lets it appear under its name.
    pub(crate) fn finish_as(self, entry: &FileEntry, owner: Option<Owner>) -> Result<()> {
        let finished = self.with(|file| become_as(file, entry, owner).and_then(|()| file.sync_all()));
        finished.map_err(AggregateError::io("write", &self.path))?;
        self.appear()
    }

    /// Gives the file the length, permissions and time of modification of the file that it was made from. Set-user-ID and
    /// set-group-ID bits are set only if the file has, or can be given, `owner`.
    pub(crate) fn becomes(&self, entry: &FileEntry, owner: Option<Owner>) -> Result<()> {
        self.with(|file| become_as(file, entry, owner)).map_err(AggregateError::io("write", &self.path))
    }

    /// Makes the bytes durable and lets the file appear; its folder is made durable by [`sync_folder`].
    pub(crate) fn finish(self) -> Result<()> {
        let synced = match &self.file {
            Some(file) => file.sync_all(),
            // Its permissions may not let anybody write any more.
            None => File::open(&self.temporary).and_then(|file| file.sync_all()),
        };
        synced.map_err(AggregateError::io("write", &self.path))?;
        self.appear()
    }

    fn appear(self) -> Result<()> {
        let Self { temporary, path, .. } = self;
        temporary.persist(&path).map_err(|error| AggregateError::io("rename to", &path)(error.error))
    }

    fn with(&self, work: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        match &self.file {
            Some(file) => work(file),
            None => work(&OpenOptions::new().read(true).write(true).open(&self.temporary)?),
        }
    }
}

impl Output for NewFile {
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.write_at(bytes, offset)
    }
}

/// Permission bits of a file.
const MODE_BITS: u32 = 0o7777;

/// Gives a file or folder the length, permissions, owner and time of an entry.
pub(crate) fn become_as(file: &File, entry: &FileEntry, owner: Option<Owner>) -> io::Result<()> {
    let FileEntry { size, mode, modified_ns, .. } = *entry;
    if !entry.is_folder() {
        file.set_len(size)?;
    }
    // The system takes these bits away with a change of owner, so that comes before.
    let keeps = mode & SET_ID_BITS == 0 || owner.is_some_and(|owner| becomes_owned(file, owner));
    let bits = mode & if keeps { MODE_BITS } else { MODE_BITS & !SET_ID_BITS };
    // Who made it may not be allowed to open it any more.
    file.set_permissions(Permissions::from_mode(bits))?;
    file.set_modified(time_of(modified_ns))
}

/// Whether the file has this owner, or could be given to it.
fn becomes_owned(file: &File, owner: Owner) -> bool {
    let Owner { uid, gid } = owner;
    let has = file.metadata().is_ok_and(|metadata| (metadata.uid(), metadata.gid()) == (uid, gid));
    has || fchown(file, Some(uid), Some(gid)).is_ok()
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(AggregateError::io("write", folder))
}

/// The folder that a path is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn time_of(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let time = if ns < 0 { epoch.checked_sub(distance) } else { epoch.checked_add(distance) };
    let Some(time) = time else {
        unreachable!("the system's times reach farther than 64 bits of nanoseconds")
    };
    time
}
