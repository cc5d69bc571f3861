//! Near copies: chunks that a job on this machine wrote, kept here as well so that it reads them back without the network. A cache.
//!
//! Nothing that is promised rests on them: they are in no inventory, no receipt and no count, nothing makes them durable, and whoever
//! loses them loses speed. They lie in segments of their own, in the order in which they came. When room is needed the oldest segment
//! goes, whole: for newer near copies, for blocks of the pool, or for the owner's files ([`Store::making_room`], [`Store::tend_near`]).
//!
//! They take what the donation and the disk have left, and no more than a limit. What they take counts as free for everybody else.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::exact::{narrow, to_usize};
use stdchk_model::{BlockId, ChunkId, Encoding};
use stdchk_net::Buffer;
use stdchk_net::own::Folder;

use super::disk::UNIT;
use super::files::Files;
use super::record::{Key, Kind, Place, Record, payload_start, span};
use super::recover::{list, random_key};
use super::segment::{FIRST_RECORD, Segment};
use super::space::{Donation, NoRoom};
use super::work::OwnWork;
use super::{Store, StoreError, io_error, verify, write};

/// Length at which a segment is full, bytes: what goes at once is little of all, and unlinked in a moment.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Where that is much of all, a segment is one part of so many of it, and holds a chunk at least.
const SEGMENTS_MIN: u64 = 16;
const SEGMENT_BYTES_MIN: u64 = 2 << 20;

/// How often, and with what pause, it is looked whether what near copies took is free.
const LOOKS_MAX: u32 = 10;
const LOOK: Duration = Duration::from_millis(20);

/// Where a near copy is.
#[derive(Clone, Copy, Debug)]
struct Entry {
    place: Place,
    stored_length: u32,
}

/// A segment, and which chunks were written into it.
#[derive(Debug)]
struct Held {
    segment: Arc<Segment>,
    bytes: u64,
    chunks: Vec<ChunkId>,
}

#[derive(Debug, Default)]
struct State {
    /// `None`: there is no folder yet.
    files: Option<Arc<Files>>,
    chunks: HashMap<ChunkId, Entry>,
    segments: BTreeMap<u32, Held>,
    /// Segments of earlier lives that nobody has looked into yet.
    unknown: Vec<u32>,
    /// The last number that a segment had.
    newest: u32,
    /// The segment that takes the next records, and where.
    active: Option<(u32, u64)>,
    /// What the segments take, what is being written included.
    used_bytes: u64,
    writing_bytes: u64,
    /// The disk refused something else than space: nothing more is kept in this life.
    has_failed: bool,
}

/// The near copies of a benefactor.
#[derive(Debug)]
pub(super) struct Near {
    folder: PathBuf,
    limit_bytes: u64,
    segment_bytes: u64,
    key: Key,
    work: Arc<OwnWork>,
    state: Mutex<State>,
}

/// A near copy that was found.
#[derive(Clone, Debug)]
pub struct NearFound {
    chunk: ChunkId,
    entry: Entry,
    segment: Arc<Segment>,
}

impl NearFound {
    /// Length of the buffer that reading takes, bytes.
    pub fn span(&self) -> usize {
        to_usize(span(self.entry.stored_length))
    }
}

impl State {
    /// Takes a segment off the books.
    fn forget(&mut self, number: u32) -> Option<Arc<Segment>> {
        let Held { segment, bytes, chunks } = self.segments.remove(&number)?;
        for chunk in chunks {
            if self.chunks.get(&chunk).is_some_and(|entry| entry.place.segment == number) {
                self.chunks.remove(&chunk);
            }
        }
        self.used_bytes -= bytes;
        self.active = self.active.filter(|(active, _)| *active != number);
        Some(segment)
    }

    /// Takes a segment off the books, and its file off the disk.
    fn unlink(&mut self, number: u32) {
        let Some(segment) = self.forget(number) else { return };
        match segment.unlink() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %segment.path().display(), %error, "near copies can't be removed");
            }
            _ => {}
        }
    }
}

