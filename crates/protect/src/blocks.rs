//! From the encoded bytes of a chunk to its blocks, and whether a block can be what it is said to be.

use bytes::Bytes;
use stdchk_model::block::{BadBlock, SEAL_BYTES, SEALED};
use stdchk_model::exact::part;
use stdchk_model::limits::CHUNK_BYTES_MAX;
use stdchk_model::{BlockId, ChunkId, ChunkRef, Code, Encoding, Maker};
use stdchk_reduce::{Codec, decompress};

use crate::coder::parity;
use crate::seal::{Key, is_signed};

/// All blocks of one encoding of a chunk.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// The chunk.
    pub chunk: ChunkId,
    /// How they were made.
    pub encoding: Encoding,
    /// Stored bytes of each block, in the order of their numbers. Data fragments share the memory of the encoded bytes.
    stored: Vec<Bytes>,
}

impl Blocks {
    /// The blocks of a chunk that is stored as it is; the bytes are not looked at.
    pub fn plain(chunk: ChunkRef, plain: Bytes) -> Self {
        assert_eq!(plain.len(), chunk.length as usize, "the bytes are the chunk's");
        Self { chunk: chunk.id, encoding: Encoding::plain(chunk), stored: vec![plain] }
    }

    /// Makes the blocks of a chunk under `code` from `encoded`, which the codec number `codec` made of it, as `maker` codes them. Takes
    /// milliseconds: everything is hashed.
    pub fn of(chunk: ChunkRef, codec: u8, encoded: Bytes, code: Code, maker: Maker) -> Self {
        if code.is_copy() && codec == Codec::Store.number() {
            return Self::plain(chunk, encoded);
        }
        Self::made(chunk, (codec, None), encoded, code, maker)
    }

    /// Makes the blocks of a chunk under `code` from `encoded` sealed with `key`, which gave the chunk its name. Takes milliseconds, as
    /// [`Blocks::of`] does.
    pub fn sealed(
        chunk: ChunkRef,
        codec: u8,
        encoded: &[u8],
        (code, maker): (Code, Maker),
        key: &Key,
    ) -> Self {
        Self::made(chunk, (codec, Some(SEALED)), key.seal(chunk, codec, encoded), code, maker)
    }

    /// Makes blocks of bytes that were encoded, and sealed if there is a cipher. Copies have no maker.
    pub(crate) fn made(
        chunk: ChunkRef,
        (codec, cipher): (u8, Option<u8>),
        encoded: Bytes,
        code: Code,
        maker: Maker,
    ) -> Self {
        let maker = if code.is_copy() { Maker::LOCAL } else { maker };
        let added = if cipher.is_some() { SEAL_BYTES as usize } else { 0 };
        assert!(encoded.len() <= CHUNK_BYTES_MAX + added, "a codec is used only where it shrinks");
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let encoded_length = encoded.len() as u32;
        let (plain_length, hashes) = (chunk.length, Vec::new());
        let empty = Encoding { codec, plain_length, cipher, code, encoded_length, hashes, maker };
        let stored = match code.is_copy() {
            true => vec![encoded],
            false => fragments(&encoded, code, empty.block_length() as usize),
        };
        let hashes = stored.iter().map(|stored| ChunkId::of(stored)).collect();
        Self { chunk: chunk.id, encoding: Encoding { hashes, ..empty }, stored }
    }

    /// The blocks with their stored bytes.
    pub fn iter(&self) -> impl Iterator<Item = (BlockId, &Bytes)> {
        let encoding = self.encoding.id(self.chunk);
        let block = move |index| BlockId { chunk: self.chunk, encoding, index };
        (0u8..).map(block).zip(&self.stored)
    }

    /// The stored bytes of the block number `index`.
    pub fn stored(&self, index: u8) -> Option<&Bytes> {
        self.stored.get(usize::from(index))
    }

