//! Making a version: seal, wait until all is durable, store the map, commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use stdchk_model::exact::narrow;
use stdchk_model::limits::{CHUNK_BYTES_DEFAULT, LIST_ENTRIES_MAX, MAP_INLINE_BYTES_MAX};
use stdchk_model::message::manager::{
    Location, ManagerReply, ManagerRequest, TimeNs, VersionInfo, VersionState,
};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkMap, ChunkRef, ErrorCode, Extent, Failure, MapRoot, Receipt, Source,
};
use stdchk_net::{CallError, Retry};
use stdchk_protect::is_readable_at;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::cell::Cell;
use super::chunks::{Lacking, Origin};
use super::sealed::Sealed;
use super::send::SendingCell;
use super::{Session, State};
use crate::benefactors::{PassedOver, SYNC_TIMEOUT};
use crate::map_view::MapView;
use crate::pool::Inner;

/// Blocks of one receipt: about 600 kB.
const RECEIPT_MAX: usize = 8192;
/// Chunks whose receipts go with the commit itself: those of a small file, and the last ones of a large one.
const COMMITTED_WITH_MAX: usize = 256;
/// Pause before benefactors are asked for receipts again, of which the manager refused some.
const RECEIPT_PAUSE: Duration = Duration::from_millis(50);
/// How long that is done: longer than the manager waits for a benefactor in whose place another one answers.
const RECEIPT_PATIENCE: Duration = Duration::from_secs(30);
/// How often what a commit rests on is counted anew after the manager has refused it: each time something counts for less.
const RECOUNTS_MAX: u32 = 8;
/// After this time, and each time that it has passed again, the manager is asked which benefactors are gone. Longer than a lease: one that was
/// started again has registered.
const GONE_EVERY: Duration = Duration::from_secs(6);
/// Time for a sync of blocks that can be stored elsewhere: a benefactor that answers other questions meanwhile may never answer this one.
const SYNC_ELSEWHERE: Duration = Duration::from_secs(30);
/// How long a benefactor that went away with the only copy of chunks may take to come back.
const RETURN_PATIENCE: Duration = Duration::from_secs(10);
/// Pause between attempts to reach it.
const RETURN_PAUSE: Duration = Duration::from_millis(250);

/// The failure of a commit whose blocks a benefactor takes again and again, and doesn't vouch for.
fn never_named(benefactor: BenefactorId, why: &str) -> Failure {
    let message = format!("{benefactor} takes blocks and {why}, and no other benefactor has taken them");
    let next =
        format!("look after the disk of {benefactor}, stop it, or add benefactors, and write the file again");
    Failure::new(ErrorCode::Unavailable, message).then(next)
}

/// The file at one moment: what a commit makes a version of.
struct Snapshot {
    generation: u64,
    size: u64,
    base: Arc<MapView>,
    base_limit: u64,
    cells: BTreeMap<u64, Arc<Sealed>>,
    /// The sending of the file's only cell, if nobody does that yet.
    sending: Option<SendingCell>,
}

impl Session {
    /// Makes everything written so far durable and the newest version of the file; nothing to do, no new version.
    ///
    /// # Errors
    /// What kept the bytes from becoming durable. The version before stays the newest.
    pub async fn commit(self: &Arc<Self>, mtime: TimeNs) -> Result<Option<VersionInfo>, Failure> {
        self.commit_as(mtime, VersionState::Open).await
    }

    /// Makes everything written so far durable and the newest version of the file, of which no more follows.
    ///
    /// # Errors
    /// Those of [`Session::commit`].
    pub async fn commit_last(self: &Arc<Self>, mtime: TimeNs) -> Result<Option<VersionInfo>, Failure> {
        self.commit_as(mtime, VersionState::Closed).await
    }

    /// Commits everything written so far and says in one step how far the version got: with anything but `Open` this is the last
    /// commit. Then waits for the copies of earlier versions for which the folder's `exposure` makes writers wait.
    pub(crate) async fn commit_as(
        self: &Arc<Self>,
        mtime: TimeNs,
        state: VersionState,
    ) -> Result<Option<VersionInfo>, Failure> {
        let version = self.commit_now(mtime, state).await?;
        self.await_copies().await;
        Ok(version)
    }

