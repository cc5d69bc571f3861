//! What commands print: lines, tables and JSON on standard output, notes on standard error.
//!
//! A reader that goes away (`stdchk ls | head -1`) ends the command with [`Exit::BrokenPipe`], never with a panic.
//! Names go through [`shown`], so that a name can't play with the terminal.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;
use stdchk_aggregate::shown_byte;
use stdchk_model::message::manager::TimeNs;

use crate::exit::{CommandError, Exit, Outcome};

const NS_PER_SECOND: i64 = 1_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// Prints one line on standard output.
pub fn line(text: impl Display) -> Outcome {
    written(writeln!(io::stdout().lock(), "{text}"))
}

/// Prints `value` as indented JSON and a newline.
pub fn json(value: &impl Serialize) -> Outcome {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CommandError::new(Exit::Other, "output", error, "report this as a defect"))?;
    line(text)
}

/// Writes one line on standard error; a standard error that is closed is nobody's loss.
pub fn note(text: impl Display) {
    drop(writeln!(io::stderr().lock(), "{text}"));
}

/// The outcome of writing to standard output.
pub fn written(result: io::Result<()>) -> Outcome {
    result.map_err(|error| unwritten(&error))
}

/// The error of a command whose standard output can't be written.
pub fn unwritten(error: &io::Error) -> CommandError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CommandError::reported(Exit::BrokenPipe),
        _ => crate::exit::from_io(error, "standard output"),
    }
}

/// Columns of text, aligned when printed. Numbers stand to the right.
pub struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; a heading that starts with `>` is of a column aligned to the right.
    pub fn new(headings: &[&str]) -> Self {
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        let row = headings.iter().map(|heading| heading.trim_start_matches('>').to_owned()).collect();
        Self { right, rows: vec![row] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints the table, if it has more than its headings.
    pub fn print(&self) -> Outcome {
        if self.rows.len() < 2 {
            return Ok(());
        }
        self.text().iter().try_for_each(line)
    }

    fn text(&self) -> Vec<String> {
        let widths: Vec<usize> = (0..self.right.len()).map(|column| self.width(column)).collect();
        let pad = |((cell, width), right): ((&String, &usize), &bool)| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        };
        let join = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().zip(&widths).zip(&self.right).map(pad).collect();
            cells.join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(join).collect()
    }

    fn width(&self, column: usize) -> usize {
        self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

/// `number` things, in words: `1 file`, `2 files`.
pub fn count(number: impl Display, thing: &str) -> String {
    let number = number.to_string();
    if number == "1" { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// `name` with control characters escaped, and bytes that are no UTF-8 as [`in_json`] has them.
pub fn shown(name: &str) -> String {
    let one = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    in_json(name).chars().map(one).collect()
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
    fn columns_are_aligned() {
        let mut table = Table::new(&["name", ">size"]);
        table.row(["a".to_owned(), "10 B".to_owned()]);
        table.row(["longer".to_owned(), "9 B".to_owned()]);
        assert_eq!(table.text(), ["name    size", "a       10 B", "longer   9 B"]);
    }

    #[test]
    fn a_name_cannot_play_with_the_terminal() {
        assert_eq!(shown("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(shown("größe 1"), "größe 1");
    }
}
