//! What must be stated before which call: the decisions of the preload library, in safe code and without its hooks, so
//! that tests can drive them with ordinary descriptors.
//!
//! A hook asks before the real call and gets a [`Next`]. What a process knows about the current interval (which files
//! were measured, which ranges saved, which files were born in it) is private to it and only spares work: two processes
//! that both save the same range write two statements, and undoing newest first ends at the older one.
//!
//! | module | decides for |
//! |---|---|
//! | [`data`] | calls on open files: write, truncate, map |
//! | [`names`] | calls on names: create, delete, rename, link |
//! | [`triggers`] | files whose renaming or closing takes a checkpoint |
//! | [`sets`] | files of checkpoint sets in a pool, whose commit a file state comes before |
//! | [`place`] | what a name or a descriptor refers to, and whether it is protected |
//! | `table`, `known` | descriptors and blocks that need no decision: the lock-free way past all of this |

pub mod data;
mod known;
pub mod names;
pub mod place;
pub mod sets;
mod table;
pub mod triggers;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;

use crate::control::{Control, Inside};
use crate::error::Result;
use crate::extents::Extents;
use crate::record::{Inode, RelativePath};
use crate::store::Store;
use crate::trigger::Event;
use known::Known;
use sets::SetFolder;
use table::Table;

/// What a hook does next.
#[derive(Debug)]
pub enum Next<'watch> {
    /// Call the real function while holding this; nothing else is to be done.
    CallReal(Option<Inside<'watch>>),
    /// The call has been carried out; report success.
    Done,
    /// The call must not be made: report this error.
    Fail(Errno),
}

/// The result inside decisions: an `Errno` becomes [`Next::Fail`].
pub type Decision<T> = std::result::Result<T, Errno>;

impl<'watch> From<Decision<Next<'watch>>> for Next<'watch> {
    fn from(decision: Decision<Next<'watch>>) -> Self {
        decision.unwrap_or_else(Next::Fail)
    }
}

/// What this process knows about the current interval.
#[derive(Debug, Default)]
pub struct State {
    generation: u64,
    /// The physical files (PIF): shared by all descriptors that are open on them.
    files: HashMap<Inode, PhysicalFile>,
    /// The watched descriptors (FIT): which file each number refers to.
    descriptors: HashMap<RawFd, Descriptor>,
    /// Where old contents stand between their file and the log: not on a stack, which may be a signal handler's.
    buffer: Vec<u8>,
}

/// A physical file in the current interval (Metamori's PIF, figure 4.3).
#[derive(Debug, Default)]
struct PhysicalFile {
    /// Its length when it was first touched in this interval; `None` before.
    size: Option<u64>,
    /// The ranges whose old contents are in the log.
    saved: Extents,
    /// It came into being in this interval: there is nothing to go back to.
    born: bool,
    /// The kept file that shares its blocks, and the process that made it: a child makes its own.
    clone: Option<(u32, RelativePath)>,
}

/// An open descriptor that can change a protected file (Metamori's FIT, figure 4.2; its seek pointer, dup list and
/// flags are the kernel's own).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descriptor {
    inode: Inode,
    append: bool,
    /// Whether it can read as well: then old contents are read through it.
    readable: bool,
}

/// The watch over one protected tree, in one process.
#[derive(Debug)]
pub struct Watch {
    /// The store of the tree.
    pub store: Store,
    /// The page shared with the other processes of the run.
    pub control: Control,
    device: u64,
    table: Table,
    known: Known,
    sets: Option<SetFolder>,
    waits_for_closing: bool,
    /// The longest file that this process may write, where it is limited.
    limit: Option<u64>,
    state: Mutex<State>,
}

impl Watch {
    /// Watches the tree of `store`.
    pub fn new(store: Store, control: Control) -> Result<Self> {
        use crate::error::Error;
        let root = store.root_path().to_owned();
        let device = rustix::fs::fstat(store.root()).map_err(Error::system("inspect", &root))?.st_dev;
        let sets = store.options.sets.as_ref().map(SetFolder::new).transpose()?;
        let waits_for_closing = store.options.triggers.iter().any(|trigger| trigger.event == Event::Closed);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        let (table, known, state) = (Table::new(), Known::new(), Mutex::default());
        Ok(Self { store, control, device, table, known, sets, waits_for_closing, limit, state })
    }

    /// Whether calls that change the file behind `fd` must ask first. Two loads; no lock.
    #[inline]
    pub fn is_watched(&self, fd: RawFd) -> bool {
        self.table.is_watched(fd)
    }

