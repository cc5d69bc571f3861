//! The search in plain Rust: the definition of the coarse hash, in blocks that compilers turn into vector instructions.
//!
//! It serves processors without a scanner of their own and the ends of streams, where less than a group is left.

use super::{COARSE_BYTES, EIGHT_BACK, FOUR_BACK, QUAD, Search, Test};

/// Lengths tried at once.
const GROUP: usize = 128;
/// Bytes that the hashes of a group cover.
const GROUP_BYTES: usize = GROUP + COARSE_BYTES - 1;
/// Bytes before a length whose quad counts in its hash: 12, 8, 4 and 0.
const QUADS_BYTES: usize = GROUP + 12;

/// See [`super::Scanner::search`]; tries every length when `whole`.
pub(super) fn search(data: &[u8], from: usize, whole: bool, test: &Test) -> Search {
    let mut next = from;
    while let Some(bytes) = window(data, next) {
        if let Some(length) = search_group(data, bytes, next, test) {
            return Search::Cut(length);
        }
        next += GROUP;
    }
    if whole { search_singly(data, next, test) } else { Search::TriedBelow(next) }
}

/// The bytes that the hashes of the lengths from `next` on cover, when all of the group is within `data`.
fn window(data: &[u8], next: usize) -> Option<&[u8; GROUP_BYTES]> {
    data.get(next.checked_sub(COARSE_BYTES)?..)?.first_chunk()
}

fn search_group(data: &[u8], bytes: &[u8; GROUP_BYTES], next: usize, test: &Test) -> Option<usize> {
    let hashes = coarse_hashes(bytes);
    if hashes.iter().fold(i16::MAX, |least, hash| least.min(*hash)) >= test.coarse {
        return None;
    }
    let passed = hashes.iter().zip(next..).filter(|(hash, _)| **hash < test.coarse);
    passed.map(|(_, length)| length).find(|length| test.fine(data, *length))
}

#[expect(clippy::indexing_slicing, reason = "all indices are bounded by the array types")]
fn coarse_hashes(bytes: &[u8; GROUP_BYTES]) -> [i16; GROUP] {
    let quads: [u16; QUADS_BYTES] = std::array::from_fn(|i| {
        let term = |back: usize| u16::from(bytes[i + 3 - back]).wrapping_mul(weight(back));
        term(0).wrapping_add(term(1)).wrapping_add(term(2)).wrapping_add(term(3))
    });
    std::array::from_fn(|i| {
        let eight =
            |back: usize| quads[i + 12 - back].wrapping_add(quads[i + 8 - back].wrapping_mul(FOUR_BACK));
        eight(0).wrapping_add(eight(8).wrapping_mul(EIGHT_BACK)).cast_signed()
    })
}

#[inline(always)]
#[expect(clippy::indexing_slicing, reason = "called with 0 to 3")]
fn weight(back: usize) -> u16 {
    i16::from(QUAD[back]).cast_unsigned()
}

fn search_singly(data: &[u8], from: usize, test: &Test) -> Search {
    let passes = |length: &usize| coarse_hash(data, *length).is_some_and(|hash| hash < test.coarse);
    let cut = (from..=data.len()).filter(passes).find(|length| test.fine(data, *length));
    cut.map_or(Search::TriedBelow(from.max(data.len() + 1)), Search::Cut)
}

/// The coarse hash of one length.
pub(super) fn coarse_hash(data: &[u8], length: usize) -> Option<i16> {
    let window: &[u8; COARSE_BYTES] = data.get(..length)?.last_chunk()?;
    let (quads, _) = window.as_chunks::<4>();
    let [d, c, b, a] = *quads else { return None };
    let eight =
        |last: [u8; 4], before: [u8; 4]| quad(last).wrapping_add(quad(before).wrapping_mul(FOUR_BACK));
    Some(eight(a, b).wrapping_add(eight(c, d).wrapping_mul(EIGHT_BACK)).cast_signed())
}

fn quad(bytes: [u8; 4]) -> u16 {
    let terms =
        bytes.iter().rev().zip(QUAD).map(|(byte, weight)| i16::from(*byte).wrapping_mul(weight.into()));
    terms.fold(0, |sum: i16, term| sum.wrapping_add(term)).cast_unsigned()
}
