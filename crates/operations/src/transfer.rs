//! Moving bytes between a local file or stream and the pool, with bounded memory on the way.
//!
//! Into the pool one thread reads ahead, straight into the session's window; the session takes it from there in order. Out
//! of the pool several reads are under way at once, and are written in order. Holes are neither read nor written.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stdchk_aggregate::tells_holes;
use stdchk_client::time::system_time;
use stdchk_client::{Reader, Room, Session, Sought};
use stdchk_model::exact::{part, to_usize};
use stdchk_model::message::manager::TimeNs;
use stdchk_model::{ErrorCode, Failure};
use stdchk_reduce::ranges_to_write;
use tempfile::NamedTempFile;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, block_in_place};

use crate::error::{About, Code, Error, Result};
use crate::watch::Stage;

/// Pieces of the window that the reading thread has at most: one that it fills, and one that it filled or will.
const ROOMS: usize = 2;
/// Bytes asked of the pool at once: as large as a chunk, which is then handed on without a copy.
const READ_BYTES: u64 = 1 << 20;
/// Reads of one file under way at once.
const READS_AHEAD: usize = 4;

/// Zeros that are written at once where a stream gets a hole.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// What `stat` counts blocks in, bytes. (stat(3type))
const STAT_BLOCK_BYTES: u64 = 512;

/// Bytes that are to be stored.
pub enum Input {
    /// Read from front to back until it ends.
    Stream(Box<dyn Read + Send>),
    /// A regular file with holes, which are passed over.
    Sparse(File),
}

impl Input {
    /// A file that was just opened.
    pub fn of_file(file: File, metadata: &Metadata) -> Self {
        // Only then is a length of zero, which files of the kernel have, the file's own.
        let is_sparse =
            metadata.is_file() && metadata.blocks().saturating_mul(STAT_BLOCK_BYTES) < metadata.len();
        if is_sparse && tells_holes(&file) { Self::Sparse(file) } else { Self::Stream(Box::new(file)) }
    }

    /// Where to read next, at or behind `at`, up to which it was read: where the unit begins in which the next data are, or the
    /// end of the file.
    fn pass_hole(&mut self, at: u64, unit: u64) -> io::Result<u64> {
        let Self::Sparse(file) = self else { return Ok(at) };
        match rustix::fs::seek(&*file, rustix::fs::SeekFrom::Data(at)) {
            Ok(data) => file.seek(SeekFrom::Start(at.max(data / unit * unit))),
            Err(rustix::io::Errno::NXIO) => {
                let end = file.seek(SeekFrom::End(0))?.max(at);
                file.seek(SeekFrom::Start(end))
            }
            // Its file system doesn't tell: it is read.
            Err(_) => file.seek(SeekFrom::Start(at)),
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Stream(stream) => stream.read(buffer),
            Self::Sparse(file) => file.read(buffer),
        }
    }
}

/// Writes all of `source` into the session from offset 0; the number of bytes. `from` and `to` are for messages.
pub async fn copy_in(
    source: Input,
    from: &str,
    to: &str,
    session: &Arc<Session>,
    stage: &Stage,
) -> Result<u64> {
    let (to_fill, to_be_filled) = std::sync::mpsc::channel();
    let (filled, mut to_write) = mpsc::channel(ROOMS);
    std::thread::spawn(move || fill_rooms(source, &to_be_filled, &filled));
    let (mut end, mut under_way) = (0, 0);
    loop {
        while under_way < ROOMS {
            // Only who has none may wait: the window may be full of what others read into.
            let room = match under_way {
                0 => Some(session.room().await.about(to)?),
                _ => session.try_room(),
            };
            let Some(room) = room else { break };
            // The reading thread may have ended; what it sent last says how.
            drop(to_fill.send(room));
            under_way += 1;
        }
        let Some(piece) = to_write.recv().await else {
            let cause = "the thread that reads it ended before it";
            return Err(Error::defect(from, cause));
        };
        under_way -= 1;
        let Filled { room, offset, length, last } = piece.about(from)?;
        session.write_room(offset, room, length).await.about(to)?;
        let begun = std::mem::replace(&mut end, offset + length as u64);
        stage.moved(end - begun);
        if last {
            if end > session.size() {
                session.truncate(end).await.about(to)?;
            }
            return Ok(end);
        }
    }
}

/// What the reading thread has read.
struct Filled {
    room: Room,
    /// Where it stands in the source; before it, from the end of the last one on, is a hole.
    offset: u64,
    length: usize,
    /// The source has no more.
    last: bool,
}

