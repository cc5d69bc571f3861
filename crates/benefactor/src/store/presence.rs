//! Whether the store's files are still where they were: somebody may remove the folder of a benefactor that runs.
//!
//! The process goes on reading and writing files without names as if nothing had happened, and all is gone when it ends.
//! So nothing is called durable before the names were looked at, and they are looked at with every heartbeat.

use super::sync::At;
use super::{Store, StoreError};

impl Store {
    /// Looks whether the directory, the newest segment and one other, in turn, are still in place.
    ///
    /// # Errors
    /// [`StoreError::Gone`]: they are not; then nothing is called durable any more.
    pub fn check_presence(&self) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        let after = state.segments.range(state.looked_at + 1..).next();
        let other = after.or_else(|| state.segments.first_key_value()).map(|(number, _)| *number);
        state.looked_at = other.unwrap_or(0);
        let newest = state.newest;
        drop(state);
        self.check_names(other.into_iter().chain([newest]))
    }

    /// Looks whether the directory and the segments of these numbers are still in place, as far as they are in use.
    pub(super) fn check_names(&self, numbers: impl Iterator<Item = u32>) -> Result<(), StoreError> {
        let moved = self.files.is_elsewhere();
        // Under the lock: the store itself takes names of dead segments away, and holds it meanwhile.
        let mut state = self.state.lock();
        let mut gone = moved.then(|| self.files.path().to_owned());
        for number in numbers {
            let Some(holder) = state.segments.get(&number) else { continue };
            if holder.segment.is_removed() {
                gone = Some(holder.segment.path().to_owned());
            }
        }
        let Some(gone) = gone else { return Ok(()) };
        let error = StoreError::Gone(gone);
        state.fail(At::Sync, &error);
        Err(error)
    }
}
