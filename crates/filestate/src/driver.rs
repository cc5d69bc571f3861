//! `run`: starts a program under file-state checkpoints, checkpoints it from outside, and recovers what it left.
//!
//! The driver outlives the program: when the program is killed, the driver can go back to the last checkpoint at once.
//! When the machine goes down with both, the next `run --resume` does.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode as Permissions, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::restore::{self, Summary};
use crate::store::{self, Mode, Options, Store};
use crate::{checkpoint, program, unwatched};

/// The variable that tells the preload library which tree to protect.
pub const ROOT_VARIABLE: &str = "STDCHK_FILESTATE";
/// The variable that tells it what to report in as ([`crate::unwatched`]).
pub const START_VARIABLE: &str = "STDCHK_FILESTATE_START";
/// The variable that names the preload library, when it stands where the driver would not look.
pub const LIBRARY_VARIABLE: &str = "STDCHK_PRELOAD";
const LIBRARY_NAME: &str = "libstdchk_preload.so";
/// The label of the checkpoint that is taken when a job has ended by itself.
pub const END: &str = "end";
/// How long processes that a failed program left behind have after each of two signals: a process that must write what it
/// holds has time to, and the job's own end is not held up for long.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two checks whether those processes have ended.
const END_POLL: Duration = Duration::from_millis(10);
/// Longest wait without a timer: bounds the loop, nothing is expected then.
const IDLE: Duration = Duration::from_secs(3600);

/// Where a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the files as they are.
    Fresh,
    /// With the files as they were at this index, or at the newest.
    Resume(Option<u64>),
    /// From the newest checkpoint if the last run did not end by itself, else with the files as they are.
    IfUnfinished,
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
    /// Variables that the program finds in its environment, beside those of the driver.
    pub environment: Vec<(OsString, OsString)>,
    /// Tells the user something before the program starts.
    pub tell: fn(&str),
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The program's status.
    pub status: ExitStatus,
    /// What was undone, if the program failed in a mode that goes back then.
    pub rolled_back: Option<Summary>,
    /// What the user should know: checkpoints that could not be taken, programs that could not be followed.
    pub notes: Vec<String>,
}

/// What goes on beside a run, such as copying its checkpoints to another place.
pub trait Beside {
    /// The tree is at its first checkpoint, and the program has been started.
    fn begin(&mut self, store: &Arc<Store>, control: &Arc<Control>);
    /// The program has ended, and its last checkpoint is taken or gone back to. What the user should know.
    fn end(&mut self) -> Vec<String>;
}

/// Nothing.
impl Beside for () {
    fn begin(&mut self, _: &Arc<Store>, _: &Arc<Control>) {}

    fn end(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl Run {
    /// Runs the program to its end. Takes a checkpoint at the start, every [`Run::every`], and on `SIGUSR1`; passes
    /// other signals on to the program.
    pub fn execute(&self) -> Result<Outcome> {
        self.execute_with(&mut ())
    }

    /// Runs the program to its end as [`Run::execute`] does, and calls `beside` when it has started and when it has ended.
    pub fn execute_with(&self, beside: &mut dyn Beside) -> Result<Outcome> {
        let name = self.command.first().map_or(OsStr::new(""), OsString::as_os_str);
        let program = program::check(name)?;
        let library = preload_library()?;
        let root = canonical(&self.root)?;
        refuse_nested()?;
        let _lock = lock(&root)?;
        let store = Arc::new(self.prepare(&root)?);
        let control = Arc::new(Control::open(&store)?);
        if store.entries()?.is_empty() {
            checkpoint::take(&store, &control, "start")?;
        } else {
            let world = control.freeze()?;
            control.begin_interval(&world, store.entry(None)?.index);
        }
        let mut supervisor = Supervisor::start(self, &store, &program, &library)?;
        beside.begin(&store, &control);
        let status = supervisor.watch(&store, &control, self.every)?;
        if status.success() && supervisor.is_silent(&store) {
            return Err(Error::Refused(format!(
                "{} ran, but without {}: the system did not load it, and nothing that was changed can be taken back",
                program.display(),
                library.display()
            )));
        }
        let mut notes = supervisor.notes;
        // Before files go back, with the log of what the run wrote.
        notes.extend(store.unfired()?);
        store.settle_reports(status.success())?;
        let rolled_back = conclude(&store, &control, status, &mut notes)?;
        if rolled_back.is_none() {
            notes.extend(store.unwatched()?);
        }
        notes.extend(store.take_notes()?);
        notes.extend(beside.end());
        Ok(Outcome { status, rolled_back, notes })
    }

    fn prepare(&self, root: &Path) -> Result<Store> {
        refuse_while_processes_live(root)?;
        let start = match self.start {
            Start::IfUnfinished if Store::exists(root) && !Store::open(root)?.has_ended() => {
                Start::Resume(None)
            }
            Start::IfUnfinished => Start::Fresh,
            given => given,
        };
        match start {
            Start::Fresh if Store::exists(root) && !Store::open(root)?.has_ended() => {
                Store::open(root)?.refuse_if_copied()?;
                let shown = root.display();
                let next = "`stdchk run --resume` goes on from its last checkpoint, `stdchk files discard` forgets it";
                Err(Error::Refused(format!("the last run in {shown} did not end by itself: {next}")))
            }
            Start::Fresh | Start::IfUnfinished => {
                refuse_half_restored(root)?;
                Store::create(root, &self.options)
            }
            Start::Resume(wanted) => {
                let store = open_store(root)?;
                store.refuse_if_copied()?;
                for line in restore::to_index(&store, wanted)?.complaints() {
                    (self.tell)(&line);
                }
                store.settle_reports(false)?;
                store.unmark_ended()?;
                store.unpin()?;
                Control::remove(&store)?;
                Ok(store)
            }
        }
    }
}

/// A run inside another one is refused: its programs would be watched for the outer one alone.
fn refuse_nested() -> Result<()> {
    let Some(outer) = std::env::var_os(ROOT_VARIABLE).map(PathBuf::from) else { return Ok(()) };
    // The variable of a run that has ended, left to a shell that went on, is no run.
    if !is_running(&outer).unwrap_or(false) {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "this is a part of the run that protects {}, and runs inside of runs can't be protected; it was not started. The outer run \
         keeps what the program changes there: start the program without `stdchk run`",
        outer.display()
    )))
}

