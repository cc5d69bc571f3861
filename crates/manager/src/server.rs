//! The shell: opens the data directory and the store, listens, and runs what happens by itself.
//!
//! A manager whose store is in etcd stands by until it leads ([`run`]), and says to whoever greets it who does ([`waiting`]).
//!
//! Four things run beside the server: commits, a clock that makes the core look at leases, what follows from events for many chunks,
//! collection among it, and rankings of benefactors.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::limits::BODY_BYTES_MAX;
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::handshake::{Join, Joined, MemberId, Role};
use stdchk_model::message::manager::{Era, ManagerInfo, ManagerReply, ManagerRequest, Moment};
use stdchk_model::user::{GROUPS_MAX, ROOT};
use stdchk_model::{BenefactorId, ErrorCode, Failure, MomentKey, PoolId, User, cbor};
use stdchk_net::server::Host;
use stdchk_net::transport::socket_of;
use stdchk_net::{
    Admission, Authority, Buffer, BufferPool, Bytes, Caller, DataDir, DataDirError, Keys, KeysError,
    Listener, Repeats, Service, elsewhere, serve,
};
use tokio::sync::{Notify, watch};

use crate::STORE_FILE;
use crate::config::Config;
use crate::core::{Asker, Collected, Core, Cursor, NewMember, Now, Setting};
use crate::etcd::{Candidacy, Etcd, EtcdStore, Leadership, Place};
use crate::journal::{Journal, Sealer};
use crate::listening::{listen, listen_again, refuse};
use crate::moved::{self, moved_to};
use crate::owner::{Ended, Job, Owner, wall_clock};
use crate::ranking::Ranker;
use crate::record::{POOL_KEY, PoolRecord, decode};
use crate::store::{Batch, ChangeOf, EmbeddedStore, Reserve, Store, StoreError, Table};
use crate::telling::Telling;
use crate::turns::Turns;
use crate::waiting;

/// Folder of the pool's authority, in the data directory.
pub const AUTHORITY: &str = "authority";
/// How often leases are looked at: well below the shortest.
const TICK: Duration = Duration::from_millis(200);
/// How often it is looked whether something may be collected.
const WORK_INTERVAL: Duration = Duration::from_millis(100);
/// Pause between two parts of it, which take some milliseconds each.
const STEP_PAUSE: Duration = Duration::from_millis(2);
/// Pause after a failure to rank, which may come again.
const RANKER_FAILED_PAUSE: Duration = Duration::from_secs(60);
/// How long a request that waits for copies or commits is kept without an answer: far less than its sender's patience.
const KEPT_WAITING_MAX: Duration = Duration::from_secs(1);
/// How long one that waits for orders is kept. Each benefactor has one of these, so they come seldom, and half of its patience.
const KEPT_FOR_ORDERS_MAX: Duration = Duration::from_secs(10);
/// Time in which changes gather before such a request is looked at again: with many small commits, one look serves many.
const GATHER: Duration = Duration::from_millis(2);
/// Time in which orders for copies gather while no writer waits for any: a benefactor makes what it copied durable at once.
const GATHER_ORDERS: Duration = Duration::from_millis(50);
/// Time in which commits gather for keepers of the journal: with many small commits, one answer serves many.
const GATHER_COMMITS: Duration = Duration::from_millis(200);
/// Pause between two looks at who keeps the journal.
const KEEPERS_PAUSE: Duration = Duration::from_secs(1);
/// The part of the machine's memory for what sessions hold: what is stored takes more than what is being written.
const SESSIONS_PART: u64 = 4;
/// Chunks that one step of what is done beside requests looks at: a millisecond at most.
const STEPS: usize = 1024;

