//! What commands print: lines, tables and JSON on standard output, notes on standard error.
//!
//! A reader that goes away (`stdchk ls | head -1`) ends the command with [`Exit::BrokenPipe`], never with a panic.
//! Names go through [`shown`], so that a name can't play with the terminal.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;
pub use stdchk_operations::text::{in_json, shown, time, time_exact};

use crate::exit::{CommandError, Exit, Outcome};

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

/// Longest cell, in characters, to which the others of its column are padded.
const WIDTH_MAX: usize = 48;

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
        let lengths = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        // Behind a long name the other cells of its row move to the right, rather than those of all rows.
        lengths.filter(|length| *length <= WIDTH_MAX).max().unwrap_or(0)
    }
}

/// `number` things, in words: `1 file`, `2 files`.
pub fn count(number: impl Display, thing: &str) -> String {
    stdchk_operations::text::count(number, thing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_cell_does_not_widen_the_rows_of_others() {
        let mut table = Table::new(&["name", ">size"]);
        table.row(["n".repeat(200), "10 B".to_owned()]);
        table.row(["longer".to_owned(), "9 B".to_owned()]);
        assert_eq!(
            table.text(),
            ["name    size".to_owned(), format!("{}  10 B", "n".repeat(200)), "longer   9 B".to_owned()]
        );
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["name", ">size"]);
        table.row(["a".to_owned(), "10 B".to_owned()]);
        table.row(["longer".to_owned(), "9 B".to_owned()]);
        assert_eq!(table.text(), ["name    size", "a       10 B", "longer   9 B"]);
    }
}
