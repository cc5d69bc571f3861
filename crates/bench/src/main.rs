//! `stdchk-bench`: what the paper measured, re-measured, beside what a user would pick instead, in one run.
//!
//! Every row is a transfer of one file through system calls or commands, repeated, reported as the median. Rows that are
//! compared run in turn, so that a slow minute of the machine hits all of them. The figures are ratios; the absolute rates
//! belong to the machine that is named with them.

mod cpu;
mod data;
mod machine;
mod plan;
mod pool;
mod report;
mod transfer;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

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

/// How much is written and how often.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Size {
    /// Seconds: only shows that everything still runs
    Tiny,
    /// A few minutes
    Small,
    /// 1 GiB files, all numbers of benefactors and windows
    Full,
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
    /// Only measures whose name holds this text
    #[arg(long, default_value = "")]
    only: String,
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
}

/// Processes that a measurement needs.
#[derive(Subcommand)]
enum Helper {
    /// A FUSE mount that throws the bytes away (the paper's /stdchk/null); runs until its standard input ends
    Null {
        /// How the kernel handles the bytes: as on the pool's mount, or its default
        #[arg(long, value_enum, default_value = "write-back")]
        mode: Mode,
        /// Where to mount it
        mount_point: PathBuf,
    },
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
    if let Some(Helper::Null { mount_point, mode }) = line.command {
        let mode = match mode {
            Mode::WriteBack => stdchk_mount::NullMode::WriteBack,
            Mode::WriteThrough => stdchk_mount::NullMode::WriteThrough,
        };
        return plan::serve_null(&mount_point, mode);
    }
    std::fs::create_dir_all(&line.dir)?;
    let dir = line.dir.canonicalize()?;
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("stdchk");
    let bench =
        plan::Bench::new(plan::sizes(line.size), dir.clone(), line.stdchk.unwrap_or(beside), own, line.only);
    let rows = bench.run()?;
    report::write(&dir, &rows)
}
