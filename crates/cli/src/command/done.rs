//! `stdchk done`: the job has succeeded, so all its checkpoint sets but the last can go.

use clap::Args;
use stdchk_model::size;
use stdchk_operations::{Fates, Target};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output::{self, Table};

/// What `done` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The newest complete set stays, and so do newer ones, sealed ones (`stdchk seal`), and those that `every:` of the folder's lifetime
keeps. The others go within seconds, once that set has all its copies: until then all stay. Files that are in no set stay, too.

Example:
  stdchk done climate --dry-run
  stdchk done climate")]
pub struct Arguments {
    /// The application's folder
    app: String,
    /// Only say what would go
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let app = Target::parse_plain(&arguments.app)?;
    let fates = context.pool().await?.done(&app, arguments.dry_run).await?;
    print(&fates, arguments.json, if arguments.dry_run { "would go" } else { "go" })
}

/// Says what becomes of each set, and how much goes.
pub fn print(fates: &Fates, json: bool, verb: &str) -> Outcome {
    if json {
        return output::json(fates);
    }
    let mut table = Table::new(&[">timestep", "state", ">files", ">size", "", "why"]);
    for set in &fates.sets {
        table.row([
            set.timestep.to_string(),
            super::ls::set_word(set.state).to_owned(),
            set.files.to_string(),
            size::human(set.bytes),
            if set.goes { "goes" } else { "stays" }.to_owned(),
            set.reason.clone(),
        ]);
    }
    table.print()?;
    let (going, bytes) = (fates.going().count(), size::human(fates.going_bytes()));
    output::line(format_args!("{going} of {} {verb}, {bytes}", output::count(fates.sets.len(), "set")))
}
