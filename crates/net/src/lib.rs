//! The protocol on a socket: frames, recycled buffers, calls on a shared connection, and a server loop.
//!
//! A connection carries many requests at once; answers come back in any order. Bytes of blocks travel as the payload
//! of a frame straight from and into page-aligned buffers that are used again, because fresh memory is slow, and that
//! lie in huge pages where the kernel has them.

mod authority;
pub mod buffer;
pub mod connection;
pub mod data_dir;
mod elsewhere;
mod eyeballs;
pub mod frame;
mod gate;
mod handshakes;
mod joining;
mod keys;
mod machine;
mod managers;
pub mod notice;
pub mod own;
pub mod patience;
mod repeats;
mod retry;
mod search;
pub mod server;
mod slab;
pub mod transport;
pub mod waits;

pub use authority::{Admission, Authority};
pub use buffer::{Buffer, BufferPool, kept_bytes};
pub use bytes::Bytes;
pub use connection::{CallError, Carried, Connection, Identity, Progress};
pub use data_dir::{DataDir, DataDirError};
pub use elsewhere::elsewhere;
pub use joining::{JoiningKey, Token, join};
pub use keys::{Keys, KeysError, Member, Parts};
pub use machine::{VARIABLE as HOST_VARIABLE, host, machine};
pub use managers::Managers;
pub use repeats::Repeats;
pub use retry::Retry;
pub use server::{Caller, Readiness, Service, serve};
pub use transport::Listener;
