//! Finding runs of zeros, which cost nothing to store, to send or, as holes, to write: three quarters of a process image are
//! such pages.
//!
//! The loop is plain: a block of fixed length is folded with OR, which the compiler turns into vector instructions of
//! the target; between blocks it may stop, so that bytes that are not zero are told after one block.

use std::ops::Range;

use stdchk_model::exact::to_usize;

/// Zeros that become a hole of a file, bytes: no file system has smaller blocks, and what such a hole had comes back as one.
pub const HOLE_BYTES: usize = 4096;

/// Bytes looked at between two chances to stop: long enough to hide the branch, short enough to stop early.
const BLOCK: usize = 256;

/// Whether all of `data` is zero; true for no data. Stops within 256 bytes after the first other byte.
pub fn is_zero(data: &[u8]) -> bool {
    let (blocks, rest) = data.as_chunks::<BLOCK>();
    blocks.iter().all(block_is_zero) && folds_to_zero(rest)
}

/// The ranges of `data` that must be written where all of it belongs at `offset` of a file that has nothing there yet: the
/// blocks of [`HOLE_BYTES`] of the file that are zeros throughout are left out.
pub fn ranges_to_write(data: &[u8], offset: u64) -> impl Iterator<Item = Range<usize>> {
    let to_first_block = to_usize(offset.wrapping_neg() % HOLE_BYTES as u64);
    let is_hole = move |at: usize| at >= to_first_block && data.get(at..at + HOLE_BYTES).is_some_and(is_zero);
    let next_block = move |at: usize| {
        let next = if at < to_first_block { to_first_block } else { at + HOLE_BYTES };
        next.min(data.len())
    };
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < data.len() && is_hole(at) {
            at = next_block(at);
        }
        let start = at;
        while at < data.len() && !is_hole(at) {
            at = next_block(at);
        }
        (start < at).then_some(start..at)
    })
}

fn block_is_zero(block: &[u8; BLOCK]) -> bool {
    folds_to_zero(block)
}

#[inline(always)]
fn folds_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |seen, byte| seen | byte) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn zeros_of_any_length_are_zero() {
        for length in [0, 1, 7, 255, 256, 257, 4096, 1 << 20] {
            assert!(is_zero(&vec![0; length]), "{length}");
        }
    }

    proptest! {
        #[test]
        fn one_set_bit_anywhere_is_found(length in 1usize..5000, at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut data = vec![0; length];
            data[at.index(length)] = 1 << bit;
            prop_assert!(!is_zero(&data));
        }

        #[test]
        fn a_file_that_is_written_around_zeros_has_all_bytes_and_no_block_of_zeros(
            runs in prop::collection::vec((any::<bool>(), 0usize..10_000), 0..8),
            offset in 0u64..10_000,
        ) {
            let data: Vec<u8> = runs.iter().flat_map(|(zeros, length)| vec![u8::from(!zeros); *length]).collect();
            let (mut written, mut seen) = (vec![0; data.len()], 0);
            for range in ranges_to_write(&data, offset) {
                prop_assert!(seen <= range.start && range.start < range.end);
                seen = range.end;
                written[range.clone()].copy_from_slice(&data[range.clone()]);
                let aligned = (range.start..range.end).find(|at| (offset + *at as u64).is_multiple_of(4096));
                let mut blocks = data[aligned.unwrap_or(range.end)..range.end].chunks_exact(4096);
                prop_assert!(blocks.all(|block| block.contains(&1)));
            }
            prop_assert_eq!(written, data);
        }

        #[test]
        fn agrees_with_the_definition(data in prop::collection::vec(prop_oneof![9 => Just(0u8), 1 => any::<u8>()], 0..40)) {
            prop_assert_eq!(is_zero(&data), data.iter().all(|byte| *byte == 0));
        }
    }
}
