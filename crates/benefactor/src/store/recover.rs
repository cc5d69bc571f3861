//! Opening a store: the index is rebuilt from the records' headers.
//!
//! Sealed segments are believed by their headers. Every other one was perhaps being written when the last life ended:
//! each of its blocks is read and compared with its name, what doesn't match is a torn write and is marked as removed,
//! and the segment is sealed. A life appends to segments of its own only, never behind a torn tail.
//!
//! A disk that takes nothing, because it is full or read-only, keeps no store from opening: what could not be marked or
//! sealed is looked through again at the next start.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use stdchk_model::BlockId;
use stdchk_model::limits::BLOCK_BYTES_MAX;
use stdchk_net::BufferPool;

use super::disk::{UNIT, UnitFile};
use super::error::takes_nothing;
use super::index::Index;
use super::record::{Key, Kind, Place, Record, payload_start};
use super::segment::{self, FIRST_RECORD, Head, Segment};
use super::{BTreeMap, Donation, PathBuf, SegmentState, State, Store, StoreError, io_error};

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

type Opened = (u32, UnitFile, Option<Head>);

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
        fs::create_dir_all(directory).map_err(|cause| io_error("make", directory, cause))?;
        let handle = fs::File::open(directory).map_err(|cause| io_error("open", directory, cause))?;
        let opened = open_all(directory)?;
        let key = match opened.iter().find_map(|(_, _, head)| *head) {
            Some(head) => head.key,
            None => random_key(directory)?,
        };
        let newest = opened.iter().map(|(number, _, _)| *number).max().unwrap_or(0);
        let scanned = scan_all(directory, opened, key)?;
        let mut recovered = Recovered::default();
        let store = Self {
            directory: directory.to_owned(),
            opened: handle,
            key,
            donation,
            segment_bytes,
            state: Mutex::new(empty_state(newest)),
            syncing: Mutex::new(()),
            freeing: Mutex::new(()),
        };
        let (records, headless) = store.take_up(scanned, &mut recovered);
        store.index_records(records, &headless, &mut recovered)?;
        Ok((store, recovered))
    }

    fn take_up(&self, scanned: Vec<Scanned>, recovered: &mut Recovered) -> (Vec<Record>, Vec<u32>) {
        let mut state = self.state.lock();
        let (mut records, mut headless) = (Vec::new(), Vec::new());
        for mut found in scanned {
            recovered.torn += found.torn;
            recovered.verified_segments += u64::from(found.verified);
            state.used += found.allocated;
            let number = found.segment.number;
            headless.extend(found.headless.then_some(number));
            let holder = SegmentState {
                end: found.end,
                used: found.allocated,
                dead: found.allocated.saturating_sub(FIRST_RECORD),
                unsynced: false,
                sealed: !found.doubtful,
                doubtful: found.doubtful,
                ..SegmentState::empty(found.segment)
            };
            state.segments.insert(number, holder);
            records.append(&mut found.records);
        }
        (records, headless)
    }

    /// Puts the last record of each block into the index and removes the others.
    fn index_records(
        &self,
        records: Vec<Record>,
        headless: &[u32],
        recovered: &mut Recovered,
    ) -> Result<(), StoreError> {
        let mut last: HashMap<BlockId, Record> = HashMap::with_capacity(records.len());
        let mut outdated: Vec<(Place, u64)> = Vec::new();
        for record in records {
            let loser = match last.get(&record.block) {
                Some(other) if other.put_sequence >= record.put_sequence => Some(record),
                _ => last.insert(record.block, record),
            };
            outdated.extend(loser.map(|loser| (loser.place, loser.span())));
        }
        recovered.blocks = last.len() as u64;
        let mut state = self.state.lock();
        for record in last.into_values() {
            let lengths = (record.stored_length, record.encoding.plain_length);
            state.index.restore(record.block, record.place, lengths, record.put_sequence);
            if let Some(holder) = state.segments.get_mut(&record.place.segment) {
                holder.live += 1;
                holder.dead = holder.dead.saturating_sub(record.span());
            }
        }
        let numbers: Vec<u32> = state.segments.keys().copied().collect();
        drop(state);
        unless_disk_takes_nothing(self.discard(&outdated))?;
        for number in numbers.into_iter().filter(|number| !headless.contains(number)) {
            unless_disk_takes_nothing(self.unlink_dead(number).map(drop))?;
        }
        Ok(())
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
        in_flight: 0,
        names_unsynced: false,
        looked_at: 0,
        trouble: None,
    }
}

