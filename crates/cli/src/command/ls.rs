//! `stdchk ls`: folders, files, their versions, and an application's checkpoint sets.

use clap::Args;
use stdchk_model::message::manager::{FileKind, SetState, VersionState};
use stdchk_model::size;
use stdchk_operations::{Pool, Proposal, Set, Sets, Target, Version, WhyNoSets};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output::{self, Table};

/// What `ls` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A checkpoint set is all files of one timestep; `stdchk policy` says which names belong to which.

Example:
  stdchk ls
  stdchk ls climate
  stdchk ls climate/restart.120000 --versions
  stdchk ls climate --sets --json")]
pub struct Arguments {
    /// A folder or a file, APP[/NAME]; without it the applications' folders
    #[arg(default_value = "", hide_default_value = true, value_name = "APP[/NAME]")]
    target: String,
    /// List all versions of the file, or of every file in the folder
    #[arg(long, conflicts_with = "sets")]
    versions: bool,
    /// List the checkpoint sets of the folder, newest first
    #[arg(long)]
    sets: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse_plain(&arguments.target)?;
    let pool = context.pool().await?;
    match (arguments.versions, arguments.sets) {
        (true, _) => versions(&pool, &target, arguments.json).await,
        (_, true) => sets(&pool, &target, arguments.json).await,
        _ => entries(&pool, &target, arguments.json).await,
    }
}

async fn entries(pool: &Pool, target: &Target, json: bool) -> Outcome {
    let found = pool.list(target).await?;
    if json {
        return output::json(&found);
    }
    let mut table = Table::new(&[">size", ">version", "modified", "name"]);
    for entry in found.entries {
        let slash = if entry.kind == FileKind::Directory { "/" } else { "" };
        let (size, version) = match entry.kind {
            FileKind::File => (size::human(entry.size), entry.version.to_string()),
            _ => ("-".to_owned(), "-".to_owned()),
        };
        let modified = output::time(entry.mtime);
        table.row([size, version, modified, format!("{}{slash}", output::shown(&entry.name))]);
    }
    table.print()
}

async fn versions(pool: &Pool, target: &Target, json: bool) -> Outcome {
    let files = pool.versions(target).await?;
    if json {
        return output::json(&files);
    }
    let mut table = Table::new(&[">size", ">new bytes", "state", "committed", "name"]);
    for file in &files {
        file.versions.iter().for_each(|version| table.row(version_row(&file.path, version)));
    }
    table.print()
}

fn version_row(path: &str, version: &Version) -> [String; 5] {
    [
        size::human(version.size),
        size::human(version.stored_bytes),
        state_word(version.state).to_owned(),
        output::time(version.committed_at),
        format!("{}@{}", output::shown(path), version.version),
    ]
}

/// How far a version got, in one word.
pub fn state_word(state: VersionState) -> &'static str {
    match state {
        VersionState::Open => "open",
        VersionState::Closed => "closed",
        VersionState::Interrupted => "interrupted",
        VersionState::Lost => "lost",
    }
}

async fn sets(pool: &Pool, target: &Target, json: bool) -> Outcome {
    let found = pool.sets(target).await?;
    if json {
        return output::json(&found);
    }
    if found.sets.is_empty() {
        return no_sets(pool, target).await;
    }
    print_sets(&found)
}

/// Prints sets as a table.
pub fn print_sets(found: &Sets) -> Outcome {
    let mut table = Table::new(&[">timestep", "state", ">files", ">size", "committed", "remark"]);
    for set in &found.sets {
        table.row([
            set.timestep.to_string(),
            set_word(set.state).to_owned(),
            set.members.len().to_string(),
            size::human(set.bytes),
            if set.members.is_empty() { "-".to_owned() } else { output::time(set.committed_at) },
            remark(set),
        ]);
    }
    table.print()
}

/// Says on standard error why a folder has no checkpoint sets.
async fn no_sets(pool: &Pool, target: &Target) -> Outcome {
    let shown = target.shown();
    match pool.why_no_sets(target).await? {
        WhyNoSets::NoFiles => output::note(format_args!("{shown}: it has no files, so no checkpoint sets")),
        WhyNoSets::NoName { patterns, example, proposal } => output::note(format_args!(
            "{shown}: no file has a name like `{}`, so there are no checkpoint sets; there is for instance `{}`{}",
            output::shown(&patterns.join(" ")),
            output::shown(&example),
            next_step(&shown, proposal.as_ref()),
        )),
    }
    Ok(())
}

/// What a person can set so that the folder's files make sets.
fn next_step(shown: &str, proposal: Option<&Proposal>) -> String {
    match proposal {
        None => format!(
            ": tell with `stdchk policy set {shown} 'naming=PATTERN'` where {{step}}, {{time}} or {{date}}, and {{rank}}, stand in the names"
        ),
        Some(Proposal { layout: Some(layout), why, .. }) => {
            let name = layout.name;
            let why = output::shown(why);
            format!(
                ". `stdchk policy set {shown} layout={name}` would fit: {why}. For other names set `naming=PATTERN`"
            )
        }
        Some(Proposal { naming, ranks, why, .. }) => {
            let ranks = ranks.map(|ranks| format!(" ranks={ranks}")).unwrap_or_default();
            format!(
                ". `stdchk policy set {shown} 'naming={}'{ranks}` would fit: {}",
                output::shown(naming),
                output::shown(why)
            )
        }
    }
}

/// What else is to be said of a set.
fn remark(set: &Set) -> String {
    let packed = set.members.iter().filter(|member| member.aggregated).count();
    let mut remarks = match (packed, set.members.len()) {
        _ if !set.reason.is_empty() => vec![output::shown(&set.reason)],
        (0, _) => Vec::new(),
        (packed, all) if packed == all => vec!["aggregated".to_owned()],
        (packed, all) => vec![format!("{packed} of {all} files aggregated")],
    };
    if let Some(exposed) = set.exposed.as_ref().filter(|exposed| exposed.chunks > 0) {
        let in_memory = match exposed.in_memory {
            0 => String::new(),
            chunks => format!(", {chunks} of them are in memory alone"),
        };
        remarks.push(format!("{} chunks lack a copy{in_memory}", exposed.chunks));
    }
    if set.sealed {
        remarks.push("sealed".to_owned());
    } else if !set.fate.is_empty() {
        remarks.push(format!("{}: {}", if set.goes { "goes" } else { "stays" }, set.fate));
    }
    remarks.join("; ")
}

/// Whether a set is complete, in one word.
pub fn set_word(state: SetState) -> &'static str {
    match state {
        SetState::Complete => "complete",
        SetState::Incomplete => "incomplete",
        SetState::Unknown => "unknown",
    }
}
