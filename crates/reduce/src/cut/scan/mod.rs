//! The search for the first position where a content-defined piece may end.
//!
//! Two tests decide about a length. The coarse one is a 16-bit hash of the 16 bytes before it, cheap enough to be made
//! at every position, 32 or 64 of them at once; it leaves a few positions in thousands. The fine one is a 64-bit hash
//! of the 32 bytes before it, made only where the coarse one passes; it sets the exact rate of cuts. Neither looks
//! further back, so a position's answer doesn't depend on where the search began.
//!
//! The coarse hash is linear: with bytes b1 (the last), b2, … and arithmetic modulo 2^16,
//!
//! ```text
//! quad(i)  = C1·b1 + C2·b2 + C3·b3 + C4·b4            of the 4 bytes before i
//! eight(i) = quad(i) + FOUR_BACK · quad(i − 4)
//! hash(i)  = eight(i) + EIGHT_BACK · eight(i − 8)
//! ```
//!
//! so that each step is one multiplication and one addition of whole vectors, and the only move between lanes is by 4
//! and 8 bytes. A rolling hash needs every step before it; a table look-up (gear hashing) has no fast vector form. The
//! rejected alternative, one rolling hash per lane over distant segments, pays for transposing the bytes and for
//! hashing what lies behind the cut.

use stdchk_model::exact::narrow;

mod portable;
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector instructions: found at run time, their loads checked by array types")]
mod x86;

/// Weights of the last four bytes, the last one first. Odd, and the absolute values of each pair add up to at most 128,
/// so that the x86 instruction that sums pairs of products in 16 bits never saturates.
const QUAD: [i8; 4] = [53, -75, 39, -87];
/// Weight of the quad four bytes back.
const FOUR_BACK: u16 = 0x9e35;
/// Weight of the eight bytes eight bytes back.
const EIGHT_BACK: u16 = 0x6a8b;
/// Bytes that the coarse hash covers.
const COARSE_BYTES: usize = 16;
/// Bytes that the fine hash covers.
const FINE_BYTES: usize = 32;

/// Cuts are this much rarer than the average before the normal point, and this much more frequent after it (FastCDC's
/// normalisation level 2).
const NORMALISATION: u128 = 4;
/// Positions that pass the coarse test, per average piece: at least [`NORMALISATION`], and few, for each costs as much
/// as some hundred positions that don't.
const COARSE_PER_PIECE: usize = 8;

/// Which positions are cuts: rates for an average length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    /// Coarse hashes below it (signed) pass. The hash of zeros is 0 and never does.
    coarse: i16,
    /// Fine hashes below it pass, for lengths up to `normal`.
    strict: u64,
    /// Fine hashes below it pass, for longer pieces.
    loose: u64,
    /// The normal point, bytes.
    normal: usize,
}

impl Test {
    /// Rates that give pieces of `average` bytes in the mean when nothing before `min` is tried.
    ///
    /// The mean is `min + a·f·(1 − e) + a/f·e` with the average a, the normalisation f and `e` the part of pieces that
    /// reaches the normal point; solved for that point with f = 4, and linear in `min` to within one percent.
    pub(super) fn around(min: usize, average: usize) -> Self {
        assert!(0 < average && min <= average, "the shortest piece is no longer than the average");
        let passing = ((1 << 16) * COARSE_PER_PIECE / average).clamp(1, 1 << 12);
        let rate = |numerator: u128, denominator: u128| {
            narrow::<u64, _>((numerator << 80) / (denominator * passing as u128))
        };
        let average_wide = average as u128;
        Self {
            coarse: i16::MIN + narrow::<i16, _>(passing),
            strict: rate(1, average_wide * NORMALISATION),
            loose: rate(NORMALISATION, average_wide),
            normal: (average * 228 - min * 62) / 256,
        }
    }

    /// Whether a piece may end after `length` bytes of `data`, a length that passed the coarse test.
    #[inline]
    fn fine(&self, data: &[u8], length: usize) -> bool {
        let limit = if length < self.normal { self.strict } else { self.loose };
        fine_hash(data, length).is_some_and(|hash| hash < limit)
    }
}

