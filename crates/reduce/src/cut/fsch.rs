//! Fixed-size compare-by-hash (FsCH; paper, section IV.C): pieces of one length.
//!
//! The cheapest cutter, and blind to insertions: one byte at the front of a file moves every later cut.

use std::num::NonZeroUsize;

use super::{CutLimits, Cutter, last_piece};

#[derive(Debug)]
pub(super) struct Fsch {
    pub(super) length: NonZeroUsize,
}

impl Cutter for Fsch {
    fn next_cut(&mut self, data: &[u8], end_of_stream: bool) -> Option<NonZeroUsize> {
        if data.len() >= self.length.get() { Some(self.length) } else { last_piece(data, end_of_stream) }
    }

    fn limits(&self) -> CutLimits {
        let length = self.length.get();
        CutLimits { min: length, average: length, max: length }
    }

    fn restart(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::testing::{data, lengths, lengths_in_steps};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn all_pieces_but_the_last_have_the_length(
            data in data(),
            length in 1usize..9000,
            steps in prop::collection::vec(1usize..5000, 1..20),
        ) {
            let mut cutter = Fsch { length: NonZeroUsize::new(length).unwrap() };
            let expected: Vec<usize> = data.chunks(length).map(<[u8]>::len).collect();
            prop_assert_eq!(&lengths(&mut cutter, &data), &expected);
            prop_assert_eq!(&lengths_in_steps(&mut cutter, &data, &steps), &expected);
        }
    }
}