/// The store of `root`, or that there is none and what to do.
pub fn open_store(root: &Path) -> Result<Store> {
    match Store::open(root) {
        Err(Error::System { cause: Errno::NOENT, .. }) if !Store::exists(root) => {
            Err(Error::NoStore { root: root.to_owned() })
        }
        // Also that this user may not look into it.
        opened => opened,
    }
}

/// Whether a run on the tree, or a restore of it, goes on.
pub fn is_running(root: &Path) -> Result<bool> {
    Ok(try_lock(&canonical(root)?)?.is_none())
}

/// Processes of the last run may have outlived its driver; what they write would be lost in the midst of a restore.
fn refuse_while_processes_live(root: &Path) -> Result<()> {
    let Ok(store) = Store::open(root) else { return Ok(()) };
    match Control::participants(&store)?.first() {
        None => Ok(()),
        Some(pid) => Err(Error::Refused(format!(
            "process {pid} of the last run in {} still runs; wait for its end, or end it",
            root.display()
        ))),
    }
}

/// Ends a run: after success with a last checkpoint; else by going back, in the modes that promise it.
fn conclude(
    store: &Store,
    control: &Control,
    status: ExitStatus,
    notes: &mut Vec<String>,
) -> Result<Option<Summary>> {
    if status.success() {
        if let Err(error) = checkpoint::take(store, control, END) {
            notes.push(missed(END, &error));
        }
        if let Err(error) = store.mark_ended() {
            let next =
                "to `stdchk run` it will look as if this one had not ended, until `stdchk files discard`";
            notes.push(format!("{error}; {next}"));
        }
        return Ok(None);
    }
    if store.options.mode == Mode::WriteThrough {
        return Ok(None);
    }
    notes.extend(end_processes_left(store)?);
    let summary = restore::in_run(store, control, None)?;
    notes.extend(summary.complaints());
    Ok(Some(summary))
}

/// Ends the processes that a failed program left behind: what they write would spoil files that go back. Each gets
/// [`Signal::TERM`] and [`END_PATIENCE`] to end by itself, and is killed then. What to tell the user, if there were any.
///
/// # Errors
/// One can't be ended, as one of another user. Nothing went back then.
fn end_processes_left(store: &Store) -> Result<Option<String>> {
    let count = others(store)?.len();
    for signal in [Signal::TERM, Signal::KILL] {
        let deadline = Instant::now() + END_PATIENCE;
        send_to_participants(store, signal)?;
        while !others(store)?.is_empty() && Instant::now() < deadline {
            std::thread::sleep(END_POLL);
            if signal == Signal::KILL {
                // One that was just being forked when the others were killed.
                send_to_participants(store, signal)?;
            }
        }
    }
    if let Some(pid) = others(store)?.first() {
        return Err(Error::Refused(format!(
            "process {pid} of the failed program can't be ended, so the files were left as they are; end it, then \
             `stdchk files restore` takes them back"
        )));
    }
    let told = || {
        format!("{count} processes that the failed program left behind were ended before its files went back")
    };
    Ok((count > 0).then(told))
}

