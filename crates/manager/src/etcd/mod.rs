//! The manager's state in etcd: several managers stand by, and the one that leads by a lease keeps its records there.
//!
//! etcd is spoken to through its gateway for JSON over HTTP. [`gateway`] asks, [`election`] holds the lease and says who leads, [`store`] is
//! the store behind the trait. What waits for etcd runs in a thread of its own, so that a lease is renewed while the manager's thread waits
//! for a commit.

mod election;
mod gateway;
mod place;
mod standing;
mod store;

use std::future::Future;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use stdchk_model::message::handshake::StandingBy;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

pub use self::election::{Candidacy, Leadership, managers_in};
pub use self::gateway::AskError;
use self::gateway::Gateway;
pub use self::place::{Login, LoginError, Place, PlaceError};
pub use self::store::EtcdStore;
use crate::store::StoreError;

/// A way to etcd, with a thread of its own.
#[derive(Clone)]
pub struct Etcd(Arc<Inner>);

struct Inner {
    gateway: Gateway,
    prefix: String,
    runtime: Handle,
    /// The trouble that keeps this manager from leading or standing by.
    trouble: watch::Sender<Option<Trouble>>,
    /// The manager that leads, as far as it is known while this one stands by; `None`: nothing yet, or there is no pool.
    standing: watch::Sender<Option<StandingBy>>,
    /// The thread ends once this is dropped.
    _end: oneshot::Sender<()>,
}

/// A trouble with etcd, and since when.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// Since when, by this machine's clock.
    pub since: Instant,
    /// The cause, for people.
    pub cause: String,
}

impl Trouble {
    /// From now on, or since when it was so already.
    fn going_on(before: Option<&Self>, cause: String) -> Self {
        Self { since: before.map_or_else(Instant::now, |before| before.since), cause }
    }
}

impl Etcd {
    /// A way to this place. Whether anybody answers there shows with the first question.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(place: &Place, login: Option<&Login>) -> Result<Self, StoreError> {
        let failed = |error: std::io::Error| StoreError::new("beginning a thread for etcd", error);
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let gateway = Gateway::new(place.endpoints(), login.cloned())
            .map_err(|error| StoreError::new("preparing to speak with etcd", error))?;
        let (end, ended) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let thread = std::thread::Builder::new().name("etcd".to_owned());
        // Ends with the sender.
        thread.spawn(move || drop(runtime.block_on(ended))).map_err(failed)?;
        let prefix = place.prefix().to_owned();
        let (trouble, standing) = (watch::Sender::new(None), watch::Sender::new(None));
        Ok(Self(Arc::new(Inner { gateway, prefix, runtime: handle, trouble, standing, _end: end })))
    }

    fn gateway(&self) -> &Gateway {
        &self.0.gateway
    }

    /// The key of this name below the prefix.
    fn key(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.0.prefix).into_bytes()
    }

    /// What etcd's keys begin with.
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// Its members, `host:port`.
    pub fn members(&self) -> Vec<String> {
        self.gateway().members()
    }

    /// Tells what keeps this manager from leading or standing by, whenever that changes.
    pub fn trouble(&self) -> watch::Receiver<Option<Trouble>> {
        self.0.trouble.subscribe()
    }

    /// Tells what is known of the one that leads while this manager stands by.
    pub fn standing(&self) -> watch::Receiver<Option<StandingBy>> {
        self.0.standing.subscribe()
    }

    /// Takes note whether etcd is of use.
    pub fn note<T, E: std::fmt::Display>(&self, outcome: &Result<T, E>) {
        let cause = outcome.as_ref().err().map(ToString::to_string);
        self.0.trouble.send_modify(|trouble| {
            *trouble = cause.map(|cause| Trouble::going_on(trouble.as_ref(), cause));
        });
    }

    /// Runs something in etcd's thread, until it ends or this is dropped.
    async fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> T {
        let mut task = Running(self.0.runtime.spawn(task));
        match (&mut task.0).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The thread lives for as long as this.
                Err(error) => unreachable!("{error}"),
            },
        }
    }

    /// Runs something in etcd's thread and waits for it, in a thread that may block.
    fn wait<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = channel();
        // Who waits is there until it has ended.
        self.0.runtime.spawn(async move { drop(sender.send(task.await)) });
        receiver
            .recv()
            .unwrap_or_else(|_| Err(StoreError::new("waiting for etcd", "its thread has panicked")))
    }

    /// Begins something in etcd's thread.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Running<()> {
        Running(self.0.runtime.spawn(task))
    }
}

/// A task that ends when this is dropped.
struct Running<T>(JoinHandle<T>);

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
