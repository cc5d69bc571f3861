//! The default content-defined cutter: normalised chunking with a skipped minimum, over a hash made for SIMD.
//!
//! As in FastCDC (Xia et al., USENIX ATC'16) nothing is tried before `min`, cuts are rare up to a normal point and
//! frequent after it, which gathers lengths around the average; `max` ends the search. Unlike there the hash is not
//! rolled byte by byte, a chain that no processor can shorten, but is a function of a short window that is computed for
//! many positions at once (module `scan`).

use std::num::NonZeroUsize;

use super::scan::{Scanner, Search, Test};
use super::{CutLimits, Cutter};

#[derive(Debug)]
pub(super) struct Cdc {
    limits: CutLimits,
    test: Test,
    scanner: Scanner,
    /// The shortest length of the current piece that was not tried yet.
    next_length: usize,
}

impl Cdc {
    /// `limits.min` is at least the 512 bytes of `PIECE_BYTES_MIN`, which the scanner's windows need before them.
    pub(super) fn new(limits: CutLimits) -> Self {
        Self {
            limits,
            test: Test::around(limits.min, limits.average),
            scanner: Scanner::fastest(),
            next_length: limits.min,
        }
    }

    /// A cutter that searches with this scanner in place of the fastest; it cuts at the same places.
    pub(super) fn with_scanner(limits: CutLimits, scanner: Scanner) -> Self {
        Self { scanner, ..Self::new(limits) }
    }
}

impl Cutter for Cdc {
    fn next_cut(&mut self, data: &[u8], end_of_stream: bool) -> Option<NonZeroUsize> {
        let max = self.limits.max;
        let (reach, whole) = match data.get(..max) {
            Some(reach) => (reach, true),
            None => (data, end_of_stream),
        };
        let cut = match self.scanner.search(reach, self.next_length, whole, &self.test) {
            Search::Cut(length) => NonZeroUsize::new(length),
            Search::TriedBelow(_) if whole => NonZeroUsize::new(reach.len()),
            Search::TriedBelow(next_length) => {
                self.next_length = next_length;
                None
            }
        };
        if cut.is_some() {
            self.restart();
        }
        cut
    }

    fn limits(&self) -> CutLimits {
        self.limits
    }

    fn restart(&mut self) {
        self.next_length = self.limits.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::testing::{data, lengths, lengths_in_steps};
    use proptest::prelude::*;

    fn limits() -> impl Strategy<Value = CutLimits> {
        (512usize..3000, 2usize..8, 2usize..8).prop_map(|(min, below, above)| {
            let average = min * below;
            CutLimits { min, average, max: average * above }
        })
    }

    proptest! {
        #[test]
        fn every_scanner_cuts_alike(data in data(), limits in limits()) {
            let portable = lengths(&mut Cdc::with_scanner(limits, Scanner::available()[0]), &data);
            for scanner in Scanner::available() {
                prop_assert_eq!(&lengths(&mut Cdc::with_scanner(limits, scanner), &data), &portable, "{:?}", scanner);
            }
        }

        #[test]
        fn cuts_do_not_depend_on_how_the_stream_is_split(
            data in data(),
            limits in limits(),
            steps in prop::collection::vec(1usize..5000, 1..20),
        ) {
            for scanner in Scanner::available() {
                let mut cutter = Cdc::with_scanner(limits, scanner);
                let whole = lengths(&mut cutter, &data);
                prop_assert_eq!(lengths_in_steps(&mut cutter, &data, &steps), whole, "{:?}", scanner);
            }
        }
    }

    #[test]
    fn unstructured_data_gives_the_average_asked_for() {
        let data = crate::cut::testing::random(1, 32 << 20);
        for average in [4 << 10, 8 << 10, 64 << 10] {
            let limits = CutLimits { min: average / 4, average, max: average * 4 };
            let mean = data.len() / lengths(&mut Cdc::new(limits), &data).len();
            assert!(mean.abs_diff(average) < average / 20, "{mean} for {average}");
        }
    }

    #[test]
    fn cuts_come_back_after_an_insertion() {
        let data = crate::cut::testing::random(2, 4 << 20);
        let limits = CutLimits { min: 2 << 10, average: 8 << 10, max: 32 << 10 };
        let cuts = |data: &[u8], shift: usize| -> std::collections::BTreeSet<usize> {
            let ends = lengths(&mut Cdc::new(limits), data).into_iter().scan(0, |end, length| {
                *end += length;
                Some(*end)
            });
            ends.filter(|end| *end > (1 << 20) + shift).map(|end| end - shift).collect()
        };
        let mut edited = data.clone();
        edited.splice(1 << 20..1 << 20, [1, 2, 3]);
        let (before, after) = (cuts(&data, 0), cuts(&edited, 3));
        let lost = before.symmetric_difference(&after).count();
        assert!(lost < 20 && before.len() > 300, "{lost} of {}", before.len());
    }
}
