//! Runs of bytes that stood in the set before, however far back and at whatever place.
//!
//! Relies on nothing of this crate but its errors. The idea (long-distance matching, as in `zstd --long`, without a window): a hash
//! rolls over all bytes, and where its highest bits are zero the place is marked in a table of fixed size. A place with the
//! mark of another is compared with that, by reading it again where it came from, and the run that both share is left out.
//! Which places are marked follows from the bytes alone.

use std::ops::Range;

use stdchk_formats::Extent;
use stdchk_model::exact::{part, part_mut, to_usize};
use stdchk_reduce::is_zero;

use crate::error::{AggregateError, Result};

/// Shortest run that is left out, in bytes: to tell where it lies takes about ten.
pub(super) const RUN_MIN: usize = 256;
/// Bytes that a hash depends on.
const WINDOW: usize = 64;
/// One place in so many is marked, as a power of two, where the set is small enough for the table.
const RATE_BITS_MIN: u32 = 7;
/// Bytes whose hashes are looked at together.
const STEP: usize = 8;
/// Bytes that are passed over together where all of them are zeros: the search in their block takes these for nothing.
const ZEROS: usize = 4 << 10;
/// Bytes of a word, of which elements are made.
const WORD: usize = 8;
/// Of elements one word in so many is marked, as a power of two, where one place in `1 << RATE_BITS_MIN` is.
const WORD_RATE_BITS: u32 = 5;
/// Bits of the hash that a mark keeps.
const TAG_BITS: u32 = 24;
/// Bytes that are compared backwards at most.
const BACKWARDS_MAX: usize = 64 << 10;
/// Bytes that are read to be compared at first, and at once at most; each time four times as many.
const CHUNK_MIN: u64 = 256;
const CHUNK_MAX: u64 = 64 << 10;
/// Places in a row that were compared in vain after which one more of them is passed over each time, and most that are counted:
/// what repeats in short runs is nothing for this, and to read it again and again costs more than coding it.
const VAIN: u32 = 8;
const VAIN_MAX: u32 = 512;

/// Reads a range of a file of the set.
pub(super) type Read<'a> = &'a mut dyn FnMut(u32, Extent, &mut Vec<u8>) -> Result<()>;

/// Bytes of a file that a block holds.
struct Origin {
    /// Their place among all bytes that are held.
    first: u64,
    block: u64,
    start: u64,
    file: u32,
    extent: Extent,
}

/// A run of the bytes that are looked at, and where the same bytes begin in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) range: Range<usize>,
    pub(super) block: u64,
    pub(super) start: u64,
}

/// What is looked at: bytes that lie next to each other in a file, up to where they end, and what of them stands in no block yet.
pub(super) struct Look<'a> {
    pub(super) bytes: &'a [u8],
    /// The part of them that lies next to each other in the file.
    pub(super) within: Range<usize>,
    /// The first of them that no block holds yet. They are going to stand in this block, from this byte on.
    pub(super) pending: usize,
    pub(super) block: u64,
    pub(super) start: u64,
    /// Runs begin and end at multiples of so many bytes.
    pub(super) unit: usize,
}

/// What was marked.
pub(super) struct Runs {
    /// By hash: a tag of the hash and the place, or zero.
    table: Vec<u64>,
    slot_bits: u32,
    rate_bits: u32,
    origins: Vec<Origin>,
    /// Bytes that are held.
    held: u64,
    /// Places that were compared in vain, in a row, and places since the last one that was compared.
    vain: u32,
    passed: u32,
    gear: [u64; 256],
}

