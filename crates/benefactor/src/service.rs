//! Answers requests: a thin layer between the protocol and the store.
//!
//! Hashing and file I/O run on the blocking pool, so that the runtime's threads keep moving bytes. Requests for durability
//! that arrive together share one sync (group commit).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::exact::narrow;
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::{
    BenefactorLoad, BenefactorReply, BenefactorRequest, BlockState, Goes, Notice, OwnerWish, proof,
};
use stdchk_model::message::handshake::Role;
use stdchk_model::{
    BlockId, ChunkId, Encoding, ErrorCode, Failure, Incarnation, Permit, Receipt, ReceiptKey,
};
use stdchk_net::{Buffer, BufferPool, Bytes, Caller, Retry, Service, elsewhere};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::journal::Kept;
use crate::load::{Busyness, Thresholds};
use crate::memory::Memory;
use crate::pace::{Caps, Cost};
use crate::permits::Permits;
use crate::store::{Found, Store, StoreError};

/// How a found block is read: [`Store::read`], or another way with the same promises.
type Read = fn(&Store, &Found, &mut [u8]) -> Result<(Encoding, Range<usize>), StoreError>;

/// Length of a part of the journal's file, bytes.
const JOURNAL_PART_BYTES: usize = 1 << 20;

/// The store as the protocol sees it.
#[derive(Debug)]
pub struct Benefactor {
    store: Arc<Store>,
    memory: Arc<Memory>,
    kept: Arc<Kept>,
    buffers: Arc<BufferPool>,
    incarnation: Incarnation,
    receipt_key: ReceiptKey,
    permits: Permits,
    syncing: tokio::sync::Mutex<()>,
    requests: AtomicU32,
    /// Requests ever.
    asked: AtomicU64,
    leaving: AtomicBool,
    wish: Mutex<OwnerWish>,
    departures: Mutex<Departures>,
    /// What is left to do while its machine goes soon, as far as the manager knows.
    left_to_do: watch::Sender<Goes>,
    caps: Arc<Caps>,
    busyness: Busyness,
    news: Notify,
    /// Whether the pool has forgotten it, as its owner wished.
    left: watch::Sender<bool>,
}

/// Why this benefactor goes soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Departures {
    /// Its machine is said to go, at some time or nobody says when.
    told: Option<Option<Instant>>,
    /// Its process was warned that it is to end then.
    warned: Option<Instant>,
}

impl Departures {
    /// Whether it goes soon, and when.
    fn next(&self) -> Option<Option<Instant>> {
        self.warned.map(Some).or(self.told)
    }
}

/// Counts something while it is under way.
pub(crate) struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    pub(crate) fn new(counter: &'a AtomicU32) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `work` where blocking harms nobody.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    elsewhere(work).await.map_err(|error| {
        Failure::new(ErrorCode::Internal, format!("the work on a request ended early: {error}"))
    })
}

impl Benefactor {
    /// A benefactor of life `incarnation`, which makes receipts with `receipt_key` and reads into `buffers`.
    pub fn new(
        store: Arc<Store>,
        beside: (Arc<Memory>, Arc<Kept>),
        buffers: Arc<BufferPool>,
        incarnation: Incarnation,
        receipt_key: ReceiptKey,
    ) -> Arc<Self> {
        let terms = (Arc::new(Caps::new(0, 0)), Thresholds::default());
        Self::on_terms(store, beside, buffers, (incarnation, receipt_key), terms)
    }

    /// One of an owner who sets rates, and the loads at which it takes no new blocks.
    pub fn on_terms(
        store: Arc<Store>,
        (memory, kept): (Arc<Memory>, Arc<Kept>),
        buffers: Arc<BufferPool>,
        (incarnation, receipt_key): (Incarnation, ReceiptKey),
        (caps, thresholds): (Arc<Caps>, Thresholds),
    ) -> Arc<Self> {
        store.keeps_beside(kept.bytes());
        Arc::new(Self {
            store,
            memory,
            kept,
            buffers,
            incarnation,
            receipt_key,
            permits: Permits::default(),
            syncing: tokio::sync::Mutex::new(()),
            requests: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            wish: Mutex::default(),
            departures: Mutex::default(),
            left_to_do: watch::Sender::default(),
            caps,
            busyness: Busyness::new(thresholds),
            news: Notify::new(),
            left: watch::Sender::new(false),
        })
    }

