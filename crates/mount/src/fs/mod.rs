//! The file system in terms of inodes and handles, over the client library; it knows nothing of FUSE's messages.
//!
//! Namespace operations go straight to the manager; what the kernel caches of the answers keeps most of them away. File
//! content goes through [`open_file`].

mod debts;
mod directory;
mod files;
mod habits;
mod names;
mod nodes;
mod open_file;
mod pushing;
mod retry;
mod room;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_client::{Pool, Spool, Writer};
use stdchk_model::message::manager::{Attr, FileKind, Space};
use stdchk_model::{ErrorCode, Failure, Ino};
use tokio::sync::{Semaphore, watch};

pub(crate) use debts::Mark;
pub(crate) use directory::{Listed, Stream};
pub(crate) use files::{Chosen, Opened, Wanted};
pub(crate) use names::New;
pub(crate) use nodes::NodeId;
pub(crate) use open_file::{Handle, OpenFile};

use debts::{Credit, Owed};
use habits::Habits;
use nodes::Nodes;
use retry::Retries;
use room::Room;

/// How often a question is asked again because a change made here overtook its answer.
const OVERTAKEN_MAX: usize = 16;

pub(crate) struct FileSystem {
    pool: Pool,
    spool: Option<Arc<Spool>>,
    nodes: Mutex<Nodes>,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
    streams: Mutex<HashMap<u64, Arc<Stream>>>,
    retries: Arc<Retries>,
    habits: Habits,
    room: Room,
    credit: Credit,
    /// Whether the kernel can map files that go past its page cache.
    goes_past_cache: AtomicBool,
    next_number: AtomicU64,
    /// Files that were closed early and could not be committed, until a program is told.
    lost: Mutex<HashMap<Ino, Failure>>,
    /// Files that an earlier mount left in the spool and that can't be taken up, and why.
    left_alone: Mutex<HashMap<Ino, Failure>>,
    /// Turns of files that are pushed; closed once the mount ends and the pool takes nothing.
    pushes: Semaphore,
    /// True once the mount is about to end.
    ending: watch::Sender<bool>,
    /// Whether the machine is said to go soon: then pushes that failed are tried again at once.
    going: watch::Sender<bool>,
    /// Makes the kernel drop the pages of an inode, and waits until it has.
    drop_pages: OnceLock<Arc<dyn Fn(NodeId) + Send + Sync>>,
}

/// An entry as it is shown to the kernel, which from then on holds the inode.
pub(crate) struct Shown {
    pub id: NodeId,
    pub attr: Attr,
    /// Whether the kernel may believe it for a while.
    pub lasts: bool,
}

/// Whether the mount is asked again when the kernel uses a name of such an inode that it believes: it is to open a file, and to list a
/// directory. Nobody asks it before a link is followed or a pipe is opened, so that the kernel may not believe their names.
fn is_checked_when_used(kind: FileKind) -> bool {
    matches!(kind, FileKind::File | FileKind::Directory)
}

/// An inode that the kernel remembers and that is gone was removed or replaced elsewhere; the name by which the kernel
/// came to it may lead to another one: told so, it looks the name up again.
fn look_again(failure: Failure) -> Failure {
    match failure.code {
        ErrorCode::NotFound => Failure { code: ErrorCode::Stale, ..failure },
        _ => failure,
    }
}

impl Shown {
    /// How long the kernel may believe it, where `ttl` is how long it may believe others.
    pub fn lasts_for(&self, ttl: Duration) -> Duration {
        if self.lasts { ttl } else { Duration::ZERO }
    }
}

impl FileSystem {
    /// The file system of a pool.
    ///
    /// # Errors
    /// The root directory can't be read.
    pub async fn new(pool: Pool, spool: Option<Arc<Spool>>) -> Result<Self, Failure> {
        let root = pool.attr(Ino::ROOT).await?;
        let mut nodes = Nodes::default();
        nodes.present(&root, 0);
        Ok(Self {
            pool,
            spool,
            nodes: Mutex::new(nodes),
            handles: Mutex::default(),
            streams: Mutex::default(),
            retries: Arc::default(),
            habits: Habits::default(),
            room: Room::default(),
            credit: Credit::default(),
            goes_past_cache: AtomicBool::new(false),
            next_number: AtomicU64::new(1),
            lost: Mutex::default(),
            left_alone: Mutex::default(),
            pushes: Semaphore::new(pushing::PUSHES_MAX),
            ending: watch::Sender::new(false),
            going: watch::Sender::new(false),
            drop_pages: OnceLock::new(),
        })
    }

    /// From now on the kernel's pages of an inode can be dropped, by `drop_pages`.
    pub fn may_drop_pages(&self, drop_pages: impl Fn(NodeId) + Send + Sync + 'static) {
        let set = self.drop_pages.set(Arc::new(drop_pages));
        assert!(set.is_ok(), "a file system is mounted once");
    }

    /// Drops what the kernel has of an inode. Nobody waits for it: the kernel may wait for a read of the file first.
    fn drop_pages(&self, id: NodeId) {
        if let Some(drop_pages) = self.drop_pages.get().cloned() {
            tokio::task::spawn_blocking(move || drop_pages(id));
        }
    }

    /// Opens a file for writing by the protocol of the mount or of its folder.
    async fn writer(&self, ino: Ino) -> Result<Arc<Writer>, Failure> {
        self.check_left_alone(ino)?;
        self.pool.writer(ino, self.spool.as_ref()).await
    }

