//! The name of a timestep as the code wrote it, and its place among other timesteps.
//!
//! A name is a whole number (`120000`, `0012`), a decimal number (`0.005`, `1e-05`, `-180`) or a date
//! (`2016-10-13_00:00:00`, `1959-01-01`, `0001-01-06-00000` with seconds of the day). Its value follows from the name
//! alone: the number, or for a date the number `YYYYMMDD.HHMMSS`. Two names of one value are one timestep. The value is
//! kept exactly, as a key whose bytes are ordered as the values are; a binary floating-point number would make one
//! timestep of two.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use minicbor::decode::Error as Wrong;
use minicbor::encode::Write;
use minicbor::{Decode, Decoder, Encode, Encoder};
use serde::{Serialize, Serializer};

/// Longest name, bytes: a date with microseconds has 26, a double-precision number at most 24.
pub const NAME_BYTES_MAX: usize = 32;
/// Largest power of ten in a name such as `1e-05`: more than any floating-point type of a code has.
const EXPONENT_MAX: i32 = 9_999;
/// Most digits of a value: every digit of a name, and `00` for a month and a day that a date leaves out.
const DIGITS_MAX: usize = NAME_BYTES_MAX + 4;
/// Bytes of a key: the sign, the power of ten, the digits.
const KEY_BYTES: usize = 3 + DIGITS_MAX;

/// The name of a timestep. Names of one value are equal.
#[derive(Clone, Copy)]
pub struct Timestep {
    key: [u8; KEY_BYTES],
    name: [u8; NAME_BYTES_MAX],
    length: usize,
}

/// Why a text names no timestep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a timestep is a number such as `120000`, `0.005` or `1e-05`, or a date such as `2016-10-13_00:00:00`"
)]
pub struct BadTimestep;

/// A value: 0.d₁d₂d₃… × 10^`power`, where d are ASCII `digits`.
struct Value {
    is_negative: bool,
    digits: Vec<u8>,
    power: i32,
}

impl Timestep {
    /// The name, as the code wrote it.
    pub fn name(&self) -> &str {
        let name = self.name.get(..self.length).and_then(|name| std::str::from_utf8(name).ok());
        name.unwrap_or_else(|| unreachable!("a name is ASCII and fits"))
    }

    /// Whether it is a number above 0, of which others can be multiples.
    pub fn can_divide(&self) -> bool {
        *self > Self::from(0) && number(self.name()).is_some()
    }

    /// Whether the value is a multiple of another one, exactly. A date is none, and has none.
    pub fn is_multiple_of(&self, of: &Self) -> bool {
        let (Some(value), Some(of)) = (number(self.name()), number(of.name())) else { return false };
        let (Some(number), Some(divisor)) = (value.whole_digits(), of.whole_digits()) else { return false };
        if number == 0 || divisor == 0 {
            return divisor != 0;
        }
        match value.scale() - of.scale() {
            // The divisor has zeros behind its digits, in units of the value.
            zeros @ ..0 => {
                let power = 10u128.checked_pow(zeros.unsigned_abs());
                let divisor = power.and_then(|power| divisor.checked_mul(power));
                divisor.is_some_and(|divisor| number.is_multiple_of(divisor))
            }
            // At most 32 digits: ten times a remainder fits.
            zeros => (0..zeros).fold(number % divisor, |rest, _| rest * 10 % divisor) == 0,
        }
    }

    /// The name as a whole number without leading zeros, if it is one.
    fn whole(&self) -> Option<u64> {
        let number: u64 = self.name().parse().ok()?;
        (number.to_string() == self.name()).then_some(number)
    }
}

impl From<u64> for Timestep {
    fn from(number: u64) -> Self {
        number.to_string().parse().unwrap_or_else(|_| unreachable!("20 digits fit"))
    }
}

impl FromStr for Timestep {
    type Err = BadTimestep;

    fn from_str(text: &str) -> Result<Self, BadTimestep> {
        let mut name = [0; NAME_BYTES_MAX];
        let place = name.get_mut(..text.len()).ok_or(BadTimestep)?;
        place.copy_from_slice(text.as_bytes());
        let value = number(text).or_else(|| date(text)).ok_or(BadTimestep)?;
        Ok(Self { key: value.key().ok_or(BadTimestep)?, name, length: text.len() })
    }
}

