//! Blocks made anew at other benefactors, as the manager orders them (paper, section IV.A: replication).
//!
//! A copy goes out as it lies here. For fragments, or copies of a chunk that is coded, as many fragments as suffice are gathered
//! first, once for all blocks that are to be made of them ([`crate::remake`]).
//!
//! Each destination has a lane of its own, so that a slow one holds nobody else up: no lane has all the turns, a turn is given back
//! when an answer takes long, what waits behind one to which nothing moves, or little, is handed back to the manager, and a batch ends with
//! the first block that is not answered. Within a lane blocks go in the order in which they were ordered, in
//! batches, each made durable at its end. A block lets clients go first for a moment, not for ever: writers may be waiting for
//! it. Copies take their part of the rates that the owner sets.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::{
    BenefactorReply, BenefactorRequest, Check, FailedCopy, Make, NewBlock,
};
use stdchk_model::message::handshake::Role;
use stdchk_model::{BenefactorId, BlockId, Encoding, ErrorCode, Failure, Permit, PoolId};
use stdchk_net::{BufferPool, Bytes, CallError, Connection, Identity, Keys};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use crate::pace::Cost;
use crate::reach::Reach;
use crate::remake::Remaker;
use crate::service::{Benefactor, Counted};

/// Orders that wait in a lane; more are handed back to the manager as failed.
const ORDERS_MAX: usize = 16_384;
/// Copies between two syncs of the other benefactor: with the usual chunks as much as a disk writes in a tenth of a second.
const BATCH: usize = 32;
/// Copies under way at one time, in all lanes: some are read while others are sent. Each takes the memory of a block.
const AT_ONCE: usize = 8;
/// Those of one lane: one is sent while the other is stored. Destinations to which much is on its way leave turns for others.
const AT_ONCE_IN_LANE: usize = 2;
/// Longest time that a copy gives way to clients: under constant load copies still make good progress.
const PATIENCE: Duration = Duration::from_millis(20);
/// A lane that had no orders for so long ends, and its connection with it.
const LANE_IDLE: Duration = Duration::from_secs(30);
/// Time between two looks at whether clients are waiting.
const LOOK: Duration = Duration::from_millis(5);
/// Time for the other benefactor's answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after which others don't wait any more for who waits for an answer: the largest block takes less on a network of 100 Mbit/s.
pub(crate) const STALL: Duration = Duration::from_secs(2);
/// Time after which it is tried whether a destination is reached, for which a batch is still under way.
const DOUBT_AFTER: Duration = Duration::from_secs(1);
/// Time between two looks at whether a lane comes on.
const LANE_LOOK: Duration = Duration::from_millis(500);
/// Time after which that is so also where something moves.
const TRICKLE: Duration = Duration::from_secs(10);

/// A block to be put at another benefactor.
pub(crate) struct Work {
    pub(crate) to: BenefactorId,
    pub(crate) block: BlockId,
    /// What the destination wants to see.
    pub(crate) permit: Permit,
    /// `None`: it lies here.
    pub(crate) made: Option<Made>,
}

/// A block that was made of others.
pub(crate) struct Made {
    pub(crate) encoding: Encoding,
    pub(crate) stored: Bytes,
    /// The room that its bytes take until they are sent.
    pub(crate) room: OwnedSemaphorePermit,
}

impl Work {
    /// It can't be put at its destination.
    fn failed(&self) -> FailedCopy {
        FailedCopy { chunk: self.block.chunk, to: Some(self.to) }
    }
}

/// What could not be made, or not be put at its destination.
type Failures = Arc<Mutex<Vec<FailedCopy>>>;

/// The ordered blocks, by destination.
#[derive(Clone)]
pub(crate) struct Copies {
    copier: Arc<Copier>,
    remaker: Arc<Remaker>,
    lanes: Arc<Mutex<HashMap<String, mpsc::Sender<Work>>>>,
    failed: Failures,
    reach: Arc<Reach>,
}

/// Carries copies out.
pub(crate) struct Copier {
    pub(crate) benefactor: Arc<Benefactor>,
    pub(crate) pool: PoolId,
    pub(crate) keys: Option<Arc<Keys>>,
    pub(crate) buffers: Arc<BufferPool>,
    /// Copies that may be under way.
    pub(crate) turns: Semaphore,
}

impl Copier {
    fn identity(&self) -> Identity {
        Identity { role: Role::Benefactor, pool: Some(self.pool), keys: self.keys.clone() }
    }

    /// As many copies as are made at one time.
    pub(crate) fn turns() -> Semaphore {
        Semaphore::new(AT_ONCE)
    }
}