impl Near {
    /// The near copies in `folder`, which needs not be there; at most `limit_bytes` of them stay. What is in them isn't known before
    /// [`Near::learn`], and may go before.
    fn open(folder: PathBuf, limit_bytes: u64, work: Arc<OwnWork>) -> Result<Self, StoreError> {
        let mut state = State::default();
        let key = random_key(&folder)?;
        if folder.is_dir() {
            let refused = |cause| io_error("open", &folder, cause);
            let files = Arc::new(Files::open(&folder, &work).map_err(refused)?);
            for number in list(&folder)? {
                let segment = Arc::new(Segment::of(&files, number, key));
                let bytes = segment.allocated().map_err(refused)?;
                state.used_bytes += bytes;
                state.segments.insert(number, Held { segment, bytes, chunks: Vec::new() });
                state.unknown.push(number);
                state.newest = number;
            }
            state.files = Some(files);
        }
        let segment_bytes = (limit_bytes / SEGMENTS_MIN).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES);
        let near = Self { folder, limit_bytes, segment_bytes, key, work, state: Mutex::new(state) };
        while near.used().0 > limit_bytes && near.drop_oldest() {}
        Ok(near)
    }

    /// Bytes that they take, and how many of these are being written and perhaps not on the disk yet.
    pub(super) fn used(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.used_bytes, state.writing_bytes)
    }

    /// Removes the oldest segment, with what is being written into it; false if there is none.
    pub(super) fn drop_oldest(&self) -> bool {
        let mut state = self.state.lock();
        let Some(oldest) = state.segments.first_key_value().map(|(number, _)| *number) else { return false };
        state.unlink(oldest);
        true
    }

    /// Removes all.
    pub(super) fn clear(&self) {
        while self.drop_oldest() {}
    }

    /// Forgets all if somebody has taken the folder away.
    fn look(&self) {
        let mut state = self.state.lock();
        if state.files.as_ref().is_some_and(|files| files.is_elsewhere()) {
            tracing::warn!(path = %self.folder.display(), "the folder of near copies is gone: they are made anew");
            let (newest, writing_bytes) = (state.newest, state.writing_bytes);
            *state = State { newest, writing_bytes, ..State::default() };
        }
    }

    /// Looks which chunks earlier lives have left, the newest first, until it `ends`. Their bytes are compared with their names when they
    /// are read.
    fn learn(&self, ends: &AtomicBool) {
        while !ends.load(Ordering::Relaxed) {
            let (number, next) = {
                let mut state = self.state.lock();
                let Some(number) = state.unknown.pop() else { return };
                (number, state.files.clone().filter(|_| state.segments.contains_key(&number)))
            };
            let Some(files) = next else { continue }; // It went meanwhile.
            if let Err(error) = self.learn_segment(&files, number) {
                tracing::warn!(path = %files.path_of(number).display(), %error, "near copies can't be read and go");
                self.state.lock().unlink(number);
            }
        }
    }

    fn learn_segment(&self, files: &Arc<Files>, number: u32) -> io::Result<()> {
        let head = Segment::read_head(files, number)?;
        let head = head.ok_or_else(|| io::Error::other("its head is damaged"))?;
        let segment = Segment::of(files, number, head.key);
        let (mut found, mut at) = (Vec::new(), FIRST_RECORD);
        while let Some(record) = segment.next_record(at)? {
            at = record.place.offset() + record.span();
            if record.kind == Kind::Block && record.encoding.code.is_copy() {
                let entry = Entry { place: record.place, stored_length: record.stored_length };
                found.push((record.block.chunk, entry));
            }
        }
        let state = &mut *self.state.lock();
        let Some(held) = state.segments.get_mut(&number) else { return Ok(()) };
        held.segment = Arc::new(segment);
        for (chunk, entry) in found {
            held.chunks.push(chunk);
            state.chunks.entry(chunk).or_insert(entry);
        }
        Ok(())
    }

    fn has(&self, chunk: &ChunkId) -> bool {
        self.state.lock().chunks.contains_key(chunk)
    }

    fn find(&self, chunk: ChunkId) -> Option<NearFound> {
        let state = self.state.lock();
        let entry = *state.chunks.get(&chunk)?;
        let segment = Arc::clone(&state.segments.get(&entry.place.segment)?.segment);
        Some(NearFound { chunk, entry, segment })
    }

    /// A place for a copy, if `admit` lets so many more bytes be used than are, the first ones of a new segment included.
    fn reserve(
        &self,
        block: BlockId,
        encoding: &Encoding,
        admit: impl FnOnce((u64, u64), u64) -> Result<(), NoRoom>,
    ) -> Result<(Record, Arc<Segment>), StoreError> {
        let mut state = self.state.lock();
        if state.has_failed {
            return Err(StoreError::Poisoned("a write of near copies failed".to_owned()));
        }
        let stored_length = encoding.block_length();
        let needed = span(stored_length);
        let active = state.active.filter(|(_, end)| end + needed <= self.segment_bytes);
        let with_head = needed + if active.is_some() { 0 } else { FIRST_RECORD };
        let used = state.used_bytes;
        if self.limit_bytes.saturating_sub(used) < with_head {
            return Err(NoRoom::Donation { used, donated: self.limit_bytes, needed }.into());
        }
        admit((used, state.writing_bytes), with_head)?;
        let (number, end) = match active {
            Some(active) => active,
            None => self.open_segment(&mut state)?,
        };
        let Some(held) = state.segments.get_mut(&number) else {
            unreachable!("the segment that takes records is there")
        };
        held.bytes += needed;
        let segment = Arc::clone(&held.segment);
        state.used_bytes += needed;
        state.writing_bytes += needed;
        state.active = Some((number, end + needed));
        let place = Place { segment: number, unit: narrow(end / UNIT) };
        let encoding = encoding.clone();
        // No order of puts counts here.
        Ok((Record { kind: Kind::Block, place, block, encoding, stored_length, put_sequence: 0 }, segment))
    }

    fn open_segment(&self, state: &mut State) -> Result<(u32, u64), StoreError> {
        let refused = |cause| io_error("keep near copies in", &self.folder, cause);
        let files = match &state.files {
            Some(files) => Arc::clone(files),
            None => {
                Folder::make(&self.folder).map_err(refused)?;
                Arc::new(Files::open(&self.folder, &self.work).map_err(refused)?)
            }
        };
        state.files = Some(Arc::clone(&files));
        let number = state.newest + 1;
        let segment = Segment::create(&files, number, self.key).map_err(refused)?;
        segment.leave_unsynced();
        let held = Held { segment: Arc::new(segment), bytes: FIRST_RECORD, chunks: Vec::new() };
        state.segments.insert(number, held);
        state.newest = number;
        state.used_bytes += FIRST_RECORD;
        Ok((number, FIRST_RECORD))
    }

    /// The writing of a copy has ended. If its segment has gone meanwhile, so has the copy, and how the writing ended says nothing.
    fn finish(&self, record: &Record, written: Result<(), StoreError>) -> Result<(), StoreError> {
        let state = &mut *self.state.lock();
        state.writing_bytes -= record.span();
        let Record { place, stored_length, block, .. } = *record;
        let Some(held) = state.segments.get_mut(&place.segment) else { return Ok(()) };
        state.has_failed |= written.as_ref().is_err_and(|error| !error.is_passing());
        written?;
        held.chunks.push(block.chunk);
        state.chunks.insert(block.chunk, Entry { place, stored_length });
        Ok(())
    }

    /// Forgets a copy that can't be read, or isn't what its name says.
    fn set_aside(&self, found: &NearFound, cause: &str) {
        let path = found.segment.path().display();
        tracing::warn!(chunk = %found.chunk, %path, %cause, "a near copy is lost");
        let mut state = self.state.lock();
        if state.chunks.get(&found.chunk).is_some_and(|entry| entry.place == found.entry.place) {
            state.chunks.remove(&found.chunk);
        }
        drop(state);
        // One that can't be marked is found again after a restart, and lost again.
        let _ = found.segment.mark(found.entry.place, Kind::SetAside);
        found.segment.leave_unsynced();
    }
}

