//! Unique data, the same data again, half-repeated data, reading it back cold, and how soon its first byte is there.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::Error;
use crate::bench::{BENEFACTORS, BLOCK, Bench, WINDOW};
use crate::cpu;
use crate::pool::LocalPool;
use crate::row::{Row, at_least, at_most, median, section};
use crate::section::Section;
use crate::stock::Stock;
use crate::transfer::{self, Content};

const KINDS: [&str; 3] = ["first write", "same again", "half repeated"];

/// Pages of a file of which every second one is a hole, bytes: each of the others is an extent of its chunk map.
const PAGE_BYTES: usize = 4096;
/// What a program may wait for the first byte of a file after it opened it, cold, seconds: a small one takes four round trips and
/// a read of the disk; a large map is fetched in two more, whatever its size, and decoded. A person takes both for at once.
const FIRST_BYTE_SECONDS: [(&str, f64); 2] = [("of one chunk", 0.02), ("in scattered pages", 0.2)];

/// Measures all of them in turn.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let mut stock = Stock::new();
    let pool = bench.up(BENEFACTORS, WINDOW)?;
    let folder = pool.folder("oab", &["redundancy=replicate:1", "close=stored"])?;
    let durable = pool.folder("asb", &["redundancy=replicate:1", "close=durable"])?;
    let row = |name: &str| Row::new(&format!("mount, {name}"), BENEFACTORS, WINDOW, BLOCK);
    let mut rows = KINDS.map(row);
    let (mut asb, mut cold) = (row("ASB"), row("read, cold"));
    let scattered = pool.folder("scattered", &["redundancy=replicate:1", "cutter=fsch:4KiB"])?;
    let mut first_bytes = FIRST_BYTE_SECONDS.map(|_| Vec::new());
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
        stock.renew();
        let files = ["chunk", "pages"].map(|name| scattered.join(format!("{name}.N0.T{round}")));
        transfer::write(&files[0], Content { bytes: BLOCK as u64, ..first }, &mut stock, false)?;
        write_pages(&files[1], first.bytes, &mut stock)?;
        for (file, seconds) in files.iter().zip(&mut first_bytes) {
            let took = first_byte(file)?;
            seconds.extend(measured.then_some(took));
        }
    }
    let [first, again, _] = &rows;
    let mut targets = vec![
        at_least("same data again / first time", again.rate() / first.rate(), 1.5),
        at_most("bytes stored for the same data again / its size", again.stored_share(), 0.01),
        at_least("cold read / ASB", cold.rate() / asb.rate(), 1.0),
    ];
    targets.extend(first_bytes.iter().zip(FIRST_BYTE_SECONDS).map(|(seconds, (of, most))| {
        at_most(format!("seconds from open to the first byte, cold, file {of}"), median(seconds), most)
    }));
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

/// Writes a file of which every second page is a hole.
fn write_pages(path: &Path, bytes: u64, stock: &mut Stock) -> Result<(), Error> {
    let mut file = File::create(path)?;
    let zeros = [0; PAGE_BYTES];
    for at in (0..bytes).step_by(2 * PAGE_BYTES) {
        file.write_all(stock.at(at, PAGE_BYTES, 2))?;
        file.write_all(&zeros)?;
    }
    nix::unistd::close(file).map_err(std::io::Error::from)?;
    Ok(())
}

/// Seconds from `open()` to the first byte, with nothing of the file in memory.
fn first_byte(path: &Path) -> Result<f64, Error> {
    transfer::drop_caches()?;
    let began = Instant::now();
    File::open(path)?.read_exact_at(&mut [0], 0)?;
    Ok(began.elapsed().as_secs_f64())
}
