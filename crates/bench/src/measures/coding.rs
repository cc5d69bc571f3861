//! What erasure coding costs: the phases of an image by one thread and by several (FALCON's Figures 11 to 13 and its Table 3), and a pool on
//! this machine, without slow links, that stores with a code or with copies and reads while benefactors are dead.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use stdchk_model::limits::CHUNK_BYTES_DEFAULT;
use stdchk_model::{ChunkId, ChunkRef, Maker, Redundancy};
use stdchk_protect::Blocks;
use stdchk_reduce::{Codec, Effort};

use crate::Error;
use crate::bench::{BLOCK, Bench, Size, WINDOW};
use crate::coding::{Phases, Way, phases};
use crate::cpu;
use crate::paper::{Image, MCF, TIGR_I, TIGR_II};
use crate::pool::LocalPool;
use crate::row::{Row, at_least, at_most, median, section};
use crate::section::{Section, Target};
use crate::stock::Stock;
use crate::transfer::{self, Content};

const CODE: &str = "erasure:3,2";
/// Fragments of a chunk, each at another benefactor, and those that may be lost.
const BLOCKS: usize = 5;
const SPARE: usize = 2;
/// How often the cost of coding is measured.
const COST_ROUNDS: usize = 5;
/// The images of the paper's Table 3.
const IMAGES: [Image; 3] = [MCF, TIGR_I, TIGR_II];
const MB: u64 = 1_000_000;

const CODED: &str = "(3,2), durable";
const COPIED: &str = "two copies, durable";
const HEALTHY: &str = "(3,2), get, all benefactors there";

/// What coding may cost, and what the rates are to be.
const CODING_OF_STORE: f64 = 0.2;
const CODED_OF_COPIED: f64 = 0.8;
const WITHOUT_OF_HEALTHY: f64 = 0.9;

/// An image by so many threads.
#[derive(Serialize)]
struct ByThreads {
    image: &'static str,
    #[serde(flatten)]
    phases: Phases,
}

/// Measures both.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let smaller = match bench.size {
        Size::Tiny => 1000,
        Size::Small => 5,
        Size::Full => 1,
    };
    let by_threads = by_threads(smaller)?;
    let cost = cost_of_coding(bench)?;
    let rows = pool(bench)?;
    let mut section = section(&rows, targets(&rows, cost))?;
    section.table = format!("{}\n{}", table(&by_threads), section.table);
    section.rows = serde_json::json!({ "rows": rows, "by_threads": by_threads, "cpu_per_gb": cost });
    Ok(section)
}

/// Bytes that shrink to a share of themselves.
fn image(bytes: u64, shrinks_to: f64) -> Result<Bytes, Error> {
    let mut stock = Stock::shrinking_to(shrinks_to);
    let mut image = Vec::with_capacity(usize::try_from(bytes)?);
    while (image.len() as u64) < bytes {
        let length = BLOCK.min(usize::try_from(bytes - image.len() as u64)?);
        image.extend_from_slice(stock.at(image.len() as u64, length, 1));
    }
    Ok(Bytes::from(image))
}

/// Each image by one thread, by two and so on, as many as there are processors.
fn by_threads(smaller: u64) -> Result<Vec<ByThreads>, Error> {
    let most = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let way = Way { effort: Effort::Zstd(3), redundancy: CODE.parse()?, lost: 1 };
    let mut rows = Vec::new();
    for of_paper in IMAGES {
        let image = image(of_paper.mb * MB / smaller, of_paper.shrinks_to())?;
        for threads in std::iter::successors(Some(1), |threads| Some(threads * 2)).take_while(|t| *t <= most)
        {
            rows.push(ByThreads { image: of_paper.name, phases: phases(&image, threads, way)? });
        }
    }
    Ok(rows)
}

/// Seconds of one thread per 10^9 bytes that coding takes of bytes that are not compressed, and the hashes of the fragments.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    coding: f64,
    hashing: f64,
}

fn cost_of_coding(bench: &Bench) -> Result<Cost, Error> {
    let redundancy: Redundancy = CODE.parse()?;
    let image = image(bench.sizes.file_bytes, 1.0)?;
    let chunks = image.chunks(CHUNK_BYTES_DEFAULT).map(|chunk| {
        let chunk = image.slice_ref(chunk);
        Ok((ChunkRef { id: ChunkId::of(&chunk), length: u32::try_from(chunk.len())? }, chunk))
    });
    let chunks = chunks.collect::<Result<Vec<_>, Error>>()?;
    let (mut with_hashes, mut hashes) = (Vec::new(), Vec::new());
    // One more than are counted: the first brings memory, which the next ones have again, as in a client that writes for longer.
    for round in 0..=COST_ROUNDS {
        let (mut made, mut hashed) = (Duration::ZERO, Duration::ZERO);
        for (chunk, plain) in &chunks {
            let began = Instant::now();
            let code = redundancy.code_of(plain.len());
            let blocks = Blocks::of(*chunk, Codec::Store.number(), plain.clone(), code, Maker::LOCAL);
            made += began.elapsed();
            let began = Instant::now();
            for (_, stored) in blocks.iter() {
                std::hint::black_box(ChunkId::of(stored));
            }
            hashed += began.elapsed();
        }
        if round > 0 {
            with_hashes.push(made.as_secs_f64());
            hashes.push(hashed.as_secs_f64());
        }
    }
    let gigabytes = image.len() as f64 / 1e9;
    let (with_hashes, hashing) = (median(&with_hashes) / gigabytes, median(&hashes) / gigabytes);
    match with_hashes > hashing {
        true => Ok(Cost { coding: with_hashes - hashing, hashing }),
        false => Err(Error(
            "coding took no longer than its hashes: the machine is too busy to measure that".to_owned(),
        )),
    }
}