    /// Fails if the file's newest content waits in the spool and could not be taken up: who reads it would see what it had before, and what
    /// is written, or takes its name, would be covered by it later.
    fn check_left_alone(&self, ino: Ino) -> Result<(), Failure> {
        self.left_alone.lock().get(&ino).map_or(Ok(()), |failure| {
            let what = format!("file {ino} waits in the spool and can't be pushed: {failure}");
            Err(Failure { message: what, ..failure.clone() })
        })
    }

    /// Shows an entry to the kernel. `None`: a change made here overtook the answer, ask again.
    fn show(&self, mut attr: Attr, asked_at: u64) -> Option<Shown> {
        let mut nodes = self.nodes.lock();
        let id = nodes.present(&attr, asked_at)?;
        let open = nodes.open_file(id);
        drop(nodes);
        let lasts =
            is_checked_when_used(attr.kind) && open.as_ref().is_none_or(|open| !open.goes_past_cache());
        open.inspect(|open| open.overlay(&mut attr));
        Some(Shown { id, attr, lasts })
    }

    /// The kernel can map files that go past its page cache.
    pub fn allow_past_cache(&self) {
        self.goes_past_cache.store(true, Ordering::Relaxed);
    }

    /// Fails if a task came to an inode by a name that may lead to another one by now.
    ///
    /// # Errors
    /// `Stale`: the kernel looks the name up again.
    pub async fn check_names(&self, id: NodeId, task: u32) -> Result<(), Failure> {
        let now = self.pool.attr(id.ino()).await.map_err(look_again)?;
        match self.nodes.lock().refuses(id, &now, task) {
            true => {
                let what =
                    format!("the names of inode {} were changed elsewhere: look it up again", id.ino());
                Err(Failure::new(ErrorCode::Stale, what))
            }
            false => Ok(()),
        }
    }

    /// The failure of a change in a directory. If there is no such directory any more, its name may lead to another one.
    async fn in_directory(&self, parent: NodeId, failure: Failure) -> Failure {
        let is_gone = |found: Result<Attr, Failure>| found.is_err_and(|it| it.code == ErrorCode::NotFound);
        match failure.code == ErrorCode::NotFound && is_gone(self.pool.attr(parent.ino()).await) {
            true => look_again(failure),
            false => failure,
        }
    }

    /// The kernel drops references to an inode.
    pub fn forget(&self, id: NodeId, lookups: u64) {
        if id.ino() != Ino::ROOT {
            self.nodes.lock().forget(id, lookups);
        }
    }

    /// What `stat` says of an inode, and for how long it may be believed if that is `ttl` for what the pool says now.
    pub async fn stat(&self, id: NodeId, ttl: Duration) -> Result<(Attr, Duration), Failure> {
        let lasting = self.nodes.lock().lasting_attr(id, ttl);
        match lasting {
            Some(lasting) => Ok(lasting),
            None => Ok((self.attr(id).await?, ttl)),
        }
    }

    /// The attributes of an inode, those of a file being written as its writers see it.
    pub async fn attr(&self, id: NodeId) -> Result<Attr, Failure> {
        let asked_at = self.nodes.lock().changes_in_folders();
        let answer = self.pool.attr(id.ino()).await;
        let mut nodes = self.nodes.lock();
        let open = nodes.open_file(id);
        let mut attr = match answer {
            // Its last name is gone while it is open, or somebody works in it.
            Err(failure)
                if failure.code == ErrorCode::NotFound
                    && (open.is_some() || nodes.is_removed_directory(id)) =>
            {
                let last = nodes.last_attr(id).ok_or(failure)?;
                Attr { links: 0, ..last.clone() }
            }
            answer => answer.map_err(look_again)?,
        };
        nodes.learned(id, &attr, asked_at);
        drop(nodes);
        open.inspect(|open| open.overlay(&mut attr));
        Ok(attr)
    }

    /// Takes so many bytes of a killed program before there is room for them; nothing if the mount owes too much.
    pub fn owe(&self, handle: &Handle, bytes: usize) -> Option<Owed> {
        handle.file.debts.owe(&self.credit, bytes)
    }

    /// Names that this mount gave are durable when this returns.
    pub async fn sync_names(&self) -> Result<(), Failure> {
        self.pool.settle_made().await
    }

    /// Space of the pool.
    pub async fn space(&self) -> Result<Space, Failure> {
        self.pool.space().await
    }

    /// Ends what is still open when the mount goes away, and waits for commits in the background.
    pub async fn end(&self) {
        let open = self.nodes.lock().all_open();
        for file in open {
            tracing::warn!(ino = %file.id().ino(), "a file was open for writing or reading when the mount ended");
            file.abandon(self).await;
        }
        self.pool.close().await;
    }

    /// What was closed early is lost: whoever touches the file next is told.
    fn note_lost(&self, ino: Ino, failure: &Failure) {
        tracing::error!(%ino, %failure, "a file that was closed early could not be stored: this version of it is lost");
        let code = match failure.code {
            ErrorCode::NoSpace => ErrorCode::NoSpace,
            _ => ErrorCode::Unavailable,
        };
        let what =
            format!("what was written to file {ino} before is lost, after it was closed early: {failure}");
        self.lost.lock().insert(ino, Failure::new(code, what));
    }

    /// Fails, once, if what was written to the file last is lost.
    fn report_lost(&self, ino: Ino) -> Result<(), Failure> {
        self.lost.lock().remove(&ino).map_or(Ok(()), Err)
    }

    /// Whether what was written to the file last is lost, and no program was told.
    fn is_lost(&self, ino: Ino) -> bool {
        self.lost.lock().contains_key(&ino)
    }

    /// How many files are lost of which no program was told.
    pub fn unreported_losses(&self) -> usize {
        self.lost.lock().len()
    }

    fn number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }
}
