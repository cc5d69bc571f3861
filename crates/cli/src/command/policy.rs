//! `stdchk policy`: how the files of an application's folder are written, cut, protected and named.

use clap::{Args, Subcommand};
use stdchk_client::Pool;
use stdchk_model::message::manager::Change;
use stdchk_model::naming::Naming;
use stdchk_model::policy::{KEYS, Key};
use stdchk_model::{Ino, Policy, Redundancy};
use stdchk_reduce::learn::AUTO;
use stdchk_reduce::{Compression, CutterSpec};

use crate::context::Context;
use crate::exit::{About, CommandError, Outcome};
use crate::paths::Target;
use crate::{namespace, output};

/// What `policy` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk policy get climate
  stdchk policy set climate redundancy=replicate:3 semantics=pessimistic
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
    #[command(after_help = keys())]
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
    let pool = context.pool().await?;
    let attr = namespace::resolve(&pool, &target).await?;
    let policy = pool.policy(attr.ino).await.about(target.shown())?;
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
    let target = Target::parse_entry(app)?;
    let pairs = texts.iter().map(|text| pair(text)).collect::<Outcome<Vec<_>>>()?;
    let pool = context.pool().await?;
    let is_new = namespace::resolve_if_there(&pool, &target).await?.is_none();
    let ino = namespace::make_folders(&pool, &target.names).await?;
    let fixed = pairs.iter().filter(|(key, _)| key == "naming").find_map(|(_, value)| fixed_pattern(value));
    pool.change(Change::SetPolicy { ino, pairs }).await.map(drop).about(target.shown())?;
    if is_new {
        output::note(format_args!("created folder {}", target.shown()));
    }
    if let Some(pattern) = fixed {
        output::note(format_args!(
            "naming: `{0}` fits only the file of exactly that name, each version of which is a timestep; where the name tells \
             them, write {{step}} and {{rank}} in their places, such as `{0}.{{step}}.{{rank}}`",
            output::shown(&pattern)
        ));
    }
    warn_of_hosts(&pool, ino, &target).await
}

/// The keys of a policy, as the help shows them.
fn keys() -> String {
    let mut text = "Keys:\n".to_owned();
    for key in KEYS {
        let mut name = key.name;
        for line in key.meaning {
            text.push_str(&format!("  {name:<10} {line}\n"));
            name = "";
        }
    }
    text.push_str(
        "An empty value (`redundancy=`) takes a key back to its default. The folder is made if it is missing.\n\n\
         Example:\n  stdchk policy set climate redundancy=replicate:1 cutter=cdc:64KiB",
    );
    text
}

/// The first pattern of a `naming` in which nothing varies.
fn fixed_pattern(naming: &str) -> Option<String> {
    let naming: Naming = naming.parse().ok()?;
    naming.patterns().iter().find(|pattern| pattern.is_fixed()).map(|pattern| pattern.text().to_owned())
}

/// Says that there are fewer benefactors than blocks are wanted: then some are never made.
async fn warn_of_hosts(pool: &Pool, ino: Ino, target: &Target) -> Outcome {
    let redundancy = pool.policy(ino).await.about(target.shown())?.redundancy;
    let benefactors = pool.benefactors().await.about(target.shown())?.len();
    let hosts = usize::from(redundancy.hosts());
    if hosts <= benefactors {
        return Ok(());
    }
    let shown = target.shown();
    let more = format!("`stdchk up --benefactors {hosts}` starts them in a local pool");
    output::note(match redundancy {
        Redundancy::Replicate(_) => format!(
            "stdchk: {shown}: `redundancy={redundancy}` asks for more copies than the pool has benefactors ({benefactors}): the \
             missing ones are made once there are more; {more}"
        ),
        Redundancy::Erasure(code) => format!(
            "stdchk: {shown}: `redundancy={redundancy}` needs {hosts} benefactors, one for each fragment, and the pool has \
             {benefactors}: with fewer than {} nothing can be stored, and missing fragments are made once there are more; {more}",
            code.data()
        ),
    });
    Ok(())
}

/// Reads `key=value` and refuses what can't work before anything is asked of the manager.
fn pair(text: &str) -> Outcome<(String, String)> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(CommandError::usage(format!("`{text}`"), "a pair is expected", "write key=value"));
    };
    if value.is_empty() && Key::of(key).is_some() {
        return Ok((key.to_owned(), String::new()));
    }
    Policy::default().set(key, value).about(text)?;
    if key == "naming" {
        let next = "such as `restart.{step}.{rank}`";
        value.parse::<Naming>().map_err(|error| CommandError::usage(text, error, next))?;
    }
    if key == "learned" || key == "cutter" && value != AUTO {
        value
            .parse::<CutterSpec>()
            .map_err(|error| CommandError::usage(text, error, "choose one of these"))?;
    }
    if key == "codec" {
        let next = "choose one of these";
        value.parse::<Compression>().map_err(|error| CommandError::usage(text, error, next))?;
    }
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn pairs_that_cannot_work_are_refused_before_they_are_sent() {
        for bad in [
            "redundancy",
            "redundancy=0",
            "cutter=scissors",
            "codec=gzip",
            "colour=red",
            "colour=",
            "naming=x.{colour}",
        ] {
            assert_eq!(pair(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
        assert_eq!(pair("naming={step}=b").unwrap(), ("naming".into(), "{step}=b".into()));
        assert_eq!(fixed_pattern("restart").as_deref(), Some("restart"));
        assert_eq!(fixed_pattern("restart.{step} *.out"), None);
        assert_eq!(pair("redundancy=").unwrap(), ("redundancy".into(), String::new()));
        assert_eq!(pair("cutter=fsch:64KiB").unwrap().1, "fsch:64KiB");
    }
}
