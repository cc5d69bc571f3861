//! Turns in which benefactors tell what they have.
//!
//! After a manager's start all of them want to tell it at once. With ten thousand of them, what each sends would stand in line for a
//! minute behind what the others send, and heartbeats with it: they would give up, and begin anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::{BenefactorId, ErrorCode, Failure};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Benefactors that tell at once.
pub(crate) const PLACES: usize = 32;
/// Of these, benefactors of one member of the pool that tell, or wait for it: others come through beside them.
const PLACES_OF_MEMBER: usize = PLACES / 4;
/// How long one keeps others from telling: one on a slow link goes on beside them after that.
const TURN: Duration = Duration::from_secs(5);
/// How long a request waits for a turn. Its sender asks again then, which says that it is there: less than a lease.
const WAIT: Duration = Duration::from_secs(2);

/// Who has a turn at present.
pub(crate) struct Turns {
    places: Arc<Semaphore>,
    taken: Mutex<HashMap<BenefactorId, oneshot::Sender<()>>>,
    /// Benefactors of each member that tell, or wait for it.
    of_members: Arc<Mutex<HashMap<MemberId, usize>>>,
}

/// A benefactor of a member that tells, or waits for it.
struct Counted {
    of_members: Arc<Mutex<HashMap<MemberId, usize>>>,
    member: MemberId,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut of_members = self.of_members.lock();
        if let Some(count) = of_members.get_mut(&self.member) {
            *count -= 1;
            if *count == 0 {
                of_members.remove(&self.member);
            }
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        let (taken, of_members) = (Mutex::default(), Arc::default());
        Self { places: Arc::new(Semaphore::new(PLACES)), taken, of_members }
    }
}

impl Turns {
    /// Waits for a turn of this benefactor, which is of `member`; one that it has ends.
    ///
    /// # Errors
    /// `Unavailable`: others have all of them, or many others of the same member. It may ask again.
    pub(crate) async fn take(&self, id: BenefactorId, member: Option<MemberId>) -> Result<(), Failure> {
        self.end(id);
        let busy = || {
            let message = "many benefactors tell what they have at present: ask again".to_owned();
            Failure::new(ErrorCode::Unavailable, message)
        };
        let counted = member.map(|member| self.count(member).ok_or_else(busy)).transpose()?;
        let place = timeout(WAIT, Arc::clone(&self.places).acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(busy()) };
        let (end, ended) = oneshot::channel();
        self.taken.lock().insert(id, end);
        tokio::spawn(async move {
            // It ends when the other half is dropped, or is over.
            let _ = timeout(TURN, ended).await;
            drop((place, counted));
        });
        Ok(())
    }

    /// Counts one more of a member's; `None`: there are as many as may be.
    fn count(&self, member: MemberId) -> Option<Counted> {
        let mut of_members = self.of_members.lock();
        let count = of_members.entry(member).or_default();
        if *count >= PLACES_OF_MEMBER {
            return None;
        }
        *count += 1;
        Some(Counted { of_members: Arc::clone(&self.of_members), member })
    }

    /// This benefactor has told all.
    pub(crate) fn end(&self, id: BenefactorId) {
        self.taken.lock().remove(&id);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_tell_at_once_and_who_waits_is_asked_to_come_again() {
        let turns = Turns::default();
        let ids: Vec<_> = (0..=u32::try_from(PLACES).unwrap()).map(BenefactorId).collect();
        let (last, first) = ids.split_last().unwrap();
        for id in first {
            turns.take(*id, None).await.unwrap();
        }
        assert_eq!(turns.take(*last, None).await.unwrap_err().code, ErrorCode::Unavailable);
        turns.end(first[3]);
        turns.take(*last, None).await.unwrap();
        // One that asks again has but one.
        turns.take(*last, None).await.unwrap();
        assert_eq!(turns.take(first[3], None).await.unwrap_err().code, ErrorCode::Unavailable);
        // By now the others have had theirs.
        turns.take(first[3], None).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_benefactors_of_one_member_leave_places_to_those_of_others() {
        let turns = Turns::default();
        let (many, other) = (Some(MemberId([1; 16])), Some(MemberId([2; 16])));
        let takes = (0..64).map(|id| turns.take(BenefactorId(id), many));
        let taken = futures_of(takes).await;
        assert_eq!(taken, PLACES_OF_MEMBER);
        turns.take(BenefactorId(100), other).await.unwrap();
        turns.end(BenefactorId(0));
        tokio::time::sleep(Duration::from_millis(1)).await;
        turns.take(BenefactorId(64), many).await.unwrap();
    }

    async fn futures_of(takes: impl Iterator<Item = impl Future<Output = Result<(), Failure>>>) -> usize {
        let mut taken = 0;
        for take in takes {
            taken += usize::from(take.await.is_ok());
        }
        taken
    }
}
