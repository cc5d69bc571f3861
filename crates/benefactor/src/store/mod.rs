//! The chunk store: blocks in append-only segments on donated space. Synchronous; made for many threads at once.
//!
//! A put is verified, takes a place in the active segment under a lock and is written outside of it, in parallel with
//! others. [`Store::sync`] makes all finished puts durable at once. The index lives in memory and is rebuilt from the
//! records' headers ([`recover`]). A removal marks the header, makes that durable and only then frees the space: after
//! a crash a removed block may be back, whole; it is never there in name only.

mod compact;
pub mod disk;
mod error;
mod files;
mod index;
mod near;
mod presence;
mod record;
mod recover;
mod remove;
mod scrub;
mod segment;
mod space;
mod sync;
pub mod work;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use stdchk_model::exact::{narrow, part_mut, to_usize};
use stdchk_model::limits::CAUSE_BYTES_MAX;
use stdchk_model::message::benefactor::{BenefactorLoad, OwnerWish};
use stdchk_model::message::manager::StoredBlock;
use stdchk_model::{BlockId, Encoding};
use stdchk_net::Buffer;
use stdchk_protect::genuine;

pub use error::StoreError;
use error::{io_error, is_of_the_medium};
use files::Files;
pub use index::Changes;
use index::Index;
use near::Near;
pub use near::NearFound;
use record::{HEADER_BYTES, Key, Kind, Place, Record, payload_start, span};
pub use recover::Recovered;
pub use remove::Removed;
pub use scrub::Cursor;
use segment::{FIRST_RECORD, Segment};
pub use space::{Donation, NoRoom, Relief};
use sync::{At, Trouble};
use work::OwnWork;

/// Length at which a segment is full, bytes: small enough to be verified in a moment after a crash and to be rewritten
/// where holes can't be made, large enough that opening files costs nothing.
pub const SEGMENT_BYTES: u64 = 256 << 20;

/// Segments that may wait for a sync at a time, each with an open file: more than are filled between two syncs of those who wait
/// for their blocks to be durable.
const UNSYNCED_SEGMENTS_MAX: usize = 16;

/// So many blocks that are damaged within [`DAMAGES_WITHIN`] are too many: disks lose a bit now and then, a bad one goes on doing so.
const DAMAGES_MANY: usize = 3;
/// Time in which damages count together: within it everything is read once.
const DAMAGES_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

/// A block found in the index, ready to be read.
#[derive(Clone, Debug)]
pub struct Found {
    block: BlockId,
    place: Place,
    stored_length: u32,
    segment: Arc<Segment>,
}

impl Found {
    /// Length of the buffer that reading takes, bytes.
    pub fn span(&self) -> usize {
        to_usize(span(self.stored_length))
    }
}

#[derive(Debug)]
struct SegmentState {
    segment: Arc<Segment>,
    /// Where the next record goes; `None`: full.
    end: u64,
    writing: u32,
    live: u64,
    /// Bytes on the disk as [`State::used`] counts them.
    used: u64,
    /// Bytes on the disk that belong to no live record and can't be given back.
    dead: u64,
    unsynced: bool,
    sealed: bool,
    /// A failed write may have left a header without its block: never sealed, so that the next start looks closely.
    doubtful: bool,
}

/// Steps in which room is set aside for what the benefactor keeps beside the segments: one of so many parts of the donation, or so many bytes.
const BESIDE_PARTS: u64 = 64;
const BESIDE_STEP_BYTES: u64 = 1 << 20;