fn random_key(directory: &Path) -> Result<Key, StoreError> {
    let mut key = Key::default();
    getrandom::fill(&mut key).map_err(|error| {
        io_error("get random bytes for", directory, std::io::Error::other(error.to_string()))
    })?;
    Ok(key)
}

fn open_all(directory: &Path) -> Result<Vec<Opened>, StoreError> {
    let mut opened = Vec::new();
    let entries = fs::read_dir(directory).map_err(|cause| io_error("list", directory, cause))?;
    for entry in entries {
        let name = entry.map_err(|cause| io_error("list", directory, cause))?.file_name();
        let Some(number) = name.to_str().and_then(segment::number_of) else {
            tracing::warn!(file = %directory.join(name).display(), "a file that is no segment is left alone");
            continue;
        };
        let (file, head) = Segment::open(directory, number)
            .map_err(|cause| io_error("open", &directory.join(segment::file_name(number)), cause))?;
        opened.push((number, file, head));
    }
    Ok(opened)
}

/// Scans all segments, several at a time.
fn scan_all(directory: &Path, opened: Vec<Opened>, key: Key) -> Result<Vec<Scanned>, StoreError> {
    let jobs: Vec<Mutex<Option<Opened>>> = opened.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut scanned = Vec::new();
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some((number, file, head)) = job.lock().take() else { continue };
            let segment = Segment::of(directory, number, file, key);
            let path = PathBuf::from(segment.path());
            scanned.push(scan(segment, head).map_err(|cause| io_error("read", &path, cause))?);
        }
        Ok(scanned)
    };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS.min(jobs.len())).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for reader in readers {
            let scanned = reader.join().unwrap_or_else(|_| {
                Err(StoreError::Poisoned("a thread that read segments ended early".to_owned()))
            });
            all.append(&mut scanned?);
        }
        Ok(all)
    })
}

fn scan(segment: Segment, head: Option<Head>) -> std::io::Result<Scanned> {
    let sealed = head.is_some_and(|head| head.sealed);
    let buffers = BufferPool::new(2 * BLOCK_BYTES_MAX);
    let (mut records, mut removed, mut torn, mut end) = (Vec::new(), Vec::new(), Vec::new(), FIRST_RECORD);
    while let Some(record) = segment.next_record(end)? {
        let intact = sealed || record.kind != Kind::Block || is_whole(&segment, &record, &buffers);
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
        segment.file.sync()?;
    }
    let doubtful = match settle(&segment, sealed, &torn, &removed) {
        Err(error) if takes_nothing(&error) => {
            let path = segment.path().display();
            tracing::warn!(%path, %error, "the disk takes no marks: the segment is looked through at the next start");
            !sealed
        }
        settled => settled.map(|()| false)?,
    };
    let allocated = segment.file.allocated()?;
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
        segment.file.sync()?;
    }
    for record in removed {
        // The last life ended between the mark and the hole.
        segment.file.punch(record.place.offset(), record.span())?;
    }
    if !sealed {
        segment.write_head(true)?;
        segment.file.sync()?;
    }
    Ok(())
}

fn is_whole(segment: &Segment, record: &Record, buffers: &std::sync::Arc<BufferPool>) -> bool {
    let span = usize::try_from(record.span()).unwrap_or(usize::MAX);
    if record.stored_length as usize > BLOCK_BYTES_MAX {
        return false;
    }
    let Some(mut bytes) = buffers.try_take(span) else { return false };
    let start = payload_start(record.stored_length);
    let read = segment.read_record(record.place, &mut bytes);
    let stored = bytes.get(start..start + record.stored_length as usize);
    read.is_ok()
        && stored.is_some_and(|stored| record.encoding.check_bytes(record.block.index, stored).is_ok())
}
