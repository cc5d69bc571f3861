//! What packing costs where there is much of something: memory over the number of ranks, and time over the number of
//! variables in a file.
//!
//! The sets are made here: smooth fields of which half is zero. The stated budget is given to `stdchk pack` and `unpack`,
//! and their peaks are read from /proc while they run. Few and many variables hold the same bytes in files of the same
//! form, in two forms: beside arrays in bulk, as in the files of real codes, where ten thousand small variables may cost a
//! twentieth of the time (the target), and alone, which shows what one of them costs (rows without a target).

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use crate::bench::{Bench, Size};
use crate::section::{Section, at_most};
use crate::{Error, cpu};

/// Memory that `pack` and `unpack` may take: their default.
const BUDGET: u64 = 256 << 20;
/// Their peak over the budget, at most; programs and libraries are in it.
const PEAK: f64 = 1.1;
/// Numbers of a row of a field.
const WIDTH: u64 = 512;
/// Small variables of a file with many, and variables that hold the same bytes in one with few.
const VARIABLES: [u64; 2] = [10_000, 10];
/// Bytes of all these variables of one such file.
const VARIABLES_BYTES: u64 = 4_000_000;
/// Bytes of the arrays in bulk of one file, at most.
const BULK_BYTES: u64 = 256 << 20;
/// Arrays in bulk, between which the variables lie.
const ARRAYS: u64 = 64;
/// Time with many variables over that with few, both beside arrays in bulk, at most.
const MANY: f64 = 1.05;
/// How often a peak is looked at.
const LOOK: Duration = Duration::from_millis(2);

#[derive(Serialize)]
struct Row {
    what: String,
    raw_bytes: u64,
    stored_bytes: u64,
    pack_cpu_seconds: f64,
    unpack_cpu_seconds: f64,
    pack_peak_bytes: u64,
    unpack_peak_bytes: u64,
}

/// Measures both.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let scratch = tempfile::Builder::new().prefix("packing-").tempdir_in(&bench.dir)?;
    let set_bytes: u64 = match bench.size {
        Size::Tiny => 8 << 20,
        Size::Small => 256 << 20,
        Size::Full => 2 << 30,
    };
    let (mut rows, mut targets) = (Vec::new(), Vec::new());
    for ranks in [16, 256, 2048] {
        let folder = scratch.path().join("set");
        fields(&folder, ranks, set_bytes)?;
        let row = once(bench, &folder, format!("{ranks} ranks"))?;
        for (what, peak) in [("pack", row.pack_peak_bytes), ("unpack", row.unpack_peak_bytes)] {
            let said = format!("{ranks} ranks: peak of {what} over its budget");
            targets.push(at_most(said, peak as f64 / BUDGET as f64, PEAK));
        }
        rows.push(row);
        fs::remove_dir_all(&folder)?;
    }
    let bulk = set_bytes.min(BULK_BYTES);
    let [many, few] = in_turn(bench, scratch.path(), 1, bulk)?;
    for (what, many, few) in [
        ("pack", many.pack_cpu_seconds, few.pack_cpu_seconds),
        ("unpack", many.unpack_cpu_seconds, few.unpack_cpu_seconds),
    ] {
        let said = format!("{what}: time of many variables over few, beside arrays");
        targets.push(at_most(said, many / few, MANY));
    }
    rows.extend([many, few]);
    // Processor time comes in ticks of a hundredth of a second, so that there have to be some files.
    rows.extend(in_turn(bench, scratch.path(), (set_bytes / (8 << 20)).min(64), 0)?);
    Ok(Section { rows: serde_json::to_value(&rows)?, table: table(&rows), targets })
}

/// The best times of files with many and with few variables beside `bulk` bytes of arrays, measured in turn.
fn in_turn(bench: &Bench, scratch: &Path, files: u64, bulk: u64) -> Result<[Row; 2], Error> {
    let folders = VARIABLES.map(|count| scratch.join(format!("{count}")));
    let whats = VARIABLES.map(|count| match bulk {
        0 => format!("{count} variables"),
        bulk => format!("{count} beside {} MiB", bulk >> 20),
    });
    for (count, folder) in VARIABLES.iter().zip(&folders) {
        fs::create_dir_all(folder)?;
        for file in 0..files {
            variables(&folder.join(format!("{file}.safetensors")), *count, bulk, file)?;
        }
    }
    let ([many, few], [many_said, few_said]) = (&folders, whats);
    let mut best = [once(bench, many, many_said)?, once(bench, few, few_said)?];
    for _ in 1..bench.sizes.rounds {
        for (best, folder) in best.iter_mut().zip(&folders) {
            let again = once(bench, folder, String::new())?;
            best.pack_cpu_seconds = best.pack_cpu_seconds.min(again.pack_cpu_seconds);
            best.unpack_cpu_seconds = best.unpack_cpu_seconds.min(again.unpack_cpu_seconds);
        }
    }
    folders.iter().try_for_each(fs::remove_dir_all)?;
    Ok(best)
}

