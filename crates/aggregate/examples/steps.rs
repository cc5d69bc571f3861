//! Times steps on a file: `cargo run --release -p stdchk-aggregate --example steps -- SIZE FILE...`, SIZE being that of
//! its elements.
//!
//! Relies on the crate's public functions. The idea: what `choose.rs` believes of the time of steps is measured here, in
//! nanoseconds of processor time per byte.

use std::fs;

use rustix::time::{ClockId, clock_gettime};
use stdchk_aggregate::codec::{Lane, Shape, Side, Step, decode, encode};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Bytes that are coded at once, as in a block.
const BLOCK: usize = 4 << 20;

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let size: u32 = words.next().unwrap_or_default().parse().unwrap_or(8);
    let mut bytes = Vec::new();
    for path in words {
        bytes.extend(fs::read(path)?);
    }
    if bytes.is_empty() {
        bytes = (0..BLOCK / 8).flat_map(|n| (n as f64 / 1e3).sin().to_le_bytes()).collect();
    }
    let (lane, distances) = match size {
        2 => (Lane::F16, Lane::U16),
        4 => (Lane::F32, Lane::U32),
        _ => (Lane::F64, Lane::U64),
    };
    for chain in [
        vec![Step::Shuffle(size)],
        vec![Step::BitShuffle(size)],
        vec![Step::Difference(lane)],
        vec![Step::Lorenzo(lane)],
        vec![Step::Distinct(size)],
        vec![Step::Lz4],
        vec![Step::Zstd(1)],
        vec![Step::Zstd(3)],
        vec![Step::Planes(size, 1)],
        vec![Step::Planes(size, 3)],
        vec![Step::Lorenzo(lane), Step::Planes(size, 1)],
        vec![Step::Pco(lane, 2)],
        vec![Step::Pco(lane, 4)],
        vec![Step::Pco(lane, 8)],
        vec![Step::Lorenzo(lane), Step::Pco(distances, 2)],
    ] {
        if size != 2 || !chain.contains(&Step::Distinct(2)) {
            row(&chain, &bytes)?;
        }
    }
    Ok(())
}

fn row(chain: &[Step], bytes: &[u8]) -> Outcome<()> {
    let shape = |block: &[u8]| [Shape(vec![block.len() as u64])];
    let mut blocks = Vec::new();
    let (encoding, ()) = timed(|| {
        blocks.clear();
        for block in bytes.chunks(BLOCK) {
            blocks.push(encode(chain, block, Side { shapes: &shape(block), base: &[] })?);
        }
        Ok(())
    })?;
    let (decoding, ()) = timed(|| {
        for (block, coded) in bytes.chunks(BLOCK).zip(&blocks) {
            decode(chain, coded, block.len(), Side { shapes: &shape(block), base: &[] })?;
        }
        Ok(())
    })?;
    let stored: usize = blocks.iter().map(Vec::len).sum();
    let (per_byte, ratio) = (1e9 / bytes.len() as f64, bytes.len() as f64 / stored as f64);
    println!(
        "{ratio:7.3}:1 {:7.2} ns/B in {:7.2} ns/B out  {chain:?}",
        encoding * per_byte,
        decoding * per_byte
    );
    Ok(())
}

/// Processor seconds of the fastest of five runs.
fn timed<T>(mut work: impl FnMut() -> Outcome<T>) -> Outcome<(f64, T)> {
    let seconds = || {
        let now = clock_gettime(ClockId::ProcessCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    };
    let mut best = f64::INFINITY;
    let mut result = work()?;
    for _ in 0..5 {
        let before = seconds();
        result = work()?;
        best = best.min(seconds() - before);
    }
    Ok((best, result))
}
