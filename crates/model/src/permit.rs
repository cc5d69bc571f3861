//! Permits: the manager's word to a benefactor that another one may have a chunk from it, or put it there.
//!
//! A benefactor that makes copies has no business with any other chunk, and one that makes fragments none with another encoding: nobody
//! verifies a fragment before it is decoded, while copies are verified where they are stored. So the manager gives it, with each order, a permit for each
//! benefactor that it is to meet: a keyed hash, whose key that benefactor shares with the manager alone. Keys are told anew from time to
//! time, and the one before holds until then: that is how permits end, without any clock of the benefactors (docs/design/0701).

use std::fmt;

use minicbor::{Decode, Encode};

use crate::block::EncodingId;
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

/// That a benefactor may have from another one, or put there, copies of a chunk, or fragments of one of its encodings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Permit(#[cbor(n(0), with = "minicbor::bytes")] [u8; 32]);

impl Permit {
    /// A permit for copies of the chunk, whatever their codec, or for fragments of `encoding`, for the benefactor that this member of the
    /// pool is; `None`: one on the same machine.
    #[must_use]
    pub fn new(key: &PermitKey, chunk: &ChunkId, encoding: EncodingId, member: Option<MemberId>) -> Self {
        Self(*proof(key, chunk, encoding, member).as_bytes())
    }

    /// Whether it was made with `key`, for such blocks of this chunk and this member.
    #[must_use]
    pub fn holds(
        &self,
        key: &PermitKey,
        chunk: &ChunkId,
        encoding: EncodingId,
        member: Option<MemberId>,
    ) -> bool {
        // The comparison of `blake3::Hash` takes the same time wherever the bytes differ.
        proof(key, chunk, encoding, member) == blake3::Hash::from_bytes(self.0)
    }
}

fn proof(key: &PermitKey, chunk: &ChunkId, encoding: EncodingId, member: Option<MemberId>) -> blake3::Hash {
    // Who orders a copy of fragments doesn't know with which codec it is made.
    let encoding = if encoding.code.is_copy() { EncodingId::PLAIN } else { encoding };
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(&chunk.0);
    hasher.update(&encoding.code.number().to_le_bytes());
    hasher.update(&encoding.tag);
    hasher.update(&encoding.maker.0);
    // Nobody's is shorter than any member's.
    member.inspect(|member| {
        hasher.update(&member.0);
    });
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Code;
    use crate::maker::Maker;

    #[test]
    fn a_permit_is_for_all_copies_or_for_the_fragments_of_one_encoding() {
        let key = PermitKey::new(&ReceiptKey([1; 32]), 2, 3, 4);
        let (chunk, tag) = (ChunkId([5; 32]), [7; 16]);
        let code = Code::erasure(2, 1).unwrap();
        let copy = EncodingId { tag, ..EncodingId::PLAIN };
        let fragments = EncodingId { code, tag, maker: Maker([8; 8]) };
        let all = [copy, fragments, EncodingId { maker: Maker::LOCAL, ..fragments }];
        let others = [
            EncodingId { tag: [6; 16], ..fragments },
            EncodingId { code: Code::erasure(3, 2).unwrap(), ..fragments },
        ];
        let all = [&all[..], &others].concat();
        for encoding in &all {
            let permit = Permit::new(&key, &chunk, *encoding, None);
            for other in &all {
                assert_eq!(
                    permit.holds(&key, &chunk, *other, None),
                    encoding == other,
                    "{encoding:?} {other:?}"
                );
            }
            assert_eq!(permit.holds(&key, &chunk, EncodingId::PLAIN, None), encoding.code.is_copy());
        }
    }

    #[test]
    fn a_permit_holds_for_one_chunk_one_member_and_one_key() {
        let secret = ReceiptKey([1; 32]);
        let key = PermitKey::new(&secret, 2, 3, 4);
        let (chunk, member, plain) = (ChunkId([5; 32]), MemberId([6; 16]), EncodingId::PLAIN);
        let permit = Permit::new(&key, &chunk, plain, Some(member));
        assert!(permit.holds(&key, &chunk, plain, Some(member)));
        assert!(!permit.holds(&key, &ChunkId([7; 32]), plain, Some(member)));
        assert!(!permit.holds(&key, &chunk, plain, Some(MemberId([7; 16]))));
        assert!(!permit.holds(&key, &chunk, plain, None));
        assert!(Permit::new(&key, &chunk, plain, None).holds(&key, &chunk, plain, None));
        let others = [
            PermitKey::new(&ReceiptKey([2; 32]), 2, 3, 4),
            PermitKey::new(&secret, 1, 3, 4),
            PermitKey::new(&secret, 2, 4, 4),
            PermitKey::new(&secret, 2, 3, 5),
        ];
        assert!(others.iter().all(|other| !permit.holds(other, &chunk, plain, Some(member))));
    }
}
