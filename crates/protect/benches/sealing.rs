//! What encryption costs of a processor: naming, making and verifying blocks and putting chunks together, clear and sealed, side by side.
//!
//! `cargo bench -p stdchk-protect --bench sealing` measures on chunks of a mebibyte and of 4 KiB; `cargo test --benches` runs the same on a
//! few. Each number is the median of several passes on one core, in seconds for a gibibyte of content.

#![allow(clippy::expect_used, clippy::cast_precision_loss, reason = "a measuring program on its own data")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use stdchk_model::{ChunkRef, Code, KeyId, Maker};
use stdchk_protect::seal::{Key, Keys};
use stdchk_protect::{Assembly, Blocks, genuine};

/// Passes of which the median is reported, after one that is not counted.
const PASSES: usize = 7;

#[derive(Debug)]
struct Own(Arc<Key>);

impl Keys for Own {
    fn key(&self, _: KeyId) -> Option<Arc<Key>> {
        Some(Arc::clone(&self.0))
    }
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let key = Arc::new(Key::new([7; 32]));
    println!("{:>9} {:>6} {:>8} {:>8} {:>8} {:>8}  s/GiB", "chunk", "", "name", "make", "verify", "read");
    for (length, count) in [(1 << 20, 64), (4096, 4096)] {
        let count = if full { count } else { 2 };
        let plain: Vec<Bytes> = (0..count).map(|seed| content(length, seed)).collect();
        for sealed in [None, Some(&key)] {
            let costs = costs(&plain, sealed).map(|seconds| {
                let per_gibibyte = seconds * (1u64 << 30) as f64 / (length as u64 * count) as f64;
                format!("{per_gibibyte:>8.3}")
            });
            let what = if sealed.is_some() { "sealed" } else { "clear" };
            println!("{length:>9} {what:>6} {}", costs.join(" "));
        }
    }
}

/// Bytes that don't repeat.
fn content(length: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state
    };
    (0..length / 8).flat_map(|_| next().to_le_bytes()).collect::<Vec<u8>>().into()
}

/// Seconds for all chunks: to name them, to make their blocks, to verify these without a key, to put them together.
fn costs(plain: &[Bytes], key: Option<&Arc<Key>>) -> [f64; 4] {
    let chunk = |plain: &Bytes| {
        let length = u32::try_from(plain.len()).expect("chunks are short");
        match key {
            None => ChunkRef::of(plain),
            Some(key) => ChunkRef { id: key.name(plain), length },
        }
    };
    let chunks: Vec<ChunkRef> = plain.iter().map(chunk).collect();
    let make = |(chunk, plain): (&ChunkRef, &Bytes)| match key {
        None => Blocks::plain(*chunk, plain.clone()),
        Some(key) => Blocks::sealed(*chunk, 0, plain, (Code::COPY, Maker::LOCAL), key),
    };
    let blocks: Vec<Blocks> = chunks.iter().zip(plain).map(make).collect();
    let verify = |blocks: &Blocks| {
        for (block, stored) in blocks.iter() {
            genuine(&block, &blocks.encoding, stored).expect("the block is genuine");
        }
    };
    let read = |(chunk, blocks): (&ChunkRef, &Blocks)| {
        let mut assembly = match key {
            None => Assembly::new(*chunk),
            Some(key) => Assembly::with_keys(*chunk, Arc::new(Own(Arc::clone(key)))),
        };
        for (block, stored) in blocks.iter() {
            black_box(assembly.add(block, blocks.encoding.clone(), stored.clone()).expect("it is intact"));
        }
    };
    [
        median(|| {
            plain.iter().for_each(|plain| {
                black_box(chunk(plain));
            })
        }),
        median(|| chunks.iter().zip(plain).for_each(|pair| drop(black_box(make(pair))))),
        median(|| blocks.iter().for_each(verify)),
        median(|| chunks.iter().zip(&blocks).for_each(read)),
    ]
}

fn median(pass: impl Fn()) -> f64 {
    pass();
    let mut seconds: Vec<f64> = (0..PASSES)
        .map(|_| {
            let started = Instant::now();
            pass();
            started.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds.swap_remove(PASSES / 2)
}
