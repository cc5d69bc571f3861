//! A pool as its client sees it: the shared connections, the two memory budgets, and the tasks that keep them alive.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_model::exact::{part_mut, to_usize};
use stdchk_model::limits::{CHUNK_BYTES_MAX, CLIENT_KEEPALIVE_MS, LIST_ENTRIES_MAX, WINDOW_BYTES_DEFAULT};
use stdchk_model::message::benefactor::BlockState;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{
    Attr, BenefactorInfo, BenefactorState, Change, CheckpointSet, ChunkLocations, DirEntry, Hold, Location,
    ManagerReply, ManagerRequest, MemberInfo, Moment, Pace, Placement, PoolStatus, SetFate, Space,
    VersionInfo,
};
use stdchk_model::policy::Protocol;
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkMap, ChunkRef, ClientId, EncodingId, ErrorCode, Failure, Ino, Maker,
    MapRoot, OpId, Policy, PoolId, SessionId,
};
use stdchk_net::{BufferPool, Keys, Retry, machine, waits};
use stdchk_protect::{distance_at, is_readable_at};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::benefactors::{Benefactors, Doubt};
use crate::cache::{ChunkCache, FETCHES_MAX};
use crate::container::Containers;
use crate::encode::Encoder;
use crate::fetch::Fetcher;
use crate::gather::Piece;
use crate::hold::Holds;
use crate::keyring::KeyRing;
use crate::manager::ManagerLink;
use crate::map_view::{ChunkView, MapView};
use crate::near::Near;
use crate::opening::bad_map;
use crate::reader::{AHEAD_BYTES, Reader};
use crate::session::{NewFile, SHARE_UNIT, Sealed, Session};
use crate::spool::Spool;
use crate::stored::Stored;
use crate::writer::{Unpushed, Writer};

/// Pause before it is asked again whether a file is gone that a manager just started doesn't find.
const GONE_PAUSE: Duration = Duration::from_millis(200);

/// Pause before it is asked again whether benefactors are ranked, and how long that is tried.
const RANKING_PAUSE: Duration = Duration::from_millis(100);
const RANKING_MAX: Duration = Duration::from_secs(30);
/// How long the manager's answer to a farewell is waited for.
const LEAVE_MAX: Duration = Duration::from_secs(2);
/// How long a write waits for room in the window before it looks again.
const ROOM_PAUSE: Duration = Duration::from_millis(10);
/// Packs of scattered pieces that may be in memory at the same time, beside the window.
const COPIED_PACKS_MAX: usize = 16;
/// Gathered bytes in memory that is used again: four reads of a mebibyte for a command, as many for the kernel.
const GATHERED_BYTES: usize = 8 << 20;
/// With one of so many signs of life the manager is asked which benefactor is on this machine: one that came or went costs speed alone.
const LEARN_NEAR_EVERY: u64 = 6;
/// Blocks in one request for verification: the benefactor reads them all before it answers.
const VERIFY_MAX: usize = 128;

/// How to reach a pool and how much memory to use.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The manager, `unix:PATH` or `host:port`.
    pub manager: String,
    /// The keys of this member of the pool; `None`: all of the pool is on this machine.
    pub keys: Option<Arc<Keys>>,
    /// Memory for bytes on their way to benefactors, all files together.
    pub window_bytes: u64,
    /// Memory for verified chunks that were read.
    pub read_cache_bytes: u64,
    /// How long the manager may be away before calls fail; `Duration::MAX`: they wait for ever.
    pub patience: Duration,
    /// The write protocol of all files; `None`: that of their folders.
    pub protocol: Option<Protocol>,
    /// The folder of this client's encryption keys, which need not be there; `None`: it has none.
    pub encryption_keys: Option<PathBuf>,
    /// A manager with an older state of the pool than another one that was heard is better than none: to see how it is, and to decide.
    pub or_older: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            manager: String::new(),
            keys: None,
            window_bytes: WINDOW_BYTES_DEFAULT,
            read_cache_bytes: 32 << 20,
            patience: Duration::from_secs(60),
            protocol: None,
            encryption_keys: None,
            or_older: false,
        }
    }
}

/// What a collection removed, or would remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collected {
    /// Chunks.
    pub chunks: u64,
    /// Blocks: chunks times replicas.
    pub blocks: u64,
    /// Plain bytes, replicas counted.
    pub bytes: u64,
}

/// How content is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Depth {
    /// By what the manager knows: benefactors that are on-line have said that the blocks are durable there, having compared them with
    /// their names, and have found no damage since. No block is read.
    #[default]
    Known,
    /// Every block is read where it lies and compared with its name.
    Read,
}

/// What a verification found of a chunk: what its intact blocks are worth, and how many of its blocks are damaged, not there, or
/// could not be asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkHealth {
    /// The chunk.
    pub chunk: ChunkRef,
    /// How many benefactors have to be lost before the chunk is, by the blocks on disks that are intact; 0: they don't suffice to read it.
    pub distance: u8,
    /// Whether the blocks that are intact suffice to read it, those in memory included.
    pub is_readable: bool,
    /// Blocks with bytes that don't match their name.
    pub damaged: u32,
    /// Blocks that aren't there after all.
    pub missing: u32,
    /// Holders that gave no answer, and benefactors that are away and have it or may have it.
    pub unreachable: u32,
    /// Which.
    pub away: Vec<BenefactorId>,
    /// Encodings of which enough fragments are what they are named after, and don't make the chunk. Only [`Depth::Read`] finds them.
    pub broken: Vec<EncodingId>,
}

