//! What a benefactor is asked: store, serve, verify, say what is there. It knows blocks, not files.

use minicbor::{Decode, Encode};
use serde::Serialize;

use crate::block::{BlockId, Encoding, EncodingId};
use crate::id::{BenefactorId, ChunkId};
use crate::message::handshake::MemberId;
use crate::message::manager::Moment;
use crate::permit::{Permit, PermitKey};
use crate::receipt::Receipt;
use crate::signed::Signed;

/// A request to a benefactor.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum BenefactorRequest {
    /// Store a block; the payload holds its stored bytes. Answered by `Stored` once the bytes are verified and written
    /// to the store's file, durable or not unless it is to be `durable`.
    #[n(0)]
    Put {
        /// The block.
        #[n(0)]
        block: BlockId,
        /// How the payload was made.
        #[n(1)]
        encoding: Encoding,
        /// Answer once the block is durable, as if `Sync` had followed.
        #[n(2)]
        #[cbor(default)]
        durable: bool,
        /// No other benefactor takes it: store it also while `StorageState` says that no new blocks are taken.
        #[n(3)]
        #[cbor(default)]
        insists: bool,
    },
    /// Make these blocks durable, keep them from every deletion that was ordered before, and give a receipt for those that
    /// are here. Answered by `Synced`.
    #[n(1)]
    Sync {
        /// The blocks, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(0)]
        blocks: Vec<BlockId>,
        /// The manager waits to hear of it: it is told at once, not with the next heartbeat that is due.
        #[n(1)]
        tell: bool,
    },
    /// Serve a block. Answered by `Block` with its stored bytes as payload, which whoever asked verifies; if they don't
    /// match, `Verify` makes the benefactor look itself.
    #[n(2)]
    Get {
        /// The block.
        #[n(0)]
        block: BlockId,
    },
    /// Read these blocks and compare them with their names. Answered by `Verified`; damaged ones are set aside and
    /// reported to the manager.
    #[n(3)]
    Verify {
        /// The blocks, at most [`crate::limits::LIST_ENTRIES_MAX`].
        #[n(0)]
        blocks: Vec<BlockId>,
    },
    /// What is here in numbers. Answered by `Status`.
    #[n(4)]
    Status,
    /// Keep a copy of a chunk of which nobody else knows, and which goes when room is needed; the payload holds its stored bytes. For
    /// clients on the benefactor's machine. Answered by `Stored`, or refused for any reason.
    #[n(6)]
    PutNear {
        /// The chunk.
        #[n(0)]
        chunk: ChunkId,
        /// How the payload was made: a copy, no fragment.
        #[n(1)]
        encoding: Encoding,
    },
    /// Whether there is such a copy. For clients. Answered by `Near`.
    #[n(7)]
    HasNear {
        /// The chunk.
        #[n(0)]
        chunk: ChunkId,
    },
    /// Serve such a copy. For clients. Answered by `Block` with its stored bytes as payload.
    #[n(8)]
    GetNear {
        /// The chunk.
        #[n(0)]
        chunk: ChunkId,
    },
    /// Serve the file of the journal from an offset on. For operators. Answered by `Journal`.
    #[n(5)]
    Journal {
        /// Bytes before it.
        #[n(0)]
        offset: u64,
    },
    /// Prove that a block is here. Answered by `Proof`.
    #[n(9)]
    Prove {
        /// The block.
        #[n(0)]
        block: BlockId,
        /// Random bytes that nobody can have known before.
        #[cbor(n(1), with = "minicbor::bytes")]
        key: [u8; 32],
    },
}