    /// Its store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// What it remembers of the manager's history.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// What it keeps of the manager's store.
    pub fn kept(&self) -> &Arc<Kept> {
        &self.kept
    }

    /// Its present life.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// What the manager checks the receipts of this life with.
    pub fn receipt_key(&self) -> &ReceiptKey {
        &self.receipt_key
    }

    /// The rates that its owner sets.
    pub(crate) fn caps(&self) -> &Arc<Caps> {
        &self.caps
    }

    /// What other benefactors may ask for.
    pub(crate) fn permits(&self) -> &Permits {
        &self.permits
    }

    /// Space, blocks and requests under way.
    pub fn load(&self) -> BenefactorLoad {
        let requests = self.requests.load(Ordering::Relaxed);
        let notice = self.departures.lock().next().map(|at| Notice {
            in_ms: at.map(|at| {
                let left = at.saturating_duration_since(Instant::now()).as_millis();
                narrow(left)
            }),
        });
        let (state, busy_percent, clients) = self.busyness.told();
        let load = BenefactorLoad { requests, notice, state, busy_percent, clients, ..self.store.load() };
        match self.wish() {
            OwnerWish::Serve => load,
            wish => BenefactorLoad { wish, free_bytes: 0, ..load },
        }
    }

    /// What its owner wishes. Unless that is that it serves, it takes no puts, and gives the pool nothing but what it has.
    pub fn wish(&self) -> OwnerWish {
        *self.wish.lock()
    }

    /// Its owner decides; the manager hears at once. Puts under way end as they would have.
    pub fn set_wish(&self, wish: OwnerWish) {
        if std::mem::replace(&mut *self.wish.lock(), wish) != wish {
            tracing::info!(?wish, "the owner has decided");
            self.has_news();
        }
    }

