//! From a sealed cell to chunks at benefactors: complete, cut, name, ask, put.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use stdchk_model::limits::SMALL_BYTES;
use stdchk_model::message::manager::ChunkLocations;
use stdchk_model::{BenefactorId, BlockId, ChunkId, ChunkRef, ErrorCode, Failure, Receipt};
use stdchk_net::CallError;
use stdchk_reduce::{cut, is_zero};
use tokio::task::JoinSet;

use super::Session;
use super::cell::Dirty;
use super::chunks::Origin;
use super::grid::Turn;
use super::pieces;
use super::sealed::{Part, Sealed};
use crate::encode::Encoded;

/// Pause before benefactors are tried again when none would take a chunk.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Time after which a chunk that no benefactor takes makes the session fail.
const PUT_PATIENCE: Duration = Duration::from_secs(30);

/// The claim of a chunk; it ends however storing the chunk went.
struct Claim<'session> {
    session: &'session Session,
    chunk: ChunkId,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.session.chunks.unclaim(self.chunk);
        self.session.claims.notify_waiters();
    }
}

impl Session {
    /// Sends a sealed cell; whatever comes of it is told to the cell, and a failure to the session.
    pub(super) async fn send(self: Arc<Self>, sealed: Arc<Sealed>, dirty: Dirty, turn: Turn) {
        let outcome = self.send_cell(&sealed, dirty, turn).await;
        if let Err(failure) = &outcome {
            self.fail(failure);
        }
        sealed.done(outcome);
        self.pool.retain(&sealed);
        drop(sealed);
        self.sending.fetch_sub(1, Ordering::AcqRel);
        self.pool.room.notify_one();
    }

    async fn send_cell(
        self: &Arc<Self>,
        sealed: &Arc<Sealed>,
        dirty: Dirty,
        turn: Turn,
    ) -> Result<Vec<Part>, Failure> {
        let bytes = dirty.complete(&self.pool).await?.unwrap_or_default();
        sealed.completed(bytes.clone());
        if pieces::are_packed(&self.cutter) {
            return self.send_pieces(sealed, bytes, turn).await;
        }
        let mut parts = Vec::new();
        let mut stores = JoinSet::new();
        let mut at = 0;
        for piece in cut::pieces(&mut *self.cutter.cutter(), &bytes) {
            let range = at..at + piece.len();
            at = range.end;
            let chunk = name(piece);
            parts.push(Part { length: piece.len(), source: chunk.map(|chunk| (chunk, 0)) });
            let Some(chunk) = chunk else { continue };
            let origin = Origin::Cell(Arc::downgrade(sealed), vec![range.clone()]);
            let (session, bytes) = (Arc::clone(self), bytes.slice(range));
            stores.spawn(async move { session.see_to(chunk, origin, bytes).await });
        }
        while let Some(stored) = stores.join_next().await {
            stored.map_err(|error| crate::internal(&error))??;
        }
        Ok(parts)
    }

    /// Sees to it that the pool has a chunk.
    pub(super) async fn see_to(&self, chunk: ChunkRef, origin: Origin, bytes: Bytes) -> Result<(), Failure> {
        if self.chunks.claim(chunk, origin) {
            return self.store_claimed(chunk, bytes).await;
        }
        self.wait_for_other(chunk.id).await;
        Ok(())
    }

    /// The same for a chunk that the caller claimed.
    pub(super) async fn store_claimed(&self, chunk: ChunkRef, bytes: Bytes) -> Result<(), Failure> {
        let _claim = Claim { session: self, chunk: chunk.id };
        self.store(chunk, bytes).await
    }

    /// Waits until whoever claimed the chunk before is done with it.
    pub(super) async fn wait_for_other(&self, chunk: ChunkId) {
        loop {
            let ended = self.claims.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if !self.chunks.is_storing(chunk) {
                return;
            }
            ended.await;
        }
    }

    /// Whether a chunk is stored without asking whether the pool has it: the only one of a small file that was just made. The
    /// benefactor that its name chooses says whether it is there.
    fn is_put_unasked(&self, chunk: ChunkRef) -> bool {
        let length = chunk.length as usize;
        length <= SMALL_BYTES
            && self.is_all_sent_at_once.load(Ordering::Acquire)
            && self.known.has_room_of_making(length)
    }

    async fn store(&self, chunk: ChunkRef, bytes: Bytes) -> Result<(), Failure> {
        if self.is_put_unasked(chunk) {
            // Its bytes stay at hand until the commit, should the receipt not count.
            self.chunks.keep(chunk.id, bytes.clone());
            let copies = usize::from(self.policy.replicas_at_commit());
            let (sent, was_there) = self.put(chunk, bytes, copies, Vec::new()).await?;
            self.stored_bytes.fetch_add(if was_there { 0 } else { sent as u64 }, Ordering::Relaxed);
            return Ok(());
        }
        let known = self.ask_known(vec![chunk.id]).await?;
        let holders: Vec<BenefactorId> =
            known.iter().flat_map(|known| &known.at).map(|location| location.benefactor).collect();
        let new = holders.is_empty();
        if !new {
            self.chunks.found(chunk.id, &holders);
        }
        // A folder with laxer semantics may have left the chunk with fewer copies than this one's commit needs.
        let copies = usize::from(self.policy.replicas_at_commit());
        let (sent, _) = self.put(chunk, bytes, copies, holders).await?;
        self.stored_bytes.fetch_add(if new { sent as u64 } else { 0 }, Ordering::Relaxed);
        Ok(())
    }

