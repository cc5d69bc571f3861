//! Encryption of chunks by who writes them: names that only who has the key can make, and bytes that only they can read
//! ([0702]).
//!
//! Everything follows from the key and the content, without a random number: equal chunks have equal names, so they are stored once
//! under one key, and equal encoded bytes are sealed to equal bytes. The nonce is made of what is encrypted, by a keyed hash (a
//! synthetic nonce, as in SIV, RFC 5297), so no two different contents ever share one, whichever codec made them.
//!
//! A name is a keyed hash of the plain content, behind which the key's identity stands: the first bytes of a public key. So the name tells
//! who opened a chunk whether it is the one that was written, whatever a benefactor did to it. And sealed bytes are signed:
//! who hasn't the key can tell that somebody made them who has, and can't make any. So benefactors verify sealed blocks like
//! others, and know no more of them.
//!
//! [0702]: ../../../docs/design/0702-encryption-at-the-client.md

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use stdchk_model::block::SEAL_BYTES;
use stdchk_model::chunk_map::PieceName;
use stdchk_model::{ChunkId, ChunkRef, KeyId};
use stdchk_reduce::Codec;

/// Length of a key's secret, bytes.
pub const SECRET_BYTES: usize = 32;
/// Length of what a key is called by, in the names of its chunks.
const ID_BYTES: usize = 12;
const PUBLIC_BYTES: usize = 32;
const SIGNATURE_BYTES: usize = 64;
const SYNTHETIC_BYTES: usize = 24;
/// Length of the check behind the encrypted bytes.
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = PUBLIC_BYTES + SIGNATURE_BYTES + SYNTHETIC_BYTES;
const _: () = assert!(HEAD_BYTES + TAG_BYTES == SEAL_BYTES as usize);
/// What the digest that is signed is derived for.
const SIGNED: &str = "stdchk encryption 1: what is signed";

/// A key with all that follows from its secret. Who has it reads and makes the chunks that are sealed with it.
pub struct Key {
    secret: [u8; SECRET_BYTES],
    signing: Ed25519KeyPair,
    public: [u8; PUBLIC_BYTES],
    names: [u8; 32],
    nonces: [u8; 32],
    ciphers: [u8; 32],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}", self.id())
    }
}

/// Where keys are looked for.
pub trait Keys: fmt::Debug + Send + Sync {
    /// The key of this identity; `None`: this process can't have it.
    fn key(&self, id: KeyId) -> Option<Arc<Key>>;
}

/// No keys at all.
#[derive(Debug)]
pub struct NoKeys;

impl Keys for NoKeys {
    fn key(&self, _: KeyId) -> Option<Arc<Key>> {
        None
    }
}

/// Why sealed bytes can't be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unopened {
    /// The key that they name isn't at hand.
    NeedsKey(KeyId),
    /// They were not made with the key that they name, for this chunk.
    Forged,
}

/// The parts of sealed bytes.
struct Sealed<'a> {
    public: &'a [u8; PUBLIC_BYTES],
    signature: &'a [u8; SIGNATURE_BYTES],
    synthetic: &'a [u8; SYNTHETIC_BYTES],
    /// The encrypted bytes with their check.
    body: &'a [u8],
}

impl<'a> Sealed<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let (public, rest) = bytes.split_first_chunk()?;
        let (signature, rest) = rest.split_first_chunk()?;
        let (synthetic, body) = rest.split_first_chunk()?;
        (body.len() >= TAG_BYTES).then_some(Self { public, signature, synthetic, body })
    }
}

