//! `stdchk restore`: all files of a checkpoint set come back below a local folder, in parallel and verified.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use stdchk_model::timestep::BadTimestep;
use stdchk_model::{Timestep, size};
use stdchk_operations::{Restore, Restored, Target};

use super::away::Away;
use crate::context::Context;
use crate::exit::Outcome;
use crate::output;
use crate::progress::rate;

/// What `restore` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Without --set it is the set that `stdchk latest` names; should that turn out to be damaged, the one before it. Folders below the application's folder are kept. Files that
are there and match are left alone; files that differ are replaced. Of a set that isn't complete comes back what is
there: exit code 3.

Example:
  stdchk restore climate -o restart/
  stdchk restore climate --set 120000 -o restart/")]
pub struct Arguments {
    /// The application's folder
    app: String,
    /// The set's timestep
    #[arg(long, value_name = "TIMESTEP", value_parser = timestep, conflicts_with_all = ["wait", "or_older"])]
    set: Option<Timestep>,
    #[command(flatten)]
    away: Away,
    /// Folder to restore to; made if it is missing
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Reads the timestep of a set.
pub fn timestep(text: &str) -> Result<Timestep, String> {
    text.parse().map_err(|error: BadTimestep| format!("{error}; `stdchk ls APP --sets` lists them"))
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let app = Target::parse_plain(&arguments.app)?;
    let pool = context.pool_to_move().await?;
    let told = context.told();
    let (timestep, when_away) = (arguments.set, arguments.away.when());
    let restore = Restore { app, timestep, when_away, output: arguments.output.clone() };
    let restored = pool.restore(&restore, &told.clone().watch()).await?;
    if arguments.json {
        output::json(&restored)?;
    } else if !context.settings.quiet {
        say(&restored);
    }
    told.parts.succeed(restored.tally.succeeded);
    told.parts.outcome()
}

fn say(restored: &Restored) {
    let kept = restored.members.iter().filter(|member| member.kept).count();
    let files = output::count(restored.members.len(), "file");
    let elapsed = Duration::from_secs_f64(restored.seconds);
    let (step, size) = (restored.timestep, size::human(restored.bytes));
    let rate = size::human(rate(restored.bytes, elapsed));
    output::note(format_args!("restore: timestep {step}, {files} ({kept} there before), {size}, {rate}/s"));
}
