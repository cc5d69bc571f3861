//! The namespace: inodes and names, in memory, with a note of what changed and must be stored.
//!
//! Every operation checks first and changes then, so that a refused operation leaves nothing behind. Inode numbers and positions
//! in time only ever rise, whatever the calendar does. The files beside this one add renaming, versions, policies and storing to the same structure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use stdchk_model::limits::{LIST_ENTRIES_MAX, PATH_BYTES_MAX};
use stdchk_model::message::manager::{Attr, Change, DirEntry, FileKind, TimeNs};
use stdchk_model::{ErrorCode, Failure, Ino, MapRoot, SessionId, User, name};

use super::bases::Bases;
use super::inode::{Body, Directory, File, Inode};
use super::lifetimes::Noted;
use super::lineage::{LineageId, VersionKey};
use crate::record::GIVEN_UP_INOS;

/// Most names of one file: ext4's limit, which programs are known to cope with.
const LINKS_MAX: u32 = 65_000;
/// Permission bits that are kept: permissions, sticky and set-id bits.
const MODE_BITS: u32 = 0o7777;

/// The namespace of a pool.
#[derive(Debug)]
pub struct Namespace {
    pub(super) inodes: HashMap<Ino, Inode>,
    pub(super) next_ino: u64,
    /// Inode numbers below it may be given out; stored before they are.
    pub(super) ino_ceiling: u64,
    /// Time of the present operation by the calendar, which may be set back. No two operations within a second have the same.
    pub(super) clock: TimeNs,
    /// Position of the present operation among all: its time, or just behind the last one where the calendar was set back. What is
    /// ordered by time is ordered by this.
    pub(super) position: TimeNs,
    /// Files that sessions have open, with how many; they outlive their last name.
    pub(super) held: HashMap<Ino, u32>,
    /// Sessions of before the manager's start may still come back: what they have open is kept, whichever that is.
    pub(super) unsettled: bool,
    /// Lineages of files that have another one than the one that their inode was made with, with these files.
    pub(super) lineages: HashMap<LineageId, Ino>,
    /// Versions whose writers still have the file open.
    pub(super) open: HashMap<SessionId, VersionKey>,
    pub(super) versions: u64,
    pub(super) logical_bytes: u64,
    /// Of these the versions that readers of files see, and their bytes; the others are older.
    pub(super) shown: Shown,
    /// Versions that were closed early and never committed, by their sessions.
    pub(super) lost: BTreeSet<(SessionId, VersionKey)>,
    /// Versions that came or went, in this order, and were not counted for their chunks yet.
    pub(super) references: Vec<Reference>,
    pub(super) changed: Changed,
    /// What is noted of the checkpoint sets of folders, if anything is.
    pub(super) noted: BTreeMap<Ino, Noted>,
    /// Versions that are kept for files in spools.
    pub(super) bases: Bases,
    /// For how long the manager has lived, all its starts together, milliseconds: what ages are measured by, whatever the calendar does.
    pub(super) lived_ms: u64,
    /// Versions that a rename replaced lately, by the sessions that committed them, and when, of the manager's life.
    pub(super) replaced: HashMap<SessionId, u64>,
    /// For whom the present operation is done; `None`: for who may do all.
    pub(super) user: Option<User>,
}

/// The versions that readers of files see.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    pub(super) versions: u64,
    pub(super) bytes: u64,
}

/// A version that came, or went.
#[derive(Clone, Debug)]
pub struct Reference {
    pub(super) root: MapRoot,
    /// How far from loss it wants its chunks.
    pub(super) wanted: u8,
    pub(super) is_new: bool,
}

/// A calendar that goes back by less only stands for a while, nanoseconds.
const SET_BACK_NS: TimeNs = 1_000_000_000;

/// What differs from the store.
#[derive(Debug, Default)]
pub struct Changed {
    pub pool: bool,
    pub inodes: BTreeSet<Ino>,
    pub entries: BTreeSet<(Ino, String)>,
    pub versions: BTreeSet<VersionKey>,
    pub policies: BTreeSet<Ino>,
    pub noted: BTreeSet<Ino>,
}

pub(super) fn absent(ino: Ino) -> Failure {
    Failure::new(ErrorCode::NotFound, format!("there is no inode {ino} (any more): look its name up again"))
}

fn no_entry(name: &str) -> Failure {
    Failure::new(ErrorCode::NotFound, format!("there is no `{}` in this directory", name.escape_debug()))
}

impl Namespace {
    /// Numbers of inodes that are stored as given out at a time.
    pub(super) const INO_STEP: u64 = 4096;

