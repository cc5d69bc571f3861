//! `stdchk accept-older-store`: goes on with a manager's store that is an older copy, without what was stored since.

use clap::Args;

use crate::context::Context;
use crate::exit::Outcome;
use crate::output;

/// What `accept-older-store` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A manager whose store was put back from a backup, or is another older copy, serves what it knows and writes and collects
nothing: chunks of newer files would look like garbage. If the newer store can still be had, stop the pool, put that one
in place and start the pool again; nothing is lost then. Otherwise this command gives up what was stored since the copy
was made. It can't be undone: the chunks of the newer files are collected. From then on the pool's members refuse a manager that
has the other state.

Example:
  stdchk status                 set back: benefactors remember commits that the store lacks
  stdchk accept-older-store")]
pub struct Arguments {}

/// Runs the command.
pub async fn run(_arguments: &Arguments, context: &Context) -> Outcome {
    context.pool_or_older().await?.accept_older_store().await?;
    output::line("the older store is accepted; what was stored since it was copied is given up")
}
