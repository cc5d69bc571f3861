//! The only way by which parsers read: bounded in range, in the size of one read, in the sum of all reads and in what is
//! kept of them.
//!
//! Relies on [`Source`]. The idea: one counter of work stops every loop, and one of memory every bomb, that a hostile file
//! can hold, so the parsers themselves stay plain descriptions of their formats. Blocks are cached because metadata comes
//! in thousands of tiny pieces and a system call for each would cost more than the parsing.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use stdchk_model::exact::{part, part_mut, to_usize};

use crate::cursor::Cursor;
use crate::reason::{Reason, Result};
use crate::source::Source;

/// Bytes of one cached block: a page-cache read of this size costs little more than one of a few bytes.
const BLOCK: u64 = 64 << 10;
/// Cached blocks: 1 MiB, enough for a heap, a tree and the headers they point to at the same time.
const CACHED_BLOCKS_MAX: usize = 16;
/// Longest single piece of metadata, in bytes: the largest header seen in real files is some tens of MiB.
const READ_MAX: u64 = 256 << 20;
/// What one read costs beyond its bytes, so that loops over empty things end too.
const READ_COST: u64 = 32;
/// Work granted to any file, in bytes: small files have structure that is read more than once.
const WORK_FLOOR: u64 = 4 << 20;
/// Work granted per byte of file: an honest parser reads metadata a few times, and metadata is a part of the file.
const WORK_PER_BYTE: u64 = 4;
/// Ceiling of the work, in bytes: structure larger than this is not worth knowing.
const WORK_MAX: u64 = 4 << 30;
/// Memory that what is found in one file may take, in bytes: some millions of variables or chunks.
const KEPT_MAX: u64 = 512 << 20;

/// Bounded, cached reading of one source.
pub struct Reader<'source> {
    source: &'source dyn Source,
    size: u64,
    work_left: Cell<u64>,
    room_left: Cell<u64>,
    blocks: RefCell<VecDeque<(u64, Vec<u8>)>>,
}

impl<'source> Reader<'source> {
    /// A reader over the whole of `source`.
    #[must_use]
    pub fn new(source: &'source dyn Source) -> Self {
        let size = source.size();
        assert!(source.as_bytes().is_none_or(|bytes| bytes.len() as u64 == size), "all bytes of the source");
        let work = size.saturating_mul(WORK_PER_BYTE).saturating_add(WORK_FLOOR).min(WORK_MAX);
        let (work_left, room_left) = (Cell::new(work), Cell::new(KEPT_MAX));
        Self { source, size, work_left, room_left, blocks: RefCell::default() }
    }

    /// Length of the source in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The `length` bytes at `offset`; `what` names them in errors.
    ///
    /// # Errors
    /// When the range leaves the file, the work is used up or the source fails.
    pub fn bytes(&self, what: &'static str, offset: u64, length: u64) -> Result<Vec<u8>> {
        self.check(what, offset, length)?;
        self.spend(length)?;
        if let Some(bytes) = self.source.as_bytes() {
            return Ok(part(bytes, to_usize(offset)..to_usize(offset + length)).to_vec());
        }
        let mut buffer = vec![0; to_usize(length)];
        if length < BLOCK {
            self.fill_cached(offset, &mut buffer)?
        } else {
            self.fill(offset, &mut buffer)?
        }
        Ok(buffer)
    }

    /// The `length` bytes at `offset` as a [`Cursor`], with the errors of [`Reader::bytes`].
    pub(crate) fn cursor(&self, what: &'static str, offset: u64, length: u64) -> Result<Cursor> {
        Ok(Cursor::new(what, offset, self.bytes(what, offset, length)?))
    }

    /// Up to `length` bytes at `offset`, fewer only at the end of the file.
    pub(crate) fn cursor_up_to(&self, what: &'static str, offset: u64, length: u64) -> Result<Cursor> {
        self.cursor(what, offset, length.min(self.size.saturating_sub(offset)))
    }

    /// Fails unless the range lies inside the file and is short enough to be metadata.
    fn check(&self, what: &'static str, offset: u64, length: u64) -> Result<()> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.size);
        if !inside {
            return Err(Reason::Truncated { what, offset, length, size: self.size });
        }
        if length > READ_MAX { Err(Reason::Invalid { what, offset }) } else { Ok(()) }
    }

    /// Takes `length` bytes and the cost of one step off the work that is left.
    pub(crate) fn spend(&self, length: u64) -> Result<()> {
        let cost = length.saturating_add(READ_COST);
        let left = self.work_left.get().checked_sub(cost).ok_or(Reason::TooMuchWork { size: self.size })?;
        self.work_left.set(left);
        Ok(())
    }

