//! Benefactors that won't come back: taken out of the pool's books, so that nothing waits for them any more.

use stdchk_model::message::manager::ManagerReply;
use stdchk_model::{BenefactorId, ChunkId, ErrorCode, Failure};
use stdchk_protect::distance;

use super::locations::{Chunk, Holder};
use super::{Answer, Core, Now, unavailable};

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
        self.registry.remove(id);
        self.deletions.remove(&id);
        self.locations.sift(id, &self.registry, |_| false);
        self.locations.requeue_all(&self.registry);
        self.marking.again = true;
        Ok(ManagerReply::Done)
    }

    /// Refuses while content may be left without a copy.
    fn check_spared(&self, id: BenefactorId) -> Result<(), Failure> {
        if self.registry.awaited().any(|other| other != id) {
            let message = "not all benefactors have reported what they hold since the manager started";
            return Err(unavailable(message).then("try again in half a minute"));
        }
        if !self.marking.is_complete() {
            let next = "try again in some seconds; if that doesn't help, `stdchk verify` names the damage, and `--force` \
                        forgets it all the same";
            return Err(unavailable("the manager has not found out yet what all versions need").then(next));
        }
        let elsewhere = |holder: &Holder| holder.benefactor != id && self.registry.counts(holder.benefactor);
        let wanted = self.locations.iter().filter(|(_, chunk)| chunk.wanted > 0);
        let is_lost = |(_, chunk): &(&ChunkId, &Chunk)| {
            distance(chunk.holders.iter().filter(|holder| elsewhere(holder)).map(Holder::held)) == 0
        };
        match wanted.filter(is_lost).count() {
            0 => Ok(()),
            count => {
                let message = format!("{count} chunks have no copy at another benefactor");
                let next = format!("bring {id} back, or give them up with `--force`");
                Err(Failure::new(ErrorCode::Denied, message).then(next))
            }
        }
    }
}
