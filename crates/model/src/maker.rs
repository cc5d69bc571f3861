//! Makers: who coded the fragments of an encoding, and so whose word it is that they make the chunk.
//!
//! A benefactor verifies a copy against the chunk's name before it takes it. It can't verify a fragment so: many encodings of a chunk can be
//! written down, and only decoding shows which of them make it. So an encoding names its maker, and until somebody else has decoded it, it
//! counts for its maker alone (docs/design/0607).
//!
//! A maker is a domain of trust, not a machine: all members whose certificates are for one user are one maker, whatever node they run on.

use std::fmt;

use minicbor::{Decode, Encode};

use crate::message::handshake::MemberId;

/// Who coded fragments. Shown as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct Maker(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 8]);

impl Maker {
    /// Clients without a certificate, which reach servers at sockets of their machine: the kernel lets in processes of the pool's own user and
    /// of root alone, and they could change the files themselves. Copies have this maker, too: they need none.
    pub const LOCAL: Self = Self([0; 8]);

    /// The maker that a certificate is for: its user if it names one, else the member itself.
    #[must_use]
    pub fn of(member: MemberId, uid: Option<u32>) -> Self {
        let hash = match uid {
            Some(uid) => blake3::derive_key("stdchk maker 1: user", &uid.to_le_bytes()),
            None => blake3::derive_key("stdchk maker 1: member", &member.0),
        };
        let (first, _) = hash.split_first_chunk().unwrap_or_else(|| unreachable!("a hash has 32 bytes"));
        Self(*first)
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(to, "{byte:02x}"))
    }
}

impl fmt::Debug for Maker {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Maker({self})")
    }
}

/// Whether a block counts towards the safety of its chunk, for who asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Encode, Decode)]
#[cbor(index_only)]
pub enum Trust {
    /// It does: a copy, or a fragment of an encoding that the asker made, or that somebody other than its maker has decoded.
    #[default]
    #[n(0)]
    Trusted,
    /// Its maker alone says that its encoding makes the chunk.
    #[n(1)]
    Claimed,
    /// Its encoding was decoded and doesn't make the chunk.
    #[n(2)]
    Broken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_members_of_one_user_are_one_maker_and_others_are_each_their_own() {
        let (one, other) = (MemberId([1; 16]), MemberId([2; 16]));
        assert_eq!(Maker::of(one, Some(7)), Maker::of(other, Some(7)));
        let all = [
            Maker::LOCAL,
            Maker::of(one, None),
            Maker::of(other, None),
            Maker::of(one, Some(0)),
            Maker::of(one, Some(7)),
        ];
        for (place, maker) in all.iter().enumerate() {
            assert!(!all[..place].contains(maker), "{maker}");
        }
    }
}
