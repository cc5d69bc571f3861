//! Texts and times as messages and JSON have them.

use serde::Serializer;
use stdchk_aggregate::shown_byte;
use stdchk_model::message::manager::TimeNs;

const NS_PER_SECOND: i64 = 1_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// `number` things, in words: `1 file`, `2 files`.
pub fn count(number: impl std::fmt::Display, thing: &str) -> String {
    let number = number.to_string();
    if number == "1" { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// `name` with characters escaped that play with a terminal: control characters, and those that turn the direction of writing or part lines.
/// Bytes that are no UTF-8 as [`in_json`] has them.
pub fn shown(name: &str) -> String {
    let one = |c: char| {
        if c.is_control() || moves_text(c) { c.escape_default().to_string() } else { c.to_string() }
    };
    in_json(name).chars().map(one).collect()
}

/// Whether a character says how others stand (Unicode, annex 9: marks, embeddings, overrides and isolates; line and paragraph separators).
fn moves_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `name` with bytes that are no UTF-8 as `\xff`.
pub fn in_json(name: &str) -> String {
    let one = |c: char| shown_byte(c).map_or_else(|| c.to_string(), |byte| format!("\\x{byte:02x}"));
    name.chars().map(one).collect()
}

/// A time as RFC 3339 in UTC with nanoseconds, for JSON.
pub fn time_exact(time: TimeNs) -> String {
    format!("{}.{:09}Z", date(time), time.rem_euclid(NS_PER_SECOND))
}

/// A time for people, to the second, UTC.
pub fn time(time: TimeNs) -> String {
    format!("{}Z", date(time)).replace('T', " ")
}

fn date(time: TimeNs) -> String {
    let seconds = time.div_euclid(NS_PER_SECOND);
    let (year, month, day) = civil(seconds.div_euclid(SECONDS_PER_DAY));
    let second = seconds.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
}

/// Year, month and day of a day counted from 1970-01-01 (H. Hinnant, "chrono-compatible low-level date algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468; // days since 0000-03-01
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A message without the ` (os error 2)` that the standard library puts behind the system's words.
pub fn without_numbers(message: &str) -> String {
    let mut pieces = message.split(" (os error ");
    let mut plain = pieces.next().map(str::to_owned).unwrap_or_default();
    for piece in pieces {
        let after = piece.trim_start_matches(|c: char| c.is_ascii_digit());
        plain.push_str(after.strip_prefix(')').unwrap_or(after));
    }
    plain
}

/// A time in JSON.
pub(crate) fn in_time<S: Serializer>(time: &TimeNs, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&time_exact(*time))
}

/// A time in JSON that may be unknown.
pub(crate) fn in_time_if_known<S: Serializer>(time: &Option<TimeNs>, out: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => in_time(time, out),
        None => out.serialize_none(),
    }
}

/// Permission bits in JSON, as `chmod` takes them.
pub(crate) fn in_octal<S: Serializer>(mode: &u32, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&format!("{mode:04o}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc_dates() {
        assert_eq!(time_exact(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(time_exact(951_782_400_000_000_001), "2000-02-29T00:00:00.000000001Z");
        assert_eq!(time(1_795_235_416_000_000_000), "2026-11-21 04:30:16Z");
        assert_eq!(time(-1), "1969-12-31 23:59:59Z");
    }

    #[test]
    fn a_name_cannot_play_with_the_terminal() {
        assert_eq!(shown("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(shown("größe 1"), "größe 1");
        assert_eq!(shown("run.\u{202e}1T.0N"), "run.\\u{202e}1T.0N");
        for c in ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{202a}', '\u{2066}', '\u{2069}'] {
            assert!(shown(&c.to_string()).starts_with('\\'), "{c:?}");
        }
        assert_eq!(shown("שלום"), "שלום", "a text that is written from right to left is one");
    }
}
