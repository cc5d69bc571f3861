//! How a command ends: its exit code, and the message `object: cause; next step` on standard error.
//!
//! This is the one place that maps the pool's failures and the operating system's errors to exit codes.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use stdchk_model::{ErrorCode, Failure};

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
        Self { exit, message: without_numbers(&format!("{object}: {cause}; {next}")) }
    }

    /// An error of the command line or of a setting.
    pub fn usage(object: impl Display, cause: impl Display, next: impl Display) -> Self {
        Self::new(Exit::Usage, object, cause, next)
    }

    /// An error that says itself what to do next.
    pub fn complete(exit: Exit, object: impl Display, error: impl Display) -> Self {
        let object = shown(&object.to_string());
        Self { exit, message: without_numbers(&format!("{object}: {error}")) }
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

impl<T> About<T> for Result<T, Failure> {
    fn about(self, object: impl Display) -> Outcome<T> {
        self.map_err(|failure| from_failure(&failure, object))
    }
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

/// The exit code for a failure of the pool.
pub fn exit_of(code: ErrorCode) -> Exit {
    match code {
        ErrorCode::NotFound => Exit::NotFound,
        ErrorCode::Invalid | ErrorCode::TooLong => Exit::Usage,
        ErrorCode::NoSpace => Exit::NoSpace,
        ErrorCode::Unavailable | ErrorCode::Stale | ErrorCode::Outdated => Exit::Unreachable,
        ErrorCode::Damaged => Exit::Integrity,
        _ => Exit::Other,
    }
}

fn from_failure(failure: &Failure, object: impl Display) -> CommandError {
    let exit = exit_of(failure.code);
    let mut message = match object.to_string() {
        // Many messages of the pool name their object themselves.
        object if failure.message.contains(&object) => failure.message.clone(),
        object => format!("{object}: {}", failure.message),
    };
    if !message.contains(';') {
        message = format!("{message}; {}", next_step(failure.code));
    }
    CommandError { exit, message: shown(&without_numbers(&message)) }
}

/// A message without the ` (os error 2)` that the standard library puts behind the system's words.
fn without_numbers(message: &str) -> String {
    let mut pieces = message.split(" (os error ");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let after = piece.trim_start_matches(|c: char| c.is_ascii_digit());
        plain.push_str(after.strip_prefix(')').unwrap_or(after));
    }
    plain
}

fn next_step(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NotFound => "`stdchk ls` shows what there is",
        ErrorCode::Exists => "choose another name or remove the old one with `stdchk rm`",
        ErrorCode::NotADirectory | ErrorCode::IsADirectory => "`stdchk stat` shows what it is",
        ErrorCode::NotEmpty => "remove what is in it, or use `stdchk rm -r`",
        ErrorCode::Invalid | ErrorCode::TooLong => "choose another name or value",
        ErrorCode::NoSpace => {
            "remove versions and run `stdchk gc`, or donate more (`stdchk status` shows the space)"
        }
        ErrorCode::Unavailable | ErrorCode::Stale | ErrorCode::Outdated => {
            "try again; `stdchk status` shows what is missing"
        }
        ErrorCode::Damaged => {
            "use an earlier version (`stdchk ls --versions`); `stdchk verify` shows the extent"
        }
        ErrorCode::Denied => "check the token (`--token-file`, STDCHK_TOKEN_FILE)",
        ErrorCode::Unsupported | ErrorCode::Malformed => {
            "use the same version of stdchk everywhere in the pool"
        }
        _ => "the log of the process that failed says more",
    }
}

/// The error of a command for an error of the operating system.
pub fn from_io(error: &io::Error, object: impl Display) -> CommandError {
    let (exit, next) = match error.kind() {
        io::ErrorKind::NotFound => (Exit::NotFound, "check the path"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (Exit::NoSpace, "make room on this disk")
        }
        io::ErrorKind::PermissionDenied => (Exit::Other, "check the permissions, or run as the owner"),
        _ => (Exit::Other, "check the path and the disk"),
    };
    CommandError::new(exit, object, error, next)
}

/// Failures of one exit code that are reported one by one.
const FAILURES_SAID: usize = 10;

/// Counts the parts of a command that works on several objects, and reports failures as they come.
#[derive(Default)]
pub struct Parts {
    succeeded: u64,
    failed: BTreeMap<Exit, usize>,
}

impl Parts {
    /// Takes note of one part's outcome; a failure is reported now, unless so many of its exit code were that more of them
    /// would hide all else. An interruption and a lost reader end the command.
    pub fn add<T>(&mut self, outcome: Outcome<T>) -> Outcome<Option<T>> {
        match outcome {
            Ok(value) => {
                self.succeeded += 1;
                Ok(Some(value))
            }
            Err(error) if matches!(error.exit, Exit::Interrupted | Exit::BrokenPipe) => Err(error),
            Err(error) => {
                let failed = self.failed.entry(error.exit).or_default();
                *failed += 1;
                if *failed <= FAILURES_SAID {
                    error.say();
                }
                Ok(None)
            }
        }
    }

    /// Success if every part succeeded; their common exit code if all failed alike; else "partial" or "other". Says how many
    /// failures were not reported.
    pub fn outcome(&self) -> Outcome {
        let Some((first, _)) = self.failed.first_key_value() else { return Ok(()) };
        let unsaid: usize = self.failed.values().map(|failed| failed.saturating_sub(FAILURES_SAID)).sum();
        if unsaid > 0 {
            crate::output::note(format_args!("stdchk: {unsaid} more failed in the same way"));
        }
        let exit = match self.succeeded {
            0 if self.failed.len() == 1 => *first,
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
        let mut parts = Parts::default();
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
    fn a_failure_is_told_with_object_cause_and_next_step() {
        let failure: Result<(), _> = Err(Failure::new(ErrorCode::NotFound, "no such file"));
        let error = failure.about("app/x").unwrap_err();
        assert_eq!(error.exit, Exit::NotFound);
        assert_eq!(error.message, "app/x: no such file; `stdchk ls` shows what there is");
    }

    #[test]
    fn an_error_of_the_system_is_told_in_words_and_without_its_number() {
        let missing: io::Result<()> = Err(io::Error::from_raw_os_error(2));
        let error = missing.about("/x").unwrap_err();
        assert_eq!(error.message, "/x: No such file or directory; check the path");
        assert_eq!(without_numbers("a (os error 13): b (os error 2)"), "a: b");
    }

    #[test]
    fn an_object_that_the_pool_names_is_not_named_twice() {
        let failure: Result<(), _> =
            Err(Failure::new(ErrorCode::Damaged, "app/x has a damaged chunk; use another"));
        assert_eq!(failure.about("app/x").unwrap_err().message, "app/x has a damaged chunk; use another");
    }
}
