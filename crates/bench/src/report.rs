//! One JSON file and one table: medians, spreads, ratios, and which targets were met.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use stdchk_model::size;

use crate::Error;
use crate::machine::Machine;

/// A measured row.
#[derive(Serialize)]
pub struct Row {
    name: String,
    benefactors: usize,
    window_bytes: u64,
    block_bytes: usize,
    bytes: u64,
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    stored_bytes: Vec<u64>,
    peak_memory_bytes: Option<u64>,
}

impl Row {
    /// A row without runs.
    pub fn new(name: &str, benefactors: usize, window_bytes: u64, block_bytes: usize) -> Self {
        Self {
            name: name.to_owned(),
            benefactors,
            window_bytes,
            block_bytes,
            bytes: 0,
            seconds: Vec::new(),
            cpu_seconds: Vec::new(),
            stored_bytes: Vec::new(),
            peak_memory_bytes: None,
        }
    }

    /// Adds a run.
    pub fn add(&mut self, bytes: u64, seconds: f64, cpu_seconds: f64) {
        self.bytes = bytes;
        self.seconds.push(seconds);
        self.cpu_seconds.push(cpu_seconds);
    }

    /// Adds what the pool grew by in the last run.
    pub fn stored(&mut self, bytes: u64) {
        self.stored_bytes.push(bytes);
    }

    /// Sets the highest memory use.
    pub fn memory(&mut self, bytes: u64) {
        self.peak_memory_bytes = Some(bytes);
    }

    /// Median rate, megabytes (10^6) per second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / median(&self.seconds)
    }

    /// CPU seconds of all processes together per 10^9 bytes, median.
    fn cpu_per_gigabyte(&self) -> f64 {
        median(&self.cpu_seconds) / (self.bytes as f64 / 1e9)
    }

    fn line(&self) -> String {
        let (slowest, fastest) = (
            self.seconds.iter().copied().fold(0.0, f64::max),
            self.seconds.iter().copied().fold(f64::MAX, f64::min),
        );
        let spread =
            format!("{:.0}-{:.0}", self.bytes as f64 / 1e6 / slowest, self.bytes as f64 / 1e6 / fastest);
        let mut extra = String::new();
        if !self.stored_bytes.is_empty() {
            let share = median_of(&self.stored_bytes) / self.bytes as f64 * 100.0;
            let _ = write!(extra, "{share:.1} % stored");
        }
        if let Some(bytes) = self.peak_memory_bytes {
            let _ = write!(extra, "peak memory {}", size::human(bytes));
        }
        format!(
            "{:32} {:>3} {:>8} {:>7} {:>9} {:>9.0} {:>13} {:>8.2}  {extra}",
            self.name,
            self.benefactors,
            size::exact(self.window_bytes),
            size::exact(self.block_bytes as u64),
            size::human(self.bytes),
            self.rate(),
            spread,
            self.cpu_per_gigabyte(),
        )
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted.get(count / 2).copied().unwrap_or(f64::NAN),
        count => {
            sorted.get(count / 2 - 1..=count / 2).map_or(f64::NAN, |pair| pair.iter().sum::<f64>() / 2.0)
        }
    }
}

fn median_of(values: &[u64]) -> f64 {
    median(&values.iter().map(|value| *value as f64).collect::<Vec<_>>())
}

/// A ratio that the project wants to reach.
#[derive(Serialize)]
struct Target {
    what: &'static str,
    value: f64,
    wanted: f64,
    met: bool,
}

fn targets(rows: &[Row]) -> Vec<Target> {
    let rate = |name: &str| rows.iter().find(|row| row.name == name).map(Row::rate);
    let at_least = |what, value: Option<f64>, wanted| {
        value.map(|value| Target { what, value, wanted, met: value >= wanted })
    };
    let at_most = |what, value: Option<f64>, wanted| {
        value.map(|value| Target { what, value, wanted, met: value <= wanted })
    };
    let ratio = |over: &str, under: &str| Some(rate(over)? / rate(under)?);
    let again = rows.iter().find(|row| row.name == "mount, same again");
    let stored_again = again.map(|row| median_of(&row.stored_bytes) / row.bytes as f64);
    let large = rows.iter().find(|row| row.peak_memory_bytes.is_some());
    let memory = large
        .and_then(|row| Some(row.peak_memory_bytes?.saturating_sub(row.window_bytes) as f64 / 1048576.0));
    [
        at_least("OAB / do-nothing mount", ratio("mount, OAB", "do-nothing mount"), 0.5),
        at_least("ASB / plain file with fsync", ratio("mount, ASB", "plain file, fsync"), 0.7),
        at_least("same data again / first time", ratio("mount, same again", "mount, first write"), 1.5),
        at_most("bytes stored for the same data again / its size", stored_again, 0.01),
        at_least("cold read / ASB", ratio("mount, read, cold", "mount, ASB"), 1.0),
        at_least("4 KiB writes / 1 MiB writes", ratio("mount, OAB, 4 KiB writes", "mount, OAB"), 0.5),
        at_most("peak memory of the mount beyond its window, MiB", memory, 100.0),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[derive(Serialize)]
struct Report<'a> {
    machine: Machine,
    rows: &'a [Row],
    targets: Vec<Target>,
}

/// Writes `bench.json` and `bench.txt` into `dir` and the table to standard output.
pub fn write(dir: &Path, rows: &[Row]) -> Result<(), Error> {
    let report = Report { machine: Machine::look(), rows, targets: targets(rows) };
    let table = table(&report);
    std::fs::write(dir.join("bench.json"), serde_json::to_string_pretty(&report)?)?;
    std::fs::write(dir.join("bench.txt"), &table)?;
    print!("{table}");
    Ok(())
}

fn table(report: &Report<'_>) -> String {
    let mut text = format!("{}\n\n", report.machine.line());
    text.push_str(
        "                                   b   window   block      file      MB/s  (least-most)   CPU s/GB\n",
    );
    report.rows.iter().for_each(|row| text.push_str(&(row.line().trim_end().to_owned() + "\n")));
    text.push_str(
        "\nOAB: close returns once all is stored at benefactors. ASB: once all is durable and committed. b: benefactors.\n\
         MB = 10^6 bytes; medians; CPU of the writer and of all processes of the pool, without kernel threads.\n\n",
    );
    for target in &report.targets {
        let verdict = if target.met { "met" } else { "MISSED" };
        let _ = writeln!(
            text,
            "{:50} {:>8.3}   wanted {:>6.2}   {verdict}",
            target.what, target.value, target.wanted
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_target_is_only_judged_when_both_sides_were_measured() {
        let mut oab = Row::new("mount, OAB", 4, 1, 1);
        oab.add(1_000_000, 1.0, 1.0);
        assert!(targets(&[oab]).is_empty());
    }
}
