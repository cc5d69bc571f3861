//! `stdchk forget`: takes a benefactor out of the pool whose disk won't come back.

use std::str::FromStr;

use clap::Args;
use stdchk_model::BenefactorId;

use crate::context::Context;
use crate::exit::Outcome;
use crate::output;

/// What `forget` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A benefactor that is silent for half a minute counts as lost, and its chunks are copied anew from other replicas; the
pool stays degraded until it returns or is forgotten. One that is on-line isn't forgotten. If a forgotten one
returns after all, it joins again with all that it holds.

Example:
  stdchk status                 b2 is lost, no chunks are at risk
  stdchk forget b2")]
pub struct Arguments {
    /// The benefactors, as `status` names them
    #[arg(value_name = "BENEFACTOR", required = true, value_parser = benefactor_id)]
    benefactors: Vec<BenefactorId>,
    /// Forget also what holds the only copy of chunks: these are lost
    #[arg(long)]
    force: bool,
}

/// Reads the name of a benefactor.
pub fn benefactor_id(text: &str) -> Result<BenefactorId, String> {
    let number = text.strip_prefix('b').unwrap_or(text);
    u32::from_str(number)
        .map(BenefactorId)
        .map_err(|_| "a benefactor is named like b2, see `stdchk status`".to_owned())
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let pool = context.pool().await?;
    for id in &arguments.benefactors {
        pool.forget(*id, arguments.force).await?;
        output::line(format_args!("{id} is forgotten"))?;
    }
    Ok(())
}
