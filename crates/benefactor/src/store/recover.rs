//! Opening a store: the index is rebuilt from the records' headers.
//!
//! Sealed segments are believed by their headers. Every other one was perhaps being written when the last life ended:
//! each of its blocks is read and compared with its name, what doesn't match is a torn write and is marked as removed,
//! and the segment is sealed. A life appends to segments of its own only, never behind a torn tail.
//!
//! A disk that takes nothing, because it is full or read-only, keeps no store from opening: what could not be marked or
//! sealed is looked through again at the next start.
//!
//! A start takes memory for the index and the records of some segments, and reads one unit for each record in sealed segments.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use stdchk_model::exact::{part, to_usize};
use stdchk_model::limits::BLOCK_BYTES_MAX;
use stdchk_net::BufferPool;
use stdchk_net::own::Folder;

use super::disk::UNIT;
use super::error::{is_of_the_medium, takes_nothing};
use super::files::{Files, number_of};
use super::index::Index;
use super::record::{Key, Kind, Place, Record, payload_start, span};
use super::segment::{FIRST_RECORD, Head, Segment};
use super::{Donation, Relief, SegmentState, State, Store, StoreError, io_error};

/// Segments read at the same time: enough to keep a disk busy with reads of single headers.
const READERS: usize = 8;

/// What was found when a store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// Blocks that are here.
    pub blocks: u64,
    /// Records dropped because their bytes don't match: writes that a crash cut short.
    pub torn: u64,
    /// Segments whose blocks were all read.
    pub verified_segments: u64,
}

/// What was found in all segments together.
#[derive(Default)]
struct Found {
    /// Records of blocks that were put again later, with their spans.
    outdated: Vec<(Place, u64)>,
    /// Segments whose heads are damaged.
    headless: Vec<u32>,
    recovered: Recovered,
}

/// A segment's records.
struct Scanned {
    segment: Segment,
    records: Vec<Record>,
    torn: u64,
    end: u64,
    allocated: u64,
    verified: bool,
    /// The disk took no marks: the segment is not sealed in this life.
    doubtful: bool,
    headless: bool,
}

impl Store {
    /// Opens the store in `directory`, or makes one there. Segments are full at `segment_bytes`.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn open(
        directory: &Path,
        donation: Donation,
        segment_bytes: u64,
    ) -> Result<(Self, Recovered), StoreError> {
        Folder::make(directory).map_err(|cause| io_error("make", directory, cause))?;
        let files =
            Files::open(directory, &Arc::default()).map_err(|cause| io_error("open", directory, cause))?;
        let numbers = list(directory)?;
        let newest = numbers.last().copied().unwrap_or(0);
        let store = Self {
            key: find_key(&files, &numbers)?,
            files: Arc::new(files),
            donation,
            near: None,
            free_bytes_max: AtomicU64::new(u64::MAX),
            segment_bytes,
            state: Mutex::new(empty_state(newest)),
            syncing: Mutex::new(()),
            freeing: Mutex::new(()),
            compacts: Mutex::new(()),
            is_closing: AtomicBool::new(false),
        };
        let recovered = store.recover(&numbers)?;
        Ok((store, recovered))
    }

    /// Scans all segments, several at a time, and removes what is outdated.
    fn recover(&self, numbers: &[u32]) -> Result<Recovered, StoreError> {
        let found = Mutex::new(Found::default());
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                let refused = |cause| io_error("read", &self.files.path_of(*number), cause);
                let head = Segment::read_head(&self.files, *number).map_err(refused)?;
                let segment = Segment::of(&self.files, *number, self.key);
                let scanned = scan(segment, head).map_err(refused)?;
                self.take_up(scanned, &mut found.lock());
            }
            Ok(())
        };
        thread::scope(|scope| {
            let readers: Vec<_> = (0..READERS.min(numbers.len())).map(|_| scope.spawn(work)).collect();
            readers.into_iter().try_for_each(|reader| {
                reader.join().unwrap_or_else(|_| {
                    Err(StoreError::Poisoned("a thread that read segments ended early".to_owned()))
                })
            })
        })?;
        let Found { outdated, headless, mut recovered } = found.into_inner();
        recovered.blocks = self.state.lock().index.len();
        unless_disk_takes_nothing(self.discard(&outdated))?;
        for number in numbers.iter().filter(|number| !headless.contains(number)) {
            unless_disk_takes_nothing(self.unlink_dead(*number).map(drop))?;
        }
        Ok(recovered)
    }

    /// Puts the records of a segment into the index; of each block the last one holds.
    fn take_up(&self, scanned: Scanned, found: &mut Found) {
        let mut state = self.state.lock();
        let Scanned { segment, records, torn, end, allocated, verified, doubtful, headless } = scanned;
        found.recovered.torn += torn;
        found.recovered.verified_segments += u64::from(verified);
        found.headless.extend(headless.then_some(segment.number));
        state.used += allocated;
        let holder = SegmentState {
            end,
            used: allocated,
            dead: allocated.saturating_sub(FIRST_RECORD),
            unsynced: false,
            sealed: !doubtful,
            doubtful,
            ..SegmentState::empty(segment)
        };
        state.segments.insert(holder.segment.number, holder);
        for record in records {
            let loser = state.index.restore(&record);
            state.count_live(record.place, record.stored_length, true);
            if let Some((place, stored_length)) = loser {
                state.count_live(place, stored_length, false);
                found.outdated.push((place, span(stored_length)));
            }
        }
    }
}

