//! What a measure found: rows for programs, a table for people, and which targets were met.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use crate::Error;
use crate::bench::Size;
use crate::machine::Machine;
use crate::measures::Measure;

/// The results of one measure.
pub struct Section {
    /// Its rows, of whatever kind it has.
    pub rows: serde_json::Value,
    /// Its rows as text for people, with headings and explanations.
    pub table: String,
    /// What the rows should reach.
    pub targets: Vec<Target>,
}

/// A ratio that the project wants to reach.
#[derive(Serialize)]
pub struct Target {
    what: String,
    value: f64,
    wanted: f64,
    met: bool,
}

/// A target that is met from `wanted` on.
pub fn at_least(what: impl Into<String>, value: f64, wanted: f64) -> Target {
    Target { what: what.into(), value, wanted, met: value >= wanted }
}

/// A target that is met up to `wanted`.
pub fn at_most(what: impl Into<String>, value: f64, wanted: f64) -> Target {
    Target { what: what.into(), value, wanted, met: value <= wanted }
}

#[derive(Serialize)]
struct Written<'a> {
    measure: &'static str,
    what: &'static str,
    size: Size,
    machine: &'a Machine,
    rows: &'a serde_json::Value,
    targets: &'a [Target],
}

/// Writes `NAME.json` and `NAME.txt` into `dir`, and the table to standard output.
pub fn write(
    dir: &Path,
    machine: &Machine,
    size: Size,
    measure: &Measure,
    section: &Section,
) -> Result<(), Error> {
    let Section { rows, targets, .. } = section;
    let written = Written { measure: measure.name, what: measure.what, size, machine, rows, targets };
    let text = text(measure, section);
    std::fs::write(dir.join(format!("{}.json", measure.name)), serde_json::to_string_pretty(&written)?)?;
    std::fs::write(dir.join(format!("{}.txt", measure.name)), format!("{}\n{text}", machine.line()))?;
    print!("{text}");
    Ok(())
}

fn text(measure: &Measure, section: &Section) -> String {
    let mut text = format!("\n{}: {}\n\n{}", measure.name, measure.what, section.table);
    if !section.targets.is_empty() {
        text.push('\n');
    }
    for target in &section.targets {
        let verdict = if target.met { "met" } else { "MISSED" };
        let Target { what, value, wanted, .. } = target;
        let _ = writeln!(text, "{what:64} {value:>8.3}   wanted {wanted:>6.2}   {verdict}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_at_its_bound_and_never_by_what_was_not_measured() {
        assert!(at_least("a", 1.5, 1.5).met && !at_least("a", 1.49, 1.5).met);
        assert!(at_most("a", 0.5, 0.5).met && !at_most("a", 0.51, 0.5).met);
        assert!(!at_least("a", f64::NAN, 0.0).met && !at_most("a", f64::NAN, 1.0).met);
    }
}
