//! `stdchk seal`: a checkpoint set that no lifetime removes.

use clap::Args;
use stdchk_model::Timestep;
use stdchk_operations::Target;

use crate::context::Context;
use crate::exit::Outcome;

/// What `seal` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A sealed set stays whatever `lifetime` the folder has, and when the job is done. Who removes its files by hand (`stdchk rm`), or writes
them anew, is not kept from it.

Example:
  stdchk seal climate --set 120000
  stdchk seal climate --set 120000 --undo")]
pub struct Arguments {
    /// The application's folder
    app: String,
    /// Timestep of the set
    #[arg(long, value_name = "TIMESTEP")]
    set: Timestep,
    /// Take the seal off
    #[arg(long)]
    undo: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let app = Target::parse_plain(&arguments.app)?;
    context.pool().await?.seal(&app, arguments.set, !arguments.undo).await?;
    Ok(())
}
