//! `stdchk files fetch`: a tree as it was at a checkpoint, made anew from its copy in the pool (`run --push`).
//!
//! `stdchk run --resume` goes on from there.

use std::path::{Path, PathBuf};

use clap::Args;
use stdchk_filestate::store::Sets;
use stdchk_model::{Timestep, size};
use stdchk_operations::{FileState, Pool, Target};

use crate::command;
use crate::command::run::sets;
use crate::context::Context;
use crate::exit::{CommandError, Exit, Outcome};
use crate::output::{self, Table};
use crate::settings::{PoolFlags, Settings};
use crate::signals::or_interrupted;

/// What `files fetch` takes.
#[derive(Args, Debug)]
pub struct Arguments {
    /// The folder of the pool that `run --push` named
    app: String,
    /// The checkpoint [default: the newest in the pool; of a run with --with-sets that of the newest complete set]
    #[arg(long, value_name = "N")]
    index: Option<u64>,
    /// The timestep of a checkpoint set, whose file state is meant
    #[arg(long, value_name = "T", conflicts_with = "index", value_parser = crate::command::restore::timestep)]
    set: Option<Timestep>,
    /// Where to: a directory that is empty or does not exist
    #[arg(short, long, value_name = "DIR", required_unless_present = "list")]
    output: Option<PathBuf>,
    /// Where the pool is mounted here the folder that `run --with-sets` named [default: where it was]
    #[arg(long, value_name = "FOLDER")]
    with_sets: Option<PathBuf>,
    /// List the file states that the pool has
    #[arg(long, conflicts_with_all = ["index", "set", "output", "with_sets"])]
    list: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, json: bool, flags: &PoolFlags) -> Outcome {
    let context = Context { settings: Settings::load(flags)? };
    // Asked of the pool before the fetching begins: this has a runtime of its own.
    let folder = arguments.with_sets.as_deref().map(|folder| sets::of_folder(folder, flags)).transpose()?;
    let runtime = command::runtime()?;
    runtime.block_on(or_interrupted("files fetch", async {
        let app = super::app_folder(&arguments.app)?;
        let pool = context.pool_to_move().await?;
        let states = pool.file_states(&app).await?;
        match &arguments.output {
            Some(to) if !arguments.list => {
                fetch(&pool, choose(arguments, states, &context).await?, &app, (to, folder), (json, &context))
                    .await
            }
            _ => list(&states, json),
        }
    }))
}

/// The one that is meant.
async fn choose(arguments: &Arguments, states: Vec<FileState>, context: &Context) -> Outcome<FileState> {
    let sets = states.last().and_then(FileState::sets);
    let set = match (arguments.index, arguments.set, sets) {
        (None, None, Some(sets)) => Some(sets::newest_step(context, &sets).await?.ok_or_else(|| {
            let next = "`--index N` fetches a file state that belongs to none";
            CommandError::new(Exit::NotFound, &sets.app, "no checkpoint set is complete", next)
        })?),
        (_, set, _) => set,
    };
    let (index, label) = (arguments.index, set.map(stdchk_filestate::index::set_label));
    let is_meant = |state: &FileState| {
        index.is_none_or(|index| state.index == index)
            && label.as_ref().is_none_or(|label| state.label == *label)
    };
    states.into_iter().rfind(is_meant).ok_or_else(|| {
        let meant = index.map(|index| format!("checkpoint {index}")).or(label).unwrap_or_default();
        let next = format!("`stdchk files fetch {} --list` shows those that the pool has", arguments.app);
        CommandError::new(Exit::NotFound, meant, "its file state is not in the pool", next)
    })
}

async fn fetch(
    pool: &Pool,
    state: FileState,
    app: &Target,
    (to, sets): (&Path, Option<Sets>),
    (json, context): (bool, &Context),
) -> Outcome {
    pool.fetch_file_state(&state, app, to, sets, &context.watch()).await?;
    if json {
        return output::json(&state);
    }
    output::line(format_args!(
        "{}: as at checkpoint {}, {}, taken for {}; `stdchk run --resume` goes on from there",
        to.display(),
        state.index,
        output::time(state.time),
        output::shown(&state.label)
    ))
}

fn list(states: &[FileState], json: bool) -> Outcome {
    if json {
        return output::json(&states);
    }
    let mut table = Table::new(&[">index", "time", ">size", ">new", "taken for"]);
    for state in states {
        let (size, new) = (size::human(state.bytes), size::human(state.stored_bytes));
        let label = output::shown(&state.label);
        table.row([state.index.to_string(), output::time(state.time), size, new, label]);
    }
    table.print()
}
