//! Fixed-size compare-by-hash (FsCH; paper, section IV.C): pieces of one length.
//!
//! The cheapest cutter, and blind to insertions: one byte at the front of a file moves every later cut. Where the grid does
//! not begin with the stream (`grid`), the first piece is as long as the grid's phase.

use std::num::NonZeroUsize;

use super::{CutLimits, Cutter, last_piece};

#[derive(Debug)]
pub(super) struct Fsch {
    grid: Grid,
    /// Length of the next piece.
    next: NonZeroUsize,
}

/// Where the cuts of [`Fsch`] lie: at all offsets of a stream that leave `phase` when divided by `length`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grid {
    pub(super) length: NonZeroUsize,
    /// Less than the length.
    pub(super) phase: usize,
}

impl Grid {
    fn first(self) -> NonZeroUsize {
        // A grid that begins with the stream has no shorter piece before it.
        NonZeroUsize::new(self.phase).unwrap_or(self.length)
    }
}

impl Fsch {
    pub(super) fn new(grid: Grid) -> Self {
        Self { grid, next: grid.first() }
    }
}

impl Cutter for Fsch {
    fn next_cut(&mut self, data: &[u8], end_of_stream: bool) -> Option<NonZeroUsize> {
        if data.len() < self.next.get() {
            return last_piece(data, end_of_stream);
        }
        Some(std::mem::replace(&mut self.next, self.grid.length))
    }

    fn limits(&self) -> CutLimits {
        let length = self.grid.length.get();
        CutLimits { min: length, average: length, max: length }
    }

    fn restart(&mut self) {
        self.next = self.grid.first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::testing::{data, lengths, lengths_in_steps};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_cuts_lie_on_the_grid(
            data in data(),
            length in 1usize..9000,
            phase in any::<prop::sample::Index>(),
            steps in prop::collection::vec(1usize..5000, 1..20),
        ) {
            let grid = Grid { length: NonZeroUsize::new(length).unwrap(), phase: phase.index(length) };
            let mut cutter = Fsch::new(grid);
            let (first, rest) = data.split_at(grid.phase.min(data.len()));
            let pieces = first.chunks(length).chain(rest.chunks(length));
            let expected: Vec<usize> = pieces.map(<[u8]>::len).collect();
            prop_assert_eq!(&lengths(&mut cutter, &data), &expected);
            prop_assert_eq!(&lengths_in_steps(&mut cutter, &data, &steps), &expected);
        }
    }
}
