//! The search for the manager that leads: all addresses at once, and where those point that stand by.
//!
//! A manager that stands by lets nobody in. Its word may be old, or a lie, so it is only tried: what a caller learns for good, it learns
//! from the one that leads. Each address is tried for the first time once, and no more of them than a pool may have, twice; a standby is followed for [`HOPS_MAX`]
//! steps. So those that point in a circle, to themselves or to many others cost at most one more than so many times the time of a try.
//!
//! | a manager that stands by | is followed |
//! |---|---|
//! | says who leads, or where managers serve | there, as far as it was not tried |
//! | has an older state than was heard of, or another one | no: it is as one that isn't there |
//! | says that the one leads that is doubted | no: that one is only slow |
//! | is one of those that are asked whether one of them leads | no |
//!
//! One whose host is gone keeps its try waiting for seconds: meanwhile those that can't be reached, and those that stand by, are tried again, since
//! one may lead by then.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::limits::{MANAGER_ADDRESS_BYTES_MAX, MANAGERS_MAX};
use stdchk_model::message::handshake::{Role, StandingBy};
use stdchk_model::{ErrorCode, Failure};
use tokio::task::JoinSet;

use crate::buffer::BufferPool;
use crate::connection::{CallError, Connection, Identity};
use crate::managers::{LOOK, Managers};
use crate::transport::socket_of;

/// So many times one manager after the other may point elsewhere: the one that led may stand by, and its follower, too.
const HOPS_MAX: u32 = 3;
/// Most addresses that are tried: those that are known, and as many again.
const ADDRESSES_MAX: usize = 2 * MANAGERS_MAX;

/// One search.
pub(crate) struct Search<'a> {
    managers: &'a Managers,
    identity: &'a Identity,
    buffers: &'a Arc<BufferPool>,
    /// The manager that another one is looked for than.
    doubted: Option<&'a Connection>,
    tries: JoinSet<Tried>,
    /// The addresses that were tried, and that are.
    tried: BTreeSet<String>,
    /// First tries under way.
    first_tries: usize,
    refused: Option<Failure>,
    unreachable: BTreeMap<String, CallError>,
    older: Option<Connection>,
}

/// One try to connect.
struct Tried {
    step: Step,
    opened: Result<Connection, CallError>,
}