/// Why a manager can't run (any more).
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The data directory can't be used.
    #[error(transparent)]
    Directory(#[from] DataDirError),
    /// The store can't be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The address can't be used.
    #[error("the manager can't serve at {address}: {cause}")]
    Listen {
        /// The address.
        address: String,
        /// Why not, and what to do.
        cause: String,
    },
    /// The pool's authority can't be used.
    #[error(transparent)]
    Authority(#[from] KeysError),
    /// The system gives no random numbers for the identity of a new pool.
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    /// It panicked within a change: a bug.
    #[error("the manager failed within a change; its store is intact: start it again and report this")]
    Died,
    /// Another manager may lead.
    #[error("this manager leads no more")]
    Deposed,
    /// The folder of the pool's authority isn't here, and can't be made: the pool has one.
    #[error(
        "{0} is missing: a manager of this pool that serves other machines needs the pool's authority; copy the folder from the manager \
         that has it"
    )]
    NoAuthority(String),
    /// The pool's state lies on the disk and in etcd, and they differ.
    #[error(
        "the pool's state is in {place}, and another one in {path}: one of the two is old; move that file, or the keys in \
         etcd, away, and start the manager again"
    )]
    TwoStates {
        /// The store on the disk.
        path: String,
        /// The place in etcd.
        place: Place,
    },
    /// The state of this folder is in etcd.
    #[error(
        "the pool's state was moved from {path} into {place}, and nothing is served from this folder without it: `stdchk up`, or \
         `--store {place}`, starts the manager that is to serve; a copy of the state that was put back here is old"
    )]
    Moved {
        /// The manager's folder.
        path: String,
        /// Where it is.
        place: Place,
    },
    /// The state of this folder is, or may be, in another place of etcd.
    #[error(
        "the state in {path} was being moved into {before}, and may be there, not in {place}: start the manager with \
         `--store {before}`; if that place is empty for sure, remove the file {path}/moved first"
    )]
    MovedElsewhere {
        /// The manager's folder.
        path: String,
        /// Where it may be.
        before: Place,
        /// Where it was looked for.
        place: Place,
    },
    /// etcd has no state, and the folder belongs to a pool.
    #[error(
        "there is no pool in {place}, and {path} belongs to pool {pool}, whose state is in etcd: look for the etcd and the prefix that have it; \
         if they are lost for good, move {path} away and make the state anew with `stdchk manager recover`"
    )]
    Emptied {
        /// The manager's folder.
        path: String,
        /// The pool.
        pool: PoolId,
        /// The place in etcd.
        place: Place,
    },
    /// The state in etcd is that of another pool.
    #[error(
        "{place} has the state of pool {found}, and {path} belongs to pool {pool}: give that pool's own prefix with `--store`"
    )]
    OtherPool {
        /// The manager's folder.
        path: String,
        /// Its pool.
        pool: PoolId,
        /// The pool in etcd.
        found: PoolId,
        /// The place in etcd.
        place: Place,
    },
    /// The mark of a folder can't be read or written.
    #[error("the mark `moved` in {path}, which says where the pool's state is: {cause}")]
    Mark {
        /// The manager's folder.
        path: String,
        /// The error of the system.
        cause: io::Error,
    },
}

/// A manager that has its store and its address, and is about to serve.
pub struct Manager {
    listener: Listener,
    addresses: Vec<String>,
    host: Host,
    owner: Owner,
    authority: Option<Arc<Authority>>,
    /// Where the pool's managers serve.
    managers: Vec<String>,
    leadership: Option<u64>,
    /// Kept while it serves, if nobody else keeps it.
    directory: Option<DataDir>,
}

/// Runs a manager until `stop` resolves. One whose store is in etcd stands by while another one leads.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), ManagerError> {
    match config.store.clone() {
        None => Manager::open(config).await?.serve(stop).await,
        Some(place) => stand_by(config, &place, stop).await,
    }
}

/// Stands by and leads, in turn, until `stop` resolves.
async fn stand_by(config: Config, place: &Place, stop: impl Future<Output = ()>) -> Result<(), ManagerError> {
    let mut directory = DataDir::open(&config.data, Role::Manager)?;
    let etcd = Etcd::new(place, config.store_login.as_ref())?;
    if !directory.path().join(STORE_FILE).exists() && place_of(&directory)?.is_none() {
        // Without `--store` it would begin another pool.
        mark_moved(&directory, place)?;
    }
    tokio::pin!(stop);
    loop {
        let candidate = async {
            let candidacy = Arc::new(Candidacy::begin(&etcd, info(&config)).await);
            refuse_without_authority(&config, &directory, &candidacy).await?;
            tracing::info!(prefix = etcd.prefix(), "this manager stands by");
            Ok::<_, ManagerError>((candidacy.elected().await, candidacy))
        };
        let (elected, candidacy) = tokio::select! {
            () = &mut stop => return Ok(()),
            ended = candidate => ended?,
            never = waiting::tell_why(&config, &directory, &etcd) => match never {},
        };
        let Some(leadership) = elected else { continue };
        tracing::info!(prefix = etcd.prefix(), "this manager leads");
        let led = lead((&config, place), &mut directory, leadership, &mut stop).await;
        // Another one leads at once, whatever ended it here.
        candidacy.resign().await;
        match led {
            Err(ManagerError::Deposed | ManagerError::Store(StoreError::Deposed)) => {
                tracing::warn!("this manager leads no more: it forgets what it read, and stands by");
            }
            Err(ManagerError::Store(full @ StoreError::EtcdFull { .. })) => {
                tracing::error!(error = %full, "this manager forgets what it read, and waits for room in etcd");
                etcd.note(&Err::<(), _>(full));
            }
            ended => return ended,
        }
    }
}

