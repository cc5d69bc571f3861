//! Memory in huge pages, carved into pieces.
//!
//! What goes between memory and a disk past the page cache, and through a socket, is handled page by page: a mebibyte in small pages is
//! 256 pieces for the kernel and the disk, in huge ones it is one. A buffer is smaller than a huge page, so that buffers
//! have to share them. Where the kernel has no huge pages to give this is memory like any other.
#![expect(unsafe_code, reason = "memory that is mapped and carved is handled here and nowhere else")]

use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Address space that is mapped at once, bytes: some huge pages. Memory is taken only where it is touched.
const SLAB_BYTES: usize = 16 << 20;

/// A mapping that pieces are carved from, front to back and never again.
#[derive(Debug)]
struct Slab {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: a slab is an address and a length; its bytes are reached through pieces alone, which don't overlap.
unsafe impl Send for Slab {}
// SAFETY: as above.
unsafe impl Sync for Slab {}

impl Slab {
    fn map(length: usize) -> Option<Arc<Self>> {
        // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that exists.
        let mapped = unsafe {
            mmap_anonymous(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let slab = Arc::new(Self { base: NonNull::new(mapped.ok()?.cast())?, length });
        // SAFETY: the range is the mapping that was just made. Without huge pages it stays as it is.
        let _ = unsafe { madvise(slab.base.as_ptr().cast(), length, Advice::LinuxHugepage) };
        Some(slab)
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
    slab: Option<Arc<Slab>>,
    used: usize,
}

impl Carver {
    /// A new piece of `length` bytes, whole pages.
    pub(crate) fn piece(&mut self, length: usize) -> Piece {
        let room = self.slab.as_ref().map_or(0, |slab| slab.length - self.used);
        if length > room {
            (self.slab, self.used) = (Slab::map(length.max(SLAB_BYTES)), 0);
        }
        let Some(slab) = &self.slab else { return Piece::Plain(vec![0; length]) };
        let start = self.used;
        self.used += length;
        Piece::Carved(Carved { slab: Arc::clone(slab), start, length })
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
    fn a_piece_outlives_its_carver_and_its_neighbours() {
        let mut carver = Carver::default();
        let (first, mut second) = (carver.piece(64 << 10), carver.piece(64 << 10));
        second.fill(7);
        drop((first, carver));
        assert!(second.iter().all(|byte| *byte == 7));
    }
}
