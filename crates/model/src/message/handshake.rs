//! The first exchange on every connection: who calls, which protocol, and proof of belonging to the pool.

use minicbor::{Decode, Encode};

use crate::id::PoolId;

/// Version of the protocol that this code speaks.
///
/// History: 1, the first.
pub const PROTOCOL: u16 = 1;

/// What a peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Role {
    /// A mount, a command, a library user.
    #[n(0)]
    Client,
    /// A benefactor.
    #[n(1)]
    Benefactor,
    /// The manager.
    #[n(2)]
    Manager,
}

/// Sent by the side that opened the connection.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Hello {
    /// [`PROTOCOL`] of the caller.
    #[n(0)]
    pub protocol: u16,
    /// What the caller is.
    #[n(1)]
    pub role: Role,
    /// The pool that the caller means, if it knows.
    #[n(2)]
    pub pool: Option<PoolId>,
    /// The pool's shared token.
    #[cbor(n(3), with = "minicbor::bytes")]
    pub token: Vec<u8>,
}

/// The answer of the side that was called; a refusal is a [`crate::Failure`] instead.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Welcome {
    /// [`PROTOCOL`] of the server.
    #[n(0)]
    pub protocol: u16,
    /// What the server is.
    #[n(1)]
    pub role: Role,
    /// The pool that it serves.
    #[n(2)]
    pub pool: PoolId,
}
