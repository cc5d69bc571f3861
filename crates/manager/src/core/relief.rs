//! Space that owners need back: how many bytes a benefactor owes comes with its load, and as many of its blocks are to go.
//!
//! They go as those of a benefactor that drains do: copied elsewhere first, then deleted ([`super::surplus`]). What nobody needs goes
//! before them, by itself: a benefactor that owes space has none free, so it is the first that surplus leaves.
//!
//! | a benefactor | its blocks |
//! |---|---|
//! | begins to owe | garbage and surplus go, for a moment |
//! | owes more than is to go, and has done what it was told | more are to go |
//! | owes half of what is to go, or less | some stay |
//! | owes, and nothing went for long | others are to go in place of those: these may be movable |
//! | owes nothing | all stay |

use std::collections::HashMap;

use stdchk_model::BenefactorId;

use super::walks::Walk;
use super::{Core, Now};

/// Time between two looks at what one benefactor owes, milliseconds: a collection of what nobody needs comes in between.
const LOOK_EVERY_MS: u64 = 2_000;
/// Time after which others are to go than those of which none went, milliseconds: longer than a copy takes. It doubles as long as none of
/// the others goes either.
const STUCK_MS: u64 = 15_000;
/// The longest such time, milliseconds.
const STUCK_MS_MAX: u64 = 240_000;
/// Time after which it is no longer waited until a benefactor has no more blocks than the index knows of, milliseconds.
const MORE_BLOCKS_MS: u64 = 10_000;
/// Places of a benefactor's list that one look goes through at most: what nothing refers to stands there, too.
const PLACES_PER_LOOK: usize = 1 << 16;

/// Those that owe space.
#[derive(Debug, Default)]
pub(super) struct Reliefs(HashMap<BenefactorId, Relief>);

/// How one gives back.
#[derive(Clone, Copy, Debug)]
struct Relief {
    /// When it was looked at last, milliseconds of the manager's life.
    looked_ms: u64,
    /// When a block went last, or others were chosen, milliseconds of the manager's life.
    went_ms: u64,
    /// How many had gone then.
    gone: u64,
    /// Time after which others are chosen, milliseconds.
    stuck_ms: u64,
}

/// A part of a look that is still to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Look {
    pub id: BenefactorId,
    /// Blocks stay as long as those of so many bytes go; `None`: enough of them do.
    staying: Option<u64>,
    /// Places that may still be looked at.
    places: usize,
}

impl Core {
    /// Looks whether a benefactor that was heard of owes space, and has as many blocks go.
    pub(super) fn give_back(&mut self, id: BenefactorId, now: Now) {
        let owed = self.owes(id);
        let (marked, gone) = (self.locations.owed_at(id), self.locations.owed_gone(id));
        if owed == 0 && marked == 0 {
            self.reliefs.0.remove(&id);
            self.locations.forget_owed(id);
            return;
        }
        let begins = Relief { looked_ms: now.ms, went_ms: now.ms, gone, stuck_ms: STUCK_MS };
        let mut relief = *self.reliefs.0.entry(id).or_insert(begins);
        // Copies are made, and nothing may be deleted yet: the others would move as well.
        let may_none_go = self.registry.is_pending() || now.ms < self.setting.timing.garbage_age_ms;
        if relief.gone != gone || marked == 0 || may_none_go {
            (relief.gone, relief.went_ms, relief.stuck_ms) = (gone, now.ms, STUCK_MS);
        }
        let is_stuck = marked > 0 && now.ms.saturating_sub(relief.went_ms) >= relief.stuck_ms;
        let staying = match owed {
            0 => Some(0),
            _ if is_stuck && self.locations.has_others(id) => Some(0),
            _ if owed < marked / 2 => Some(owed),
            _ => None,
        };
        let lacks = owed > marked && self.has_done_what_it_was_told(id, now);
        let is_due = now.ms.saturating_sub(relief.looked_ms) >= LOOK_EVERY_MS;
        if is_due && !self.registry.is_pending() && (staying.is_some() || lacks) {
            relief.looked_ms = now.ms;
            if is_stuck {
                relief.went_ms = now.ms;
                relief.stuck_ms = (2 * relief.stuck_ms).min(STUCK_MS_MAX);
            }
            let blocks = usize::try_from(self.locations.blocks_at(id)).unwrap_or(usize::MAX);
            self.walk(Walk::Owed(Look { id, staying, places: PLACES_PER_LOOK.min(blocks) }));
        }
        self.reliefs.0.insert(id, relief);
    }

    /// What a benefactor is to give back beside what it gives anyway, bytes.
    fn owes(&self, id: BenefactorId) -> u64 {
        let load = self.registry.get(id).map(|benefactor| benefactor.load);
        load.filter(|load| !load.wish.drains()).map_or(0, |load| load.owed_bytes)
    }

    /// Whether what a benefactor says that it owes takes account of all that it was told to delete.
    fn has_done_what_it_was_told(&self, id: BenefactorId, now: Now) -> bool {
        let Some(benefactor) = self.registry.get(id) else { return false };
        let has_more = benefactor.load.blocks > self.locations.blocks_at(id)
            && now.ms.saturating_sub(benefactor.not_more_ms) < MORE_BLOCKS_MS;
        benefactor.reported && !has_more && self.deletions.get(&id).is_none_or(|queue| queue.is_empty())
    }

    /// The pool has a benefactor no longer.
    pub(super) fn owes_no_more(&mut self, id: BenefactorId) {
        self.reliefs.0.remove(&id);
    }

    /// Does a part of a look; what is left of it.
    pub(super) fn look_at_owed(&mut self, look: Look) -> Option<Look> {
        let Look { id, staying, places } = look;
        let (owed, steps) = (self.owes(id), self.setting.steps);
        if let Some(bytes) = staying {
            let more = self.locations.let_stay(id, bytes, steps, &self.registry);
            return match (more, owed) {
                (true, _) => Some(look),
                (false, 0) => None,
                (false, _) => Some(Look { staying: None, ..look }),
            };
        }
        let looked_at = self.locations.let_go(id, owed, steps.min(places), &self.registry)?;
        let left = places.checked_sub(looked_at).filter(|left| *left > 0)?;
        Some(Look { places: left, ..look })
    }
}
