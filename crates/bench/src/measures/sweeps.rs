//! OAB and ASB over the number of benefactors (the paper's Figures 2, 3 and 6) and over the window (Figures 4 and 5).

use crate::Error;
use crate::bench::{BENEFACTORS, BLOCK, Bench, WINDOW};
use crate::cpu;
use crate::row::{Row, section};
use crate::section::Section;
use crate::stock::Stock;
use crate::transfer;

/// Over the number of benefactors.
pub fn stripe(bench: &Bench) -> Result<Section, Error> {
    sweep(bench, bench.sizes.benefactors.iter().map(|count| (*count, WINDOW)))
}

/// Over the size of the window.
pub fn window(bench: &Bench) -> Result<Section, Error> {
    sweep(bench, bench.sizes.windows.iter().map(|window| (BENEFACTORS, *window)))
}

fn sweep(bench: &Bench, settings: impl Iterator<Item = (usize, u64)>) -> Result<Section, Error> {
    let mut stock = Stock::new();
    let mut rows = Vec::new();
    for (benefactors, window) in settings {
        rows.extend(oab_and_asb(bench, benefactors, window, &mut stock)?);
    }
    section(&rows, Vec::new())
}

fn oab_and_asb(bench: &Bench, benefactors: usize, window: u64, stock: &mut Stock) -> Result<Vec<Row>, Error> {
    let pool = bench.up(benefactors, window)?;
    let mut rows = Vec::new();
    for (name, close) in [("mount, OAB", "close=stored"), ("mount, ASB", "close=durable")] {
        let folder = pool.folder(&close.replace('=', "-"), &["replicas=1", close])?;
        let mut row = Row::new(name, benefactors, window, BLOCK);
        for round in 0..=bench.sizes.rounds {
            stock.renew();
            let before = cpu::seconds_with(&pool.pids(""));
            let path = folder.join(format!("run.N0.T{round}"));
            let seconds = transfer::write(&path, bench.content(), stock, false)?;
            if round > 0 {
                row.add(bench.sizes.file_bytes, seconds, cpu::seconds_with(&pool.pids("")) - before);
            }
        }
        rows.push(row);
    }
    Ok(rows)
}
