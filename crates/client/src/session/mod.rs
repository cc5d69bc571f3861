//! A session: one file being written, from open to close.
//!
//! The file is divided into cells, aligned runs of about a mebibyte. A cell that is written to is buffered in the window;
//! once full, or when room is needed, or at flush, it is sealed: gaps are filled from what the file held before, the bytes
//! are cut into chunks, and those that the pool doesn't have go to benefactors while the application goes on writing
//! (the paper's sliding window, section IV.B). A sealed cell that is written to again is simply buffered again, above the
//! sealed one. A commit seals everything, waits until it is durable, and makes the map of all cells the newest version.
//!
//! Sent bytes stay in the window until their room is needed or they are committed, so that a benefactor that dies
//! meanwhile costs a second transfer and not the checkpoint.

mod begin;
mod burst;
mod cell;
mod chunks;
mod commit;
mod grid;
mod known;
mod learn;
mod lists;
mod pieces;
mod room;
mod sealed;
mod send;
mod stripe;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use stdchk_model::chunk_map::PieceName;
use stdchk_model::exact::{narrow, to_usize};
use stdchk_model::limits::{CHUNK_BYTES_MAX, FILE_BYTES_MAX};
use stdchk_model::message::manager::{
    Attr, BenefactorInfo, Hold, ManagerReply, ManagerRequest, TimeNs, VersionInfo, VersionState,
};
use stdchk_model::policy::CloseWaits;
use stdchk_model::{ChunkRef, ErrorCode, Failure, Ino, KeyId, Policy, SessionId, User};
use stdchk_net::waits;
use stdchk_protect::seal::Key;
use stdchk_reduce::learn::cutter_of;
use stdchk_reduce::{Compression, CutterSpec};
use tokio::sync::{Notify, Semaphore};

use crate::holes::first;
use crate::map_view::MapView;
use crate::pool::Inner;
use begin::Made;
pub use begin::NewFile;
use burst::Burst;
use cell::{Cell, Dirty, Held, Under};
use chunks::Chunks;
use grid::Grid;
use known::Known;
use pieces::Pieces;
pub use room::Room;
pub(crate) use sealed::Sealed;
use send::SendingCell;
use stripe::Stripe;

/// Bytes of a file that are buffered, sealed and sent together, unless its chunks are larger. One mebibyte is what the
/// kernel sends in one request at most, and what keeps a disk and a network busy.
const CELL_BYTES: usize = 1 << 20;
/// Unit of a session's own share of the window, bytes.
pub(crate) const SHARE_UNIT: usize = 64 << 10;

/// One file being written. All methods may be called concurrently.
pub struct Session {
    pool: Arc<Inner>,
    id: SessionId,
    opened: Attr,
    /// The version that this session builds on.
    first: Arc<MapView>,
    /// The session that made it.
    base: Option<SessionId>,
    /// This client's own maker wrote it: what its map names as pieces are those.
    is_base_own: bool,
    policy: Policy,
    /// What its chunks are named and sealed with.
    key: Option<Arc<Key>>,
    /// For whom it was opened: what others have is found for this user alone.
    user: Option<User>,
    cutter: CutterSpec,
    grid: Grid,
    compression: Compression,
    cell_bytes: usize,
    state: Mutex<State>,
    chunks: Chunks,
    known: Known,
    pieces: Pieces,
    stripe: Stripe,
    share: Arc<Semaphore>,
    sending: AtomicUsize,
    /// The commit under way sends the only cell that is to be sent: its chunks are stored and made durable by one request.
    is_all_sent_at_once: AtomicBool,
    /// Until when copies are stored at once in place of fragments, for which there were too few benefactors.
    copies_stand_in: Mutex<Option<tokio::time::Instant>>,
    /// The manager may know the session and not hold all of its chunks.
    is_to_be_held: AtomicBool,
    /// How the file was made, until it is known to be durable.
    made: Mutex<Option<Made>>,
    /// The session that was first to commit the file, of one that was taken up from a spool.
    taken_up: OnceLock<SessionId>,
    /// Told when somebody is done with a chunk that they claimed.
    claims: Notify,
    /// Held while the manager is told of chunks, and for the commit that rests on what it was told.
    telling: tokio::sync::Mutex<()>,
    /// It is over, at the manager as well; changes with the turn to tell.
    is_closed: AtomicBool,
    commit_turn: tokio::sync::Mutex<Option<VersionInfo>>,
    /// The last change of which the application was told that it is closed, ahead of its commit.
    closing: AtomicU64,
    stored_bytes: AtomicU64,
    /// For which copies the application should wait after the last commit.
    hold: Mutex<Option<Hold>>,
    /// Size of the version from which something was to be learned last, bytes.
    learned_at: AtomicU64,
}

