//! The chunk of blocks that suffice, in whatever order they come, whoever lies.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use stdchk_model::block::BadBlock;
use stdchk_model::limits::CHUNK_BYTES_MAX;
use stdchk_model::{BlockId, ChunkId, ChunkRef, Encoding, EncodingId, KeyId};
use stdchk_reduce::{Codec, decompress};

use crate::blocks::Blocks;
use crate::coder::restore;
use crate::seal::{Keys, NoKeys, Unopened, is_signed, open};

/// What came of a block that was added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// More blocks of its encoding are needed: so many.
    Lacks(u8),
    /// The plain bytes of the chunk, which match its name.
    Whole(Bytes),
}

/// Why a block was not taken, or the blocks of its encoding are of no use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadFragments {
    /// The block can't be what it is named after: its benefactor is to blame.
    #[error("{0}")]
    Block(#[from] BadBlock),
    /// The blocks of these numbers aren't what they are named after, and are gathered no longer: whoever served them is to blame.
    #[error("the bytes of fragments don't match their names")]
    Fragments(Vec<u8>),
    /// Every block is what it is named after, and together they don't make the chunk: whoever stored it is to blame. None of
    /// this encoding is of use.
    #[error("the blocks match their names, and what they make doesn't match the chunk's name")]
    Encoding,
    /// The chunk is sealed with a key that isn't at hand.
    #[error("it is encrypted with key {0}")]
    NeedsKey(KeyId),
    /// A form that this version doesn't know.
    #[error("its form needs a later stdchk")]
    Unsupported,
}

/// Blocks of one encoding that were gathered.
#[derive(Debug)]
struct Group {
    encoding: Encoding,
    stored: BTreeMap<u8, Bytes>,
}

/// Gathers blocks of a chunk until those of one encoding suffice.
#[derive(Debug)]
pub struct Assembly {
    chunk: ChunkRef,
    keys: Arc<dyn Keys>,
    groups: BTreeMap<EncodingId, Group>,
}

impl Assembly {
    /// Nothing was gathered yet.
    pub fn new(chunk: ChunkRef) -> Self {
        Self::with_keys(chunk, Arc::new(NoKeys))
    }

    /// Nothing was gathered yet of a chunk that may be sealed with one of these keys.
    pub fn with_keys(chunk: ChunkRef, keys: Arc<dyn Keys>) -> Self {
        Self { chunk, keys, groups: BTreeMap::new() }
    }

    /// Adds a block as a benefactor served it. The chunk that blocks make is compared with its name, which says of all of them that they are
    /// good; a fragment is compared with its own name only when what they make is wrong.
    ///
    /// # Errors
    /// This block is of no use, or some that were added before, and why.
    pub fn add(
        &mut self,
        block: BlockId,
        encoding: Encoding,
        stored: Bytes,
    ) -> Result<Gathered, BadFragments> {
        assert_eq!(block.chunk, self.chunk.id, "a block of this chunk");
        encoding.check(&block)?;
        if encoding.code.is_copy() {
            // A copy is compared with the chunk's name, which is better than with its own.
            return match plain(self.chunk, &encoding, stored.clone(), &*self.keys) {
                Ok(bytes) => Ok(Gathered::Whole(bytes)),
                Err(bad @ (BadFragments::Encoding | BadFragments::NeedsKey(_))) => {
                    encoding.check_bytes(block.index, &stored)?;
                    Err(bad)
                }
                Err(other) => Err(other),
            };
        }
        if stored.len() != encoding.block_length() as usize {
            return Err(BadBlock::Bytes.into());
        }
        let group = self.groups.entry(block.encoding);
        let group = group.or_insert_with(|| Group { encoding, stored: BTreeMap::new() });
        group.stored.insert(block.index, stored);
        let lacks = usize::from(group.encoding.code.data()).saturating_sub(group.stored.len());
        if let Some(lacks) = u8::try_from(lacks).ok().filter(|lacks| *lacks > 0) {
            return Ok(Gathered::Lacks(lacks));
        }
        let bad = match plain(self.chunk, &group.encoding, group.encoded(), &*self.keys) {
            Ok(bytes) => return Ok(Gathered::Whole(bytes)),
            Err(bad) => bad,
        };
        let wrong = group.remove_wrong();
        if wrong.is_empty() {
            self.groups.remove(&block.encoding);
            return Err(bad);
        }
        Err(BadFragments::Fragments(wrong))
    }

    /// How many different blocks of an encoding were gathered.
    pub fn gathered(&self, encoding: &EncodingId) -> u8 {
        let count = self.groups.get(encoding).map_or(0, |group| group.stored.len());
        u8::try_from(count).unwrap_or_else(|_| unreachable!("a code has at most 32 blocks"))
    }
}

impl Group {
    /// Removes the fragments that aren't what they are named after; their numbers.
    fn remove_wrong(&mut self) -> Vec<u8> {
        let Self { encoding, stored } = self;
        let wrong = stored.extract_if(.., |index, bytes| encoding.check_bytes(*index, bytes).is_err());
        wrong.map(|(index, _)| index).collect()
    }

