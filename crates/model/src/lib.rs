//! What every part of stdchk agrees on: ids, names, policies, limits, chunk maps and the messages of the protocol.
//!
//! Pure data: no clock, no randomness, no files, no sockets. Everything here that is stored or sent is encoded as
//! CBOR (RFC 8949) with integer keys, so that fields and variants can be added without breaking what exists;
//! `docs/FORMAT.md` and `docs/PROTOCOL.md` describe the bytes.

pub mod block;
pub mod cbor;
pub mod chunk_map;
pub mod duration;
pub mod error;
pub mod exact;
pub mod id;
pub mod journal;
pub mod labels;
pub mod layout;
pub mod lifetime;
pub mod limits;
pub mod maker;
pub mod message;
pub mod name;
pub mod naming;
pub mod permit;
pub mod policy;
pub mod receipt;
pub mod redundancy;
pub mod sets;
pub mod shares;
pub mod signed;
pub mod size;
pub mod tier;
pub mod timestep;
pub mod user;

pub use block::{BlockId, Code, Encoding, EncodingId};
pub use chunk_map::{ChunkMap, ChunkRef, Extent, InContainer, MapRoot, Source};
pub use error::{ErrorCode, Failure};
pub use id::{BenefactorId, ChunkId, ClientId, Incarnation, Ino, KeyId, MachineId, OpId, PoolId, SessionId};
pub use maker::{Maker, Trust};
pub use permit::{Permit, PermitKey};
pub use policy::Policy;
pub use receipt::{Receipt, ReceiptKey};
pub use redundancy::Redundancy;
pub use signed::{MomentKey, Signed};
pub use tier::{Durability, Tier};
pub use timestep::Timestep;
pub use user::User;
