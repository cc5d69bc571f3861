//! `stdchk aggregate`: complete checkpoint sets of a folder become few verified containers (mcrEngine).
//!
//! A folder of the pool keeps its files, which lie in containers of the pool from then on (`in_pool`). A plain folder is
//! packed into another one, which is what the rest of this is for. That needs no pool; source and sink may be folders of a
//! pool's mount. Killed at any point, it leaves the raw set or a complete aggregate; started again, it goes on.

mod in_pool;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stdchk_aggregate::{
    AggregateError, AggregatedSet, Aggregation, Aggregator, FolderSink, Packing, Round, Sink,
};
use stdchk_model::naming::Naming;
use stdchk_model::{Timestep, size};
use stdchk_objects::ObjectSink;

use super::pack::{Level, Resources, mode_of};
use crate::container::{Location, failed};
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::output::{self, shown};
use crate::progress::{Progress, rate};
use crate::signals::or_told;
use crate::wake::Wake;

/// Longest wait between two looks at the source, which are cheap: not every file system tells of changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait between two looks where each look is a request that may be paid for.
const FAR_LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Largest block of a container in an object store, bytes: who reads one rank fetches the blocks that hold a part of it.
const FAR_BLOCK_BYTES: u64 = 1 << 20;
/// After a look that led to nothing there is a rest of so many times as long as it took: looking takes a twentieth of a core at most,
/// however many files there are.
const LOOK_REST: u32 = 19;
/// Wait between two looks at the flag that tells it to stop.
const TOLD_INTERVAL: Duration = Duration::from_millis(100);

/// What `aggregate` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Of a folder of the pool, every complete set (`stdchk ls APP --sets`) moves into containers of the pool. All its files stay
where they are, with their names, versions and times, and read as before; they take less room, and reading a few bytes
of one decodes a block.

With -o the source is a plain folder, or one in a mount, and so is the sink, unless it is s3://BUCKET/PREFIX,
az://CONTAINER/PREFIX or gs://BUCKET/PREFIX in an object store. A set is complete when the files of all ranks of a timestep
are there and have not changed for a while. Its containers are called step-TIMESTEP.NofM.pack and appear once every byte of
them was compared with the raw files; `stdchk unpack` gives the files back. With --across-time some need one of an earlier
set, which unpack finds beside them: keep them together.

How an object store is reached stands in the variables AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION, AWS_MAX_ATTEMPTS and AWS_CA_BUNDLE, or in ~/.aws/credentials (AWS_PROFILE); where they name
nobody, the container or the machine is asked for its role. For az:// and gs:// they are AZURE_* and GOOGLE_*. Containers
are packed on a local disk (--scratch), uploaded and read back. One aggregator works on a prefix at a time.

Stop it with SIGINT or SIGTERM, or let it end by itself with --once.

Example:
  stdchk aggregate climate --once
  stdchk aggregate run/ -o /scratch/sets --naming 'DD{step}/data{step}.cpu{rank}' --ranks 64
  stdchk aggregate ~/pool/climate -o /lustre/climate --containers 4 --remove-raw
  stdchk aggregate run/ -o s3://checkpoints/run7 --containers 4 --remove-raw
  stdchk aggregate run/ -o sets/ --once --json")]
pub struct Arguments {
    /// The folder of the application's checkpoints: APP in the pool or, with -o, a directory
    source: PathBuf,
    /// The directory for containers, made if it is missing, or s3://BUCKET/PREFIX
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Where containers are packed before they are uploaded: room for as many as are packed at one time; TMPDIR or /tmp
    /// unless given
    #[arg(long, value_name = "DIR", requires = "output")]
    scratch: Option<PathBuf>,
    /// Patterns of file names, with {step} and {rank}, separated by spaces; NAME.N{rank}.T{step} unless given
    #[arg(long, value_name = "PATTERNS", default_value = "", hide_default_value = true, requires = "output")]
    naming: String,
    /// Number of ranks; learned from earlier timesteps unless given
    #[arg(long, value_name = "NUMBER", default_value = "0", hide_default_value = true, requires = "output")]
    ranks: u32,
    /// Containers for each set
    #[arg(long, value_name = "NUMBER", default_value = "1")]
    containers: usize,
    /// Time or space
    #[arg(long, value_enum, default_value = "default")]
    level: Level,
    /// Code up to so many sets against the one before them, where that makes them a tenth smaller; they need it then
    #[arg(long, value_name = "SETS", default_value = "0", hide_default_value = true, requires = "output")]
    across_time: usize,
    /// Remove the files of a set once its containers are complete and verified
    #[arg(long, requires = "output")]
    remove_raw: bool,
    /// A file counts as written when it has not changed for so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "2", requires = "output")]
    settle: f64,
    /// End when nothing is left to be aggregated, in place of waiting for more
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    resources: Resources,
    /// Report as JSON, one line for each look that led to something
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: Arguments, context: &Context) -> Outcome {
    let Some(sink) = arguments.output.clone() else { return in_pool::run(arguments, context).await };
    let (quiet, once) = (context.settings.quiet, arguments.once);
    let sink = Location::of(&sink)?;
    or_told(move |told| match watch(&arguments, &sink, quiet, &told) {
        // Without --once it runs until it is told to stop, so that this is its proper end.
        Err(error) if error.exit == Exit::Interrupted && !once => Ok(()),
        outcome => outcome,
    })
    .await
}

