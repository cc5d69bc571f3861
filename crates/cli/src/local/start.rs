//! Starting the processes of a local pool, and waiting until each of them answers.
//!
//! A role is the same binary once more, in a session of its own, with its log as standard error. It writes its run
//! file itself, so that it is found again even if the `up` that started it was killed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stdchk_benefactor::wish::{self, Decision};
use stdchk_net::Retry;

use super::home::{Home, PoolRecord, Role};
use super::process::ProcessRecord;
use crate::command::benefactor::terms::TierTerm;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::logging;
use crate::settings::Settings;

/// Time in which a pool must be ready: a manager that replays its store and benefactors that read their inventories.
pub const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which readiness is looked at.
const READY_POLL: Duration = Duration::from_millis(20);
/// Time in which a process that was started has written down its number.
const RECORDED_TIMEOUT: Duration = Duration::from_secs(5);
/// Part of a log that is shown when its process ended at once, bytes.
const LOG_TAIL_BYTES: u64 = 2048;
/// Processes that were started by this command.
pub struct Started<'a> {
    home: &'a Home,
    children: Vec<(Role, Child)>,
    /// Benefactors that don't come up: the pool does without them.
    failed: Vec<(Role, CommandError)>,
}

impl<'a> Started<'a> {
    /// Nothing was started yet.
    pub fn new(home: &'a Home) -> Self {
        Self { home, children: Vec::new(), failed: Vec::new() }
    }

    /// Starts a role.
    pub fn start(&mut self, role: Role, arguments: Vec<OsString>) -> Outcome {
        let log = logging::open(&self.home.log_file(role)).about(self.home.log_file(role).display())?;
        let binary = std::env::current_exe().about("this program")?;
        let mut command = Command::new(&binary);
        command.args(arguments).arg("--run-file").arg(self.home.run_file(role));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.children.push((role, command.spawn().about(binary.display())?));
        Ok(())
    }

    /// Whether a role was started.
    pub fn includes(&self, role: Role) -> bool {
        self.children.iter().any(|(other, _)| *other == role)
    }

    /// How many were started and run.
    pub fn count(&self) -> usize {
        self.children
            .iter()
            .filter(|(role, _)| !self.has_failed(*role) && !has_left(self.home, *role))
            .count()
    }

    /// Whether a benefactor doesn't come up.
    pub fn has_failed(&self, role: Role) -> bool {
        self.failed.iter().any(|(other, _)| *other == role)
    }

    /// Takes note that a benefactor doesn't come up.
    pub fn note_failed(&mut self, role: Role, error: CommandError) {
        if !self.has_failed(role) {
            self.failed.push((role, error));
        }
    }

    /// Says of each benefactor that didn't come up why.
    ///
    /// # Errors
    /// One didn't.
    pub fn refuse_failed(self) -> Outcome {
        let Some(exit) = self.failed.iter().map(|(_, error)| error.exit).max() else { return Ok(()) };
        self.failed.iter().for_each(|(_, error)| error.say());
        Err(CommandError::reported(exit))
    }

    /// Waits until `ready` says so; it may start more.
    ///
    /// # Errors
    /// The manager or the mount has ended, with the end of its log; or the time is over.
    pub fn wait(&mut self, what: &str, ready: impl FnMut(&mut Self) -> Outcome<bool>) -> Outcome {
        if self.wait_at_most(READY_TIMEOUT, ready)? {
            return Ok(());
        }
        Err(self.not_ready(what))
    }

    /// The error of what didn't come up in all that time.
    pub fn not_ready(&self, what: &str) -> CommandError {
        let logs = self.home.path().join("log");
        let cause = format!("it was not ready within {} s", READY_TIMEOUT.as_secs());
        let next = format!("the logs in {} say why; `stdchk down` stops what runs", logs.display());
        CommandError::new(Exit::Unreachable, what, cause, next)
    }