    async fn commit_now(
        self: &Arc<Self>,
        mtime: TimeNs,
        state: VersionState,
    ) -> Result<Option<VersionInfo>, Failure> {
        let mut turn = self.commit_turn.lock().await;
        if self.is_dirty() {
            self.read_base_again(turn.as_ref()).await?;
            self.store_base_anew().await?;
        }
        let Some(mut snapshot) = self.snapshot()? else {
            self.settle_made().await?;
            return Ok(turn.clone());
        };
        if let Some(sending) = snapshot.sending.take() {
            sending.await;
        }
        let stored = self.wait_stored(snapshot.cells.values()).await;
        self.is_all_sent_at_once.store(false, Ordering::Release);
        stored?;
        let map = self.name_pieces(self.build_map(&snapshot)?).await?;
        let root = self.store_map(&map).await?;
        let named: HashSet<ChunkId> =
            map.chunks().iter().chain(root.pieces()).map(|chunk| chunk.id).collect();
        let told = (mtime, state, snapshot.generation);
        let info = self.commit_map(&map, root, &named, told).await?;
        *self.made.lock() = None; // It became durable with the commit.
        self.rebase(&snapshot, map);
        self.hold_again(&named).await;
        self.learn_from(&info);
        *turn = Some(info.clone());
        Ok(Some(info))
    }

    /// Seals all dirty cells; all cells.
    pub(super) fn seal_all(self: &Arc<Self>, state: &mut State) -> BTreeMap<u64, Arc<Sealed>> {
        let dirty = |(index, cell): (&u64, &Cell)| matches!(cell, Cell::Dirty(_)).then_some(*index);
        let dirty: Vec<u64> = state.cells.iter().filter_map(dirty).collect();
        dirty.into_iter().for_each(|index| self.seal(state, index));
        let sealed = |(index, cell): (&u64, &Cell)| match cell {
            Cell::Sealed(sealed) => Some((*index, Arc::clone(sealed))),
            Cell::Dirty(_) => None,
        };
        state.cells.iter().filter_map(sealed).collect()
    }

    /// `None` if nothing changed since the last commit.
    fn snapshot(self: &Arc<Self>) -> Result<Option<Snapshot>, Failure> {
        let mut state = self.state.lock();
        if state.generation == state.committed {
            return state.failure.clone().map_or(Ok(None), Err);
        }
        // Cells that are sealed from now on use chunks of which this commit doesn't know.
        // The only one is sent by who commits it: no other thread is woken for a small file.
        let only = match state.cells.first_key_value() {
            Some((index, Cell::Dirty(_))) if state.cells.len() == 1 => Some(*index),
            _ => None,
        };
        let sending = only.and_then(|index| self.seal_to_send(&mut state, index));
        let cells = self.seal_all(&mut state);
        self.chunks.begin_commit();
        let alone = cells.len() == 1 && self.sending.load(Ordering::Acquire) == 1;
        self.is_all_sent_at_once.store(alone, Ordering::Release);
        state.lowest_size = state.size;
        Ok(Some(Snapshot {
            generation: state.generation,
            size: state.size,
            base: Arc::clone(&state.base),
            base_limit: state.base_limit,
            cells,
            sending,
        }))
    }

    /// Waits until these cells are stored, whatever becomes of others that are written meanwhile.
    pub(super) async fn wait_stored(&self, cells: impl Iterator<Item = &Arc<Sealed>>) -> Result<(), Failure> {
        for cell in cells {
            cell.wait().await;
        }
        self.state.lock().failure.clone().map_or(Ok(()), Err)
    }

