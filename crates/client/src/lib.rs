//! The client library: what a mount, a command or a program does with a pool.
//!
//! A [`Pool`] is a connection to one pool. A [`Session`] is one file being written, a [`Reader`] one version being
//! read. A [`Writer`] writes a file by the protocol of its folder, through a [`Spool`] where that asks for one. Data goes
//! straight between the client and the benefactors; the manager is asked only where and what.
//!
//! Memory has two budgets, both stated in [`ClientConfig`]: the window, which holds bytes on their way to benefactors,
//! and the read cache, which holds verified chunks (I8).

mod aggregation;
mod benefactors;
mod cache;
mod container;
mod encode;
mod fetch;
mod gather;
mod holes;
mod manager;
mod map_view;
mod opening;
mod piece_names;
mod pool;
mod reader;
mod session;
mod shared;
mod spool;
mod stored;
mod writer;

pub use aggregation::{AggregationError, PackedSet};
pub use holes::Sought;
pub use piece_names::PieceNames;
pub use pool::{ChunkHealth, ClientConfig, Collected, Pool};
pub use reader::Reader;
pub use session::{NewFile, Room, Session};
pub use spool::{SPOOL_BYTES_MIN, Spool};
pub use writer::{Unpushed, Writer};

use stdchk_model::{ErrorCode, Failure};

/// A failure that says what was being done to what before the cause.
pub(crate) fn context(failure: &Failure, what: impl std::fmt::Display) -> Failure {
    Failure::new(failure.code, format!("{what}: {}", failure.message))
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
