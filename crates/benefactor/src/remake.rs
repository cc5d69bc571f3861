//! Fragments made anew: enough of a chunk's fragments are gathered, here and from other benefactors, and all that are wanted
//! are made of them at once (FALCON, section IV: a lost fragment costs reading m others).
//!
//! Every fragment is compared with the hash in its encoding before it is used, and what was made with the identity that it must
//! have, so that neither a damaged nor a forged fragment spreads.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest, Make, SourceBlock};
use stdchk_model::{BlockId, ChunkId, Encoding, ErrorCode, Failure};
use stdchk_net::waits::permits;
use stdchk_net::{Buffer, BufferPool, Bytes, CallError, Connection, Identity};
use stdchk_protect::Remaking;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::copy::Work;
use crate::service::{Benefactor, blocking};

/// Chunks that are made anew at one time. Each takes 2 + (m + k) / m times its length: the fragments that were gathered, the encoded
/// bytes, and all fragments that are made of them.
const AT_ONCE: usize = 2;
/// Orders that wait for their turn; more are handed back to the manager as failed.
const WAITING_MAX: usize = 1024;
/// Time for the answer of a benefactor that has a fragment.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes fragments anew.
pub(crate) struct Remaker {
    benefactor: Arc<Benefactor>,
    identity: Identity,
    buffers: Arc<BufferPool>,
    memory: Arc<Semaphore>,
    places: Arc<Semaphore>,
    /// Open connections to other benefactors, by address.
    connections: Mutex<HashMap<String, Arc<Connection>>>,
}

type Fetched = (SourceBlock, Result<(Encoding, Bytes), CallError>);

impl Remaker {
    pub(crate) fn new(benefactor: Arc<Benefactor>, identity: Identity, buffers: Arc<BufferPool>) -> Self {
        let (memory, connections) = (Arc::new(Semaphore::new(AT_ONCE)), Mutex::default());
        let places = Arc::new(Semaphore::new(WAITING_MAX));
        Self { benefactor, identity, buffers, memory, places, connections }
    }

    /// A place for an order, as long as it is held; `None`: too many wait.
    pub(crate) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// The blocks that are wanted, each with the address that it goes to.
    pub(crate) async fn remake(self: &Arc<Self>, make: &Make) -> Result<Vec<(String, Work)>, Failure> {
        let Some(own) = make.from.first() else {
            return Err(Failure::new(ErrorCode::Malformed, "an order to make blocks names no sources"));
        };
        let memory = Arc::new(permits(&self.memory, 1).await);
        let remaking = self.gather(make.chunk, own, &make.from).await?;
        // The manager orders one kind at a time.
        let as_copies = make.blocks.iter().all(|block| block.index.is_none());
        let made = blocking(move || remaking.remake(as_copies)).await?;
        let made = made.map_err(|bad| Failure::new(ErrorCode::Damaged, bad.to_string()))?;
        let (chunk, mut all) = (make.chunk, Vec::with_capacity(make.blocks.len()));
        for new in &make.blocks {
            let index = new.index.unwrap_or(0);
            let Some(stored) = made.stored(index).cloned() else {
                let message = format!("there is no fragment {index} of chunk {chunk}");
                return Err(Failure::new(ErrorCode::Malformed, message));
            };
            let (block, encoding) = (made.encoding.block(chunk, index), made.encoding.clone());
            let work = Work::Made { block, encoding, stored, memory: Arc::clone(&memory) };
            all.push((new.address.clone(), work));
        }
        Ok(all)
    }

    /// Gathers as many fragments as suffice: this benefactor's own first, then others, as many at a time as are still needed.
    async fn gather(
        self: &Arc<Self>,
        chunk: ChunkId,
        own: &SourceBlock,
        from: &[SourceBlock],
    ) -> Result<Remaking, Failure> {
        let mut remaking = Remaking::new(chunk, own.encoding);
        let block = |source: &SourceBlock| BlockId { chunk, encoding: source.encoding, index: source.index };
        let (encoding, stored) = self.benefactor.get(block(own)).await?;
        let refused = |bad: stdchk_model::block::BadBlock| Failure::new(ErrorCode::Damaged, bad.to_string());
        // Out of the memory for answers, which others wait for.
        let mut lacks =
            remaking.add(own.index, encoding, Bytes::copy_from_slice(&stored)).map_err(refused)?;
        drop(stored);
        let mut waiting: VecDeque<&SourceBlock> = from.iter().skip(1).collect();
        let mut fetches: JoinSet<Fetched> = JoinSet::new();
        while lacks > 0 {
            while fetches.len() < usize::from(lacks)
                && let Some(source) = waiting.pop_front()
            {
                let (this, source, block) = (Arc::clone(self), source.clone(), block(source));
                fetches.spawn(async move {
                    let fetched = this.fetch(&source.address, block).await;
                    (source, fetched)
                });
            }
            let Some(fetched) = fetches.join_next().await else {
                let message = format!("{lacks} more fragments of chunk {chunk} are needed and can't be had");
                return Err(Failure::new(ErrorCode::Unavailable, message));
            };
            match fetched {
                Ok((source, Ok((encoding, stored)))) => match remaking.add(source.index, encoding, stored) {
                    Ok(still) => lacks = still,
                    Err(bad) => {
                        tracing::warn!(address = %source.address, block = ?block(&source), %bad, "a fragment is damaged");
                        self.let_verify(&source.address, block(&source)).await;
                    }
                },
                Ok((source, Err(error))) => {
                    tracing::debug!(address = %source.address, %error, "a fragment can't be had");
                    self.connections.lock().remove(&source.address);
                }
                Err(error) => tracing::warn!(%error, "the work on a fragment ended early"),
            }
        }
        Ok(remaking)
    }

    async fn fetch(&self, address: &str, block: BlockId) -> Result<(Encoding, Bytes), CallError> {
        let connection = self.connection(address).await?;
        let answer = connection.call(&BenefactorRequest::Get { block }, Bytes::new(), ANSWER_TIMEOUT).await;
        match answer? {
            (BenefactorReply::Block { encoding }, stored) => {
                let stored: Buffer = stored;
                Ok((encoding, stored.keep()))
            }
            _ => {
                let message = "the other benefactor answered a get with something else";
                Err(Failure::new(ErrorCode::Malformed, message).into())
            }
        }
    }

    /// The benefactor that served a damaged block looks at it itself, sets it aside and reports it.
    async fn let_verify(&self, address: &str, block: BlockId) {
        let Ok(connection) = self.connection(address).await else { return };
        let request = BenefactorRequest::Verify { blocks: vec![block] };
        // Without that, its own search for damage finds it later.
        let _: Result<(BenefactorReply, Buffer), _> =
            connection.call(&request, Bytes::new(), ANSWER_TIMEOUT).await;
    }

    async fn connection(&self, address: &str) -> Result<Arc<Connection>, CallError> {
        let open = self.connections.lock().get(address).filter(|open| !open.is_closed()).cloned();
        if let Some(open) = open {
            return Ok(open);
        }
        let open = Arc::new(Connection::open(address, &self.identity, &self.buffers).await?);
        self.connections.lock().insert(address.to_owned(), Arc::clone(&open));
        Ok(open)
    }
}
