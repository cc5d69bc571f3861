//! The addresses at which a pool's managers serve: one leads and listens, the others stand by and don't.
//!
//! So all addresses are tried at once, and the first manager that greets back is the one. A manager that is stopped, or whose host is
//! gone, keeps nobody from the one that leads now.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::Failure;
use stdchk_model::message::handshake::Role;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::buffer::BufferPool;
use crate::connection::{CallError, Connection, Identity};

/// Silence of a manager after which another one is looked for.
const SILENT: Duration = Duration::from_secs(2);
/// Pause before that is done again, if there is none.
const LOOK: Duration = Duration::from_millis(500);

/// Where the managers of a pool serve: one address or several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Managers(Vec<String>);

impl Managers {
    /// The addresses in a text, with commas between them. The path of a socket may hold commas, too, as long as no `unix:` follows.
    pub fn new(text: &str) -> Self {
        let mut addresses: Vec<String> = Vec::new();
        for part in text.split(',') {
            match addresses.last_mut() {
                // The comma belongs to a path.
                Some(last) if last.starts_with("unix:") && !part.starts_with("unix:") => {
                    last.push(',');
                    last.push_str(part);
                }
                _ => addresses.push(part.to_owned()),
            }
        }
        Self(addresses)
    }

    /// The addresses.
    pub fn addresses(&self) -> &[String] {
        &self.0
    }

    /// Connects to the one that leads.
    ///
    /// # Errors
    /// None does; that of one that refuses, if there is one.
    pub async fn open(
        &self,
        identity: &Identity,
        buffers: &Arc<BufferPool>,
    ) -> Result<Connection, CallError> {
        match self.0.as_slice() {
            [only] => Connection::open(Role::Manager, only, identity, buffers).await,
            _ => first_of(self.0.clone(), identity, buffers).await,
        }
    }

    /// Connects to another one than that of `connection`, once that has said nothing for a while; `heard` tells when it did last. Never
    /// ready while no other one leads.
    pub async fn another(
        &self,
        connection: &Connection,
        identity: &Identity,
        buffers: &Arc<BufferPool>,
        heard: impl Fn() -> Instant,
    ) -> Connection {
        let others: Vec<String> =
            self.0.iter().filter(|address| *address != connection.address()).cloned().collect();
        if others.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let silent = heard().elapsed();
            if silent < SILENT {
                tokio::time::sleep(SILENT.saturating_sub(silent)).await;
                continue;
            }
            match first_of(others.clone(), identity, buffers).await {
                Ok(other) => return other,
                Err(error) => tracing::debug!(%error, "no other manager leads"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl std::fmt::Display for Managers {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.0.join(","))
    }
}

/// The first that greets. One whose host is gone keeps its try waiting for seconds: meanwhile those that can't be reached are tried again, since
/// one may lead by then.
async fn first_of(
    addresses: Vec<String>,
    identity: &Identity,
    buffers: &Arc<BufferPool>,
) -> Result<Connection, CallError> {
    let open = |address: String, pause: Duration| {
        let (identity, buffers) = (identity.clone(), Arc::clone(buffers));
        async move {
            tokio::time::sleep(pause).await;
            let opened = Connection::open(Role::Manager, &address, &identity, &buffers).await;
            (address, pause.is_zero(), opened)
        }
    };
    let (mut tries, mut first_tries) = (JoinSet::new(), addresses.len());
    for address in addresses {
        tries.spawn(open(address, Duration::ZERO));
    }
    let (mut refused, mut unreachable): (Option<Failure>, BTreeMap<String, CallError>) =
        (None, BTreeMap::new());
    while let Some(tried) = tries.join_next().await {
        let (address, is_first, opened) = match tried {
            Ok(tried) => tried,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        };
        first_tries -= usize::from(is_first);
        match opened {
            Ok(connection) => return Ok(connection),
            Err(CallError::Refused(failure)) => refused = Some(failure),
            Err(error) => {
                unreachable.insert(address.clone(), error);
                if first_tries > 0 {
                    tries.spawn(open(address, LOOK));
                }
            }
        }
        if first_tries == 0 {
            break;
        }
    }
    Err(match refused {
        Some(failure) => failure.into(),
        None => none_of(unreachable.into_values().collect()),
    })
}

/// Why none of several managers is there. If all of those that serve are strangers, it is not for want of a leader.
fn none_of(errors: Vec<CallError>) -> CallError {
    let are_strangers = errors.iter().all(|error| matches!(error, CallError::Stranger { .. }));
    let causes = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match errors.into_iter().next() {
        Some(stranger) if are_strangers => stranger,
        _ => CallError::NoManager { causes },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_between_commas_and_paths_may_hold_some() {
        let of = |text: &str| Managers::new(text).addresses().to_vec();
        assert_eq!(of("a:1"), ["a:1"]);
        assert_eq!(of("a:1,b:2,[::1]:3"), ["a:1", "b:2", "[::1]:3"]);
        assert_eq!(of("unix:/a,b/socket"), ["unix:/a,b/socket"]);
        assert_eq!(of("unix:/a,b/socket,unix:/c"), ["unix:/a,b/socket", "unix:/c"]);
        assert_eq!(of("a:1,unix:/c"), ["a:1", "unix:/c"]);
        assert_eq!(Managers::new("a:1,b:2").to_string(), "a:1,b:2");
    }
}
