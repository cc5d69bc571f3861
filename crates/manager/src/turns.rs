//! Turns in which benefactors tell what they have.
//!
//! After a manager's start all of them want to tell it at once. With ten thousand of them, what each sends would stand in line for a
//! minute behind what the others send, and heartbeats with it: they would give up, and begin anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::{BenefactorId, ErrorCode, Failure};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Benefactors that tell at once.
pub(crate) const PLACES: usize = 32;
/// How long one keeps others from telling: one on a slow link goes on beside them after that.
const TURN: Duration = Duration::from_secs(5);
/// How long a request waits for a turn. Its sender asks again then, which says that it is there: less than a lease.
const WAIT: Duration = Duration::from_secs(2);

/// Who has a turn at present.
pub(crate) struct Turns {
    places: Arc<Semaphore>,
    taken: Mutex<HashMap<BenefactorId, oneshot::Sender<()>>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(PLACES)), taken: Mutex::default() }
    }
}

impl Turns {
    /// Waits for a turn of this benefactor; one that it has ends.
    ///
    /// # Errors
    /// `Unavailable`: others have all of them. It may ask again.
    pub(crate) async fn take(&self, id: BenefactorId) -> Result<(), Failure> {
        self.end(id);
        let Ok(Ok(place)) = timeout(WAIT, Arc::clone(&self.places).acquire_owned()).await else {
            let message = "many benefactors tell what they have at present: ask again".to_owned();
            return Err(Failure::new(ErrorCode::Unavailable, message));
        };
        let (end, ended) = oneshot::channel();
        self.taken.lock().insert(id, end);
        tokio::spawn(async move {
            // It ends when the other half is dropped, or is over.
            let _ = timeout(TURN, ended).await;
            drop(place);
        });
        Ok(())
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
            turns.take(*id).await.unwrap();
        }
        assert_eq!(turns.take(*last).await.unwrap_err().code, ErrorCode::Unavailable);
        turns.end(first[3]);
        turns.take(*last).await.unwrap();
        // One that asks again has but one.
        turns.take(*last).await.unwrap();
        assert_eq!(turns.take(first[3]).await.unwrap_err().code, ErrorCode::Unavailable);
        // By now the others have had theirs.
        turns.take(first[3]).await.unwrap();
    }
}