/// Leads until `stop` resolves, or until this manager leads no more.
async fn lead(
    (config, place): (&Config, &Place),
    directory: &mut DataDir,
    leadership: Leadership,
    stop: impl Future<Output = ()>,
) -> Result<(), ManagerError> {
    let mut store = EtcdStore::open(leadership)?;
    if let Some(found) = pool_in(&store)? {
        refuse_other_pool(directory, found, place)?;
    }
    let own = directory.pool().map(|_| directory.path().join(STORE_FILE)).filter(|path| path.exists());
    match &own {
        Some(path) => {
            move_in(directory, (path, place), &mut store)?;
            set_aside(path)?;
        }
        None if store.sequence() == 0 => refuse_emptied(directory, place)?,
        None => {}
    }
    mark_moved(directory, place)?;
    Manager::on(config, directory, Box::new(store)).await?.serve(stop).await
}

/// Where the state of a folder is, if it is in etcd.
fn place_of(directory: &DataDir) -> Result<Option<Place>, ManagerError> {
    let path = || directory.path().display().to_string();
    moved_to(directory.path()).map_err(|cause| ManagerError::Mark { path: path(), cause })
}

fn mark_moved(directory: &DataDir, place: &Place) -> Result<(), ManagerError> {
    let path = || directory.path().display().to_string();
    moved::mark(directory.path(), place).map_err(|cause| ManagerError::Mark { path: path(), cause })
}

/// The pool whose state is in etcd; `None`: there is none.
fn pool_in(store: &EtcdStore) -> Result<Option<PoolId>, StoreError> {
    if store.sequence() == 0 {
        return Ok(None);
    }
    // Its record is the first of all.
    let first = store.snapshot()?.read(&[], 1)?.into_iter().next();
    let record = first.filter(|(key, _)| key.split_first() == Some((&(Table::Pool as u8), POOL_KEY)));
    let what = || StoreError::new("reading the state in etcd", "it has no record of a pool");
    let (_, record) = record.ok_or_else(what)?;
    Ok(Some(decode::<PoolRecord>(&record, "the pool")?.pool))
}

/// The pool of a manager's folder, if it is that of one.
pub(crate) fn pool_of(directory: &DataDir) -> Result<Option<PoolId>, KeysError> {
    let authority = directory.path().join(AUTHORITY);
    match directory.pool() {
        // Copied there for a manager that is to stand by.
        None if authority.exists() => Ok(Some(Authority::open(&authority)?.pool())),
        pool => Ok(pool),
    }
}

/// Nothing of another pool's state is touched.
fn refuse_other_pool(directory: &DataDir, found: PoolId, place: &Place) -> Result<(), ManagerError> {
    match pool_of(directory)?.filter(|own| *own != found) {
        None => Ok(()),
        Some(pool) => {
            let (path, place) = (directory.path().display().to_string(), place.clone());
            Err(ManagerError::OtherPool { path, pool, found, place })
        }
    }
}

/// A pool's state that is gone from etcd is not begun anew.
fn refuse_emptied(directory: &DataDir, place: &Place) -> Result<(), ManagerError> {
    match pool_of(directory)? {
        None => Ok(()),
        Some(pool) => Err(ManagerError::Emptied {
            path: directory.path().display().to_string(),
            pool,
            place: place.clone(),
        }),
    }
}

/// Moves the state that this manager had on its disk, at `path`, into an etcd that has none yet.
fn move_in(
    directory: &DataDir,
    (path, place): (&Path, &Place),
    store: &mut EtcdStore,
) -> Result<(), ManagerError> {
    let own = open_store(directory)?;
    if store.sequence() > 0 {
        // It was moved just before, and only not set aside; or one of them went on since then.
        return match own.sequence() == store.sequence() {
            true => Ok(()),
            false => Err(ManagerError::TwoStates { path: path.display().to_string(), place: place.clone() }),
        };
    }
    if let Some(before) = place_of(directory)?.filter(|before| before != place) {
        let (path, place) = (directory.path().display().to_string(), place.clone());
        return Err(ManagerError::MovedElsewhere { path, before, place });
    }
    // From now on nobody takes what is on the disk for the pool's state.
    mark_moved(directory, place)?;
    let mut records = Vec::new();
    own.load(&mut |key, record| {
        records.push((key.to_vec(), Some(record.to_vec())));
        Ok(())
    })?;
    begin_era(&mut records)?;
    tracing::info!(records = records.len(), "the pool's state moves from the disk into etcd");
    Ok(store.import(&Batch::of(records), own.sequence())?)
}

/// The state that goes another way begins a new era.
fn begin_era(records: &mut [ChangeOf]) -> Result<(), ManagerError> {
    let is_pool = |key: &[u8]| key.split_first() == Some((&(Table::Pool as u8), POOL_KEY));
    for (_, record) in records.iter_mut().filter(|(key, _)| is_pool(key)) {
        let Some(bytes) = record else { continue };
        let mut pool: PoolRecord = decode(bytes, "the pool")?;
        pool.begin_era(getrandom::u64().map_err(ManagerError::Random)?);
        *bytes = cbor::encode(&pool);
    }
    Ok(())
}

