//! The answer of each of the pool's managers to this host: it lets it in, refuses it for good, or isn't there now.
//!
//! A client that tries several addresses learns that nobody leads. A person has to know of each address why.

use std::sync::Arc;
use std::time::Duration;

use stdchk_model::message::handshake::Role;
use stdchk_model::{ErrorCode, Failure};
use stdchk_net::{BufferPool, CallError, Connection, Identity, Keys, Managers};
use stdchk_operations::Error;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::exit::{CommandError, Exit};

/// Memory for the answers of a manager that is only greeted, bytes.
const GREETING_BYTES: usize = 1 << 20;

/// The answer of one manager.
#[derive(Debug)]
pub enum Said {
    /// It leads, and this host may ask it.
    LetsIn,
    /// It doesn't let this host in, and won't in a moment.
    Refuses(Failure),
    /// It is of another pool, or doesn't accept this host's keys.
    IsStranger(String),
    /// Nobody serves there now, with the reason.
    Away(String),
}

/// The answers of all managers, each with its address.
#[derive(Debug)]
pub struct Answers(Vec<(String, Said)>);

impl Answers {
    /// Greets all managers at once, each for `limit` at most.
    pub async fn of(addresses: &str, keys: Option<Arc<Keys>>, limit: Duration) -> Self {
        let managers = Managers::known(addresses, keys.clone());
        // As a client has it: a host that joined as a benefactor alone has no other role.
        let is_client = keys.as_ref().is_none_or(|keys| keys.member().may_be(Role::Client));
        let role = if is_client { Role::Client } else { Role::Benefactor };
        let identity = Identity { role, pool: None, keys };
        let (mut tries, buffers) = (JoinSet::new(), BufferPool::new(GREETING_BYTES));
        let addresses = managers.addresses();
        for (index, address) in addresses.into_iter().enumerate() {
            let (managers, identity, buffers) = (managers.clone(), identity.clone(), Arc::clone(&buffers));
            tries.spawn(async move {
                let opening = Connection::open(Role::Manager, &address, &identity, &buffers);
                let said = match timeout(limit, opening).await {
                    Ok(opened) => said(opened, &managers),
                    Err(_) => Said::Away(format!("no answer within {:.1} s", limit.as_secs_f64())),
                };
                (index, address, said)
            });
        }
        let mut all = tries.join_all().await;
        all.sort_by_key(|(index, ..)| *index);
        Self(all.into_iter().map(|(_, address, said)| (address, said)).collect())
    }

    /// Why this host gets nowhere, whatever it waits for; `None`: one lets it in, or one that is away may.
    pub fn refusal(&self) -> Option<CommandError> {
        let is_let_in = self.0.iter().any(|(_, said)| matches!(said, Said::LetsIn));
        let refusals = self.0.iter().filter_map(|(address, said)| match said {
            Said::Refuses(failure) => Some(refused(address, failure)),
            _ => None,
        });
        let strangers = self.0.iter().filter_map(|(address, said)| match said {
            Said::IsStranger(cause) => Some(stranger(address, cause)),
            _ => None,
        });
        refusals.chain(strangers).next().filter(|_| !is_let_in)
    }

    /// Of each manager that isn't there why, in a line each.
    pub fn away(&self) -> Vec<String> {
        let all = self.0.iter().filter_map(|(address, said)| match said {
            Said::Away(cause) => Some(format!("manager {address}: {cause}")),
            _ => None,
        });
        all.collect()
    }
}

fn said(opened: Result<Connection, CallError>, managers: &Managers) -> Said {
    match opened {
        Ok(connection) => managers.objection(&connection).map_or(Said::LetsIn, Said::Away),
        Err(CallError::Stranger { cause, .. }) => Said::IsStranger(cause),
        Err(CallError::Connect { cause, .. }) => Said::Away(cause),
        Err(CallError::Refused(failure)) if lasts(failure.code) => Said::Refuses(failure),
        Err(error) => Said::Away(error.to_string()),
    }
}

/// Whether whoever is refused so is refused again in a moment.
fn lasts(code: ErrorCode) -> bool {
    use ErrorCode::{Denied, Malformed, OtherPool, Unsupported};
    matches!(code, Denied | Malformed | OtherPool | Unsupported)
}

fn refused(address: &str, failure: &Failure) -> CommandError {
    if failure.code != ErrorCode::Denied {
        return Error::of_failure(failure, format_args!("manager {address}")).into();
    }
    let object = format!("this host, at manager {address}");
    let cause = format!("it is shut out: {}", failure.message);
    let next = "If that is wrong: `stdchk down`, remove `keys/key.pem` in its data folder, and let it join again with a token";
    CommandError::new(Exit::Other, object, cause, next)
}

fn stranger(address: &str, cause: &str) -> CommandError {
    let next = "check that the address is right; if the pool has a new authority, `stdchk down`, remove `keys/key.pem` in this \
                host's data folder, and let it join again with a token";
    CommandError::new(Exit::OtherPool, format_args!("manager {address}"), cause, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(all: impl IntoIterator<Item = Said>) -> Answers {
        Answers((1..).zip(all).map(|(number, said)| (format!("m{number}:1"), said)).collect())
    }

    fn refuses(code: ErrorCode) -> Said {
        Said::Refuses(Failure::new(code, "so it is"))
    }

    #[test]
    fn a_host_that_one_manager_refuses_and_none_lets_in_is_told_so_with_the_code_of_the_refusal() {
        let away = || Said::Away("Connection refused".to_owned());
        let stranger = || Said::IsStranger("it shows keys of another pool".to_owned());
        let refusal = |all: Vec<Said>| answers(all).refusal();
        assert_eq!(refusal(vec![away(), away()]), None);
        assert_eq!(refusal(vec![stranger(), Said::LetsIn]), None);
        let denied = refusal(vec![away(), refuses(ErrorCode::Denied)]).unwrap();
        assert!(denied.exit == Exit::Other && denied.message.contains("m2:1: it is shut out"), "{denied:?}");
        let other = refusal(vec![stranger(), away()]).unwrap();
        assert!(other.exit == Exit::OtherPool && other.message.starts_with("manager m1:1"), "{other:?}");
        let older = refusal(vec![refuses(ErrorCode::Unsupported), away()]).unwrap();
        assert!(older.exit == Exit::Other && older.message.contains("same version"), "{older:?}");
        assert_eq!(answers([away(), stranger()]).away(), ["manager m1:1: Connection refused"]);
    }
}
