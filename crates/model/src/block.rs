//! Blocks: what a benefactor stores under one key, and how the blocks of a chunk were made.
//!
//! A chunk becomes blocks in three steps: a codec makes its *encoded bytes*, a cipher may encrypt them, and a [`Code`] makes
//! blocks of these: equal copies, or m data and k parity fragments (FALCON, section IV). The identity of a block commits to
//! all of that, down to the bytes of every block of the same encoding. So a benefactor can tell whether bytes are the block
//! that they are said to be, whoever brings them, and blocks that don't belong together can't be mixed.

use std::fmt;

use minicbor::{Decode, Decoder, Encode, Encoder, decode, encode};

use crate::chunk_map::ChunkRef;
use crate::id::ChunkId;
use crate::limits::{CHUNK_BYTES_MAX, CODE_BLOCKS_MAX, FRAGMENT_BYTES_MIN};
use crate::maker::Maker;

/// The only cipher: sealed by a client (docs/design/0702-encryption-at-the-client.md).
pub const SEALED: u8 = 1;
/// How many bytes sealing adds: public key, signature, synthetic nonce and check.
pub const SEAL_BYTES: u32 = 32 + 64 + 24 + 16;

/// How many blocks an encoding has, and how many of them are enough: copies, or an (m, k) erasure code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code {
    data: u8,
    parity: u8,
}

impl Code {
    /// Every block holds all of the encoded bytes; any number of benefactors may hold it.
    pub const COPY: Self = Self { data: 1, parity: 0 };

    /// The (m, k) erasure code: m data fragments, k parity fragments. `None` unless m is at least 2, k at least 1, and both
    /// together at most [`CODE_BLOCKS_MAX`].
    pub fn erasure(data: u8, parity: u8) -> Option<Self> {
        let blocks = usize::from(data) + usize::from(parity);
        (data >= 2 && parity >= 1 && blocks <= CODE_BLOCKS_MAX).then_some(Self { data, parity })
    }

    /// The code of a number.
    pub fn from_number(number: u16) -> Option<Self> {
        let [data, parity] = number.to_be_bytes();
        match (data, parity) {
            (1, 0) => Some(Self::COPY),
            _ => Self::erasure(data, parity),
        }
    }

    /// A number that stands for the code in stored and sent bytes: m times 256 plus k; 256 for copies.
    pub fn number(self) -> u16 {
        u16::from_be_bytes([self.data, self.parity])
    }

    /// Whether the blocks are copies.
    pub fn is_copy(self) -> bool {
        self == Self::COPY
    }

    /// Different blocks that are enough to make the chunk, m; 1 for copies.
    pub fn data(self) -> u8 {
        self.data
    }

    /// Parity fragments, k; 0 for copies.
    pub fn parity(self) -> u8 {
        self.parity
    }

    /// Different blocks, m + k; 1 for copies, which are all equal.
    pub fn blocks(self) -> u8 {
        self.data + self.parity
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_copy() {
            true => f.write_str("copy"),
            false => write!(f, "({},{})", self.data, self.parity),
        }
    }
}

impl<C> Encode<C> for Code {
    fn encode<W: encode::Write>(&self, e: &mut Encoder<W>, _: &mut C) -> Result<(), encode::Error<W::Error>> {
        e.u16(self.number())?;
        Ok(())
    }
}

impl<'b, C> Decode<'b, C> for Code {
    fn decode(d: &mut Decoder<'b>, _: &mut C) -> Result<Self, decode::Error> {
        Self::from_number(d.u16()?).ok_or_else(|| decode::Error::message("there is no such code"))
    }
}

/// Names an encoding of a chunk: its code, and a hash of everything else that determines the stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
pub struct EncodingId {
    /// How many of its blocks are enough, and how many there are.
    #[n(0)]
    pub code: Code,
    /// Zeros for a copy that is stored as it is. Else the first bytes of a hash over chunk and [`Encoding`].
    #[cbor(n(1), with = "minicbor::bytes")]
    pub tag: [u8; 16],
    /// Who coded it; [`Maker::LOCAL`] for copies.
    #[n(2)]
    pub maker: Maker,
}

