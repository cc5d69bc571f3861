//! The end of all requests of this process.
//!
//! Relies on `ureq`, whose agents can be shut down from any thread. The idea: a process is told to stop as a whole, and whoever
//! waits for a store that doesn't answer looks at no flag; so what it waits for is taken away.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ureq::Agent;

use crate::error::{ObjectError, Trouble};

#[derive(Default)]
struct Requests {
    are_over: bool,
    /// All of the process, a few.
    agents: Vec<Agent>,
}

static REQUESTS: Mutex<Requests> = Mutex::new(Requests { are_over: false, agents: Vec::new() });
static OVER: Condvar = Condvar::new();

fn requests() -> MutexGuard<'static, Requests> {
    REQUESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the requests of this process that are under way, and refuses all that come later.
pub fn end_requests() {
    let mut requests = requests();
    requests.are_over = true;
    requests.agents.drain(..).for_each(Agent::shutdown);
    OVER.notify_all();
}

/// Lets requests of this agent be ended.
pub(crate) fn enlist(agent: &Agent) {
    let mut requests = requests();
    match requests.are_over {
        true => agent.clone().shutdown(),
        false => requests.agents.push(agent.clone()),
    }
}

/// Waits before another try; the error where there is none.
pub(crate) fn pause(time: Duration) -> Result<(), ObjectError> {
    let waited = OVER.wait_timeout_while(requests(), time, |requests| !requests.are_over);
    let (requests, _) = waited.unwrap_or_else(PoisonError::into_inner);
    if requests.are_over { Err(stopped()) } else { Ok(()) }
}

/// What a request says that was ended, or should have been.
pub(crate) fn stopped() -> ObjectError {
    ObjectError::new(Trouble::Stopped, "it was told to stop")
}