/// A connection to a pool. Cheap to clone; all clones share budgets and connections.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) manager: Arc<ManagerLink>,
    pub(crate) benefactors: Arc<Benefactors>,
    pub(crate) fetcher: Arc<Fetcher>,
    pub(crate) near: Arc<Near>,
    /// As whom it codes fragments.
    pub(crate) maker: Maker,
    pub(crate) encryption_keys: Arc<KeyRing>,
    pub(crate) cache: ChunkCache,
    /// The write protocol in place of the folders'.
    pub(crate) protocol: Option<Protocol>,
    /// Readers that read ahead now.
    pub(crate) reading_ahead: AtomicU64,
    /// Memory for what is gathered from several chunks, used again.
    pub(crate) gathered: Arc<BufferPool>,
    pub(crate) containers: Containers,
    pub(crate) encoder: Arc<Encoder>,
    pub(crate) window: Arc<BufferPool>,
    pub(crate) room: Notify,
    /// Half of the window, in units of [`SHARE_UNIT`]: what full cells may take that aren't sent yet.
    pub(crate) may_be_held_back: Arc<Semaphore>,
    pub(crate) copied_packs: Arc<Semaphore>,
    /// One comparison of versions at a time.
    pub(crate) learning: Semaphore,
    pub(crate) sessions: Mutex<HashMap<SessionId, Weak<Session>>>,
    /// The versions that are open to be read, by the sessions that committed them, with the number of their readers.
    pub(crate) reads: Mutex<HashMap<SessionId, usize>>,
    /// A version was opened since the manager was told what is read.
    pub(crate) opened: AtomicBool,
    pub(crate) holds: Holds,
    pub(crate) client: ClientId,
    /// The manager was told on which machine this client writes.
    writes: AtomicBool,
    pub(crate) runtime: Handle,
    stored: Stored<Sealed>,
    background: Mutex<JoinSet<()>>,
}

impl Pool {
    /// Connects to a pool. Must be called on a tokio runtime, on which the pool's tasks then run.
    pub async fn connect(config: ClientConfig) -> Result<Self, Failure> {
        let manager = ManagerLink::new(&config.manager, config.keys, config.patience, config.or_older);
        let manager = Arc::new(manager);
        // Answers under way that carry chunks. What the cache keeps of them is counted there.
        let cached = to_usize(config.read_cache_bytes);
        let buffers =
            BufferPool::for_purpose("chunks on their way here", (FETCHES_MAX << 20) + 2 * CHUNK_BYTES_MAX);
        let benefactors = Arc::new(Benefactors::new(Arc::clone(&manager), buffers));
        let maker = manager.identity().maker();
        let encryption_keys = Arc::new(KeyRing::new(config.encryption_keys));
        let shared = || (Arc::clone(&manager), Arc::clone(&benefactors), Arc::clone(&encryption_keys));
        let (of_manager, of_benefactors, keys) = shared();
        let near = Arc::new(Near::new(of_manager, of_benefactors, keys));
        let (of_manager, of_benefactors, keys) = shared();
        let fetcher = Arc::new(Fetcher::new(of_manager, of_benefactors, Arc::clone(&near), keys));
        let window = to_usize(config.window_bytes);
        let may_be_held_back = (window / 2 / SHARE_UNIT).min(Semaphore::MAX_PERMITS);
        let inner = Arc::new(Inner {
            cache: ChunkCache::new(Arc::clone(&fetcher), cached),
            protocol: config.protocol,
            reading_ahead: AtomicU64::new(0),
            reads: Mutex::default(),
            opened: AtomicBool::new(false),
            gathered: BufferPool::for_purpose("gathered pieces", GATHERED_BYTES),
            containers: Containers::new(),
            maker,
            encoder: Arc::new(Encoder::new(maker)),
            window: BufferPool::for_purpose("the window of writes", window),
            room: Notify::new(),
            may_be_held_back: Arc::new(Semaphore::new(may_be_held_back)),
            copied_packs: Arc::new(Semaphore::new(COPIED_PACKS_MAX)),
            learning: Semaphore::new(1),
            sessions: Mutex::default(),
            holds: Holds::default(),
            client: ClientId(crate::random()?),
            writes: AtomicBool::new(false),
            runtime: Handle::current(),
            stored: Stored::default(),
            background: Mutex::default(),
            manager,
            benefactors,
            fetcher,
            near,
            encryption_keys,
        });
        inner.near.learn().await?;
        waits::watch(waits::LONG, None);
        tokio::spawn(keep_alive(Arc::downgrade(&inner)));
        Ok(Self { inner })
    }

    pub(crate) async fn ask(&self, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        self.inner.manager.ask(&request).await
    }

    /// The entry `name` of a directory.
    pub async fn lookup(&self, parent: Ino, name: &str) -> Result<Attr, Failure> {
        entry(self.ask(ManagerRequest::Lookup { parent, name: name.to_owned() }).await?)
    }

