//! Where a grid of fixed pieces lies in a file: at the phase at which pieces of an earlier version are found again.
//!
//! The pages of a process image lie behind a header, whose length changes with what it lists: `gcore` puts them at 304 bytes
//! behind a multiple of 4096 in one image of a program, and at 416 in the next. What counts is that the grid of the next
//! version is where the same bytes make the same pieces. So nothing has to be known of a format: a few places of the new
//! version are looked up at all phases, and two that agree decide. Where nothing is known yet the grid is best laid where
//! the pages are, as a page that changed is two pieces of a grid that cuts through pages; a guess will do for that.

use std::collections::HashMap;

use stdchk_model::exact::part;

use crate::is_zero;

/// Longest piece whose grid is sought, bytes: the work at one place grows with the square of it.
pub(crate) const SOUGHT_BYTES_MAX: usize = 4096;
/// GridPieces that are looked up at all phases, in one stretch of a file and altogether: sixteen mebibytes to hash for each, of
/// pieces of 4 KiB. Where a fifth of the pages stayed as they were, the first stretch decides in one of two cases, and
/// all of them but for one in a hundred.
const SAMPLED_PIECES: (usize, usize) = (8, 32);
/// Pieces of a stretch that are looked up at the phase that is expected.
const EXPECTED_PIECES: usize = 64;
/// What a page of memory begins with that a program or a library is mapped to: the identification of an ELF file of 64 bits,
/// whose second half is zeros. Dumps that are ELF files themselves begin so, too.
const MAPPED: &[u8] = b"\x7fELF\x02\x01\x01";
const MAPPED_BYTES: usize = 16;
/// GridPieces that must agree on a phase: one can be found by chance, where a program has moved bytes within its memory.
const AGREEING: usize = 2;

/// Seeks the phase of the grid of one file, stretch by stretch.
#[derive(Debug)]
pub struct Seeker {
    length: usize,
    expected: Option<usize>,
    votes: HashMap<usize, usize>,
    samples_left: usize,
}

impl Seeker {
    /// A seeker for pieces of so many bytes; `None` where that would be too much work.
    pub(crate) fn new(length: usize) -> Option<Self> {
        let (expected, votes, samples_left) = (None, HashMap::new(), SAMPLED_PIECES.1);
        (length <= SOUGHT_BYTES_MAX).then_some(Self { length, expected, votes, samples_left })
    }

    /// The phase to try first: that of the first page of memory that the first stretch shows, or 0 if it shows none.
    /// Stretches begin at multiples of the length.
    pub fn expect(&mut self, stretch: &[u8]) -> usize {
        let begins = |bytes: &[u8]| bytes.starts_with(MAPPED) && is_zero(part(bytes, MAPPED_BYTES / 2..));
        let shown = || stretch.windows(MAPPED_BYTES).skip(1).position(begins);
        *self.expected.get_or_insert_with(|| shown().map_or(0, |before| (before + 1) % self.length))
    }

    /// The phase, once it is found in this stretch or an earlier one. `is_known` tells whether an earlier version has a
    /// piece. In a file that shares nothing with earlier versions no phase is ever found.
    pub fn look(&mut self, stretch: &[u8], is_known: impl Fn(&[u8]) -> bool) -> Option<usize> {
        let expected = self.expect(stretch);
        let is_at = |phase: &usize| {
            // A stretch that ends before the phase has no piece of the grid.
            let Some(stretch) = stretch.get(*phase..) else { return false };
            let pieces = GridPieces::of(stretch, self.length);
            // One that repeats itself, as an array of ones does, is known at several phases.
            let telling = pieces
                .spread(EXPECTED_PIECES)
                .filter(|piece| piece.get(8..) != piece.get(..piece.len().saturating_sub(8)));
            telling.filter(|piece| is_known(piece)).count() >= AGREEING
        };
        if let Some(phase) = [expected, 0].into_iter().find(is_at) {
            return Some(phase);
        }
        let used = GridPieces::of(stretch, self.length);
        for place in used.spread_twice(SAMPLED_PIECES.0.min(self.samples_left)) {
            self.samples_left -= 1;
            let mut phases = (0..self.length)
                .filter(|phase| place.get(*phase..phase + self.length).is_some_and(&is_known));
            // What is known at several phases repeats itself, and tells nothing.
            if let (Some(phase), None) = (phases.next(), phases.next()) {
                let votes = self.votes.entry(phase).or_default();
                *votes += 1;
                if *votes >= AGREEING {
                    return Some(phase);
                }
            }
        }
        None
    }

    /// Whether there is no use in looking on.
    pub fn has_given_up(&self) -> bool {
        self.samples_left == 0
    }
}

/// The pieces of a stretch that aren't zeros.
struct GridPieces<'a> {
    stretch: &'a [u8],
    length: usize,
    starts: Vec<usize>,
}

