//! How a command ends: its exit code, and the message `object: cause; next step` on standard error.
//!
//! This is the one place that maps the codes of operations to exit codes.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use parking_lot::Mutex;
use stdchk_operations::text::without_numbers;
use stdchk_operations::{Code, Error};

use crate::output::shown;

/// Exit codes, documented in `docs/OPERATIONS.md`. Numbers never change their meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Exit {
    /// Anything that has no code of its own.
    Other = 1,
    /// The command line, a name, a setting or the configuration can't be used. Also what clap exits with.
    Usage = 2,
    /// A part succeeded, a part failed.
    Partial = 3,
    /// No such file, folder, version or set.
    NotFound = 4,
    /// The pool, a part of it or an object store can't be reached now: try again.
    Unreachable = 5,
    /// No space in the pool or on the local disk.
    NoSpace = 6,
    /// Content is damaged and no intact copy was found.
    Integrity = 7,
    /// The process at the manager's address is of another pool, or its keys and those of this host don't fit.
    OtherPool = 8,
    /// `run`: the program could not be started or protected. Other codes of `run` are the program's own.
    NotRun = 125,
    /// Stopped by SIGINT or SIGTERM.
    Interrupted = 130,
    /// The reader of standard output went away: what a process killed by SIGPIPE shows.
    BrokenPipe = 141,
}

/// Why a command failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommandError {
    /// What a script acts on.
    pub exit: Exit,
    /// What a person reads; empty: nothing is left to say.
    pub message: String,
}

/// The result of a command or of a step of one.
pub type Outcome<T = ()> = Result<T, CommandError>;

impl CommandError {
    /// An error about `object`, with what caused it and what to do next.
    pub fn new(exit: Exit, object: impl Display, cause: impl Display, next: impl Display) -> Self {
        let object = shown(&object.to_string());
        Self { exit, message: format!("{object}: {}; {next}", without_numbers(&cause.to_string())) }
    }

    /// An error of the command line or of a setting.
    pub fn usage(object: impl Display, cause: impl Display, next: impl Display) -> Self {
        Self::new(Exit::Usage, object, cause, next)
    }

    /// An error that says itself what to do next.
    pub fn complete(exit: Exit, object: impl Display, error: impl Display) -> Self {
        let object = shown(&object.to_string());
        Self { exit, message: format!("{object}: {}", without_numbers(&error.to_string())) }
    }

    /// An error that says all itself.
    pub fn plain(exit: Exit, error: impl Display) -> Self {
        Self { exit, message: without_numbers(&error.to_string()) }
    }

    /// An error whose details were reported before.
    pub fn reported(exit: Exit) -> Self {
        Self { exit, message: String::new() }
    }

    /// Writes the message to standard error and gives the exit code.
    pub fn report(&self) -> ExitCode {
        self.say();
        ExitCode::from(self.exit as u8)
    }

    /// Writes the message to standard error, if there is one.
    pub fn say(&self) {
        if !self.message.is_empty() && self.exit != Exit::BrokenPipe {
            crate::output::note(format_args!("stdchk: {}", self.message));
        }
    }
}

/// Says which object a failure is about.
pub trait About<T> {
    /// The result with its error as a [`CommandError`] about `object`.
    fn about(self, object: impl Display) -> Outcome<T>;
}

impl<T> About<T> for io::Result<T> {
    fn about(self, object: impl Display) -> Outcome<T> {
        self.map_err(|error| from_io(&error, object))
    }
}

impl<T> About<T> for rustix::io::Result<T> {
    fn about(self, object: impl Display) -> Outcome<T> {
        self.map_err(|errno| from_io(&errno.into(), object))
    }
}

/// The exit code for an error of an operation.
pub fn exit_of(code: Code) -> Exit {
    match code {
        Code::NotFound => Exit::NotFound,
        Code::Invalid | Code::WrongKind => Exit::Usage,
        Code::NoSpace => Exit::NoSpace,
        Code::Unreachable => Exit::Unreachable,
        Code::Damaged => Exit::Integrity,
        Code::OtherPool => Exit::OtherPool,
        Code::Partial => Exit::Partial,
        Code::Interrupted => Exit::Interrupted,
        _ => Exit::Other,
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        let exit = exit_of(error.code);
        Self { exit, message: hinted(error).to_string() }
    }
}