    /// The encoded bytes, of as many fragments as suffice.
    fn encoded(&self) -> Bytes {
        let code = self.encoding.code;
        assert!(self.stored.len() >= usize::from(code.data()), "as many fragments as suffice");
        let length = self.encoding.block_length() as usize;
        let fragments: Vec<Option<&[u8]>> =
            (0..code.blocks()).map(|index| self.stored.get(&index).map(|stored| &stored[..])).collect();
        let data = fragments.get(..usize::from(code.data())).unwrap_or_default();
        let mut encoded = Vec::with_capacity(data.len() * length);
        for fragment in data {
            match fragment {
                Some(stored) => encoded.extend_from_slice(stored),
                None => encoded.resize(encoded.len() + length, 0),
            }
        }
        let places = encoded.chunks_exact_mut(length).enumerate();
        let missing: Vec<_> = places.filter(|(number, _)| data.get(*number) == Some(&None)).collect();
        restore(code, &fragments, missing);
        let encoded_length = self.encoding.encoded_length as usize;
        assert!(encoded.len() >= encoded_length, "fragments cover what was encoded");
        encoded.truncate(encoded_length);
        Bytes::from(encoded)
    }
}

/// The plain bytes that `encoded` makes, compared with the chunk's name (I3).
fn plain(
    chunk: ChunkRef,
    encoding: &Encoding,
    encoded: Bytes,
    keys: &dyn Keys,
) -> Result<Bytes, BadFragments> {
    let length = chunk.length as usize;
    let (key, encoded) = match encoding.cipher {
        None => (None, encoded),
        Some(_) => match open(keys, chunk, encoding.codec, &encoded) {
            Ok((key, encoded)) => (Some(key), encoded),
            Err(Unopened::NeedsKey(id)) => return Err(BadFragments::NeedsKey(id)),
            Err(Unopened::Forged) => return Err(BadFragments::Encoding),
        },
    };
    let codec = Codec::from_number(encoding.codec).map_err(|_| BadFragments::Unsupported)?;
    let plain = match codec {
        Codec::Store => encoded,
        codec => match decompress(codec, &encoded, length.min(CHUNK_BYTES_MAX)) {
            Ok(plain) => plain.into_owned().into(),
            Err(_) => return Err(BadFragments::Encoding),
        },
    };
    let name = key.map_or_else(|| ChunkId::of(&plain), |key| key.name(&plain));
    match plain.len() == length && name == chunk.id {
        true => Ok(plain),
        false => Err(BadFragments::Encoding),
    }
}

/// Makes all blocks of an encoding anew from enough of them, without undoing the codec.
#[derive(Debug)]
pub struct Remaking {
    chunk: ChunkId,
    id: EncodingId,
    group: Option<Group>,
}

impl Remaking {
    /// Nothing was gathered yet of the encoding `id` of `chunk`.
    pub fn new(chunk: ChunkId, id: EncodingId) -> Self {
        Self { chunk, id, group: None }
    }

    /// Adds a block; how many more are needed.
    ///
    /// # Errors
    /// The block isn't what it is named after.
    pub fn add(&mut self, index: u8, encoding: Encoding, stored: Bytes) -> Result<u8, BadBlock> {
        encoding.check(&BlockId { chunk: self.chunk, encoding: self.id, index })?;
        encoding.check_bytes(index, &stored)?;
        let group = self.group.get_or_insert_with(|| Group { encoding, stored: BTreeMap::new() });
        group.stored.insert(index, stored);
        Ok(self.lacks())
    }

    /// How many more blocks are needed.
    pub fn lacks(&self) -> u8 {
        let gathered = self.group.as_ref().map_or(0, |group| group.stored.len());
        let lacks = usize::from(self.id.code.data()).saturating_sub(gathered);
        u8::try_from(lacks).unwrap_or_else(|_| unreachable!("a code has at most 32 blocks"))
    }

    /// The blocks of the encoding, or with `as_copies` those that hold all of the encoded bytes. Of these it is certain that they make the
    /// chunk, or of a sealed one that the holder of its key has made them for it: so no encoding that only claims to spreads.
    ///
    /// # Errors
    /// [`BadFragments::Encoding`]: what was gathered doesn't suffice, or makes something else: its maker is to blame.
    pub fn remake(self, as_copies: bool) -> Result<Blocks, BadFragments> {
        let group = self.group.ok_or(BadFragments::Encoding)?;
        let Encoding { codec, plain_length, cipher, maker, .. } = group.encoding;
        let chunk = ChunkRef { id: self.chunk, length: plain_length };
        let encoded = match group.encoding.code.is_copy() {
            true => group.stored.into_values().next().ok_or(BadFragments::Encoding)?,
            false if group.stored.len() < usize::from(group.encoding.code.data()) => {
                return Err(BadFragments::Encoding);
            }
            false => group.encoded(),
        };
        match cipher {
            Some(_) if is_signed(chunk, codec, &encoded) => {}
            Some(_) => return Err(BadFragments::Encoding),
            None => drop(plain(chunk, &group.encoding, encoded.clone(), &NoKeys)?),
        }
        let code = if as_copies { stdchk_model::Code::COPY } else { self.id.code };
        let made = match cipher {
            None => Blocks::of(chunk, codec, encoded, code, maker),
            Some(_) => Blocks::made(chunk, (codec, cipher), encoded, code, maker),
        };
        match as_copies || made.encoding.id(self.chunk) == self.id {
            true => Ok(made),
            false => Err(BadFragments::Encoding),
        }
    }
}
