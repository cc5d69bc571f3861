//! Cutters side by side: throughput on one core, and the similarity that they find between versions of a file.
//!
//! `cargo bench -p stdchk-reduce --bench cutters [-- VERSION...]` measures at full size; files given are taken as
//! successive versions of one file and added to the series. `cargo test --benches` runs the same on a few megabytes.
//! Similarity is the part of a version's bytes, zeros apart, that lie in pieces of the version before it (paper,
//! section V.E); throughput is the median of several passes over a buffer that is larger than the caches, and over one
//! of a mebibyte, as a write to the mount leaves it in the cache; `named` includes the BLAKE3 name of every piece and is
//! what the paper's Tables 3 and 4 call the throughput of a heuristic.

#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a measuring program on its own data")]

mod content;

use std::collections::HashSet;
use std::time::Instant;

use content::Random;
use fastcdc::v2020::FastCDC;
use stdchk_model::ChunkId;
use stdchk_reduce::cut::{Scanner, pieces};
use stdchk_reduce::{CutterSpec, is_zero};

/// Passes of which the median is reported, after one that is not counted.
const PASSES: usize = 7;
/// A pass that takes longer than this is the only one.
const LONG_PASS: f64 = 0.25;
/// Bytes of the buffer that stays in the cache, and rounds over it in one pass.
const CACHED: usize = 1 << 20;
const CACHED_TIMES: usize = 32;

/// Lengths of the pieces of a stream.
type Cut<'a> = Box<dyn Fn(&[u8]) -> Vec<usize> + 'a>;

struct Contender {
    name: String,
    cut: Cut<'static>,
}

struct Series {
    name: String,
    versions: Vec<Vec<u8>>,
}

impl Contender {
    /// The same, with a name for every piece.
    fn naming(&self) -> Cut<'_> {
        Box::new(|data| {
            let lengths = (self.cut)(data);
            std::hint::black_box(split(data, &lengths).map(ChunkId::of).collect::<Vec<_>>());
            lengths
        })
    }
}

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let megabytes = if full { 64 } else { 2 };
    let files: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut series = synthetic(megabytes << 20);
    series.extend(from_files(&files));
    for series in &series {
        report(series, &contenders());
    }
    println!("\nzeros found at {:.0} MB/s", zero_rate(megabytes << 20));
}

fn contenders() -> Vec<Contender> {
    let mut contenders = Vec::new();
    for average in [8 << 10, 64 << 10] {
        contenders.push(fastcdc(average));
        let spec = CutterSpec::cdc(average).expect("a valid average");
        contenders.extend(Scanner::available().into_iter().map(|scanner| ours(spec, scanner)));
        contenders.push(ours(as_long_as_fastcdc(average), Scanner::fastest()));
    }
    for spec in ["fsch:1KiB", "fsch:64KiB", "fsch:1MiB", "cbch:m=20,k=14,p=1", "cbch:m=20,k=14,p=20"] {
        contenders
            .push(Contender { name: spec.to_owned(), ..ours(spec.parse().expect(spec), Scanner::fastest()) });
    }
    contenders
}

/// Ours with the mean that `fastcdc` really has: a quarter more than its name says, on data without structure.
fn as_long_as_fastcdc(average: usize) -> CutterSpec {
    CutterSpec::cdc(average / 4 * 5).expect("a valid average")
}

fn fastcdc(average: usize) -> Contender {
    let cut = move |data: &[u8]| {
        FastCDC::new(data, average / 4, average, average * 4).map(|chunk| chunk.length).collect()
    };
    Contender { name: format!("fastcdc v2020 {} KiB", average >> 10), cut: Box::new(cut) }
}

fn ours(spec: CutterSpec, scanner: Scanner) -> Contender {
    let cut = move |data: &[u8]| {
        let mut cutter = spec.cutter_with(scanner);
        pieces(&mut *cutter, data).map(<[u8]>::len).collect()
    };
    Contender { name: format!("{spec} {}", scanner.name()), cut: Box::new(cut) }
}

