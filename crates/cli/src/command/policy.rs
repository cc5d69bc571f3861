//! `stdchk policy`: how the files of an application's folder are written, cut, protected and named.

use clap::{Args, Subcommand};
use stdchk_operations::{PolicyChange, PolicyChanged, Target, check_pair};

use crate::context::Context;
use crate::exit::{CommandError, Outcome};
use crate::output;

/// What `policy` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk policy get climate
  stdchk policy set climate replicas=3 semantics=pessimistic
  stdchk policy set climate 'naming=restart.{step}.{rank}' ranks=4")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show the policy of a folder
    #[command(after_help = "Example:\n  stdchk policy get climate --json")]
    Get {
        /// The folder, APP[/FOLDER]
        app: String,
        /// Report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Change keys of a folder's policy; holds for what is written from then on
    #[command(after_help = "\
Keys:
  replicas   copies of every chunk, 1 to 16
  semantics  optimistic: close() counts at the first durable copy, the others follow; pessimistic: at the last
  protocol   sw: through memory; clw: into the mount's spool, pushed after close(); iw: through files in the spool
  close      durable: close() returns when the version is committed; stored: when all is at benefactors; early: at
             once, and what fails later is lost (not for protocol=clw)
  cutter     fsch:1MiB, cdc:64KiB or cbch:m=20,k=14,p=20; auto: what earlier versions have in common decides
  learned    what auto decided; empty it to learn anew
  codec      auto (what makes the transfer fastest), store, lz4, zstd:1 to zstd:19
  window     memory for the writes of one file in flight, such as 64MiB
  segment    size of the spool's files for protocol=iw
  stripe     benefactors that one file is spread over
  naming     patterns that map file names to {rank} and {step}, separated by blanks; empty: A.Ni.Tj
  ranks      files of a complete checkpoint set; 0: learned from earlier sets
An empty value (`replicas=`) takes a key back to its default. The folder is made if it is missing.

Example:
  stdchk policy set climate replicas=1 cutter=cdc:64KiB")]
    Set {
        /// The folder, APP[/FOLDER]
        app: String,
        /// Pairs of key and value
        #[arg(required = true, value_name = "KEY=VALUE")]
        pairs: Vec<String>,
    },
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    match &arguments.action {
        Action::Get { app, json } => get(app, *json, context).await,
        Action::Set { app, pairs } => set(app, pairs, context).await,
    }
}

async fn get(app: &str, json: bool, context: &Context) -> Outcome {
    let target = Target::parse_plain(app)?;
    let policy = context.pool().await?.policy(&target).await?;
    if json {
        return output::json(&policy);
    }
    policy
        .pairs()
        .iter()
        .try_for_each(|(key, value)| output::line(format_args!("{key}={}", output::shown(value))))
}

async fn set(app: &str, texts: &[String], context: &Context) -> Outcome {
    Target::parse_plain(app)?;
    let folder = Target::parse_entry(app)?;
    let pairs = texts.iter().map(|text| pair(text)).collect::<Outcome<Vec<_>>>()?;
    let change = PolicyChange { folder, pairs };
    let changed = context.pool().await?.set_policy(&change).await?;
    note(&change.folder.shown(), &changed);
    Ok(())
}

/// Says what a person may not expect.
fn note(shown: &str, changed: &PolicyChanged) {
    let PolicyChanged { created, fixed_pattern, replicas, benefactors } = changed;
    if *created {
        output::note(format_args!("created folder {shown}"));
    }
    if let Some(pattern) = fixed_pattern {
        output::note(format_args!(
            "naming: `{0}` fits only the file of exactly that name, each version of which is a timestep; where the name tells \
             them, write {{step}} and {{rank}} in their places, such as `{0}.{{step}}.{{rank}}`",
            output::shown(pattern)
        ));
    }
    // Then some copies are never made.
    if usize::from(*replicas) > *benefactors {
        output::note(format_args!(
            "stdchk: {shown}: `replicas={replicas}` asks for more copies than the pool has benefactors ({benefactors}): \
             the missing ones are made once there are more; `stdchk up --benefactors {replicas}` starts them in a local pool"
        ));
    }
}

/// Reads `key=value` and refuses what can't work before the pool is looked for.
fn pair(text: &str) -> Outcome<(String, String)> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(CommandError::usage(format!("`{text}`"), "a pair is expected", "write key=value"));
    };
    check_pair(key, value)?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn what_is_no_pair_or_cannot_work_is_a_mistake_of_the_command_line() {
        for bad in ["replicas", "replicas=0", "colour=red"] {
            assert_eq!(pair(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
        assert_eq!(pair("naming={step}=b").unwrap(), ("naming".into(), "{step}=b".into()));
        assert_eq!(pair("replicas=").unwrap(), ("replicas".into(), String::new()));
    }
}
