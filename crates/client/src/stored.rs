//! What is stored and still in the window, oldest first: whose room can be had at once.
//!
//! Only weak references are kept: what is committed or overwritten goes by itself. As long as the window never fills, nobody
//! takes anything from here, so what is gone is cleared out whenever the list would grow.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// A list of those that may be gone already.
pub(crate) struct Stored<T>(Mutex<VecDeque<Weak<T>>>);

impl<T> Default for Stored<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Stored<T> {
    /// Adds one as the newest.
    pub(crate) fn add(&self, one: &Arc<T>) {
        let mut all = self.0.lock();
        if all.len() == all.capacity() {
            all.retain(|one| one.strong_count() > 0);
            // As much again before the next look.
            let left = all.len();
            all.reserve(left + 1);
        }
        all.push_back(Arc::downgrade(one));
    }

    /// Takes the oldest out, and all that are gone, until one is wanted. False if none is.
    pub(crate) fn take_first(&self, is_wanted: impl Fn(&T) -> bool) -> bool {
        let mut all = self.0.lock();
        while let Some(oldest) = all.pop_front() {
            if oldest.upgrade().is_some_and(|one| is_wanted(&one)) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_takes_no_memory_for_ever_and_the_others_stay_in_order() {
        let (stored, mut kept) = (Stored::default(), Vec::new());
        for number in 0..10_000 {
            let one = Arc::new(number);
            stored.add(&one);
            if number % 1000 == 0 {
                kept.push(one);
            }
        }
        let length = stored.0.lock().len();
        assert!(length < 100, "{length}");
        for number in (0..10_000).step_by(1000) {
            assert!(stored.take_first(|first| *first == number));
        }
        assert!(!stored.take_first(|_| true));
    }
}
