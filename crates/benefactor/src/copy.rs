//! Blocks made anew at other benefactors, as the manager orders them (paper, section IV.A: replication).
//!
//! A copy goes out as it lies here. For fragments, or copies of a chunk that is coded, as many fragments as suffice are gathered
//! first, once for all blocks that are to be made of them ([`crate::remake`]).
//!
//! Each destination has a lane of its own, so that a slow one holds nobody else up: no lane has all the turns, and a batch ends
//! with the first block that is not answered. Within a lane blocks go in the order in which they were ordered, in
//! batches, each made durable at its end. A block lets clients go first for a moment, not for ever: writers may be waiting for
//! it. A rate bounds what copies take from the network, if the owner sets one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest, Make};
use stdchk_model::message::handshake::Role;
use stdchk_model::{BlockId, ChunkId, Encoding, ErrorCode, Failure, PoolId};
use stdchk_net::waits::permits;
use stdchk_net::{BufferPool, Bytes, CallError, Connection, Identity, Retry};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::remake::Remaker;
use crate::service::Benefactor;

/// Orders that wait in a lane; more are handed back to the manager as failed.
const ORDERS_MAX: usize = 16_384;
/// Copies between two syncs of the other benefactor: with the usual chunks as much as a disk writes in a tenth of a second.
const BATCH: usize = 32;
/// Copies under way at one time, in all lanes: some are read while others are sent. Each takes the memory of a block.
const AT_ONCE: usize = 6;
/// Those of one lane: a destination that doesn't answer leaves turns for others.
const AT_ONCE_IN_LANE: usize = 4;
/// Longest time that a copy gives way to clients: under constant load copies still make good progress.
const PATIENCE: Duration = Duration::from_millis(20);
/// A lane that had no orders for so long ends, and its connection with it.
const LANE_IDLE: Duration = Duration::from_secs(30);
/// Time between two looks at whether clients are waiting.
const LOOK: Duration = Duration::from_millis(5);
/// Time for the other benefactor's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A block to be put at another benefactor.
pub(crate) enum Work {
    /// It lies here.
    Own(BlockId),
    /// It was made of others, and takes memory until it is sent.
    Made { block: BlockId, encoding: Encoding, stored: Bytes, memory: Arc<OwnedSemaphorePermit> },
}

impl Work {
    fn block(&self) -> BlockId {
        match self {
            Self::Own(block) | Self::Made { block, .. } => *block,
        }
    }
}

/// The ordered blocks, by destination.
#[derive(Clone)]
pub(crate) struct Copies {
    copier: Arc<Copier>,
    remaker: Arc<Remaker>,
    lanes: Arc<Mutex<HashMap<String, mpsc::Sender<Work>>>>,
    /// Chunks of which a block could not be made.
    failed: Arc<Mutex<Vec<ChunkId>>>,
}

/// Carries copies out.
pub(crate) struct Copier {
    pub(crate) benefactor: Arc<Benefactor>,
    pub(crate) pool: PoolId,
    pub(crate) token: Vec<u8>,
    pub(crate) buffers: Arc<BufferPool>,
    /// Most bytes copied in a second; 0: no limit.
    pub(crate) rate: u64,
    /// Copies that may be under way.
    pub(crate) turns: Arc<Semaphore>,
}

impl Copier {
    fn identity(&self) -> Identity {
        Identity { role: Role::Benefactor, pool: Some(self.pool), token: self.token.clone() }
    }

    /// As many copies as are made at one time.
    pub(crate) fn turns() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(AT_ONCE))
    }
}

impl Copies {
    /// Nothing is ordered yet.
    pub(crate) fn new(copier: Copier) -> Self {
        let identity = copier.identity();
        let remaker = Remaker::new(Arc::clone(&copier.benefactor), identity, Arc::clone(&copier.buffers));
        let (copier, remaker) = (Arc::new(copier), Arc::new(remaker));
        Self { copier, remaker, lanes: Arc::default(), failed: Arc::default() }
    }