#[derive(Debug)]
struct State {
    index: Index,
    segments: BTreeMap<u32, SegmentState>,
    /// The highest number that a segment ever had. Its file stays while it is the highest, so that no number, and no life,
    /// comes twice.
    newest: u32,
    /// Whether this life has a segment of its own; the newest one then takes the records. A life begins with its first put:
    /// before that nothing is written, so that a store on a full disk opens and serves.
    begun: bool,
    /// Sum of what the segments use. A file system may take some more for its own map of a file with many holes.
    used: u64,
    /// What the benefactor keeps beside the segments, of the donation as well; `None`: nothing, ever.
    beside: Option<u64>,
    in_flight: u64,
    /// Bytes of blocks that were taken out of use and still take space.
    freeing: u64,
    relief: Relief,
    /// Space is being given back: to the owner's files, or since more is taken than is donated by now.
    gives: bool,
    /// When the last blocks were found damaged, as many as are too many.
    damages: VecDeque<SystemTime>,
    names_unsynced: bool,
    /// The segment whose name was looked at last.
    looked_at: u32,
    /// Why nothing more is stored, once the disk has failed.
    trouble: Option<Trouble>,
    /// The disk could not be asked for its space when it was asked last.
    is_silent: bool,
}

impl State {
    /// What is taken of the donation.
    fn taken(&self) -> u64 {
        self.used + self.beside.unwrap_or_default()
    }

    /// What is taken of it or set aside: what lies beside the segments grows in steps, so that it doesn't take what the manager has just
    /// granted to a writer.
    fn set_aside(&self, donation: &Donation) -> u64 {
        let step = (donation.donated_bytes / BESIDE_PARTS).clamp(1, BESIDE_STEP_BYTES);
        self.used + self.beside.map_or(0, |beside| (beside + 1).next_multiple_of(step))
    }

    /// The file system took back so many bytes of a segment.
    fn give_back(&mut self, segment: u32, freed: u64) {
        let Some(holder) = self.segments.get_mut(&segment) else { return };
        let counted = freed.min(holder.used);
        holder.used -= counted;
        self.used -= counted;
    }

    /// Bytes of blocks that are in use.
    fn live_bytes(&self) -> u64 {
        let other = |holder: &SegmentState| FIRST_RECORD + holder.dead;
        let other = self.segments.values().map(other).sum::<u64>() + self.freeing;
        self.used.saturating_sub(other)
    }

    /// Bytes that deletions leave dead where no holes can be made, and that come back once their segments are rewritten.
    fn returning_bytes(&self) -> u64 {
        let returns = |(number, holder): (&u32, &SegmentState)| {
            if *number != self.newest && compact::is_worth_it(holder, self.gives) { holder.dead } else { 0 }
        };
        self.segments.iter().map(returns).sum()
    }

    /// Looks at what the file system has free, and what is to be given back of blocks, bytes.
    fn look_at_floor(&mut self, donation: &Donation, available: u64) -> u64 {
        // What was taken out of use, and will be free, is given back already.
        self.gives = self.relief == Relief::Gives || self.taken() > donation.donated_bytes;
        let returns = self.freeing + if self.gives { self.returning_bytes() } else { 0 };
        let available = available.saturating_sub(self.in_flight).saturating_add(returns);
        let relief = match donation.relief(self.relief, available) {
            // Some of it may be free by now, and counted twice.
            _ if self.relief == Relief::Gives && returns > 0 => Relief::Gives,
            relief => relief,
        };
        let used = self.taken().saturating_sub(returns);
        let owed = donation.owed(relief, used, available).min(self.live_bytes());
        if std::mem::replace(&mut self.relief, relief) != relief {
            tracing::info!(?relief, available, floor = donation.floor_bytes, "the owner's floor");
        }
        owed
    }

    /// The disk was asked for its free space. One that can't be asked gets nothing; that is logged when it begins.
    fn note_asked(&mut self, available: &Result<u64, StoreError>) {
        if let Err(error) = available
            && !self.is_silent
        {
            tracing::error!(%error, "the disk can't be asked for its space: nothing is stored meanwhile");
        }
        self.is_silent = available.is_err();
    }

    /// What is known of a segment that is in use: something in it is live or being written.
    fn holder(&mut self, segment: u32) -> &mut SegmentState {
        let Some(holder) = self.segments.get_mut(&segment) else {
            unreachable!("segment {segment} is in use and not there");
        };
        holder
    }
}

