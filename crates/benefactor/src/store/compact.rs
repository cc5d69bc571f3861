//! Rewriting what is live out of segments that are mostly dead: where the file system makes no holes, to get their space back;
//! where it does, because each segment costs a file, however little is left in it.
//!
//! A block is copied to the active segment, made durable there, and only then loses its old place.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stdchk_net::BufferPool;

use super::record::Record;
use super::segment::{FIRST_RECORD, Segment};
use super::{SegmentState, Store, StoreError, io_error, write};

/// The part of a segment that is dead when it is rewritten while the owner's files need the space.
const DEAD_PARTS_NEEDED: u64 = 8;

/// How many segments may have an eighth of a full one or less: what deletions left of them, or short lives.
const SMALL_MAX: usize = 16;

/// Whether so much of a full segment is dead that it is rewritten: half of it, or less while space is given back.
pub(super) fn is_worth_it(holder: &SegmentState, gives: bool) -> bool {
    let parts = if gives { DEAD_PARTS_NEEDED } else { 2 };
    holder.dead * parts >= holder.end
}

/// What was moved out of a segment.
#[derive(Default)]
struct Moved {
    blocks: u64,
    bytes: u64,
}

impl Store {
    /// Rewrites the deadest full segment if at least half of it is dead (an eighth while space is given back), or else the smallest of
    /// too many small ones; returns the bytes that were moved. `pay` is told of so many bytes before they are read or written, and may wait:
    /// nothing that others need is locked then.
    ///
    /// # Errors
    /// There is no room for the copies, or the disk refuses; what was not moved stays where it is.
    pub fn compact(&self, buffers: &Arc<BufferPool>, pay: &dyn Fn(u64)) -> Result<u64, StoreError> {
        let _compacts = self.compacts.lock();
        if self.is_closing.load(Ordering::Relaxed) {
            return Ok(0);
        }
        self.compact_one(buffers, pay)
    }

    /// Ends the rewriting of segments: at the next block, and for good. None is under way when this returns, so another process may
    /// open the store.
    pub fn end_compaction(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        drop(self.compacts.lock());
    }

    fn compact_one(&self, buffers: &Arc<BufferPool>, pay: &dyn Fn(u64)) -> Result<u64, StoreError> {
        let Some(segment) = self.deadest() else { return Ok(0) };
        let mut moved = Moved::default();
        let ended = self.move_records(&segment, buffers, pay, &mut moved);
        // Also what was moved before something failed: else the segment would never go.
        self.sync()?;
        // Only now: until the copies are durable, a segment without live blocks would be unlinked, and the blocks be nowhere.
        if let Some(holder) = self.state.lock().segments.get_mut(&segment.number) {
            holder.live -= moved.blocks;
            holder.dead += moved.bytes;
        }
        self.unlink_dead(segment.number)?;
        ended.map(|()| moved.bytes)
    }

    fn move_records(
        &self,
        segment: &Arc<Segment>,
        buffers: &Arc<BufferPool>,
        pay: &dyn Fn(u64),
        moved: &mut Moved,
    ) -> Result<(), StoreError> {
        let mut offset = FIRST_RECORD;
        while let Some(record) = self.next_record(segment, offset)? {
            if self.is_closing.load(Ordering::Relaxed) {
                break;
            }
            offset = record.place.offset() + record.span();
            if self.live(segment, &record).is_some() {
                pay(2 * record.span());
            }
            if self.move_record(segment, &record, buffers)? {
                moved.blocks += 1;
                moved.bytes += record.span();
            }
        }
        Ok(())
    }

    /// The first record of `segment` at or behind `offset`; none in a segment that was removed since all in it is dead.
    pub(super) fn next_record(&self, segment: &Segment, offset: u64) -> Result<Option<Record>, StoreError> {
        match segment.next_record(offset) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                self.check_names(std::iter::once(segment.number)).map(|()| None)
            }
            next => next.map_err(|cause| io_error("read", segment.path(), cause)),
        }
    }

    fn deadest(&self) -> Option<Arc<Segment>> {
        let state = self.state.lock();
        let full = |number: &u32, holder: &SegmentState| *number != state.newest && holder.writing == 0;
        let full = state.segments.iter().filter(|(number, holder)| full(number, holder));
        let full: Vec<&SegmentState> = full.map(|(_, holder)| holder).collect();
        let worth_it = full.iter().filter(|holder| is_worth_it(holder, state.gives));
        let dead = worth_it.max_by_key(|holder| holder.dead);
        let small = || {
            let small = full.iter().filter(|holder| holder.used * 8 <= self.segment_bytes);
            let count = small.clone().count();
            small.min_by_key(|holder| holder.used).filter(|_| count > SMALL_MAX)
        };
        dead.or_else(small).map(|holder| Arc::clone(&holder.segment))
    }

    fn move_record(
        &self,
        segment: &Arc<Segment>,
        record: &Record,
        buffers: &Arc<BufferPool>,
    ) -> Result<bool, StoreError> {
        let Some(found) = self.live(segment, record) else { return Ok(false) };
        let mut buffer = buffers.take_now(found.span());
        let (encoding, range) = self.read(&found, &mut buffer)?;
        let length = range.len();
        buffer.copy_within(range, 0);
        buffer.set_len(length);
        let place = || self.reserve(record.block, encoding.clone(), record.stored_length, true);
        let (copy, target) = self.making_room(place)?;
        if let Err(cause) = write(&target, &copy, &mut buffer) {
            return Err(self.give_up(&copy, &target, cause));
        }
        Ok(self.finish_move(record, &copy))
    }

    fn finish_move(&self, from: &Record, to: &Record) -> bool {
        let mut state = self.state.lock();
        state.in_flight -= to.span();
        let moved = state.index.relocate(&to.block, from.place, to.place);
        let holder = state.holder(to.place.segment);
        holder.writing -= 1;
        holder.unsynced = true;
        holder.live += u64::from(moved);
        holder.dead += if moved { 0 } else { to.span() };
        moved
    }
}