    fn build_map(&self, snapshot: &Snapshot) -> Result<ChunkMap, Failure> {
        let mut builder = MapBuilder::default();
        let mut at = 0;
        for (index, sealed) in &snapshot.cells {
            let start = index * self.cell_bytes as u64;
            builder.base(&snapshot.base, at..start.min(snapshot.size), snapshot.base_limit)?;
            builder.cell(sealed, snapshot.size.saturating_sub(start))?;
            at = (start + self.cell_bytes as u64).min(snapshot.size);
            builder.zeros_to(at);
        }
        builder.base(&snapshot.base, at..snapshot.size, snapshot.base_limit)?;
        builder.zeros_to(snapshot.size);
        let internal = |error: stdchk_model::chunk_map::BadChunkMap| {
            Failure::new(ErrorCode::Internal, format!("the file's chunk map came out wrong: {error}"))
        };
        ChunkMap::new(builder.chunks, builder.extents).map_err(internal)
    }

    /// Stores the map in the pool unless it is small.
    async fn store_map(&self, map: &ChunkMap) -> Result<MapRoot, Failure> {
        let encoded = Bytes::from(map.encode());
        if encoded.len() <= MAP_INLINE_BYTES_MAX {
            return Ok(MapRoot::Inline { map: encoded.to_vec() });
        }
        let mut pieces = Vec::new();
        for start in (0..encoded.len()).step_by(CHUNK_BYTES_DEFAULT) {
            let bytes = encoded.slice(start..encoded.len().min(start + CHUNK_BYTES_DEFAULT));
            let piece = self.chunk_of(&bytes);
            pieces.push(piece);
            self.see_to(piece, Origin::Map(bytes.clone()), bytes).await?;
        }
        Ok(MapRoot::Pieces { pieces, length: encoded.len() as u64 })
    }

    /// Gathers receipts for the chunks of a version; what a benefactor lost meanwhile is stored again elsewhere.
    async fn settle(&self, needed: &HashSet<ChunkId>) -> Result<(), Failure> {
        let mut retry = Retry::every(RETURN_PAUSE, RETURN_PATIENCE);
        let mut patience: Option<Retry> = None;
        let wanted = self.policy.at_commit();
        loop {
            let has_patience = !retry.is_over();
            let mut wait = false;
            for lacking in self.chunks.lacking(needed, wanted) {
                wait |= self.put_again(lacking, has_patience).await? == Again::FoundInThePool;
            }
            let unsecured = self.chunks.unsecured(needed, wanted);
            if unsecured.is_empty() {
                return Ok(());
            }
            let mut unkept = None;
            for (benefactor, blocks, answer) in self.sync_all(unsecured).await {
                match answer {
                    Ok(receipt) => {
                        if !self.chunks.secured(&blocks, benefactor, receipt) {
                            // Others take what it lost, rather than that it takes and loses it again.
                            self.pool.benefactors.pass_over(benefactor, PassedOver::Unkept);
                            unkept = Some((benefactor, "its receipts leave them out".to_owned()));
                        }
                    }
                    // It may come back, as after a restart, and nobody else has them.
                    Err(error)
                        if error.is_transport()
                            && has_patience
                            && self.chunks.would_lose(&blocks, benefactor) =>
                    {
                        wait = true;
                    }
                    Err(error) => {
                        tracing::warn!(%benefactor, %error, blocks = blocks.len(), "a benefactor can't make blocks durable");
                        self.chunks.gone(&blocks, benefactor);
                        // A connection that ends says little: it may have been started again.
                        let is_late = matches!(error, CallError::Timeout { .. });
                        let is_unkept = is_late || !error.is_transport();
                        let why = if is_unkept { PassedOver::Unkept } else { PassedOver::Slow };
                        self.pool.benefactors.pass_over(benefactor, why);
                        if !error.is_transport() {
                            unkept = Some((benefactor, format!("can't make them durable ({error})")));
                        }
                    }
                }
            }
            match unkept {
                None => patience = None,
                Some((benefactor, why)) => {
                    let begin = || Retry::every(RECEIPT_PAUSE, RECEIPT_PATIENCE);
                    if !patience.get_or_insert_with(begin).pause().await {
                        return Err(never_named(benefactor, &why));
                    }
                }
            }
            if wait {
                retry.pause().await;
            }
        }
    }

