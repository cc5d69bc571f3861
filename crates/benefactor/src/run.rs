//! A benefactor's life: take the data directory, open the store, serve, keep the manager informed, leave in order.

use std::fs;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::labels::Labels;
use stdchk_model::limits::{BLOCK_BYTES_MAX, HEARTBEAT_MS};
use stdchk_model::message::benefactor::OwnerWish;
use stdchk_model::message::handshake::Role;
use stdchk_model::{Failure, Incarnation, PoolId, ReceiptKey, Tier};
use stdchk_net::notice::{self, Source};
use stdchk_net::own;
use stdchk_net::server::Host;
use stdchk_net::{BufferPool, DataDir, DataDirError, Keys, Listener, Managers, Repeats, elsewhere, serve};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::care;
use crate::copy::{Copier, Copies};
use crate::hours::Hours;
use crate::journal::Kept;
use crate::labels;
use crate::link::{self, Link};
use crate::load::{self, Thresholds};
use crate::memory::Memory;
use crate::pace::Caps;
use crate::service::{Benefactor, blocking};
use crate::store::disk::is_in_memory;
use crate::store::{Donation, SEGMENT_BYTES, Store, StoreError};
use crate::wish::{self, Decision};

/// File in the data directory that holds the address on which the benefactor serves, while it does.
pub const ADDRESS_FILE: &str = "address";
const SEGMENTS: &str = "segments";
const NEAR: &str = "near";
/// Near copies may take one of so many parts of the donation, unless the owner says otherwise.
const NEAR_PARTS: u64 = 4;
/// Before the port: all addresses of this machine, of both versions of IP.
const ANY_HOST: &str = "[::]:";
/// Time that requests under way get when the benefactor leaves.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the last commits of the manager when the benefactor leaves.
const LAST_COMMITS_TIMEOUT: Duration = Duration::from_secs(1);
/// Blocks that fit into the smallest memory budget: fewer, and reading waits for writing.
const BLOCKS_IN_MEMORY_MIN: usize = 4;

/// What a benefactor is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Directory of its own; made if it isn't there.
    pub data_dir: PathBuf,
    /// Where to serve, `unix:PATH` or `HOST:PORT`; port 0: any.
    pub listen: String,
    /// Where others reach it, `HOST:PORT`, if that is not where it listens: behind a gateway, say.
    pub advertise: Option<String>,
    /// Where managers serve, with commas between them.
    pub manager: String,
    /// The keys of this member of the pool; `None`: all of the pool is on this machine.
    pub keys: Option<Arc<Keys>>,
    /// Space that the store may take, bytes.
    pub donated_bytes: u64,
    /// Free space that the file system keeps, bytes.
    pub floor_bytes: u64,
    /// Space that near copies may take of the donation while nothing else needs it, bytes; `None`: a quarter.
    pub near_bytes: Option<u64>,
    /// Where its folder keeps blocks; `None`: in memory if it lies on a file system in memory, else on a disk.
    pub tier: Option<Tier>,
    /// Memory for blocks in flight, bytes.
    pub memory_bytes: usize,
    /// Interval of heartbeats.
    pub heartbeat: Duration,
    /// Bytes read per second in search of damage; 0: none.
    pub scrub_bytes_per_second: u64,
    /// Most bytes that are read from the disk and written there per second, at least [`RATE_MIN`](crate::RATE_MIN); 0: any.
    pub disk_bytes_per_second: u64,
    /// Most bytes that are sent and received per second, at least [`RATE_MIN`](crate::RATE_MIN); 0: any.
    pub network_bytes_per_second: u64,
    /// From which loads on it counts as busy.
    pub thresholds: Thresholds,
    /// Outside of these hours it is as if paused; `None`: it never is.
    pub hours: Option<Hours>,
    /// What the owner says of where it stands; empty: what was said before.
    pub labels: Labels,
    /// Who says that the machine goes soon; `None`: nobody.
    pub notice: Option<Source>,
    /// Time for what is here to move to others once the process is warned of its end.
    pub grace: Duration,
}

