//! Requests about names: looking up, making, removing, linking, renaming and listing.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, INodeNo, RenameFlags, ReplyCreate, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};
use parking_lot::Mutex;
use stdchk_model::Failure;
use stdchk_model::message::manager::{Existing, FileKind};

use super::Adapter;
use super::files::open_flags;
use super::reply::{Refuse, answer_change, answer_entry, or_refuse, refused, text};
use crate::attr::{dot_attr, file_attr, file_type};
use crate::fs::{FileSystem, Listed, New, NodeId, Shown};
use crate::user::Origin;

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
    pub(super) fn look_up(&self, caller: Origin, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        // What can't be a name here is not found here.
        let name = or_refuse!(text(name).map_err(|_| Errno::ENOENT), reply);
        let ttl = self.ttl;
        self.begin(self.carried(
            caller,
            reply,
            |fs, caller| async move { fs.lookup(NodeId(parent.0), &name, caller.task()).await },
            move |reply, found| answer_entry(reply, "a lookup", parent, ttl, found),
            |fs, found| async move { hide(&fs, found) },
        ));
    }

    pub(super) fn make(&self, caller: Origin, parent: INodeNo, name: &OsStr, new: New, reply: ReplyEntry) {
        let name = or_refuse!(text(name), reply);
        let ttl = self.ttl;
        self.spawn(self.carried(
            caller,
            reply,
            |fs, caller| async move { caller.step(fs.make(NodeId(parent.0), &name, new)).await },
            move |reply, made| answer_entry(reply, "making an entry", parent, ttl, made),
            |fs, made| async move { hide(&fs, made) },
        ));
    }

    /// Makes a file, or takes the one that is there, and opens it for the task `caller`; `flags`: of the `open()`.
    pub(super) fn make_open(
        &self,
        parent: INodeNo,
        name: &OsStr,
        new: New,
        (caller, flags): (Origin, i32),
        reply: ReplyCreate,
    ) {
        let name = or_refuse!(text(name), reply);
        let (exclusive, truncate) = (flags & libc::O_EXCL != 0, flags & libc::O_TRUNC != 0);
        let ttl = self.ttl;
        self.begin(self.carried(
            caller,
            reply,
            |fs, caller| async move {
                fs.create(NodeId(parent.0), &name, new, &caller, exclusive, truncate).await
            },
            move |reply, made| match made {
                Ok(made) => {
                    let attr = file_attr(made.shown.id.0, &made.shown.attr);
                    let (handle, ttl) = (FileHandle(made.handle), made.shown.lasts_for(ttl));
                    let flags = open_flags(!made.shown.lasts);
                    reply.created(&ttl, &attr, Generation(0), handle, flags);
                }
                Err(failure) => reply.error(refused("creating a file", parent.0, &failure)),
            },
            |fs, made| async move {
                if let Ok(made) = made {
                    fs.give_back(made.handle).await;
                    hide(&fs, Ok(made.shown));
                }
            },
        ));
    }

    pub(super) fn remove(&self, caller: Origin, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = or_refuse!(text(name), reply);
        self.spawn(self.carried(
            caller,
            reply,
            |fs, caller| async move { fs.unlink(NodeId(parent.0), &name, &caller).await },
            move |reply, removed| answer_change(reply, "a removal", parent, removed),
            |_, _| async {},
        ));
    }

    pub(super) fn remove_directory(&self, caller: Origin, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = or_refuse!(text(name), reply);
        let work = |fs: Arc<FileSystem>| async move { fs.rmdir(NodeId(parent.0), &name).await };
        self.ask(caller, reply, work, move |reply, removed| {
            answer_change(reply, "a removal", parent, removed);
        });
    }

    pub(super) fn move_name(
        &self,
        caller: Origin,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let existing = or_refuse!(existing(flags), reply);
        let (name, new_name) = (or_refuse!(text(name), reply), or_refuse!(text(new_name), reply));
        self.spawn(self.carried(
            caller,
            reply,
            |fs, caller| async move {
                let (from, to) = (NodeId(parent.0), NodeId(new_parent.0));
                fs.rename((from, &name), (to, &new_name), existing, &caller).await
            },
            move |reply, renamed| answer_change(reply, "a rename", parent, renamed),
            |_, _| async {},
        ));
    }

    pub(super) fn add_name(
        &self,
        caller: Origin,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = or_refuse!(text(name), reply);
        let ttl = self.ttl;
        self.spawn(self.carried(
            caller,
            reply,
            |fs, caller| async move {
                let task = caller.task();
                caller.step(fs.link(NodeId(ino.0), NodeId(parent.0), &name, task)).await
            },
            move |reply, linked| answer_entry(reply, "a link", parent, ttl, linked),
            |fs, linked| async move { hide(&fs, linked) },
        ));
    }

    pub(super) fn open_folder(&self, caller: Origin, ino: INodeNo, reply: ReplyOpen) {
        let (user, ttl) = (self.groups.user(caller), self.ttl);
        self.begin(self.carried(
            caller,
            reply,
            move |fs, caller| async move { fs.open_directory(NodeId(ino.0), user, ttl, caller.task()).await },
            move |reply, opened| match opened {
                Ok((number, is_known)) => {
                    let keep = if is_known { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
                    reply.opened(FileHandle(number), FopenFlags::FOPEN_CACHE_DIR | keep);
                }
                Err(failure) => reply.error(refused("opening a directory", ino.0, &failure)),
            },
            |fs, opened| async move {
                if let Ok((number, _)) = opened {
                    fs.close_directory(number);
                }
            },
        ));
    }

    pub(super) fn list(
        &self,
        caller: Origin,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let (into, page) = Page::new(reply);
        let work = |fs: Arc<FileSystem>| async move {
            let add = |entry: Listed<'_>| {
                into.add(|reply| {
                    reply.add(INodeNo(entry.id.0), entry.next, file_type(entry.kind), entry.name)
                })
            };
            fs.list(fh.0, offset, false, add).await
        };
        self.ask(caller, page, work, move |page, listed| page.answer(ino, listed));
    }

    pub(super) fn list_plus(
        &self,
        caller: Origin,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let ttl = self.ttl;
        let (into, page) = Page::new(reply);
        let work = |fs: Arc<FileSystem>, _| async move {
            let mut shown = Vec::new();
            let add = |entry: Listed<'_>| {
                let ttl = if entry.lasts { ttl } else { Duration::ZERO };
                let attr = match entry.attr {
                    Some(attr) => file_attr(entry.id.0, attr),
                    // Of `.` and `..` the kernel takes number and kind only.
                    None => dot_attr(entry.id.0),
                };
                let full =
                    into.add(|reply| reply.add(attr.ino, entry.next, entry.name, &ttl, &attr, Generation(0)));
                if entry.attr.is_some() && !full {
                    shown.push(entry.id);
                }
                full
            };
            let listed = fs.list(fh.0, offset, true, add).await;
            (listed, shown)
        };
        self.spawn(self.carried(
            caller,
            page,
            work,
            move |page, (listed, _)| page.answer(ino, listed),
            |fs, (_, shown)| async move { shown.into_iter().for_each(|id| fs.forget(id, 1)) },
        ));
    }
}

