//! Other people's benchmarks, where they are installed (`scripts/setup bench`): bonnie++, which the paper used, and fio.

use std::path::Path;
use std::process::Command;

use super::table::Row;
use super::{MODES, Tree, said_by};
use crate::Error;
use crate::bench::Bench;

/// bonnie++ works in pieces of this size, and tells KiB per second.
const BONNIE_BLOCK_KIB: f64 = 8.0;
/// Where its lines of figures have those of the three tests, counted from 0.
const BONNIE_FIELDS: [usize; 3] = [11, 13, 17];

/// The programs, each of which is left out where it is missing.
const PROGRAMS: [&str; 2] = ["bonnie++", "fio"];

/// Those that are missing.
pub fn not_installed() -> Vec<&'static str> {
    PROGRAMS.into_iter().filter(|program| !is_there(program)).collect()
}

/// Measures with those that are there.
pub fn run(bench: &Bench, tree: &Tree, bonnie_bytes: u64) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    if is_there(PROGRAMS[0]) {
        let names = [
            ("bonnie++ block write", "0.80 0.90 0.97 1.04"),
            ("bonnie++ rewrite", "1.09 1.05 1.03 1.01"),
            ("bonnie++ block read", "1.14 1.15 1.15 1.16"),
        ];
        rows.extend(compare(bench, &names, |mode| bonnie(bench, tree, bonnie_bytes, mode))?);
    }
    if is_there(PROGRAMS[1]) {
        rows.extend(compare(bench, &[("fio random 4 KiB writes", "")], |mode| fio(bench, tree, mode))?);
    }
    Ok(rows)
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok() || Path::new("/usr/sbin").join(program).is_file()
}

/// Runs `measure` without the library and in each mode, in turn; what a tool did not tell, because the disk was too fast
/// for it, leaves no row.
fn compare<const TESTS: usize>(
    bench: &Bench,
    tests: &[(&'static str, &'static str); TESTS],
    measure: impl Fn(Option<&str>) -> Result<[f64; TESTS], Error>,
) -> Result<Vec<Row>, Error> {
    super::tell(&tests.map(|(name, _)| name).join(", "));
    let mut rows = MODES.map(|mode| tests.map(|(name, paper)| Row::new(name, mode, paper)));
    for _ in 0..bench.sizes.states.tool_rounds {
        let without = measure(None)?;
        for (of_mode, mode) in rows.iter_mut().zip(MODES) {
            for (row, (without, with)) in
                of_mode.iter_mut().zip(without.into_iter().zip(measure(Some(mode))?))
            {
                row.without.push(without);
                row.with.push(with);
            }
        }
    }
    let is_told = |row: &Row| row.without.iter().chain(&row.with).all(|value| value.is_finite());
    let (told, untold): (Vec<Row>, Vec<Row>) = rows.into_iter().flatten().partition(is_told);
    untold.iter().for_each(|row| super::tell(&format!("{}: over too soon, no row", row.name())));
    Ok(told)
}

/// Nanoseconds per block of the three tests.
fn bonnie(bench: &Bench, tree: &Tree, bytes: u64, mode: Option<&str>) -> Result<[f64; 3], Error> {
    tree.settle()?;
    let mebibytes = bytes >> 20;
    let program = [Path::new("/usr/sbin/bonnie++"), Path::new("bonnie++")];
    let program = if program[0].is_file() { program[0] } else { program[1] };
    let mut command = tree.command(bench, program, mode);
    // Without small files, without single characters; it would refuse a file that is smaller than twice the memory.
    command.args(["-d", ".", "-n", "0", "-f", "-q", "-s", &mebibytes.to_string()]);
    command.args(["-r", &(mebibytes / 2).to_string()]);
    if rustix::process::geteuid().is_root() {
        command.args(["-u", "root"]);
    }
    let said = said_by(&mut command)?;
    let fields: Vec<&str> = said.lines().last().unwrap_or_default().split(',').collect();
    Ok(BONNIE_FIELDS.map(|field| {
        let rate = fields.get(field).and_then(|text| text.parse::<f64>().ok());
        rate.map_or(f64::NAN, |rate| BONNIE_BLOCK_KIB / rate * 1e9)
    }))
}

/// Nanoseconds per 4 KiB overwrite of the old file, each page once.
fn fio(bench: &Bench, tree: &Tree, mode: Option<&str>) -> Result<[f64; 1], Error> {
    tree.settle()?;
    let mut command = tree.command(bench, Path::new("fio"), mode);
    command.args(["--name=random", "--filename=old", "--rw=randwrite", "--bs=4k", "--ioengine=psync"]);
    command.args(["--fallocate=none", "--output-format=json", &format!("--size={}", tree.bytes)]);
    let said: serde_json::Value = serde_json::from_str(&said_by(&mut command)?)?;
    let rate = said.pointer("/jobs/0/write/iops").and_then(serde_json::Value::as_f64);
    Ok([1e9 / rate.ok_or_else(|| Error("fio told no rate of writes".to_owned()))?])
}
