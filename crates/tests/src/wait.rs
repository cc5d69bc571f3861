//! Waiting for conditions instead of for time, with deadlines that a busy machine of two cores keeps.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time in which whatever a test waits for must have happened.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Pause between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until `done`; fails the test if that takes too long.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(PAUSE);
    }
}

/// Sets a flag when it is dropped. Threads of a scope that work until a flag is set end so also when the test fails: the scope waits for them.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What `work` returns. Fails the test if it takes longer than [`PATIENCE`]: the thread that hangs, as in a file
/// system that doesn't answer, is left behind and goes on once the pool is brought down.
pub fn within<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    match receive.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: not done within {PATIENCE:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what}: failed, see above"),
    }
}
