//! Comparing a container with the files that it was made from, before they may go.
//!
//! Relies on [`Container`]. The idea: the same walk over blocks as unpacking takes, but every piece is compared with the
//! raw file in place of being written, so that what is shown is that these files come back, byte for byte.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::map::{Piece, covers};
use super::{Container, slice};
use crate::error::{AggregateError, Result};
use crate::limits::BUDGET_DEFAULT;
use crate::pack::Packing;
use crate::source::Input;

impl Container {
    /// Decodes everything and compares it with the inputs, which are in the order of the container's files. Of `options`
    /// the budget and the threads count.
    ///
    /// # Errors
    /// [`AggregateError::Changed`] names an input that is not what the container holds.
    pub(crate) fn compare(&self, inputs: &[Input], options: &Packing<'_>) -> Result<()> {
        let names = self.files.files.iter().map(|entry| entry.name.as_str());
        if !names.eq(inputs.iter().map(|input| input.name.as_str())) {
            return Err(AggregateError::Invalid("the container holds other files".to_owned()));
        }
        let gap = self.files.files.iter().zip(&self.maps).position(|(file, map)| !covers(map, file.size));
        if let Some(file) = gap {
            return Err(self.lost(file, 0));
        }
        let work: Vec<(u64, Vec<(usize, Piece)>)> = self.pieces_by_block().into_iter().collect();
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let budget = if options.budget == 0 { BUDGET_DEFAULT } else { options.budget };
        std::thread::scope(|scope| {
            for _ in 0..self.threads(budget, options.threads) {
                scope.spawn(|| {
                    while let Some((block, pieces)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let compared = self.compare_block(*block, pieces, inputs);
                        let compared = compared.and_then(|()| {
                            if (options.watch)(0) { Ok(()) } else { Err(AggregateError::Stopped) }
                        });
                        if let Err(error) = compared {
                            next.store(usize::MAX / 2, Ordering::Relaxed);
                            if let Ok(mut first) = failure.lock() {
                                first.get_or_insert(error);
                            }
                        }
                    }
                });
            }
        });
        match failure.into_inner() {
            Ok(Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn compare_block(&self, block: u64, pieces: &[(usize, Piece)], inputs: &[Input]) -> Result<()> {
        let decoded = self.decode(block)?;
        let mut raw = Vec::new();
        let mut opened: Option<(usize, File)> = None;
        for (file, piece) in pieces {
            let Some(input) = inputs.get(*file) else { continue };
            let path = &input.path;
            let kept = opened.take().filter(|(opened, _)| opened == file);
            let (_, source) = match kept {
                Some(kept) => opened.insert(kept),
                None => opened.insert((*file, File::open(path).map_err(AggregateError::io("open", path))?)),
            };
            raw.resize(usize::try_from(piece.file.length).unwrap_or(usize::MAX), 0);
            let changed = || AggregateError::Changed { path: path.clone() };
            source.read_exact_at(&mut raw, piece.file.offset).map_err(|_| changed())?;
            if slice(&decoded, piece.start, piece.file.length) != Some(raw.as_slice()) {
                return Err(changed());
            }
        }
        Ok(())
    }
}