/// The answer of a benefactor.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum BenefactorReply {
    /// The block is in the store's file. `Sync` makes it durable.
    #[n(0)]
    Stored {
        /// That the block is durable, if it was to be.
        #[n(0)]
        receipt: Option<Receipt>,
        /// Whether the block was there before.
        #[n(1)]
        known: bool,
    },
    /// Those of the blocks that are here and durable; the others are not here.
    #[n(1)]
    Synced(#[n(0)] Receipt),
    /// The block's stored bytes are the payload.
    #[n(2)]
    Block {
        /// How to make the plain chunk from them.
        #[n(0)]
        encoding: Encoding,
    },
    /// One entry per asked block, in order.
    #[n(3)]
    Verified {
        /// One entry per asked block.
        #[n(0)]
        states: Vec<BlockState>,
    },
    /// What is here in numbers.
    #[n(4)]
    Status(#[n(0)] BenefactorLoad),
    /// A part of the journal's file.
    #[n(5)]
    Journal {
        /// Whose it is.
        #[n(0)]
        benefactor: Option<BenefactorId>,
        /// Length of the file, bytes.
        #[n(1)]
        length: u64,
        /// The bytes at the offset; none: it ends there.
        #[cbor(n(2), with = "minicbor::bytes")]
        bytes: Vec<u8>,
    },
    /// Whether there is a near copy.
    #[n(6)]
    Near(#[n(0)] bool),
    /// The hash of the benefactor's number and of a block's stored bytes, under the key that was sent with the question ([`proof`]).
    #[n(7)]
    Proof(#[cbor(n(0), with = "minicbor::bytes")] [u8; 32]),
}

/// The proof that a benefactor has these stored bytes: BLAKE3 of its number and of them, keyed with bytes that were drawn for this question
/// alone. So the answer of another benefactor, which it might have asked for, is of no use to it.
#[must_use]
pub fn proof(key: &[u8; 32], by: BenefactorId, stored: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&by.0.to_le_bytes()).update(stored);
    *hasher.finalize().as_bytes()
}

/// What a verification found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum BlockState {
    /// The bytes match their name.
    #[n(0)]
    Intact,
    /// The bytes don't match, or can't be read.
    #[n(1)]
    Damaged,
    /// No such block here.
    #[n(2)]
    Missing,
}

/// Space and load of a benefactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct BenefactorLoad {
    /// Space that the owner donated, bytes.
    #[n(0)]
    pub donated_bytes: u64,
    /// Space that the store's files take on the disk, bytes.
    #[n(1)]
    pub used_bytes: u64,
    /// Space that new blocks can take: the donation less what is used, limited by the owner's floor, bytes; 0 unless it serves.
    #[n(2)]
    pub free_bytes: u64,
    /// Blocks stored.
    #[n(3)]
    pub blocks: u64,
    /// Requests under way.
    #[n(4)]
    pub requests: u32,
    /// The disk has failed, or can't be asked for its space: nothing more is stored.
    #[n(5)]
    pub disk_failed: bool,
    /// What its owner wishes.
    #[n(6)]
    pub wish: OwnerWish,
    /// Space of blocks that is to go, since the disk has less free than its owner's floor or more is taken than is donated, bytes.
    #[n(7)]
    #[cbor(default)]
    pub owed_bytes: u64,
    /// Its machine is said to go soon; absent: nobody says so.
    #[n(8)]
    pub notice: Option<Notice>,
    /// Whether it takes new blocks, by its own measure.
    #[n(9)]
    #[cbor(default)]
    pub state: StorageState,
    /// Share of time for which others than itself keep its disk busy, percent; `None`: that can't be measured.
    #[n(10)]
    pub busy_percent: Option<u8>,
    /// Clients that send blocks.
    #[n(11)]
    #[cbor(default)]
    pub clients: u32,
    /// Space that near copies take, bytes: free for all else, and not in `used_bytes`.
    #[n(12)]
    #[cbor(default)]
    pub near_bytes: u64,
}

/// A machine is said to go soon: it is preempted, or shut down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Notice {
    /// In so many milliseconds; absent: nobody says when.
    #[n(0)]
    pub in_ms: Option<u64>,
}

