//! Rows of programs with and without the library, and their table.

use std::fmt::Write as _;

use serde::Serialize;

use super::Wanted;
use crate::Error;
use crate::bench::Bench;
use crate::row::median;
use crate::section::{Section, Target, at_least, at_most};

/// A test in one mode: nanoseconds per operation of each run.
#[derive(Serialize)]
pub struct Row {
    test: String,
    mode: &'static str,
    /// Without the library.
    pub without: Vec<f64>,
    /// Under the library.
    pub with: Vec<f64>,
    paper_shares: &'static str,
    #[serde(skip)]
    pub(super) wanted: Wanted,
}

const HEADING: &str = "                                                     ns per operation\n\
     test                       mode            without       with  (least-most)      share   added  paper's shares\n";
const EXPLANATION: &str = "
share: speed under the library by that without it. paper's shares: Metamori's, with 100, 50, 25 MB of cache and none.
block_*, rewrite: 8 KiB in sequence. random_*: each 4 KiB page of an old file ten times on average, so that one in ten
overwrites saves. first_overwrites, fio: each page once, so that every one needs its old contents saved; fio lets go of the
file's cache first. unprotected_open_to_create: with O_CREAT and O_TRUNC, so that the file has to be looked at.
bonnie++: in the size named above; Metamori has caches of several sizes in the path of its writes, here is none.
checkpoint, restore: one MiB changed, page by page, all over a file of the size named; without the library, the time of
the file's fsync after the same change.
";

impl Row {
    /// A row without runs.
    pub fn new(test: impl Into<String>, mode: &'static str, paper_shares: &'static str) -> Self {
        Self {
            test: test.into(),
            mode,
            without: Vec::new(),
            with: Vec::new(),
            paper_shares,
            wanted: Wanted::Nothing,
        }
    }

    /// Test and mode.
    pub fn name(&self) -> String {
        format!("{}, {}", self.test, self.mode)
    }

    fn share(&self) -> f64 {
        median(&self.without) / median(&self.with)
    }

    fn added(&self) -> f64 {
        median(&self.with) - median(&self.without)
    }

    /// What the table says of it.
    pub fn line(&self) -> String {
        let least = self.with.iter().copied().fold(f64::MAX, f64::min);
        let most = self.with.iter().copied().fold(0.0, f64::max);
        let spread = format!("{least:.0}-{most:.0}");
        let (without, with) = (median(&self.without), median(&self.with));
        let (share, added, paper) = (self.share(), self.added(), self.paper_shares);
        let compared =
            format!("{without:>10.0} {with:>10.0} {spread:>17} {share:>7.2} {added:>7.0}  {paper}");
        format!("{:26} {:13} {}", self.test, self.mode, compared.trim_end())
    }

    fn target(&self) -> Option<Target> {
        let name = self.name();
        match self.wanted {
            Wanted::Share([wanted, ..]) => Some(at_least(name + ": share", self.share(), wanted)),
            Wanted::AddedNs(wanted) => Some(at_most(name + ": added, ns", self.added(), wanted)),
            Wanted::Ms(wanted) => Some(at_most(name + ": ms", median(&self.with) / 1e6, wanted)),
            Wanted::Nothing => None,
        }
    }
}

/// The section of these rows; programs that are missing here are named.
pub fn section(rows: &[Row], not_installed: &[&str], bench: &Bench) -> Result<Section, Error> {
    let states = &bench.sizes.states;
    let human = stdchk_model::size::human;
    let mut table = format!("files of {}, {} runs in turn", human(states.bytes), states.rounds);
    if let Some(bytes) = states.bonnie_bytes {
        let _ = write!(table, "; bonnie++ {}, {} of it and fio", human(bytes), states.tool_rounds);
    }
    let _ = write!(table, "\n\n{HEADING}");
    for row in rows {
        let _ = writeln!(table, "{}", row.line());
    }
    for program in not_installed {
        let _ = writeln!(table, "{program:26} not installed: not measured");
    }
    table.push_str(EXPLANATION);
    Ok(Section {
        rows: serde_json::to_value(rows)?,
        table,
        targets: rows.iter().filter_map(Row::target).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_speed_and_what_is_added_of_time() {
        let row = Row {
            without: vec![100.0, 90.0, 400.0],
            with: vec![125.0, 200.0, 110.0],
            ..Row::new("rewrite", "single", "")
        };
        assert_eq!((row.share(), row.added()), (0.8, 25.0));
        assert!(row.target().is_none());
    }

    #[test]
    fn a_time_is_wanted_in_milliseconds() {
        let met = |nanoseconds| {
            let (without, with) = (vec![1e6], vec![nanoseconds]);
            let row = Row { without, with, wanted: Wanted::Ms(20.0), ..Row::new("restore", "single", "") };
            serde_json::to_value(row.target().unwrap()).unwrap()["met"].as_bool()
        };
        assert_eq!((met(19e6), met(21e6)), (Some(true), Some(false)));
    }
}
