//! Removing blocks and giving their space back.
//!
//! The order is what matters: out of the index, header marked, mark durable, space freed. A crash in between leaves a
//! block whole or gone. A segment whose last block goes is unlinked as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use stdchk_model::BlockId;

use super::record::{Kind, Place, span};
use super::segment::Segment;
use super::{Store, StoreError, io_error};

/// Blocks that were taken out of use and still take space. They count as such until [`Store::free`].
#[derive(Debug)]
#[must_use = "its space is given back by `Store::free`"]
pub struct Removed(Vec<(Place, u64)>);

impl Store {
    /// Removes each of `blocks` unless it was put again after `put_sequence`; returns how many went.
    ///
    /// # Errors
    /// Those of [`Store::free`].
    pub fn remove(&self, blocks: &[BlockId], put_sequence: u64) -> Result<u64, StoreError> {
        let removed = self.take_out(blocks, put_sequence);
        self.free(&removed).map(|()| removed.0.len() as u64)
    }

    /// Removes all blocks, and near copies.
    ///
    /// # Errors
    /// Those of [`Store::sync`] and [`Store::free`].
    pub fn clear(&self) -> Result<(), StoreError> {
        if self.is_unsynced() {
            self.sync()?;
        }
        self.tend_near(false);
        let (_, all) = self.inventory();
        let all: Vec<BlockId> = all.into_iter().map(|stored| stored.block).collect();
        self.remove(&all, u64::MAX).map(drop)
    }

    /// Takes each of `blocks` out of use unless it was put again after `put_sequence`. Takes no longer than looking them up.
    pub fn take_out(&self, blocks: &[BlockId], put_sequence: u64) -> Removed {
        let mut state = self.state.lock();
        let mut gone = Vec::new();
        for block in blocks {
            let Some(entry) = state.index.remove(block, put_sequence) else { continue };
            state.holder(entry.place.segment).live -= 1;
            gone.push((entry.place, span(entry.stored_length)));
        }
        state.freeing += gone.iter().map(|(_, span)| span).sum::<u64>();
        Removed(gone)
    }

    /// Frees the space of what was taken out of use.
    ///
    /// # Errors
    /// The disk refuses; the space returns at the next start.
    pub fn free(&self, removed: &Removed) -> Result<(), StoreError> {
        let freed = self.discard(&removed.0);
        self.state.lock().freeing -= removed.0.iter().map(|(_, span)| span).sum::<u64>();
        freed
    }

    /// Frees the space of records that the index doesn't refer to.
    pub(super) fn discard(&self, records: &[(Place, u64)]) -> Result<(), StoreError> {
        let mut by_segment: BTreeMap<u32, Vec<(Place, u64)>> = BTreeMap::new();
        for record in records {
            by_segment.entry(record.0.segment).or_default().push(*record);
        }
        let _turn = self.freeing.lock();
        for (number, records) in by_segment {
            if self.unlink_if_dead(number)? {
                continue;
            }
            let Some(segment) = self.segment(number) else { continue };
            let freed = self.punch(&segment, &records)?;
            let mut state = self.state.lock();
            state.give_back(number, freed);
            if let Some(holder) = state.segments.get_mut(&number) {
                holder.dead += records.iter().map(|(_, span)| span).sum::<u64>() - freed;
            }
        }
        Ok(())
    }

    /// Marks and frees `records` of one segment; returns the bytes that the file system took back.
    fn punch(&self, segment: &Segment, records: &[(Place, u64)]) -> Result<u64, StoreError> {
        let refused = |cause| io_error("remove blocks from", segment.path(), cause);
        let marked = records.iter().try_for_each(|(place, _)| segment.mark(*place, Kind::Removed));
        self.sync_segment(segment)?;
        marked.map_err(refused)?;
        let mut freed = 0;
        for (place, span) in records {
            if !segment.punch(place.offset(), *span).map_err(refused)? {
                break;
            }
            freed += span;
        }
        Ok(freed)
    }

    /// Unlinks a full segment that holds nothing live.
    pub(super) fn unlink_dead(&self, number: u32) -> Result<bool, StoreError> {
        let _turn = self.freeing.lock();
        self.unlink_if_dead(number)
    }

    fn unlink_if_dead(&self, number: u32) -> Result<bool, StoreError> {
        let mut state = self.state.lock();
        let newest = state.newest;
        let dead = |segment: u32, live: u64, writing: u32| segment != newest && live == 0 && writing == 0;
        let Some(holder) = state.segments.get(&number) else { return Ok(false) };
        if !dead(number, holder.live, holder.writing) {
            return Ok(false);
        }
        let (segment, used) = (Arc::clone(&holder.segment), holder.used);
        segment.unlink().map_err(|cause| io_error("remove", segment.path(), cause))?;
        state.segments.remove(&number);
        state.used -= used;
        Ok(true)
    }
}
