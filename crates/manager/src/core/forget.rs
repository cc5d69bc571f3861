//! Benefactors that won't come back: taken out of the pool's books, so that nothing waits for them any more.

use stdchk_model::message::manager::{BenefactorState, ManagerReply};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Tier};
use stdchk_protect::distance_at_best;

use super::benefactors::Benefactor;
use super::chunk::{Chunk, held};
use super::walks::Walk;
use super::{Answer, Core, HostKey, Now, unavailable};

impl Core {
    /// Forgets a benefactor that is not on-line. Its blocks are lost from now on; what has other copies is copied anew.
    pub(super) fn forget(&mut self, id: BenefactorId, force: bool, now: Now) -> Answer {
        self.update_states(now);
        if id.0 >= self.registry.next {
            let message = format!("the pool has no benefactor {id}");
            let next = "`stdchk status` lists those that it has";
            return Err(Failure::new(ErrorCode::NotFound, message).then(next));
        }
        if self.registry.is_online(id) {
            let message = format!("{id} is on-line");
            return Err(Failure::new(ErrorCode::Denied, message).then("stop its process, then repeat this"));
        }
        if self.registry.get(id).is_some() && !force {
            self.check_spared(id)?;
        }
        self.tell_taken_out(id, if force { "forgotten by force" } else { "forgotten" });
        self.take_out(id);
        Ok(ManagerReply::Done)
    }

    /// Takes out benefactors whose memory was given up long ago. One that comes back after all has its number as before.
    pub(super) fn take_out_gone_memory(&mut self, now: Now) {
        let gone = self.registry.gone_from_memory(now.ms);
        for id in gone {
            self.tell_taken_out(id, "it kept blocks in memory, and was away for an hour");
            self.take_out(id);
        }
    }

    /// The pool has this benefactor no longer.
    pub(super) fn take_out(&mut self, id: BenefactorId) {
        self.registry.remove(id);
        self.hosts.remove(HostKey::Benefactor(id));
        self.deletions.remove(&id);
        self.efforts.forget(id);
        self.owes_no_more(id);
        self.departures.next.remove(&id);
        let ended = self.copies.benefactors_changed(&[id]);
        self.copies_ended(&ended);
        self.walk(Walk::Benefactor(id, None));
        self.walk(Walk::AtRisk(None));
    }

    /// Refuses while content may be left without a copy.
    fn check_spared(&self, id: BenefactorId) -> Result<(), Failure> {
        // What was in a memory that is gone doesn't come back.
        let is_gone = |one: &Benefactor| one.tier == Tier::Memory && one.state == BenefactorState::Lost;
        if self.registry.get(id).is_some_and(is_gone) {
            return Ok(());
        }
        if self.registry.awaited().any(|other| other != id) {
            let message = "not all benefactors have reported what they hold since the manager started";
            return Err(unavailable(message).then("try again in half a minute"));
        }
        let is_lost = |chunk: &&Chunk| {
            let elsewhere = chunk.counted(&self.registry).filter(|holder| holder.benefactor != id);
            // Nothing is deleted here, so fragments count that nobody has decoded. What lagging keepers alone hold goes within seconds.
            let is_there = distance_at_best(held(elsewhere, &self.registry)) > 0;
            chunk.wanted() > 0 && !is_there && !self.locations.is_for_keepers(&chunk.id)
        };
        // What nobody is known to have, it may have.
        let has_reported = self.registry.get(id).is_some_and(|benefactor| benefactor.reported);
        let lost = match has_reported {
            true => self.locations.chunks_at(id).filter(is_lost).count(),
            false => self.locations.iter().filter(is_lost).count(),
        };
        match lost {
            0 => Ok(()),
            count => {
                let message = format!("{count} chunks have no copy at another benefactor");
                let next = format!("bring {id} back, or give them up with `--force`");
                Err(Failure::new(ErrorCode::Denied, message).then(next))
            }
        }
    }
}
