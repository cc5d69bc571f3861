//! Versions of files and the checkpoint sets that they make.

use minicbor::{Decode, Encode};
use serde::Serialize;

use super::{TimeNs, ino};
use crate::id::{Ino, KeyId, SessionId};
use crate::maker::Maker;
use crate::timestep::Timestep;

/// How far a version got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "lowercase")]
pub enum VersionState {
    /// Committed, while its writer still has the file open (after `fsync`, or a duplicate descriptor was closed).
    #[default]
    #[n(0)]
    Open,
    /// Its writer closed the file.
    #[n(1)]
    Closed,
    /// Its writer was killed, or its mount went away with the file open: the content may be torn.
    #[n(2)]
    Interrupted,
    /// Its writer was told that the file is closed, and it was never committed. There is nothing to read: it only says that
    /// something is missing.
    #[n(3)]
    Lost,
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
    /// The session that committed it.
    #[n(6)]
    #[cbor(default)]
    #[serde(skip)]
    pub session: SessionId,
    /// It lies in a container, with the other files of its checkpoint set.
    #[n(7)]
    #[cbor(default)]
    pub aggregated: bool,
    /// The key with which it is encrypted; `None`: it isn't. Parts that it has of earlier versions may need others.
    #[n(8)]
    pub key: Option<KeyId>,
    /// As whom its writer coded it. That its map names its pieces truly is this maker's word.
    #[n(9)]
    #[cbor(default)]
    #[serde(skip)]
    pub maker: Maker,
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
    /// It lies in a container, with other members.
    #[n(5)]
    #[cbor(default)]
    pub aggregated: bool,
}

/// A container that was committed, and what it holds: one of those that take the place of a set's own chunks.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct PackedMembers {
    /// The session that committed the container, still open.
    #[n(0)]
    pub session: SessionId,
    /// File and version of what it holds, in the order of the container's files.
    #[n(1)]
    pub members: Vec<(Ino, u64)>,
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
    pub timestep: Timestep,
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
    /// What of it has fewer copies than its folder asks for; `None`: not known yet, after a start of the manager.
    #[n(5)]
    pub exposed: Option<Exposed>,
    /// No policy removes it.
    #[n(6)]
    pub sealed: bool,
}

/// What becomes of a checkpoint set by the lifetime of its folder.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct SetFate {
    /// The timestep.
    #[n(0)]
    pub timestep: Timestep,
    /// Whether all its files are there.
    #[n(1)]
    pub state: SetState,
    /// Its files.
    #[n(2)]
    pub files: u64,
    /// Their bytes.
    #[n(3)]
    pub bytes: u64,
    /// Whether it goes.
    #[n(4)]
    pub goes: bool,
    /// Why it goes or stays, for people.
    #[n(5)]
    pub reason: String,
}

/// What has fewer copies than wanted. It may be less: what was shared with an earlier version and isn't any more counts, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
pub struct Exposed {
    /// Distinct chunks.
    #[n(0)]
    pub chunks: u64,
    /// Their plain bytes.
    #[n(1)]
    pub bytes: u64,
    /// Since when at the most; `None`: nothing lacks a copy.
    #[n(2)]
    pub since: Option<TimeNs>,
    /// Those chunks that can be read from memory alone.
    #[n(3)]
    pub in_memory: u64,
}

/// For which copies a writer waits before it tells its application that a commit is done: for those of what was committed
/// within this time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Hold {
    /// Its beginning.
    #[n(0)]
    pub from: TimeNs,
    /// Its end; what was committed at this moment doesn't count.
    #[n(1)]
    pub before: TimeNs,
}