/// An address, and how it came to be tried.
#[derive(Clone)]
struct Step {
    address: String,
    /// How many managers that stand by have led here, each to the next.
    hops: u32,
    is_first: bool,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        managers: &'a Managers,
        (identity, buffers): (&'a Identity, &'a Arc<BufferPool>),
        doubted: Option<&'a Connection>,
    ) -> Self {
        let tried = doubted.map(|doubted| doubted.address().to_owned()).into_iter().collect();
        let (unreachable, tries) = (BTreeMap::new(), JoinSet::new());
        Self {
            managers,
            identity,
            buffers,
            doubted,
            tries,
            tried,
            first_tries: 0,
            refused: None,
            unreachable,
            older: None,
        }
    }

    /// The first that lets the caller in and isn't refused.
    ///
    /// # Errors
    /// None does; that of one that refuses, if there is one.
    pub(crate) async fn first_of(mut self, addresses: Vec<String>) -> Result<Connection, CallError> {
        addresses.into_iter().for_each(|address| self.begin(address, 0));
        while let Some(tried) = self.tries.join_next().await {
            let Tried { step, opened } = match tried {
                Ok(tried) => tried,
                Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
            };
            self.first_tries -= usize::from(step.is_first);
            if let Some(connection) = self.note(step, opened) {
                return Ok(connection);
            }
            if self.first_tries == 0 {
                break;
            }
        }
        if let Some(older) = self.older.filter(|_| self.managers.takes_older() && self.doubted.is_none()) {
            return Ok(older);
        }
        Err(match self.refused {
            Some(failure) => failure.into(),
            None => none_of(self.unreachable.into_values().collect()),
        })
    }

    /// Tries an address for the first time. Of those to which others point there may be too many.
    fn begin(&mut self, address: String, hops: u32) {
        let is_one_more = hops == 0 || self.tried.len() < ADDRESSES_MAX;
        if is_one_more && self.tried.insert(address.clone()) {
            self.first_tries += 1;
            self.open(Step { address, hops, is_first: true }, Duration::ZERO);
        }
    }

    fn open(&mut self, step: Step, pause: Duration) {
        let (identity, buffers) = (self.identity.clone(), Arc::clone(self.buffers));
        self.tries.spawn(async move {
            tokio::time::sleep(pause).await;
            let opened = Connection::open(Role::Manager, &step.address, &identity, &buffers).await;
            Tried { step, opened }
        });
    }

    /// Takes in what came of a try; the manager, if it is the one.
    fn note(&mut self, step: Step, opened: Result<Connection, CallError>) -> Option<Connection> {
        let error = match opened {
            Ok(connection) if self.is_doubted(connection.leadership()) => return None,
            Ok(connection) => match self.managers.take(connection) {
                Ok(connection) => return Some(connection),
                Err(refused) => {
                    let (connection, cause) = *refused;
                    self.older = Some(connection);
                    let error = CallError::Connect { address: step.address.clone(), cause };
                    self.unreachable.insert(step.address, error);
                    return None;
                }
            },
            // A standby that pointed to another pool was wrong, and a caller that is refused there has a pool all the same.
            Err(CallError::Refused(failure)) if step.hops == 0 || failure.code != ErrorCode::OtherPool => {
                self.refused = Some(failure);
                return None;
            }
            Err(CallError::StandsBy { address, standing }) => self.follow(&step, address, standing),
            Err(error) => error,
        };
        self.unreachable.insert(step.address.clone(), error);
        if self.first_tries > 0 {
            self.open(Step { is_first: false, ..step }, LOOK);
        }
        None
    }

    /// Goes where a manager that stands by points; why it isn't the one.
    fn follow(&mut self, step: &Step, address: String, standing: Box<StandingBy>) -> CallError {
        if let Some(cause) = self.managers.objection_to(&address, standing.era) {
            return CallError::Connect { address, cause };
        }
        let leadership = standing.leader.as_ref().map(|leader| leader.leadership);
        if self.managers.follows() && step.hops < HOPS_MAX && !self.is_doubted(leadership) {
            for pointed in pointed(&standing, &address) {
                self.begin(pointed, step.hops + 1);
            }
        }
        CallError::StandsBy { address, standing }
    }

    /// Whether the manager that is doubted is the one that leads for this time.
    fn is_doubted(&self, leadership: Option<u64>) -> bool {
        leadership.is_some() && self.doubted.is_some_and(|doubted| doubted.leadership() == leadership)
    }
}

/// Where a manager at `from` points that stands by. Sockets are of its own machine, and an address that stands for all of a machine leads others to themselves.
fn pointed(standing: &StandingBy, from: &str) -> Vec<String> {
    let leader = standing.leader.iter().flat_map(|leader| &leader.addresses);
    let is_of_use = |address: &&String| {
        let is_anywhere = address.parse().is_ok_and(|address: SocketAddr| address.ip().is_unspecified());
        let is_bounded =
            address.len() <= MANAGER_ADDRESS_BYTES_MAX && !address.contains(|c: char| c.is_control());
        is_bounded && !is_anywhere && (socket_of(address).is_none() || socket_of(from).is_some())
    };
    leader.chain(&standing.managers).filter(is_of_use).take(ADDRESSES_MAX).cloned().collect()
}

/// Why none of the managers is there. If all of those that serve are strangers, it is not for want of a leader.
fn none_of(mut errors: Vec<CallError>) -> CallError {
    let are_strangers = errors.iter().all(|error| matches!(error, CallError::Stranger { .. }));
    let causes = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match errors.pop() {
        Some(error) if are_strangers || errors.is_empty() => error,
        _ => CallError::NoManager { causes },
    }
}

#[cfg(test)]
mod tests {
    use stdchk_model::PoolId;
    use stdchk_model::message::handshake::Leader;
    use stdchk_model::message::manager::Era;

    use super::*;

    #[test]
    fn a_manager_that_stands_by_points_to_addresses_that_its_caller_can_reach() {
        let list = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let leader = Leader { addresses: list(&["unix:/s", "0.0.0.0:7", "[::]:7", "a:7"]), leadership: 1 };
        let managers = [list(&["b:7"]), vec!["c".repeat(MANAGER_ADDRESS_BYTES_MAX + 1)]].concat();
        let (pool, era) = (PoolId([1; 16]), Era::FIRST);
        let standing = StandingBy { pool, leader: Some(leader), managers, era };
        assert_eq!(pointed(&standing, "d:7"), ["a:7", "b:7"]);
        assert_eq!(pointed(&standing, "unix:/t"), ["unix:/s", "a:7", "b:7"]);
    }
}
