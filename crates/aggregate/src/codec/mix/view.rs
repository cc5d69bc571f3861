//! A lane's numbers as coders of single numbers see them.
//!
//! Relies on [`crate::codec::lane`]. The idea: integers in the order of the numbers, since what is close is then alike in its
//! upper bits, and doubles to calculate with.

use crate::codec::lane::{Lane, Ordered};

/// A lane's numbers as ordered integers and as doubles to predict with.
pub(in crate::codec) struct View {
    lane: Lane,
    /// Bits of a number.
    pub(in crate::codec) bits: u32,
}

impl View {
    pub(in crate::codec) fn new(lane: Lane) -> Self {
        Self { lane, bits: u32::try_from(lane.size() * 8).unwrap_or(64) }
    }

    /// Ordered integer of the number's bits.
    pub(in crate::codec) fn ordered(&self, bits: u64) -> u64 {
        match self.lane {
            Lane::F64 => f64::from_bits(bits).ordered(),
            Lane::F32 => u64::from(f32::from_bits(low_32(bits)).ordered()),
            Lane::F16 => {
                let sign = bits >> 15 & 1;
                (bits ^ (sign.wrapping_neg() | 0x8000)) & 0xffff
            }
            _ => bits,
        }
    }

    pub(in crate::codec) fn bits_of(&self, ordered: u64) -> u64 {
        match self.lane {
            Lane::F64 => f64::unordered(ordered).to_bits(),
            Lane::F32 => u64::from(f32::unordered(low_32(ordered)).to_bits()),
            Lane::F16 => {
                let positive = ordered >> 15 & 1;
                (ordered ^ (positive.wrapping_sub(1) | 0x8000)) & 0xffff
            }
            _ => ordered,
        }
    }

    /// What predictors calculate with: the float's value; for integers and 16-bit floats, the ordered integer.
    pub(in crate::codec) fn value(&self, ordered: u64) -> f64 {
        match self.lane {
            Lane::F64 => f64::unordered(ordered),
            Lane::F32 => f64::from(f32::unordered(low_32(ordered))),
            _ => ordered as f64,
        }
    }

    /// The ordered integer that a prediction stands for.
    pub(in crate::codec) fn predicted(&self, value: f64) -> u64 {
        match self.lane {
            Lane::F64 => value.ordered(),
            #[expect(clippy::cast_possible_truncation, reason = "rounding to the lane's precision is meant")]
            Lane::F32 => u64::from((value as f32).ordered()),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "casts saturate, as is meant"
            )]
            _ => (value as u64).min(u64::MAX >> (64 - self.bits)),
        }
    }
}

fn low_32(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or(0)
}