    /// Its machine is said to go soon, or no longer; the manager hears at once. Puts under way end as they would have.
    pub fn set_notice(&self, notice: Option<Notice>) {
        let at = |notice: Notice| {
            notice.in_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)))
        };
        self.depart(|departures| departures.told = notice.map(at));
    }

    /// Its process was warned that it ends within this time. What the manager said before of what is left to do may be old.
    pub(crate) fn ends_within(&self, grace: Duration) {
        self.left_to_do.send_modify(|left_to_do| left_to_do.may_end = false);
        self.depart(|departures| departures.warned = Instant::now().checked_add(grace));
        self.has_news();
    }

    fn depart(&self, change: impl FnOnce(&mut Departures)) {
        let (before, goes) = {
            let mut departures = self.departures.lock();
            let before = departures.next().is_some();
            change(&mut departures);
            (before, departures.next().is_some())
        };
        if before == goes {
            return;
        }
        match goes {
            true => tracing::warn!("this benefactor is said to go soon: what is here moves to others"),
            false => tracing::info!("this benefactor is no longer said to go soon"),
        }
        self.caps.hurry(goes);
        self.left_to_do.send_replace(Goes::default());
        self.has_news();
    }

    /// Whether its machine is said to go soon, or its process.
    pub fn goes(&self) -> bool {
        self.departures.lock().next().is_some()
    }

    /// What the manager says of a machine that goes soon.
    pub fn set_left_to_do(&self, left_to_do: Goes) {
        self.left_to_do.send_replace(left_to_do);
    }

    /// Waits until nothing is left for which this one is waited for while its machine goes.
    pub(crate) async fn may_end(&self) {
        // It never ends while this lives, which has the sender.
        let _ = self.left_to_do.subscribe().wait_for(|left_to_do| left_to_do.may_end).await;
    }

    /// Others keep its disk busy for this share of time, or that can't be told; `waits`: some program waits for the disk now and then. The manager
    /// hears at once whether new blocks are taken from now on.
    pub fn measured(&self, load: Option<f64>, waits: bool) {
        if self.busyness.measured(load, waits) {
            self.has_news();
        }
    }

    /// Whether its owner's work needs the disk, so that what can wait should.
    pub(crate) fn gives_way(&self) -> bool {
        self.busyness.gives_way()
    }

    /// The pool has forgotten it, as its owner wished.
    pub(crate) fn has_left(&self) {
        self.left.send_replace(true);
    }

    /// Whether the pool has.
    pub(crate) fn is_left(&self) -> bool {
        *self.left.borrow()
    }

    /// Waits until the pool has.
    pub(crate) async fn left(&self) {
        // It never ends while this lives, which has the sender.
        let _ = self.left.subscribe().wait_for(|left| *left).await;
    }

    /// Writes down under which start of the manager blocks are called durable, before they are.
    async fn remember(&self) -> Result<(), Failure> {
        if self.memory.is_current() {
            return Ok(());
        }
        let memory = Arc::clone(&self.memory);
        let written = blocking(move || memory.make_current()).await?;
        Ok(written.map_err(|cause| {
            let path = self.memory.path().to_owned();
            StoreError::Io { action: "write", path, cause }
        })?)
    }

    /// Makes durable all that is stored by now, and before it under which start of the manager.
    pub async fn sync(&self) -> Result<(), Failure> {
        self.remember().await?;
        let goal = self.store.finished();
        let _turn = self.syncing.lock().await;
        if self.store.is_durable_up_to(goal) {
            return Ok(());
        }
        let store = Arc::clone(&self.store);
        Ok(blocking(move || store.sync()).await??)
    }

    /// Reads a block, verified, when there is time for it.
    pub async fn get(&self, block: BlockId) -> Result<(Encoding, Bytes), Failure> {
        let found = self.store.find(block)?;
        self.caps.pay(Cost { disk: found.span() as u64, network: 0 }).await;
        self.read_by(found, Store::read).await
    }

    /// Reads a block for one who waits for it.
    async fn serve(&self, block: BlockId) -> Result<(Encoding, Bytes), Failure> {
        let found = self.store.find(block)?;
        let bytes = found.span() as u64;
        self.caps.admit(Cost { disk: bytes, network: bytes }).await?;
        self.read_by(found, Store::read_to_verify).await
    }

    async fn read_by(&self, found: Found, read: Read) -> Result<(Encoding, Bytes), Failure> {
        self.read_into(found.span(), move |store, buffer| read(store, &found, buffer)).await
    }

    async fn read_into(
        &self,
        span: usize,
        read: impl FnOnce(&Store, &mut [u8]) -> Result<(Encoding, Range<usize>), StoreError> + Send + 'static,
    ) -> Result<(Encoding, Bytes), Failure> {
        let mut buffer = self.buffers.take(span).await;
        let store = Arc::clone(&self.store);
        let (encoding, range, buffer) = blocking(move || {
            let (encoding, range) = read(&store, &mut buffer)?;
            Ok::<_, StoreError>((encoding, range, buffer))
        })
        .await??;
        Ok((encoding, buffer.into_bytes().slice(range)))
    }

    /// Reads a near copy.
    async fn serve_near(&self, chunk: ChunkId) -> Result<(Encoding, Bytes), Failure> {
        let found = self.store.find_near(chunk)?;
        let bytes = found.span() as u64;
        self.caps.admit_soon(Cost { disk: bytes, network: bytes }).await?;
        self.read_into(found.span(), move |store, buffer| store.read_near(&found, buffer)).await
    }

    /// Keeps a near copy.
    async fn put_near(
        &self,
        chunk: ChunkId,
        encoding: Encoding,
        mut payload: Buffer,
    ) -> Result<BenefactorReply, Failure> {
        let bytes = payload.len() as u64;
        self.caps.admit_soon(Cost { disk: bytes, network: bytes }).await?;
        let store = Arc::clone(&self.store);
        let known = blocking(move || store.put_near(chunk, &encoding, &mut payload)).await??;
        Ok(BenefactorReply::Stored { receipt: None, known })
    }

    /// Takes no more puts, and waits until what is under way is answered, for at most `limit`.
    pub async fn leave(&self, limit: Duration) {
        const PAUSE: Duration = Duration::from_millis(5);
        self.leaving.store(true, Ordering::Relaxed);
        let mut retry = Retry::every(PAUSE, limit);
        while self.requests.load(Ordering::Relaxed) > 0 {
            if !retry.pause().await {
                return tracing::warn!("requests were still under way when the benefactor left");
            }
        }
    }

    /// There is something of which the manager should hear soon.
    pub(crate) fn has_news(&self) {
        self.news.notify_one();
    }

    /// Waits until there is.
    pub(crate) async fn news(&self) {
        self.news.notified().await;
    }

    /// Whether clients wait for this benefactor.
    pub(crate) fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    /// How many requests there were since it started.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether new blocks are taken from this caller. The manager knows the states of benefactors: it orders copies to one that
    /// is busy where they are needed.
    fn check_open(&self, caller: &Caller, insists: bool) -> Result<(), Failure> {
        self.check_takes()?;
        match caller.role {
            Role::Benefactor => Ok(()),
            _ => self.busyness.admit(caller.connection, insists),
        }
    }

    /// Whether it takes anything new, by its owner and its machine.
    fn check_takes(&self) -> Result<(), Failure> {
        if self.leaving.load(Ordering::Relaxed) {
            return Err(Failure::new(ErrorCode::Unavailable, "this benefactor is leaving: use another one"));
        }
        let refused = match self.wish() {
            OwnerWish::Serve if self.goes() && !self.left_to_do.borrow().takes => {
                Some("this benefactor's machine is said to go soon: use another one")
            }
            OwnerWish::Serve => None,
            OwnerWish::Pause => Some("this benefactor's owner has paused it: use another one"),
            OwnerWish::Drain | OwnerWish::Leave | OwnerWish::Damaged => {
                Some("this benefactor gives back what it has: use another one")
            }
        };
        refused.map_or(Ok(()), |message| Err(Failure::new(ErrorCode::Unavailable, message)))
    }

    /// With `durable`, the thread that wrote the block sees to that, too; puts that come together share the work.
    async fn put(
        &self,
        (block, encoding): (BlockId, Encoding),
        mut payload: Buffer,
        durable: bool,
    ) -> Result<BenefactorReply, Failure> {
        let bytes = payload.len() as u64;
        self.caps.admit(Cost { disk: bytes, network: bytes }).await?;
        if durable {
            self.remember().await?;
        }
        let store = Arc::clone(&self.store);
        let known = blocking(move || {
            let known = store.put(block, encoding, &mut payload)?;
            if durable {
                store.sync()?;
            }
            Ok::<_, Failure>(known)
        })
        .await??;
        let receipt = durable.then(|| {
            let (sequence, _) = self.store.touch(&[block]);
            self.receipt(sequence, &[block])
        });
        Ok(BenefactorReply::Stored { receipt, known })
    }

    /// A receipt for those of `blocks`, touched at `sequence`, that are here and durable now.
    fn receipt(&self, sequence: u64, blocks: &[BlockId]) -> Receipt {
        Receipt::new(&self.receipt_key, self.incarnation, sequence, self.store.durable(blocks))
    }

    async fn sync_blocks(&self, blocks: &[BlockId], tell: bool) -> Result<BenefactorReply, Failure> {
        limited(blocks)?;
        // First, so that nothing is deleted meanwhile that the receipt names.
        let (sequence, all_durable) = self.store.touch(blocks);
        self.remember().await?;
        if !all_durable && let Err(failure) = self.sync().await {
            // What was durable before the disk failed still is, if it is there.
            let store = Arc::clone(&self.store);
            blocking(move || store.check_presence()).await?.map_err(|_| failure)?;
        }
        if tell {
            self.has_news();
        }
        Ok(BenefactorReply::Synced(self.receipt(sequence, blocks)))
    }

    async fn verify(&self, blocks: &[BlockId]) -> Result<BenefactorReply, Failure> {
        limited(blocks)?;
        let mut states = Vec::with_capacity(blocks.len());
        for block in blocks {
            states.push(match self.get(*block).await {
                Ok(_) => BlockState::Intact,
                Err(failure) if failure.code == ErrorCode::Damaged => BlockState::Damaged,
                Err(failure) if failure.code == ErrorCode::NotFound => BlockState::Missing,
                Err(failure) => return Err(failure),
            });
        }
        Ok(BenefactorReply::Verified { states })
    }

    /// Proves that a durable block is here and intact.
    async fn prove(&self, block: BlockId, key: [u8; 32]) -> Result<BenefactorReply, Failure> {
        if self.store.durable(&[block]).is_empty() {
            return Err(Failure::new(ErrorCode::NotFound, "no such block is durable here"));
        }
        let Some(by) = self.kept.keeper() else {
            return Err(Failure::new(ErrorCode::Unavailable, "this benefactor has not registered yet"));
        };
        let (_, stored) = self.get(block).await?;
        Ok(BenefactorReply::Proof(blocking(move || proof(&key, by, &stored)).await?))
    }

    /// A part of the journal's file.
    async fn journal(&self, offset: u64) -> Result<BenefactorReply, Failure> {
        let bytes = JOURNAL_PART_BYTES as u64;
        self.caps.admit(Cost { disk: bytes, network: bytes }).await?;
        let kept = Arc::clone(&self.kept);
        let read = blocking(move || kept.read(offset, JOURNAL_PART_BYTES)).await?;
        let (length, bytes) = read.map_err(|cause| {
            let path = self.kept.path().to_owned();
            StoreError::Io { action: "read", path, cause }
        })?;
        Ok(BenefactorReply::Journal { benefactor: self.kept.keeper(), length, bytes })
    }

    async fn answer(
        &self,
        caller: &Caller,
        request: BenefactorRequest,
        payload: Buffer,
    ) -> Result<(BenefactorReply, Bytes), Failure> {
        let reply = match request {
            BenefactorRequest::Put { block, encoding, durable, insists } => {
                check_maker(caller, &encoding)?;
                self.check_open(caller, insists)?;
                self.put((block, encoding), payload, durable).await?
            }
            BenefactorRequest::Sync { blocks, tell } => self.sync_blocks(&blocks, tell).await?,
            BenefactorRequest::Get { block } => {
                let (encoding, bytes) = self.serve(block).await?;
                return Ok((BenefactorReply::Block { encoding }, bytes));
            }
            BenefactorRequest::Verify { blocks } => self.verify(&blocks).await?,
            BenefactorRequest::Prove { block, key } => self.prove(block, key).await?,
            BenefactorRequest::Status => BenefactorReply::Status(self.load()),
            BenefactorRequest::Journal { offset } => self.journal(offset).await?,
            BenefactorRequest::PutNear { chunk, encoding } => {
                self.check_takes()?;
                self.busyness.admit_spare()?;
                self.put_near(chunk, encoding, payload).await?
            }
            BenefactorRequest::HasNear { chunk } => BenefactorReply::Near(self.store.has_near(&chunk)),
            BenefactorRequest::GetNear { chunk } => {
                let (encoding, bytes) = self.serve_near(chunk).await?;
                return Ok((BenefactorReply::Block { encoding }, bytes));
            }
        };
        Ok((reply, Bytes::new()))
    }
}

