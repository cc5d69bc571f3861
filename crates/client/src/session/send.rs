//! From a sealed cell to chunks at benefactors: complete, cut, name, ask, put.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use stdchk_model::limits::SMALL_BYTES;
use stdchk_model::message::manager::{ChunkLocations, Location};
use stdchk_model::policy::Local;
use stdchk_model::{
    BenefactorId, ChunkId, ChunkRef, Code, ErrorCode, Failure, Receipt, Redundancy, Tier, Trust,
};
use stdchk_net::{CallError, Retry};
use stdchk_protect::{
    Blocks, Held, copies_in_memory, distance_trusted, is_readable_at, missing, suffices_at, taken,
};
use stdchk_reduce::{cut, is_zero};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Session;
use super::cell::Dirty;
use super::chunks::Origin;
use super::grid::Turn;
use super::pieces;
use super::sealed::{Part, Sealed};
use crate::benefactors::PassedOver;

/// Pause before benefactors are tried again when none would take a chunk.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Time after which a chunk that no benefactor takes makes the session fail.
const PUT_PATIENCE: Duration = Duration::from_secs(30);
/// Time for which benefactors are waited for that a code needs, before copies stand in for its fragments; and for how long they do so at once
/// for the session's further chunks.
const FRAGMENTS_PATIENCE: Duration = Duration::from_secs(2);
const COPIES_STAND_IN: Duration = Duration::from_secs(30);

/// The sending of a sealed cell, by whoever waits for it. It comes to its end also if nobody does: the runtime takes what is dropped.
pub(super) struct SendingCell {
    pub(super) runtime: Handle,
    pub(super) work: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Future for SendingCell {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.work else { return Poll::Ready(()) };
        ready!(work.as_mut().poll(context));
        self.work = None;
        Poll::Ready(())
    }
}

impl Drop for SendingCell {
    fn drop(&mut self) {
        self.work.take().map(|work| self.runtime.spawn(work));
    }
}

