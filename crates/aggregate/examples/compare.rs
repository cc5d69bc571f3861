//! Compares packing with general compressors on checkpoint sets:
//! `cargo run --release -p stdchk-aggregate --example compare -- [--json FILE] [--dense] [--level NAME] [--steps]
//! [--seconds S] SET_FOLDER...`
//!
//! Relies on the crate's public functions. The idea: every row is made in the same run on the same bytes; without folders
//! a small set is made here, so that the command can't rot. Speeds are of the processor time of all threads, which is the
//! speed of one core and barely moves when the machine is busy; the best of the runs within `--seconds` (0.3) counts.
//! `--dense` adds the slow settings, `--level` measures that level of ours alone, `--steps` says where its time goes.
//! General compressors are measured from memory to memory and, as `zstd FILES`, as a program would do it: files are read and
//! one file is written, with checksums, that is made durable. Ours always read, check what they coded, and write.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use stdchk_aggregate::{Container, Input, Mode, Packed, Packing, Unpacking, inputs_of, pack};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What is measured, and how long.
struct Options {
    dense: bool,
    level: Option<String>,
    steps: bool,
    /// Processor seconds for which a fast row is repeated.
    seconds: f64,
}

/// One measurement; speeds are of one core, in MB/s of uncompressed bytes.
struct Row {
    set: String,
    method: String,
    raw: usize,
    stored: usize,
    pack_speed: f64,
    unpack_speed: f64,
    /// Of ours, whose steps it tells.
    packed: Option<Packed>,
}

