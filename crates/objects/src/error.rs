//! What can go wrong with an object store, sorted by what its user can do about it.
//!
//! Relies on nothing. The idea: an error says what the store said; which object it was about stands around it.

use std::io;

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A setting is missing or can't be used.
    Settings,
    /// Nobody answers, or the store says that it can't now: try again.
    Unreachable,
    /// The store doesn't let this user do it.
    Denied,
    /// There is no such bucket.
    NoBucket,
    /// There is no such object.
    NoObject,
    /// The store keeps the object where it can't be read from at once, and others may be had.
    Archived,
    /// What came back is not what was written.
    Damaged,
    /// The process was told to stop.
    Stopped,
    /// Anything else.
    Other,
}

/// Why an operation on a store failed. It holds no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct ObjectError {
    /// What kind of trouble it is.
    pub trouble: Trouble,
    /// The cause, in words.
    pub detail: String,
}

/// What the functions of this crate return.
pub(crate) type Result<T> = std::result::Result<T, ObjectError>;

impl ObjectError {
    pub(crate) fn new(trouble: Trouble, detail: impl Into<String>) -> Self {
        Self { trouble, detail: detail.into() }
    }

    /// The trouble with a store that is the cause of an error of the standard library, if one is.
    #[must_use]
    pub fn within(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<ObjectError> for io::Error {
    fn from(error: ObjectError) -> Self {
        let kind = match error.trouble {
            Trouble::NoObject | Trouble::NoBucket => io::ErrorKind::NotFound,
            Trouble::Denied => io::ErrorKind::PermissionDenied,
            Trouble::Archived => io::ErrorKind::ResourceBusy,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
