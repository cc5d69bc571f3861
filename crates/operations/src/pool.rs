//! A connection to a pool, and what its operations share: the work that ends in the background.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stdchk_client::{ClientConfig, Pool as Client};
use stdchk_model::limits::WINDOW_BYTES_DEFAULT;
use stdchk_model::message::manager::Attr;
use stdchk_model::{BenefactorId, Policy};
use stdchk_net::Keys;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio_util::task::TaskTracker;

use crate::error::{About, Code, Error, Result};
use crate::namespace;
use crate::target::Target;

/// How to reach a pool.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the manager is, `unix:PATH` or `HOST:PORT`.
    pub manager: String,
    /// The keys of this member of the pool, [`Keys::load`]; `None`: all of the pool is on this machine.
    pub keys: Option<Arc<Keys>>,
    /// Memory for writes in flight, bytes.
    pub window_bytes: u64,
    /// Time for which the manager may be away before an operation fails. A minute covers its restart.
    pub patience: Duration,
    /// The folder of this client's encryption keys, which need not be there; `None`: it has none.
    pub encryption_keys: Option<PathBuf>,
    /// A manager with an older state of the pool than another one that was heard is better than none: to see how it is, and to decide.
    pub or_older: bool,
}

impl Options {
    /// A pool on this machine with this manager, the default window and a minute of patience.
    pub fn new(manager: impl Into<String>) -> Self {
        Self {
            manager: manager.into(),
            keys: None,
            window_bytes: WINDOW_BYTES_DEFAULT,
            patience: Duration::from_secs(60),
            encryption_keys: None,
            or_older: false,
        }
    }
}

/// A connection to a pool. Cheap to clone; clones share connections and memory.
#[derive(Clone)]
pub struct Pool {
    pub(crate) client: Client,
    pub(crate) manager: String,
    /// Work that goes on when its caller has gone away: to its end, or to take back what was begun.
    tasks: TaskTracker,
    runtime: Handle,
}

impl Pool {
    /// Connects to a pool. Must be called on a runtime with several threads, on which the pool's tasks then run.
    ///
    /// # Errors
    /// [`Code::Unreachable`]: nobody answers there. [`Code::Denied`]: the keys are another pool's. [`Code::Invalid`]: the
    /// runtime has one thread only.
    pub async fn connect(options: Options) -> Result<Self> {
        let about = format!("manager {}", options.manager);
        if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
            let next = "use a runtime with several threads";
            return Err(Error::invalid(about, "files can't be read on the runtime's only thread", next));
        }
        let Options { manager, keys, window_bytes, patience, encryption_keys, or_older } = options;
        let config = ClientConfig {
            manager: manager.clone(),
            keys,
            window_bytes,
            patience,
            encryption_keys,
            or_older,
            ..ClientConfig::default()
        };
        let client = match Client::connect(config).await.about(&about) {
            Err(error) if error.code == Code::Unreachable => {
                let next = "check the address, and that the manager runs; `stdchk up` starts a local pool";
                return Err(Error { next: next.to_owned(), ..error });
            }
            connected => connected?,
        };
        let tasks = TaskTracker::new();
        // A tracker that is closed still takes tasks; one that is open is waited for without end.
        tasks.close();
        Ok(Self { client, manager, tasks, runtime: Handle::current() })
    }

    /// Waits until everything has ended that operations left to the background: the taking back of what they had begun
    /// when they were dropped, and what is learned from versions that were committed.
    pub async fn close(&self) {
        self.settle().await;
        self.client.close().await;
    }

    /// Tells the manager that this client ends by its own will; [`Pool::close`] does so, too.
    pub async fn leave(&self) {
        self.client.leave().await;
    }

    /// Waits until what dropped operations had begun is taken back.
    pub async fn settle(&self) {
        self.tasks.wait().await;
    }

    /// The runtime on which its tasks run.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs `work` to its end, also when the caller goes away meanwhile.
    pub(crate) async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.tasks.spawn_on(work, &self.runtime).await.map_err(|error| Error::of_task(&error))?
    }

    /// Runs `work`, which [`Pool::settle`] waits for.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, &self.runtime);
    }

    /// `work` as [`Pool::settle`] knows of it, for a task that may be dropped.
    pub(crate) fn tracked<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        self.tasks.track_future(work)
    }

    /// What there is under a name.
    ///
    /// # Errors
    /// [`Code::NotFound`]: nothing.
    pub async fn attr(&self, target: &Target) -> Result<Attr> {
        namespace::resolve(&self.client, target).await
    }

    /// The folder of this name.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is nothing of the name. [`Code::WrongKind`]: it is no folder.
    pub async fn folder(&self, target: &Target) -> Result<Attr> {
        namespace::resolve_folder(&self.client, target).await
    }

    /// The policy that holds for a file or folder.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such thing.
    pub async fn policy(&self, target: &Target) -> Result<Policy> {
        let attr = self.attr(target).await?;
        self.client.policy(attr.ino).await.about(target.shown())
    }

    /// Makes a folder and the folders above it, where they are missing.
    ///
    /// # Errors
    /// [`Code::WrongKind`]: one of the names is a file's.
    pub async fn make_folder(&self, target: &Target) -> Result {
        namespace::make_folders(&self.client, &target.names).await.map(drop)
    }

    /// Takes a benefactor out of the pool that is not on-line; with `force` also if it has the only copy of chunks, which
    /// are lost then.
    ///
    /// # Errors
    /// [`Code::Denied`]: it is on-line, or has the only copy of something. [`Code::NotFound`]: the pool has none of that id.
    pub async fn forget(&self, id: BenefactorId, force: bool) -> Result {
        self.client.forget(id, force).await.about(format_args!("benefactor {id}"))
    }

    /// Goes on with a manager's store that is an older copy. What was stored since the copy was made is given up.
    ///
    /// # Errors
    /// [`Code::Invalid`]: the store is not an older copy. [`Code::Unreachable`]: another benefactor has come meanwhile that
    /// remembers more.
    pub async fn accept_older_store(&self) -> Result {
        let about = self.shown();
        if self.status().await?.set_back.is_empty() {
            let cause = "no benefactor that is here remembers more than its store holds";
            return Err(Error::invalid(about, cause, "there is nothing to accept; see `stdchk status`"));
        }
        self.client.accept_older_store().await.about(&about)?;
        match self.status().await?.set_back.is_empty() {
            true => Ok(()),
            false => {
                let cause = "another benefactor has come meanwhile that remembers more";
                Err(Error::new(Code::Unreachable, about, cause, "run the command again"))
            }
        }
    }

    /// The pool, in messages.
    pub(crate) fn shown(&self) -> String {
        format!("manager {}", self.manager)
    }
}
