//! What can go wrong here, said per operation: what was being done, to what, and why it failed.

use std::path::PathBuf;

use rustix::io::Errno;

/// The result of every fallible operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation. The message names the operation, the object and, where there is one, the next step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call to the system failed.
    #[error("cannot {action} {}: {cause}{}", object.display(), next_step(*cause))]
    System {
        /// What was being done, as a verb phrase: "open", "append to".
        action: &'static str,
        /// The file, directory or process it was done to.
        object: PathBuf,
        /// The system's answer.
        cause: Errno,
    },
    /// A file of the store does not hold what it must hold.
    #[error("{} is damaged: {what}", object.display())]
    Damaged {
        /// The damaged file.
        object: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The directory has no store.
    #[error("there are no checkpoints in {}; `stdchk run` begins a run there, `--root` names another directory", root.display())]
    NoStore {
        /// The directory.
        root: PathBuf,
    },
    /// No such checkpoint index.
    #[error("there is no checkpoint index {wanted} in {}; `stdchk files log` lists those that can be restored", store.display())]
    NoSuchIndex {
        /// The index asked for.
        wanted: u64,
        /// The store asked.
        store: PathBuf,
    },
    /// Another process is in the middle of a change and does not leave it.
    #[error(
        "process {pid} has been inside a file call for {waited_s} s (is it stopped?); no checkpoint was taken"
    )]
    Busy {
        /// The process that holds the checkpoint up.
        pid: u32,
        /// How long it was waited for, in seconds.
        waited_s: u64,
    },
    /// The operation was refused; the text says why and, where there is one, the next step.
    #[error("{}", .0)]
    Refused(String),
}

impl Error {
    /// Wraps an `Errno` with what was being done to what.
    pub fn system(action: &'static str, object: impl Into<PathBuf>) -> impl FnOnce(Errno) -> Self {
        let object = object.into();
        move |cause| Self::System { action, object, cause }
    }

    /// Whether the disk has no room left, or the user's share of it.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::System { cause: Errno::NOSPC | Errno::DQUOT, .. })
    }

    /// The errno that a C caller should see.
    pub fn errno(&self) -> Errno {
        match self {
            Self::System { cause, .. } => *cause,
            Self::Damaged { .. } => Errno::IO,
            Self::NoStore { .. } | Self::NoSuchIndex { .. } => Errno::NOENT,
            Self::Busy { .. } => Errno::BUSY,
            Self::Refused(_) => Errno::INVAL,
        }
    }
}

fn next_step(cause: Errno) -> &'static str {
    match cause {
        Errno::NOSPC | Errno::DQUOT => "; make room on this disk and try again",
        _ => "",
    }
}
