//! `stdchk aggregate APP`: complete checkpoint sets of a folder of the pool move into containers of the same pool.
//!
//! Killed at any point, a set lies where it lay, or in its containers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stdchk_aggregate::Mode;
use stdchk_model::size;
use stdchk_net::Retry;
use stdchk_operations::{Aggregate, AggregateRound, Aggregated, Aggregator, Code, Target, Waiting, Watch};

use super::{Arguments, TOLD_INTERVAL, stopped};
use crate::command::pack::{Level, Resources, mode_of};
use crate::context::Context;
use crate::exit::{CommandError, Exit, Outcome};
use crate::output::{self, shown};
use crate::progress::rate;
use crate::signals::or_told;

/// Wait between two looks at the folder: each is a walk through it at the manager.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the command.
pub async fn run(arguments: Arguments, context: &Context) -> Outcome {
    let app = Target::parse_plain(&arguments.source.to_string_lossy())?;
    let mode = mode(&arguments)?;
    let pool = context.pool_to_move().await?;
    let Resources { threads, memory: memory_bytes } = arguments.resources;
    let aggregate = Aggregate { app, containers: arguments.containers, mode, threads, memory_bytes };
    let mut aggregator = pool.aggregator(aggregate).await?;
    let (watch, quiet) = (context.watch(), context.settings.quiet);
    let ended = or_told(move |told| rounds(&mut aggregator, &arguments, quiet, &watch, &told)).await;
    pool.leave().await;
    ended
}

fn mode(arguments: &Arguments) -> Outcome<Mode> {
    if arguments.level == Level::Auto {
        let cause = "it measures the disk that containers go to, and a pool is not one disk";
        return Err(CommandError::usage("--level auto", cause, "choose another level"));
    }
    mode_of(arguments.level, &arguments.source, arguments.resources.threads)
}

fn rounds(
    aggregator: &mut Aggregator,
    arguments: &Arguments,
    quiet: bool,
    watch: &Watch,
    told: &Arc<AtomicBool>,
) -> Outcome {
    let once = arguments.once;
    let is_over = || told.load(Ordering::Relaxed);
    loop {
        match aggregator.round(watch, &is_over) {
            Ok(round) => {
                if once || !round.sets.is_empty() || round.fails_anew {
                    report(&round, arguments.json, quiet)?;
                }
                if once {
                    return end(&round);
                }
            }
            // Without --once it runs until it is told to stop, so that this is its proper end.
            Err(error) if error.code == Code::Interrupted && !once => return Ok(()),
            Err(error) if once => return Err(error.into()),
            Err(error) => output::note(format_args!("stdchk: {error}; it is tried again")),
        }
        if !pause(told) {
            return if once { Err(stopped()) } else { Ok(()) };
        }
    }
}

/// Waits for the next look; false when told to stop.
fn pause(told: &AtomicBool) -> bool {
    let mut retry = Retry::every(TOLD_INTERVAL, LOOK_INTERVAL);
    while !told.load(Ordering::Relaxed) && retry.pause_thread() {}
    !told.load(Ordering::Relaxed)
}

fn report(round: &AggregateRound, as_json: bool, quiet: bool) -> Outcome {
    if as_json {
        return output::json(round);
    }
    for Waiting { timestep, reason } in &round.waiting {
        output::note(format_args!("stdchk: timestep {timestep} waits: {}", shown(reason)));
    }
    let elapsed = Duration::from_secs_f64(round.seconds);
    round.sets.iter().filter(|_| !quiet).for_each(|set| output::note(line(set, elapsed)));
    Ok(())
}

fn line(set: &Aggregated, elapsed: Duration) -> String {
    let files = stdchk_operations::text::count(set.files, "file");
    let (timestep, stored) = (set.timestep, size::human(set.stored_bytes));
    if set.container_count == 0 {
        let chunks = size::human(set.chunk_bytes);
        return format!(
            "aggregate: timestep {timestep}, {files}: stays in its chunks, {chunks}; {stored} packed"
        );
    }
    let containers = stdchk_operations::text::count(set.container_count, "container");
    let (raw, rate) = (size::human(set.bytes), size::human(rate(set.bytes, elapsed)));
    format!(
        "aggregate: timestep {timestep}, {files}, {raw} in {stored} ({:.2}:1), {containers} in the pool, verified, {rate}/s",
        set.ratio
    )
}

/// A set that waits when there is nothing else to do makes the success partial.
fn end(round: &AggregateRound) -> Outcome {
    match round.waiting.is_empty() && !round.has_failed {
        true => Ok(()),
        false => Err(CommandError::reported(Exit::Partial)),
    }
}