impl Copies {
    /// Nothing is ordered yet.
    pub(crate) fn new(copier: Copier) -> Self {
        let identity = copier.identity();
        let reach = Arc::new(Reach::new(identity.clone(), Arc::clone(&copier.buffers)));
        let (benefactor, buffers) = (Arc::clone(&copier.benefactor), Arc::clone(&copier.buffers));
        let remaker = Remaker::new(benefactor, identity, buffers, Arc::clone(&reach));
        let (copier, remaker) = (Arc::new(copier), Arc::new(remaker));
        Self { copier, remaker, lanes: Arc::default(), failed: Arc::default(), reach }
    }

    /// Orders blocks of a chunk.
    pub(crate) fn order(&self, make: Make) {
        let own = make.from.first().filter(|source| source.encoding.code.is_copy());
        if let Some(source) = own {
            let block = BlockId { chunk: make.chunk, encoding: source.encoding, index: source.index };
            for NewBlock { to, address, permit, .. } in make.blocks {
                self.enqueue(address, Work { to, block, permit, made: None });
            }
            return;
        }
        let Some(place) = self.remaker.place() else {
            self.failed.lock().push(FailedCopy { chunk: make.chunk, to: None });
            return;
        };
        let this = self.clone();
        tokio::spawn(async move {
            let _place = place;
            match this.remaker.remake(&make).await {
                Ok(made) => made.into_iter().for_each(|(address, work)| this.enqueue(address, work)),
                Err(failure) => {
                    tracing::warn!(chunk = %make.chunk, %failure, "blocks of a chunk can't be made anew");
                    this.failed.lock().push(FailedCopy { chunk: make.chunk, to: None });
                    this.copier.benefactor.has_news();
                }
            }
        });
    }

    /// Orders that blocks are looked at.
    pub(crate) fn order_check(&self, check: Check) {
        let chunk = check.chunk;
        let unknown = FailedCopy { chunk, to: None };
        let Some(place) = self.remaker.place() else {
            self.failed.lock().push(unknown);
            return;
        };
        let this = self.clone();
        tokio::spawn(async move {
            let _place = place;
            if let Err(failure) = this.remaker.check(&check).await {
                tracing::info!(%chunk, %failure, "blocks can't be looked at");
                this.failed.lock().push(unknown);
                this.copier.benefactor.has_news();
            }
        });
    }

    /// Puts work into the lane of its destination.
    fn enqueue(&self, address: String, work: Work) {
        let mut lanes = self.lanes.lock();
        let sent = match lanes.get(&address) {
            Some(lane) => lane.try_send(work),
            None => Err(TrySendError::Closed(work)),
        };
        match sent {
            Ok(()) => {}
            Err(TrySendError::Full(work)) => self.failed.lock().push(work.failed()),
            Err(TrySendError::Closed(work)) => {
                let (lane, queue) = mpsc::channel(ORDERS_MAX);
                // The queue is new and has room.
                let _ = lane.try_send(work);
                // Those that ended.
                lanes.retain(|_, lane| !lane.is_closed());
                lanes.insert(address.clone(), lane);
                let (copier, failed) = (Arc::clone(&self.copier), Arc::clone(&self.failed));
                let (stalled, reach) = (Arc::default(), Arc::clone(&self.reach));
                let lane = Lane { copier, address, connection: None, failed, stalled, reach };
                tokio::spawn(lane.work(queue));
            }
        }
    }

    /// What failed since the last call, as much as a message holds.
    pub(crate) fn take_failed(&self) -> Vec<FailedCopy> {
        let mut failed = self.failed.lock();
        let count = failed.len().min(LIST_ENTRIES_MAX);
        failed.drain(..count).collect()
    }

    /// The ways to other benefactors.
    pub(crate) fn reach(&self) -> &Arc<Reach> {
        &self.reach
    }

    /// What fragments that were gathered make.
    pub(crate) fn remaker(&self) -> &Remaker {
        &self.remaker
    }

    /// Takes back what didn't reach the manager.
    pub(crate) fn return_failed(&self, mut failed: Vec<FailedCopy>) {
        self.failed.lock().append(&mut failed);
    }
}

/// The way to one destination.
struct Lane {
    copier: Arc<Copier>,
    address: String,
    connection: Option<Arc<Connection>>,
    failed: Failures,
    /// Puts that have waited for their answer for [`STALL`] without anything that moved, or for [`TRICKLE`].
    stalled: Arc<AtomicU32>,
    reach: Arc<Reach>,
}

/// The copies of a batch that have not arrived and were not handed back.
type UnderWay = Arc<Mutex<Vec<FailedCopy>>>;

