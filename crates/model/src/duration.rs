//! Durations as people write them: `90s`, `5min` or `5m`, `1.5h`, `7d`.

/// Units with their milliseconds, the longest first, and each as it is printed before other ways to write it.
const UNITS: [(&str, u64); 6] =
    [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Milliseconds of a duration; `None`: the text is none.
pub fn parse(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, name) = text.split_at(end);
    let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == name.trim_start())?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let whole = whole.parse::<u64>().ok()?.checked_mul(*unit)?;
    let parts = fraction.parse::<u64>().ok()?.checked_mul(*unit)?;
    whole.checked_add(parts / 10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?)
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
        for (text, ms) in
            [("0s", 0), ("10m", 600_000), ("1.5h", 5_400_000), ("0.25 s", 250), ("1.0005s", 1000)]
        {
            assert_eq!(parse(text), Some(ms), "{text}");
        }
        let wrong = ["", "s", "-1s", "+1s", ".5s", "1.s", "1..2s", "1.2.3s", "1e9h", "7", "7w", "7mins"];
        for text in
            wrong.into_iter().chain(["99999999999999999d", "0.99999999999999999999d", "1.999999999999999d"])
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
