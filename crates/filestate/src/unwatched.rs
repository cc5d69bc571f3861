//! Programs of the run that nobody watched.
//!
//! The one idea: a program counts as unwatched from the moment it is started until its library reports in. The process that
//! starts it leaves a link in the store, whose name says which process it is and whose target is the program; the library removes
//! it before the program's own code runs. So nothing has to be known about why a library isn't loaded (a script whose
//! interpreter is static, file capabilities, a sandbox that hides it), and a kill at any moment loses nothing. Reasons that are
//! known beforehand, and programs that are not watched in all that they do, are lines of a file.
//!
//! A kill of the whole job meets programs whose libraries are being loaded, and which changed nothing. So a link that is about
//! as old as the last sign of life in the store counts for nothing, unless the run ended well.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::control::{is_alive, own_pid};
use crate::error::{Error, Result};
use crate::index::read_whole;
use crate::mapped::modified_ns;
use crate::store::{self, Store};

/// The links, relative to the root.
pub(crate) const STARTED: &str = ".stdchk-files/started";
const UNWATCHED: &str = "unwatched";
const LOG: &str = ".stdchk-files/log";
/// How long a process that lives may take from its start to its report: the loading of its libraries.
const LOADING_MAX: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);
const NO_REPORT: &str = "its library was not loaded";

/// How a program is started, which says whose process number is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// This process goes on as the program.
    Exec,
    /// In a new process, whose number [`Store::started_as`] tells.
    Spawn,
}

/// The parts of a link's name: how, the process, and when.
struct Name {
    how: u8,
    pid: u32,
    time_ns: u64,
}

const EXECUTED: u8 = b'e';
const SPAWNED_BY: u8 = b's';
const SPAWNED_AS: u8 = b'p';

impl Name {
    fn text(&self) -> String {
        format!("{}{}.{}", char::from(self.how), self.pid, self.time_ns)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let (how, rest) = text.split_first()?;
        let (pid, time_ns) = std::str::from_utf8(rest).ok()?.split_once('.')?;
        Some(Self { how: *how, pid: pid.parse().ok()?, time_ns: time_ns.parse().ok()? })
    }

    /// Whether it is so much older than the last sign of life that it was not killed while it loaded its libraries.
    fn is_before(&self, last_sign: u64) -> bool {
        self.time_ns.saturating_add(LOADING_MAX.as_nanos().try_into().unwrap_or(u64::MAX)) < last_sign
    }

    fn age(&self) -> Duration {
        Duration::from_nanos(now_ns().saturating_sub(self.time_ns))
    }