impl Lane {
    /// Carries orders out until there was none for a while.
    async fn work(mut self, mut queue: mpsc::Receiver<Work>) {
        let (stalled, failed) = (Arc::clone(&self.stalled), Arc::clone(&self.failed));
        let (copier, reach) = (Arc::clone(&self.copier), Arc::clone(&self.reach));
        let address = self.address.clone();
        loop {
            let mut orders = Vec::new();
            match timeout(LANE_IDLE, queue.recv_many(&mut orders, BATCH)).await {
                Ok(0) => return,
                Ok(_) => {
                    let Some(to) = orders.first().map(|work| work.to) else { continue };
                    let under_way = UnderWay::new(Mutex::new(orders.iter().map(Work::failed).collect()));
                    let (mut batch, began) =
                        (pin!(self.batch(orders, Arc::clone(&under_way))), Instant::now());
                    let mut is_doubted = false;
                    while timeout(LANE_LOOK, &mut batch).await.is_err() {
                        let (mut back, lasts) = (Vec::new(), began.elapsed());
                        if lasts >= DOUBT_AFTER && !std::mem::replace(&mut is_doubted, true) {
                            reach.doubt(to, &address);
                        }
                        let is_stalled = stalled.load(Ordering::Relaxed) > 0;
                        if is_stalled && lasts >= TRICKLE {
                            reach.slow(to, &address);
                        }
                        // Others may take what waits behind a destination that doesn't answer.
                        if is_stalled {
                            back.extend(drained(&mut queue).map(|work| work.failed()));
                        }
                        // Blocks under way go back as well, once it is known that they don't arrive in time.
                        if reach.is_cut(to, &address) || is_stalled && lasts >= TRICKLE {
                            back.append(&mut under_way.lock());
                        }
                        if !back.is_empty() {
                            failed.lock().extend(back);
                            copier.benefactor.has_news();
                        }
                    }
                }
                // What was ordered at this moment is still taken.
                Err(_) => queue.close(),
            }
        }
    }

    /// Puts blocks at the destination and makes them durable there.
    async fn batch(&mut self, orders: Vec<Work>, under_way: UnderWay) {
        let to: Vec<BenefactorId> = orders.iter().map(|work| work.to).collect();
        let open = match self.connected().await {
            Ok(open) => open,
            Err(error) => {
                tracing::warn!(address = self.address, %error, "blocks can't be copied");
                if error.is_transport() {
                    to.iter().for_each(|to| self.reach.unreached(*to, &self.address));
                }
                self.failed.lock().extend(orders.iter().map(Work::failed));
                self.copier.benefactor.has_news();
                return;
            }
        };
        let places = Arc::new(Semaphore::new(AT_ONCE_IN_LANE));
        let blocks: Vec<_> = orders.iter().map(|work| ((work.block, work.permit), work.failed())).collect();
        let copies: Vec<_> = orders.into_iter().map(|work| self.spawn(&open, &places, work)).collect();
        let mut sent = Vec::new();
        for (copy, (block, lost)) in copies.into_iter().zip(blocks) {
            if self.connection.is_none() {
                copy.abort();
            }
            let copied = copy.await;
            under_way.lock().retain(|other| *other != lost);
            match copied {
                Ok(Ok(took)) => {
                    // A slow destination has to be quick to count as reached.
                    if let Some(to) = lost.to.filter(|_| took < STALL) {
                        self.reach.reached(to);
                    }
                    sent.push((block, lost));
                }
                Ok(Err((failed, error))) => {
                    tracing::warn!(?block, address = self.address, %error, "a block can't be copied");
                    self.failed.lock().push(failed);
                    if error.is_transport() {
                        self.connection = None;
                    }
                }
                Err(_) => self.failed.lock().push(lost),
            }
        }
        self.settle(&open, sent).await;
        if !self.failed.lock().is_empty() {
            self.copier.benefactor.has_news();
        }
    }

    async fn connected(&mut self) -> Result<Arc<Connection>, CallError> {
        if let Some(open) = &self.connection {
            return Ok(Arc::clone(open));
        }
        let copier = &self.copier;
        let open = Arc::new(
            Connection::open(Role::Benefactor, &self.address, &copier.identity(), &copier.buffers).await?,
        );
        self.connection = Some(Arc::clone(&open));
        Ok(open)
    }