/// Opens the sink, and says how to pack for it.
fn open_sink<'a>(arguments: &Arguments, sink: &Location) -> Outcome<(Box<dyn Sink>, Packing<'a>)> {
    let Resources { threads, memory } = arguments.resources;
    let (sink, mode, packing): (Box<dyn Sink>, _, _) = match sink {
        Location::Path(folder) => {
            if arguments.scratch.is_some() {
                let cause = "a directory holds its own drafts";
                return Err(CommandError::usage("--scratch", cause, "leave it out"));
            }
            std::fs::create_dir_all(folder).about(folder.display())?;
            let mode = mode_of(arguments.level, &folder.join("probe"), threads)?;
            (Box::new(FolderSink::open(folder).map_err(failed)?), mode, Packing::default())
        }
        Location::Object(place, settings) => {
            if arguments.level == Level::Auto {
                let cause = "it measures the disk that containers go to, and an object store is none";
                return Err(CommandError::usage("--level auto", cause, "choose another level"));
            }
            let scratch = arguments.scratch.clone().unwrap_or_else(std::env::temp_dir);
            let mode = mode_of(arguments.level, &scratch, threads)?;
            let sink = ObjectSink::open(place, settings, &scratch).map_err(failed)?;
            let far = Packing { index: true, block_max: FAR_BLOCK_BYTES, ..Packing::default() };
            (Box::new(sink), mode, far)
        }
    };
    Ok((sink, Packing { mode, budget: memory, threads, ..packing }))
}

fn watch(arguments: &Arguments, location: &Location, quiet: bool, told: &Arc<AtomicBool>) -> Outcome {
    let naming: Naming = arguments.naming.parse().map_err(|error| {
        CommandError::usage("--naming", error, "`stdchk policy --help` says more on patterns")
    })?;
    let settle = Duration::try_from_secs_f64(arguments.settle)
        .map_err(|error| CommandError::usage("--settle", error, "give a number of seconds"))?;
    let (sink, packing) = open_sink(arguments, location)?;
    let is_far = matches!(location, Location::Object(..));
    let progress = Progress::start("aggregate", 0, quiet);
    let watch = |bytes| {
        progress.add(bytes);
        !told.load(Ordering::Relaxed)
    };
    let aggregation = Aggregation {
        source: arguments.source.clone(),
        naming,
        ranks: arguments.ranks,
        containers: arguments.containers,
        remove_raw: arguments.remove_raw,
        settle,
        across_time: arguments.across_time,
        packing: Packing { watch: &watch, ..packing },
    };
    let mut aggregator = Aggregator::start(aggregation, sink).map_err(failed)?;
    let interval = if is_far { FAR_LOOK_INTERVAL } else { LOOK_INTERVAL };
    let wake = Wake::on(&arguments.source);
    loop {
        let started = Instant::now();
        let round = match aggregator.round() {
            Err(error) => {
                let error = with_scratch(failed(error), is_far);
                if arguments.once || error.exit != Exit::Unreachable {
                    return Err(error);
                }
                output::note(format_args!("stdchk: {}; it is tried again", error.message));
                Round::default()
            }
            Ok(round) => round,
        };
        let rest = if round.is_news() || is_far { Duration::ZERO } else { started.elapsed() * LOOK_REST };
        let last = arguments.once && !round.unsettled;
        if last || round.is_news() {
            report(arguments, &round, started.elapsed(), quiet)?;
        }
        if last {
            return end(&round);
        }
        if !pause(&wake, interval, rest, told).about(arguments.source.display())? {
            return Err(stopped());
        }
    }
}

fn stopped() -> CommandError {
    failed(AggregateError::Stopped)
}

