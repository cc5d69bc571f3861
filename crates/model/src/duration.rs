//! Durations as people write them: `90s`, `5min`, `7d`.

/// Units, the longest first, with their milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)];

/// Milliseconds of a duration; `None`: the text is none, or one of no time at all.
pub fn parse(text: &str) -> Option<u64> {
    // `ms` also ends with `s`.
    let mut units = UNITS.iter().rev();
    let (number, unit) = units.find_map(|(name, unit)| Some((text.strip_suffix(name)?.trim_end(), *unit)))?;
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|ms| *ms > 0)
}

/// The duration in the longest unit that it is a multiple of; [`parse`] reads it back.
pub fn exact(ms: u64) -> String {
    let whole = |(_, unit): &&(&str, u64)| ms.is_multiple_of(*unit);
    let Some((name, unit)) = UNITS.iter().find(whole) else { unreachable!("all are multiples of 1 ms") };
    format!("{}{name}", ms / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them_and_printed_in_the_longest_unit() {
        for (text, ms) in [("7d", 604_800_000), ("90s", 90_000), ("5min", 300_000), ("250ms", 250)] {
            assert_eq!(parse(text), Some(ms), "{text}");
            assert_eq!(exact(ms), text);
        }
        assert_eq!(exact(48 * 3_600_000), "2d");
        for text in ["", "0s", "s", "-1s", "1.5h", "7", "7w", "99999999999999999d"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