/// Rates of a pool on this machine.
fn pool(bench: &Bench) -> Result<Vec<Row>, Error> {
    let pool = bench.up(BLOCKS, WINDOW)?;
    let ways = [
        (CODED, "coded", format!("redundancy={CODE}")),
        (COPIED, "copied", "redundancy=replicate:2".to_owned()),
    ];
    for (_, folder, redundancy) in &ways {
        pool.folder(folder, &[redundancy, "semantics=pessimistic", "close=durable", "codec=store"])?;
    }
    let mut stock = Stock::new();
    let mut rows: Vec<Row> = ways.iter().map(|(name, ..)| Row::new(name, BLOCKS, WINDOW, BLOCK)).collect();
    for round in 0..=bench.sizes.rounds {
        for ((_, folder, _), row) in ways.iter().zip(&mut rows) {
            stock.renew();
            let content = Content { salt: round as u64, ..bench.content() };
            rustix::fs::sync();
            let before = cpu::seconds_with(&pool.pids(""));
            let path = pool.mount_point().join(folder).join(format!("run.N0.T{round}"));
            let seconds = transfer::write(&path, content, &mut stock, false)?;
            if round > 0 {
                row.add(content.bytes, seconds, cpu::seconds_with(&pool.pids("")) - before);
            }
        }
    }
    let newest = format!("coded/run.N0.T{}", bench.sizes.rounds);
    rows.push(gets(bench, &pool, HEALTHY, &newest)?);
    for (dead, pid) in (1..=SPARE).zip(pool.pids("benefactor")) {
        kill(pid)?;
        rows.push(gets(bench, &pool, &without(dead), &newest)?);
    }
    Ok(rows)
}

fn without(dead: usize) -> String {
    format!("(3,2), get, {dead} of {BLOCKS} benefactors dead")
}

fn kill(pid: u32) -> Result<(), Error> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| Error("no pid".to_owned()))?;
    Ok(kill_process(pid, Signal::KILL)?)
}

/// Reads a file cold, by a process of its own each time.
fn gets(bench: &Bench, pool: &LocalPool, name: &str, file: &str) -> Result<Row, Error> {
    let mut row = Row::new(name, BLOCKS, WINDOW, BLOCK);
    for _ in 0..bench.sizes.rounds {
        transfer::drop_caches()?;
        let (before, began) = (cpu::seconds_with(&pool.pids("")), Instant::now());
        pool.run(&["get", file, "-o", "/dev/null"])?;
        let seconds = began.elapsed().as_secs_f64();
        row.add(bench.sizes.file_bytes, seconds, cpu::seconds_with(&pool.pids("")) - before);
    }
    Ok(row)
}

fn targets(rows: &[Row], cost: Cost) -> Vec<Target> {
    let row = |name: &str| rows.iter().find(|row| row.is(name));
    let rate = |name: &str| row(name).map_or(f64::NAN, Row::rate);
    let store = row(CODED).map_or(f64::NAN, Row::cpu_per_gigabyte);
    let mut targets = vec![
        at_most(
            "coding, seconds of one thread / a store with (3,2), CPU seconds",
            cost.coding / store,
            CODING_OF_STORE,
        ),
        at_most(
            "the same, with the hashes of the fragments",
            (cost.coding + cost.hashing) / store,
            CODING_OF_STORE,
        ),
        at_least("(3,2) / two copies, rate of a store", rate(CODED) / rate(COPIED), CODED_OF_COPIED),
    ];
    targets.extend((1..=SPARE).map(|dead| {
        let what = format!("recovery with {dead} of {BLOCKS} benefactors dead / with all");
        at_least(what, rate(&without(dead)) / rate(HEALTHY), WITHOUT_OF_HEALTHY)
    }));
    targets
}

fn table(rows: &[ByThreads]) -> String {
    let mut text = "One data fragment of each chunk is lost when it is decoded; zstd:3; seconds\n\
                    image      threads      MB  MB a thread  coded MB a thread   compress    code   decode  decompress\n"
        .to_owned();
    for ByThreads { image, phases } in rows {
        let most = |of: &[u64]| of.iter().copied().max().unwrap_or_default() as f64 / MB as f64;
        let _ = writeln!(
            text,
            "{image:10} {:>7} {:>7.0} {:>12.1} {:>18.1} {:>10.2} {:>7.2} {:>8.2} {:>11.2}",
            phases.threads,
            phases.bytes as f64 / MB as f64,
            most(&phases.plain_of_threads),
            most(&phases.encoded_of_threads),
            phases.compress_seconds,
            phases.code_seconds,
            phases.decode_seconds,
            phases.decompress_seconds,
        );
    }
    text
}
