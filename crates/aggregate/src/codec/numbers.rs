//! Differences, differences from a base set, and pcodec.
//!
//! Relies on [`Number`] and the `pco` crate. The idea: differences are taken between integers that are ordered like the
//! values, so that a step from one float to the next is 1 whatever their exponents.

use super::lane::{Lane, Number};
use super::step::{CodecError, Result};

/// Folds the sign of 16-bit floats, so that integer order is numeric order.
fn fold_16(bits: u16) -> u16 {
    bits ^ ((bits >> 15).wrapping_neg() | 0x8000)
}

fn unfold_16(bits: u16) -> u16 {
    bits ^ ((bits >> 15).wrapping_sub(1) | 0x8000)
}

/// A 16-bit float as an ordered integer.
#[derive(Clone, Copy, Default)]
struct Half(u16);

impl Number for Half {
    type Bytes = [u8; 2];

    fn from_bytes(bytes: [u8; 2]) -> Self {
        Self(fold_16(u16::from_le_bytes(bytes)))
    }
    fn to_bytes(self) -> [u8; 2] {
        unfold_16(self.0).to_le_bytes()
    }
    fn plus(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }
    fn minus(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }
    fn distance_from(self, prediction: Self) -> [u8; 2] {
        self.0.distance_from(prediction.0)
    }
    fn at_distance(distance: [u8; 2], prediction: Self) -> Self {
        Self(u16::at_distance(distance, prediction.0))
    }
}

/// Distance of every element from the one before.
pub(crate) fn difference(lane: Lane, bytes: &[u8]) -> Vec<u8> {
    each_lane(lane, bytes, &[], true, true)
}

/// The inverse of [`difference`].
pub(crate) fn sum(lane: Lane, bytes: &[u8]) -> Vec<u8> {
    each_lane(lane, bytes, &[], false, true)
}

/// Distance of every element from the same element of the base.
pub(crate) fn difference_base(lane: Lane, bytes: &[u8], base: &[u8]) -> Result<Vec<u8>> {
    same_length(bytes, base)?;
    Ok(each_lane(lane, bytes, base, true, false))
}

/// The inverse of [`difference_base`].
pub(crate) fn sum_base(lane: Lane, bytes: &[u8], base: &[u8]) -> Result<Vec<u8>> {
    same_length(bytes, base)?;
    Ok(each_lane(lane, bytes, base, false, false))
}

fn same_length(bytes: &[u8], base: &[u8]) -> Result<()> {
    let fits = bytes.len() == base.len();
    let error = CodecError::Unsuitable { step: "base", detail: "the base set has no bytes of this length" };
    if fits { Ok(()) } else { Err(error) }
}

/// Exclusive or with the base; its own inverse.
pub(crate) fn xor(bytes: &[u8], base: &[u8]) -> Result<Vec<u8>> {
    same_length(bytes, base)?;
    Ok(bytes.iter().zip(base).map(|(byte, base)| byte ^ base).collect())
}

fn each_lane(lane: Lane, bytes: &[u8], base: &[u8], forward: bool, previous: bool) -> Vec<u8> {
    match lane {
        Lane::U16 => distances::<u16, 2>(bytes, base, forward, previous),
        Lane::F16 => distances::<Half, 2>(bytes, base, forward, previous),
        Lane::U32 => distances::<u32, 4>(bytes, base, forward, previous),
        Lane::U64 => distances::<u64, 8>(bytes, base, forward, previous),
        Lane::F32 => distances::<f32, 4>(bytes, base, forward, previous),
        Lane::F64 => distances::<f64, 8>(bytes, base, forward, previous),
    }
}

fn distances<T: Number<Bytes = [u8; N]>, const N: usize>(
    bytes: &[u8],
    base: &[u8],
    forward: bool,
    previous: bool,
) -> Vec<u8> {
    let (elements, tail) = bytes.as_chunks::<N>();
    let one = |element: [u8; N], prediction: T| {
        if forward {
            T::from_bytes(element).distance_from(prediction)
        } else {
            T::at_distance(element, prediction).to_bytes()
        }
    };
    let mut out: Vec<[u8; N]> = Vec::with_capacity(elements.len());
    if previous {
        let mut last = T::default();
        for element in elements {
            let coded = one(*element, last);
            last = T::from_bytes(if forward { *element } else { coded });
            out.push(coded);
        }
    } else {
        let base = base.as_chunks::<N>().0;
        out.extend(elements.iter().zip(base).map(|(element, base)| one(*element, T::from_bytes(*base))));
    }
    let mut flat = out.into_flattened();
    flat.extend_from_slice(tail);
    flat
}

/// Numbers of a lane through pcodec; bytes behind the last whole number follow as they are.
pub(crate) fn pco(lane: Lane, bytes: &[u8], level: u32) -> Result<Vec<u8>> {
    match lane {
        Lane::U16 => pack(bytes, level, u16::from_le_bytes),
        Lane::F16 => pack(bytes, level, |bytes| fold_16(u16::from_le_bytes(bytes))),
        Lane::U32 => pack(bytes, level, u32::from_le_bytes),
        Lane::U64 => pack(bytes, level, u64::from_le_bytes),
        Lane::F32 => pack(bytes, level, f32::from_le_bytes),
        Lane::F64 => pack(bytes, level, f64::from_le_bytes),
    }
}

fn pack<T: pco::data_types::Number, const N: usize>(
    bytes: &[u8],
    level: u32,
    number: fn([u8; N]) -> T,
) -> Result<Vec<u8>> {
    let (elements, tail) = bytes.as_chunks::<N>();
    let numbers: Vec<T> = elements.iter().map(|element| number(*element)).collect();
    let config = pco::ChunkConfig::default().with_compression_level(level as usize);
    let packed = pco::standalone::simple_compress(&numbers, &config);
    let mut packed = packed.map_err(|error| CodecError::damaged("pco", error))?;
    packed.splice(0..0, tail.iter().copied());
    Ok(packed)
}

pub(crate) fn unpco(lane: Lane, body: &[u8], length: usize) -> Result<Vec<u8>> {
    match lane {
        Lane::U16 => unpack(body, length, u16::to_le_bytes),
        Lane::F16 => unpack(body, length, |bits| unfold_16(bits).to_le_bytes()),
        Lane::U32 => unpack(body, length, u32::to_le_bytes),
        Lane::U64 => unpack(body, length, u64::to_le_bytes),
        Lane::F32 => unpack(body, length, f32::to_le_bytes),
        Lane::F64 => unpack(body, length, f64::to_le_bytes),
    }
}

fn unpack<T: pco::data_types::Number + Default, const N: usize>(
    body: &[u8],
    length: usize,
    bytes_of: fn(T) -> [u8; N],
) -> Result<Vec<u8>> {
    let short = || CodecError::damaged("pco", "fewer bytes than the tail");
    let (tail, packed) = body.split_at_checked(length % N).ok_or_else(short)?;
    let mut numbers = vec![T::default(); length / N];
    let progress = pco::standalone::simple_decompress_into(packed, &mut numbers);
    let progress = progress.map_err(|error| CodecError::damaged("pco", error))?;
    if progress.n_processed != numbers.len() {
        return Err(CodecError::damaged("pco", "fewer numbers than the block has"));
    }
    let mut bytes = numbers.into_iter().map(bytes_of).collect::<Vec<_>>().into_flattened();
    bytes.extend_from_slice(tail);
    Ok(bytes)
}
