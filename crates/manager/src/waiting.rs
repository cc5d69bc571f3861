//! A manager that doesn't lead answers greetings: it says which one does, or why none can.
//!
//! It listens where it serves once it leads, lets nobody in, and answers nothing but the greeting. The budgets for strangers are those of the
//! manager. The manager that comes to lead binds the addresses anew, once this has let go of them ([`listen`](crate::listening)).
//!
//! | what is known | a member of the pool is told | a host that joins is told |
//! |---|---|---|
//! | not even to which pool this manager belongs | nothing: it doesn't listen | nothing |
//! | etcd is of no use | that, with etcd's members, since when and why | the same |
//! | who leads, or that nobody does | that, and where managers serve | that this one stands by |
//! | nothing yet | that | the same |
//!
//! All but the third are refusals with `Unavailable`: callers try again, and elsewhere. A member that was shut out since this manager led last may
//! hear who leads; that one doesn't let it in.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::limits::BODY_BYTES_MAX;
use stdchk_model::message::Asked;
use stdchk_model::message::handshake::{Join, Joined, Role, StandingBy};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest};
use stdchk_model::{ErrorCode, Failure, PoolId, User};
use stdchk_net::server::Host;
use stdchk_net::{
    Authority, Buffer, BufferPool, Bytes, Caller, DataDir, Keys, KeysError, Listener, Readiness, Repeats,
    Service, serve,
};
use tokio::sync::watch;

use crate::config::Config;
use crate::etcd::{Etcd, Trouble};
use crate::listening::listen;
use crate::server::{AUTHORITY, info, pool_of};

/// Pause before it is tried again to listen.
const PAUSE: Duration = Duration::from_millis(500);

/// Says to whoever greets, for ever, that this manager doesn't lead.
pub(crate) async fn tell_why(config: &Config, directory: &DataDir, etcd: &Etcd) -> Infallible {
    let mut missed = Repeats::default();
    loop {
        // A manager that leads at once listens once.
        let pool = pool_here(directory, etcd).await;
        match door(config, directory, pool).await {
            Ok((listener, host)) => {
                let waiting = Waiting {
                    who: who(config),
                    members: etcd.members(),
                    trouble: etcd.trouble(),
                    standing: etcd.standing(),
                };
                // Ends with this.
                let for_ever = std::future::pending();
                serve(listener, host, Arc::new(waiting), BufferPool::new(BODY_BYTES_MAX), for_ever).await;
            }
            Err(error) => {
                if let Some(row) = missed.failed(&error) {
                    tracing::warn!(
                        tries = row.times,
                        error,
                        "nobody can be told that this manager doesn't lead"
                    );
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn who(config: &Config) -> String {
    let own = info(config);
    format!("the manager of {}, process {},", own.host, own.pid)
}

/// The pool that this manager belongs to, once there is something to tell.
async fn pool_here(directory: &DataDir, etcd: &Etcd) -> PoolId {
    let (mut trouble, mut standing) = (etcd.trouble(), etcd.standing());
    loop {
        let found = standing.borrow_and_update().as_ref().map(|standing| standing.pool);
        let has_trouble = trouble.borrow_and_update().is_some();
        let own = if has_trouble { pool_of(directory).ok().flatten() } else { None };
        if let Some(pool) = own.or(found) {
            return pool;
        }
        // The senders live as long as `etcd`.
        let _ = tokio::select! {
            changed = trouble.changed() => changed,
            changed = standing.changed() => changed,
        };
    }
}

/// Where members of the pool ask.
async fn door(config: &Config, directory: &DataDir, pool: PoolId) -> Result<(Listener, Host), String> {
    let listener = listen(&config.listen).await.map_err(|error| error.to_string())?;
    let keys = match listener.is_on_network() {
        true => Some(Arc::new(own_keys(directory).map_err(|error| error.to_string())?)),
        false => None,
    };
    Ok((listener, Host::new(Role::Manager, pool, keys)))
}

fn own_keys(directory: &DataDir) -> Result<Keys, KeysError> {
    let authority = Authority::open(&directory.path().join(AUTHORITY))?;
    let keys = authority.keys(&[Role::Manager])?.keys(directory.path())?;
    keys.revoke(&Vec::from_iter(authority.revoked()?))?;
    Ok(keys)
}

/// Lets nobody in.
struct Waiting {
    who: String,
    members: Vec<String>,
    trouble: watch::Receiver<Option<Trouble>>,
    standing: watch::Receiver<Option<StandingBy>>,
}

impl Waiting {
    /// The answer to callers that get no other one.
    fn refusal(&self) -> Failure {
        let message = match &*self.trouble.borrow() {
            Some(Trouble { since, cause }) => {
                let (members, seconds) = (self.members.join(", "), since.elapsed().as_secs());
                format!("{} waits for etcd at {members}, for {seconds} s so far: {cause}", self.who)
            }
            None => format!("{} doesn't lead, and has yet to ask etcd who does", self.who),
        };
        Failure::new(ErrorCode::Unavailable, message)
    }
}

impl Service for Waiting {
    type Request = Asked<ManagerRequest, User>;
    type Reply = ManagerReply;

    fn readiness(&self) -> Readiness {
        let has_trouble = self.trouble.borrow().is_some();
        match self.standing.borrow().clone() {
            Some(standing) if !has_trouble => Readiness::StandsBy(standing),
            _ => Readiness::Refuses(self.refusal()),
        }
    }

    async fn handle(&self, _: Caller, _: Self::Request, _: Buffer) -> Result<(ManagerReply, Bytes), Failure> {
        Err(self.refusal())
    }

    async fn join(&self, _: Join, _: [u8; 32], _: &str) -> Result<Joined, Failure> {
        match self.readiness() {
            // A stranger is told no addresses.
            Readiness::StandsBy(_) => {
                let message = format!("{} stands by: hosts join at the one that leads", self.who);
                Err(Failure::new(ErrorCode::Unavailable, message))
            }
            _ => Err(self.refusal()),
        }
    }
}