    async fn settle(&self, connection: &Connection, sent: Vec<((BlockId, Permit), FailedCopy)>) {
        if sent.is_empty() {
            return;
        }
        let (blocks, permits): (Vec<_>, Vec<_>) = sent.iter().map(|(sent, _)| *sent).unzip();
        let request = BenefactorRequest::Sync { blocks, tell: true };
        let request = Asked { request, with: Some(permits) };
        let durable: HashSet<BlockId> = match connection.call(&request, Bytes::new(), ANSWER_TIMEOUT).await {
            Ok((BenefactorReply::Synced(receipt), _)) => {
                receipt.blocks.iter().map(|stored| stored.block).collect()
            }
            answer => {
                let error = answer.err();
                tracing::warn!(address = self.address, ?error, "copied blocks can't be made durable");
                HashSet::new()
            }
        };
        let missing = sent.into_iter().filter(|((block, _), _)| !durable.contains(block));
        self.failed.lock().extend(missing.map(|(_, lost)| lost));
    }

    fn spawn(
        &self,
        connection: &Arc<Connection>,
        places: &Arc<Semaphore>,
        work: Work,
    ) -> tokio::task::JoinHandle<Result<Duration, (FailedCopy, CallError)>> {
        let (copier, stalled) = (Arc::clone(&self.copier), Arc::clone(&self.stalled));
        let (connection, places) = (Arc::clone(connection), Arc::clone(places));
        tokio::spawn(async move {
            let _place = places.acquire().await.map_err(|_| (work.failed(), stopped()))?;
            copier.copy(&connection, work, &stalled).await
        })
    }
}

/// What is in the queue now.
fn drained(queue: &mut mpsc::Receiver<Work>) -> impl Iterator<Item = Work> {
    std::iter::from_fn(|| queue.try_recv().ok())
}

impl Copier {
    /// Puts a block at its destination; how long that took from when it was sent. An error says also what to report.
    async fn copy(
        &self,
        connection: &Connection,
        work: Work,
        stalled: &AtomicU32,
    ) -> Result<Duration, (FailedCopy, CallError)> {
        let (lost, block, permits) = (work.failed(), work.block, vec![work.permit]);
        let unmade = FailedCopy { to: None, ..lost };
        let turn = self.turns.acquire().await.map_err(|_| (lost, stopped()))?;
        self.give_way().await;
        let (encoding, bytes, _room) = match work.made {
            Some(Made { encoding, stored, room }) => (encoding, stored, Some(room)),
            None => {
                let own = self.benefactor.get(block).await;
                let (encoding, bytes) = own.map_err(|failure| (unmade, failure.into()))?;
                (encoding, bytes, None)
            }
        };
        self.benefactor.caps().pay(Cost { disk: 0, network: bytes.len() as u64 }).await;
        let request = BenefactorRequest::Put { block, encoding, durable: false, insists: false };
        let request = Asked { request, with: Some(permits) };
        let began = Instant::now();
        let put = connection.call(&request, bytes, ANSWER_TIMEOUT);
        let (answer, turn) = answered(put, turn, stalled, || connection.moved()).await;
        match answer {
            Ok((BenefactorReply::Stored { .. }, _)) => {}
            Ok(_) => {
                let message = "the other benefactor answered a put with something else";
                return Err((lost, Failure::new(ErrorCode::Malformed, message).into()));
            }
            // Of no use anywhere.
            Err(CallError::Refused(failure)) if failure.code == ErrorCode::Invalid => {
                return Err((unmade, failure.into()));
            }
            Err(error) => return Err((lost, error)),
        }
        drop(turn);
        Ok(began.elapsed())
    }

    async fn give_way(&self) {
        let quiet = async {
            while self.benefactor.is_busy() && !self.benefactor.goes() {
                tokio::time::sleep(LOOK).await;
            }
        };
        // Out of patience the copy goes on beside the clients.
        let _ = timeout(PATIENCE, quiet).await;
    }
}

/// Waits for an answer. If that takes long, others have the turn meanwhile, and while nothing has `moved`, or after long, it is counted.
pub(crate) async fn answered<T, P>(
    call: impl Future<Output = T>,
    turn: P,
    stalled: &AtomicU32,
    moved: impl Fn() -> u64,
) -> (T, Option<P>) {
    let mut call = pin!(call);
    let (began, mut before) = (Instant::now(), moved());
    if let Ok(answer) = timeout(STALL, &mut call).await {
        return (answer, Some(turn));
    }
    drop(turn);
    loop {
        let now = moved();
        let is_stalled = now == before || began.elapsed() >= TRICKLE;
        let _counted = is_stalled.then(|| Counted::new(stalled));
        before = now;
        if let Ok(answer) = timeout(STALL, &mut call).await {
            return (answer, None);
        }
    }
}

fn stopped() -> CallError {
    Failure::new(ErrorCode::Unavailable, "no copies are made any more").into()
}