    pub(super) fn empty() -> Self {
        Self {
            inodes: HashMap::new(),
            next_ino: Ino::ROOT.0 + 1,
            ino_ceiling: Ino::ROOT.0 + 1,
            clock: 0,
            position: 0,
            held: HashMap::new(),
            unsettled: false,
            lineages: HashMap::new(),
            open: HashMap::new(),
            versions: 0,
            logical_bytes: 0,
            shown: Shown::default(),
            lost: BTreeSet::new(),
            references: Vec::new(),
            changed: Changed::default(),
            noted: BTreeMap::new(),
            bases: Bases::default(),
            lived_ms: 0,
            replaced: HashMap::new(),
            user: None,
        }
    }

    /// A namespace with nothing but its root, which belongs to `owner` (user, group).
    pub fn new(owner: (u32, u32), now: TimeNs) -> Self {
        let mut namespace = Self::empty();
        namespace.advance(now);
        let root = namespace.blank(Ino::ROOT, 0o755, owner, Body::Directory(Directory::default()));
        namespace.inodes.insert(Ino::ROOT, root);
        namespace.changed.inodes.insert(Ino::ROOT);
        namespace
    }

    /// Sets the time and the position of the next operation.
    pub fn advance(&mut self, now: TimeNs) {
        let is_set_back = self.clock.saturating_sub(now) >= SET_BACK_NS;
        self.clock = if is_set_back { now } else { now.max(self.clock.saturating_add(1)) };
        self.position = now.max(self.position.saturating_add(1));
    }

