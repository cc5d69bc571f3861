//! What the kernel holds of the name space: its inodes, and what it believes of each.
//!
//! With its write-back cache on, the kernel keeps size and modification time of a file that it has seen and never asks
//! for them again. That is right for changes that come through this mount and wrong for all others. So a file that
//! was changed elsewhere is shown to the kernel as a new inode: the number of the file with the next *epoch* in its high
//! bits, as if the file had been replaced by a rename. Handles on the old inode go on reading the version that they
//! opened; paths lead to the new one.
//!
//! The kernel also doesn't note the time of what goes past its page cache. A file that was written so has the time of its
//! last write in the pool and that of its creation in the kernel: it becomes another inode in the same way once it is closed.
//!
//! The same goes for a file that was given a name or lost one elsewhere. The kernel believes names for a second; an open
//! through one of them must not reach a file that no longer has it, and which one the kernel used it doesn't say. So all
//! names of that inode count as outdated.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk_model::message::manager::{Attr, FileKind, TimeNs};
use stdchk_model::{Ino, User};

use super::open_file::OpenFile;

/// Bits of a kernel's inode number that hold the pool's: 2^48 files made one every microsecond take nine years.
const INO_BITS: u32 = 48;

/// An inode number as the kernel sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct NodeId(pub u64);

impl NodeId {
    fn new(ino: Ino, epoch: u16) -> Self {
        Self(ino.0 | u64::from(epoch) << INO_BITS)
    }

    /// The inode of the pool.
    pub fn ino(self) -> Ino {
        Ino(self.0 & ((1 << INO_BITS) - 1))
    }
}

/// The content that the kernel's size, time and pages of a file are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub size: u64,
    pub mtime: TimeNs,
    /// Number of the version; 0: never committed.
    pub version: u64,
}

impl Seen {
    pub fn of(attr: &Attr) -> Self {
        Self { size: attr.size, mtime: attr.mtime, version: attr.version }
    }

    pub fn fits(&self, attr: &Attr) -> bool {
        *self == Self::of(attr)
    }

    fn is_content_of(&self, attr: &Attr) -> bool {
        (self.version, self.size) == (attr.version, attr.size)
    }
}

struct Node {
    lookups: u64,
    seen: Seen,
    /// `named` of the file when the kernel was last shown a name for it. Names that the kernel remembers from before a
    /// change that was made elsewhere may lead to other files by now.
    named: TimeNs,
    /// When the kernel began to list it last, of a directory, and for which user.
    listed: Option<(Instant, Option<User>)>,
    /// What the pool last said of it: for what new entries of a directory inherit, and for files that are gone and open.
    attr: Attr,
    /// Target of a symbolic link, once it is known: no link ever gets another.
    target: Option<Arc<str>>,
    /// The task that was told last that the names of this inode were changed elsewhere.
    refused: Option<u32>,
    /// When it said so, of a directory, and the value of [`Nodes::others`] then.
    said: Option<(Instant, u64)>,
}

/// The inodes of one pool file that the kernel holds, or that are open here: one that waits in the spool is open for longer than the
/// kernel may hold it, and must be found under the same number.
#[derive(Default)]
struct Line {
    epoch: u16,
    nodes: u32,
    open: Vec<NodeId>,
}

/// All inodes that the kernel holds: as many as the kernel chooses to cache, it says which it forgets.
#[derive(Default)]
pub(crate) struct Nodes {
    nodes: HashMap<NodeId, Node>,
    lines: HashMap<Ino, Line>,
    open: HashMap<NodeId, Arc<OpenFile>>,
    changes: u64,
    /// Counts the changes made through this mount in folders.
    in_folders: u64,
    /// Counts those of them that were more than the making of a file.
    others: u64,
}

impl Nodes {
    /// Counts the changes made through this mount. An attribute that was asked for before one may be outdated.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Counts the changes made through this mount in folders, of which an attribute of a folder may know nothing that was
    /// asked for before.
    pub fn changes_in_folders(&self) -> u64 {
        self.in_folders
    }

