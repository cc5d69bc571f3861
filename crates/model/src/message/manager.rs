//! What the manager is asked: the namespace, versions, sessions, locations; and the reports of benefactors.
//!
//! Changes of the namespace carry an [`OpId`] and can be repeated after a lost answer. Sessions carry their client's
//! choice of [`SessionId`] and can be opened again after a restart of the manager.

use minicbor::{Decode, Encode};
use serde::Serialize;

use super::benefactor::{BenefactorLoad, Command};
use crate::chunk_map::MapRoot;
use crate::id::{BenefactorId, BlockId, ChunkId, ClientId, Incarnation, Ino, OpId, SessionId};
use crate::policy::Policy;

/// Nanoseconds since 1970-01-01 UTC.
pub type TimeNs = i64;

/// A request to the manager.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum ManagerRequest {
    // --- namespace, reading
    /// The entry `name` of a directory. Answered by `Entry`.
    #[n(0)]
    Lookup {
        /// The directory.
        #[n(0)]
        parent: Ino,
        /// The entry's name.
        #[n(1)]
        name: String,
    },
    /// An inode. Answered by `Entry`.
    #[n(1)]
    GetAttr(#[n(0)] Ino),
    /// An inode by its path from the root. Answered by `Entry`.
    #[n(2)]
    Resolve {
        /// Names joined by `/`.
        #[n(0)]
        path: String,
    },
    /// Entries of a directory in name order. Answered by `Entries`.
    #[n(3)]
    ReadDir {
        /// The directory.
        #[n(0)]
        ino: Ino,
        /// Only entries behind this name.
        #[n(1)]
        after: Option<String>,
        /// Most entries in the answer, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(2)]
        limit: u32,
    },
    /// Target of a symbolic link. Answered by `Target`.
    #[n(4)]
    ReadLink(#[n(0)] Ino),
    /// Space and counts of the pool. Answered by `Space`.
    #[n(5)]
    Space,

    // --- namespace, changing
    /// A change; repeated with the same id, it is answered as the first time. Answered by `Entry` or `Done`.
    #[n(10)]
    Change {
        /// Identity of the change.
        #[n(0)]
        id: OpId,
        /// What to do.
        #[n(1)]
        change: Change,
    },

    // --- versions
    /// The versions of a file, oldest first. Answered by `Versions`.
    #[n(20)]
    Versions(#[n(0)] Ino),
    /// One version with its map root; the newest if none is named. Answered by `Version`.
    #[n(21)]
    OpenVersion {
        /// The file.
        #[n(0)]
        ino: Ino,
        /// Its version number.
        #[n(1)]
        version: Option<u64>,
    },
    /// Where these chunks are. Answered by `Locations`.
    #[n(22)]
    Locate {
        /// The chunks, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(0)]
        chunks: Vec<ChunkId>,
    },
    /// The benefactors of the pool. Answered by `Benefactors`.
    #[n(23)]
    Benefactors,

    // --- sessions
    /// Opens a session on a file, or opens it again after a restart of the manager. Answered by `Session`.
    #[n(30)]
    OpenSession {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The client that holds its lease.
        #[n(1)]
        client: ClientId,
        /// The file.
        #[n(2)]
        ino: Ino,
    },
    /// Space for the session's next chunks, and a stripe to put them on. Answered by `Stripe`.
    #[n(31)]
    Reserve {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// Space wanted beyond what is reserved and unused, bytes (times replicas).
        #[n(1)]
        bytes: u64,
        /// Benefactors that just failed this client; the stripe leaves them out.
        #[n(2)]
        avoid: Vec<BenefactorId>,
    },
    /// Which of these chunks does the pool have? Those are pinned for the session: they stay until it ends. Answered by
    /// `Locations`.
    #[n(32)]
    Known {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The chunks, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(1)]
        chunks: Vec<ChunkId>,
    },
    /// Chunks that the session stored, reported at the latest before the commit, and every few seconds. Answered by
    /// `Done`.
    #[n(33)]
    Staged {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The chunks with where they are durable or, before the commit, stored.
        #[n(1)]
        chunks: Vec<StagedChunk>,
    },
    /// The session's content becomes the newest version, in one step (I2). Every chunk of the map must be staged,
    /// pinned or part of the base version, and durable. Repeated commits of one session replace each other's version.
    /// Answered by `Version`.
    #[n(34)]
    Commit {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The map.
        #[n(1)]
        root: MapRoot,
        /// Size of the file, bytes.
        #[n(2)]
        size: u64,
        /// Its modification time.
        #[n(3)]
        mtime: TimeNs,
        /// Bytes that the session sent to benefactors, not counting replicas.
        #[n(4)]
        stored_bytes: u64,
        /// The names of all distinct chunks that the map refers to, its own pieces included, that were neither staged
        /// nor pinned in this session: chunks kept from the base version.
        #[n(5)]
        kept: Vec<ChunkId>,
    },
    /// Ends a session. Its last commit counts as finished; without a commit nothing happened. Answered by `Done`.
    #[n(35)]
    CloseSession {
        /// The session.
        #[n(0)]
        session: SessionId,
        /// The writer was killed: what was committed may be torn and never makes a set complete.
        #[n(1)]
        interrupted: bool,
    },
    /// A sign of life; keeps the client's sessions. Answered by `Sessions` with those that the manager knows.
    #[n(36)]
    KeepAlive(#[n(0)] ClientId),

    // --- folders
    /// The policy that holds for a file or directory. Answered by `Policy`.
    #[n(40)]
    GetPolicy(#[n(0)] Ino),
    /// The checkpoint sets of an application's folder, newest timestep first. Answered by `Sets`.
    #[n(41)]
    Sets(#[n(0)] Ino),

    // --- care
    /// State of the pool. Answered by `Status`.
    #[n(50)]
    Status,
    /// Removes chunks that nothing refers to, or says which. Answered by `Collected`.
    #[n(51)]
    Collect {
        /// Only say what would go.
        #[n(0)]
        dry_run: bool,
    },

    // --- benefactors
    /// A benefactor starts or was forgotten. Answered by `Registered`.
    #[n(60)]
    Register {
        /// Its number, if it has one from an earlier registration.
        #[n(0)]
        id: Option<BenefactorId>,
        /// Its present life.
        #[n(1)]
        incarnation: Incarnation,
        /// Where it serves, `host:port`.
        #[n(2)]
        address: String,
        /// Its process id, for pools on one machine.
        #[n(3)]
        pid: u32,
        /// Its space.
        #[n(4)]
        load: BenefactorLoad,
    },
    /// A part of a full inventory. Answered by `Done`.
    #[n(61)]
    Inventory {
        /// Whose.
        #[n(0)]
        id: BenefactorId,
        /// Its present life.
        #[n(1)]
        incarnation: Incarnation,
        /// Whether this is the first part.
        #[n(2)]
        first: bool,
        /// Whether this is the last part.
        #[n(3)]
        last: bool,
        /// The blocks of this part.
        #[n(4)]
        blocks: Vec<StoredBlock>,
    },
    /// A sign of life with what changed since the last. Answered by `Commands`.
    #[n(62)]
    Heartbeat {
        /// Whose.
        #[n(0)]
        id: BenefactorId,
        /// Its present life.
        #[n(1)]
        incarnation: Incarnation,
        /// Its space.
        #[n(2)]
        load: BenefactorLoad,
        /// Sequence number of its last put.
        #[n(3)]
        put_sequence: u64,
        /// Blocks that became durable.
        #[n(4)]
        added: Vec<StoredBlock>,
        /// Blocks that were removed or found damaged.
        #[n(5)]
        removed: Vec<BlockId>,
        /// How many of `removed` were damaged.
        #[n(6)]
        damaged: u32,
        /// Copies that failed since the last heartbeat: to be planned anew.
        #[n(7)]
        copies_failed: Vec<BlockId>,
        /// Bytes copied to other benefactors since the last heartbeat.
        #[n(8)]
        copied_bytes: u64,
    },
}

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
}

/// An answer of the manager.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum ManagerReply {
    /// It is done.
    #[n(0)]
    Done,
    /// An inode.
    #[n(1)]
    Entry(#[n(0)] Attr),
    /// Entries of a directory; fewer than asked for: the last ones.
    #[n(2)]
    Entries(#[n(0)] Vec<DirEntry>),
    /// Target of a symbolic link.
    #[n(3)]
    Target(#[n(0)] String),
    /// Space and counts.
    #[n(4)]
    Space(#[n(0)] Space),
    /// Versions, oldest first.
    #[n(5)]
    Versions(#[n(0)] Vec<VersionInfo>),
    /// A version and its map root; `None` for a file that was never committed.
    #[n(6)]
    Version {
        /// What it is.
        #[n(0)]
        info: Option<VersionInfo>,
        /// Where its map is.
        #[n(1)]
        root: Option<MapRoot>,
        /// The file at the same moment.
        #[n(2)]
        attr: Attr,
    },
    /// One entry per asked chunk, in order.
    #[n(7)]
    Locations(#[n(0)] Vec<ChunkLocations>),
    /// The benefactors.
    #[n(8)]
    Benefactors(#[n(0)] Vec<BenefactorInfo>),
    /// An open session.
    #[n(9)]
    Session {
        /// What holds for it.
        #[n(0)]
        policy: Policy,
        /// The newest version, on which the session builds.
        #[n(1)]
        base: Option<VersionInfo>,
        /// Its map root.
        #[n(2)]
        base_root: Option<MapRoot>,
        /// The file at the same moment.
        #[n(3)]
        attr: Attr,
    },
    /// Space and where to use it.
    #[n(10)]
    Stripe {
        /// Benefactors to take in turn, on-line ones only.
        #[n(0)]
        benefactors: Vec<BenefactorInfo>,
        /// Space granted, bytes.
        #[n(1)]
        bytes: u64,
    },
    /// The client's sessions that the manager knows.
    #[n(11)]
    Sessions(#[n(0)] Vec<SessionId>),
    /// A folder's policy.
    #[n(12)]
    Policy(#[n(0)] Policy),
    /// Sets, newest timestep first.
    #[n(13)]
    Sets(#[n(0)] Vec<CheckpointSet>),
    /// State of the pool.
    #[n(14)]
    Status(#[n(0)] PoolStatus),
    /// What a collection removed or would remove.
    #[n(15)]
    Collected {
        /// Chunks.
        #[n(0)]
        chunks: u64,
        /// Blocks, that is chunks times replicas.
        #[n(1)]
        blocks: u64,
        /// Their plain bytes, replicas counted.
        #[n(2)]
        bytes: u64,
    },
    /// A benefactor's number; it sends its inventory next.
    #[n(16)]
    Registered {
        /// Its number.
        #[n(0)]
        id: BenefactorId,
    },
    /// What the benefactor should do.
    #[n(17)]
    Commands(#[n(0)] Vec<Command>),
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
}

fn ino<S: serde::Serializer>(ino: &Ino, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(ino.0)
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

/// How far a version got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "lowercase")]
pub enum VersionState {
    /// Committed, while its writer still has the file open (after `fsync`, or a duplicate descriptor was closed).
    #[n(0)]
    Open,
    /// Its writer closed the file.
    #[n(1)]
    Closed,
    /// Its writer was killed, or its mount went away with the file open: the content may be torn.
    #[n(2)]
    Interrupted,
}

/// What is known of a version.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct VersionInfo {
    /// Its number: 1 for the first of a file, then rising, gaps possible.
    #[n(0)]
    pub version: u64,
    /// Size of the file, bytes.
    #[n(1)]
    pub size: u64,
    /// Modification time that the writer gave it.
    #[n(2)]
    pub mtime: TimeNs,
    /// When it was committed.
    #[n(3)]
    pub committed_at: TimeNs,
    /// How far it got.
    #[n(4)]
    pub state: VersionState,
    /// Bytes that were new to the pool, replicas not counted.
    #[n(5)]
    pub stored_bytes: u64,
}

/// A chunk that a session stored.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StagedChunk {
    /// The chunk and its plain length.
    #[n(0)]
    pub chunk: crate::ChunkRef,
    /// Where it is.
    #[n(1)]
    pub at: Vec<BenefactorId>,
}

/// Where a chunk is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ChunkLocations {
    /// Blocks of it; empty: the pool doesn't have it.
    #[n(0)]
    pub at: Vec<Location>,
    /// Set while a benefactor that is expected back may still have it: ask again.
    #[n(1)]
    pub pending: bool,
}

/// A block at a benefactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Location {
    /// The benefactor.
    #[n(0)]
    pub benefactor: BenefactorId,
    /// [`BlockId::WHOLE`] or the fragment.
    #[n(1)]
    pub fragment: u16,
}

/// A block as a benefactor reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct StoredBlock {
    /// The block.
    #[n(0)]
    pub block: BlockId,
    /// Plain length of its chunk, bytes.
    #[n(1)]
    pub plain_length: u32,
    /// Bytes that it takes at the benefactor.
    #[n(2)]
    pub stored_length: u32,
}

/// How a benefactor is seen by the manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "lowercase")]
pub enum BenefactorState {
    /// Heartbeats arrive.
    #[n(0)]
    Online,
    /// Known from before a restart of the manager, not heard of since.
    #[n(1)]
    Expected,
    /// Heartbeats stopped.
    #[n(2)]
    Offline,
    /// Heartbeats stopped so long ago that its blocks count as lost.
    #[n(3)]
    Lost,
}

/// A benefactor.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BenefactorInfo {
    /// Its number.
    #[n(0)]
    pub id: BenefactorId,
    /// Where it serves, `host:port`.
    #[n(1)]
    pub address: String,
    /// How it is seen.
    #[n(2)]
    pub state: BenefactorState,
    /// Its space.
    #[n(3)]
    pub load: BenefactorLoad,
    /// Its process id, for pools on one machine.
    #[n(4)]
    pub pid: u32,
    /// Milliseconds since it was last heard of.
    #[n(5)]
    pub silent_ms: u64,
}

/// Space and counts of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
pub struct Space {
    /// Donated by benefactors that are on-line, bytes.
    #[n(0)]
    pub donated_bytes: u64,
    /// Used at benefactors that are on-line, bytes.
    #[n(1)]
    pub used_bytes: u64,
    /// Free for new blocks, reservations taken off, bytes.
    #[n(2)]
    pub free_bytes: u64,
    /// Reserved by sessions and not used yet, bytes.
    #[n(3)]
    pub reserved_bytes: u64,
    /// Inodes.
    #[n(4)]
    pub inodes: u64,
}

/// A member of a checkpoint set: one file of one timestep.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct SetMember {
    /// Path below the application's folder.
    #[n(0)]
    pub name: String,
    /// Its rank, if the pattern has one.
    #[n(1)]
    pub rank: Option<u64>,
    /// The file.
    #[n(2)]
    #[serde(serialize_with = "ino")]
    pub ino: Ino,
    /// The version that belongs to the set.
    #[n(3)]
    pub version: u64,
    /// Its size, bytes.
    #[n(4)]
    pub bytes: u64,
}

/// Whether a set can be restarted from, as far as the namespace tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "lowercase")]
pub enum SetState {
    /// All members are committed and closed.
    #[n(0)]
    Complete,
    /// A member is missing, open or was interrupted.
    #[n(1)]
    Incomplete,
    /// Nothing says how many ranks there are: no earlier set, none declared.
    #[n(2)]
    Unknown,
}

/// The files of one timestep (I5).
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct CheckpointSet {
    /// The timestep.
    #[n(0)]
    pub timestep: u64,
    /// Whether it can be restarted from.
    #[n(1)]
    pub state: SetState,
    /// Why it can't, for people; empty if it can.
    #[n(2)]
    pub reason: String,
    /// Its members by name.
    #[n(3)]
    pub members: Vec<SetMember>,
    /// When its last member was committed.
    #[n(4)]
    pub committed_at: TimeNs,
}

/// State of the pool.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct PoolStatus {
    /// Process id of the manager.
    #[n(0)]
    pub manager_pid: u32,
    /// Time since the manager started, milliseconds.
    #[n(1)]
    pub uptime_ms: u64,
    /// The benefactors.
    #[n(2)]
    pub benefactors: Vec<BenefactorInfo>,
    /// Space and counts.
    #[n(3)]
    pub space: Space,
    /// Sessions open.
    #[n(4)]
    pub sessions: u64,
    /// Versions committed and kept.
    #[n(5)]
    pub versions: u64,
    /// Bytes of all kept versions as their readers see them.
    #[n(6)]
    pub logical_bytes: u64,
    /// Plain bytes of all distinct chunks, replicas not counted.
    #[n(7)]
    pub unique_bytes: u64,
    /// Bytes that blocks take at benefactors, replicas counted.
    #[n(8)]
    pub stored_bytes: u64,
    /// Distinct chunks.
    #[n(9)]
    pub chunks: u64,
    /// Live chunks with fewer replicas than their folder asks for.
    #[n(10)]
    pub chunks_at_risk: u64,
    /// Live chunks of which no replica is on-line.
    #[n(11)]
    pub chunks_lost: u64,
    /// Copies under way or planned.
    #[n(12)]
    pub repairs_pending: u64,
    /// Copies made since the manager started, to complete or repair redundancy.
    #[n(13)]
    pub repairs_done: u64,
    /// Damaged blocks found since the manager started.
    #[n(14)]
    pub damaged_found: u64,
    /// Changes and commits made durable since the manager started.
    #[n(15)]
    pub commits: u64,
}