    fn is_settled(&self, needed: &HashSet<ChunkId>) -> bool {
        let wanted = self.policy.at_commit();
        self.chunks.lacking(needed, wanted).is_empty() && self.chunks.unsecured(needed, wanted).is_empty()
    }

    /// Asks benefactors for receipts, all at a time, each in parts.
    async fn sync_all(&self, unsecured: HashMap<BenefactorId, Vec<BlockId>>) -> Vec<Synced> {
        let mut syncs = JoinSet::new();
        for (benefactor, blocks) in unsecured {
            let pool = Arc::clone(&self.pool);
            let is_only_there =
                !pool.benefactors.are_others(benefactor) || self.chunks.would_lose(&blocks, benefactor);
            let limit = if is_only_there { SYNC_TIMEOUT } else { SYNC_ELSEWHERE };
            syncs.spawn(async move {
                let mut answers = Vec::new();
                let mut rest = blocks.as_slice();
                while !rest.is_empty() {
                    let (part, after) = rest.split_at(rest.len().min(RECEIPT_MAX));
                    let answer = sync_at(&pool, benefactor, part, limit).await;
                    // One that doesn't answer isn't asked for the others.
                    let is_silent = answer.as_ref().is_err_and(CallError::is_transport);
                    let answered = if is_silent { rest } else { part };
                    answers.push((benefactor, answered.to_vec(), answer));
                    rest = if is_silent { &[] } else { after };
                }
                answers
            });
        }
        syncs.join_all().await.into_iter().flatten().collect()
    }

    /// Stores a chunk in further places. With `has_patience` it may have been found in the pool instead, where it isn't for sure.
    async fn put_again(&self, lacking: Lacking, has_patience: bool) -> Result<Again, Failure> {
        match lacking.bytes {
            Some(bytes) => {
                self.put(lacking.chunk, bytes, lacking.at).await?;
                Ok(Again::Stored)
            }
            // What is left of it is enough to read it; where the commit wants no more, the pool makes the rest.
            None if is_readable_at(&lacking.at) => {
                match self.pool.cache.get(lacking.chunk).await {
                    Ok(bytes) => {
                        self.put(lacking.chunk, bytes, lacking.at).await?;
                        Ok(Again::Stored)
                    }
                    // Those that have it may come back, as after a restart.
                    Err(_) if has_patience => Ok(Again::FoundInThePool),
                    Err(failure) => Err(failure),
                }
            }
            None if has_patience && self.find_elsewhere(lacking.chunk.id).await? => Ok(Again::FoundInThePool),
            None => Err(Failure::new(
                ErrorCode::Unavailable,
                format!(
                    "chunk {} was lost before it was part of a version (its benefactor went away, or the pool hadn't heard \
                     of this writer for long), and its bytes have left the window: write the file again; where \
                     benefactors go away, use more than one copy with `semantics=pessimistic`, or an erasure code",
                    lacking.chunk.id
                ),
            )),
        }
    }

    /// Whether the pool has a chunk, of which the session knows no place any more, after all.
    async fn find_elsewhere(&self, chunk: ChunkId) -> Result<bool, Failure> {
        let known = self.ask_known(vec![chunk]).await?;
        let there: Vec<Location> = known.into_iter().flat_map(|known| known.at).collect();
        self.chunks.found(chunk, &there, is_readable_at(&there));
        Ok(is_readable_at(&self.chunks.places(chunk)))
    }

