//! SIGINT and SIGTERM: an orderly end for roles, exit code 130 for commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;

use crate::exit::{About, CommandError, Exit, Outcome};

/// Waits for SIGINT or SIGTERM.
pub async fn stop() -> Outcome<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt()).about("SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).about("SIGTERM")?;
    tokio::select! {
        _ = interrupt.recv() => Ok("SIGINT"),
        _ = terminate.recv() => Ok("SIGTERM"),
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
/// has not finished.
pub async fn or_told<T: Send + 'static>(
    work: impl FnOnce(Arc<AtomicBool>) -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    let told = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&told);
    let mut working = spawn_blocking(move || work(flag));
    let ended = tokio::select! {
        ended = &mut working => ended,
        signal = stop() => {
            signal?;
            told.store(true, Ordering::Relaxed);
            working.await
        }
    };
    ended.map_err(|error| crate::transfer::task_failed(&error))?
}
