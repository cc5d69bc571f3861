//! Where the grid of a file's fixed pieces lies (docs/design/0302): where the pieces of an earlier version are found, and
//! where nothing is known of any, where the first cell shows a page.
//!
//! Until that is known the cells wait for each other here, in the order in which they were sealed: the head of a dump says
//! most, and what a heap moved may mislead. Cells begin at multiples of the piece, so the phase of one is that of all, and a
//! piece is cut in two wherever cells meet.

use std::sync::OnceLock;

use stdchk_reduce::{CutterSpec, Seeker};
use tokio::sync::{Mutex, oneshot};

use super::Session;

/// What one session knows of its grid.
pub(super) struct Grid {
    /// Set once pieces of an earlier version were found, or there is no use in looking on.
    known: OnceLock<usize>,
    seeker: Option<Mutex<Seeker>>,
    /// Ends with the turn that was given last.
    last: parking_lot::Mutex<Option<oneshot::Receiver<()>>>,
}

/// A cell's place in the order; it ends when dropped.
pub(super) struct Turn {
    before: Option<oneshot::Receiver<()>>,
    _ends: oneshot::Sender<()>,
}

impl Turn {
    /// Waits until those before have ended.
    async fn comes(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: that the sender is gone is what is waited for.
            let _ = before.await;
            self.before = None;
        }
    }
}

impl Grid {
    pub(super) fn new(cutter: &CutterSpec) -> Self {
        let seeker = cutter.seeker().map(Mutex::new);
        Self { known: OnceLock::new(), seeker, last: parking_lot::Mutex::new(None) }
    }

    /// The turn after those that were given before.
    pub(super) fn turn(&self) -> Turn {
        let (ends, ended) = oneshot::channel();
        Turn { before: self.last.lock().replace(ended), _ends: ends }
    }
}

impl Session {
    /// The phase at which a cell with this content is cut; `any_earlier`: pieces of earlier versions are known.
    pub(super) async fn phase(&self, cell: &[u8], any_earlier: bool, mut turn: Turn) -> usize {
        let Some(seeker) = &self.grid.seeker else { return 0 };
        if let Some(phase) = self.grid.known.get() {
            return *phase;
        }
        turn.comes().await;
        let mut seeker = seeker.lock().await;
        if let Some(phase) = self.grid.known.get() {
            return *phase;
        }
        let expected = seeker.expect(cell);
        if !any_earlier {
            return expected;
        }
        let found = seeker.look(cell, |piece| self.has_earlier(piece));
        let phase = found.unwrap_or(expected);
        if found.is_some() || seeker.has_given_up() {
            tracing::debug!(ino = %self.ino(), ?found, expected, "looked for the grid of the version before");
            return *self.grid.known.get_or_init(|| phase);
        }
        phase
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// Whether it has come by now.
    async fn has_come(turn: &mut Turn) -> bool {
        tokio::select! {
            biased;
            () = turn.comes() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn cells_have_their_turns_in_the_order_in_which_they_were_sealed() {
        let grid = Grid::new(&"fsch:4KiB".parse().unwrap());
        let (mut first, mut second, mut third) = (grid.turn(), grid.turn(), grid.turn());
        assert!(has_come(&mut first).await);
        assert!(!has_come(&mut second).await);
        assert!(!has_come(&mut third).await);
        drop(first);
        assert!(!has_come(&mut third).await);
        assert!(has_come(&mut second).await);
        // A cell that comes to nothing keeps nobody waiting.
        drop(second);
        assert!(has_come(&mut third).await);
    }
}
