//! What must not outlive a measurement: pools and mounts end with their owner, and all of them when SIGINT or SIGTERM ends
//! the program, which may be an hour before it would have ended by itself.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::signal::unix::{SignalKind, signal};

use crate::Error;

/// Exit code after a signal, as of the commands.
const INTERRUPTED: i32 = 130;

type Action = Box<dyn FnOnce() + Send>;

/// What must be done before the program ends, in the order in which it was begun.
static OPEN: Mutex<BTreeMap<u64, Action>> = Mutex::new(BTreeMap::new());

fn open() -> MutexGuard<'static, BTreeMap<u64, Action>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something when dropped, or before the program ends by a signal; once.
pub struct AtEnd(u64);

impl AtEnd {
    /// Will do `action`.
    pub fn new(action: impl FnOnce() + Send + 'static) -> Self {
        let mut open = open();
        let number = open.last_key_value().map_or(0, |(last, _)| last + 1);
        open.insert(number, Box::new(action));
        Self(number)
    }
}

impl Drop for AtEnd {
    fn drop(&mut self) {
        // While a signal is dealt with this waits, and the program ends.
        let action = open().remove(&self.0);
        if let Some(action) = action {
            action();
        }
    }
}

/// From now on, ends the program in an orderly way at SIGINT and SIGTERM.
///
/// They are caught, not blocked: what this program starts would have them blocked as well, and could not be stopped.
pub fn at_signals() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut terminate) = {
        let _within = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let name = runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => "SIGINT",
                _ = terminate.recv() => "SIGTERM",
            }
        });
        let mut open = open();
        eprintln!("stdchk-bench: {name}: stops what it had started");
        while let Some((_, action)) = open.pop_last() {
            action();
        }
        std::process::exit(INTERRUPTED);
    })?;
    Ok(())
}
