//! A file of the set as its unfolded form, while it is packed.
//!
//! Relies on [`super::Unfolded`]. The idea: streams are undone as their plain bytes are read, front to back in most cases, so only the
//! last ones of the whole set are kept.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use stdchk_formats::Extent;
use stdchk_model::exact::to_usize;

use super::{TileBox, Unfolded};
use crate::limits::HOLE_MIN;

/// Plain bytes of the last streams that are kept: comparing runs goes back and forth between them.
const KEPT_BYTES: usize = 32 << 20;

/// The coding that was undone in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undone {
    Stream(usize),
    Box(usize),
}

/// The streams and boxes of a set that were undone last, the latest first: file, what it is, plain bytes.
pub(crate) type LastUndone = Arc<Mutex<VecDeque<(usize, Kept)>>>;

/// Plain bytes that are kept.
pub(crate) struct Kept {
    what: Undone,
    plain: Arc<Vec<u8>>,
}

/// Reads a range of the file as it is.
pub(crate) type ReadFile<'a> = &'a dyn Fn(Extent, &mut Vec<u8>) -> io::Result<()>;

/// The unfolded form of a file.
#[derive(Clone)]
pub(crate) struct UnfoldedView {
    /// Position of the file in the set.
    file: usize,
    unfolded: Arc<Unfolded>,
    recipes: Arc<Vec<u8>>,
    last: LastUndone,
}

impl UnfoldedView {
    pub(crate) fn new(file: usize, unfolded: Unfolded, last: &LastUndone) -> Self {
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
        let in_place = self.unfolded.in_place();
        let parts = (range.offset < in_place).then(|| self.unfolded.parts_of_unfolded(range));
        for part in parts.into_iter().flatten().filter(|part| part.unfolded.length > 0) {
            let start = range.offset.max(part.unfolded.offset);
            let (skip, length) = (start - part.unfolded.offset, range.end().min(part.unfolded.end()) - start);
            match part.stream {
                None => read(Extent { offset: part.file.offset + skip, length }, buffer)?,
                Some(stream) => {
                    let plain = self.kept(Undone::Stream(stream), || self.undone(stream, read))?;
                    let wanted = to_usize(skip)..to_usize(skip + length);
                    buffer.extend_from_slice(plain.get(wanted).ok_or_else(cut)?);
                }
            }
        }
        for (number, body, fringe) in self.unfolded.boxes_within(range) {
            let plain = self.kept(Undone::Box(number), || self.put_together(number, read))?;
            let start = self.unfolded.boxes.get(number).map_or(0, TileBox::body_bytes);
            let fringe = fringe.map(|fringe| Extent { offset: start + fringe.offset, ..fringe });
            for wanted in body.into_iter().chain(fringe) {
                let wanted = to_usize(wanted.offset)..to_usize(wanted.end());
                buffer.extend_from_slice(plain.get(wanted).ok_or_else(cut)?);
            }
        }
        let plain = self.unfolded.plain_size();
        if range.end() > plain {
            let wanted = to_usize(range.offset.max(plain) - plain)..to_usize(range.end() - plain);
            buffer.extend_from_slice(self.recipes.get(wanted).ok_or_else(cut)?);
        }
        Ok(())
    }

    /// The plain bytes of the chunks of a box, put together.
    fn put_together(&self, number: usize, read: ReadFile<'_>) -> io::Result<Vec<u8>> {
        let tiles = self.unfolded.boxes.get(number).ok_or_else(changed)?;
        let mut plain = vec![0; to_usize(tiles.bytes())];
        for (chunk, stream) in tiles.streams.iter().enumerate() {
            tiles.put(&mut plain, chunk, &self.undone(*stream, read)?);
        }
        Ok(plain)
    }

    /// The plain bytes of a stream.
    fn undone(&self, number: usize, read: ReadFile<'_>) -> io::Result<Vec<u8>> {
        let stream = self.unfolded.streams.get(number).ok_or_else(changed)?;
        let mut stored = Vec::with_capacity(to_usize(stream.stored.length));
        read(stream.stored, &mut stored)?;
        stream.unfolded(&stored).ok_or_else(changed)
    }

    /// Plain bytes that were undone before, or are now.
    fn kept(&self, what: Undone, undo: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Arc<Vec<u8>>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known = last.iter().position(|(file, kept)| (*file, kept.what) == (self.file, what));
        if let Some(at) = known {
            last.swap(0, at);
            let Some((_, kept)) = last.front() else { unreachable!("it was found just now") };
            return Ok(Arc::clone(&kept.plain));
        }
        let plain = Arc::new(undo()?);
        last.push_front((self.file, Kept { what, plain: Arc::clone(&plain) }));
        let mut bytes = 0_usize;
        // The latest stays, however long it is.
        last.retain(|(_, kept)| {
            let fits = bytes == 0 || bytes + kept.plain.len() <= KEPT_BYTES;
            bytes = bytes.saturating_add(kept.plain.len());
            fits
        });
        Ok(plain)
    }
}

/// It was undone before, so it changed meanwhile if it can't be now.
fn changed() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}
