//! A client that was out of the manager's sight for longer than its lease: what it had stored was collected meanwhile, and no
//! version names it.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Gate, Random, TestPool, file_with, wait_until};
use stdchk_client::{Pool, Session};
use stdchk_manager::core::Timing;
use stdchk_model::{ErrorCode, Ino};

const MIB: usize = 1 << 20;
const STORED: usize = 8 * MIB;
/// The lease is longer than the period of signs of life, and what is collected is collected when a test asks for it.
const TIMING: fn() -> Timing =
    || Timing { client_lease_ms: 6000, garbage_age_ms: 0, collect_every_ms: 600_000, ..Timing::default() };

struct Away {
    pools: TestPool,
    /// Sees the manager all the time.
    near: Pool,
    ino: Ino,
    session: Arc<Session>,
    content: Vec<u8>,
}

/// A session that has stored a part of its file, is taken for gone, and comes back once that part was collected.
async fn come_back(window: u64) -> Away {
    let pools = TestPool::start_with(1, TIMING()).await;
    let (gate, near) = (Gate::to(&pools.manager).await, pools.connect(4 << 20).await);
    let far = gate.connect(window).await;
    let ino = file_with(&far, &[("redundancy", "replicate:1"), ("codec", "store")]).await;
    let content = Random::new(3).bytes(STORED + 3 * MIB);
    let session = far.write(ino).await.unwrap();
    session.write_at(0, &content[..STORED]).await.unwrap();
    wait_until("all is stored", async || session.stored_bytes() == STORED as u64).await;
    gate.set_open(false);
    wait_until("the lease is over", async || near.status().await.unwrap().sessions == 0).await;
    wait_until("what was stored is collected", async || {
        near.collect(false).await.unwrap();
        let status = near.status().await.unwrap();
        status.chunks == 0 && status.benefactors.iter().all(|one| one.load.blocks == 0)
    })
    .await;
    gate.set_open(true);
    session.write_at(STORED as u64, &content[STORED..]).await.unwrap();
    Away { pools, near, ino, session, content }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_still_in_the_window_is_stored_again() {
    let away = come_back(32 << 20).await;
    away.session.commit(0).await.unwrap();
    away.session.close(false).await.unwrap();
    let reader = away.pools.connect(4 << 20).await.read(away.ino, None).await.unwrap();
    assert!(reader.read_at(0, away.content.len() + 1).await.unwrap() == away.content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_left_the_window_fails_the_commit_and_no_version_is_there() {
    let away = come_back(4 << 20).await;
    let failure = away.session.commit(0).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Unavailable, "{failure}");
    assert!(failure.message.contains("write the file again"), "{failure}");
    assert!(away.session.close(false).await.is_err());
    assert!(away.near.versions(away.ino).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_closed_is_not_opened_again_by_what_is_still_on_its_way() {
    let pools = TestPool::start(1).await;
    let (gate, near) = (Gate::to(&pools.manager).await, pools.connect(4 << 20).await);
    let far = gate.connect(32 << 20).await;
    let ino = file_with(&far, &[("redundancy", "replicate:1"), ("codec", "store")]).await;
    let session = far.write(ino).await.unwrap();
    gate.set_open(false);
    session.write_at(0, &Random::new(4).bytes(STORED)).await.unwrap();
    // The manager is asked what it knows, and the session is closed before it has answered.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let closing = tokio::spawn({
        let session = Arc::clone(&session);
        async move { session.close(true).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    gate.set_open(true);
    // How it ends is not the point: nothing of it was committed.
    let _ = closing.await.unwrap();
    wait_until("nothing is on its way", async || Arc::strong_count(&session) == 1).await;
    assert_eq!(near.status().await.unwrap().sessions, 0);
    assert_eq!(near.status().await.unwrap().space.reserved_bytes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_while_the_manager_is_started_again_and_again_is_not_collected() {
    const RESTARTS: usize = 5;
    let timing = Timing { garbage_age_ms: 0, collect_every_ms: 600_000, ..Timing::default() };
    let mut pools = TestPool::start_with(1, timing).await;
    let pool = pools.connect(4 << 20).await;
    let ino = file_with(&pool, &[("redundancy", "replicate:1"), ("codec", "store")]).await;
    let session = pool.write(ino).await.unwrap();
    let content = Random::new(5).bytes(96 * MIB);
    let writing = tokio::spawn({
        let (session, content) = (Arc::clone(&session), content.clone());
        async move {
            for (place, cell) in content.chunks(MIB).enumerate() {
                session.write_at((place * MIB) as u64, cell).await.unwrap();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    for _ in 0..RESTARTS {
        tokio::time::sleep(Duration::from_millis(150)).await;
        pools.restart_manager().await;
    }
    writing.await.unwrap();
    wait_until("all is stored", async || session.stored_bytes() >= content.len() as u64).await;
    let near = pools.connect(4 << 20).await;
    wait_until("the session is open again", async || near.status().await.unwrap().sessions == 1).await;
    wait_until("all is reported", async || {
        let status = near.status().await.unwrap();
        status.benefactors.iter().map(|one| one.load.blocks).sum::<u64>() == status.chunks
    })
    .await;
    assert_eq!(near.collect(false).await.unwrap().chunks, 0);
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let reader = near.read(ino, None).await.unwrap();
    for (place, cell) in content.chunks(MIB).enumerate() {
        assert!(reader.read_at((place * MIB) as u64, MIB).await.unwrap() == cell, "{place}");
    }
}
