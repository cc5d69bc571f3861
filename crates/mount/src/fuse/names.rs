//! Requests about names: looking up, making, removing, linking, renaming and listing.

use std::ffi::OsStr;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, Generation, INodeNo, RenameFlags, ReplyCreate, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, Request,
};
use stdchk_model::message::manager::{Existing, FileKind};

use super::Adapter;
use super::files::open_flags;
use super::reply::{answer_change, answer_entry, or_refuse, refused, text};
use crate::attr::{dot_attr, file_attr, file_type};
use crate::fs::{Listed, New, NodeId};

/// What a request to make something asks for.
pub(super) fn new(request: &Request, kind: FileKind, mode: u32, target: String) -> New {
    New { kind, mode: mode & 0o7777, uid: request.uid(), gid: request.gid(), target }
}

fn existing(flags: RenameFlags) -> Result<Existing, Errno> {
    if flags == RenameFlags::RENAME_NOREPLACE {
        return Ok(Existing::Refuse);
    }
    if flags == RenameFlags::RENAME_EXCHANGE {
        return Ok(Existing::Exchange);
    }
    if flags.is_empty() { Ok(Existing::Replace) } else { Err(Errno::EINVAL) }
}

impl Adapter {
    pub(super) fn look_up(&self, caller: u32, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        // What can't be a name here is not found here.
        let name = or_refuse!(text(name).map_err(|_| Errno::ENOENT), reply);
        let ttl = self.ttl;
        self.task(|fs| async move {
            answer_entry(reply, "a lookup", parent, ttl, fs.lookup(NodeId(parent.0), &name, caller).await);
        });
    }

    pub(super) fn make(&self, parent: INodeNo, name: &OsStr, new: New, reply: ReplyEntry) {
        let name = or_refuse!(text(name), reply);
        let ttl = self.ttl;
        self.task(|fs| async move {
            answer_entry(reply, "making an entry", parent, ttl, fs.make(NodeId(parent.0), &name, new).await);
        });
    }

    /// Makes a file, or takes the one that is there, and opens it for the task `caller`; `flags`: of the `open()`.
    pub(super) fn make_open(
        &self,
        parent: INodeNo,
        name: &OsStr,
        new: New,
        (caller, flags): (u32, i32),
        reply: ReplyCreate,
    ) {
        let name = or_refuse!(text(name), reply);
        let (exclusive, truncate) = (flags & libc::O_EXCL != 0, flags & libc::O_TRUNC != 0);
        let ttl = self.ttl;
        self.task(|fs| async move {
            match fs.create(NodeId(parent.0), &name, new, caller, exclusive, truncate).await {
                Ok(made) => {
                    let attr = file_attr(made.shown.id.0, &made.shown.attr);
                    let (handle, ttl) = (FileHandle(made.handle), made.shown.lasts_for(ttl));
                    let flags = open_flags(!made.shown.lasts);
                    reply.created(&ttl, &attr, Generation(0), handle, flags);
                }
                Err(failure) => reply.error(refused("creating a file", parent.0, &failure)),
            }
        });
    }

    pub(super) fn remove(&self, parent: INodeNo, name: &OsStr, directory: bool, reply: ReplyEmpty) {
        let name = or_refuse!(text(name), reply);
        self.task(|fs| async move {
            let removed = match directory {
                true => fs.rmdir(NodeId(parent.0), &name).await,
                false => fs.unlink(NodeId(parent.0), &name).await,
            };
            answer_change(reply, "a removal", parent, removed);
        });
    }

    pub(super) fn move_name(
        &self,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let existing = or_refuse!(existing(flags), reply);
        let (name, new_name) = (or_refuse!(text(name), reply), or_refuse!(text(new_name), reply));
        self.task(|fs| async move {
            let (from, to) = (NodeId(parent.0), NodeId(new_parent.0));
            let renamed = fs.rename((from, &name), (to, &new_name), existing).await;
            answer_change(reply, "a rename", parent, renamed);
        });
    }

    pub(super) fn add_name(&self, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = or_refuse!(text(name), reply);
        let ttl = self.ttl;
        self.task(|fs| async move {
            let linked = fs.link(NodeId(ino.0), NodeId(parent.0), &name).await;
            answer_entry(reply, "a link", parent, ttl, linked);
        });
    }

    pub(super) fn list(&self, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.task(|fs| async move {
            let add = |entry: Listed<'_>| {
                reply.add(INodeNo(entry.id.0), entry.next, file_type(entry.kind), entry.name)
            };
            match fs.list(fh.0, offset, false, add).await {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(refused("listing a directory", ino.0, &failure)),
            }
        });
    }

    pub(super) fn list_plus(&self, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let ttl = self.ttl;
        self.task(|fs| async move {
            let add = |entry: Listed<'_>| {
                let ttl = if entry.lasts { ttl } else { Duration::ZERO };
                let attr = match entry.attr {
                    Some(attr) => file_attr(entry.id.0, attr),
                    // Of `.` and `..` the kernel takes number and kind only.
                    None => dot_attr(entry.id.0),
                };
                reply.add(attr.ino, entry.next, entry.name, &ttl, &attr, Generation(0))
            };
            match fs.list(fh.0, offset, true, add).await {
                Ok(()) => reply.ok(),
                Err(failure) => reply.error(refused("listing a directory", ino.0, &failure)),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rename_with_flags_that_we_do_not_know_is_refused() {
        assert!(existing(RenameFlags::RENAME_WHITEOUT).is_err());
        assert_eq!(existing(RenameFlags::empty()), Ok(Existing::Replace));
    }
}