/// A chunk store in one directory.
#[derive(Debug)]
pub struct Store {
    files: Arc<Files>,
    key: Key,
    donation: Donation,
    /// What gives way to everything else; `None`: nothing.
    near: Option<Near>,
    /// Free space that counts at most, bytes.
    free_bytes_max: AtomicU64,
    segment_bytes: u64,
    state: Mutex<State>,
    syncing: Mutex<()>,
    /// Held while space is given back, so that no byte is given back twice.
    freeing: Mutex<()>,
    /// Held while a segment is rewritten.
    compacts: Mutex<()>,
    /// No segment is rewritten any more, nor looked through for near copies.
    is_closing: AtomicBool,
}

impl Store {
    /// Stores a block. `payload` holds its stored bytes; its memory is used up to the next whole unit. Returns whether
    /// the block was there before. Not durable until [`Store::sync`].
    ///
    /// # Errors
    /// The bytes don't match their name, there is no room, or the disk refuses; then nothing is stored.
    pub fn put(&self, block: BlockId, encoding: Encoding, payload: &mut Buffer) -> Result<bool, StoreError> {
        if self.making_room(|| self.put_again(&block))? {
            return Ok(true);
        }
        verify(block, &encoding, payload)?;
        let stored_length = encoding.block_length();
        self.making_room(|| {
            let (record, segment) = self.reserve(block, encoding.clone(), stored_length, false)?;
            match write(&segment, &record, payload) {
                Ok(()) => self.finish(&record),
                Err(cause) => Err(self.give_up(&record, &segment, cause)),
            }
        })
    }

    /// Counts a put of a block that is here; false if it isn't. Its sequence is one of this life, which begins now at the
    /// latest: in a second life of the same number it would be given again.
    fn put_again(&self, block: &BlockId) -> Result<bool, StoreError> {
        let mut state = self.state.lock();
        if state.index.get(block).is_none() {
            return Ok(false);
        }
        if let Some(trouble) = state.trouble.as_ref().filter(|_| !state.index.is_durable(block)) {
            return Err(trouble.error()); // It may never become durable here.
        }
        if !state.begun {
            let donation = self.donation.during(state.relief);
            self.admit(&state, &donation, self.available()?, FIRST_RECORD)?;
            self.open_segment(&mut state)?;
        }
        Ok(state.index.put_again(block))
    }

    /// A place for a record in the active segment. `moves`: it comes from another segment, of which more becomes free.
    fn reserve(
        &self,
        block: BlockId,
        encoding: Encoding,
        stored_length: u32,
        moves: bool,
    ) -> Result<(Record, Arc<Segment>), StoreError> {
        let available = self.available()?;
        let needed = span(stored_length);
        if self.has_many_unsynced(needed) {
            self.sync_full_segments()?;
        }
        let mut state = self.state.lock();
        if let Some(trouble) = &state.trouble {
            return Err(trouble.error());
        }
        let with_head = needed + self.head_for(&state, needed);
        // While space is given back, the way there may lead below the floor where no holes can be made.
        let donation = match moves && state.gives {
            true => Donation { donated_bytes: u64::MAX, floor_bytes: 0 },
            false => self.donation.during(state.relief),
        };
        self.admit(&state, &donation, available, with_head)?;
        let place = self.place(&mut state, needed)?;
        let put_sequence = state.index.next_sequence();
        let record = Record { kind: Kind::Block, place, block, encoding, stored_length, put_sequence };
        let holder = state.holder(place.segment);
        holder.writing += 1;
        holder.used += needed;
        let segment = Arc::clone(&holder.segment);
        state.used += needed;
        state.in_flight += needed;
        Ok((record, segment))
    }

    /// Whether so many more bytes may be used now, what near copies use left to them.
    fn admit(&self, state: &State, donation: &Donation, available: u64, needed: u64) -> Result<(), NoRoom> {
        let (near, near_in_flight) = self.near_used();
        // What is being written is in `used`, and perhaps not yet missing from the file system's free space.
        let available = available.saturating_sub(state.in_flight + near_in_flight);
        donation.admit(state.set_aside(&self.donation) + near, available, needed)
    }