fn main() -> Outcome<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let json = valued(&mut words, "--json");
    let options = Options {
        level: valued(&mut words, "--level"),
        seconds: valued(&mut words, "--seconds").map_or(Ok(0.3), |seconds| seconds.parse())?,
        dense: given(&mut words, "--dense"),
        steps: given(&mut words, "--steps"),
    };
    let scratch = std::env::temp_dir().join(format!("stdchk-compare-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let sets =
        if words.is_empty() { vec![small_set(&scratch)?] } else { words.iter().map(PathBuf::from).collect() };
    let mut rows = Vec::new();
    for set in &sets {
        if options.level.is_none() {
            rows.extend(general(set, &scratch, &options)?);
        }
        rows.extend(ours(set, &scratch, &options)?);
    }
    fs::remove_dir_all(&scratch)?;
    print_table(&rows);
    if options.steps {
        print_steps(&rows);
    }
    if let Some(path) = json {
        fs::write(path, to_json(&rows))?;
    }
    Ok(())
}

/// Takes an option out of the words, if it is there.
fn given(words: &mut Vec<String>, option: &str) -> bool {
    words.iter().position(|word| word == option).map(|at| words.remove(at)).is_some()
}

/// Takes an option and its value out of the words.
fn valued(words: &mut Vec<String>, option: &str) -> Option<String> {
    let at = words.iter().position(|word| word == option).filter(|at| at + 1 < words.len())?;
    words.drain(at..at + 2).next_back()
}

/// Four ranks of a smooth field, as raw `.npy` files.
fn small_set(scratch: &Path) -> Outcome<PathBuf> {
    let folder = scratch.join("small");
    fs::create_dir_all(&folder)?;
    for rank in 0..4_u32 {
        let literal = "{'descr': '<f8', 'fortran_order': False, 'shape': (128, 64), }";
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend(format!("{literal:<117}\n").into_bytes());
        let values =
            (0..128 * 64).map(|n| (f64::from(n % 64) / 20.0).sin() * (f64::from(n / 64 + rank) / 30.0).cos());
        bytes.extend(values.flat_map(f64::to_le_bytes));
        fs::write(folder.join(format!("field.{rank}.npy")), bytes)?;
    }
    Ok(folder)
}

fn name_of(set: &Path) -> String {
    set.components()
        .rev()
        .take(2)
        .map(|part| part.as_os_str().to_string_lossy())
        .collect::<Vec<_>>()
        .join(" of ")
}

/// Processor seconds of this process so far.
fn processor_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// What the fastest of some runs of `work` gives, and its speed; what the one before left in a file or folder is taken
/// away in between.
fn timed<T>(
    raw: usize,
    seconds: f64,
    left: Option<&Path>,
    mut work: impl FnMut() -> Outcome<T>,
) -> Outcome<(T, f64)> {
    let started = processor_seconds();
    let mut best = None;
    loop {
        left.map_or(Ok(()), remove)?;
        let before = processor_seconds();
        let result = work()?;
        let now = processor_seconds();
        let took = now - before;
        let (result, least) = best.take().filter(|(_, least)| *least <= took).unwrap_or((result, took));
        if now - started > seconds {
            return Ok((result, raw as f64 / 1e6 / least));
        }
        best = Some((result, least));
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    match path.is_dir() {
        true => fs::remove_dir_all(path),
        false if path.exists() => fs::remove_file(path),
        false => Ok(()),
    }
}

/// General compressors over the concatenation of all files.
fn general(set: &Path, scratch: &Path, options: &Options) -> Outcome<Vec<Row>> {
    let inputs = inputs_of(&[set.to_owned()])?.files;
    let mut raw = Vec::new();
    for input in &inputs {
        raw.extend(fs::read(&input.path)?);
    }
    let mut rows = vec![gzip(set, &raw, options.seconds)?];
    for level in [1, 3] {
        rows.push(zstd_of_files(set, &inputs, raw.len(), level, scratch, options.seconds)?);
    }
    for level in if options.dense { vec![1, 3, 9, 19] } else { vec![1, 3] } {
        for long in [false, true] {
            rows.push(zstd(set, &raw, level, long, options.seconds)?);
        }
    }
    Ok(rows)
}

fn gzip(set: &Path, raw: &[u8], seconds: f64) -> Outcome<Row> {
    let (stored, pack_speed) = timed(raw.len(), seconds, None, || {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(raw)?;
        Ok(encoder.finish()?)
    })?;
    let ((), unpack_speed) = timed(raw.len(), seconds, None, || {
        std::io::copy(&mut flate2::read::GzDecoder::new(stored.as_slice()), &mut std::io::sink())?;
        Ok(())
    })?;
    let (set, method) = (name_of(set), "gzip -6 (Agnostic)".to_owned());
    Ok(Row { set, method, raw: raw.len(), stored: stored.len(), pack_speed, unpack_speed, packed: None })
}

fn zstd(set: &Path, raw: &[u8], level: i32, long: bool, seconds: f64) -> Outcome<Row> {
    let mut compressor = zstd::bulk::Compressor::new(level)?;
    if long {
        compressor.set_parameter(zstd::zstd_safe::CParameter::WindowLog(27))?;
        compressor.set_parameter(zstd::zstd_safe::CParameter::EnableLongDistanceMatching(true))?;
    }
    let (stored, pack_speed) = timed(raw.len(), seconds, None, || Ok(compressor.compress(raw)?))?;
    let (_, unpack_speed) =
        timed(raw.len(), seconds, None, || Ok(zstd::bulk::decompress(&stored, raw.len())?))?;
    let method = format!("zstd -{level}{}", if long { " --long=27" } else { "" });
    let (set, stored) = (name_of(set), stored.len());
    Ok(Row { set, method, raw: raw.len(), stored, pack_speed, unpack_speed, packed: None })
}

/// As a program would do it: files to one file and back to one, with checksums, on disk when it is done.
fn zstd_of_files(
    set: &Path,
    inputs: &[Input],
    raw: usize,
    level: i32,
    scratch: &Path,
    seconds: f64,
) -> Outcome<Row> {
    let (frames, back) = (scratch.join("frames"), scratch.join("concatenation"));
    let (stored, pack_speed) = timed(raw, seconds, Some(&frames), || {
        let mut encoder = zstd::stream::write::Encoder::new(File::create(&frames)?, level)?;
        encoder.include_checksum(true)?;
        for input in inputs {
            std::io::copy(&mut File::open(&input.path)?, &mut encoder)?;
        }
        let file = encoder.finish()?;
        file.sync_all()?;
        Ok(usize::try_from(file.metadata()?.len())?)
    })?;
    let ((), unpack_speed) = timed(raw, seconds, Some(&back), || {
        let mut file = File::create(&back)?;
        zstd::stream::copy_decode(File::open(&frames)?, &mut file)?;
        Ok(file.sync_all()?)
    })?;
    let (set, method) = (name_of(set), format!("zstd -{level} FILES"));
    Ok(Row { set, method, raw, stored, pack_speed, unpack_speed, packed: None })
}

/// Every mode of ours, files to container to files.
fn ours(set: &Path, scratch: &Path, options: &Options) -> Outcome<Vec<Row>> {
    let modes = [("fastest", Mode::Fastest), ("default", Mode::Default), ("paper", Mode::Paper)];
    let level = options.level.as_deref();
    let wanted = |name: &str| level.is_none_or(|level| level == name);
    let inputs = inputs_of(&[set.to_owned()])?.files;
    let (container, folder) = (scratch.join("container"), scratch.join("back"));
    let mut rows = Vec::new();
    for (name, mode) in modes.into_iter().filter(|(name, _)| wanted(name)) {
        let packing = Packing { mode, threads: 1, ..Packing::default() };
        let raw = inputs.iter().map(|input| Ok(fs::metadata(&input.path)?.len())).sum::<Outcome<u64>>()?;
        let raw = usize::try_from(raw)?;
        let (packed, pack_speed) =
            timed(raw, options.seconds, Some(&container), || Ok(pack(&inputs, &container, &packing)?))?;
        let unpacking = Unpacking { threads: 1, ..Unpacking::default() };
        let (_, unpack_speed) = timed(raw, options.seconds, Some(&folder), || {
            Ok(Container::open(&container)?.unpack(&folder, &unpacking)?)
        })?;
        let (set, method, stored) =
            (name_of(set), format!("pack, {name}"), usize::try_from(packed.stored_bytes)?);
        rows.push(Row { set, method, raw, stored, pack_speed, unpack_speed, packed: Some(packed) });
    }
    Ok(rows)
}

fn print_table(rows: &[Row]) {
    println!(
        "{:<28} {:<20} {:>10} {:>8} {:>10} {:>10} {:>8}",
        "set", "method", "bytes", "ratio", "pack MB/s", "unpack", "checking"
    );
    for row in rows {
        let ratio = row.raw as f64 / row.stored.max(1) as f64;
        println!(
            "{:<28} {:<20} {:>10} {ratio:>8.3} {:>10.1} {:>10.1} {:>8}",
            row.set,
            row.method,
            row.stored,
            row.pack_speed,
            row.unpack_speed,
            checking_share(row)
        );
    }
}

/// How much of the time of packing, but for waiting until it is durable, goes into decoding again and comparing.
fn checking_share(row: &Row) -> String {
    let share = |packed: &Packed| {
        let all: Duration = packed.spent.steps().iter().map(|(_, time)| *time).sum();
        let busy = all.saturating_sub(packed.spent.finishing);
        format!("{:.0} %", packed.spent.checking.as_secs_f64() / busy.as_secs_f64() * 100.0)
    };
    row.packed.as_ref().map_or_else(|| "none".to_owned(), share)
}

/// Nanoseconds for each byte, by the clock; the last step waits for the disk.
fn print_steps(rows: &[Row]) {
    println!("\nns per byte of packing, by the clock");
    for row in rows {
        let Some(packed) = &row.packed else { continue };
        let steps = packed.spent.steps().map(|(step, time)| {
            let nanoseconds = time.as_secs_f64() * 1e9 / packed.raw_bytes.max(1) as f64;
            format!("{step} {nanoseconds:.3}")
        });
        println!("{:<28} {:<20} {}", row.set, row.method, steps.join("  "));
    }
}

fn to_json(rows: &[Row]) -> String {
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            format!(
                "{{\"set\": {:?}, \"method\": {:?}, \"raw_bytes\": {}, \"stored_bytes\": {}, \"pack_mb_s\": {:.1}, \"unpack_mb_s\": {:.1}}}",
                row.set, row.method, row.raw, row.stored, row.pack_speed, row.unpack_speed
            )
        })
        .collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}