impl Key {
    /// The key of this secret, which should be random.
    pub fn new(secret: [u8; SECRET_BYTES]) -> Self {
        let derived = |purpose: &str| blake3::derive_key(&format!("stdchk encryption 1: {purpose}"), &secret);
        let signing = Ed25519KeyPair::from_seed_unchecked(&derived("signatures"));
        let signing = signing.unwrap_or_else(|_| unreachable!("32 bytes are a seed of Ed25519"));
        let public = <[u8; PUBLIC_BYTES]>::try_from(signing.public_key().as_ref());
        let public = public.unwrap_or_else(|_| unreachable!("Ed25519 has public keys of 32 bytes"));
        let (names, nonces, ciphers) =
            (derived("names of chunks"), derived("synthetic nonces"), derived("keys of chunks"));
        Self { secret, signing, public, names, nonces, ciphers }
    }

    /// What the key is called wherever it is needed. Says nothing of the secret.
    pub fn id(&self) -> KeyId {
        id_of(&self.public)
    }

    /// The secret, for who keeps the key.
    pub fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// The name of a chunk with this content.
    pub fn name(&self, plain: &[u8]) -> ChunkId {
        ChunkId::sealed(blake3::keyed_hash(&self.names, plain).as_bytes(), self.id())
    }

    /// The name of a piece with this content.
    pub fn piece_name(&self, plain: &[u8]) -> PieceName {
        PieceName::first_of(self.name(plain))
    }

    /// The bytes that are stored of `chunk`, of which the codec number `codec` made `encoded`: [`SEAL_BYTES`] more than these. The chunk's name is
    /// one of this key.
    pub fn seal(&self, chunk: ChunkRef, codec: u8, encoded: &[u8]) -> Bytes {
        debug_assert!(chunk.id.is_sealed_with(self.id()), "{chunk:?} is not named by this key");
        let synthetic = self.synthetic(chunk, codec, encoded);
        let mut sealed = Vec::with_capacity(encoded.len() + SEAL_BYTES as usize);
        sealed.extend(self.public);
        sealed.extend([0; SIGNATURE_BYTES]);
        sealed.extend(synthetic);
        sealed.extend_from_slice(encoded);
        let (_, body) = sealed.split_at_mut(HEAD_BYTES);
        let beside = Aad::from(bound(chunk, codec));
        let tag = self.cipher(&synthetic).seal_in_place_separate_tag(nonce(), beside, body);
        let tag = tag.unwrap_or_else(|_| unreachable!("a chunk is shorter than what AES-GCM takes at most"));
        sealed.extend(tag.as_ref());
        let (_, unsigned) = sealed.split_at(PUBLIC_BYTES + SIGNATURE_BYTES);
        let signature = self.signing.sign(&digest(chunk, codec, unsigned));
        let (_, rest) = sealed.split_at_mut(PUBLIC_BYTES);
        let (place, _) = rest.split_at_mut(SIGNATURE_BYTES);
        place.copy_from_slice(signature.as_ref());
        Bytes::from(sealed)
    }

    /// A keyed hash of all that is encrypted. Content that is stored as it is has a keyed hash already: its name.
    fn synthetic(&self, chunk: ChunkRef, codec: u8, encoded: &[u8]) -> [u8; SYNTHETIC_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.nonces);
        hasher.update(&bound(chunk, codec));
        if codec != Codec::Store.number() {
            hasher.update(encoded);
        }
        let mut synthetic = [0; SYNTHETIC_BYTES];
        hasher.finalize_xof().fill(&mut synthetic);
        synthetic
    }

    /// The cipher under the one key that this synthetic nonce stands for: it is used for one content only.
    fn cipher(&self, synthetic: &[u8; SYNTHETIC_BYTES]) -> LessSafeKey {
        let key = blake3::keyed_hash(&self.ciphers, synthetic);
        let key = UnboundKey::new(&AES_256_GCM, key.as_bytes());
        LessSafeKey::new(key.unwrap_or_else(|_| unreachable!("AES-256 takes keys of 32 bytes")))
    }
}

/// Every content has a cipher key of its own, under which this is used once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn id_of(public: &[u8; PUBLIC_BYTES]) -> KeyId {
    let (id, _) =
        public.split_first_chunk::<ID_BYTES>().unwrap_or_else(|| unreachable!("an identity is shorter"));
    KeyId(*id)
}

