//! The pool as a whole: its benefactors, its space, its state.

use std::fmt;

use minicbor::{Decode, Encode};
use serde::Serialize;

use super::{Exposed, ManagerRequest, TimeNs};
use crate::cbor;
use crate::id::{BenefactorId, Incarnation, Ino, MachineId, SessionId};
use crate::maker::Maker;
use crate::message::benefactor::BenefactorLoad;
use crate::message::handshake::{MemberId, Role};
use crate::receipt::ReceiptKey;
use crate::signed::Signed;
use crate::tier::Tier;
use crate::timestep::Timestep;
use crate::user::User;

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

/// A member of a pool of several machines, which joined with a token.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct MemberInfo {
    /// Which of all.
    #[n(0)]
    pub id: MemberId,
    /// What its host called itself then.
    #[n(1)]
    pub host: String,
    /// What it may be.
    #[n(2)]
    pub roles: Vec<Role>,
    /// When it joined.
    #[n(3)]
    pub joined: TimeNs,
    /// The benefactors that it has registered as since the manager's start.
    #[n(4)]
    pub benefactors: Vec<BenefactorId>,
    /// Its keys are accepted no more.
    #[n(5)]
    pub revoked: bool,
    /// For whom it acts as a client; `None`: as whom it says.
    #[n(6)]
    pub user: Option<User>,
}

/// What sets a benefactor apart from everybody else who has the pool's token: random, made once for its data directory, and known to
/// it and to the manager.
#[derive(Clone, Encode, Decode)]
#[cbor(transparent)]
pub struct BenefactorSecret(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

impl fmt::Debug for BenefactorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BenefactorSecret(secret)")
    }
}

impl PartialEq for BenefactorSecret {
    fn eq(&self, other: &Self) -> bool {
        // The comparison of `blake3::Hash` takes the same time wherever the bytes differ.
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
}

impl Eq for BenefactorSecret {}

/// A benefactor's word about itself, when it connects to the manager.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Registration {
    /// Its number, if it has one from an earlier registration.
    #[n(0)]
    pub id: Option<BenefactorId>,
    /// Its present life.
    #[n(1)]
    pub incarnation: Incarnation,
    /// Where it serves, `host:port`.
    #[n(2)]
    pub address: String,
    /// Its process id, for pools on one machine.
    #[n(3)]
    pub pid: u32,
    /// Its space.
    #[n(4)]
    pub load: BenefactorLoad,
    /// The last moment of the manager's history that it was told to remember, if it was, as the manager has signed it.
    #[n(5)]
    pub remembered: Option<Signed<Moment>>,
    /// Sequence number of its last put.
    #[n(6)]
    pub put_sequence: u64,
    /// What the receipts of this life are checked with.
    #[n(7)]
    pub receipt_key: ReceiptKey,
    /// The greatest term of a manager that it has registered with, if it has with one, as that manager has signed it.
    #[n(8)]
    pub term: Option<Signed<Term>>,
    /// The machine on which it runs, if it can tell.
    #[n(9)]
    pub machine: Option<MachineId>,
    /// What its owner says of where it stands, such as `rack` and `3`: at most [`crate::limits::LABELS_MAX`] names with their values.
    #[n(10)]
    #[cbor(default)]
    pub labels: Vec<(String, String)>,
    /// Where it keeps blocks; the same for all of its life.
    #[n(11)]
    pub tier: Tier,
}

impl Registration {
    /// The request of one whose secret the manager knows.
    pub fn proved(self, secret: &BenefactorSecret) -> ManagerRequest {
        let proof = self.proof(secret);
        ManagerRequest::Register { registration: self, secret: None, proof }
    }

    /// The request of one whose secret the manager may not know.
    pub fn introduced(self, secret: &BenefactorSecret) -> ManagerRequest {
        let proof = self.proof(secret);
        ManagerRequest::Register { registration: self, secret: Some(secret.clone()), proof }
    }

    /// Whether `proof` was made with `secret`.
    pub fn is_proved(&self, secret: &BenefactorSecret, proof: &[u8; 32]) -> bool {
        blake3::Hash::from_bytes(self.proof(secret)) == blake3::Hash::from_bytes(*proof)
    }

