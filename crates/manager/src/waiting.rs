//! A manager that waits for etcd: nobody leads, and callers are told why.
//!
//! A manager that stands by for another one doesn't listen. While it can't even stand by, or nobody leads and it can't either, it listens,
//! and refuses all members of the pool with the reason, as a server that isn't there for now. So they try again, and elsewhere.

use std::convert::Infallible;
use std::sync::Arc;

use stdchk_model::limits::BODY_BYTES_MAX;
use stdchk_model::message::Asked;
use stdchk_model::message::handshake::{Join, Joined, Role};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest};
use stdchk_model::{ErrorCode, Failure, User};
use stdchk_net::server::Host;
use stdchk_net::{
    Authority, Buffer, BufferPool, Bytes, Caller, DataDir, Keys, KeysError, Listener, Service, serve,
};
use tokio::sync::watch;

use crate::config::Config;
use crate::etcd::{Etcd, Trouble};
use crate::server::{AUTHORITY, info, listen};

/// Says to whoever asks, for ever, what is wrong with etcd, while something is.
pub(crate) async fn tell_why(config: &Config, directory: &DataDir, etcd: &Etcd) -> Infallible {
    let mut trouble = etcd.trouble();
    loop {
        // The sender lives as long as `etcd`.
        let _ = trouble.wait_for(Option::is_some).await;
        let over = async { drop(etcd.trouble().wait_for(Option::is_none).await) };
        match door(config, directory).await {
            Ok(Some((listener, host))) => {
                let waiting = Waiting { who: who(config), members: etcd.members(), trouble: etcd.trouble() };
                serve(listener, host, Arc::new(waiting), BufferPool::new(BODY_BYTES_MAX), over).await;
            }
            Ok(None) => over.await,
            Err(error) => {
                tracing::warn!(error, "nobody can be told that this manager waits for etcd");
                over.await;
            }
        }
    }
}

fn who(config: &Config) -> String {
    let own = info(config);
    format!("the manager of {}, process {},", own.host, own.pid)
}

/// Where members of the pool ask; none: the pool isn't known here yet.
async fn door(config: &Config, directory: &DataDir) -> Result<Option<(Listener, Host)>, String> {
    let Some(pool) = directory.pool() else { return Ok(None) };
    let listener = listen(&config.listen).await.map_err(|error| error.to_string())?;
    let keys = match listener.is_on_network() {
        true => Some(Arc::new(own_keys(directory).map_err(|error| error.to_string())?)),
        false => None,
    };
    Ok(Some((listener, Host::new(Role::Manager, pool, keys))))
}

fn own_keys(directory: &DataDir) -> Result<Keys, KeysError> {
    let authority = Authority::open(&directory.path().join(AUTHORITY))?;
    let keys = authority.keys(&[Role::Manager])?.keys(directory.path())?;
    keys.revoke(&Vec::from_iter(authority.revoked()?))?;
    Ok(keys)
}

/// Refuses everybody, with the reason.
struct Waiting {
    who: String,
    members: Vec<String>,
    trouble: watch::Receiver<Option<Trouble>>,
}

impl Waiting {
    fn refusal(&self) -> Failure {
        let told = match &*self.trouble.borrow() {
            Some(Trouble { since, cause }) => {
                format!(", for {} s so far: {cause}", since.elapsed().as_secs())
            }
            None => String::new(),
        };
        let message = format!("{} waits for etcd at {}{told}", self.who, self.members.join(", "));
        Failure::new(ErrorCode::Unavailable, message)
    }
}

impl Service for Waiting {
    type Request = Asked<ManagerRequest, User>;
    type Reply = ManagerReply;

    fn is_open(&self) -> Result<(), Failure> {
        Err(self.refusal())
    }

    async fn handle(&self, _: Caller, _: Self::Request, _: Buffer) -> Result<(ManagerReply, Bytes), Failure> {
        Err(self.refusal())
    }

    async fn join(&self, _: Join, _: [u8; 32], _: &str) -> Result<Joined, Failure> {
        Err(self.refusal())
    }
}
