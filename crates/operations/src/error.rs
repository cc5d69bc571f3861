//! How an operation fails: a code for programs, and for people the object, the cause and the next step.
//!
//! This is the one place that gives codes to the pool's failures, to errors of packing and to the operating system's errors.
//! Whoever decides something looks at the code; texts are for reading only.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io;

use serde::Serialize;
use stdchk_aggregate::AggregateError;
use stdchk_client::AggregationError;
use stdchk_model::{ErrorCode, Failure};

use crate::text::{self, shown, without_numbers};

/// What a program acts on when an operation fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    /// There is no such file, folder, version or set.
    NotFound,
    /// The name is taken.
    Exists,
    /// The pool needed a folder, or something else than a folder, or an empty folder.
    Conflict,
    /// A name, a value or a combination of arguments can't be used.
    Invalid,
    /// The object is of another kind than the operation works on, such as a folder where a file is needed.
    WrongKind,
    /// There is no space in the pool or on the local disk.
    NoSpace,
    /// The pool, or a part of it, can't be reached now: try again.
    Unreachable,
    /// Content is damaged and no intact copy was found.
    Damaged,
    /// The pool doesn't let this client do this, or this client lacks the key for it.
    Denied,
    /// The process at the manager's address is of another pool, or its keys and those of this client don't fit.
    OtherPool,
    /// A part of the work succeeded, a part failed.
    Partial,
    /// The operation was told to stop. What it had not finished did not happen.
    Interrupted,
    /// The reader of what was written went away.
    BrokenPipe,
    /// Anything else, such as an error of the local disk.
    Other,
}

/// Why an operation failed. It reads `object: cause; next`; an empty part is left out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Error {
    /// What a program acts on.
    pub code: Code,
    /// What the error is about; empty where the cause names it.
    pub object: String,
    /// What happened.
    pub cause: String,
    /// What a person can do; empty where there is nothing to do.
    pub next: String,
}

/// The result of an operation or of a step of one.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error about `object`, with what caused it and what to do next.
    pub fn new(code: Code, object: impl Display, cause: impl Display, next: impl Display) -> Self {
        let object = shown(&object.to_string());
        let cause = without_numbers(&cause.to_string());
        Self { code, object, cause, next: next.to_string() }
    }

    /// An error of a name, of a value or of a combination of arguments.
    pub fn invalid(object: impl Display, cause: impl Display, next: impl Display) -> Self {
        Self::new(Code::Invalid, object, cause, next)
    }

    /// An error about an object of another kind than the operation works on.
    pub fn wrong_kind(object: impl Display, cause: impl Display, next: impl Display) -> Self {
        Self::new(Code::WrongKind, object, cause, next)
    }

    /// An error of this program.
    pub fn defect(object: impl Display, cause: impl Display) -> Self {
        Self::new(Code::Other, object, cause, "report this as a defect")
    }

    /// The error for a failure of the pool, about `object`.
    pub fn of_failure(failure: &Failure, object: impl Display) -> Self {
        let next = failure.next.as_deref().unwrap_or_else(|| next_step(failure.code));
        Self::new(code_of(failure.code), object, shown(&failure.message), next)
    }

    /// The error for an error of the operating system, about `object`.
    pub fn of_io(error: &io::Error, object: impl Display) -> Self {
        let (code, next) = match error.kind() {
            io::ErrorKind::NotFound => (Code::NotFound, "check the path"),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                (Code::NoSpace, "make room on this disk")
            }
            io::ErrorKind::PermissionDenied => (Code::Other, "check the permissions, or run as the owner"),
            io::ErrorKind::BrokenPipe => (Code::BrokenPipe, "check the path and the disk"),
            _ => (Code::Other, "check the path and the disk"),
        };
        Self::new(code, object, error, next)
    }

    /// The error for a task that did not end by itself.
    pub(crate) fn of_task(error: &tokio::task::JoinError) -> Self {
        Self::defect("a task of this operation", error)
    }
}

impl std::error::Error for Error {}

impl Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.object.is_empty() {
            write!(to, "{}: ", self.object)?;
        }
        to.write_str(&self.cause)?;
        if !self.next.is_empty() {
            write!(to, "; {}", self.next)?;
        }
        Ok(())
    }
}

/// Says which object a failure is about.
pub trait About<T> {
    /// The result with its error as an [`Error`] about `object`.
    ///
    /// # Errors
    /// Those of the result.
    fn about(self, object: impl Display) -> Result<T>;
}

impl<T> About<T> for Result<T, Failure> {
    fn about(self, object: impl Display) -> Result<T> {
        self.map_err(|failure| Error::of_failure(&failure, object))
    }
}

