//! File states: the same programs with and without the library of `stdchk run`, beside Metamori's section 5.3.
//!
//! The rows are those of the paper's figure 5.1, random overwrites, calls on files that are not protected, and a
//! checkpoint and a restore of one changed mebibyte in a large file. Metamori has caches of several sizes in the path of
//! every write; here is no cache, so one row stands beside all of the paper's columns.

mod table;
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;

use self::table::Row;
use crate::Error;
use crate::bench::{Bench, FileStates};
use crate::section::Section;

const SOURCE: &str = include_str!("../../../programs/files.c");
/// The modes of `stdchk run`, measured in turn.
const MODES: [&str; 3] = ["write-through", "single", "incremental"];

/// What a test should reach.
#[derive(Clone, Copy)]
enum Wanted {
    /// Speed as a share of the speed without the library, in each of [`MODES`].
    Share([f64; 3]),
    /// Time added to a call, at most, ns.
    AddedNs(f64),
    /// Time at most, ms.
    Ms(f64),
    /// It is only shown.
    Nothing,
}

/// One workload of `programs/files.c`.
struct Test {
    name: &'static str,
    /// The paper's speed with the library as a share of that without, over its cache sizes.
    paper: &'static str,
    wanted: Wanted,
}

const fn test(name: &'static str, paper: &'static str, wanted: Wanted) -> Test {
    Test { name, paper, wanted }
}

/// Means of figure 5.1: 100, 50, 25 MB of cache, none.
const TESTS: [Test; 12] = [
    test("block_write", "0.80 0.90 0.97 1.04", Wanted::Share([0.97, 0.97, 0.9])),
    test("rewrite", "1.09 1.05 1.03 1.01", Wanted::Share([1.0, 1.0, 0.9])),
    test("block_read", "1.14 1.15 1.15 1.16", Wanted::Share([0.97, 0.97, 0.9])),
    test("random_pwrite", "", Wanted::Share([0.85; 3])),
    test("random_stdio", "", Wanted::Share([0.85; 3])),
    test("first_overwrites", "", Wanted::Nothing),
    test("unprotected_write", "", Wanted::AddedNs(150.0)),
    test("unprotected_pwrite", "", Wanted::AddedNs(150.0)),
    test("unprotected_open", "", Wanted::AddedNs(150.0)),
    test("unprotected_open_to_write", "", Wanted::AddedNs(150.0)),
    test("unprotected_open_and_write", "", Wanted::AddedNs(150.0)),
    test("unprotected_open_to_create", "", Wanted::Nothing),
];

/// With the library alone, on large files; beside what the disk takes for the same change by itself, [`SYNC`].
const ALONE: [Test; 2] = [test("checkpoint", "", Wanted::Ms(20.0)), test("restore", "", Wanted::Ms(20.0))];
const SYNC: Test = test("sync_change", "", Wanted::Nothing);
/// What lies on the disk beside the files: programs, indices, the logs of small changes.
const ROOM_BESIDE: u64 = 256 << 20;

/// Measures all of them.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let states = &bench.sizes.states;
    check_room(&bench.dir, room_needed(states))?;
    let tree = Tree::with_old_file(bench, states.bytes)?;
    let mut rows = Vec::new();
    for test in &TESTS {
        rows.extend(told(tree.compare(bench, test)?));
    }
    let mut not_installed = Vec::new();
    if let Some(bonnie_bytes) = states.bonnie_bytes {
        rows.extend(told(tools::run(bench, &tree, bonnie_bytes)?));
        not_installed = tools::not_installed();
    }
    drop(tree);
    for bytes in states.large_bytes {
        let large = Tree::with_old_file(bench, *bytes)?;
        for test in &ALONE {
            rows.extend(told([large.alone(bench, test)?]));
        }
    }
    table::section(&rows, &not_installed, bench)
}

/// The most that lies on the disk at one time: an old file, its old contents in the log, and a new file; or a large one.
fn room_needed(states: &FileStates) -> u64 {
    let new = states.bonnie_bytes.unwrap_or(0).max(states.bytes);
    let large = states.large_bytes.iter().copied().max().unwrap_or(0);
    (2 * states.bytes + new).max(large) + ROOM_BESIDE
}

fn check_room(dir: &Path, needed: u64) -> Result<(), Error> {
    let disk = rustix::fs::statvfs(dir)?;
    let free = disk.f_bavail * disk.f_frsize;
    if free >= needed {
        return Ok(());
    }
    let human = stdchk_model::size::human;
    Err(Error(format!(
        "the measure `files` needs {} in {}, where {} are free; name another disk with --dir, or take a smaller --size",
        human(needed),
        dir.display(),
        human(free)
    )))
}

/// Says what is being measured: some rows take minutes.
fn tell(name: &str) {
    eprintln!("stdchk-bench: files: {name}");
}