fn fill_rooms(
    mut source: Input,
    rooms: &std::sync::mpsc::Receiver<Room>,
    filled: &mpsc::Sender<io::Result<Filled>>,
) {
    let mut at = 0;
    while let Ok(room) = rooms.recv() {
        let piece = fill_room(&mut source, at, room);
        let ended = match &piece {
            Ok(piece) => {
                at = piece.offset + piece.length as u64;
                piece.last
            }
            Err(_) => true,
        };
        if filled.blocking_send(piece).is_err() || ended {
            return;
        }
    }
}

/// Fills a room with what follows in the source at or behind `at`.
fn fill_room(source: &mut Input, at: u64, mut room: Room) -> io::Result<Filled> {
    let all = room.bytes().len();
    let offset = source.pass_hole(at, all as u64)?;
    let length = fill(source, room.bytes())?;
    Ok(Filled { room, offset, length, last: length < all })
}

/// Reads until `buffer` is full or the source ends.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(rest) = buffer.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// Takes a version from front to back.
pub trait Sink: Write + Send {
    /// Takes so many zeros, which are stored nowhere.
    ///
    /// # Errors
    /// Those of writing.
    fn write_hole(&mut self, bytes: u64) -> io::Result<()>;
}

/// A stream as a sink: holes are zeros there.
pub struct Stream<'a>(pub &'a mut (dyn Write + Send));

impl Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Sink for Stream<'_> {
    fn write_hole(&mut self, bytes: u64) -> io::Result<()> {
        let mut left = bytes;
        while left > 0 {
            let now = left.min(ZEROS.len() as u64);
            self.0.write_all(part(&ZEROS, ..to_usize(now)))?;
            left -= now;
        }
        Ok(())
    }
}

/// What follows next in a version that is read.
enum Next {
    Hole(u64),
    Data(JoinHandle<Result<Vec<bytes::Bytes>, Failure>>),
}

/// Reads of a version that are under way. They end with whoever asked for them.
#[derive(Default)]
struct Reads(VecDeque<Next>);

impl Drop for Reads {
    fn drop(&mut self) {
        for next in &self.0 {
            if let Next::Data(read) = next {
                read.abort();
            }
        }
    }
}

/// Writes all of a version, verified, to `sink`. `name` and `sink_name` are for messages.
pub async fn copy_out(
    reader: &Arc<Reader>,
    name: &str,
    sink: &mut dyn Sink,
    sink_name: &str,
    stage: &Stage,
) -> Result {
    let (size, mut next, mut data_end) = (reader.size(), 0, 0);
    let mut reads = Reads::default();
    loop {
        while next < size && reads.0.len() < READS_AHEAD {
            if next >= data_end {
                let data = reader.seek(next, Sought::Data).unwrap_or(size);
                data_end = reader.seek(data, Sought::Hole).unwrap_or(size);
                if data > next {
                    reads.0.push_back(Next::Hole(data - next));
                    next = data;
                    continue;
                }
            }
            let length = READ_BYTES.min(data_end - next);
            reads.0.push_back(Next::Data(tokio::spawn(read_exactly(reader.clone(), next, length))));
            next += length;
        }
        match reads.0.pop_front() {
            None => return Ok(()),
            Some(Next::Hole(bytes)) => {
                block_in_place(|| sink.write_hole(bytes)).about(sink_name)?;
                stage.moved(bytes);
            }
            Some(Next::Data(read)) => {
                for part in read.await.map_err(|error| Error::of_task(&error))?.about(name)? {
                    block_in_place(|| sink.write_all(&part)).about(sink_name)?;
                    stage.moved(part.len() as u64);
                }
            }
        }
    }
}

/// Reads `length` bytes, which the version has.
async fn read_exactly(reader: Arc<Reader>, offset: u64, length: u64) -> Result<Vec<bytes::Bytes>, Failure> {
    let mut parts = Vec::new();
    let (mut offset, end) = (offset, offset + length);
    while offset < end {
        let wanted = usize::try_from(end - offset).map_err(|error| {
            Failure::new(ErrorCode::Internal, format!("a read of too many bytes: {error}"))
        })?;
        let part = reader.read_at(offset, wanted).await.map_err(content_gone)?;
        if part.is_empty() {
            let message = format!("the content ends at byte {offset} of {end}");
            return Err(Failure::new(ErrorCode::Damaged, message).then("`stdchk verify` shows more"));
        }
        offset += part.len() as u64;
        parts.push(part);
    }
    Ok(parts)
}

