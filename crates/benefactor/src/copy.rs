//! Copies of blocks to other benefactors, as the manager orders them (paper, section IV.A: replication).
//!
//! Copies have low priority: while clients wait for this benefactor a copy waits too, though not for ever, and a rate
//! bounds what copies take from the network. They go in batches, each batch made durable at its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::{BlockId, ErrorCode, Failure, Incarnation, PoolId};
use stdchk_net::{BufferPool, Bytes, CallError, Connection, Identity};
use tokio::sync::mpsc;

use crate::service::Benefactor;

/// Orders that wait; more are handed back to the manager as failed.
const ORDERS_MAX: usize = 16_384;
/// Copies between two syncs of the other benefactor.
const BATCH: usize = 32;
/// Copies under way at one time: one reads while another is sent.
const AT_ONCE: usize = 3;
/// Longest time that a copy gives way to clients: under constant load copies still make progress.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time between two looks at whether clients are waiting.
const LOOK: Duration = Duration::from_millis(5);
/// Time for the other benefactor's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Default, Debug)]
struct Report {
    failed: Vec<BlockId>,
    bytes: u64,
}

/// The queue of ordered copies.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    orders: mpsc::Sender<(BlockId, String)>,
    report: Arc<Mutex<Report>>,
}

/// Carries copies out.
pub(crate) struct Copier {
    pub(crate) benefactor: Arc<Benefactor>,
    pub(crate) pool: PoolId,
    pub(crate) token: Vec<u8>,
    pub(crate) buffers: Arc<BufferPool>,
    /// Most bytes copied in a second; 0: no limit.
    pub(crate) rate: u64,
}

impl Copies {
    /// Starts a copier; it ends with the last handle to the queue.
    pub(crate) fn start(copier: Copier) -> Self {
        let (orders, queue) = mpsc::channel(ORDERS_MAX);
        let report = Arc::new(Mutex::new(Report::default()));
        tokio::spawn(copier.work(queue, Arc::clone(&report)));
        Self { orders, report }
    }

    /// Orders a copy of `block` to the benefactor at `address`.
    pub(crate) fn order(&self, block: BlockId, address: String) {
        if self.orders.try_send((block, address)).is_err() {
            self.report.lock().failed.push(block);
        }
    }

    /// What failed and how many bytes were copied since the last call.
    pub(crate) fn take_report(&self) -> (Vec<BlockId>, u64) {
        let report = std::mem::take(&mut *self.report.lock());
        (report.failed, report.bytes)
    }

    /// Takes a report back that didn't reach the manager.
    pub(crate) fn return_report(&self, mut failed: Vec<BlockId>, bytes: u64) {
        let mut report = self.report.lock();
        report.failed.append(&mut failed);
        report.bytes += bytes;
    }
}

impl Copier {
    async fn work(self, mut queue: mpsc::Receiver<(BlockId, String)>, report: Arc<Mutex<Report>>) {
        let this = Arc::new(self);
        let mut orders = Vec::new();
        while queue.recv_many(&mut orders, BATCH).await > 0 {
            let mut by_address: HashMap<String, Vec<BlockId>> = HashMap::new();
            for (block, address) in orders.drain(..) {
                by_address.entry(address).or_default().push(block);
            }
            for (address, blocks) in by_address {
                this.batch(&address, blocks, &report).await;
            }
        }
    }

    /// Copies `blocks` to `address` and makes them durable there.
    async fn batch(self: &Arc<Self>, address: &str, blocks: Vec<BlockId>, report: &Mutex<Report>) {
        let identity = Identity { role: Role::Benefactor, pool: Some(self.pool), token: self.token.clone() };
        let connection = match Connection::open(address, &identity, &self.buffers).await {
            Ok(connection) => Arc::new(connection),
            Err(error) => {
                tracing::warn!(%address, %error, "blocks can't be copied");
                report.lock().failed.extend(blocks);
                return;
            }
        };
        let mut sent: Vec<(BlockId, u64, Incarnation)> = Vec::new();
        for group in blocks.chunks(AT_ONCE) {
            let copies: Vec<_> = group.iter().map(|block| self.spawn(&connection, *block)).collect();
            for (copy, block) in copies.into_iter().zip(group) {
                match copy.await {
                    Ok(Ok((bytes, incarnation))) => sent.push((*block, bytes, incarnation)),
                    Ok(Err(error)) => {
                        tracing::warn!(?block, %address, %error, "a block can't be copied");
                        report.lock().failed.push(*block);
                    }
                    Err(_) => report.lock().failed.push(*block),
                }
            }
        }
        self.settle(&connection, sent, report).await;
    }

    async fn settle(
        &self,
        connection: &Connection,
        sent: Vec<(BlockId, u64, Incarnation)>,
        report: &Mutex<Report>,
    ) {
        let Some((_, _, incarnation)) = sent.last().copied() else { return };
        let request = BenefactorRequest::Sync { incarnation };
        let synced: Result<(BenefactorReply, _), CallError> =
            connection.call(&request, Bytes::new(), ANSWER_TIMEOUT).await;
        let mut report = report.lock();
        match synced {
            Ok(_) => report.bytes += sent.iter().map(|(_, bytes, _)| bytes).sum::<u64>(),
            Err(error) => {
                tracing::warn!(address = connection.address(), %error, "copied blocks can't be made durable");
                report.failed.extend(sent.into_iter().map(|(block, _, _)| block));
            }
        }
    }

    fn spawn(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        block: BlockId,
    ) -> tokio::task::JoinHandle<Result<(u64, Incarnation), CallError>> {
        let (this, connection) = (Arc::clone(self), Arc::clone(connection));
        tokio::spawn(async move { this.copy(&connection, block).await })
    }

    async fn copy(&self, connection: &Connection, block: BlockId) -> Result<(u64, Incarnation), CallError> {
        self.give_way().await;
        let (form, bytes) = self.benefactor.get(block).await?;
        let length = bytes.len() as u64;
        let request = BenefactorRequest::Put { block, form, durable: false };
        let (reply, _) = connection.call(&request, bytes, ANSWER_TIMEOUT).await?;
        let BenefactorReply::Stored { incarnation, .. } = reply else {
            let message = "the other benefactor answered a put with something else";
            return Err(Failure::new(ErrorCode::Malformed, message).into());
        };
        self.keep_rate(length).await;
        Ok((length, incarnation))
    }

    async fn give_way(&self) {
        let quiet = async {
            while self.benefactor.is_busy() {
                tokio::time::sleep(LOOK).await;
            }
        };
        // Out of patience the copy goes on beside the clients.
        let _ = tokio::time::timeout(PATIENCE, quiet).await;
    }

    async fn keep_rate(&self, bytes: u64) {
        if self.rate > 0 {
            let share = bytes as f64 * AT_ONCE as f64 / self.rate as f64;
            tokio::time::sleep(Duration::from_secs_f64(share)).await;
        }
    }
}
