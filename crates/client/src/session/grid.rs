//! Where the grid of a file's fixed pieces lies (docs/design/0302): where the pieces of an earlier version are found, and
//! where nothing is known of any, where the first cell shows a page.
//!
//! Until that is known the cells wait for each other here. Cells begin at multiples of the piece, so the phase of one is that
//! of all, and a piece is cut in two wherever cells meet.

use stdchk_reduce::{CutterSpec, Seeker};
use tokio::sync::Mutex;

use super::Session;

/// What one session knows of its grid.
pub(super) struct Grid(Mutex<State>);

enum State {
    /// Earlier versions have pieces that weren't found yet, or there are none.
    Sought(Seeker),
    Known(usize),
}

impl Grid {
    pub(super) fn new(cutter: &CutterSpec) -> Self {
        Self(Mutex::new(cutter.seeker().map_or(State::Known(0), State::Sought)))
    }
}

impl Session {
    /// The phase at which a cell with this content is cut; `any_earlier`: pieces of earlier versions are known.
    pub(super) async fn phase(&self, cell: &[u8], any_earlier: bool) -> usize {
        let mut state = self.grid.0.lock().await;
        let seeker = match &mut *state {
            State::Known(phase) => return *phase,
            State::Sought(seeker) => seeker,
        };
        let expected = seeker.expect(cell);
        if !any_earlier {
            return expected;
        }
        let found = seeker.look(cell, |piece| self.has_earlier(piece));
        let phase = found.unwrap_or(expected);
        if found.is_some() || seeker.has_given_up() {
            tracing::debug!(ino = %self.ino(), ?found, expected, "looked for the grid of the version before");
            *state = State::Known(phase);
        }
        phase
    }
}
