//! Identities. Each is its own type, so that a benefactor can't be passed where an inode is meant.
//!
//! Random identities are made by the shells that own randomness; this module only holds, prints and parses them.

use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Encode};

/// Name of a chunk: the BLAKE3-256 of its plain content, or of a sealed chunk a keyed hash and the identity of the key
/// (docs/design/0702-encryption-at-the-client.md).
///
/// Content, length and name determine each other; two chunks of one name are one chunk (design decision 2). A chunk that is sealed never
/// has the name of one that isn't, nor of one that another key sealed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
#[cbor(transparent)]
pub struct ChunkId(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

impl ChunkId {
    /// The name of `content`: its BLAKE3-256.
    pub fn of(content: &[u8]) -> Self {
        Self(*blake3::hash(content).as_bytes())
    }

    /// The name of a sealed chunk: the first 20 bytes of a hash of its plain content, which was made with the key, and the key's
    /// identity.
    pub fn sealed(hash: &[u8; 32], key: KeyId) -> Self {
        let mut name = *hash;
        let (_, place) = name.split_at_mut(32 - KEY_ID_BYTES);
        place.copy_from_slice(&key.0);
        Self(name)
    }

    /// The key that is in the name if it is that of a sealed chunk.
    pub fn key_if_sealed(&self) -> KeyId {
        let (_, key) =
            self.0.split_last_chunk().unwrap_or_else(|| unreachable!("a name is longer than a key"));
        KeyId(*key)
    }

    /// Whether this is the name of a chunk that is sealed with this key, if it is of a sealed one.
    pub fn is_sealed_with(&self, key: KeyId) -> bool {
        self.key_if_sealed() == key
    }
}

/// Length of a [`KeyId`], bytes.
const KEY_ID_BYTES: usize = 12;

/// A key with which chunks are sealed: the first bytes of its public half. Says nothing of its secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct KeyId(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; KEY_ID_BYTES]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl serde::Serialize for KeyId {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

/// The text is not 24 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no key: 24 hexadecimal digits are expected, as `stdchk key list` prints them")]
pub struct NotAKeyId(pub String);

impl FromStr for KeyId {
    type Err = NotAKeyId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || NotAKeyId(text.chars().take(48).collect());
        let is_hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 2 * KEY_ID_BYTES || !text.bytes().all(is_hexadecimal) {
            return Err(refuse());
        }
        let mut id = [0; KEY_ID_BYTES];
        for (place, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| refuse())?;
            *place = u8::from_str_radix(digits, 16).map_err(|_| refuse())?;
        }
        Ok(Self(id))
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}…")
    }
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a chunk name: 64 hexadecimal digits are expected")]
pub struct NotAChunkId(pub String);

impl FromStr for ChunkId {
    type Err = NotAChunkId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || NotAChunkId(text.chars().take(80).collect());
        let hash = blake3::Hash::from_hex(text).map_err(|_| refuse())?;
        Ok(Self(*hash.as_bytes()))
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($int:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Encode, Decode)]
        #[cbor(transparent)]
        pub struct $name(#[n(0)] pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }
    };
}

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Encode, Decode)]
        #[cbor(transparent)]
        pub struct $name(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl FromStr for $name {
            type Err = NotAnIdentity;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                identity_from_hex(text).map(Self)
            }
        }
    };
}

/// The text is not 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an identity: 32 hexadecimal digits are expected")]
pub struct NotAnIdentity(pub String);

fn identity_from_hex(text: &str) -> Result<[u8; 16], NotAnIdentity> {
    let refuse = || NotAnIdentity(text.chars().take(48).collect());
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(refuse());
    }
    u128::from_str_radix(text, 16).map(u128::to_be_bytes).map_err(|_| refuse())
}

number! {
    /// A benefactor, numbered by the manager at its first registration; stable over restarts of both.
    BenefactorId(u32), "b{}"
}
number! {
    /// One life of a benefactor process: a new random number at each start.
    Incarnation(u64), "{:016x}"
}
number! {
    /// An inode of the namespace. 1 is the root; numbers are never used twice.
    Ino(u64), "{}"
}
identity! {
    /// A pool: random, made once, kept by the manager and by every benefactor's data directory.
    PoolId
}
identity! {
    /// One life of a client process (a mount, a command); it holds the lease of its sessions.
    ClientId
}
identity! {
    /// A machine on which members of the pool run, as they themselves find out; the same as long as it has its name and its system.
    MachineId
}
identity! {
    /// One file being written, from open to close. Chosen by the client, so that opening can be repeated safely.
    SessionId
}
identity! {
    /// One change of the namespace, chosen by the client, so that a repeated request is answered, not done again.
    OpId
}

impl Ino {
    /// The root directory of the pool, whose subdirectories are the applications' folders.
    pub const ROOT: Self = Self(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_id_survives_text() {
        let id = ChunkId::of(b"stdchk");
        assert_eq!(id.to_string().parse::<ChunkId>(), Ok(id));
        assert!("xyz".parse::<ChunkId>().is_err());
    }

    #[test]
    fn a_key_survives_text_and_stands_in_the_names_of_its_chunks() {
        let key = KeyId([0xa7; 12]);
        assert_eq!(key.to_string().parse::<KeyId>(), Ok(key));
        for bad in ["", "a7", &"g".repeat(24), &"A7".repeat(12), &"+7".repeat(12)] {
            assert!(bad.parse::<KeyId>().is_err(), "{bad}");
        }
        let name = ChunkId::sealed(&[5; 32], key);
        assert!(name.is_sealed_with(key) && !name.is_sealed_with(KeyId([5; 12])));
        assert_eq!((name.0[..20].to_vec(), name.0[20..].to_vec()), (vec![5; 20], vec![0xa7; 12]));
    }

    #[test]
    fn an_identity_survives_text_and_refuses_signs() {
        let id = PoolId([7; 16]);
        assert_eq!(id.to_string().parse::<PoolId>(), Ok(id));
        assert!("+7070707070707070707070707070707".parse::<PoolId>().is_err());
    }

    #[test]
    fn a_chunk_id_is_a_byte_string_on_the_wire() {
        let bytes = minicbor::to_vec(ChunkId([1; 32])).unwrap();
        assert_eq!(bytes.len(), 34);
        assert_eq!(minicbor::decode::<ChunkId>(&bytes).unwrap(), ChunkId([1; 32]));
    }
}
