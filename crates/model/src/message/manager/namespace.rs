//! Names and inodes: how they are changed, and what is known of them.

use minicbor::{Decode, Encode};
use serde::Serialize;

use super::{TimeNs, ino};
use crate::id::Ino;
use crate::timestep::Timestep;

/// A change of the namespace.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum Change {
    /// A new file, directory or symbolic link. Answered by `Entry`.
    #[n(0)]
    Make {
        /// The directory.
        #[n(0)]
        parent: Ino,
        /// The new name.
        #[n(1)]
        name: String,
        /// What to make.
        #[n(2)]
        kind: FileKind,
        /// Permission bits.
        #[n(3)]
        mode: u32,
        /// Owner.
        #[n(4)]
        uid: u32,
        /// Group.
        #[n(5)]
        gid: u32,
        /// Target of a symbolic link, else empty.
        #[n(6)]
        target: String,
    },
    /// Another name for a file. Answered by `Entry`.
    #[n(1)]
    Link {
        /// The file.
        #[n(0)]
        ino: Ino,
        /// The directory of the new name.
        #[n(1)]
        parent: Ino,
        /// The new name.
        #[n(2)]
        name: String,
    },
    /// Removes a name; with its last name and last open session a file goes, with all its versions. Answered by `Entry`:
    /// the file without the name.
    #[n(2)]
    Unlink {
        /// The directory.
        #[n(0)]
        parent: Ino,
        /// The name.
        #[n(1)]
        name: String,
    },
    /// Removes an empty directory. Answered by `Done`.
    #[n(3)]
    Rmdir {
        /// The directory that holds it.
        #[n(0)]
        parent: Ino,
        /// Its name.
        #[n(1)]
        name: String,
    },
    /// Moves a name, atomically and in constant time. A file that is replaced by a file hands its versions on: they
    /// become earlier versions of the one that takes its place. Answered by `Entry`: the inode that was moved.
    #[n(4)]
    Rename {
        /// Directory of the old name.
        #[n(0)]
        parent: Ino,
        /// Old name.
        #[n(1)]
        name: String,
        /// Directory of the new name.
        #[n(2)]
        new_parent: Ino,
        /// New name.
        #[n(3)]
        new_name: String,
        /// What to do with an existing new name.
        #[n(4)]
        existing: Existing,
    },
    /// Sets what is given. Answered by `Entry`.
    #[n(5)]
    SetAttr {
        /// The inode.
        #[n(0)]
        ino: Ino,
        /// Permission bits.
        #[n(1)]
        mode: Option<u32>,
        /// Owner.
        #[n(2)]
        uid: Option<u32>,
        /// Group.
        #[n(3)]
        gid: Option<u32>,
        /// Time of the last access.
        #[n(4)]
        atime: Option<TimeNs>,
        /// Time of the last modification.
        #[n(5)]
        mtime: Option<TimeNs>,
    },
    /// Removes one version of a file; the newest only if an older one takes its place. Answered by `Done`.
    #[n(6)]
    DropVersion {
        /// The file.
        #[n(0)]
        ino: Ino,
        /// Its version number.
        #[n(1)]
        version: u64,
    },
    /// Sets keys of a folder's policy. Answered by `Done`.
    #[n(7)]
    SetPolicy {
        /// A top-level directory, or one below it.
        #[n(0)]
        ino: Ino,
        /// Keys and values as for `Policy::set`; an empty value takes the key back to its default.
        #[n(1)]
        pairs: Vec<(String, String)>,
    },
    /// Notes what was learned of the files of a folder with `cutter=auto`. Nothing to do for others. Answered by `Done`.
    #[n(8)]
    Learn {
        /// One of the files.
        #[n(0)]
        ino: Ino,
        /// The cutter.
        #[n(1)]
        cutter: String,
    },
    /// Removes the name of a file that was made and never written, unless it leads elsewhere now, has a version, or is open in a
    /// session. Answered by `Done` in each case.
    #[n(9)]
    UnlinkUnwritten {
        /// The directory.
        #[n(0)]
        parent: Ino,
        /// The name.
        #[n(1)]
        name: String,
        /// What the name led to when it was made.
        #[n(2)]
        ino: Ino,
    },
    /// Lets no lifetime remove a checkpoint set, or takes that back. Answered by `Done`.
    #[n(10)]
    Seal {
        /// The folder.
        #[n(0)]
        ino: Ino,
        /// Timestep of the set.
        #[n(1)]
        timestep: Timestep,
        /// Whether it is sealed from now on.
        #[n(2)]
        sealed: bool,
    },
    /// The job of a folder has succeeded: of the sets before the newest complete one only those stay that are sealed, or kept by `every` of the
    /// folder's lifetime. They go once that one is whole. Answered by `Done`.
    #[n(11)]
    Finish {
        /// The folder.
        #[n(0)]
        ino: Ino,
    },
}

/// What a rename does with an existing new name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Existing {
    /// It is replaced.
    #[n(0)]
    Replace,
    /// The rename fails.
    #[n(1)]
    Refuse,
    /// The two are exchanged.
    #[n(2)]
    Exchange,
    /// It is replaced by a file whose content is on its way: until that is committed, readers see the replaced content.
    #[n(3)]
    ReplaceOnCommit,
}

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A file with versions.
    #[n(0)]
    File,
    /// A directory.
    #[n(1)]
    Directory,
    /// A symbolic link.
    #[n(2)]
    Symlink,
    /// A named pipe: a name by which processes of one machine meet.
    #[n(3)]
    Pipe,
    /// A socket, likewise.
    #[n(4)]
    Socket,
}

/// What is known of an inode.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct Attr {
    /// The inode.
    #[n(0)]
    #[serde(serialize_with = "ino")]
    pub ino: Ino,
    /// What it is.
    #[n(1)]
    pub kind: FileKind,
    /// Permission bits, with set-user-id and such.
    #[n(2)]
    pub mode: u32,
    /// Owner.
    #[n(3)]
    pub uid: u32,
    /// Group.
    #[n(4)]
    pub gid: u32,
    /// Names; for a directory two plus its subdirectories.
    #[n(5)]
    pub links: u32,
    /// Size of the newest version or of a link's target, bytes.
    #[n(6)]
    pub size: u64,
    /// Last access.
    #[n(7)]
    pub atime: TimeNs,
    /// Last modification.
    #[n(8)]
    pub mtime: TimeNs,
    /// Last change of the inode.
    #[n(9)]
    pub ctime: TimeNs,
    /// Number of the newest version; 0: never committed.
    #[n(10)]
    pub version: u64,
    /// When a name was last given to it or taken from it: who remembers another value can't trust a name any more.
    #[n(11)]
    #[cbor(default)]
    #[serde(skip)]
    pub named: TimeNs,
    /// Bytes of the newest version that lie in holes, which read as zeros and are stored nowhere.
    #[n(12)]
    #[cbor(default)]
    #[serde(skip)]
    pub hole_bytes: u64,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct DirEntry {
    /// Its name.
    #[n(0)]
    pub name: String,
    /// Its inode.
    #[n(1)]
    pub attr: Attr,
}
