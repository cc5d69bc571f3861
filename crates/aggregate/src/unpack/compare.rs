//! Comparing a container with the files that it was made from, before they may go.
//!
//! Relies on [`Container`]. The idea: the same walk over blocks as unpacking takes, but every piece is compared with the
//! raw file in place of being written, so that what is shown is that these files come back, byte for byte.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use stdchk_formats::{Extent, Source};
use stdchk_model::exact::to_usize;

use super::map::BlockSlice;
use super::{Container, slice};
use crate::error::{AggregateError, Result};
use crate::holes::data_within;
use crate::limits::BUDGET_DEFAULT;
use crate::pack::Packing;
use crate::parallel::in_parallel;
use crate::source::{FileSource, Input, SetFile};
use crate::unfold::{Part, Unit};

/// Opens the file at a position of the set.
type Opener<'a> = &'a (dyn Fn(usize) -> Result<Box<dyn Source>> + Sync);

impl Container {
    /// Decodes everything and compares it with the inputs, which are in the order of the container's files. Of `options`
    /// the budget and the threads count.
    ///
    /// # Errors
    /// [`AggregateError::Changed`] names an input that is not what the container holds.
    pub(crate) fn compare(&self, inputs: &[Input], options: &Packing<'_>) -> Result<()> {
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        self.check_names(&names)?;
        self.compare_some(inputs, options)
    }

    /// Decodes the named files and compares them with the inputs. Of `options` the budget and the threads count.
    ///
    /// # Errors
    /// [`AggregateError::Changed`] names an input that is not what the container holds.
    pub(crate) fn compare_some(&self, inputs: &[Input], options: &Packing<'_>) -> Result<()> {
        let names = self.files.files.iter().enumerate().map(|(file, entry)| (entry.name.as_str(), file));
        let positions: HashMap<&str, usize> = names.collect();
        let position = |name: &str| positions.get(name).copied().map_or_else(|| self.position(name), Ok);
        let inputs = inputs.iter().map(|input| Ok((position(&input.name)?, input.path.as_path())));
        let inputs: HashMap<usize, &Path> = inputs.collect::<Result<_>>()?;
        let open = |file: usize| -> Result<Box<dyn Source>> {
            let Some(path) = inputs.get(&file) else {
                unreachable!("only files that are compared are opened")
            };
            Ok(Box::new(FileSource::open(path)?))
        };
        let changed = |error| match error {
            AggregateError::Changed { path } => {
                let position = self.position(&path.to_string_lossy()).ok();
                let input = position.and_then(|position| inputs.get(&position));
                AggregateError::Changed { path: input.map_or(path, |input| input.to_path_buf()) }
            }
            other => other,
        };
        self.compare_files(&|file| inputs.contains_key(&file), &open, options).map_err(changed)
    }

    /// Decodes everything and compares it with the files, which are in the order of the container's. Of `options` the
    /// budget and the threads count.
    ///
    /// # Errors
    /// [`AggregateError::Changed`] names a file that is not what the container holds.
    pub fn compare_with(&self, files: &[SetFile], options: &Packing<'_>) -> Result<()> {
        let names: Vec<&str> = files.iter().map(|file| file.entry.name.as_str()).collect();
        let open = |file: usize| -> Result<Box<dyn Source>> {
            let missing = || AggregateError::Invalid("the container holds other files".to_owned());
            Ok(Box::new(Arc::clone(&files.get(file).ok_or_else(missing)?.source)))
        };
        self.check_names(&names)?;
        self.compare_files(&|_| true, &open, options)
    }

    fn check_names(&self, files: &[&str]) -> Result<()> {
        let names = self.files.files.iter().map(|entry| entry.name.as_str());
        if names.eq(files.iter().copied()) {
            return Ok(());
        }
        Err(AggregateError::Invalid("the container holds other files".to_owned()))
    }

    fn compare_files(
        &self,
        wanted: &dyn Fn(usize) -> bool,
        open: Opener<'_>,
        options: &Packing<'_>,
    ) -> Result<()> {
        if let Some(file) = self.files_with_gaps().find(|file| wanted(*file)) {
            return Err(self.lost(file, 0));
        }
        let mut work: Vec<(u64, Vec<(usize, BlockSlice)>)> = self.pieces_by_block().into_iter().collect();
        let as_is = |file: usize| wanted(file) && !self.is_unfolded(file);
        work.iter_mut().for_each(|(_, pieces)| pieces.retain(|(file, _)| as_is(*file)));
        work.retain(|(_, pieces)| !pieces.is_empty());
        let budget = if options.budget == 0 { BUDGET_DEFAULT } else { options.budget };
        let unfolded: Vec<usize> = self.files.unfolded.keys().copied().filter(|file| wanted(*file)).collect();
        let threads = self.folding_threads(self.longest_stream(&unfolded), budget, options.threads);
        in_parallel(&unfolded, threads, |_, file| self.compare_unfolded(*file, open, options))?;
        let sparse: Vec<usize> = self.files.holes.keys().copied().filter(|file| as_is(*file)).collect();
        in_parallel(&sparse, self.threads(budget, options.threads), |_, file| {
            self.compare_holes(*file, open, options)
        })?;
        in_parallel(&work, self.threads(budget, options.threads), |_, (block, pieces)| {
            self.compare_block(*block, pieces, open)?;
            if (options.watch)(0) { Ok(()) } else { Err(AggregateError::Stopped) }
        })?;
        Ok(())
    }

