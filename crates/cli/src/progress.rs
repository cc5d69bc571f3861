//! Progress of long work: one line on standard error, rewritten a few times a second, if that is a terminal.
//!
//! The work only adds to counters; a thread of its own draws, so that slow terminals slow nothing down.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stdchk_model::size;

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
