//! Reading everything once, in the order of the disk, so that silent damage is found.

use std::sync::Arc;

use stdchk_model::exact::to_usize;
use stdchk_net::BufferPool;

use super::record::{Kind, Record};
use super::segment::{FIRST_RECORD, Segment};
use super::{Found, Store, StoreError};

/// What moving to a record costs a disk, in bytes that it could have read instead: small blocks are not free.
const SEEK_BYTES: u64 = 64 << 10;

/// How far a look through the store has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Cursor {
    segment: u32,
    offset: u64,
}

impl Cursor {
    /// Past the segment that it stands in.
    pub fn next_segment(self) -> Self {
        Self { segment: self.segment + 1, offset: 0 }
    }
}

impl Store {
    /// The begin of one of the segments: of which, a random number says.
    pub fn segment_by_chance(&self, chance: u64) -> Cursor {
        let state = self.state.lock();
        let count = state.segments.len().max(1);
        let place = to_usize(chance) % count;
        state
            .segments
            .keys()
            .nth(place)
            .map_or_else(Cursor::default, |segment| Cursor { segment: *segment, offset: 0 })
    }

    /// Verifies the next block behind `cursor` and returns how far that is and what was read, bytes; `None` at the end.
    /// A damaged block is set aside.
    ///
    /// # Errors
    /// A segment can't be read; with it comes the place behind that segment.
    pub fn scrub(
        &self,
        cursor: Cursor,
        buffers: &Arc<BufferPool>,
    ) -> Result<Option<(Cursor, u64)>, (Cursor, StoreError)> {
        let segment = {
            let state = self.state.lock();
            state.segments.range(cursor.segment..).next().map(|(_, holder)| Arc::clone(&holder.segment))
        };
        let Some(segment) = segment else { return Ok(None) };
        let offset = if segment.number == cursor.segment { cursor.offset } else { 0 };
        let here = Cursor { segment: segment.number, offset };
        let record = self.next_record(&segment, offset.max(FIRST_RECORD));
        let Some(record) = record.map_err(|error| (here.next_segment(), error))? else {
            return Ok(Some((here.next_segment(), 0)));
        };
        let next = Cursor { offset: record.place.offset() + record.span(), ..here };
        let read = self.verify_live(&segment, &record, buffers);
        Ok(Some((next, read)))
    }

    /// Verifies blocks behind `cursor` until a disk could have read about so many bytes; returns how far that is, `None` at
    /// the end, and what it cost, bytes.
    ///
    /// # Errors
    /// Those of [`Store::scrub`].
    pub fn scrub_for(
        &self,
        mut cursor: Cursor,
        buffers: &Arc<BufferPool>,
        bytes: u64,
    ) -> Result<(Option<Cursor>, u64), (Cursor, StoreError)> {
        let mut cost = 0;
        while cost < bytes {
            match self.scrub(cursor, buffers)? {
                Some((next, read)) => {
                    cursor = next;
                    cost += SEEK_BYTES + read;
                }
                None => return Ok((None, cost)),
            }
        }
        Ok((Some(cursor), cost))
    }

    fn verify_live(&self, segment: &Arc<Segment>, record: &Record, buffers: &Arc<BufferPool>) -> u64 {
        let Some(found) = self.live(segment, record) else { return 0 };
        let mut buffer = buffers.take_now(found.span());
        // Damage is logged and set aside by the reading itself.
        let _ = self.read(&found, &mut buffer);
        record.span()
    }

    /// The record as a found block, if the index refers to it.
    pub(super) fn live(&self, segment: &Arc<Segment>, record: &Record) -> Option<Found> {
        let state = self.state.lock();
        let entry = state.index.get(&record.block)?;
        let here = record.kind == Kind::Block && entry.place == record.place;
        here.then(|| Found {
            block: record.block,
            place: record.place,
            stored_length: entry.stored_length,
            segment: Arc::clone(segment),
        })
    }
}
