//! SIGINT and SIGTERM: an orderly end for roles, exit code 130 for commands.

use tokio::signal::unix::{SignalKind, signal};

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
