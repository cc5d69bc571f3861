//! A file of the set as its unfolded form, while it is packed.
//!
//! Relies on [`super::Unfolded`]. The idea: streams are undone as their plain bytes are read, front to back in most cases, so only the
//! last ones of the whole set are kept.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use stdchk_formats::Extent;
use stdchk_model::exact::to_usize;

use super::Unfolded;
use crate::limits::HOLE_MIN;

/// Plain bytes of the last streams that are kept: comparing runs goes back and forth between them.
const KEPT_BYTES: usize = 32 << 20;

/// A stream that was undone: its file, its number and its plain bytes.
type Undone = (usize, usize, Arc<Vec<u8>>);

/// The last streams of a set that were undone, the latest first.
pub(crate) type LastStreams = Arc<Mutex<VecDeque<Undone>>>;

/// Reads a range of the file as it is.
pub(crate) type ReadFile<'a> = &'a dyn Fn(Extent, &mut Vec<u8>) -> io::Result<()>;

/// The unfolded form of a file.
#[derive(Clone)]
pub(crate) struct UnfoldedView {
    /// Position of the file in the set.
    file: usize,
    unfolded: Arc<Unfolded>,
    recipes: Arc<Vec<u8>>,
    last: LastStreams,
}

impl UnfoldedView {
    pub(crate) fn new(file: usize, unfolded: Unfolded, last: &LastStreams) -> Self {
        let recipes = Arc::new(unfolded.to_bytes());
        Self { file, unfolded: Arc::new(unfolded.without_corrections()), recipes, last: Arc::clone(last) }
    }

    /// Bytes of the unfolded file.
    pub(crate) fn size(&self) -> u64 {
        self.unfolded.plain_size() + self.recipes.len() as u64
    }

    /// Bytes of the recipes, which stand at its end.
    pub(crate) fn recipes_length(&self) -> u64 {
        self.recipes.len() as u64
    }

    /// Where holes of the file are in the unfolded file, as far as they are in no stream.
    pub(crate) fn moved_holes(&self, holes: &[Extent]) -> Vec<Extent> {
        let parts =
            holes.iter().flat_map(|hole| self.unfolded.parts_of_file(*hole).map(move |part| (*hole, part)));
        let moved = parts.filter(|(_, part)| part.stream.is_none()).map(|(hole, part)| {
            let (start, end) = (hole.offset.max(part.file.offset), hole.end().min(part.file.end()));
            let offset = part.unfolded.offset + (start - part.file.offset);
            Extent { offset, length: end - start }
        });
        moved.filter(|hole| hole.length >= HOLE_MIN).collect()
    }

    /// Appends a range of the unfolded file to `buffer`.
    pub(crate) fn append(&self, range: Extent, read: ReadFile<'_>, buffer: &mut Vec<u8>) -> io::Result<()> {
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        if range.end() > self.size() {
            return Err(cut());
        }
        for part in self.unfolded.parts_of_unfolded(range) {
            let start = range.offset.max(part.unfolded.offset);
            let (skip, length) = (start - part.unfolded.offset, range.end().min(part.unfolded.end()) - start);
            match part.stream {
                None => read(Extent { offset: part.file.offset + skip, length }, buffer)?,
                Some(stream) => {
                    let plain = self.plain(stream, read)?;
                    let wanted = to_usize(skip)..to_usize(skip + length);
                    buffer.extend_from_slice(plain.get(wanted).ok_or_else(cut)?);
                }
            }
        }
        let plain = self.unfolded.plain_size();
        if range.end() > plain {
            let wanted = to_usize(range.offset.max(plain) - plain)..to_usize(range.end() - plain);
            buffer.extend_from_slice(self.recipes.get(wanted).ok_or_else(cut)?);
        }
        Ok(())
    }

    /// The plain bytes of a stream.
    fn plain(&self, number: usize, read: ReadFile<'_>) -> io::Result<Arc<Vec<u8>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = last.iter().position(|(file, stream, _)| (*file, *stream) == (self.file, number)) {
            last.swap(0, at);
            let Some((_, _, plain)) = last.front() else { unreachable!("it was found just now") };
            return Ok(Arc::clone(plain));
        }
        // It was undone before, so it changed meanwhile if it can't be now.
        let changed = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let stream = self.unfolded.streams.get(number).ok_or_else(changed)?;
        let mut stored = Vec::with_capacity(to_usize(stream.stored.length));
        read(stream.stored, &mut stored)?;
        let plain = Arc::new(stream.unfolded(&stored).ok_or_else(changed)?);
        last.push_front((self.file, number, Arc::clone(&plain)));
        let mut kept = 0_usize;
        // The latest stays, however long it is.
        last.retain(|(_, _, plain)| {
            let fits = kept == 0 || kept + plain.len() <= KEPT_BYTES;
            kept = kept.saturating_add(plain.len());
            fits
        });
        Ok(plain)
    }
}