struct State {
    size: u64,
    base: Arc<MapView>,
    /// Bytes of the base that are still part of the file: truncation lowers it.
    base_limit: u64,
    /// The base is encrypted with another key than this session's: no version is to need two.
    is_base_of_another_key: bool,
    /// Lowest size since the last snapshot for a commit.
    lowest_size: u64,
    cells: BTreeMap<u64, Cell>,
    /// Counts changes; a commit covers all up to the one that it saw.
    generation: u64,
    committed: u64,
    burst: Burst,
    /// Once something was lost the session can't be committed any more: every later call says why.
    failure: Option<Failure>,
}

impl Session {
    fn new(
        pool: &Arc<Inner>,
        id: SessionId,
        opened: Attr,
        policy: Policy,
        base: MapView,
        (version, key): (Option<VersionInfo>, Option<Arc<Key>>),
        room: (Vec<BenefactorInfo>, u64),
    ) -> Result<Self, Failure> {
        let invalid = |error: &dyn std::fmt::Display| Failure::new(ErrorCode::Invalid, error.to_string());
        let cutter = cutter_of(&policy.cutter, &policy.learned).map_err(|error| invalid(&error))?;
        let compression = policy.codec.parse().map_err(|error| invalid(&error))?;
        let shares = to_usize(policy.window) / SHARE_UNIT;
        let (size, base) = (base.size(), Arc::new(base));
        let key_of_base = version.as_ref().and_then(|version| version.key);
        let keys = key_of_base.zip(key.as_ref().map(|key| key.id()));
        let is_base_of_another_key = keys.is_some_and(|(of_base, own)| of_base != own);
        Ok(Self {
            cell_bytes: cell_bytes(&cutter),
            grid: Grid::new(&cutter),
            chunks: Chunks::default(),
            known: Known::new(Arc::clone(&pool.manager), id, room),
            pieces: Pieces::default(),
            stripe: Stripe::new(id),
            share: Arc::new(Semaphore::new(shares.clamp(1, Semaphore::MAX_PERMITS))),
            state: Mutex::new(State {
                size,
                base: Arc::clone(&base),
                base_limit: size,
                is_base_of_another_key,
                lowest_size: u64::MAX,
                cells: BTreeMap::new(),
                generation: 0,
                committed: 0,
                burst: Burst::default(),
                failure: None,
            }),
            first: base,
            sending: AtomicUsize::new(0),
            is_all_sent_at_once: AtomicBool::new(false),
            copies_stand_in: Mutex::default(),
            is_to_be_held: AtomicBool::new(false),
            made: Mutex::default(),
            taken_up: OnceLock::new(),
            claims: Notify::new(),
            telling: tokio::sync::Mutex::default(),
            is_closed: AtomicBool::new(false),
            base: version.as_ref().map(|version| version.session),
            is_base_own: version.as_ref().is_some_and(|version| version.maker == pool.maker),
            commit_turn: tokio::sync::Mutex::new(version),
            closing: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            hold: Mutex::new(None),
            learned_at: AtomicU64::new(0),
            pool: Arc::clone(pool),
            id,
            opened,
            policy,
            key,
            user: crate::acting::user(),
            cutter,
            compression,
        })
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// The session of the version that this one builds on; `None`: the file was never committed.
    pub(crate) fn base(&self) -> Option<SessionId> {
        self.base
    }

    /// The chunk of these bytes, named with the key if the session has one. Whoever sends it seals it by its name.
    fn chunk_of(&self, bytes: &[u8]) -> ChunkRef {
        match &self.key {
            None => ChunkRef::of(bytes),
            Some(key) => ChunkRef { id: key.name(bytes), length: narrow(bytes.len()) },
        }
    }

    /// The name of a piece of these bytes, among pieces of chunks that are named like those of this session.
    fn piece_of(&self, bytes: &[u8]) -> PieceName {
        self.key.as_ref().map_or_else(|| PieceName::of(bytes), |key| key.piece_name(bytes))
    }

    /// The key with which it encrypts.
    pub fn key(&self) -> Option<KeyId> {
        self.key.as_ref().map(|key| key.id())
    }

    /// Whether something was lost, so that nothing more can be saved by this session.
    pub(crate) fn is_failed(&self) -> bool {
        self.state.lock().failure.is_some()
    }

    /// The version that the last commit made, or on which the session builds.
    pub(crate) async fn version(&self) -> Option<VersionInfo> {
        self.commit_turn.lock().await.clone()
    }

    /// Ends a session of which nothing will come: a file of so many bytes that its application takes for closed is on record as lost
    /// when this returns.
    ///
    /// # Errors
    /// It isn't, and this may be called again; `NotFound`: there is no such file.
    pub(crate) async fn give_up(self: &Arc<Self>, size: u64) -> Result<(), Failure> {
        let session = self.id;
        // No commit comes any more, whatever it has.
        let changes = u64::MAX;
        self.ask(&ManagerRequest::Closing { session, size, changes }).await?;
        match self.pool.manager.ask(&ManagerRequest::CloseSession { session, interrupted: true }).await {
            Err(failure) if failure.code != ErrorCode::Stale => return Err(failure),
            _ => {}
        }
        // A manager that was started in between knows nothing of the close.
        let versions = self.pool.versions(self.ino()).await?;
        if !versions.iter().any(|info| (info.session, info.state) == (session, VersionState::Lost)) {
            return Err(Failure::new(
                ErrorCode::Unavailable,
                "the manager did not note that the file is lost",
            ));
        }
        // Nobody will build on it.
        let kept_for = self.taken_up.get().copied().unwrap_or(session);
        self.pool.manager.ask(&ManagerRequest::LetBaseGo { ino: self.ino(), kept_for }).await?;
        // Why it is given up is known.
        let _ = self.close(true).await;
        Ok(())
    }

    /// Size of the file as this session sees it, bytes.
    pub fn size(&self) -> u64 {
        self.state.lock().size
    }

    /// Bytes of the version on which it builds that still count.
    pub(crate) fn base_limit(&self) -> u64 {
        self.state.lock().base_limit
    }

    /// The policy of the file's folder when the session was opened.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The file.
    pub fn ino(&self) -> Ino {
        self.opened.ino
    }

    /// The file as it was when the session was opened.
    pub fn opened(&self) -> &Attr {
        &self.opened
    }

    /// Whether anything was written since the last commit.
    pub fn is_dirty(&self) -> bool {
        let state = self.state.lock();
        state.generation != state.committed
    }

    /// Bytes that this session sent to benefactors, not counting replicas.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes.load(Ordering::Relaxed)
    }

