//! Codecs side by side: what they save and what they cost, a chunk at a time on one core.
//!
//! `cargo bench -p stdchk-reduce --bench codecs [-- FILE...]` measures at full size; files given are added to the
//! contents. Rates are of plain bytes, the median of several passes. Where nothing is saved the rate of compressing is
//! that of taking samples.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a measuring program on its own data")]

mod content;

use std::borrow::Cow;
use std::time::Instant;

use content::Random;
use stdchk_model::limits::CHUNK_BYTES_DEFAULT;
use stdchk_reduce::{Codec, Compressor, Effort, decompress};

/// Passes of which the median is reported.
const PASSES: usize = 5;
/// Most bytes taken of a content.
const CONTENT_BYTES_MAX: usize = 32 << 20;
const EFFORTS: [Effort; 4] = [Effort::Lz4, Effort::Zstd(1), Effort::Zstd(3), Effort::Zstd(6)];

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let length = if full { CONTENT_BYTES_MAX } else { CHUNK_BYTES_DEFAULT };
    let mut random = Random(42);
    let mut contents = vec![
        ("noise".to_owned(), random.bytes(length)),
        ("text".to_owned(), random.text(length)),
        ("doubles".to_owned(), random.doubles(length)),
        ("image-like".to_owned(), random.image(length)),
    ];
    for file in std::env::args().skip(1).filter(|argument| !argument.starts_with('-')) {
        contents.push((file.clone(), std::fs::read(&file).expect(&file)));
    }
    println!("{:40} {:>8} {:>8} {:>12} {:>14}", "content", "codec", "stored", "coded, MB/s", "decoded, MB/s");
    for (name, content) in &contents {
        let part = content.get(..CONTENT_BYTES_MAX).unwrap_or(content);
        EFFORTS.iter().for_each(|effort| report(name, part, *effort));
    }
}

fn report(name: &str, content: &[u8], effort: Effort) {
    let mut compressor = Compressor::new(effort).expect("memory for a codec");
    let stored = encode(&mut compressor, content);
    let bytes: usize = stored.iter().map(|(_, bytes)| bytes.len()).sum();
    let coding = median(|| encode(&mut compressor, content).len());
    let decoding = median(|| decode(&stored));
    let rate = |seconds: f64| content.len() as f64 / 1e6 / seconds;
    println!(
        "{name:40} {effort:>8} {:7.1}% {:12.0} {:14.0}",
        100.0 * bytes as f64 / content.len() as f64,
        rate(coding),
        rate(decoding),
        effort = effort.to_string(),
    );
}

fn encode<'content>(
    compressor: &mut Compressor,
    content: &'content [u8],
) -> Vec<(Codec, Cow<'content, [u8]>)> {
    content.chunks(CHUNK_BYTES_DEFAULT).map(|chunk| compressor.compress(chunk)).collect()
}

fn decode(stored: &[(Codec, Cow<'_, [u8]>)]) -> usize {
    let plain = |(codec, bytes): &(Codec, Cow<'_, [u8]>)| {
        decompress(*codec, bytes, CHUNK_BYTES_DEFAULT).expect("what was stored").len()
    };
    stored.iter().map(plain).sum()
}

fn median(mut work: impl FnMut() -> usize) -> f64 {
    let mut timed = || {
        let started = Instant::now();
        std::hint::black_box(work());
        started.elapsed().as_secs_f64()
    };
    let mut seconds: Vec<f64> = (0..PASSES).map(|_| timed()).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[PASSES / 2]
}