impl Runs {
    /// For so many bytes, with so much memory for the table at most.
    pub(super) fn new(bytes: u64, memory: u64) -> Self {
        let slots_max = (memory / size_of::<u64>() as u64).max(1).ilog2();
        let wanted = (bytes >> RATE_BITS_MIN).max(64).ilog2() + 1;
        let slot_bits = wanted.min(slots_max);
        let rate_bits = RATE_BITS_MIN + (wanted - slot_bits);
        let mut state = 0_u64;
        let gear = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed(state)
        });
        Self {
            table: Vec::new(),
            slot_bits,
            rate_bits,
            origins: Vec::new(),
            held: 0,
            vain: 0,
            passed: 0,
            gear,
        }
    }

    /// These bytes of a file stand in a block, from `start` on.
    pub(super) fn hold(&mut self, block: u64, start: u64, file: u32, extent: Extent) {
        self.origins.push(Origin { first: self.held, block, start, file, extent });
        self.held += extent.length;
    }

    /// The next run, at `from` or behind it.
    pub(super) fn next(&mut self, look: &Look<'_>, from: usize, read: Read<'_>) -> Result<Option<Run>> {
        if self.table.is_empty() {
            self.table = vec![0; 1 << self.slot_bits];
        }
        let begin = from.max(look.within.start);
        let bytes = part(look.bytes, begin..look.within.end);
        // Only what a whole window went into is a hash.
        let Some((before, _)) = bytes.split_at_checked(WINDOW - 1) else { return Ok(None) };
        let mut hash = before.iter().fold(0, |hash, byte| self.rolled(hash, *byte));
        let mut seen = WINDOW - 1;
        while let Some(ahead) = bytes.get(seen..).filter(|ahead| !ahead.is_empty()) {
            let ahead = part(ahead, ..ZEROS.min(ahead.len()));
            if ahead.len() > WINDOW && is_zero(ahead) {
                hash = (0..WINDOW).fold(0, |hash, _| self.rolled(hash, 0));
                seen += ahead.len();
                continue;
            }
            let Some(found) = self.roll(&mut hash, ahead) else {
                seen += ahead.len();
                continue;
            };
            seen += found;
            let here = begin + seen;
            let place = self.held + (here - look.pending) as u64;
            let Some(before) = self.mark(hash, place) else { continue };
            self.passed += 1;
            if self.passed <= self.vain / VAIN {
                continue;
            }
            self.passed = 0;
            if let Some(run) = self.run_at(look, here, before, &mut *read)? {
                self.found();
                return Ok(Some(run));
            }
            self.in_vain();
        }
        Ok(None)
    }

    /// The next run of elements, at `from` or behind it. Slices of an array begin with an element, so only whole words are looked at, for a
    /// tenth of the time that the hash over all places takes.
    pub(super) fn next_of_elements(
        &mut self,
        look: &Look<'_>,
        from: usize,
        read: Read<'_>,
    ) -> Result<Option<Run>> {
        if self.table.is_empty() {
            self.table = vec![0; 1 << self.slot_bits];
        }
        let begin = from.max(look.within.start).next_multiple_of(WORD).min(look.within.end);
        let words = part(look.bytes, begin..look.within.end).as_chunks::<WORD>().0;
        let bound = 1 << (u64::BITS - WORD_RATE_BITS - (self.rate_bits - RATE_BITS_MIN));
        let mut seen = 0;
        while let Some((found, hash)) = marked_words(part(words, seen..), bound) {
            seen += found + 1;
            let here = begin + (seen + 1) * WORD;
            let place = self.held + (here - look.pending) as u64;
            let Some(before) = self.mark(hash, place) else { continue };
            self.passed += 1;
            if self.passed <= self.vain / VAIN {
                continue;
            }
            self.passed = 0;
            if let Some(run) = self.run_at(look, here, before, &mut *read)? {
                return Ok(Some(run));
            }
            self.in_vain();
        }
        Ok(None)
    }

    /// Notes that a place was compared, or a run was found, for nothing.
    pub(super) fn in_vain(&mut self) {
        self.vain = (self.vain + 1).min(VAIN_MAX);
    }

    /// Notes that a run was found that is left out.
    pub(super) fn found(&mut self) {
        self.vain = 0;
    }

    fn rolled(&self, hash: u64, byte: u8) -> u64 {
        (hash << 1).wrapping_add(*part(&self.gear, usize::from(byte)))
    }

    /// Rolls the hash over bytes up to a place that is to be marked; says how many these are.
    fn roll(&self, hash: &mut u64, bytes: &[u8]) -> Option<usize> {
        let bound = 1 << (u64::BITS - self.rate_bits);
        let (mut rolled, mut done) = (*hash, 0);
        for step in bytes.as_chunks::<STEP>().0 {
            let (mut next, mut least) = (rolled, u64::MAX);
            for byte in step {
                next = self.rolled(next, *byte);
                least = least.min(next);
            }
            if least < bound {
                break;
            }
            (rolled, done) = (next, done + STEP);
        }
        let found = bytes.iter().skip(done).position(|byte| {
            rolled = self.rolled(rolled, *byte);
            rolled < bound
        });
        *hash = rolled;
        found.map(|found| done + found + 1)
    }

    /// Marks a place; says which one had this mark before.
    fn mark(&mut self, hash: u64, place: u64) -> Option<u64> {
        let mixed = mixed(hash);
        let slot = part_mut(&mut self.table, to_usize(mixed >> (u64::BITS - self.slot_bits)));
        let tag = mixed << (u64::BITS - TAG_BITS);
        let before = std::mem::replace(slot, tag | (place & (u64::MAX >> TAG_BITS)));
        let same = before != 0 && before >> (u64::BITS - TAG_BITS) == tag >> (u64::BITS - TAG_BITS);
        same.then_some(before & (u64::MAX >> TAG_BITS))
    }

    /// The run around `here` that is the same as around the place `before`, if it is long enough.
    fn run_at(&self, look: &Look<'_>, here: usize, before: u64, read: Read<'_>) -> Result<Option<Run>> {
        let floor = look.pending.max(look.within.start);
        let ahead = part(look.bytes, here..look.within.end);
        let behind = part(look.bytes, floor..here);
        if let Some(pending) = before.checked_sub(self.held).filter(|pending| *pending > 0) {
            // Both lie in what no block holds yet, and the run must not begin before the other one ends.
            let there = look.pending + to_usize(pending);
            // A mark in a run that was left out counts bytes that are not held, so it may point anywhere ahead.
            if there >= here {
                return Ok(None);
            }
            let apart = here - there;
            let behind = part(behind, behind.len().saturating_sub(apart.min(BACKWARDS_MAX))..);
            let back = same_at_end(part(look.bytes, look.pending..there), behind);
            let ahead = part(ahead, ..ahead.len().min(apart - back));
            let forth = same_at_start(part(look.bytes, there..), ahead);
            let start = look.start + pending - back as u64;
            return Ok(whole(look, here - back..here + forth, look.block, start));
        }
        let after = self.origins.partition_point(|origin| origin.first < before);
        let Some(origin) = after.checked_sub(1).and_then(|at| self.origins.get(at)) else { return Ok(None) };
        let skip = before - origin.first;
        if skip > origin.extent.length {
            return Ok(None);
        }
        let (first, mut other) = (origin.extent.offset, Vec::new());
        let mut compare = |from: u64, length: u64, count: &dyn Fn(&[u8]) -> usize| {
            other.clear();
            read(origin.file, Extent { offset: first + from, length }, &mut other)?;
            Ok::<_, AggregateError>(count(&other))
        };
        let (mut back, mut chunk) = (0, CHUNK_MIN);
        loop {
            let behind = part(behind, ..behind.len() - back);
            let length = chunk.min(skip - back as u64).min(behind.len().min(BACKWARDS_MAX) as u64);
            let from = skip - back as u64 - length;
            let same = if length == 0 {
                0
            } else {
                compare(from, length, &|other: &[u8]| same_at_end(other, behind))?
            };
            // A mark may be of other bytes, and then nothing is the same.
            if back == 0 && (same as u64) < length.min(WINDOW as u64) {
                return Ok(None);
            }
            (back, chunk) = (back + same, (4 * chunk).min(CHUNK_MAX));
            if (same as u64) < length || length == 0 || back >= BACKWARDS_MAX {
                break;
            }
        }
        let (mut forth, mut chunk) = (0, CHUNK_MIN);
        loop {
            let ahead = part(ahead, forth..);
            let length = chunk.min(origin.extent.length - skip - forth as u64).min(ahead.len() as u64);
            let from = skip + forth as u64;
            let same = if length == 0 {
                0
            } else {
                compare(from, length, &|other: &[u8]| same_at_start(other, ahead))?
            };
            (forth, chunk) = (forth + same, (4 * chunk).min(CHUNK_MAX));
            if (same as u64) < length || length == 0 {
                break;
            }
        }
        Ok(whole(look, here - back..here + forth, origin.block, origin.start + skip - back as u64))
    }
}

