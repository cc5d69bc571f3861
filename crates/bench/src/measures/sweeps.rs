//! The write protocols over the number of benefactors (the paper's Figures 2 and 3), and the sliding window over its size
//! with some of these numbers (Figures 4 and 5; Figure 6 is the window of 512 MiB).
//!
//! Three rates are kept apart. OAB-early is the paper's OAB: the application has closed the file, and its bytes are still
//! on their way. OAB: `close` returned once all is stored at benefactors. ASB: all is durable and committed.

use std::time::Instant;

use crate::Error;
use crate::bench::{BLOCK, Bench, WINDOW};
use crate::cpu;
use crate::pool::LocalPool;
use crate::row::{Row, section};
use crate::section::Section;
use crate::stock::Stock;
use crate::transfer;

/// A protocol and the rate that is measured of it.
struct Kind {
    name: &'static str,
    policy: [&'static str; 2],
    /// Whether the time goes on until the version is committed, though `close` returns before.
    until_committed: bool,
}

const fn kind(name: &'static str, policy: [&'static str; 2]) -> Kind {
    Kind { name, policy, until_committed: false }
}

/// The sliding window, which the paper studies over its size.
static SLIDING: [Kind; 3] = [
    kind("SW, OAB-early", ["protocol=sw", "close=early"]),
    kind("SW, OAB", ["protocol=sw", "close=stored"]),
    kind("SW, ASB", ["protocol=sw", "close=durable"]),
];
/// The protocols with local files. The `close` of complete local write never waits for the pool.
static LOCAL: [Kind; 5] = [
    kind("CLW, OAB-early", ["protocol=clw", "close=early"]),
    Kind { until_committed: true, ..kind("CLW, ASB", ["protocol=clw", "close=early"]) },
    kind("IW, OAB-early", ["protocol=iw", "close=early"]),
    kind("IW, OAB", ["protocol=iw", "close=stored"]),
    kind("IW, ASB", ["protocol=iw", "close=durable"]),
];

/// All protocols over the number of benefactors.
pub fn stripe(bench: &Bench) -> Result<Section, Error> {
    let kinds: Vec<&Kind> = SLIDING.iter().chain(&LOCAL).collect();
    sweep(bench, &kinds, bench.sizes.benefactors.iter().map(|count| (*count, WINDOW)))
}

/// The sliding window over its size.
pub fn window(bench: &Bench) -> Result<Section, Error> {
    let counts = bench.sizes.window_benefactors;
    let windows = bench.sizes.windows.iter();
    let kinds: Vec<&Kind> = SLIDING.iter().collect();
    sweep(bench, &kinds, windows.flat_map(|window| counts.iter().map(move |count| (*count, *window))))
}

fn sweep(
    bench: &Bench,
    kinds: &[&Kind],
    settings: impl Iterator<Item = (usize, u64)>,
) -> Result<Section, Error> {
    let mut stock = Stock::new();
    let mut rows = Vec::new();
    for (benefactors, window) in settings {
        rows.extend(in_turn(bench, kinds, benefactors, window, &mut stock)?);
    }
    section(&rows, Vec::new())
}

/// All kinds on one pool, in turn.
fn in_turn(
    bench: &Bench,
    kinds: &[&Kind],
    benefactors: usize,
    window: u64,
    stock: &mut Stock,
) -> Result<Vec<Row>, Error> {
    let pool = bench.up(benefactors, window)?;
    for (place, kind) in kinds.iter().enumerate() {
        let [protocol, close] = kind.policy;
        pool.folder(&folder(place), &["redundancy=replicate:1", protocol, close])?;
    }
    let mut rows: Vec<Row> =
        kinds.iter().map(|kind| Row::new(kind.name, benefactors, window, BLOCK)).collect();
    for round in 0..=bench.sizes.rounds {
        for (place, (kind, row)) in kinds.iter().zip(&mut rows).enumerate() {
            stock.renew();
            let name = format!("{}/run.N0.T{round}", folder(place));
            let (seconds, cpu) = once(bench, &pool, kind, &name, stock)?;
            if round > 0 {
                row.add(bench.sizes.file_bytes, seconds, cpu);
            }
        }
    }
    Ok(rows)
}

fn folder(place: usize) -> String {
    format!("kind{place}")
}

/// One file; seconds as its kind counts them, and the CPU seconds until it was committed, whatever was waited for.
fn once(
    bench: &Bench,
    pool: &LocalPool,
    kind: &Kind,
    name: &str,
    stock: &mut Stock,
) -> Result<(f64, f64), Error> {
    rustix::fs::sync();
    let before = cpu::seconds_with(&pool.pids(""));
    let began = Instant::now();
    let closed = transfer::write(&pool.mount_point().join(name), bench.content(), stock, false)?;
    let asking = pool.wait_committed(name, bench.sizes.file_bytes)?;
    let committed = began.elapsed().as_secs_f64();
    let seconds = if kind.until_committed { committed } else { closed };
    Ok((seconds, cpu::seconds_with(&pool.pids("")) - before - asking))
}
