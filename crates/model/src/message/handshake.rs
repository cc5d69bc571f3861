//! The first exchange on every connection: who calls, which protocol, and proof of belonging to the pool.
//!
//! Both sides know the pool's token, and neither sends it: whoever took the port of a server would have it. Each side proves that
//! it knows the token by a hash, keyed with it, of all that was said before: both nonces, both roles, the pool. The caller goes
//! first, so that a stranger learns nothing from a server.

use minicbor::{Decode, Encode};

use crate::cbor;
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

/// Random bytes that make each greeting another one, so that no proof can be used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Nonce(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

/// What shows that its maker knows the token.
#[derive(Clone, Copy, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct TokenProof(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

impl PartialEq for TokenProof {
    fn eq(&self, other: &Self) -> bool {
        // The comparison of `blake3::Hash` takes the same time wherever the bytes differ.
        blake3::Hash::from_bytes(self.0) == blake3::Hash::from_bytes(other.0)
    }
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
    /// Random.
    #[n(3)]
    pub nonce: Nonce,
}

/// The answer to [`Hello`]; a refusal is a [`crate::Failure`] instead.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Challenge {
    /// [`PROTOCOL`] of the server.
    #[n(0)]
    pub protocol: u16,
    /// Random.
    #[n(1)]
    pub nonce: Nonce,
}

/// The caller's answer to [`Challenge`].
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Proof {
    /// See [`Greeting::caller_proof`].
    #[n(0)]
    pub proof: TokenProof,
}

/// The answer to [`Proof`]; a refusal is a [`crate::Failure`] instead.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Welcome {
    /// What the server is.
    #[n(0)]
    pub role: Role,
    /// The pool that it serves.
    #[n(1)]
    pub pool: PoolId,
    /// See [`Greeting::server_proof`].
    #[n(2)]
    pub proof: TokenProof,
}

/// What was said before the proofs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// By the caller.
    pub hello: Hello,
    /// By the server.
    pub challenge: Challenge,
}

impl Greeting {
    /// What shows the server that the caller knows the token.
    pub fn caller_proof(&self, token: &[u8]) -> TokenProof {
        self.proof("stdchk greeting 1: caller", token, &[])
    }

    /// What shows the caller that the server knows the token, as a server of this role and pool.
    pub fn server_proof(&self, token: &[u8], role: Role, pool: PoolId) -> TokenProof {
        self.proof("stdchk greeting 1: server", token, &cbor::encode(&(role, pool)))
    }

    /// The context makes the keys of both sides different: neither can send back what it was sent.
    fn proof(&self, context: &str, token: &[u8], more: &[u8]) -> TokenProof {
        let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(context, token));
        // One behind the other: of CBOR items no two sequences look alike.
        hasher.update(&cbor::encode(&self.hello)).update(&cbor::encode(&self.challenge)).update(more);
        TokenProof(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_greeting_one_side_and_one_token() {
        let pool = PoolId([1; 16]);
        let hello = Hello { protocol: PROTOCOL, role: Role::Client, pool: None, nonce: Nonce([2; 32]) };
        let challenge = Challenge { protocol: PROTOCOL, nonce: Nonce([3; 32]) };
        let greeting = Greeting { hello: hello.clone(), challenge: challenge.clone() };
        let others = [
            Hello { role: Role::Benefactor, ..hello.clone() },
            Hello { pool: Some(pool), ..hello.clone() },
            Hello { nonce: Nonce([4; 32]), ..hello.clone() },
        ];
        let mut proofs = vec![
            greeting.caller_proof(b"token"),
            greeting.caller_proof(b"tokem"),
            greeting.server_proof(b"token", Role::Manager, pool),
            greeting.server_proof(b"token", Role::Benefactor, pool),
            greeting.server_proof(b"token", Role::Manager, PoolId([2; 16])),
        ];
        for hello in others {
            proofs.push(Greeting { hello, challenge: challenge.clone() }.caller_proof(b"token"));
        }
        let challenge = Challenge { nonce: Nonce([5; 32]), ..challenge };
        proofs.push(Greeting { hello, challenge }.caller_proof(b"token"));
        for (index, proof) in proofs.iter().enumerate() {
            assert_eq!(proofs.iter().position(|other| other == proof), Some(index));
        }
    }
}
