//! Sets of checkpoint files, packed: mcrEngine's merge schemes, our levels and general compressors on the same bytes, and
//! what a slow sink makes of it (tables III and IV, figures 12 and 13, as far as one machine carries them).
//!
//! The sets are given (`--sets`), or a small one is made up. The sink is a file system held to a
//! rate (bindfs), which is stated in the table. All methods see the same files in the same run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::Serialize;

use crate::Error;
use crate::bench::{Bench, Size};
use crate::local_fuse::LocalFuse;
use crate::measures::sets::{self, contents, files_of, gzipped, interleaved, name_of, pack, succeed};
use crate::section::{Section, Target, at_least};

/// Bytes per second of the sink for each rank: 30 GB/s for 15408 processes, as on the paper's file system.
const SINK_PER_RANK: u64 = 2_000_000;
/// A file read or written before each step, for a second: bindfs lets some megabytes through at once after a pause.
const AHEAD: &str = "ahead";
/// Length of the pieces of both block schemes.
const PIECE: usize = 64 << 10;
/// The paper's results in percent over Agnostic, best and worst (table IV), for reading beside ours.
const PAPER: &str = "mcrEngine over Agnostic: Aware-Block 7 to 38 %, Aware 7 to 39 %, Cactus up to 115 %";

#[derive(Serialize)]
struct Row {
    set: String,
    method: String,
    raw_bytes: usize,
    stored_bytes: usize,
    ratio: f64,
    /// Over gzip -6 of the concatenation, percent (equation 2).
    over_agnostic: f64,
}

#[derive(Serialize)]
struct EndToEnd {
    set: String,
    sink_bytes_per_second: u64,
    raw_write_seconds: f64,
    raw_read_seconds: f64,
    /// Packing into the slow file system, written while it is packed, and read back.
    packed_write_seconds: f64,
    /// Unpacking from there.
    packed_read_seconds: f64,
    /// Packing alone, onto the local disk.
    pack_seconds: f64,
    /// Unpacking alone.
    unpack_seconds: f64,
}

/// Measures every set.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let scratch = tempfile::Builder::new().prefix("aggregate-").tempdir_in(&bench.dir)?;
    let sets = sets::of(bench, scratch.path())?;
    let (mut rows, mut ends) = (Vec::new(), Vec::new());
    for set in &sets {
        rows.extend(ratios(bench, set, scratch.path())?);
        ends.extend(end_to_end(bench, set, scratch.path())?);
    }
    let targets = targets(&rows, &ends);
    let table = table(&rows, &ends);
    Ok(Section { rows: serde_json::json!({ "ratios": rows, "end_to_end": ends }), table, targets })
}

fn ratios(bench: &Bench, set: &Path, scratch: &Path) -> Result<Vec<Row>, Error> {
    let files = contents(set)?;
    let concatenation = files.concat();
    let mut sizes = vec![
        ("Agnostic: gzip -6".to_owned(), gzipped(&concatenation)?.len()),
        ("Agnostic-Block: gzip -6".to_owned(), gzipped(&interleaved(&files, PIECE))?.len()),
    ];
    for (name, merge) in [("Aware", "aware"), ("Aware-Block", "aware-block:64KiB")] {
        sizes.push((
            format!("{name}: the paper's coders"),
            pack(bench, set, scratch, &["--level", "paper", "--merge", merge])?,
        ));
    }
    let dense = bench.size != Size::Tiny;
    for level in if dense { vec![1, 3, 9, 19] } else { vec![1, 3] } {
        for long in [false, true] {
            let name = format!("zstd -{level}{}", if long { " --long=27" } else { "" });
            sizes.push((name, zstd(&concatenation, level, long)?));
        }
    }
    for level in ["fastest", "default"] {
        sizes.push((format!("stdchk pack, {level}"), pack(bench, set, scratch, &["--level", level])?));
    }
    let agnostic = sizes.first().map_or(1, |(_, stored)| *stored) as f64;
    let row = |(method, stored_bytes): (String, usize)| Row {
        set: name_of(set),
        method,
        raw_bytes: concatenation.len(),
        stored_bytes,
        ratio: concatenation.len() as f64 / stored_bytes.max(1) as f64,
        over_agnostic: (agnostic / stored_bytes.max(1) as f64 - 1.0) * 100.0,
    };
    Ok(sizes.into_iter().map(row).collect())
}

fn zstd(bytes: &[u8], level: i32, long: bool) -> Result<usize, Error> {
    let mut compressor = zstd::bulk::Compressor::new(level)?;
    if long {
        compressor.set_parameter(zstd::zstd_safe::CParameter::WindowLog(27))?;
        compressor.set_parameter(zstd::zstd_safe::CParameter::EnableLongDistanceMatching(true))?;
    }
    Ok(compressor.compress(bytes)?.len())
}

