//! `stdchk ls`: folders, files, their versions, and an application's checkpoint sets.

use clap::Args;
use serde::Serialize;
use stdchk_client::Pool;
use stdchk_model::message::manager::{
    Attr, CheckpointSet, FileKind, SetMember, SetState, VersionInfo, VersionState,
};
use stdchk_model::naming::{Naming, Pattern};
use stdchk_model::size;

use super::latest::Exposed;
use crate::context::Context;
use crate::exit::{About, CommandError, Outcome};
use crate::namespace;
use crate::output::{self, Table};
use crate::paths::Target;

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

#[derive(Serialize)]
struct Entry {
    name: String,
    kind: FileKind,
    size: u64,
    version: u64,
    mode: String,
    mtime: String,
    #[serde(skip)]
    modified: String,
}

#[derive(Serialize)]
struct Entries {
    path: String,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct FileVersions {
    path: String,
    versions: Vec<Version>,
}

/// A version as JSON shows it.
#[derive(Serialize)]
pub struct Version {
    version: u64,
    size: u64,
    state: VersionState,
    committed_at: String,
    mtime: String,
    stored_bytes: u64,
    aggregated: bool,
}

impl From<&VersionInfo> for Version {
    fn from(info: &VersionInfo) -> Self {
        Self {
            version: info.version,
            size: info.size,
            state: info.state,
            committed_at: output::time_exact(info.committed_at),
            mtime: output::time_exact(info.mtime),
            stored_bytes: info.stored_bytes,
            aggregated: info.aggregated,
        }
    }
}

impl Version {
    /// This version, one of `of`, in one line.
    pub fn summary(&self, of: u64) -> String {
        let state = state_word(self.state);
        let place = if self.aggregated { ", in a container with others of its set" } else { "" };
        format!("{} (one of {of} kept), {state}, committed {}{place}", self.version, self.committed_at)
    }
}

/// A member of a set as JSON shows it.
#[derive(Serialize)]
pub struct Member {
    name: String,
    rank: Option<u64>,
    version: u64,
    bytes: u64,
    aggregated: bool,
}

impl From<&SetMember> for Member {
    fn from(member: &SetMember) -> Self {
        Self {
            name: member.name.clone(),
            rank: member.rank,
            version: member.version,
            bytes: member.bytes,
            aggregated: member.aggregated,
        }
    }
}

#[derive(Serialize)]
struct Set {
    timestep: u64,
    state: SetState,
    reason: String,
    committed_at: String,
    /// What of it has fewer copies than the folder asks for; absent: the manager has just started and doesn't know yet.
    exposed: Option<Exposed>,
    bytes: u64,
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Sets {
    app: String,
    sets: Vec<Set>,
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
    let attr = namespace::resolve(pool, target).await?;
    let entries: Vec<Entry> = match attr.kind {
        FileKind::Directory => {
            let found = namespace::entries(pool, attr.ino).await.about(target.shown())?;
            found.into_iter().map(|entry| row(entry.name, &entry.attr)).collect()
        }
        _ => vec![row(target.name().unwrap_or_default().to_owned(), &attr)],
    };
    if json {
        return output::json(&Entries { path: target.path(), entries });
    }
    let mut table = Table::new(&[">size", ">version", "modified", "name"]);
    for entry in entries {
        let slash = if entry.kind == FileKind::Directory { "/" } else { "" };
        let (size, version) = match entry.kind {
            FileKind::File => (size::human(entry.size), entry.version.to_string()),
            _ => ("-".to_owned(), "-".to_owned()),
        };
        table.row([size, version, entry.modified, format!("{}{slash}", output::shown(&entry.name))]);
    }
    table.print()
}

fn row(name: String, attr: &Attr) -> Entry {
    Entry {
        name,
        kind: attr.kind,
        size: attr.size,
        version: attr.version,
        mode: format!("{:04o}", attr.mode & 0o7777),
        mtime: output::time_exact(attr.mtime),
        modified: output::time(attr.mtime),
    }
}

async fn versions(pool: &Pool, target: &Target, json: bool) -> Outcome {
    let attr = namespace::resolve(pool, target).await?;
    let versions_of = async |target: &Target| {
        let versions = async |attr: Attr| pool.versions(attr.ino).await.about(target.shown());
        namespace::of_file(pool, target, versions).await.map(|versions| (target.path(), versions))
    };
    let mut all = Vec::new();
    match attr.kind {
        FileKind::Directory => {
            for file in children(pool, target, &attr).await? {
                all.extend(namespace::if_still_there(versions_of(&file).await)?);
            }
        }
        _ => all.push(versions_of(target).await?),
    }
    if json {
        let files: Vec<FileVersions> = all
            .iter()
            .map(|(path, versions)| FileVersions {
                path: path.clone(),
                versions: versions.iter().map(Version::from).collect(),
            })
            .collect();
        return output::json(&files);
    }
    let mut table = Table::new(&[">size", ">new bytes", "state", "committed", "name"]);
    for (path, versions) in &all {
        versions.iter().for_each(|info| table.row(version_row(path, info)));
    }
    table.print()
}

async fn children(pool: &Pool, target: &Target, folder: &Attr) -> Outcome<Vec<Target>> {
    let entries = namespace::entries(pool, folder.ino).await.about(target.shown())?;
    let files = entries.into_iter().filter(|entry| entry.attr.kind == FileKind::File);
    files.map(|entry| target.join(&entry.name).about(target.shown())).collect()
}

fn version_row(path: &str, info: &VersionInfo) -> [String; 5] {
    [
        size::human(info.size),
        size::human(info.stored_bytes),
        state_word(info.state).to_owned(),
        output::time(info.committed_at),
        format!("{}@{}", output::shown(path), info.version),
    ]
}

/// How far a version got, in one word.
fn state_word(state: VersionState) -> &'static str {
    match state {
        VersionState::Open => "open",
        VersionState::Closed => "closed",
        VersionState::Interrupted => "interrupted",
        VersionState::Lost => "lost",
    }
}

async fn sets(pool: &Pool, target: &Target, json: bool) -> Outcome {
    let attr = namespace::resolve_folder(pool, target).await?;
    let sets = pool.sets(attr.ino).await.about(target.shown())?;
    if json {
        let sets = sets.iter().map(set).collect();
        return output::json(&Sets { app: target.path(), sets });
    }
    if sets.is_empty() {
        return no_sets(pool, target, &attr).await;
    }
    let mut table = Table::new(&[">timestep", "state", ">files", ">size", "committed", "remark"]);
    for set in &sets {
        table.row([
            set.timestep.to_string(),
            set_word(set.state).to_owned(),
            set.members.len().to_string(),
            size::human(set_bytes(set)),
            if set.members.is_empty() { "-".to_owned() } else { output::time(set.committed_at) },
            remark(set),
        ]);
    }
    table.print()
}

/// Says on standard error why a folder has no checkpoint sets: it has no files, or none whose name fits its `naming`.
async fn no_sets(pool: &Pool, target: &Target, folder: &Attr) -> Outcome {
    let shown = target.shown();
    let files = namespace::files(pool, target).await?;
    let Some(example) = files.first() else {
        output::note(format_args!("{shown}: it has no files, so no checkpoint sets"));
        return Ok(());
    };
    let policy = pool.policy(folder.ino).await.about(&shown)?;
    let naming: Naming = policy
        .naming
        .parse()
        .map_err(|error| CommandError::usage(&shown, error, "set `naming` anew with `stdchk policy set`"))?;
    let patterns: Vec<&str> = naming.patterns().iter().map(Pattern::text).collect();
    let name = example.target.path();
    let name = name.strip_prefix(&target.path()).unwrap_or(&name).trim_start_matches('/');
    output::note(format_args!(
        "{shown}: no file has a name like `{}`, so there are no checkpoint sets; there is for instance `{}`: tell with \
         `stdchk policy set {shown} 'naming=PATTERN'` where {{step}} and {{rank}} stand in the names",
        output::shown(&patterns.join(" ")),
        output::shown(name),
    ));
    Ok(())
}

/// What else is to be said of a set.
fn remark(set: &CheckpointSet) -> String {
    let packed = set.members.iter().filter(|member| member.aggregated).count();
    let mut remarks = match (packed, set.members.len()) {
        _ if !set.reason.is_empty() => vec![output::shown(&set.reason)],
        (0, _) => Vec::new(),
        (packed, all) if packed == all => vec!["aggregated".to_owned()],
        (packed, all) => vec![format!("{packed} of {all} files aggregated")],
    };
    if let Some(exposed) = set.exposed.filter(|exposed| exposed.chunks > 0) {
        remarks.push(format!("{} chunks lack a copy", exposed.chunks));
    }
    remarks.join("; ")
}

fn set(set: &CheckpointSet) -> Set {
    Set {
        timestep: set.timestep,
        state: set.state,
        reason: set.reason.clone(),
        committed_at: output::time_exact(set.committed_at),
        exposed: set.exposed.map(Exposed::from),
        bytes: set_bytes(set),
        members: set.members.iter().map(Member::from).collect(),
    }
}

/// Bytes of all members of a set.
pub fn set_bytes(set: &CheckpointSet) -> u64 {
    set.members.iter().map(|member| member.bytes).sum()
}

fn set_word(state: SetState) -> &'static str {
    match state {
        SetState::Complete => "complete",
        SetState::Incomplete => "incomplete",
        SetState::Unknown => "unknown",
    }
}