    /// Waits until `ready` says so, as [`Self::wait`] does; whether that was within `patience`.
    ///
    /// # Errors
    /// The manager or the mount has ended, with the end of its log.
    pub fn wait_at_most(
        &mut self,
        patience: Duration,
        mut ready: impl FnMut(&mut Self) -> Outcome<bool>,
    ) -> Outcome<bool> {
        let mut retry = Retry::every(READY_POLL, patience);
        while !ready(self)? {
            self.note_ended()?;
            self.end_if_wished()?;
            if !retry.pause_thread() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends this command if a `down` waits for it. That one finds all that was started.
    fn end_if_wished(&mut self) -> Outcome {
        if !self.home.is_wished_down()? {
            return Ok(());
        }
        let mut retry = Retry::every(READY_POLL, RECORDED_TIMEOUT);
        for (role, child) in &mut self.children {
            let is_recorded = || -> Outcome<bool> {
                let record = ProcessRecord::read(&self.home.run_file(*role))?;
                Ok(record.is_some_and(|record| record.pid == child.id()))
            };
            while !is_recorded()? && retry.pause_thread() {}
        }
        let next = "`stdchk up` starts it again";
        Err(CommandError::new(Exit::Interrupted, "up", "`stdchk down` was run meanwhile and ended it", next))
    }

    fn note_ended(&mut self) -> Outcome {
        let mut ended = Vec::new();
        for (role, child) in &mut self.children {
            if let Some(status) = child.try_wait().about(role.name())? {
                if has_left(self.home, *role) {
                    continue;
                }
                let log = self.home.log_file(*role);
                let told = format!(
                    "it ended at once ({status}); mend what its log {} says and run `stdchk up` again, or stop the \
                     rest with `stdchk down`:\n{}",
                    log.display(),
                    tail(&log).trim_end()
                );
                let damaged = status.code() == Some(Exit::Integrity as i32);
                let exit = if damaged { Exit::Integrity } else { Exit::Other };
                ended.push((*role, CommandError::complete(exit, role.name(), told)));
            }
        }
        for (role, error) in ended {
            match role {
                Role::Benefactor(_) => self.note_failed(role, error),
                Role::Manager | Role::Mount => return Err(error),
            }
        }
        Ok(())
    }
}

fn tail(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .lines()
        .rev()
        .take(5)
        .fold(String::new(), |text, line| format!("  {line}\n{text}"))
}

/// The process of a role, if it runs.
pub fn running(home: &Home, role: Role) -> Outcome<Option<ProcessRecord>> {
    Ok(ProcessRecord::read(&home.run_file(role))?.filter(ProcessRecord::is_alive))
}

/// Whether a role is a benefactor that has left the pool, as its owner wished: it isn't started.
pub fn has_left(home: &Home, role: Role) -> bool {
    let is_benefactor = matches!(role, Role::Benefactor(_));
    // A folder that can't be looked into is none that has left: its start says what is wrong.
    is_benefactor && matches!(wish::decision(&home.directory(role)), Ok(Decision::Left))
}

/// The command line of a role of this pool.
pub fn arguments(home: &Home, record: &PoolRecord, role: Role, settings: &Settings) -> Vec<OsString> {
    let directory = match (role, &record.mount) {
        (Role::Mount, Some(mount)) => mount.clone(),
        _ => home.directory(role),
    };
    let manager = home.manager_address(record);
    let mut all: Vec<OsString> = vec![];
    let mut add = |words: &[&str]| all.extend(words.iter().map(OsString::from));
    match role {
        Role::Manager => {
            add(&["manager", "run", "--listen", &home.socket(role)]);
            record.listen.iter().for_each(|address| add(&["--listen", address]));
            record.store.iter().for_each(|place| add(&["--store", place]));
        }
        Role::Benefactor(index) => {
            let (donate, floor) = (record.donate_bytes.to_string(), record.floor_bytes.to_string());
            // On a network it serves at the address by which it reaches the manager there.
            let (manager, serves) = match record.on_network() {
                Some(address) => (address, record.serving.arguments(index)),
                None => (&manager, vec!["--listen".to_owned(), home.socket(role)]),
            };
            add(&["benefactor", "run", "--manager", manager]);
            serves.iter().for_each(|word| add(&[word]));
            add(&["--donate", &donate, "--floor", &floor]);
            record.terms.arguments().iter().for_each(|word| add(&[word]));
            if record.manager.is_none() && record.terms.tier == TierTerm::Auto {
                // A pool for trial may lie in a `/tmp` in memory: with nothing that counts it could store nothing.
                add(&["--tier", "disk"]);
            }
            if record.benefactors > 1 && record.terms.load_limit_percent.is_none() {
                // On one disk each would take the work of the others for the owner's.
                add(&["--load-limit", "0"]);
            }
            record.labels.iter().for_each(|label| add(&["--label", label]));
        }
        Role::Mount => {
            add(&["mount", "--manager", &manager, "--window", &settings.window_bytes.to_string()]);
            record.terms.notice_arguments().iter().for_each(|word| add(&[word]));
            if record.hard {
                add(&["--hard"]);
            }
            all.extend(["--encryption-keys".into(), settings.encryption_keys.clone().into()]);
        }
    }
    if record.on_network().is_some() {
        all.extend(["--keys".into(), home.keys().into()]);
    }
    all.push(directory.into());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_at_once_is_told_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        home.prepare(None).unwrap();
        let log = logging::open(&home.log_file(Role::Manager)).unwrap();
        let child =
            Command::new("sh").args(["-c", "echo the reason >&2; exit 9"]).stderr(log).spawn().unwrap();
        let mut started = Started { home: &home, children: vec![(Role::Manager, child)], failed: vec![] };
        let error = started.wait("pool", |_| Ok(false)).unwrap_err();
        assert_eq!(error.exit, Exit::Other);
        assert!(
            error.message.contains("the reason") && error.message.contains("manager"),
            "{}",
            error.message
        );
    }
}
