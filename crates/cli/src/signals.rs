//! SIGINT and SIGTERM: an orderly end for roles, exit code 130 for commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::exit::{About, CommandError, Exit, Outcome};

/// Time in which an object store that answers is still told what to forget; then nobody waits for one that doesn't.
const LAST_REQUESTS: Duration = Duration::from_secs(3);

/// SIGINT and SIGTERM from the moment on when it was made.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn catch() -> Outcome<Self> {
        let interrupt = signal(SignalKind::interrupt()).about("SIGINT")?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate()).about("SIGTERM")? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Waits for SIGINT or SIGTERM.
pub async fn stop() -> Outcome<&'static str> {
    Ok(Signals::catch()?.next().await)
}

/// Calls `warned` at the first SIGTERM; returns at SIGINT, or at whatever signal comes after that.
pub async fn stop_after_warning(warned: impl FnOnce()) -> Outcome<&'static str> {
    let mut signals = Signals::catch()?;
    match signals.next().await {
        "SIGTERM" => {
            warned();
            Ok(signals.next().await)
        }
        name => Ok(name),
    }
}

/// Runs `work` until it ends or a signal comes; then the work is dropped, and what it had not finished undone.
pub async fn or_interrupted<T>(what: &str, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::select! {
        outcome = work => outcome,
        name = stop() => Err(CommandError::new(
            Exit::Interrupted,
            what,
            format_args!("stopped by {}", name?),
            "what had not ended by then did not happen; run it again",
        )),
    }
}

/// Runs work on threads of its own, which looks at a flag now and then: a signal raises it, and the work undoes what it
/// has not finished. A second signal ends the command whatever the work waits for.
pub async fn or_told<T: Send + 'static>(
    work: impl FnOnce(Arc<AtomicBool>) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let mut signals = Signals::catch()?;
    let told = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&told);
    let mut working = spawn_blocking(move || work(flag));
    let mut signals_seen = 0;
    let ended = loop {
        tokio::select! {
            ended = &mut working => break ended,
            name = signals.next() => {
                told.store(true, Ordering::Relaxed);
                signals_seen += 1;
                if signals_seen > 1 {
                    stdchk_objects::end_requests();
                    return Err(at_once(name));
                }
            }
            () = sleep(LAST_REQUESTS), if signals_seen > 0 => stdchk_objects::end_requests(),
        }
    };
    ended.map_err(|error| crate::exit::task_failed(&error))?
}

fn at_once(name: &str) -> CommandError {
    let next = "what had not ended did not happen; the next run clears away what is left of it";
    CommandError::plain(Exit::Interrupted, format_args!("stopped by a second {name}; {next}"))
}