/// The error with a better next step where a path of a mount was written in place of a name of the pool.
fn hinted(error: Error) -> Error {
    match error.code {
        // A name of the pool, not a path of this machine.
        Code::NotFound if !error.object.starts_with('/') => {
            match stdchk_mount::below_mount(&Path::new("/").join(&error.object)) {
                Some(below) => {
                    let below = shown(&below.to_string_lossy());
                    Error { next: format!("leave out where the pool is mounted: `{below}`"), ..error }
                }
                None => error,
            }
        }
        _ => error,
    }
}

/// The error of a command for an error of the operating system.
pub fn from_io(error: &io::Error, object: impl Display) -> CommandError {
    Error::of_io(error, object).into()
}

/// The error of a command for a task that did not end by itself.
pub fn task_failed(error: &tokio::task::JoinError) -> CommandError {
    Error::defect("a task of this command", error).into()
}

/// Failures of one exit code that are reported one by one.
const FAILURES_SAID: usize = 10;

/// Counts the parts of a command that works on several objects, and reports failures as they come. Clones count together.
#[derive(Clone, Default)]
pub struct Parts(Arc<Mutex<Counted>>);

#[derive(Default)]
struct Counted {
    succeeded: u64,
    failed: BTreeMap<Exit, usize>,
}

impl Parts {
    /// Takes note of one part's outcome. An interruption and a lost reader end the command.
    pub fn add<T>(&self, outcome: Outcome<T>) -> Outcome<Option<T>> {
        match outcome {
            Ok(value) => {
                self.succeed(1);
                Ok(Some(value))
            }
            Err(error) if matches!(error.exit, Exit::Interrupted | Exit::BrokenPipe) => Err(error),
            Err(error) => {
                self.fail(&error);
                Ok(None)
            }
        }
    }

    /// Takes note of parts that succeeded.
    pub fn succeed(&self, parts: u64) {
        self.0.lock().succeeded += parts;
    }

    /// Takes note of a part that failed; that is reported now, unless so many of its exit code were that more of them would
    /// hide all else.
    pub fn fail(&self, error: &CommandError) {
        let mut counted = self.0.lock();
        let failed = counted.failed.entry(error.exit).or_default();
        *failed += 1;
        if *failed <= FAILURES_SAID {
            error.say();
        }
    }

    /// Success if every part succeeded; their common exit code if all failed alike; else "partial" or "other". Says how many
    /// failures were not reported.
    pub fn outcome(&self) -> Outcome {
        let counted = self.0.lock();
        let Some((first, _)) = counted.failed.first_key_value() else { return Ok(()) };
        let unsaid: usize = counted.failed.values().map(|failed| failed.saturating_sub(FAILURES_SAID)).sum();
        if unsaid > 0 {
            crate::output::note(format_args!("stdchk: {unsaid} more failed in the same way"));
        }
        let exit = match counted.succeeded {
            0 if counted.failed.len() == 1 => *first,
            0 => Exit::Other,
            _ => Exit::Partial,
        };
        Err(CommandError::reported(exit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(exit: Exit) -> Outcome {
        Err(CommandError::reported(exit))
    }

    #[test]
    fn parts_that_all_fail_alike_keep_their_code_and_a_mixture_is_partial() {
        let parts = Parts::default();
        for _ in 0..2 {
            parts.add(failed(Exit::NotFound)).unwrap();
        }
        assert_eq!(parts.outcome().unwrap_err().exit, Exit::NotFound);
        parts.add(failed(Exit::NoSpace)).unwrap();
        assert_eq!(parts.outcome().unwrap_err().exit, Exit::Other);
        parts.add(Ok(())).unwrap();
        assert_eq!(parts.outcome().unwrap_err().exit, Exit::Partial);
    }

    #[test]
    fn an_error_of_an_operation_is_told_with_object_cause_and_next_step() {
        let error = CommandError::from(Error::new(Code::NotFound, "app/x", "no such file", "look"));
        assert_eq!(error.exit, Exit::NotFound);
        assert_eq!(error.message, "app/x: no such file; look");
    }
}
