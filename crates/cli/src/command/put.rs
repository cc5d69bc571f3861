//! `stdchk put`: local files, trees and standard input become new versions in the pool.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use stdchk_model::size;
use stdchk_operations::{Pool, Put, Source, Stored, Target};

use crate::context::Context;
use crate::exit::{CommandError, Outcome};
use crate::output;
use crate::progress::rate;
use crate::signals::or_interrupted;

/// What `put` takes.
#[derive(Args, Debug)]
#[command(
    override_usage = "stdchk put [OPTIONS] FILE... APP/[NAME]",
    after_help = "\
The last argument says where to: `APP/` or `APP/FOLDER/` keeps the files' names, `APP/NAME` names one file.
Folders are made where they are missing. Writing a name again makes a new version; two files for one name are refused.
With several files, some may fail while others are stored: exit code 3.

Example:
  stdchk put restart.120000 climate/
  stdchk put -r output climate/run7/
  tar c state | stdchk put - climate/state.tar"
)]
pub struct Arguments {
    /// Files, folders with -r, or `-` for standard input; last of all where to, APP/[NAME]
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,
    /// Store folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: Arguments, context: &Context) -> Outcome {
    let put = put(&arguments)?;
    let pool = context.pool_to_move().await?;
    let outcome = or_interrupted("put", store(&arguments, &put, context, &pool)).await;
    // What an interruption left half done is taken back.
    pool.settle().await;
    if outcome.is_ok() {
        // `cutter=auto` learns once a version is committed; who can't wait for that loses nothing.
        let learned = async {
            pool.close().await;
            Ok(())
        };
        drop(or_interrupted("put", learned).await);
    }
    pool.leave().await;
    outcome
}

/// What the command line asks for.
fn put(arguments: &Arguments) -> Outcome<Put> {
    let (target, sources) = match arguments.paths.as_slice() {
        [only] => {
            let next = format!("name the files first, then where to: `stdchk put {} APP/`", only.display());
            return Err(CommandError::usage(only.display(), "one of file and target is missing", next));
        }
        [sources @ .., target] => (target, sources),
        [] => return Err(CommandError::usage("put", "nothing to store", "see `stdchk put --help`")),
    };
    let text = target.to_str().ok_or_else(|| {
        CommandError::usage(target.display(), "names in the pool are UTF-8", "choose another name")
    })?;
    let source = |path: &PathBuf| match path == Path::new("-") {
        true => Source::StandardInput,
        false => Source::Path(path.clone()),
    };
    Ok(Put {
        sources: sources.iter().map(source).collect(),
        target: Target::parse_plain(text)?,
        into_folder: text.ends_with('/'),
        recursive: arguments.recursive,
    })
}

async fn store(arguments: &Arguments, put: &Put, context: &Context, pool: &Pool) -> Outcome {
    let told = context.told();
    let stored = pool.put(put, &told.clone().watch()).await?;
    if arguments.json {
        output::json(&stored)?;
    } else if !context.settings.quiet && !stored.files.is_empty() {
        say(&stored);
    }
    told.parts.succeed(stored.tally.succeeded);
    told.parts.outcome()
}

fn say(stored: &Stored) {
    let (count, elapsed) =
        (output::count(stored.files.len(), "file"), Duration::from_secs_f64(stored.seconds));
    let (size, new) = (size::human(stored.bytes), size::human(stored.stored_bytes));
    let rate = size::human(rate(stored.bytes, elapsed));
    output::note(format_args!("put: {count}, {size}, of which {new} new to the pool, {rate}/s"));
}
