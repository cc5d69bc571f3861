//! An object as a source of bytes: read in ranges, few of them.
//!
//! Relies on [`crate::store`]. The idea: who opens a container looks at its end first, so the end is fetched at once; small
//! reads fetch more than they ask for, and reads that go on where others ended fetch more each time. Whoever needs a range
//! that is on its way waits for it. A store that is away fails every read after the first, so that opening doesn't look for
//! the same elsewhere in the container.

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use stdchk_formats::Source;

use crate::error::{ObjectError, Result};
use crate::store::{Bucket, Tail};

/// Bytes fetched from the end when an object is opened: the tables of most containers.
const TAIL_BYTES: u64 = 256 << 10;
/// Least that is fetched at once, bytes: less costs as much time.
const FETCH_MIN: u64 = 64 << 10;
/// Most that is fetched at once, for a reader that goes on and on or wants so much, bytes.
const FETCH_MAX: u64 = 8 << 20;
/// Bytes between two reads of which the second still goes on where the first ended: what describes the blocks stands between
/// them.
const GAP_MAX: u64 = 64 << 10;
/// Bytes that are kept of what was fetched.
const KEPT_MAX: u64 = 32 << 20;

/// A range of the object that was fetched, or is on its way.
struct Piece {
    start: u64,
    length: u64,
    bytes: OnceLock<Result<Bytes>>,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.length
    }

    fn holds(&self, position: u64) -> bool {
        (self.start..self.end()).contains(&position)
    }
}

/// An object that is being read.
pub struct ObjectSource {
    bucket: Bucket,
    key: String,
    size: u64,
    tag: Option<String>,
    /// Oldest first; the end of the object apart.
    pieces: Mutex<Vec<Arc<Piece>>>,
    end: Arc<Piece>,
    away: OnceLock<ObjectError>,
}

impl ObjectSource {
    /// Opens an object; the error says if it isn't there.
    pub(crate) fn of(bucket: Bucket, key: &str) -> Result<Self> {
        let Tail { size, tag, bytes } = bucket.tail(key, TAIL_BYTES)?;
        let length = bytes.len() as u64;
        let end = Piece { start: size - length, length, bytes: OnceLock::from(Ok(bytes)) };
        let (key, pieces) = (key.to_owned(), Mutex::default());
        Ok(Self { bucket, key, size, tag, pieces, end: Arc::new(end), away: OnceLock::new() })
    }

    /// Changes when the object is replaced.
    pub(crate) fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// What holds the byte at `position`: fetched already, or to be fetched now for someone who needs `wanted` bytes.
    fn piece(&self, position: u64, wanted: u64) -> Arc<Piece> {
        if self.end.holds(position) {
            return Arc::clone(&self.end);
        }
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = pieces.iter().find(|piece| piece.holds(position)) {
            return Arc::clone(piece);
        }
        let goes_on = |piece: &&Arc<Piece>| (piece.end()..piece.end() + GAP_MAX).contains(&position);
        let before = pieces.iter().filter(goes_on).map(|piece| piece.length).max();
        let ahead = before.map_or(FETCH_MIN, |length| (length * 2).clamp(FETCH_MIN, FETCH_MAX));
        // What another reader fetched further on is not fetched twice.
        let next = pieces.iter().map(|piece| piece.start).filter(|start| *start > position).min();
        let length = wanted.max(ahead).min(FETCH_MAX).min(next.unwrap_or(self.end.start) - position);
        let piece = Arc::new(Piece { start: position, length, bytes: OnceLock::new() });
        pieces.push(Arc::clone(&piece));
        let mut kept: u64 = pieces.iter().map(|piece| piece.length).sum();
        while kept > KEPT_MAX && pieces.len() > 1 {
            kept -= pieces.remove(0).length;
        }
        piece
    }

    fn fetched<'a>(&self, piece: &'a Piece) -> Result<&'a [u8]> {
        let fetch = || {
            if let Some(error) = self.away.get() {
                return Err(error.clone());
            }
            let read = self.bucket.read(&self.key, piece.start..piece.end(), self.tag.as_deref());
            read.inspect_err(|error| drop(self.away.set(error.clone())))
        };
        piece.bytes.get_or_init(fetch).as_ref().map(AsRef::as_ref).map_err(Clone::clone)
    }
}

impl Source for ObjectSource {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (mut position, mut left) = (offset, buffer);
        while position < end {
            let piece = self.piece(position, end - position);
            let bytes = self.fetched(&piece).map_err(cut_off)?;
            assert_eq!(bytes.len() as u64, piece.length, "a piece is read as a whole or not at all");
            let skip = usize::try_from(position - piece.start).map_err(io::Error::other)?;
            let (_, found) = bytes.split_at(skip);
            let length = found.len().min(left.len());
            assert!(length > 0, "a piece holds the position that it was looked up for");
            let (now, later) = left.split_at_mut(length);
            now.copy_from_slice(found.split_at(length).0);
            left = later;
            position += length as u64;
        }
        Ok(())
    }
}

/// The error of a source that can't be read any more, whatever the container holds.
fn cut_off(error: ObjectError) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, error)
}