    /// Bytes that near copies take, and how many of these are being written.
    fn near_used(&self) -> (u64, u64) {
        self.near.as_ref().map_or((0, 0), Near::used)
    }

    /// Whether a record takes a new segment while as many wait for a sync as may.
    fn has_many_unsynced(&self, needed: u64) -> bool {
        let state = self.state.lock();
        let unsynced = || state.segments.values().filter(|holder| holder.unsynced).count();
        self.takes_new_segment(&state, needed) && unsynced() >= UNSYNCED_SEGMENTS_MAX
    }

    fn takes_new_segment(&self, state: &State, needed: u64) -> bool {
        let full =
            |holder: &SegmentState| holder.end + needed > self.segment_bytes.max(FIRST_RECORD + needed);
        !state.begun || state.segments.get(&state.newest).is_none_or(full)
    }

    /// What the head of a new segment takes, if a record of `needed` bytes begins one; else 0. Bytes.
    fn head_for(&self, state: &State, needed: u64) -> u64 {
        if self.takes_new_segment(state, needed) { FIRST_RECORD } else { 0 }
    }

    fn place(&self, state: &mut State, needed: u64) -> Result<Place, StoreError> {
        if self.takes_new_segment(state, needed) {
            self.open_segment(state)?;
        }
        let segment = state.newest;
        let end = &mut state.holder(segment).end;
        let unit = narrow(*end / disk::UNIT);
        *end += needed;
        Ok(Place { segment, unit })
    }

    /// Opens the segment that takes the next records. The first one of a life is made durable at once: its number is what
    /// sets the life apart from earlier ones.
    fn open_segment(&self, state: &mut State) -> Result<(), StoreError> {
        let number = state.newest + 1;
        let segment = match state.begun {
            true => Segment::create(&self.files, number, self.key),
            false => Segment::create_durably(&self.files, number, self.key),
        };
        let segment = segment
            .map_err(|cause| io_error("open a new segment in", self.files.path(), cause))
            .inspect_err(|error| {
                if !error.is_passing() {
                    state.fail(At::Write, error);
                }
            })?;
        state.segments.insert(number, SegmentState::empty(segment));
        (state.newest, state.begun) = (number, true);
        state.used += FIRST_RECORD;
        state.names_unsynced = true;
        Ok(())
    }

    /// A record's bytes are written: the block is here. Returns whether somebody else was faster.
    fn finish(&self, record: &Record) -> Result<bool, StoreError> {
        let new = {
            let mut state = self.state.lock();
            state.in_flight -= record.span();
            let lengths = (record.stored_length, record.encoding.plain_length);
            let new = state.index.insert(record.block, record.place, lengths);
            let holder = state.holder(record.place.segment);
            holder.writing -= 1;
            holder.unsynced = true;
            holder.live += u64::from(new);
            new
        };
        if !new {
            self.discard(&[(record.place, record.span())])?;
        }
        Ok(!new)
    }

    /// A write failed: its place is made unreadable, or its segment is looked at closely at the next start. A disk that
    /// fails otherwise than for want of space or descriptors gets nothing more.
    fn give_up(&self, record: &Record, segment: &Segment, cause: io::Error) -> StoreError {
        let error = io_error("write a block to", segment.path(), cause);
        let erased = segment.punch(record.place.offset(), record.span());
        let erased = matches!(erased, Ok(true));
        let mut state = self.state.lock();
        state.in_flight -= record.span();
        if erased {
            state.give_back(record.place.segment, record.span());
        }
        let holder = state.holder(record.place.segment);
        holder.writing -= 1;
        holder.doubtful |= !erased;
        holder.unsynced = true;
        if !error.is_passing() {
            state.fail(At::Write, &error);
        }
        error
    }

