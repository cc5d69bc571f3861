//! Byte planes, bit planes, byte order.
//!
//! Relies on [`super::scratch`] and [`super::wide`]. The idea: neighbouring numbers differ in their low bytes and agree in their high ones; sorted by
//! position in the element, the bytes that agree stand together. Bytes behind the last whole element stay in place.

use stdchk_model::exact::{part, part_mut};

use super::scratch;
use super::wide::widely;

/// Elements whose planes are written together: 8 KiB of 8-byte elements stay in the first-level cache.
const TILE: usize = 1024;

/// First bytes of all elements, then second bytes, and so on.
pub(crate) fn shuffle(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut out = scratch::filled(bytes.len());
    shuffle_into(bytes, size, &mut out);
    out
}

/// [`shuffle`] into a buffer of the same length.
pub(crate) fn shuffle_into(bytes: &[u8], size: usize, out: &mut [u8]) {
    let count = bytes.len() / size;
    let (body, tail) = bytes.split_at(count * size);
    let (planes, out_tail) = out.split_at_mut(count * size);
    out_tail.copy_from_slice(tail);
    if count > 0 {
        split(body, &mut planes.chunks_exact_mut(count).collect::<Vec<_>>());
    }
}

/// Planes of elements, wherever each is wanted: as many as an element has bytes, all as long as there are elements.
pub(crate) fn split(body: &[u8], planes: &mut [&mut [u8]]) {
    match planes {
        [] => {}
        [only] => only.copy_from_slice(body),
        [low, high] => split_2(body, [low, high]),
        [a, b, c, d] => split_4(body, [a, b, c, d]),
        [a, b, c, d, e, f, g, h] => split_8(body, [a, b, c, d, e, f, g, h]),
        _ => split_any(body, planes),
    }
}

widely! {
    /// Planes of elements of 2 bytes.
    split_2 = split_2_portable(body: &[u8], planes: [&mut [u8]; 2]);
    /// Planes of elements of 4 bytes.
    split_4 = split_4_portable(body: &[u8], planes: [&mut [u8]; 4]);
    /// Planes of elements of 8 bytes.
    split_8 = split_8_portable(body: &[u8], planes: [&mut [u8]; 8]);
    /// Elements of 2 bytes from their planes.
    join_2 = join_2_portable(low: &[u8], high: &[u8], body: &mut [u8]);
    /// Elements of 4 bytes from their planes.
    join_4 = join_4_portable(planes: [&[u8]; 4], body: &mut [u8]);
    /// Elements of 8 bytes from their planes.
    join_8 = join_8_portable(planes: [&[u8]; 8], body: &mut [u8]);
}

/// A function that takes elements apart: one plane of a tile after the other, as shifts of whole words, which compilers
/// turn into vector code.
macro_rules! split {
    ($name:ident, $word:ty) => {
        #[inline(always)]
        fn $name(body: &[u8], mut planes: [&mut [u8]; size_of::<$word>()]) {
            const SIZE: usize = size_of::<$word>();
            for (tile, words) in body.as_chunks::<SIZE>().0.chunks(TILE).enumerate() {
                for (plane, shift) in planes.iter_mut().zip((0..).step_by(8)) {
                    let targets = part_mut(plane, tile * TILE..);
                    for (target, word) in targets.iter_mut().zip(words) {
                        *target = (<$word>::from_le_bytes(*word) >> shift & 0xff) as u8;
                    }
                }
            }
        }
    };
}

split!(split_2_portable, u16);
split!(split_4_portable, u32);
split!(split_8_portable, u64);

fn split_any(body: &[u8], planes: &mut [&mut [u8]]) {
    let size = planes.len();
    for (tile, elements) in body.chunks(TILE * size).enumerate() {
        for (position, plane) in planes.iter_mut().enumerate() {
            let targets = plane.iter_mut().skip(tile * TILE);
            for (target, byte) in targets.zip(elements.iter().skip(position).step_by(size)) {
                *target = *byte;
            }
        }
    }
}

/// The inverse of [`shuffle`].
pub(crate) fn unshuffle(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut out = scratch::filled(bytes.len());
    unshuffle_into(bytes, size, &mut out);
    out
}

/// [`unshuffle`] into a buffer of the same length.
pub(crate) fn unshuffle_into(bytes: &[u8], size: usize, out: &mut [u8]) {
    let count = bytes.len() / size;
    let (planes, tail) = bytes.split_at(count * size);
    let (body, out_tail) = out.split_at_mut(count * size);
    out_tail.copy_from_slice(tail);
    if count > 0 {
        join(&planes.chunks_exact(count).collect::<Vec<_>>(), body);
    }
}

/// Elements from their planes, which are equally long and together as long as `body`.
pub(crate) fn join(planes: &[&[u8]], body: &mut [u8]) {
    match planes {
        [] => {}
        [only] => body.copy_from_slice(only),
        [low, high] => join_2(low, high, body),
        [a, b, c, d] => join_4([a, b, c, d], body),
        [a, b, c, d, e, f, g, h] => join_8([a, b, c, d, e, f, g, h], body),
        _ => join_any(planes, body),
    }
}

/// Whether [`join`] makes `body` of these planes: a tile of it at a time, which stays in the first-level cache.
pub(crate) fn are_planes_of(planes: &[&[u8]], body: &[u8]) -> bool {
    let size = planes.len().max(1);
    let tile = (TILE * 8 / size).max(1);
    let mut joined = vec![0; tile * size];
    body.chunks(tile * size).enumerate().all(|(number, elements)| {
        let count = elements.len() / size;
        let parts: Option<Vec<&[u8]>> =
            planes.iter().map(|plane| plane.get(number * tile..)?.get(..count)).collect();
        let joined = part_mut(&mut joined, ..elements.len());
        parts.is_some_and(|parts| {
            join(&parts, joined);
            joined == elements
        })
    })
}

