//! What a benefactor is asked: store, serve, verify, say what is there. It knows blocks, not files.

use minicbor::{Decode, Encode};

use crate::id::{BenefactorId, BlockId, ChunkId};
use crate::message::manager::Moment;
use crate::receipt::Receipt;

/// How the stored bytes of a block were made from the plain chunk. The reader undoes it; the benefactor only keeps it.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Form {
    /// Codec of the stored bytes, a number of `reduce`; 0: stored as they are.
    #[n(0)]
    pub codec: u8,
    /// Length of the plain chunk, bytes.
    #[n(1)]
    pub plain_length: u32,
    /// BLAKE3-256 of the stored bytes; for a whole, plain block it is the chunk's name. What a benefactor verifies.
    #[n(2)]
    pub stored_id: ChunkId,
    /// Encryption of the stored bytes; none yet defined, absent: none.
    #[n(3)]
    pub cipher: Option<u8>,
    /// Erasure code that the fragment belongs to; absent: the block is whole.
    #[n(4)]
    pub erasure: Option<Erasure>,
}

impl Form {
    /// The form of a whole chunk stored as it is.
    pub fn plain(chunk: ChunkId, length: u32) -> Self {
        Self { codec: 0, plain_length: length, stored_id: chunk, cipher: None, erasure: None }
    }
}

/// An (m, k) erasure code: m data fragments, k parity fragments (FALCON, section IV).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Erasure {
    /// Data fragments, m.
    #[n(0)]
    pub data: u16,
    /// Parity fragments, k.
    #[n(1)]
    pub parity: u16,
}

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
        form: Form,
        /// Answer once the block is durable, as if `Sync` had followed.
        #[n(2)]
        #[cbor(default)]
        durable: bool,
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
        form: Form,
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
    /// Space that new blocks can take: the donation less what is used, limited by the owner's floor, bytes.
    #[n(2)]
    pub free_bytes: u64,
    /// Blocks stored.
    #[n(3)]
    pub blocks: u64,
    /// Requests under way.
    #[n(4)]
    pub requests: u32,
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
    /// Copy a block to another benefactor (the paper's shadow map, section IV.A); it arrives there by `Put`, followed
    /// by `Sync`, after which the other benefactor tells the manager.
    #[n(1)]
    Copy {
        /// The block.
        #[n(0)]
        block: BlockId,
        /// Where to.
        #[n(1)]
        to: BenefactorId,
        /// Its address.
        #[n(2)]
        address: String,
    },
    /// Report the whole inventory again.
    #[n(2)]
    SendInventory,
    /// Remember this moment of the manager's history in place of the one before.
    #[n(3)]
    Remember(#[n(0)] Moment),
}