impl Value {
    /// Without zeros at either end of its digits. `digits` has `whole` digits before the point.
    fn new(is_negative: bool, mut digits: Vec<u8>, whole: usize, exponent: i32) -> Option<Self> {
        let leading = digits.iter().take_while(|digit| **digit == b'0').count();
        digits.drain(..leading);
        digits.truncate(digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1));
        if digits.is_empty() {
            return Some(Self { is_negative: false, digits, power: 0 });
        }
        let power = i32::try_from(whole).ok()? - i32::try_from(leading).ok()? + exponent;
        (power.abs() <= EXPONENT_MAX).then_some(Self { is_negative, digits, power })
    }

    /// The digits as a whole number.
    fn whole_digits(&self) -> Option<u128> {
        self.digits
            .iter()
            .try_fold(0u128, |sum, digit| sum.checked_mul(10)?.checked_add(u128::from(digit - b'0')))
    }

    /// The power of ten of the last digit.
    fn scale(&self) -> i32 {
        self.power - i32::try_from(self.digits.len()).unwrap_or_else(|_| unreachable!("a name is short"))
    }

    /// The key: larger for a larger value.
    fn key(&self) -> Option<[u8; KEY_BYTES]> {
        let mut key = [0; KEY_BYTES];
        let (sign, size) = key.split_first_mut()?;
        *sign = 1;
        if !self.digits.is_empty() {
            let power = u16::try_from(self.power + EXPONENT_MAX).ok()?;
            let (exponent, digits) = size.split_at_mut(2);
            exponent.copy_from_slice(&power.to_be_bytes());
            digits.get_mut(..self.digits.len())?.copy_from_slice(&self.digits);
            *sign = if self.is_negative { 0 } else { 2 };
        }
        if self.is_negative {
            // A larger size is a smaller value.
            size.iter_mut().for_each(|byte| *byte = !*byte);
        }
        Some(key)
    }
}

// --- numbers

/// How many bytes at the start of `text` are ASCII digits.
fn digits_of(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// Lengths at which a decimal number at the start of `text` may end, the longest first. `signed`: it may have a minus.
pub(crate) fn number_ends(text: &str, signed: bool) -> Vec<usize> {
    let sign = usize::from(signed && text.starts_with('-'));
    let mut ends = Vec::with_capacity(3);
    let whole = sign + text.get(sign..).map_or(0, digits_of);
    if whole == sign {
        return ends;
    }
    ends.push(whole);
    let fraction = text.get(whole..).and_then(|rest| rest.strip_prefix('.')).map_or(0, digits_of);
    let mantissa = if fraction > 0 { whole + 1 + fraction } else { whole };
    if fraction > 0 {
        ends.push(mantissa);
    }
    if let Some(rest) = text.get(mantissa..).and_then(|rest| rest.strip_prefix(['e', 'E'])) {
        let sign = usize::from(rest.starts_with(['+', '-']));
        let digits = rest.get(sign..).map_or(0, digits_of);
        if digits > 0 {
            ends.push(mantissa + 1 + sign + digits);
        }
    }
    ends.reverse();
    ends
}

fn number(text: &str) -> Option<Value> {
    if number_ends(text, true).first() != Some(&text.len()) {
        return None;
    }
    let (is_negative, size) = match text.strip_prefix('-') {
        Some(size) => (true, size),
        None => (false, text),
    };
    let (mantissa, exponent) = size.split_once(['e', 'E']).unwrap_or((size, "0"));
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if exponent.abs() > EXPONENT_MAX {
        return None;
    }
    Value::new(is_negative, [whole, fraction].concat().into_bytes(), whole.len(), exponent)
}

// --- dates

/// A reader of the digits of a date.
struct Fields<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Fields<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// Takes one of these characters.
    fn one_of(&mut self, letters: &[char]) -> Option<char> {
        let letter = self.rest().chars().next().filter(|letter| letters.contains(letter))?;
        self.at += letter.len_utf8();
        Some(letter)
    }

    /// Takes a run of digits, none to its left or right, of one of these lengths.
    fn run(&mut self, lengths: std::ops::RangeInclusive<usize>) -> Option<&'a str> {
        let length = digits_of(self.rest());
        let run = self.rest().get(..length).filter(|_| lengths.contains(&length))?;
        self.at += length;
        Some(run)
    }

    /// Takes two digits of a number in `range`.
    fn pair(&mut self, range: std::ops::RangeInclusive<u8>) -> Option<&'a str> {
        self.run(2..=2).filter(|pair| is_in(pair, range))
    }
}

fn is_in(pair: &str, range: std::ops::RangeInclusive<u8>) -> bool {
    pair.parse().is_ok_and(|number: u8| range.contains(&number))
}

/// Whether digits without separators are a year, month, day, hour, minute and second, as far as they go.
fn is_compact_date(digits: &str) -> bool {
    let ranges = [1..=12, 1..=31, 0..=24, 0..=59, 0..=60];
    let pairs = digits.get(4..).unwrap_or("").as_bytes().chunks(2);
    matches!(digits.len(), 4 | 6 | 8 | 10 | 12 | 14)
        && pairs
            .zip(ranges)
            .all(|(pair, range)| std::str::from_utf8(pair).is_ok_and(|pair| is_in(pair, range)))
}