impl<'a> GridPieces<'a> {
    fn of(stretch: &'a [u8], length: usize) -> Self {
        let pieces = stretch.chunks_exact(length).enumerate();
        let starts = pieces.filter(|(_, piece)| !is_zero(piece)).map(|(place, _)| place * length).collect();
        Self { stretch, length, starts }
    }

    /// At most so many of them, evenly spread.
    fn spread(&self, count: usize) -> impl Iterator<Item = &'a [u8]> {
        self.spread_of(count, self.length)
    }

    /// At most so many pairs of neighbouring pieces, of which the first isn't zeros, evenly spread.
    fn spread_twice(&self, count: usize) -> impl Iterator<Item = &'a [u8]> {
        self.spread_of(count, 2 * self.length)
    }

    fn spread_of(&self, count: usize, length: usize) -> impl Iterator<Item = &'a [u8]> {
        // An odd step, as programs like to change every second, fourth or eighth page.
        let (stretch, step) = (self.stretch, (self.starts.len() / count.max(1)) | 1);
        let starts = self.starts.iter().copied().step_by(step).take(count);
        let bytes = move |start: usize| stretch.get(start..start + length);
        starts.filter_map(bytes).collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::cut::testing::random;

    const PAGE: usize = 4096;

    /// The pieces of a file whose grid has a phase.
    fn pieces(file: &[u8], phase: usize) -> HashSet<&[u8]> {
        file.get(phase..).unwrap_or_default().chunks_exact(PAGE).filter(|piece| !is_zero(piece)).collect()
    }

    fn seek(old: &[u8], old_phase: usize, new: &[u8]) -> Option<usize> {
        let known = pieces(old, old_phase);
        let mut seeker = Seeker::new(PAGE).unwrap();
        new.chunks(1 << 20).find_map(|stretch| seeker.look(stretch, |piece| known.contains(piece)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn bytes_that_moved_are_found_at_the_phase_by_which_they_moved(
            seed in any::<u64>(),
            (before, now) in (0usize..PAGE, 0usize..20_000),
        ) {
            let content = random(seed, 200_000);
            let new = [random(!seed, now), content.clone()].concat();
            prop_assert_eq!(seek(&content, before, &new), Some((now + before) % PAGE));
        }
    }

    #[test]
    fn where_bytes_stayed_the_grid_begins_with_the_file() {
        let content = random(1, 100_000);
        assert_eq!(seek(&content, 0, &content), Some(0));
    }

    #[test]
    fn where_nothing_is_known_the_grid_is_laid_where_a_mapped_library_begins() {
        let mut stretch = random(1, 100_000);
        let mut write =
            |at: usize, bytes: &[u8]| stretch.get_mut(at..at + bytes.len()).unwrap().copy_from_slice(bytes);
        for at in [0, 314 + 7 * PAGE, 314 + 9 * PAGE] {
            write(at, b"\x7fELF\x02\x01\x01\x03\0\0\0\0\0\0\0\0");
        }
        // A program may hold these bytes anywhere.
        write(1000, MAPPED);
        assert_eq!(Seeker::new(PAGE).unwrap().expect(&random(3, 100_000)), 0);
        let mut seeker = Seeker::new(PAGE).unwrap();
        assert_eq!(seeker.expect(&stretch), 314);
        assert_eq!(seeker.expect(&random(2, 100_000)), 314, "one file has one grid");
        assert_eq!(seeker.look(&stretch, |_| false), None);
    }

    #[test]
    fn zeros_and_what_repeats_itself_tell_nothing() {
        let content = [vec![0; 100_000], b"eight by".repeat(100_000)].concat();
        let moved = [b"a header".as_slice(), &content].concat();
        assert_eq!(seek(&content, 3, &moved), None);
    }

    #[test]
    fn what_nobody_knows_is_looked_up_at_a_bounded_number_of_places() {
        let looked_up = std::cell::Cell::new(0);
        let mut seeker = Seeker::new(PAGE).unwrap();
        for seed in 0..20 {
            let nobody = |_: &[u8]| {
                looked_up.set(looked_up.get() + 1);
                false
            };
            assert_eq!(seeker.look(&random(seed, 1 << 20), nobody), None);
        }
        assert!(seeker.has_given_up());
        assert!(looked_up.get() <= SAMPLED_PIECES.1 * PAGE + 40 * EXPECTED_PIECES, "{}", looked_up.get());
    }

    #[test]
    fn bytes_that_moved_within_one_place_do_not_decide() {
        let (old, new) = (random(1, 100_000), random(2, 100_000));
        let mut new = new;
        new.get_mut(40_000..40_000 + PAGE).unwrap().copy_from_slice(old.get(PAGE..2 * PAGE).unwrap());
        assert_eq!(seek(&old, 0, &new), None);
    }

    #[test]
    fn grids_of_long_pieces_are_not_sought() {
        assert!(Seeker::new(64 << 10).is_none());
    }
}