    /// The inode under which the kernel is shown `attr`, with one more lookup of it; `asked_at`: [`Nodes::changes`] when
    /// the attribute was asked for. `None`: it may be older than a change of ours, ask again.
    pub fn present(&mut self, attr: &Attr, asked_at: u64) -> Option<NodeId> {
        let id = self.current(attr, asked_at)?;
        let (written, past_cache) = (self.is_written(id), self.goes_past_cache(id));
        let node = self.nodes.entry(id).or_insert_with(|| {
            self.lines.entry(attr.ino).or_default().nodes += 1;
            let (seen, named, attr) = (Seen::of(attr), attr.named, attr.clone());
            let (listed, target, refused, said) = (None, None, None, None);
            Node { lookups: 0, seen, named, listed, attr, target, refused, said }
        });
        node.lookups += 1;
        node.named = attr.named;
        (node.attr, node.said) = (attr.clone(), None);
        if !written && !past_cache {
            node.seen = Seen::of(attr);
        }
        Some(id)
    }

    fn current(&mut self, attr: &Attr, asked_at: u64) -> Option<NodeId> {
        let now = self.id_of(attr.ino);
        let known = self.nodes.get(&now);
        let differs = known.is_some_and(|node| !node.seen.fits(attr) || node.named != attr.named);
        if !differs || attr.kind != FileKind::File || self.is_written(now) {
            return Some(now);
        }
        // What was written past the kernel's cache shall have its true time, but not before all have closed it.
        let same = known.is_some_and(|node| node.seen.is_content_of(attr) && node.named == attr.named);
        if same && self.goes_past_cache(now) {
            return Some(now);
        }
        if asked_at != self.changes {
            return None;
        }
        let line = self.lines.entry(attr.ino).or_default();
        line.epoch = line.epoch.wrapping_add(1);
        Some(NodeId::new(attr.ino, line.epoch))
    }

    /// Has the file shown to the kernel as another inode from now on. Returns [`Nodes::changes`]; nothing for an inode that is
    /// open for writing here, or isn't the file's any more.
    pub fn renew(&mut self, id: NodeId) -> Option<u64> {
        if self.is_written(id) || self.id_of(id.ino()) != id || !self.lines.contains_key(&id.ino()) {
            return None;
        }
        self.replace(id);
        Some(self.changes)
    }

    /// Has the file behind an inode that the kernel holds, or that is open, shown as another one from now on.
    pub fn replace(&mut self, id: NodeId) {
        if let Some(line) = self.lines.get_mut(&id.ino()) {
            line.epoch = line.epoch.wrapping_add(1);
        }
        self.changes += 1;
    }

    /// Whether anyone has the inode open for writing here.
    pub fn is_written(&self, id: NodeId) -> bool {
        self.open.get(&id).is_some_and(|open| open.writer().is_some())
    }

    /// Whether the inode is open in the way that goes past the kernel's page cache.
    fn goes_past_cache(&self, id: NodeId) -> bool {
        self.open.get(&id).is_some_and(|open| open.goes_past_cache())
    }

    /// The inode number that entries of this file carry now.
    pub fn id_of(&self, ino: Ino) -> NodeId {
        NodeId::new(ino, self.lines.get(&ino).map_or(0, |line| line.epoch))
    }

    /// The kernel drops `lookups` of its references.
    pub fn forget(&mut self, id: NodeId, lookups: u64) {
        let Entry::Occupied(mut node) = self.nodes.entry(id) else { return };
        node.get_mut().lookups = node.get().lookups.saturating_sub(lookups);
        if node.get().lookups > 0 {
            return;
        }
        node.remove();
        self.leave_line(id, |line| line.nodes -= 1);
    }

    fn leave_line(&mut self, id: NodeId, leave: impl FnOnce(&mut Line)) {
        if let Entry::Occupied(mut line) = self.lines.entry(id.ino()) {
            leave(line.get_mut());
            if line.get().nodes == 0 && line.get().open.is_empty() {
                line.remove();
            }
        }
    }

    /// The open file behind an inode, if it is open.
    pub fn open_file(&self, id: NodeId) -> Option<Arc<OpenFile>> {
        self.open.get(&id).cloned()
    }

    /// The open file behind an inode, made for its first handle; `None` for an inode that the kernel doesn't hold.
    pub fn open_or_new(&mut self, id: NodeId) -> Option<Arc<OpenFile>> {
        let seen = self.nodes.get(&id)?.seen;
        if !self.open.contains_key(&id) {
            self.adopt(Arc::new(OpenFile::new(id, seen)));
        }
        self.open_file(id)
    }

    /// A file that an earlier mount left in the spool is open until it is pushed.
    pub fn adopt(&mut self, file: Arc<OpenFile>) {
        let id = file.id();
        if self.open.insert(id, file).is_none() {
            self.lines.entry(id.ino()).or_default().open.push(id);
        }
    }