impl<T> About<T> for io::Result<T> {
    fn about(self, object: impl Display) -> Result<T> {
        self.map_err(|error| Error::of_io(&error, object))
    }
}

impl<T> About<T> for rustix::io::Result<T> {
    fn about(self, object: impl Display) -> Result<T> {
        self.map_err(|errno| Error::of_io(&errno.into(), object))
    }
}

/// A failure whose message names its object itself.
impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::of_failure(&failure, "")
    }
}

impl From<AggregateError> for Error {
    fn from(error: AggregateError) -> Self {
        Self::from(&error)
    }
}

impl From<&AggregateError> for Error {
    fn from(error: &AggregateError) -> Self {
        let (code, next) = match error {
            AggregateError::Io { action, path, source } => {
                return Self::of_io(source, format_args!("can't {action} {}", path.display()));
            }
            AggregateError::NoContainer { .. } => (Code::Invalid, "give a file that `stdchk pack` wrote"),
            AggregateError::Damaged { .. } | AggregateError::Codec { .. } => {
                (Code::Damaged, "`stdchk unpack` gives back every file that is intact")
            }
            AggregateError::Incomplete { damaged, blocked, intact, .. } => {
                incomplete(!damaged.is_empty(), !blocked.is_empty(), *intact > 0)
            }
            AggregateError::NotFound { .. } => (Code::NotFound, "`stdchk pack --list` shows what it holds"),
            AggregateError::Changed { .. } => (Code::Other, "pack it when nobody writes to it"),
            AggregateError::BaseMissing { .. } => {
                (Code::Invalid, "it is the container that was the base when packing")
            }
            AggregateError::Invalid(_) => (Code::Invalid, "check what is asked for"),
            AggregateError::Stopped => (Code::Interrupted, "what had not ended did not happen; run it again"),
        };
        Self::new(code, "", shown(&error.to_string()), next)
    }
}

/// The message of a file-state store says object, cause and next step itself.
impl From<stdchk_filestate::Error> for Error {
    fn from(error: stdchk_filestate::Error) -> Self {
        use stdchk_filestate::Error as Cause;
        let code = match &error {
            Cause::NoStore { .. } | Cause::NoSuchIndex { .. } => Code::NotFound,
            Cause::Damaged { .. } => Code::Damaged,
            Cause::Busy { .. } => Code::Unreachable,
            Cause::System { .. } if error.is_no_space() => Code::NoSpace,
            Cause::System { .. } | Cause::Refused(_) => Code::Other,
        };
        Self::new(code, "", error, "")
    }
}

/// What files mean that are damaged, or that something else was in the way of, and what to do.
fn incomplete(are_damaged: bool, are_blocked: bool, are_others: bool) -> (Code, &'static str) {
    match (are_damaged, are_blocked, are_others) {
        (true, false, false) => (Code::Damaged, "use another copy"),
        (_, false, _) => (Code::Partial, "all others are intact; use another copy for these"),
        (false, true, false) => (Code::Other, "move that away, then run it again"),
        (false, true, true) => (Code::Partial, "all others were written; move that away, then run it again"),
        (true, true, _) => (
            Code::Partial,
            "use another copy for what is damaged; move away what is in the way, then run it again",
        ),
    }
}

impl Error {
    /// The error for an aggregation in the pool, of the folder `object`.
    pub fn of_aggregation(error: &AggregationError, object: impl Display) -> Self {
        match error {
            AggregationError::Packing(error) => Self::from(error),
            AggregationError::Pool(failure) => Self::of_failure(failure, object),
        }
    }
}

/// The code for a failure of the pool.
pub fn code_of(code: ErrorCode) -> Code {
    match code {
        ErrorCode::NotFound => Code::NotFound,
        ErrorCode::Exists => Code::Exists,
        ErrorCode::NotADirectory | ErrorCode::IsADirectory | ErrorCode::NotEmpty => Code::Conflict,
        ErrorCode::Invalid | ErrorCode::TooLong => Code::Invalid,
        ErrorCode::NoSpace => Code::NoSpace,
        ErrorCode::Unavailable | ErrorCode::Stale | ErrorCode::Outdated | ErrorCode::Busy => {
            Code::Unreachable
        }
        ErrorCode::Damaged => Code::Damaged,
        ErrorCode::Denied | ErrorCode::NotOwner | ErrorCode::NoKey => Code::Denied,
        ErrorCode::OtherPool => Code::OtherPool,
        _ => Code::Other,
    }
}

