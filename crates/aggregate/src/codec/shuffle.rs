//! Byte planes, bit planes, byte order.
//!
//! Relies on [`super::scratch`]. The idea: neighbouring numbers differ in their low bytes and agree in their high ones; sorted by
//! position in the element, the bytes that agree stand together. Bytes behind the last whole element stay in place.

use super::scratch;

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
    match size {
        _ if count == 0 => {}
        1 => planes.copy_from_slice(body),
        2 => split_2(body, planes, count),
        4 => split_4(body, planes, count),
        8 => split_8(body, planes, count),
        _ => split(body, planes, count, size),
    }
}

fn split_2(body: &[u8], planes: &mut [u8], count: usize) {
    for (tile, words) in body.as_chunks::<2>().0.chunks(TILE).enumerate() {
        for (plane, shift) in planes.chunks_exact_mut(count).zip([0, 8]) {
            let targets = plane.get_mut(tile * TILE..).unwrap_or_default();
            for (target, word) in targets.iter_mut().zip(words) {
                *target = (u16::from_le_bytes(*word) >> shift & 0xff) as u8;
            }
        }
    }
}

/// One plane of a tile after the other, as shifts of whole words, which compilers turn into vector code.
fn split_4(body: &[u8], planes: &mut [u8], count: usize) {
    for (tile, words) in body.as_chunks::<4>().0.chunks(TILE).enumerate() {
        for (plane, shift) in planes.chunks_exact_mut(count).zip([0, 8, 16, 24]) {
            let targets = plane.get_mut(tile * TILE..).unwrap_or_default();
            for (target, word) in targets.iter_mut().zip(words) {
                *target = (u32::from_le_bytes(*word) >> shift & 0xff) as u8;
            }
        }
    }
}

fn split(body: &[u8], planes: &mut [u8], count: usize, size: usize) {
    for (tile, elements) in body.chunks(TILE * size).enumerate() {
        for (position, plane) in planes.chunks_exact_mut(count).enumerate() {
            let targets = plane.iter_mut().skip(tile * TILE);
            for (target, byte) in targets.zip(elements.iter().skip(position).step_by(size)) {
                *target = *byte;
            }
        }
    }
}

/// Eight elements of eight bytes at a time, as an 8 x 8 matrix of bytes in eight registers.
fn split_8(body: &[u8], planes: &mut [u8], count: usize) {
    let groups = count / 8;
    let mut planes: Vec<&mut [u8]> = planes.chunks_exact_mut(count).collect();
    let (squares, rest) = body.as_chunks::<64>();
    for (number, square) in squares.iter().enumerate() {
        let rows = transposed(rows_of(square));
        for (plane, row) in planes.iter_mut().zip(rows) {
            if let Some(target) = plane.get_mut(number * 8..number * 8 + 8) {
                target.copy_from_slice(&row.to_le_bytes());
            }
        }
    }
    for (number, element) in rest.as_chunks::<8>().0.iter().enumerate() {
        for (plane, byte) in planes.iter_mut().zip(element) {
            if let Some(target) = plane.get_mut(groups * 8 + number) {
                *target = *byte;
            }
        }
    }
}

fn rows_of(square: &[u8; 64]) -> [u64; 8] {
    let mut rows = [0; 8];
    for (row, bytes) in rows.iter_mut().zip(square.as_chunks::<8>().0) {
        *row = u64::from_le_bytes(*bytes);
    }
    rows
}

/// The 8 x 8 matrix of bytes mirrored at its diagonal.
fn transposed(rows: [u64; 8]) -> [u64; 8] {
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = rows;
    for (one, other) in [(&mut a, &mut e), (&mut b, &mut f), (&mut c, &mut g), (&mut d, &mut h)] {
        exchange(one, other, 32, 0x0000_0000_ffff_ffff);
    }
    for (one, other) in [(&mut a, &mut c), (&mut b, &mut d), (&mut e, &mut g), (&mut f, &mut h)] {
        exchange(one, other, 16, 0x0000_ffff_0000_ffff);
    }
    for (one, other) in [(&mut a, &mut b), (&mut c, &mut d), (&mut e, &mut f), (&mut g, &mut h)] {
        exchange(one, other, 8, 0x00ff_00ff_00ff_00ff);
    }
    [a, b, c, d, e, f, g, h]
}

fn exchange(one: &mut u64, other: &mut u64, shift: u32, mask: u64) {
    let difference = ((*one >> shift) ^ *other) & mask;
    *other ^= difference;
    *one ^= difference << shift;
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
        [_, _, _, _, _, _, _, _] => join_8(planes, body),
        _ => join_any(planes, body),
    }
}

fn join_2(low: &[u8], high: &[u8], body: &mut [u8]) {
    let elements = body.as_chunks_mut::<2>().0;
    for ((element, low), high) in elements.iter_mut().zip(low).zip(high) {
        *element = [*low, *high];
    }
}

fn join_4([first, second, third, fourth]: [&[u8]; 4], body: &mut [u8]) {
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

fn join_8(planes: &[&[u8]], body: &mut [u8]) {
    let (squares, rest) = body.as_chunks_mut::<64>();
    let done = squares.len() * 8;
    for (number, square) in squares.iter_mut().enumerate() {
        let mut rows = [0; 8];
        for (row, plane) in rows.iter_mut().zip(planes) {
            let eight = plane.get(number * 8..).and_then(<[u8]>::first_chunk).copied();
            *row = u64::from_le_bytes(eight.unwrap_or_default());
        }
        for (element, row) in square.as_chunks_mut::<8>().0.iter_mut().zip(transposed(rows)) {
            *element = row.to_le_bytes();
        }
    }
    for (number, element) in rest.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        for (byte, plane) in element.iter_mut().zip(planes) {
            *byte = plane.get(done + number).copied().unwrap_or_default();
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
