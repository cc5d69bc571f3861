//! Whether the pool has room, asked before a program begins to write.
//!
//! The page cache takes what is written, so that a full pool shows at `close()`, whose errors shells and many programs
//! don't look at: `echo text > file` would end well and leave an empty file. So what only makes sense with bytes to follow
//! is refused when the pool has no room for a chunk: making a file, emptying one, and opening one to append.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stdchk_model::{ErrorCode, Failure};

use super::FileSystem;

/// How long a pool that had room is believed to have some: one question a second costs nothing.
const BELIEVED: Duration = Duration::from_secs(1);

/// When the pool was last known to have room.
#[derive(Default)]
pub(super) struct Room(Mutex<Option<Instant>>);

impl FileSystem {
    /// # Errors
    /// `NoSpace`: no benefactor has room for a chunk.
    pub async fn check_room(&self) -> Result<(), Failure> {
        if self.room.0.lock().is_some_and(|at| at.elapsed() < BELIEVED) {
            return Ok(());
        }
        let asked = Instant::now();
        // What was removed just now may make room.
        if self.space().await?.is_full && self.pool.make_room().await?.is_full {
            let what = "the pool has no room for a chunk: remove files, or add benefactors";
            return Err(Failure::new(ErrorCode::NoSpace, what));
        }
        *self.room.0.lock() = Some(asked);
        Ok(())
    }
}
