//! Times of stores and recoveries, repeated: one row for each scheme and value of what is varied.

use std::fmt::Write as _;

use serde::Serialize;

use crate::row::median;

/// Seconds of one scheme.
#[derive(Serialize)]
pub struct Timed {
    /// How something was stored or brought back.
    pub scheme: String,
    /// What was varied: a number of clients or of hosts, a rate.
    pub over: u32,
    pub store_seconds: Vec<f64>,
    pub recover_seconds: Vec<f64>,
}

impl Timed {
    /// Nothing was measured yet.
    pub fn new(scheme: impl Into<String>, over: usize) -> Self {
        let over = u32::try_from(over).unwrap_or(u32::MAX);
        Self { scheme: scheme.into(), over, store_seconds: Vec::new(), recover_seconds: Vec::new() }
    }

    /// Median of the stores.
    pub fn stored(&self) -> f64 {
        median(&self.store_seconds)
    }

    /// Median of the recoveries.
    pub fn recovered(&self) -> f64 {
        median(&self.recover_seconds)
    }
}

/// The row of a scheme.
pub fn find<'a>(rows: &'a [Timed], scheme: &str, over: u32) -> Option<&'a Timed> {
    rows.iter().find(|row| row.scheme == scheme && row.over == over)
}

/// Rows as text, under a title.
pub fn table(title: &str, rows: &[Timed]) -> String {
    let mut text = format!("{title}\n{:40} {:>5} {:>10} {:>11}\n", "", "", "store, s", "recover, s");
    for row in rows {
        let seconds = |values: &[f64]| match values {
            [] => String::new(),
            _ => format!("{:.2}", median(values)),
        };
        let (stored, recovered) = (seconds(&row.store_seconds), seconds(&row.recover_seconds));
        let _ = writeln!(text, "{:40} {:>5} {stored:>10} {recovered:>11}", row.scheme, row.over);
    }
    text.push('\n');
    text
}