impl State {
    fn count_live(&mut self, place: Place, stored_length: u32, is_live: bool) {
        let holder = self.holder(place.segment);
        if is_live {
            holder.live += 1;
            // A file system that compresses allocates less than its records span.
            holder.dead = holder.dead.saturating_sub(span(stored_length));
        } else {
            holder.live -= 1;
            holder.dead += span(stored_length);
        }
    }
}

/// What a disk that takes nothing leaves undone: it is done at a later start.
fn unless_disk_takes_nothing(done: Result<(), StoreError>) -> Result<(), StoreError> {
    match done {
        Err(StoreError::Io { action, path, cause }) if takes_nothing(&cause) => {
            tracing::warn!(path = %path.display(), %cause, "can't {action}: this is left to the next start");
            Ok(())
        }
        done => done,
    }
}

fn empty_state(newest: u32) -> State {
    State {
        index: Index::new(newest + 1),
        segments: BTreeMap::new(),
        newest,
        begun: false,
        used: 0,
        beside: None,
        in_flight: 0,
        freeing: 0,
        relief: Relief::None,
        gives: false,
        damages: VecDeque::new(),
        names_unsynced: false,
        looked_at: 0,
        trouble: None,
        is_silent: false,
    }
}

pub(super) fn random_key(directory: &Path) -> Result<Key, StoreError> {
    let mut key = Key::default();
    getrandom::fill(&mut key).map_err(|error| {
        io_error("get random bytes for", directory, std::io::Error::other(error.to_string()))
    })?;
    Ok(key)
}

/// Numbers of the segments in a directory, ascending.
pub(super) fn list(directory: &Path) -> Result<Vec<u32>, StoreError> {
    let mut numbers = Vec::new();
    let entries = fs::read_dir(directory).map_err(|cause| io_error("list", directory, cause))?;
    for entry in entries {
        let name = entry.map_err(|cause| io_error("list", directory, cause))?.file_name();
        match name.to_str().and_then(number_of) {
            Some(number) => numbers.push(number),
            None => {
                tracing::warn!(file = %directory.join(name).display(), "a file that is no segment is left alone");
            }
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// The key of the store, which all its segments have; a new one if no head can be believed.
fn find_key(files: &Files, numbers: &[u32]) -> Result<Key, StoreError> {
    for number in numbers {
        let head = Segment::read_head(files, *number);
        if let Some(head) = head.map_err(|cause| io_error("open", &files.path_of(*number), cause))? {
            return Ok(head.key);
        }
    }
    random_key(files.path())
}

fn scan(segment: Segment, head: Option<Head>) -> std::io::Result<Scanned> {
    let sealed = head.is_some_and(|head| head.sealed);
    let buffers = BufferPool::new(2 * BLOCK_BYTES_MAX);
    let (mut records, mut removed, mut torn, mut end) = (Vec::new(), Vec::new(), Vec::new(), FIRST_RECORD);
    while let Some(record) = segment.next_record(end)? {
        let intact = sealed || record.kind != Kind::Block || is_whole(&segment, &record, &buffers)?;
        // Behind a torn record the next one may begin anywhere within its span.
        end = record.place.offset() + if intact { record.span() } else { UNIT };
        if !intact {
            torn.push(record);
        } else if record.kind == Kind::Removed {
            removed.push(record);
        } else if record.kind == Kind::Block {
            records.push(record);
        }
    }
    if !sealed || !removed.is_empty() {
        // What the last life wrote counts as durable from here on.
        segment.sync_earlier_writes()?;
    }
    let doubtful = match settle(&segment, sealed, &torn, &removed) {
        Err(error) if takes_nothing(&error) => {
            let path = segment.path().display();
            tracing::warn!(%path, %error, "the disk takes no marks: the segment is looked through at the next start");
            !sealed
        }
        settled => settled.map(|()| false)?,
    };
    let allocated = segment.allocated()?;
    let headless = head.is_none() && allocated > FIRST_RECORD;
    if headless {
        tracing::error!(path = %segment.path().display(), records = records.len(), "a segment's head is damaged");
    }
    let torn = torn.len() as u64;
    Ok(Scanned { segment, records, torn, end, allocated, verified: !sealed, doubtful, headless })
}

/// Marks what is torn, frees what is removed, and seals.
fn settle(segment: &Segment, sealed: bool, torn: &[Record], removed: &[Record]) -> std::io::Result<()> {
    for record in torn {
        segment.mark(record.place, Kind::Removed)?;
    }
    if !torn.is_empty() {
        segment.sync()?;
    }
    for record in removed {
        // The last life ended between the mark and the hole.
        segment.punch(record.place.offset(), record.span())?;
    }
    if !sealed {
        segment.write_head(true)?;
        segment.sync()?;
    }
    Ok(())
}

fn is_whole(segment: &Segment, record: &Record, buffers: &Arc<BufferPool>) -> std::io::Result<bool> {
    if record.stored_length as usize > BLOCK_BYTES_MAX {
        return Ok(false);
    }
    let mut bytes = buffers.take_now(to_usize(record.span()));
    match segment.read_record(record.place, &mut bytes) {
        Err(error) if is_of_the_medium(&error) => return Ok(false),
        read => read?,
    };
    let start = payload_start(record.stored_length);
    let stored = part(&bytes, start..start + record.stored_length as usize);
    Ok(record.encoding.check_bytes(record.block.index, stored).is_ok())
}
