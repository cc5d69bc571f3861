//! `stdchk diff`: which byte ranges of two versions differ, and how many chunks they share.

use clap::Args;
use stdchk_model::size;
use stdchk_operations::{Difference, Target};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output;

/// Lines that people get; JSON has all ranges.
const LINES_MAX: usize = 20;

/// What `diff` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
With one file its newest version is compared with the one before. Exit code 0 whether they differ or not.

Example:
  stdchk diff climate/restart.120000
  stdchk diff climate/restart.120000@1 climate/restart.120000@3
  stdchk diff climate/restart.120000 climate/restart.130000 --json")]
pub struct Arguments {
    /// The older file or version, APP/NAME[@VERSION]
    first: String,
    /// The newer one
    second: Option<String>,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let pool = context.pool().await?;
    let first = Target::parse_entry(&arguments.first)?;
    let second = arguments.second.as_deref().map(Target::parse_entry).transpose()?;
    let difference = pool.diff(&first, second.as_ref(), &context.watch()).await?;
    match arguments.json {
        true => output::json(&difference),
        false => print(&difference),
    }
}

fn print(report: &Difference) -> Outcome {
    if report.identical {
        return output::line(format_args!("{} and {} are identical", report.first, report.second));
    }
    output::line(format_args!("--- {} ({} bytes)", report.first, report.first_bytes))?;
    output::line(format_args!("+++ {} ({} bytes)", report.second, report.second_bytes))?;
    for range in report.ranges.iter().take(LINES_MAX) {
        let last = range.offset + range.length - 1;
        output::line(format_args!("bytes {}-{last} ({})", range.offset, size::human(range.length)))?;
    }
    if let Some(more) = report.ranges.len().checked_sub(LINES_MAX).filter(|more| *more > 0) {
        output::line(format_args!("and {more} more ranges (--json has all)"))?;
    }
    output::line(format_args!(
        "{} in {} ranges; chunks: {} shared, {} only in the first, {} only in the second",
        size::human(report.different_bytes),
        report.ranges.len(),
        report.shared_chunks,
        report.chunks_only_in_first,
        report.chunks_only_in_second
    ))
}
