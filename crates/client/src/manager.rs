//! The connection to the manager: opened when needed, opened again when it breaks, asked again when an answer is lost.
//!
//! Every request to the manager can be repeated: reads by nature, changes and sessions by the identities that they
//! carry. So a manager that is restarted costs its clients a pause, not an error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{ManagerReply, ManagerRequest};
use stdchk_model::{Failure, PoolId};
use stdchk_net::{Buffer, BufferPool, Bytes, CallError, Connection, Identity};
use tokio::sync::Mutex;

/// Time for one answer. A manager under load answers within milliseconds; a collection takes longest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// First and longest pause between attempts to reach a manager that is away.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(1000));
/// Memory for answers under way, bytes. Answers of the manager have no payload.
const BUFFER_BYTES: usize = 1 << 20;

/// The one connection to the manager that a client's tasks share.
pub(crate) struct ManagerLink {
    address: String,
    token: Vec<u8>,
    patience: Duration,
    buffers: Arc<BufferPool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    pool: Option<PoolId>,
}

impl ManagerLink {
    pub(crate) fn new(address: String, token: Vec<u8>, patience: Duration) -> Self {
        let buffers = BufferPool::new(BUFFER_BYTES);
        Self { address, token, patience, buffers, state: Mutex::default() }
    }

    /// Asks, and keeps asking while the manager can't be reached, for as long as the client's patience lasts.
    pub(crate) async fn ask(&self, request: &ManagerRequest) -> Result<ManagerReply, Failure> {
        let give_up = Instant::now() + self.patience;
        let mut pause = RETRY_PAUSE.0;
        loop {
            let error = match self.ask_once(request).await {
                Ok(reply) => return Ok(reply),
                Err(CallError::Refused(failure)) => return Err(failure),
                Err(error) => error,
            };
            if Instant::now() + pause > give_up {
                return Err(crate::context(&error.failure(), "the manager can't be reached"));
            }
            tracing::debug!(%error, "asking the manager again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_PAUSE.1);
        }
    }

    async fn ask_once(&self, request: &ManagerRequest) -> Result<ManagerReply, CallError> {
        let connection = self.connection().await?;
        let answer: Result<(_, Buffer), _> = connection.call(request, Bytes::new(), ANSWER_TIMEOUT).await;
        answer.map(|(reply, _)| reply)
    }

    async fn connection(&self) -> Result<Arc<Connection>, CallError> {
        let mut state = self.state.lock().await;
        if let Some(connection) = state.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        let identity = Identity { role: Role::Client, pool: state.pool, token: self.token.clone() };
        let connection = Arc::new(Connection::open(&self.address, &identity, &self.buffers).await?);
        // From now on only the same pool will do, should another one ever answer at this address.
        state.pool = Some(connection.pool());
        state.connection = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Who this client is to the pool's benefactors.
    pub(crate) async fn identity(&self) -> Identity {
        Identity { role: Role::Client, pool: self.state.lock().await.pool, token: self.token.clone() }
    }
}
