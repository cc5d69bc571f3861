//! Chunks and where they are: as benefactors report them, as readers are told.

use minicbor::{Decode, Encode};

use crate::block::{BlockId, EncodingId};
use crate::id::{BenefactorId, ChunkId};
use crate::maker::Trust;
use crate::tier::Tier;

/// Where a chunk is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
pub struct ChunkLocations {
    /// Blocks of it; empty: the pool doesn't have it.
    #[n(0)]
    pub at: Vec<Location>,
    /// Set while a benefactor that is expected back may still have it: ask again.
    #[n(1)]
    pub pending: bool,
    /// Benefactors that are not on-line and have it; if nobody else is known to, also those that may have it, because they
    /// have not been heard of since the manager started.
    #[n(2)]
    pub away: Vec<BenefactorId>,
}

/// A block of some chunk at a benefactor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct Location {
    /// The benefactor.
    #[n(0)]
    pub benefactor: BenefactorId,
    /// How the block is made.
    #[n(1)]
    pub encoding: EncodingId,
    /// Which block of the encoding.
    #[n(2)]
    pub index: u8,
    /// Where the benefactor keeps it.
    #[n(3)]
    pub tier: Tier,
    /// Whether it counts for who asked: in an answer to `Known` for the session, else for everybody.
    #[n(4)]
    pub trust: Trust,
}

impl Location {
    /// Whether the same block at the same benefactor is meant, whatever is thought of it.
    pub fn is_same(&self, other: &Self) -> bool {
        Self { trust: other.trust, ..*self } == *other
    }

    /// The block that is there, of `chunk`.
    pub fn block(&self, chunk: ChunkId) -> BlockId {
        BlockId { chunk, encoding: self.encoding, index: self.index }
    }
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