impl EncodingId {
    /// A copy of the chunk stored as it is: the chunk's name says everything.
    pub const PLAIN: Self = Self { code: Code::COPY, tag: [0; 16], maker: Maker::LOCAL };
}

impl fmt::Debug for EncodingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, ..] = self.tag;
        write!(f, "{:?} {a:02x}{b:02x}{c:02x}…", self.code)
    }
}

/// What a benefactor stores under one key: a copy of a chunk, or one fragment of an erasure-coded chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Encode)]
pub struct BlockId {
    /// The chunk that the block is made of.
    #[n(0)]
    pub chunk: ChunkId,
    /// How it is made.
    #[n(1)]
    pub encoding: EncodingId,
    /// Which block of the encoding, less than [`Code::blocks`]: data fragments first.
    #[n(2)]
    pub index: u8,
}

/// A [`BlockId`] of which nobody has looked whether its code has that index.
#[derive(Decode)]
struct Unchecked {
    #[n(0)]
    chunk: ChunkId,
    #[n(1)]
    encoding: EncodingId,
    #[n(2)]
    index: u8,
}

impl<'b, C> Decode<'b, C> for BlockId {
    fn decode(d: &mut Decoder<'b>, context: &mut C) -> Result<Self, decode::Error> {
        let Unchecked { chunk, encoding, index } = Unchecked::decode(d, context)?;
        match index < encoding.code.blocks() {
            true => Ok(Self { chunk, encoding, index }),
            false => Err(decode::Error::message("the code has no such block")),
        }
    }
}

impl BlockId {
    /// The block that holds all of `chunk`, stored as it is.
    pub fn plain(chunk: ChunkId) -> Self {
        Self { chunk, encoding: EncodingId::PLAIN, index: 0 }
    }
}

/// How the blocks of one encoding were made from the plain chunk. Every block carries it, so that a reader can undo it and a
/// benefactor can verify what it is given. Its hash is in the identity of its blocks.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Encoding {
    /// Codec of the encoded bytes, a number of `reduce`; 0: they are the chunk as it is.
    #[n(0)]
    pub codec: u8,
    /// Length of the plain chunk, bytes.
    #[n(1)]
    pub plain_length: u32,
    /// Encryption of the encoded bytes, [`SEALED`]; absent: none.
    #[n(2)]
    pub cipher: Option<u8>,
    /// How blocks are made of the encoded bytes.
    #[n(3)]
    pub code: Code,
    /// Length of the encoded bytes, encryption included; in fragments they are followed by zeros.
    #[n(4)]
    pub encoded_length: u32,
    /// BLAKE3-256 of the stored bytes of each block, [`Code::blocks`] of them.
    #[n(5)]
    pub hashes: Vec<ChunkId>,
    /// Who coded it; [`Maker::LOCAL`] for copies, which whoever stores them verifies.
    #[n(6)]
    pub maker: Maker,
}

/// Why an encoding or a block of one can't be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadBlock {
    /// The lengths are impossible, or nothing is made in this way.
    #[error("its lengths are out of bounds, or its cipher is unknown")]
    Length,
    /// As many hashes as blocks are needed, and no block beyond the last one is there.
    #[error("its code has another number of blocks")]
    Count,
    /// The identity doesn't follow from the encoding.
    #[error("its encoding is not the one that it is named after")]
    Name,
    /// It is a copy, and says who coded it.
    #[error("it is a copy, which has no maker")]
    Maker,
    /// The bytes have another hash than the encoding says.
    #[error("its bytes don't match its name")]
    Bytes,
}

impl Encoding {
    /// A chunk stored as it is.
    pub fn plain(chunk: ChunkRef) -> Self {
        Self::copy(chunk.length, 0, chunk.length, chunk.id)
    }

    /// Copies of a chunk of `plain_length` bytes that `codec` made `encoded_length` bytes with the hash `hash`.
    pub fn copy(plain_length: u32, codec: u8, encoded_length: u32, hash: ChunkId) -> Self {
        let (cipher, code, hashes, maker) = (None, Code::COPY, vec![hash], Maker::LOCAL);
        Self { codec, plain_length, cipher, code, encoded_length, hashes, maker }
    }

    /// Length of the stored bytes of each block: of a fragment the m-th part of the encoded bytes, rounded up.
    pub fn block_length(&self) -> u32 {
        match self.code.is_copy() {
            true => self.encoded_length,
            false => self.encoded_length.div_ceil(u32::from(self.code.data)),
        }
    }

