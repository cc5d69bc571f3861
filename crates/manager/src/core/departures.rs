//! Benefactors whose machines are said to go soon: preempted, or shut down (docs/design/0803-notices.md).
//!
//! What they have is made elsewhere as that of one that drains ([`Registry::leaves`](super::benefactors::Registry::leaves)), first that of which
//! least would be left; nothing of it is deleted. They get no new blocks as long as enough others can take them. Here it is decided what they
//! are told with each heartbeat: whether anything is left for which they are waited for.
//!
//! | a benefactor with a notice | what it is told |
//! |---|---|
//! | has chunks that lack blocks elsewhere, and these are being made or can be | nothing yet |
//! | all its chunks have what is wanted elsewhere, or no others have room | it may end |
//! | others may still report what they have | nothing yet |
//! | the manager's store is an older copy, so that nothing is made | it may end |
//! | fewer others have room than a commit needs | it takes blocks, and may not end meanwhile |
//! | the notice is over | nothing: it is one as all others |

use std::collections::HashMap;

use stdchk_model::BenefactorId;
use stdchk_model::exact::to_usize;
use stdchk_model::message::benefactor::Goes;

use super::locations::Left;
use super::{Core, Now};

/// Chunks that one look goes through, and all looks within [`WINDOW_MS`], however many machines go at once: it takes some milliseconds.
const CHUNKS_PER_LOOK: usize = 1 << 16;
const WINDOW_MS: u64 = 50;

/// Where the next look at what each of them has begins, and how many chunks had begun to be moved by then: what begins to be in a place that
/// was looked at is seen only by a look from the end.
#[derive(Debug, Default)]
pub(super) struct Departures {
    pub(super) next: HashMap<BenefactorId, (usize, u64)>,
    /// When a window of time began, and how many chunks were looked at since.
    looked: (u64, usize),
}

impl Core {
    /// What a benefactor is told whose machine goes soon; `None` for all others.
    pub(super) fn left_to_do(&mut self, id: BenefactorId, now: Now) -> Option<Goes> {
        if !self.registry.goes(id) {
            self.departures.next.remove(&id);
            return None;
        }
        let takes = self.registry.is_borrowed(id, now.ms);
        Some(Goes { may_end: !takes && self.may_end(id, now), takes })
    }

    fn may_end(&mut self, id: BenefactorId, now: Now) -> bool {
        if self.history.is_set_back() {
            return true;
        }
        if self.registry.is_pending() || self.locations.is_counting {
            return false;
        }
        let begun = self.locations.moves_begun;
        let goes_on = self.departures.next.get(&id).filter(|(_, before)| *before == begun);
        let from = goes_on.map(|(next, _)| *next);
        let (since, looked) = &mut self.departures.looked;
        if now.ms.saturating_sub(*since) >= WINDOW_MS {
            (*since, *looked) = (now.ms, 0);
        }
        if *looked >= CHUNKS_PER_LOOK {
            return false;
        }
        *looked += to_usize(self.locations.blocks_at(id)).min(CHUNKS_PER_LOOK);
        self.departures.next.remove(&id);
        match self.locations.look_at_going(id, from, CHUNKS_PER_LOOK, &self.registry) {
            Left::Nothing => true,
            Left::Waits => false,
            Left::Unknown(next) => {
                self.departures.next.insert(id, (next, begun));
                false
            }
        }
    }
}