    /// Enters, makes the statement, and leaves the call to the kernel.
    fn stating(&self, statement: impl FnOnce() -> Decision<()>) -> Next<'_> {
        let entered = self.control.enter();
        entered.and_then(|inside| statement().map(|()| Next::CallReal(Some(inside)))).into()
    }

    /// The state, with what is void since the last checkpoint or restore forgotten.
    pub fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.control.generation();
        if state.generation != generation {
            state.generation = generation;
            state.files.clear();
        }
        state
    }

    /// Leaves the new descriptor `number` to be looked at before its first change: many are closed without one. False, and
    /// nothing done, where it has to be looked at now. Takes no lock and allocates nothing.
    #[inline]
    pub fn look_later(&self, number: RawFd) -> bool {
        !self.follows_sets() && !self.is_looked_at(number) && self.table.look_later(number)
    }

    /// Leaves the new descriptor `number` to be looked at before its first change, and makes room in the table for it; looks at it
    /// now where that can't be. May allocate, unlike [`Watch::look_later`].
    pub fn look_later_or_now(&self, fd: impl AsFd, number: RawFd) {
        if self.follows_sets() || self.is_looked_at(number) || !self.table.look_later_on_page(number) {
            self.adopt(fd, number);
        }
    }

    /// Whether the number says something of a descriptor: an earlier one's, where it was closed unseen.
    fn is_looked_at(&self, number: RawFd) -> bool {
        self.is_watched(number) && !self.is_unlooked(number)
    }

    /// Whether `fd` was left to be looked at before its first change.
    #[inline]
    pub fn is_unlooked(&self, fd: RawFd) -> bool {
        self.table.is_unlooked(fd)
    }

    /// The descriptor that is to be looked at isn't open on a protected file, or is closed. Takes no lock.
    pub fn leave_alone(&self, fd: RawFd) {
        self.table.unwatch(fd);
    }

    /// Whether `fd` is certainly not open on a protected file. Takes no lock.
    pub fn is_surely_outside(&self, fd: BorrowedFd<'_>) -> bool {
        rustix::fs::fstat(fd).is_ok_and(|stat| self.cannot_be_ours(&stat))
    }

    /// Whether opening `path` certainly opens what is there and not protected. Takes no lock.
    pub fn opens_outside(&self, directory: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> bool {
        let follow =
            if flags.contains(OFlags::NOFOLLOW) { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
        rustix::fs::statat(directory, path, follow).is_ok_and(|stat| self.cannot_be_ours(&stat))
    }

    fn cannot_be_ours(&self, stat: &rustix::fs::Stat) -> bool {
        stat.st_dev != self.device || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
    }

    /// Looks at the new descriptor `fd` and watches it if it can change a protected file.
    pub fn adopt(&self, fd: impl AsFd, number: RawFd) {
        let found = self.inspect(fd.as_fd()).ok().flatten();
        self.set(number, found);
        self.note_member(fd, number);
    }

    fn set(&self, number: RawFd, descriptor: Option<Descriptor>) {
        let mut state = self.state();
        // What is written at the offset of a descriptor that appends goes elsewhere: blocks say nothing about it.
        let inode = |descriptor: &Descriptor| if descriptor.append { Inode(0) } else { descriptor.inode };
        match descriptor.filter(|descriptor| self.table.watch(number, inode(descriptor))) {
            Some(descriptor) => drop(state.descriptors.insert(number, descriptor)),
            None => {
                self.table.unwatch(number);
                state.descriptors.remove(&number);
            }
        }
    }

    /// `copy` is now the same open file as `original`.
    pub fn duplicated(&self, original: RawFd, copy: RawFd) {
        if self.is_unlooked(original) {
            self.set(copy, None);
            self.table.look_later_on_page(copy);
        } else if self.is_watched(original) || self.is_watched(copy) {
            let descriptor = self.state().descriptors.get(&original).copied();
            self.set(copy, descriptor);
        }
        if self.follows_sets() {
            self.copy_member(original, copy);
        }
    }

    /// `fd` is being closed.
    pub fn closed(&self, fd: RawFd) {
        if self.is_watched(fd) {
            self.set(fd, None);
        }
    }

    /// Every watched descriptor in `first..=last` is being closed.
    pub fn closed_range(&self, first: RawFd, last: RawFd) {
        let numbers: Vec<RawFd> = self.state().descriptors.keys().copied().collect();
        for fd in numbers.into_iter().filter(|fd| (first..=last).contains(fd)) {
            self.set(fd, None);
        }
        self.table.clear_unlooked(first, last);
        if self.follows_sets() {
            self.table.clear_members(first, last);
        }
    }

    /// The status flags of `fd` were changed, and with them those of its duplicates: whichever these are, no descriptor
    /// of the file is taken for appending on the word of an earlier look.
    pub fn flags_changed(&self, fd: RawFd, append: bool) {
        let state = self.state();
        let Some(inode) = state.descriptors.get(&fd).map(|descriptor| descriptor.inode) else { return };
        let same = |(_, descriptor): &(&RawFd, &Descriptor)| descriptor.inode == inode;
        let changed: Vec<(RawFd, Descriptor)> =
            state.descriptors.iter().filter(same).map(|(number, known)| (*number, *known)).collect();
        drop(state);
        for (number, known) in changed {
            let append = if number == fd { append } else { append && known.append };
            self.set(number, Some(Descriptor { append, ..known }));
        }
    }

    /// The descriptors that the watch itself holds open: programs must not close them.
    pub fn own_descriptors(&self) -> [RawFd; 3] {
        use std::os::fd::AsRawFd;
        let directory: &OwnedFd = self.store.directory();
        [self.store.root().as_raw_fd(), directory.as_raw_fd(), self.store.log.as_fd().as_raw_fd()]
    }
}
