//! `stdchk latest`: the newest checkpoint set that is complete and intact (I5).

use clap::Args;
use stdchk_model::size;
use stdchk_operations::{Depth, LatestSet, Target};

use super::away::Away;
use crate::context::Context;
use crate::exit::Outcome;
use crate::output;
use crate::progress::Told;

/// What `latest` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A set is complete when the files of all ranks of a timestep are committed. Sets that are incomplete or damaged are passed
over for an older one. The answer comes at once, by what the manager knows: benefactors that are on-line have said that
they have each block, durable and as its name says, and have found no damage since; they look for it all the time. With
--check they read all blocks of the set now. `stdchk restore` verifies what it restores anyway. Exit code 4: there is no complete set; 5: the newest one can't be reached now, because benefactors
are away; 7: complete sets exist, and all of them are damaged.
A set is exposed while it has chunks with fewer copies than its folder asks for: losing one more benefactor may cost it.

Example:
  stdchk latest climate
  stdchk latest climate --wait=10m --json
  stdchk latest climate --check")]
pub struct Arguments {
    /// The application's folder
    app: String,
    #[command(flatten)]
    away: Away,
    /// Read every block of the set, too
    #[arg(long)]
    check: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let app = Target::parse_plain(&arguments.app)?;
    let pool = context.pool().await?;
    let watch = Told { reports_passed_over: arguments.json, ..context.told() }.watch();
    let depth = if arguments.check { Depth::Read } else { Depth::Known };
    let set = pool.latest(&app, arguments.away.when(), depth, &watch).await?.required(&app)?;
    match arguments.json {
        true => output::json(&set),
        false => print(&set),
    }
}

fn print(set: &LatestSet) -> Outcome {
    let (files, size) = (output::count(set.members.len(), "file"), size::human(set.bytes()));
    let when = output::time(set.committed_at);
    let state = if set.checked { "complete, checked and intact" } else { "complete and intact" };
    output::line(format_args!("timestep {}: {state}, {files}, {size}, {when}", set.timestep))?;
    if set.exposed.chunks > 0 {
        let since = set.exposed.since.map(|since| format!(", since {}", output::time(since)));
        output::line(format_args!(
            "  exposed: {} of {} chunks ({}) have {}{}",
            set.exposed.chunks,
            set.chunks,
            size::human(set.exposed.bytes),
            set.redundancy.shortage(),
            since.unwrap_or_default()
        ))?;
    }
    for member in &set.members {
        output::line(format_args!("  {}@{}", output::shown(&member.name), member.version))?;
    }
    Ok(())
}
