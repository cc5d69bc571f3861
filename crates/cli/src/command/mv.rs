//! `stdchk mv`: renames and moves, atomically and without touching content.

use clap::Args;
use stdchk_operations::{Rename, Target};

use crate::context::Context;
use crate::exit::Outcome;

/// What `mv` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Moving a file onto another makes it that file's newest version; the versions there before stay.
A target that is a folder takes the source in under its own name.

Example:
  stdchk mv climate/restart.tmp climate/restart.120000
  stdchk mv climate/run7 archive/")]
pub struct Arguments {
    /// What to move, APP/NAME
    source: String,
    /// Its new name or folder, APP/[NAME]
    target: String,
    /// Fail if the new name exists
    #[arg(short = 'n', long)]
    no_replace: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    Target::parse_plain(&arguments.source)?;
    let source = Target::parse_entry(&arguments.source)?;
    let pool = context.pool().await?;
    let target = Target::parse_plain(&arguments.target)?;
    let (into_folder, no_replace) = (arguments.target.ends_with('/'), arguments.no_replace);
    Ok(pool.rename(&Rename { source, target, into_folder, no_replace }).await?)
}