    /// Finds a block. The manager is told with the next heartbeat of one that isn't here.
    pub fn find(&self, block: BlockId) -> Result<Found, StoreError> {
        let mut state = self.state.lock();
        let Some(entry) = state.index.get(&block).copied() else {
            state.index.missed(block);
            return Err(StoreError::Missing(block));
        };
        let holder = state.segments.get(&entry.place.segment).ok_or(StoreError::Missing(block))?;
        let segment = Arc::clone(&holder.segment);
        Ok(Found { block, place: entry.place, stored_length: entry.stored_length, segment })
    }

    /// Reads a found block into `bytes`, [`Found::span`] long, and verifies it. Returns how it was made and where in `bytes`
    /// its stored bytes are.
    ///
    /// # Errors
    /// It was removed meanwhile; it can't be read now; or it is damaged, and then it is set aside and reported as such.
    pub fn read(&self, found: &Found, bytes: &mut [u8]) -> Result<(Encoding, Range<usize>), StoreError> {
        self.read_if(found, bytes, |record, stored| {
            is_of(record, found) && record.encoding.check_bytes(record.block.index, stored).is_ok()
        })
    }

    /// Reads as [`Self::read`] does, for one who verifies the stored bytes himself: here only the record is.
    ///
    /// # Errors
    /// Those of [`Self::read`], with damage to the record alone.
    pub fn read_to_verify(
        &self,
        found: &Found,
        bytes: &mut [u8],
    ) -> Result<(Encoding, Range<usize>), StoreError> {
        self.read_if(found, bytes, |record, _| is_of(record, found))
    }

    fn read_if(
        &self,
        found: &Found,
        bytes: &mut [u8],
        is_intact: impl Fn(&Record, &[u8]) -> bool,
    ) -> Result<(Encoding, Range<usize>), StoreError> {
        let start = payload_start(found.stored_length);
        let range = start..start + found.stored_length as usize;
        let mut look = |found: &Found| -> io::Result<Option<Encoding>> {
            let record = found.segment.read_record(found.place, bytes)?;
            let stored = bytes.get(range.clone());
            let intact = record.zip(stored).filter(|(record, stored)| is_intact(record, stored));
            Ok(intact.map(|(record, _)| record.encoding))
        };
        if let Ok(Some(encoding)) = look(found) {
            return Ok((encoding, range));
        }
        // It may have moved to another segment meanwhile. And a good block must not go because a disk, a cable or the system had
        // a bad moment: it is looked at twice.
        let found = &self.find_again(found)?;
        match look(found) {
            Ok(Some(encoding)) => Ok((encoding, range)),
            Ok(None) => Err(self.set_aside(found, "bytes don't match")),
            // Other copies are made at once. A disk that is gone takes no mark: what it has is found again after a restart.
            Err(error) if is_of_the_medium(&error) => Err(self.set_aside(found, &error.to_string())),
            Err(error) => {
                if error.kind() == io::ErrorKind::NotFound {
                    self.check_names(std::iter::once(found.place.segment))?;
                }
                Err(io_error("read", found.segment.path(), error))
            }
        }
    }

    /// Where a block is now that was found before.
    fn find_again(&self, found: &Found) -> Result<Found, StoreError> {
        let state = self.state.lock();
        let missing = || StoreError::Missing(found.block);
        let entry = state.index.get(&found.block).ok_or_else(missing)?;
        if entry.stored_length != found.stored_length {
            return Err(missing()); // It was removed and put again in another form: whoever asks again gets that.
        }
        let holder = state.segments.get(&entry.place.segment).ok_or_else(missing)?;
        Ok(Found { place: entry.place, segment: Arc::clone(&holder.segment), ..found.clone() })
    }

    /// Makes the writes to a segment durable that have ended. The system tells of a write that failed only once: whoever hears of
    /// it here, while removing a block perhaps, hears it for all who wait.
    fn sync_segment(&self, segment: &Segment) -> Result<(), StoreError> {
        let synced = segment.sync().map_err(|cause| io_error("make durable", segment.path(), cause));
        synced.inspect_err(|error| self.state.lock().fail(At::Sync, error))
    }

