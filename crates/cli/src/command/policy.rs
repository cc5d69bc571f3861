//! `stdchk policy`: how the files of an application's folder are written, cut, protected and named.

use clap::{Args, Subcommand};
use stdchk_model::policy::KEYS;
use stdchk_model::{Redundancy, layout};
use stdchk_operations::{PolicyChange, PolicyChanged, Proposal, Target, check_pair};

use crate::context::Context;
use crate::exit::{CommandError, Outcome};
use crate::output;

/// What `policy` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk policy get climate
  stdchk policy set climate redundancy=replicate:3 semantics=pessimistic
  stdchk policy set climate 'naming=restart.{step}.{rank}' ranks=4
  stdchk policy set climate layout=wrf
  stdchk policy set climate layout=auto --dry-run")]
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
        /// Only say which checkpoint sets would go by `lifetime=VALUE`, or which there would be by `layout`, `naming` and `ranks`
        #[arg(short = 'n', long)]
        dry_run: bool,
        /// Report a dry run as JSON
        #[arg(long, requires = "dry_run")]
        json: bool,
    },
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    match &arguments.action {
        Action::Get { app, json } => get(app, *json, context).await,
        Action::Set { app, pairs, dry_run: true, json } => try_out(app, pairs, *json, context).await,
        Action::Set { app, pairs, .. } => set(app, pairs, context).await,
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

/// Says which sets would go by another lifetime, or which there would be by other names.
async fn try_out(app: &str, texts: &[String], json: bool, context: &Context) -> Outcome {
    let app = Target::parse_plain(app)?;
    let pairs = texts.iter().map(|text| pair(text)).collect::<Outcome<Vec<_>>>()?;
    let lifetime = match pairs.as_slice() {
        [(key, lifetime)] if key == "lifetime" => lifetime,
        pairs if pairs.iter().all(|(key, _)| ["layout", "naming", "ranks"].contains(&key.as_str())) => {
            let change = PolicyChange { folder: app, pairs: pairs.to_vec() };
            return try_names(&change, json, context).await;
        }
        _ => {
            let cause = "a dry run says which sets would go by `lifetime`, or which there would be by `layout`, `naming` and `ranks`";
            return Err(CommandError::usage(
                texts.join(" "),
                cause,
                "give `lifetime=VALUE` and nothing else, or only the other three",
            ));
        }
    };
    let fates = context.pool().await?.fates(&app, Some(lifetime)).await?;
    super::done::print(&fates, json, "would go")
}

/// Says which sets there would be by other names.
async fn try_names(change: &PolicyChange, json: bool, context: &Context) -> Outcome {
    let (sets, proposal) = context.pool().await?.sets_with(change).await?;
    if let Some(proposal) = &proposal {
        note_layout(proposal);
    }
    match json {
        true => output::json(&sets),
        false => super::ls::print_sets(&sets),
    }
}

/// Says what `layout` stands for, and why.
fn note_layout(proposal: &Proposal) {
    let name = proposal.layout.map_or("", |layout| layout.name);
    let ranks = proposal.ranks.map(|ranks| format!(" ranks={ranks}")).unwrap_or_default();
    let (naming, why) = (output::shown(&proposal.naming), output::shown(&proposal.why));
    let layout = if name.is_empty() { String::new() } else { format!("layout={name}: ") };
    output::note(format_args!("{layout}'naming={naming}'{ranks}: {why}"));
}

/// Says what a person may not expect.
fn note(shown: &str, changed: &PolicyChanged) {
    let PolicyChanged { created, layout, fixed_pattern, redundancy, benefactors } = changed;
    if *created {
        output::note(format_args!("created folder {shown}"));
    }
    if let Some(proposal) = layout {
        note_layout(proposal);
    }
    if let Some(pattern) = fixed_pattern {
        output::note(format_args!(
            "naming: `{0}` fits only the file of exactly that name, each version of which is a timestep; where the name tells \
             them, write {{step}} and {{rank}} in their places, such as `{0}.{{step}}.{{rank}}`",
            output::shown(pattern)
        ));
    }
    warn_of_hosts(shown, *redundancy, *benefactors);
}

/// Says that there are fewer benefactors than blocks are wanted: then some are never made.
fn warn_of_hosts(shown: &str, redundancy: Redundancy, benefactors: usize) {
    let hosts = usize::from(redundancy.hosts());
    if hosts <= benefactors {
        return;
    }
    let more = format!("`stdchk up --benefactors {hosts}` starts them in a local pool");
    output::note(match redundancy {
        Redundancy::Replicate(_) => format!(
            "stdchk: {shown}: `redundancy={redundancy}` asks for more copies than the pool has benefactors ({benefactors}): the \
             missing ones are made once there are more; {more}"
        ),
        Redundancy::Erasure(code) => format!(
            "stdchk: {shown}: `redundancy={redundancy}` needs {hosts} benefactors, one for each fragment, and the pool has \
             {benefactors}: {} copies stand in for them, which take more space, and missing fragments are made once there are more; {more}",
            code.parity() + 1
        ),
    });
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
    text.push_str(&format!(
        "  {:<10} {}\n",
        "layout", "a known code's `naming` and `ranks`; `auto` finds one that fits the files that are there:"
    ));
    text.push_str(&wrapped(&layout::names(), 92));
    text.push_str(
        "An empty value (`redundancy=`) takes a key back to its default. The folder is made if it is missing.\n\n\
         Example:\n  stdchk policy set climate redundancy=replicate:1 cutter=cdc:64KiB",
    );
    text
}

/// Words in indented lines of so many columns at most.
fn wrapped(words: &[&str], columns: usize) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for word in words {
        if line.len() + word.len() + 2 > columns {
            text.push_str(&format!("  {:<10} {line},\n", ""));
            line.clear();
        }
        line = if line.is_empty() { (*word).to_owned() } else { format!("{line}, {word}") };
    }
    text.push_str(&format!("  {:<10} {line}\n", ""));
    text
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
        for bad in ["redundancy", "redundancy=0", "colour=red"] {
            assert_eq!(pair(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
        assert_eq!(pair("naming={step}=b").unwrap(), ("naming".into(), "{step}=b".into()));
        assert_eq!(pair("redundancy=").unwrap(), ("redundancy".into(), String::new()));
    }
}
