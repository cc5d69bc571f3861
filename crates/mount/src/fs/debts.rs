//! Bytes of killed programs that were taken before there was room for them.
//!
//! A killed program can't go before the kernel has written back its pages, and the kernel waits for that without an end.
//! So once a program that writes a file was killed, the mount says that it has the pages and keeps them until the
//! window has room: memory moves from the page cache to the mount. From then on the order counts. What was said to be
//! taken comes before whatever is written, read or saved later, and each of these waits for it: see [`Debts::mark`].

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use stdchk_model::exact::narrow;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// What one mount owes at most, bytes; beyond, a killed program waits. More than the kernel lets one file system keep
/// unwritten on usual machines, and little enough to have beside a window.
const OWED_BYTES_MAX: usize = 256 << 20;

/// What a mount may owe.
pub(super) struct Credit(Arc<Semaphore>);

impl Default for Credit {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(OWED_BYTES_MAX)))
    }
}

/// What is owed to one file.
#[derive(Default)]
pub(crate) struct Debts {
    state: Mutex<State>,
    paid: Notify,
}

#[derive(Default)]
struct State {
    next: u64,
    owed: BTreeSet<u64>,
}

/// A moment in the life of a file: what was owed by then has lower numbers.
#[derive(Clone, Copy)]
pub(crate) struct Mark(u64);

/// One debt; it is paid when this is dropped.
pub(crate) struct Owed {
    debts: Arc<Debts>,
    number: u64,
    _bytes: OwnedSemaphorePermit,
}

impl Debts {
    /// Now: what is owed now goes first.
    pub fn mark(&self) -> Mark {
        let state = self.state.lock();
        Mark(if state.owed.is_empty() { 0 } else { state.next })
    }

    /// Waits until all is paid that was owed then.
    pub async fn paid_before(&self, mark: Mark) {
        loop {
            let paid = self.paid.notified();
            if self.state.lock().owed.first().is_none_or(|first| *first >= mark.0) {
                return;
            }
            paid.await;
        }
    }

    /// Waits until all is paid that is owed now.
    pub async fn paid(&self) {
        self.paid_before(self.mark()).await;
    }

    /// Takes so many bytes; nothing if the mount owes too much.
    pub(super) fn owe(self: &Arc<Self>, credit: &Credit, bytes: usize) -> Option<Owed> {
        let bytes = Arc::clone(&credit.0).try_acquire_many_owned(narrow(bytes)).ok()?;
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.owed.insert(number);
        Some(Owed { debts: Arc::clone(self), number, _bytes: bytes })
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.debts.state.lock().owed.remove(&self.number);
        self.debts.paid.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Waker};

    use super::*;

    fn waits(work: impl Future<Output = ()>) -> bool {
        std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[test]
    fn who_comes_later_waits_for_what_is_owed_and_a_debt_never_for_itself_or_a_later_one() {
        let (debts, credit) = (Arc::new(Debts::default()), Credit::default());
        let before = debts.mark();
        let first = debts.owe(&credit, 10).unwrap();
        let second_came = debts.mark();
        let second = debts.owe(&credit, 10).unwrap();
        assert!(!waits(debts.paid_before(before)));
        assert!(waits(debts.paid_before(second_came)) && waits(debts.paid()));
        drop(first);
        assert!(!waits(debts.paid_before(second_came)) && waits(debts.paid()));
        drop(second);
        assert!(!waits(debts.paid()));
    }

    #[test]
    fn a_mount_owes_no_more_than_its_limit() {
        let (debts, credit) = (Arc::new(Debts::default()), Credit::default());
        let all = debts.owe(&credit, OWED_BYTES_MAX).unwrap();
        assert!(debts.owe(&credit, 1).is_none());
        drop(all);
        assert!(debts.owe(&credit, 1).is_some());
    }
}
