//! The benefactor on this client's own machine, and the near copies that it keeps: what is written under `local=prefer` is offered to it as
//! well, and what is read is asked of it first.
//!
//! No writer waits for it and nothing fails by it. Few offers are under way at a time; a chunk waits for its turn while it is being stored
//! elsewhere, and no longer. A question has little time, unless others are being answered. A benefactor that doesn't answer is in doubt, as
//! any, and not asked until it answers again. What it gives is verified as what anybody gives.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::exact::to_usize;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ChunkRef, Encoding, Failure};
use stdchk_net::{Buffer, Bytes, machine};
use stdchk_protect::seal::Keys;
use stdchk_protect::{Assembly, BadFragments, Blocks, Gathered};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use crate::benefactors::{Benefactors, Doubt};
use crate::keyring::KeyRing;
use crate::manager::ManagerLink;

/// Chunks that are offered at a time: 8 MiB as a rule, in memory of their own beside the window.
const OFFERS_MAX: u32 = 8;
/// Chunks at a time that the pool has already and that it is asked for, or waits for a turn with.
const QUESTIONS_MAX: u32 = 64;
/// Time that a client that ends leaves to offers under way.
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// Time for an answer before the benefactor counts as failed, as for all that it is asked.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause in offers after one that was refused or failed.
const OFFER_PAUSE: Duration = Duration::from_secs(5);
/// How long an answer is waited for after the last one that came.
const PATIENCE: Duration = Duration::from_millis(250);
/// However many come, a question is waited for no longer.
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// What is known of this machine's benefactor.
#[derive(Clone, Copy, Debug)]
struct Own {
    id: BenefactorId,
    /// It has near copies.
    has_some: bool,
}

/// The near copies of this client's machine.
pub(crate) struct Near {
    manager: Arc<ManagerLink>,
    benefactors: Arc<Benefactors>,
    keys: Arc<KeyRing>,
    own: Mutex<Option<Own>>,
    offers: Semaphore,
    questions: Arc<Semaphore>,
    no_offers_before: Mutex<Option<Instant>>,
    read_bytes: AtomicU64,
    kept_bytes: AtomicU64,
}

/// A chunk that waits for its turn, for as long as this lives.
pub(crate) struct Offer(Arc<Mutex<Option<Blocks>>>);

impl Drop for Offer {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

impl Near {
    pub(crate) fn new(manager: Arc<ManagerLink>, benefactors: Arc<Benefactors>, keys: Arc<KeyRing>) -> Self {
        Self {
            manager,
            benefactors,
            keys,
            own: Mutex::default(),
            offers: Semaphore::new(to_usize(OFFERS_MAX.into())),
            questions: Arc::new(Semaphore::new(to_usize(QUESTIONS_MAX.into()))),
            no_offers_before: Mutex::default(),
            read_bytes: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
        }
    }

    /// Asks the manager which benefactor is on this machine.
    pub(crate) async fn learn(&self) -> Result<(), Failure> {
        let ManagerReply::Own(info) = self.manager.ask(&ManagerRequest::Own(machine())).await? else {
            return Err(crate::unexpected("Own"));
        };
        self.benefactors.learn(info.as_slice());
        *self.own.lock() = info.map(|info| Own { id: info.id, has_some: info.load.near_bytes > 0 });
        Ok(())
    }

    /// Plain bytes of chunks that were read from near copies, and that were kept as some or found there.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.read_bytes.load(Ordering::Relaxed), self.kept_bytes.load(Ordering::Relaxed))
    }

    fn own(&self) -> Option<Own> {
        self.own.lock().filter(|own| self.benefactors.doubt(own.id).is_none())
    }

    /// To whom something may be offered now.
    fn taker(&self) -> Option<BenefactorId> {
        let pauses = self.no_offers_before.lock().is_some_and(|until| Instant::now() < until);
        self.own().filter(|_| !pauses).map(|own| own.id)
    }

    /// Has the own benefactor keep a chunk that is being stored, if its turn comes before what is returned is dropped. Nothing is held for it
    /// until then but what the caller holds, and from then on a copy.
    pub(crate) fn offer(self: &Arc<Self>, blocks: &Blocks) -> Option<Offer> {
        let own = self.taker()?;
        let offered = Arc::new(Mutex::new(Some(blocks.clone())));
        let (near, taken) = (Arc::clone(self), Arc::clone(&offered));
        let copy = move || {
            let blocks = taken.lock().take();
            blocks.map(|blocks| blocks.to_copy())
        };
        tokio::spawn(async move { near.send(own, copy).await });
        Some(Offer(offered))
    }

