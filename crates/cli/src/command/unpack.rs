//! `stdchk unpack`: the files of a container come back, byte for byte, or one variable of a file as `.npy`.
//!
//! Needs no pool. Every file appears once it is whole, verified and on disk; blocks that no wanted file needs are not read.

use std::ffi::OsString;
use std::path::{Component, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stdchk_aggregate::{AggregateError, Container, Unpacked, Unpacking, name_of_text, text_of_name};
use stdchk_model::size;

use super::pack::Resources;
use crate::container::{Location, failed, open};
use crate::context::Context;
use crate::exit::{CommandError, Outcome};
use crate::output::{self, shown};
use crate::progress::{Progress, rate};
use crate::signals::or_told;

/// Threads for a container in an object store, unless given: they wait for it most of the time.
const FAR_THREADS: usize = 8;

/// What `unpack` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The container is a file, or s3://BUCKET/KEY in an object store, reached as `stdchk aggregate --help` says. Files that are
there are replaced, folders are not. Of a damaged container every intact file comes back, and the others are named
(exit code 3).

Example:
  stdchk unpack DD0012.pack -o DD0012/
  stdchk unpack DD0012.pack --check
  stdchk unpack DD0012.pack data0012.cpu0003
  stdchk unpack s3://checkpoints/run7/step-120.1of4.pack -o restart/
  stdchk unpack DD0012.pack data0012.cpu0003 --variable Grid00000004/Density -o density/")]
pub struct Arguments {
    /// The container
    container: PathBuf,
    /// Files to give back, by their names in the container; all of them unless given
    #[arg(value_name = "NAME")]
    names: Vec<OsString>,
    /// Folder to write to; made if it is missing
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,
    /// Write this variable of the named files, as DIR/NAME/VARIABLE.npy, instead of the files
    #[arg(long, value_name = "VARIABLE", requires = "names")]
    variable: Option<String>,
    /// Write nothing: decode everything and say which files would not come back
    #[arg(long, conflicts_with_all = ["output", "variable"])]
    check: bool,
    /// The container that this one was packed against
    #[arg(long, value_name = "CONTAINER")]
    base: Option<PathBuf>,
    #[command(flatten)]
    resources: Resources,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    /// None: nothing was to be written.
    folder: Option<String>,
    files: u64,
    bytes: u64,
    /// Files that could not be given back.
    damaged: Vec<String>,
    /// Files that something else was in the way of.
    blocked: Vec<String>,
    seconds: f64,
}

/// Runs the command.
pub async fn run(arguments: Arguments, context: &Context) -> Outcome {
    let quiet = context.settings.quiet;
    or_told(move |told| from_container(&arguments, quiet, &told)).await
}

fn from_container(arguments: &Arguments, quiet: bool, told: &Arc<AtomicBool>) -> Outcome {
    let started = Instant::now();
    let container = open(&arguments.container, arguments.base.as_deref())?;
    let outcome = match &arguments.variable {
        Some(variable) => variables(&container, arguments, variable)?,
        None => files(&container, arguments, quiet, told),
    };
    match outcome {
        Ok(unpacked) => report(arguments, &unpacked, [&[], &[]], started, quiet),
        Err(error) => {
            if let AggregateError::Incomplete { damaged, blocked, intact, bytes } = &error {
                let given = Unpacked { files: *intact, bytes: *bytes };
                report(arguments, &given, [damaged, blocked], started, true)?;
            }
            Err(failed(error))
        }
    }
}

type Result = std::result::Result<Unpacked, AggregateError>;

fn files(container: &Container, arguments: &Arguments, quiet: bool, told: &AtomicBool) -> Result {
    let names = names_of(arguments);
    let wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let total = container
        .files()
        .filter(|(name, _)| wanted(name))
        .map(|(_, bytes)| bytes)
        .fold(0, u64::saturating_add);
    let progress = Progress::start("unpack", total, quiet);
    let watch = |bytes| {
        progress.add(bytes);
        !told.load(Ordering::Relaxed)
    };
    let Resources { mut threads, memory } = arguments.resources;
    if threads == 0 && matches!(Location::of(&arguments.container), Ok(Location::Object(..))) {
        threads = FAR_THREADS;
    }
    let unpacking = Unpacking { names: &names, budget: memory, threads, watch: &watch };
    if arguments.check {
        return container.check(&unpacking);
    }
    container.unpack(&arguments.output, &unpacking)
}

/// The names that were given, as a container has them.
fn names_of(arguments: &Arguments) -> Vec<String> {
    arguments.names.iter().map(|name| text_of_name(name)).collect()
}

/// One variable of each of the named files.
fn variables(container: &Container, arguments: &Arguments, variable: &str) -> Outcome<Result> {
    let mut unpacked = Unpacked { files: 0, bytes: 0 };
    for name in &names_of(arguments) {
        let path = arguments.output.join(below(name)?).join(below(&format!("{variable}.npy"))?);
        match container.extract_variable(name, variable, &path) {
            Ok(bytes) => unpacked.bytes += bytes,
            Err(error) => return Ok(Err(error)),
        }
        unpacked.files += 1;
    }
    Ok(Ok(unpacked))
}

/// A name of the user's as a path that stays below the folder.
fn below(name: &str) -> Outcome<PathBuf> {
    let path = PathBuf::from(name_of_text(name));
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    match inside {
        true => Ok(path),
        false => Err(CommandError::usage(
            shown(name),
            "it would be written outside of the folder",
            "check the name",
        )),
    }
}

fn report(
    arguments: &Arguments,
    unpacked: &Unpacked,
    [damaged, blocked]: [&[String]; 2],
    started: Instant,
    quiet: bool,
) -> Outcome {
    let (files, bytes) = (unpacked.files, unpacked.bytes);
    if arguments.json {
        let folder = (!arguments.check).then(|| arguments.output.to_string_lossy().into_owned());
        let seconds = started.elapsed().as_secs_f64();
        let names = |names: &[String]| names.iter().map(|name| output::in_json(name)).collect();
        let (damaged, blocked) = (names(damaged), names(blocked));
        return output::json(&Report { folder, files, bytes, damaged, blocked, seconds });
    }
    if !quiet {
        let count = output::count(files, "file");
        let rate = size::human(rate(bytes, started.elapsed()));
        let place = if arguments.check { &arguments.container } else { &arguments.output };
        let (place, size) = (shown(&place.to_string_lossy()), size::human(bytes));
        output::note(format_args!("unpack: {place}, {count}, {size}, verified, {rate}/s"));
    }
    Ok(())
}