/// Refuses fragments in the name of another maker: nobody sees by a fragment what it is worth, so it counts for its maker alone. What another
/// benefactor brings, the manager has ordered. At a socket of the machine there are only processes that could write the file.
fn check_maker(caller: &Caller, encoding: &Encoding) -> Result<(), Failure> {
    let is_ordered = caller.role == Role::Benefactor;
    let is_own = encoding.maker == caller.maker || caller.member.is_none();
    match encoding.code.is_copy() || is_ordered || is_own {
        true => Ok(()),
        false => {
            let message = format!(
                "fragments in the name of {}, from {}: they count for who made them, and nobody else may bring them",
                encoding.maker, caller.maker
            );
            Err(Failure::new(ErrorCode::Denied, message))
        }
    }
}

fn limited(blocks: &[BlockId]) -> Result<(), Failure> {
    if blocks.len() > LIST_ENTRIES_MAX {
        let message = format!("{} blocks in one request: send at most {LIST_ENTRIES_MAX}", blocks.len());
        return Err(Failure::new(ErrorCode::TooLong, message));
    }
    Ok(())
}

impl Service for Benefactor {
    /// With permits, if another benefactor asks.
    type Request = Asked<BenefactorRequest, Vec<Permit>>;
    type Reply = BenefactorReply;

