//! The manager's log on benefactors: those that register, are silent, lost or back, drain, or have left; each with host, address and cause.
//!
//! A benefactor that is silent again and again, on a machine that has too much to do, is said ever more seldom. A benefactor that was said to be silent is
//! said to be back, and what is lost is said always: that takes half a minute of silence.
//!
//! | said last | silent | lost | on-line | taken out |
//! |---|---|---|---|---|
//! | nothing | said, unless that was so lately | said | nothing | nothing |
//! | silent | - | said | "back" | forgets |
//! | lost | said as silent | - | "back" | forgets |

use std::collections::BTreeMap;

use stdchk_model::BenefactorId;
use stdchk_model::message::benefactor::OwnerWish;
use stdchk_model::message::manager::BenefactorState;

use super::{Core, Now};

/// First and longest pause until a benefactor is said to be silent again, milliseconds.
const PAUSES_MS: (u64, u64) = (30_000, 3_600_000);

/// The silences of benefactors, and which were said.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<BenefactorId, Silence>);

#[derive(Debug)]
struct Silence {
    /// It was said, and not yet that the benefactor is back.
    is_said: bool,
    /// When it began, milliseconds of the manager's life.
    since_ms: u64,
    /// It is not said before this.
    next_ms: u64,
    pause_ms: u64,
    /// How often it was not said.
    unsaid: u64,
}

impl Told {
    /// A benefactor is silent; `Some`: that is to be said, with how often it was not.
    fn silent(&mut self, id: BenefactorId, since_ms: u64, now_ms: u64) -> Option<u64> {
        let new = || Silence { is_said: false, since_ms, next_ms: now_ms, pause_ms: PAUSES_MS.0, unsaid: 0 };
        let silence = self.0.entry(id).or_insert_with(new);
        if !silence.is_said {
            silence.since_ms = since_ms;
        }
        if now_ms < silence.next_ms {
            silence.unsaid += 1;
            return None;
        }
        // After a long time without any it begins anew.
        let rested = now_ms.saturating_sub(silence.next_ms) > PAUSES_MS.1;
        let pause_ms = if rested { PAUSES_MS.0 } else { silence.pause_ms };
        (silence.next_ms, silence.pause_ms) = (now_ms + pause_ms, (2 * pause_ms).min(PAUSES_MS.1));
        silence.is_said = true;
        Some(std::mem::take(&mut silence.unsaid))
    }

    fn lost(&mut self, id: BenefactorId, since_ms: u64, now_ms: u64) {
        let new = || Silence { is_said: true, since_ms, next_ms: now_ms, pause_ms: PAUSES_MS.0, unsaid: 0 };
        self.0.entry(id).or_insert_with(new).is_said = true;
    }

    /// A benefactor is there; `Some`: that is to be said, with since when it was not, milliseconds of the manager's life.
    fn back(&mut self, id: BenefactorId) -> Option<u64> {
        let silence = self.0.get_mut(&id).filter(|silence| silence.is_said)?;
        silence.is_said = false;
        Some(silence.since_ms)
    }

    fn forget(&mut self, id: BenefactorId) {
        self.0.remove(&id);
    }
}

impl Core {
    /// Where a benefactor is: the name of its host, if it is one of another machine, and its address.
    fn place_of(&self, id: BenefactorId) -> (String, String) {
        let known = self.registry.get(id);
        let host = known.and_then(|known| known.member).map(|member| self.members.host(&member));
        (host.unwrap_or_default(), known.map(|known| known.address.clone()).unwrap_or_default())
    }

    /// A benefactor has registered; `is_new_life`: its process was started since it did so last.
    pub(super) fn tell_registered(&self, id: BenefactorId, is_new_life: bool) {
        let (host, address) = self.place_of(id);
        let Some(known) = self.registry.get(id) else { return };
        match is_new_life {
            true => tracing::info!(%id, host, address, pid = known.pid, "a benefactor has registered"),
            false => tracing::debug!(%id, host, address, "a benefactor has registered once more"),
        }
    }

