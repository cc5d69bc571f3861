//! `run`: starts a program under file-state checkpoints, checkpoints it from outside, and recovers what it left.
//!
//! The driver outlives the program: when the program is killed, the driver can go back to the last checkpoint at once.
//! When the machine goes down with both, the next `run --resume` does.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode as Permissions, OFlags};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::restore::{self, Summary};
use crate::store::{Mode, Options, Store};
use crate::{checkpoint, program};

/// The variable that tells the preload library which tree to protect.
pub const ROOT_VARIABLE: &str = "STDCHK_FILESTATE";
/// The variable that names the preload library, when it does not lie beside the running program.
pub const LIBRARY_VARIABLE: &str = "STDCHK_PRELOAD";
const LIBRARY_NAME: &str = "libstdchk_preload.so";
/// Waits without a timer end this often; only to bound them.
const IDLE: Duration = Duration::from_secs(3600);

/// Where a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the files as they are.
    Fresh,
    /// With the files as they were at this index, or at the newest.
    Resume(Option<u64>),
}

/// A run to be made.
#[derive(Debug, Clone)]
pub struct Run {
    /// The protected tree.
    pub root: PathBuf,
    /// What the store is created with; a resumed run keeps those of its store.
    pub options: Options,
    /// Where it begins.
    pub start: Start,
    /// How often a checkpoint is taken from outside.
    pub every: Option<Duration>,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The program's status.
    pub status: ExitStatus,
    /// What was undone, if the program was killed in a mode that goes back then.
    pub rolled_back: Option<Summary>,
    /// Checkpoints from outside that could not be taken, and why.
    pub missed: Vec<Error>,
}

impl Run {
    /// Runs the program to its end. Takes a checkpoint at the start, every [`Run::every`], and on `SIGUSR1`; passes
    /// `SIGINT`, `SIGTERM` and `SIGHUP` on to the program.
    pub fn execute(&self) -> Result<Outcome> {
        let name = self.command.first().map_or(OsStr::new(""), OsString::as_os_str);
        let program = program::check(name)?;
        let library = preload_library()?;
        let root = canonical(&self.root)?;
        let _lock = lock(&root)?;
        let store = self.prepare(&root)?;
        let control = Control::open(&store)?;
        if store.entries()?.is_empty() {
            checkpoint::take(&store, &control, "start")?;
        } else {
            let world = control.freeze()?;
            control.begin_interval(&world, store.entry(None)?.index);
        }
        let mut supervisor = Supervisor::start(self, &program, &library, &root)?;
        let status = supervisor.watch(&store, &control, self.every)?;
        let rolled_back = conclude(&store, &control, status)?;
        Ok(Outcome { status, rolled_back, missed: supervisor.missed })
    }

    fn prepare(&self, root: &Path) -> Result<Store> {
        match self.start {
            Start::Fresh if Store::exists(root) && !Store::open(root)?.has_ended() => {
                let shown = root.display();
                let next = "`--resume` continues it, `files discard` forgets it";
                Err(Error::Refused(format!("the last run in {shown} did not end by itself: {next}")))
            }
            Start::Fresh => Store::create(root, &self.options),
            Start::Resume(wanted) => {
                let store = Store::open(root)?;
                restore::to_index(&store, wanted)?;
                store.unmark_ended()?;
                Control::remove(&store)?;
                Ok(store)
            }
        }
    }
}

/// Ends a run: normally with a last checkpoint; after a kill by going back, in the modes that promise it.
fn conclude(store: &Store, control: &Control, status: ExitStatus) -> Result<Option<Summary>> {
    if status.signal().is_none() {
        checkpoint::take(store, control, "end")?;
        store.mark_ended()?;
        return Ok(None);
    }
    if store.options.mode == Mode::WriteThrough {
        return Ok(None);
    }
    let world = control.freeze()?;
    let summary = restore::to_index(store, None)?;
    control.begin_interval(&world, summary.index);
    Ok(Some(summary))
}

/// Goes back to `wanted`, or the newest checkpoint, while no run is active.
pub fn restore_files(root: &Path, wanted: Option<u64>) -> Result<Summary> {
    let root = canonical(root)?;
    let _lock = lock(&root)?;
    restore::to_index(&Store::open(&root)?, wanted)
}

/// Forgets a run: the files stay as they are, its checkpoints are gone.
pub fn discard(root: &Path) -> Result<()> {
    let root = canonical(root)?;
    let _lock = lock(&root)?;
    Store::open(&root)?.mark_ended()
}

fn canonical(root: &Path) -> Result<PathBuf> {
    root.canonicalize().map_err(|cause| Error::Refused(format!("cannot protect {}: {cause}", root.display())))
}

/// Holds the tree for one run or one restore.
fn lock(root: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        rustix::fs::open(root, flags, Permissions::empty()).map_err(Error::system("open", root))?;
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(directory),
        Err(_) => Err(Error::Refused(format!("another run protects {}; wait for its end", root.display()))),
    }
}

/// The preload library: named by the environment, or beside the running program, or in `../lib/stdchk`.
pub fn preload_library() -> Result<PathBuf> {
    let program = std::env::current_exe().unwrap_or_default();
    let beside = program.parent().unwrap_or(Path::new(".")).to_owned();
    let named = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from);
    let places = [beside.join(LIBRARY_NAME), beside.join("../lib/stdchk").join(LIBRARY_NAME)];
    let found = named.into_iter().chain(places).find(|place| place.is_file());
    found.ok_or_else(|| {
        let shown = beside.display();
        Error::Refused(format!(
            "{LIBRARY_NAME} is not beside the program in {shown}; name it in {LIBRARY_VARIABLE}"
        ))
    })
}

/// The running program and the signals around it.
struct Supervisor {
    child: Child,
    signals: Receiver<i32>,
    missed: Vec<Error>,
}

impl Supervisor {
    fn start(run: &Run, program: &Path, library: &Path, root: &Path) -> Result<Self> {
        let signals = listen()?;
        let mut preload = OsString::from(library);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let mut command = Command::new(program);
        command.args(run.command.iter().skip(1)).env("LD_PRELOAD", preload).env(ROOT_VARIABLE, root);
        let child = command
            .spawn()
            .map_err(|cause| Error::Refused(format!("cannot start {}: {cause}", program.display())))?;
        Ok(Self { child, signals, missed: Vec::new() })
    }

    fn watch(&mut self, store: &Store, control: &Control, every: Option<Duration>) -> Result<ExitStatus> {
        let mut next = every.map(|every| Instant::now() + every);
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            let wait = next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()));
            match self.signals.recv_timeout(wait) {
                Ok(SIGCHLD) | Err(RecvTimeoutError::Disconnected) => {}
                Ok(SIGUSR1) => self.checkpoint(store, control, "signal"),
                Ok(signal) => self.pass_on(signal),
                Err(RecvTimeoutError::Timeout) if next.is_some() => {
                    self.checkpoint(store, control, "timer");
                    next = every.map(|every| Instant::now() + every);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(|cause| Error::Refused(format!("cannot wait for the program: {cause}")))
    }

    /// A checkpoint from outside. That one could not be taken does not end the run: the one before stays.
    fn checkpoint(&mut self, store: &Store, control: &Control, label: &str) {
        if let Err(error) = checkpoint::take(store, control, label) {
            self.missed.push(error);
        }
    }

    fn pass_on(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// The signals that concern a run, in order of arrival.
fn listen() -> Result<Receiver<i32>> {
    let failed = |cause: std::io::Error| Error::Refused(format!("cannot listen for signals: {cause}"));
    let mut signals = Signals::new([SIGCHLD, SIGUSR1, SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}
