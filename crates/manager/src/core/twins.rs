//! Two processes that are one benefactor by what they show: number, secret and keys lie in a folder, which may be copied with its machine.
//!
//! One counts, and the other one is refused for as long as the first is there: they would take the number from each other with each
//! registration, and what lies at one of them would be lost and found again by turns. A benefactor that was started again, on its
//! machine or with its disk on another one, looks the same at first. It gets in once the process before it is gone:
//!
//! | life | host in the address | let in |
//! |---|---|---|
//! | the same | the same | at once: it has connected anew |
//! | the same | another | once the connection by which it registered last has ended, or after a lease of silence |
//! | another | the same | likewise: it was started again |
//! | another | another | after a lease of silence |
//!
//! Silence is counted from this manager's start for one that it has not heard yet, so neither takes the number while the other one is on
//! its way back to a manager that was started again.

use stdchk_model::message::manager::{Registration, Twin};
use stdchk_model::{BenefactorId, ErrorCode, Failure};

use super::benefactors::{Registry, lease_ms};
use super::{Core, Timing};

/// A process that was refused since another one is the benefactor.
#[derive(Clone, Debug)]
pub struct RefusedTwin {
    address: String,
    pid: u32,
    /// When it was refused first, milliseconds of the manager's life.
    since_ms: u64,
    /// When it was refused last.
    last_ms: u64,
}

impl Registry {
    /// Refuses a process that is not the one that serves as this benefactor, while that one is there.
    pub(super) fn refuse_twin(
        &mut self,
        id: BenefactorId,
        registration: &Registration,
        now_ms: u64,
        timing: &Timing,
    ) -> Result<(), Failure> {
        let Some(first) = self.known_mut(id).filter(|known| !known.is_shut_out) else { return Ok(()) };
        let is_same_life = first.incarnation == Some(registration.incarnation);
        let is_same_host = host_of(&first.address) == host_of(&registration.address);
        let is_silent = now_ms.saturating_sub(first.heard_ms) >= lease_ms(first, timing);
        let is_connected = first.connection.is_some();
        if is_silent || (is_same_life || is_same_host) && !is_connected || is_same_life && is_same_host {
            return Ok(());
        }
        let Registration { address, pid, .. } = registration;
        let is_it = |twin: &RefusedTwin| twin.address == *address && twin.is_shown_at(now_ms, timing);
        let since_ms = first.twin.as_ref().filter(|twin| is_it(twin)).map_or(now_ms, |twin| twin.since_ms);
        if since_ms == now_ms {
            let serves = &first.address;
            tracing::warn!(%id, address, serves, "a process is refused: another one serves as this benefactor");
        }
        first.twin = Some(RefusedTwin { address: address.clone(), pid: *pid, since_ms, last_ms: now_ms });
        let serves = first.address.clone();
        let message = format!(
            "a process at {serves} serves as {id} of this pool, and this one at {address} has a folder that says the same: of two copies \
             one counts"
        );
        let next = "stop the one that is not meant (`stdchk down`); if that is this one, let its machine join anew with an empty data folder";
        Err(Failure::new(ErrorCode::Exists, message).then(next))
    }

    /// Takes note by which connection a benefactor has registered; 0: by none. It is no twin of its own.
    pub(super) fn connects(&mut self, id: BenefactorId, connection: u64) {
        let new = Some(connection).filter(|connection| *connection != 0);
        let Some(benefactor) = self.known_mut(id) else { return };
        let address = &benefactor.address;
        if benefactor.twin.as_ref().is_some_and(|twin| twin.address == *address) {
            benefactor.twin = None;
        }
        let before = std::mem::replace(&mut benefactor.connection, new);
        if let Some(before) = before {
            self.connections.remove(&before);
        }
        if let Some(new) = new {
            self.connections.insert(new, id);
        }
    }

    fn connection_ended(&mut self, connection: u64) {
        if let Some(id) = self.connections.remove(&connection)
            && let Some(benefactor) = self.known_mut(id)
        {
            assert_eq!(benefactor.connection, Some(connection), "each connection is noted at its benefactor");
            benefactor.connection = None;
        }
    }

    /// The process that is refused since another one is this benefactor. One that was started again elsewhere is none: it gets in within
    /// a lease.
    pub(super) fn twin(&self, id: BenefactorId, now_ms: u64, timing: &Timing) -> Option<Twin> {
        let benefactor = self.get(id)?;
        let twin = benefactor.twin.as_ref().filter(|twin| twin.is_shown_at(now_ms, timing))?;
        let is_refused_long = twin.last_ms - twin.since_ms >= lease_ms(benefactor, timing);
        let RefusedTwin { address, pid, since_ms, .. } = twin.clone();
        is_refused_long.then(|| Twin { address, pid, for_ms: now_ms.saturating_sub(since_ms) })
    }
}

impl RefusedTwin {
    /// Whether it has tried lately: it tries every second.
    fn is_shown_at(&self, now_ms: u64, timing: &Timing) -> bool {
        now_ms.saturating_sub(self.last_ms) < timing.benefactor_lease_ms
    }
}

impl Core {
    /// A connection has ended by which a benefactor may have registered.
    pub fn connection_ended(&mut self, connection: u64) {
        self.registry.connection_ended(connection);
    }
}

/// The host in an address; that of all sockets is the manager's machine.
fn host_of(address: &str) -> &str {
    match address.strip_prefix("unix:") {
        Some(_) => "",
        None => address.rsplit_once(':').map_or(address, |(host, _)| host),
    }
}
