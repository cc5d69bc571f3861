//! What the manager has a benefactor keep, and believes again when it comes back: moments of its history, and its terms.
//!
//! A moment that the manager's store lacks stops all writes of the pool, and a term that is greater than the manager's own lifts that. So
//! no benefactor may make one up, or bring that of another benefactor or another pool. The manager signs each with a keyed hash, for one
//! benefactor, and takes back only what it has signed. The key is in its store, and goes wherever that goes (docs/design/0703).

use std::fmt;
use std::ops::Deref;

use minicbor::{Decode, Encode};

use crate::cbor;
use crate::id::BenefactorId;
use crate::message::manager::{Moment, Term};

/// What a pool's manager signs with: random, made with the pool. Shows itself nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct MomentKey(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

impl fmt::Debug for MomentKey {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("MomentKey(secret)")
    }
}

/// What can be signed.
pub trait Signable: Encode<()> {
    /// Keeps a signature of one kind from being taken for one of another kind.
    const KIND: u8;
}

impl Signable for Moment {
    const KIND: u8 = 0;
}

impl Signable for Term {
    const KIND: u8 = 1;
}

/// Something with the manager's signature for one benefactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Signed<T> {
    /// What is signed.
    #[n(0)]
    pub what: T,
    /// The signature.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub proof: [u8; 32],
}

impl<T> Signed<T> {
    /// Without a signature: nobody believes it.
    pub fn not_yet(what: T) -> Self {
        Self { what, proof: [0; 32] }
    }
}

impl<T> Deref for Signed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.what
    }
}

impl MomentKey {
    /// Signs something for a benefactor.
    #[must_use]
    pub fn sign<T: Signable>(&self, what: T, to: BenefactorId) -> Signed<T> {
        let proof = *self.proof(&what, to).as_bytes();
        Signed { what, proof }
    }

    /// What a benefactor brings, if it was signed for that one.
    #[must_use]
    pub fn believe<T: Signable>(&self, told: Signed<T>, by: BenefactorId) -> Option<T> {
        // The comparison of `blake3::Hash` takes the same time wherever the bytes differ.
        let is_genuine = self.proof(&told.what, by) == blake3::Hash::from_bytes(told.proof);
        is_genuine.then_some(told.what)
    }

    fn proof<T: Signable>(&self, what: &T, of: BenefactorId) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[T::KIND]);
        hasher.update(&of.0.to_le_bytes());
        hasher.update(&cbor::encode(what));
        hasher.finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::manager::Era;

    #[test]
    fn only_what_was_signed_for_a_benefactor_with_the_key_is_believed_of_that_one() {
        let (key, id) = (MomentKey([1; 32]), BenefactorId(3));
        let moment = Moment { start: 7, commit: 9 };
        let signed = key.sign(moment, id);
        assert_eq!(key.believe(signed, id), Some(moment));
        assert_eq!(key.believe(signed, BenefactorId(4)), None, "another benefactor's");
        assert_eq!(MomentKey([2; 32]).believe(signed, id), None, "another pool's");
        for other in [Moment { start: 8, ..moment }, Moment { commit: 10, ..moment }] {
            assert_eq!(key.believe(Signed { what: other, ..signed }, id), None, "another moment's");
        }
        assert_eq!(key.believe(Signed::not_yet(moment), id), None);
        let term = Signed { what: Term { era: Era::FIRST, number: 7, start: 9 }, proof: signed.proof };
        assert_eq!(key.believe(term, id), None, "that of a moment");
    }
}