/// Whether a folder, there or not yet, is on the disk of another one.
fn on_disk_of(other: &Path, folder: &Path) -> Result<(), StoreError> {
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    let own = device(folder).or_else(|error| match (error.kind(), folder.parent()) {
        (io::ErrorKind::NotFound, Some(parent)) => device(parent),
        _ => Err(error),
    });
    match own.and_then(|own| Ok(own == device(other)?)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io_error(
            "keep near copies in",
            folder,
            io::Error::other("it is on another disk than the blocks"),
        )),
        Err(cause) => Err(io_error("look for", folder, cause)),
    }
}

impl Store {
    /// Keeps near copies as well, in `folder`, of `limit_bytes` at most. A folder that can't be looked into, or is on another disk, which
    /// has a floor of its own, is no reason not to be a store: there are none then.
    #[must_use]
    pub fn with_near(self, folder: &Path, limit_bytes: u64) -> Self {
        let near = on_disk_of(self.files.path(), folder)
            .and_then(|()| Near::open(folder.to_owned(), limit_bytes, Arc::clone(self.files.work())));
        let near = near.inspect_err(|error| tracing::warn!(%error, "no near copies are kept")).ok();
        Self { near, ..self }
    }

    /// Looks which near copies earlier lives have left: one read for each, until the store closes. Until then they are missing.
    pub fn learn_near(&self) {
        self.near.iter().for_each(|near| near.learn(&self.is_closing));
    }

