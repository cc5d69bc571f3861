//! Where benefactors keep blocks, and how safe a chunk has to be before a version that names it counts.
//!
//! What lies in memory is fast to write and to read, and gone with its machine. It counts for nothing where it is asked how far from loss
//! a chunk is (`protect`): only [`Durability::in_memory`] takes it into account.

use std::fmt;

use minicbor::{Decode, Encode};
use serde::Serialize;

/// Where a benefactor keeps its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Encode, Decode, Serialize)]
#[serde(rename_all = "lowercase")]
#[cbor(index_only)]
pub enum Tier {
    /// On a disk: they survive a crash of the machine.
    #[default]
    #[n(0)]
    Disk,
    /// In memory: they are lost with the machine.
    #[n(1)]
    Memory,
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
        })
    }
}

/// How safe a chunk has to be before a version that names it counts: one of both is enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Durability {
    /// So many benefactors have to be lost before the chunk is, by what lies on disks; at least 1.
    #[n(0)]
    pub distance: u8,
    /// So many different benefactors have a copy in memory; `None`: those don't count.
    #[n(1)]
    pub in_memory: Option<u8>,
}

impl Durability {
    /// On disks alone.
    #[must_use]
    pub fn on_disks(distance: u8) -> Self {
        Self { distance, in_memory: None }
    }
}
