//! Terms: which of the managers that ever led this pool is the last one.
//!
//! A start takes a greater term than all that its store knows, durably before it answers anybody. Benefactors remember the greatest term that
//! they have registered under, and obey no manager with a lesser one. So a manager that was stopped, and goes on when another one
//! leads, orders nothing any more from a benefactor that knows the other one; and from one that doesn't, it orders only what the other one doesn't
//! count on, since nothing counts of a benefactor that hasn't registered.
//!
//! A store may know of fewer terms than a benefactor: it is an older copy. Then the manager takes a term above that of the benefactor, durably
//! before it answers the registration. One that leads no longer can't: its store takes nothing from it.
//!
//! A term is of an era of the state. A benefactor that knows a term of an era through which this state hasn't gone knows another copy of the
//! state, which was moved, made anew or accepted since: it is a witness as one is that remembers a moment which the store lacks.
//!
//! | state | a benefactor knows no greater term | ... a greater one | `AcceptOlderStore` |
//! |---|---|---|---|
//! | whole | whole | whole, with a term above that one | whole |
//! | set back ([`super::history`]) | set back | set back: it is noted, and obeyed by nobody who knows it | whole, with a term above those noted; all benefactors register anew |

use stdchk_model::message::manager::{Era, Term};

use super::Core;

/// The term of this manager.
#[derive(Debug)]
pub struct Terms {
    own: Term,
    /// The eras through which the state has gone, but the first, and those that were given up; the own one last.
    eras: Vec<Era>,
    /// The greatest that benefactors have told.
    told: Option<Term>,
}

impl Terms {
    /// Of the start `start`, before the store was read.
    pub fn new(start: u64) -> Self {
        Self { own: Term { era: Era::FIRST, number: 0, start }, eras: Vec::new(), told: None }
    }

    /// Takes in the number of the last term that is stored, and the eras of the state.
    pub fn load(&mut self, number: u64, eras: Vec<Era>) {
        self.own.number = number;
        self.own.era = eras.last().copied().unwrap_or(Era::FIRST);
        self.eras = eras;
    }

    /// The eras through which the state has gone, but the first.
    pub fn eras(&self) -> &[Era] {
        &self.eras
    }

    /// Whether the state has gone through an era: whoever knows it knows no other state.
    pub fn went_through(&self, era: Era) -> bool {
        era == Era::FIRST || self.eras.contains(&era)
    }

    /// A new era begins, later than `others`, which this state hasn't gone through and which are given up: whoever knows them is no witness
    /// any more.
    pub fn begin_era(&mut self, others: &[Era]) {
        let last = others.iter().map(|era| era.number).fold(self.own.era.number, u64::max);
        self.eras.extend(others);
        self.own.era = Era { number: last + 1, id: self.own.start };
        self.eras.push(self.own.era);
    }

    /// The own term begins.
    pub fn begin(&mut self) {
        self.own.number += 1;
    }

    /// The own term.
    pub fn own(&self) -> Term {
        self.own
    }

    /// Takes note of the greatest term that a benefactor knows, of an era of this state.
    pub fn hear(&mut self, told: Option<Term>) {
        assert!(
            told.is_none_or(|told| self.went_through(told.era)),
            "another state's terms say nothing of this one"
        );
        self.told = self.told.max(told);
    }

    /// Takes a term above all that was told; whether it is another one than before, and must be stored.
    pub fn rise(&mut self) -> bool {
        let Some(told) = self.told.filter(|told| *told > self.own) else { return false };
        self.own.number = told.number + 1;
        true
    }
}

impl Core {
    /// The number of the own term.
    pub fn term(&self) -> u64 {
        self.terms.own().number
    }

    /// Takes a term above all that benefactors know, unless nothing may be written.
    pub(super) fn rise_above_told_terms(&mut self) {
        if !self.history.is_set_back() && self.terms.rise() {
            tracing::info!(term = self.terms.own().number, "benefactors know a greater term");
            self.pool_changed = true;
        }
    }
}
