//! Failures as they cross the wire: a code that a program acts on, and a message that a person acts on.

use std::fmt;

use minicbor::{Decode, Encode};

/// Why a request failed. Numbers are part of the protocol and never change their meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Encode, Decode)]
#[cbor(index_only)]
#[non_exhaustive]
pub enum ErrorCode {
    /// No such file, directory, version, chunk or benefactor.
    #[n(0)]
    NotFound,
    /// The name exists already.
    #[n(1)]
    Exists,
    /// A directory is needed, the object is none.
    #[n(2)]
    NotADirectory,
    /// The object is a directory.
    #[n(3)]
    IsADirectory,
    /// The directory still has entries.
    #[n(4)]
    NotEmpty,
    /// The name or argument can't be used.
    #[n(5)]
    Invalid,
    /// A name, path or file would be longer than its limit.
    #[n(6)]
    TooLong,
    /// No benefactor has room, or a benefactor's donation or floor is reached.
    #[n(7)]
    NoSpace,
    /// The session or lease is not known (any more): open it again.
    #[n(8)]
    Stale,
    /// Not now: try again, the object may come back.
    #[n(9)]
    Unavailable,
    /// Bytes don't match their name and no intact copy was found.
    #[n(10)]
    Damaged,
    /// The peer doesn't belong to the pool or may not do this, or the object's permissions don't let its user.
    #[n(11)]
    Denied,
    /// The peer doesn't know the message or the protocol version.
    #[n(12)]
    Unsupported,
    /// The message can't be understood.
    #[n(13)]
    Malformed,
    /// The peer failed at something of its own, such as its disk.
    #[n(14)]
    Internal,
    /// Too many links, or too many levels of links.
    #[n(15)]
    TooManyLinks,
    /// A receipt is of an earlier life of its benefactor, or older than deletions that were ordered there since: ask the
    /// benefactor for a new one.
    #[n(16)]
    Outdated,
    /// The target of a rename lies inside the directory that is renamed, or a similar loop.
    #[n(17)]
    Loop,
    /// The client lacks the key with which the file, or what is written to its folder, is encrypted.
    #[n(18)]
    NoKey,
    /// The user for whom this is asked would have to own the object.
    #[n(19)]
    NotOwner,
    /// The benefactor takes no new blocks now, for its owner's work or since many clients send to it: use another one, or insist.
    #[n(20)]
    Busy,
    /// The process there belongs to another pool than the one that is meant, or its keys and those of the caller don't fit.
    #[n(21)]
    OtherPool,
}

/// A failed request. It reads `message; next`, or `message` where the code alone says what to do.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Failure {
    /// What a program acts on.
    #[n(0)]
    pub code: ErrorCode,
    /// What a person reads: the object and the cause.
    #[n(1)]
    pub message: String,
    /// What a person can do about this failure; `None`: what can be done about every failure of its code.
    #[n(2)]
    pub next: Option<String>,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.next {
            Some(next) => write!(to, "{}; {next}", self.message),
            None => to.write_str(&self.message),
        }
    }
}

impl Failure {
    /// A failure of `code` with a message for people.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), next: None }
    }

    /// The failure with the next step for a person.
    #[must_use]
    pub fn then(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }
}
