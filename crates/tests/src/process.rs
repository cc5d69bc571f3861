//! Processes of a pool, found by the links in which they record themselves: pid, start time, boot.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::wait_until;

/// One life of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    started: u64,
}

impl Process {
    /// What a run file says; `None` if there is none.
    pub fn recorded_in(run_file: &Path) -> Option<Self> {
        let target = std::fs::read_link(run_file).ok()?;
        let mut words = target.to_str()?.split_whitespace();
        Some(Self { pid: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? })
    }

    /// Whether this very process still runs, and not another one of the same number.
    pub fn is_alive(self) -> bool {
        fields(self.pid).is_some_and(|fields| is_live(&fields) && start_time(&fields) == Some(self.started))
    }

    /// Sends a signal, if the process still runs.
    pub fn signal(self, signal: Signal) {
        if self.is_alive() {
            send_signal(self.pid, signal);
        }
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(self) {
        self.signal(Signal::KILL);
        wait_until(&format!("process {} is gone", self.pid), || !self.is_alive());
    }
}

/// Sends a signal to a process that the test waits for, so that its number is nobody else's.
pub fn send_signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// Whether a process runs; one that waits for its parent doesn't.
pub fn is_running(pid: u32) -> bool {
    fields(pid).is_some_and(|fields| is_live(&fields))
}

/// The fields of `/proc/PID/stat` behind the name, of which the first is the state (proc_pid_stat(5), field 3).
fn fields(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Whether something of it still runs. The first thread of a process that was killed may be gone while others hold its files.
fn is_live(fields: &[String]) -> bool {
    /// The number of threads, in `proc_pid_stat(5)` field 20.
    const THREADS: usize = 17;
    let has_threads = fields
        .get(THREADS)
        .and_then(|threads| threads.parse::<u32>().ok())
        .is_some_and(|threads| threads > 1);
    fields.first().is_some_and(|state| has_threads || !matches!(state.as_str(), "Z" | "X"))
}

/// Field 22, clock ticks since the boot.
fn start_time(fields: &[String]) -> Option<u64> {
    fields.get(22 - 3)?.parse().ok()
}
