//! One session, several writers: a commit is about what was written before it, and takes nothing from what is written
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::common::{PATIENCE, TestPool, file_with, wait_until};
use stdchk_client::{Pool, Session};
use stdchk_manager::core::Timing;
use tokio::task::JoinSet;
use tokio::time::timeout;

const MIB: usize = 1 << 20;
const WINDOW: u64 = 16 << 20;
/// Content that differs with each number and takes next to nothing once it is compressed.
const POLICY: [(&str, &str); 2] = [("redundancy", "replicate:1"), ("codec", "lz4")];

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(MIB / 8)
}

/// Writes other bytes to the same four cells until it is told to stop.
async fn rewrite(session: Arc<Session>, writer: u64, stop: Arc<AtomicBool>) {
    let mut number = writer << 32;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let cell = 4 * writer + number % 4;
        session.write_at(cell << 20, &content(number)).await.unwrap();
        tokio::task::yield_now().await;
    }
}

/// Waits until the manager has heard from each benefactor once more.
async fn all_report(pool: &Pool) {
    let since = Instant::now();
    wait_until("all benefactors report", async || {
        let benefactors = pool.status().await.unwrap().benefactors;
        benefactors.iter().all(|one| u128::from(one.silent_ms) < since.elapsed().as_millis())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_ends_while_others_go_on_writing() {
    let pools = TestPool::start(2).await;
    let pool = pools.connect(WINDOW).await;
    let session = pool.write(file_with(&pool, &POLICY).await).await.unwrap();
    let (stop, mut writers) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for writer in 0..4 {
        writers.spawn(rewrite(Arc::clone(&session), writer, Arc::clone(&stop)));
    }
    wait_until("the window is busy", async || session.stored_bytes() > 0).await;
    let committed = timeout(PATIENCE, session.commit(0)).await;
    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
    committed.expect("a commit waits for writes of after it began").unwrap();
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_while_a_commit_is_under_way_stays_for_the_next_one() {
    const CELLS: u64 = 150;
    let timing = Timing { garbage_age_ms: 0, collect_every_ms: 600_000, ..Timing::default() };
    let pools = TestPool::start_with(2, timing).await;
    let (pool, other) = (pools.connect(WINDOW).await, pools.connect(WINDOW).await);
    let ino = file_with(&pool, &POLICY).await;
    let session = pool.write(ino).await.unwrap();
    let writing = tokio::spawn({
        let session = Arc::clone(&session);
        async move {
            for cell in 0..CELLS {
                session.write_at(cell << 20, &content(cell + 1)).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
    });
    while !writing.is_finished() {
        session.commit(0).await.unwrap();
    }
    writing.await.unwrap();
    // The first report that comes may have been written before the last chunk was there.
    for _ in 0..2 {
        all_report(&other).await;
    }
    // Maps of earlier commits are garbage, and go once the keepers have the commits that no longer name them. What the
    // next commit names is not, and nothing is too young to go.
    wait_until("all garbage is gone", async || {
        other.collect(false).await.unwrap();
        all_report(&other).await;
        other.collect(true).await.unwrap().chunks == 0
    })
    .await;
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let reader = other.read(ino, None).await.unwrap();
    for cell in 0..CELLS {
        assert!(reader.read_at(cell << 20, MIB).await.unwrap() == content(cell + 1), "{cell}");
    }
}