/// Whether more benefactors, or more room at others, would do.
fn is_of_too_few(failure: &Failure) -> bool {
    matches!(failure.code, ErrorCode::Unavailable | ErrorCode::NoSpace)
}

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
        let outcome = {
            let mut sent = pin!(self.send_cell(&sealed, dirty, turn));
            // Who waits for the cell is told also if that panics.
            let panicked = |_| Poll::Ready(Err(crate::internal(&"sending a part of a file panicked")));
            let poll = |context: &mut Context<'_>| {
                catch_unwind(AssertUnwindSafe(|| sent.as_mut().poll(context))).unwrap_or_else(panicked)
            };
            poll_fn(poll).await
        };
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
        let bytes = dirty.complete(&self.pool).await?;
        sealed.completed(bytes.clone());
        if pieces::are_packed(&self.cutter) {
            return self.send_pieces(sealed, bytes, turn).await;
        }
        let mut parts = Vec::new();
        let (mut stores, mut last) = (JoinSet::new(), None);
        let mut at = 0;
        for piece in cut::pieces(&mut *self.cutter.cutter(), &bytes) {
            let range = at..at + piece.len();
            at = range.end;
            let chunk = (!is_zero(piece)).then(|| self.chunk_of(piece));
            parts.push(Part { length: piece.len(), source: chunk.map(|chunk| (chunk, 0)) });
            let Some(chunk) = chunk else { continue };
            let origin = Origin::Cell(Arc::downgrade(sealed), vec![range.clone()]);
            let (session, bytes) = (Arc::clone(self), bytes.slice(range));
            let store = async move { session.see_to(chunk, origin, bytes).await };
            last.replace(store).map(|earlier| stores.spawn(earlier));
        }
        // The last one here: the content of a small file needs no other task.
        if let Some(store) = last {
            store.await?;
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
        self.offer_again(chunk);
        Ok(())
    }

    /// Sees to it that the pool has a chunk that the caller claimed.
    pub(super) async fn store_claimed(&self, chunk: ChunkRef, bytes: Bytes) -> Result<(), Failure> {
        let _claim = Claim { session: self, chunk: chunk.id };
        self.store(chunk, bytes).await
    }

    /// Has this machine's benefactor keep a chunk that the pool has already.
    fn offer_again(&self, chunk: ChunkRef) {
        if self.policy.local == Local::No {
            return;
        }
        let session = self.pool.sessions.lock().get(&self.id).cloned();
        self.pool.near.offer_again(chunk, move || session?.upgrade()?.chunks.bytes(chunk.id));
    }

    /// Waits until whoever claimed the chunk before is done with it.
    pub(super) async fn wait_for_other(&self, chunk: ChunkId) {
        loop {
            let ended = self.claims.notified();
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
            // Its bytes stay at hand until the commit, should the receipt not count: outside of the window, which others wait for.
            self.chunks.keep(chunk.id, Bytes::copy_from_slice(&bytes));
            let (sent, was_there) = self.put(chunk, bytes, Vec::new()).await?;
            self.stored_bytes.fetch_add(if was_there { 0 } else { sent }, Ordering::Relaxed);
            return Ok(());
        }
        let known = self.ask_known(vec![chunk.id]).await?;
        let at: Vec<Location> = known.into_iter().flat_map(|known| known.at).collect();
        // What others merely claim to be the chunk is looked at once this client has coded it, too.
        let sure: Vec<Location> = at.iter().filter(|at| at.trust == Trust::Trusted).copied().collect();
        let new = !is_readable_at(&sure);
        self.chunks.found(chunk.id, &at, !new);
        // A folder with laxer semantics may have left the chunk with less than this one's commit needs.
        let (sent, _) = self.put(chunk, bytes, at).await?;
        self.stored_bytes.fetch_add(if new { sent } else { 0 }, Ordering::Relaxed);
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

    /// Puts blocks of a chunk at benefactors until it is as safe as a commit wants, those of `at` included; a benefactor that fails is
    /// replaced by another. Memory comes first, where it is enough for a commit and has room. Of an erasure code all blocks are put, as far
    /// as there are benefactors for them: the others the pool makes once there are. Returns the encoded bytes that were sent, each once, and whether
    /// a benefactor had its block already.
    pub(super) async fn put(
        &self,
        chunk: ChunkRef,
        bytes: Bytes,
        mut at: Vec<Location>,
    ) -> Result<(u64, bool), Failure> {
        let needed = self.policy.at_commit();
        if suffices_at(&at, needed) {
            self.pool.fetcher.remember(chunk.id, at);
            self.offer_again(chunk);
            return Ok((0, true));
        }
        if let Some(hosts) = needed.in_memory
            && let Some(stored) = self.put_in_memory(chunk, bytes.clone(), hosts, &mut at).await?
        {
            self.pool.fetcher.remember(chunk.id, at);
            return Ok(stored);
        }
        let redundancy = match self.chunks.is_of_map(chunk.id) || self.do_copies_stand_in() {
            true => Redundancy::Replicate(self.policy.redundancy.distance()),
            false => self.policy.redundancy,
        };
        // By its name, and not by the session: what an earlier version stored may be stored again.
        let key = self.pool.encryption_keys.of(chunk.id);
        let encoded = self.pool.encoder.encode(self.compression, chunk, bytes, redundancy, key).await?;
        self.recognise(&encoded.blocks, &mut at);
        if suffices_at(&at, self.policy.at_commit()) {
            self.pool.fetcher.remember(chunk.id, at);
            return Ok((0, true));
        }
        // The session may have failed while this chunk was queued.
        self.state.lock().failure.clone().map_or(Ok(()), Err)?;
        let is_offered = self.policy.local == Local::Prefer;
        let _offer = is_offered.then(|| self.pool.near.offer(&encoded.blocks)).flatten();
        let was_there = self.put_missing(chunk, &encoded.blocks, redundancy, &mut at).await?;
        self.pool.fetcher.remember(chunk.id, at);
        Ok((u64::from(encoded.blocks.encoding.encoded_length), was_there))
    }

    /// Puts blocks of an encoding of a chunk at benefactors, or copies in their place, until the chunk is as safe as a commit wants, those of
    /// `at` included, to which the new ones are added. Returns whether a benefactor had its block already.
    async fn put_missing(
        &self,
        chunk: ChunkRef,
        own: &Blocks,
        redundancy: Redundancy,
        at: &mut Vec<Location>,
    ) -> Result<bool, Failure> {
        let needed = self.policy.at_commit().distance;
        // How many copies are put here, the others being made by the pool.
        let mut copies = needed;
        // From the first time that nobody can be had.
        let (mut retry, mut copies_in) = (None, None);
        let mut refused = Vec::new();
        let (mut last, mut was_there, mut copy) = (None, false, None);
        loop {
            let blocks = copy.as_ref().unwrap_or(own);
            let (encoding, block_bytes) =
                (blocks.encoding.id(chunk.id), u64::from(blocks.encoding.block_length()));
            // Further copies cost as much as the first and are made beside; fragments are worth little alone.
            let wanted = if encoding.code.is_copy() { copies } else { redundancy.distance() };
            let mut held: Vec<Held> = at.iter().map(Held::from).collect();
            // Who refused a block is paired with a fragment first, so that those who didn't are left over.
            held.sort_by_key(|held| !refused.contains(&held.benefactor));
            let missing = missing(&held, encoding, wanted);
            if missing.is_empty() {
                break;
            }
            let avoid: Vec<BenefactorId> =
                taken(&held, encoding).into_iter().chain(refused.iter().copied()).collect();
            let granted = || self.known.take_room();
            let next =
                self.stripe.next(&self.pool, granted, chunk, (missing.len(), block_bytes), &avoid).await;
            let targets = match next {
                Ok(targets) => targets,
                Err(_) if distance_trusted(at.iter().map(Held::from)) >= needed => break,
                Err(failure) if !encoding.code.is_copy() && is_of_too_few(&failure) => {
                    let copies_in =
                        copies_in.get_or_insert_with(|| Retry::every(RETRY_PAUSE, FRAGMENTS_PATIENCE));
                    if self.do_copies_stand_in() || !copies_in.pause().await {
                        self.let_copies_stand_in(encoding.code);
                        copy = Some(own.to_copy());
                    }
                    refused.clear();
                    continue;
                }
                Err(failure) => {
                    let cause = last.clone().unwrap_or_else(|| self.too_few(at, &failure));
                    let retry = retry.get_or_insert_with(|| Retry::every(RETRY_PAUSE, PUT_PATIENCE));
                    self.endure(&cause, &failure, retry).await?;
                    refused.clear();
                    continue;
                }
            };
            // The pool could make no copies of what lies there.
            let mut places = at.iter().map(|at| at.benefactor).chain(targets.iter().copied());
            let all = self.policy.redundancy.distance();
            if encoding.code.is_copy()
                && copies < all
                && places.all(|at| self.pool.benefactors.is_cut_off(at))
            {
                copies = all;
                continue;
            }
            let durable = self.is_all_sent_at_once.load(Ordering::Acquire);
            for (index, target, before, answer) in
                self.put_at(blocks, missing.into_iter().zip(targets), durable).await
            {
                let place =
                    Location { trust: Trust::Trusted, benefactor: target, encoding, index, tier: Tier::Disk };
                match self.note_put(chunk.id, place, before, answer, &mut refused) {
                    Ok(known) => {
                        was_there |= known;
                        at.push(place);
                    }
                    Err(failure) => last = Some(failure),
                }
            }
        }
        Ok(was_there)
    }

    /// Others may have coded the chunk before. What they have stored counts for this session if it is what these blocks are: then they
    /// were made of the same bytes, in the same way.
    fn recognise(&self, own: &Blocks, at: &mut [Location]) {
        for place in at.iter_mut().filter(|at| at.trust == Trust::Claimed) {
            if own.encoding.id_by(place.encoding.maker, own.chunk) == place.encoding {
                place.trust = Trust::Trusted;
                self.chunks.vouch(own.chunk, place.encoding);
            }
        }
    }

    /// Whether a code had too few benefactors lately, so that copies are stored at once.
    fn do_copies_stand_in(&self) -> bool {
        self.copies_stand_in.lock().is_some_and(|until| Instant::now() < until)
    }

    fn let_copies_stand_in(&self, code: Code) {
        let before = self.copies_stand_in.lock().replace(Instant::now() + COPIES_STAND_IN);
        if before.is_none() {
            tracing::warn!(
                ino = %self.ino(), data = code.data(), parity = code.parity(),
                "fewer benefactors take a block than a chunk has fragments: copies stand in, which take more space"
            );
        }
    }

    /// Puts copies of a chunk at benefactors that keep them in memory until `hosts` have one, those of `at` included. What was sent, and
    /// whether a benefactor had it already; `None`: there are too few of them with room, and the chunk is to go to disks.
    async fn put_in_memory(
        &self,
        chunk: ChunkRef,
        bytes: Bytes,
        hosts: u8,
        at: &mut Vec<Location>,
    ) -> Result<Option<(u64, bool)>, Failure> {
        let (mut encoded, mut refused, mut was_there) = (None, Vec::new(), false);
        loop {
            let copies = copies_in_memory(at.iter().map(Held::from));
            let missing = usize::from(hosts.saturating_sub(copies));
            if missing == 0 {
                break;
            }
            let in_memory = at.iter().filter(|place| place.tier == Tier::Memory);
            let avoid: Vec<BenefactorId> =
                in_memory.map(|place| place.benefactor).chain(refused.iter().copied()).collect();
            let (granted, length) = (|| self.known.take_room(), u64::from(chunk.length));
            let next =
                self.stripe.next_in_memory(&self.pool, granted, chunk, (missing, length), &avoid).await;
            // Who can't be asked for room says so again where disks are asked for.
            let Ok(Some(targets)) = next else { return Ok(None) };
            if encoded.is_none() {
                let key = self.pool.encryption_keys.of(chunk.id);
                let copy = Redundancy::Replicate(1);
                let made =
                    self.pool.encoder.encode(self.compression, chunk, bytes.clone(), copy, key).await?;
                let is_offered = self.policy.local == Local::Prefer;
                let offer = is_offered.then(|| self.pool.near.offer(&made.blocks)).flatten();
                encoded = Some((made, offer));
            }
            let Some((made, _offer)) = &encoded else { unreachable!("it was just made") };
            let encoding = made.blocks.encoding.id(chunk.id);
            let durable = self.is_all_sent_at_once.load(Ordering::Acquire);
            let puts = targets.into_iter().map(|target| (0, target));
            for (index, target, before, answer) in self.put_at(&made.blocks, puts, durable).await {
                let place = Location {
                    trust: Trust::Trusted,
                    benefactor: target,
                    encoding,
                    index,
                    tier: Tier::Memory,
                };
                match self.note_put(chunk.id, place, before, answer, &mut refused) {
                    Ok(known) => {
                        was_there |= known;
                        at.push(place);
                    }
                    Err(failure) if failure.code == ErrorCode::NoSpace => self.stripe.note_full(target).await,
                    Err(_) => {}
                }
            }
        }
        let sent = encoded.map_or(0, |(made, _)| u64::from(made.blocks.encoding.encoded_length));
        Ok(Some((sent, was_there)))
    }

    /// Takes note of what became of a put; whether the block was there already. Who didn't take it is `refused`, unless it is only behind all
    /// others from now on, since it is busy or was slow: then it is asked once more.
    fn note_put(
        &self,
        chunk: ChunkId,
        place: Location,
        before: Option<PassedOver>,
        answer: Result<(Option<Receipt>, bool), CallError>,
        refused: &mut Vec<BenefactorId>,
    ) -> Result<bool, Failure> {
        let target = place.benefactor;
        match answer {
            Ok((receipt, known)) => {
                self.chunks.placed(chunk, place, receipt);
                Ok(known)
            }
            Err(error) => {
                tracing::debug!(%target, %error, tier = %place.tier, "a benefactor didn't take a block; another one will");
                if self.pool.benefactors.why_passed_over(target) <= before {
                    refused.push(target);
                }
                Err(error.failure())
            }
        }
    }

    /// Which benefactor got which block, why it was passed over if it was, and what it answered.
    async fn put_at(
        &self,
        blocks: &Blocks,
        targets: impl Iterator<Item = (u8, BenefactorId)>,
        durable: bool,
    ) -> Vec<(u8, BenefactorId, Option<PassedOver>, Result<(Option<Receipt>, bool), CallError>)> {
        let (mut puts, mut last) = (JoinSet::new(), None);
        for (index, target) in targets {
            let Some(bytes) = blocks.stored(index).cloned() else { continue };
            let (pool, encoding) = (Arc::clone(&self.pool), blocks.encoding.clone());
            let block = encoding.block(blocks.chunk, index);
            let put = Box::pin(async move {
                let sending = pool.encoder.sending(bytes.len());
                let before = pool.benefactors.why_passed_over(target);
                let answer = pool.benefactors.put(target, (block, encoding), bytes, durable, before).await;
                if answer.is_ok() {
                    sending.stored();
                }
                (index, target, before, answer)
            });
            last.replace(put).map(|earlier| puts.spawn(earlier));
        }
        let mut answers = Vec::new();
        if let Some(put) = last {
            answers.push(put.await);
        }
        answers.extend(puts.join_all().await);
        answers
    }

    /// Whether to go on after no benefactor could be had: not if there is no space, else for a while.
    async fn endure(&self, cause: &Failure, failure: &Failure, retry: &mut Retry) -> Result<(), Failure> {
        match failure.code {
            ErrorCode::Stale => self.reattach().await,
            ErrorCode::Unavailable if retry.pause().await => Ok(()),
            ErrorCode::NoSpace => Err(failure.clone()),
            _ => Err(crate::context(cause, "the data can't be stored")),
        }
    }

    /// Why no benefactor could be had for a further block, if none has failed: there are no more of them.
    fn too_few(&self, at: &[Location], failure: &Failure) -> Failure {
        let mut on_disks: Vec<BenefactorId> =
            at.iter().filter(|at| at.tier == Tier::Disk).map(|at| at.benefactor).collect();
        on_disks.sort_unstable();
        on_disks.dedup();
        let on_disks = on_disks.len();
        if on_disks == 0 {
            return failure.clone();
        }
        let redundancy = self.policy.redundancy;
        let stand_in = match redundancy {
            Redundancy::Replicate(_) => "",
            Redundancy::Erasure(_) => " in place of fragments, for which there are too few benefactors,",
        };
        let what = format!(
            "`redundancy={redundancy}` wants {} copies{stand_in} before a version counts, and {on_disks} can be made now",
            self.policy.at_commit().distance,
        );
        Failure::new(failure.code, what).then("start more benefactors, or ask for fewer copies")
    }
}
