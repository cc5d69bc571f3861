//! Waiting for requests, and the end of all requests of this process.
//!
//! Relies on `tokio`, on which `object_store` runs. The idea: packing and reading are threads, so each thread waits here for
//! its request while the runtime of this module moves the bytes. A process is told to stop as a whole, and a thread that
//! waits for a store looks at no flag. So every wait ends as soon as the process is told to stop, and what was asked is
//! dropped.

use std::sync::LazyLock;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::error::{ObjectError, Result, Trouble};
use crate::guard::counting_tries;

/// Threads that move bytes between sockets and waiting threads: with TLS one of them is busy with a few Gbit/s.
const THREADS: usize = 2;

static RUNTIME: LazyLock<std::io::Result<Runtime>> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(THREADS).thread_name("objects").enable_all().build()
});
static OVER: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));

/// Ends the requests of this process that are under way, and refuses all that come later.
pub fn end_requests() {
    OVER.send_replace(true);
}

/// Waits for a request. The caller must be no task of an async runtime.
///
/// # Errors
/// The request failed, or the process was told to stop.
pub(crate) fn wait<T>(request: impl Future<Output = object_store::Result<T>>) -> Result<T> {
    let runtime = RUNTIME.as_ref().map_err(|error| {
        ObjectError::new(Trouble::Other, format!("no threads can be started for requests: {error}"))
    })?;
    let mut over = OVER.subscribe();
    runtime.block_on(async {
        tokio::select! {
            biased;
            _ = over.wait_for(|is_over| *is_over) => Err(stopped()),
            outcome = counting_tries(request) => outcome.map_err(ObjectError::from),
        }
    })
}

/// What a request says that was ended, or should have been.
pub(crate) fn stopped() -> ObjectError {
    ObjectError::new(Trouble::Stopped, "it was told to stop")
}
