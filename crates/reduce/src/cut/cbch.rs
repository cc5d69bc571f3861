//! Content-based compare-by-hash (CbCH; paper, section IV.C), as the paper defines it.
//!
//! A window of m bytes advances p bytes at a time from the last cut; a piece ends with the first window whose hash has
//! its lowest k bits all zero. With p = 1 ("overlap") every position is tried, with p = m ("no-overlap") every byte is
//! hashed once. The paper sets no longest piece; here `max` bounds the memory that an undecided piece needs.
//!
//! The hash is a polynomial over the window, so that it can be rolled where windows overlap, and a final mix that
//! spreads every byte into the lowest bits.

use std::num::NonZeroUsize;

use stdchk_model::exact::part;

use super::{CutLimits, Cutter, last_piece};

/// Base of the polynomial: odd, so that no byte of the window is shifted out of it.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Added before the mix, so that a window of zeros is a window like any other.
const SEED: u64 = 0x2545_f491_4f6c_dd1d;

/// The parameters of the paper's Tables 3 and 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CbchParameters {
    /// Bytes in the window (m).
    pub window: usize,
    /// Bits of the hash that are zero at a cut (k).
    pub zero_bits: u32,
    /// Bytes that the window advances (p).
    pub advance: usize,
    /// Longest piece, bytes.
    pub max: usize,
}

#[derive(Debug)]
pub(super) struct Cbch {
    parameters: CbchParameters,
    /// `BASE` to the power of the window: what the byte that leaves the window is multiplied by.
    leaving: u64,
    /// End of the next window to try, and the polynomial of the window before it (0 bytes long at the start).
    next_end: usize,
    polynomial: u64,
}

impl Cbch {
    pub(super) fn new(parameters: CbchParameters) -> Self {
        let leaving = (0..parameters.window).fold(1, |power: u64, _| power.wrapping_mul(BASE));
        Self { parameters, leaving, next_end: parameters.window, polynomial: 0 }
    }

    /// End of the first window with a hash that ends in zeros, among those that end within `data`.
    fn search(&mut self, data: &[u8]) -> Option<usize> {
        let mask = (1u64 << self.parameters.zero_bits) - 1;
        while let Some(seen) = data.get(..self.next_end) {
            let end = self.next_end;
            self.polynomial = self.hash_window(seen);
            self.next_end = end + self.parameters.advance;
            if mix(self.polynomial) & mask == 0 {
                return Some(end);
            }
        }
        None
    }

    /// Polynomial of the window at the end of `seen`: rolled from the one before, or anew where that is less work.
    fn hash_window(&self, seen: &[u8]) -> u64 {
        let CbchParameters { window, advance, .. } = self.parameters;
        if advance * 2 > window || seen.len() == window {
            return seen.iter().rev().take(window).rev().fold(0, |sum, byte| enter(sum, *byte));
        }
        let entering = seen.iter().rev().take(advance).rev();
        let leaving = seen.iter().rev().skip(window).take(advance).rev();
        entering.zip(leaving).fold(self.polynomial, |sum, (entering, leaving)| {
            enter(sum, *entering).wrapping_sub(u64::from(*leaving).wrapping_mul(self.leaving))
        })
    }
}

fn enter(polynomial: u64, byte: u8) -> u64 {
    polynomial.wrapping_mul(BASE).wrapping_add(u64::from(byte))
}

/// Spreads all bits into the lowest ones (the last steps of MurmurHash3's 64-bit finaliser).
fn mix(polynomial: u64) -> u64 {
    let sum = polynomial.wrapping_add(SEED);
    let folded = (sum ^ (sum >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    folded ^ (folded >> 33)
}

impl Cutter for Cbch {
    fn next_cut(&mut self, data: &[u8], end_of_stream: bool) -> Option<NonZeroUsize> {
        let max = self.parameters.max;
        let reach = part(data, ..max.min(data.len()));
        let cut = match self.search(reach) {
            Some(end) => NonZeroUsize::new(end),
            None if data.len() >= max => NonZeroUsize::new(max),
            None => last_piece(data, end_of_stream),
        };
        if cut.is_some() {
            self.restart();
        }
        cut
    }

    /// The average is the expected distance of cuts, `window + advance · (2^zero_bits − 1)`, under the longest piece.
    fn limits(&self) -> CutLimits {
        let CbchParameters { window, zero_bits, advance, max } = self.parameters;
        let average = ((1usize << zero_bits) - 1).saturating_mul(advance).saturating_add(window);
        CutLimits { min: window, average: average.min(max), max }
    }

    fn restart(&mut self) {
        self.next_end = self.parameters.window;
        self.polynomial = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cut::testing::{data, lengths, lengths_in_steps};
    use proptest::prelude::*;

    fn parameters() -> impl Strategy<Value = CbchParameters> {
        (4usize..64, 1u32..12, 1usize..64, 512usize..9000).prop_map(|(window, zero_bits, advance, max)| {
            CbchParameters { window, zero_bits, advance: advance.min(window), max }
        })
    }

    /// The definition, word for word: windows at 0, p, 2p… from the last cut, each hashed from its own bytes.
    fn defined_cut(parameters: &CbchParameters, data: &[u8]) -> usize {
        let ends = (parameters.window..=data.len().min(parameters.max)).step_by(parameters.advance);
        let is_cut = |end: &usize| {
            let window = &data[end - parameters.window..*end];
            mix(window.iter().fold(0, |sum, byte| enter(sum, *byte))).trailing_zeros() >= parameters.zero_bits
        };
        ends.into_iter().find(is_cut).unwrap_or(data.len().min(parameters.max))
    }

    proptest! {
        #[test]
        fn cuts_are_those_of_the_definition(data in data(), parameters in parameters()) {
            let mut start = 0;
            for length in lengths(&mut Cbch::new(parameters), &data) {
                prop_assert_eq!(length, defined_cut(&parameters, &data[start..]));
                start += length;
            }
            prop_assert_eq!(start, data.len());
        }

        #[test]
        fn cuts_do_not_depend_on_how_the_stream_is_split(
            data in data(),
            parameters in parameters(),
            steps in prop::collection::vec(1usize..2000, 1..20),
        ) {
            let mut cutter = Cbch::new(parameters);
            let whole = lengths(&mut cutter, &data);
            prop_assert_eq!(lengths_in_steps(&mut cutter, &data, &steps), whole);
        }
    }

    #[test]
    fn zeros_hold_no_cuts() {
        let parameters = CbchParameters { window: 20, zero_bits: 8, advance: 1, max: 1 << 20 };
        assert_eq!(lengths(&mut Cbch::new(parameters), &[0; 3 << 20]), [1 << 20; 3]);
    }

    #[test]
    fn mean_lengths_are_those_of_the_parameters() {
        let data = crate::cut::testing::random(3, 16 << 20);
        for (advance, zero_bits) in [(1, 12), (20, 8)] {
            let mut cutter = Cbch::new(CbchParameters { window: 20, zero_bits, advance, max: 4 << 20 });
            let mean = data.len() / lengths(&mut cutter, &data).len();
            let expected = cutter.limits().average;
            assert!(mean.abs_diff(expected) < expected / 10, "{mean} for {expected}");
        }
    }
}
