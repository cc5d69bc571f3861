//! Answers: outcomes of the file system in the kernel's form, failures as error numbers with a line in the log.

use std::ffi::OsStr;
use std::time::Duration;

use fuser::{
    Errno, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite,
};
use stdchk_model::Failure;
use stdchk_model::exact::narrow;
use stdchk_model::limits::NAME_BYTES_MAX;
use stdchk_model::message::manager::{Attr, Space};

use crate::attr::file_attr;
use crate::errno::{errno, file_errno, is_common};
use crate::fs::Shown;

/// Unit of the space that `statfs` reports, bytes.
const SPACE_UNIT: u32 = 4096;

/// Ends the request with an error, or goes on with the value.
macro_rules! or_refuse {
    ($value:expr, $reply:expr) => {
        match $value {
            Ok(value) => value,
            Err(errno) => return $reply.error(errno),
        }
    };
}
pub(super) use or_refuse;

/// What a request waits for, of whatever kind it is.
pub(super) trait Refuse: Send + 'static {
    /// Answers by an error.
    fn refuse(self, errno: Errno);
}

macro_rules! refuse {
    ($($reply:ty),+) => {
        $(impl Refuse for $reply {
            fn refuse(self, errno: Errno) {
                self.error(errno);
            }
        })+
    };
}
refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyEmpty,
    ReplyEntry,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite
);

/// A name as the pool takes it: any UTF-8 text.
pub(super) fn text(name: &OsStr) -> Result<String, Errno> {
    name.to_str().map(str::to_owned).ok_or(Errno::EILSEQ)
}

/// Logs a failure that a person should see, and gives its error number.
pub(super) fn refused(what: &str, number: u64, failure: &Failure) -> Errno {
    if !is_common(failure) {
        tracing::warn!(inode = number, %failure, "{what} failed");
    }
    errno(failure)
}

/// Logs a failure to read or write content that a person should see, and gives its error number.
pub(super) fn refused_content(what: &str, number: u64, failure: &Failure) -> Errno {
    refused(what, number, failure);
    file_errno(failure)
}

pub(super) fn answer_empty(reply: ReplyEmpty, what: &str, ino: INodeNo, outcome: Result<(), Failure>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(failure) => reply.error(refused_content(what, ino.0, &failure)),
    }
}

/// Answers a request that changes names, where what is too long is the name.
pub(super) fn answer_change(reply: ReplyEmpty, what: &str, parent: INodeNo, outcome: Result<(), Failure>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(failure) => reply.error(refused(what, parent.0, &failure)),
    }
}

pub(super) fn answer_entry(
    reply: ReplyEntry,
    what: &str,
    parent: INodeNo,
    ttl: Duration,
    outcome: Result<Shown, Failure>,
) {
    match outcome {
        Ok(shown) => reply.entry(&shown.lasts_for(ttl), &file_attr(shown.id.0, &shown.attr), Generation(0)),
        Err(failure) => reply.error(refused(what, parent.0, &failure)),
    }
}

pub(super) fn answer_attr(
    reply: ReplyAttr,
    what: &str,
    ino: INodeNo,
    ttl: Duration,
    outcome: Result<Attr, Failure>,
) {
    match outcome {
        Ok(attr) => reply.attr(&ttl, &file_attr(ino.0, &attr)),
        Err(failure) => reply.error(refused_content(what, ino.0, &failure)),
    }
}

pub(super) fn answer_write(reply: ReplyWrite, ino: INodeNo, written: Result<usize, Failure>) {
    match written {
        Ok(length) => reply.written(narrow(length)),
        Err(failure) => reply.error(refused_content("a write", ino.0, &failure)),
    }
}

pub(super) fn answer_space(reply: ReplyStatfs, space: &Space) {
    let units = |bytes: u64| bytes / u64::from(SPACE_UNIT);
    let (free, files) = (units(space.free_bytes), space.inodes);
    let total = units(space.used_bytes.saturating_add(space.free_bytes));
    // The number of files has no limit of its own: as many as there are units free.
    let name_max = narrow(NAME_BYTES_MAX);
    reply.statfs(total, free, free, files.saturating_add(free), free, SPACE_UNIT, name_max, SPACE_UNIT);
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_name_that_is_not_text_is_refused_with_the_error_that_says_so() {
        assert_eq!(text(OsStr::from_bytes(b"a\xff")).unwrap_err().code(), libc::EILSEQ);
    }
}