    /// How many inodes there are.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    pub(super) fn inode(&self, ino: Ino) -> Result<&Inode, Failure> {
        self.inodes.get(&ino).ok_or_else(|| absent(ino))
    }

    /// The inode for a change, noted as changed.
    pub(super) fn inode_mut(&mut self, ino: Ino) -> Result<&mut Inode, Failure> {
        let inode = self.inodes.get_mut(&ino).ok_or_else(|| absent(ino))?;
        self.changed.inodes.insert(ino);
        Ok(inode)
    }

    pub(super) fn directory(&self, ino: Ino) -> Result<&Directory, Failure> {
        match &self.inode(ino)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Failure::new(ErrorCode::NotADirectory, format!("inode {ino} is no directory"))),
        }
    }

    pub(super) fn file(&self, ino: Ino) -> Result<&File, Failure> {
        match &self.inode(ino)?.body {
            Body::File(file) => Ok(file),
            Body::Directory(_) => {
                Err(Failure::new(ErrorCode::IsADirectory, format!("inode {ino} is a directory, not a file")))
            }
            Body::Symlink(_) => {
                Err(Failure::new(ErrorCode::Invalid, format!("inode {ino} is a symbolic link, not a file")))
            }
            Body::Meeting(_) => {
                let message = format!("inode {ino} is a named pipe or a socket, not a file with content");
                Err(Failure::new(ErrorCode::Invalid, message))
            }
        }
    }

    /// The inode that `name` stands for, if any.
    pub(super) fn find(&self, parent: Ino, name: &str) -> Result<Option<Ino>, Failure> {
        Ok(self.directory(parent)?.entries.get(name).copied())
    }

    pub(super) fn entry(&self, parent: Ino, name: &str) -> Result<Ino, Failure> {
        self.find(parent, name)?.ok_or_else(|| no_entry(name))
    }

    // --- reading

    /// What clients are told of an inode.
    pub fn attr(&self, ino: Ino) -> Result<Attr, Failure> {
        Ok(self.inode(ino)?.attr(ino))
    }

    /// The entry `name` of a directory.
    ///
    /// # Errors
    /// `NotFound`: the directory has no such name. `Stale`: there is no such directory any more, and the name by which the asker came to
    /// it may lead to another one.
    pub fn lookup(&self, parent: Ino, name: &str) -> Result<Attr, Failure> {
        name::check(name)?;
        if !self.inodes.contains_key(&parent) {
            return Err(Failure { code: ErrorCode::Stale, ..absent(parent) });
        }
        self.attr(self.entry(parent, name)?)
    }

    /// The inode at a path from the root; symbolic links are not followed.
    pub fn resolve(&self, path: &str) -> Result<Attr, Failure> {
        let mut ino = Ino::ROOT;
        for name in name::split(path)? {
            ino = self.entry(ino, name).map_err(|failure| self.below(ino, failure))?;
        }
        self.attr(ino)
    }

    /// The failure to find a name below `ino`, in words that name `ino` by its path if that is no directory.
    fn below(&self, ino: Ino, failure: Failure) -> Failure {
        match failure.code {
            ErrorCode::NotADirectory => {
                let path = self.path(ino);
                Failure::new(failure.code, format!("`{}` is not a folder", path.escape_debug()))
            }
            _ => failure,
        }
    }

    /// The path of an inode from the root, for messages.
    pub fn path(&self, ino: Ino) -> String {
        let mut names: Vec<&str> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let Some(parent) = self.inodes.get(&at).map(|inode| inode.parent) else { break };
            let entries = self.directory(parent).map(|directory| directory.entries.iter());
            let named = entries.into_iter().flatten().find(|(_, child)| **child == at);
            names.extend(named.map(|(name, _)| name.as_str()));
            at = parent;
        }
        names.reverse();
        names.join("/")
    }

    /// At most `limit` entries behind the name `after`, in name order.
    pub fn read_dir(&self, ino: Ino, after: Option<&str>, limit: u32) -> Result<Vec<DirEntry>, Failure> {
        let limit = usize::try_from(limit).unwrap_or(LIST_ENTRIES_MAX).min(LIST_ENTRIES_MAX);
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.directory(ino)?.entries.range::<str, _>((start, Bound::Unbounded));
        entries
            .take(limit)
            .map(|(name, ino)| Ok(DirEntry { name: name.clone(), attr: self.attr(*ino)? }))
            .collect()
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, ino: Ino) -> Result<String, Failure> {
        match &self.inode(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Failure::new(ErrorCode::Invalid, format!("inode {ino} is no symbolic link"))),
        }
    }

    // --- changing

    /// Carries out a change; the answer is the inode concerned, if the change has one to show.
    pub fn change(&mut self, change: &Change) -> Result<Option<Attr>, Failure> {
        match change {
            Change::Make { parent, name, kind, mode, uid, gid, target } => {
                self.make((*parent, name), *kind, *mode, (*uid, *gid), target).map(Some)
            }
            Change::Link { ino, parent, name } => self.link(*ino, (*parent, name)).map(Some),
            Change::Unlink { parent, name } => self.unlink((*parent, name)).map(Some),
            Change::Rmdir { parent, name } => self.rmdir((*parent, name)).map(Some),
            Change::Rename { parent, name, new_parent, new_name, existing } => {
                self.rename((*parent, name), (*new_parent, new_name), *existing).map(Some)
            }
            Change::SetAttr { .. } => self.set_attr(change).map(Some),
            Change::DropVersion { ino, version } => self.drop_version(*ino, *version).map(|()| None),
            Change::SetPolicy { ino, pairs } => self.set_policy(*ino, pairs).map(|()| None),
            Change::Learn { ino, cutter } => self.learn(*ino, cutter).map(|()| None),
            Change::UnlinkUnwritten { parent, name, ino } => {
                self.unlink_unwritten((*parent, name), *ino).map(|()| None)
            }
            Change::Seal { ino, timestep, sealed } => self.seal(*ino, *timestep, *sealed).map(|()| None),
            Change::Finish { ino } => self.directory(*ino).map(|_| None),
        }
    }

    fn make(
        &mut self,
        (parent, name): (Ino, &str),
        kind: FileKind,
        mode: u32,
        owner: (u32, u32),
        target: &str,
    ) -> Result<Attr, Failure> {
        self.check_new(parent, name)?;
        let body = new_body(kind, target, Ino(self.next_ino))?;
        let ino = self.take_ino();
        self.insert_new((parent, name), ino, self.blank(parent, mode, owner, body))
    }

    /// Makes a file under the number that it was given before, if that is free: numbers are never given out twice.
    pub(super) fn make_file_again(
        &mut self,
        ino: Ino,
        (parent, name): (Ino, &str),
        mode: u32,
        owner: (u32, u32),
    ) -> Result<(), Failure> {
        self.check_new(parent, name)?;
        if ino.0 >= self.next_ino || self.inodes.contains_key(&ino) {
            return Err(absent(ino));
        }
        // The lineage that it began may be that of another file by now.
        let lineage = LineageId::of(self.take_ino());
        self.lineages.insert(lineage, ino);
        let blank = self.blank(parent, mode, owner, Body::File(File::new(lineage)));
        self.insert_new((parent, name), ino, blank).map(drop)
    }

    fn insert_new(&mut self, (parent, name): (Ino, &str), ino: Ino, blank: Inode) -> Result<Attr, Failure> {
        self.inodes.insert(ino, Inode { links: 0, ..blank });
        self.attach(parent, name, ino)?;
        self.attr(ino)
    }

    /// A new file without a name, under the policy of a folder. Somebody must hold it.
    pub(super) fn make_unnamed(&mut self, folder: Ino) -> Result<Ino, Failure> {
        self.directory(folder)?;
        let owner = self.inode(folder).map(|inode| (inode.uid, inode.gid))?;
        let ino = self.take_ino();
        let body = Body::File(File::new(LineageId::of(ino)));
        let inode = Inode { links: 0, ..self.blank(folder, 0o600, owner, body) };
        self.inodes.insert(ino, inode);
        self.changed.inodes.insert(ino);
        Ok(ino)
    }

    fn link(&mut self, ino: Ino, (parent, name): (Ino, &str)) -> Result<Attr, Failure> {
        self.check_new(parent, name)?;
        let inode = self.inode(ino)?;
        if inode.is_directory() {
            let message = format!("inode {ino} is a directory: directories have one name only");
            return Err(Failure::new(ErrorCode::IsADirectory, message));
        }
        if inode.links >= LINKS_MAX {
            let message = format!("inode {ino} has {LINKS_MAX} names already, and can't get another");
            return Err(Failure::new(ErrorCode::TooManyLinks, message));
        }
        self.attach(parent, name, ino)?;
        self.attr(ino)
    }

    pub(super) fn unlink(&mut self, (parent, name): (Ino, &str)) -> Result<Attr, Failure> {
        let ino = self.entry(parent, name)?;
        if self.inode(ino)?.is_directory() {
            let message = format!("`{}` is a directory: remove it as one", name.escape_debug());
            return Err(Failure::new(ErrorCode::IsADirectory, message));
        }
        self.detach(parent, name)?;
        let left = self.attr(ino)?;
        self.drop_unused(ino);
        Ok(left)
    }

    /// Takes back a file that was made for a version that never came.
    fn unlink_unwritten(&mut self, (parent, name): (Ino, &str), made: Ino) -> Result<(), Failure> {
        let is_unwritten = self.entry(parent, name).is_ok_and(|ino| ino == made)
            && !self.held.contains_key(&made)
            && matches!(&self.inode(made)?.body, Body::File(file) if file.versions.is_empty());
        if is_unwritten {
            self.detach(parent, name)?;
            self.drop_unused(made);
        }
        Ok(())
    }

    pub(super) fn rmdir(&mut self, (parent, name): (Ino, &str)) -> Result<Attr, Failure> {
        let ino = self.entry(parent, name)?;
        self.check_empty(ino, name)?;
        self.detach(parent, name)?;
        let removed = Attr { links: 0, ..self.attr(ino)? };
        self.drop_unused(ino);
        Ok(removed)
    }

    fn set_attr(&mut self, change: &Change) -> Result<Attr, Failure> {
        let Change::SetAttr { ino, mode, uid, gid, atime, mtime } = change else {
            return Err(Failure::new(ErrorCode::Invalid, "not a change of attributes"));
        };
        let clock = self.clock;
        let inode = self.inode_mut(*ino)?;
        inode.mode = mode.map_or(inode.mode, |mode| mode & MODE_BITS);
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        inode.atime = atime.unwrap_or(inode.atime);
        inode.mtime = mtime.unwrap_or(inode.mtime);
        inode.ctime = clock;
        self.attr(*ino)
    }

    // --- steps that changes are made of

    fn check_new(&self, parent: Ino, name: &str) -> Result<(), Failure> {
        name::check(name)?;
        match self.find(parent, name)? {
            Some(_) => Err(exists(name)),
            None => Ok(()),
        }
    }

    pub(super) fn check_empty(&self, ino: Ino, name: &str) -> Result<(), Failure> {
        if self.directory(ino)?.entries.is_empty() {
            return Ok(());
        }
        let message = format!("the directory `{}` still has entries", name.escape_debug());
        Err(Failure::new(ErrorCode::NotEmpty, message))
    }

    pub(super) fn blank(&self, parent: Ino, mode: u32, (uid, gid): (u32, u32), body: Body) -> Inode {
        let (atime, mtime, ctime, named) = (self.clock, self.clock, self.clock, self.position);
        let (mode, links, name) = (mode & MODE_BITS, 1, String::new());
        Inode {
            mode,
            uid,
            gid,
            links,
            atime,
            mtime,
            ctime,
            named,
            parent,
            name,
            others: BTreeSet::new(),
            body,
        }
    }

    /// Leaves out the inode numbers that a newer copy of the store, given up by now, may have handed out: clients and spools
    /// may know files by them.
    pub(super) fn leave_out_given_up_inos(&mut self) {
        self.next_ino = self.ino_ceiling + GIVEN_UP_INOS;
        self.ino_ceiling = self.next_ino;
        self.changed.pool = true;
    }

    fn take_ino(&mut self) -> Ino {
        let ino = self.next_ino;
        self.next_ino += 1;
        if self.next_ino > self.ino_ceiling {
            self.ino_ceiling = self.next_ino + Self::INO_STEP;
            self.changed.pool = true;
        }
        Ino(ino)
    }

    /// Gives `ino` the name, in a directory that doesn't have it.
    pub(super) fn attach(&mut self, parent: Ino, name: &str, ino: Ino) -> Result<(), Failure> {
        let is_directory = self.inode(ino)?.is_directory();
        let (clock, position) = (self.clock, self.position);
        let holder = self.touched_directory(parent)?;
        holder.entries.insert(name.to_owned(), ino);
        holder.subdirectories += u32::from(is_directory);
        let inode = self.inode_mut(ino)?;
        inode.add_name(parent, name, inode.links == 0);
        (inode.ctime, inode.named) = (clock, position);
        inode.links += 1;
        self.changed.entries.insert((parent, name.to_owned()));
        Ok(())
    }

    /// Takes the name away; the inode stays, if need be without a name.
    pub(super) fn detach(&mut self, parent: Ino, name: &str) -> Result<(), Failure> {
        let ino = self.entry(parent, name)?;
        let is_directory = self.inode(ino)?.is_directory();
        let (clock, position) = (self.clock, self.position);
        let holder = self.touched_directory(parent)?;
        holder.entries.remove(name);
        holder.subdirectories -= u32::from(is_directory);
        let inode = self.inode_mut(ino)?;
        inode.remove_name(parent, name);
        (inode.ctime, inode.named) = (clock, position);
        inode.links = inode.links.saturating_sub(1);
        self.changed.entries.insert((parent, name.to_owned()));
        Ok(())
    }

    fn touched_directory(&mut self, ino: Ino) -> Result<&mut Directory, Failure> {
        self.directory(ino)?;
        let clock = self.clock;
        let inode = self.inode_mut(ino)?;
        inode.mtime = clock;
        inode.ctime = clock;
        match &mut inode.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(absent(ino)),
        }
    }

    /// Removes an inode that has neither a name nor a session.
    pub(super) fn drop_unused(&mut self, ino: Ino) {
        let Some(inode) = self.inodes.get(&ino) else { return };
        let may_come_back = self.unsettled && matches!(inode.body, Body::File(_));
        if inode.links == 0 && !self.held.contains_key(&ino) && !may_come_back {
            self.remove_inode(ino);
        }
    }

    pub(super) fn remove_inode(&mut self, ino: Ino) {
        let Some(inode) = self.inodes.remove(&ino) else { return };
        self.changed.inodes.insert(ino);
        if self.noted.remove(&ino).is_some() {
            self.changed.noted.insert(ino);
        }
        match inode.body {
            Body::File(file) => {
                self.lineages.remove(&file.versions.id());
                self.shown.change(file.counted, None);
                for (place, version) in file.versions.into_records() {
                    self.forget_version(place, &version);
                }
                self.let_bases_go_of(ino);
            }
            Body::Directory(directory) if !directory.policy.is_empty() => {
                self.changed.policies.insert(ino);
            }
            _ => {}
        }
    }
}

fn new_body(kind: FileKind, target: &str, ino: Ino) -> Result<Body, Failure> {
    Ok(match kind {
        FileKind::File => Body::File(File::new(LineageId::of(ino))),
        FileKind::Directory => Body::Directory(Directory::default()),
        FileKind::Symlink => Body::Symlink(checked_target(target)?),
        FileKind::Pipe | FileKind::Socket => Body::Meeting(kind),
    })
}

pub(super) fn exists(name: &str) -> Failure {
    Failure::new(ErrorCode::Exists, format!("there is a `{}` already", name.escape_debug()))
}

fn checked_target(target: &str) -> Result<String, Failure> {
    if target.len() > PATH_BYTES_MAX {
        return Err(Failure::new(ErrorCode::TooLong, "the target of the link is longer than 4095 bytes"));
    }
    if target.is_empty() || target.contains('\0') {
        return Err(Failure::new(
            ErrorCode::Invalid,
            "the target of a link is neither empty nor holds a NUL",
        ));
    }
    Ok(target.to_owned())
}