/// The processes of the run but this one, which takes part in it to see to its end.
fn others(store: &Store) -> Result<Vec<u32>> {
    let own = std::process::id();
    Ok(Control::participants(store)?.into_iter().filter(|pid| *pid != own).collect())
}

/// Sends a signal to each process of the run but this one. A process is held by a descriptor before it is looked at, so that the signal
/// can't reach another one that has got its number.
fn send_to_participants(store: &Store, signal: Signal) -> Result<()> {
    let open = |pid: u32| {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
        Some((pid, rustix::process::pidfd_open(number, PidfdFlags::empty()).ok()?))
    };
    let held: Vec<(u32, OwnedFd)> = others(store)?.into_iter().filter_map(open).collect();
    let participants = others(store)?;
    for (_, process) in held.iter().filter(|(pid, _)| participants.contains(pid)) {
        // Refused by one of another user, or gone by now: the caller looks again.
        let _ = rustix::process::pidfd_send_signal(process, signal);
    }
    Ok(())
}

/// How a checkpoint that could not be taken is told.
pub fn missed(label: &str, error: &Error) -> String {
    format!("a checkpoint ({label}) was not taken: {error}")
}

/// Goes back to `wanted`, or the newest checkpoint, while no run is active.
pub fn restore_files(root: &Path, wanted: Option<u64>) -> Result<Summary> {
    let root = canonical(root)?;
    let store = open_store(&root)?;
    let _lock = lock(&root)?;
    refuse_while_processes_live(&root)?;
    store.refuse_if_copied()?;
    restore::to_index(&store, wanted)
}

/// Forgets a run: the files stay as they are, its checkpoints are gone and their space is free. A store whose removal was cut
/// off is removed, too.
pub fn discard(root: &Path) -> Result<()> {
    let root = canonical(root)?;
    if !root.join(store::DIRECTORY).is_dir() {
        return Err(Error::NoStore { root });
    }
    let _lock = lock(&root)?;
    refuse_while_processes_live(&root)?;
    refuse_half_restored(&root)?;
    Store::remove(&root)
}

/// While a restore is only half done, files of the tree lie in the store. One that is damaged can't be restored from.
fn refuse_half_restored(root: &Path) -> Result<()> {
    let is_interrupted = match Store::exists(root).then(|| Store::open(root)).transpose() {
        Ok(store) => store.as_ref().map_or(Ok(false), restore::is_interrupted)?,
        Err(Error::Damaged { .. }) => false,
        Err(error) => return Err(error),
    };
    if !is_interrupted {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "a restore of {} was cut off, and some of its files are in the store; `stdchk files restore` completes it first",
        root.display()
    )))
}

fn canonical(root: &Path) -> Result<PathBuf> {
    root.canonicalize().map_err(|cause| Error::Refused(format!("cannot protect {}: {cause}", root.display())))
}

/// A tree held for one run or one restore.
struct TreeLock(OwnedFd);

impl Drop for TreeLock {
    fn drop(&mut self) {
        // Closing is not enough: a process that was forked at this moment holds a copy until it executes its program.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Holds the tree for one run or one restore.
fn lock(root: &Path) -> Result<TreeLock> {
    let refused = || Error::Refused(format!("another run protects {}; wait for its end", root.display()));
    try_lock(root)?.ok_or_else(refused)
}

fn try_lock(root: &Path) -> Result<Option<TreeLock>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        rustix::fs::open(root, flags, Permissions::empty()).map_err(Error::system("open", root))?;
    match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(TreeLock(directory))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(cause) => Err(Error::system("lock", root)(cause)),
    }
}

/// The preload library: named by the environment, or beside the running program, or where an installation has it.
pub fn preload_library() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from) {
        let found = named.is_file().then(|| named.clone());
        let missing =
            || Error::Refused(format!("{LIBRARY_VARIABLE} names {}, which is no file", named.display()));
        return found.ok_or_else(missing).and_then(loadable);
    }
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let program = program.map_err(|error| {
        Error::Refused(format!(
            "where this program lies can't be told ({error}); name {LIBRARY_NAME} in {LIBRARY_VARIABLE}"
        ))
    })?;
    let Some(beside) = program.parent() else { unreachable!("a program is not the root of the file system") };
    let installed = ["../lib/stdchk", "../lib"].map(|directory| beside.join(directory).join(LIBRARY_NAME));
    let found = [beside.join(LIBRARY_NAME)].into_iter().chain(installed).find(|place| place.is_file());
    found.and_then(|place| place.canonicalize().ok()).map(loadable).unwrap_or_else(|| {
        Err(Error::Refused(format!(
            "{LIBRARY_NAME} is neither beside the program in {} nor in ../lib/stdchk; name it in {LIBRARY_VARIABLE}",
            beside.display()
        )))
    })
}

