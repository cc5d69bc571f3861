//! The client library: what a mount, a command or a program does with a pool.
//!
//! A [`Pool`] is a connection to one pool. A [`Session`] is one file being written, a [`Reader`] one version being
//! read. A [`Writer`] writes a file by the protocol of its folder, through a [`Spool`] where that asks for one. Data goes
//! straight between the client and the benefactors; the manager is asked only where and what.
//!
//! Memory has two budgets, both stated in [`ClientConfig`]: the window, which holds bytes on their way to benefactors,
//! and the read cache, which holds verified chunks (I8).
//!
//! # Who waits for whom
//!
//! Whoever has something of one line waits for lines further down only, so that no wait leads back to itself:
//!
//! 1. the turn to open, close or rename a file; the turn to commit it; the turn to push it from the spool
//! 2. a part of its own window, then of the window of all files
//! 3. room for a pack that is copied together, or for a compressed chunk, and a core to compress it
//! 4. a turn to decode blocks of a container
//! 5. a turn to fetch a chunk, or the fetch that somebody else has begun
//! 6. memory for an answer under way (`stdchk_net::buffer`)
//! 7. the manager and the benefactors, which have time limits
//!
//! A cell that wants a larger part of the window than it has is sent as it is if there is no more.
//! What a read gives back, and what the caches keep, is of none of these lines: whoever holds it may wait for anything.

mod acting;
mod aggregation;
mod benefactors;
mod cache;
mod container;
mod decoding;
mod encode;
mod fetch;
mod gather;
mod hold;
mod holes;
mod keyring;
mod manager;
mod map_view;
mod near;
mod opening;
mod piece_names;
mod pool;
mod reader;
mod receiving;
mod sending;
mod session;
mod shared;
mod spool;
mod stored;
pub mod time;
mod writer;

pub use acting::acting_for;
pub use aggregation::{AggregationError, PackedSet};
pub use holes::Sought;
pub use keyring::KeyRing;
pub use piece_names::PieceNames;
pub use pool::{ChunkHealth, ClientConfig, Collected, Depth, Pool};
pub use reader::Reader;
pub use session::{NewFile, Room, Session};
pub use spool::{SPOOL_BYTES_MIN, Spool, Waiting};
pub use writer::{Unpushed, Writer};

use stdchk_model::{ErrorCode, Failure};

/// A failure that says what was being done to what before the cause.
pub(crate) fn context(failure: &Failure, what: impl std::fmt::Display) -> Failure {
    Failure { message: format!("{what}: {}", failure.message), ..failure.clone() }
}

/// A task of this process that ended as none should.
pub(crate) fn internal(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::Internal, error.to_string())
}

/// An answer that the protocol doesn't allow at this place.
pub(crate) fn unexpected(what: &str) -> Failure {
    Failure::new(ErrorCode::Malformed, format!("unexpected answer to {what}: use the same stdchk everywhere"))
}

/// Sixteen random bytes for an identity.
pub(crate) fn random() -> Result<[u8; 16], Failure> {
    let mut bytes = [0; 16];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => {
            Err(Failure::new(ErrorCode::Internal, format!("the system gives no random numbers: {error}")))
        }
    }
}
