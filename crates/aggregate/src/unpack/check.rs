//! Checking a container without writing a file.
//!
//! Relies on [`Container`]. The idea: the walk of unpacking, which decodes every block and verifies it, without its end.

use std::collections::HashSet;

use super::map::{BlockSlice, covers};
use super::{Container, Unpacked, Unpacking};
use crate::codec::scratch;
use crate::container::FileEntry;
use crate::error::{AggregateError, Result};
use crate::parallel::in_parallel;

impl Container {
    /// Decodes all that unpacking would decode; what comes back is what it would write.
    ///
    /// # Errors
    /// [`AggregateError::Incomplete`] names the files that could not be given back; [`AggregateError::NotFound`] a name that
    /// the container doesn't have.
    pub fn check(&self, options: &Unpacking<'_>) -> Result<Unpacked> {
        let named = options.names.iter().map(|name| self.position(name)).collect::<Result<HashSet<_>>>()?;
        let wanted = |file: &usize| options.names.is_empty() || named.contains(file);
        let mut work: Vec<(u64, Vec<(usize, BlockSlice)>)> = self.pieces_by_block().into_iter().collect();
        work.iter_mut().for_each(|(_, pieces)| pieces.retain(|(file, _)| wanted(file)));
        work.retain(|(_, pieces)| !pieces.is_empty());
        let threads = self.threads(options.budget(), options.threads);
        let unreadable = in_parallel(&work, threads, |_, (block, pieces)| {
            let lost = self.lost_files(*block, pieces)?;
            let bytes = pieces.iter().fold(0_u64, |sum, (_, piece)| sum.saturating_add(piece.file.length));
            if (options.watch)(bytes) { Ok(lost) } else { Err(AggregateError::Stopped) }
        })?;
        let mut damaged: HashSet<usize> = unreadable.into_iter().flatten().collect();
        damaged.extend(self.files_with_gaps());
        let unfolded = self.files.unfolded.keys().copied();
        let unfolded: Vec<usize> = unfolded.filter(|file| wanted(file) && !damaged.contains(file)).collect();
        let threads = self.folding_threads(self.longest_stream(&unfolded), options.budget(), options.threads);
        let unmade = in_parallel(&unfolded, threads, |_, file| {
            let lost = match self.check_folding(*file) {
                Err(error @ AggregateError::Io { .. }) => return Err(error),
                outcome => outcome.err().map(|_| *file),
            };
            if (options.watch)(0) { Ok(lost) } else { Err(AggregateError::Stopped) }
        })?;
        damaged.extend(unmade.into_iter().flatten());
        self.tally(|file| wanted(&file), |file| damaged.contains(&file))
    }

    /// The files that have a piece in this block, if it is damaged; none otherwise.
    fn lost_files(&self, block: u64, pieces: &[(usize, BlockSlice)]) -> Result<Vec<usize>> {
        match self.decode(block) {
            Ok(decoded) => {
                scratch::give_back(decoded);
                Ok(Vec::new())
            }
            Err(error @ AggregateError::Io { .. }) => Err(error),
            Err(_) => Ok(pieces.iter().map(|(file, _)| *file).collect()),
        }
    }

    /// Files of which some bytes are in no block.
    pub(super) fn files_with_gaps(&self) -> impl Iterator<Item = usize> {
        let files = self.files.files.iter().zip(&self.maps).enumerate();
        let has_gaps = |number: usize, file: &FileEntry, map: &[BlockSlice]| {
            !covers(map, self.files.data_bytes(number, file))
        };
        files.filter(move |(number, (file, map))| has_gaps(*number, file, map)).map(|(number, _)| number)
    }

    /// The files that count, and their bytes.
    ///
    /// # Errors
    /// [`AggregateError::Incomplete`] when some of them are damaged.
    fn tally(&self, counts: impl Fn(usize) -> bool, is_damaged: impl Fn(usize) -> bool) -> Result<Unpacked> {
        let counted = self.files.files.iter().enumerate().filter(|(file, _)| counts(*file));
        let (damaged, intact): (Vec<_>, Vec<_>) = counted.partition(|(file, _)| is_damaged(*file));
        let bytes = intact.iter().fold(0_u64, |sum, (_, file)| sum.saturating_add(file.size));
        let damaged = damaged.iter().map(|(_, file)| file.name.clone()).collect::<Vec<_>>();
        let intact = intact.iter().filter(|(_, file)| !file.is_folder()).count() as u64;
        if damaged.is_empty() {
            Ok(Unpacked { files: intact, bytes })
        } else {
            Err(AggregateError::Incomplete { damaged, blocked: Vec::new(), intact, bytes })
        }
    }
}
