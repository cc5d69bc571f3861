//! What can go wrong while packing, unpacking, listing or extracting.
//!
//! Relies on nothing. The idea: every error names the operation and the object, and chains its cause.

use std::io;
use std::path::{Path, PathBuf};

use crate::codec::CodecError;

/// Why an operation of this crate failed.
#[derive(Debug, thiserror::Error)]
pub enum AggregateError {
    /// The operating system refused.
    #[error("can't {action} {path}: {source}", path = .path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no container, or its beginning is lost.
    #[error("{path} is no stdchk container: {detail}", path = .path.display())]
    NoContainer {
        /// The file.
        path: PathBuf,
        /// What was missing.
        detail: &'static str,
    },
    /// A section of a container doesn't match its hash or has no valid form.
    #[error("section at byte {offset} of the container is damaged: {detail}")]
    Damaged {
        /// Where the section begins.
        offset: u64,
        /// What is wrong.
        detail: String,
    },
    /// A block can't be coded or decoded.
    #[error("block {number} ({key}): {source}")]
    Codec {
        /// Number of the block.
        number: u64,
        /// Key of its group.
        key: String,
        /// What the chain said.
        source: CodecError,
    },
    /// The container has no such file or variable.
    #[error("the container holds no {what} '{name}'")]
    NotFound {
        /// File or variable.
        what: &'static str,
        /// The name that was asked for.
        name: String,
    },
    /// A file is no longer what it was when packing began.
    #[error("{path} changed while it was packed", path = .path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Whoever watches the operation ended it.
    #[error("stopped before the end")]
    Stopped,
    /// The request itself can't be met.
    #[error("{0}")]
    Invalid(String),
    /// Some files can't be given back; all others can, or were.
    #[error("{}", incomplete(.damaged, .blocked))]
    Incomplete {
        /// Names of those that are damaged.
        damaged: Vec<String>,
        /// Names of those that could not be written, since something else is there.
        blocked: Vec<String>,
        /// How many are neither.
        intact: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The container was coded against another set, which is needed to read it.
    #[error("the container needs its base set {base}, which is not beside it: give it with --base")]
    BaseMissing {
        /// Identity of the base, in hexadecimal.
        base: String,
    },
}

impl AggregateError {
    /// Wraps an error of the operating system.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

fn incomplete(damaged: &[String], blocked: &[String]) -> String {
    let of_files = |names: &[String], what| match names {
        [] => None,
        _ => Some(format!("{} of the container's files {what}: {}", names.len(), names.join(", "))),
    };
    let blocked_by = "can't be written, since something else has its name or that of its folder";
    let parts = [of_files(damaged, "are damaged"), of_files(blocked, blocked_by)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// What the functions of this crate return.
pub(crate) type Result<T> = std::result::Result<T, AggregateError>;