    /// Writes `data` at `offset`; waits while the window is full.
    ///
    /// # Errors
    /// `TooLong` beyond the largest file; whatever made the session fail before: then nothing more can be saved by it.
    pub async fn write_at(self: &Arc<Self>, offset: u64, data: &[u8]) -> Result<(), Failure> {
        check_end(offset, data.len())?;
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = self.within(at);
            let (now, later) = rest.split_at(rest.len().min(self.cell_bytes - within));
            self.write_cell(self.index(at), within, now).await?;
            at += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    fn index(&self, offset: u64) -> u64 {
        offset / self.cell_bytes as u64
    }

    fn within(&self, offset: u64) -> usize {
        to_usize(offset % self.cell_bytes as u64)
    }

    async fn write_cell(self: &Arc<Self>, index: u64, within: usize, data: &[u8]) -> Result<(), Failure> {
        let end = within + data.len();
        loop {
            if self.write_buffered(index, within, data)? {
                return Ok(());
            }
            let held = self.take_window(cell::capacity_for(end, self.cell_bytes)).await;
            self.provide(index, held);
        }
    }

    /// Copies `data` into the cell's buffer, if it has one that is large enough.
    fn write_buffered(self: &Arc<Self>, index: u64, within: usize, data: &[u8]) -> Result<bool, Failure> {
        let mut state = self.state.lock();
        state.failure.clone().map_or(Ok(()), Err)?;
        let Some(Cell::Dirty(dirty)) = state.cells.get_mut(&index) else { return Ok(false) };
        if !dirty.write(within, data) {
            return Ok(false);
        }
        self.wrote(&mut state, index, within + data.len());
        Ok(true)
    }

    /// Takes note of a write to a cell that ends at its byte `end`.
    fn wrote(self: &Arc<Self>, state: &mut State, index: u64, end: usize) {
        state.size = state.size.max(index * self.cell_bytes as u64 + end as u64);
        state.generation += 1;
        let full = |cell: &Cell| matches!(cell, Cell::Dirty(dirty) if dirty.is_full(self.cell_bytes));
        if state.cells.get(&index).is_some_and(full) {
            self.filled(state, index);
        }
    }

    /// Gives the cell a buffer, over whatever it held so far.
    fn provide(&self, index: u64, held: Held) {
        let mut state = self.state.lock();
        match state.cells.get_mut(&index) {
            Some(Cell::Dirty(dirty)) => dirty.provide(held),
            Some(Cell::Sealed(sealed)) => {
                let under = Under::sealed(Arc::clone(sealed));
                state.cells.insert(index, Cell::Dirty(Dirty::new(Some(held), under)));
            }
            None => {
                let under = self.under_base(&state, index);
                state.cells.insert(index, Cell::Dirty(Dirty::new(Some(held), under)));
            }
        }
    }

    fn under_base(&self, state: &State, index: u64) -> Under {
        let start = index * self.cell_bytes as u64;
        let limit = state.base_limit.saturating_sub(start).min(self.cell_bytes as u64);
        Under::base(Arc::clone(&state.base), start, to_usize(limit))
    }

    /// Takes a buffer from the window, and makes room if there is none: bytes that are stored already go first, then
    /// cells that were begun longest ago are sealed before they are full.
    async fn take_window(self: &Arc<Self>, bytes: usize) -> Held {
        if let Some(held) = self.try_take_window(bytes) {
            return held;
        }
        let (ino, window) = (self.ino(), Arc::clone(&self.pool.window));
        let what = move || format!("room to write to file {ino}: {}", window.wanted(bytes));
        waits::on(what, self.make_room(bytes)).await
    }

    async fn make_room(self: &Arc<Self>, bytes: usize) -> Held {
        loop {
            if let Some(held) = self.try_take_window(bytes) {
                return held;
            }
            if self.pool.release_stored() {
                continue;
            }
            self.pool.wait_for_room(self).await;
        }
    }

    fn try_take_window(&self, bytes: usize) -> Option<Held> {
        let units = narrow(bytes.div_ceil(SHARE_UNIT));
        let share = Arc::clone(&self.share).try_acquire_many_owned(units).ok()?;
        Some(Held::new(self.pool.window.try_take(bytes)?, share))
    }

    /// If the version below couldn't be read and something is kept of it, maybe it can be now.
    async fn read_base_again(&self, version: Option<&VersionInfo>) -> Result<(), Failure> {
        let is_needed = {
            let state = self.state.lock();
            matches!(*state.base, MapView::Unreadable { .. }) && state.base_limit > 0
        };
        let Some(version) = version.filter(|_| is_needed) else { return Ok(()) };
        let (_, root, _) = self.pool.open_version(self.ino(), Some(version.version)).await?;
        let Ok(view) = self.pool.load_view(root.as_ref()).await else { return Ok(()) };
        let mut state = self.state.lock();
        if view.size() == state.base.size() {
            state.base = Arc::new(view);
        }
        Ok(())
    }

    /// What lies in a container can't be referred to in parts, and what another key encrypts is not: what the file keeps of it is stored
    /// anew.
    async fn store_base_anew(self: &Arc<Self>) -> Result<(), Failure> {
        let cells = {
            let state = self.state.lock();
            let kept = match *state.base {
                _ if state.is_base_of_another_key => state.base_limit,
                MapView::Chunks(_) | MapView::Unreadable { .. } => 0,
                MapView::Packed(_) => state.base_limit,
            };
            kept.div_ceil(self.cell_bytes as u64)
        };
        let mut next = 0;
        while let Some(index) = self.next_of_base(next).filter(|index| *index < cells) {
            next = index + 1;
            if self.state.lock().cells.contains_key(&index) {
                continue;
            }
            let held = self.take_window(self.cell_bytes).await;
            let mut state = self.state.lock();
            state.failure.clone().map_or(Ok(()), Err)?;
            let is_kept = state.base_limit > index * self.cell_bytes as u64;
            if is_kept && !state.cells.contains_key(&index) {
                let under = self.under_base(&state, index);
                state.cells.insert(index, Cell::Dirty(Dirty::new(Some(held), under)));
                self.seal(&mut state, index);
            }
        }
        Ok(())
    }

    /// The first cell from this one on in which the base has data: its holes needn't be stored.
    fn next_of_base(&self, cell: u64) -> Option<u64> {
        let start = cell * self.cell_bytes as u64;
        let data = self.state.lock().base.data_at(start)?;
        Some(self.index(data.start.max(start)))
    }

    /// Seals the cell that was begun longest ago. False if nothing is buffered.
    pub(crate) fn spill(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        let oldest = self.oldest_in(&state).map(|(_, index)| index);
        oldest.inspect(|index| self.seal(&mut state, *index)).is_some()
    }

    /// When the cell was begun that [`Session::spill`] would seal.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.oldest_in(&self.state.lock()).map(|(begun, _)| begun)
    }