/// The loader splits its list at blanks and colons, and passes over what it does not find without an error.
fn loadable(library: PathBuf) -> Result<PathBuf> {
    if library.as_os_str().as_bytes().iter().any(|byte| *byte == b':' || byte.is_ascii_whitespace()) {
        let shown = library.display();
        return Err(Error::Refused(format!(
            "the loader cannot load {shown}: its path has a blank or a colon; name a copy in {LIBRARY_VARIABLE}"
        )));
    }
    Ok(library)
}

/// The running program and the signals around it.
struct Supervisor {
    child: Child,
    /// The name by which the program reports in.
    reports_as: Option<String>,
    signals: Receiver<Heard>,
    notes: Vec<String>,
}

/// A signal to the driver.
#[derive(Debug, Clone, Copy)]
struct Heard {
    signal: i32,
    /// A terminal sends its signals to the whole foreground group: the program has it already.
    from_terminal: bool,
}

impl Supervisor {
    fn start(run: &Run, store: &Store, program: &Path, library: &Path) -> Result<Self> {
        let signals = listen()?;
        let mut preload = OsString::from(library);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let mut command = Command::new(program);
        command.args(run.command.iter().skip(1)).envs(run.environment.iter().cloned());
        command.env("LD_PRELOAD", preload).env(ROOT_VARIABLE, store.root_path());
        let reports_as = store.starting(unwatched::Start::Spawn, program.as_os_str().as_bytes());
        command.env(START_VARIABLE, reports_as.as_deref().unwrap_or_default());
        let child = command.spawn().map_err(|cause| {
            reports_as.iter().for_each(|name| store.not_started(name));
            Error::Refused(format!("cannot start {}: {cause}", program.display()))
        })?;
        reports_as.iter().for_each(|name| store.started_as(name, child.id()));
        Ok(Self { child, reports_as, signals, notes: Vec::new() })
    }

    /// Whether the program's library has not reported in.
    fn is_silent(&self, store: &Store) -> bool {
        self.reports_as.as_ref().is_some_and(|name| store.is_silent(name, self.child.id()))
    }

    fn watch(&mut self, store: &Store, control: &Control, every: Option<Duration>) -> Result<ExitStatus> {
        let mut next = every.map(|every| Instant::now() + every);
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            let wait = next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()));
            match self.signals.recv_timeout(wait) {
                Ok(Heard { signal: SIGCHLD, .. }) | Err(RecvTimeoutError::Disconnected) => {}
                Ok(Heard { signal: SIGUSR1, .. }) => self.checkpoint(store, control, "signal"),
                Ok(heard) => self.pass_on(heard),
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
            self.notes.push(missed(label, &error));
        }
    }

    fn pass_on(&self, heard: Heard) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Some(signal), false) =
            (pid, Signal::from_named_raw(heard.signal), heard.from_terminal)
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// The signals that concern a run, in order of arrival.
fn listen() -> Result<Receiver<Heard>> {
    let failed = |cause: std::io::Error| Error::Refused(format!("cannot listen for signals: {cause}"));
    let concerning = [SIGCHLD, SIGUSR1, SIGUSR2, SIGINT, SIGQUIT, SIGTERM, SIGHUP];
    let mut signals = SignalsInfo::<WithOrigin>::new(concerning).map_err(failed)?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for origin in signals.forever() {
            let heard = Heard { signal: origin.signal, from_terminal: origin.process.is_none() };
            if sender.send(heard).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_is_half_restored_keeps_its_store() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path(), &Options::default()).unwrap();
        store.mark_ended().unwrap();
        let position = store.path().join("restoring.0.0.0.0");
        std::fs::write(&position, "1 0 0").unwrap();
        let refused = discard(root.path()).unwrap_err().to_string();
        assert!(refused.contains("stdchk files restore"), "{refused}");
        refuse_half_restored(root.path()).unwrap_err();
        std::fs::remove_file(&position).unwrap();
        discard(root.path()).unwrap();
        assert!(matches!(discard(root.path()), Err(Error::NoStore { .. })));
    }

    #[test]
    fn a_damaged_store_can_be_discarded() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path(), &Options::default()).unwrap();
        std::fs::write(store.path().join("store"), "nothing").unwrap();
        assert!(matches!(Store::open(root.path()), Err(Error::Damaged { .. })));
        discard(root.path()).unwrap();
        assert!(!store.path().exists());
    }
}
