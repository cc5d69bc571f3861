//! The answers of a manager. Which request is answered by which stands with the requests.

use minicbor::{Decode, Encode};

use super::{
    Attr, BenefactorInfo, CheckpointSet, ChunkLocations, DirEntry, Hold, MemberInfo, Moment, Pace, Placement,
    PoolStatus, SetFate, Space, Term, VersionInfo,
};
use crate::chunk_map::{ChunkRef, MapRoot};
use crate::id::{BenefactorId, SessionId};
use crate::journal::Piece;
use crate::message::benefactor::Command;
use crate::permit::PermitKey;
use crate::policy::Policy;
use crate::signed::Signed;

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
        /// The file that was asked for, at the same moment.
        #[n(2)]
        attr: Attr,
        /// After a commit: for what the writer should wait before it tells its application.
        #[n(3)]
        hold: Option<Hold>,
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
        /// Benefactors for the content of a file that was just made.
        #[n(4)]
        benefactors: Vec<BenefactorInfo>,
        /// Space reserved there, bytes; 0: none.
        #[n(5)]
        room_bytes: u64,
    },
    /// Space and where to use it.
    #[n(10)]
    Stripe {
        /// Benefactors to take in turn, on-line ones only: disks, and where the folder lets memory suffice for a commit also enough of
        /// those that keep blocks in memory, if there are as many with room.
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
        /// Blocks: all of these chunks, and surplus copies of others.
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
        /// To be remembered before a block is acknowledged as durable. Absent while the manager is set back: then the
        /// benefactor keeps what it remembers.
        #[n(1)]
        moment: Option<Signed<Moment>>,
        /// Number of this registration, which comes with all that the benefactor says from now on.
        #[n(2)]
        registration: u64,
        /// Of the manager. The benefactor obeys no orders over this connection if it knows a greater one.
        #[n(3)]
        term: Signed<Term>,
        /// What permits of the manager for this benefactor's blocks are checked with, until the next key.
        #[n(4)]
        permits: PermitKey,
    },
    /// What the benefactor should do.
    #[n(17)]
    Commands(#[n(0)] Vec<Command>),
    /// What the pool has of the chunks that were asked for, and space for others.
    #[n(18)]
    Known {
        /// One entry per asked chunk, in order.
        #[n(0)]
        found: Vec<ChunkLocations>,
        /// As in `Stripe`; none if no space was asked for, or none can be granted.
        #[n(1)]
        benefactors: Vec<BenefactorInfo>,
        /// Space granted, bytes.
        #[n(2)]
        room_bytes: u64,
    },
    /// It is done, and the writer should wait before it tells its application.
    #[n(19)]
    Held {
        /// The inode.
        #[n(0)]
        attr: Attr,
        /// For what.
        #[n(1)]
        hold: Hold,
    },
    /// What is waited for is not over.
    #[n(20)]
    Waiting {
        /// Another number than before: it has come further.
        #[n(0)]
        progress: u64,
    },
    /// Who has joined the pool with a token.
    #[n(25)]
    Members(#[n(0)] Vec<MemberInfo>),
    /// What becomes of checkpoint sets, newest timestep first.
    #[n(24)]
    Fates(#[n(0)] Vec<SetFate>),
    /// How benefactors are chosen.
    #[n(26)]
    Placement(#[n(0)] Placement),
    /// What is known for advice on how often to take checkpoints.
    #[n(27)]
    Pace(#[n(0)] Pace),
    /// A copy of the store was taken.
    #[n(21)]
    Backup {
        /// Which copy.
        #[n(0)]
        id: u64,
        /// The moment that it shows.
        #[n(1)]
        moment: Moment,
    },
    /// A part of the copy.
    #[n(22)]
    BackupPart {
        /// Its bytes: records as `docs/FORMAT.md` has them in an entry of the log.
        #[cbor(n(0), with = "minicbor::bytes")]
        bytes: Vec<u8>,
        /// Whether it is the last.
        #[n(1)]
        last: bool,
    },
    /// The benefactor on a machine, if there is one.
    #[n(28)]
    Own(#[n(0)] Option<BenefactorInfo>),
    /// Chunks in the order of their names, with the lengths that benefactors have told; 0: no benefactor has, yet.
    #[n(29)]
    Chunks(#[n(0)] Vec<ChunkRef>),
    /// Pieces of the journal, in order.
    #[n(23)]
    Journal(#[n(0)] Vec<Piece>),
    /// Where the pool's managers serve, `host:port`; none: nobody has said.
    #[n(30)]
    Managers(#[n(0)] Vec<String>),
}
