//! `stdchk rm`: removes files, single versions and, only with `-r`, folders.
//!
//! Space comes back with the next collection; chunks that other versions use stay.

use clap::Args;
use stdchk_operations::{Pool, Remove, Target};

use crate::context::Context;
use crate::exit::{Outcome, Parts};
use crate::output;

/// What `rm` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Content that other versions use stays; the space of the rest comes back with the next collection (`stdchk gc` is one).

Example:
  stdchk rm climate/restart.120000
  stdchk rm climate/restart.130000@2
  stdchk rm -r climate/run7")]
pub struct Arguments {
    /// Files, versions or folders, APP/NAME[@VERSION]
    #[arg(required = true, value_name = "APP/NAME[@VERSION]")]
    targets: Vec<String>,
    /// Remove folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let pool = context.pool().await?;
    let parts = Parts::default();
    for text in &arguments.targets {
        parts.add(remove(&pool, text, arguments).await)?;
    }
    parts.outcome()
}

async fn remove(pool: &Pool, text: &str, arguments: &Arguments) -> Outcome {
    let (recursive, dry_run) = (arguments.recursive, arguments.dry_run);
    let removed = pool.remove(&Remove { target: Target::parse_entry(text)?, recursive, dry_run }).await?;
    match dry_run {
        true => removed
            .iter()
            .try_for_each(|target| output::line(format_args!("would remove {}", target.shown()))),
        false => Ok(()),
    }
}