    fn proof(&self, secret: &BenefactorSecret) -> [u8; 32] {
        let key = blake3::derive_key("stdchk registration 1", &secret.0);
        *blake3::keyed_hash(&key, &cbor::encode(self)).as_bytes()
    }
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
    /// What its owner says of where it stands: names with their values.
    #[n(6)]
    #[cbor(default)]
    pub labels: Vec<(String, String)>,
    /// Where it keeps blocks.
    #[n(7)]
    pub tier: Tier,
    /// Other benefactors that are on-line and that it can't send to, by its own word.
    #[n(8)]
    pub unreached: Vec<BenefactorId>,
    /// For how long it has not reached the first one of them, milliseconds; 0: there are none.
    #[n(9)]
    pub unreached_ms: u64,
    /// It can't send to as many others as have to get copies of what is stored there: a writer that stores something there alone has to store all copies.
    #[n(10)]
    pub is_cut_off: bool,
    /// The name of its host, as the host said it when it joined; empty: it is one of the manager's machine. This and what follows is told
    /// with the pool's status alone.
    #[n(11)]
    pub host: String,
    /// Its host was shut out: nothing counts of what it has.
    #[n(12)]
    pub is_shut_out: bool,
    /// The error of its disk, if it has failed.
    #[n(13)]
    pub disk: Option<DiskFailure>,
    /// A second process that has its number and is refused, if there is one.
    #[n(14)]
    pub twin: Option<Twin>,
}

/// The error of a benefactor's disk, after which nothing more is stored there.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct DiskFailure {
    /// For how long the manager has known it, milliseconds.
    #[n(0)]
    pub for_ms: u64,
    /// The system's message, for people: at most [`crate::limits::CAUSE_BYTES_MAX`] bytes.
    #[n(1)]
    pub cause: String,
}

/// A process that shows the number and the secret of a benefactor, while another process serves as that: its folder is a copy.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Twin {
    /// Where it serves, `host:port`.
    #[n(0)]
    pub address: String,
    /// Its process id, for pools on one machine.
    #[n(1)]
    pub pid: u32,
    /// For how long it has been refused, milliseconds.
    #[n(2)]
    pub for_ms: u64,
}

/// A moment in the history of the manager's store. A benefactor remembers the last that it was told: a manager whose store
/// doesn't know of it has been set back to an older copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Moment {
    /// Identity of a start of the manager: random, and in its store from then on.
    #[n(0)]
    pub start: u64,
    /// Number of the last commit by then.
    #[n(1)]
    pub commit: u64,
}

/// A way that the pool's state has gone. It begins a new one when it moves into etcd, when it is made anew of what benefactors keep, and when an
/// older copy is accepted. A member that has heard of a later one, or of another one, takes no manager of this one for the pool's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct Era {
    /// How many there were before.
    #[n(0)]
    pub number: u64,
    /// Random, but for the first.
    #[n(1)]
    pub id: u64,
}

impl Era {
    /// That of a new pool.
    pub const FIRST: Self = Self { number: 0, id: 0 };
}

/// Who leads a pool: of two managers, the one with the greater term came later, and benefactors obey no order of the other one any more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct Term {
    /// Of the state that the manager has.
    #[n(2)]
    pub era: Era,
    /// Rises durably before a manager answers anybody, and whenever a benefactor knows of a greater one.
    #[n(0)]
    pub number: u64,
    /// Identity of the manager's start, as in [`Moment`]: no two managers have the same term.
    #[n(1)]
    pub start: u64,
}

/// The etcd in which the managers keep the pool's state.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EtcdInfo {
    /// Its members, as the manager that leads reaches them, `host:port`.
    #[n(0)]
    pub members: Vec<String>,
    /// Why it is of no use, or soon won't be, if that is so.
    #[n(1)]
    pub trouble: Option<EtcdTrouble>,
    /// No other manager stands by any more, though one did.
    #[n(2)]
    pub alone: Option<Alone>,
    /// Its members that don't answer while the others do.
    #[n(3)]
    pub silent: Vec<EtcdMember>,
}

