//! What the library costs: each workload of `tests/programs/workloads.c` with and without it, alternating, medians.
//!
//! `cargo bench -p stdchk-preload` runs small; `-- --megabytes 2048 --runs 5` is the size of Metamori's figure 5.1.
//! Figures below 1 in the last column mean: slower under the library.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark fails by panicking")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;

use stdchk_filestate::store::{Mode, Options};
use support::{Protected, plain, program, succeed};

const COMPARED: [&str; 8] = [
    "block_write",
    "rewrite",
    "block_read",
    "random_pwrite",
    "random_stdio",
    "first_overwrites",
    "unprotected_write",
    "unprotected_open",
];
/// Only under the library: without it there is nothing to measure.
const ALONE: [&str; 2] = ["checkpoint", "restore"];

struct Size {
    bytes: u64,
    runs: usize,
}

fn main() {
    let size = size();
    println!("{} MiB, medians of {} runs, ns per operation", size.bytes >> 20, size.runs);
    let binary = program("workloads");
    for mode in [Mode::WriteThrough, Mode::Single] {
        println!("\n{:<20} {:>12} {:>12} {:>9} {:>7}", mode.name(), "without", "with", "added", "ratio");
        for name in COMPARED {
            let (without, with) = compare(&binary, name, mode, &size);
            println!(
                "{name:<20} {without:>12.0} {with:>12.0} {:>9.0} {:>7.2}",
                with - without,
                without / with
            );
        }
    }
    println!("\n1 MiB changed, ms");
    for name in ALONE {
        let mut times: Vec<f64> =
            (0..size.runs).map(|_| watched(&binary, name, Mode::WriteThrough, &size)).collect();
        println!("{name:<20} {:>12.2}", median(&mut times) / 1e6);
    }
}

fn size() -> Size {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let runs = usize::try_from(after("--runs").unwrap_or(3)).unwrap();
    Size { bytes: after("--megabytes").unwrap_or(8) << 20, runs }
}

fn compare(binary: &Path, name: &str, mode: Mode, size: &Size) -> (f64, f64) {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..size.runs {
        let directory = tempfile::tempdir().unwrap();
        prepare(directory.path(), size);
        without.push(measured(plain(directory.path(), binary), name, size));
        with.push(watched(binary, name, mode, size));
    }
    (median(&mut without), median(&mut with))
}

fn watched(binary: &Path, name: &str, mode: Mode, size: &Size) -> f64 {
    let directory = tempfile::tempdir().unwrap();
    prepare(directory.path(), size);
    let protected = Protected::new(directory.path(), &Options { mode, ..Options::default() });
    measured(protected.command(binary), name, size)
}

/// The file that is there before.
fn prepare(directory: &Path, size: &Size) {
    let file = std::fs::File::create(directory.join("old")).unwrap();
    let block = vec![b'o'; 1 << 20];
    for _ in 0..size.bytes >> 20 {
        std::io::Write::write_all(&mut &file, &block).unwrap();
    }
    // Its writing must not fall into the measurement.
    file.sync_all().unwrap();
}

fn measured(mut command: std::process::Command, name: &str, size: &Size) -> f64 {
    succeed(command.args([name, &size.bytes.to_string()])).trim().parse().unwrap()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
