//! The checkpoint index: one line of text per checkpoint, appended; where lines go, the list is replaced whole.
//!
//! A line is `index position time_ns digest label check`. The position is where the log ended, the digest covers the
//! log between this checkpoint and the one before it (I3), the check covers the line: the last line of a crashed
//! writer is not there. The one idea: a checkpoint exists exactly when its whole line does.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, Mode, OFlags};

use stdchk_model::Timestep;
use stdchk_model::exact::part;

use crate::error::{Error, Result};

/// The name of the index in a store.
pub const NAME: &str = "index";
const NAME_NEW: &str = "index.new";
/// The longest label kept; longer ones are cut. Labels are for people.
pub const LABEL_BYTES_MAX: usize = 200;

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The checkpoint index; 0 is the start of the run.
    pub index: u64,
    /// The end of the log when it was taken.
    pub position: u64,
    /// When it was taken, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Digest of the log between the checkpoint before and this one.
    pub digest: blake3::Hash,
    /// What it was taken for: "start", "timer", a file's name.
    pub label: String,
}

/// How the file state of a checkpoint set is labelled.
pub fn set_label(step: Timestep) -> String {
    format!("set {step}")
}

impl Entry {
    /// The timestep of the checkpoint set that this is the file state of, if it is one.
    pub fn set(&self) -> Option<Timestep> {
        self.label.strip_prefix("set ")?.parse().ok()
    }

    fn line(&self) -> String {
        let label: String =
            self.label.chars().filter(|c| !c.is_control()).take(LABEL_BYTES_MAX / 4).collect();
        let body =
            format!("{} {} {} {} {label}", self.index, self.position, self.time_ns, self.digest.to_hex());
        format!("{body} {}\n", check(&body))
    }

    fn parse(line: &str) -> Option<Self> {
        let (body, given) = line.rsplit_once(' ')?;
        let mut fields = body.splitn(5, ' ');
        let entry = Self {
            index: fields.next()?.parse().ok()?,
            position: fields.next()?.parse().ok()?,
            time_ns: fields.next()?.parse().ok()?,
            digest: blake3::Hash::from_hex(fields.next()?).ok()?,
            label: fields.next()?.to_owned(),
        };
        (check(body) == given).then_some(entry)
    }
}

/// A short check of one line: it guards against a torn line, not against malice.
fn check(body: &str) -> String {
    blake3::hash(body.as_bytes()).to_hex().chars().take(16).collect()
}

/// The entries of the index in the directory `store`, oldest first. A line that is not whole ends the list.
pub fn read(store: &OwnedFd, shown: &std::path::Path) -> Result<Vec<Entry>> {
    let path = shown.join(NAME);
    let file = match rustix::fs::openat(store, NAME, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
        other => other.map_err(Error::system("open", &path))?,
    };
    let bytes = read_whole(&file).map_err(Error::system("read", &path))?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    Ok(whole.map_while(Entry::parse).collect())
}

/// Reads a small file from its beginning.
pub(crate) fn read_whole(file: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::preadv(file, &mut [IoSliceMut::new(&mut buffer)], bytes.len() as u64) {
            Ok(0) => return Ok(bytes),
            Ok(count) => bytes.extend_from_slice(part(&buffer, ..count)),
            Err(rustix::io::Errno::INTR) => {}
            Err(cause) => return Err(cause),
        }
    }
}

/// Replaces the index by `entries`, atomically and durably: readers and crashes see the old list or the new one.
pub fn replace(store: &OwnedFd, shown: &std::path::Path, entries: &[Entry]) -> Result<()> {
    let text: String = entries.iter().map(Entry::line).collect();
    replace_file(store, shown, NAME_NEW, NAME, text.as_bytes())
}