/// The error for a disk that is full, where it is the one on which containers are packed before they are uploaded.
fn with_scratch(error: CommandError, is_far: bool) -> CommandError {
    match error.exit {
        Exit::NoSpace if is_far => {
            let message = format!("{}, or name another directory with --scratch", error.message);
            CommandError { message, ..error }
        }
        _ => error,
    }
}

/// Waits for a change, but for `rest` at least; false when told to stop.
fn pause(wake: &Wake, longest: Duration, rest: Duration, told: &AtomicBool) -> std::io::Result<bool> {
    let (started, mut changed) = (Instant::now(), false);
    let over = |changed| started.elapsed() >= if changed { rest } else { longest.max(rest) };
    while !over(changed) && !told.load(Ordering::Relaxed) {
        if changed {
            std::thread::sleep(TOLD_INTERVAL.min(rest.saturating_sub(started.elapsed())));
        } else {
            changed = wake.wait(TOLD_INTERVAL)?;
        }
    }
    Ok(!told.load(Ordering::Relaxed))
}

/// A set that still waits when there is nothing else to do makes the success partial.
fn end(round: &Round) -> Outcome {
    if round.waiting.is_empty() { Ok(()) } else { Err(CommandError::reported(Exit::Partial)) }
}

#[derive(Serialize)]
struct Report {
    sets: Vec<ReportedSet>,
    /// Raw files that were removed.
    removed: u64,
    waiting: Vec<Waiting>,
    /// Timesteps whose containers didn't give back what the raw files hold: packed again, if all of these were there.
    damaged: Vec<Waiting>,
    /// Containers that the sink gives out no more for now; their sets are left alone.
    withheld: Vec<Withheld>,
    seconds: f64,
}

#[derive(Serialize)]
struct Withheld {
    container: String,
    reason: String,
}

#[derive(Serialize)]
struct ReportedSet {
    timestep: Timestep,
    files: u64,
    bytes: u64,
    stored_bytes: u64,
    ratio: f64,
    containers: Vec<String>,
    /// Containers that can't be unpacked without one of an earlier set.
    with_base: u64,
}

#[derive(Serialize)]
struct Waiting {
    timestep: Timestep,
    reason: String,
}

impl From<&AggregatedSet> for ReportedSet {
    fn from(set: &AggregatedSet) -> Self {
        Self {
            timestep: set.timestep,
            files: set.files,
            bytes: set.raw_bytes,
            stored_bytes: set.stored_bytes,
            ratio: set.raw_bytes as f64 / set.stored_bytes.max(1) as f64,
            with_base: set.with_base,
            containers: set.containers.clone(),
        }
    }
}

fn report(arguments: &Arguments, round: &Round, elapsed: Duration, quiet: bool) -> Outcome {
    let sets: Vec<ReportedSet> = round.aggregated.iter().map(ReportedSet::from).collect();
    for (timestep, reason) in round.waiting.iter().filter(|_| !arguments.json) {
        output::note(format_args!("stdchk: timestep {timestep} waits: {}", shown(reason)));
    }
    for (timestep, reason) in round.damaged.iter().filter(|_| !arguments.json) {
        let reason = shown(reason);
        output::note(format_args!(
            "stdchk: the containers of timestep {timestep} don't hold what the raw files hold: {reason}"
        ));
    }
    for (_, reason) in round.withheld.iter().filter(|_| !arguments.json) {
        let next = "it lies in the store's archive, and its set is left alone until it is restored there";
        output::note(format_args!("stdchk: {}; {next}", shown(reason)));
    }
    if arguments.json {
        let withheld = round.withheld.iter().cloned();
        let withheld = withheld.map(|(container, reason)| Withheld { container, reason }).collect();
        let listed = |timesteps: &[(Timestep, String)]| {
            let one = |(timestep, reason): &(Timestep, String)| Waiting {
                timestep: *timestep,
                reason: reason.clone(),
            };
            timesteps.iter().map(one).collect()
        };
        return output::json(&Report {
            sets,
            removed: round.removed,
            waiting: listed(&round.waiting),
            damaged: listed(&round.damaged),
            withheld,
            seconds: elapsed.as_secs_f64(),
        });
    }
    for set in sets.iter().filter(|_| !quiet) {
        let files = output::count(set.files, "file");
        let containers = output::count(set.containers.len(), "container");
        let (raw, stored) = (size::human(set.bytes), size::human(set.stored_bytes));
        let rate = size::human(rate(set.bytes, elapsed));
        let based = if set.with_base > 0 { " against an earlier set" } else { "" };
        output::note(format_args!(
            "aggregate: timestep {}, {files}, {raw} in {stored} ({:.2}:1), {containers}{based}, verified, {rate}/s",
            set.timestep, set.ratio
        ));
    }
    Ok(())
}