    /// Whether it may still be loading its libraries.
    fn may_report(&self) -> bool {
        self.how != SPAWNED_BY && self.age() < LOADING_MAX && is_alive(self.pid)
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn path_of(name: &str) -> String {
    format!("{STARTED}/{name}")
}

impl Store {
    /// `program` is about to be started: what it has to report as. Nothing where the store can't say so, on a full disk.
    pub fn starting(&self, how: Start, program: &[u8]) -> Option<String> {
        let how = if how == Start::Exec { EXECUTED } else { SPAWNED_BY };
        let name = Name { how, pid: own_pid(), time_ns: now_ns() }.text();
        rustix::fs::symlinkat(program, self.root(), path_of(&name)).ok().map(|()| name)
    }

    /// It was not started after all.
    pub fn not_started(&self, name: &str) {
        let _ = rustix::fs::unlinkat(self.root(), path_of(name), AtFlags::empty());
    }

    /// It was started as the process `pid`.
    pub fn started_as(&self, name: &str, pid: u32) {
        if let Some(given) = Name::parse(name.as_bytes()) {
            let to = Name { how: SPAWNED_AS, pid, ..given }.text();
            // It is gone where the program has reported by now.
            let _ = rustix::fs::renameat(self.root(), path_of(name), self.root(), path_of(&to));
        }
    }

    /// The library in a program that was told `name` reports in. A name that is meant for another process, which started this
    /// one without a library, is left.
    pub fn report_in(&self, name: &[u8]) {
        let Some(name) = Name::parse(name) else { return };
        let own = own_pid();
        let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get().cast_unsigned());
        let remove = |name: &Name| rustix::fs::unlinkat(self.root(), path_of(&name.text()), AtFlags::empty());
        match name.how {
            EXECUTED if name.pid == own => drop(remove(&name)),
            SPAWNED_BY => {
                let is_of_it = name.pid == parent || !is_alive(name.pid);
                if !is_of_it || remove(&name) == Err(Errno::NOENT) {
                    let _ = remove(&Name { how: SPAWNED_AS, pid: own, ..name });
                }
            }
            _ => {}
        }
    }

    /// Whether the program that was to report as this, in the process `pid`, has not.
    pub fn is_silent(&self, name: &str, pid: u32) -> bool {
        let Some(name) = Name::parse(name.as_bytes()) else { return false };
        let name = Name { how: SPAWNED_AS, pid, ..name }.text();
        rustix::fs::statat(self.root(), path_of(&name), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Writes down that a program is not watched, or not in all that it does.
    pub fn note_unwatched(&self, program: &str, why: &str) {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self.directory(), UNWATCHED, flags, Mode::from_raw_mode(0o600));
        let line = format!("{}\n", line(program, why).replace('\n', " "));
        if let Ok(file) = file
            && !read_whole(&file)
                .is_ok_and(|text| text.windows(line.len()).any(|part| part == line.as_bytes()))
        {
            let _ = rustix::io::write(&file, line.as_bytes());
        }
    }

    /// The run ends, well or not: waits until the programs that were started last have loaded their libraries, and writes down
    /// those that have not.
    pub fn settle_reports(&self, well: bool) -> Result<()> {
        let deadline = Instant::now() + LOADING_MAX;
        while Instant::now() < deadline && self.silent()?.iter().any(|(name, _)| name.may_report()) {
            std::thread::sleep(POLL);
        }
        let last_sign = self.last_sign()?;
        for (name, program) in self.silent()? {
            if well || name.is_before(last_sign) {
                self.note_unwatched(&program, NO_REPORT);
            }
            self.not_started(&name.text());
        }
        Ok(())
    }

    /// When a program was last started or reported, or the log written to, in nanoseconds since 1970.
    fn last_sign(&self) -> Result<u64> {
        let of = |path: &str| {
            let stat = rustix::fs::statat(self.root(), path, AtFlags::empty());
            stat.map(|stat| modified_ns(&stat))
                .or_else(|cause| if cause == Errno::NOENT { Ok(0) } else { Err(cause) })
        };
        let signs = of(STARTED).and_then(|started| Ok(started.max(of(LOG)?)));
        let last = signs.map_err(Error::system("inspect", self.path()))?;
        Ok(last.max(0).cast_unsigned())
    }

    /// A line for each program that was not watched, or not in all that it did.
    pub fn unwatched(&self) -> Result<Vec<String>> {
        let shown = self.path().join(UNWATCHED);
        let opened =
            rustix::fs::openat(self.directory(), UNWATCHED, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let text = match opened {
            Err(Errno::NOENT) => Vec::new(),
            other => other.and_then(|file| read_whole(&file)).map_err(Error::system("read", &shown))?,
        };
        let mut lines: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        let last_sign = self.last_sign()?;
        let silent =
            self.silent()?.into_iter().filter(|(name, _)| name.is_before(last_sign) && !name.may_report());
        lines.extend(silent.map(|(_, program)| line(&program, NO_REPORT)));
        lines.sort();
        lines.dedup();
        Ok(lines)
    }

    /// The programs that have not reported.
    fn silent(&self) -> Result<Vec<(Name, String)>> {
        let names = match store::names_in(self.root(), STARTED.as_bytes()) {
            Err(Errno::NOENT) => Vec::new(),
            other => other.map_err(Error::system("list", self.root_path().join(STARTED)))?,
        };
        let program = |name: &[u8]| {
            let path = [STARTED.as_bytes(), b"/", name].concat();
            let program = rustix::fs::readlinkat(self.root(), path, Vec::new()).ok()?;
            Some((Name::parse(name)?, program.to_string_lossy().into_owned()))
        };
        Ok(names.iter().filter_map(|name| program(name)).collect())
    }
}

fn line(program: &str, why: &str) -> String {
    format!("{program} was not watched: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Options;

    fn store() -> (tempfile::TempDir, Store) {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path(), &Options::default()).unwrap();
        (root, store)
    }

    #[test]
    fn a_program_counts_as_unwatched_until_it_reports_in() {
        let (_root, store) = store();
        let name = store.starting(Start::Exec, b"./program").unwrap();
        assert_eq!(store.unwatched().unwrap(), [""; 0], "it may still report");
        store.report_in(b"e1.5");
        store.report_in(format!("e1{}", &name[1..]).as_bytes());
        assert_eq!(store.silent().unwrap().len(), 1, "another process's report counts for nothing");
        store.report_in(name.as_bytes());
        assert_eq!(store.silent().unwrap().len(), 0);
    }

    #[test]
    fn one_that_ended_without_a_report_is_named_and_so_is_what_it_started_not_taken_for_it() {
        let (_root, store) = store();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let name = store.starting(Start::Spawn, b"./program").unwrap();
        store.started_as(&name, child.id());
        assert!(store.is_silent(&name, child.id()));
        store.report_in(name.as_bytes());
        assert_eq!(store.unwatched().unwrap(), [""; 0], "it may have been killed while it was loaded");
        store.settle_reports(false).unwrap();
        assert_eq!(store.unwatched().unwrap(), [""; 0]);
        let name = store.starting(Start::Spawn, b"./program").unwrap();
        store.started_as(&name, child.id());
        store.settle_reports(true).unwrap();
        store.note_unwatched("other", "it is static");
        store.note_unwatched("other", "it is static");
        let lines = store.unwatched().unwrap();
        assert_eq!(lines, [line("./program", NO_REPORT), line("other", "it is static")]);
    }
}