    /// Compares the holes of a file with what stands there: where the file has holes as well, nothing needs to be read.
    fn compare_holes(&self, file: usize, open: Opener<'_>, options: &Packing<'_>) -> Result<()> {
        let source = open(file)?;
        let name = self.files.files.get(file).map_or("?", |entry| entry.name.as_str());
        let theirs = source.holes().map_err(AggregateError::io("look for holes in", Path::new(name)))?;
        let ours = self.files.holes_of(file).iter();
        ours.flat_map(|hole| data_within(*hole, &theirs))
            .try_for_each(|range| self.compare_range(file, &*source, range, options))
    }

    /// Compares a file that blocks hold unfolded with what it is when it is folded.
    fn compare_unfolded(&self, file: usize, open: Opener<'_>, options: &Packing<'_>) -> Result<()> {
        let Some(recipes) = self.recipes(file)? else { return Err(self.lost(file, 0)) };
        let source = open(file)?;
        let name = self.files.files.get(file).map_or("?", |entry| entry.name.as_str());
        let read = |range, buffer: &mut Vec<u8>| self.read_held(file, range, buffer);
        let mut raw = Vec::new();
        for unit in recipes.units() {
            let mut compare = |offset, ours: &[u8]| {
                raw.resize(ours.len(), 0);
                read_raw(&*source, name, offset, &mut raw)?;
                if raw == ours { Ok(()) } else { Err(AggregateError::Changed { path: name.into() }) }
            };
            self.fold_unit(file, &recipes, &unit, &read, &mut compare)?;
            if let Unit::AsIs(part) = unit {
                self.compare_holes_of_part(file, &part, &*source, options)?;
            }
            if !(options.watch)(0) {
                return Err(AggregateError::Stopped);
            }
        }
        Ok(())
    }

    /// Compares the holes in a part of an unfolded file with what stands there.
    fn compare_holes_of_part(
        &self,
        file: usize,
        part: &Part,
        source: &dyn Source,
        options: &Packing<'_>,
    ) -> Result<()> {
        let data: Vec<Extent> = data_within(part.unfolded, self.files.holes_of(file)).collect();
        data_within(part.unfolded, &data).try_for_each(|hole| {
            let offset = part.file.offset + (hole.offset - part.unfolded.offset);
            self.compare_range(file, source, Extent { offset, ..hole }, options)
        })
    }

    /// Compares a range of a file with what is read of it.
    fn compare_range(
        &self,
        file: usize,
        source: &dyn Source,
        range: Extent,
        options: &Packing<'_>,
    ) -> Result<()> {
        /// Bytes that are compared at once.
        const STEP: u64 = 1 << 20;
        let name = self.files.files.get(file).map_or("?", |entry| entry.name.as_str());
        let (mut raw, mut ours, mut offset) = (Vec::new(), Vec::new(), range.offset);
        while offset < range.end() {
            let length = STEP.min(range.end() - offset);
            ours.clear();
            self.read(file, Extent { offset, length }, &mut ours)?;
            raw.resize(to_usize(length), 0);
            read_raw(source, name, offset, &mut raw)?;
            if raw != ours {
                return Err(AggregateError::Changed { path: name.into() });
            }
            if !(options.watch)(0) {
                return Err(AggregateError::Stopped);
            }
            offset += length;
        }
        Ok(())
    }

    fn compare_block(&self, block: u64, pieces: &[(usize, BlockSlice)], open: Opener<'_>) -> Result<()> {
        let decoded = self.decode(block)?;
        let mut raw = Vec::new();
        let mut opened: Option<(usize, Box<dyn Source>)> = None;
        for (file, piece) in pieces {
            let kept = opened.take().filter(|(opened, _)| opened == file);
            let (_, source) = match kept {
                Some(kept) => opened.insert(kept),
                None => opened.insert((*file, open(*file)?)),
            };
            raw.resize(to_usize(piece.file.length), 0);
            let name = self.files.files.get(*file).map_or("?", |file| file.name.as_str());
            read_raw(&**source, name, piece.file.offset, &mut raw)?;
            if slice(&decoded, piece.start, piece.file.length) != raw {
                return Err(AggregateError::Changed { path: name.into() });
            }
        }
        Ok(())
    }
}

/// Fills `raw` with the bytes of a file from `offset` on; a file that ends before was changed.
fn read_raw(source: &dyn Source, name: &str, offset: u64, raw: &mut [u8]) -> Result<()> {
    source.read_at(offset, raw).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => AggregateError::Changed { path: name.into() },
        _ => AggregateError::Io { action: "read", path: name.into(), source: error },
    })
}
