//! Chunks of Blosc (c-blosc 1, format version 2): taken apart, and made again block by block.
//!
//! Relies on `lz4` (the C library, whose bytes those of other implementations differ from), on [`super::deflate`] and on `zstd`. The idea: a
//! chunk is a header, and blocks that are shuffled and compressed one by one, in an order that depends on threads. All but the level
//! stands in the chunk itself, so a recipe is its header, the level and the order.

use std::sync::atomic::{AtomicU32, Ordering};

use lz4::block::{CompressionMode, compress_to_buffer};
use stdchk_model::exact::{part_mut, to_usize};

use super::deflate::{Wrapper, deflated, inflate};
use super::zstandard;
use crate::codec::{bit_shuffle, bit_unshuffle, put_number, shuffle, take_number, unshuffle};
use crate::limits::STREAM_MAX;

/// Bytes of the header.
pub(super) const HEADER: usize = 16;
/// The version of the format that all of c-blosc 1 writes.
const VERSION: u8 = 2;
/// Flags of the header.
const SHUFFLED: u8 = 1;
const COPIED: u8 = 2;
const BITS_SHUFFLED: u8 = 4;
const NOT_SPLIT: u8 = 16;
/// Where the flags name the compressor.
const COMPRESSOR_SHIFT: u32 = 5;
/// Bytes of the length of a part, and of the place of a block.
const WORD: usize = 4;
/// Widest elements whose planes are parts of their own, and the fewest of them in a block.
const SPLIT_WIDTH_MAX: usize = 16;
const SPLIT_ELEMENTS_MIN: usize = 128;
/// Levels of Blosc that compress.
const LEVELS: std::ops::RangeInclusive<u32> = 1..=9;

/// The compressor of the parts of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compressor {
    /// LZ4, or its slower sister, whose streams are read alike.
    Lz4,
    Zlib,
    Zstd,
}

/// The header, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    flags: u8,
    width: usize,
    bytes: usize,
    block: usize,
    stored: usize,
}

impl Head {
    fn read(header: &[u8]) -> Option<Self> {
        let header = header.first_chunk::<HEADER>()?;
        let [version, _, flags, width, sizes @ ..] = *header;
        let (sizes, _) = sizes.as_chunks::<WORD>();
        let mut sizes = sizes.iter().map(|size| usize::try_from(u32::from_le_bytes(*size)));
        let (bytes, block, stored) = (sizes.next()?.ok()?, sizes.next()?.ok()?, sizes.next()?.ok()?);
        let head = Self { flags, width: usize::from(width), bytes, block, stored };
        let sound = version == VERSION && width > 0 && block > 0 && bytes > 0 && bytes as u64 <= STREAM_MAX;
        sound.then_some(head)
    }

    fn compressor(&self) -> Option<Compressor> {
        match self.flags >> COMPRESSOR_SHIFT {
            1 => Some(Compressor::Lz4),
            3 => Some(Compressor::Zlib),
            4 => Some(Compressor::Zstd),
            _ => None,
        }
    }

    fn is_copied(&self) -> bool {
        self.flags & COPIED != 0
    }

    fn blocks(&self) -> usize {
        self.bytes.div_ceil(self.block)
    }

    /// Plain bytes of a block; none has more than the whole.
    fn block_bytes(&self, number: usize) -> usize {
        self.block.min(self.bytes - number * self.block)
    }

    /// Parts of a block of so many bytes.
    fn parts(&self, bytes: usize) -> usize {
        let whole = bytes == self.block;
        let splits = self.flags & NOT_SPLIT == 0
            && whole
            && self.width <= SPLIT_WIDTH_MAX
            && bytes / self.width >= SPLIT_ELEMENTS_MIN
            && bytes.is_multiple_of(self.width);
        if splits { self.width } else { 1 }
    }

    /// A block as it is compressed.
    fn shuffled(&self, plain: &[u8]) -> Vec<u8> {
        match () {
            () if self.flags & SHUFFLED != 0 && self.width > 1 => shuffle(plain, self.width),
            () if self.shuffles_bits(plain.len()) => bits_shuffled(plain, self.width, true),
            () => plain.to_vec(),
        }
    }

    fn unshuffled(&self, shuffled: &[u8]) -> Vec<u8> {
        match () {
            () if self.flags & SHUFFLED != 0 && self.width > 1 => unshuffle(shuffled, self.width),
            () if self.shuffles_bits(shuffled.len()) => bits_shuffled(shuffled, self.width, false),
            () => shuffled.to_vec(),
        }
    }

