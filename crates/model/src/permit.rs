//! Permits: the manager's word to a benefactor that another one may have a chunk from it, or put it there.
//!
//! A benefactor that makes copies has no business with any other chunk. So the manager gives it, with each order, a permit for each
//! benefactor that it is to meet: a keyed hash, whose key that benefactor shares with the manager alone. Keys are told anew from time to
//! time, and the one before holds until then: that is how permits end, without any clock of the benefactors (docs/design/0701).

use std::fmt;

use minicbor::{Decode, Encode};

use crate::id::ChunkId;
use crate::message::handshake::MemberId;
use crate::receipt::ReceiptKey;

/// What permits for one benefactor are made and checked with for some minutes. Shows itself nowhere.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct PermitKey(#[cbor(n(0), with = "minicbor::bytes")] [u8; 32]);

impl fmt::Debug for PermitKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("PermitKey(secret)")
    }
}

impl PermitKey {
    /// The key number `number` of a registration with a manager of this start, made of what the benefactor has told the manager in secret.
    #[must_use]
    pub fn new(secret: &ReceiptKey, start: u64, registration: u64, number: u64) -> Self {
        let key = blake3::derive_key("stdchk permits 1", &secret.0);
        let mut hasher = blake3::Hasher::new_keyed(&key);
        [start, registration, number].iter().for_each(|part| {
            hasher.update(&part.to_le_bytes());
        });
        Self(*hasher.finalize().as_bytes())
    }
}

/// That a benefactor may have blocks of a chunk from another one, or put them there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Permit(#[cbor(n(0), with = "minicbor::bytes")] [u8; 32]);

impl Permit {
    /// A permit for the chunk, for the benefactor that this member of the pool is; `None`: one on the same machine.
    #[must_use]
    pub fn new(key: &PermitKey, chunk: &ChunkId, member: Option<MemberId>) -> Self {
        Self(*proof(key, chunk, member).as_bytes())
    }

    /// Whether it was made with `key`, for this chunk and this member.
    #[must_use]
    pub fn holds(&self, key: &PermitKey, chunk: &ChunkId, member: Option<MemberId>) -> bool {
        // The comparison of `blake3::Hash` takes the same time wherever the bytes differ.
        proof(key, chunk, member) == blake3::Hash::from_bytes(self.0)
    }
}

fn proof(key: &PermitKey, chunk: &ChunkId, member: Option<MemberId>) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(&chunk.0);
    // Nobody's is shorter than any member's.
    member.inspect(|member| {
        hasher.update(&member.0);
    });
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_holds_for_one_chunk_one_member_and_one_key() {
        let secret = ReceiptKey([1; 32]);
        let key = PermitKey::new(&secret, 2, 3, 4);
        let (chunk, member) = (ChunkId([5; 32]), MemberId([6; 16]));
        let permit = Permit::new(&key, &chunk, Some(member));
        assert!(permit.holds(&key, &chunk, Some(member)));
        assert!(!permit.holds(&key, &ChunkId([7; 32]), Some(member)));
        assert!(!permit.holds(&key, &chunk, Some(MemberId([7; 16]))));
        assert!(!permit.holds(&key, &chunk, None));
        assert!(Permit::new(&key, &chunk, None).holds(&key, &chunk, None));
        let others = [
            PermitKey::new(&ReceiptKey([2; 32]), 2, 3, 4),
            PermitKey::new(&secret, 1, 3, 4),
            PermitKey::new(&secret, 2, 4, 4),
            PermitKey::new(&secret, 2, 3, 5),
        ];
        assert!(others.iter().all(|other| !permit.holds(other, &chunk, Some(member))));
    }
}
