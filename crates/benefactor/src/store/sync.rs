//! Making puts durable, many at once; and what follows when the disk fails.
//!
//! After a failed write nothing more is stored, and what was stored can still be made durable. After a failed sync that
//! is over too: the system may have dropped the pages that it could not write, and a second sync would succeed without
//! them. Reads go on in both cases, since each is verified. A restart reads everything that isn't sealed.

use std::sync::Arc;

use stdchk_model::BlockId;

use super::error::io_error;
use super::segment::Segment;
use super::{SegmentState, State, Store, StoreError};

/// What the disk failed at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum At {
    /// Writing a block.
    Write,
    /// Making blocks durable.
    Sync,
}

/// A disk that failed: the store takes nothing more in this life.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) at: At,
    pub(super) cause: String,
}

impl Trouble {
    pub(super) fn error(&self) -> StoreError {
        StoreError::Poisoned(self.cause.clone())
    }
}

/// What one sync covers.
struct PendingSync {
    ticket: u64,
    fresh: Vec<BlockId>,
    /// The files to sync, each with whether nothing more will be written to it.
    segments: Vec<(Arc<Segment>, bool)>,
    names: bool,
}

impl Store {
    /// Makes durable all puts that were finished before the call. Callers that come together share the work.
    ///
    /// # Errors
    /// The disk refuses; then the store takes nothing more in this life.
    pub fn sync(&self) -> Result<(), StoreError> {
        let goal = self.finished();
        let _turn = self.syncing.lock();
        if self.is_durable_up_to(goal) {
            return Ok(());
        }
        let PendingSync { ticket, fresh, segments, names } = self.start_sync()?;
        let synced = self
            .sync_files(&segments, names)
            .and_then(|()| self.check_names(segments.iter().map(|(segment, _)| segment.number)));
        let mut state = self.state.lock();
        if let Err(error) = synced {
            state.index.fail_sync(fresh);
            state.fail(At::Sync, &error);
            return Err(error);
        }
        if let Some(trouble) = state.trouble.as_ref().filter(|trouble| trouble.at == At::Sync) {
            // Somebody else was told meanwhile of a write that failed: it may have been one of these.
            let error = trouble.error();
            state.index.fail_sync(fresh);
            return Err(error);
        }
        state.index.finish_sync(ticket, fresh);
        drop(state);
        self.seal(&segments);
        Ok(())
    }

    /// Makes full segments durable, so that their files can be closed. This calls no block durable: a sync does.
    pub(super) fn sync_full_segments(&self) -> Result<(), StoreError> {
        let _turn = self.syncing.lock();
        let full: Vec<Arc<Segment>> = {
            let mut state = self.state.lock();
            let newest = state.newest;
            let full = state.segments.iter_mut();
            let full =
                full.filter(|(number, holder)| **number != newest && holder.unsynced && holder.writing == 0);
            full.map(|(_, holder)| {
                holder.unsynced = false;
                Arc::clone(&holder.segment)
            })
            .collect()
        };
        full.iter().try_for_each(|segment| self.sync_segment(segment))
    }

    fn start_sync(&self) -> Result<PendingSync, StoreError> {
        let mut state = self.state.lock();
        if let Some(trouble) = state.trouble.as_ref().filter(|trouble| trouble.at == At::Sync) {
            return Err(trouble.error());
        }
        let newest = state.newest;
        let full = |number: u32, holder: &SegmentState| {
            number != newest && holder.writing == 0 && !holder.doubtful && !holder.sealed
        };
        let mut segments = Vec::new();
        for (number, holder) in &mut state.segments {
            let complete = full(*number, holder);
            if complete || holder.unsynced {
                holder.unsynced = false;
                segments.push((Arc::clone(&holder.segment), complete));
            }
        }
        let names = std::mem::take(&mut state.names_unsynced);
        let (ticket, fresh) = state.index.start_sync();
        Ok(PendingSync { ticket, fresh, segments, names })
    }

    fn sync_files(&self, segments: &[(Arc<Segment>, bool)], names: bool) -> Result<(), StoreError> {
        for (segment, _) in segments {
            self.sync_segment(segment)?;
        }
        if names {
            let synced = self.files.sync_names();
            synced.map_err(|cause| io_error("make durable", self.files.path(), cause))?;
        }
        Ok(())
    }

    /// Marks segments whose last record is durable. A mark that is lost costs a closer look at the next start.
    fn seal(&self, segments: &[(Arc<Segment>, bool)]) {
        for (segment, _) in segments.iter().filter(|(_, complete)| *complete) {
            if let Err(error) = segment.seal_if_possible() {
                tracing::warn!(path = %segment.path().display(), %error, "a full segment can't be sealed");
                continue;
            }
            if let Some(holder) = self.state.lock().segments.get_mut(&segment.number) {
                holder.sealed = true;
            }
        }
    }

    /// Whether finished puts wait for a sync.
    pub fn is_unsynced(&self) -> bool {
        let (last, durable) = self.state.lock().index.tickets();
        last > durable
    }

    /// A mark for all puts that are finished by now, for [`Store::is_durable_up_to`].
    pub fn finished(&self) -> u64 {
        self.state.lock().index.tickets().0
    }

    /// Whether all puts up to the mark are durable. Nothing is any more once a sync failed, or the files were taken away.
    pub fn is_durable_up_to(&self, finished: u64) -> bool {
        let state = self.state.lock();
        let failed = state.trouble.as_ref().is_some_and(|trouble| trouble.at == At::Sync);
        !failed && state.index.tickets().1 >= finished
    }
}

impl State {
    /// The disk failed: nothing more is stored. The first cause is kept, and told once.
    pub(super) fn fail(&mut self, at: At, error: &StoreError) {
        match &mut self.trouble {
            Some(trouble) => trouble.at = trouble.at.max(at),
            None => {
                tracing::error!(%error, "the disk failed: nothing more is stored until a restart, reads go on");
                self.trouble = Some(Trouble { at, cause: error.to_string() });
            }
        }
    }
}