    /// Blosc shuffles bits of whole eights of elements only, and leaves other blocks as they are.
    fn shuffles_bits(&self, bytes: usize) -> bool {
        self.flags & BITS_SHUFFLED != 0 && bytes >= self.width && (bytes / self.width).is_multiple_of(8)
    }
}

/// Bits of whole elements shuffled as Blosc does it, or back; what is left over stays.
fn bits_shuffled(bytes: &[u8], width: usize, forwards: bool) -> Vec<u8> {
    let (elements, left) = bytes.split_at(bytes.len() / width * width);
    let shuffled = match forwards {
        true => rows_by(&bit_shuffle(elements, width), width, true),
        false => bit_unshuffle(&rows_by(elements, width, false), width),
    };
    [shuffled.as_slice(), left].concat()
}

/// Rows of bits in the order of Blosc, by the byte of the element and then by the bit, or back in ours, which is the other way round.
fn rows_by(bytes: &[u8], width: usize, forwards: bool) -> Vec<u8> {
    const BITS: usize = u8::BITS as usize;
    let row = bytes.len() / width / BITS;
    let mut ordered = bytes.to_vec();
    if row == 0 {
        return ordered;
    }
    for (number, bytes) in bytes.chunks_exact(row).take(width * BITS).enumerate() {
        let to = match forwards {
            true => number % width * BITS + number / width,
            false => number % BITS * width + number / BITS,
        };
        part_mut(&mut ordered, to * row..(to + 1) * row).copy_from_slice(bytes);
    }
    ordered
}

/// How a chunk is made of its plain bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BloscRecipe {
    header: [u8; HEADER],
    /// The level of Blosc, and whether LZ4 is its slower sister. 0: nothing is compressed.
    level: u32,
    slow: bool,
    /// The blocks in the order in which they stand; none: by their numbers.
    order: Vec<u32>,
}

/// The number in front of which a block or part stands.
fn word_at(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..)?.first_chunk::<WORD>()?;
    usize::try_from(i32::from_le_bytes(*word)).ok()
}

/// The parts of a block that begins at `start`, and where it ends.
fn parts_of(
    head: &Head,
    stored: &[u8],
    start: usize,
    bytes: usize,
) -> Option<(Vec<std::ops::Range<usize>>, usize)> {
    let mut at = start;
    let mut parts = Vec::new();
    for _ in 0..head.parts(bytes) {
        let length = word_at(stored, at)?;
        let begin = at + WORD;
        at = begin.checked_add(length).filter(|end| *end <= stored.len())?;
        parts.push(begin..at);
    }
    Some((parts, at))
}

/// The plain bytes of a chunk.
pub(crate) fn undone(stored: &[u8]) -> Option<Vec<u8>> {
    let head = Head::read(stored).filter(|head| head.stored == stored.len())?;
    if head.is_copied() {
        let plain = stored.get(HEADER..)?;
        return (plain.len() == head.bytes).then(|| plain.to_vec());
    }
    let compressor = head.compressor()?;
    // Each block takes a word at least.
    if head.blocks() > stored.len() / WORD {
        return None;
    }
    let mut plain = Vec::with_capacity(head.bytes);
    for number in 0..head.blocks() {
        let bytes = head.block_bytes(number);
        let (parts, _) = parts_of(&head, stored, word_at(stored, HEADER + number * WORD)?, bytes)?;
        let part_bytes = bytes / parts.len().max(1);
        let mut shuffled = Vec::with_capacity(bytes);
        for part in parts {
            let part = stored.get(part)?;
            if part.len() == part_bytes {
                shuffled.extend_from_slice(part);
            } else {
                shuffled.extend(decompressed(compressor, part, part_bytes)?);
            }
        }
        plain.extend(head.unshuffled(&shuffled));
    }
    (plain.len() == head.bytes).then_some(plain)
}

fn decompressed(compressor: Compressor, part: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let plain = match compressor {
        Compressor::Lz4 => lz4_flex::block::decompress(part, bytes).ok()?,
        Compressor::Zlib => inflate(part, Wrapper::Zlib, bytes)?,
        Compressor::Zstd => zstandard::undone(part, bytes)?,
    };
    (plain.len() == bytes).then_some(plain)
}

