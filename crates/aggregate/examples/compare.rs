//! Compares packing with general compressors on checkpoint sets:
//! `cargo run --release -p stdchk-aggregate --example compare -- [--json FILE] [--dense] [--level NAME] [--seconds S]
//! SET_FOLDER...`
//!
//! Relies on the crate's public functions. The idea: every row is made in the same run on the same bytes; without folders
//! a small set is made here, so that the command can't rot. Speeds are of the processor time of all threads, which is the
//! speed of one core and barely moves when the machine is busy; the best of the runs within `--seconds` (0.3) counts.
//! `--dense` adds the slow settings, `--level` measures that level of ours alone.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};
use stdchk_aggregate::{Container, Mode, Packing, PlanOptions, Unpacking, inputs_of, pack};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What is measured, and how long.
struct Options {
    dense: bool,
    level: Option<String>,
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
}

fn main() -> Outcome<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let json = valued(&mut words, "--json");
    let options = Options {
        level: valued(&mut words, "--level"),
        seconds: valued(&mut words, "--seconds").map_or(Ok(0.3), |seconds| seconds.parse())?,
        dense: words.iter().position(|word| word == "--dense").map(|at| words.remove(at)).is_some(),
    };
    let scratch = std::env::temp_dir().join(format!("stdchk-compare-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let sets =
        if words.is_empty() { vec![small_set(&scratch)?] } else { words.iter().map(PathBuf::from).collect() };
    let mut rows = Vec::new();
    for set in &sets {
        if options.level.is_none() {
            rows.extend(general(set, &options)?);
        }
        rows.extend(ours(set, &scratch, &options)?);
    }
    fs::remove_dir_all(&scratch)?;
    print_table(&rows);
    if let Some(path) = json {
        fs::write(path, to_json(&rows))?;
    }
    Ok(())
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

/// What `work` gives, and the best speed of some runs of it; what the one before left in a file
/// or folder is taken away in between.
fn timed<T>(
    raw: usize,
    seconds: f64,
    left: Option<&Path>,
    mut work: impl FnMut() -> Outcome<T>,
) -> Outcome<(T, f64)> {
    let (started, mut best) = (processor_seconds(), f64::INFINITY);
    loop {
        left.map_or(Ok(()), remove)?;
        let before = processor_seconds();
        let result = work()?;
        let now = processor_seconds();
        best = best.min(now - before);
        if now - started > seconds {
            return Ok((result, raw as f64 / 1e6 / best));
        }
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
fn general(set: &Path, options: &Options) -> Outcome<Vec<Row>> {
    let mut raw = Vec::new();
    for input in inputs_of(&[set.to_owned()])?.files {
        raw.extend(fs::read(input.path)?);
    }
    let mut rows = vec![gzip(set, &raw, options.seconds)?];
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
    Ok(Row { set, method, raw: raw.len(), stored: stored.len(), pack_speed, unpack_speed })
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
    Ok(Row { set: name_of(set), method, raw: raw.len(), stored: stored.len(), pack_speed, unpack_speed })
}

/// Every mode of ours, files to container to files.
fn ours(set: &Path, scratch: &Path, options: &Options) -> Outcome<Vec<Row>> {
    let modes = [
        ("fastest", Mode::Fastest),
        ("default", Mode::Default),
        ("paper", Mode::Paper),
        ("smallest", Mode::Smallest),
    ];
    let level = options.level.as_deref();
    let wanted = |name: &str| level.map_or(options.dense || name != "smallest", |level| level == name);
    let inputs = inputs_of(&[set.to_owned()])?.files;
    let (container, folder) = (scratch.join("container"), scratch.join("back"));
    let mut rows = Vec::new();
    for (name, mode) in modes.into_iter().filter(|(name, _)| wanted(name)) {
        let plan = PlanOptions { keys: mode.keys(), ..PlanOptions::default() };
        let packing = Packing { mode, plan, threads: 1, ..Packing::default() };
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
        rows.push(Row { set, method, raw, stored, pack_speed, unpack_speed });
    }
    Ok(rows)
}

fn print_table(rows: &[Row]) {
    println!(
        "{:<28} {:<20} {:>10} {:>8} {:>10} {:>10}",
        "set", "method", "bytes", "ratio", "pack MB/s", "unpack"
    );
    for row in rows {
        let ratio = row.raw as f64 / row.stored.max(1) as f64;
        println!(
            "{:<28} {:<20} {:>10} {ratio:>8.3} {:>10.0} {:>10.0}",
            row.set, row.method, row.stored, row.pack_speed, row.unpack_speed
        );
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