    /// Keeps a near copy of a chunk; whether it was there. `payload` as in [`Store::put`]. Older ones give way.
    ///
    /// # Errors
    /// The bytes are no copy of the chunk, there is no room, or the disk refuses; then nothing is kept.
    pub fn put_near(
        &self,
        chunk: ChunkId,
        encoding: &Encoding,
        payload: &mut Buffer,
    ) -> Result<bool, StoreError> {
        if self.has_near(&chunk) {
            return Ok(true);
        }
        let block = encoding.block(chunk, 0);
        if !encoding.code.is_copy() {
            return Err(StoreError::Mismatch { block, why: "it is a fragment, and no copy".to_owned() });
        }
        verify(block, encoding, payload)?;
        let Some(near) = &self.near else { return Err(StoreError::Missing(block)) };
        let (record, segment) = loop {
            match self.reserve_near(near, block, encoding) {
                Err(StoreError::NoRoom(_))
                    if self.has_room_in_place_of(near, encoding) && near.drop_oldest() => {}
                reserved => break reserved?,
            }
        };
        let written = write(&segment, &record, payload);
        segment.leave_unsynced();
        let written = written.map_err(|cause| io_error("write a near copy to", segment.path(), cause));
        near.finish(&record, written).map(|()| false)
    }

    /// They stay some way off the owner's floor, so that the next file of the owner isn't the next reason to let them go.
    fn reserve_near(
        &self,
        near: &Near,
        block: BlockId,
        encoding: &Encoding,
    ) -> Result<(Record, Arc<Segment>), StoreError> {
        let available = self.available()?;
        let state = self.state.lock();
        if let Some(trouble) = &state.trouble {
            return Err(trouble.error());
        }
        let donation = self.donation_for_near(&state);
        let (taken, in_flight) = (state.set_aside(&self.donation), state.in_flight);
        near.reserve(block, encoding, |(used, writing), needed| {
            donation.admit(taken + used, available.saturating_sub(in_flight + writing), needed)
        })
    }