    /// What the blocks of this encoding of `chunk` are named after.
    pub fn id(&self, chunk: ChunkId) -> EncodingId {
        self.id_by(self.maker, chunk)
    }

    /// What they would be named after if this one had made them: the same bytes.
    pub fn id_by(&self, maker: Maker, chunk: ChunkId) -> EncodingId {
        let is_plain = self.codec == 0 && self.cipher.is_none() && self.code.is_copy();
        if is_plain
            && maker == Maker::LOCAL
            && self.hashes == [chunk]
            && self.encoded_length == self.plain_length
        {
            return EncodingId::PLAIN;
        }
        let mut hasher = blake3::Hasher::new_derive_key("stdchk encoding of a chunk");
        hasher.update(&chunk.0);
        hasher.update(&maker.0);
        hasher.update(&[self.codec, u8::from(self.cipher.is_some()), self.cipher.unwrap_or(0)]);
        hasher.update(&self.code.number().to_le_bytes());
        hasher.update(&self.plain_length.to_le_bytes());
        hasher.update(&self.encoded_length.to_le_bytes());
        self.hashes.iter().for_each(|hash| {
            hasher.update(&hash.0);
        });
        let mut tag = [0; 16];
        hasher.finalize_xof().fill(&mut tag);
        EncodingId { code: self.code, tag, maker }
    }

    /// The block number `index` of this encoding of `chunk`.
    pub fn block(&self, chunk: ChunkId, index: u8) -> BlockId {
        debug_assert!(index < self.code.blocks(), "block {index} of {:?}", self.code);
        BlockId { chunk, encoding: self.id(chunk), index }
    }