/// What sealed bytes are bound to: they are good for no other chunk.
fn bound(chunk: ChunkRef, codec: u8) -> [u8; 37] {
    let mut bound = [codec; 37];
    let parts = chunk.id.0.into_iter().chain(chunk.length.to_le_bytes());
    bound.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    bound
}

/// What is signed of sealed bytes: all that stands behind the signature, for this chunk.
fn digest(chunk: ChunkRef, codec: u8, unsigned: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(SIGNED);
    hasher.update(&bound(chunk, codec)).update(unsigned);
    *hasher.finalize().as_bytes()
}

/// Whether who has the key that is in the name of `chunk` made `sealed` for it. Needs no key, and tells nothing of the content.
pub fn is_signed(chunk: ChunkRef, codec: u8, sealed: &[u8]) -> bool {
    let Some(parts) = Sealed::of(sealed) else { return false };
    let Some(unsigned) = sealed.get(PUBLIC_BYTES + SIGNATURE_BYTES..) else { return false };
    let public = UnparsedPublicKey::new(&ED25519, parts.public);
    chunk.id.is_sealed_with(id_of(parts.public))
        && public.verify(&digest(chunk, codec, unsigned), parts.signature).is_ok()
}

/// The encoded bytes of sealed ones, with the key that opened them. Their chunk's name is still to be compared with the content.
///
/// # Errors
/// Why they can't be had.
pub fn open(
    keys: &dyn Keys,
    chunk: ChunkRef,
    codec: u8,
    sealed: &[u8],
) -> Result<(Arc<Key>, Bytes), Unopened> {
    let parts = Sealed::of(sealed).ok_or(Unopened::Forged)?;
    let id = id_of(parts.public);
    if !chunk.id.is_sealed_with(id) {
        return Err(Unopened::Forged);
    }
    let key = keys.key(id).ok_or(Unopened::NeedsKey(id))?;
    let (cipher, beside) = (key.cipher(parts.synthetic), Aad::from(bound(chunk, codec)));
    let mut body = parts.body.to_vec();
    let opened = cipher.open_in_place(nonce(), beside, &mut body);
    let length = opened.map_err(|_| Unopened::Forged)?.len();
    body.truncate(length);
    Ok((key, Bytes::from(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct One(Arc<Key>);

    impl Keys for One {
        fn key(&self, id: KeyId) -> Option<Arc<Key>> {
            (id == self.0.id()).then(|| Arc::clone(&self.0))
        }
    }

    fn key(byte: u8) -> Arc<Key> {
        Arc::new(Key::new([byte; SECRET_BYTES]))
    }

    fn chunk(key: &Key, plain: &[u8]) -> ChunkRef {
        ChunkRef { id: key.name(plain), length: u32::try_from(plain.len()).unwrap() }
    }

    fn synthetic(sealed: &Bytes) -> [u8; SYNTHETIC_BYTES] {
        *Sealed::of(sealed).unwrap().synthetic
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn what_is_sealed_is_opened_and_equal_content_is_sealed_to_equal_bytes() {
        let key = key(7);
        for length in [1, 31, 4096, 70_000] {
            let plain: Vec<u8> = (0..length).map(|at: u32| at.to_le_bytes()[0]).collect();
            let chunk = chunk(&key, &plain);
            let sealed = key.seal(chunk, 0, &plain);
            assert_eq!(sealed.len(), plain.len() + SEAL_BYTES as usize);
            assert_eq!(sealed, key.seal(chunk, 0, &plain));
            assert!(is_signed(chunk, 0, &sealed));
            let (_, opened) = open(&One(Arc::clone(&key)), chunk, 0, &sealed).unwrap();
            assert_eq!(opened, plain);
        }
    }

    #[test]
    fn different_bytes_of_one_chunk_share_no_key_stream() {
        let key = key(7);
        let chunk = chunk(&key, b"the content");
        let all = [(0, &b"the content"[..]), (1, b"coded once"), (1, b"coded else"), (2, b"the content")];
        let nonces: Vec<_> =
            all.iter().map(|(codec, encoded)| synthetic(&key.seal(chunk, *codec, encoded))).collect();
        for (at, nonce) in nonces.iter().enumerate() {
            assert!(!nonces[..at].contains(nonce), "{at}");
        }
    }

    #[test]
    fn names_and_bytes_of_two_keys_have_nothing_in_common() {
        let (one, other) = (key(1), key(2));
        assert_ne!(one.id(), other.id());
        assert_ne!(one.name(b"x").0[..20], other.name(b"x").0[..20]);
        assert_ne!(one.name(b"x").0[..20], ChunkId::of(b"x").0[..20]);
        assert_ne!(one.piece_name(b"x"), other.piece_name(b"x"));
        assert_ne!(one.piece_name(b"x"), PieceName::of(b"x"));
        let sealed = one.seal(chunk(&one, b"x"), 0, b"x");
        let needs = open(&One(other), chunk(&one, b"x"), 0, &sealed).unwrap_err();
        assert_eq!(needs, Unopened::NeedsKey(one.id()));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found_with_the_key_and_without_it() {
        let key = key(3);
        let plain = b"some content that is sealed";
        let of = chunk(&key, plain);
        let sealed = key.seal(of, 0, plain);
        let keys = One(Arc::clone(&key));
        for at in 0..sealed.len() {
            let mut bad = sealed.to_vec();
            bad[at] ^= 4;
            assert!(!is_signed(of, 0, &bad), "byte {at}");
            // What is only there for those without the key, who has it doesn't need.
            let is_needed = !(ID_BYTES..PUBLIC_BYTES + SIGNATURE_BYTES).contains(&at);
            assert_eq!(open(&keys, of, 0, &bad).is_err(), is_needed, "byte {at}");
        }
        for length in 0..sealed.len() {
            assert!(open(&keys, of, 0, &sealed[..length]).is_err(), "{length} bytes");
            assert!(!is_signed(of, 0, &sealed[..length]), "{length} bytes");
        }
    }

    #[test]
    fn sealed_bytes_are_good_for_their_chunk_and_no_other() {
        let key = key(3);
        let of = chunk(&key, b"content");
        let sealed = key.seal(of, 0, b"content");
        let (other, longer) = (chunk(&key, b"other.."), ChunkRef { length: of.length + 1, ..of });
        for (chunk, codec) in [(other, 0), (longer, 0), (of, 1)] {
            assert!(!is_signed(chunk, codec, &sealed), "{chunk:?} {codec}");
            let opened = open(&One(Arc::clone(&key)), chunk, codec, &sealed);
            assert_eq!(opened.unwrap_err(), Unopened::Forged, "{chunk:?} {codec}");
        }
    }

    #[test]
    fn who_has_another_key_makes_no_block_of_the_chunk() {
        let (own, other) = (key(1), key(2));
        let of = chunk(&own, b"content");
        // The other key's bytes for the same content, and for the name as it stands.
        let theirs = other.seal(chunk(&other, b"content"), 0, b"content");
        assert!(!is_signed(of, 0, &theirs));
        let mut dressed = theirs.to_vec();
        dressed[..PUBLIC_BYTES].copy_from_slice(&own.public);
        assert!(!is_signed(of, 0, &dressed));
    }

    #[test]
    fn the_format_stays_what_it_is_and_its_document_shows_the_same_bytes() {
        let key = Key::new(std::array::from_fn(|at| u8::try_from(at).unwrap()));
        let of = chunk(&key, b"stdchk");
        let shown = [key.id().to_string(), of.id.to_string(), hex(&key.seal(of, 0, b"stdchk"))];
        let format = include_str!("../../../docs/FORMAT.md").replace('\n', "");
        for value in shown {
            assert!(format.contains(&value), "docs/FORMAT.md lacks {value}");
        }
    }
}
