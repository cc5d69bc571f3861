//! Fragments made anew: enough of a chunk's fragments are gathered, here and from other benefactors, and all that are wanted
//! are made of them at once (FALCON, section IV: a lost fragment costs reading m others).
//!
//! Every fragment is compared with the hash in its encoding before it is used, what fragments make with the chunk's name, and what was made with
//! the identity that it must have, so that neither a damaged nor a forged fragment spreads. What came of it is told to the manager: of an
//! encoding that was decoded it is known that it makes the chunk. Who waits for a benefactor that doesn't answer lets others make
//! what doesn't need that one.
//!
//! In the same way an encoding is checked of which the manager doesn't know whether it makes its chunk: gathered, decoded and compared with
//! the chunk's name. And before a block that is here may go, this benefactor sees those that stay: each of their holders proves that it has the very
//! bytes that follow from the own block, or from what was gathered.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use stdchk_model::block::BadBlock;
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::{
    BenefactorReply, BenefactorRequest, Check, Decoded, Make, Seen, SourceBlock, proof,
};
use stdchk_model::message::handshake::Role;
use stdchk_model::{BlockId, ChunkId, Encoding, EncodingId, ErrorCode, Failure};
use stdchk_net::{Buffer, BufferPool, Bytes, CallError, Connection, Identity};
use stdchk_protect::{BadFragments, Blocks, Remaking, genuine};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::copy::{ANSWER_TIMEOUT, Made, STALL, Work, answered};
use crate::pace::Cost;
use crate::reach::Reach;
use crate::service::{Benefactor, blocking};

/// Chunks that are made anew at one time. Each takes 2 + (m + k) / m times its length: the fragments that were gathered, the encoded
/// bytes, and all fragments that are made of them. As many others may wait for each benefactor that is silent.
const AT_ONCE: usize = 2;
/// Orders that wait for their turn; more are handed back to the manager as failed.
const WAITING_MAX: usize = 1024;
/// Bytes of blocks that were made and wait to be sent, as many as the manager has on order at one time.
const MADE_BYTES_MAX: usize = 64 << 20;

/// Makes fragments anew.
pub(crate) struct Remaker {
    benefactor: Arc<Benefactor>,
    identity: Identity,
    buffers: Arc<BufferPool>,
    reach: Arc<Reach>,
    turns: Arc<Semaphore>,
    places: Arc<Semaphore>,
    room: Arc<Semaphore>,
    /// Other benefactors, by address.
    peers: Mutex<HashMap<String, Peer>>,
    /// What the manager has not been told yet of encodings of which enough was gathered.
    decoded: Mutex<Vec<Decoded>>,
    /// Answers to orders to see blocks that it has not been told yet.
    seen: Mutex<Vec<Seen>>,
}

/// Bytes that blocks of others are compared with.
enum Known {
    /// A copy that is here.
    Own(BlockId, Bytes),
    /// All blocks of an encoding.
    Made(Blocks),
    /// Nothing: each is compared with its own name.
    Nothing,
}

/// Another benefactor that fragments are fetched from.
#[derive(Clone, Default)]
struct Peer {
    connection: Option<Arc<Connection>>,
    /// Questions that have waited for its answer for [`STALL`].
    stalled: Arc<AtomicU32>,
}

type Fetched = (SourceBlock, Result<(Encoding, Bytes), CallError>);

