//! Conversions and parts of slices of which the caller knows that they fit: exact, or a bug that stops the program.
//!
//! Relies on addresses of 64 bits, which is checked when it is compiled. The idea: a default in place of a number that
//! doesn't fit, or of a part that lies outside, would go on with bytes that nobody wrote. What comes from outside
//! (files, peers, other programs) is checked before, and refused by an error; none of these functions is for that.

use std::any::type_name;
use std::fmt::Display;
use std::slice::SliceIndex;

const _: () = assert!(usize::BITS == 64, "lengths of files and of memory are the same numbers");

/// A length or a place as the index of memory; the same number, as all are of 64 bits.
#[must_use]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "addresses have 64 bits, see above")]
pub const fn to_usize(number: u64) -> usize {
    number as usize
}

/// A number in a narrower type.
///
/// # Panics
/// When it doesn't fit, which the caller excludes.
#[must_use]
#[inline]
#[track_caller]
pub fn narrow<To: TryFrom<From>, From: Copy + Display>(number: From) -> To {
    let Ok(narrowed) = To::try_from(number) else {
        unreachable!("{number} doesn't fit into {}", type_name::<To>());
    };
    narrowed
}

/// A part of a slice, or one element of it.
///
/// # Panics
/// When it does not lie within, which the caller excludes.
#[must_use]
#[inline]
#[track_caller]
#[expect(clippy::indexing_slicing, reason = "the caller knows that it lies within; a wrong place must stop")]
pub fn part<T, Place: SliceIndex<[T]>>(whole: &[T], place: Place) -> &Place::Output {
    &whole[place]
}

/// A part of a slice, or one element of it, to be written.
///
/// # Panics
/// When it does not lie within, which the caller excludes.
#[must_use]
#[inline]
#[track_caller]
#[expect(clippy::indexing_slicing, reason = "the caller knows that it lies within; a wrong place must stop")]
pub fn part_mut<T, Place: SliceIndex<[T]>>(whole: &mut [T], place: Place) -> &mut Place::Output {
    &mut whole[place]
}

/// The first bytes of a longer name.
#[must_use]
#[inline]
pub fn first<const FEWER: usize, const ALL: usize>(bytes: &[u8; ALL]) -> [u8; FEWER] {
    const { assert!(FEWER <= ALL) };
    std::array::from_fn(|place| *part(bytes, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_the_same_number() {
        assert_eq!(to_usize(u64::MAX), usize::MAX);
        assert_eq!(narrow::<u8, _>(255_usize), 255);
        assert_eq!((part(&[1, 2, 3], 1..), first(&[1, 2, 3])), (&[2, 3][..], [1, 2]));
        let mut numbers = [1, 2, 3];
        part_mut(&mut numbers, ..2).fill(7);
        *part_mut(&mut numbers, 2) += *part(&numbers.clone(), 0);
        assert_eq!(numbers, [7, 7, 10]);
    }

    #[test]
    #[should_panic(expected = "256 doesn't fit into u8")]
    fn a_number_that_does_not_fit_stops() {
        let _ = narrow::<u8, _>(256_usize);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_part_that_lies_outside_stops() {
        let _ = part(&[1, 2, 3], 2..4);
    }
}
