//! What a replay found, with intervals of confidence by block bootstrap.
//!
//! Failures come in bursts, so single failures aren't independent; blocks of time nearly are. The one idea: blocks are drawn with
//! replacement, the same draws for all variants, and each figure is computed anew from the drawn blocks; its interval is from the 2.5th to the 97.5th of a
//! hundred.

use std::fmt::Write as _;

use serde::Serialize;
use stdchk_placement::random::Random;

use crate::run::{Block, Settings, Variant};

/// Draws of the bootstrap.
const DRAWS: usize = 2000;

/// A figure with its interval of confidence of 95 %.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// From the blocks as they are.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// A variant's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The variant.
    pub name: String,
    /// Failures of compute hosts whose job had a checkpoint.
    pub failures: f64,
    /// Failures after which it could not be recovered.
    pub unrecoverable: f64,
    /// Their share, percent.
    pub unrecoverable_percent: Figure,
    /// That share less that of the first variant named `falcon`, percentage points; none without one.
    pub points_to_falcon: Option<Figure>,
    /// Work lost for each failure, seconds.
    pub lost_seconds: Figure,
    /// Time spent over time that was useful in the end.
    pub makespan: Figure,
    /// Checkpoints stored.
    pub checkpoints: f64,
    /// Parts made again for a hundred checkpoints.
    pub repairs_per_hundred: Figure,
    /// Bytes of these.
    pub repair_bytes_per_hundred: f64,
}

fn sum(blocks: &[Block]) -> Block {
    let mut sum = Block::default();
    blocks.iter().for_each(|block| sum.add(block));
    sum
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn share(block: &Block) -> f64 {
    100.0 * ratio(block.unrecoverable, block.failures)
}

/// A figure of the blocks and its interval.
fn figure(value: f64, mut drawn: Vec<f64>) -> Figure {
    drawn.sort_by(f64::total_cmp);
    let at = |per_mille: usize| {
        drawn.get(drawn.len().saturating_sub(1) * per_mille / 1000).copied().unwrap_or(value)
    };
    Figure { value, low: at(25), high: at(975) }
}

/// The figures of all variants.
#[must_use]
pub fn rows(blocks: &[Vec<Block>], variants: &[Variant], settings: &Settings) -> Vec<Row> {
    let count = blocks.first().map_or(0, Vec::len);
    let mut random = Random::new(settings.seed);
    let draws: Vec<Vec<usize>> =
        (0..DRAWS).map(|_| (0..count).map(|_| random.below(count)).collect()).collect();
    let drawn = |blocks: &[Block]| -> Vec<Block> {
        let one = |draw: &Vec<usize>| {
            let picked: Vec<Block> = draw.iter().filter_map(|place| blocks.get(*place).copied()).collect();
            sum(&picked)
        };
        draws.iter().map(one).collect()
    };
    let falcon = variants.iter().position(|variant| variant.name() == "falcon");
    let falcon = falcon.and_then(|place| blocks.get(place)).map(|blocks| (sum(blocks), drawn(blocks)));
    let row = |(variant, blocks): (&Variant, &Vec<Block>)| {
        let (all, drawn) = (sum(blocks), drawn(blocks));
        let of = |measure: &dyn Fn(&Block) -> f64| figure(measure(&all), drawn.iter().map(measure).collect());
        let points = falcon.as_ref().map(|(reference, their)| {
            let differences = drawn.iter().zip(their).map(|(own, other)| share(own) - share(other)).collect();
            figure(share(&all) - share(reference), differences)
        });
        let per_hundred = |block: &Block| 100.0 * ratio(block.repairs, block.checkpoints);
        Row {
            name: variant.name(),
            failures: all.failures,
            unrecoverable: all.unrecoverable,
            unrecoverable_percent: of(&share),
            points_to_falcon: points,
            lost_seconds: of(&|block: &Block| ratio(block.lost, block.all_failures)),
            makespan: of(&|block: &Block| ratio(block.spent, block.spent - block.lost)),
            checkpoints: all.checkpoints,
            repairs_per_hundred: of(&per_hundred),
            repair_bytes_per_hundred: per_hundred(&all) * settings.bytes as f64
                / settings.code.0.max(1) as f64,
        }
    };
    variants.iter().zip(blocks).map(row).collect()
}

/// The rows for people.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:26} {:>8} {:>6} {:>26} {:>24} {:>9} {:>22} {:>20} {:>10}\n",
        "policy",
        "failures",
        "lost",
        "unrecoverable, %",
        "points to falcon",
        "h lost",
        "makespan",
        "repairs per 100",
        "their MB"
    );
    let with = |figure: &Figure, digits: usize| {
        format!("{:.digits$} [{:.digits$}, {:.digits$}]", figure.value, figure.low, figure.high)
    };
    for row in rows {
        let points = row.points_to_falcon.as_ref().map_or_else(String::new, |points| with(points, 2));
        let _ = writeln!(
            text,
            "{:26} {:>8} {:>6} {:>26} {:>24} {:>9.2} {:>22} {:>20} {:>10.0}",
            row.name,
            row.failures,
            row.unrecoverable,
            with(&row.unrecoverable_percent, 3),
            points,
            row.lost_seconds.value / 3600.0,
            with(&row.makespan, 3),
            with(&row.repairs_per_hundred, 1),
            row.repair_bytes_per_hundred / 1e6,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_its_value_and_is_wider_where_failures_come_in_bursts() {
        let block = |failures: f64, unrecoverable: f64| Block { failures, unrecoverable, ..Block::default() };
        let even = vec![block(10.0, 1.0); 100];
        let mut bursts = vec![block(10.0, 0.0); 100];
        bursts.iter_mut().step_by(10).for_each(|block| block.unrecoverable = 10.0);
        let figures = |blocks: &[Block]| {
            let mut random = Random::new(1);
            let drawn = (0..500).map(|_| {
                let picked: Vec<Block> = (0..100).map(|_| blocks[random.below(100)]).collect();
                share(&sum(&picked))
            });
            figure(share(&sum(blocks)), drawn.collect())
        };
        let (even, bursts) = (figures(&even), figures(&bursts));
        assert_eq!((even.low, even.value, even.high), (10.0, 10.0, 10.0));
        assert!(bursts.value == 10.0 && bursts.low < 6.0 && bursts.high > 14.0, "{bursts:?}");
    }
}
