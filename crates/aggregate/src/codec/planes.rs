//! Byte planes coded one by one: what looks random is stored, what repeats is compressed, what is constant is one byte.
//!
//! Relies on [`super::shuffle`] and [`super::general`]. The idea (ZipNN, xet): the exponents of tensors compress well
//! and the mantissas not at all, so time is spent only on the planes where it wins something.

use std::sync::LazyLock;

use stdchk_model::exact::{narrow, part, part_mut, to_usize};

use super::shuffle::{are_planes_of, join, split};
use super::step::{CodecError, Result, put_number, take_number};
use super::{general, scratch};

const STORED: u8 = 0;
const CONSTANT: u8 = 1;
const PACKED: u8 = 2;

/// Highest level at which a plane may be coded without a search: higher ones are asked for when time is no object.
const SEARCH_MAX: i32 = 1;
/// Bytes in a row, at each of two places, that are coded both with and without a search, to see whether that pays.
const SEARCH_SAMPLE: usize = 4 << 10;
/// Bits that a Huffman code takes for a byte at least.
const HUFFMAN_MIN: f64 = 1.0;
/// Share of its samples that a search must win in the fastest mode.
const HASTY_GAIN: f64 = 0.35;
/// Bytes of a plane that are looked at, spread over it; so many tell the entropy of noise to a fiftieth of a bit.
const SAMPLE: usize = 1024;
/// A plane whose sampled entropy is above this many bits per byte is stored: the compressor would win less than 2 %.
const ENTROPY_MAX: f64 = 7.85;
/// The entropy above which the fastest mode stores a plane, in bits per byte: less than a tenth of it is not worth its time.
const HASTY_ENTROPY_MAX: f64 = 7.2;

/// The planes behind `head`; for elements in the other byte order from the last to the first. Those that look random and
/// stand in front of all others, as mantissas do, are split off to where they are stored.
pub(crate) fn compress(bytes: &[u8], size: usize, swapped: bool, level: i32, head: &[u8]) -> Result<Vec<u8>> {
    let count = bytes.len() / size;
    if count == 0 {
        return Ok([head, bytes].concat());
    }
    let (body, tail) = bytes.split_at(count * size);
    let mut entropies = entropies(body, size);
    if swapped {
        entropies.reverse();
    }
    let random = entropies.iter().take_while(|entropy| looks_random(**entropy, level)).count();
    let stored_head = plane_head(STORED, count);
    let stored = stored_head.len() + count;
    let in_place = head.len() + random * stored;
    let mut out = scratch::begun(in_place, head.len() + size * stored + tail.len());
    scratch::with((size - random) * count, |rest| {
        let (out_head, room) = out.split_at_mut(head.len());
        out_head.copy_from_slice(head);
        let in_place = room.chunks_exact_mut(stored).map(|plane| {
            let (head, plane) = plane.split_at_mut(stored_head.len());
            head.copy_from_slice(&stored_head);
            plane
        });
        let mut planes: Vec<_> = in_place.chain(rest.chunks_exact_mut(count)).collect();
        if swapped {
            planes.reverse();
        }
        split(body, &mut planes);
        let coded = rest.chunks_exact(count).zip(entropies.iter().skip(random));
        coded.into_iter().try_for_each(|(plane, entropy)| one_plane(plane, *entropy, level, &mut out))
    })?;
    out.extend_from_slice(tail);
    Ok(out)
}

/// What stands in front of a plane of this many bytes.
fn plane_head(tag: u8, length: usize) -> Vec<u8> {
    let mut head = vec![tag];
    put_number(&mut head, length as u64);
    head
}

/// Coding a plane of this entropy would win too little.
fn looks_random(entropy: f64, level: i32) -> bool {
    entropy > if level == general::HASTY { HASTY_ENTROPY_MAX } else { ENTROPY_MAX }
}

fn put_plane(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.extend_from_slice(&plane_head(tag, bytes.len()));
    out.extend_from_slice(bytes);
}

fn one_plane(plane: &[u8], entropy: f64, level: i32, out: &mut Vec<u8>) -> Result<()> {
    let first = *part(plane, 0);
    if plane.iter().all(|byte| *byte == first) {
        out.extend([CONSTANT, first]);
        return Ok(());
    }
    if looks_random(entropy, level) {
        put_plane(out, STORED, plane);
        return Ok(());
    }
    general::with_zstd(plane, kind_of(plane, entropy, level)?, |packed| match packed.len() < plane.len() {
        true => put_plane(out, PACKED, packed),
        false => put_plane(out, STORED, plane),
    })
}

