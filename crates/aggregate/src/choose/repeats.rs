//! Whether a block repeats elements far apart, which no sample of neighbouring ones shows.
//!
//! Pure. Relies on [`crate::codec::wide`]. The idea: elements are chosen by their values, so that of equal ones all are looked
//! at or none.

use stdchk_model::exact::{part_mut, to_usize};

use crate::codec::wide::widely;
use crate::codec::{Lane, likeness_4, likeness_8};

/// Share of elements that must occur before for a block to be searched for repeats, which no sample shows.
const REPEATS_MIN: f64 = 0.25;

/// Bits of an element's hash that decide whether it is looked at: one in 64 is.
const CHOSEN_BITS: u32 = 6;

/// Elements whose hashes are made at once.
const HASHED: usize = 64;

/// Whether one of eight bytes is zero (Hacker's Delight, 6-1).
fn has_zero(bytes: u64) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    bytes.wrapping_sub(ONES) & !bytes & (ONES << 7) != 0
}

widely! {
    /// [`repeated_share`] of elements of 4 bytes.
    repeated_share_4 = repeated_share_4_portable(raw: &[u8]) -> f64;
    /// [`repeated_share`] of elements of 8 bytes.
    repeated_share_8 = repeated_share_8_portable(raw: &[u8]) -> f64;
}

#[inline(always)]
fn repeated_share_4_portable(raw: &[u8]) -> f64 {
    repeated_share(raw, likeness_4)
}

#[inline(always)]
fn repeated_share_8_portable(raw: &[u8]) -> f64 {
    repeated_share(raw, likeness_8)
}

/// Zero for one word in 64; zero itself, which is everywhere, is as rarely chosen as others. Half words are multiplied, for
/// which processors have wide instructions.
#[inline(always)]
fn chosen(word: u64) -> u8 {
    let folded = ((!word ^ (word >> 29)) & 0xffff_ffff) as u32;
    (folded.wrapping_mul(0x9e37_79b1) >> (32 - CHOSEN_BITS) & 0xff) as u8
}

/// Share of the elements that occurred before, from a few, chosen by their values.
#[inline(always)]
fn repeated_share<const N: usize>(raw: &[u8], word: impl Fn(&[u8; N]) -> u64) -> f64 {
    let elements = raw.as_chunks::<N>().0;
    // Twice as many places as elements that are looked at; one that lost its place counts as never seen.
    let bits = (elements.len() >> (CHOSEN_BITS - 1)).max(64).ilog2();
    let mut seen = vec![0_u64; 1 << bits];
    let (mut looked_at, mut repeated) = (0_u32, 0_u32);
    for run in elements.as_chunks::<HASHED>().0 {
        let mut choices = [0_u8; HASHED];
        for (choice, element) in choices.iter_mut().zip(run) {
            *choice = chosen(word(element));
        }
        for (choices, eight) in choices.as_chunks::<8>().0.iter().zip(run.as_chunks::<8>().0) {
            if !has_zero(u64::from_le_bytes(*choices)) {
                continue;
            }
            for (_, element) in choices.iter().zip(eight).filter(|(choice, _)| **choice == 0) {
                // Another factor than that which chose the element, or else all would have the same few places.
                let mixed = (!word(element)).wrapping_mul(0xd6e8_feb8_6659_fd93);
                let seen = part_mut(&mut seen, to_usize(mixed >> (64 - bits)));
                looked_at += 1;
                repeated += u32::from(*seen == mixed);
                *seen = mixed;
            }
        }
    }
    f64::from(repeated) / f64::from(looked_at.max(1))
}

/// Whether a block repeats elements far apart, as symmetric fields do.
pub(super) fn repeats(raw: &[u8], lane: Lane) -> bool {
    let share = match lane.size() {
        8 => repeated_share_8(raw),
        4 => repeated_share_4(raw),
        _ => 0.0,
    };
    share > REPEATS_MIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::wide::tests::at_every_width;

    #[test]
    fn every_form_counts_the_same_repeats() {
        let once: Vec<u8> =
            (1..40_000_u64).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        let twice = once.repeat(2);
        for share in [repeated_share_4, repeated_share_8] {
            assert!(at_every_width(|| share(&once)) < 0.01);
            assert!((0.3..0.6).contains(&at_every_width(|| share(&twice))));
        }
    }
}
