//! The connection to the manager: opened when needed, opened again when it breaks, asked again when an answer is lost.
//!
//! Every request to the manager can be repeated: reads by nature, changes and sessions by the identities that they
//! carry. So a manager that is restarted, or replaced by another one at another address, costs its clients a pause, not an error.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::message::Asked;
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{ManagerReply, ManagerRequest};
use stdchk_model::{ErrorCode, Failure, PoolId};
use stdchk_net::{Buffer, BufferPool, Bytes, CallError, Identity, Keys, Managers, Repeats, Retry, waits};

use crate::acting;
use crate::shared::{Longest, Shared};
use tokio::time::Instant;

/// Time for one answer. A manager under load answers within milliseconds; a collection takes longest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// First and longest pause between attempts to reach a manager that is away.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// Time for which a client that ends waits for a manager that is away: it covers a restart of that.
const ENDING_PATIENCE: Duration = Duration::from_secs(60);
/// Memory for answers under way, bytes. Answers of the manager have no payload.
const BUFFER_BYTES: usize = 1 << 20;

/// The one connection to the manager that a client's tasks share.
pub(crate) struct ManagerLink {
    managers: Managers,
    keys: Option<Arc<Keys>>,
    patience: Duration,
    buffers: Arc<BufferPool>,
    connection: Shared,
    /// What it took to connect to anybody of the pool.
    pub(crate) connecting: Longest,
    /// Since when the client ends.
    ends: OnceLock<Instant>,
    /// Answers of the manager that did not come.
    missed: Mutex<Repeats>,
    /// The pool that answered first: only the same will do, should another one ever answer at this address.
    pool: OnceLock<PoolId>,
}

impl ManagerLink {
    /// `addresses`: where managers serve, with commas between them.
    pub(crate) fn new(addresses: &str, keys: Option<Arc<Keys>>, patience: Duration, or_older: bool) -> Self {
        let buffers = BufferPool::new(BUFFER_BYTES);
        let (connection, connecting, pool) = (Shared::default(), Longest::default(), OnceLock::new());
        let managers = Managers::known(addresses, keys.clone());
        let managers = if or_older { managers.or_older() } else { managers };
        let (ends, missed) = (OnceLock::new(), Mutex::default());
        Self { managers, keys, patience, buffers, connection, connecting, ends, missed, pool }
    }

    /// Asks, and keeps asking while the manager can't be reached, for as long as the client's patience lasts.
    pub(crate) async fn ask(&self, request: &ManagerRequest) -> Result<ManagerReply, Failure> {
        let managers = self.managers.clone();
        waits::on(move || format!("an answer of the manager at {managers}"), self.ask_patiently(request))
            .await
    }

    async fn ask_patiently(&self, request: &ManagerRequest) -> Result<ManagerReply, Failure> {
        let mut retry = Retry::new(self.patience, RETRY_PAUSE);
        loop {
            let error = match self.ask_once(request).await {
                Ok(reply) => {
                    if let Some(row) = self.missed.lock().is_well() {
                        let (managers, seconds) = (&self.managers, row.seconds);
                        tracing::info!(%managers, seconds, "the manager answers again");
                    }
                    return Ok(reply);
                }
                Err(CallError::Refused(failure)) => return Err(failure),
                // Once it was let in, it waits for the manager to come back, whoever has taken its address.
                Err(error @ CallError::Stranger { .. }) if self.pool.get().is_none() => {
                    return Err(Failure::new(ErrorCode::OtherPool, error.to_string()));
                }
                Err(error) => error,
            };
            if let Some(row) = self.missed.lock().failed(&error.to_string()) {
                let (managers, seconds, tries) = (&self.managers, row.seconds, row.times);
                tracing::warn!(%managers, seconds, tries, %error, "the manager gives no answer: requests wait for it");
            }
            if !retry.pause().await || self.is_given_up() {
                return Err(crate::context(&error.failure(), "the manager can't be reached"));
            }
        }
    }

    async fn ask_once(&self, request: &ManagerRequest) -> Result<ManagerReply, CallError> {
        let open = || async {
            let opened = self.managers.open(&self.identity(), &self.buffers).await?;
            self.pool.get_or_init(|| opened.pool());
            Ok(opened)
        };
        let connection = self.connection.get(&self.connecting, open).await?;
        // Whose keys are for one user can ask for no other one.
        let is_bound = self.keys.as_ref().is_some_and(|keys| keys.member().user.is_some());
        let with = if is_bound { None } else { acting::user() };
        let question = Asked { request, with };
        let (asked, identity) = (Instant::now(), self.identity());
        tokio::select! {
            answer = connection.call(&question, Bytes::new(), ANSWER_TIMEOUT) => {
                let answer: Result<(_, Buffer), _> = answer;
                answer.map(|(reply, _)| reply)
            }
            other = self.managers.another(&connection, &identity, &self.buffers, || asked) => {
                let gone = connection.address().to_owned();
                self.connection.replace(&connection, other).await;
                Err(CallError::Closed { address: gone })
            }
        }
    }

    /// The client ends: whoever waits for the manager, however long that was to be, waits no longer than [`ENDING_PATIENCE`] from now on.
    pub(crate) fn ends(&self) {
        self.ends.get_or_init(Instant::now);
    }

    fn is_given_up(&self) -> bool {
        self.ends.get().is_some_and(|since| since.elapsed() >= ENDING_PATIENCE)
    }

    /// Asks where the pool's managers serve.
    pub(crate) async fn learn_managers(&self) -> Result<(), Failure> {
        if let ManagerReply::Managers(addresses) = self.ask(&ManagerRequest::Managers).await? {
            self.managers.learn(&addresses);
        }
        Ok(())
    }

    /// Which managers are refused that have the pool's keys, and why.
    pub(crate) async fn refused_managers(&self) -> Vec<String> {
        self.managers.refused(&self.identity(), &self.buffers).await
    }

    /// Who this client is to the manager and to the pool's benefactors.
    pub(crate) fn identity(&self) -> Identity {
        // A host that joined as a benefactor alone has no other role; it may ask how the pool is.
        let is_client = self.keys.as_ref().is_none_or(|keys| keys.member().may_be(Role::Client));
        let role = if is_client { Role::Client } else { Role::Benefactor };
        Identity { role, pool: self.pool.get().copied(), keys: self.keys.clone() }
    }
}