    /// Whether a copy could be kept if all others went: else none has to go for it.
    fn has_room_in_place_of(&self, near: &Near, encoding: &Encoding) -> bool {
        let needed = span(encoding.block_length()) + FIRST_RECORD;
        let Ok(available) = self.available() else { return false };
        let state = self.state.lock();
        let (used, writing) = near.used();
        let available = (available + used.saturating_sub(writing)).saturating_sub(state.in_flight);
        let admitted =
            self.donation_for_near(&state).admit(state.set_aside(&self.donation), available, needed);
        admitted.is_ok() && needed <= near.limit_bytes
    }

    fn donation_for_near(&self, state: &super::State) -> Donation {
        self.donation.during(state.relief).with_reserve()
    }

    /// Whether there is a near copy of a chunk.
    pub fn has_near(&self, chunk: &ChunkId) -> bool {
        self.near.as_ref().is_some_and(|near| near.has(chunk))
    }

    /// Finds a near copy.
    ///
    /// # Errors
    /// There is none.
    pub fn find_near(&self, chunk: ChunkId) -> Result<NearFound, StoreError> {
        let found = self.near.as_ref().and_then(|near| near.find(chunk));
        found.ok_or_else(|| StoreError::Missing(BlockId::plain(chunk)))
    }

    /// Reads a near copy into `bytes`, as long as its span, and compares it with its name; how it was made, and where its stored bytes are.
    ///
    /// # Errors
    /// It can't be read or doesn't match: it is forgotten. That says nothing of the blocks that are stored here.
    pub fn read_near(
        &self,
        found: &NearFound,
        bytes: &mut [u8],
    ) -> Result<(Encoding, Range<usize>), StoreError> {
        let start = payload_start(found.entry.stored_length);
        let range = start..start + found.entry.stored_length as usize;
        let read = found.segment.read_record(found.entry.place, bytes);
        let is_intact = |record: &Record| {
            let stored = bytes.get(range.clone()).unwrap_or_default();
            record.block.chunk == found.chunk
                && record.encoding.check(&record.block).is_ok()
                && record.encoding.check_bytes(record.block.index, stored).is_ok()
        };
        let cause = match read {
            Ok(Some(record)) if is_intact(&record) => return Ok((record.encoding, range)),
            Ok(_) => "its bytes don't match".to_owned(),
            Err(error) => error.to_string(),
        };
        self.near.iter().for_each(|near| near.set_aside(found, &cause));
        Err(StoreError::Missing(BlockId::plain(found.chunk)))
    }

    /// Does something that takes space; while there is none, near copies go and it is done again. What they took may be free a moment
    /// later: while one of them is still read, or when the file system gets to it.
    pub(super) fn making_room<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (mut went, mut looks) = (false, 0);
        loop {
            match attempt() {
                Err(error) if error.is_for_want_of_room() => {
                    if self.near.as_ref().is_some_and(Near::drop_oldest) {
                        went = true;
                    } else if went && looks < LOOKS_MAX {
                        looks += 1;
                        std::thread::sleep(LOOK);
                    } else {
                        return Err(error);
                    }
                }
                done => return done,
            }
        }
    }

    /// Lets near copies go where the owner's files, or what else is kept of the donation, have come near; all of them unless they are
    /// `kept`. To be called now and then.
    pub fn tend_near(&self, kept: bool) {
        let Some(near) = &self.near else { return };
        near.look();
        if !kept {
            return near.clear();
        }
        while self.are_near_copies_in_the_way(near) && near.drop_oldest() {}
    }

    fn are_near_copies_in_the_way(&self, near: &Near) -> bool {
        let Ok(available) = self.available() else { return false };
        let state = self.state.lock();
        let (used, writing) = near.used();
        let available = available.saturating_sub(state.in_flight + writing);
        self.donation.with_reserve().is_exceeded(state.set_aside(&self.donation) + used, available)
    }
}
