//! What coded one timestep is tried first for the next.
//!
//! Relies on real folders. The idea: chains that were tried on samples are counted, so that the test needs no clock.

#![expect(clippy::unwrap_used, reason = "a test that meets the unexpected fails here")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use stdchk_aggregate::{Aggregation, Aggregator, Container, FolderSink, Packing, Unpacking};

/// A rank's field as `.npy`, smooth or not.
fn field(seed: u32, smooth: bool) -> Vec<u8> {
    let literal = "{'descr': '<f8', 'fortran_order': False, 'shape': (128, 64), }";
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{literal:<117}\n").into_bytes());
    let value = |n: u32| match smooth {
        true => (f64::from(n % 64) / 20.0).sin() * (f64::from(n / 64 + seed) / 30.0).cos(),
        false => f64::from((n + seed).wrapping_mul(2_654_435_761) >> 8).sqrt(),
    };
    bytes.extend((0..128 * 64).flat_map(|n| value(n).to_le_bytes()));
    bytes
}

fn write_set(folder: &Path, timestep: u32, smooth: bool) {
    for rank in 0..4 {
        fs::write(folder.join(format!("field.{timestep}.{rank}.npy")), field(timestep + rank, smooth))
            .unwrap();
    }
}

#[test]
fn a_timestep_like_the_one_before_is_coded_without_trials_and_another_one_anew() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, sink) = (scratch.path().join("source"), scratch.path().join("sink"));
    fs::create_dir_all(&source).unwrap();
    let options = Aggregation {
        source: source.clone(),
        naming: "field.{step}.{rank}.npy".parse().unwrap(),
        ranks: 4,
        containers: 1,
        remove_raw: false,
        settle: Duration::ZERO,
        across_time: 0,
        packing: Packing::default(),
    };
    let mut aggregator = Aggregator::start(options, Box::new(FolderSink::open(&sink).unwrap())).unwrap();
    let mut tried = Vec::new();
    for (timestep, smooth) in [(1, true), (2, true), (3, false)] {
        write_set(&source, timestep, smooth);
        let round = aggregator.round().unwrap();
        assert_eq!(round.aggregated.len(), 1, "{round:?}");
        tried.extend(round.aggregated.iter().map(|set| set.tried));
        let container = Container::open(&sink.join(format!("step-{timestep}.1of1.pack"))).unwrap();
        let back = scratch.path().join(format!("back{timestep}"));
        container.unpack(&back, &Unpacking::default()).unwrap();
        for rank in 0..4 {
            let name = format!("field.{timestep}.{rank}.npy");
            assert_eq!(fs::read(back.join(&name)).unwrap(), fs::read(source.join(&name)).unwrap());
        }
    }
    assert!(tried[0] > 0 && tried[1] == 0 && tried[2] > 0, "{tried:?}");
}
