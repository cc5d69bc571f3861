//! Looking after what is stored: every block is read now and then, and what is mostly dead is rewritten.
//!
//! Disks lose bits in silence; a block that nobody reads must be found while other replicas are still there.

use std::sync::Arc;
use std::time::Duration;

use stdchk_model::limits::BLOCK_BYTES_MAX;
use stdchk_model::message::benefactor::OwnerWish;
use stdchk_net::{BufferPool, Retry};
use tokio::time::{Instant, sleep, sleep_until};

use crate::pace::Cost;
use crate::service::{Benefactor, blocking};
use crate::store::Cursor;

/// Pause between two rounds, and before work is looked for again while clients are served.
const PAUSE: Duration = Duration::from_secs(1);
/// A look at everything begins this often at most: what lies still is not read over and over.
const SCRUB_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest time that the search for damage and compaction give way to the owner's work on the disk before they take their next step.
const OWNER_FIRST: Duration = Duration::from_secs(60 * 60);
/// Longest time that the search for damage gives way to clients before it takes its next step.
const SCRUB_GIVES_WAY: Duration = Duration::from_secs(10);

/// Reads all blocks once a day, at most `rate` bytes in a second; 0: never. It begins anywhere and goes around, so that a
/// benefactor that never runs for long reads everything in the end.
pub(crate) async fn scrub(benefactor: Arc<Benefactor>, rate: u64) {
    if rate == 0 {
        return;
    }
    let buffers = BufferPool::new(2 * BLOCK_BYTES_MAX);
    let mut began = Instant::now();
    let first = benefactor.store().segment_by_chance(benefactor.incarnation().0);
    let mut cursor = first;
    // Where the look at everything ends, once it has come to the end of the store.
    let mut last = None;
    loop {
        let mut pause = PAUSE;
        if last.is_some_and(|last| cursor >= last) {
            sleep_until(began + SCRUB_EVERY).await;
            (began, cursor, last) = (Instant::now(), first, None);
        }
        let (store, pool, at) = (Arc::clone(benefactor.store()), Arc::clone(&buffers), cursor);
        let step = benefactor.caps().step(rate);
        match blocking(move || store.scrub_for(at, &pool, step)).await {
            Ok(Ok((Some(next), bytes))) => {
                cursor = next;
                benefactor.caps().pay(Cost { disk: bytes, network: 0 }).await;
                pause = pause.max(Duration::from_secs_f64(bytes as f64 / rate as f64));
            }
            Ok(Ok((None, _))) => {
                // At its second end the segment is gone with which the look began.
                cursor = last.replace(first).map_or_else(Cursor::default, |_| first);
            }
            Ok(Err((next, error))) => {
                tracing::warn!(%error, "a segment can't be looked through");
                cursor = next;
            }
            Err(error) => {
                tracing::warn!(%error, "looking for damage was cut short");
                cursor = cursor.next_segment();
            }
        }
        give_way(&benefactor, pause).await;
    }
}

/// Waits until no client asked for anything during a `pause`, or has given way for long enough, and until the owner lets it work and
/// nobody says that the machine goes. An owner whose programs always work on the disk holds it up for so long and not for ever.
async fn give_way(benefactor: &Benefactor, pause: Duration) {
    let began = Instant::now();
    let is_loaded = || benefactor.gives_way() && began.elapsed() < OWNER_FIRST;
    while benefactor.wish() != OwnerWish::Serve || is_loaded() || benefactor.goes() {
        sleep(PAUSE).await;
    }
    let mut retry = Retry::every(pause, pause.max(SCRUB_GIVES_WAY));
    loop {
        let before = benefactor.asked();
        if !retry.pause().await || benefactor.asked() == before && !benefactor.is_busy() {
            return;
        }
    }
}

/// Rewrites segments of which little is left: when nobody waits, the owner lets it, and the machine isn't said to go, or when the owner's files need the space.
/// Owner's work at the disk keeps it waiting for [`OWNER_FIRST`] at most.
pub(crate) async fn compact(benefactor: Arc<Benefactor>) {
    let buffers = BufferPool::new(2 * BLOCK_BYTES_MAX);
    let mut looked_at = Instant::now();
    loop {
        sleep(PAUSE).await;
        let may_wait = !benefactor.store().gives_back();
        let is_loaded = benefactor.gives_way() && looked_at.elapsed() < OWNER_FIRST;
        let pauses = benefactor.wish() == OwnerWish::Pause || is_loaded || benefactor.goes();
        if may_wait && (benefactor.is_busy() || pauses) {
            continue;
        }
        looked_at = Instant::now();
        let (store, pool) = (Arc::clone(benefactor.store()), Arc::clone(&buffers));
        let caps = Arc::clone(benefactor.caps());
        let pay = move |bytes| caps.pay_on_thread(Cost { disk: bytes, network: 0 });
        match blocking(move || store.compact(&pool, &pay)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(bytes)) => tracing::info!(bytes, "a mostly dead segment was rewritten"),
            Ok(Err(error)) => tracing::warn!(%error, "a mostly dead segment can't be rewritten"),
            Err(error) => tracing::warn!(%error, "rewriting was cut short"),
        }
    }
}
