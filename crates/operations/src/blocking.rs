//! The same operations for programs without a runtime, such as scripts and plug-ins.
//!
//! A [`Pool`] owns a runtime with threads of its own. Its methods wait for the operation to end. They must not be called on
//! a thread of another runtime, which would be kept from its work.
//!
//! ```no_run
//! use stdchk_operations::{Code, Options, Put, Source, Target, Watch, blocking};
//!
//! # fn example() -> Result<(), stdchk_operations::Error> {
//! let pool = blocking::Pool::connect(Options::new("unix:/srv/stdchk/socket"))?;
//! let put = Put {
//!     sources: vec![Source::Path("restart.120000".into())],
//!     target: Target::parse("climate")?,
//!     into_folder: true,
//!     recursive: false,
//! };
//! let stored = pool.put(&put, &Watch::default())?;
//! stored.tally.outcome("climate")?;
//! for set in pool.sets(&Target::parse("climate")?)?.sets {
//!     println!("{} {:?}", set.timestep, set.state);
//! }
//! let restart = pool.open(&Target::parse("climate/restart.120000")?)?;
//! let head = pool.wait(restart.read_at(0, 4096))?;
//! println!("{} of {} bytes", head.len(), restart.size());
//! # Ok(())
//! # }
//! ```

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stdchk_client::Depth;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::Placement;
use stdchk_model::{BenefactorId, Policy, Timestep};
use tokio::runtime::{Builder, Runtime};

use crate::error::{About, Code, Error, Result};
use crate::{
    Advice, Collected, Difference, Entries, Fates, Fetched, FileVersions, JoinedHost, Latest, NewVersion,
    OpenFile, Opening, Options, PolicyChange, PolicyChanged, Put, Remove, Rename, Restore, Restored, Sets,
    Stat, Status, Stored, StoredFile, Target, Usage, Verified, Verify, Watch, WhenAway,
};

/// How often it is asked whether an operation is to end.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Time that tasks get to end once the pool is dropped: enough to remove temporary files.
const END_TIMEOUT: Duration = Duration::from_secs(2);

type IsOver = dyn Fn() -> bool + Send + Sync;

/// A connection to a pool, with a runtime of its own.
pub struct Pool {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    pool: crate::Pool,
    is_over: Option<Arc<IsOver>>,
}

impl Pool {
    /// Connects to a pool.
    ///
    /// # Errors
    /// Those of [`crate::Pool::connect`]; the system gives no threads.
    pub fn connect(options: Options) -> Result<Self> {
        let runtime = Builder::new_multi_thread().enable_all().build().about("threads")?;
        let pool = runtime.block_on(crate::Pool::connect(options))?;
        Ok(Self { runtime: Some(runtime), pool, is_over: None })
    }

    /// Ends operations with [`Code::Interrupted`] once `is_over` says so. It is asked ten times a second, on the thread that
    /// waits for the operation.
    #[must_use]
    pub fn until(self, is_over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        let mut this = self;
        this.is_over = Some(Arc::new(is_over));
        this
    }

    /// The asynchronous face of this connection; for what has no method here.
    pub fn asynchronous(&self) -> &crate::Pool {
        &self.pool
    }