    /// Has it keep a chunk that the pool had already, if it lacks that, and if its bytes are `at_hand` when its turn comes. Returns at once.
    pub(crate) fn offer_again(
        self: &Arc<Self>,
        chunk: ChunkRef,
        at_hand: impl FnOnce() -> Option<Bytes> + Send + 'static,
    ) {
        // As they are they would lie in the clear.
        if self.keys.of(chunk.id).is_some() {
            return;
        }
        let Some(own) = self.taker() else { return };
        let Ok(turn) = Arc::clone(&self.questions).try_acquire_owned() else { return };
        let near = Arc::clone(self);
        tokio::spawn(async move {
            let request = BenefactorRequest::HasNear { chunk: chunk.id };
            match near.benefactors.call(own, &request, Bytes::new(), ANSWER_TIMEOUT).await {
                Ok((BenefactorReply::Near(true), _)) => near.keeps(own, chunk.length),
                Ok((BenefactorReply::Near(false), _)) => {
                    near.send(own, move || at_hand().map(|plain| Blocks::plain(chunk, plain).to_copy()))
                        .await;
                }
                _ => near.pause(),
            }
            drop(turn);
        });
    }

    /// Waits for a moment until what was offered is kept.
    pub(crate) async fn settle(&self) {
        let all = async {
            (self.questions.acquire_many(QUESTIONS_MAX).await, self.offers.acquire_many(OFFERS_MAX).await)
        };
        drop(timeout(SETTLE_MAX, all).await);
    }

    async fn send(&self, own: BenefactorId, copy: impl FnOnce() -> Option<Blocks> + Send + 'static) {
        let _turn = self.offers.acquire().await;
        let Ok(Some(copy)) = stdchk_net::elsewhere(copy).await else { return };
        let Some(payload) = copy.stored(0).cloned() else { return };
        let length = copy.encoding.plain_length;
        let request = BenefactorRequest::PutNear { chunk: copy.chunk, encoding: copy.encoding };
        match self.benefactors.call(own, &request, payload, ANSWER_TIMEOUT).await {
            Ok(_) => self.keeps(own, length),
            Err(error) => {
                tracing::debug!(%own, %error, "a near copy isn't kept");
                self.pause();
            }
        }
    }

    fn pause(&self) {
        *self.no_offers_before.lock() = Some(Instant::now() + OFFER_PAUSE);
    }

    fn keeps(&self, id: BenefactorId, length: u32) {
        self.kept_bytes.fetch_add(length.into(), Ordering::Relaxed);
        *self.own.lock() = Some(Own { id, has_some: true });
    }

    /// The plain bytes of a chunk, verified against its name, if the own benefactor has them and gives them soon. Where nobody else gave
    /// them, `alone`, it is asked in spite of doubts, and has more time.
    pub(crate) async fn get(&self, chunk: ChunkRef, alone: bool) -> Option<Bytes> {
        let own = if alone { *self.own.lock() } else { self.own() };
        let own = own.filter(|own| own.has_some)?.id;
        let patience = if alone { PATIENCE_MAX } else { PATIENCE };
        let (encoding, stored) = self.ask(own, chunk, patience).await?;
        let block = encoding.block(chunk.id, 0);
        let keys = Arc::clone(&self.keys) as Arc<dyn Keys>;
        match Assembly::with_keys(chunk, keys).add(block, encoding, stored.keep()) {
            Ok(Gathered::Whole(bytes)) => {
                self.read_bytes.fetch_add(chunk.length.into(), Ordering::Relaxed);
                Some(bytes)
            }
            Err(BadFragments::NeedsKey(_)) => None,
            bad => {
                tracing::warn!(%own, chunk = %chunk.id, ?bad, "the benefactor of this machine gave a near copy that is none");
                self.benefactors.note(own, Doubt::Poor);
                None
            }
        }
    }

    async fn ask(
        &self,
        own: BenefactorId,
        chunk: ChunkRef,
        patience: Duration,
    ) -> Option<(Encoding, Buffer)> {
        let request = BenefactorRequest::GetNear { chunk: chunk.id };
        let mut answer = pin!(self.benefactors.call(own, &request, Bytes::new(), ANSWER_TIMEOUT));
        let began = Instant::now();
        let mut heard = began;
        while heard < began + PATIENCE_MAX {
            if let Ok(answer) = timeout_at((heard + patience).min(began + PATIENCE_MAX), &mut answer).await {
                return match answer {
                    Ok((BenefactorReply::Block { encoding }, stored)) => Some((encoding, stored)),
                    _ => None,
                };
            }
            // It answers others meanwhile: this one's turn comes.
            match self.benefactors.answered_at(own).filter(|at| *at > heard) {
                Some(at) => heard = at,
                None => break,
            }
        }
        self.benefactors.late(own, patience);
        None
    }
}