    /// Clients may ask for everything but the journal: what they put is verified, and nothing of it removes anything but near copies, which
    /// are theirs alone. Other benefactors may ask for what the manager permits.
    async fn handle(
        &self,
        caller: Caller,
        Asked { request, with: permits }: Asked<BenefactorRequest, Vec<Permit>>,
        payload: Buffer,
    ) -> Result<(BenefactorReply, Bytes), Failure> {
        if caller.role == Role::Benefactor {
            self.permits.check(&request, &permits.unwrap_or_default(), caller.member)?;
        }
        if matches!(request, BenefactorRequest::Journal { .. }) && caller.role != Role::Operator {
            return Err(Failure::new(ErrorCode::Denied, "only an operator may ask for the journal"));
        }
        let is_near = matches!(
            request,
            BenefactorRequest::PutNear { .. }
                | BenefactorRequest::HasNear { .. }
                | BenefactorRequest::GetNear { .. }
        );
        if is_near && !matches!(caller.role, Role::Client | Role::Operator) {
            return Err(Failure::new(ErrorCode::Denied, "near copies are for clients"));
        }
        let _counted = Counted::new(&self.requests);
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.answer(&caller, request, payload).await
    }

    fn ended(&self, caller: &Caller) {
        self.busyness.ended(caller.connection);
    }
}

