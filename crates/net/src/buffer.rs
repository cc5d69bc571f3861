//! Page-aligned buffers that are used again, from a pool with a stated size.
//!
//! Alignment lets a benefactor write a block past the page cache; recycling spares the kernel's zeroing of fresh pages,
//! which costs more than the copy itself. The pool is the memory budget of its process for bytes in flight (I8): who
//! asks for more than it has waits.
//!
//! # Who may wait for whom
//!
//! Whoever holds a buffer of a pool, and so a part of its budget, may only wait for what goes on without this pool. What is
//! to stay in memory for longer leaves the budget by [`Buffer::keep`] and is counted by whoever keeps it, in the unit of
//! [`kept_bytes`]. So each pool is always given back, and these are all that there are:
//!
//! | pool | held by | for as long as |
//! |---|---|---|
//! | answers of benefactors to a client | the connection that reads one, the fetch that verifies it | the sender sends, which has a time limit; nothing is waited for behind that |
//! | the window of a client | cells being written, cells being sent | a cell is filled, completed from chunks (the pool above), and taken by benefactors; who waits for the window starts the sending of cells that nobody does |
//! | gathered pieces | an answer to the kernel or a command | nobody waits for this pool: without room the memory comes from beside it |
//! | blocks of a benefactor | puts being stored, answers being sent | the disk works; the receiver receives, which has a time limit |
//! | copies, care and recovery of a benefactor | one block at a time | the disk works |
//!
//! The edges are window -> answers -> blocks of another process -> its disk and the network, and no edge leads back: an
//! answer that waits for memory here is whole in the memory of its sender, and what is under way here needs none there.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::Mutex;
use stdchk_model::exact::{narrow, part, part_mut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::slab::{Carver, Piece};
use crate::waits;

/// Alignment of a buffer's first byte, bytes: the page size, which direct I/O wants at most.
pub const ALIGNMENT: usize = 4096;
/// Unit in which the pool counts, bytes. Small answers don't take a megabyte of budget each.
const UNIT: usize = 64 << 10;

/// Memory that content of this length takes once it is kept, bytes.
pub fn kept_bytes(length: usize) -> usize {
    if length < UNIT { length } else { length.next_multiple_of(UNIT) }
}

/// A pool of buffers with a budget.
#[derive(Debug)]
pub struct BufferPool {
    /// What its memory is for, as messages say it.
    purpose: &'static str,
    budget: Arc<Semaphore>,
    units: usize,
    free: Mutex<Vec<Piece>>,
    carver: Mutex<Carver>,
}

impl BufferPool {
    /// A pool that hands out at most `bytes` at a time, rounded up to 64 KiB.
    pub fn new(bytes: usize) -> Arc<Self> {
        Self::for_purpose("blocks under way", bytes)
    }

    /// A pool of at most `bytes` whose memory messages call `purpose`.
    pub fn for_purpose(purpose: &'static str, bytes: usize) -> Arc<Self> {
        let units = bytes.div_ceil(UNIT).clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let (free, carver) = (Mutex::default(), Mutex::default());
        Arc::new(Self { purpose, budget: Arc::new(Semaphore::new(units)), units, free, carver })
    }

    /// A buffer of `length` bytes with unspecified content; waits until the budget has room for it. A buffer larger than
    /// the whole budget gets all of it.
    pub async fn take(self: &Arc<Self>, length: usize) -> Buffer {
        if length == 0 {
            return Buffer::empty();
        }
        let (pool, room) = (Arc::clone(self), waits::permits(&self.budget, self.units_for(length)));
        let permit = waits::on(move || pool.wanted(length), room).await;
        self.buffer(length, permit)
    }

    /// Like [`BufferPool::take`], or `None` if the budget has no room now.
    pub fn try_take(self: &Arc<Self>, length: usize) -> Option<Buffer> {
        let permit = Arc::clone(&self.budget).try_acquire_many_owned(self.units_for(length)).ok()?;
        Some(self.buffer(length, permit))
    }

    /// Like [`BufferPool::take`], or memory beside the budget if that has no room now; such memory isn't used again.
    pub fn take_now(self: &Arc<Self>, length: usize) -> Buffer {
        let beside = || Buffer { memory: Piece::Plain(vec![0; length]), length, home: None };
        self.try_take(length).unwrap_or_else(beside)
    }

    /// What somebody waits for who wants so many bytes.
    pub fn wanted(&self, length: usize) -> String {
        let kib = |bytes: usize| bytes >> 10;
        let (wanted, free, all) = (kib(length), kib(self.available()), kib(self.units * UNIT));
        format!("{wanted} KiB of the memory for {}, of which {free} of {all} KiB are free", self.purpose)
    }

    /// Bytes that can be taken in all.
    pub fn bytes(&self) -> usize {
        self.units * UNIT
    }

    /// Bytes that can be taken without waiting.
    pub fn available(&self) -> usize {
        self.budget.available_permits() * UNIT
    }

    /// Takes memory back that left the budget before; what the pool has no use for goes back to the system.
    fn take_back(&self, memory: Piece) {
        let mut free = self.free.lock();
        let kept: usize = free.iter().map(|memory| memory.len()).sum();
        if kept + memory.len() <= self.available() {
            free.push(memory);
        }
    }

    fn units_for(&self, length: usize) -> u32 {
        narrow(length.div_ceil(UNIT).min(self.units))
    }

    fn buffer(self: &Arc<Self>, length: usize, permit: OwnedSemaphorePermit) -> Buffer {
        let memory = self.memory(length.div_ceil(UNIT) * UNIT);
        Buffer { memory, length, home: Some((Arc::clone(self), Some(permit))) }
    }

    fn memory(&self, capacity: usize) -> Piece {
        let mut free = self.free.lock();
        let fit = free.iter().rposition(|memory| memory.len() == capacity);
        match fit {
            Some(index) => free.swap_remove(index),
            None => {
                // Free memory of other sizes goes, or the pool would keep a budget's worth of every size.
                let too_much = beyond(&free, self.available());
                let gone: Vec<Piece> = free.drain(..too_much).collect();
                drop(free);
                drop(gone);
                self.carver.lock().piece(capacity)
            }
        }
    }
}

/// How many of these pieces, the oldest first, have to go so that the others take no more than `bytes`.
fn beyond(free: &[Piece], bytes: usize) -> usize {
    let mut kept = 0;
    let fits = |memory: &&Piece| {
        kept += memory.len();
        kept <= bytes
    };
    free.len() - free.iter().rev().take_while(fits).count()
}

/// A piece of memory from a [`BufferPool`], page-aligned, returned to it when dropped.
#[derive(Debug)]
pub struct Buffer {
    memory: Piece,
    length: usize,
    home: Option<(Arc<BufferPool>, Option<OwnedSemaphorePermit>)>,
}

impl Buffer {
    /// A buffer of no bytes.
    pub fn empty() -> Self {
        Self { memory: Piece::default(), length: 0, home: None }
    }

    /// Changes the number of bytes in use; the bytes beyond the old length are unspecified.
    ///
    /// Returns false, and leaves the buffer as it is, if `length` exceeds [`Buffer::capacity`].
    pub fn set_len(&mut self, length: usize) -> bool {
        let fits = length <= self.capacity();
        if fits {
            self.length = length;
        }
        fits
    }

    /// Bytes that the buffer can hold.
    pub fn capacity(&self) -> usize {
        self.memory.len()
    }

    /// The buffer as shareable bytes, without a copy. They take their part of the budget for as long as they live.
    pub fn into_bytes(self) -> bytes::Bytes {
        bytes::Bytes::from_owner(self)
    }

    /// The content as bytes that may be kept for as long as anyone likes: they don't belong to the budget any more, and take
    /// [`kept_bytes`] of memory. Content of less than a unit is copied, so that it takes no more than it has.
    pub fn keep(mut self) -> bytes::Bytes {
        if self.length < UNIT {
            return bytes::Bytes::copy_from_slice(&self);
        }
        if let Some((_, permit)) = &mut self.home {
            drop(permit.take());
        }
        bytes::Bytes::from_owner(self)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        part(&self.memory, ..self.length)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        part_mut(&mut self.memory, ..self.length)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        match self.home.take() {
            Some((pool, Some(permit))) => {
                pool.free.lock().push(memory);
                drop(permit);
            }
            Some((pool, None)) => pool.take_back(memory),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_used_again() {
        let pool = BufferPool::new(4 << 20);
        let first = pool.try_take(1 << 20).unwrap();
        let place = first.as_ptr();
        assert_eq!(place.align_offset(ALIGNMENT), 0);
        drop(first);
        assert_eq!(pool.try_take((1 << 20) - 5).unwrap().as_ptr(), place);
    }

    #[test]
    fn memory_of_several_sizes_is_used_again_as_long_as_the_budget_has_room_for_it() {
        let pool = BufferPool::new(4 << 20);
        let places = |pool: &Arc<BufferPool>| -> Vec<*const u8> {
            let held: Vec<Buffer> =
                [1 << 20, 700 << 10, 500 << 10].map(|length| pool.try_take(length).unwrap()).into();
            held.iter().map(|buffer| buffer.as_ptr()).collect()
        };
        let first = places(&pool);
        drop(pool.try_take(300 << 10).unwrap());
        assert_eq!(places(&pool), first);
        let all = pool.try_take(4 << 20).unwrap();
        assert!(pool.free.lock().is_empty(), "budget and free memory together stay within the pool's size");
        drop(all);
    }

    #[test]
    fn what_is_taken_now_comes_from_the_budget_or_beside_it() {
        let pool = BufferPool::new(1 << 20);
        let (first, second) = (pool.take_now(1 << 20), pool.take_now(1 << 20));
        assert_eq!((first.len(), second.len(), pool.available()), (1 << 20, 1 << 20, 0));
        drop((first, second));
        assert_eq!((pool.available(), pool.free.lock().len()), (1 << 20, 1));
    }

    #[test]
    fn what_is_kept_takes_nothing_of_the_budget_and_comes_back_as_memory_that_fits_into_it() {
        let pool = BufferPool::new(1 << 20);
        let kept: Vec<bytes::Bytes> = (0..200u8)
            .map(|number| {
                let length = if number % 2 == 0 { 100 } else { 100 << 10 };
                let mut buffer = pool.try_take(length).expect("what is kept takes nothing of the budget");
                buffer.fill(number);
                buffer.keep()
            })
            .collect();
        assert_eq!(pool.available(), 1 << 20);
        for (number, bytes) in (0..200u8).zip(&kept) {
            assert!(bytes.iter().all(|byte| *byte == number));
        }
        drop(kept);
        let free: usize = pool.free.lock().iter().map(|memory| memory.len()).sum();
        assert!(free <= 1 << 20, "{free}");
    }

    #[test]
    fn the_budget_holds() {
        let pool = BufferPool::new(2 << 20);
        let held: Vec<Buffer> = (0..2).map(|_| pool.try_take(1 << 20).unwrap()).collect();
        assert!(pool.try_take(1).is_none());
        drop(held);
        assert_eq!(pool.available(), 2 << 20);
        assert!(pool.try_take(64 << 20).is_some(), "an oversized buffer takes the whole budget");
    }
}