    /// Makes the map the newest version once all that it names is durable.
    async fn commit_map(
        &self,
        map: &ChunkMap,
        root: MapRoot,
        needed: &HashSet<ChunkId>,
        told: (TimeNs, VersionState, u64),
    ) -> Result<VersionInfo, Failure> {
        let (mut refused, mut looked_at): (Option<Retry>, Option<Instant>) = (None, None);
        let (mut recounts, mut left) = (0, HashSet::new());
        loop {
            self.settle(needed).await.inspect_err(|failure| self.fail(failure))?;
            let turn = self.telling.lock().await;
            if !self.is_settled(needed) {
                continue; // The session was opened again meanwhile, and something is gone.
            }
            let asked = self.ask_to_commit(map, root.clone(), needed, told).await;
            drop(turn);
            match asked {
                // Where the manager has forgotten the session, what it stored may be gone.
                Err(failure) if failure.code == ErrorCode::Stale => {
                    self.reattach().await?;
                    (refused, looked_at) = (None, None);
                }
                // The manager, or a benefactor, was started again moments ago, or a collection came between.
                Err(failure)
                    if failure.code == ErrorCode::Outdated
                        && refused
                            .get_or_insert_with(|| Retry::every(RECEIPT_PAUSE, RECEIPT_PATIENCE))
                            .pause()
                            .await =>
                {
                    tracing::debug!(%failure, "asking for receipts again");
                    if looked_at.get_or_insert_with(Instant::now).elapsed() >= GONE_EVERY {
                        looked_at = Some(Instant::now());
                        self.leave_gone().await;
                        self.leave_refused(needed).await?;
                    }
                }
                // A benefactor may have given a receipt that can't count.
                Err(failure) if matches!(failure.code, ErrorCode::Denied | ErrorCode::Invalid) => {
                    let refused = self.leave_refused(needed).await?;
                    let again = refused.intersection(&left).next();
                    match (refused.is_empty(), again) {
                        (true, _) => return Err(failure),
                        (false, Some(again)) => return Err(never_named(*again, "its receipts don't count")),
                        (false, None) => left.extend(refused),
                    }
                }
                // It may be that the manager doesn't trust what it trusted when the chunks were found.
                Err(failure)
                    if failure.code == ErrorCode::Unavailable
                        && recounts < RECOUNTS_MAX
                        && self.count_anew(needed).await =>
                {
                    tracing::debug!(%failure, "storing chunks again that others have stored");
                    recounts += 1;
                }
                // It was opened before its folder was to be encrypted: nothing more can be saved by it.
                Err(failure) if failure.code == ErrorCode::NoKey => {
                    self.fail(&failure);
                    return Err(failure);
                }
                committed => return committed,
            }
        }
    }

    /// Asks what counts of the chunks that rest on encodings of others. Returns whether less does than before.
    async fn count_anew(&self, needed: &HashSet<ChunkId>) -> bool {
        let mut is_less = false;
        for part in self.chunks.resting_on_others(needed).chunks(LIST_ENTRIES_MAX) {
            match self.ask_known(part.to_vec()).await {
                Ok(known) => {
                    for (chunk, known) in part.iter().zip(&known) {
                        is_less |= self.chunks.recounted(*chunk, &known.at);
                    }
                }
                Err(failure) => tracing::debug!(%failure, "the manager could not be asked what counts"),
            }
        }
        is_less
    }

    /// What is at benefactors that are gone is stored elsewhere. In the place of one another may answer, whose receipts don't count.
    async fn leave_gone(&self) {
        match self.pool.benefactors.gone().await {
            Ok(gone) => {
                self.stripe.leave(&gone).await;
                self.chunks.leave(&gone);
            }
            Err(failure) => {
                tracing::debug!(%failure, "the manager could not be asked which benefactors are gone")
            }
        }
    }