    /// Where each of `chunks` can be reached, if the pool has it; from then on it stays for as long as the session. The manager
    /// takes a benefactor that died for on-line until its lease is over, so those that it names are asked as well: content
    /// that nobody can give back now is stored anew.
    pub(super) async fn ask_known(&self, chunks: Vec<ChunkId>) -> Result<Vec<ChunkLocations>, Failure> {
        let mut known = match self.known.ask(chunks.clone()).await {
            Err(failure) if failure.code == ErrorCode::Stale => {
                self.reattach().await?;
                self.known.ask(chunks).await?
            }
            known => known?,
        };
        let holders = known.iter().flat_map(|known| &known.at).map(|location| location.benefactor);
        let alive = self.pool.benefactors.alive(holders).await;
        known.iter_mut().for_each(|known| known.at.retain(|at| alive.contains(&at.benefactor)));
        Ok(known)
    }

    /// Puts a chunk at benefactors until `copies` have it, those of `at` included; one that fails is replaced by another.
    /// Returns the bytes that each new copy takes, and whether one of them had it already.
    pub(super) async fn put(
        &self,
        chunk: ChunkRef,
        bytes: Bytes,
        copies: usize,
        mut at: Vec<BenefactorId>,
    ) -> Result<(usize, bool), Failure> {
        let give_up = Instant::now() + PUT_PATIENCE;
        if at.len() >= copies {
            self.pool.fetcher.remember(chunk.id, at);
            return Ok((0, true));
        }
        let encoded = self.pool.encoder.encode(self.compression, chunk, bytes).await;
        let mut refused = Vec::new();
        let (mut last, mut was_there) = (None, false);
        while at.len() < copies {
            let avoid: Vec<BenefactorId> = at.iter().chain(&refused).copied().collect();
            let (granted, bytes) = (|| self.known.take_room(), encoded.bytes.len() as u64);
            let next = self.stripe.next(&self.pool, granted, chunk, (copies - at.len(), bytes), &avoid).await;
            let targets = match next {
                Ok(targets) => targets,
                Err(failure) => {
                    let cause = last.clone().unwrap_or_else(|| too_few(at.len(), copies, &failure));
                    self.endure(&cause, &failure, give_up).await?;
                    refused.clear();
                    continue;
                }
            };
            let durable = self.is_all_sent_at_once.load(Ordering::Acquire);
            for (target, answer) in self.put_at(chunk.id, &encoded, targets, durable).await {
                match answer {
                    Ok((receipt, known)) => {
                        was_there |= known;
                        self.chunks.placed(chunk.id, target, receipt);
                        at.push(target);
                    }
                    Err(error) => {
                        tracing::debug!(%target, %error, "a benefactor didn't take a chunk; another one will");
                        refused.push(target);
                        last = Some(error.failure());
                    }
                }
            }
        }
        self.pool.fetcher.remember(chunk.id, at);
        Ok((encoded.bytes.len(), was_there))
    }

    async fn put_at(
        &self,
        chunk: ChunkId,
        encoded: &Encoded,
        targets: Vec<BenefactorId>,
        durable: bool,
    ) -> Vec<(BenefactorId, Result<(Option<Receipt>, bool), CallError>)> {
        let mut puts = JoinSet::new();
        for target in targets {
            let (pool, form, bytes) = (Arc::clone(&self.pool), encoded.form.clone(), encoded.bytes.clone());
            puts.spawn(async move {
                let sending = pool.encoder.sending(bytes.len());
                let answer = pool.benefactors.put(target, BlockId::whole(chunk), form, bytes, durable).await;
                if answer.is_ok() {
                    sending.stored();
                }
                (target, answer)
            });
        }
        puts.join_all().await
    }

    /// Whether to go on after no benefactor could be had: not if there is no space, else for a while.
    async fn endure(&self, cause: &Failure, failure: &Failure, give_up: Instant) -> Result<(), Failure> {
        match failure.code {
            ErrorCode::Stale => self.reattach().await,
            ErrorCode::Unavailable if Instant::now() < give_up => {
                tokio::time::sleep(RETRY_PAUSE).await;
                Ok(())
            }
            ErrorCode::NoSpace => Err(failure.clone()),
            _ => Err(crate::context(cause, "the data can't be stored")),
        }
    }
}

/// Why no benefactor could be had for a further copy, if none has failed: there are no more of them.
fn too_few(taken: usize, copies: usize, failure: &Failure) -> Failure {
    if taken == 0 {
        return failure.clone();
    }
    let what = format!(
        "the folder's policy wants {copies} copies before a version counts, and {taken} can be made now; start more \
         benefactors, or set `replicas` lower"
    );
    Failure::new(failure.code, what)
}

/// The chunk that `piece` is; none for zeros, which are never stored.
fn name(piece: &[u8]) -> Option<ChunkRef> {
    let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
    (!is_zero(piece)).then(|| ChunkRef { id: ChunkId::of(piece), length })
}
