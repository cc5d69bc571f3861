//! What one timestep tells of the next: what coded it is tried first, and what was seen of it doesn't count for another.
//!
//! Relies on real folders. The idea: chains that were tried on samples are counted, so that the test needs no clock.

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

/// Looks for sets of four ranks in `source`.
fn aggregation(source: &Path) -> Aggregation<'static> {
    Aggregation {
        source: source.to_owned(),
        naming: "field.{step}.{rank}.npy".parse().unwrap(),
        ranks: 4,
        containers: 1,
        remove_raw: false,
        settle: Duration::ZERO,
        across_time: 0,
        packing: Packing::default(),
    }
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
    let options = aggregation(&source);
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

#[test]
fn what_coded_a_set_by_itself_does_not_keep_the_next_from_being_coded_against_it() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, sink) = (scratch.path().join("source"), scratch.path().join("sink"));
    fs::create_dir_all(&source).unwrap();
    let options = Aggregation { across_time: 1, ..aggregation(&source) };
    let mut aggregator = Aggregator::start(options, Box::new(FolderSink::open(&sink).unwrap())).unwrap();
    let mut with_base = Vec::new();
    for timestep in [1_u32, 2] {
        for rank in 0..4 {
            let mut bytes = field(rank, false);
            let changed = bytes.len() - 8 * 100 * timestep as usize;
            bytes[changed] ^= 0x55;
            fs::write(source.join(format!("field.{timestep}.{rank}.npy")), bytes).unwrap();
        }
        let round = aggregator.round().unwrap();
        with_base.extend(round.aggregated.iter().map(|set| set.with_base));
    }
    assert_eq!(with_base, [0, 1]);
}

#[test]
fn raw_files_that_come_back_go_only_after_the_container_was_compared_again() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, sink) = (scratch.path().join("source"), scratch.path().join("sink"));
    fs::create_dir_all(&source).unwrap();
    write_set(&source, 1, false);
    let files: Vec<_> = fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path()).collect();
    let kept: Vec<_> = files
        .iter()
        .map(|file| (file, fs::read(file).unwrap(), fs::metadata(file).unwrap().modified().unwrap()))
        .collect();
    let options = Aggregation { remove_raw: true, ..aggregation(&source) };
    let mut aggregator = Aggregator::start(options, Box::new(FolderSink::open(&sink).unwrap())).unwrap();
    assert_eq!(aggregator.round().unwrap().removed, 4);
    let container = sink.join("step-1.1of1.pack");
    let mut damaged = fs::read(&container).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    fs::write(&container, damaged).unwrap();
    for (file, bytes, modified) in &kept {
        fs::write(file, bytes).unwrap();
        fs::File::options().write(true).open(file).unwrap().set_modified(*modified).unwrap();
    }
    let round = aggregator.round().unwrap();
    assert_eq!((round.damaged.len(), round.aggregated.len(), round.removed), (1, 1, 4), "{round:?}");
    let back = scratch.path().join("back");
    Container::open(&container).unwrap().unpack(&back, &Unpacking::default()).unwrap();
    for (file, bytes, _) in &kept {
        assert_eq!(fs::read(back.join(file.file_name().unwrap())).unwrap(), *bytes);
    }
}
