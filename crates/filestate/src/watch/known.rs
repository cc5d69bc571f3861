//! Which blocks of files may be overwritten without asking: a mirror of the interval maps that is read without a lock.
//!
//! The one idea: a fixed number of entries, each the 256 blocks of one region (1 MiB) of one file. An entry is written under
//! the lock of the state and read without one; a sequence number tells a reader that it looked at an entry in the making,
//! which counts as "not known". So does a region whose entry another one has taken: then the state is asked, and it fills
//! the entry again. An entry belongs to one generation; nothing is ever cleared.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use stdchk_model::exact::{part, to_usize};

use crate::record::Inode;

/// Old contents are saved, and remembered as saved, in blocks of this size: neighbouring small writes share a record.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// What one entry speaks of.
pub(super) const REGION_BYTES: u64 = WORDS as u64 * 64 * BLOCK_BYTES;
const WORDS: usize = 4;
/// Entries: 1 MiB of memory, touched as far as it is used, for 16 GiB of files that are overwritten at random.
const ENTRIES: usize = 16 * 1024;
/// A change over more regions than this asks the state: it moves so many bytes that asking costs nothing.
const REGIONS_MAX: u64 = 4;

/// The blocks of a region: a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blocks([u64; WORDS]);

impl Blocks {
    /// All but those that `gaps`, offsets in the file, touch.
    pub(super) fn all_but(gaps: &[Range<u64>], region: u64) -> Self {
        let mut blocks = Self([u64::MAX; WORDS]);
        for gap in gaps {
            for (word, mask) in blocks.0.iter_mut().zip(masks(region, gap)) {
                *word &= !mask;
            }
        }
        blocks
    }

    /// How many of the region's blocks before offset `end` of the file are among them.
    pub(super) fn count_before(&self, region: u64, end: u64) -> u32 {
        let masks = masks(region, &(region * REGION_BYTES..end));
        self.0.iter().zip(masks).map(|(word, mask)| (word & mask).count_ones()).sum()
    }
}

/// The bits of `range`, offsets in the file, in `region`.
fn masks(region: u64, range: &Range<u64>) -> [u64; WORDS] {
    let first = region * (WORDS as u64 * 64);
    let (from, to) = (range.start / BLOCK_BYTES, range.end.div_ceil(BLOCK_BYTES));
    std::array::from_fn(|word| {
        let start = first + word as u64 * 64;
        let (from, to) = (from.clamp(start, start + 64) - start, to.clamp(start, start + 64) - start);
        if from >= to { 0 } else { (u64::MAX >> (64 - (to - from))) << from }
    })
}

/// The regions that `range` touches.
fn regions(range: &Range<u64>) -> Range<u64> {
    range.start / REGION_BYTES..range.end.div_ceil(REGION_BYTES)
}

#[derive(Debug)]
#[repr(align(64))]
struct Entry {
    /// Odd while the entry is being written.
    sequence: AtomicU64,
    generation: AtomicU64,
    inode: AtomicU64,
    region: AtomicU64,
    blocks: [AtomicU64; WORDS],
}

