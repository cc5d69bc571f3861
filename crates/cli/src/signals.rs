//! SIGINT, SIGTERM and, where there is a terminal, SIGHUP: an orderly end for roles, exit code 130 for commands.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::exit::{About, CommandError, Exit, Outcome};

/// Time in which an object store that answers is still told what to forget; then nobody waits for one that doesn't.
const LAST_REQUESTS: Duration = Duration::from_secs(3);

/// The meaning of SIGHUP to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hangup {
    /// Its terminal is gone: it ends as by SIGTERM, unless who started it has it ignore that, as nohup(1) does.
    Ends,
    /// It has no terminal, and opens its log anew ([`crate::logging`]).
    IsForTheLog,
}

/// The signals that end a process, from the moment on when this was made.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    fn catch(hangup: Hangup) -> Outcome<Self> {
        let ends = hangup == Hangup::Ends && !is_hangup_ignored()?;
        let hangup = ends.then(|| signal(SignalKind::hangup())).transpose().about("SIGHUP")?;
        let interrupt = signal(SignalKind::interrupt()).about("SIGINT")?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate()).about("SIGTERM")?, hangup })
    }

    async fn next(&mut self) -> &'static str {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = hangup => "SIGHUP",
        }
    }
}

/// Whether this process was started so that SIGHUP does nothing.
fn is_hangup_ignored() -> Outcome<bool> {
    let path = "/proc/self/status";
    let status = std::fs::read_to_string(path).about(path)?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let mask = mask.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData)).about(path)?;
    // The lowest bit is that of signal 1.
    Ok(mask & 1 == 1)
}

/// Waits for SIGINT, SIGTERM or the end of the terminal.
pub async fn stop(hangup: Hangup) -> Outcome<&'static str> {
    Ok(Signals::catch(hangup)?.next().await)
}

/// Calls `warned` at the first SIGTERM; returns at SIGINT and SIGHUP, or at whatever signal comes after that.
pub async fn stop_after_warning(hangup: Hangup, warned: impl FnOnce()) -> Outcome<&'static str> {
    let mut signals = Signals::catch(hangup)?;
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
        name = stop(Hangup::Ends) => Err(CommandError::new(
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
    let mut signals = Signals::catch(Hangup::Ends)?;
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
