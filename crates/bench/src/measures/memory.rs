//! Memory of the mount while it takes a file much larger than its window.

use crate::Error;
use crate::bench::{BENEFACTORS, BLOCK, Bench, WINDOW};
use crate::cpu;
use crate::row::{Row, at_most, section};
use crate::section::Section;
use crate::stock::Stock;
use crate::transfer::{self, Content};

/// Writes one large file and takes the mount's peak.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let mut stock = Stock::new();
    let pool = bench.up(BENEFACTORS, WINDOW)?;
    let folder = pool.folder("large", &["redundancy=replicate:1"])?;
    let content = Content { bytes: bench.sizes.large_bytes, ..bench.content() };
    let before = cpu::seconds_with(&pool.pids(""));
    let seconds = transfer::write(&folder.join("run.N0.T0"), content, &mut stock, false)?;
    let mut row = Row::new("mount, one large file", BENEFACTORS, WINDOW, BLOCK);
    row.add(content.bytes, seconds, cpu::seconds_with(&pool.pids("")) - before);
    let peak = pool.pids("mount").first().and_then(|pid| cpu::peak_memory(*pid));
    let peak = peak.ok_or_else(|| Error("the mount's process was not found".to_owned()))?;
    row.memory(peak);
    let beyond = peak.saturating_sub(WINDOW) as f64 / f64::from(1 << 20);
    section(&[row], vec![at_most("peak memory of the mount beyond its window, MiB", beyond, 100.0)])
}