impl Entry {
    fn empty() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            sequence: zero(),
            generation: zero(),
            inode: zero(),
            region: zero(),
            blocks: std::array::from_fn(|_| zero()),
        }
    }

    /// The blocks, if the entry speaks of this region.
    fn read(&self, inode: Inode, generation: u64, region: u64) -> Option<Blocks> {
        let sequence = self.sequence.load(Ordering::Acquire);
        let is_asked = self.generation.load(Ordering::Relaxed) == generation
            && self.inode.load(Ordering::Relaxed) == inode.0
            && self.region.load(Ordering::Relaxed) == region;
        let blocks = Blocks(std::array::from_fn(|word| part(&self.blocks, word).load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        let is_whole = sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence;
        (is_asked && is_whole).then_some(blocks)
    }

    fn write(&self, inode: Inode, generation: u64, region: u64, blocks: Blocks) {
        // Odd already in a child that was forked while another thread wrote.
        let writing = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(writing, Ordering::Relaxed);
        fence(Ordering::Release);
        self.generation.store(generation, Ordering::Relaxed);
        self.inode.store(inode.0, Ordering::Relaxed);
        self.region.store(region, Ordering::Relaxed);
        for (to, from) in self.blocks.iter().zip(blocks.0) {
            to.store(from, Ordering::Relaxed);
        }
        self.sequence.store(writing + 1, Ordering::Release);
    }
}

/// The entries.
#[derive(Debug)]
pub(super) struct Known(Box<[Entry]>);

impl Known {
    pub(super) fn new() -> Self {
        Self((0..ENTRIES).map(|_| Entry::empty()).collect())
    }

    #[inline]
    fn entry(&self, inode: Inode, region: u64) -> &Entry {
        // Neighbouring regions of a file lie in neighbouring entries; files are spread by a multiplicative hash.
        let place = inode.0.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20).wrapping_add(region);
        part(&self.0, to_usize(place % ENTRIES as u64))
    }

    /// What is known about a region.
    pub(super) fn read(&self, inode: Inode, generation: u64, region: u64) -> Option<Blocks> {
        self.entry(inode, region).read(inode, generation, region)
    }

    /// Makes it known which blocks of a region are free. The caller holds the lock of the state.
    pub(super) fn write(&self, inode: Inode, generation: u64, region: u64, blocks: Blocks) {
        self.entry(inode, region).write(inode, generation, region, blocks);
    }

    /// Whether all of `range`, which is not empty, is known to be free.
    #[inline]
    pub(super) fn covers(&self, inode: Inode, generation: u64, range: &Range<u64>) -> bool {
        let regions = regions(range);
        regions.end.saturating_sub(regions.start) <= REGIONS_MAX
            && !range.is_empty()
            && regions.into_iter().all(|region| {
                self.read(inode, generation, region).is_some_and(|blocks| {
                    blocks.0.iter().zip(masks(region, range)).all(|(word, mask)| word & mask == mask)
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    const FILE: Inode = Inode(12);

    proptest! {
        #[test]
        fn a_range_is_free_exactly_where_no_gap_touches_its_blocks(
            gaps in prop::collection::vec((0u64..300, 1u64..20), 0..6), at in 0u64..300, length in 1u64..40, odd in 0u64..BLOCK_BYTES,
        ) {
            let gaps: Vec<Range<u64>> = gaps.iter().map(|(at, length)| at * BLOCK_BYTES + odd..(at + length) * BLOCK_BYTES).collect();
            let known = Known::new();
            for region in 0..2 {
                known.write(FILE, 1, region, Blocks::all_but(&gaps, region));
            }
            let range = at * BLOCK_BYTES..(at + length) * BLOCK_BYTES;
            let free = gaps.iter().all(|gap| gap.start / BLOCK_BYTES >= at + length || gap.end <= range.start);
            prop_assert_eq!(known.covers(FILE, 1, &range), free);
        }
    }

    #[test]
    fn what_is_known_belongs_to_one_file_one_region_and_one_generation() {
        let known = Known::new();
        known.write(FILE, 5, 3, Blocks::all_but(&[], 3));
        let range = 3 * REGION_BYTES..4 * REGION_BYTES;
        assert!(known.covers(FILE, 5, &range));
        assert!(!known.covers(FILE, 6, &range) && !known.covers(Inode(13), 5, &range));
        assert!(!known.covers(FILE, 5, &(range.start - 1..range.end)));
        assert!(!known.covers(FILE, 5, &(range.start..range.end + 1)));
        assert!(!known.covers(FILE, 5, &(range.start..range.start)));
    }

    #[test]
    fn blocks_are_counted_up_to_the_end_of_the_file() {
        let first = 0..BLOCK_BYTES;
        let blocks = Blocks::all_but(std::slice::from_ref(&first), 0);
        assert_eq!(blocks.count_before(0, 10 * BLOCK_BYTES), 9);
        assert_eq!(blocks.count_before(0, u64::MAX), 255);
    }

    #[test]
    fn a_reader_never_sees_a_line_in_the_making() {
        let known = Known::new();
        let stop = AtomicBool::new(false);
        // Two regions on one entry: in one all blocks are free, in the other none.
        let (one, other) = (1, 1 + ENTRIES as u64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    known.write(FILE, 1, one, Blocks([u64::MAX; WORDS]));
                    known.write(FILE, 1, other, Blocks([0; WORDS]));
                }
                stop.store(true, Ordering::SeqCst);
            });
            while !stop.load(Ordering::SeqCst) {
                assert!(known.read(FILE, 1, one).is_none_or(|blocks| blocks == Blocks([u64::MAX; WORDS])));
                assert!(known.read(FILE, 1, other).is_none_or(|blocks| blocks == Blocks([0; WORDS])));
            }
        });
    }
}