    fn set_aside(&self, found: &Found, cause: &str) -> StoreError {
        if !self.state.lock().index.set_aside(&found.block, found.place) {
            return StoreError::Missing(found.block);
        }
        let path = found.segment.path().display();
        tracing::error!(block = ?found.block, %path, %cause, "a block is damaged and set aside");
        let marked = found.segment.mark(found.place, Kind::SetAside);
        let marked = marked.map_err(|cause| io_error("mark a block in", found.segment.path(), cause));
        let synced = self.sync_segment(&found.segment);
        if let Err(error) = marked.and(synced) {
            tracing::error!(%path, %error, "the damaged block can't be marked; it will be found again after a restart");
        }
        let mut state = self.state.lock();
        let holder = state.holder(found.place.segment);
        holder.live -= 1;
        holder.dead += span(found.stored_length);
        state.damages.push_back(SystemTime::now());
        if state.damages.len() > DAMAGES_MANY {
            state.damages.pop_front();
        }
        StoreError::Damaged(found.block)
    }

    /// Those of `blocks` that are here count as put now, so that no deletion that was ordered before takes them. Returns the
    /// put sequence of that, and whether all of them are durable.
    pub fn touch(&self, blocks: &[BlockId]) -> (u64, bool) {
        let mut state = self.state.lock();
        let (sequence, all_durable) = state.index.touch(blocks);
        // After a failed sync the files may be gone: whoever asks looks.
        let is_sound = state.trouble.as_ref().is_none_or(|trouble| trouble.at != At::Sync);
        (sequence, all_durable && is_sound)
    }

    /// Those of `blocks` that are here and durable.
    pub fn durable(&self, blocks: &[BlockId]) -> Vec<StoredBlock> {
        self.state.lock().index.durable(blocks)
    }

    /// The sequence of the last put.
    pub fn put_sequence(&self) -> u64 {
        self.state.lock().index.put_sequence()
    }

    /// Counts what the benefactor keeps beside the segments.
    pub fn keeps_beside(&self, bytes: u64) {
        self.state.lock().beside = Some(bytes);
    }

