//! Inodes as the manager holds them in memory: plain data, and the view that clients get of it.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::message::manager::{Attr, FileKind, TimeNs, VersionInfo, VersionState};
use stdchk_model::{Ino, KeyId, Maker, MapRoot, SessionId};

use super::lineage::{Lineage, LineageId};

/// What all inodes have, and what makes each kind special.
#[derive(Clone, Debug, PartialEq)]
pub struct Inode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Names; a directory never has more than one.
    pub links: u32,
    pub atime: TimeNs,
    pub mtime: TimeNs,
    pub ctime: TimeNs,
    /// Position of the operation that last gave a name to it or took one from it.
    pub named: TimeNs,
    /// The directory of the first of its names, in the order of directories and then of names; of the last one if it has none any more.
    pub parent: Ino,
    /// The name that it has there; empty if it never had one.
    pub name: String,
    /// Its other names, of which few files have any.
    pub others: BTreeSet<(Ino, String)>,
    pub body: Body,
}

/// What makes the kinds of inodes special.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    File(File),
    Directory(Directory),
    /// With its target.
    Symlink(String),
    /// A named pipe or a socket: what goes through it stays within a machine.
    Meeting(FileKind),
}

/// A file is its versions; the newest is what readers see.
#[derive(Clone, Debug, PartialEq)]
pub struct File {
    pub versions: Lineage,
    pub next_version: u64,
    /// Size of the version that readers see, as the namespace has counted it; `None`: there is none.
    pub counted: Option<u64>,
}

/// A directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directory {
    pub entries: BTreeMap<String, Ino>,
    /// How many of the entries are directories.
    pub subdirectories: u32,
    /// What was set on it, by key.
    pub policy: BTreeMap<String, String>,
}

/// A committed version.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    pub size: u64,
    pub mtime: TimeNs,
    pub committed_at: TimeNs,
    /// Position of its commit among all operations.
    pub position: TimeNs,
    pub state: VersionState,
    pub stored_bytes: u64,
    pub session: SessionId,
    pub root: MapRoot,
    pub hole_bytes: u64,
    /// How far from loss it wants its chunks, as they are counted: what its folder asked for when that was last looked at.
    pub wanted: u8,
    /// For how long the manager had lived when it was committed, milliseconds.
    pub lived_ms: u64,
    /// For how long it was written, from the opening of its session to its commit, milliseconds; `None`: it began at an earlier manager.
    pub written_ms: Option<u64>,
    /// The key with which it is encrypted.
    pub key: Option<KeyId>,
    /// As whom its writer coded it.
    pub maker: Maker,
}

impl Version {
    /// What clients are told of it.
    pub fn info(&self, version: u64) -> VersionInfo {
        VersionInfo {
            version,
            size: self.size,
            mtime: self.mtime,
            committed_at: self.committed_at,
            state: self.state,
            stored_bytes: self.stored_bytes,
            session: self.session,
            aggregated: self.root.is_in_container(),
            key: self.key,
            maker: self.maker,
        }
    }
}

impl File {
    /// A file that was never committed.
    pub fn new(lineage: LineageId) -> Self {
        Self { versions: Lineage::new(lineage), next_version: 1, counted: None }
    }

    /// The version that readers see, with its number.
    pub fn newest(&self) -> Option<(u64, &Version)> {
        self.versions.iter().rev().find(|(_, version)| version.state != VersionState::Lost)
    }
}

impl Inode {
    /// Notes a name that it has from now on. `is_only`: it has no other.
    pub fn add_name(&mut self, parent: Ino, name: &str, is_only: bool) {
        let mut first = (parent, name.to_owned());
        if !is_only {
            let known = (self.parent, std::mem::take(&mut self.name));
            let other = if first < known { known } else { std::mem::replace(&mut first, known) };
            self.others.insert(other);
        }
        (self.parent, self.name) = first;
    }

    /// The directories of its other names.
    pub fn other_parents(&self) -> impl Iterator<Item = Ino> + '_ {
        let next =
            |(parent, _): &&(Ino, String)| self.others.range((Ino(parent.0 + 1), String::new())..).next();
        std::iter::successors(self.others.first(), next).map(|(parent, _)| *parent)
    }

    /// Notes that it doesn't have this name any more.
    pub fn remove_name(&mut self, parent: Ino, name: &str) {
        if (self.parent, self.name.as_str()) != (parent, name) {
            self.others.remove(&(parent, name.to_owned()));
        } else if let Some(first) = self.others.pop_first() {
            (self.parent, self.name) = first;
        }
    }

    pub fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::File,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Meeting(kind) => kind,
        }
    }

    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    /// What clients are told of it.
    pub fn attr(&self, ino: Ino) -> Attr {
        let newest = match &self.body {
            Body::File(file) => file.newest(),
            _ => None,
        };
        let (size, version, hole_bytes) = match (&self.body, newest) {
            (Body::Symlink(target), _) => (u64::try_from(target.len()).unwrap_or(0), 0, 0),
            (_, Some((number, version))) => (version.size, number, version.hole_bytes),
            _ => (0, 0, 0),
        };
        let links = match &self.body {
            Body::Directory(directory) => directory.subdirectories.saturating_add(2),
            _ => self.links,
        };
        Attr {
            ino,
            kind: self.kind(),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            links,
            size,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            version,
            named: self.named,
            hole_bytes,
        }
    }
}