/// 64-bit hash of the 32 bytes before `length`, by two folded multiplications (as in wyhash).
#[inline]
fn fine_hash(data: &[u8], length: usize) -> Option<u64> {
    let window: &[u8; FINE_BYTES] = data.get(..length)?.last_chunk()?;
    let (words, _) = window.as_chunks::<8>();
    let [a, b, c, d] = *words else { return None };
    let [a, b, c, d] = [a, b, c, d].map(u64::from_le_bytes);
    Some(
        fold(a ^ 0xa076_1d64_78bd_642f, b ^ 0xe703_7ed1_a0b4_28db)
            ^ fold(c ^ 0x8ebc_6af0_9c88_c6e3, d ^ 0x5899_65cc_7537_4cc3),
    )
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the two halves of the product are what is wanted")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// What a search through the bytes at hand found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Search {
    /// The first length after which a piece may end.
    Cut(usize),
    /// None; this is the first length that was not tried.
    TriedBelow(usize),
}

/// A way of trying positions that this processor has. All ways find the same; the fastest is taken unless a test or a
/// measurement asks for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scanner(Way);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// What every processor has.
    Portable,
    /// 32 positions at once.
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    /// 64 positions at once.
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

impl Scanner {
    /// The fastest that this processor has.
    pub fn fastest() -> Self {
        let Some(fastest) = Self::available().last().copied() else {
            unreachable!("the portable one is always there")
        };
        fastest
    }

    /// All that this processor has, the slowest first.
    pub fn available() -> Vec<Self> {
        let mut available = vec![Self(Way::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            available.extend(x86::Avx2::detect().map(Way::Avx2).map(Self));
            available.extend(x86::Avx512::detect().map(Way::Avx512).map(Self));
        }
        available
    }

    /// What it is called in reports.
    pub fn name(self) -> &'static str {
        match self.0 {
            Way::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Way::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Way::Avx512(_) => "AVX-512",
        }
    }

    /// Looks for the first length, from `from` up to all of `data`, after which `test` allows a cut.
    ///
    /// When more bytes follow (not `whole`), up to a group of the longest lengths is left for the next call, because
    /// trying part of a group is dear. `from` is at least 128, what the windows and their groups reach back.
    pub(super) fn search(self, data: &[u8], from: usize, whole: bool, test: &Test) -> Search {
        let searched = match self.0 {
            Way::Portable => return portable::search(data, from, whole, test),
            #[cfg(target_arch = "x86_64")]
            Way::Avx2(scanner) => scanner.search(data, from, test),
            #[cfg(target_arch = "x86_64")]
            Way::Avx512(scanner) => scanner.search(data, from, test),
        };
        match searched {
            Search::TriedBelow(next) if whole => portable::search(data, next, whole, test),
            done => done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean of many data must not hide a byte whose runs would be cut everywhere or searched slowly.
    #[test]
    fn runs_of_one_byte_never_pass_the_coarse_test() {
        for average in [2 << 10, 8 << 10, 64 << 10, 1 << 20] {
            let test = Test::around(average / 4, average);
            for byte in 0..=255 {
                assert!(
                    portable::coarse_hash(&[byte; 16], 16).unwrap() >= test.coarse,
                    "{byte} at {average}"
                );
            }
        }
    }

    #[test]
    fn weights_cannot_saturate() {
        let [a, b, c, d] = QUAD.map(i8::unsigned_abs);
        assert!(a + b <= 128 && c + d <= 128);
    }

    #[test]
    fn a_group_and_a_single_position_have_one_hash() {
        let data = crate::cut::testing::random(4, 5000);
        let test = Test { coarse: i16::MIN + 2000, strict: u64::MAX, loose: u64::MAX, normal: 0 };
        let mut from = 200;
        while let Search::Cut(length) = portable::search(&data, from, true, &test) {
            assert!(portable::coarse_hash(&data, length).unwrap() < test.coarse);
            assert!((from..length).all(|tried| portable::coarse_hash(&data, tried).unwrap() >= test.coarse));
            for scanner in Scanner::available() {
                assert_eq!(scanner.search(&data, from, true, &test), Search::Cut(length), "{scanner:?}");
            }
            from = length + 1;
        }
        assert!(from > 4500);
    }

    #[test]
    fn rates_of_the_tests_multiply_to_the_rate_of_cuts() {
        for average in [2 << 10, 60_000, 64 << 10, 1 << 20] {
            let test = Test::around(average / 4, average);
            let coarse = f64::from(i32::from(test.coarse) - i32::from(i16::MIN)) / 65_536.0;
            let loose = coarse * (test.loose as f64 / 2f64.powi(64)) * average as f64;
            let strict = coarse * (test.strict as f64 / 2f64.powi(64)) * average as f64;
            assert!((loose - 4.0).abs() < 1e-6 && (strict - 0.25).abs() < 1e-6, "{loose} {strict}");
        }
    }
}
