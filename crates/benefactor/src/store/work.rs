//! What the store itself does at its disk, so that it can be told from what others do there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The reads, writes and syncs of a store.
#[derive(Debug, Default)]
pub struct OwnWork {
    state: Mutex<State>,
    /// The file system writes behind its back.
    behind: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// Since when something is under way, if something is.
    since: Option<Instant>,
    done: Done,
}

/// What was done since the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Time for which at least one piece of work was under way.
    pub busy: Duration,
    /// Bytes read and written.
    pub bytes: u64,
    /// Pieces of work that have begun.
    pub requests: u64,
}

/// Work that is under way.
#[derive(Debug)]
pub struct Working<'a>(&'a OwnWork);

impl OwnWork {
    /// Counts a piece of work until what comes back is dropped.
    pub fn begin(&self, bytes: u64) -> Working<'_> {
        let mut state = self.state.lock();
        state.running += 1;
        state.done.bytes += bytes;
        state.done.requests += 1;
        state.since.get_or_insert_with(Instant::now);
        Working(self)
    }

    /// What was done until now.
    pub fn done(&self) -> Done {
        let state = self.state.lock();
        let running = state.since.map_or(Duration::ZERO, |since| since.elapsed());
        Done { busy: state.done.busy + running, ..state.done }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.state.lock().running == 0
    }

    /// The file system takes no direct writes: it writes when it likes.
    pub fn goes_on_behind(&self) {
        self.behind.store(true, Ordering::Relaxed);
    }

    /// Whether all that the store does at the disk is done when it says so.
    pub fn is_seen(&self) -> bool {
        !self.behind.load(Ordering::Relaxed)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running -= 1;
        if state.running == 0
            && let Some(since) = state.since.take()
        {
            state.done.busy += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_however_much_is_under_way() {
        const PAUSE: Duration = Duration::from_millis(20);
        let work = OwnWork::default();
        assert_eq!((work.done(), work.is_idle()), (Done::default(), true));
        let began = Instant::now();
        let one = work.begin(100);
        let other = work.begin(20);
        std::thread::sleep(PAUSE);
        drop(one);
        assert!(!work.is_idle());
        std::thread::sleep(PAUSE);
        drop(other);
        let done = work.done();
        assert!(done.busy >= 2 * PAUSE && done.busy <= began.elapsed(), "{done:?}");
        assert_eq!((done.bytes, done.requests), (120, 2));
        std::thread::sleep(PAUSE);
        assert_eq!(work.done(), done);
    }
}