impl Config {
    /// A benefactor in `data_dir` for the pool of `manager`, all on this machine, with the usual values for the rest.
    pub fn new(data_dir: PathBuf, manager: String, listen: String, donated_bytes: u64) -> Self {
        Self {
            data_dir,
            listen,
            advertise: None,
            manager,
            keys: None,
            donated_bytes,
            floor_bytes: 1 << 30,
            near_bytes: None,
            tier: None,
            memory_bytes: 64 << 20,
            heartbeat: Duration::from_millis(HEARTBEAT_MS),
            scrub_bytes_per_second: 4 << 20,
            disk_bytes_per_second: 0,
            network_bytes_per_second: 0,
            // Others on the same disk may be benefactors as well.
            thresholds: Thresholds { refusing_from: None, ..Thresholds::default() },
            hours: None,
            labels: Vec::new(),
            notice: None,
            grace: Duration::ZERO,
        }
    }
}

/// Why a benefactor doesn't run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its directory can't be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Its store can't be opened or closed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address can't be listened on.
    #[error("can't listen on {address}: {cause}; stop who does, or choose another address")]
    Listen {
        /// The address.
        address: String,
        /// What the system said.
        cause: io::Error,
    },
    /// The pool has forgotten it, as its owner wished.
    #[error(
        "the benefactor of {0} has left its pool and holds nothing: `stdchk benefactor resume` lets it start again as one of the pool, or \
         remove the folder"
    )]
    Left(PathBuf),
    /// Something else failed.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Runs a benefactor until `stop` resolves, or the pool has forgotten it as its owner wished; then what was stored is durable and the
/// directory is free.
///
/// # Errors
/// It can't start, or its last sync failed. A manager that isn't there is no error: it is tried again.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), Error> {
    run_warned(config, std::future::pending(), stop).await
}

/// Runs a benefactor as [`run`] does, that may be warned of its end: `warned` resolves then. It has its grace from then on, and ends
/// earlier once the manager knows of nothing for which it should stay.
///
/// # Errors
/// Those of [`run`].
pub async fn run_warned(
    config: Config,
    warned: impl Future<Output = ()>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (warning, mut is_warned) = watch::channel(false);
    let is_warned_later = is_warned.clone();
    let grace = config.grace;
    let is_over = async {
        warned.await;
        warning.send_replace(true);
        tokio::time::sleep(grace).await;
    };
    // Both are looked at to the end: whoever was warned may be told to stop as well.
    let stop = async {
        tokio::select! {
            () = stop => {}
            () = is_over => {}
        }
    };
    tokio::pin!(stop);
    let mut directory = DataDir::open(&config.data_dir, Role::Benefactor)?;
    let wish = wish_of(&config.data_dir)?;
    let labels = labels_of(&config)?;
    let tier = tier_of(&config)?;
    let address_file = config.data_dir.join(ADDRESS_FILE);
    let _ = fs::remove_file(&address_file);
    let caps = Arc::new(Caps::new(config.disk_bytes_per_second, config.network_bytes_per_second));
    let store = open_store(&config).await?;
    let (listener, listens) = listen(&config.listen).await?;
    let address = config.advertise.clone().unwrap_or(listens);
    tracing::info!(listen = config.listen, address, manager = config.manager, "this benefactor serves");
    let buffers = BufferPool::new(config.memory_bytes.max(BLOCKS_IN_MEMORY_MIN * BLOCK_BYTES_MAX));
    let pool = tokio::select! {
        () = &mut stop => return Ok(()),
        // One of no pool has nothing that could be moved.
        _ = is_warned.wait_for(|is_warned| *is_warned) => return Ok(()),
        pool = own_pool(&config, &mut directory, &buffers) => pool?,
    };
    let memory = Arc::new(Memory::open(&config.data_dir));
    let kept = open_journal(&config.data_dir).await?;
    directory.benefactor().into_iter().for_each(|number| kept.is_of(number));
    let life = (Incarnation(random()?), receipt_key()?);
    let terms = (caps, config.thresholds);
    let benefactor = Benefactor::on_terms(store, (memory, kept), Arc::clone(&buffers), life, terms);
    benefactor.set_wish(wish::at_this_hour(wish, config.hours.as_ref()));
    if let Err(error) = own::replace(&address_file, &format!("{address}\n"), crate::READABLE) {
        // The manager is told the address, and the others ask the manager.
        tracing::warn!(path = %address_file.display(), %error, "the address can't be written down");
    }
    let (leaving, left) = watch::channel(());
    let host = Host::new(Role::Benefactor, pool, config.keys.clone());
    let serving = tokio::spawn(serve(listener, host, Arc::clone(&benefactor), buffers, until_dropped(left)));
    let mut background = start_background(&config, &benefactor, pool, (address, labels, tier), directory);
    let gone = tokio::select! {
        () = &mut stop => None,
        () = benefactor.left() => None,
        () = moved(&benefactor, is_warned_later, grace) => None,
        error = until_gone(benefactor.store(), config.heartbeat) => Some(error),
    };
    if let Some(error) = gone {
        // There is nothing to leave in order: what is stored here is gone, and who asks shall ask others.
        background.shutdown().await;
        return Err(error);
    }
    let _ = fs::remove_file(&address_file);
    benefactor.leave(LEAVE_TIMEOUT).await;
    benefactor.kept().leave(LAST_COMMITS_TIMEOUT).await;
    drop(leaving);
    let _ = serving.await;
    if benefactor.is_left() {
        // What was put while the pool forgot it: no receipt of it counts.
        let store = Arc::clone(benefactor.store());
        blocking(move || store.clear()).await??;
    }
    // The directory's lock is held by the background, and let go last.
    let synced = match benefactor.store().is_unsynced() {
        true => benefactor.sync().await,
        false => Ok(()),
    };
    let store = Arc::clone(benefactor.store());
    blocking(move || store.end_compaction()).await?;
    background.shutdown().await;
    let kept = Arc::clone(benefactor.kept());
    if let Err(error) = blocking(move || kept.sync()).await? {
        tracing::warn!(%error, "the last commits of the manager may not be kept here");
    }
    Ok(synced?)
}