/// One file a rank, with a field of doubles.
fn fields(folder: &Path, ranks: u64, bytes: u64) -> Result<(), Error> {
    fs::create_dir_all(folder)?;
    let rows = (bytes / ranks / (WIDTH * 8)).max(1);
    let wave: Vec<f64> = (0..WIDTH).map(|x| (x as f64 / 37.0).sin()).collect();
    for rank in 0..ranks {
        let mut file = BufWriter::new(fs::File::create(folder.join(format!("field.{rank}.npy")))?);
        let literal = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, {WIDTH}), }}");
        file.write_all(b"\x93NUMPY\x01\x00\x76\x00")?;
        file.write_all(format!("{literal:<117}\n").as_bytes())?;
        for row in 0..rows {
            let place = rank * rows + row;
            let height = if place % 64 < 32 { 0.0 } else { 1.0 + place as f64 / 1e3 };
            let bytes: Vec<u8> = wave.iter().flat_map(|value| (value * height).to_le_bytes()).collect();
            file.write_all(&bytes)?;
        }
        file.flush()?;
    }
    Ok(())
}

/// One `safetensors` file of so many variables, which take turns with arrays where there is bulk; no two numbers have the
/// same noise.
fn variables(path: &Path, count: u64, bulk: u64, seed: u64) -> Result<(), Error> {
    let (small, large) = (VARIABLES_BYTES / count, bulk / ARRAYS);
    let mut lengths = Vec::new();
    for array in 0..ARRAYS {
        lengths.extend((large > 0).then(|| (format!("{array}.weight"), large)));
        let turn = count * array / ARRAYS..count * (array + 1) / ARRAYS;
        lengths.extend(turn.map(|number| (format!("{number}.bias"), small)));
    }
    let mut start = 0;
    let entry = |(name, length): (String, u64)| {
        let offsets = [start, start + length];
        start += length;
        let shape = length / 4;
        format!("\"layer.{name}\":{{\"dtype\":\"F32\",\"shape\":[{shape}],\"data_offsets\":{offsets:?}}}")
    };
    let header = format!("{{{}}}", lengths.into_iter().map(entry).collect::<Vec<_>>().join(","));
    let mut file = BufWriter::new(fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for number in 0..(bulk + VARIABLES_BYTES) / 4 {
        let noise =
            ((number + seed * VARIABLES_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / 1e9;
        file.write_all(&((number as f32 / 5e3).sin() + noise).to_le_bytes())?;
    }
    Ok(file.flush()?)
}

/// Packs a set and unpacks it.
fn once(bench: &Bench, folder: &Path, what: String) -> Result<Row, Error> {
    let (container, back) = (folder.with_extension("packed"), folder.with_extension("back"));
    let memory = BUDGET.to_string();
    let mut pack = Command::new(&bench.stdchk);
    pack.arg("pack").arg(folder).arg("-o").arg(&container).args(["--memory", &memory]);
    let (pack_cpu_seconds, pack_peak_bytes) = watched(&mut pack)?;
    let mut unpack = Command::new(&bench.stdchk);
    unpack.arg("unpack").arg(&container).arg("-o").arg(&back).args(["--memory", &memory]);
    let (unpack_cpu_seconds, unpack_peak_bytes) = watched(&mut unpack)?;
    let mut raw_bytes = 0;
    for entry in fs::read_dir(folder)? {
        raw_bytes += entry?.metadata()?.len();
    }
    let stored_bytes = fs::metadata(&container)?.len();
    fs::remove_file(&container)?;
    fs::remove_dir_all(&back)?;
    Ok(Row {
        what,
        raw_bytes,
        stored_bytes,
        pack_cpu_seconds,
        unpack_cpu_seconds,
        pack_peak_bytes,
        unpack_peak_bytes,
    })
}

/// Runs a program; its processor seconds, and the most memory that it was seen with.
fn watched(command: &mut Command) -> Result<(f64, u64), Error> {
    let before = cpu::seconds_with(&[]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut peak = 0;
    let status = loop {
        peak = cpu::peak_memory(child.id()).unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(LOOK);
    };
    if !status.success() {
        return Err(Error(format!("{command:?} ended with {status}")));
    }
    Ok((cpu::seconds_with(&[]) - before, peak))
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec![format!(
        "{:20} {:>12} {:>12} {:>10} {:>10} {:>14} {:>14}",
        "", "raw", "stored", "pack CPU s", "unpack", "pack peak MiB", "unpack peak"
    )];
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    lines.extend(rows.iter().map(|row| {
        format!(
            "{:20} {:>12} {:>12} {:>10.3} {:>10.3} {:>14.1} {:>14.1}",
            row.what,
            row.raw_bytes,
            row.stored_bytes,
            row.pack_cpu_seconds,
            row.unpack_cpu_seconds,
            mebibytes(row.pack_peak_bytes),
            mebibytes(row.unpack_peak_bytes)
        )
    }));
    lines.join("\n") + "\n"
}
