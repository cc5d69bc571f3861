//! Memory in huge pages, carved into pieces.
//!
//! What goes between memory and a disk past the page cache, and through a socket, is handled page by page: a mebibyte in small pages is
//! 256 pieces for the kernel and the disk, in huge ones it is one. A buffer is smaller than a huge page, so that buffers
//! have to share them. Where the kernel has no huge pages to give this is memory like any other.
//!
//! The range of a piece that is gone is carved again before anything new is mapped. Else mappings would pile up of which a few
//! pieces are left, and the kernel, which makes huge pages of what is partly used, would fill up the gaps between them.
#![expect(unsafe_code, reason = "memory that is mapped and carved is handled here and nowhere else")]

use std::ops::{Deref, DerefMut, Range};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use parking_lot::Mutex;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use stdchk_model::exact::part;

/// Address space that is mapped at once, bytes: some huge pages. Memory is taken only where it is touched.
const SLAB_BYTES: usize = 16 << 20;

/// A mapping that pieces are carved from.
#[derive(Debug)]
struct Slab {
    base: NonNull<u8>,
    length: usize,
    /// What no piece has: in order, apart from each other.
    free: Mutex<Vec<Range<usize>>>,
}

// SAFETY: a slab is an address, a length and a locked list; its bytes are reached through pieces alone, which don't overlap:
// `take` gives each byte to one piece, until that has given it back.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn map(length: usize) -> Option<Arc<Self>> {
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
        let mapped = unsafe {
            mmap_anonymous(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let (base, whole) = (NonNull::new(mapped.ok()?.cast())?, 0..length);
        let slab = Arc::new(Self { base, length, free: Mutex::new(vec![whole]) });
        // SAFETY: the range is the mapping that was just made. Without huge pages it stays as it is.
        let _ = unsafe { madvise(slab.base.as_ptr().cast(), length, Advice::LinuxHugepage) };
        Some(slab)
    }

    /// Where so many bytes are that no piece has; from now on one has them.
    fn take(&self, length: usize) -> Option<usize> {
        let mut free = self.free.lock();
        let (place, range) = free.iter_mut().enumerate().find(|(_, range)| range.len() >= length)?;
        let start = range.start;
        range.start += length;
        if range.start == range.end {
            free.remove(place);
        }
        Some(start)
    }

    /// Takes back the bytes of a piece.
    fn give_back(&self, mut range: Range<usize>) {
        let mut free = self.free.lock();
        let first = free.partition_point(|other| other.end < range.start);
        let last = free.partition_point(|other| other.start <= range.end);
        for other in part(&free, first..last) {
            range = range.start.min(other.start)..range.end.max(other.end);
        }
        free.splice(first..last, [range]);
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping is this slab's, and no piece of it is left: each holds the slab.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A piece of memory, page-aligned and zeroed when it is new. Its pages go back to the kernel when it is dropped.
#[derive(Debug)]
pub(crate) enum Piece {
    /// A part of a slab.
    Carved(Carved),
    /// What the allocator gave where nothing could be mapped, or nothing at all.
    Plain(Vec<u8>),
}

#[derive(Debug)]
pub(crate) struct Carved {
    slab: Arc<Slab>,
    start: usize,
    length: usize,
}

impl Default for Piece {
    fn default() -> Self {
        Self::Plain(Vec::new())
    }
}

impl Deref for Carved {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping, which lives as long as the piece, and belongs to no other piece.
        unsafe { std::slice::from_raw_parts(self.slab.base.as_ptr().add(self.start), self.length) }
    }
}

impl DerefMut for Carved {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the piece is borrowed for this alone.
        unsafe { std::slice::from_raw_parts_mut(self.slab.base.as_ptr().add(self.start), self.length) }
    }
}

impl Drop for Carved {
    fn drop(&mut self) {
        // SAFETY: the range is this piece's, which nobody can reach any more.
        let _ = unsafe {
            madvise(self.slab.base.as_ptr().add(self.start).cast(), self.length, Advice::LinuxDontNeed)
        };
        self.slab.give_back(self.start..self.start + self.length);
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Carved(carved) => carved,
            Self::Plain(bytes) => bytes,
        }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Carved(carved) => carved,
            Self::Plain(bytes) => bytes,
        }
    }
}

/// Where new pieces come from.
#[derive(Debug, Default)]
pub(crate) struct Carver {
    slabs: Vec<Arc<Slab>>,
}

impl Carver {
    /// A new piece of `length` bytes, whole pages.
    pub(crate) fn piece(&mut self, length: usize) -> Piece {
        let carve = |slab: &Arc<Slab>| {
            let start = slab.take(length)?;
            Some(Piece::Carved(Carved { slab: Arc::clone(slab), start, length }))
        };
        if let Some(piece) = self.slabs.iter().find_map(carve) {
            return piece;
        }
        // What nobody has a piece of is too small for this one.
        self.slabs.retain(|slab| Arc::strong_count(slab) > 1);
        self.slabs.extend(Slab::map(length.max(SLAB_BYTES)));
        self.slabs.last().and_then(carve).unwrap_or_else(|| Piece::Plain(vec![0; length]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_zeroed_and_apart() {
        let mut carver = Carver::default();
        let mut pieces: Vec<Piece> =
            [1 << 20, 64 << 10, 20 << 20, 1 << 20].map(|length| carver.piece(length)).into();
        for (piece, number) in pieces.iter_mut().zip(1..) {
            assert_eq!(piece.as_ptr().align_offset(4096), 0);
            assert!(piece.iter().all(|byte| *byte == 0));
            piece.fill(number);
        }
        for (piece, number) in pieces.iter().zip(1..) {
            assert!(piece.iter().all(|byte| *byte == number));
        }
        assert!(pieces.iter().map(|piece| piece.len()).eq([1 << 20, 64 << 10, 20 << 20, 1 << 20]));
    }

    #[test]
    fn what_pieces_of_any_size_leave_is_carved_again_and_zeroed() {
        let (mut carver, mut pieces, mut state) = (Carver::default(), Vec::new(), 1u64);
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % limit
        };
        const KEPT: usize = 60;
        for round in 0..600usize {
            let mut piece = carver.piece((1 + below(16)) * (64 << 10));
            assert!(piece.first() == Some(&0) && piece.last() == Some(&0), "round {round}");
            let mark = u8::try_from(1 + round % 255).unwrap();
            let end = piece.len() - 1;
            (piece[0], piece[end]) = (mark, mark);
            pieces.push((piece, mark));
            if pieces.len() > KEPT {
                let (piece, mark) = pieces.swap_remove(below(KEPT));
                assert!(piece.first() == Some(&mark) && piece.last() == Some(&mark), "round {round}");
            }
        }
        // At most sixty mebibytes are in use, of 300 that were.
        let mapped: usize = carver.slabs.iter().map(|slab| slab.length).sum();
        assert!(mapped <= 128 << 20, "{mapped}");
    }

    #[test]
    fn a_piece_outlives_its_carver_and_its_neighbours() {
        let mut carver = Carver::default();
        let (first, mut second) = (carver.piece(64 << 10), carver.piece(64 << 10));
        second.fill(7);
        drop((first, carver));
        assert!(second.iter().all(|byte| *byte == 7));
    }
}
