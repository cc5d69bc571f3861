//! A container is the same bytes on every machine: what becomes of a set follows from the set, the level and the memory, and
//! never from how many threads there are.
//!
//! Relies on real files. The idea: sets that are much longer than a block of sixteen threads that share the memory would be.

use std::fs;
use std::path::Path;
use std::time::Duration;

use stdchk_aggregate::{
    Aggregation, Aggregator, Container, FolderSink, Mode, Packing, Unpacking, inputs_of, pack,
};
use tempfile::TempDir;

const THREADS: [usize; 4] = [1, 2, 3, 16];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// A rank's field as `.npy`.
fn field(rank: u32, rows: u32) -> Vec<u8> {
    let literal = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, 64), }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{literal:<117}\n").into_bytes());
    let value = |n: u32| (f64::from(n % 64) / 20.0).sin() * (f64::from(n / 64 + rank) / 30.0).cos();
    bytes.extend((0..rows * 64).flat_map(|n| value(n).to_le_bytes()));
    bytes
}

/// Words, of which a run of `shared` bytes is the same in all files, at different places.
fn words(rank: u64, length: usize, shared: usize) -> Vec<u8> {
    let text = |seed: u64, length: usize| {
        let mut random = Random(seed);
        let mut text = String::new();
        while text.len() < length {
            text += &format!("{:x} ", random.next() % 50_000);
        }
        text.into_bytes()
    };
    let own = text(rank + 1, length);
    let (before, after) = own.split_at(1000 * usize::try_from(rank).unwrap() + 17);
    [before, &text(99, shared), after].concat()
}

/// Four ranks of a field and of a file of an unknown format, and some small files.
fn write_set(folder: &Path, scale: usize) {
    for rank in 0..4_u32 {
        let rows = 256 * u32::try_from(scale).unwrap();
        fs::write(folder.join(format!("field.{rank}.npy")), field(rank, rows)).unwrap();
        let words = words(u64::from(rank), scale * (60 << 10), scale * (20 << 10));
        fs::write(folder.join(format!("state.{rank}")), words).unwrap();
    }
    for number in 0..50 {
        fs::write(folder.join(format!("note{number}.txt")), format!("rank {number} of 50\n").repeat(9))
            .unwrap();
    }
}

#[test]
fn a_container_is_the_same_whatever_the_number_of_threads() {
    let (scale, budget) = (16, 32 << 20);
    for mode in [Mode::Fastest, Mode::Default] {
        let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        write_set(set.path(), scale);
        let inputs = inputs_of(&[set.path().to_owned()]).unwrap().files;
        let container = |threads| {
            let path = out.path().join(format!("by{threads}"));
            pack(&inputs, &path, &Packing { mode: mode.clone(), budget, threads, ..Packing::default() })
                .unwrap();
            fs::read(path).unwrap()
        };
        let by_one = container(1);
        for threads in THREADS {
            assert!(container(threads) == by_one, "{mode:?}, {threads} threads");
        }
        let back = out.path().join("back");
        Container::open(&out.path().join("by16")).unwrap().unpack(&back, &Unpacking::default()).unwrap();
        for input in &inputs {
            assert!(fs::read(&input.path).unwrap() == fs::read(back.join(&input.name)).unwrap());
        }
    }
}

#[test]
fn containers_of_a_set_that_are_packed_at_one_time_are_the_same_whatever_the_number_of_threads() {
    let scratch = TempDir::new().unwrap();
    let source = scratch.path().join("source");
    fs::create_dir_all(&source).unwrap();
    for rank in 0..4 {
        fs::write(source.join(format!("state.1.{rank}")), words(rank, 1 << 20, 300 << 10)).unwrap();
    }
    let containers = |threads: usize| {
        let sink = scratch.path().join(format!("sink{threads}"));
        let aggregation = Aggregation {
            source: source.clone(),
            naming: "state.{step}.{rank}".parse().unwrap(),
            ranks: 4,
            containers: 2,
            remove_raw: false,
            settle: Duration::ZERO,
            across_time: 0,
            packing: Packing { budget: 32 << 20, threads, ..Packing::default() },
        };
        let mut aggregator =
            Aggregator::start(aggregation, Box::new(FolderSink::open(&sink).unwrap())).unwrap();
        let round = aggregator.round().unwrap();
        assert_eq!(round.aggregated.len(), 1, "{round:?}");
        [1, 2].map(|number| fs::read(sink.join(format!("step-1.{number}of2.pack"))).unwrap())
    };
    let by_one = containers(1);
    for threads in THREADS.into_iter().skip(1) {
        assert!(containers(threads) == by_one, "{threads} threads");
    }
}
