//! Before calls on names: creating, deleting, renaming and linking.
//!
//! Nothing that existed at the checkpoint is ever destroyed: a file that the program deletes or replaces is moved, or
//! linked, into the store, inode and all; a file born in the interval is simply deleted. The statement comes first,
//! so a crash between it and the call leaves a statement about a move that did not happen, which restore passes over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::data::Change;
use super::place::{TreePath, trim_slashes};
use super::{Decision, Next, Watch};
use crate::control::Inside;
use crate::reach;
use crate::record::{Inode, Record, RelativePath};
use crate::store::{self, Store};

/// An open call between its question and its answer.
#[derive(Debug)]
pub struct Opening<'watch> {
    _inside: Option<Inside<'watch>>,
    creates: bool,
}

/// How an open call goes on.
#[derive(Debug)]
pub enum Open<'watch> {
    /// Call the real function, then hand what it returned to [`Watch::opened`].
    CallReal(Opening<'watch>),
    /// The call must not be made.
    Fail(Errno),
}

impl Watch {
    /// Before `open` with flags that may create or cut a file. Opening for reading need not ask.
    pub fn before_open(&self, directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Open<'_> {
        match self.prepare_open(directory, path, flags) {
            Ok(opening) => Open::CallReal(opening),
            Err(cause) => Open::Fail(cause),
        }
    }

    fn prepare_open(&self, directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Decision<Opening<'_>> {
        let plain = Opening { _inside: None, creates: false };
        if !flags.intersects(OFlags::CREATE | OFlags::TRUNC) || flags.contains(OFlags::PATH) {
            return Ok(plain);
        }
        match probe(directory, path, flags.contains(OFlags::NOFOLLOW)) {
            Ok(existing)
                if flags.contains(OFlags::TRUNC) && !flags.contains(OFlags::CREATE | OFlags::EXCL) =>
            {
                match self.before_path(existing.as_fd(), Change::Resize { size: 0 }) {
                    Next::CallReal(inside) => Ok(Opening { _inside: inside, creates: false }),
                    Next::Done => Ok(plain),
                    Next::Fail(cause) => Err(cause),
                }
            }
            // The kernel creates no file under a name that ends with a slash.
            Err(Errno::NOENT) if flags.contains(OFlags::CREATE) && path.last() != Some(&b'/') => {
                self.prepare_creation(directory, path, flags)
            }
            _ => Ok(plain),
        }
    }