async fn open_store(config: &Config) -> Result<Arc<Store>, Error> {
    let directory = config.data_dir.join(SEGMENTS);
    let donation = Donation { donated_bytes: config.donated_bytes, floor_bytes: config.floor_bytes };
    // At no rate: while what a kill left is read, the benefactor is away, and the pool may make anew what it has.
    let near = config.data_dir.join(NEAR);
    let near_bytes = config.near_bytes.unwrap_or(config.donated_bytes / NEAR_PARTS);
    let folder = config.data_dir.clone();
    let tier = config.tier;
    let open = move || {
        if tier != Some(Tier::Memory) && is_in_memory(&folder).unwrap_or(false) {
            let path = folder.display();
            match tier {
                None => {
                    tracing::info!(%path, "this folder is in memory: this is a benefactor of the memory tier")
                }
                _ => {
                    tracing::warn!(%path, "this folder is in memory: what counts as stored on a disk is lost with the machine")
                }
            }
        }
        let (store, recovered) = Store::open(&directory, donation, SEGMENT_BYTES)?;
        Ok::<_, StoreError>((store.with_near(&near, near_bytes), recovered))
    };
    let (store, recovered) = blocking(open).await??;
    let (path, blocks, torn) = (config.data_dir.display(), recovered.blocks, recovered.torn);
    tracing::info!(%path, blocks, torn, verified_segments = recovered.verified_segments, "store opened");
    Ok(Arc::new(store))
}

/// What the owner of a folder wishes.
fn wish_of(folder: &Path) -> Result<OwnerWish, Error> {
    let path = || folder.to_owned();
    match wish::decision(folder) {
        Ok(Decision::Wish(wish)) => Ok(wish),
        Ok(Decision::Left) => Err(Error::Left(path())),
        Err(cause) => {
            Err(StoreError::Io { action: "read what the owner wishes in", path: path(), cause }.into())
        }
    }
}

/// The labels that hold.
fn labels_of(config: &Config) -> Result<Labels, Error> {
    let path = || config.data_dir.clone();
    let settled = labels::settle(&config.data_dir, &config.labels);
    settled.map_err(|cause| StoreError::Io { action: "settle the labels in", path: path(), cause }.into())
}

/// Where it keeps blocks.
fn tier_of(config: &Config) -> Result<Tier, Error> {
    let path = || config.data_dir.clone();
    let looked_at = |in_memory| if in_memory { Tier::Memory } else { Tier::Disk };
    let found = config.tier.map_or_else(|| is_in_memory(&config.data_dir).map(looked_at), Ok);
    found.map_err(|cause| StoreError::Io { action: "find the file system of", path: path(), cause }.into())
}

/// What is kept of the manager's store.
async fn open_journal(directory: &Path) -> Result<Arc<Kept>, Error> {
    let directory = directory.to_owned();
    Ok(Arc::new(blocking(move || Kept::open(&directory)).await?))
}