/// Shows rows as they come: all of them take half an hour, and a run that is cut off has told something.
fn told<Rows: AsRef<[Row]>>(rows: Rows) -> Rows {
    rows.as_ref().iter().for_each(|row| eprintln!("{}", row.line()));
    rows
}

/// A directory with the program and a file that is there before every run.
struct Tree {
    directory: tempfile::TempDir,
    /// The program lies outside of what is protected.
    program: PathBuf,
    _programs: tempfile::TempDir,
    bytes: u64,
}

impl Tree {
    fn with_old_file(bench: &Bench, bytes: u64) -> Result<Self, Error> {
        let directory = tempfile::Builder::new().prefix("files-").tempdir_in(&bench.dir)?;
        let programs = tempfile::Builder::new().prefix("programs-").tempdir_in(&bench.dir)?;
        let program = build(programs.path())?;
        let mut file = std::fs::File::create(directory.path().join("old"))?;
        let block = vec![b'o'; 1 << 20];
        for _ in 0..bytes >> 20 {
            std::io::Write::write_all(&mut file, &block)?;
        }
        Ok(Self { directory, program, _programs: programs, bytes })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A command in the tree, under the library in a mode or without it.
    fn command(&self, bench: &Bench, program: &Path, mode: Option<&str>) -> Command {
        let mut command = Command::new(mode.map_or(program, |_| &bench.stdchk));
        if let Some(mode) = mode {
            command.args(["run", "--mode", mode, "--"]).arg(program);
        }
        command.current_dir(self.path());
        command
    }

    /// Nanoseconds per operation of a workload.
    fn measure(&self, bench: &Bench, test: &Test, mode: Option<&str>) -> Result<f64, Error> {
        self.settle()?;
        let mut command = self.command(bench, &self.program, mode);
        Ok(said_by(command.args([test.name, &self.bytes.to_string()]))?.trim().parse()?)
    }

    /// Nothing of the run before may fall into the next.
    fn settle(&self) -> Result<(), Error> {
        let _ = std::fs::remove_file(self.path().join("new"));
        rustix::fs::syncfs(std::fs::File::open(self.path())?)?;
        Ok(())
    }

    /// A test without the library and in each mode, in turn.
    fn compare(&self, bench: &Bench, test: &Test) -> Result<[Row; 3], Error> {
        tell(test.name);
        let mut rows = MODES.map(|mode| Row::new(test.name, mode, test.paper));
        for (row, place) in rows.iter_mut().zip(0..) {
            row.wanted = test.wanted.of_mode(place);
        }
        for _ in 0..bench.sizes.states.rounds {
            let without = self.measure(bench, test, None)?;
            for (row, mode) in rows.iter_mut().zip(MODES) {
                row.without.push(without);
                row.with.push(self.measure(bench, test, Some(mode))?);
            }
        }
        Ok(rows)
    }

    /// A test that means something under the library only, beside [`SYNC`].
    fn alone(&self, bench: &Bench, test: &Test) -> Result<Row, Error> {
        let name = format!("{}, {}", test.name, stdchk_model::size::human(self.bytes));
        tell(&name);
        let mut row = Row::new(name, MODES[0], test.paper);
        row.wanted = test.wanted.of_mode(0);
        for _ in 0..bench.sizes.states.rounds {
            row.without.push(self.measure(bench, &SYNC, None)?);
            row.with.push(self.measure(bench, test, Some(MODES[0]))?);
        }
        Ok(row)
    }
}

impl Wanted {
    fn of_mode(self, place: usize) -> Wanted {
        match self {
            Self::Share(shares) => Self::Share([shares.get(place).copied().unwrap_or(0.0); 3]),
            other => other,
        }
    }
}

fn build(directory: &Path) -> Result<PathBuf, Error> {
    let (source, program) = (directory.join("files.c"), directory.join("files"));
    std::fs::write(&source, SOURCE)?;
    said_by(Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(&source))?;
    Ok(program)
}

/// Runs a command that must succeed; its standard output.
fn said_by(command: &mut Command) -> Result<String, Error> {
    let output = command.output().map_err(|error| Error(format!("cannot start {command:?}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error(format!("{command:?} failed: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Size;

    #[test]
    fn the_full_form_takes_no_more_than_25_gb_of_disk() {
        assert!(room_needed(&Size::Full.sizes().states) < 25_000_000_000);
    }

    #[test]
    fn a_disk_that_is_too_small_is_refused_with_both_sizes() {
        let dir = tempfile::tempdir().unwrap();
        check_room(dir.path(), 1).unwrap();
        let refusal = check_room(dir.path(), 1 << 60).unwrap_err().to_string();
        assert!(refusal.contains("needs 1.00 EiB"), "{refusal}");
    }
}