impl Remaker {
    pub(crate) fn new(
        benefactor: Arc<Benefactor>,
        identity: Identity,
        buffers: Arc<BufferPool>,
        reach: Arc<Reach>,
    ) -> Self {
        let limit = |count| Arc::new(Semaphore::new(count));
        let (turns, places, room) = (limit(AT_ONCE), limit(WAITING_MAX), limit(MADE_BYTES_MAX));
        Self {
            benefactor,
            identity,
            buffers,
            reach,
            turns,
            places,
            room,
            peers: Mutex::default(),
            decoded: Mutex::default(),
            seen: Mutex::default(),
        }
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
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let mut turn = Some(turn.map_err(|_| unavailable("no blocks are made any more"))?);
        let remaking = self.read_own(make.chunk, own).await?;
        let remaking =
            self.gather(make.chunk, remaking, make.from.get(1..).unwrap_or_default(), &mut turn).await?;
        // The manager orders one kind at a time.
        let as_copies = make.blocks.iter().all(|block| block.index.is_none());
        let made = blocking(move || remaking.remake(as_copies)).await?;
        // A copy shows nothing of those fragments that it was not made of.
        if !as_copies || made.is_err() {
            self.note_decoded(make.chunk, own.encoding, made.as_ref().err());
        }
        let made = made.map_err(|bad| Failure::new(ErrorCode::Damaged, bad.to_string()))?;
        let (chunk, mut all) = (make.chunk, Vec::with_capacity(make.blocks.len()));
        for new in &make.blocks {
            let index = new.index.unwrap_or(0);
            let Some(stored) = made.stored(index) else {
                let message = format!("there is no fragment {index} of chunk {chunk}");
                return Err(Failure::new(ErrorCode::Malformed, message));
            };
            let (block, encoding) = (made.encoding.block(chunk, index), made.encoding.clone());
            let room = Arc::clone(&self.room).try_acquire_many_owned(encoding.block_length());
            let room = room.map_err(|_| unavailable("too many blocks that were made wait to be sent"))?;
            // A part of the encoded bytes would keep all of them in memory.
            let stored = if as_copies { stored.clone() } else { Bytes::copy_from_slice(stored) };
            let made = Some(Made { encoding, stored, room });
            all.push((new.address.clone(), Work { to: new.to, block, permit: new.permit, made }));
        }
        Ok(all)
    }

    /// Takes note of whether an encoding of which enough blocks were gathered makes its chunk; if it can't be told, not.
    fn note_decoded(&self, chunk: ChunkId, encoding: EncodingId, bad: Option<&BadFragments>) {
        let is_right = match bad {
            None => true,
            Some(BadFragments::Encoding) => false,
            Some(_) => return,
        };
        if !is_right {
            let maker = encoding.maker;
            tracing::warn!(%chunk, ?encoding, %maker, "the fragments of an encoding match their names and don't make the chunk");
        }
        if !encoding.code.is_copy() {
            self.decoded.lock().push(Decoded { chunk, encoding, is_right });
            self.benefactor.has_news();
        }
    }

    /// What was found since the last call, as much as a message holds.
    pub(crate) fn take_found(&self) -> (Vec<Decoded>, Vec<Seen>) {
        (take_some(&self.decoded), take_some(&self.seen))
    }

    /// Takes back what didn't reach the manager.
    pub(crate) fn return_found(&self, (mut decoded, mut seen): (Vec<Decoded>, Vec<Seen>)) {
        self.decoded.lock().append(&mut decoded);
        self.seen.lock().append(&mut seen);
    }

