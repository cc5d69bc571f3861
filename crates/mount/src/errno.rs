//! The one place where failures become error numbers.
//!
//! An error number says little: the message that goes with it is logged where the request is answered.

use fuser::Errno;
use stdchk_model::{ErrorCode, Failure};

/// The error number that a program sees for a failure.
pub(crate) fn errno(failure: &Failure) -> Errno {
    match failure.code {
        ErrorCode::NotFound => Errno::ENOENT,
        ErrorCode::Exists => Errno::EEXIST,
        ErrorCode::NotADirectory => Errno::ENOTDIR,
        ErrorCode::IsADirectory => Errno::EISDIR,
        ErrorCode::NotEmpty => Errno::ENOTEMPTY,
        ErrorCode::Invalid | ErrorCode::Loop => Errno::EINVAL,
        ErrorCode::TooLong => Errno::ENAMETOOLONG,
        ErrorCode::NoSpace => Errno::ENOSPC,
        ErrorCode::Stale => Errno::ESTALE,
        ErrorCode::Denied => Errno::EACCES,
        ErrorCode::NoKey => Errno::from_i32(libc::ENOKEY),
        ErrorCode::NotOwner => Errno::EPERM,
        ErrorCode::TooManyLinks => Errno::EMLINK,
        ErrorCode::Unsupported => Errno::EOPNOTSUPP,
        // The pool can't give the bytes, or lost touch with a part of itself: for a program all of this is failed I/O.
        _ => Errno::EIO,
    }
}

/// The error number for a request that reads, writes or resizes a file: there, what is too long is the file.
pub(crate) fn file_errno(failure: &Failure) -> Errno {
    match failure.code {
        ErrorCode::TooLong => Errno::EFBIG,
        _ => errno(failure),
    }
}

/// Whether a failure is an everyday answer, such as the name that isn't there, and not worth a line in the log.
pub(crate) fn is_common(failure: &Failure) -> bool {
    matches!(
        failure.code,
        ErrorCode::NotFound
            | ErrorCode::Exists
            | ErrorCode::NotADirectory
            | ErrorCode::IsADirectory
            | ErrorCode::NotEmpty
            | ErrorCode::Stale
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_too_large_is_told_apart_from_a_name_that_is_too_long() {
        let failure = Failure::new(ErrorCode::TooLong, "");
        assert_eq!((errno(&failure).code(), file_errno(&failure).code()), (libc::ENAMETOOLONG, libc::EFBIG));
    }

    #[test]
    fn what_the_pool_cannot_deliver_is_an_io_error() {
        for code in [
            ErrorCode::Unavailable,
            ErrorCode::Busy,
            ErrorCode::Damaged,
            ErrorCode::Internal,
            ErrorCode::Outdated,
        ] {
            assert_eq!(errno(&Failure::new(code, "")).code(), libc::EIO, "{code:?}");
        }
    }
}