/// The level for a plane: most have nothing to find, and are as short without a search, at half the time.
fn kind_of(plane: &[u8], entropy: f64, level: i32) -> Result<i32> {
    // Samples of bytes that are nearly always the same show nothing of the others, each of which a search finds.
    let sparse = entropy < HUFFMAN_MIN && level != general::HASTY;
    if level > SEARCH_MAX || plane.len() < SEARCH_SAMPLE * 8 || sparse {
        return Ok(level);
    }
    let samples = [1, 3].map(|place| {
        let start = plane.len() / 4 * place - SEARCH_SAMPLE / 2;
        part(plane, start..start + SEARCH_SAMPLE)
    });
    let pays = if level == general::HASTY {
        pays_in_haste(&samples, entropy)
    } else {
        let sum = |level| samples.iter().map(|sample| general::with_zstd(sample, level, <[u8]>::len)).sum();
        let (searched, counted): (Result<usize>, Result<usize>) = (sum(level), sum(general::ENTROPY_ONLY));
        counted? * 100 > searched? * 101
    };
    Ok(if pays { level } else { general::ENTROPY_ONLY })
}

/// Whether a search pays in the fastest mode, which only counts repeats in the samples: it must win a third, because planes that
/// were searched are slow to decode.
fn pays_in_haste(samples: &[&[u8]], entropy: f64) -> bool {
    let entropy = entropy.max(HUFFMAN_MIN);
    let counted = samples.iter().map(|sample| sample.len()).sum::<usize>() as f64 * entropy / 8.0;
    let won = samples.iter().map(|sample| {
        let repeats = Repeats::of(sample);
        repeats.bytes as f64 * entropy / 8.0 - repeats.runs as f64 * REPEAT_COST
    });
    won.sum::<f64>() > counted * HASTY_GAIN
}

/// Bytes that a compressor takes to say where a repeated run of bytes was.
const REPEAT_COST: f64 = 2.5;

/// What a search would find in a sample.
#[derive(Default)]
pub(crate) struct Repeats {
    /// Bytes that occurred before, in runs.
    pub(crate) bytes: usize,
    /// The runs.
    runs: usize,
}

impl Repeats {
    /// Counts repeated runs of six bytes and more, by one look at each place.
    pub(crate) fn of(sample: &[u8]) -> Self {
        const BITS: u32 = 12;
        let mut places = [0_u32; 1 << BITS];
        let word = |at: usize| {
            let bytes = sample.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map(|bytes| u64::from_le_bytes(*bytes) << 16)
        };
        let (mut at, mut found) = (1, Self::default());
        while let Some(here) = word(at) {
            let slot = to_usize(here.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS));
            let before = std::mem::replace(part_mut(&mut places, slot), narrow(at)) as usize;
            if word(before) != Some(here) {
                at += 1;
                continue;
            }
            let (later, earlier) = (part(sample, at..), part(sample, before..));
            let length = later.iter().zip(earlier).take_while(|(one, other)| one == other).count();
            (at, found) = (at + length.max(1), Self { bytes: found.bytes + length, runs: found.runs + 1 });
        }
        found
    }
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

/// For every plane of elements the bits that an entropy coder takes for a byte, judged by histograms of sampled runs.
fn entropies(body: &[u8], size: usize) -> Vec<f64> {
    const RUN: usize = 32;
    let mut planes = vec![[0_u32; 256]; size];
    let mut seen = 0_u32;
    let stride = (body.len() / size / (SAMPLE / RUN)).max(RUN);
    for run in body.chunks(stride * size) {
        for element in run.chunks_exact(size).take(RUN) {
            for (counts, byte) in planes.iter_mut().zip(element) {
                *part_mut(counts, usize::from(*byte)) += 1;
            }
            seen += 1;
        }
    }
    planes.iter().map(|counts| entropy(counts, seen)).collect()
}

/// Bits for a byte of which so many were counted.
fn entropy(counts: &[u32; 256], seen: u32) -> f64 {
    let total = f64::from(seen.max(1));
    let weights = counts.iter().map(|count| weight(*count)).sum::<f64>();
    let entropy = total.log2() - weights / total;
    // A sample of n bytes of noise shows about 255 / (2 n ln 2) bits less than 8.
    let bias = 255.0 / (2.0 * total * std::f64::consts::LN_2);
    // Where all are equal, however few, nothing looks random.
    if counts.contains(&seen) { bias.min(1.0) } else { entropy + bias }
}

/// `n log2 n`, from a table as far as a sample counts.
fn weight(count: u32) -> f64 {
    static WEIGHTS: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let counts = (0..=2 * SAMPLE).map(|count| count as f64);
        counts.map(|count| if count > 0.0 { count * count.log2() } else { 0.0 }).collect()
    });
    match WEIGHTS.get(count as usize) {
        Some(weight) => *weight,
        None => f64::from(count) * f64::from(count).log2(),
    }
}

/// The inverse of [`compress`].
pub(crate) fn decompress(body: &[u8], size: usize, swapped: bool, length: usize) -> Result<Vec<u8>> {
    let count = length / size;
    let (planes, rest) = found(body, size, swapped, count)?;
    with_unfolded(&planes, count, |planes| {
        let mut out = scratch::filled(length);
        let (elements, tail) = out.split_at_mut(count * size);
        if rest.len() != tail.len() {
            return Err(CodecError::damaged("planes", "planes of the wrong length"));
        }
        tail.copy_from_slice(rest);
        join(planes, elements);
        Ok(out)
    })
}