/// A chunk that is nowhere any more means that the content is damaged, not that the file isn't there; a version that was removed
/// meanwhile means just that.
fn content_gone(failure: Failure) -> Failure {
    match failure.code {
        ErrorCode::NotFound => Failure { code: ErrorCode::Damaged, ..failure },
        ErrorCode::Stale => Failure { code: ErrorCode::NotFound, ..failure },
        _ => failure,
    }
}

/// A local file that appears under its name only once it is whole and on disk.
pub struct NewFile {
    temporary: NamedTempFile,
    path: PathBuf,
    /// Bytes taken so far.
    length: u64,
}

impl NewFile {
    /// Starts a file that will be at `path`; until then it has a hidden name beside it, removed if anything fails.
    pub fn start(path: &Path) -> Result<Self> {
        refuse_special(path)?;
        // `name/` is meant to be a folder.
        let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let directory = if is_folder { path } else { directory_of(path) };
        if !directory.is_dir() {
            let next = format!("make it first: `mkdir -p {}`", directory.display());
            return Err(Error::new(Code::NotFound, path.display(), "its folder does not exist", next));
        }
        let Some(name) = path.file_name().map(|name| name.to_string_lossy()) else {
            return Err(Error::invalid(path.display(), "it has no name", "name the file"));
        };
        // A long name leaves no room for more around it.
        let prefix: String = std::iter::once('.').chain(name.chars().take(40)).collect();
        let mut builder = tempfile::Builder::new();
        // More drawn letters than those of `pack` and `unpack` have, which take away what the killed left of theirs.
        builder.prefix(&prefix).rand_bytes(10).suffix(".stdchk-part");
        let temporary = builder.tempfile_in(directory);
        Ok(Self { temporary: temporary.about(path.display())?, path: path.to_owned(), length: 0 })
    }

    /// Gives the file its permissions and time, makes it durable, and lets it appear.
    pub fn finish(self, mode: u32, mtime: TimeNs) -> Result {
        let about = self.path.display().to_string();
        let file = self.temporary.as_file();
        // Where it ends with a hole, it has not been extended so far.
        file.set_len(self.length).about(&about)?;
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode & 0o777);
        file.set_permissions(permissions).about(&about)?;
        file.set_modified(system_time(mtime)).about(&about)?;
        file.sync_all().about(&about)?;
        self.temporary.persist(&self.path).map_err(|error| error.error).about(&about)?;
        let directory = std::fs::File::open(directory_of(&self.path)).about(&about)?;
        directory.sync_all().about(&about)
    }
}

/// Zeros become a hole: a sparse file would fill the disk.
impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for range in ranges_to_write(bytes, self.length) {
            let at = self.length + range.start as u64;
            let piece = bytes.get(range).ok_or(io::ErrorKind::InvalidInput)?;
            self.temporary.as_file().write_all_at(piece, at)?;
        }
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.temporary.as_file_mut().flush()
    }
}

impl Sink for NewFile {
    fn write_hole(&mut self, bytes: u64) -> io::Result<()> {
        self.length = self.length.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(())
    }
}

/// Whether a device, a pipe or a socket stands at `path`: it can be written to, but not replaced by a file.
pub fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir())
}

/// Refuses a path at which a device, a pipe or a socket stands. A device is not the file's to replace: root would take
/// `/dev/null` from the whole machine.
///
/// # Errors
/// [`Code::WrongKind`]: one stands there.
pub fn refuse_special(path: &Path) -> Result {
    if !is_special(path) {
        return Ok(());
    }
    let cause = "it is no regular file, and a file would take its place";
    Err(Error::wrong_kind(path.display(), cause, "name a file that is regular or new"))
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_file_leaves_nothing_and_a_finished_one_replaces() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, "old").unwrap();
        let mut unfinished = NewFile::start(&path).unwrap();
        unfinished.write_all(b"half").unwrap();
        drop(unfinished);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        let mut finished = NewFile::start(&path).unwrap();
        finished.write_all(b"new").unwrap();
        finished.finish(0o640, 5).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_device_is_not_replaced_by_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert_eq!(NewFile::start(&link).err().map(|error| error.code), Some(Code::WrongKind));
        assert!(is_special(Path::new("/dev/null")) && !is_special(directory.path()));
    }

    #[test]
    fn pieces_are_filled_from_a_source_that_gives_little_at_a_time() {
        struct Little(usize);
        impl Read for Little {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = buffer.len().min(7).min(self.0);
                self.0 -= length;
                Ok(length)
            }
        }
        let mut buffer = vec![0; 100];
        assert_eq!(fill(&mut Little(1000), &mut buffer).unwrap(), 100);
        assert_eq!(fill(&mut Little(50), &mut buffer).unwrap(), 50);
    }
}
