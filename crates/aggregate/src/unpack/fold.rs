//! Files that blocks hold in their unfolded form, given back as they were.
//!
//! Relies on [`crate::unfold`]. The idea: a range of such a file is made of the parts that it touches; a compressed stream is made again as
//! a whole, and kept among the decoded blocks for the next read.

use std::sync::{Arc, PoisonError};

use stdchk_formats::Extent;
use stdchk_model::exact::{part, to_usize};

use super::cache::Decoded;
use super::{Container, slice};
use crate::codec::scratch;
use crate::container::{FileEntry, UnfoldedEntry};
use crate::error::{AggregateError, Result};
use crate::holes::data_within;
use crate::limits::{BUFFERS_PER_STREAM, RECIPES_MAX};
use crate::unfold::{Stream, Unfolded, Unit};

/// Reads a range of what blocks hold of a file.
pub(super) type ReadHeld<'a> = &'a dyn Fn(Extent, &mut Vec<u8>) -> Result<()>;

/// Bytes of a folded file that are handled at once, where they are the same in both forms.
const AT_ONCE: u64 = 1 << 20;

/// Set in the numbers of a stream and of a box, to tell them from the number of a block.
const IS_STREAM: u64 = 1 << 63;
const IS_BOX: u64 = 1 << 63 | 1 << 62;
/// Bits of the number of a stream in its file.
const STREAM_BITS: u32 = 32;

