//! A burst of writes to a file that is closed early is taken in at the speed of memory.
//!
//! With `close=early` the application waits for nothing but room in the window. To cut, hash and send meanwhile would take
//! the processors from it, so full cells are held back until the burst is over: the file is closed or synced, nothing was
//! written for a moment, or more has come than may be held back. Then it is pushed, and what follows is sent as it fills,
//! like any sliding window. What is held back is bounded by half of the window, all files together, so that the other
//! half is there for what comes meanwhile.

use std::sync::{Arc, Weak};
use std::time::Duration;

use stdchk_model::exact::narrow;
use stdchk_model::policy::CloseWaits;
use tokio::sync::OwnedSemaphorePermit;

use super::cell::Cell;
use super::{SHARE_UNIT, Session, State};

/// Time without a write after which a burst is over: an application that writes on makes pauses of microseconds.
const PAUSE: Duration = Duration::from_millis(100);

/// What is known of the burst that is being written.
#[derive(Default)]
pub(super) struct Burst {
    /// Cells that are held back, those that became full first in front; some may be sealed by now.
    held_back: Vec<u64>,
    /// More has come than may be held back.
    is_long: bool,
    /// Somebody looks for its end.
    is_watched: bool,
}

impl Session {
    /// A cell is full: holds it back or sends it, and then all that were held back before it.
    pub(super) fn filled(self: &Arc<Self>, state: &mut State, index: u64) {
        if !self.hold_back(state, index) {
            self.push_held_back(state);
            self.seal(state, index);
        }
    }

    fn hold_back(self: &Arc<Self>, state: &mut State, index: u64) -> bool {
        if self.policy.close != CloseWaits::Early || state.burst.is_long {
            return false;
        }
        let room = self.room_to_hold_back(state.burst.held_back.len());
        let Some(Cell::Dirty(dirty)) = state.cells.get_mut(&index) else { return false };
        if dirty.is_held_back() {
            return true;
        }
        self.watch(&mut state.burst);
        let Some(room) = room else {
            state.burst.is_long = true;
            return false;
        };
        dirty.hold_back(room);
        state.burst.held_back.push(index);
        true
    }

    /// Room for one more cell than `cells`, within half of the file's own window and half of the pool's.
    fn room_to_hold_back(&self, cells: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = (cells + 1) as u64 * self.cell_bytes as u64;
        let units = narrow(self.cell_bytes.div_ceil(SHARE_UNIT));
        let all = Arc::clone(&self.pool.may_be_held_back);
        (bytes <= self.policy.window / 2).then(|| all.try_acquire_many_owned(units).ok()).flatten()
    }

    fn push_held_back(self: &Arc<Self>, state: &mut State) {
        for index in std::mem::take(&mut state.burst.held_back) {
            if matches!(state.cells.get(&index), Some(Cell::Dirty(_))) {
                self.seal(state, index);
            }
        }
    }

    fn watch(self: &Arc<Self>, burst: &mut Burst) {
        if !std::mem::replace(&mut burst.is_watched, true) {
            self.pool.runtime.spawn(wait_for_end(Arc::downgrade(self)));
        }
    }
}

/// Waits until nothing more is written, and pushes what was held back.
async fn wait_for_end(session: Weak<Session>) {
    let mut seen = None;
    loop {
        tokio::time::sleep(PAUSE).await;
        let Some(session) = session.upgrade() else { return };
        let mut state = session.state.lock();
        if seen.replace(state.generation) == Some(state.generation) {
            session.push_held_back(&mut state);
            state.burst = Burst::default();
            return;
        }
    }
}