async fn listen(address: &str) -> Result<(Listener, String), Error> {
    let refused = |cause| Error::Listen { address: address.to_owned(), cause };
    let listener = match Listener::bind(address).await {
        // A machine without IPv6.
        Err(_) if address.starts_with(ANY_HOST) => {
            Listener::bind(&address.replacen(ANY_HOST, "0.0.0.0:", 1)).await
        }
        listening => listening,
    };
    let listener = listener.map_err(refused)?;
    let addresses = listener.addresses().map_err(refused)?;
    let [first, others @ ..] = addresses.as_slice() else { unreachable!("it listens at one address") };
    // A name of several addresses: others may reach any of them.
    let told = match (others, address.rsplit_once(':'), first.rsplit_once(':')) {
        ([_, ..], Some((name, _)), Some((_, port))) => format!("{name}:{port}"),
        _ => first.clone(),
    };
    Ok((listener, told))
}

async fn own_pool(
    config: &Config,
    directory: &mut DataDir,
    buffers: &Arc<BufferPool>,
) -> Result<PoolId, Error> {
    if let Some(pool) = directory.pool() {
        return Ok(pool);
    }
    let managers = Managers::known(&config.manager, config.keys.clone());
    let pool = link::learn_pool(&managers, config.keys.clone(), buffers).await;
    directory.claim(pool, None)?;
    Ok(pool)
}

fn start_background(
    config: &Config,
    benefactor: &Arc<Benefactor>,
    pool: PoolId,
    (address, labels, tier): (String, Labels, Tier),
    directory: DataDir,
) -> JoinSet<()> {
    // Buffers of their own: what runs in the background never takes memory that clients wait for.
    let buffers = BufferPool::new(2 * BLOCK_BYTES_MAX);
    let copier = Copier {
        benefactor: Arc::clone(benefactor),
        pool,
        keys: config.keys.clone(),
        buffers: Arc::clone(&buffers),
        turns: Copier::turns(),
    };
    let link = Link {
        managers: managers_of(config, benefactor.memory()),
        keys: config.keys.clone(),
        listens: address,
        labels,
        tier,
        heartbeat: config.heartbeat,
        folder: Arc::from(config.data_dir.as_path()),
        benefactor: Arc::clone(benefactor),
        copies: Copies::new(copier),
        buffers,
        missed: Repeats::default(),
    };
    let mut background = JoinSet::new();
    let store = Arc::clone(benefactor.store());
    elsewhere(move || store.learn_near());
    background.spawn(Arc::clone(link.copies.reach()).keep_trying());
    background.spawn(link.keep(directory));
    background.spawn(care::scrub(Arc::clone(benefactor), config.scrub_bytes_per_second));
    background.spawn(care::compact(Arc::clone(benefactor)));
    let folder: Arc<Path> = Arc::from(config.data_dir.as_path());
    background.spawn(load::watch(Arc::clone(benefactor), Arc::clone(&folder)));
    background.spawn(wish::obey(Arc::clone(benefactor), folder, config.hours.clone()));
    if let Some(source) = config.notice.clone() {
        let benefactor = Arc::clone(benefactor);
        background.spawn(notice::follow(source, move |notice| benefactor.set_notice(notice)));
    }
    background
}

/// The pool's managers. One with an older state is told that there is a newer one: it serves readers alone from then on.
fn managers_of(config: &Config, memory: &Memory) -> Managers {
    let managers = Managers::known(&config.manager, config.keys.clone()).or_older();
    memory.term().into_iter().for_each(|term| managers.hear(term.era));
    managers
}

/// Ready when the process was warned of its end, and what is here was moved to others.
async fn moved(benefactor: &Benefactor, mut is_warned: watch::Receiver<bool>, grace: Duration) {
    if is_warned.wait_for(|is_warned| *is_warned).await.is_err() || grace.is_zero() {
        return std::future::pending().await;
    }
    benefactor.ends_within(grace);
    benefactor.may_end().await;
}

/// Ready when somebody has taken the store's files away.
async fn until_gone(store: &Arc<Store>, interval: Duration) -> Error {
    loop {
        tokio::time::sleep(interval).await;
        let looked_at = Arc::clone(store);
        match blocking(move || looked_at.check_presence()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.into(),
            Err(failure) => return failure.into(),
        }
    }
}

async fn until_dropped(mut left: watch::Receiver<()>) {
    while left.changed().await.is_ok() {}
}

fn random() -> Result<u64, Error> {
    getrandom::u64().map_err(no_random)
}

fn receipt_key() -> Result<ReceiptKey, Error> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(no_random)?;
    Ok(ReceiptKey(key))
}

fn no_random(error: getrandom::Error) -> Error {
    let message = format!("the system gives no random numbers: {error}");
    Failure::new(stdchk_model::ErrorCode::Internal, message).into()
}