/// Checkpoint and restart by way of a slow file system, with and without aggregation and compression; `None` where it
/// can't be mounted. The application's own write into node-local space, which both have, is left out.
fn end_to_end(bench: &Bench, set: &Path, scratch: &Path) -> Result<Option<EndToEnd>, Error> {
    let names = files_of(set)?;
    let rate = SINK_PER_RANK * names.len() as u64;
    let sink = tempfile::Builder::new().prefix("sink-").tempdir_in(scratch)?;
    let back = tempfile::Builder::new().prefix("back-").tempdir_in(scratch)?;
    let ahead = usize::try_from(rate).unwrap_or(usize::MAX);
    fs::write(sink.path().join(AHEAD), vec![1; ahead])?;
    // Mounted anew for each step, so that nothing is cached that a restart would have to fetch.
    let slowly = |writes: bool, step: &dyn Fn(&Path) -> Result<(), Error>| {
        let Some(slow) = LocalFuse::at_rate(rate, sink.path(), scratch)? else { return Ok(None) };
        if writes {
            fs::write(slow.path().join(AHEAD), vec![1; ahead])?;
        } else {
            fs::read(slow.path().join(AHEAD))?;
        }
        Ok::<_, Error>(Some(timed(|| step(slow.path()))?))
    };
    let Some(raw_write) = slowly(true, &|slow| copy_all(set, &names, slow))? else { return Ok(None) };
    let Some(raw_read) = slowly(false, &|slow| copy_all(slow, &names, back.path()))? else { return Ok(None) };
    let pack_to = |folder: &Path| {
        let mut command = Command::new(&bench.stdchk);
        succeed(command.arg("pack").arg(set).arg("-o").arg(folder.join("container")))
    };
    let unpack_from = |folder: &Path| {
        let mut command = Command::new(&bench.stdchk);
        succeed(
            command.arg("unpack").arg(folder.join("container")).arg("-o").arg(back.path().join("unpacked")),
        )
    };
    let Some(packed_write) = slowly(true, &pack_to)? else { return Ok(None) };
    let Some(packed_read) = slowly(false, &unpack_from)? else { return Ok(None) };
    fs::remove_dir_all(back.path().join("unpacked"))?;
    Ok(Some(EndToEnd {
        set: name_of(set),
        sink_bytes_per_second: rate,
        raw_write_seconds: raw_write,
        raw_read_seconds: raw_read,
        packed_write_seconds: packed_write,
        packed_read_seconds: packed_read,
        pack_seconds: timed(|| pack_to(scratch))?,
        unpack_seconds: timed(|| unpack_from(scratch))?,
    }))
}

fn timed(step: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
    let started = Instant::now();
    step()?;
    Ok(started.elapsed().as_secs_f64())
}

/// Copies the files, each as a rank does: written in one go and made durable.
fn copy_all(from: &Path, names: &[PathBuf], to: &Path) -> Result<(), Error> {
    for name in names {
        fs::copy(from.join(name), to.join(name))?;
        fs::File::open(to.join(name))?.sync_all()?;
    }
    Ok(())
}

impl EndToEnd {
    /// Share of the raw checkpoint's time that aggregation saves.
    fn checkpoint_saved(&self) -> f64 {
        1.0 - self.packed_write_seconds / self.raw_write_seconds
    }

    /// Share of the raw restart's time that aggregation saves.
    fn restart_saved(&self) -> f64 {
        1.0 - self.packed_read_seconds / self.raw_read_seconds
    }
}

fn targets(rows: &[Row], ends: &[EndToEnd]) -> Vec<Target> {
    let of = |set: &str, method: &str| {
        let found = rows.iter().find(|row| row.set == set && row.method == method);
        found.map_or(f64::NAN, |row| row.ratio)
    };
    let mut targets = Vec::new();
    for end in ends {
        let set = &end.set;
        let (fastest, default) = (of(set, "stdchk pack, fastest"), of(set, "stdchk pack, default"));
        targets.push(at_least(format!("{set}: fastest over zstd -3"), fastest / of(set, "zstd -3"), 1.0));
        let dense = of(set, "zstd -19 --long=27");
        if !dense.is_nan() {
            targets.push(at_least(format!("{set}: default over zstd -19 --long=27"), default / dense, 1.0));
        }
        targets.push(at_least(format!("{set}: checkpoint time saved"), end.checkpoint_saved(), 0.87));
        targets.push(at_least(format!("{set}: restart time saved"), end.restart_saved(), 0.62));
    }
    targets
}

fn table(rows: &[Row], ends: &[EndToEnd]) -> String {
    let mut lines =
        vec![format!("{:24} {:32} {:>12} {:>8} {:>14}", "set", "method", "bytes", "ratio", "over Agnostic")];
    lines.extend(rows.iter().map(|row| {
        let Row { set, method, stored_bytes, ratio, over_agnostic, .. } = row;
        format!("{set:24} {method:32} {stored_bytes:>12} {ratio:>8.3} {over_agnostic:>12.1} %")
    }));
    lines.push(format!("\n{PAPER}\n"));
    lines.push(format!(
        "{:24} {:>10} {:>10} {:>10} {:>14} {:>14} {:>10} {:>10}   seconds, with a sink of 2 MB/s a file",
        "set",
        "sink MB/s",
        "raw write",
        "raw read",
        "packed write",
        "packed read",
        "pack only",
        "unpack only"
    ));
    lines.extend(ends.iter().map(|end| {
        format!(
            "{:24} {:>10} {:>10.3} {:>10.3} {:>14.3} {:>14.3} {:>10.3} {:>10.3}",
            end.set,
            end.sink_bytes_per_second / 1_000_000,
            end.raw_write_seconds,
            end.raw_read_seconds,
            end.packed_write_seconds,
            end.packed_read_seconds,
            end.pack_seconds,
            end.unpack_seconds
        )
    }));
    lines.join("\n") + "\n"
}