/// The first two words that are marked, which aren't the same, and their hash.
fn marked_words(words: &[[u8; WORD]], bound: u64) -> Option<(usize, u64)> {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = |pair: &[[u8; WORD]; 2]| {
        let [one, other] = pair.map(u64::from_le_bytes);
        ((one ^ other.rotate_left(23)).wrapping_mul(FACTOR), one == other)
    };
    let mut hashes = words.array_windows().map(hash).enumerate();
    hashes.find(|(_, (hash, same))| *hash < bound && !same).map(|(at, (hash, _))| (at, hash))
}

/// The whole units of a run, if these are enough.
fn whole(look: &Look<'_>, range: Range<usize>, block: u64, start: u64) -> Option<Run> {
    let first = range.start.next_multiple_of(look.unit);
    let end = range.end / look.unit * look.unit;
    let skipped = (first - range.start) as u64;
    (end >= first + RUN_MIN).then_some(Run { range: first..end, block, start: start + skipped })
}

fn same_at_start(one: &[u8], other: &[u8]) -> usize {
    const STEP: usize = 32;
    let steps = one.chunks_exact(STEP).zip(other.chunks_exact(STEP));
    let same = steps.take_while(|(one, other)| one == other).count() * STEP;
    let rest = one.iter().skip(same).zip(other.iter().skip(same));
    same + rest.take_while(|(one, other)| one == other).count()
}