    fn prepare_creation(
        &self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        flags: OFlags,
    ) -> Decision<Opening<'_>> {
        let Some(place) = self.place_to_create(directory, path)? else {
            return Ok(Opening { _inside: None, creates: false });
        };
        let inside = self.control.enter()?;
        if self.stat_at(&place)?.is_some() {
            // It has come into being since, perhaps before a checkpoint: from here on there is something to lose.
            drop(inside);
            return self.prepare_open(directory, path, flags);
        }
        self.store.log.append(&Record::Absent { path: place.path })?;
        Ok(Opening { _inside: Some(inside), creates: true })
    }

    /// After an open call succeeded with the descriptor `fd`, number `number`.
    pub fn opened(&self, fd: BorrowedFd<'_>, number: i32, opening: Opening<'_>) {
        if opening.creates {
            self.born(fd);
        }
        self.adopt(fd, number);
    }

    /// Before a call that creates a name other than by opening: `mkdir`, `symlink`, `link`, `mknod`.
    pub fn before_create(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Next<'_> {
        let place = match self.place_of_new(directory, path) {
            Ok(Some(place)) => place,
            Ok(None) => return Next::CallReal(None),
            Err(cause) => return Next::Fail(cause),
        };
        self.stating(|| match self.stat_at(&place)? {
            Some(_) => Ok(()),
            None => self.store.log.append(&Record::Absent { path: place.path }),
        })
    }

    /// Before `unlink`.
    pub fn before_unlink(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Next<'_> {
        self.before_removal(directory, path, |stat| !is_directory(stat) && path.last() != Some(&b'/'))
    }

    /// Before `rmdir`.
    pub fn before_rmdir(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Next<'_> {
        self.before_removal(directory, path, |stat| {
            is_directory(stat) && self.place(directory, path).is_some_and(|place| self.is_empty(&place))
        })
    }

    fn is_empty(&self, place: &TreePath) -> bool {
        crate::store::names_in(self.store.root(), &place.path).is_ok_and(|names| names.is_empty())
    }

    fn before_removal(
        &self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        will_succeed: impl FnOnce(&Stat) -> bool,
    ) -> Next<'_> {
        let Some(place) = self.place(directory, path) else { return Next::CallReal(None) };
        self.control.enter().and_then(|inside| self.remove(&place, inside, will_succeed)).into()
    }

    fn remove<'watch>(
        &self,
        place: &TreePath,
        inside: Inside<'watch>,
        will_succeed: impl FnOnce(&Stat) -> bool,
    ) -> Decision<Next<'watch>> {
        let Some(stat) = self.stat_at(place)?.filter(will_succeed) else {
            return Ok(Next::CallReal(Some(inside)));
        };
        if self.forget_if_born(&stat) {
            return Ok(Next::CallReal(Some(inside)));
        }
        let kept = self.state_keeping(place, &stat)?;
        reach::rename(self.store.root(), &place.path, &kept).map(|()| Next::Done)
    }

    /// Whether the last name of a file born in this interval is going away: then there is nothing to keep. A directory
    /// is always kept: a file that must come back may have left the tree from in there, and comes back the same way.
    fn forget_if_born(&self, stat: &Stat) -> bool {
        let inode = Inode(stat.st_ino);
        let mut state = self.state();
        let gone = state.is_born(inode) && stat.st_nlink == 1 && !is_directory(stat);
        if gone {
            state.forget(inode);
        }
        gone
    }

    /// States that what stands at `place` moves into the store, and returns where to.
    fn state_keeping(&self, place: &TreePath, stat: &Stat) -> Decision<Vec<u8>> {
        let kept = self.new_kept_name();
        if is_closed(stat) {
            // Its mode is lifted to move it. Stated first: it is made true when the directory is back at its place.
            self.state_bits(stat, place.path.clone())?;
        }
        self.state_move(stat, &place.path, &kept)?;
        Ok(kept)
    }

    pub(super) fn new_kept_name(&self) -> Vec<u8> {
        Store::kept_name(self.control.interval(), self.control.number_kept())
    }

    fn state_move(&self, stat: &Stat, from: &[u8], to: &[u8]) -> Decision<()> {
        let directory = is_directory(stat);
        let inode = Inode(stat.st_ino);
        self.store.log.append(&Record::Moved { inode, from: from.to_vec(), to: to.to_vec(), directory })
    }

    /// Before `rename` of `old` to `new`.
    pub fn before_rename(
        &self,
        old: (BorrowedFd<'_>, &[u8]),
        new: (BorrowedFd<'_>, &[u8]),
        flags: RenameFlags,
    ) -> Next<'_> {
        let from = self.place(old.0, old.1);
        let to = match self.place_of_new(new.0, new.1) {
            Ok(to) => to,
            Err(cause) => return Next::Fail(cause),
        };
        if from.is_none() && to.is_none() {
            return Next::CallReal(None);
        }
        // A name that leads nowhere is none outside: the kernel's answer, before anything is stated.
        let nowhere = [(&from, old), (&to, new)].into_iter().filter(|(place, _)| place.is_none());
        if let Some(cause) = nowhere.filter_map(|(_, (directory, name))| no_parent(directory, name)).next() {
            return Next::Fail(cause);
        }
        let decide = |inside| {
            let done = match (&from, &to) {
                (Some(from), Some(to)) if flags.contains(RenameFlags::EXCHANGE) => {
                    self.state_exchange(from, to).map(|()| false)
                }
                // As between file systems: what stood outside could not be put back there.
                _ if flags.contains(RenameFlags::EXCHANGE) => Err(Errno::XDEV),
                _ if is_refused_by_slash(old, new.1) => Ok(false),
                (Some(from), None) => self.state_moving_out(from).map(|()| false),
                (from, Some(to)) => self.rename_into(old, from.as_ref(), to, flags),
                (None, None) => Ok(false),
            };
            done.map(|done| if done { Next::Done } else { Next::CallReal(Some(inside)) })
        };
        self.control.enter().and_then(decide).into()
    }

    /// States a rename to `to`, from inside or outside the tree. When it replaces a file that must be kept, it is
    /// carried out here (true), else left to the caller.
    fn rename_into(
        &self,
        old: (BorrowedFd<'_>, &[u8]),
        from: Option<&TreePath>,
        to: &TreePath,
        flags: RenameFlags,
    ) -> Decision<bool> {
        let Ok(moved) = rustix::fs::statat(old.0, old.1, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(false) };
        let is_elsewhere = || self.canonical_on(old.0, old.1, |device| device == self.device).is_none();
        if from.map_or_else(is_elsewhere, |from| lies_below(to, from)) {
            return Ok(false);
        }
        let replaced = self.stat_at(to)?;
        if replaced.as_ref().is_some_and(|replaced| self.has_no_effect(&moved, replaced, to, flags)) {
            return Ok(false);
        }
        let kept = match &replaced {
            Some(replaced) if !self.forget_if_born(replaced) => Some(self.state_keeping(to, replaced)?),
            _ => None,
        };
        // What comes from outside goes to the trash when this is undone. Otherwise by its resolved name: the given one may
        // lead through a link that the exchange replaces.
        let arriving = store::trash_path(Inode(moved.st_ino));
        let source = from.map_or(&arriving, |from| &from.path);
        self.state_move(&moved, source, &to.path)?;
        let old = from.map_or(old, |from| (self.store.root(), from.path.as_slice()));
        match (kept, replaced) {
            (Some(kept), Some(replaced)) => self.replace_and_keep(old, to, &replaced, &kept).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Whether a rename of `moved` onto `replaced` fails or does nothing.
    fn has_no_effect(&self, moved: &Stat, replaced: &Stat, to: &TreePath, flags: RenameFlags) -> bool {
        flags.contains(RenameFlags::NOREPLACE)
            || is_directory(moved) != is_directory(replaced)
            || (is_directory(replaced) && !self.is_empty(to))
            || replaced.st_ino == moved.st_ino
    }

    /// Renames `old` to `to` so that what stood there ends at `kept`, and `to` always names one of the two. An exchange
    /// does that and moves the very name, so that descriptors open on the replaced file tell where it is; where the
    /// file system has none, the replaced file gets a second name first.
    fn replace_and_keep(
        &self,
        old: (BorrowedFd<'_>, &[u8]),
        to: &TreePath,
        replaced: &Stat,
        kept: &[u8],
    ) -> Decision<()> {
        let (root, to) = (self.store.root(), to.path.as_slice());
        let exchange = || rustix::fs::renameat_with(old.0, old.1, root, to, RenameFlags::EXCHANGE);
        let replace = || match exchange() {
            // Nothing has happened where it can't be kept: the disk may be full.
            Ok(()) => {
                rustix::fs::renameat(old.0, old.1, root, kept).or_else(|cause| exchange().and(Err(cause)))
            }
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(root, to, root, kept, AtFlags::empty())?;
                rustix::fs::renameat(old.0, old.1, root, to)
            }
            Err(cause) => Err(cause),
        };
        if is_closed(replaced) { reach::with_directory_open(root, to, kept, replace) } else { replace() }
    }

    fn state_exchange(&self, from: &TreePath, to: &TreePath) -> Decision<()> {
        let (Some(one), Some(other)) = (self.stat_at(from)?, self.stat_at(to)?) else { return Ok(()) };
        if one.st_ino == other.st_ino || lies_below(from, to) || lies_below(to, from) {
            return Ok(());
        }
        // As three moves by way of a name of ours: each of them can be followed and undone by itself.
        let between = self.new_kept_name();
        self.state_move(&one, &from.path, &between)?;
        self.state_move(&other, &to.path, &from.path)?;
        self.state_move(&one, &between, &to.path)
    }

    fn state_moving_out(&self, from: &TreePath) -> Decision<()> {
        let Some(stat) = self.stat_at(from)? else { return Ok(()) };
        if is_directory(&stat) {
            // As between file systems, so that programs copy and delete, which can be followed.
            return Err(Errno::XDEV);
        }
        let kept = self.state_keeping(from, &stat)?;
        let root = self.store.root();
        rustix::fs::linkat(root, from.path.as_slice(), root, kept.as_slice(), AtFlags::empty())
    }

    /// Before a call that changes the file at `path` without opening it: `truncate`, `utimensat`.
    pub fn before_path_change(&self, directory: BorrowedFd<'_>, path: &[u8], change: Change) -> Next<'_> {
        match probe(directory, path, false) {
            Ok(existing) => self.before_path(existing.as_fd(), change),
            Err(_) => Next::CallReal(None),
        }
    }

    /// Before `chmod` and its kin; `path` `None` means `directory` itself.
    pub fn before_mode(&self, directory: BorrowedFd<'_>, path: Option<&[u8]>) -> Next<'_> {
        let Some(path) = path else { return self.stating(|| self.state_mode(directory)) };
        let Ok(existing) = probe(directory, path, false) else { return Next::CallReal(None) };
        self.stating(|| self.state_mode(existing.as_fd()))
    }

    pub(super) fn state_mode(&self, existing: BorrowedFd<'_>) -> Decision<()> {
        let stat = rustix::fs::fstat(existing)?;
        self.path_of_any(existing, &stat)?.map_or(Ok(()), |path| self.state_bits(&stat, path))
    }

    fn state_bits(&self, stat: &Stat, path: RelativePath) -> Decision<()> {
        let bits = stat.st_mode & 0o7777;
        self.store.log.append(&Record::Mode { inode: Inode(stat.st_ino), path, bits })
    }
}

/// Whether it is a directory that its owner may not write to. The kernel removes such a one, when it is empty, but does not
/// move it to another directory.
fn is_closed(stat: &Stat) -> bool {
    is_directory(stat) && stat.st_mode & 0o200 == 0
}

/// Whether a name ends with a slash, which only directories may have, and what is renamed is none: also a link to one.
fn is_refused_by_slash(old: (BorrowedFd<'_>, &[u8]), new: &[u8]) -> bool {
    let says_directory = [old.1, new].iter().any(|name| name.last() == Some(&b'/'));
    let moved = || rustix::fs::statat(old.0, trim_slashes(old.1), AtFlags::SYMLINK_NOFOLLOW);
    says_directory && moved().is_ok_and(|moved| !is_directory(&moved))
}

/// Whether `place` lies somewhere below `directory`: the kernel moves nothing into itself.
fn lies_below(place: &TreePath, directory: &TreePath) -> bool {
    place.path.strip_prefix(directory.path.as_slice()).is_some_and(|rest| rest.starts_with(b"/"))
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// The file at `path`, opened without access: no permission needed, no side effect, no waiting.
fn probe(directory: BorrowedFd<'_>, path: &[u8], no_follow: bool) -> Decision<OwnedFd> {
    let follow = if no_follow { OFlags::NOFOLLOW } else { OFlags::empty() };
    rustix::fs::openat(directory, path, OFlags::PATH | OFlags::CLOEXEC | follow, Mode::empty())
}

/// Why the directory that holds `name` can't be reached, if it can't.
fn no_parent(directory: BorrowedFd<'_>, name: &[u8]) -> Option<Errno> {
    let end = name.iter().rposition(|byte| *byte == b'/')?;
    let parent = name.get(..end.max(1))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, parent, flags, Mode::empty()).err()
}
