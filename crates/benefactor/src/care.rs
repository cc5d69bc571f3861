//! Looking after what is stored: every block is read now and then, and what is mostly dead is rewritten.
//!
//! Disks lose bits in silence; a block that nobody reads must be found while other replicas are still there.

use std::sync::Arc;
use std::time::Duration;

use stdchk_model::limits::BLOCK_BYTES_MAX;
use stdchk_net::BufferPool;

use crate::service::{Benefactor, blocking};
use crate::store::Cursor;

/// Pause between two rounds, and before work is looked for again while clients are served.
const PAUSE: Duration = Duration::from_secs(1);

/// Reads blocks for ever, at most `rate` bytes in a second; 0: never.
pub(crate) async fn scrub(benefactor: Arc<Benefactor>, rate: u64) {
    if rate == 0 {
        return;
    }
    let buffers = BufferPool::new(2 * BLOCK_BYTES_MAX);
    let mut cursor = Cursor::default();
    loop {
        let (store, pool, at) = (Arc::clone(benefactor.store()), Arc::clone(&buffers), cursor);
        match blocking(move || store.scrub(at, &pool)).await {
            Ok(Ok(Some((next, bytes)))) => {
                cursor = next;
                tokio::time::sleep(Duration::from_secs_f64(bytes as f64 / rate as f64)).await;
            }
            Ok(Ok(None)) => {
                cursor = Cursor::default();
                tokio::time::sleep(PAUSE).await;
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "a segment can't be looked through");
                cursor = cursor.next_segment();
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => tracing::warn!(%error, "looking for damage was cut short"),
        }
        while benefactor.is_busy() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Rewrites mostly dead segments where the file system makes no holes.
pub(crate) async fn compact(benefactor: Arc<Benefactor>) {
    let buffers = BufferPool::new(2 * BLOCK_BYTES_MAX);
    loop {
        tokio::time::sleep(PAUSE).await;
        if benefactor.is_busy() {
            continue;
        }
        let (store, pool) = (Arc::clone(benefactor.store()), Arc::clone(&buffers));
        match blocking(move || store.compact(&pool)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(bytes)) => tracing::info!(bytes, "a mostly dead segment was rewritten"),
            Ok(Err(error)) => tracing::warn!(%error, "a mostly dead segment can't be rewritten"),
            Err(error) => tracing::warn!(%error, "rewriting was cut short"),
        }
    }
}