impl Container {
    /// The recipes of a file, if blocks hold its unfolded form.
    pub(super) fn recipes(&self, file: usize) -> Result<Option<Arc<Unfolded>>> {
        let Some(entry) = self.files.unfolded.get(&file) else { return Ok(None) };
        let mut known = self.recipes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&file) {
            return Ok(Some(Arc::clone(known)));
        }
        if entry.recipes > RECIPES_MAX {
            return Err(self.unfoldable(file));
        }
        let mut bytes = Vec::new();
        let range = Extent { offset: entry.size - entry.recipes, length: entry.recipes };
        self.read_held(file, range, &mut bytes)?;
        let recipes = Arc::new(self.recipes_in(file, *entry, &bytes)?);
        known.insert(file, Arc::clone(&recipes));
        Ok(Some(recipes))
    }

    /// The recipes of a file, in the bytes behind its unfolded form.
    pub(super) fn recipes_in(&self, file: usize, entry: UnfoldedEntry, bytes: &[u8]) -> Result<Unfolded> {
        let size = self.files.files.get(file).map_or(0, |file: &FileEntry| file.size);
        Unfolded::from_bytes(bytes, size, entry.size).ok_or_else(|| self.unfoldable(file))
    }

    /// Appends a range of a file that blocks hold unfolded.
    pub(super) fn read_folded(
        &self,
        file: usize,
        recipes: &Unfolded,
        range: Extent,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let start = buffer.len();
        for part in recipes.parts_of_file(range) {
            let first = range.offset.max(part.file.offset);
            let (skip, length) = (first - part.file.offset, range.end().min(part.file.end()) - first);
            match part.stream {
                None => {
                    self.read_held(file, Extent { offset: part.unfolded.offset + skip, length }, buffer)?
                }
                Some(number) => {
                    buffer.extend_from_slice(slice(&self.stream(file, recipes, number)?, skip, length));
                }
            }
        }
        match (buffer.len() - start) as u64 == range.length {
            true => Ok(()),
            false => Err(self.lost(file, range.offset)),
        }
    }

    /// A stream, made again.
    fn stream(&self, file: usize, recipes: &Unfolded, number: usize) -> Result<Decoded> {
        let (Some(stream), Some(plain)) = (recipes.streams.get(number), recipes.plain(number)) else {
            return Err(self.unfoldable(file));
        };
        let key = |kind, number: usize| (self.identity, kind | (file as u64) << STREAM_BITS | number as u64);
        self.cache.get(key(IS_STREAM, number), || {
            if let Some((place, chunk)) = recipes.box_of(number) {
                let tiles = recipes.boxes.get(place).ok_or_else(|| self.unfoldable(file))?;
                let read = |range, buffer: &mut Vec<u8>| self.read_held(file, range, buffer);
                let plain =
                    self.cache.get(key(IS_BOX, place), || self.bytes_of_box(file, recipes, place, &read))?;
                return self.folded(file, stream, &tiles.chunk(&plain, chunk));
            }
            let mut bytes = Vec::with_capacity(to_usize(plain.length));
            self.read_held(file, plain, &mut bytes)?;
            self.folded(file, stream, &bytes)
        })
    }

    /// The body and the fringe of a box.
    fn bytes_of_box(
        &self,
        file: usize,
        recipes: &Unfolded,
        number: usize,
        read: ReadHeld<'_>,
    ) -> Result<Vec<u8>> {
        let place = recipes.place_of_box(number).ok_or_else(|| self.unfoldable(file))?;
        let mut bytes = Vec::with_capacity(to_usize(place.body.length + place.fringe.length));
        read(place.body, &mut bytes)?;
        read(place.fringe, &mut bytes)?;
        Ok(bytes)
    }

    /// Folds a part of a file, whose unfolded form `read` gives: `take` gets the bytes of the file, and where they stand.
    pub(super) fn fold_unit(
        &self,
        file: usize,
        recipes: &Unfolded,
        unit: &Unit,
        read: ReadHeld<'_>,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let unfoldable = || self.unfoldable(file);
        match *unit {
            Unit::AsIs(part) => {
                let mut bytes = scratch::empty(to_usize(part.unfolded.length.min(AT_ONCE)));
                for data in data_within(part.unfolded, self.files.holes_of(file)) {
                    let mut done = 0;
                    while done < data.length {
                        let length = AT_ONCE.min(data.length - done);
                        bytes.clear();
                        read(Extent { offset: data.offset + done, length }, &mut bytes)?;
                        take(part.file.offset + (data.offset - part.unfolded.offset) + done, &bytes)?;
                        done += length;
                    }
                }
                scratch::give_back(bytes);
                Ok(())
            }
            Unit::Stream(number) => {
                let stream = recipes.streams.get(number).ok_or_else(unfoldable)?;
                let plain = recipes.plain(number).ok_or_else(unfoldable)?;
                let mut bytes = scratch::empty(to_usize(plain.length));
                read(plain, &mut bytes)?;
                let stored = self.folded(file, stream, &bytes)?;
                scratch::give_back(bytes);
                take(stream.stored.offset, &stored)
            }
            Unit::Box(number) => {
                let plain = self.bytes_of_box(file, recipes, number, read)?;
                let tiles = recipes.boxes.get(number).ok_or_else(unfoldable)?;
                for (chunk, stream) in tiles.streams.iter().enumerate() {
                    let stream = recipes.streams.get(*stream).ok_or_else(unfoldable)?;
                    let stored = self.folded(file, stream, &tiles.chunk(&plain, chunk))?;
                    take(stream.stored.offset, &stored)?;
                }
                Ok(())
            }
        }
    }

    /// A stream made of its plain bytes.
    pub(super) fn folded(&self, file: usize, stream: &Stream, plain: &[u8]) -> Result<Vec<u8>> {
        stream.folded(plain).ok_or_else(|| self.unfoldable(file))
    }

    fn unfoldable(&self, file: usize) -> AggregateError {
        let name = self.files.files.get(file).map_or("?", |file| &file.name);
        let detail = format!(
            "a compressed part of '{name}' isn't made again bit for bit; the container was made with {}, this is {}",
            self.files.makers.as_deref().unwrap_or("other compressors"),
            crate::unfold::MAKERS
        );
        AggregateError::Damaged { offset: 0, detail }
    }

    /// Where a byte of a file stands in what blocks hold of it: for a byte of a stream, where its plain bytes begin.
    pub(super) fn held_offset(&self, file: usize, offset: u64) -> u64 {
        let Ok(Some(recipes)) = self.recipes(file) else { return offset };
        let touched = recipes.parts_of_file(Extent { offset, length: 1 }).next();
        touched.map_or(offset, |part| match part.stream {
            Some(stream) => {
                let in_box = recipes.box_of(stream).and_then(|(place, _)| recipes.place_of_box(place));
                in_box.map_or(part.unfolded.offset, |place| place.body.offset)
            }
            None => part.unfolded.offset + (offset - part.file.offset),
        })
    }

    /// Makes all streams of a file again, or says why not.
    pub(super) fn check_folding(&self, file: usize) -> Result<()> {
        let Some(recipes) = self.recipes(file)? else { return Ok(()) };
        let read = |range, buffer: &mut Vec<u8>| self.read_held(file, range, buffer);
        let mut folded = recipes.units().filter(|unit| !matches!(unit, Unit::AsIs(_)));
        folded.try_for_each(|unit| self.fold_unit(file, &recipes, &unit, &read, &mut |_, _| Ok(())))
    }

    /// As many threads as were asked for, as long as the streams that they make fit the budget.
    pub(super) fn folding_threads(&self, longest: u64, budget: u64, wanted: usize) -> usize {
        let fitting = to_usize(budget * 3 / 4 / (longest.max(1) * BUFFERS_PER_STREAM));
        self.threads(budget, wanted).min(fitting).max(1)
    }

    /// Plain bytes of the longest stream of these files, as far as their recipes can be read.
    pub(super) fn longest_stream(&self, files: &[usize]) -> u64 {
        let recipes = files.iter().filter_map(|file| self.recipes(*file).ok().flatten());
        recipes.map(|recipes| recipes.longest()).fold(0, u64::max)
    }

    /// Whether blocks hold the unfolded form of a file.
    pub(super) fn is_unfolded(&self, file: usize) -> bool {
        self.files.unfolded.contains_key(&file)
    }

    /// Bytes of what the container has of a file.
    pub(super) fn held_bytes(&self, file: usize) -> u64 {
        self.files.held_bytes(file, part(&self.files.files, file))
    }

    /// Bytes that blocks hold of it.
    pub(super) fn data_bytes(&self, file: usize) -> u64 {
        self.files.data_bytes(file, part(&self.files.files, file))
    }
}