#[cfg(test)]
mod tests {
    use stdchk_model::message::handshake::MemberId;
    use stdchk_model::{Code, Maker};

    use super::*;

    #[test]
    fn fragments_are_taken_from_their_maker_and_by_order_of_the_manager() {
        let (own, other) = (Maker([1; 8]), Maker([2; 8]));
        let code = Code::erasure(2, 1).unwrap();
        let copy = Encoding::copy(10_000, 0, 10_000, ChunkId([3; 32]));
        let fragments = |maker| Encoding { code, hashes: vec![ChunkId([3; 32]); 3], maker, ..copy.clone() };
        let caller = |role, member: Option<u8>| {
            let member = member.map(|number| MemberId([number; 16]));
            Caller { member, maker: own, ..Caller::of_this_machine(role) }
        };
        for role in [Role::Client, Role::Operator] {
            let is_let = |encoding: &Encoding| check_maker(&caller(role, Some(7)), encoding).is_ok();
            assert!(is_let(&copy) && is_let(&fragments(own)), "{role:?}");
            assert!(!is_let(&fragments(other)) && !is_let(&fragments(Maker::LOCAL)), "{role:?}");
            // It could change the file itself.
            assert!(check_maker(&caller(role, None), &fragments(other)).is_ok());
        }
        // It has shown a permit for this encoding.
        assert!(check_maker(&caller(Role::Benefactor, Some(7)), &fragments(other)).is_ok());
    }
}