/// Whether [`decompress`] makes `raw` of `body`, which is seen without making it.
pub(crate) fn codes(body: &[u8], size: usize, swapped: bool, raw: &[u8]) -> Result<bool> {
    let count = raw.len() / size;
    let (elements, tail) = raw.split_at(count * size);
    let (planes, rest) = found(body, size, swapped, count)?;
    with_unfolded(&planes, count, |planes| Ok(rest == tail && are_planes_of(planes, elements)))
}

/// A plane as it stands in the coded bytes.
enum Coded<'a> {
    Stored(&'a [u8]),
    Constant(u8),
    Packed(&'a [u8]),
}

/// All planes, and what stands behind them.
fn found(body: &[u8], size: usize, swapped: bool, count: usize) -> Result<(Vec<Coded<'_>>, &[u8])> {
    let mut rest = body;
    let planes = if count == 0 { 0 } else { size };
    let mut planes = (0..planes).map(|_| next_plane(&mut rest, count)).collect::<Result<Vec<_>>>()?;
    if swapped {
        planes.reverse();
    }
    Ok((planes, rest))
}

/// Takes one plane of so many bytes off the front of `rest`.
fn next_plane<'a>(rest: &mut &'a [u8], count: usize) -> Result<Coded<'a>> {
    let damaged = |detail| CodecError::damaged("planes", detail);
    let (tag, after) = rest.split_first().ok_or_else(|| damaged("a plane is missing"))?;
    *rest = after;
    if *tag == CONSTANT {
        let (byte, after) = rest.split_first().ok_or_else(|| damaged("a plane is cut"))?;
        *rest = after;
        return Ok(Coded::Constant(*byte));
    }
    let length = take_number(rest).and_then(|length| usize::try_from(length).ok());
    let stored = length.and_then(|length| rest.split_at_checked(length));
    let (stored, after) = stored.ok_or_else(|| damaged("a plane is cut"))?;
    *rest = after;
    match *tag {
        STORED if stored.len() == count => Ok(Coded::Stored(stored)),
        PACKED => Ok(Coded::Packed(stored)),
        _ => Err(damaged("a plane of no known kind")),
    }
}

/// Calls `work` with the bytes of the planes; those that are stored are read where they stand, and need no memory.
fn with_unfolded<T>(
    planes: &[Coded<'_>],
    count: usize,
    work: impl FnOnce(&[&[u8]]) -> Result<T>,
) -> Result<T> {
    let folded = planes.iter().filter(|plane| !matches!(plane, Coded::Stored(_))).count();
    scratch::with(folded * count, |room| {
        let mut rooms = room.chunks_exact_mut(count.max(1));
        let mut unfolded: Vec<&[u8]> = Vec::with_capacity(planes.len());
        let mut next_room = || match rooms.next() {
            Some(room) => room,
            None => unreachable!("there is room for each plane that is not stored"),
        };
        for plane in planes {
            unfolded.push(match plane {
                Coded::Stored(bytes) => bytes,
                Coded::Constant(byte) => {
                    let room = next_room();
                    room.fill(*byte);
                    room
                }
                Coded::Packed(packed) => {
                    let room = next_room();
                    general::unzstd_into(packed, room)?;
                    room
                }
            });
        }
        work(&unfolded)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_of_every_kind_come_back_in_every_order() {
        let mut noise = (0_u64..).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[2]);
        for (kinds, count) in (0..81_u32).flat_map(|kinds| [1, 2, 100, 3000].map(|count| (kinds, count))) {
            let mut byte = |plane: u32| match kinds / 3_u32.pow(plane) % 3 {
                0 => 7,
                1 => noise.next().unwrap() & 3,
                _ => noise.next().unwrap(),
            };
            let elements = (0..count).flat_map(|_| [byte(0), byte(1), byte(2), byte(3)]);
            let bytes: Vec<u8> = elements.chain([1, 2, 3]).collect();
            for (level, swapped) in [(general::HASTY, false), (general::HASTY, true), (1, false), (3, true)] {
                let coded = compress(&bytes, 4, swapped, level, &[9]).unwrap();
                assert!(codes(&coded[1..], 4, swapped, &bytes).unwrap());
                assert_eq!(decompress(&coded[1..], 4, swapped, bytes.len()).unwrap(), bytes);
            }
        }
        assert_eq!(compress(&[5; 4], 4, false, 1, &[]).unwrap(), [CONSTANT, 5].repeat(4));
        assert_eq!(compress(&[5; 3], 4, false, 1, &[9]).unwrap(), [9, 5, 5, 5]);
    }

    #[test]
    fn repeats_are_the_bytes_that_occurred_before() {
        let noise: Vec<u8> =
            (0..512_u64).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()).collect();
        let chance = Repeats::of(&noise).bytes;
        assert!(chance < 256, "{chance}");
        let twice = noise.repeat(2);
        let found = Repeats::of(&twice).bytes;
        assert!((3800..4400).contains(&found), "{found}");
        assert!(Repeats::of(&[7; 4096]).bytes > 4000);
        assert_eq!(Repeats::of(&[]).bytes, 0);
    }
}