/// A member of etcd that doesn't answer.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EtcdMember {
    /// `host:port`.
    #[n(0)]
    pub member: String,
    /// Since when, and why.
    #[n(1)]
    pub trouble: EtcdTrouble,
}

/// Something is wrong with etcd.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct EtcdTrouble {
    /// For how long, milliseconds.
    #[n(0)]
    pub for_ms: u64,
    /// The cause, for people.
    #[n(1)]
    pub cause: String,
}

/// A manager leads, and no other one stands by any more.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Alone {
    /// For how long, milliseconds.
    #[n(0)]
    pub for_ms: u64,
    /// The managers that stood by last.
    #[n(1)]
    pub before: Vec<ManagerInfo>,
}

/// Space and counts of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
pub struct Space {
    /// Donated by benefactors that are on-line, bytes; of this and the next two, disks alone count.
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
    /// Whether no benefactor has room for a chunk, those included that are away for a while; false if none is on-line.
    #[n(5)]
    pub is_full: bool,
}

/// State of the pool.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct PoolStatus {
    /// Process id of the manager.
    #[n(0)]
    pub manager_pid: u32,
    /// Time for which the manager has run since it started, milliseconds; while it stood still it did not.
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
    /// Live chunks of which no replica is left anywhere.
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
    /// Versions that were closed early and never committed.
    #[n(16)]
    #[cbor(default)]
    pub versions_lost: u64,
    /// Not all benefactors have reported what they hold since the manager started, or what happened moments ago was not counted yet
    /// for all chunks: the counts of chunks are not final.
    #[n(17)]
    #[cbor(default)]
    pub counting: bool,
    /// Benefactors that remember commits of which the manager's store knows nothing: it is an older copy.
    #[n(18)]
    #[cbor(default)]
    pub set_back: Vec<BenefactorId>,
    /// Live chunks with fewer copies than their folder asks for, those without any counted.
    #[n(19)]
    pub exposed_chunks: u64,
    /// Their plain bytes.
    #[n(20)]
    pub exposed_bytes: u64,
    /// Those of them of which no copy can be made now: their holders are away, or no other benefactor has room.
    #[n(21)]
    pub chunks_stuck: u64,
    /// The sets to which they belong, and folders of which only other files lack copies; the oldest of them.
    #[n(22)]
    pub exposed: Vec<ExposedSet>,
    /// Live chunks of which no replica is on-line, and which a benefactor that is away has or may have.
    #[n(23)]
    pub chunks_away: u64,
    /// The disk on which the manager keeps its store is full, or the etcd in which it does: nothing new can be written.
    #[n(24)]
    pub store_is_full: bool,
    /// The benefactors that keep the manager's store as well.
    #[n(25)]
    pub keepers: Vec<KeeperInfo>,
    /// The managers that share the store, the one that leads first; none if only one can use it.
    #[n(26)]
    pub managers: Vec<ManagerInfo>,
    /// Chunks that have all blocks that are wanted, some of them at benefactors that are to let go of them: others are being made
    /// elsewhere.
    #[n(27)]
    pub chunks_moving: u64,
    /// Those of them of which no block can be made elsewhere now.
    #[n(28)]
    pub chunks_unmovable: u64,
    /// What benefactors that keep blocks in memory have.
    #[n(29)]
    pub memory: MemorySpace,
    /// What is kept though no version refers to it, for states that somebody may return to.
    #[n(30)]
    pub held: HeldBack,
    /// Who made encodings that benefactors have found broken since the manager started, as far as that is less than a day ago.
    #[n(31)]
    pub broken: Vec<BrokenEncodings>,
    /// Versions that are kept for files in spools, the oldest first, at most [`crate::limits::LIST_ENTRIES_MAX`].
    #[n(32)]
    pub kept_bases: Vec<KeptBase>,
    /// The etcd in which the state is; `None`: it is on the manager's disk.
    #[n(33)]
    pub etcd: Option<EtcdInfo>,
    /// Of the versions those that aren't the newest of their files.
    #[n(34)]
    pub older_versions: u64,
    /// Bytes of these as their readers see them.
    #[n(35)]
    pub older_bytes: u64,
}

