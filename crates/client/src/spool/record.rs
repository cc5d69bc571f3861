//! What the spool says of a file that isn't pushed yet, so that another process can push it.
//!
//! A record is written when the application is told that its file is closed, or synced, and replaced in one step. It tells
//! which image bytes count; whether they can be relied on after the machine went down depends on whether they were synced.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use minicbor::{Decode, Encode};
use stdchk_model::message::manager::TimeNs;
use stdchk_model::{Ino, KeyId, SessionId, cbor};
use stdchk_net::own::{self, Access, Folder};

use super::NO_ROOM;
use super::image::Shape;

/// Layout of records that this code writes and reads.
///
/// History: 1, the first.
const LAYOUT: u16 = 1;

/// A file on its way to the pool.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub(crate) struct Record {
    #[n(0)]
    layout: u16,
    /// The file.
    #[n(1)]
    pub(crate) ino: Ino,
    /// The session that commits it; its version carries it.
    #[n(2)]
    pub(crate) session: SessionId,
    /// The session of the version that it was written over; `None`: there was none.
    #[n(3)]
    pub(crate) base: Option<SessionId>,
    /// Size of the file, bytes.
    #[n(4)]
    pub(crate) size: u64,
    /// Bytes of the version below that still count.
    #[n(5)]
    pub(crate) limit: u64,
    /// Start and end of each written range, in order.
    #[n(6)]
    ranges: Vec<(u64, u64)>,
    /// Modification time.
    #[n(7)]
    pub(crate) mtime: TimeNs,
    /// Whether the application closed the file, and wrote nothing since.
    #[n(8)]
    pub(crate) closed: bool,
    /// Whether image and record are durable on the local disk.
    #[n(9)]
    pub(crate) synced: bool,
    /// The boot of the machine in which it was written.
    #[n(10)]
    boot: String,
    /// What its session encrypts with, wherever the file is by now.
    #[n(11)]
    pub(crate) key: Option<KeyId>,
}

/// What a record says besides the shape of its image.
pub(crate) struct Told {
    pub(crate) ino: Ino,
    pub(crate) session: SessionId,
    pub(crate) base: Option<SessionId>,
    pub(crate) mtime: TimeNs,
    pub(crate) closed: bool,
    pub(crate) synced: bool,
    pub(crate) key: Option<KeyId>,
}

impl Record {
    pub(super) fn new(told: &Told, shape: &Shape, boot: &str) -> Self {
        let Told { ino, session, base, mtime, closed, synced, key } = *told;
        let ranges = shape.ranges.iter().map(|range| (range.start, range.end)).collect();
        let (layout, size, limit, boot) = (LAYOUT, shape.size, shape.limit, boot.to_owned());
        Self { layout, ino, session, base, size, limit, ranges, mtime, closed, synced, boot, key }
    }

    pub(super) fn shape(&self) -> Shape {
        let ranges = self.ranges.iter().map(|(start, end)| Range { start: *start, end: *end }).collect();
        Shape { ranges, limit: self.limit, size: self.size }
    }

    /// Whether the image holds what the record says: the page cache outlives a process, and only what was synced the machine.
    pub(super) fn holds(&self, boot: &str) -> bool {
        self.synced || self.boot == boot
    }

    /// Writes it in one step; durable if it says so itself. Where there is no room for a new one, the old one's place is taken.
    pub(super) fn write(&self, folder: &Folder, name: &str) -> io::Result<()> {
        let new = Path::new(name).with_extension("new");
        let written = self.write_anew(folder, &new).and_then(|()| folder.rename(&new, name));
        if let Err(error) = written {
            let _ = folder.remove(&new);
            if !NO_ROOM.contains(&error.kind()) || self.write_over(folder, name).is_err() {
                return Err(error);
            }
        }
        if self.synced { folder.sync() } else { Ok(()) }
    }

    fn write_anew(&self, folder: &Folder, name: &Path) -> io::Result<()> {
        let mut file = folder.file(name, Access::Make)?;
        file.set_len(0)?;
        file.write_all(&cbor::encode(self))?;
        if self.synced { file.sync_data() } else { Ok(()) }
    }

    /// Writes it over an earlier one within the same block of the disk, which needs no further one.
    fn write_over(&self, folder: &Folder, name: &str) -> io::Result<()> {
        /// Smallest block of file systems in use, bytes.
        const BLOCK_BYTES: usize = 1024;
        let bytes = cbor::encode(self);
        let file = folder.file(name, Access::Write)?;
        if bytes.len() > BLOCK_BYTES || file.metadata()?.len() == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_all_at(&bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        if self.synced { file.sync_data() } else { Ok(()) }
    }

    /// Reads one; `None`: it was never finished. Its bytes were on their way to the disk when the machine went down.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        own::file(path, Access::Read)?.read_to_end(&mut bytes)?;
        let record: Self = match cbor::decode(&bytes) {
            Ok(record) => record,
            Err(error) if error.is_end_of_input() || bytes.iter().all(|byte| *byte == 0) => return Ok(None),
            Err(error) => return Err(io::Error::other(error)),
        };
        match record.layout {
            LAYOUT => Ok(Some(record)),
            other => {
                Err(io::Error::other(format!("it has layout {other}, this stdchk reads layout {LAYOUT}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn record(size: u64, synced: bool) -> Record {
        let (ino, session) = (Ino(7), SessionId([1; 16]));
        let told = Told { ino, session, base: None, mtime: 5, closed: true, synced, key: None };
        Record::new(&told, &Shape { size, ..Shape::default() }, "boot")
    }

    #[test]
    fn a_record_takes_the_place_of_an_earlier_one_whatever_their_lengths() {
        let folder = tempfile::tempdir().unwrap();
        let (own, name) = (Folder::open(folder.path()).unwrap(), "one.record");
        let path = folder.path().join(name);
        assert!(record(1, true).write_over(&own, name).is_err(), "there is none");
        record(u64::MAX, true).write(&own, name).unwrap();
        for (size, synced) in [(1, true), (u64::MAX, false), (300, true)] {
            record(size, synced).write_over(&own, name).unwrap();
            assert_eq!(Record::read(&path).unwrap(), Some(record(size, synced)));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_never_finished_is_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one.record");
        let whole = cbor::encode(&record(9, false));
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(Record::read(&path).unwrap(), None, "{length}");
        }
        fs::write(&path, vec![0; whole.len()]).unwrap();
        assert_eq!(Record::read(&path).unwrap(), None);
    }
}
