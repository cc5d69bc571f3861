//! Processes of a local pool, found again by their run files.
//!
//! A pid alone may belong to anyone after a crash or a reboot. A run file therefore holds the pid, the start time of
//! the process and the identity of the boot; only where all three agree the process is ours. Signals go through a
//! pidfd that was opened before that check, so they can't hit a process that took the number afterwards.
//!
//! A run file is a symbolic link whose target is the record: file systems keep so short a target beside the name, so that
//! a process of a pool can be recorded on a disk that is full.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use stdchk_net::Retry;
use stdchk_net::own::Folder;

use crate::exit::{About, Outcome};

/// Interval at which the end of a process is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// One life of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessRecord {
    /// Its number.
    pub pid: u32,
    /// When it started, clock ticks since the boot.
    started: u64,
    /// Which boot.
    boot: String,
}

impl ProcessRecord {
    /// The record of this process.
    pub fn of_self() -> Outcome<Self> {
        let pid = std::process::id();
        let started = started(pid).about("/proc/self/stat")?;
        Ok(Self { pid, started, boot: boot().about("/proc/sys/kernel/random/boot_id")? })
    }

    /// What a run file says; `None` if there is none or it holds something else.
    pub fn read(path: &Path) -> Outcome<Option<Self>> {
        match fs::read_link(path) {
            // EINVAL: it is no link.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => Ok(None),
            target => Ok(target.about(path.display())?.to_str().and_then(Self::parse)),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (pid, started, boot) = (words.next()?, words.next()?, words.next()?);
        Some(Self { pid: pid.parse().ok()?, started: started.parse().ok()?, boot: boot.to_owned() })
    }

    /// Writes a run file, in one step.
    pub fn write(&self, path: &Path) -> Outcome {
        // In a folder of another user it would be theirs to say which process this is.
        path.parent().map_or(Ok(()), |folder| Folder::open(folder).map(drop)).about(path.display())?;
        let new = path.with_added_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).about(new.display()),
            _removed => {}
        }
        symlink(format!("{} {} {}", self.pid, self.started, self.boot), &new).about(new.display())?;
        fs::rename(&new, path).about(path.display())
    }

    /// Whether this very process still runs; one that ended and waits for its parent doesn't.
    pub fn is_alive(&self) -> bool {
        let alive = || -> io::Result<bool> { Ok(boot()? == self.boot && started(self.pid)? == self.started) };
        alive().unwrap_or(false)
    }

    /// Whether the process stands still: SIGSTOP or a debugger stopped it.
    pub fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid));
        self.is_alive() && stat.is_ok_and(|stat| is_stopped(&stat))
    }

    /// Sends `signal` if the process still runs; whether it did.
    pub fn signal(&self, signal: Signal) -> Outcome<bool> {
        let about = format!("process {}", self.pid);
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(false) };
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            descriptor => descriptor.about(&about)?,
        };
        if !self.is_alive() {
            return Ok(false);
        }
        match pidfd_send_signal(descriptor, signal) {
            Err(rustix::io::Errno::SRCH) => Ok(false),
            sent => sent.about(&about).map(|()| true),
        }
    }

    /// Waits until the process has ended; whether it did within `patience`.
    pub fn wait_for_end(&self, patience: Duration) -> bool {
        let mut retry = Retry::every(POLL_INTERVAL, patience);
        loop {
            match self.is_alive() {
                true if retry.pause_thread() => {}
                is_alive => return !is_alive,
            }
        }
    }
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Start time of a process that runs, clock ticks since the boot.
fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    start_time_of(&stat).ok_or_else(|| io::Error::from(ErrorKind::NotFound))
}

/// Field 22 of `/proc/PID/stat` (proc(5)), unless the process has ended: field 3 says so of its first thread, and field 20
/// counts the threads. While others of a killed process are still ending, it holds its ports and locks. The name in field
/// 2 may hold blanks and parentheses; the fields are therefore counted behind its last parenthesis.
fn start_time_of(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = behind_name.split_whitespace().collect();
    let (state, threads, started) = (fields.first()?, fields.get(20 - 3)?, fields.get(22 - 3)?);
    if matches!(*state, "Z" | "X" | "x") && threads.parse::<u32>().ok()? <= 1 {
        return None;
    }
    started.parse().ok()
}

/// Field 3 of `/proc/PID/stat` (proc(5)).
fn is_stopped(stat: &str) -> bool {
    let state = stat.rsplit_once(')').and_then(|(_, behind_name)| behind_name.split_whitespace().next());
    matches!(state, Some("T" | "t"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::Command;

    use super::*;

    fn record_of(pid: u32) -> ProcessRecord {
        ProcessRecord { pid, started: started(pid).unwrap(), boot: boot().unwrap() }
    }

    #[test]
    fn a_record_survives_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.pid");
        assert_eq!(ProcessRecord::read(&path).unwrap(), None);
        let record = ProcessRecord::of_self().unwrap();
        record.write(&path).unwrap();
        assert_eq!(ProcessRecord::read(&path).unwrap(), Some(record));
        assert_eq!(fs::symlink_metadata(&path).unwrap().blocks(), 0, "it takes no space");
        fs::remove_file(&path).unwrap();
        symlink("nonsense", &path).unwrap();
        assert_eq!(ProcessRecord::read(&path).unwrap(), None);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "1 2 3").unwrap();
        assert_eq!(ProcessRecord::read(&path).unwrap(), None);
    }

    #[test]
    fn a_process_that_took_the_number_is_not_ours() {
        let mut record = ProcessRecord::of_self().unwrap();
        assert!(record.is_alive());
        record.started += 1;
        assert!(!record.is_alive());
        assert!(!record.signal(Signal::KILL).unwrap());
        record.started -= 1;
        record.boot = "another".into();
        assert!(!record.is_alive());
    }

    #[test]
    fn an_ended_process_that_nobody_reaped_is_not_alive() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let record = record_of(child.id());
        assert!(record.signal(Signal::TERM).unwrap());
        assert!(record.wait_for_end(Duration::from_secs(10)));
        child.wait().unwrap();
        assert!(!record.signal(Signal::TERM).unwrap());
    }

    #[test]
    fn the_name_of_a_process_does_not_confuse_its_start_time() {
        let fields = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        assert_eq!(start_time_of(&format!("7 (a) b) S {fields} 1 0 4242 20")), Some(4242));
        assert_eq!(start_time_of("7 (a) S 1 2"), None);
        assert_eq!(start_time_of(""), None);
    }

    #[test]
    fn a_process_has_ended_when_the_last_of_its_threads_has() {
        let fields = "1 2 3 4 5 6 7 8 9 10 11 12 13 14";
        let stat = |state: &str, threads: u32| format!("7 (a) {state} {fields} 15 16 {threads} 0 4242 20");
        assert_eq!(start_time_of(&stat("Z", 1)), None);
        assert_eq!(start_time_of(&stat("Z", 2)), Some(4242));
    }
}