/// Adds `entry` behind `entries`, which is all that the index holds: one durable write, where a new file takes three. A
/// line that a crash has torn is none, and the list that ends with it is replaced.
pub fn append(store: &OwnedFd, shown: &std::path::Path, entries: &[Entry], entry: Entry) -> Result<()> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
    let text: String = entries.iter().map(Entry::line).collect();
    let file = rustix::fs::openat(store, NAME, flags, Mode::empty()).ok();
    let whole = file.filter(|file| read_whole(file).is_ok_and(|bytes| bytes == text.as_bytes()));
    let Some(file) = whole else {
        return replace(store, shown, &[entries, &[entry]].concat());
    };
    let line = entry.line();
    let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, line.as_bytes()));
    let durable = written.and_then(|written| match written == line.len() {
        true => rustix::fs::fdatasync(&file),
        false => Err(rustix::io::Errno::NOSPC),
    });
    durable.map_err(Error::system("write", shown.join(NAME)))
}

/// Makes the index durable as it stands.
pub fn sync(store: &OwnedFd, shown: &std::path::Path) -> Result<()> {
    let file = rustix::fs::openat(store, NAME, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    file.and_then(rustix::fs::fdatasync).map_err(Error::system("make durable", shown.join(NAME)))
}

/// Writes `bytes` to `new`, makes them durable and renames them to `name`.
pub(crate) fn replace_file(
    store: &OwnedFd,
    shown: &std::path::Path,
    new: &str,
    name: &str,
    bytes: &[u8],
) -> Result<()> {
    let path: PathBuf = shown.join(name);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let file = rustix::fs::openat(store, new, flags, Mode::from_raw_mode(0o600));
    let file = file.map_err(Error::system("create", shown.join(new)))?;
    let wrote = write_whole(&file, bytes).and_then(|()| rustix::fs::fsync(&file));
    wrote.map_err(Error::system("write", shown.join(new)))?;
    rustix::fs::renameat(store, new, store, name).map_err(Error::system("replace", &path))?;
    rustix::fs::fsync(store).map_err(Error::system("make durable", shown))
}

fn write_whole(file: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<()> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        at += rustix::io::retry_on_intr(|| rustix::io::pwritev(file, &[IoSlice::new(rest)], at as u64))?;
    }
    Ok(())
}

/// Removes `name` from the store; that it is not there is no error.
pub(crate) fn remove_file(store: &OwnedFd, shown: &std::path::Path, name: &str) -> Result<()> {
    match rustix::fs::unlinkat(store, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(cause) => Err(Error::system("remove", shown.join(name))(cause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(index: u64, label: &str) -> Entry {
        Entry {
            index,
            position: index * 10,
            time_ns: 1,
            digest: blake3::hash(label.as_bytes()),
            label: label.into(),
        }
    }

    proptest! {
        #[test]
        fn a_line_comes_back_and_a_cut_line_does_not(index in any::<u64>(), label in "[ -~]{0,40}", cut in any::<prop::sample::Index>()) {
            let entry = Entry { position: index, ..entry(index / 100, &label) };
            let line = entry.line();
            let whole = line.trim_end_matches('\n');
            prop_assert_eq!(Entry::parse(whole), Some(entry));
            prop_assert_eq!(Entry::parse(&whole[..cut.index(whole.len())]), None);
        }
    }

    #[test]
    fn an_entry_is_added_to_whole_lines_and_torn_ones_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let store = rustix::fs::open(directory.path(), flags, Mode::empty()).unwrap();
        let (shown, file) = (directory.path(), directory.path().join(NAME));
        let mut entries = Vec::new();
        for index in 0..4 {
            append(&store, shown, &entries, entry(index, "x")).unwrap();
            entries.push(entry(index, "x"));
            assert_eq!(read(&store, shown).unwrap(), entries);
        }
        let text = std::fs::read(&file).unwrap();
        let end_of_first = entries[0].line().len();
        for cut in end_of_first..end_of_first + entries[1].line().len() {
            std::fs::write(&file, &text[..cut]).unwrap();
            assert_eq!(read(&store, shown).unwrap(), entries[..1]);
            append(&store, shown, &entries[..1], entry(7, "y")).unwrap();
            assert_eq!(read(&store, shown).unwrap(), [entry(0, "x"), entry(7, "y")], "cut at {cut}");
        }
    }

    #[test]
    fn a_label_cannot_forge_a_line() {
        let forged = entry(1, "x\n2 20 1 00 y");
        assert_eq!(forged.line().matches('\n').count(), 1);
    }
}