    /// Finds out whether an encoding makes its chunk, and whether all of its blocks follow from that; or before a block that is here may go,
    /// whether the others are there.
    pub(crate) async fn check(self: &Arc<Self>, check: &Check) -> Result<(), Failure> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let mut turn = Some(turn.map_err(|_| unavailable("nothing is checked any more"))?);
        match check.own {
            Some(own) => {
                let lacks = self.look(check, own, &mut turn).await?;
                self.seen.lock().push(Seen { own, lacks, number: check.number });
                self.benefactor.has_news();
                Ok(())
            }
            None => {
                let nothing = Remaking::new(check.chunk, first(&check.from)?.encoding);
                self.decode(check, nothing, &mut turn).await.map(drop)
            }
        }
    }

    /// Puts the blocks together and makes all of their encoding anew; `None`: they make something else.
    async fn decode(
        self: &Arc<Self>,
        check: &Check,
        own: Remaking,
        turn: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Option<Blocks>, Failure> {
        let encoding = first(&check.from)?.encoding;
        let lacks = own.lacks();
        let gathered = self.gather(check.chunk, (own, lacks), &check.from, turn).await?;
        let made = blocking(move || gathered.remake(false)).await?;
        self.note_decoded(check.chunk, encoding, made.as_ref().err());
        match made {
            Ok(made) => Ok(Some(made)),
            Err(BadFragments::Encoding) => Ok(None),
            Err(bad) => Err(Failure::new(ErrorCode::Unsupported, bad.to_string())),
        }
    }

    /// Looks whether all of these blocks are where they are said to be, before `own` may go. Copies are compared with a copy that is here, and
    /// fragments with those that follow from enough of them. A copy that was made in another way is fetched. Returns the places of those that
    /// nobody shows; fails if enough fragments are there and they could not be decoded: nobody knows what they make.
    async fn look(
        self: &Arc<Self>,
        check: &Check,
        own: BlockId,
        turn: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Vec<u32>, Failure> {
        let encoding = first(&check.from)?.encoding;
        let mut shown_here = BTreeSet::new();
        let (_, stored) = self.read(own).await?;
        let known = match encoding.code.is_copy() {
            true => Known::Own(own, stored),
            false => {
                let mut remaking = Remaking::new(check.chunk, encoding);
                let of_it = |index| BlockId { chunk: check.chunk, encoding, index };
                let all: Vec<BlockId> = (0..encoding.code.blocks()).map(of_it).collect();
                for here in self.benefactor.store().durable(&all) {
                    shown_here.insert(here.block.index);
                    let (how, stored) = self.read(here.block).await?;
                    let refused = |bad: BadBlock| Failure::new(ErrorCode::Damaged, bad.to_string());
                    remaking.add(here.block.index, how, stored).map_err(refused)?;
                }
                match self.decode(check, remaking, turn).await {
                    Ok(Some(made)) => Known::Made(made),
                    // None of them is of use.
                    Ok(None) => return Ok((0..).zip(&check.from).map(|(place, _)| place).collect()),
                    // Perhaps too few can be had: it shows which.
                    Err(_) => Known::Nothing,
                }
            }
        };
        // Others have the turn while this one waits for answers: the manager orders few looks at a time.
        turn.take();
        let known = Arc::new(known);
        let mut asked = JoinSet::new();
        for (place, source) in (0u32..).zip(check.from.iter().cloned()) {
            let (this, known, chunk) = (Arc::clone(self), Arc::clone(&known), check.chunk);
            asked.spawn(async move {
                let block = BlockId { chunk, encoding: source.encoding, index: source.index };
                let shown = this.is_shown(&source, block, &known).await;
                let shown = shown.inspect_err(|failure| {
                    tracing::info!(address = %source.address, ?block, %failure, "a block can't be seen");
                });
                (place, shown.is_ok_and(|is_shown| is_shown), source, block)
            });
        }
        let (mut lacks, mut shown) = (Vec::new(), shown_here);
        while let Some(seen) = asked.join_next().await {
            let (place, is_shown, source, block) =
                seen.map_err(|_| unavailable("the look at a block ended early"))?;
            if is_shown {
                shown.insert(block.index);
            } else {
                tracing::warn!(address = %source.address, ?block, "a benefactor doesn't show a block that it says it has");
                lacks.push(place);
                let this = Arc::clone(self);
                tokio::spawn(async move { this.let_verify(&source, block).await });
            }
        }
        if matches!(*known, Known::Nothing) && shown.len() >= usize::from(encoding.code.data()) {
            return Err(unavailable("enough fragments are there, and they could not be decoded"));
        }
        lacks.sort_unstable();
        Ok(lacks)
    }

    /// Whether another benefactor has a block: it proves that it has the bytes that are known here, or sends it.
    async fn is_shown(&self, source: &SourceBlock, block: BlockId, known: &Known) -> Result<bool, CallError> {
        let expected = match known {
            Known::Own(own, stored) if own.encoding == block.encoding => stored.clone(),
            Known::Made(made) => match made.stored(block.index) {
                Some(stored) => stored.clone(),
                None => return Ok(false),
            },
            Known::Own(..) | Known::Nothing => {
                // Not from here: somebody may say that it has what is here.
                let (encoding, stored) = self.get_from(source, block).await?;
                return Ok(blocking(move || genuine(&block, &encoding, &stored).is_ok()).await?);
            }
        };
        let (mut key, by) = ([0; 32], source.at);
        getrandom::fill(&mut key)
            .map_err(|error| unavailable(format!("the system gives no random bytes: {error}")))?;
        match self.ask(source, BenefactorRequest::Prove { block, key }).await?.0 {
            BenefactorReply::Proof(told) => Ok(blocking(move || proof(&key, by, &expected) == told).await?),
            _ => Ok(false),
        }
    }

    /// Begins with a fragment that is here; how many more are needed.
    async fn read_own(&self, chunk: ChunkId, own: &SourceBlock) -> Result<(Remaking, u8), Failure> {
        let mut remaking = Remaking::new(chunk, own.encoding);
        let block = BlockId { chunk, encoding: own.encoding, index: own.index };
        let (encoding, stored) = self.read(block).await?;
        let refused = |bad: BadBlock| Failure::new(ErrorCode::Damaged, bad.to_string());
        let lacks = remaking.add(own.index, encoding, stored).map_err(refused)?;
        Ok((remaking, lacks))
    }

    /// A block that is here, out of the memory for answers, which others wait for.
    async fn read(&self, block: BlockId) -> Result<(Encoding, Bytes), Failure> {
        let (encoding, stored) = self.benefactor.get(block).await?;
        Ok((encoding, Bytes::copy_from_slice(&stored)))
    }

    /// Gathers as many fragments as are needed beside those of before, as many at a time as are still needed, and one more whenever
    /// none came for a while. Once there are no more to ask, others have the turn meanwhile.
    async fn gather(
        self: &Arc<Self>,
        chunk: ChunkId,
        (mut remaking, mut lacks): (Remaking, u8),
        from: &[SourceBlock],
        turn: &mut Option<OwnedSemaphorePermit>,
    ) -> Result<Remaking, Failure> {
        let block = |source: &SourceBlock| BlockId { chunk, encoding: source.encoding, index: source.index };
        let mut waiting: VecDeque<&SourceBlock> = from.iter().collect();
        let (mut fetches, mut late) = (JoinSet::<Fetched>::new(), 0);
        while lacks > 0 {
            while fetches.len() < usize::from(lacks) + late
                && let Some(source) = waiting.pop_front()
            {
                let (this, source, block) = (Arc::clone(self), source.clone(), block(source));
                fetches.spawn(async move {
                    let fetched = this.fetch(&source, block).await;
                    (source, fetched)
                });
            }
            let Ok(fetched) = timeout(STALL, fetches.join_next()).await else {
                late += 1;
                if waiting.is_empty() {
                    turn.take();
                }
                continue;
            };
            let Some(fetched) = fetched else {
                let message = format!("{lacks} more fragments of chunk {chunk} are needed and can't be had");
                return Err(unavailable(message));
            };
            match fetched {
                Ok((source, Ok((encoding, stored)))) => match remaking.add(source.index, encoding, stored) {
                    Ok(still) => lacks = still,
                    Err(bad) => {
                        tracing::warn!(address = %source.address, block = ?block(&source), %bad, "a fragment is damaged");
                        let (this, block) = (Arc::clone(self), block(&source));
                        tokio::spawn(async move { this.let_verify(&source, block).await });
                    }
                },
                Ok((source, Err(error))) => {
                    tracing::debug!(address = %source.address, %error, "a fragment can't be had");
                }
                Err(error) => tracing::warn!(%error, "the work on a fragment ended early"),
            }
        }
        // Whoever has not answered is not asked by others until it does.
        fetches.detach_all();
        Ok(remaking)
    }

    async fn fetch(&self, source: &SourceBlock, block: BlockId) -> Result<(Encoding, Bytes), CallError> {
        if !self.benefactor.store().durable(&[block]).is_empty() {
            return Ok(self.read(block).await?);
        }
        self.get_from(source, block).await
    }

    async fn get_from(&self, source: &SourceBlock, block: BlockId) -> Result<(Encoding, Bytes), CallError> {
        let answer = self.ask(source, BenefactorRequest::Get { block }).await;
        match answer? {
            (BenefactorReply::Block { encoding }, stored) => {
                self.benefactor.caps().pay(Cost { disk: 0, network: stored.len() as u64 }).await;
                Ok((encoding, stored.keep()))
            }
            _ => {
                let message = "the other benefactor answered a get with something else";
                Err(Failure::new(ErrorCode::Malformed, message).into())
            }
        }
    }

    /// The benefactor that served a damaged block looks at it itself, sets it aside and reports it.
    async fn let_verify(&self, source: &SourceBlock, block: BlockId) {
        // Without that, its own search for damage finds it later.
        let _ = self.ask(source, BenefactorRequest::Verify { blocks: vec![block] }).await;
    }

    /// Asks another benefactor about a block, unless it has left somebody waiting.
    async fn ask(
        &self,
        SourceBlock { address, permit, at, .. }: &SourceBlock,
        request: BenefactorRequest,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        let request = Asked { request, with: Some(vec![*permit]) };
        let Peer { connection, stalled } = self.peer(address);
        if stalled.load(Ordering::Relaxed) > 0 {
            return Err(unavailable(format!("{address} has not answered others yet")).into());
        }
        let call = async {
            let open = match connection {
                Some(open) => open,
                None => self.connect(address).await?,
            };
            open.call(&request, Bytes::new(), ANSWER_TIMEOUT).await
        };
        let (answer, _) = answered(call, (), &stalled, || 0).await;
        if answer.as_ref().is_err_and(CallError::is_transport) {
            if let Some(peer) = self.peers.lock().get_mut(address) {
                peer.connection = None;
            }
            self.reach.doubt(*at, address);
        }
        answer
    }

    fn peer(&self, address: &str) -> Peer {
        let mut peers = self.peers.lock();
        let is_open = |peer: &Peer| peer.connection.as_ref().is_some_and(|open| !open.is_closed());
        // Without those that nothing leads to and nobody waits for.
        peers.retain(|_, peer| is_open(peer) || Arc::strong_count(&peer.stalled) > 1);
        let peer = peers.entry(address.to_owned()).or_default();
        peer.connection = peer.connection.take().filter(|open| !open.is_closed());
        peer.clone()
    }

    async fn connect(&self, address: &str) -> Result<Arc<Connection>, CallError> {
        let open =
            Arc::new(Connection::open(Role::Benefactor, address, &self.identity, &self.buffers).await?);
        if let Some(peer) = self.peers.lock().get_mut(address) {
            peer.connection = Some(Arc::clone(&open));
        }
        Ok(open)
    }
}

/// As much of what waits as a message holds.
fn take_some<T>(waiting: &Mutex<Vec<T>>) -> Vec<T> {
    let mut waiting = waiting.lock();
    let count = waiting.len().min(LIST_ENTRIES_MAX);
    waiting.drain(..count).collect()
}

fn first(from: &[SourceBlock]) -> Result<&SourceBlock, Failure> {
    from.first().ok_or_else(|| Failure::new(ErrorCode::Malformed, "an order to look at blocks names none"))
}

fn unavailable(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::Unavailable, message)
}