fn next_step(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NotFound => "`stdchk ls` shows what there is",
        ErrorCode::Exists => "choose another name or remove the old one with `stdchk rm`",
        ErrorCode::NotADirectory | ErrorCode::IsADirectory => "`stdchk stat` shows what it is",
        ErrorCode::NotEmpty => "remove what is in it, or use `stdchk rm -r`",
        ErrorCode::Invalid | ErrorCode::TooLong => "choose another name or value",
        ErrorCode::NoSpace => "remove files, or donate more (`stdchk status` shows the space)",
        ErrorCode::Unavailable | ErrorCode::Stale | ErrorCode::Outdated | ErrorCode::Busy => {
            "try again; `stdchk status` shows what is missing"
        }
        ErrorCode::Damaged => {
            "use an earlier version (`stdchk ls --versions`); `stdchk verify` shows the extent"
        }
        ErrorCode::NotOwner => "ask its owner, or whoever runs the pool",
        ErrorCode::Denied => "check that this host has joined this pool, in a role that may do this",
        ErrorCode::OtherPool => {
            "check the manager's address and which keys are used; this host joins that pool with a token"
        }
        ErrorCode::NoKey => "import the key that it needs: `stdchk key import`",
        ErrorCode::Unsupported | ErrorCode::Malformed => {
            "use the same version of stdchk everywhere in the pool"
        }
        _ => "the log of the process that failed says more",
    }
}

/// How the parts of an operation on several objects ended. Each failure was an [`Event::Failed`](crate::Event).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Parts that succeeded.
    pub succeeded: u64,
    /// Parts that failed, by code.
    pub failed: BTreeMap<Code, u64>,
}

impl Tally {
    pub(crate) fn succeed(&mut self) {
        self.succeeded += 1;
    }

    pub(crate) fn fail(&mut self, error: &Error) {
        *self.failed.entry(error.code).or_default() += 1;
    }

    /// Success if every part succeeded.
    ///
    /// # Errors
    /// The code that all failures share if nothing succeeded and they share one; else [`Code::Partial`] if something
    /// succeeded, [`Code::Other`] if nothing did.
    pub fn outcome(&self, object: impl Display) -> Result {
        let Some((first, _)) = self.failed.first_key_value() else { return Ok(()) };
        let code = match self.succeeded {
            0 if self.failed.len() == 1 => *first,
            0 => Code::Other,
            _ => Code::Partial,
        };
        let failed: u64 = self.failed.values().sum();
        let cause = format_args!("{} failed, {} succeeded", text::count(failed, "part"), self.succeeded);
        Err(Error::new(code, object, cause, "each failure was told when it came"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(tally: &mut Tally, code: Code) {
        tally.fail(&Error::new(code, "x", "y", "z"));
    }

    #[test]
    fn parts_that_all_fail_alike_keep_their_code_and_a_mixture_is_partial() {
        let mut tally = Tally::default();
        assert_eq!(tally.outcome("x"), Ok(()));
        failed(&mut tally, Code::NotFound);
        failed(&mut tally, Code::NotFound);
        assert_eq!(tally.outcome("x").unwrap_err().code, Code::NotFound);
        failed(&mut tally, Code::NoSpace);
        assert_eq!(tally.outcome("x").unwrap_err().code, Code::Other);
        tally.succeed();
        assert_eq!(tally.outcome("x").unwrap_err().code, Code::Partial);
    }

    #[test]
    fn a_failure_is_told_with_object_cause_and_next_step() {
        let failure: Result<(), _> = Err(Failure::new(ErrorCode::NotFound, "no such file"));
        let error = failure.about("app/x").unwrap_err();
        assert_eq!(error.code, Code::NotFound);
        assert_eq!(error.to_string(), "app/x: no such file; `stdchk ls` shows what there is");
        let own = Failure::new(ErrorCode::Damaged, "a chunk; of many").then("use another");
        assert_eq!(Error::from(own).to_string(), "a chunk; of many; use another");
    }

    #[test]
    fn an_object_is_named_also_where_its_name_is_a_letter_of_the_cause() {
        let failure: Result<(), _> = Err(Failure::new(ErrorCode::Damaged, "a chunk is damaged"));
        assert!(failure.about("a").unwrap_err().to_string().starts_with("a: a chunk is damaged; "));
    }

    #[test]
    fn an_error_of_the_system_is_told_in_words_and_without_its_number() {
        let missing: io::Result<()> = Err(io::Error::from_raw_os_error(2));
        let error = missing.about("/x").unwrap_err();
        assert_eq!(error.to_string(), "/x: No such file or directory; check the path");
        assert_eq!(without_numbers("a (os error 13): b (os error 2)"), "a: b");
    }
}