fn same_at_end(one: &[u8], other: &[u8]) -> usize {
    one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count()
}

/// The last steps of MurmurHash3's 64-bit finaliser.
fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    value = (value ^ (value >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ (value >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize, mut state: u64) -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mixed(state).to_le_bytes()
        };
        (0..length.div_ceil(8)).flat_map(|_| next()).take(length).collect()
    }

    /// What is left of some files, and the files made anew from it.
    fn left_of(files: &[Vec<u8>], unit: usize) -> (usize, Vec<Vec<u8>>) {
        let mut runs = Runs::new(files.iter().map(|file| file.len() as u64).sum(), 1 << 20);
        let mut block: Vec<u8> = Vec::new();
        let mut made = Vec::new();
        for (number, bytes) in files.iter().enumerate() {
            let mut read = |file: u32, extent: Extent, buffer: &mut Vec<u8>| {
                let range = usize::try_from(extent.offset).unwrap()..usize::try_from(extent.end()).unwrap();
                buffer.extend_from_slice(&files[usize::try_from(file).unwrap()][range]);
                Ok(())
            };
            let (mut done, mut file) = (0, Vec::new());
            loop {
                let (within, start) = (0..bytes.len(), block.len() as u64);
                let look = Look { bytes, within, pending: done, block: 0, start, unit };
                let run = runs.next(&look, done, &mut read).unwrap();
                let end = run.as_ref().map_or(bytes.len(), |run| run.range.start);
                let extent = Extent { offset: done as u64, length: (end - done) as u64 };
                runs.hold(0, start, u32::try_from(number).unwrap(), extent);
                block.extend_from_slice(&bytes[done..end]);
                file.extend_from_slice(&bytes[done..end]);
                let Some(run) = run else { break };
                assert!(run.range.start % unit == 0 && run.range.end % unit == 0);
                let from = usize::try_from(run.start).unwrap();
                file.extend_from_slice(&block[from..from + run.range.len()]);
                done = run.range.end;
            }
            made.push(file);
        }
        (block.len(), made)
    }

    #[test]
    fn what_repeats_at_any_place_is_left_out_and_comes_back() {
        let (one, two) = (noise(300_000, 1), noise(5000, 2));
        let changed: Vec<u8> = [&one[..100_000], &two, &one[100_003..]].concat();
        let twice = [&noise(50_000, 3)[..], &one[200_000..], &noise(50_000, 3)].concat();
        let zeros = vec![0; 100_000];
        for unit in [1, 8] {
            let files = [one.clone(), changed.clone(), zeros.clone(), twice.clone()];
            let (left, made) = left_of(&files, unit);
            assert!(made == files);
            assert!(left < 300_000 + 5000 + 50_000 + 100_000 + 5000, "{left}");
        }
    }

    #[test]
    fn runs_in_sets_that_are_too_large_for_the_table_are_found_where_they_are_long() {
        let runs = Runs::new(1 << 40, 1 << 20);
        assert_eq!((runs.slot_bits, runs.rate_bits), (17, 7 + 34 - 17));
    }
}
