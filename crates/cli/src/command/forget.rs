//! `stdchk forget`: gives up what won't come back: a benefactor whose disk is gone, or a file in a spool that is.

use std::str::FromStr;

use clap::Args;
use stdchk_model::BenefactorId;
use stdchk_operations::{Code, JoinedHost, Pool};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output;

/// What `forget` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A benefactor that is silent for half a minute counts as lost, and its chunks are copied anew from other replicas; the
pool stays degraded until it returns or is forgotten. One that is on-line isn't forgotten. If a forgotten one
returns after all, it joins again with all that it holds; `stdchk pool revoke` shuts its host out for good.

A file that waits in the spool of a mount and has parts of a version keeps that version, whatever is removed. If the
disk with the spool won't come back, forget the file by the number that `status` shows behind it. Should its mount
come back after all, what it wrote is lost once the version is removed.

Example:
  stdchk status                 b2 is lost, no chunks are at risk
  stdchk forget b2
  stdchk forget s3f21c0         the start of a number, as far as it is the only one")]
pub struct Arguments {
    /// Benefactors or files in spools, as `status` names them
    #[arg(value_name = "BENEFACTOR|FILE", required = true, value_parser = gone)]
    gone: Vec<Gone>,
    /// Forget also what holds the only copy of chunks: these are lost
    #[arg(long)]
    force: bool,
}

/// What won't come back.
#[derive(Clone, Debug)]
enum Gone {
    Benefactor(BenefactorId),
    /// A file in a spool, by the start of its number.
    Spooled(String),
}

fn gone(text: &str) -> Result<Gone, String> {
    match text.strip_prefix('s').map(str::to_ascii_lowercase) {
        Some(digits) if !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_hexdigit()) => {
            Ok(Gone::Spooled(digits))
        }
        Some(_) => Err("a file in a spool is named like s3f21c0, see `stdchk status`".to_owned()),
        None => benefactor_id(text).map(Gone::Benefactor),
    }
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
    for gone in &arguments.gone {
        match gone {
            Gone::Benefactor(id) => {
                let member = member_of(&pool, *id).await?;
                pool.forget(*id, arguments.force).await?;
                output::line(format_args!("{id} is forgotten"))?;
                if let Some(member) = member {
                    let (host, member) = (output::shown(&member.host), member.id);
                    output::line(format_args!(
                        "  its host {host} may come back with it; `stdchk pool revoke {member}` shuts it out for good"
                    ))?;
                }
            }
            Gone::Spooled(id) => {
                let base = pool.forget_spooled(id).await?;
                let (path, host) = (output::shown(&base.path), output::shown(&base.host));
                let version = base.version;
                output::line(format_args!("{path}@{version} is kept for no spool of {host} any more"))?;
            }
        }
    }
    Ok(())
}

/// The member of the pool that is this benefactor and may come back; `None`: it was shut out, or all of the pool is on one machine.
async fn member_of(pool: &Pool, id: BenefactorId) -> Outcome<Option<JoinedHost>> {
    let members = match pool.members().await {
        Err(error) if error.code == Code::Denied => return Ok(None),
        members => members?,
    };
    Ok(members.into_iter().find(|member| !member.revoked && member.benefactors.contains(&id)))
}
