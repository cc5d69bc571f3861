//! Progress of long work: one line on standard error, rewritten a few times a second, if that is a terminal.
//!
//! The work only adds to counters; a thread of its own draws, so that slow terminals slow nothing down. What operations tell
//! becomes such lines, and remarks on standard error, by [`Told`].

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stdchk_model::size;
use stdchk_operations::{Event, Watch, Work};

use crate::exit::{CommandError, Parts};
use crate::output;

/// Interval between two drawings: smooth to the eye, nothing to the processor.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

struct Counters {
    done: AtomicU64,
    total: AtomicU64,
    ended: AtomicBool,
}

/// A count of bytes on its way to a total.
pub struct Progress {
    counters: Arc<Counters>,
    drawer: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts at 0 of `total` bytes (0: not known); draws unless `quiet` or standard error is no terminal.
    pub fn start(verb: &'static str, total: u64, quiet: bool) -> Self {
        let counters =
            Counters { done: AtomicU64::new(0), total: AtomicU64::new(total), ended: false.into() };
        let counters = Arc::new(counters);
        let drawn = counters.clone();
        let visible = !quiet && io::stderr().is_terminal();
        let drawer = visible.then(|| std::thread::spawn(move || draw(verb, &drawn)));
        Self { counters, drawer }
    }

    /// Adds bytes that are done.
    pub fn add(&self, bytes: u64) {
        self.counters.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.counters.ended.store(true, Ordering::Relaxed);
        if let Some(drawer) = self.drawer.take() {
            drawer.thread().unpark();
            drop(drawer.join());
        }
    }
}

fn draw(verb: &str, counters: &Counters) {
    let started = Instant::now();
    while !counters.ended.load(Ordering::Relaxed) {
        std::thread::park_timeout(DRAW_INTERVAL);
        let done = counters.done.load(Ordering::Relaxed);
        let total = counters.total.load(Ordering::Relaxed);
        let text = text(verb, done, total, started.elapsed());
        drop(write!(io::stderr().lock(), "\r{text}\x1b[K"));
    }
    drop(write!(io::stderr().lock(), "\r\x1b[K"));
}

fn text(verb: &str, done: u64, total: u64, elapsed: Duration) -> String {
    let rate = size::human(rate(done, elapsed));
    let done_text = size::human(done);
    match done.saturating_mul(100).checked_div(total) {
        Some(percent) => format!("{verb} {done_text} of {} ({percent} %), {rate}/s", size::human(total)),
        None => format!("{verb} {done_text}, {rate}/s"),
    }
}

/// What a command does with what its operations tell.
#[derive(Clone, Default)]
pub struct Told {
    /// Draw no progress, and make no remarks.
    pub quiet: bool,
    /// Don't say which sets are passed over: the report has them.
    pub reports_passed_over: bool,
    /// Counts and says what failed.
    pub parts: Parts,
}

impl Told {
    /// What an operation is given.
    pub fn watch(self) -> Watch {
        let progress = Mutex::new(None);
        Watch::new(move |event| self.take(event, &progress))
    }

    fn take(&self, event: &Event<'_>, progress: &Mutex<Option<Progress>>) {
        match event {
            Event::Began { work, bytes } => {
                *progress.lock() = Some(Progress::start(verb(*work), *bytes, self.quiet));
            }
            Event::Moved { bytes } => {
                if let Some(progress) = &*progress.lock() {
                    progress.add(*bytes);
                }
            }
            Event::Ended => *progress.lock() = None,
            Event::Failed(error) => self.parts.fail(&CommandError::from((*error).clone())),
            Event::PassedOver { app, set } if !self.reports_passed_over => {
                let (timestep, reason) = (set.timestep, output::shown(&set.reason));
                output::note(format_args!("stdchk: {app}: passed over timestep {timestep}: {reason}"));
            }
            Event::Waiting { app, set } if !self.quiet => {
                let (timestep, reason) = (set.timestep, output::shown(&set.reason));
                output::note(format_args!("stdchk: {app}: waiting for timestep {timestep}: {reason}"));
            }
            Event::Stalled { chunks_at_risk } if !self.quiet => {
                output::note(format_args!("verify: {chunks_at_risk} chunks can't get all their copies now"));
            }
            _ => {}
        }
    }
}

fn verb(work: Work) -> &'static str {
    match work {
        Work::Put => "put",
        Work::Get => "get",
        Work::Verify => "verify",
        Work::Diff => "diff",
        Work::Restore => "restore",
        Work::Fetch => "fetch",
        Work::Aggregate => "aggregate",
        _ => "done",
    }
}

/// Bytes per second.
pub fn rate(bytes: u64, elapsed: Duration) -> u64 {
    let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    bytes.saturating_mul(1000) / ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_much_of_what_at_which_rate() {
        let second = Duration::from_secs(1);
        assert_eq!(text("put", 1 << 20, 4 << 20, second), "put 1.00 MiB of 4.00 MiB (25 %), 1.00 MiB/s");
        assert_eq!(text("put", 1 << 20, 0, second * 2), "put 1.00 MiB, 512 KiB/s");
    }
}