    /// Whether `block` can be a block of this encoding: everything but its bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, block: &BlockId) -> Result<(), BadBlock> {
        if self.hashes.len() != usize::from(self.code.blocks()) || block.index >= self.code.blocks() {
            return Err(BadBlock::Count);
        }
        if self.code.is_copy() && self.maker != Maker::LOCAL {
            return Err(BadBlock::Maker);
        }
        let least = if self.code.is_copy() { 1 } else { FRAGMENT_BYTES_MIN };
        let added = if self.cipher.is_some() { SEAL_BYTES } else { 0 };
        let fits = (1..=CHUNK_BYTES_MAX).contains(&(self.plain_length as usize))
            && self.cipher.is_none_or(|cipher| cipher == SEALED)
            // A codec is used only where it shrinks.
            && self.encoded_length <= self.plain_length + added
            && self.encoded_length >= added
            && (self.codec != 0 || self.encoded_length == self.plain_length + added)
            && self.block_length() >= least;
        match (fits, self.id(block.chunk) == block.encoding) {
            (false, _) => Err(BadBlock::Length),
            (true, false) => Err(BadBlock::Name),
            (true, true) => Ok(()),
        }
    }

    /// Whether `stored` are the bytes of the block number `index`.
    ///
    /// # Errors
    /// [`BadBlock::Bytes`].
    pub fn check_bytes(&self, index: u8, stored: &[u8]) -> Result<(), BadBlock> {
        let matches = self
            .hashes
            .get(usize::from(index))
            .is_some_and(|hash| stored.len() == self.block_length() as usize && *hash == ChunkId::of(stored));
        if matches { Ok(()) } else { Err(BadBlock::Bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragments() -> Encoding {
        let hashes = (0..5).map(|byte| ChunkId([byte; 32])).collect();
        let code = Code::erasure(3, 2).unwrap();
        let maker = Maker([9; 8]);
        Encoding { codec: 2, plain_length: 90_000, cipher: None, code, encoded_length: 60_001, hashes, maker }
    }

    #[test]
    fn an_encoding_that_differs_in_anything_has_other_blocks() {
        let (chunk, encoding) = (ChunkId::of(b"chunk"), fragments());
        let mut others = vec![encoding.clone(); 7];
        others[0].codec = 1;
        others[1].plain_length += 1;
        others[2].cipher = Some(SEALED);
        others[3].code = Code::erasure(2, 3).unwrap();
        others[4].encoded_length -= 1;
        others[5].hashes.swap(0, 1);
        others[6].maker = Maker::LOCAL;
        let block = encoding.block(chunk, 4);
        assert_eq!(encoding.check(&block), Ok(()));
        for other in others {
            assert_ne!(other.id(chunk), block.encoding, "{other:?}");
            assert_eq!(other.check(&block), Err(BadBlock::Name));
        }
        assert_ne!(encoding.id(ChunkId::of(b"another")), block.encoding);
    }

    #[test]
    fn sealed_bytes_are_longer_by_what_sealing_adds_and_no_other_cipher_is_known() {
        let sealed = |codec, encoded_length, cipher| {
            let encoding = Encoding::copy(100, codec, encoded_length, ChunkId([1; 32]));
            let encoding = Encoding { cipher: Some(cipher), ..encoding };
            encoding.check(&encoding.block(ChunkId([7; 32]), 0))
        };
        assert_eq!(sealed(0, 100 + SEAL_BYTES, SEALED), Ok(()));
        assert_eq!(sealed(2, 60 + SEAL_BYTES, SEALED), Ok(()));
        for (codec, length, cipher) in
            [(0, 100, 1), (2, 101 + SEAL_BYTES, 1), (2, SEAL_BYTES - 1, 1), (0, 100 + SEAL_BYTES, 2)]
        {
            assert_eq!(sealed(codec, length, cipher), Err(BadBlock::Length), "{codec} {length} {cipher}");
        }
    }

    #[test]
    fn only_a_chunk_stored_as_it_is_is_plain() {
        let chunk = ChunkRef { id: ChunkId::of(b"x"), length: 1 };
        assert_eq!(Encoding::plain(chunk).block(chunk.id, 0), BlockId::plain(chunk.id));
        let lie = Encoding::copy(1, 0, 1, ChunkId::of(b"y"));
        assert_ne!(lie.id(chunk.id), EncodingId::PLAIN);
    }

    #[test]
    fn a_maker_is_part_of_the_name_of_fragments_and_copies_have_none() {
        let (chunk, encoding) = (ChunkId([7; 32]), fragments());
        let others = Encoding { maker: Maker([8; 8]), ..encoding.clone() };
        assert_eq!(encoding.id_by(others.maker, chunk), others.id(chunk));
        assert_ne!(encoding.id(chunk).tag, others.id(chunk).tag);
        // The identity says who made it, and can't say another one.
        let lie = BlockId {
            encoding: EncodingId { maker: Maker::LOCAL, ..encoding.id(chunk) },
            ..encoding.block(chunk, 1)
        };
        assert_eq!(encoding.check(&lie), Err(BadBlock::Name));
        let copy = Encoding { maker: Maker([8; 8]), ..Encoding::copy(100, 0, 100, chunk) };
        assert_eq!(copy.check(&copy.block(chunk, 0)), Err(BadBlock::Maker));
    }

    #[test]
    fn codes_and_blocks_that_cannot_be_are_not_decoded() {
        for code in [Code::COPY, Code::erasure(3, 2).unwrap(), Code::erasure(16, 16).unwrap()] {
            assert_eq!(minicbor::decode::<Code>(&minicbor::to_vec(code).unwrap()).unwrap(), code);
        }
        for number in [0u16, 1, 0x0101, 0x0200, 0x2001, 0xffff] {
            assert!(minicbor::decode::<Code>(&minicbor::to_vec(number).unwrap()).is_err(), "{number:x}");
        }
        let good = fragments().block(ChunkId([7; 32]), 4);
        assert_eq!(minicbor::decode::<BlockId>(&minicbor::to_vec(good).unwrap()).unwrap(), good);
        let bad = BlockId { index: 5, ..good };
        assert!(minicbor::decode::<BlockId>(&minicbor::to_vec(bad).unwrap()).is_err());
    }

    #[test]
    fn fragments_cover_the_encoded_bytes() {
        let encoding = fragments();
        assert_eq!(encoding.block_length(), 20_001);
        let short = Encoding { encoded_length: 3 * FRAGMENT_BYTES_MIN - 3, ..encoding };
        let block = short.block(ChunkId([7; 32]), 0);
        assert_eq!(short.check(&block), Err(BadBlock::Length));
    }
}