    /// Gives the manager the receipts of one benefactor after the other. Blocks of those whose receipts it refuses are stored elsewhere, as
    /// if they were gone. Returns these.
    async fn leave_refused(&self, needed: &HashSet<ChunkId>) -> Result<HashSet<BenefactorId>, Failure> {
        self.settle(needed).await.inspect_err(|failure| self.fail(failure))?;
        let _turn = self.telling.lock().await;
        let (mut refused, mut is_unsure) = (HashSet::new(), false);
        while let Some((benefactor, receipt)) = self.chunks.take_receipt() {
            let blocks: Vec<BlockId> = receipt.blocks.iter().map(|stored| stored.block).collect();
            let told = ManagerRequest::Receipts { session: self.id, receipts: vec![(benefactor, receipt)] };
            match self.pool.manager.ask(&told).await {
                Ok(_) => {}
                Err(failure)
                    if matches!(
                        failure.code,
                        ErrorCode::Denied | ErrorCode::Invalid | ErrorCode::Outdated
                    ) =>
                {
                    tracing::warn!(%benefactor, %failure, "a benefactor's receipts don't count");
                    self.pool.benefactors.pass_over(benefactor, PassedOver::Unkept);
                    // The manager may hear of it in a moment, and nobody else has these.
                    let may_count =
                        failure.code == ErrorCode::Outdated && self.chunks.would_lose(&blocks, benefactor);
                    match may_count {
                        true => is_unsure = true,
                        false => _ = refused.insert(benefactor),
                    }
                }
                // The next commit meets it, too.
                Err(failure) => {
                    tracing::debug!(%failure, "receipts could not be told apart");
                    is_unsure = true;
                    break;
                }
            }
        }
        if is_unsure {
            self.chunks.forget_receipts();
        }
        self.stripe.leave(&refused).await;
        self.chunks.leave(&refused);
        Ok(refused)
    }

    /// The caller has the turn to tell.
    async fn ask_to_commit(
        &self,
        map: &ChunkMap,
        root: MapRoot,
        needed: &HashSet<ChunkId>,
        (mtime, state, changes): (TimeNs, VersionState, u64),
    ) -> Result<VersionInfo, Failure> {
        self.tell_vouched(needed).await?;
        let receipts = self.tell_receipts().await?;
        // A small map says itself what it names.
        let mut named = match &root {
            MapRoot::Inline { .. } => Vec::new(),
            MapRoot::Pieces { .. } => needed.iter().copied().collect(),
        };
        // What doesn't fit into the commit goes before it.
        let before = named.split_off(named.len().min(LIST_ENTRIES_MAX));
        for (number, part) in before.chunks(LIST_ENTRIES_MAX).enumerate() {
            let (session, first, chunks) = (self.id, number == 0, part.to_vec());
            let told = self.pool.manager.ask(&ManagerRequest::Names { session, first, chunks }).await;
            told.inspect_err(|_| self.chunks.forget_receipts())?;
        }
        let named_before = before.len() as u64;
        let (size, stored_bytes) = (map.size(), self.stored_bytes());
        let (session, hole_bytes) = (self.id, map.hole_bytes());
        let commit = ManagerRequest::Commit {
            session,
            root,
            size,
            mtime,
            stored_bytes,
            named,
            named_before,
            state,
            hole_bytes,
            receipts,
            key: self.key(),
            changes,
        };
        match self.ask_patiently(&commit).await.inspect_err(|_| self.chunks.forget_receipts())? {
            ManagerReply::Version { info: Some(info), hold, .. } => {
                *self.hold.lock() = hold;
                self.known.returned();
                self.stripe.returned();
                Ok(info)
            }
            _ => Err(crate::unexpected("Commit")),
        }
    }

    /// Asks until the manager no longer answers that it can't tell yet, as it does while benefactors report to it after
    /// its restart, or while copies are under way.
    async fn ask_patiently(&self, request: &ManagerRequest) -> Result<ManagerReply, Failure> {
        let mut retry = Retry::every(RETURN_PAUSE, RETURN_PATIENCE);
        loop {
            match self.pool.manager.ask(request).await {
                Err(failure) if failure.code == ErrorCode::Unavailable && retry.pause().await => {
                    tracing::debug!(%failure, "asking for the commit again");
                }
                answer => return answer,
            }
        }
    }

    /// Tells the manager which encodings of others count for this session.
    async fn tell_vouched(&self, needed: &HashSet<ChunkId>) -> Result<(), Failure> {
        for part in self.chunks.untold_vouched(needed).chunks(LIST_ENTRIES_MAX) {
            let told = ManagerRequest::Vouch { session: self.id, encodings: part.to_vec() };
            self.pool.manager.ask(&told).await.inspect_err(|_| self.chunks.forget_receipts())?;
            self.chunks.told_vouched(part);
        }
        Ok(())
    }