/// What lies on the disk is the pool's state no more, and not to be taken for it.
fn set_aside(path: &Path) -> Result<(), StoreError> {
    let failed = |error: io::Error| StoreError::new(format!("setting {} aside", path.display()), error);
    for path in [path.to_owned(), path.with_extension("log")] {
        let mut aside = path.clone().into_os_string();
        aside.push(".moved");
        std::fs::rename(&path, &aside).map_err(failed)?;
        tracing::info!(path = %Path::new(&aside).display(), "what was moved into etcd is kept here, and not used any more");
    }
    Ok(())
}

/// What others are told of this manager.
pub(crate) fn info(config: &Config) -> ManagerInfo {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    ManagerInfo { addresses: config.listen.clone(), host, pid: std::process::id(), leads: false }
}

/// A second authority of the same pool would accept no member of the first.
async fn refuse_without_authority(
    config: &Config,
    directory: &DataDir,
    candidacy: &Candidacy,
) -> Result<(), ManagerError> {
    let folder = directory.path().join(AUTHORITY);
    let on_network = config.listen.iter().any(|address| socket_of(address).is_none());
    match on_network && !folder.exists() && candidacy.has_pool().await {
        true => Err(ManagerError::NoAuthority(folder.display().to_string())),
        false => Ok(()),
    }
}

impl Manager {
    /// Takes the data directory, loads the store and listens; nobody is answered before [`Manager::serve`].
    pub async fn open(config: Config) -> Result<Self, ManagerError> {
        let mut directory = DataDir::open(&config.data, Role::Manager)?;
        if let Some(place) = place_of(&directory)? {
            return Err(ManagerError::Moved { path: directory.path().display().to_string(), place });
        }
        let reserve = Reserve::open(directory.path());
        let store = Box::new(reserve.of(open_store(&directory)?));
        let manager = Self::on(&config, &mut directory, store).await?;
        Ok(Self { directory: Some(directory), ..manager })
    }

    /// Loads a store and listens, for who keeps the data directory.
    async fn on(
        config: &Config,
        directory: &mut DataDir,
        mut store: Box<dyn Store>,
    ) -> Result<Self, ManagerError> {
        let mut core = Core::load(&*store, setting(config)?, Now { wall: wall_clock(), ms: 0 })?;
        core.sessions_may_take(config.sessions_bytes.unwrap_or_else(|| memory_bytes() / SESSIONS_PART));
        refuse_foreign(directory, core.pool())?;
        let (before, begun) = (core.before(), core.take_changes());
        store.commit(&begun)?;
        core.committed(store.sequence());
        let pool = core.pool();
        directory.claim(pool, None)?;
        let listener = match config.store {
            Some(_) => listen_again(&config.listen).await?,
            None => listen(&config.listen).await?,
        };
        let folder = directory.path().join(AUTHORITY);
        let is_shared = config.store.is_some() && before.commit > 0;
        if is_shared && listener.is_on_network() && !folder.exists() {
            return Err(ManagerError::NoAuthority(folder.display().to_string()));
        }
        let authority = match listener.is_on_network() {
            true => Some(Arc::new(Authority::open_or_create(&folder, pool)?)),
            false => None,
        };
        let keys = match &authority {
            Some(authority) => Some(own_keys(authority, directory, &mut core)?),
            None => None,
        };
        let addresses = listener.addresses().map_err(|error| refuse(&config.listen.join(", "), error))?;
        let mut journal = Journal::new(Sealer::new(pool, authority.as_deref()), core.key(), before);
        journal.committed(Moment { start: core.start(), commit: store.sequence() }, &begun);
        let (term, commit) = (core.term(), store.sequence());
        tracing::info!(%pool, listens = addresses.join(", "), term, commit, "this manager serves");
        let (managers, leadership) = (core.managers().to_vec(), store.leadership());
        let owner = Owner::new(core, store, journal);
        let host = Host::new(Role::Manager, pool, keys.map(Arc::new));
        Ok(Self { listener, addresses, host, owner, authority, managers, leadership, directory: None })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Its pool.
    pub fn pool(&self) -> PoolId {
        self.host.pool
    }

    /// Serves until `stop` resolves or the store fails. What was answered is durable, so stopping needs no farewell.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), ManagerError> {
        let Self { listener, host, owner, authority, managers, leadership, directory: _directory, .. } = self;
        let (mut ended, noting) = (None, authority.clone());
        let until = async {
            tokio::select! {
                () = stop => {}
                end = owner.commit_all() => ended = Some(end),
                () = tick(&owner) => {}
                () = work(&owner) => {}
                () = rank(&owner) => {}
                () = note_keepers(&owner, noting) => {}
            }
        };
        let service = Arc::new(ManagerService {
            owner: owner.clone(),
            waiters: Waiters::default(),
            turns: Turns::default(),
            members: authority.zip(host.keys.clone()),
            registered: Mutex::default(),
            told: Mutex::default(),
            telling: Telling::new(managers),
            leadership,
        });
        serve(listener, host, service, BufferPool::new(BODY_BYTES_MAX), until).await;
        // The directory is free for the next manager once this returns.
        let closed = owner.close();
        match ended {
            Some(Ended::Panicked) => Err(ManagerError::Died),
            Some(Ended::Deposed) => Err(ManagerError::Deposed),
            Some(Ended::Store(error)) => Err(error.into()),
            // It was told to stop, and does. What wasn't durable, nobody was told is.
            None if matches!(closed, Err(StoreError::Deposed)) => Ok(()),
            None => Ok(closed?),
        }
    }
}