    /// Waits for an operation.
    ///
    /// # Errors
    /// Those of the operation; [`Code::Interrupted`], see [`Pool::until`].
    pub fn wait<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(runtime) = &self.runtime else {
            return Err(Error::defect("the pool", "it is used while it is dropped"));
        };
        let outcome = runtime.block_on(async {
            tokio::select! {
                outcome = operation => outcome,
                () = self.interruption() => Err(Error::new(
                    Code::Interrupted,
                    "the operation",
                    "it was told to stop",
                    "what had not ended by then did not happen; run it again",
                )),
            }
        });
        if outcome.as_ref().is_err_and(|error| error.code == Code::Interrupted) {
            runtime.block_on(self.pool.settle());
        }
        outcome
    }

    async fn interruption(&self) {
        let Some(is_over) = &self.is_over else { return std::future::pending().await };
        while !is_over() {
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Stores files: [`crate::Pool::put`].
    ///
    /// # Errors
    /// Those of that method, here and below.
    pub fn put(&self, put: &Put, watch: &Watch) -> Result<Stored> {
        self.wait(self.pool.put(put, watch))
    }

    /// Stores a stream: [`crate::Pool::put_from`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn put_from(
        &self,
        source: impl Read + Send + 'static,
        source_name: &str,
        target: &Target,
        watch: &Watch,
    ) -> Result<StoredFile> {
        self.wait(self.pool.put_from(source, source_name, target, watch))
    }

    /// Fetches a file: [`crate::Pool::get`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn get(&self, target: &Target, path: &Path, watch: &Watch) -> Result<Fetched> {
        self.wait(self.pool.get(target, path, watch))
    }

    /// Writes a file to a stream: [`crate::Pool::get_to`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn get_to(
        &self,
        target: &Target,
        sink: &mut (dyn Write + Send),
        sink_name: &str,
        watch: &Watch,
    ) -> Result<u64> {
        self.wait(self.pool.get_to(target, sink, sink_name, watch))
    }

    /// Opens a file for reading: [`crate::Pool::open`]. Its methods are waited for by [`Pool::wait`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn open(&self, target: &Target) -> Result<OpenFile> {
        self.wait(self.pool.open(target))
    }

    /// Begins a new version of a file: [`crate::Pool::create`]. Its methods are waited for by [`Pool::wait`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn create(&self, target: &Target, mode: u32, opening: Opening) -> Result<NewVersion> {
        self.wait(self.pool.create(target, mode, opening))
    }

    /// Lists a folder: [`crate::Pool::list`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn list(&self, target: &Target) -> Result<Entries> {
        self.wait(self.pool.list(target))
    }

    /// Lists versions: [`crate::Pool::versions`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn versions(&self, target: &Target) -> Result<Vec<FileVersions>> {
        self.wait(self.pool.versions(target))
    }

    /// Lists checkpoint sets: [`crate::Pool::sets`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn sets(&self, app: &Target) -> Result<Sets> {
        self.wait(self.pool.sets(app))
    }

    /// Says what is known of an object: [`crate::Pool::stat`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn stat(&self, target: &Target, watch: &Watch) -> Result<Stat> {
        self.wait(self.pool.stat(target, watch))
    }

    /// Removes: [`crate::Pool::remove`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn remove(&self, remove: &Remove) -> Result<Vec<Target>> {
        self.wait(self.pool.remove(remove))
    }

    /// Renames: [`crate::Pool::rename`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn rename(&self, rename: &Rename) -> Result {
        self.wait(self.pool.rename(rename))
    }

    /// Makes a folder: [`crate::Pool::make_folder`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn make_folder(&self, target: &Target) -> Result {
        self.wait(self.pool.make_folder(target))
    }

    /// Sets owner and permission bits: [`crate::Pool::set_ownership`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn set_ownership(&self, target: &Target, owner: Option<(u32, u32)>, mode: Option<u32>) -> Result {
        self.wait(self.pool.set_ownership(target, owner, mode))
    }

    /// Says how much is held: [`crate::Pool::usage`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn usage(&self, target: &Target) -> Result<Usage> {
        self.wait(self.pool.usage(target))
    }

    /// Compares versions: [`crate::Pool::diff`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn diff(&self, first: &Target, second: Option<&Target>, watch: &Watch) -> Result<Difference> {
        self.wait(self.pool.diff(first, second, watch))
    }

    /// Finds the newest set that can be restarted from: [`crate::Pool::latest`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn latest(&self, app: &Target, when_away: WhenAway, depth: Depth, watch: &Watch) -> Result<Latest> {
        self.wait(self.pool.latest(app, when_away, depth, watch))
    }

    /// Fetches the files of a set: [`crate::Pool::restore`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn restore(&self, restore: &Restore, watch: &Watch) -> Result<Restored> {
        self.wait(self.pool.restore(restore, watch))
    }

    /// Verifies: [`crate::Pool::verify`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn verify(&self, verify: &Verify, watch: &Watch) -> Result<Verified> {
        self.wait(self.pool.verify(verify, watch))
    }

    /// The policy of a file or folder: [`crate::Pool::policy`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn policy(&self, target: &Target) -> Result<Policy> {
        self.wait(self.pool.policy(target))
    }

    /// Changes a policy: [`crate::Pool::set_policy`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn set_policy(&self, change: &PolicyChange) -> Result<PolicyChanged> {
        self.wait(self.pool.set_policy(change))
    }

    /// Says what would become of checkpoint sets: [`crate::Pool::fates`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn fates(&self, app: &Target, lifetime: Option<&str>) -> Result<Fates> {
        self.wait(self.pool.fates(app, lifetime))
    }

    /// Ends a job that has succeeded: [`crate::Pool::done`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn done(&self, app: &Target, dry_run: bool) -> Result<Fates> {
        self.wait(self.pool.done(app, dry_run))
    }

    /// Seals a checkpoint set: [`crate::Pool::seal`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn seal(&self, app: &Target, timestep: Timestep, sealed: bool) -> Result {
        self.wait(self.pool.seal(app, timestep, sealed))
    }

    /// Says where new files go: [`crate::Pool::placement`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn placement(&self, target: &Target) -> Result<Placement> {
        self.wait(self.pool.placement(target))
    }

    /// Says how often to take checkpoints: [`crate::Pool::advise`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn advise(&self, app: &Target, hosts: u32, mean_time_to_failure_s: Option<f64>) -> Result<Advice> {
        self.wait(self.pool.advise(app, hosts, mean_time_to_failure_s))
    }

    /// Collects: [`crate::Pool::collect`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn collect(&self, dry_run: bool) -> Result<Collected> {
        self.wait(self.pool.collect(dry_run))
    }

    /// Says how the pool is: [`crate::Pool::status`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn status(&self) -> Result<Status> {
        self.wait(self.pool.status())
    }

    /// Lists members: [`crate::Pool::members`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn members(&self) -> Result<Vec<JoinedHost>> {
        self.wait(self.pool.members())
    }

    /// Revokes the keys of a member: [`crate::Pool::revoke`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn revoke(&self, member: MemberId) -> Result {
        self.wait(self.pool.revoke(member))
    }

    /// Forgets a benefactor: [`crate::Pool::forget`].
    ///
    /// # Errors
    /// Those of that method.
    pub fn forget(&self, id: BenefactorId, force: bool) -> Result {
        self.wait(self.pool.forget(id, force))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(self.pool.close());
            runtime.shutdown_timeout(END_TIMEOUT);
        }
    }
}
