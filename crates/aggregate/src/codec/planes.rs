//! Byte planes coded one by one: what looks random is stored, what repeats is compressed, what is constant is one byte.
//!
//! Relies on [`super::shuffle`] and [`super::general`]. The idea (ZipNN, xet): the exponents of tensors compress well
//! and the mantissas not at all, so time is spent only on the planes where it wins something.

use std::sync::LazyLock;

use super::shuffle::{join, shuffle_into};
use super::step::{CodecError, Result, put_number, take_number};
use super::{general, scratch};

const STORED: u8 = 0;
const CONSTANT: u8 = 1;
const PACKED: u8 = 2;

/// Highest level at which a plane may be coded without a search: higher ones are asked for when time is no object.
const SEARCH_MAX: i32 = 1;
/// Bytes in a row, at each of two places, that are coded both with and without a search, to see whether that pays.
const SEARCH_SAMPLE: usize = 4 << 10;
/// Bytes of a plane that are looked at, spread over it.
const SAMPLE: usize = 4096;
/// A plane whose sampled entropy is above this many bits per byte is stored: the compressor would win less than 2 %.
const ENTROPY_MAX: f64 = 7.85;

/// Appends the planes to `out`.
pub(crate) fn compress(bytes: &[u8], size: usize, level: i32, out: &mut Vec<u8>) -> Result<()> {
    scratch::with(bytes.len(), |planes| {
        shuffle_into(bytes, size, planes);
        let count = bytes.len() / size;
        let (body, tail) = planes.split_at(count * size);
        body.chunks_exact(count.max(1)).try_for_each(|plane| one_plane(plane, level, out))?;
        out.extend_from_slice(tail);
        Ok(())
    })
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
    general::with_zstd(plane, kind_of(plane, level)?, |packed| match packed.len() < plane.len() {
        true => put(out, PACKED, packed),
        false => put(out, STORED, plane),
    })
}

/// The level for a plane: most have nothing to find, and are as short without a search, at half the time.
fn kind_of(plane: &[u8], level: i32) -> Result<i32> {
    if level > SEARCH_MAX || plane.len() < SEARCH_SAMPLE * 8 {
        return Ok(level);
    }
    let (mut searched, mut counted) = (0, 0);
    for place in [1, 3] {
        let start = plane.len() / 4 * place - SEARCH_SAMPLE / 2;
        let sample = plane.get(start..start + SEARCH_SAMPLE).unwrap_or(plane);
        searched += general::with_zstd(sample, level, <[u8]>::len)?;
        counted += general::with_zstd(sample, general::ENTROPY_ONLY, <[u8]>::len)?;
    }
    // In haste, only what wins much is searched for.
    let percent = if level == general::HASTY { 125 } else { 101 };
    Ok(if counted * 100 <= searched * percent { general::ENTROPY_ONLY } else { level })
}

fn put(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends coded bytes behind the length of what they code and their own.
pub(crate) fn put_counted(out: &mut Vec<u8>, length: usize, packed: &[u8]) {
    put_number(out, length as u64);
    put_number(out, packed.len() as u64);
    out.extend_from_slice(packed);
}

/// Takes what [`put_counted`] appended off the front; none if it is cut or codes more than `limit` bytes.
pub(crate) fn take_counted<'bytes>(rest: &mut &'bytes [u8], limit: usize) -> Option<(usize, &'bytes [u8])> {
    let length = usize::try_from(take_number(rest)?).ok().filter(|length| *length <= limit)?;
    let stored = usize::try_from(take_number(rest)?).ok()?;
    let (packed, after) = rest.split_at_checked(stored)?;
    *rest = after;
    Some((length, packed))
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
    let weights = counts.iter().map(|count| weight(*count)).sum::<f64>();
    let entropy = total.log2() - weights / total;
    // A sample of n bytes of noise shows about 255 / (2 n ln 2) bits less than 8.
    let bias = 255.0 / (2.0 * total * std::f64::consts::LN_2);
    entropy + bias > ENTROPY_MAX
}

/// `n log2 n`, from a table as far as a sample counts.
fn weight(count: u32) -> f64 {
    static WEIGHTS: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let counts = (0..=2 * SAMPLE).map(|count| count as f64);
        counts.map(|count| if count > 0.0 { count * count.log2() } else { 0.0 }).collect()
    });
    let known = usize::try_from(count).ok().and_then(|count| WEIGHTS.get(count));
    known.copied().unwrap_or_else(|| f64::from(count) * f64::from(count).log2())
}

pub(crate) fn decompress(body: &[u8], size: usize, length: usize) -> Result<Vec<u8>> {
    let count = length / size;
    let mut rest = body;
    let mut unfolded = scratch::filled(count * size);
    // What is stored is read where it stands.
    let planes = unfolded.chunks_exact_mut(count.max(1)).map(|room| next_plane(&mut rest, room));
    let planes = planes.collect::<Result<Vec<_>>>()?;
    let mut out = scratch::filled(length);
    let (body, tail) = out.split_at_mut(count * size);
    if rest.len() != tail.len() {
        return Err(CodecError::damaged("planes", "planes of the wrong length"));
    }
    tail.copy_from_slice(rest);
    join(&planes, body);
    scratch::give_back(unfolded);
    Ok(out)
}

/// Takes one plane off the front of `rest`; `room` is as long as the plane, for one that is not stored.
fn next_plane<'a>(rest: &mut &'a [u8], room: &'a mut [u8]) -> Result<&'a [u8]> {
    let damaged = |detail| CodecError::damaged("planes", detail);
    let (tag, after) = rest.split_first().ok_or_else(|| damaged("a plane is missing"))?;
    *rest = after;
    if *tag == CONSTANT {
        let (byte, after) = rest.split_first().ok_or_else(|| damaged("a plane is cut"))?;
        *rest = after;
        room.fill(*byte);
        return Ok(room);
    }
    let length = take_number(rest).and_then(|length| usize::try_from(length).ok());
    let stored = length.and_then(|length| rest.split_at_checked(length));
    let (stored, after) = stored.ok_or_else(|| damaged("a plane is cut"))?;
    *rest = after;
    match *tag {
        STORED if stored.len() == room.len() => Ok(stored),
        PACKED => general::unzstd_into(stored, room).map(|()| &*room),
        _ => Err(damaged("a plane of no known kind")),
    }
}