    /// Orders blocks of a chunk.
    pub(crate) fn order(&self, make: Make) {
        let own = make.from.first().filter(|source| source.encoding.code.is_copy());
        if let Some(source) = own {
            let block = BlockId { chunk: make.chunk, encoding: source.encoding, index: source.index };
            make.blocks.into_iter().for_each(|new| self.enqueue(new.address, Work::Own(block)));
            return;
        }
        let Some(place) = self.remaker.place() else {
            self.failed.lock().push(make.chunk);
            return;
        };
        let this = self.clone();
        tokio::spawn(async move {
            let _place = place;
            match this.remaker.remake(&make).await {
                Ok(made) => made.into_iter().for_each(|(address, work)| this.enqueue(address, work)),
                Err(failure) => {
                    tracing::warn!(chunk = %make.chunk, %failure, "blocks of a chunk can't be made anew");
                    this.failed.lock().push(make.chunk);
                    this.copier.benefactor.has_news();
                }
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
            Err(TrySendError::Full(work)) => self.failed.lock().push(work.block().chunk),
            Err(TrySendError::Closed(work)) => {
                let (lane, queue) = mpsc::channel(ORDERS_MAX);
                // The queue is new and has room.
                let _ = lane.try_send(work);
                // Those that ended.
                lanes.retain(|_, lane| !lane.is_closed());
                lanes.insert(address.clone(), lane);
                let (copier, failed) = (Arc::clone(&self.copier), Arc::clone(&self.failed));
                tokio::spawn(copier.work(address, queue, failed));
            }
        }
    }

    /// What failed since the last call, as much as a message holds.
    pub(crate) fn take_failed(&self) -> Vec<ChunkId> {
        let mut failed = self.failed.lock();
        let count = failed.len().min(LIST_ENTRIES_MAX);
        failed.drain(..count).collect()
    }

    /// Takes back what didn't reach the manager.
    pub(crate) fn return_failed(&self, mut chunks: Vec<ChunkId>) {
        self.failed.lock().append(&mut chunks);
    }
}

impl Copier {
    /// One lane, until nothing was ordered for a while.
    async fn work(
        self: Arc<Self>,
        address: String,
        mut queue: mpsc::Receiver<Work>,
        failed: Arc<Mutex<Vec<ChunkId>>>,
    ) {
        let mut connection = None;
        loop {
            let mut orders = Vec::new();
            let taken = tokio::time::timeout(LANE_IDLE, queue.recv_many(&mut orders, BATCH)).await;
            match taken {
                Ok(0) => return,
                Ok(_) => self.batch(&address, &mut connection, orders, &failed).await,
                // What was ordered at this moment is still taken.
                Err(_) => queue.close(),
            }
        }
    }

    /// Puts blocks at `address` and makes them durable there.
    async fn batch(
        self: &Arc<Self>,
        address: &str,
        connection: &mut Option<Arc<Connection>>,
        orders: Vec<Work>,
        failed: &Mutex<Vec<ChunkId>>,
    ) {
        let open = match self.connected(address, connection).await {
            Ok(open) => open,
            Err(error) => {
                tracing::warn!(%address, %error, "blocks can't be copied");
                failed.lock().extend(orders.iter().map(|work| work.block().chunk));
                self.benefactor.has_news();
                return;
            }
        };
        let places = Arc::new(Semaphore::new(AT_ONCE_IN_LANE));
        let blocks: Vec<BlockId> = orders.iter().map(Work::block).collect();
        let copies: Vec<_> = orders.into_iter().map(|work| self.spawn(&open, &places, work)).collect();
        let mut sent = Vec::new();
        for (copy, block) in copies.into_iter().zip(&blocks) {
            if connection.is_none() {
                copy.abort();
            }
            match copy.await {
                Ok(Ok(())) => sent.push(*block),
                Ok(Err(error)) => {
                    tracing::warn!(?block, %address, %error, "a block can't be copied");
                    failed.lock().push(block.chunk);
                    if error.is_transport() {
                        *connection = None;
                    }
                }
                Err(_) => failed.lock().push(block.chunk),
            }
        }
        self.settle(&open, sent, failed).await;
        if !failed.lock().is_empty() {
            self.benefactor.has_news();
        }
    }

    async fn connected(
        &self,
        address: &str,
        connection: &mut Option<Arc<Connection>>,
    ) -> Result<Arc<Connection>, CallError> {
        if let Some(open) = connection {
            return Ok(Arc::clone(open));
        }
        let open = Arc::new(Connection::open(address, &self.identity(), &self.buffers).await?);
        *connection = Some(Arc::clone(&open));
        Ok(open)
    }

    async fn settle(&self, connection: &Connection, sent: Vec<BlockId>, failed: &Mutex<Vec<ChunkId>>) {
        if sent.is_empty() {
            return;
        }
        let request = BenefactorRequest::Sync { blocks: sent.clone(), tell: true };
        match connection.call(&request, Bytes::new(), ANSWER_TIMEOUT).await {
            Ok((BenefactorReply::Synced(receipt), _)) => {
                let durable: HashSet<BlockId> = receipt.blocks.iter().map(|stored| stored.block).collect();
                let missing = sent.into_iter().filter(|block| !durable.contains(block));
                failed.lock().extend(missing.map(|block| block.chunk));
            }
            answer => {
                let error = answer.err();
                tracing::warn!(address = connection.address(), ?error, "copied blocks can't be made durable");
                failed.lock().extend(sent.into_iter().map(|block| block.chunk));
            }
        }
    }

    fn spawn(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        places: &Arc<Semaphore>,
        work: Work,
    ) -> tokio::task::JoinHandle<Result<(), CallError>> {
        let (this, connection, places) = (Arc::clone(self), Arc::clone(connection), Arc::clone(places));
        tokio::spawn(async move {
            let _place = permits(&places, 1).await;
            this.copy(&connection, work).await
        })
    }

    async fn copy(&self, connection: &Connection, work: Work) -> Result<(), CallError> {
        let _turn = permits(&self.turns, 1).await;
        self.give_way().await;
        let block = work.block();
        let (encoding, bytes, _memory) = match work {
            Work::Own(block) => {
                let (encoding, bytes) = self.benefactor.get(block).await?;
                (encoding, bytes, None)
            }
            Work::Made { encoding, stored, memory, .. } => (encoding, stored, Some(memory)),
        };
        let length = bytes.len() as u64;
        let request = BenefactorRequest::Put { block, encoding, durable: false };
        let (reply, _) = connection.call(&request, bytes, ANSWER_TIMEOUT).await?;
        let BenefactorReply::Stored { .. } = reply else {
            let message = "the other benefactor answered a put with something else";
            return Err(Failure::new(ErrorCode::Malformed, message).into());
        };
        self.keep_rate(length).await;
        Ok(())
    }

    async fn give_way(&self) {
        let mut retry = Retry::every(LOOK, PATIENCE);
        // Out of patience the copy goes on beside the clients.
        while self.benefactor.is_busy() && retry.pause().await {}
    }

    async fn keep_rate(&self, bytes: u64) {
        if self.rate > 0 {
            // Those that are under way share the rate.
            let under_way = AT_ONCE - self.turns.available_permits();
            let share = bytes as f64 * under_way as f64 / self.rate as f64;
            tokio::time::sleep(Duration::from_secs_f64(share)).await;
        }
    }
}