#[inline(always)]
fn join_2_portable(low: &[u8], high: &[u8], body: &mut [u8]) {
    let elements = body.as_chunks_mut::<2>().0;
    for ((element, low), high) in elements.iter_mut().zip(low).zip(high) {
        *element = [*low, *high];
    }
}

#[inline(always)]
fn join_4_portable([first, second, third, fourth]: [&[u8]; 4], body: &mut [u8]) {
    let bytes = first.iter().zip(second).zip(third.iter().zip(fourth));
    for (word, ((a, b), (c, d))) in body.as_chunks_mut::<4>().0.iter_mut().zip(bytes) {
        *word = [*a, *b, *c, *d];
    }
}

fn join_any(planes: &[&[u8]], body: &mut [u8]) {
    let size = planes.len();
    for (tile, elements) in body.chunks_mut(TILE * size).enumerate() {
        for (position, plane) in planes.iter().enumerate() {
            let targets = elements.iter_mut().skip(position).step_by(size);
            for (target, byte) in targets.zip(plane.iter().skip(tile * TILE)) {
                *target = *byte;
            }
        }
    }
}

/// As sums of shifted words, a tile at a time, which compilers turn into vector code.
#[inline(always)]
fn join_8_portable(planes: [&[u8]; 8], body: &mut [u8]) {
    for (tile, elements) in body.as_chunks_mut::<8>().0.chunks_mut(TILE).enumerate() {
        let [a, b, c, d, e, f, g, h] = planes.map(|plane| part(plane, tile * TILE..));
        let low = a.iter().zip(b).zip(c.iter().zip(d));
        let high = e.iter().zip(f).zip(g.iter().zip(h));
        for (element, (((a, b), (c, d)), ((e, f), (g, h)))) in elements.iter_mut().zip(low.zip(high)) {
            let low = u64::from(*a) | u64::from(*b) << 8 | u64::from(*c) << 16 | u64::from(*d) << 24;
            let high = u64::from(*e) | u64::from(*f) << 8 | u64::from(*g) << 16 | u64::from(*h) << 24;
            *element = (low | high << 32).to_le_bytes();
        }
    }
}

/// Bit planes: byte planes whose bits are then sorted by significance, 64 bytes at a time.
pub(crate) fn bit_shuffle(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut planes = shuffle(bytes, size);
    for eight in planes.as_chunks_mut::<8>().0 {
        *eight = bits_transposed(u64::from_le_bytes(*eight)).to_le_bytes();
    }
    // Bytes of one significance, from groups of eight, brought together.
    shuffle(&planes, 8)
}

/// The inverse of [`bit_shuffle`].
pub(crate) fn bit_unshuffle(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut planes = unshuffle(bytes, 8);
    for eight in planes.as_chunks_mut::<8>().0 {
        *eight = bits_transposed(u64::from_le_bytes(*eight)).to_le_bytes();
    }
    unshuffle(&planes, size)
}

/// An 8 x 8 matrix of bits mirrored at its diagonal (Hacker's Delight, 7-3).
fn bits_transposed(mut square: u64) -> u64 {
    let mut mixed = (square ^ (square >> 7)) & 0x00aa_00aa_00aa_00aa;
    square ^= mixed ^ (mixed << 7);
    mixed = (square ^ (square >> 14)) & 0x0000_cccc_0000_cccc;
    square ^= mixed ^ (mixed << 14);
    mixed = (square ^ (square >> 28)) & 0x0000_0000_f0f0_f0f0;
    square ^ mixed ^ (mixed << 28)
}

/// Every element with its bytes in the other order; its own inverse.
pub(crate) fn swap(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut out = scratch::empty(bytes.len());
    out.extend_from_slice(bytes);
    match size {
        2 => out.as_chunks_mut::<2>().0.iter_mut().for_each(|element| element.reverse()),
        4 => out.as_chunks_mut::<4>().0.iter_mut().for_each(|element| element.reverse()),
        8 => out.as_chunks_mut::<8>().0.iter_mut().for_each(|element| element.reverse()),
        _ => out.chunks_exact_mut(size).for_each(<[u8]>::reverse),
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{ProptestConfig, any, proptest};

    use super::*;
    use crate::codec::wide::tests::at_every_width;

    /// Byte planes by their definition.
    fn planes(bytes: &[u8], size: usize) -> Vec<u8> {
        let (body, tail) = bytes.split_at(bytes.len() / size * size);
        let plane = |position| body.iter().skip(position).step_by(size);
        (0..size).flat_map(plane).chain(tail).copied().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        // Some tiles of the widest elements, and every length between.
        #[test]
        fn portable_and_vector_forms_make_the_same_planes(
            bytes in vec(any::<u8>(), 0..3 * TILE * 8),
            size in 1_usize..=17,
        ) {
            let shuffled = at_every_width(|| shuffle(&bytes, size));
            assert_eq!(shuffled, planes(&bytes, size));
            assert_eq!(at_every_width(|| unshuffle(&shuffled, size)), bytes);
            let bits = at_every_width(|| bit_shuffle(&bytes, size));
            assert_eq!(at_every_width(|| bit_unshuffle(&bits, size)), bytes);
        }

        #[test]
        fn elements_of_machine_words_are_taken_apart_and_joined_by_every_form(
            bytes in vec(any::<u8>(), 0..3 * TILE * 8),
            power in 1_u32..=3,
        ) {
            let size = 1 << power;
            let shuffled = at_every_width(|| shuffle(&bytes, size));
            assert_eq!(shuffled, planes(&bytes, size));
            assert_eq!(at_every_width(|| unshuffle(&shuffled, size)), bytes);
        }
    }
}