/// The manager's own keys, which accept no member that was revoked: here, as the authority's folder knows, or at another manager, as the
/// store knows.
fn own_keys(authority: &Authority, directory: &DataDir, core: &mut Core) -> Result<Keys, KeysError> {
    let keys = authority.keys(&[Role::Manager])?.keys(directory.path())?;
    core.hear_shut_out(&Vec::from_iter(authority.revoked()?));
    let all = core.shut_out();
    authority.shut_out(&all)?;
    keys.revoke(&all)?;
    Ok(keys)
}

/// The store of the directory; a new one only where no pool was begun: a pool's store that is gone is not begun anew.
fn open_store(directory: &DataDir) -> Result<EmbeddedStore, StoreError> {
    let path = directory.path().join(STORE_FILE);
    if directory.pool().is_none() && !path.exists() {
        return EmbeddedStore::create(&path);
    }
    let store = EmbeddedStore::open(&path)?;
    match directory.pool() {
        Some(_) if store.sequence() == 0 => Err(StoreError::damaged(&path, "it holds no records")),
        _ => Ok(store),
    }
}

fn refuse_foreign(directory: &DataDir, pool: PoolId) -> Result<(), StoreError> {
    match directory.pool().filter(|own| *own != pool) {
        None => Ok(()),
        Some(own) => {
            let what = format!("it is that of pool {pool}, and the folder that of pool {own}");
            Err(StoreError::damaged(&directory.path().join(STORE_FILE), what))
        }
    }
}

fn setting(config: &Config) -> Result<Setting, ManagerError> {
    let mut pool = [0; 16];
    getrandom::fill(&mut pool).map_err(ManagerError::Random)?;
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let start = getrandom::u64().map_err(ManagerError::Random)?;
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(ManagerError::Random)?;
    let (new_pool, new_key) = (PoolId(pool), MomentKey(key));
    let (pid, timing) = (std::process::id(), config.timing);
    Ok(Setting { new_pool, new_key, owner, pid, start, timing, steps: STEPS })
}

/// The memory that this process may have, bytes: that of the machine, or what its container may take.
fn memory_bytes() -> u64 {
    let about = rustix::system::sysinfo();
    let machine = (about.totalram as u64).saturating_mul(u64::from(about.mem_unit));
    // Without such a limit the file says `max`.
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|bytes| bytes.trim().parse::<u64>().ok());
    container.map_or(machine, |bytes| bytes.min(machine))
}

async fn tick(owner: &Owner) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        owner.tell(Job::Tick);
    }
}

/// Answers requests by handing them to the owner.
struct ManagerService {
    owner: Owner,
    waiters: Waiters,
    turns: Turns,
    /// What gives keys to new members, and the keys by which they are let in, if there may be some.
    members: Option<(Arc<Authority>, Arc<Keys>)>,
    /// Which member has registered as which benefactor: nobody else may speak for it.
    registered: Mutex<HashMap<BenefactorId, MemberId>>,
    /// The benefactors that know, since they registered, whose keys are revoked.
    told: Mutex<HashSet<BenefactorId>>,
    /// Where the pool's managers serve.
    telling: Telling,
    leadership: Option<u64>,
}

/// Writers that wait for copies.
#[derive(Default)]
struct Waiters {
    count: AtomicUsize,
    come: Notify,
}

/// One of them.
struct Waiter<'a>(&'a Waiters);

