//! `stdchk aggregate APP`: complete checkpoint sets of a folder of the pool move into containers of the same pool.
//!
//! Which sets are complete and which lie in containers already, the manager knows; nothing is kept here but what a later
//! look needn't try again at once. Killed at any point, a set lies where it lay, or in its containers.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use stdchk_aggregate::{AggregateError, Mode, Packing};
use stdchk_client::{AggregationError, PackedSet, Pool};
use stdchk_model::message::manager::{CheckpointSet, SetState};
use stdchk_model::{ErrorCode, Failure, Ino, size};
use tokio::runtime::Handle;

use super::{Arguments, TOLD_INTERVAL, stopped};
use crate::command::pack::{Level, Resources, mode_of};
use crate::container::failed;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::namespace::resolve_folder;
use crate::output::{self, shown};
use crate::paths::Target;
use crate::progress::{Progress, rate};
use crate::signals::or_told;

/// Wait between two looks at the folder: each is a walk through it at the manager.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Wait before a set that could not be aggregated is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the command.
pub async fn run(arguments: Arguments, context: &Context) -> Outcome {
    let text = arguments.source.to_string_lossy().into_owned();
    let target = Target::parse_plain(&text)?;
    let mode = mode(&arguments)?;
    let pool = context.pool_to_move().await?;
    let folder = resolve_folder(&pool, &target).await?.ino;
    let quiet = context.settings.quiet;
    or_told(move |told| {
        let (later, runtime) = (Later::default(), Handle::current());
        let mut watcher =
            Watcher { arguments, mode, pool, folder, target, quiet, told: &told, later, runtime };
        watcher.watch()
    })
    .await
}

fn mode(arguments: &Arguments) -> Outcome<Mode> {
    if arguments.level == Level::Auto {
        let cause = "it measures the disk that containers go to, and a pool is not one disk";
        return Err(CommandError::usage("--level auto", cause, "choose another level"));
    }
    mode_of(arguments.level, &arguments.source, arguments.resources.threads)
}

/// Sets that needn't be looked at now, by timestep.
#[derive(Default)]
struct Later {
    /// Containers would not have been smaller than the chunks of these members.
    not_smaller: HashMap<u64, HashSet<(Ino, u64)>>,
    failed: HashMap<u64, (Instant, String)>,
}

/// What one look at the folder led to.
#[derive(Default)]
struct Round {
    sets: Vec<ReportedSet>,
    waiting: Vec<Waiting>,
    failed: bool,
    /// A set failed, and for another reason than the last time.
    fails_anew: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    sets: &'a [ReportedSet],
    waiting: &'a [Waiting],
    seconds: f64,
}

#[derive(Serialize)]
struct ReportedSet {
    timestep: u64,
    files: u64,
    bytes: u64,
    /// Of the chunks that the files lay in, each counted once.
    chunk_bytes: u64,
    /// Of the containers.
    stored_bytes: u64,
    ratio: f64,
    /// 0: they would not have been smaller, and the files lie where they lay.
    container_count: u64,
}

#[derive(Serialize)]
struct Waiting {
    timestep: u64,
    reason: String,
}

struct Watcher<'a> {
    arguments: Arguments,
    mode: Mode,
    pool: Pool,
    folder: Ino,
    target: Target,
    quiet: bool,
    told: &'a AtomicBool,
    later: Later,
    runtime: Handle,
}

