//! Finding runs of zeros, which cost nothing to store or send: three quarters of a process image are such pages.
//!
//! The loop is plain: a block of fixed length is folded with OR, which the compiler turns into vector instructions of
//! the target; between blocks it may stop, so that bytes that are not zero are told after one block.

/// Bytes looked at between two chances to stop: long enough to hide the branch, short enough to stop early.
const BLOCK: usize = 256;

/// Whether all of `data` is zero; true for no data. Stops within 256 bytes after the first other byte.
pub fn is_zero(data: &[u8]) -> bool {
    let (blocks, rest) = data.as_chunks::<BLOCK>();
    blocks.iter().all(block_is_zero) && folds_to_zero(rest)
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
        fn agrees_with_the_definition(data in prop::collection::vec(prop_oneof![9 => Just(0u8), 1 => any::<u8>()], 0..40)) {
            prop_assert_eq!(is_zero(&data), data.iter().all(|byte| *byte == 0));
        }
    }
}