    /// Takes the memory of a `T` that is going to be kept, and of `bytes` that it owns, off the memory that is left. A few
    /// bytes of a file may describe millions of values.
    pub(crate) fn keep<T>(&self, bytes: usize) -> Result<()> {
        let needed = (bytes as u64).saturating_add(size_of::<T>() as u64);
        let left =
            self.room_left.get().checked_sub(needed).ok_or(Reason::TooMuchFound { limit: KEPT_MAX })?;
        self.room_left.set(left);
        Ok(())
    }

    fn fill(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.source
            .read_at(offset, buffer)
            .map_err(|error| Reason::Unreadable { offset, message: error.to_string() })
    }

    fn fill_cached(&self, mut offset: u64, mut buffer: &mut [u8]) -> Result<()> {
        while !buffer.is_empty() {
            let start = offset / BLOCK * BLOCK;
            let copied = self.copy_from_block(start, offset - start, buffer)?;
            offset += copied as u64;
            buffer = part_mut(buffer, copied..);
        }
        Ok(())
    }

    /// Copies what the block at `start` holds of `buffer` from `skip` on; says how many bytes that was.
    fn copy_from_block(&self, start: u64, skip: u64, buffer: &mut [u8]) -> Result<usize> {
        self.load_block(start)?;
        let blocks = self.blocks.borrow();
        let Some((_, block)) = blocks.front() else { unreachable!("a block was loaded just now") };
        // What is read lies inside the file, as `check` found, so the block reaches beyond `skip`.
        let from = part(block, to_usize(skip)..);
        let length = from.len().min(buffer.len());
        assert!(length > 0, "every block brings the reading on");
        part_mut(buffer, ..length).copy_from_slice(part(from, ..length));
        Ok(length)
    }

    /// Makes the block at `start`, which lies inside the file, the first of the cached ones.
    fn load_block(&self, start: u64) -> Result<()> {
        let mut blocks = self.blocks.borrow_mut();
        if let Some(found) = blocks.iter().position(|(offset, _)| *offset == start) {
            blocks.swap(0, found);
            return Ok(());
        }
        assert!(start < self.size, "only ranges inside the file are read");
        let mut block = vec![0; to_usize(BLOCK.min(self.size - start))];
        self.fill(start, &mut block)?;
        blocks.push_front((start, block));
        blocks.truncate(CACHED_BLOCKS_MAX);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that can only be read, as those of a file.
    struct Elsewhere<'bytes>(&'bytes [u8]);

    impl Source for Elsewhere<'_> {
        fn size(&self) -> u64 {
            self.0.size()
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            self.0.read_at(offset, buffer)
        }
    }

    #[test]
    fn reads_across_blocks_return_the_bytes_of_the_source_in_memory_or_not() {
        let source: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        let elsewhere = Elsewhere(&source);
        for reader in [Reader::new(&source), Reader::new(&elsewhere)] {
            for (offset, length) in [(0, 1), (65_530, 20), (131_000, 1000), (10, 150_000), (199_999, 1)] {
                let expected = &source[usize::try_from(offset).unwrap()..][..length];
                assert_eq!(reader.bytes("test", offset, length as u64).unwrap(), expected);
            }
        }
    }

    #[test]
    fn ranges_outside_the_source_are_refused() {
        let source = vec![0_u8; 100];
        let elsewhere = Elsewhere(&source);
        for reader in [Reader::new(&source), Reader::new(&elsewhere)] {
            for (offset, length) in [(0, 101), (100, 1), (u64::MAX, 1), (1, u64::MAX)] {
                assert!(matches!(reader.bytes("test", offset, length), Err(Reason::Truncated { .. })));
            }
        }
    }

    #[test]
    fn endless_reading_ends() {
        let source = vec![0_u8; 100];
        let reader = Reader::new(&source);
        let reads = (0..10_000_000).take_while(|_| reader.bytes("test", 0, 0).is_ok()).count();
        assert!(reads < 200_000, "{reads} reads were allowed");
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let source = vec![0_u8; 100];
        let reader = Reader::new(&source);
        assert_eq!(reader.keep::<u64>(1 << 20), Ok(()));
        let kept = (0..1000).take_while(|_| reader.keep::<u64>(1 << 20).is_ok()).count();
        assert!(kept < 512, "{kept} MiB were allowed");
    }
}
