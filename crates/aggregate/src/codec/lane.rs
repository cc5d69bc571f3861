//! The number types that numeric steps work on, as they stand in memory: little-endian.
//!
//! Relies on `stdchk-formats` for the types of variables. The idea: floats are also seen as integers in the same order,
//! so that a difference between neighbours is small whatever the sign and exponent.

use minicbor::{Decode, Encode};
use stdchk_formats::{DataType, Kind};

/// A type of number. Numbers are part of the container format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Encode, Decode)]
#[cbor(index_only)]
pub enum Lane {
    /// 16-bit integers.
    #[n(0)]
    U16,
    /// 32-bit integers.
    #[n(1)]
    U32,
    /// 64-bit integers.
    #[n(2)]
    U64,
    /// IEEE binary32.
    #[n(3)]
    F32,
    /// IEEE binary64.
    #[n(4)]
    F64,
    /// IEEE binary16 or bfloat16: sign and magnitude, ordered by folding the sign.
    #[n(5)]
    F16,
}

impl Lane {
    /// The lane for elements of a type; `None` where no numeric step fits.
    #[must_use]
    pub fn of(data_type: DataType) -> Option<Self> {
        match (data_type.kind, data_type.size) {
            (Kind::Signed | Kind::Unsigned, 2) => Some(Self::U16),
            (Kind::Signed | Kind::Unsigned, 4) => Some(Self::U32),
            (Kind::Signed | Kind::Unsigned, 8) => Some(Self::U64),
            (Kind::Float | Kind::BFloat, 2) => Some(Self::F16),
            (Kind::Float, 4) | (Kind::Complex, 8) => Some(Self::F32),
            (Kind::Float, 8) | (Kind::Complex, 16) => Some(Self::F64),
            _ => None,
        }
    }

    /// Bytes of one number.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::U16 | Self::F16 => 2,
            Self::U32 | Self::F32 => 4,
            Self::U64 | Self::F64 => 8,
        }
    }
}

/// A number that a predictor can work on.
pub(crate) trait Number: Copy + Default {
    /// Bytes of one number.
    type Bytes: Copy + Default + AsRef<[u8]>;

    fn from_bytes(bytes: Self::Bytes) -> Self;
    fn to_bytes(self) -> Self::Bytes;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    /// Distance from `prediction` as a small unsigned number, in the integer that is ordered like the type.
    fn distance_from(self, prediction: Self) -> Self::Bytes;
    /// The inverse of [`Number::distance_from`].
    fn at_distance(distance: Self::Bytes, prediction: Self) -> Self;
}

macro_rules! integer {
    ($unsigned:ty, $signed:ty, $size:literal) => {
        impl Number for $unsigned {
            type Bytes = [u8; $size];

            fn from_bytes(bytes: Self::Bytes) -> Self {
                Self::from_le_bytes(bytes)
            }
            fn to_bytes(self) -> Self::Bytes {
                self.to_le_bytes()
            }
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            fn distance_from(self, prediction: Self) -> Self::Bytes {
                let signed = self.wrapping_sub(prediction).cast_signed();
                ((signed << 1) ^ (signed >> (<$signed>::BITS - 1))).to_le_bytes()
            }
            fn at_distance(distance: Self::Bytes, prediction: Self) -> Self {
                let folded = Self::from_le_bytes(distance);
                prediction.wrapping_add((folded >> 1) ^ (folded & 1).wrapping_neg())
            }
        }
    };
}

integer!(u16, i16, 2);
integer!(u32, i32, 4);
integer!(u64, i64, 8);

macro_rules! float {
    ($float:ty, $bits:ty, $size:literal) => {
        impl Number for $float {
            type Bytes = [u8; $size];

            fn from_bytes(bytes: Self::Bytes) -> Self {
                Self::from_bits(<$bits>::from_le_bytes(bytes))
            }
            fn to_bytes(self) -> Self::Bytes {
                self.to_bits().to_le_bytes()
            }
            fn plus(self, other: Self) -> Self {
                self + other
            }
            fn minus(self, other: Self) -> Self {
                self - other
            }
            fn distance_from(self, prediction: Self) -> Self::Bytes {
                ordered::<$float>(self).distance_from(ordered::<$float>(known(prediction)))
            }
            fn at_distance(distance: Self::Bytes, prediction: Self) -> Self {
                unordered::<$float>(<$bits>::at_distance(distance, ordered::<$float>(known(prediction))))
            }
        }

        impl Ordered for $float {
            type Integer = $bits;

            fn ordered(self) -> $bits {
                let bits = self.to_bits();
                let sign = bits >> (<$bits>::BITS - 1);
                bits ^ (sign.wrapping_neg() | (1 << (<$bits>::BITS - 1)))
            }
            fn unordered(integer: $bits) -> Self {
                let positive = integer >> (<$bits>::BITS - 1);
                Self::from_bits(integer ^ (positive.wrapping_sub(1) | (1 << (<$bits>::BITS - 1))))
            }
            fn is_known(self) -> bool {
                !self.is_nan()
            }
        }
    };
}

/// Floats as integers in the same order.
pub(crate) trait Ordered: Copy + Default {
    type Integer;

    fn ordered(self) -> Self::Integer;
    fn unordered(integer: Self::Integer) -> Self;
    /// Not NaN: which NaN an operation gives differs between machines, so none may be predicted with.
    fn is_known(self) -> bool;
}

fn ordered<T: Ordered>(value: T) -> T::Integer {
    value.ordered()
}

fn unordered<T: Ordered>(integer: T::Integer) -> T {
    T::unordered(integer)
}

fn known<T: Ordered>(value: T) -> T {
    if value.is_known() { value } else { T::default() }
}

float!(f32, u32, 4);
float!(f64, u64, 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_integers_keep_the_order_of_floats_and_every_bit() {
        let values = [f64::NEG_INFINITY, -2.5, -f64::MIN_POSITIVE, -0.0, 0.0, 5e-324, 1.0, f64::INFINITY];
        for pair in values.windows(2) {
            assert!(pair[0].ordered() < pair[1].ordered());
        }
        for bits in [0, 1, u64::MAX, 0x7ff8_0000_0000_0001, 0xfff0_0000_dead_beef, 1 << 63] {
            assert_eq!(f64::unordered(f64::from_bits(bits).ordered()).to_bits(), bits);
        }
    }

    #[test]
    fn a_distance_leads_back_even_from_a_prediction_that_is_nan() {
        for (value, prediction) in [(1.5_f32, 1.25), (f32::NAN, 1.0), (-0.0, f32::NAN), (f32::MAX, f32::MIN)]
        {
            let back = f32::at_distance(value.distance_from(prediction), prediction);
            assert_eq!(back.to_bits(), value.to_bits());
        }
    }
}