impl Waiters {
    fn add(&self) -> Waiter<'_> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.come.notify_waiters();
        Waiter(self)
    }

    /// Lets orders gather, less long if somebody waits for them.
    async fn gather(&self) {
        if self.count.load(Ordering::Relaxed) == 0 {
            // Whichever comes first.
            let _ = tokio::time::timeout(GATHER_ORDERS, self.come.notified()).await;
        }
        tokio::time::sleep(GATHER).await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service for ManagerService {
    /// With the user for whom it is asked, if the caller says for whom.
    type Request = Asked<ManagerRequest, User>;
    type Reply = ManagerReply;

    fn managers(&self) -> Vec<String> {
        self.telling.managers()
    }

    fn leadership(&self) -> Option<u64> {
        self.leadership
    }

    fn era(&self) -> Option<Era> {
        Some(self.owner.era())
    }

    async fn handle(
        &self,
        caller: Caller,
        Asked { request, with: user }: Asked<ManagerRequest, User>,
        _: Buffer,
    ) -> Result<(ManagerReply, Bytes), Failure> {
        self.refuse_forbidden(&caller, &request)?;
        let asker = asker(&caller, user)?;
        let reply = match request {
            request @ ManagerRequest::Register { .. } => {
                let reply = self.owner.ask(|answer| Job::Request(Box::new(request), asker, answer)).await;
                if let Ok(ManagerReply::Registered { id, .. }) = &reply {
                    self.told.lock().remove(id);
                    let mut registered = self.registered.lock();
                    match caller.member {
                        Some(member) => registered.insert(*id, member),
                        None => registered.remove(id),
                    };
                }
                reply
            }
            ManagerRequest::Collect { dry_run } => collect(&self.owner, dry_run).await,
            ManagerRequest::Members => self.list_members(asker).await,
            ManagerRequest::Revoke { member } => self.revoke(member, asker).await,
            ManagerRequest::SetManagers(addresses) => self.set_managers(addresses, asker).await,
            request @ ManagerRequest::Heartbeat { id, .. } => {
                let reply = self.owner.ask(|answer| Job::Request(Box::new(request), asker, answer)).await?;
                Ok(self.telling.tell(caller.connection, self.tell_revoked(id, reply)))
            }
            ManagerRequest::Managers => {
                self.telling.answered(caller.connection);
                Ok(ManagerReply::Managers(self.telling.managers()))
            }
            request @ ManagerRequest::BeginInventory { id, .. } => {
                let reply = self.owner.ask(|answer| Job::Request(Box::new(request), asker, answer)).await?;
                self.turns.take(id, caller.member).await?;
                Ok(reply)
            }
            request @ ManagerRequest::Inventory { id, last, .. } => {
                let reply = self.owner.ask(|answer| Job::Request(Box::new(request), asker, answer)).await;
                if last {
                    self.turns.end(id);
                }
                reply
            }
            request @ ManagerRequest::AwaitCopies { .. } => {
                let _waiter = self.waiters.add();
                let is_over = |reply: &ManagerReply| !matches!(reply, ManagerReply::Waiting { .. });
                let changes = (self.owner.copies(), KEPT_WAITING_MAX);
                self.ask_until((request, asker), changes, is_over, || tokio::time::sleep(GATHER)).await
            }
            request @ (ManagerRequest::Reserve { .. } | ManagerRequest::MakeRoom) => {
                self.ask_for_room(request, asker).await
            }
            request @ ManagerRequest::Orders { id, .. } => {
                let is_over = |reply: &ManagerReply| !matches!(reply, ManagerReply::Commands(commands) if commands.is_empty());
                let changes = (self.owner.orders(id), KEPT_FOR_ORDERS_MAX);
                self.ask_until((request, asker), changes, is_over, || self.waiters.gather()).await
            }
            request @ ManagerRequest::Journal { part, now, .. } => {
                if part == 0 && !now {
                    tokio::time::sleep(GATHER_COMMITS).await;
                }
                let is_over = |reply: &ManagerReply| {
                    now || !matches!(reply, ManagerReply::Journal(pieces) if pieces.is_empty())
                };
                let gather = || tokio::time::sleep(GATHER_COMMITS);
                let changes = (self.owner.commits(), KEPT_WAITING_MAX);
                self.ask_until((request, asker), changes, is_over, gather).await
            }
            request => self.owner.ask(|answer| Job::Request(Box::new(request), asker, answer)).await,
        };
        reply.map(|reply| (reply, Bytes::new()))
    }

    fn began(&self, caller: &Caller) {
        self.telling.began(caller.connection);
    }

    fn ended(&self, caller: &Caller) {
        self.telling.ended(caller.connection);
        if caller.role == Role::Benefactor {
            self.owner.tell(Job::ConnectionEnded(caller.connection));
        }
    }

    async fn join(&self, join: Join, channel: [u8; 32], from: &str) -> Result<Joined, Failure> {
        let admit = move |authority: &Authority, _: &Keys| authority.admit(&join, &channel);
        let Admission { grant, id, host, certificate } = self.with_members(admit).await?;
        let new = Box::new(NewMember { grant, id, host, address: from.to_owned() });
        // It is on record in the store before anybody has the certificate.
        self.owner.ask(|answer| Job::Admit(new, answer)).await?;
        Ok(Joined { certificate })
    }
}

impl ManagerService {
    /// Does something with the authority, which reads and writes files.
    async fn with_members<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Authority, &Keys) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let Some((authority, keys)) = self.members.clone() else {
            return Err(Failure::new(ErrorCode::Denied, "this pool has no members on other machines"));
        };
        elsewhere(move || work(&authority, &keys)).await.map_err(internal)?
    }

    async fn list_members(&self, asker: Asker) -> Result<ManagerReply, Failure> {
        // Refused where there can be none.
        self.with_members(|_, _| Ok(())).await?;
        let request = Box::new(ManagerRequest::Members);
        let reply = self.owner.ask(|answer| Job::Request(request, asker, answer)).await?;
        let ManagerReply::Members(mut members) = reply else { return Ok(reply) };
        let mut benefactors: HashMap<MemberId, Vec<BenefactorId>> = HashMap::new();
        self.registered
            .lock()
            .iter()
            .for_each(|(id, member)| benefactors.entry(*member).or_default().push(*id));
        for member in &mut members {
            if let Some(own) = benefactors.remove(&member.id) {
                member.benefactors = own;
                member.benefactors.sort();
            }
        }
        Ok(ManagerReply::Members(members))
    }

    /// It holds when the answer leaves: here at once, elsewhere with the next heartbeat.
    async fn revoke(&self, member: MemberId, asker: Asker) -> Result<ManagerReply, Failure> {
        // Here as well, so that a store that is put back lets nobody in again.
        let revoke = move |authority: &Authority, keys: &Keys| {
            authority.shut_out(&[member]).and_then(|()| keys.revoke(&[member])).map_err(internal)
        };
        self.with_members(revoke).await?;
        // So that other managers know, too.
        let request = Box::new(ManagerRequest::Revoke { member });
        self.owner.ask(|answer| Job::Request(request, asker, answer)).await?;
        self.told.lock().clear();
        Ok(ManagerReply::Done)
    }

    /// Answered once all have heard that are connected ([`crate::telling`]).
    async fn set_managers(&self, addresses: Vec<String>, asker: Asker) -> Result<ManagerReply, Failure> {
        let request = Box::new(ManagerRequest::SetManagers(addresses.clone()));
        let connection = asker.connection;
        let reply = self.owner.ask(|answer| Job::Request(request, asker, answer)).await?;
        self.telling.set(addresses, connection).await;
        Ok(reply)
    }

    /// Adds to the answer to a heartbeat whose keys are revoked, unless the benefactor knows. An answer that is lost ends its
    /// connection, and it registers anew.
    fn tell_revoked(&self, id: BenefactorId, mut reply: ManagerReply) -> ManagerReply {
        if let (ManagerReply::Commands(commands), Some((_, keys))) = (&mut reply, &self.members)
            && self.told.lock().insert(id)
        {
            let revoked = keys.revoked_members();
            if !revoked.is_empty() {
                commands.push(Command::Revoke(revoked));
            }
        }
        reply
    }

    /// Refuses what the caller's role may not do, and what is said in the name of another benefactor.
    fn refuse_forbidden(&self, caller: &Caller, request: &ManagerRequest) -> Result<(), Failure> {
        if !request.may_be_asked_by(caller.role) {
            let message = format!("a {} may not ask for this", caller.role.name());
            return Err(Failure::new(ErrorCode::Denied, message));
        }
        if let ManagerRequest::Register { registration, .. } = request
            && self.members.is_some()
            && socket_of(&registration.address).is_some()
        {
            let message = "other machines of the pool don't reach a socket of this one";
            let next = "let the benefactor serve at an address of the network (`--listen HOST:PORT`)";
            return Err(Failure::new(ErrorCode::Invalid, message).then(next));
        }
        let (Some(id), Some(member)) = (request.benefactor(), caller.member) else { return Ok(()) };
        match self.registered.lock().get(&id) {
            Some(registered) if *registered == member => Ok(()),
            Some(_) => Err(Failure::new(ErrorCode::Denied, format!("another member has registered as {id}"))),
            None => Err(Failure::new(
                ErrorCode::Stale,
                format!("{id} has not registered over the network: register"),
            )),
        }
    }

    /// Asks for room, and if there is none, again whenever an effort has made some, until nothing more comes of one that began behind the
    /// question.
    async fn ask_for_room(&self, request: ManagerRequest, asker: Asker) -> Result<ManagerReply, Failure> {
        let mut efforts = self.owner.efforts();
        let mut last = None;
        loop {
            let is_over = last.is_some_and(|last| efforts.borrow_and_update().0 >= last);
            let (asked, asker) = (Box::new(request.clone()), asker.clone());
            let reply = self.owner.ask(|answer| Job::Request(asked, asker, answer)).await;
            let has_none = match &reply {
                Ok(ManagerReply::Space(space)) => space.is_full,
                Ok(_) => false,
                Err(failure) => failure.code == ErrorCode::NoSpace,
            };
            if is_over || !has_none {
                return reply;
            }
            if last.is_none() {
                last = Some(self.owner.ask(Job::MakeRoom).await?);
            }
            // The owner's end, too, is told by the next question.
            if efforts.changed().await.is_err() {
                return reply;
            }
        }
    }

    /// Asks the owner again whenever there may be another answer, until it is the one that is waited for, or until it is time
    /// to show a sign of life.
    async fn ask_until<F: Future<Output = ()>>(
        &self,
        (request, asker): (ManagerRequest, Asker),
        (mut changes, wait): (watch::Receiver<u64>, Duration),
        is_over: impl Fn(&ManagerReply) -> bool,
        gather: impl Fn() -> F,
    ) -> Result<ManagerReply, Failure> {
        let give_up = tokio::time::Instant::now() + wait;
        loop {
            changes.mark_unchanged();
            let (asked, asker) = (Box::new(request.clone()), asker.clone());
            let reply = self.owner.ask(|answer| Job::Request(asked, asker, answer)).await?;
            // The owner's end, too, is told by the next question.
            if is_over(&reply) || tokio::time::timeout_at(give_up, changes.changed()).await.is_err() {
                return Ok(reply);
            }
            gather().await;
        }
    }
}

