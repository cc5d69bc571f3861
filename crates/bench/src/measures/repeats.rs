//! Unique data, the same data again, half-repeated data, and reading it back cold.

use std::path::Path;

use crate::Error;
use crate::bench::{BENEFACTORS, BLOCK, Bench, WINDOW};
use crate::cpu;
use crate::pool::LocalPool;
use crate::row::{Row, at_least, at_most, section};
use crate::section::Section;
use crate::stock::Stock;
use crate::transfer::{self, Content};

const KINDS: [&str; 3] = ["first write", "same again", "half repeated"];

/// Measures all of them in turn.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let mut stock = Stock::new();
    let pool = bench.up(BENEFACTORS, WINDOW)?;
    let folder = pool.folder("oab", &["replicas=1", "close=stored"])?;
    let durable = pool.folder("asb", &["replicas=1", "close=durable"])?;
    let row = |name: &str| Row::new(&format!("mount, {name}"), BENEFACTORS, WINDOW, BLOCK);
    let mut rows = KINDS.map(row);
    let (mut asb, mut cold) = (row("ASB"), row("read, cold"));
    for round in 0..=bench.sizes.rounds {
        let measured = round > 0;
        stock.renew();
        let first = bench.content();
        let contents = [first, first, Content { salt: 1, repeated: Some(0), ..first }];
        for (place, (row, content)) in rows.iter_mut().zip(contents).enumerate() {
            let path = folder.join(format!("run.N{place}.T{round}"));
            write(&pool, &path, content, &mut stock, measured.then_some(row))?;
        }
        stock.renew();
        let path = durable.join(format!("run.N0.T{round}"));
        write(&pool, &path, first, &mut stock, measured.then_some(&mut asb))?;
        read_cold(&pool, &path, first.bytes, measured.then_some(&mut cold))?;
    }
    let [first, again, _] = &rows;
    let targets = vec![
        at_least("same data again / first time", again.rate() / first.rate(), 1.5),
        at_most("bytes stored for the same data again / its size", again.stored_share(), 0.01),
        at_least("cold read / ASB", cold.rate() / asb.rate(), 1.0),
    ];
    section(&rows.into_iter().chain([asb, cold]).collect::<Vec<_>>(), targets)
}

fn write(
    pool: &LocalPool,
    path: &Path,
    content: Content,
    stock: &mut Stock,
    row: Option<&mut Row>,
) -> Result<(), Error> {
    let stored = pool.stored_bytes()?;
    let before = cpu::seconds_with(&pool.pids(""));
    let seconds = transfer::write(path, content, stock, false)?;
    let cpu = cpu::seconds_with(&pool.pids("")) - before;
    if let Some(row) = row {
        row.add(content.bytes, seconds, cpu);
        row.stored(pool.stored_bytes()?.saturating_sub(stored));
    }
    Ok(())
}

fn read_cold(pool: &LocalPool, path: &Path, expected: u64, row: Option<&mut Row>) -> Result<(), Error> {
    transfer::drop_caches()?;
    let before = cpu::seconds_with(&pool.pids(""));
    let (seconds, bytes) = transfer::read(path)?;
    if bytes != expected {
        return Err(Error(format!("{}: {bytes} bytes came back", path.display())));
    }
    if let Some(row) = row {
        row.add(bytes, seconds, cpu::seconds_with(&pool.pids("")) - before);
    }
    Ok(())
}
