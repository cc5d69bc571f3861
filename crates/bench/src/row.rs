//! A transfer of one file, repeated: rate, spread, CPU time.

use std::fmt::Write as _;

use serde::Serialize;
use stdchk_model::size;

use crate::Error;
use crate::section::{Section, Target};
pub use crate::section::{at_least, at_most};

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

    /// Whether it has this name.
    pub fn is(&self, name: &str) -> bool {
        self.name == name
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
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / 1e6 / median(&self.seconds)
    }

    /// What the pool grew by, as a share of what was written, median.
    pub fn stored_share(&self) -> f64 {
        let stored: Vec<f64> = self.stored_bytes.iter().map(|bytes| *bytes as f64).collect();
        median(&stored) / self.bytes as f64
    }

    /// CPU seconds of all processes together per 10^9 bytes, median.
    pub fn cpu_per_gigabyte(&self) -> f64 {
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
            let _ = write!(extra, "{:.1} % stored", self.stored_share() * 100.0);
        }
        if let Some(bytes) = self.peak_memory_bytes {
            let _ = write!(extra, "peak memory {}", size::human(bytes));
        }
        format!(
            "{:36} {:>3} {:>8} {:>7} {:>9} {:>9.0} {:>13} {:>8.2}  {extra}",
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

/// The middle value, or the mean of the two in the middle; not a number for none.
pub fn median(values: &[f64]) -> f64 {
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

const HEADING: &str = "                                       b   window   block      file      MB/s  (least-most)   CPU s/GB\n";
const EXPLANATION: &str = "
OAB-early: close returns while bytes are on their way. OAB: once all is stored at benefactors. ASB: once all is durable and
committed. SW: sliding window, CLW: complete local write, IW: incremental write; without a word, SW. b: benefactors.
Files of a name that was written in large pieces before go past the page cache, on the pool's mount; the do-nothing mount
goes through it where nothing else is said. MB = 10^6 bytes; medians; CPU of the writer and of all processes of the pool, without kernel threads.
";

/// The section of these rows.
pub fn section(rows: &[Row], targets: Vec<Target>) -> Result<Section, Error> {
    let lines: String = rows.iter().map(|row| row.line().trim_end().to_owned() + "\n").collect();
    let table = format!("{HEADING}{lines}{EXPLANATION}");
    Ok(Section { rows: serde_json::to_value(rows)?, table, targets })
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
    fn a_row_gives_the_median_rate_and_share() {
        let mut row = Row::new("mount, OAB", 4, 1, 1);
        for (seconds, stored) in [(1.0, 100_000), (4.0, 300_000), (2.0, 200_000)] {
            row.add(1_000_000, seconds, 1.0);
            row.stored(stored);
        }
        assert_eq!((row.rate(), row.stored_share()), (0.5, 0.2));
    }
}