    /// Gives the manager the receipts of this session, and returns the last of them, which go with the commit.
    async fn tell_receipts(&self) -> Result<Vec<(BenefactorId, Receipt)>, Failure> {
        loop {
            let receipts = self.chunks.take_receipts(LIST_ENTRIES_MAX);
            if receipts.iter().map(|(_, receipt)| receipt.blocks.len()).sum::<usize>() <= COMMITTED_WITH_MAX {
                return Ok(receipts);
            }
            let told = ManagerRequest::Receipts { session: self.id, receipts };
            if let Err(failure) = self.pool.manager.ask(&told).await {
                self.chunks.forget_receipts();
                return Err(failure);
            }
        }
    }

    /// Asks the manager something about this session; if it has forgotten the session, introduces it again before.
    pub(super) async fn ask(&self, request: &ManagerRequest) -> Result<ManagerReply, Failure> {
        match self.pool.manager.ask(request).await {
            Err(failure) if failure.code == ErrorCode::Stale => {
                self.reattach().await?;
                self.pool.manager.ask(request).await
            }
            answer => answer,
        }
    }

    /// Opens the session again at a manager that was restarted, or took this client for gone: same session, and those of
    /// its chunks that are left.
    pub(crate) async fn reattach(&self) -> Result<(), Failure> {
        let _turn = self.telling.lock().await;
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Failure::new(
                ErrorCode::Stale,
                "the file is closed: what was not committed is given up",
            ));
        }
        let session = self.id;
        self.is_to_be_held.store(true, Ordering::Release);
        self.open_again().await?;
        self.pieces.forget_usable();
        // What was collected while the manager took this client for gone shows when benefactors are asked for receipts again. What is
        // on its way to a benefactor is to be held as well.
        self.chunks.forget_receipts();
        for part in self.chunks.all().chunks(LIST_ENTRIES_MAX) {
            self.pool.manager.ask(&self.ask_of(part)).await?;
        }
        if self.is_closing() {
            let (size, changes) = (self.size(), self.closing.load(Ordering::Acquire));
            self.pool.manager.ask(&ManagerRequest::Closing { session, size, changes }).await?;
        }
        self.is_to_be_held.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether the manager may know the session and not hold all of its chunks: [`Session::reattach`] is to be called again.
    pub(crate) fn is_to_be_held(&self) -> bool {
        self.is_to_be_held.load(Ordering::Acquire)
    }

    /// Sees to it that the manager knows the session: one that was restarted hears of it again.
    pub(crate) async fn introduce(&self) -> Result<(), Failure> {
        self.ask(&ManagerRequest::Settle(self.id)).await.map(drop)
    }

    fn ask_of(&self, chunks: &[ChunkId]) -> ManagerRequest {
        ManagerRequest::Known { session: self.id, chunks: chunks.to_vec(), room_bytes: 0 }
    }

    /// With a commit the manager lets go of what the session held and the version doesn't name. What cells have used meanwhile, the
    /// session asks for again; no collection comes so soon. What is named it has kept. A session that the manager forgets meanwhile is
    /// opened again as ever.
    async fn hold_again(&self, named: &HashSet<ChunkId>) {
        let mut let_go = self.chunks.all();
        let_go.retain(|chunk| !named.contains(chunk));
        for part in let_go.chunks(LIST_ENTRIES_MAX) {
            if let Err(failure) = self.ask(&self.ask_of(part)).await {
                tracing::warn!(ino = %self.ino(), %failure, "chunks that were stored during a commit are to be held later");
                self.is_to_be_held.store(true, Ordering::Release);
                return;
            }
        }
    }

    /// What was committed becomes the base; cells that haven't changed since are done with.
    fn rebase(&self, snapshot: &Snapshot, map: ChunkMap) {
        for chunk in map.chunks() {
            let at = self.chunks.places(chunk.id);
            if !at.is_empty() {
                self.pool.fetcher.remember(chunk.id, at);
            }
        }
        self.chunks.settled();
        let used = map.chunks().iter().map(|chunk| chunk.id).chain(self.chunks.all()).collect();
        self.pieces.settled(&used);
        let mut state = self.state.lock();
        for (index, sealed) in &snapshot.cells {
            if matches!(state.cells.get(index), Some(Cell::Sealed(now)) if Arc::ptr_eq(now, sealed)) {
                state.cells.remove(index);
            }
        }
        state.base_limit = map.size().min(state.lowest_size);
        state.base = Arc::new(MapView::new(map));
        state.is_base_of_another_key = false;
        state.committed = snapshot.generation;
    }
}

