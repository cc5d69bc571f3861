//! Why the store did not do what it was asked, and what that is on the wire.

use std::io;
use std::path::{Path, PathBuf};

use stdchk_model::{BlockId, ErrorCode, Failure};

use super::space::NoRoom;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The payload is not what its name says.
    #[error("the bytes sent for block {block:?} don't match their name: {why}; send them again")]
    Mismatch {
        /// The block.
        block: BlockId,
        /// What doesn't match.
        why: String,
    },
    /// The donation or the owner's floor is reached.
    #[error("no room for {needed} bytes: {0}", needed = needed(.0))]
    NoRoom(#[from] NoRoom),
    /// No such block here.
    #[error("block {0:?} is not here: ask the manager for its locations again")]
    Missing(BlockId),
    /// The block's bytes don't match their name; it was set aside.
    #[error("block {0:?} was found damaged and set aside: read it from another benefactor")]
    Damaged(BlockId),
    /// The disk failed before: at a write, or at a sync, after which nobody knows what it holds.
    #[error("the disk failed ({0}); nothing more is stored until the benefactor is restarted")]
    Poisoned(String),
    /// The directory or a file of the store was taken away.
    #[error(
        "{0} was removed, moved or replaced while the benefactor used it: what it held must be copied anew from other \
         benefactors. `stdchk up` starts an empty one, `stdchk forget` takes this one out of the pool"
    )]
    Gone(PathBuf),
    /// The system refused something.
    #[error("can't {action} {path}: {cause}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

impl StoreError {
    /// Whether the disk is sound as far as this error says.
    pub(super) fn is_passing(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if is_passing(cause))
    }

    /// Whether more room would help.
    pub(super) fn is_for_want_of_room(&self) -> bool {
        matches!(self, Self::NoRoom(_)) || self.is_full()
    }

    /// Whether the disk refused for want of space alone.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Io { cause, .. } if is_full(cause))
    }
}

/// Whether the system lacked something else than a sound disk: space, or descriptors that others have taken for now.
fn is_passing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let said = error.raw_os_error().map(Errno::from_raw_os_error);
    is_full(error) || said.is_some_and(|said| [Errno::MFILE, Errno::NFILE, Errno::NOMEM].contains(&said))
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether a disk refuses whatever is written, and can be read all the same: it is full or read-only.
pub(super) fn takes_nothing(error: &io::Error) -> bool {
    is_full(error) || error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

/// Whether a disk says that it can't read what is at one place, or a file system that it isn't what was written there, or
/// that the file ends before.
pub(super) fn is_of_the_medium(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let said = error.raw_os_error().map(Errno::from_raw_os_error);
    let bad =
        said.is_some_and(|said| [Errno::IO, Errno::NODATA, Errno::BADMSG, Errno::UCLEAN].contains(&said));
    bad || error.kind() == io::ErrorKind::UnexpectedEof
}

fn needed(no_room: &NoRoom) -> u64 {
    match no_room {
        NoRoom::Donation { needed, .. } | NoRoom::Floor { needed, .. } => *needed,
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Mismatch { .. } => ErrorCode::Invalid,
            StoreError::NoRoom(_) => ErrorCode::NoSpace,
            StoreError::Missing(_) => ErrorCode::NotFound,
            StoreError::Damaged(_) => ErrorCode::Damaged,
            StoreError::Poisoned(_) | StoreError::Gone(_) => ErrorCode::Internal,
            StoreError::Io { .. } if error.is_full() => ErrorCode::NoSpace,
            StoreError::Io { .. } => ErrorCode::Internal,
        };
        let failure = Self::new(code, error.to_string());
        match error {
            StoreError::NoRoom(no_room) => failure.then(no_room.next()),
            _ => failure,
        }
    }
}

pub(super) fn io_error(action: &'static str, path: &Path, cause: io::Error) -> StoreError {
    StoreError::Io { action, path: path.to_owned(), cause }
}
