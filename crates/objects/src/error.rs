//! What can go wrong with an object store, sorted by what its user can do about it.
//!
//! Relies on `object_store` for the errors that carry ours. The idea: an error says what the store said; which object it was
//! about stands around it.

use std::error::Error;
use std::io;

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A setting is missing or can't be used.
    Settings,
    /// Neither a setting nor the machine says who asks.
    NoCredentials,
    /// Nobody answers, or the store says that it can't now: try again.
    Unreachable,
    /// The store doesn't let this user do it.
    Denied,
    /// There is no such bucket.
    NoBucket,
    /// There is no such object.
    NoObject,
    /// There is no such upload in parts: it was completed or aborted.
    NoUpload,
    /// The object ends before the range that was asked for.
    NoRange,
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

/// Takes out what [`crate::guard`] put in. All else is an answer that makes no sense, or a setting that the library refuses;
/// of these only the cause is told, since the library's own words may hold the URL of a request.
impl From<object_store::Error> for ObjectError {
    fn from(error: object_store::Error) -> Self {
        let ours = chain(&error).find_map(|cause| cause.downcast_ref::<Self>());
        let other = || match &error {
            object_store::Error::NotFound { .. } => Trouble::NoObject,
            _ => Trouble::Other,
        };
        ours.cloned().unwrap_or_else(|| Self::new(other(), root_of(&error)))
    }
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// The words of the innermost cause.
pub(crate) fn root_of(error: &(dyn Error + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
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