impl Watcher<'_> {
    fn watch(&mut self) -> Outcome {
        let once = self.arguments.once;
        loop {
            let started = Instant::now();
            match self.round() {
                Ok(round) => {
                    if once || !round.sets.is_empty() || round.fails_anew {
                        self.report(&round, started.elapsed())?;
                    }
                    if once {
                        return end(&round);
                    }
                }
                // Without --once it runs until it is told to stop, so that this is its proper end.
                Err(AggregationError::Packing(AggregateError::Stopped)) if !once => return Ok(()),
                Err(error) if once => return Err(self.error(error)),
                Err(error) => output::note(format_args!("stdchk: {error}; it is tried again")),
            }
            if !self.pause() {
                return if once { Err(stopped()) } else { Ok(()) };
            }
        }
    }

    /// Aggregates all sets that are complete and don't lie in containers, oldest first.
    fn round(&mut self) -> Result<Round, AggregationError> {
        let sets = self.runtime.block_on(self.pool.sets(self.folder))?;
        let mut round = Round::default();
        for set in sets.iter().rev().filter(|set| !set.members.iter().all(|member| member.aggregated)) {
            if set.state != SetState::Complete {
                round.waiting.push(Waiting { timestep: set.timestep, reason: set.reason.clone() });
            } else if let Some(reason) = self.later.reason(set) {
                round.failed = true;
                round.waiting.push(Waiting { timestep: set.timestep, reason });
            } else if !self.later.is_not_smaller(set) {
                self.aggregate(set, &mut round)?;
            }
        }
        Ok(round)
    }

    fn aggregate(&mut self, set: &CheckpointSet, round: &mut Round) -> Result<(), AggregationError> {
        let timestep = set.timestep;
        match self.pack(set) {
            Ok(packed) => {
                if packed.containers == 0 {
                    self.later.not_smaller.insert(timestep, members(set));
                }
                round.sets.push(reported(timestep, &packed));
            }
            Err(AggregationError::Pool(failure)) if is_over(&failure) => {
                let reason = "it was changed or aggregated by others meanwhile".to_owned();
                round.waiting.push(Waiting { timestep, reason });
            }
            Err(error @ AggregationError::Packing(AggregateError::Stopped)) => return Err(error),
            Err(error) => {
                // Others may do better: a set may be damaged, or a member of it open for long.
                let reason = error.to_string();
                let before = self.later.failed.insert(timestep, (Instant::now(), reason.clone()));
                round.fails_anew |= before.is_none_or(|(_, before)| before != reason);
                round.failed = true;
                round.waiting.push(Waiting { timestep, reason });
            }
        }
        Ok(())
    }

    fn pack(&self, set: &CheckpointSet) -> Result<PackedSet, AggregationError> {
        let total = set.members.iter().map(|member| member.bytes).sum();
        let progress = Progress::start("aggregate", total, self.quiet);
        let watch = |bytes| {
            progress.add(bytes);
            !self.told.load(Ordering::Relaxed)
        };
        let Resources { threads, memory } = self.arguments.resources;
        let (mode, watch) = (self.mode.clone(), &watch);
        let packing = Packing { mode, budget: memory, threads, watch, ..Packing::default() };
        self.pool.aggregate_set(self.folder, set, self.arguments.containers, packing)
    }

    /// Waits for the next look; false when told to stop.
    fn pause(&self) -> bool {
        let started = Instant::now();
        while started.elapsed() < LOOK_INTERVAL && !self.told.load(Ordering::Relaxed) {
            std::thread::sleep(TOLD_INTERVAL);
        }
        !self.told.load(Ordering::Relaxed)
    }

    fn error(&self, error: AggregationError) -> CommandError {
        match error {
            AggregationError::Packing(error) => failed(error),
            AggregationError::Pool(failure) => {
                let failed: Outcome = Err(failure).about(self.target.shown());
                failed.err().unwrap_or_else(stopped)
            }
        }
    }

    fn report(&self, round: &Round, elapsed: Duration) -> Outcome {
        let (sets, waiting) = (&round.sets, &round.waiting);
        if self.arguments.json {
            return output::json(&Report { sets, waiting, seconds: elapsed.as_secs_f64() });
        }
        for Waiting { timestep, reason } in waiting {
            output::note(format_args!("stdchk: timestep {timestep} waits: {}", shown(reason)));
        }
        sets.iter().filter(|_| !self.quiet).for_each(|set| output::note(line(set, elapsed)));
        Ok(())
    }
}

/// Somebody else changed the set, or was faster.
fn is_over(failure: &Failure) -> bool {
    matches!(failure.code, ErrorCode::NotFound | ErrorCode::Exists)
}

fn members(set: &CheckpointSet) -> HashSet<(Ino, u64)> {
    set.members.iter().map(|member| (member.ino, member.version)).collect()
}

impl Later {
    fn is_not_smaller(&self, set: &CheckpointSet) -> bool {
        self.not_smaller.get(&set.timestep).is_some_and(|known| *known == members(set))
    }

    /// Why the set failed so short a time ago that it isn't tried again yet.
    fn reason(&self, set: &CheckpointSet) -> Option<String> {
        let (when, reason) = self.failed.get(&set.timestep)?;
        (when.elapsed() < RETRY_INTERVAL).then(|| reason.clone())
    }
}

fn reported(timestep: u64, packed: &PackedSet) -> ReportedSet {
    ReportedSet {
        timestep,
        files: packed.files,
        bytes: packed.raw_bytes,
        chunk_bytes: packed.chunk_bytes,
        stored_bytes: packed.stored_bytes,
        ratio: packed.raw_bytes as f64 / packed.stored_bytes.max(1) as f64,
        container_count: packed.containers,
    }
}

fn line(set: &ReportedSet, elapsed: Duration) -> String {
    let files = output::count(usize::try_from(set.files).unwrap_or(usize::MAX), "file");
    let (timestep, stored) = (set.timestep, size::human(set.stored_bytes));
    if set.container_count == 0 {
        let chunks = size::human(set.chunk_bytes);
        return format!(
            "aggregate: timestep {timestep}, {files}: stays in its chunks, {chunks}; {stored} packed"
        );
    }
    let containers = output::count(usize::try_from(set.container_count).unwrap_or(usize::MAX), "container");
    let (raw, rate) = (size::human(set.bytes), size::human(rate(set.bytes, elapsed)));
    format!(
        "aggregate: timestep {timestep}, {files}, {raw} in {stored} ({:.2}:1), {containers} in the pool, verified, {rate}/s",
        set.ratio
    )
}

/// A set that waits when there is nothing else to do makes the success partial.
fn end(round: &Round) -> Outcome {
    match round.waiting.is_empty() && !round.failed {
        true => Ok(()),
        false => Err(CommandError::reported(Exit::Partial)),
    }
}