fn report(series: &Series, contenders: &[Contender]) {
    println!("\n{}: {} versions of {} bytes", series.name, series.versions.len(), series.versions[0].len());
    println!(
        "{:28} {:>9} {:>9} {:>9} {:>10} {:>12} {:>10}",
        "cutter", "MB/s", "in cache", "named", "mean, B", "longest, B", "similar, %"
    );
    for contender in contenders {
        let lengths = (contender.cut)(&series.versions[0]);
        let memory = rate(&contender.cut, &series.versions[0], 1);
        let cache = rate(
            &contender.cut,
            series.versions[0].get(..CACHED).unwrap_or(&series.versions[0]),
            CACHED_TIMES,
        );
        let named = rate(&contender.naming(), &series.versions[0], 1);
        let mean = series.versions[0].len() / lengths.len();
        let longest = lengths.iter().max().expect("a piece");
        let similar = 100.0 * similarity(contender, &series.versions);
        println!(
            "{:28} {memory:9.0} {cache:9.0} {named:9.0} {mean:10} {longest:12} {similar:10.2}",
            contender.name
        );
    }
}

/// Megabytes per second of the median pass, each of `times` rounds over `data`.
fn rate(cut: &Cut<'_>, data: &[u8], times: usize) -> f64 {
    let pass = || (0..times).map(|_| std::hint::black_box(cut(data)).len()).sum::<usize>();
    let first = timed(pass);
    let passes = if first > LONG_PASS { vec![first] } else { (0..PASSES).map(|_| timed(pass)).collect() };
    (data.len() * times) as f64 / 1e6 / median(passes)
}

fn timed<T>(work: impl FnOnce() -> T) -> f64 {
    let started = Instant::now();
    std::hint::black_box(work());
    started.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn similarity(contender: &Contender, versions: &[Vec<u8>]) -> f64 {
    let (mut found, mut all) = (0, 0);
    let mut known: HashSet<ChunkId> = HashSet::new();
    for (number, version) in versions.iter().enumerate() {
        let lengths = (contender.cut)(version);
        let pieces = split(version, &lengths).filter(|piece| !is_zero(piece));
        let named: Vec<(ChunkId, usize)> = pieces.map(|piece| (ChunkId::of(piece), piece.len())).collect();
        if number > 0 {
            all += named.iter().map(|(_, length)| length).sum::<usize>();
            found +=
                named.iter().filter(|(id, _)| known.contains(id)).map(|(_, length)| length).sum::<usize>();
        }
        known = named.into_iter().map(|(id, _)| id).collect();
    }
    if all == 0 { 0.0 } else { found as f64 / all as f64 }
}

fn split<'data>(data: &'data [u8], lengths: &[usize]) -> impl Iterator<Item = &'data [u8]> {
    let mut rest = data;
    lengths.iter().map(move |length| {
        let (piece, after) = rest.split_at(*length);
        rest = after;
        piece
    })
}

fn zero_rate(length: usize) -> f64 {
    let mut zeros = std::hint::black_box(vec![1; length]);
    zeros.fill(0);
    let zeros = std::hint::black_box(zeros);
    let passes = (0..=PASSES).map(|_| timed(|| is_zero(std::hint::black_box(&zeros)))).skip(1).collect();
    length as f64 / 1e6 / median(passes)
}

fn from_files(files: &[String]) -> Option<Series> {
    let versions: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect(file)).collect();
    (!versions.is_empty()).then(|| Series { name: format!("{} …", files[0]), versions })
}

fn synthetic(length: usize) -> Vec<Series> {
    let mut random = Random(42);
    let noise = random.bytes(length);
    let text = random.text(length);
    let doubles = random.doubles(length);
    let image = random.image(length);
    let contents = [("random", noise), ("text", text), ("doubles", doubles), ("image-like", image)];
    let series = contents.into_iter().map(|(name, first)| {
        let shifted = [&b"shift"[..], &first].concat();
        let edited = edited(&mut random, &shifted, length >> 18);
        Series { name: format!("{name}, shifted, then edited"), versions: vec![first, shifted, edited] }
    });
    series.collect()
}

/// `data` with this many edits at random places: bytes overwritten, inserted or removed, 1 to 2000 at a time.
fn edited(random: &mut Random, data: &[u8], edits: usize) -> Vec<u8> {
    let mut places: Vec<usize> = (0..edits).map(|_| random.below(data.len())).collect();
    places.sort_unstable();
    let (mut edited, mut copied) = (Vec::with_capacity(data.len()), 0);
    for place in places {
        edited.extend_from_slice(&data[copied.min(place)..place]);
        let length = 1 + random.below(2000);
        let (removed, inserted) = [(length, length), (0, length), (length, 0)][random.below(3)];
        let new = random.bytes(inserted);
        edited.extend_from_slice(&new);
        copied = copied.max(place + removed).min(data.len());
    }
    edited.extend_from_slice(&data[copied..]);
    edited
}
