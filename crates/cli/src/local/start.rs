//! Starting the processes of a local pool, and waiting until each of them answers.
//!
//! A role is the same binary once more, in a session of its own, with its log as standard error. It writes its run
//! file itself, so that it is found again even if the `up` that started it was killed.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use stdchk_model::exact::narrow;
use stdchk_net::Retry;

use super::home::{Home, PoolRecord, Role};
use super::process::ProcessRecord;
use crate::exit::{About, CommandError, Exit, Outcome};

/// Time in which a pool must be ready: a manager that replays its store and benefactors that read their inventories.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval at which readiness is looked at.
const READY_POLL: Duration = Duration::from_millis(20);
/// A log that is longer than this when its process starts is set aside as `NAME.log.old`, bytes.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// Part of a log that is shown when its process ended at once, bytes.
const LOG_TAIL_BYTES: u64 = 2048;
/// The lowest port that is chosen: well-known services have lower ones.
const PORT_MIN: u16 = 16_384;
/// Ports that are tried; a machine on which so many are taken gets one from the range of outgoing connections.
const PORT_TRIES: usize = 64;

/// Processes that were started by this command.
pub struct Started<'a> {
    home: &'a Home,
    children: Vec<(Role, Child)>,
}

impl<'a> Started<'a> {
    /// Nothing was started yet.
    pub fn new(home: &'a Home) -> Self {
        Self { home, children: Vec::new() }
    }

    /// Starts a role.
    pub fn start(&mut self, role: Role, arguments: Vec<OsString>) -> Outcome {
        let log = open_log(&self.home.log_file(role)).about(self.home.log_file(role).display())?;
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

    /// How many were started.
    pub fn count(&self) -> usize {
        self.children.len()
    }

    /// Waits until `ready` says so; it may start more.
    ///
    /// # Errors
    /// A started process has ended, with the end of its log; or the time is over.
    pub fn wait(&mut self, what: &str, mut ready: impl FnMut(&mut Self) -> Outcome<bool>) -> Outcome {
        let mut retry = Retry::every(READY_POLL, READY_TIMEOUT);
        while !ready(self)? {
            self.refuse_ended()?;
            if !retry.pause_thread() {
                let logs = self.home.path().join("log");
                let cause = format!("it was not ready within {} s", READY_TIMEOUT.as_secs());
                let next = format!("the logs in {} say why; `stdchk down` stops what runs", logs.display());
                return Err(CommandError::new(Exit::Unreachable, what, cause, next));
            }
        }
        Ok(())
    }

    fn refuse_ended(&mut self) -> Outcome {
        for (role, child) in &mut self.children {
            if let Some(status) = child.try_wait().about(role.name())? {
                let log = self.home.log_file(*role);
                let told = format!(
                    "it ended at once ({status}); mend what its log {} says and run `stdchk up` again, or stop the \
                     rest with `stdchk down`:\n{}",
                    log.display(),
                    tail(&log).trim_end()
                );
                let damaged = status.code() == Some(Exit::Integrity as i32);
                let exit = if damaged { Exit::Integrity } else { Exit::Other };
                return Err(CommandError::complete(exit, role.name(), told));
            }
        }
        Ok(())
    }
}

/// Opens a log at its end; one that has grown long is set aside first.
fn open_log(path: &Path) -> std::io::Result<File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_added_extension("old"))?;
    }
    OpenOptions::new().create(true).append(true).open(path)
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

/// A free address on this machine. One that no outgoing connection is given: those take any port of their range at any
/// moment, also between this look and the start of the server.
pub fn free_address() -> Outcome<String> {
    let ports = PORT_MIN..first_outgoing_port().max(PORT_MIN + 1);
    let random = || RandomState::new().build_hasher().finish() % u64::from(ports.end - ports.start);
    let port = || ports.start + narrow::<u16, _>(random());
    let chosen = std::iter::repeat_with(port).take(PORT_TRIES).map(|port| format!("127.0.0.1:{port}"));
    chosen.into_iter().find(|address| is_free(address)).map_or_else(any_free_address, Ok)
}

/// The first port that the system gives to outgoing connections (ip(7)).
fn first_outgoing_port() -> u16 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0)
}

fn any_free_address() -> Outcome<String> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    Ok(address.about("a port on 127.0.0.1")?.to_string())
}

/// Whether a server could take this address now.
pub fn is_free(address: &str) -> bool {
    TcpListener::bind(address).is_ok()
}

/// The command line of a role of this pool.
pub fn arguments(home: &Home, record: &PoolRecord, role: Role, window_bytes: u64) -> Vec<OsString> {
    let directory = match (role, &record.mount) {
        (Role::Mount, Some(mount)) => mount.clone(),
        _ => home.directory(role),
    };
    let mut all: Vec<OsString> = vec![];
    let mut add = |words: &[&str]| all.extend(words.iter().map(OsString::from));
    match role {
        Role::Manager => add(&["manager", "--listen", &record.manager]),
        Role::Benefactor(_) => {
            let (donate, floor) = (record.donate_bytes.to_string(), record.floor_bytes.to_string());
            add(&["benefactor", "--manager", &record.manager, "--donate", &donate, "--floor", &floor]);
        }
        Role::Mount => add(&["mount", "--manager", &record.manager, "--window", &window_bytes.to_string()]),
    }
    add(&["--token-file"]);
    all.push(home.token().into());
    all.push(directory.into());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manager.log");
        open_log(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
        assert_eq!(open_log(&path).unwrap().metadata().unwrap().len(), 0);
        assert!(directory.path().join("manager.log.old").exists());
    }

    #[test]
    fn a_process_that_ends_at_once_is_told_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path());
        home.prepare(None).unwrap();
        let log = open_log(&home.log_file(Role::Manager)).unwrap();
        let child =
            Command::new("sh").args(["-c", "echo the reason >&2; exit 9"]).stderr(log).spawn().unwrap();
        let mut started = Started { home: &home, children: vec![(Role::Manager, child)] };
        let error = started.wait("pool", |_| Ok(false)).unwrap_err();
        assert_eq!(error.exit, Exit::Other);
        assert!(
            error.message.contains("the reason") && error.message.contains("manager"),
            "{}",
            error.message
        );
    }

    #[test]
    fn an_address_that_is_taken_is_not_free() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_free(&listener.local_addr().unwrap().to_string()));
        let free = free_address().unwrap();
        assert!(is_free(&free));
        let port: u16 = free.rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(port < first_outgoing_port().max(PORT_MIN + 1), "{port}");
    }
}