/// What was shown to the kernel did not reach it.
fn hide(fs: &FileSystem, shown: Result<Shown, Failure>) {
    if let Ok(shown) = shown {
        fs.forget(shown.id, 1);
    }
}

/// A page of a listing: filled by the work of the request, and answered once that is done or its caller gone.
struct Page<R>(Arc<Mutex<Option<R>>>);

impl<R> Page<R> {
    /// Where entries go, and what is answered.
    fn new(reply: R) -> (Self, Self) {
        let page = Arc::new(Mutex::new(Some(reply)));
        (Self(Arc::clone(&page)), Self(page))
    }

    /// Whether it takes no more; nothing does that was answered.
    fn add(&self, add: impl FnOnce(&mut R) -> bool) -> bool {
        self.0.lock().as_mut().is_none_or(add)
    }
}

/// The two kinds of listings.
trait Listing: Send + 'static {
    fn ok(self);
    fn error(self, errno: Errno);
}

macro_rules! listing {
    ($($reply:ty),+) => {
        $(impl Listing for $reply {
            fn ok(self) {
                self.ok();
            }
            fn error(self, errno: Errno) {
                self.error(errno);
            }
        })+
    };
}
listing!(ReplyDirectory, ReplyDirectoryPlus);

impl<R: Listing> Page<R> {
    fn answer(self, ino: INodeNo, listed: Result<(), Failure>) {
        match listed {
            Ok(()) => {
                if let Some(reply) = self.0.lock().take() {
                    reply.ok();
                }
            }
            Err(failure) => self.refuse(refused("listing a directory", ino.0, &failure)),
        }
    }
}

impl<R: Listing> Refuse for Page<R> {
    fn refuse(self, errno: Errno) {
        if let Some(reply) = self.0.lock().take() {
            reply.error(errno);
        }
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