/// For whom a request is answered. A host that serves several users says for which of them it asks, and is believed; a member that is
/// bound to a user asks for that one alone. The administrator of a host may do all with files that its role lets the host do.
fn asker(caller: &Caller, said: Option<User>) -> Result<Asker, Failure> {
    let member = caller.member;
    if said.as_ref().is_some_and(|user| user.others.len() >= GROUPS_MAX) {
        let message = format!("a request names at most {GROUPS_MAX} groups of its user");
        return Err(Failure::new(ErrorCode::TooLong, message));
    }
    let user = match (&caller.user, said) {
        (Some(own), Some(said)) if said.uid != own.uid => {
            let message =
                format!("this host's certificate is for user {} alone, not for {}", own.uid, said.uid);
            return Err(Failure::new(ErrorCode::Denied, message));
        }
        (Some(own), _) => Some(User::clone(own)),
        (None, said) => said.filter(|user| user.uid != ROOT),
    };
    Ok(Asker { member, user, maker: caller.maker, connection: caller.connection })
}

fn internal(error: impl std::fmt::Display) -> Failure {
    Failure::new(ErrorCode::Internal, error.to_string())
}

/// Writes down beside the authority's key where the benefactors are that keep the journal, for a recovery: whoever needs them has the key.
async fn note_keepers(owner: &Owner, authority: Option<Arc<Authority>>) {
    let Some(authority) = authority else { return std::future::pending().await };
    let (mut commits, mut noted, mut missed) = (owner.commits(), Vec::new(), Repeats::default());
    loop {
        if let Ok(keepers) = owner.ask(Job::Keepers).await
            && keepers != noted
        {
            let (authority, writes) = (Arc::clone(&authority), keepers.clone());
            let written = elsewhere(move || authority.note_keepers(&writes)).await;
            match written
                .map_err(|error| error.to_string())
                .and_then(|done| done.map_err(|error| error.to_string()))
            {
                Ok(()) => noted = keepers,
                Err(error) if missed.failed(&error).is_some() => {
                    tracing::warn!(%error, "where the keepers of the journal are can't be written down");
                }
                Err(_) => {}
            }
        }
        tokio::time::sleep(KEEPERS_PAUSE).await;
        // A benefactor that is new or serves elsewhere is a commit. The owner's end ends this as well.
        if commits.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// Lets the core do what follows from events, in steps, so that requests come in between.
async fn work(owner: &Owner) {
    loop {
        match owner.ask(Job::Work).await {
            Ok(true) => tokio::time::sleep(STEP_PAUSE).await,
            // Whichever comes first.
            _ => drop(tokio::time::timeout(WORK_INTERVAL, owner.has_work()).await),
        }
    }
}

/// Ranks benefactors whenever that is due, on a thread of its own. It takes at most half of that thread's time.
async fn rank(owner: &Owner) {
    let mut ranker = Ranker::default();
    loop {
        owner.has_to_rank().await;
        let Ok(told) = owner.ask(Job::ToRank).await else { continue };
        let began = tokio::time::Instant::now();
        let more = told.more;
        let ranked = elsewhere(move || {
            let made = ranker.work(told);
            (ranker, made)
        });
        match ranked.await {
            Ok((kept, made)) => {
                ranker = kept;
                owner.tell(Job::Ranked(made));
            }
            Err(error) => {
                tracing::error!(%error, "benefactors could not be ranked: they take turns for a minute");
                owner.tell(Job::RankerFailed);
                ranker = Ranker::default();
                tokio::time::sleep(RANKER_FAILED_PAUSE).await;
            }
        }
        if !more {
            tokio::time::sleep(began.elapsed().max(STEP_PAUSE)).await;
        }
    }
}

/// Collects all that may go by now, or only counts it.
async fn collect(owner: &Owner, dry_run: bool) -> Result<ManagerReply, Failure> {
    let (mut found, mut next) = (Collected::default(), Some(Cursor::Garbage(None)));
    while let Some(from) = next {
        let (part, rest) = owner.ask(|answer| Job::Collect(from, dry_run, answer)).await?;
        (found, next) = (found.plus(part), rest);
        tokio::time::sleep(STEP_PAUSE).await;
    }
    Ok(found.into())
}