    /// The last handle of an inode is closed.
    pub fn closed(&mut self, id: NodeId) {
        if self.open.remove(&id).is_some() {
            self.leave_line(id, |line| line.open.retain(|open| *open != id));
        }
    }

    /// Whether any file is open.
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The open files behind the inodes of a pool file.
    pub fn open_of(&self, ino: Ino) -> Vec<Arc<OpenFile>> {
        let ids = self.lines.get(&ino).into_iter().flat_map(|line| &line.open);
        ids.filter_map(|id| self.open_file(*id)).collect()
    }

    /// All open files.
    pub fn all_open(&self) -> Vec<Arc<OpenFile>> {
        self.open.values().cloned().collect()
    }

    /// What the kernel believes of an inode changes by a change of ours.
    pub fn saw(&mut self, id: NodeId, change: impl FnOnce(&mut Seen)) {
        self.changes += 1;
        if let Some(node) = self.nodes.get_mut(&id) {
            change(&mut node.seen);
        }
    }

    /// This mount gave a file a name or took one from it; `attr` is the answer.
    pub fn named_here(&mut self, attr: &Attr) {
        self.changes += 1;
        let id = self.id_of(attr.ino);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.named = attr.named;
        }
    }

    /// A directory has lost its name by a change made here. Programs that work in it, or have it open, still ask for it.
    pub fn removed_here(&mut self, attr: &Attr) {
        let id = self.id_of(attr.ino);
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.attr, node.said) = (Attr { links: 0, ..attr.clone() }, None);
        }
    }

    /// Whether an inode is that of a directory that was removed here.
    pub fn is_removed_directory(&self, id: NodeId) -> bool {
        self.last_attr(id).is_some_and(|attr| attr.kind == FileKind::Directory && attr.links == 0)
    }

    /// Whether the names that the kernel remembers of an inode are still its names.
    pub fn is_named(&self, id: NodeId, attr: &Attr) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.named == attr.named)
    }

    /// Whether a task is to look up the name again by which it came to this inode: the names of the inode were changed elsewhere. A
    /// task that comes to the same inode once more has a descriptor of it, or works in it, and is let through.
    pub fn refuses(&mut self, id: NodeId, now: &Attr, task: u32) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else { return true };
        let came_again = node.refused.take() == Some(task);
        let refuses = node.named != now.named && !came_again;
        node.refused = refuses.then_some(task);
        refuses
    }

    /// The target of a symbolic link, if it is known.
    pub fn target(&self, id: NodeId) -> Option<Arc<str>> {
        self.nodes.get(&id)?.target.clone()
    }

    /// The pool said where a symbolic link leads.
    pub fn learned_target(&mut self, id: NodeId, target: Arc<str>) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.target = Some(target);
        }
    }

    /// The kernel opens a directory for a user: whether it may list what it has of it, which it asked for less than `ttl` ago and for
    /// the same user.
    pub fn opens_directory(&mut self, id: NodeId, user: Option<User>, ttl: Duration) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        let known = node.listed.as_ref().is_some_and(|(at, of)| at.elapsed() < ttl && *of == user);
        if !known {
            node.listed = Some((Instant::now(), user));
        }
        known
    }

    /// What the pool last said of an inode.
    pub fn last_attr(&self, id: NodeId) -> Option<&Attr> {
        self.nodes.get(&id).map(|node| &node.attr)
    }

    /// The pool said this of an inode; `asked_at`: [`Nodes::changes_in_folders`] when it was asked.
    pub fn learned(&mut self, id: NodeId, attr: &Attr, asked_at: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.attr = attr.clone();
            let lasts = attr.kind == FileKind::Directory && asked_at == self.in_folders;
            node.said = lasts.then(|| (Instant::now(), self.others));
        }
    }

    /// What the pool said of a directory less than `ttl` ago, and for how long that may still be believed. Between any two files
    /// that are made in it the kernel asks for it.
    pub fn lasting_attr(&self, id: NodeId, ttl: Duration) -> Option<(Attr, Duration)> {
        let node = self.nodes.get(&id)?;
        let (said, others) = node.said?;
        let left = ttl.checked_sub(said.elapsed())?;
        (others == self.others).then(|| (node.attr.clone(), left))
    }

    /// A file was made in a directory, which changed it at that moment.
    pub fn made_in(&mut self, parent: NodeId, at: TimeNs) {
        self.in_folders += 1;
        if let Some(node) = self.nodes.get_mut(&parent) {
            // Somebody may have set a time to come.
            node.said = node.said.filter(|_| at >= node.attr.mtime);
            (node.attr.mtime, node.attr.ctime) = (at, at);
        }
    }

    /// This mount changed something else than that it made a file: what is known of any directory may be outdated.
    pub fn changed_otherwise(&mut self) {
        self.changes += 1;
        self.in_folders += 1;
        self.others += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(nodes: &mut Nodes, attr: &Attr) -> NodeId {
        let now = nodes.changes();
        nodes.present(attr, now).unwrap()
    }

    fn attr(version: u64, size: u64) -> Attr {
        let (ino, kind) = (Ino(7), FileKind::File);
        let (mode, uid, gid, links, atime, mtime, ctime, named) = (0o644, 0, 0, 1, 0, 5, 5, 1);
        let hole_bytes = 0;
        Attr { ino, kind, mode, uid, gid, links, size, atime, mtime, ctime, version, named, hole_bytes }
    }

    #[test]
    fn a_file_that_changed_elsewhere_is_another_inode_and_an_unchanged_one_the_same() {
        let mut nodes = Nodes::default();
        let first = present(&mut nodes, &attr(1, 10));
        assert_eq!(present(&mut nodes, &attr(1, 10)), first);
        let second = present(&mut nodes, &attr(2, 20));
        assert_ne!(second, first);
        assert_eq!((second.ino(), nodes.id_of(Ino(7))), (Ino(7), second));
    }

    #[test]
    fn a_directory_keeps_its_inode_whatever_changes_in_it() {
        let mut nodes = Nodes::default();
        let directory = |mtime| Attr { kind: FileKind::Directory, mtime, ..attr(0, 0) };
        let first = present(&mut nodes, &directory(1));
        assert_eq!(present(&mut nodes, &directory(2)), first);
    }

    #[test]
    fn an_inode_is_dropped_with_its_last_lookup() {
        let mut nodes = Nodes::default();
        let id = present(&mut nodes, &attr(1, 10));
        present(&mut nodes, &attr(1, 10));
        nodes.forget(id, 1);
        assert!(nodes.last_attr(id).is_some());
        nodes.forget(id, 1);
        assert!(nodes.last_attr(id).is_none() && nodes.lines.is_empty());
    }

    #[test]
    fn an_open_file_keeps_its_number_when_the_kernel_forgets_its_inode() {
        let mut nodes = Nodes::default();
        let first = present(&mut nodes, &attr(1, 10));
        let second = present(&mut nodes, &attr(2, 20));
        nodes.forget(first, 1);
        assert!(nodes.open_or_new(second).is_some());
        nodes.forget(second, 1);
        assert_eq!(nodes.id_of(Ino(7)), second, "what waits in the spool is found");
        assert_eq!(present(&mut nodes, &attr(2, 20)), second);
        nodes.forget(second, 1);
        nodes.closed(second);
        nodes.closed(second);
        assert!(nodes.lines.is_empty() && nodes.open.is_empty());
    }

    #[test]
    fn a_file_renamed_here_may_change_its_number_but_not_its_content() {
        let mut nodes = Nodes::default();
        let id = present(&mut nodes, &attr(1, 10));
        nodes.saw(id, |seen| seen.version = 6);
        assert_eq!(present(&mut nodes, &attr(6, 10)), id);
        assert_ne!(present(&mut nodes, &attr(7, 10)), id);
    }

    #[test]
    fn a_file_whose_names_changed_elsewhere_is_another_inode_and_one_that_was_named_here_the_same() {
        let mut nodes = Nodes::default();
        let id = present(&mut nodes, &attr(1, 10));
        let linked = Attr { named: 2, links: 2, ..attr(1, 10) };
        assert!(!nodes.is_named(id, &linked));
        nodes.named_here(&linked);
        assert!(nodes.is_named(id, &linked));
        assert_eq!(present(&mut nodes, &linked), id);
        let moved = Attr { named: 3, ..attr(1, 10) };
        assert_ne!(present(&mut nodes, &moved), id);
        assert!(!nodes.is_named(id, &moved));
    }

    #[test]
    fn an_answer_that_is_older_than_our_own_change_is_asked_for_again() {
        let mut nodes = Nodes::default();
        let id = present(&mut nodes, &attr(1, 10));
        let asked_at = nodes.changes();
        nodes.saw(id, |seen| *seen = Seen { size: 20, mtime: 5, version: 2 });
        assert_eq!(nodes.present(&attr(1, 10), asked_at), None);
        assert_eq!(present(&mut nodes, &attr(2, 20)), id);
    }
}
