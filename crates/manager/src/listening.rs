//! Where a manager listens: at all addresses that it was given, as one.

use std::time::Duration;

use stdchk_net::{Listener, Retry};

use crate::server::ManagerError;

/// Time in which addresses are bound by who leads: those who greeted it while it stood by may hold them a moment longer, and readers wait for it.
const BIND_TIME: Duration = Duration::from_secs(3);
/// First and longest pause between two tries.
const BIND_PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// Listens at all of these addresses.
pub(crate) async fn listen(addresses: &[String]) -> Result<Listener, ManagerError> {
    let next = "another process may serve there: stop it, or listen elsewhere";
    let mut all: Option<Listener> = None;
    for address in addresses {
        let listener = Listener::bind(address).await;
        let listener = listener.map_err(|error| refuse(address, format_args!("{error}; {next}")))?;
        all = Some(match all {
            Some(others) => others.and(listener),
            None => listener,
        });
    }
    all.ok_or_else(|| refuse("nowhere", "give an address"))
}

/// Listens at addresses at which this manager stood by.
pub(crate) async fn listen_again(addresses: &[String]) -> Result<Listener, ManagerError> {
    let mut retry = Retry::new(BIND_TIME, BIND_PAUSES);
    loop {
        match listen(addresses).await {
            Err(error) if retry.pause().await => {
                tracing::info!(%error, "the manager that leads tries again to listen");
            }
            listener => return listener,
        }
    }
}

pub(crate) fn refuse(address: &str, cause: impl std::fmt::Display) -> ManagerError {
    ManagerError::Listen { address: address.to_owned(), cause: cause.to_string() }
}
