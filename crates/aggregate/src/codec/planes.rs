//! Byte planes coded one by one: what looks random is stored, what repeats is compressed, what is constant is one byte.
//!
//! Relies on [`super::shuffle`] and [`super::general`]. The idea (ZipNN, xet): the exponents of tensors compress well
//! and the mantissas not at all, so time is spent only on the planes where it wins something.

use super::general;
use super::shuffle::{shuffle, unshuffle};
use super::step::{CodecError, Result, put_number, take_number};

const STORED: u8 = 0;
const CONSTANT: u8 = 1;
const PACKED: u8 = 2;

/// Bytes of a plane that are looked at, spread over it.
const SAMPLE: usize = 4096;
/// A plane whose sampled entropy is above this many bits per byte is stored: the compressor would win less than 2 %.
const ENTROPY_MAX: f64 = 7.85;

pub(crate) fn compress(bytes: &[u8], size: usize, level: i32) -> Result<Vec<u8>> {
    let planes = shuffle(bytes, size);
    let count = bytes.len() / size;
    let (body, tail) = planes.split_at(count * size);
    let mut out = Vec::with_capacity(bytes.len() / 2);
    for plane in body.chunks_exact(count.max(1)) {
        one_plane(plane, level, &mut out)?;
    }
    out.extend_from_slice(tail);
    Ok(out)
}

fn one_plane(plane: &[u8], level: i32, out: &mut Vec<u8>) -> Result<()> {
    let first = plane.first().copied().unwrap_or_default();
    if plane.iter().all(|byte| *byte == first) {
        out.extend([CONSTANT, first]);
        return Ok(());
    }
    if looks_random(plane) {
        put(out, STORED, plane);
        return Ok(());
    }
    let packed = general::zstd(plane, level)?;
    if packed.len() < plane.len() {
        put(out, PACKED, &packed)
    } else {
        put(out, STORED, plane)
    }
    Ok(())
}

fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Whether an entropy coder has nothing to win, judged by a histogram of sampled runs.
pub(crate) fn looks_random(plane: &[u8]) -> bool {
    const RUN: usize = 64;
    let mut counts = [0_u32; 256];
    let mut seen = 0_u32;
    let stride = (plane.len() / (SAMPLE / RUN)).max(RUN);
    for run in plane.chunks(stride) {
        for byte in run.iter().take(RUN) {
            if let Some(count) = counts.get_mut(usize::from(*byte)) {
                *count += 1;
            }
            seen += 1;
        }
    }
    let total = f64::from(seen.max(1));
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let share = f64::from(*count) / total;
            -share * share.log2()
        })
        .sum();
    // A sample of n bytes of noise shows about 255 / (2 n ln 2) bits less than 8.
    let bias = 255.0 / (2.0 * total * std::f64::consts::LN_2);
    entropy + bias > ENTROPY_MAX
}

pub(crate) fn decompress(body: &[u8], size: usize, length: usize) -> Result<Vec<u8>> {
    let damaged = |detail| CodecError::damaged("planes", detail);
    let count = length / size;
    let mut planes = Vec::with_capacity(length);
    let mut rest = body;
    for _ in 0..if count == 0 { 0 } else { size } {
        let (tag, after) = rest.split_first().ok_or_else(|| damaged("a plane is missing"))?;
        rest = after;
        if *tag == CONSTANT {
            let (byte, after) = rest.split_first().ok_or_else(|| damaged("a plane is cut"))?;
            rest = after;
            planes.resize(planes.len() + count, *byte);
            continue;
        }
        let length = take_number(&mut rest).and_then(|length| usize::try_from(length).ok());
        let plane = length.and_then(|length| rest.split_at_checked(length));
        let (plane, after) = plane.ok_or_else(|| damaged("a plane is cut"))?;
        rest = after;
        match *tag {
            STORED if plane.len() == count => planes.extend_from_slice(plane),
            PACKED => planes.extend(general::unzstd(plane, count)?),
            _ => return Err(damaged("a plane of no known kind")),
        }
    }
    planes.extend_from_slice(rest);
    if planes.len() == length {
        Ok(unshuffle(&planes, size))
    } else {
        Err(damaged("planes of the wrong length"))
    }
}
