//! `stdchk-bench`: what the paper measured, re-measured, beside what a user would pick instead, in one run.
//!
//! The module `measures` lists what is measured. Rows that are compared run in turn, so that a slow minute of the machine
//! hits all of them, and are reported as medians. The figures are ratios; the absolute rates belong to the machine that is
//! named with them. Each measure writes its results as soon as it has them, so that a later one's failure loses nothing.

mod bench;
mod coding;
mod cpu;
mod dedicated;
mod ends;
mod evictions;
mod job;
mod local_fuse;
mod machine;
mod measures;
mod null;
mod paper;
mod pool;
mod row;
mod section;
mod series;
mod stock;
mod transfer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::bench::{Bench, Size};
use crate::dedicated::Dedicated;
use crate::ends::AtEnd;
use crate::job::Job;

/// Something that kept a measurement from being made.
#[derive(Debug)]
pub struct Error(pub String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Measures stdchk beside a plain file and a do-nothing FUSE mount.
#[derive(Parser)]
#[command(name = "stdchk-bench")]
struct Line {
    /// How much is written and how often
    #[arg(long, value_enum, default_value = "small")]
    size: Size,
    /// Where pools and files are made; the disk that is measured
    #[arg(long, default_value = "out/bench")]
    dir: PathBuf,
    /// The binary to measure; the one beside this program if not given
    #[arg(long)]
    stdchk: Option<PathBuf>,
    /// Only these measures, separated by commas; `list` prints their names
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Series of images, one in each folder below, as scripts/images makes them; a small one is made up if not given
    #[arg(long)]
    images: Option<PathBuf>,
    /// Checkpoint sets, one in each folder below; a small one is made up if not given
    #[arg(long)]
    sets: Option<PathBuf>,
    /// A trace of hosts that come and go, as stdchk-replay reads it: `placement` replays it, and the jobs of `makespan` are evicted as its
    /// hosts went; if not given, a made-up one, and the FALCON paper's Table 2
    #[arg(long)]
    trace: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Helper>,
}

/// How the kernel handles the bytes of the do-nothing mount.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The page cache takes writes and writes them back, as on the pool's mount
    WriteBack,
    /// Every write goes to the file system at once, the kernel's default
    WriteThrough,
    /// Past the page cache, as on the pool's mount what is known to be written in large pieces
    Direct,
}

/// What is done instead of measuring.
#[derive(Subcommand)]
enum Helper {
    /// Prints the names of all measures
    List,
    /// A FUSE mount that throws the bytes away (the paper's /stdchk/null); runs until its standard input ends
    Null {
        /// How the kernel handles the bytes: as on the pool's mount, or its default
        #[arg(long, value_enum, default_value = "write-back")]
        mode: Mode,
        /// Where to mount it
        mount_point: PathBuf,
    },
    /// A dedicated checkpoint server, the peer of FALCON's figures, and its clients
    #[command(subcommand)]
    Dedicated(Dedicated),
    /// A job that takes checkpoints of itself, for the measure `makespan`
    Job(Job),
}

fn main() -> ExitCode {
    match run(Line::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stdchk-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(line: Line) -> Result<(), Error> {
    match line.command {
        Some(Helper::Null { mount_point, mode: Mode::WriteBack }) => {
            null::serve(&mount_point, stdchk_mount::NullMode::WriteBack)
        }
        Some(Helper::Null { mount_point, mode: Mode::WriteThrough }) => {
            null::serve(&mount_point, stdchk_mount::NullMode::WriteThrough)
        }
        Some(Helper::Null { mount_point, mode: Mode::Direct }) => {
            null::serve(&mount_point, stdchk_mount::NullMode::Direct)
        }
        Some(Helper::Dedicated(dedicated)) => dedicated.run(),
        Some(Helper::Job(job)) => job.run(),
        Some(Helper::List) => {
            measures::ALL.iter().for_each(|measure| println!("{:12} {}", measure.name, measure.what));
            Ok(())
        }
        None => measure(line),
    }
}

fn measure(line: Line) -> Result<(), Error> {
    let measures = measures::named(&line.only)?;
    ends::at_signals()?;
    std::fs::create_dir_all(&line.dir)?;
    let results = line.dir.canonicalize()?;
    let dir = tempfile::Builder::new().prefix("scratch-").tempdir_in(&results)?.keep();
    let scratch = dir.clone();
    let _removed = AtEnd::new(move || remove(&scratch));
    let own = std::env::current_exe()?;
    // Measures start it from other folders.
    let stdchk = std::path::absolute(line.stdchk.unwrap_or_else(|| own.with_file_name("stdchk")))?;
    let bench = Bench {
        size: line.size,
        sizes: line.size.sizes(),
        dir,
        stdchk,
        own,
        images: line.images,
        sets: line.sets,
        trace: line.trace,
    };
    let machine = machine::Machine::look();
    println!("{}", machine.line());
    for measure in measures {
        eprintln!("stdchk-bench: {}", measure.name);
        let section = (measure.run)(&bench)?;
        section::write(&results, &machine, line.size, measure, &section)?;
    }
    Ok(())
}

fn remove(scratch: &Path) {
    if let Err(error) = std::fs::remove_dir_all(scratch) {
        eprintln!("stdchk-bench: {} could not be removed: {error}", scratch.display());
    }
}
