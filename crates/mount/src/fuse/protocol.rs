//! The write protocol of one open file: an extended attribute that can only be set.
//!
//! No attribute can be read or listed, and not for want of code: while a file system answers requests for attributes at
//! all, the kernel asks it for `security.capability` before every `write()` (file_remove_privs), which would cost each write
//! a round trip that the page cache is there to save. It goes on to ask only for what was not refused as unknown.

use std::ffi::OsStr;
use std::str::FromStr;
use std::sync::Arc;

use fuser::{Errno, INodeNo, ReplyEmpty};
use stdchk_model::policy::Protocol;

use super::Adapter;
use super::files::hand_over;
use super::reply::{or_refuse, refused};
use crate::caller::Caller;
use crate::fs::{Chosen, FileSystem, NodeId};
use crate::user::Origin;

/// The attribute; its value is a protocol as a policy names it.
const PROTOCOL: &str = "user.stdchk.protocol";

/// The protocol that is asked for.
fn wanted(name: &OsStr, value: &[u8]) -> Result<Protocol, Errno> {
    if name != PROTOCOL {
        return Err(Errno::EOPNOTSUPP);
    }
    let value = str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
    Protocol::from_str(value).map_err(|_| Errno::EINVAL)
}

impl Adapter {
    /// `setxattr()`. What the program wrote before counts, also as far as the kernel has kept it to itself so far; it waits
    /// for the answer with the file locked against other changes.
    pub(super) fn choose_protocol(
        &self,
        caller: Origin,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        reply: ReplyEmpty,
    ) {
        let protocol = or_refuse!(wanted(name, value), reply);
        let kernel = Arc::clone(&self.kernel);
        let work = |fs: Arc<FileSystem>, caller: Caller| async move {
            if let Err(error) = hand_over(kernel, ino).await {
                tracing::warn!(inode = ino.0, %error, "the kernel did not hand over what was written");
                return Err(Errno::EIO);
            }
            let chosen = caller.step(fs.choose_protocol(NodeId(ino.0), protocol, caller.task())).await;
            chosen.map_err(|failure| refused("choosing a protocol", ino.0, &failure))
        };
        let answer = |reply: ReplyEmpty, chosen| match chosen {
            Ok(Chosen::Done) => reply.ok(),
            Ok(Chosen::TooLate) => reply.error(Errno::EBUSY),
            Ok(Chosen::NotWritten) => reply.error(Errno::EBADF),
            Err(errno) => reply.error(errno),
        };
        self.spawn(self.carried(caller, reply, work, answer, |_, _| async {}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_attribute_can_be_set_to_the_names_of_protocols() {
        let asked = |name: &str, value: &[u8]| wanted(OsStr::new(name), value).map_err(|errno| errno.code());
        assert_eq!(asked("user.stdchk.protocol", b"clw"), Ok(Protocol::Clw));
        assert_eq!(asked("user.stdchk.protocol", b"nfs"), Err(libc::EINVAL));
        assert_eq!(asked("user.stdchk.protocol", b"clw\xff"), Err(libc::EINVAL));
        assert_eq!(asked("user.stdchk.protocols", b"clw"), Err(libc::EOPNOTSUPP));
        assert_eq!(asked("security.capability", b""), Err(libc::EOPNOTSUPP));
    }
}
