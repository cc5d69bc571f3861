//! `stdchk files`: the checkpoints of a directory that `stdchk run` protects: listed, compared, gone back to, forgotten, and
//! fetched from the pool.

mod fetch;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use stdchk_filestate::history::{self, Change};
use stdchk_filestate::store::Store;
use stdchk_filestate::{Error, driver};
use stdchk_model::exact::to_usize;
use stdchk_model::{Timestep, size};
use stdchk_operations::Target;

use crate::exit::{CommandError, Exit, Outcome};
use crate::output::{self, Table};
use crate::settings::PoolFlags;

/// What `files` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk files log
  stdchk files diff 3
  stdchk files restore 3
  stdchk files fetch climate -o run7
  stdchk files discard")]
pub struct Arguments {
    /// The protected directory
    #[arg(long, global = true, value_name = "DIR", default_value = ".")]
    root: PathBuf,
    /// Report as JSON
    #[arg(long, global = true)]
    json: bool,
    /// What to do.
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// List the checkpoints that can be gone back to
    #[command(after_help = "Example:\n  stdchk files log --root run7 --json")]
    Log,
    /// Show which files changed between two checkpoints
    #[command(after_help = "\
Example:
  stdchk files diff        what changed since the last checkpoint
  stdchk files diff 3      since checkpoint 3
  stdchk files diff 3 5    between the two")]
    Diff {
        /// The older checkpoint [default: the last]
        from: Option<u64>,
        /// The newer one [default: now]
        to: Option<u64>,
    },
    /// Go back to a checkpoint; later ones cease to exist
    #[command(after_help = "\
Example:
  stdchk files restore               to the last checkpoint
  stdchk files restore 3
  stdchk files restore --set 120     to the file state of that checkpoint set (`run --with-sets`)")]
    Restore {
        /// The checkpoint [default: the last]
        index: Option<u64>,
        /// The timestep of a checkpoint set, whose file state is meant
        #[arg(long, value_name = "T", conflicts_with = "index", value_parser = crate::command::restore::timestep)]
        set: Option<Timestep>,
    },
    /// Make a directory anew from its copy in the pool (`run --push`), to go on from there
    #[command(after_help = "\
Example:
  stdchk files fetch climate -o run7             as at the newest checkpoint that the pool has
  stdchk files fetch climate --index 3 -o run7
  stdchk files fetch climate --set 120 -o run7   as at that checkpoint set (`run --with-sets`)
  stdchk files fetch climate --list")]
    Fetch(fetch::Arguments),
    /// Remove the checkpoints: the files stay as they are, and the next run starts afresh
    #[command(after_help = "Example:\n  stdchk files discard --root run7")]
    Discard,
}