/// A date at the start of `text`: its digits so far (of the day, then of the time) after each place where it may end.
fn date_parts(text: &str) -> Vec<(usize, String, String)> {
    let mut found = Vec::new();
    let mut fields = Fields { text, at: 0 };
    let Some(first) = fields.run(4..=14) else { return found };
    if is_compact_date(first) {
        let (day, time) = first.split_at(first.len().min(8));
        found.push((fields.at, format!("{day:0<8}"), time.to_owned()));
    }
    let day = match first.len() {
        8 if is_compact_date(first) => first.to_owned(),
        4..=6 => {
            if first.len() != 4 {
                // Five or six digits are a year only if a month follows behind a separator.
                found.clear();
            }
            let Some(separator) = fields.one_of(&['-', '_']) else { return found };
            let Some(month) = fields.pair(1..=12) else { return found };
            found.push((fields.at, format!("{first}{month}00"), String::new()));
            let Some(day) = fields.one_of(&[separator]).and_then(|_| fields.pair(1..=31)) else {
                return found;
            };
            let day = format!("{first}{month}{day}");
            found.push((fields.at, day.clone(), String::new()));
            day
        }
        _ => return found,
    };
    times(&mut fields, &mut |at, time| found.push((at, day.clone(), time)));
    found
}

/// The time of a day behind its date: `_00:00:00`, `T000000Z`, `-00000` (seconds of the day), `.120000`, `_2100z`.
fn times(fields: &mut Fields<'_>, found: &mut impl FnMut(usize, String)) -> Option<()> {
    fields.one_of(&['_', '-', 'T', 't', '.', ':', ' '])?;
    let first = fields.run(2..=6)?;
    let time = match first.len() {
        2 => return clock(fields, first, found),
        5 => {
            let seconds: u32 = first.parse().ok().filter(|seconds| *seconds <= 86_400)?;
            format!("{:02}{:02}{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
        }
        4 | 6 if is_compact_date(&format!("20000101{first}")) => first.to_owned(),
        _ => return None,
    };
    found(fields.at, time.clone());
    fields.one_of(&['Z', 'z'])?;
    found(fields.at, time);
    Some(())
}

/// Hours, minutes and seconds with separators, of which `hours` was read.
fn clock(fields: &mut Fields<'_>, hours: &str, found: &mut impl FnMut(usize, String)) -> Option<()> {
    let mut time = hours.to_owned();
    if !is_in(hours, 0..=24) {
        return None;
    }
    found(fields.at, time.clone());
    let separator = fields.one_of(&[':', '.', '_', '-'])?;
    time += fields.pair(0..=59)?;
    found(fields.at, time.clone());
    fields.one_of(&[separator])?;
    time += fields.pair(0..=60)?;
    found(fields.at, time.clone());
    let before = fields.at;
    if fields.one_of(&['.']).is_some() {
        match fields.run(1..=9) {
            Some(fraction) => {
                time += fraction;
                found(fields.at, time.clone());
            }
            None => fields.at = before,
        }
    }
    fields.one_of(&['Z', 'z'])?;
    found(fields.at, time);
    Some(())
}

/// Lengths at which a date at the start of `text` may end, the longest first.
pub(crate) fn date_ends(text: &str) -> Vec<usize> {
    date_parts(text).into_iter().rev().map(|(end, ..)| end).collect()
}

fn date(text: &str) -> Option<Value> {
    let parts = date_parts(text);
    let (_, day, time) = parts.into_iter().rev().find(|(end, ..)| *end == text.len())?;
    Value::new(false, [day.as_str(), &time].concat().into_bytes(), day.len(), 0)
}

// --- what every value has

impl PartialEq for Timestep {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Timestep {}

impl PartialOrd for Timestep {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestep {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl Hash for Timestep {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Display for Timestep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for Timestep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A number where the code wrote a whole number without leading zeros; else the name.
impl Serialize for Timestep {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self.whole() {
            Some(number) => out.serialize_u64(number),
            None => out.serialize_str(self.name()),
        }
    }
}

impl<C> Encode<C> for Timestep {
    fn encode<W: Write>(
        &self,
        out: &mut Encoder<W>,
        _: &mut C,
    ) -> Result<(), minicbor::encode::Error<W::Error>> {
        out.str(self.name())?.ok()
    }
}

impl<'b, C> Decode<'b, C> for Timestep {
    fn decode(input: &mut Decoder<'b>, _: &mut C) -> Result<Self, Wrong> {
        input.str()?.parse().map_err(Wrong::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timestep(name: &str) -> Timestep {
        name.parse().unwrap_or_else(|_| panic!("{name}"))
    }

    #[test]
    fn names_are_ordered_by_what_they_mean() {
        let ascending = [
            "-180",
            "-20",
            "-0.5",
            "-1e-05",
            "0",
            "1e-05",
            "0.005",
            "0.01",
            "0.1",
            "0.25",
            "0.3",
            "1",
            "2.5",
            "10",
            "1e2",
            "120000",
            "1e8",
            "18446744073709551616",
            "1e300",
        ];
        assert!(ascending.map(timestep).is_sorted_by(|one, other| one < other));
        let dates = [
            "0001-01-06-00000",
            "0001-01-06-43200",
            "1959-01-01",
            "2016-09-30_18:00:00",
            "2016-10-01_00:00:00",
            "2016-10-01_00.00.01",
            "20161001.120000",
            "20161001_2100z",
            "2016-10-02T00:00:00.500Z",
            "12345-01-01",
        ];
        assert!(dates.map(timestep).is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn names_of_one_value_are_one_timestep_and_keep_their_spelling() {
        for (one, other) in [
            ("0012", "12"),
            ("0.10", "0.1"),
            ("1e-05", "0.00001"),
            ("1E+2", "100"),
            ("-0", "0.00"),
            ("2016-10-13", "2016-10-13_00:00:00"),
            ("0001-01-06-43200", "0001-01-06_12:00"),
        ] {
            assert_eq!(timestep(one), timestep(other));
            assert_eq!((timestep(one).name(), timestep(other).to_string().as_str()), (one, other));
        }
        assert_ne!(timestep("0.1"), timestep("0.01"));
        assert_ne!(timestep("9007199254740993"), timestep("9007199254740992"), "no binary rounding");
    }

    #[test]
    fn what_is_no_timestep_is_refused() {
        for text in [
            "",
            "-",
            ".",
            "x",
            "1.",
            ".5",
            "1e",
            "1e+",
            "1..2",
            "0x10",
            "+1",
            "1e10000",
            "1e99999999999",
            "NaN",
            "inf",
            "2016-13-01",
            "2016-00-01",
            "2016-01-32",
            "2016-10-13_25:00",
            "2016-10-13_00:60",
            "2016-10-13_",
            "2016-1-1",
            "2016-10-13_99999",
            "12345",
            "é1",
            "123456789012345678901234567890123",
        ] {
            let is_number = text == "12345";
            assert_eq!(text.parse::<Timestep>().is_ok(), is_number, "{text}");
        }
    }

    #[test]
    fn multiples_are_exact() {
        for (name, of, expected) in [
            ("1000", "100", true),
            ("0000", "7", true),
            ("1050", "100", false),
            ("1e3", "100", true),
            ("1e300", "7", false),
            ("100.0", "100", true),
            ("0.5", "2", false),
            ("100.5", "100", false),
            ("-180", "90", true),
            ("0.3", "0.1", true),
            ("0.35", "0.1", false),
            ("1", "0.1", true),
            ("0.1", "1e300", false),
            ("1", "0", false),
            ("2016-10-13_00:00:00", "1000", false),
        ] {
            assert_eq!(timestep(name).is_multiple_of(&timestep(of)), expected, "{name} of {of}");
        }
    }

    #[test]
    fn whole_numbers_are_numbers_for_programs_and_others_are_names() {
        let json = |name| serde_json::to_string(&timestep(name)).unwrap();
        assert_eq!(
            ["120000", "0012", "0.005", "2016-10-13"].map(json),
            ["120000", "\"0012\"", "\"0.005\"", "\"2016-10-13\""]
        );
    }

    proptest! {
        #[test]
        fn numbers_are_ordered_as_numbers(one in any::<i64>(), other in any::<i64>(), shift in 0usize..6) {
            let scaled = |number: i64| {
                let digits = format!("{:020}", number.unsigned_abs());
                let (whole, fraction) = digits.split_at(20 - shift);
                let sign = if number < 0 { "-" } else { "" };
                if shift == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
            };
            let order = timestep(&scaled(one)).cmp(&timestep(&scaled(other)));
            prop_assert_eq!(order, one.cmp(&other));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9eE._:TZz é]{0,40}") {
            if let Ok(timestep) = text.parse::<Timestep>() {
                let bytes = minicbor::to_vec(timestep).unwrap();
                let back: Timestep = minicbor::decode(&bytes).unwrap();
                prop_assert_eq!(back.name(), text.as_str());
                prop_assert_eq!(back, timestep);
            }
            number_ends(&text, true).into_iter().chain(date_ends(&text)).for_each(|end| assert!(text.is_char_boundary(end)));
        }
    }
}
