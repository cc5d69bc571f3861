//! `stdchk aggregate`: complete checkpoint sets of a folder become few verified containers (mcrEngine).
//!
//! A folder of the pool keeps its files, which lie in containers of the pool from then on (`in_pool`). A plain folder is
//! packed into another one, which is what the rest of this is for. That needs no pool; source and sink may be folders of a pool's mount. Killed at any point, it leaves the raw set or a
//! complete aggregate; started again, it goes on.

mod in_pool;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stdchk_aggregate::{AggregateError, AggregatedSet, Aggregation, Aggregator, Packing, PlanOptions, Round};
use stdchk_model::naming::Naming;
use stdchk_model::size;

use super::pack::{Level, Resources, mode_of};
use crate::container::failed;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::output::{self, shown};
use crate::progress::{Progress, rate};
use crate::signals::or_told;
use crate::wake::Wake;

/// Longest wait between two looks at the source, which are cheap: not every file system tells of changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Wait between two looks at the flag that tells it to stop.
const TOLD_INTERVAL: Duration = Duration::from_millis(100);

/// What `aggregate` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Of a folder of the pool, every complete set (`stdchk ls APP --sets`) moves into containers of the pool. All its files stay
where they are, with their names, versions and times, and read as before; they take less room, and reading a few bytes
of one decodes a block.

With -o the source is a plain folder, or one in a mount, and so is the sink. A set is complete when the files of all
ranks of a timestep are there and have not changed for a while. Its containers are called step-TIMESTEP.NofM.pack and appear once every byte of them was compared with the raw files; `stdchk unpack`
gives the files back. With --across-time some need one of an earlier set, which unpack finds beside them: keep them together.

Stop it with SIGINT or SIGTERM, or let it end by itself with --once.

Example:
  stdchk aggregate climate --once
  stdchk aggregate run/ -o /scratch/sets --naming 'DD{step}/data{step}.cpu{rank}' --ranks 64
  stdchk aggregate ~/pool/climate -o /lustre/climate --containers 4 --remove-raw
  stdchk aggregate run/ -o sets/ --once --json")]
pub struct Arguments {
    /// The folder of the application's checkpoints: APP in the pool or, with -o, a directory
    source: PathBuf,
    /// The directory for containers; made if it is missing
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
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
    let quiet = context.settings.quiet;
    or_told(move |told| watch(&arguments, &sink, quiet, &told)).await
}

fn watch(arguments: &Arguments, sink: &Path, quiet: bool, told: &Arc<AtomicBool>) -> Outcome {
    let naming: Naming = arguments.naming.parse().map_err(|error| {
        CommandError::usage("--naming", error, "`stdchk policy --help` says more on patterns")
    })?;
    let settle = Duration::try_from_secs_f64(arguments.settle)
        .map_err(|error| CommandError::usage("--settle", error, "give a number of seconds"))?;
    std::fs::create_dir_all(sink).about(sink.display())?;
    let Resources { threads, memory } = arguments.resources;
    let mode = mode_of(arguments.level, &sink.join("probe"), threads)?;
    let plan = PlanOptions { keys: mode.keys(), ..PlanOptions::default() };
    let progress = Progress::start("aggregate", 0, quiet);
    let watch = |bytes| {
        progress.add(bytes);
        !told.load(Ordering::Relaxed)
    };
    let packing = Packing { mode, plan, budget: memory, threads, watch: &watch, ..Packing::default() };
    let mut aggregator = Aggregator::start(Aggregation {
        source: arguments.source.clone(),
        sink: sink.to_owned(),
        naming,
        ranks: arguments.ranks,
        containers: arguments.containers,
        remove_raw: arguments.remove_raw,
        settle,
        across_time: arguments.across_time,
        packing,
    })
    .map_err(failed)?;
    let wake = Wake::on(&arguments.source);
    loop {
        let started = Instant::now();
        let round = match aggregator.round() {
            // Without --once it runs until it is told to stop, so that this is its proper end.
            Err(AggregateError::Stopped) if !arguments.once => return Ok(()),
            other => other.map_err(failed)?,
        };
        let last = arguments.once && !round.unsettled;
        if last || !round.aggregated.is_empty() {
            report(arguments, &round, started.elapsed(), quiet)?;
        }
        if last {
            return end(&round);
        }
        if !pause(&wake, told).about(arguments.source.display())? {
            return if arguments.once { Err(stopped()) } else { Ok(()) };
        }
    }
}

fn stopped() -> CommandError {
    failed(AggregateError::Stopped)
}

/// Waits for a change; false when told to stop.
fn pause(wake: &Wake, told: &AtomicBool) -> std::io::Result<bool> {
    let started = Instant::now();
    while started.elapsed() < LOOK_INTERVAL && !told.load(Ordering::Relaxed) {
        if wake.wait(TOLD_INTERVAL)? {
            break;
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
    seconds: f64,
}

#[derive(Serialize)]
struct ReportedSet {
    timestep: u64,
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
    timestep: u64,
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
            containers: set.containers.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
        }
    }
}

fn report(arguments: &Arguments, round: &Round, elapsed: Duration, quiet: bool) -> Outcome {
    let sets: Vec<ReportedSet> = round.aggregated.iter().map(ReportedSet::from).collect();
    for (timestep, reason) in round.waiting.iter().filter(|_| !arguments.json) {
        output::note(format_args!("stdchk: timestep {timestep} waits: {}", shown(reason)));
    }
    if arguments.json {
        let waiting = round
            .waiting
            .iter()
            .map(|(timestep, reason)| Waiting { timestep: *timestep, reason: reason.clone() })
            .collect();
        return output::json(&Report {
            sets,
            removed: round.removed,
            waiting,
            seconds: elapsed.as_secs_f64(),
        });
    }
    for set in sets.iter().filter(|_| !quiet) {
        let files = output::count(usize::try_from(set.files).unwrap_or(usize::MAX), "file");
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
