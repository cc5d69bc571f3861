//! The messages of the protocol, one file per server. `docs/PROTOCOL.md` tells their order and meaning.
//!
//! A message is the body of a frame; bytes of chunks travel beside it as the frame's payload, never inside. Variants
//! and fields are numbered; numbers are never used again. A server answers a message that it doesn't know with
//! [`crate::ErrorCode::Unsupported`].

mod asked;
pub mod benefactor;
pub mod handshake;
pub mod manager;

pub use asked::Asked;
