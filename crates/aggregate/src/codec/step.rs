//! The chain: steps in order when packing, their inverses backwards when unpacking.
//!
//! Relies on the step modules. The idea: filters keep the length; every other step writes the length it was given in
//! front of its output, so that any chain can be undone, and a damaged length is refused before memory is taken.

use std::borrow::Cow;

use minicbor::{Decode, Encode};
use stdchk_model::exact::to_usize;

use super::lane::Lane;
use super::{changed, distinct, fpc, general, lorenzo, numbers, planes, ragged, scratch, shuffle};

/// One step of a chain. Numbers are part of the container format.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Encode, Decode)]
pub enum Step {
    /// Reverses the bytes of every element of this size: big-endian numbers become little-endian.
    #[n(0)]
    Swap(#[n(0)] u32),
    /// Byte planes: first bytes of all elements of this size, then second bytes, and so on; also the transposition of
    /// records of any length.
    #[n(1)]
    Shuffle(#[n(0)] u32),
    /// Bit planes of elements of this size.
    #[n(2)]
    BitShuffle(#[n(0)] u32),
    /// Distance from the Lorenzo prediction in up to three dimensions (Ibarria et al. 2003; fpzip).
    #[n(3)]
    Lorenzo(#[n(0)] Lane),
    /// Distance from the element before.
    #[n(4)]
    Difference(#[n(0)] Lane),
    /// Exclusive or with the same bytes of the base set.
    #[n(5)]
    XorBase,
    /// Distance from the same element of the base set.
    #[n(6)]
    DifferenceBase(#[n(0)] Lane),
    /// Records that begin with their own length, as 64-bit floats, sorted by position in the record (LAMMPS).
    #[n(7)]
    Ragged,
    /// Elements of this size, 4 or 8, that occurred before become references.
    #[n(8)]
    Distinct(#[n(0)] u32),
    /// Elements of this size that differ from those of the base set, and where they are.
    #[n(9)]
    Changed(#[n(0)] u32),
    /// LZ4 block.
    #[n(16)]
    Lz4,
    /// One zstd frame; its level counts for packing only.
    #[n(17)]
    Zstd(#[n(0)] i32),
    /// gzip at this level.
    #[n(18)]
    Gzip(#[n(0)] u32),
    /// pcodec: numbers of a lane at this level.
    #[n(19)]
    Pco(#[n(0)] Lane, #[n(1)] u32),
    /// FPC (Burtscher and Ratanaworabhan 2009) with tables of 2 to this power entries; elements are 64 bits.
    #[n(20)]
    Fpc(#[n(0)] u32),
    /// Byte planes of elements of this size, each stored, constant or zstd at this level, whichever is right for it.
    #[n(21)]
    Planes(#[n(0)] u32, #[n(1)] i32),
}

impl Step {
    /// The step looks at the members' shapes.
    #[must_use]
    pub fn needs_shapes(&self) -> bool {
        matches!(self, Self::Lorenzo(_))
    }

    /// The step looks at the base set.
    #[must_use]
    pub fn needs_base(&self) -> bool {
        matches!(self, Self::XorBase | Self::DifferenceBase(_) | Self::Changed(_))
    }
}

/// Lengths of the dimensions of one member of a block, the slowest first, in elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Shape(#[n(0)] pub Vec<u64>);

impl Shape {
    /// At most three dimensions: slower ones are joined into the first.
    #[must_use]
    pub(crate) fn three(&self) -> [usize; 3] {
        let joined =
            |slower: &[u64]| slower.iter().fold(1_u64, |product, length| product.saturating_mul(*length));
        // Dimensions that a member doesn't have are one element long.
        let three = match self.0.as_slice() {
            [] => [1, 1, 1],
            [width] => [1, 1, *width],
            [slower @ .., height, width] => [joined(slower), *height, *width],
        };
        three.map(to_usize)
    }
}

/// What a chain may look at besides the block.
#[derive(Clone, Copy, Default)]
pub struct Side<'a> {
    /// Shapes of the block's members, one after the other; empty for flat bytes.
    pub shapes: &'a [Shape],
    /// The bytes of the base set that the block is coded against; empty without one.
    pub base: &'a [u8],
}

/// Why a chain can't be run.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The stored bytes don't have the form that the step writes.
    #[error("the stored bytes of step {step} are damaged: {detail}")]
    Damaged {
        /// Name of the step.
        step: &'static str,
        /// What is wrong.
        detail: String,
    },
    /// The block doesn't suit the step.
    #[error("step {step} can't work here: {detail}")]
    Unsuitable {
        /// Name of the step.
        step: &'static str,
        /// Why not.
        detail: &'static str,
    },
}

impl CodecError {
    pub(crate) fn damaged(step: &'static str, detail: impl ToString) -> Self {
        Self::Damaged { step, detail: detail.to_string() }
    }
}

pub(crate) type Result<T> = std::result::Result<T, CodecError>;

/// Runs a chain forward.
///
/// # Errors
/// When a step doesn't suit the block: a base of another length, or a compressor that refuses.
pub fn encode(steps: &[Step], raw: &[u8], side: Side<'_>) -> Result<Vec<u8>> {
    let mut bytes = Cow::Borrowed(raw);
    let mut rest = steps;
    while let Some((step, later)) = rest.split_first() {
        let (coded, later) = match swapped_planes(rest) {
            Some((size, level, later)) => (planes_forward(&bytes, size, true, level)?, later),
            None => (forward(step, &bytes, side)?, later),
        };
        replace(&mut bytes, coded);
        rest = later;
    }
    Ok(bytes.into_owned())
}

/// Runs a chain backward; `length` is that of the block.
///
/// # Errors
/// When the stored bytes are damaged; never panics on them.
pub fn decode(steps: &[Step], stored: &[u8], length: usize, side: Side<'_>) -> Result<Vec<u8>> {
    let limit = length_limit(length);
    let bytes = match first_planes(steps).filter(|(_, swapped, _)| *swapped) {
        Some((size, _, later)) => {
            let mut bytes = undone(later, stored, limit, side)?;
            let (inner, body) = split_length(&bytes, limit)?;
            let planes = planes::decompress(body, size_of(size)?, true, inner)?;
            replace(&mut bytes, planes);
            bytes
        }
        None => undone(steps, stored, limit, side)?,
    };
    if bytes.len() != length {
        return Err(CodecError::damaged("chain", format!("{} bytes instead of {length}", bytes.len())));
    }
    Ok(bytes.into_owned())
}

/// Byte planes of elements in the other byte order, if a chain begins with them: they are the same planes from the last to
/// the first, so that no element has to be turned around. Their size, their level and the steps behind them.
fn swapped_planes(steps: &[Step]) -> Option<(u32, i32, &[Step])> {
    match steps {
        [Step::Swap(swapped), Step::Planes(size, level), later @ ..] if swapped == size => {
            Some((*size, *level, later))
        }
        _ => None,
    }
}

fn planes_forward(bytes: &[u8], size: u32, swapped: bool, level: i32) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    put_number(&mut head, bytes.len() as u64);
    planes::compress(bytes, size_of(size)?, swapped, level, &head)
}

/// The planes that a chain begins with: their size, whether they are of swapped elements, and the steps behind them.
fn first_planes(steps: &[Step]) -> Option<(u32, bool, &[Step])> {
    match steps {
        [Step::Planes(size, _), later @ ..] => Some((*size, false, later)),
        _ => swapped_planes(steps).map(|(size, _, later)| (size, true, later)),
    }
}

/// Whether a chain makes `raw` of `stored` again.
///
/// # Errors
/// Those of [`decode`].
pub(crate) fn gives_back(steps: &[Step], stored: &[u8], raw: &[u8], side: Side<'_>) -> Result<bool> {
    let Some((size, swapped, later)) = first_planes(steps) else {
        let decoded = decode(steps, stored, raw.len(), side)?;
        let same = decoded == raw;
        scratch::give_back(decoded);
        return Ok(same);
    };
    let limit = length_limit(raw.len());
    let coded = undone(later, stored, limit, side)?;
    let (length, body) = split_length(&coded, limit)?;
    let same = length == raw.len() && planes::codes(body, size_of(size)?, swapped, raw)?;
    if let Cow::Owned(coded) = coded {
        scratch::give_back(coded);
    }
    Ok(same)
}

/// Undoes steps, the last first; `limit` is for every result.
fn undone<'a>(steps: &[Step], stored: &'a [u8], limit: usize, side: Side<'_>) -> Result<Cow<'a, [u8]>> {
    let mut bytes = Cow::Borrowed(stored);
    for step in steps.iter().rev() {
        let decoded = backward(step, &bytes, limit, side)?;
        replace(&mut bytes, decoded);
    }
    Ok(bytes)
}

/// Puts the next intermediate result in place of the last, whose memory is used again.
fn replace(bytes: &mut Cow<'_, [u8]>, next: Vec<u8>) {
    if let Cow::Owned(last) = std::mem::replace(bytes, Cow::Owned(next)) {
        scratch::give_back(last);
    }
}

/// Longest intermediate result of a block: a step may make incompressible bytes a little longer.
fn length_limit(length: usize) -> usize {
    length.saturating_mul(2).saturating_add(1 << 20)
}

fn forward(step: &Step, bytes: &[u8], side: Side<'_>) -> Result<Vec<u8>> {
    Ok(match step {
        Step::Swap(size) => shuffle::swap(bytes, size_of(*size)?),
        Step::Shuffle(size) => shuffle::shuffle(bytes, size_of(*size)?),
        Step::BitShuffle(size) => shuffle::bit_shuffle(bytes, size_of(*size)?),
        Step::Lorenzo(lane) => lorenzo::forward(*lane, bytes, side.shapes),
        Step::Difference(lane) => numbers::difference(*lane, bytes),
        Step::XorBase => numbers::xor(bytes, side.base)?,
        Step::DifferenceBase(lane) => numbers::difference_base(*lane, bytes, side.base)?,
        Step::Ragged => with_length(bytes, ragged::forward(bytes)),
        Step::Distinct(size) => {
            let mut out = headed(bytes);
            distinct::forward(bytes, size_of(*size)?, &mut out)?;
            out
        }
        Step::Changed(size) => {
            let mut out = headed(bytes);
            changed::forward(bytes, side.base, size_of(*size)?, &mut out)?;
            out
        }
        Step::Lz4 => with_length(bytes, lz4_flex::block::compress(bytes)),
        Step::Zstd(level) => with_length(bytes, general::zstd(bytes, *level)?),
        Step::Gzip(level) => with_length(bytes, general::gzip(bytes, *level)?),
        Step::Pco(lane, level) => with_length(bytes, numbers::pco(*lane, bytes, *level)?),
        Step::Fpc(table_bits) => with_length(bytes, fpc::compress(bytes, *table_bits)),
        Step::Planes(size, level) => planes_forward(bytes, *size, false, *level)?,
    })
}

fn backward(step: &Step, bytes: &[u8], limit: usize, side: Side<'_>) -> Result<Vec<u8>> {
    let (length, body) =
        if changes_length(step) { split_length(bytes, limit)? } else { (bytes.len(), bytes) };
    let decoded = match step {
        Step::Swap(size) => shuffle::swap(body, size_of(*size)?),
        Step::Shuffle(size) => shuffle::unshuffle(body, size_of(*size)?),
        Step::BitShuffle(size) => shuffle::bit_unshuffle(body, size_of(*size)?),
        Step::Lorenzo(lane) => lorenzo::backward(*lane, body, side.shapes),
        Step::Difference(lane) => numbers::sum(*lane, body),
        Step::XorBase => numbers::xor(body, side.base)?,
        Step::DifferenceBase(lane) => numbers::sum_base(*lane, body, side.base)?,
        Step::Ragged => ragged::backward(body, length)?,
        Step::Distinct(size) => distinct::backward(body, size_of(*size)?, length)?,
        Step::Changed(size) => changed::backward(body, side.base, size_of(*size)?, length)?,
        Step::Lz4 => lz4_flex::block::decompress(body, length).map_err(|e| CodecError::damaged("lz4", e))?,
        Step::Zstd(_) => general::unzstd(body, length)?,
        Step::Gzip(_) => general::ungzip(body, length)?,
        Step::Pco(lane, _) => numbers::unpco(*lane, body, length)?,
        Step::Fpc(table_bits) => fpc::decompress(body, *table_bits, length)?,
        Step::Planes(size, _) => planes::decompress(body, size_of(*size)?, false, length)?,
    };
    if decoded.len() == length {
        Ok(decoded)
    } else {
        Err(CodecError::damaged("chain", "a step's length is wrong"))
    }
}

fn changes_length(step: &Step) -> bool {
    !matches!(
        step,
        Step::Swap(_)
            | Step::Shuffle(_)
            | Step::BitShuffle(_)
            | Step::Lorenzo(_)
            | Step::Difference(_)
            | Step::XorBase
            | Step::DifferenceBase(_)
    )
}

/// The size of elements that a step names, in bytes; a damaged record may name none.
fn size_of(size: u32) -> Result<usize> {
    if size == 0 { Err(CodecError::damaged("chain", "elements without bytes")) } else { Ok(size as usize) }
}

/// The output of a step behind the length of its input, as a LEB128 number.
fn with_length(input: &[u8], output: Vec<u8>) -> Vec<u8> {
    let mut bytes = scratch::empty(output.len() + 10);
    put_number(&mut bytes, input.len() as u64);
    bytes.extend_from_slice(&output);
    scratch::give_back(output);
    bytes
}

/// The length of a step's input, for its output to follow.
fn headed(input: &[u8]) -> Vec<u8> {
    let mut out = scratch::empty(input.len() + 1024);
    put_number(&mut out, input.len() as u64);
    out
}

pub(crate) fn put_number(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
}

/// A signed number in its zigzag form.
pub(crate) fn put_signed(bytes: &mut Vec<u8>, value: i64) {
    put_number(bytes, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Takes a signed number off the front.
pub(crate) fn take_signed(bytes: &mut &[u8]) -> Option<i64> {
    let folded = take_number(bytes)?;
    Some((folded >> 1).cast_signed() ^ (folded & 1).cast_signed().wrapping_neg())
}

/// Takes a LEB128 number off the front.
pub(crate) fn take_number<'bytes>(bytes: &mut &'bytes [u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest): (&u8, &'bytes [u8]) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn split_length(bytes: &[u8], limit: usize) -> Result<(usize, &[u8])> {
    let mut rest = bytes;
    let length = take_number(&mut rest).and_then(|length| usize::try_from(length).ok());
    let length = length.filter(|length| *length <= limit);
    length.map(|length| (length, rest)).ok_or_else(|| CodecError::damaged("chain", "no believable length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy(length: u32) -> Vec<u8> {
        let value = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 12).sqrt();
        (0..length).flat_map(|n| value(n).to_be_bytes()).chain([1, 2, 3]).collect()
    }

    #[test]
    fn planes_of_swapped_elements_are_the_bytes_of_both_steps() {
        let raw = noisy(9000);
        for size in [2, 4, 8] {
            let chain = [Step::Swap(size), Step::Planes(size, 1)];
            let both = encode(&chain, &raw, Side::default()).unwrap();
            let swapped = encode(&chain[..1], &raw, Side::default()).unwrap();
            assert_eq!(both, encode(&chain[1..], &swapped, Side::default()).unwrap());
            assert_eq!(decode(&chain, &both, raw.len(), Side::default()).unwrap(), raw);
        }
    }

    #[test]
    fn a_chain_gives_back_what_it_coded_and_nothing_else() {
        let raw = noisy(5000);
        let chains = [
            vec![Step::Planes(8, 0)],
            vec![Step::Swap(8), Step::Planes(8, 1)],
            vec![Step::Planes(4, 1), Step::Zstd(1)],
            vec![Step::Shuffle(8), Step::Zstd(1)],
            vec![],
        ];
        for steps in chains {
            let stored = encode(&steps, &raw, Side::default()).unwrap();
            assert!(gives_back(&steps, &stored, &raw, Side::default()).unwrap(), "{steps:?}");
            for at in [0, 8191, 20_000, raw.len() - 4, raw.len() - 1] {
                let mut other = raw.clone();
                other[at] ^= 1;
                assert!(
                    !gives_back(&steps, &stored, &other, Side::default()).unwrap(),
                    "{steps:?}, byte {at}"
                );
            }
            let shorter = &raw[..raw.len() - 1];
            assert!(
                !gives_back(&steps, &stored, shorter, Side::default()).is_ok_and(|same| same),
                "{steps:?}"
            );
        }
    }
}
