//! A mounted pool: from the configuration to a running file system, and back to nothing without losing a byte.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::Session;
use parking_lot::Mutex;
use stdchk_client::{ClientConfig, Pool, SPOOL_BYTES_MIN, Spool};
use stdchk_model::{ErrorCode, Failure};
use stdchk_net::notice::{self, Source};
use stdchk_net::own::Folder;
use tokio::runtime::Runtime;
use tokio_util::task::TaskTracker;

use crate::fs::{FileSystem, OpenFile};
use crate::fuse::Adapter;
use crate::point::{self, Error};

/// Name of the file system for `mount` and `df`.
pub(crate) const NAME: &str = "stdchk";
/// How long the requests that are under way when the mount ends are waited for.
const DRAIN_PATIENCE: Duration = Duration::from_secs(60);

/// How to mount a pool.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// An empty directory.
    pub mount_point: PathBuf,
    /// The pool, and the memory that the mount may use.
    pub client: ClientConfig,
    /// Whether users other than the one who mounts may enter; permissions hold for all of them.
    pub allow_other: bool,
    /// Whether everything that would change the pool is refused.
    pub read_only: bool,
    /// Threads that receive the kernel's requests, at least two.
    pub threads: usize,
    /// Where files of `protocol=clw` and `iw` go first; `None`: nowhere, they go through memory.
    pub spool: Option<SpoolConfig>,
    /// Who says that the machine goes soon; `None`: nobody.
    pub notice: Option<Source>,
    /// How long the kernel believes names and attributes without asking: by so much may `stat` be behind a change made
    /// through another mount.
    pub ttl: Duration,
}

impl MountConfig {
    /// The usual configuration of a mount at `mount_point`.
    pub fn new(mount_point: PathBuf, client: ClientConfig) -> Self {
        Self {
            mount_point,
            client,
            allow_other: false,
            read_only: false,
            threads: 4,
            spool: None,
            notice: None,
            ttl: Duration::from_secs(1),
        }
    }
}

/// The spool of a mount.
#[derive(Clone, Debug)]
pub struct SpoolConfig {
    /// A directory of its own.
    pub directory: PathBuf,
    /// What it may hold, bytes; `None`: half of what is free on its disk when the mount starts.
    pub bytes_max: Option<u64>,
    /// Whether the mount fails if it can't be used; otherwise it goes without.
    pub required: bool,
}

/// How long the kernel has to let go of a mount that is out of the tree: somebody may hold files of it open, and another mount namespace, such as
/// that of a container or of a service, may have a copy of it that nobody uses. Then they are cut off.
const LEFT_PATIENCE: Duration = Duration::from_secs(1);

/// What happens to a mount.
enum Event {
    /// The kernel has let go of it.
    Ended(io::Result<()>),
    /// It is no longer in the tree; the kernel lets go of it within [`LEFT_PATIENCE`], or is not waited for.
    Left,
}

/// A mounted pool. Dropping it leaves the pool mounted until the process ends: call [`Mounted::unmount`].
pub struct Mounted {
    point: PathBuf,
    fs: Arc<FileSystem>,
    tasks: TaskTracker,
    runtime: Runtime,
    events: Mutex<Option<Receiver<Event>>>,
    tell: Sender<Event>,
}

/// Mounts a pool. Must not be called on a runtime: it brings its own.
///
/// # Errors
/// The mount point can't be one, FUSE is missing, or the pool doesn't answer; each with what to do about it.
pub fn mount(config: MountConfig) -> Result<Mounted, Error> {
    let point = point::check(&config.mount_point)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("stdchk-mount")
        .build()
        .map_err(|error| Error::system("starting threads", error))?;
    let (fs, left) = runtime.block_on(open(config.client, config.spool)).map_err(Error::Pool)?;
    let tasks = TaskTracker::new();
    for file in left {
        let fs = Arc::clone(&fs);
        tasks.spawn_on(async move { file.push(&fs).await }, runtime.handle());
    }
    if let Some(source) = config.notice {
        let fs = Arc::clone(&fs);
        // Ends with the runtime.
        runtime.spawn(notice::follow(source, move |notice| fs.set_going(notice.is_some())));
    }
    let threads = config.threads.max(2);
    let reports_arrive = config.allow_other || rustix::process::geteuid().is_root();
    let (served, on) = (Arc::clone(&fs), runtime.handle().clone());
    let kernel = Arc::new(OnceLock::new());
    let (tell_kernel, known) = (Arc::clone(&kernel), tasks.clone());
    let adapter = Adapter::new(served, on, known, config.ttl, threads, reports_arrive, tell_kernel);
    let options = point::options(NAME, config.read_only, config.allow_other, threads);
    let session = Session::new(adapter, &point, &options).map_err(|error| point::refused(&point, error))?;
    // Nobody else sets it.
    let _ = kernel.set(session.notifier());
    let session = session.spawn().map_err(|error| Error::system("starting threads", error))?;
    point::raise_read_ahead(&point);
    let (tell, events) = mpsc::channel();
    let ended = tell.clone();
    // Nobody listens any more once the mount was given up.
    std::thread::spawn(move || drop(ended.send(Event::Ended(session.join()))));
    Ok(Mounted { point, fs, tasks, runtime, events: Mutex::new(Some(events)), tell })
}

