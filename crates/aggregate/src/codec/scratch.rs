//! Memory that steps use again: a step's intermediate bytes are as long as its block, and fresh memory of that length
//! costs as much as the step itself.
//!
//! Relies on nothing. The idea: one buffer per thread, as long as the longest block so far, lent for the time of a call.

use std::cell::Cell;

/// Longest buffer that is kept, in bytes: larger blocks come one at a time and take longer anyway.
const KEPT_MAX: usize = 8 << 20;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Calls `work` with a buffer of `length` bytes of any content.
pub(crate) fn with<T>(length: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    // A call within a call finds an empty one, and makes its own.
    let mut buffer = SPARE.take();
    if buffer.len() < length {
        buffer.resize(length, 0);
    }
    let result = work(buffer.get_mut(..length).unwrap_or_default());
    if buffer.len() <= KEPT_MAX {
        SPARE.set(buffer);
    }
    result
}
