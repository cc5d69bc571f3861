//! Why a file is all residue.
//!
//! Relies on nothing. The idea: a reason names what was being read and where, so that a person can look at the bytes.

/// Why no variables were found in a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// No format known here begins like this.
    #[error("no known format")]
    UnknownFormat,
    /// Something the format promises lies outside the file.
    #[error("{what} at byte {offset} needs {length} bytes, the file has {size}")]
    Truncated {
        /// What was to be read.
        what: &'static str,
        /// Where it was to begin.
        offset: u64,
        /// How long it was to be, in bytes.
        length: u64,
        /// Length of the file in bytes.
        size: u64,
    },
    /// A value that the format doesn't allow.
    #[error("{what} near byte {offset} is not valid")]
    Invalid {
        /// What was read.
        what: &'static str,
        /// Where, as nearly as the parser knows.
        offset: u64,
    },
    /// A feature of the format that no code here reads.
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// The parser was asked to read far more than an honest file of this size needs: loops, or a bomb.
    #[error("reading the structure would take more work than a file of {size} bytes can need")]
    TooMuchWork {
        /// Length of the file in bytes.
        size: u64,
    },
    /// What the file describes is more than is kept of one file.
    #[error("the structure describes more than fits in {limit} bytes of memory")]
    TooMuchFound {
        /// The limit, in bytes.
        limit: u64,
    },
    /// Two variables claim the same bytes.
    #[error("variables '{first}' and '{second}' overlap at byte {offset}")]
    Overlap {
        /// Path of the variable that begins first.
        first: String,
        /// Path of the variable that begins inside it.
        second: String,
        /// Where the second begins.
        offset: u64,
    },
    /// The source itself failed.
    #[error("reading at byte {offset} failed: {message}")]
    Unreadable {
        /// Where the read began.
        offset: u64,
        /// What the source said.
        message: String,
    },
}

impl Reason {
    /// Whether other parts of the file may still be read: not where the source itself fails.
    pub(crate) fn is_of_a_part(&self) -> bool {
        !matches!(self, Self::Unreadable { .. })
    }

    /// Whether nothing more may be looked at: the file has used up what reading it may cost.
    pub(crate) fn is_the_end(&self) -> bool {
        matches!(self, Self::TooMuchWork { .. } | Self::TooMuchFound { .. } | Self::Unreadable { .. })
    }
}

/// The things that were found, although others can't be read. Fails if the source failed, or if there are none.
pub(crate) fn found<T>(found: Vec<T>, unread: Option<Reason>) -> Result<Vec<T>> {
    match unread {
        Some(reason) if found.is_empty() || !reason.is_of_a_part() => Err(reason),
        _ => Ok(found),
    }
}

/// What every parsing function returns.
pub(crate) type Result<T> = std::result::Result<T, Reason>;