/// How busy a storage host is (FALCON, section 3.1). Whatever it is, what is stored there is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "lowercase")]
pub enum StorageState {
    /// S0: its owner's work leaves the disk time enough.
    #[default]
    #[n(0)]
    Running,
    /// S0': as many clients send to it as may.
    #[n(1)]
    Full,
    /// S1: its owner's work keeps the disk busy for a good part of the time.
    #[n(2)]
    Loaded,
    /// S2: its owner's work needs the disk.
    #[n(3)]
    Refusing,
}

impl StorageState {
    /// Whether it takes new blocks, be it (S0') of those alone that send to it already: these are not to be sent elsewhere.
    #[must_use]
    pub fn accepts(self) -> bool {
        self != Self::Refusing
    }
}

/// What the owner of a donated disk wishes of the benefactor on it. Whatever it is, what is stored there is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode, Serialize)]
#[cbor(index_only)]
#[serde(rename_all = "lowercase")]
pub enum OwnerWish {
    /// Take blocks, and keep them.
    #[default]
    #[n(0)]
    Serve,
    /// Take nothing more.
    #[n(1)]
    Pause,
    /// Take nothing more, and let go of what others have as many copies of as are wanted.
    #[n(2)]
    Drain,
    /// Drain, then be forgotten by the pool.
    #[n(3)]
    Leave,
    /// Drain. No owner wished that: blocks were damaged there again and again.
    #[n(4)]
    Damaged,
}

impl OwnerWish {
    /// Whether what is stored there is to go.
    pub fn drains(self) -> bool {
        matches!(self, Self::Drain | Self::Leave | Self::Damaged)
    }
}

