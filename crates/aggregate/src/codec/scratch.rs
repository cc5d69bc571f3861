//! Memory that is used again: blocks and the steps between are megabytes long, and touching fresh memory of that length
//! costs more than coding it.
//!
//! Relies on nothing. The idea: buffers that are done are kept, up to a bound, for whoever needs one next, on any thread;
//! one that nobody gives back is only freed.

use std::sync::{Mutex, PoisonError};

/// Most buffers that are kept.
const KEPT_COUNT_MAX: usize = 16;
/// Bytes of all buffers that are kept: the fastest mode's blocks on a few cores, and small beside every budget.
const KEPT_BYTES_MAX: usize = 48 << 20;
/// Shorter ones are the allocator's business, in bytes.
const LENGTH_MIN: usize = 16 << 10;

/// The buffers that wait, and the sum of their capacities.
struct Spare {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

static SPARE: Mutex<Spare> = Mutex::new(Spare { buffers: Vec::new(), bytes: 0 });

/// An empty buffer with room for `length` bytes.
pub(crate) fn empty(length: usize) -> Vec<u8> {
    // What was filled is worth more to those who need it so.
    let mut buffer = kept_or_new(length, Vec::len);
    buffer.clear();
    buffer.reserve(length);
    buffer
}

/// A buffer of `length` bytes of any content.
pub(crate) fn filled(length: usize) -> Vec<u8> {
    begun(length, length)
}

/// A buffer of `length` bytes of any content, with room for `room` bytes.
pub(crate) fn begun(length: usize, room: usize) -> Vec<u8> {
    // What is not filled yet has to be.
    let mut buffer = kept_or_new(room, |buffer| length.saturating_sub(buffer.len()));
    buffer.reserve(room.saturating_sub(buffer.len()));
    buffer.resize(length, 0);
    buffer
}

/// Of the kept buffers with room for `length` bytes the one that takes the least work and, of those, the smallest; a new one
/// without any memory where none is kept.
fn kept_or_new(length: usize, work: impl Fn(&Vec<u8>) -> usize) -> Vec<u8> {
    if length < LENGTH_MIN {
        return Vec::new();
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let fitting = spare.buffers.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= length);
    let best = fitting.min_by_key(|(_, buffer)| (work(buffer), buffer.capacity()));
    let Some((at, _)) = best else { return Vec::new() };
    let buffer = spare.buffers.swap_remove(at);
    spare.bytes -= buffer.capacity();
    buffer
}

/// Keeps a buffer for the next.
pub(crate) fn give_back(buffer: Vec<u8>) {
    let length = buffer.capacity();
    if length < LENGTH_MIN {
        return;
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    if spare.buffers.len() < KEPT_COUNT_MAX && spare.bytes + length <= KEPT_BYTES_MAX {
        spare.bytes += length;
        spare.buffers.push(buffer);
        assert!(spare.bytes <= KEPT_BYTES_MAX, "what is kept has a bound");
    }
}

/// Calls `work` with a buffer of `length` bytes of any content.
pub(crate) fn with<T>(length: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut buffer = filled(length);
    let result = work(&mut buffer);
    give_back(buffer);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_the_length_that_was_asked_for_whoever_had_them_before() {
        give_back(vec![7; 100 << 10]);
        give_back(vec![7; 40 << 10]);
        for length in [0, 1, 30 << 10, 50 << 10, 1 << 20] {
            assert_eq!(filled(length).len(), length);
            let buffer = empty(length);
            assert!(buffer.is_empty() && buffer.capacity() >= length);
        }
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        (0..100).for_each(|_| give_back(Vec::with_capacity(1 << 20)));
        let spare = SPARE.lock().unwrap();
        assert!(spare.buffers.len() <= KEPT_COUNT_MAX && spare.bytes <= KEPT_BYTES_MAX);
        assert_eq!(spare.bytes, spare.buffers.iter().map(Vec::capacity).sum::<usize>());
    }
}