    /// What is known of an inode.
    pub async fn attr(&self, ino: Ino) -> Result<Attr, Failure> {
        entry(self.ask(ManagerRequest::GetAttr(ino)).await?)
    }

    /// Whether the user for whom the present task works may open a file, to read it or to read and write it; and what is known of it.
    ///
    /// # Errors
    /// `Denied`: it may not.
    pub async fn may_open(&self, ino: Ino, writes: bool) -> Result<Attr, Failure> {
        entry(self.ask(ManagerRequest::MayOpen { ino, writes }).await?)
    }

    /// Whether the user for whom the present task works may make a change, which is not made.
    ///
    /// # Errors
    /// `Denied` or `NotOwner`: it may not.
    pub async fn may_change(&self, change: Change) -> Result<(), Failure> {
        match self.ask(ManagerRequest::MayChange(change)).await? {
            ManagerReply::Done => Ok(()),
            _ => Err(crate::unexpected("MayChange")),
        }
    }

    /// The inode at a path from the root, names joined by `/`.
    pub async fn resolve(&self, path: &str) -> Result<Attr, Failure> {
        entry(self.ask(ManagerRequest::Resolve { path: path.to_owned() }).await?)
    }

    /// At most `limit` entries of a directory in name order, those behind the name `after`.
    pub async fn read_dir(
        &self,
        ino: Ino,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<DirEntry>, Failure> {
        match self.ask(ManagerRequest::ReadDir { ino, after: after.map(str::to_owned), limit }).await? {
            ManagerReply::Entries(entries) => Ok(entries),
            _ => Err(crate::unexpected("ReadDir")),
        }
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, ino: Ino) -> Result<String, Failure> {
        match self.ask(ManagerRequest::ReadLink(ino)).await? {
            ManagerReply::Target(target) => Ok(target),
            _ => Err(crate::unexpected("ReadLink")),
        }
    }

    /// Space and counts of the pool, once it has room for a chunk or nothing makes any.
    ///
    /// # Errors
    /// The manager can't be reached.
    pub async fn make_room(&self) -> Result<Space, Failure> {
        match self.ask(ManagerRequest::MakeRoom).await? {
            ManagerReply::Space(space) => Ok(space),
            _ => Err(crate::unexpected("MakeRoom")),
        }
    }

    /// Space and counts of the pool.
    pub async fn space(&self) -> Result<Space, Failure> {
        match self.ask(ManagerRequest::Space).await? {
            ManagerReply::Space(space) => Ok(space),
            _ => Err(crate::unexpected("Space")),
        }
    }

    /// Changes the namespace, once, however often the answer is lost. Returns the inode that the change concerns, if it
    /// has one.
    pub async fn change(&self, change: Change) -> Result<Option<Attr>, Failure> {
        let (attr, hold) = self.change_held(change).await?;
        if let (Some(attr), Some(hold)) = (&attr, hold) {
            self.await_copies(attr.ino, hold).await;
        }
        Ok(attr)
    }

    /// Changes the namespace as [`Pool::change`] does, and doesn't wait for copies: for which ones the caller should, by
    /// [`Pool::await_copies`], comes with the inode.
    pub async fn change_held(&self, change: Change) -> Result<(Option<Attr>, Option<Hold>), Failure> {
        let id = OpId(crate::random()?);
        match self.ask(ManagerRequest::Change { id, change }).await? {
            ManagerReply::Entry(attr) => Ok((Some(attr), None)),
            ManagerReply::Held { attr, hold } => Ok((Some(attr), Some(hold))),
            ManagerReply::Done => Ok((None, None)),
            _ => Err(crate::unexpected("Change")),
        }
    }

    /// Waits until copies are made of what was committed before a file, as its folder's `exposure` asks; not for longer than
    /// they can be made.
    pub async fn await_copies(&self, ino: Ino, hold: Hold) {
        self.inner.holds.wait(&self.inner.manager, ino, hold).await;
    }

    /// The versions of a file, oldest first.
    pub async fn versions(&self, ino: Ino) -> Result<Vec<VersionInfo>, Failure> {
        self.inner.versions(ino).await
    }

    /// The policy that holds for a file or directory.
    pub async fn policy(&self, ino: Ino) -> Result<Policy, Failure> {
        match self.ask(ManagerRequest::GetPolicy(ino)).await? {
            ManagerReply::Policy(policy) => Ok(policy),
            _ => Err(crate::unexpected("GetPolicy")),
        }
    }

    /// How benefactors are chosen for a file or folder, for clients on this machine, and why. Ranking begins with the first question,
    /// and takes seconds in a large pool.
    pub async fn placement(&self, ino: Ino) -> Result<Placement, Failure> {
        let mut retry = Retry::every(RANKING_PAUSE, RANKING_MAX);
        loop {
            match self.ask(ManagerRequest::Explain { ino, machine: machine() }).await? {
                ManagerReply::Placement(placement) if placement.ranked || !retry.pause().await => {
                    return Ok(placement);
                }
                ManagerReply::Placement(_) => {}
                _ => return Err(crate::unexpected("Explain")),
            }
        }
    }

    /// What is known for advice on how often an application on this machine should take checkpoints.
    pub async fn pace(&self, ino: Ino) -> Result<Pace, Failure> {
        match self.ask(ManagerRequest::Pace { ino, machine: machine() }).await? {
            ManagerReply::Pace(pace) => Ok(pace),
            _ => Err(crate::unexpected("Pace")),
        }
    }

    /// The checkpoint sets of an application's folder, newest timestep first.
    pub async fn sets(&self, ino: Ino) -> Result<Vec<CheckpointSet>, Failure> {
        match self.ask(ManagerRequest::Sets(ino)).await? {
            ManagerReply::Sets(sets) => Ok(sets),
            _ => Err(crate::unexpected("Sets")),
        }
    }

    /// What would become of the checkpoint sets of a folder: under this lifetime or that of the folder, and if its job had succeeded.
    pub async fn fates(
        &self,
        folder: Ino,
        lifetime: Option<&str>,
        done: bool,
    ) -> Result<Vec<SetFate>, Failure> {
        let lifetime = lifetime.map(str::to_owned);
        match self.ask(ManagerRequest::Fates { folder, lifetime, done }).await? {
            ManagerReply::Fates(fates) => Ok(fates),
            _ => Err(crate::unexpected("Fates")),
        }
    }

    /// State of the pool.
    pub async fn status(&self) -> Result<PoolStatus, Failure> {
        match self.ask(ManagerRequest::Status).await? {
            ManagerReply::Status(status) => Ok(status),
            _ => Err(crate::unexpected("Status")),
        }
    }

    /// The benefactors, and how the manager sees them.
    pub async fn benefactors(&self) -> Result<Vec<BenefactorInfo>, Failure> {
        match self.ask(ManagerRequest::Benefactors).await? {
            ManagerReply::Benefactors(benefactors) => Ok(benefactors),
            _ => Err(crate::unexpected("Benefactors")),
        }
    }

    /// Removes chunks that nothing refers to, or says how many there are.
    pub async fn collect(&self, dry_run: bool) -> Result<Collected, Failure> {
        match self.ask(ManagerRequest::Collect { dry_run }).await? {
            ManagerReply::Collected { chunks, blocks, bytes } => Ok(Collected { chunks, blocks, bytes }),
            _ => Err(crate::unexpected("Collect")),
        }
    }

    /// Takes a benefactor out of the pool that is not on-line; with `force` also when chunks have no other copy.
    pub async fn forget(&self, id: BenefactorId, force: bool) -> Result<(), Failure> {
        match self.ask(ManagerRequest::Forget { id, force }).await? {
            ManagerReply::Done => Ok(()),
            _ => Err(crate::unexpected("Forget")),
        }
    }

    /// Who has joined the pool with a token.
    pub async fn members(&self) -> Result<Vec<MemberInfo>, Failure> {
        match self.ask(ManagerRequest::Members).await? {
            ManagerReply::Members(members) => Ok(members),
            _ => Err(crate::unexpected("Members")),
        }
    }

    /// Accepts the keys of a member no more, for ever.
    pub async fn revoke(&self, member: MemberId) -> Result<(), Failure> {
        match self.ask(ManagerRequest::Revoke { member }).await? {
            ManagerReply::Done => Ok(()),
            _ => Err(crate::unexpected("Revoke")),
        }
    }

    /// Which managers are refused that have the pool's keys and an older state, and why.
    pub async fn refused_managers(&self) -> Vec<String> {
        self.inner.manager.refused_managers().await
    }

    /// Sets where the pool's managers serve: all members learn it.
    pub async fn set_managers(&self, addresses: Vec<String>) -> Result<(), Failure> {
        match self.ask(ManagerRequest::SetManagers(addresses)).await? {
            ManagerReply::Done => Ok(()),
            _ => Err(crate::unexpected("SetManagers")),
        }
    }

    /// Keeps a version no longer for a file that waits in a spool.
    pub async fn let_base_go(&self, ino: Ino, kept_for: SessionId) -> Result<(), Failure> {
        match self.ask(ManagerRequest::LetBaseGo { ino, kept_for }).await? {
            ManagerReply::Done => Ok(()),
            _ => Err(crate::unexpected("LetBaseGo")),
        }
    }

    /// Goes on with a manager's store that is an older copy; what was stored since is given up.
    pub async fn accept_older_store(&self) -> Result<(), Failure> {
        match self.ask(ManagerRequest::AcceptOlderStore).await? {
            ManagerReply::Done => Ok(()),
            _ => Err(crate::unexpected("AcceptOlderStore")),
        }
    }

    /// Takes a copy of the manager's store, to be read part by part: its number and its moment. What it names isn't deleted for `keep_ms`
    /// milliseconds of the manager's life.
    pub async fn begin_backup(&self, keep_ms: u64) -> Result<(u64, Moment), Failure> {
        match self.ask(ManagerRequest::BeginBackup { keep_ms }).await? {
            ManagerReply::Backup { id, moment } => Ok((id, moment)),
            _ => Err(crate::unexpected("BeginBackup")),
        }
    }

    /// Gives up the registered backup that shows a commit.
    pub async fn release_backup(&self, commit: u64) -> Result<(), Failure> {
        match self.ask(ManagerRequest::ReleaseBackup { commit }).await? {
            ManagerReply::Done => Ok(()),
            _ => Err(crate::unexpected("ReleaseBackup")),
        }
    }

    /// A part of the copy, and whether it is the last.
    pub async fn read_backup(&self, id: u64, part: u32) -> Result<(Vec<u8>, bool), Failure> {
        match self.ask(ManagerRequest::ReadBackup { id, part }).await? {
            ManagerReply::BackupPart { bytes, last } => Ok((bytes, last)),
            _ => Err(crate::unexpected("ReadBackup")),
        }
    }

    /// Opens a session that builds on the newest version of a file.
    pub async fn write(&self, ino: Ino) -> Result<Arc<Session>, Failure> {
        Session::open(&self.inner, ino).await
    }

    /// Opens a session on an empty file that replaces the newest version, of which nothing has to be read.
    pub async fn replace(&self, ino: Ino) -> Result<Arc<Session>, Failure> {
        Session::replace(&self.inner, ino).await
    }

    /// Opens a file for writing by this client's protocol or that of its folder; without a spool, through memory.
    pub async fn writer(&self, ino: Ino, spool: Option<&Arc<Spool>>) -> Result<Arc<Writer>, Failure> {
        Writer::open(&self.inner, ino, spool).await
    }

    /// Makes a file and opens it for writing, in one step.
    ///
    /// # Errors
    /// `Exists`: there is something of that name.
    pub async fn create(&self, file: NewFile, spool: Option<&Arc<Spool>>) -> Result<Arc<Writer>, Failure> {
        Writer::create(&self.inner, file, spool).await
    }

    /// Sees to it that all files that were made by this client are durable, also those that nobody has synced or closed.
    pub async fn settle_made(&self) -> Result<(), Failure> {
        let sessions: Vec<_> = self.inner.sessions.lock().values().filter_map(Weak::upgrade).collect();
        for session in sessions {
            session.settle_made().await?;
        }
        Ok(())
    }

    /// Takes up what an earlier process left in the spool. What is at the pool already, was removed there or is lost is
    /// dealt with when this returns. What can't be taken up now is left for the next time: the files, and why.
    pub async fn take_up(
        &self,
        spool: &Arc<Spool>,
    ) -> Result<(Vec<Unpushed>, HashMap<Ino, Failure>), Failure> {
        let (mut unpushed, mut left_alone) = (Vec::new(), HashMap::new());
        for left in spool.left()? {
            let mut taken = Writer::take_up(&self.inner, spool, &left).await;
            while let Err(failure) = &taken
                && failure.code == ErrorCode::NotFound
                && !self.is_gone(failure).await
            {
                tokio::time::sleep(GONE_PAUSE).await;
                taken = Writer::take_up(&self.inner, spool, &left).await;
            }
            let ino = left.name.ino;
            if let Err(failure) = &taken
                && failure.code == ErrorCode::NotFound
            {
                tracing::warn!(%ino, %failure, "a file of the spool is given up");
                taken = match Writer::give_up(&self.inner, &left).await {
                    Err(failure) if failure.code != ErrorCode::NotFound => Err(failure),
                    _ => Ok(None),
                };
            }
            match taken {
                Ok(Some(file)) => unpushed.push(file),
                Ok(None) => left.done(spool),
                // One file holds no others up, nor the mount. Without the manager there is none.
                Err(failure) => {
                    self.attr(Ino::ROOT).await?;
                    tracing::error!(%ino, %failure, "a file stays in the spool: the next mount with it tries again");
                    left_alone.insert(ino, failure);
                }
            }
        }
        Ok((unpushed, left_alone))
    }

    /// Whether a file that the manager doesn't find is gone. Not before all benefactors have registered since the manager's
    /// start, or are lost: its store may be an older copy, which only they can tell.
    pub async fn is_gone(&self, failure: &Failure) -> bool {
        let heard = |info: &BenefactorInfo| info.state != BenefactorState::Expected;
        failure.code == ErrorCode::NotFound
            && self
                .status()
                .await
                .is_ok_and(|status| status.set_back.is_empty() && status.benefactors.iter().all(heard))
    }

    /// The pool, once it has been asked something.
    pub fn id(&self) -> Option<PoolId> {
        self.inner.manager.identity().pool
    }

    /// Opens a version for reading, the newest if none is named.
    pub async fn read(&self, ino: Ino, version: Option<u64>) -> Result<Arc<Reader>, Failure> {
        self.inner.read_version(ino, version).await
    }

    /// A version with its chunk map and the chunks that hold the map; those of the container for a version that lies in one.
    pub async fn chunk_map(
        &self,
        ino: Ino,
        version: Option<u64>,
    ) -> Result<(Option<VersionInfo>, ChunkMap, Vec<ChunkRef>), Failure> {
        let (info, root) = self.map_root(ino, version).await?;
        let map = self.map_at(root.as_ref()).await?;
        Ok((info, map, root.map(|root| root.pieces().to_vec()).unwrap_or_default()))
    }

    /// A version with where its chunk map lies, or that of the container that it lies in; `None` without a version.
    pub async fn map_root(
        &self,
        ino: Ino,
        version: Option<u64>,
    ) -> Result<(Option<VersionInfo>, Option<MapRoot>), Failure> {
        let (info, root, _) = self.inner.open_version(ino, version).await?;
        let root = root.map(MapRoot::of_chunks).transpose().map_err(|error| bad_map(&error))?;
        Ok((info, root))
    }

    /// The keys with which this client encrypts and decrypts.
    pub fn encryption_keys(&self) -> &KeyRing {
        &self.inner.encryption_keys
    }

    /// All chunks that a version needs, those that hold its map included.
    pub async fn all_chunks(&self, ino: Ino, version: u64) -> Result<Vec<ChunkRef>, Failure> {
        match self.chunk_map(ino, Some(version)).await {
            Ok((_, map, pieces)) => Ok(map.chunks().iter().copied().chain(pieces).collect()),
            Err(failure) if failure.code == ErrorCode::NoKey => self.chunks_of(ino, version).await,
            Err(failure) => Err(failure),
        }
    }

    /// All chunks that a version needs, each once, as the manager knows them: also where the map is encrypted with a key that this client
    /// lacks. A length is 0 if no benefactor has told it yet.
    pub async fn chunks_of(&self, ino: Ino, version: u64) -> Result<Vec<ChunkRef>, Failure> {
        let mut all: Vec<ChunkRef> = Vec::new();
        loop {
            let after = all.last().map(|chunk| chunk.id);
            let more = match self.ask(ManagerRequest::ChunksOf { ino, version, after }).await? {
                ManagerReply::Chunks(more) => more,
                _ => return Err(crate::unexpected("ChunksOf")),
            };
            let is_last = more.len() < LIST_ENTRIES_MAX;
            all.extend(more);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// The chunk map that lies there; the empty one if there is none.
    pub async fn map_at(&self, root: Option<&MapRoot>) -> Result<ChunkMap, Failure> {
        self.inner.load_map(root).await
    }

    /// Lets every holder of these chunks compare its blocks with their names, and decodes fragments; or only says what the manager knows.
    pub async fn verify_chunks(
        &self,
        chunks: &[ChunkRef],
        depth: Depth,
    ) -> Result<Vec<ChunkHealth>, Failure> {
        let mut healths = Vec::with_capacity(chunks.len());
        for part in chunks.chunks(LIST_ENTRIES_MAX) {
            healths.extend(self.inner.verify_part(part, depth).await?);
        }
        Ok(healths)
    }

    /// Bytes of chunks that were fetched to be read, each as often as it was.
    pub fn fetched_bytes(&self) -> u64 {
        self.inner.cache.fetched_bytes()
    }

    /// Of these, bytes that came from near copies of this machine's benefactor.
    pub fn near_read_bytes(&self) -> u64 {
        self.inner.near.bytes().0
    }

    /// Bytes of chunks that were written and are kept as near copies.
    pub fn near_kept_bytes(&self) -> u64 {
        self.inner.near.bytes().1
    }

    /// The client is about to end: what waits for the manager without end from now on waits for a minute at most.
    pub fn ends(&self) {
        self.inner.manager.ends();
    }

    /// Waits until commits in the background have ended, and takes leave.
    pub async fn close(&self) {
        let mut background = std::mem::take(&mut *self.inner.background.lock());
        while background.join_next().await.is_some() {}
        self.inner.near.settle().await;
        self.leave().await;
    }

    /// Takes leave of the manager: that this client falls silent says nothing of its machine.
    pub async fn leave(&self) {
        if self.inner.writes.swap(false, Ordering::Relaxed) {
            // A manager that isn't there misses nothing else.
            let leave = async {
                drop(self.inner.tell_machine().await);
                self.inner.manager.ask(&ManagerRequest::Leave(self.inner.client)).await
            };
            drop(tokio::time::timeout(LEAVE_MAX, leave).await);
        }
    }
}

fn entry(reply: ManagerReply) -> Result<Attr, Failure> {
    match reply {
        ManagerReply::Entry(attr) => Ok(attr),
        _ => Err(crate::unexpected("a question for an inode")),
    }
}

impl Inner {
    /// Tells the manager on which machine this client writes, before its first file.
    pub(crate) async fn attend(&self) -> Result<(), Failure> {
        if !self.writes.load(Ordering::Relaxed) {
            self.tell_machine().await?;
            self.writes.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Also what was sent to benefactors since the last time.
    async fn tell_machine(&self) -> Result<(), Failure> {
        let sent = self.benefactors.take_sent();
        let attend = ManagerRequest::Attend { client: self.client, machine: machine(), sent: sent.clone() };
        let answer = self.manager.ask(&attend).await;
        if answer.is_err() {
            self.benefactors.take_back(&sent);
        }
        answer.map(drop)
    }

    pub(crate) async fn versions(&self, ino: Ino) -> Result<Vec<VersionInfo>, Failure> {
        match self.manager.ask(&ManagerRequest::Versions(ino)).await? {
            ManagerReply::Versions(versions) => Ok(versions),
            _ => Err(crate::unexpected("Versions")),
        }
    }

    /// The bytes of a range of a version; `range` lies within it.
    pub(crate) async fn read_runs(
        &self,
        view: &MapView,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, Failure> {
        match view {
            MapView::Chunks(chunks) => self.read_chunks(chunks, range).await,
            MapView::Packed(file) => file.read(self, range).await,
            MapView::Unreadable { failure, .. } => Err(failure.clone()),
        }
    }

    /// The bytes of a range of a version that has a chunk map.
    async fn read_chunks(&self, view: &ChunkView, range: std::ops::Range<u64>) -> Result<Bytes, Failure> {
        let pieces: Vec<Piece> = view.runs(range).map(|run| (to_usize(run.length), run.source)).collect();
        self.gather(&pieces).await
    }

    /// Bytes of chunks that one reader may be ahead by: half of the cache, all readers together. The other half has what is
    /// being read.
    pub(crate) fn ahead_bytes_max(&self) -> u64 {
        let readers = self.reading_ahead.load(Ordering::Relaxed).max(1);
        AHEAD_BYTES.1.min(self.cache.bytes_max() as u64 / 2) / readers
    }

    /// Begins to fetch a chunk that is neither there nor on its way; whether it was such a one.
    pub(crate) fn fetch_ahead(self: &Arc<Self>, chunk: ChunkRef) -> bool {
        let Some(place) = self.cache.place(chunk) else { return false };
        let pool = Arc::clone(self);
        self.runtime.spawn(async move {
            // A failure shows when the chunk is read.
            let _ = pool.cache.fill(chunk, place).await;
        });
        true
    }

    /// The bytes of a range of a version; asks for the holders of all its chunks first.
    pub(crate) async fn read_located(
        &self,
        view: &ChunkView,
        range: std::ops::Range<u64>,
    ) -> Result<Bytes, Failure> {
        let chunks: Vec<ChunkId> =
            view.runs(range.clone()).filter_map(|run| run.source.map(|(chunk, _)| chunk.id)).collect();
        self.fetcher.locate(chunks).await?;
        self.read_chunks(view, range).await
    }

    /// Zeros; the same memory for everyone who asks for no more than a chunk.
    pub(crate) fn zeros(&self, length: usize) -> Bytes {
        static ZEROS: OnceLock<Bytes> = OnceLock::new();
        let zeros = ZEROS.get_or_init(|| Bytes::from(vec![0; CHUNK_BYTES_MAX]));
        if length <= zeros.len() { zeros.slice(..length) } else { Bytes::from(vec![0; length]) }
    }

    /// Notes that a cell is stored: its bytes are kept as long as the window has room.
    pub(crate) fn retain(&self, sealed: &Arc<Sealed>) {
        self.stored.add(sealed);
    }

    /// Gives back the memory of the cell that was stored longest ago. False if there is none.
    pub(crate) fn release_stored(&self) -> bool {
        self.stored.take_first(Sealed::release)
    }

    /// Waits a moment for a cell to be stored; if none is on its way, starts one.
    pub(crate) async fn wait_for_room(&self, asking: &Arc<Session>) {
        if !asking.is_sending() && !asking.spill() {
            let sessions: Vec<Arc<Session>> =
                self.sessions.lock().values().filter_map(Weak::upgrade).collect();
            let begun = sessions.iter().filter_map(|session| Some((session.oldest()?, session)));
            if let Some((_, session)) = begun.min_by_key(|(oldest, _)| *oldest) {
                session.spill();
            }
        }
        let _ = tokio::time::timeout(ROOM_PAUSE, self.room.notified()).await;
    }

    /// Runs a task that [`Pool::close`] waits for.
    pub(crate) fn background(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut background = self.background.lock();
        while background.try_join_next().is_some() {}
        background.spawn_on(task, &self.runtime);
    }

    async fn verify_part(
        self: &Arc<Self>,
        chunks: &[ChunkRef],
        depth: Depth,
    ) -> Result<Vec<ChunkHealth>, Failure> {
        let ids: Vec<ChunkId> = chunks.iter().map(|chunk| chunk.id).collect();
        let found = self.fetcher.holders_of(&ids).await?;
        let mut by_holder: HashMap<BenefactorId, Vec<Placed>> = HashMap::new();
        for (place, (chunk, locations)) in chunks.iter().zip(&found).enumerate() {
            for location in &locations.at {
                let placed = Placed { place, at: *location, block: location.block(chunk.id) };
                by_holder.entry(location.benefactor).or_default().push(placed);
            }
        }
        let states = match depth {
            Depth::Known => self.known_at(by_holder).await?,
            Depth::Read => self.read_at(by_holder).await,
        };
        let unseen = |(chunk, locations): (&ChunkRef, &ChunkLocations)| ChunkHealth {
            chunk: *chunk,
            distance: 0,
            is_readable: false,
            damaged: 0,
            missing: 0,
            unreachable: u32::from(
                !locations.away.is_empty() || locations.at.is_empty() && locations.pending,
            ),
            away: locations.away.clone(),
            broken: Vec::new(),
        };
        let mut healths: Vec<ChunkHealth> = chunks.iter().zip(&found).map(unseen).collect();
        let mut intact: Vec<Vec<Location>> = vec![Vec::new(); chunks.len()];
        for (Placed { place, at, .. }, state) in states {
            let health = part_mut(&mut healths, place);
            match state {
                Some(BlockState::Intact) => part_mut(&mut intact, place).push(at),
                Some(BlockState::Damaged) => health.damaged += 1,
                Some(BlockState::Missing) => health.missing += 1,
                None => {
                    health.unreachable += 1;
                    health.away.push(at.benefactor);
                }
            }
        }
        let broken = match depth {
            Depth::Known => Vec::new(),
            Depth::Read => self.decode(chunks, &mut intact).await,
        };
        for (health, broken) in healths.iter_mut().zip(broken) {
            health.broken = broken;
        }
        for (health, intact) in healths.iter_mut().zip(&intact) {
            (health.distance, health.is_readable) = (distance_at(intact), is_readable_at(intact));
        }
        Ok(healths)
    }

    /// By what the manager knows of those that hold the blocks.
    async fn known_at(
        &self,
        by_holder: HashMap<BenefactorId, Vec<Placed>>,
    ) -> Result<Vec<(Placed, Option<BlockState>)>, Failure> {
        let ManagerReply::Benefactors(infos) = self.manager.ask(&ManagerRequest::Benefactors).await? else {
            return Err(crate::unexpected("Benefactors"));
        };
        let is_online = |info: &&BenefactorInfo| info.state == BenefactorState::Online;
        let online: HashSet<BenefactorId> = infos.iter().filter(is_online).map(|info| info.id).collect();
        let state = |holder| online.contains(&holder).then_some(BlockState::Intact);
        let states = by_holder
            .into_iter()
            .flat_map(|(holder, blocks)| blocks.into_iter().map(move |placed| (placed, holder)));
        Ok(states.map(|(placed, holder)| (placed, state(holder))).collect())
    }

    /// As those that hold the blocks find them.
    async fn read_at(
        self: &Arc<Self>,
        by_holder: HashMap<BenefactorId, Vec<Placed>>,
    ) -> Vec<(Placed, Option<BlockState>)> {
        let mut asked = JoinSet::new();
        for (holder, blocks) in by_holder {
            let pool = Arc::clone(self);
            asked.spawn(async move { pool.verify_at(holder, blocks).await });
        }
        asked.join_all().await.into_iter().flatten().collect()
    }

    async fn verify_at(
        &self,
        holder: BenefactorId,
        blocks: Vec<Placed>,
    ) -> Vec<(Placed, Option<BlockState>)> {
        let mut states = Vec::with_capacity(blocks.len());
        for part in blocks.chunks(VERIFY_MAX) {
            let asked = part.iter().map(|placed| placed.block).collect();
            // One that doesn't answer is not waited for with each further part.
            let answer = match self.benefactors.doubt(holder) {
                Some(Doubt::Failed) => None,
                _ => self.benefactors.verify(holder, asked).await.ok(),
            };
            let answered = part.iter().enumerate().map(|(number, placed)| {
                (*placed, answer.as_ref().and_then(|states| states.get(number).copied()))
            });
            states.extend(answered);
        }
        states
    }
}

/// A block that is to be verified: of which of the chunks, and where it is.
#[derive(Clone, Copy)]
struct Placed {
    place: usize,
    at: Location,
    block: BlockId,
}

/// Keeps the client's lease, and its sessions known to the manager.
async fn keep_alive(pool: Weak<Inner>) {
    let mut told_reads = false;
    for round in 1_u64.. {
        tokio::time::sleep(Duration::from_millis(CLIENT_KEEPALIVE_MS)).await;
        let Some(pool) = pool.upgrade() else { return };
        let alive = pool.manager.ask(&ManagerRequest::KeepAlive(pool.client)).await;
        let known = match alive {
            Ok(ManagerReply::Sessions(known)) => known.into_iter().collect::<HashSet<_>>(),
            other => {
                tracing::warn!(?other, "no sign of life could be given to the manager");
                continue;
            }
        };
        let reads: Vec<SessionId> = pool.reads.lock().keys().copied().take(LIST_ENTRIES_MAX).collect();
        // Whoever reads nothing tells so if something was open.
        let opened = pool.opened.swap(false, Ordering::Relaxed);
        if (!reads.is_empty() || opened || std::mem::replace(&mut told_reads, false))
            && let Err(failure) = {
                told_reads = !reads.is_empty();
                pool.manager.ask(&ManagerRequest::Reading { client: pool.client, sessions: reads }).await
            }
        {
            tracing::warn!(%failure, "the manager could not be told what is read here");
        }
        // A manager that was started anew doesn't know.
        if pool.writes.load(Ordering::Relaxed)
            && let Err(failure) = pool.tell_machine().await
        {
            tracing::warn!(%failure, "the manager could not be told on which machine this client writes");
        }
        if let Err(failure) = pool.manager.learn_managers().await {
            tracing::debug!(%failure, "the manager could not be asked where all of them serve");
        }
        if round.is_multiple_of(LEARN_NEAR_EVERY)
            && let Err(failure) = pool.near.learn().await
        {
            tracing::debug!(%failure, "the manager could not be asked for the benefactor of this machine");
        }
        let sessions: Vec<_> =
            pool.sessions.lock().iter().filter_map(|(id, session)| Some((*id, session.upgrade()?))).collect();
        let forgotten = |(id, session): &(_, Arc<Session>)| !known.contains(id) || session.is_to_be_held();
        for (id, session) in sessions.into_iter().filter(forgotten) {
            if let Err(failure) = session.reattach().await {
                tracing::warn!(session = %id, %failure, "the manager could not be told about a session");
            }
        }
    }
}