/// What is kept though no version refers to it, for states that somebody may return to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct HeldBack {
    /// The backups that are registered, the oldest first.
    #[n(0)]
    pub backups: Vec<RegisteredBackup>,
    /// Chunks that they hold, all together.
    #[n(1)]
    pub chunks: u64,
    /// Bytes of the blocks of these chunks.
    #[n(2)]
    pub bytes: u64,
    /// Since when nothing can be collected, if that is so for a minute or longer.
    #[n(3)]
    pub stopped: Option<CollectionStopped>,
}

/// A backup of the manager's store that is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct RegisteredBackup {
    /// The commit that it shows.
    #[n(0)]
    pub commit: u64,
    /// The start of the manager that made the commit.
    #[n(1)]
    pub start: u64,
    /// When it is given up, milliseconds that the manager has still to run.
    #[n(2)]
    pub ends_in_ms: u64,
    /// Chunks that it holds; others may hold them as well.
    #[n(3)]
    pub chunks: u64,
    /// Bytes of the blocks of these chunks.
    #[n(4)]
    pub bytes: u64,
}

/// Why nothing can be collected.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct CollectionStopped {
    /// For how long, milliseconds.
    #[n(0)]
    pub for_ms: u64,
    /// Why.
    #[n(1)]
    pub why: String,
}

/// Encodings whose fragments match their names and don't make their chunks.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BrokenEncodings {
    /// Who made them.
    #[n(0)]
    pub maker: Maker,
    /// How many were found.
    #[n(1)]
    pub count: u64,
    /// The user for whom the maker's certificates are, if they are for one.
    #[n(2)]
    pub uid: Option<u32>,
    /// What the hosts call themselves that have such certificates, as far as the pool knows them.
    #[n(3)]
    pub hosts: Vec<String>,
}

/// A version that is kept for a file which waits in a spool and has parts of it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct KeptBase {
    /// The session for which it is kept: the first that was to commit the file.
    #[n(0)]
    pub kept_for: SessionId,
    /// The file.
    #[n(1)]
    pub ino: Ino,
    /// Its path.
    #[n(2)]
    pub path: String,
    /// Number of the version when it was written over.
    #[n(3)]
    pub version: u64,
    /// Size of the version, bytes.
    #[n(4)]
    pub size: u64,
    /// What the host of the spool calls itself.
    #[n(5)]
    pub host: String,
    /// What the spool holds of the file, bytes.
    #[n(6)]
    pub bytes: u64,
    /// Since when.
    #[n(7)]
    pub since: TimeNs,
}

/// The memory of a pool. None of it is part of its [`Space`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
pub struct MemorySpace {
    /// Benefactors that keep blocks in memory and are on-line.
    #[n(0)]
    pub benefactors: u64,
    /// What they give, bytes.
    #[n(1)]
    pub donated_bytes: u64,
    /// What blocks take there, bytes.
    #[n(2)]
    pub used_bytes: u64,
    /// What is left, bytes.
    #[n(3)]
    pub free_bytes: u64,
    /// Live chunks that can be read from memory alone: no disk has enough of them.
    #[n(4)]
    pub chunks_alone: u64,
}

/// A manager that leads or stands by.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ManagerInfo {
    /// Where it serves while it leads.
    #[n(0)]
    pub addresses: Vec<String>,
    /// What its host calls itself.
    #[n(1)]
    pub host: String,
    /// Its process id there.
    #[n(2)]
    pub pid: u32,
    /// Whether it leads.
    #[n(3)]
    pub leads: bool,
}

/// How far a keeper of the journal is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct KeeperInfo {
    /// Who it is.
    #[n(0)]
    pub id: BenefactorId,
    /// Commits that it lacks; `None`: it has said nothing since the manager started, or has nothing yet, or wants a new base. Then what
    /// it has is not counted, though a recovery would still find it.
    #[n(1)]
    pub lacks: Option<u64>,
}

/// A checkpoint set that lacks copies.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, Serialize)]
pub struct ExposedSet {
    /// Its folder.
    #[n(0)]
    pub folder: String,
    /// Its timestep; `None`: files of the folder that belong to no set.
    #[n(1)]
    pub timestep: Option<Timestep>,
    /// What lacks copies.
    #[n(2)]
    pub exposed: Exposed,
}
