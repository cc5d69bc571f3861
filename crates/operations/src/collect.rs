//! Collection: chunks that no version and no session refers to are removed (I4), now instead of by and by.

use serde::Serialize;

use crate::error::{About, Result};
use crate::pool::Pool;

/// What a collection removed, or would remove.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Collected {
    /// Nothing was removed.
    pub dry_run: bool,
    /// Chunks of which every copy goes.
    pub chunks: u64,
    /// Copies: of these chunks, and those that are too many of others.
    pub blocks: u64,
    /// Plain bytes of these copies.
    pub bytes: u64,
}

impl Pool {
    /// Removes chunks that nothing refers to, or says how many there are. What was written or used within the last minute
    /// stays.
    ///
    /// # Errors
    /// [`Code::Unreachable`](crate::Code::Unreachable): the manager has started a short while ago.
    pub async fn collect(&self, dry_run: bool) -> Result<Collected> {
        let collected = self.client.collect(dry_run).await.about("collection")?;
        let (chunks, blocks, bytes) = (collected.chunks, collected.blocks, collected.bytes);
        Ok(Collected { dry_run, chunks, blocks, bytes })
    }
}