    fn oldest_in(&self, state: &State) -> Option<(Instant, u64)> {
        let dirty = state.cells.iter().filter_map(|(index, cell)| match cell {
            Cell::Dirty(dirty) if dirty.holds_window() => Some((dirty.begun(), *index)),
            _ => None,
        });
        dirty.min()
    }

    /// Whether cells are on their way to benefactors.
    pub(crate) fn is_sending(&self) -> bool {
        self.sending.load(Ordering::Acquire) > 0
    }

    /// Turns a dirty cell into a sealed one and starts sending it.
    fn seal(self: &Arc<Self>, state: &mut State, index: u64) {
        // Who drops it leaves it to the runtime.
        drop(self.seal_to_send(state, index));
    }

    /// Turns a dirty cell into a sealed one, for the caller to send.
    fn seal_to_send(self: &Arc<Self>, state: &mut State, index: u64) -> Option<SendingCell> {
        let Some(Cell::Dirty(dirty)) = state.cells.remove(&index) else { return None };
        let sealed = Arc::new(Sealed::new(dirty.length()));
        state.cells.insert(index, Cell::Sealed(Arc::clone(&sealed)));
        self.sending.fetch_add(1, Ordering::AcqRel);
        let (session, turn) = (Arc::clone(self), self.grid.turn());
        let work = Box::pin(async move { session.send(sealed, dirty, turn).await });
        Some(SendingCell { runtime: self.pool.runtime.clone(), work: Some(work) })
    }