/// Connects to the pool; with what the mount before left in the spool.
async fn open(
    client: ClientConfig,
    spool: Option<SpoolConfig>,
) -> Result<(Arc<FileSystem>, Vec<Arc<OpenFile>>), Failure> {
    let pool = Pool::connect(client).await?;
    let spool = match spool {
        Some(config) => match open_spool(&config, &pool).await {
            Err(failure) if Spool::has_files(&config.directory) => {
                let directory = config.directory.display();
                let what = format!("{failure}; and files wait in {directory} to be pushed to the pool");
                // Without them their content would be written over unseen, and pushed above that later.
                return Err(
                    Failure { message: what, ..failure }.then("mount again once the spool can be used")
                );
            }
            Err(failure) if !config.required => {
                tracing::warn!(%failure, "there is no spool: files of `protocol=clw` and `iw` go through memory");
                None
            }
            opened => Some(opened?),
        },
        None => None,
    };
    let fs = Arc::new(FileSystem::new(pool, spool).await?);
    let left = fs.take_up_spool().await?;
    Ok((fs, left))
}

async fn open_spool(config: &SpoolConfig, pool: &Pool) -> Result<Arc<Spool>, Failure> {
    let directory = &config.directory;
    let refused = |error: io::Error| {
        Failure::new(ErrorCode::Invalid, format!("the spool {}: {error}", directory.display()))
    };
    Folder::make(directory).map_err(refused)?;
    let space = rustix::fs::statvfs(directory).map_err(|error| refused(error.into()))?;
    let half = space.f_bavail.saturating_mul(space.f_frsize) / 2;
    if config.bytes_max.is_none() && half < SPOOL_BYTES_MIN && Spool::has_files(directory) {
        // What it has is pushed, and nothing new goes there.
        let spool = Spool::open(directory, SPOOL_BYTES_MIN, pool).await?;
        tracing::warn!(spool = %directory.display(), "the disk of the spool is full: new files go through memory");
        spool.close_for_new(true);
        return Ok(spool);
    }
    Spool::open(directory, config.bytes_max.unwrap_or(half), pool).await
}

impl Mounted {
    /// The mount point, as a full path.
    pub fn mount_point(&self) -> &Path {
        &self.point
    }

    /// Waits until someone unmounts the pool, then ends what is open and waits until all is committed.
    ///
    /// # Errors
    /// The kernel's requests could not be served to the end; or files that were closed early are lost and no program was
    /// told.
    pub fn join(&self) -> Result<(), Error> {
        let served = self.wait();
        self.runtime.block_on(self.end());
        served?;
        match self.fs.unreported_losses() {
            0 => Ok(()),
            files => Err(Error::Lost { files }),
        }
    }

    /// Waits until someone unmounts the pool: no request comes any more, or those that come don't count. [`Mounted::join`] does the
    /// rest.
    ///
    /// # Errors
    /// The kernel's requests could not be served to the end.
    pub fn wait(&self) -> Result<(), Error> {
        // Whoever waits once more finds the mount ended.
        let Some(events) = self.events.lock().take() else { return Ok(()) };
        let served = match events.recv() {
            Ok(Event::Left) => match events.recv_timeout(LEFT_PATIENCE) {
                Ok(Event::Ended(served)) => served,
                Ok(Event::Left) | Err(_) => Ok(()),
            },
            Ok(Event::Ended(served)) => served,
            Err(_) => Ok(()),
        };
        served.map_err(|error| Error::system("serving the kernel's requests", error))
    }

    /// Unmounts, so that [`Mounted::join`] returns. Files that stay open are cut off; what was written to them is
    /// committed as interrupted versions.
    ///
    /// # Errors
    /// The system refused.
    pub fn unmount(&self) -> Result<(), Error> {
        point::unmount(&self.point)?;
        // Without a listener the mount has ended already.
        let _ = self.tell.send(Event::Left);
        Ok(())
    }

    async fn end(&self) {
        self.fs.begin_end();
        self.tasks.close();
        if tokio::time::timeout(DRAIN_PATIENCE, self.tasks.wait()).await.is_err() {
            tracing::warn!("requests are still under way: they are given up");
        }
        self.fs.end().await;
    }
}
