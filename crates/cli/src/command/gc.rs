//! `stdchk gc`: removes chunks that no version and no session refers to (I4), now instead of by and by.

use clap::Args;
use stdchk_model::size;

use crate::context::Context;
use crate::exit::Outcome;
use crate::output;

/// What `gc` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
What was written or used within the last minute stays: a session that is not committed yet may need it.

Example:
  stdchk gc --dry-run
  stdchk gc")]
pub struct Arguments {
    /// Only say what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let collected = context.pool().await?.collect(arguments.dry_run).await?;
    if arguments.json {
        return output::json(&collected);
    }
    let verb = if arguments.dry_run { "would remove" } else { "removed" };
    if collected.blocks == 0 {
        return output::line(
            "nothing to remove; what was written or used within the last minute is kept for now",
        );
    }
    let bytes = size::human(collected.bytes);
    let (chunks, blocks) = (collected.chunks, collected.blocks);
    output::line(format_args!(
        "{verb} {blocks} blocks, {bytes}: all of {chunks} chunks, and copies that are too many"
    ))
}
