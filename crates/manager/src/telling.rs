//! Where the pool's managers serve, and who has heard of it.
//!
//! Each connection is told with the greeting. Of a change benefactors hear with the answer to a heartbeat, clients when they ask, with each sign of life.
//! A request to set other addresses is answered once all connected callers have heard of them: from then on the manager may be lost, and nobody is left that knows
//! its address alone.
//!
//! | a connection | asks where managers serve | gives a heartbeat | is set another list | ends |
//! |---|---|---|---|---|
//! | has not heard | has heard | is told | - | is waited for no more |
//! | was told | has heard | has heard: it has the answer to the one before | has not heard | is waited for no more |
//! | has heard | - | - | has not heard, unless it is the same list | - |

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::limits::CLIENT_KEEPALIVE_MS;
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::ManagerReply;
use tokio::time::{Instant, sleep};

/// Time for which all are waited for: two signs of life of a client. A client that stands still is waited for no longer.
const WAIT_MAX: Duration = Duration::from_millis(2 * CLIENT_KEEPALIVE_MS);
/// Pause between two looks at who has heard.
const LOOK: Duration = Duration::from_millis(50);

/// The knowledge that a connection has of the present list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Knows {
    /// Its greeting said this at most.
    Nothing,
    /// It stands in an answer that is on its way.
    Told,
    Heard,
}

pub(crate) struct Telling {
    managers: Mutex<Vec<String>>,
    /// All connections, by their numbers.
    connections: Mutex<HashMap<u64, Knows>>,
}

impl Telling {
    pub(crate) fn new(managers: Vec<String>) -> Self {
        Self { managers: Mutex::new(managers), connections: Mutex::default() }
    }

    pub(crate) fn managers(&self) -> Vec<String> {
        self.managers.lock().clone()
    }

    pub(crate) fn began(&self, connection: u64) {
        self.connections.lock().insert(connection, Knows::Nothing);
    }

    pub(crate) fn ended(&self, connection: u64) {
        self.connections.lock().remove(&connection);
    }

    /// A client is answered where managers serve.
    pub(crate) fn answered(&self, connection: u64) {
        if let Some(knows) = self.connections.lock().get_mut(&connection) {
            *knows = Knows::Heard;
        }
    }

    /// Adds it to the answer to a heartbeat, unless the benefactor has heard.
    pub(crate) fn tell(&self, connection: u64, mut reply: ManagerReply) -> ManagerReply {
        let (mut connections, managers) = (self.connections.lock(), self.managers.lock());
        let knows = connections.get_mut(&connection);
        if let (ManagerReply::Commands(commands), Some(knows)) = (&mut reply, knows) {
            if *knows == Knows::Nothing && !managers.is_empty() {
                commands.push(Command::Managers(managers.clone()));
            }
            *knows = if *knows == Knows::Nothing { Knows::Told } else { Knows::Heard };
        }
        reply
    }

    /// They serve there from now on. Ends once all have heard that are connected, but for who says so, or when that takes too long.
    pub(crate) async fn set(&self, managers: Vec<String>, said_by: u64) {
        let begun = Instant::now();
        let mut waited_for: Vec<u64> = {
            let (mut connections, mut now) = (self.connections.lock(), self.managers.lock());
            // A caller that asks again, since that takes long, begins nothing anew.
            if *now != managers {
                *now = managers;
                connections.values_mut().for_each(|knows| *knows = Knows::Nothing);
            }
            connections.keys().copied().filter(|connection| *connection != said_by).collect()
        };
        while !waited_for.is_empty() && begun.elapsed() < WAIT_MAX {
            // The last answers are on their way meanwhile.
            sleep(LOOK).await;
            let connections = self.connections.lock();
            waited_for.retain(|one| connections.get(one).is_some_and(|knows| *knows != Knows::Heard));
        }
        if !waited_for.is_empty() {
            let connections = waited_for.len();
            tracing::warn!(connections, "some that are connected have yet to hear where managers serve");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKER: u64 = 1;
    const CLIENT: u64 = 2;
    const BENEFACTOR: u64 = 3;
    const GOING: u64 = 4;

    fn beat(telling: &Telling) -> Vec<Command> {
        match telling.tell(BENEFACTOR, ManagerReply::Commands(Vec::new())) {
            ManagerReply::Commands(commands) => commands,
            _ => unreachable!("an answer stays what it is"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_sets_a_list_is_answered_once_all_have_heard_or_are_gone() {
        let telling = Telling::new(Vec::new());
        [ASKER, CLIENT, BENEFACTOR, GOING].into_iter().for_each(|one| telling.began(one));
        assert!(beat(&telling).is_empty() && beat(&telling).is_empty(), "nobody has said anything");
        let list = vec!["a:1".to_owned()];
        let (begun, events) = (Instant::now(), async {
            sleep(Duration::from_secs(1)).await;
            telling.answered(CLIENT);
            sleep(Duration::from_secs(1)).await;
            telling.ended(GOING);
            sleep(Duration::from_secs(1)).await;
            assert_eq!(beat(&telling), [Command::Managers(list.clone())]);
            sleep(Duration::from_secs(1)).await;
            assert!(beat(&telling).is_empty());
        });
        tokio::join!(telling.set(list.clone(), ASKER), events);
        let took = begun.elapsed();
        assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(5), "{took:?}");
        assert_eq!(telling.managers(), list);
    }

    #[tokio::test(start_paused = true)]
    async fn who_sets_the_same_again_waits_for_those_who_have_not_heard_by_then() {
        let (telling, list) = (Telling::new(Vec::new()), vec!["a:1".to_owned()]);
        [CLIENT, BENEFACTOR].into_iter().for_each(|one| telling.began(one));
        let soon = Duration::from_secs(2);
        assert!(tokio::time::timeout(soon, telling.set(list.clone(), ASKER)).await.is_err());
        telling.answered(CLIENT);
        assert!(tokio::time::timeout(soon, telling.set(list.clone(), ASKER)).await.is_err());
        telling.answered(BENEFACTOR);
        assert!(tokio::time::timeout(soon, telling.set(list, ASKER)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_never_hears_is_waited_for_no_longer_than_a_bound() {
        let telling = Telling::new(Vec::new());
        telling.began(CLIENT);
        let begun = Instant::now();
        telling.set(vec!["a:1".to_owned()], ASKER).await;
        assert!(begun.elapsed() >= WAIT_MAX && begun.elapsed() < WAIT_MAX + Duration::from_secs(1));
    }
}