    /// A copy of the same encoded bytes, whatever the code, in memory of its own. Takes a part of a millisecond: they are copied, and
    /// hashed if these blocks are fragments.
    pub fn to_copy(&self) -> Self {
        let Encoding { codec, cipher, code, encoded_length, .. } = self.encoding;
        let length = encoded_length as usize;
        let mut encoded = Vec::with_capacity(length);
        for stored in self.stored.iter().take(usize::from(code.data())) {
            encoded.extend_from_slice(part(stored, ..stored.len().min(length - encoded.len())));
        }
        let (chunk, encoded) =
            (ChunkRef { id: self.chunk, length: self.encoding.plain_length }, Bytes::from(encoded));
        match (code.is_copy(), cipher) {
            (true, _) => Self { stored: vec![encoded], ..self.clone() },
            (false, None) => Self::of(chunk, codec, encoded, Code::COPY, Maker::LOCAL),
            (false, cipher) => Self::made(chunk, (codec, cipher), encoded, Code::COPY, Maker::LOCAL),
        }
    }

    /// Bytes that all blocks take.
    pub fn stored_length(&self) -> usize {
        self.stored.iter().map(Bytes::len).sum()
    }
}

/// Cuts encoded bytes into data fragments of `length` bytes, the last ones filled up with zeros, and adds the parity fragments.
fn fragments(encoded: &Bytes, code: Code, length: usize) -> Vec<Bytes> {
    let data = usize::from(code.data());
    assert!(data * length >= encoded.len(), "fragments cover what was encoded");
    let mut fragments = Vec::with_capacity(usize::from(code.blocks()));
    for number in 0..data {
        let (start, end) = (number * length, (number + 1) * length);
        fragments.push(match end <= encoded.len() {
            true => encoded.slice(start..end),
            false => {
                let mut filled = Vec::with_capacity(length);
                filled.extend_from_slice(encoded.get(start..).unwrap_or_default());
                filled.resize(length, 0);
                Bytes::from(filled)
            }
        });
    }
    let made = parity(code, &fragments.iter().map(|fragment| &fragment[..]).collect::<Vec<_>>());
    fragments.extend(made.into_iter().map(Bytes::from));
    fragments
}

/// Whether `stored` is the block that it is said to be. Of a copy that means that it decodes to the chunk: else one lying client
/// could make everybody's next write of that chunk a reference to something that can't be read. Of a sealed copy it means that
/// somebody made it who has the key that is in the chunk's name. A fragment can be told to be
/// the one that its encoding names; whether the fragments of an encoding make the chunk shows when they are put together. Until then it
/// counts for its maker alone, so who takes a fragment sees to it that nobody brings those of others.
///
/// # Errors
/// What is wrong with it.
pub fn genuine(block: &BlockId, encoding: &Encoding, stored: &[u8]) -> Result<(), BadBlock> {
    encoding.check(block)?;
    encoding.check_bytes(block.index, stored)?;
    if encoding.cipher.is_some() {
        let chunk = ChunkRef { id: block.chunk, length: encoding.plain_length };
        let is_genuine = !encoding.code.is_copy() || is_signed(chunk, encoding.codec, stored);
        return if is_genuine { Ok(()) } else { Err(BadBlock::Name) };
    }
    if !encoding.code.is_copy() || encoding.codec == Codec::Store.number() {
        // Of a copy that is stored as it is, the hash that was compared must be the chunk's name.
        let is_named_otherwise = encoding.code.is_copy() && *block != BlockId::plain(block.chunk);
        return if is_named_otherwise { Err(BadBlock::Name) } else { Ok(()) };
    }
    let length = encoding.plain_length as usize;
    let codec = Codec::from_number(encoding.codec).map_err(|_| BadBlock::Bytes)?;
    let plain = decompress(codec, stored, length).map_err(|_| BadBlock::Bytes)?;
    match plain.len() == length && ChunkId::of(&plain) == block.chunk {
        true => Ok(()),
        false => Err(BadBlock::Bytes),
    }
}