/// Something that the manager asks of a benefactor in its answer to a heartbeat.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Command {
    /// Remove these blocks, each unless it was put again after `put_sequence`.
    #[n(0)]
    Delete {
        /// The blocks.
        #[n(0)]
        blocks: Vec<BlockId>,
        /// The put sequence of the heartbeat that the manager had seen when it decided.
        #[n(1)]
        put_sequence: u64,
    },
    /// Make blocks of a chunk at other benefactors (the paper's shadow map, section IV.A), each by `Put` followed by `Sync`,
    /// after which the other benefactor tells the manager.
    #[n(1)]
    Make(#[n(0)] Make),
    /// Report the whole inventory again.
    #[n(2)]
    SendInventory,
    /// Remember this moment of the manager's history in place of the one before.
    #[n(3)]
    Remember(#[n(0)] Signed<Moment>),
    /// The keys of these members of the pool are revoked: all that ever were.
    #[n(4)]
    Revoke(#[n(0)] Vec<MemberId>),
    /// Permits are made with this key from now on; those of the key before still hold.
    #[n(5)]
    Permits(#[n(0)] PermitKey),
    /// The benefactor, whose owner wishes that it leaves, has nothing more and is forgotten.
    #[n(6)]
    Forgotten,
    /// Send heartbeats at this interval from now on, milliseconds, where there is no news; until the next registration.
    #[n(7)]
    BeatEvery(#[n(0)] u64),
    /// What a benefactor does whose machine is said to go soon; until the next heartbeat is answered.
    #[n(8)]
    Goes(#[n(0)] Goes),
    /// Find out whether an encoding makes its chunk, or whether others have what they say. What was found comes with a heartbeat
    /// ([`Decoded`], [`Seen`]), or that too few blocks could be had ([`FailedCopy`] without a destination).
    #[n(9)]
    Check(#[n(0)] Check),
    /// Where the pool's managers serve from now on, `host:port`.
    #[n(10)]
    Managers(#[n(0)] Vec<String>),
}

/// What is left to do for a benefactor whose machine is said to go soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct Goes {
    /// It may end: of what it has, nothing is to be made elsewhere any more, or nothing can be.
    #[n(0)]
    pub may_end: bool,
    /// It takes blocks: too few others can.
    #[n(1)]
    pub takes: bool,
}

impl Command {
    /// The interval of heartbeats that it asks for, milliseconds.
    #[must_use]
    pub fn beat_every(&self) -> Option<u64> {
        match self {
            Self::BeatEvery(ms) => Some(*ms),
            _ => None,
        }
    }
}

/// Blocks of a chunk to be made anew, and what they are made from.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Make {
    /// The chunk.
    #[n(0)]
    pub chunk: ChunkId,
    /// Blocks of one encoding, as many at least as are enough. The first is at the benefactor that gets this order.
    #[n(1)]
    pub from: Vec<SourceBlock>,
    /// What is to be made.
    #[n(2)]
    pub blocks: Vec<NewBlock>,
}

/// A block that others are made from.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct SourceBlock {
    /// How it is made.
    #[n(0)]
    pub encoding: EncodingId,
    /// Which block of the encoding.
    #[n(1)]
    pub index: u8,
    /// Address of the benefactor that has it.
    #[n(2)]
    pub address: String,
    /// What it wants to see before it serves blocks of the chunk.
    #[n(3)]
    pub permit: Permit,
    /// The benefactor.
    #[n(4)]
    pub at: BenefactorId,
}

/// A block to be made.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct NewBlock {
    /// Which block of the sources' encoding; absent: a copy of all of the encoded bytes.
    #[n(0)]
    pub index: Option<u8>,
    /// Where to.
    #[n(1)]
    pub to: BenefactorId,
    /// Its address.
    #[n(2)]
    pub address: String,
    /// What it wants to see before it takes blocks of the chunk.
    #[n(3)]
    pub permit: Permit,
}

/// What a benefactor found that was ordered to gather enough blocks of an encoding, and did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Decoded {
    /// The chunk.
    #[n(0)]
    pub chunk: ChunkId,
    /// The encoding.
    #[n(1)]
    pub encoding: EncodingId,
    /// They make the chunk, by its name; of a sealed chunk: the holder of its key has signed what they make. False: every block is what it
    /// is named after, and they make something else.
    #[n(2)]
    pub is_right: bool,
}

/// Blocks of a chunk that are to be looked at: copies, or blocks of one encoding.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Check {
    /// The chunk.
    #[n(0)]
    pub chunk: ChunkId,
    /// The blocks, as many at least as are enough to make the chunk, together with `own` if that is of their encoding.
    #[n(1)]
    pub from: Vec<SourceBlock>,
    /// A block that the benefactor itself has and that may go once it has seen all of these at the others. Absent: they are to be put
    /// together and compared with the chunk's name, and the benefactor may have some of them.
    #[n(2)]
    pub own: Option<BlockId>,
    /// The order's number, which its answer repeats: an answer to an earlier one tells nothing of these blocks.
    #[n(3)]
    pub number: u64,
}

/// The answer of a benefactor that was ordered to see blocks of others before one of its own may go.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Seen {
    /// Its own block.
    #[n(0)]
    pub own: BlockId,
    /// Places in the order of those that nobody showed; none: all are there.
    #[n(1)]
    pub lacks: Vec<u32>,
    /// The order's number.
    #[n(2)]
    pub number: u64,
}

/// Something of an order to make blocks that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct FailedCopy {
    /// The chunk.
    #[n(0)]
    pub chunk: ChunkId,
    /// The benefactor that its block could not be put at; absent: the blocks could not be made of what was there.
    #[n(1)]
    pub to: Option<BenefactorId>,
}

/// Another benefactor that this one can't send to at present, as it found by trying.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Unreached {
    /// The other one.
    #[n(0)]
    pub to: BenefactorId,
    /// Where it was tried: one that serves elsewhere by now may be reached.
    #[n(1)]
    pub address: String,
    /// Since when, milliseconds before now.
    #[n(2)]
    pub for_ms: u64,
    /// It can be reached, and takes so long for a block that others should take it.
    #[n(3)]
    pub is_slow: bool,
}