#[derive(Serialize)]
struct Listing {
    root: String,
    mode: &'static str,
    state: &'static str,
    checkpoints: Vec<Checkpoint>,
    /// What going back over what came after the last checkpoint needs, bytes.
    kept_since_bytes: u64,
    /// Notes on the run: triggers without a checkpoint, programs that were not watched, checkpoints that failed.
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Checkpoint {
    index: u64,
    time: String,
    label: String,
    /// What going back over the interval before it needs, bytes.
    kept_bytes: u64,
}

/// What going back over what came after the last checkpoint needs.
const SINCE: &str = "(since then)";

#[derive(Serialize)]
struct Difference {
    from: u64,
    to: Option<u64>,
    changes: Vec<Changed>,
}

#[derive(Serialize)]
struct Changed {
    path: String,
    created: bool,
    removed: bool,
    moved_to: Option<String>,
    written: bool,
    mode: bool,
    kept_bytes: u64,
}

#[derive(Serialize)]
struct Restored {
    index: u64,
    records: u64,
    bytes: u64,
    /// Files that were removed or replaced from outside the run, and can't be taken back.
    astray: Vec<String>,
    /// Names that were not there and stay: they came from outside the run, or hold what did.
    left: Vec<String>,
    /// Programs that were not watched, and whose changes are not undone.
    unwatched: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, pool: &PoolFlags) -> Outcome {
    let root = arguments.root.as_path();
    match &arguments.action {
        Action::Log => log(root, arguments.json),
        Action::Diff { from, to } => diff(root, *from, *to, arguments.json),
        Action::Restore { index, set } => restore(root, *index, *set, arguments.json),
        Action::Fetch(fetching) => fetch::run(fetching, arguments.json, pool),
        Action::Discard => driver::discard(root).map_err(failed),
    }
}

fn failed(error: Error) -> CommandError {
    stdchk_operations::Error::from(error).into()
}

/// The folder of an application, in which its file states lie.
pub fn app_folder(app: &str) -> Outcome<Target> {
    let app = Target::parse_plain(app)?;
    match app.names().is_empty() {
        true => {
            let next = "write the name of the application's folder";
            Err(CommandError::usage("/", "file states live in an application's folder", next))
        }
        false => Ok(app),
    }
}

fn log(root: &Path, json: bool) -> Outcome {
    let store = driver::open_store(root).map_err(failed)?;
    let listing = listing(root, &store).map_err(failed)?;
    if json {
        return output::json(&listing);
    }
    let state = match listing.state {
        "interrupted" => {
            "the run did not end by itself; `stdchk run --resume` goes on, `files discard` forgets it"
        }
        "running" => "the run goes on",
        _ => "the run ended by itself",
    };
    output::line(format_args!("{} mode; {state}", listing.mode))?;
    let mut table = Table::new(&[">index", "time", ">kept", "taken for"]);
    for (entry, shown) in store.entries().map_err(failed)?.iter().zip(&listing.checkpoints) {
        let time = output::time(i64::try_from(entry.time_ns).unwrap_or(i64::MAX));
        table.row([
            shown.index.to_string(),
            time,
            size::human(shown.kept_bytes),
            output::shown(&shown.label),
        ]);
    }
    if listing.kept_since_bytes > 0 {
        table.row(["".into(), "".into(), size::human(listing.kept_since_bytes), SINCE.to_owned()]);
    }
    table.print()?;
    listing.notes.iter().try_for_each(|note| output::line(format_args!("{}", output::shown(note))))
}

fn listing(root: &Path, store: &Store) -> Result<Listing, Error> {
    let state = match (store.has_ended(), driver::is_running(root)?) {
        (_, true) => "running",
        (true, false) => "ended",
        (false, false) => "interrupted",
    };
    let entries = store.entries()?;
    let mut checkpoints = Vec::with_capacity(entries.len());
    let (mut position, mut index) = (0, 0);
    for entry in &entries {
        let deleted = store.kept_bytes(index..entry.index)?;
        checkpoints.push(Checkpoint {
            index: entry.index,
            time: output::time_exact(i64::try_from(entry.time_ns).unwrap_or(i64::MAX)),
            label: entry.label.clone(),
            kept_bytes: entry.position.saturating_sub(position) + deleted,
        });
        (position, index) = (entry.position, entry.index);
    }
    let kept_since_bytes = store.log.len()?.saturating_sub(position) + store.kept_bytes(index..u64::MAX)?;
    let (root, mode) = (root.display().to_string(), store.options.mode.name());
    let notes = [store.unfired()?, store.unwatched()?, store.notes()?].concat();
    Ok(Listing { root, mode, state, checkpoints, kept_since_bytes, notes })
}

fn diff(root: &Path, from: Option<u64>, to: Option<u64>, json: bool) -> Outcome {
    let store = driver::open_store(root).map_err(failed)?;
    let from = from.map_or_else(|| store.entry(None).map(|entry| entry.index), Ok).map_err(failed)?;
    if to.is_some_and(|to| to < from) {
        return Err(CommandError::usage(
            "files diff",
            "the first checkpoint is the older one",
            "swap the two",
        ));
    }
    let changes = history::changes(&store, from, to).map_err(failed)?;
    let changes: Vec<Changed> = changes.iter().map(|(path, change)| changed(path, change)).collect();
    if json {
        return output::json(&Difference { from, to, changes });
    }
    let mut table = Table::new(&["change", ">kept", "path"]);
    for change in changes {
        let moved = change.moved_to.as_deref().map(|to| format!(" -> {}", output::shown(to)));
        let path = format!("{}{}", output::shown(&change.path), moved.unwrap_or_default());
        table.row([words(&change), size::human(change.kept_bytes), path]);
    }
    table.print()
}

fn changed(path: &[u8], change: &Change) -> Changed {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    Changed {
        path: text(path),
        created: change.created,
        removed: change.removed,
        moved_to: change.moved_to.as_deref().map(text),
        written: change.written,
        mode: change.mode,
        kept_bytes: change.kept_bytes,
    }
}

fn words(change: &Changed) -> String {
    let all = [
        (change.created, "created"),
        (change.removed, "removed"),
        (change.moved_to.is_some(), "moved"),
        (change.written, "written"),
        (change.mode, "mode"),
    ];
    let said: Vec<&str> = all.iter().filter(|(holds, _)| *holds).map(|(_, word)| *word).collect();
    said.join(", ")
}

fn index_of_set(root: &Path, step: Timestep) -> Outcome<u64> {
    let store = driver::open_store(root).map_err(failed)?;
    let entry = store.entry_of_set(step).map_err(failed)?;
    entry.map(|entry| entry.index).ok_or_else(|| {
        let next = "`stdchk files log` lists the states that there are";
        CommandError::new(
            Exit::NotFound,
            format!("set {step}"),
            "its file state was not taken, or not kept",
            next,
        )
    })
}

fn restore(root: &Path, index: Option<u64>, set: Option<Timestep>, json: bool) -> Outcome {
    let index = match set {
        Some(step) => Some(index_of_set(root, step)?),
        None => index,
    };
    let done = driver::restore_files(root, index).map_err(failed)?;
    let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
    let restored = Restored {
        index: done.index,
        records: done.records,
        bytes: done.bytes,
        astray: done.astray.iter().map(text).collect(),
        left: done.left.iter().map(text).collect(),
        unwatched: done.unwatched.clone(),
    };
    show(&restored, json)?;
    let complaints = done.complaints();
    if complaints.is_empty() {
        return Ok(());
    }
    for line in complaints {
        output::note(format_args!("stdchk: {}", output::shown(&line)));
    }
    Err(CommandError::reported(Exit::Partial))
}

fn show(restored: &Restored, json: bool) -> Outcome {
    if json {
        return output::json(restored);
    }
    output::line(format_args!(
        "back at checkpoint {}: {} undone, {} of old content put back",
        restored.index,
        output::count(to_usize(restored.records), "change"),
        size::human(restored.bytes)
    ))
}