/// The stored form of a part in Blosc; a part is stored as it is where that is no shorter.
fn compressed(compressor: Compressor, plain: &[u8], level: u32, slow: bool) -> Option<Vec<u8>> {
    let level_of = |level: u32| i32::try_from(level).ok();
    let made = match (compressor, slow) {
        (Compressor::Lz4, _) => {
            let mode = match slow {
                false => CompressionMode::FAST(10 - level_of(level)?),
                true => CompressionMode::HIGHCOMPRESSION(level_of(level)?),
            };
            let mut made = vec![0; plain.len()];
            // It fails where there is not enough room.
            let length = compress_to_buffer(plain, Some(mode), false, &mut made).unwrap_or(0);
            made.truncate(length);
            made
        }
        (Compressor::Zlib, _) => deflated(plain, Wrapper::Zlib, level, plain.len()).unwrap_or_default(),
        (Compressor::Zstd, _) => {
            const MAX: i32 = 22;
            let level = if level < 9 { 2 * level_of(level)? - 1 } else { MAX };
            zstandard::made(plain, level, false)?
        }
    };
    let shorter = !made.is_empty() && made.len() < plain.len();
    Some(if shorter { made } else { plain.to_vec() })
}

/// How a chunk is made of its plain bytes, seen by making it. `usual` is the level of the chunks before it.
pub(crate) fn recipe_of(stored: &[u8], plain: &[u8], usual: &AtomicU32) -> Option<BloscRecipe> {
    let head = Head::read(stored)?;
    let header = *stored.first_chunk()?;
    let mut recipe = BloscRecipe { header, level: 0, slow: false, order: Vec::new() };
    if !head.is_copied() {
        let mut starts = (0..head.blocks())
            .map(|number| Some((word_at(stored, HEADER + number * WORD)?, u32::try_from(number).ok()?)));
        let mut starts = starts.by_ref().collect::<Option<Vec<_>>>()?;
        if !starts.is_sorted() {
            starts.sort_unstable();
            recipe.order = starts.into_iter().map(|(_, number)| number).collect();
        }
        return at_its_level(&head, &recipe, stored, plain, usual);
    }
    (made(&recipe, plain, stored.len())? == stored).then_some(recipe)
}

/// The recipe with the level of Blosc that makes the chunk. Several may make the same of the first part that is compressed, which is tried
/// before the whole.
fn at_its_level(
    head: &Head,
    recipe: &BloscRecipe,
    stored: &[u8],
    plain: &[u8],
    usual: &AtomicU32,
) -> Option<BloscRecipe> {
    let compressor = head.compressor()?;
    let ways: &[bool] = if compressor == Compressor::Lz4 { &[false, true] } else { &[false] };
    let first = usual.load(Ordering::Relaxed);
    let others = LEVELS.filter(|level| *level != first);
    let levels = std::iter::once(first).filter(|level| LEVELS.contains(level)).chain(others);
    let part = first_compressed(head, stored, plain);
    let mut tried = ways.iter().flat_map(|slow| levels.clone().map(|level| (level, *slow)));
    tried.find_map(|(level, slow)| {
        if let Some((part, expected)) = &part
            && compressed(compressor, part, level, slow)? != *expected
        {
            return None;
        }
        let recipe = BloscRecipe { level, slow, ..recipe.clone() };
        let same = made(&recipe, plain, stored.len())? == stored;
        same.then(|| usual.store(level, Ordering::Relaxed)).map(|()| recipe)
    })
}

/// The first part that is compressed: its shuffled bytes, and those that are stored.
fn first_compressed<'a>(head: &Head, stored: &'a [u8], plain: &[u8]) -> Option<(Vec<u8>, &'a [u8])> {
    (0..head.blocks()).find_map(|number| {
        let bytes = head.block_bytes(number);
        let start = number * head.block;
        let shuffled = head.shuffled(plain.get(start..start + bytes)?);
        let (parts, _) = parts_of(head, stored, word_at(stored, HEADER + number * WORD)?, bytes)?;
        let length = bytes / parts.len().max(1);
        parts.into_iter().zip(shuffled.chunks(length.max(1))).find_map(|(part, plain)| {
            (part.len() < plain.len()).then(|| Some((plain.to_vec(), stored.get(part)?)))?
        })
    })
}

