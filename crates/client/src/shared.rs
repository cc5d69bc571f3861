//! One connection that many callers share: opened by the first one who needs it, and again when it breaks.
//!
//! An attempt takes seconds where the other side hangs. Who waited while it was made is told how it ended, and makes none of
//! their own: a hundred reads of a stopped benefactor would else wait for each other's attempts, one after the other.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use stdchk_net::{CallError, Carried, Connection};
use tokio::sync::Mutex;

/// A place for a connection.
#[derive(Default)]
pub(crate) struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// The last attempt, if it failed: when it ended, and how.
    failed: Option<(Instant, CallError)>,
}

impl Shared {
    /// Takes `new` for all further calls in place of `old`, unless that was replaced already.
    pub(crate) async fn replace(&self, old: &Arc<Connection>, new: Connection) {
        let mut state = self.0.lock().await;
        if state.connection.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, old)) {
            state.connection = Some(Arc::new(new));
        }
    }

    /// The connection that works, if there is one.
    fn open(&self) -> Option<Arc<Connection>> {
        // Whoever opens one has the lock.
        let state = self.0.try_lock().ok()?;
        state.connection.as_ref().filter(|connection| !connection.is_closed()).cloned()
    }

    /// What the connection that works has carried, if there is one.
    pub(crate) fn carried(&self) -> Option<Carried> {
        self.open().map(|open| open.carried())
    }

    /// Since when it sends one request, if it does.
    pub(crate) fn writing_since(&self) -> Option<Instant> {
        self.open()?.writing_since()
    }

    /// The connection; `open` makes one if there is none that works. What it takes is noted in `longest`, if none took longer before.
    pub(crate) async fn get<F>(
        &self,
        longest: &Longest,
        open: impl FnOnce() -> F,
    ) -> Result<Arc<Connection>, CallError>
    where
        F: Future<Output = Result<Connection, CallError>>,
    {
        let asked = Instant::now();
        let mut state = self.0.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        if let Some((_, error)) = state.failed.as_ref().filter(|(ended, _)| *ended >= asked) {
            return Err(error.clone());
        }
        let began = Instant::now();
        match open().await {
            Ok(connection) => {
                longest.take(began.elapsed());
                let connection = Arc::new(connection);
                state.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}

/// The longest that something took; zero before it was done.
#[derive(Default)]
pub(crate) struct Longest(parking_lot::Mutex<Duration>);

impl Longest {
    fn take(&self, took: Duration) {
        let mut longest = self.0.lock();
        *longest = took.max(*longest);
    }

    /// How long it took at most.
    pub(crate) fn get(&self) -> Duration {
        *self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;

    use super::*;

    fn refused() -> CallError {
        CallError::Connect { address: "nowhere:1".to_owned(), cause: "it hangs".to_owned() }
    }

    #[tokio::test]
    async fn who_waited_for_an_attempt_that_failed_makes_none_of_their_own() {
        let (shared, longest) = (Shared::default(), Longest::default());
        let (attempts, end) = (AtomicUsize::new(0), Notify::new());
        let get = || {
            shared.get(&longest, || async {
                attempts.fetch_add(1, Ordering::Relaxed);
                end.notified().await;
                Err(refused())
            })
        };
        // A permit that comes while nobody waits is kept, so that it doesn't matter who is polled first.
        let release = async {
            tokio::task::yield_now().await;
            end.notify_one();
        };
        let (one, two, three, ()) = tokio::join!(get(), get(), get(), release);
        assert!(one.is_err() && two.is_err() && three.is_err());
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
        end.notify_one();
        assert!(get().await.is_err());
        assert_eq!(attempts.load(Ordering::Relaxed), 2, "who comes later tries again");
    }
}
