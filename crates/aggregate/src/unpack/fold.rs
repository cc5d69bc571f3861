//! Files that blocks hold in their unfolded form, given back as they were.
//!
//! Relies on [`crate::unfold`]. The idea: a range of such a file is made of the parts that it touches; a compressed stream is made again as
//! a whole, and kept among the decoded blocks for the next read.

use std::sync::{Arc, PoisonError};

use stdchk_formats::Extent;
use stdchk_model::exact::{part, to_usize};

use super::cache::Decoded;
use super::{Container, slice};
use crate::container::{FileEntry, UnfoldedEntry};
use crate::error::{AggregateError, Result};
use crate::limits::{BUFFERS_PER_STREAM, RECIPES_MAX};
use crate::unfold::{Stream, Unfolded};

/// Set in the number of a stream, to tell it from the number of a block.
const IS_STREAM: u64 = 1 << 63;
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
        let key = IS_STREAM | (file as u64) << STREAM_BITS | number as u64;
        self.cache.get((self.identity, key), || {
            let mut bytes = Vec::with_capacity(to_usize(plain.length));
            self.read_held(file, plain, &mut bytes)?;
            self.folded(file, stream, &bytes)
        })
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
            Some(_) => part.unfolded.offset,
            None => part.unfolded.offset + (offset - part.file.offset),
        })
    }

    /// Makes all streams of a file again, or says why not.
    pub(super) fn check_folding(&self, file: usize) -> Result<()> {
        let Some(recipes) = self.recipes(file)? else { return Ok(()) };
        let mut bytes = Vec::new();
        for (number, stream) in recipes.streams.iter().enumerate() {
            let Some(plain) = recipes.plain(number) else { return Err(self.unfoldable(file)) };
            bytes.clear();
            self.read_held(file, plain, &mut bytes)?;
            self.folded(file, stream, &bytes)?;
        }
        Ok(())
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