/// The chunk that the recipe makes of these bytes; none if it makes none of this length.
pub(crate) fn made(recipe: &BloscRecipe, plain: &[u8], length: usize) -> Option<Vec<u8>> {
    let head =
        Head::read(&recipe.header).filter(|head| head.bytes == plain.len() && head.stored == length)?;
    let mut stored = recipe.header.to_vec();
    if head.is_copied() {
        stored.extend_from_slice(plain);
        return (stored.len() == length).then_some(stored);
    }
    if !LEVELS.contains(&recipe.level) || head.blocks() > length / WORD {
        return None;
    }
    let compressor = head.compressor()?;
    stored.resize(HEADER + head.blocks() * WORD, 0);
    for place in 0..head.blocks() {
        let number = match recipe.order.is_empty() {
            true => place,
            false => {
                usize::try_from(*recipe.order.get(place)?).ok().filter(|number| *number < head.blocks())?
            }
        };
        let start = u32::try_from(stored.len()).ok()?.to_le_bytes();
        stored.get_mut(HEADER + number * WORD..)?.first_chunk_mut::<WORD>()?.copy_from_slice(&start);
        let begin = number * head.block;
        let bytes = head.block_bytes(number);
        let shuffled = head.shuffled(plain.get(begin..begin + bytes)?);
        for part in shuffled.chunks((bytes / head.parts(bytes)).max(1)) {
            let part = compressed(compressor, part, recipe.level, recipe.slow)?;
            stored.extend(u32::try_from(part.len()).ok()?.to_le_bytes());
            stored.extend(part);
        }
        if stored.len() > length {
            return None;
        }
    }
    (stored.len() == length).then_some(stored)
}

impl BloscRecipe {
    pub(super) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.header);
        put_number(bytes, u64::from(self.level) << 1 | u64::from(self.slow));
        put_number(bytes, self.order.len() as u64);
        self.order.iter().for_each(|number| put_number(bytes, u64::from(*number)));
    }

    pub(super) fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        let level = take_number(bytes)?;
        let count = take_number(bytes).filter(|count| *count <= bytes.len() as u64)?;
        let order = (0..to_usize(count)).map(|_| u32::try_from(take_number(bytes)?).ok());
        let order = order.collect::<Option<Vec<_>>>()?;
        Some(Self { header: *header, level: u32::try_from(level >> 1).ok()?, slow: level & 1 == 1, order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(count: u32) -> Vec<u8> {
        (0..count).flat_map(|n| (f64::from(n) / 500.0).sin().to_le_bytes()).collect()
    }

    /// A chunk as Blosc would make it with these settings.
    fn chunk(
        plain: &[u8],
        compressor: u8,
        flags: u8,
        block: u32,
        level: u32,
        order: Vec<u32>,
    ) -> (BloscRecipe, Vec<u8>) {
        let mut header = [2, 1, flags | compressor << 5, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header[4..8].copy_from_slice(&u32::try_from(plain.len()).unwrap().to_le_bytes());
        header[8..12].copy_from_slice(&block.to_le_bytes());
        let mut recipe = BloscRecipe { header, level, slow: false, order };
        // Its length stands in its header.
        for length in HEADER..2 * plain.len() + 1000 {
            recipe.header[12..16].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
            if let Some(made) = made(&recipe, plain, length) {
                return (recipe, made);
            }
        }
        unreachable!("some length is right")
    }

    #[test]
    fn chunks_of_every_compressor_are_told_by_their_level_and_order() {
        let plain = field(700);
        for (compressor, flags, order) in [
            (1, 1, vec![]),
            (1, 1 | 16, vec![2, 0, 1]),
            (3, 1, vec![]),
            (4, 1 | 16, vec![]),
            (4, 4, vec![1, 2, 0]),
            (1, 2, vec![]),
        ] {
            let level = if flags & 2 != 0 { 0 } else { 4 };
            let (recipe, stored) = chunk(&plain, compressor, flags, 2048, level, order);
            assert_eq!(undone(&stored).as_ref(), Some(&plain), "{compressor} {flags}");
            let found = recipe_of(&stored, &plain, &AtomicU32::new(0)).unwrap();
            assert_eq!((&found.header, &found.order), (&recipe.header, &recipe.order));
            assert_eq!(made(&found, &plain, stored.len()).as_ref(), Some(&stored));
            let mut bytes = Vec::new();
            found.put(&mut bytes);
            assert_eq!(BloscRecipe::take(&mut bytes.as_slice()), Some(found));
        }
    }

    #[test]
    fn damaged_chunks_and_recipes_make_something_else_or_nothing() {
        let plain = field(700);
        let (recipe, stored) = chunk(&plain, 1, 1, 2048, 5, vec![2, 0, 1]);
        for at in 0..stored.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = stored.clone();
                damaged[at] = value;
                let Some(plain) = undone(&damaged) else { continue };
                if let Some(recipe) = recipe_of(&damaged, &plain, &AtomicU32::new(0)) {
                    assert_eq!(made(&recipe, &plain, damaged.len()), Some(damaged));
                }
            }
            assert_eq!(undone(&stored[..at]), None);
        }
        let mut bytes = Vec::new();
        recipe.put(&mut bytes);
        for at in 0..bytes.len() {
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let read = BloscRecipe::take(&mut changed.as_slice());
                drop(read.and_then(|recipe| made(&recipe, &plain, stored.len())));
            }
        }
    }
}