/// What became of a chunk that lacked places.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Stored,
    FoundInThePool,
}

/// What a benefactor answered that was asked for a receipt for these blocks.
type Synced = (BenefactorId, Vec<BlockId>, Result<Receipt, CallError>);

/// Asks a benefactor for a receipt, once more at once if the connection broke: it may have been started again.
async fn sync_at(
    pool: &Inner,
    benefactor: BenefactorId,
    blocks: &[BlockId],
    limit: Duration,
) -> Result<Receipt, CallError> {
    match pool.benefactors.sync(benefactor, blocks.to_vec(), limit).await {
        Err(error) if error.is_transport() && !matches!(error, CallError::Timeout { .. }) => {
            pool.benefactors.sync(benefactor, blocks.to_vec(), limit).await
        }
        answer => answer,
    }
}

/// Puts the extents of a map together, in file order.
#[derive(Default)]
struct MapBuilder {
    chunks: Vec<ChunkRef>,
    places: HashMap<ChunkId, u32>,
    extents: Vec<Extent>,
    size: u64,
}

impl MapBuilder {
    fn push(&mut self, length: u64, source: Option<(ChunkRef, u32)>) {
        if length == 0 {
            return;
        }
        let source = match source {
            None => Source::Hole,
            Some((chunk, offset)) => Source::Chunk { index: self.place(chunk), offset },
        };
        self.extents.push(Extent { length, source });
        self.size += length;
    }

    fn place(&mut self, chunk: ChunkRef) -> u32 {
        let next = narrow(self.chunks.len());
        *self.places.entry(chunk.id).or_insert_with(|| {
            self.chunks.push(chunk);
            next
        })
    }

    /// The part of the base version in `range`, as far as it still counts.
    fn base(&mut self, base: &MapView, range: Range<u64>, limit: u64) -> Result<(), Failure> {
        if range.start < range.end.min(limit) {
            let base = match base {
                MapView::Chunks(base) => base,
                MapView::Packed(file) => {
                    // The holes of a packed file are all that a session leaves where they are: its data were stored anew.
                    let end = range.end.min(limit);
                    if file.data_at(range.start).is_some_and(|data| data.start < end) {
                        return Err(crate::unexpected("a part of a container that was not stored anew"));
                    }
                    self.zeros_to(range.end);
                    return Ok(());
                }
                MapView::Unreadable { failure, .. } => {
                    let what = "a part of it is kept from the version before, which can't be read";
                    return Err(crate::context(failure, what));
                }
            };
            base.runs(range.start..range.end.min(limit)).for_each(|run| self.push(run.length, run.source));
        }
        self.zeros_to(range.end);
        Ok(())
    }

    /// The parts of a stored cell, at most `limit` bytes.
    fn cell(&mut self, sealed: &Sealed, limit: u64) -> Result<(), Failure> {
        let parts = sealed.parts().ok_or_else(|| crate::unexpected("a cell that is still being sent"))??;
        let mut left = limit;
        for part in parts.iter() {
            let length = (part.length as u64).min(left);
            self.push(length, part.source);
            left -= length;
        }
        Ok(())
    }

    fn zeros_to(&mut self, end: u64) {
        self.push(end.saturating_sub(self.size), None);
    }
}