    /// Benefactors are seen in another way than before.
    pub(super) fn tell_seen(&mut self, seen: &[BenefactorId], now: Now) {
        for id in seen.iter().copied() {
            let Some(known) = self.registry.get(id) else { continue };
            let (state, heard_ms, is_shut_out) = (known.state, known.heard_ms, known.is_shut_out);
            let seconds = now.ms.saturating_sub(heard_ms) / 1_000;
            let (host, address) = self.place_of(id);
            match state {
                BenefactorState::Online => {
                    if let Some(since_ms) = self.told.back(id) {
                        let seconds = now.ms.saturating_sub(since_ms) / 1_000;
                        tracing::info!(%id, host, address, seconds, "a benefactor is back");
                    }
                }
                BenefactorState::Offline => {
                    if let Some(unsaid) = self.told.silent(id, heard_ms, now.ms) {
                        tracing::warn!(%id, host, address, seconds, unsaid, "a benefactor is silent");
                    }
                }
                BenefactorState::Lost if is_shut_out => {
                    self.told.lost(id, heard_ms, now.ms);
                    tracing::warn!(%id, host, address, "a benefactor is lost, since its host was shut out: what it has is made anew");
                }
                BenefactorState::Lost => {
                    self.told.lost(id, heard_ms, now.ms);
                    let heard = if known_here(self, id) {
                        "silent"
                    } else {
                        "not heard of since this manager started"
                    };
                    tracing::warn!(%id, host, address, seconds, heard, "a benefactor is lost: what it has is made anew");
                }
                BenefactorState::Expected => {}
            }
        }
    }

    /// The owner's wish, the notice of its machine or the state of its disk has changed.
    pub(super) fn tell_load(&self, id: BenefactorId, before: Option<(OwnerWish, bool, bool)>) {
        let (Some(before), Some(now)) = (before, self.heed(id)) else { return };
        if before == now {
            return;
        }
        let (host, address) = self.place_of(id);
        if before.0 != now.0 {
            tracing::info!(%id, host, address, wish = ?now.0, "the owner of a benefactor has decided");
        }
        match (before.1, now.1) {
            (false, true) => {
                tracing::warn!(%id, host, address, "the machine of a benefactor is said to go soon")
            }
            (true, false) => {
                tracing::info!(%id, host, address, "the machine of a benefactor is no longer said to go")
            }
            _ => {}
        }
        match (before.2, now.2) {
            (false, true) => tracing::error!(%id, host, address, "the disk of a benefactor has failed"),
            (true, false) => tracing::info!(%id, host, address, "the disk of a benefactor works again"),
            _ => {}
        }
    }

    /// The values that [`Core::tell_load`] compares: the owner's wish, whether the machine is said to go, and whether the disk has failed.
    pub(super) fn heed(&self, id: BenefactorId) -> Option<(OwnerWish, bool, bool)> {
        let load = &self.registry.get(id)?.load;
        Some((load.wish, load.notice.is_some(), load.disk_failed))
    }

    /// The pool has a benefactor no longer; it is still known.
    pub(super) fn tell_taken_out(&mut self, id: BenefactorId, why: &str) {
        let (host, address) = self.place_of(id);
        tracing::info!(%id, host, address, why, "a benefactor is taken out of the pool");
        self.told.forget(id);
    }
}

fn known_here(core: &Core, id: BenefactorId) -> bool {
    core.registry.get(id).is_some_and(|known| known.incarnation.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_silent_each_minute_is_said_ever_more_seldom_and_whoever_was_said_to_be_gone_is_said_to_be_back()
     {
        let (mut told, id) = (Told::default(), BenefactorId(3));
        let (mut said, mut back) = (Vec::new(), Vec::new());
        for minute in 0..60u64 {
            let now_ms = minute * 60_000;
            said.extend(told.silent(id, now_ms - minute.min(1), now_ms).map(|unsaid| (minute, unsaid)));
            back.extend(told.back(id).map(|_| minute));
        }
        let minutes: Vec<u64> = said.iter().map(|(minute, _)| *minute).collect();
        assert_eq!(minutes, [0, 1, 2, 4, 8, 16, 32]);
        assert_eq!(minutes, back);
        let counted: u64 = said.iter().map(|(_, unsaid)| unsaid).sum();
        assert_eq!(counted, 32 + 1 - said.len() as u64);
        told.lost(id, 1, 60 * 60_000);
        assert_eq!(told.back(id), Some(59 * 60_000 - 1), "its last silence was not said, and its loss is");
    }
}