    /// Whatever the file system says, it has no more than so many bytes free. For a life whose disks are of its own making.
    pub fn limit_free_bytes(&self, bytes: u64) {
        self.free_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Whether so many blocks were found damaged within a day, each at a second look as well, that more must be expected.
    pub fn is_often_damaged(&self) -> bool {
        let state = self.state.lock();
        // A calendar that was set back since says nothing against it.
        let is_recent = |first: &SystemTime| first.elapsed().map_or(true, |past| past < DAMAGES_WITHIN);
        state.damages.len() >= DAMAGES_MANY && state.damages.front().is_some_and(is_recent)
    }

    /// When the last blocks were found damaged that count together.
    pub(crate) fn damages(&self) -> Vec<SystemTime> {
        self.state.lock().damages.iter().copied().collect()
    }

    /// Blocks were found damaged at these times before the store was opened.
    pub(crate) fn remember_damages(&self, times: &[SystemTime]) {
        let state = &mut *self.state.lock();
        times.iter().rev().for_each(|time| state.damages.push_front(*time));
        let beyond = state.damages.len().saturating_sub(DAMAGES_MANY);
        drop(state.damages.drain(..beyond));
    }

    /// Those that were found damaged count no more.
    pub fn forget_damages(&self) {
        self.state.lock().damages.clear();
    }

    /// Whether space is being given back.
    pub fn gives_back(&self) -> bool {
        self.state.lock().gives
    }

    /// Space and number of blocks; requests are the server's to count.
    pub fn load(&self) -> BenefactorLoad {
        let available = self.available();
        let mut state = self.state.lock();
        state.note_asked(&available);
        // What near copies take is free for all else.
        let (near_bytes, near_in_flight) = self.near_used();
        let near = near_bytes.saturating_sub(near_in_flight);
        let available = available.map(|available| available.saturating_add(near));
        let owed_bytes = match &available {
            Ok(available) => state.look_at_floor(&self.donation, *available),
            Err(_) => 0,
        };
        let free_bytes = match &available {
            Ok(available) if state.trouble.is_none() && owed_bytes == 0 => self
                .donation
                .during(state.relief)
                .free(state.set_aside(&self.donation), available.saturating_sub(state.in_flight)),
            _ => 0,
        };
        BenefactorLoad {
            donated_bytes: self.donation.donated_bytes,
            used_bytes: state.taken(),
            free_bytes,
            blocks: state.index.len(),
            requests: 0,
            disk_failed: state.trouble.is_some() || available.is_err(),
            wish: OwnerWish::Serve,
            owed_bytes,
            near_bytes,
            ..BenefactorLoad::default()
        }
    }

    /// The error of the disk, if it counts as failed, for people: at most [`CAUSE_BYTES_MAX`] bytes.
    pub fn disk_failure(&self) -> Option<String> {
        let trouble = self.state.lock().trouble.as_ref().map(|trouble| trouble.cause.clone());
        let cause = trouble.or_else(|| self.available().err().map(|error| error.to_string()))?;
        // The system's error stands behind a path, which may be long.
        let from = cause.ceil_char_boundary(cause.len().saturating_sub(CAUSE_BYTES_MAX));
        Some(cause.get(from..).unwrap_or_default().to_owned())
    }

    /// What the store itself does at its disk.
    pub fn own_work(&self) -> &OwnWork {
        self.files.work()
    }

    /// The last put sequence, and the changes since the last call; `None`: only an inventory tells them.
    pub fn take_changes(&self) -> (u64, Option<Changes>) {
        let mut state = self.state.lock();
        (state.index.put_sequence(), state.index.take_changes())
    }

    /// Takes changes back that didn't reach the manager.
    pub fn return_changes(&self, changes: Changes) {
        self.state.lock().index.return_changes(changes);
    }

    /// The last put sequence, and all durable blocks; what changes later comes with [`Store::take_changes`].
    pub fn inventory(&self) -> (u64, Vec<StoredBlock>) {
        let mut state = self.state.lock();
        (state.index.put_sequence(), state.index.inventory())
    }

    fn available(&self) -> Result<u64, StoreError> {
        let directory = self.files.path();
        let available = disk::available(directory).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => StoreError::Gone(directory.to_owned()),
            _ => io_error("ask for the free space of", directory, cause),
        })?;
        Ok(available.min(self.free_bytes_max.load(Ordering::Relaxed)))
    }

    fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.state.lock().segments.get(&number).map(|holder| Arc::clone(&holder.segment))
    }
}

impl SegmentState {
    fn empty(segment: Segment) -> Self {
        Self {
            segment: Arc::new(segment),
            end: FIRST_RECORD,
            writing: 0,
            live: 0,
            used: FIRST_RECORD,
            dead: 0,
            unsynced: true,
            sealed: false,
            doubtful: false,
        }
    }
}

/// Whether `payload` is the block that it is said to be.
fn verify(block: BlockId, encoding: &Encoding, payload: &[u8]) -> Result<(), StoreError> {
    genuine(&block, encoding, payload).map_err(|bad| StoreError::Mismatch { block, why: bad.to_string() })
}

/// Whether `record` is that of the block that was looked for.
fn is_of(record: &Record, found: &Found) -> bool {
    record.kind == Kind::Block && record.block == found.block && record.stored_length == found.stored_length
}

fn write(segment: &Segment, record: &Record, payload: &mut Buffer) -> io::Result<()> {
    let length = payload.len();
    if payload_start(record.stored_length) == HEADER_BYTES {
        return segment.write_record(record, payload, &[]);
    }
    if !payload.set_len(to_usize(disk::padded(length as u64))) {
        return Err(io::Error::other("the buffer has no room for padding"));
    }
    part_mut(payload, length..).fill(0);
    let written = segment.write_record(record, &[], payload);
    payload.set_len(length);
    written
}