    /// Reads up to `length` bytes at `offset`, as this session has written them; short at the end of the file.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes, Failure> {
        let end = offset.saturating_add(length as u64).min(self.size());
        let (mut at, mut parts) = (offset, Vec::new());
        while at < end {
            let within = self.within(at);
            let want = (self.cell_bytes - within).min(to_usize(end - at));
            parts.push(self.read_cell(self.index(at), within, want).await?);
            at += want as u64;
        }
        Ok(join(parts))
    }

    /// The first run of data that ends behind `offset`: cells that were written to count as data, whatever is in them.
    pub(crate) fn data_at(&self, offset: u64) -> Option<Range<u64>> {
        let state = self.state.lock();
        let cell = state.cells.range(self.index(offset)..).next().map(|(index, _)| {
            let start = index * self.cell_bytes as u64;
            start..start + self.cell_bytes as u64
        });
        let below = state.base.data_at(offset).filter(|below| below.start < state.base_limit);
        let below = below.map(|below| below.start..below.end.min(state.base_limit));
        first(cell, below.filter(|below| below.end > offset))
    }

    async fn read_cell(&self, index: u64, within: usize, length: usize) -> Result<Bytes, Failure> {
        let view = {
            let state = self.state.lock();
            match state.cells.get(&index) {
                Some(Cell::Dirty(dirty)) => dirty.view(within, length),
                Some(Cell::Sealed(sealed)) => {
                    cell::View::under(Under::sealed(Arc::clone(sealed)), within, length)
                }
                None => cell::View::under(self.under_base(&state, index), within, length),
            }
        };
        view.read(&self.pool).await
    }

    /// Sets the size of the file. Bytes cut off are gone, bytes added read as zeros. A file without a version, or without one
    /// that can be read, changes also if it is empty and stays so: that it is to be empty has been said now, and the next
    /// commit makes that a version.
    pub async fn truncate(self: &Arc<Self>, size: u64) -> Result<(), Failure> {
        check_end(size, 0)?;
        let mut state = self.state.lock();
        state.failure.clone().map_or(Ok(()), Err)?;
        if size < state.size {
            self.cut_off(&mut state, size);
        }
        let is_new = self.opened.version == 0 || self.opened.size != size;
        if size != state.size || is_new && state.generation == 0 {
            state.size = size;
            state.generation += 1;
        }
        Ok(())
    }

    fn cut_off(&self, state: &mut State, size: u64) {
        let (last, keep) = (self.index(size), self.within(size));
        drop(state.cells.split_off(&(if keep == 0 { last } else { last + 1 })));
        state.base_limit = state.base_limit.min(size);
        state.lowest_size = state.lowest_size.min(size);
        match state.cells.remove(&last) {
            Some(Cell::Dirty(mut dirty)) => {
                dirty.truncate(keep);
                state.cells.insert(last, Cell::Dirty(dirty));
            }
            Some(Cell::Sealed(sealed)) => {
                let mut dirty = Dirty::new(None, Under::sealed(sealed));
                dirty.truncate(keep);
                state.cells.insert(last, Cell::Dirty(dirty));
            }
            None => {}
        }
    }

    /// What `close()` waits for, as the folder's policy says: the commit; or that every chunk is stored somewhere; or
    /// nothing. If the commit is left to the background, the manager is told before, so that it knows of the loss should it
    /// never come.
    pub async fn flush(self: &Arc<Self>, mtime: TimeNs) -> Result<(), Failure> {
        if self.policy.close == CloseWaits::Durable || !self.is_dirty() {
            return self.commit(mtime).await.map(|_| ());
        }
        if self.policy.close == CloseWaits::Stored {
            let cells = self.seal_all(&mut self.state.lock());
            self.wait_stored(cells.values()).await?;
        }
        self.state.lock().failure.clone().map_or(Ok(()), Err)?;
        self.announce_closing().await?;
        self.await_copies().await;
        let session = Arc::clone(self);
        self.pool.background(async move {
            // At once, also if an earlier commit is still under way.
            session.seal_all(&mut session.state.lock());
            if let Err(failure) = session.commit(mtime).await {
                tracing::error!(ino = %session.ino(), %failure, "a file that was closed early could not be committed");
                session.fail(&failure);
            }
        });
        Ok(())
    }

    /// Tells the manager that the application takes the file for closed.
    async fn announce_closing(&self) -> Result<(), Failure> {
        let (generation, size) = {
            let state = self.state.lock();
            (state.generation, state.size)
        };
        self.closing.store(generation, Ordering::Release);
        match self.ask(&ManagerRequest::Closing { session: self.id, size, changes: generation }).await? {
            ManagerReply::Held { hold, .. } => *self.hold.lock() = Some(hold),
            _ => *self.hold.lock() = None,
        }
        Ok(())
    }

    /// Waits for the copies for which the manager said that the application should wait, if it did.
    pub(super) async fn await_copies(&self) {
        let hold = self.hold.lock().take();
        if let Some(hold) = hold {
            self.pool.holds.wait(&self.pool.manager, self.ino(), hold).await;
        }
    }

    /// Whether the application was told that something is closed which isn't committed yet.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire) > self.state.lock().committed
    }

    /// Ends the session; what was not committed is given up. Waits for a commit under way. `interrupted`: the writer was
    /// killed, so that what was committed may be torn.
    pub async fn close(self: &Arc<Self>, interrupted: bool) -> Result<(), Failure> {
        let _turn = self.commit_turn.lock().await;
        self.pool.sessions.lock().remove(&self.id);
        // What is still on its way finds the session ended, and must not open it again.
        let _telling = self.telling.lock().await;
        self.is_closed.store(true, Ordering::Release);
        // What an earlier commit of this session made is torn, too, if what followed could not be saved.
        let interrupted = interrupted || self.is_dirty() || self.state.lock().failure.is_some();
        let ended = self
            .pool
            .manager
            .ask(&ManagerRequest::CloseSession { session: self.id, interrupted })
            .await
            .map(|_| ());
        match ended {
            // A session that the manager has forgotten is closed.
            Err(failure) if failure.code == ErrorCode::Stale => Ok(()),
            ended => ended.and(self.state.lock().failure.clone().map_or(Ok(()), Err)),
        }
    }

    fn fail(&self, failure: &Failure) {
        self.state.lock().failure.get_or_insert_with(|| failure.clone());
    }
}

/// Cells hold whole chunks where all chunks have one size, so that the grid of chunks stays aligned to the file. Where
/// pieces are packed, a cell is as large as a chunk can be: pieces are lost at its ends, and packs need company.
fn cell_bytes(cutter: &CutterSpec) -> usize {
    let limits = cutter.limits();
    let cell = if pieces::are_packed(cutter) { CHUNK_BYTES_MAX } else { CELL_BYTES };
    match limits.max {
        max if max >= cell => max,
        max if limits.min == max => cell / max * max,
        _ => cell,
    }
}

pub(crate) fn check_end(offset: u64, length: usize) -> Result<(), Failure> {
    let end = offset.checked_add(length as u64).filter(|end| *end <= FILE_BYTES_MAX);
    let too_long = || Failure::new(ErrorCode::TooLong, "a file can't be larger than 2^63 - 1 bytes");
    end.map(drop).ok_or_else(too_long)
}

/// One piece as it is, several copied together.
pub(crate) fn join(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() < 2 {
        return parts.pop().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| all.extend_from_slice(part));
    all.freeze()
}
