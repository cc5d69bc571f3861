//! What a session and a reader survive: benefactors and managers that go away, and what they say when it is too much.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{PATIENCE, Random, TestPool, file_with, make, wait_until};
use stdchk_client::{Depth, Pool, Reader};
use stdchk_manager::core::Timing;
use stdchk_model::message::manager::{BenefactorState, Change, FileKind};
use stdchk_model::{ErrorCode, Failure, Ino};

const WINDOW: u64 = 32 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_goes_on_when_a_benefactor_dies_and_every_byte_comes_back() {
    let mut pools = TestPool::start(4).await;
    let pool = pools.connect(WINDOW).await;
    for (semantics, redundancy) in [("optimistic", "replicate:1"), ("pessimistic", "replicate:2")] {
        let policy = [("redundancy", redundancy), ("semantics", semantics)];
        let ino =
            file_with(&pool, if redundancy == "replicate:1" { &policy[..1] } else { &policy[..] }).await;
        // Each has its own: what is at both victims is lost.
        let content = Random::new(if redundancy == "replicate:1" { 5 } else { 15 }).bytes(12 << 20);
        let session = pool.write(ino).await.unwrap();
        session.write_at(0, &content[..6 << 20]).await.unwrap();
        let victim = usize::from(redundancy == "replicate:2");
        pools.stop_benefactor(victim).await;
        session.write_at(6 << 20, &content[6 << 20..]).await.unwrap();
        session.commit(0).await.unwrap();
        session.close(false).await.unwrap();
        let reader = pool.read(ino, None).await.unwrap();
        assert!(reader.read_at(0, content.len()).await.unwrap() == content, "{semantics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_is_restarted_costs_a_pause_and_no_session() {
    let mut pools = TestPool::start(3).await;
    let pool = pools.connect(WINDOW).await;
    let ino = file_with(&pool, &[("redundancy", "replicate:1")]).await;
    let content = Random::new(6).bytes(9 << 20);
    let session = pool.write(ino).await.unwrap();
    session.write_at(0, &content[..4 << 20]).await.unwrap();
    session.commit(0).await.unwrap();
    session.write_at(4 << 20, &content[4 << 20..]).await.unwrap();
    pools.restart_manager().await;
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let versions = pool.versions(ino).await.unwrap();
    assert_eq!(versions.len(), 1, "commits of one session replace each other, also over a restart");
    let reader = pool.read(ino, None).await.unwrap();
    assert!(reader.read_at(0, content.len()).await.unwrap() == content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_replicas_gone_the_file_says_so_and_others_are_not_affected() {
    let mut pools = TestPool::start(2).await;
    let pool = pools.connect(WINDOW).await;
    let lost = file_with(&pool, &[("redundancy", "replicate:1"), ("stripe", "1")]).await;
    let session = pool.write(lost).await.unwrap();
    session.write_at(0, &Random::new(7).bytes(1 << 20)).await.unwrap();
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let (_, map, _) = pool.chunk_map(lost, None).await.unwrap();
    let health = pool.verify_chunks(map.chunks(), Depth::Read).await.unwrap();
    assert_eq!(health[0].distance, 1);
    // Which of the two has it shows by stopping one: either the file is gone, or the other one is stopped, too.
    pools.stop_benefactor(0).await;
    let mut stopped = 1;
    if pool.verify_chunks(map.chunks(), Depth::Read).await.unwrap()[0].distance == 1 {
        pools.stop_benefactor(1).await;
        pools.start_benefactor(0);
        pools.wait_online(1).await;
        stopped = 2;
    }
    let other = pools.connect(WINDOW).await;
    let started = std::time::Instant::now();
    let failure = other.read(lost, None).await.unwrap().read_at(0, 100).await.unwrap_err();
    assert!(matches!(failure.code, ErrorCode::Unavailable | ErrorCode::Damaged), "{failure:?}");
    assert!(failure.message.contains("chunk"), "{failure}");
    assert!(started.elapsed() < Duration::from_secs(60), "an error must not take for ever");
    let ino = make(&other, Ino::ROOT, &format!("after{stopped}"), FileKind::File).await.ino;
    let session = other.write(ino).await.unwrap();
    session.write_at(0, b"still works").await.unwrap();
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    assert_eq!(&other.read(ino, None).await.unwrap().read_at(0, 100).await.unwrap()[..], b"still works");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_the_pool_has_is_not_sent_again() {
    let pools = TestPool::start(3).await;
    let pool = pools.connect(WINDOW).await;
    let content = Random::new(8).bytes(8 << 20);
    let folder = make(&pool, Ino::ROOT, "app", FileKind::Directory).await.ino;
    let mut sent = Vec::new();
    for name in ["a.N0.T1", "a.N0.T2"] {
        let ino = make(&pool, folder, name, FileKind::File).await.ino;
        let session = pool.write(ino).await.unwrap();
        session.write_at(0, &content).await.unwrap();
        session.commit(0).await.unwrap();
        sent.push(session.stored_bytes());
        session.close(false).await.unwrap();
    }
    assert!(sent[0] >= 8 << 20, "{sent:?}");
    assert!(sent[1] < (8 << 20) / 100, "{sent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_files_at_once_fit_into_a_small_window() {
    let pools = TestPool::start(2).await;
    let pool = pools.connect(4 << 20).await;
    let folder = make(&pool, Ino::ROOT, "app", FileKind::Directory).await.ino;
    let mut open = Vec::new();
    for number in 0..100u64 {
        let ino = make(&pool, folder, &format!("a.N{number}.T1"), FileKind::File).await.ino;
        open.push((pool.write(ino).await.unwrap(), ino, Random::new(number + 1).bytes(300_000)));
    }
    for start in [0, 100_000, 200_000] {
        for (session, _, content) in &open {
            session.write_at(start as u64, &content[start..][..100_000]).await.unwrap();
        }
    }
    for (session, ino, content) in open {
        session.commit(0).await.unwrap();
        session.close(false).await.unwrap();
        let reader = pool.read(ino, None).await.unwrap();
        assert!(reader.read_at(0, content.len()).await.unwrap() == content);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_is_removed_while_it_is_read_is_told_to_be_removed_and_not_to_be_damaged() {
    let timing = Timing { garbage_age_ms: 0, collect_every_ms: 600_000, ..Timing::default() };
    let pools = TestPool::start_with(1, timing).await;
    let pool = pools.connect(WINDOW).await;
    let ino = file_with(&pool, &[("redundancy", "replicate:1")]).await;
    let content = Random::new(11).bytes(32 << 20);
    let session = pool.write(ino).await.unwrap();
    session.write_at(0, &content).await.unwrap();
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let reading = pools.connect_with_cache(WINDOW, 2 << 20).await;
    let reader = reading.read(ino, None).await.unwrap();
    assert!(reader.read_at(0, 4096).await.unwrap() == content[..4096]);
    let parent = pool.resolve("app1").await.unwrap().ino;
    pool.change(Change::Unlink { parent, name: "a.N0.T1".to_owned() }).await.unwrap();
    collected(&pool).await;
    let failure = first_failure(&pool, &reader, content.len() as u64).await;
    assert_eq!(failure.code, ErrorCode::Stale, "{failure}");
    assert!(failure.message.contains("version 1 was removed"), "{failure}");
}

/// Reads chunk after chunk, none of which stays in a small cache, until the benefactor has deleted one. What it has told of
/// since the last collection goes with the next one.
async fn first_failure(pool: &Pool, reader: &Reader, bytes: u64) -> Failure {
    for number in 0..4000 {
        if number % 16 == 0 {
            pool.collect(false).await.unwrap();
        }
        if let Err(failure) = reader.read_at((number << 20) % bytes, 4096).await {
            return failure;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the chunks of a removed file can be read");
}

/// Returns once nothing is left to collect, and no chunk is known.
async fn collected(pool: &Pool) {
    for _ in 0..400 {
        pool.collect(false).await.unwrap();
        if pool.status().await.unwrap().chunks == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the chunks of a removed file stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_of_benefactors_that_a_new_manager_has_not_heard_of_are_waited_for_and_not_called_lost() {
    let mut pools = TestPool::start(1).await;
    let pool = pools.connect(WINDOW).await;
    let ino = file_with(&pool, &[("redundancy", "replicate:1")]).await;
    let session = pool.write(ino).await.unwrap();
    session.write_at(0, &Random::new(12).bytes(1 << 20)).await.unwrap();
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let (_, map, _) = pool.chunk_map(ino, None).await.unwrap();
    pools.stop_benefactor(0).await;
    pools.restart_manager().await;
    let pool = pools.connect(WINDOW).await;
    let back = async {
        // Whenever it comes it is found; so late that somebody who doesn't wait has given up.
        tokio::time::sleep(Duration::from_millis(500)).await;
        pools.start_benefactor(0);
    };
    let (health, ()) = tokio::join!(pool.verify_chunks(map.chunks(), Depth::Read), back);
    let health = &health.unwrap()[0];
    assert_eq!((health.distance, health.unreachable), (1, 0), "{health:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_whose_chunk_map_is_lost_can_be_written_over_and_what_it_had_is_never_made_up() {
    let mut pools = TestPool::start(1).await;
    let pool = pools.connect(WINDOW).await;
    let one = file_with(&pool, &[("redundancy", "replicate:1")]).await;
    let folder = pool.resolve("app1").await.unwrap().ino;
    let other = make(&pool, folder, "a.N1.T1", FileKind::File).await.ino;
    for ino in [one, other] {
        let session = pool.write(ino).await.unwrap();
        session.write_at(0, &Random::new(ino.0).bytes(16 << 20)).await.unwrap();
        session.commit(0).await.unwrap();
        session.close(false).await.unwrap();
        assert!(!pool.chunk_map(ino, None).await.unwrap().2.is_empty(), "its map lies in the pool");
    }
    pools.stop_benefactor(0).await;
    std::fs::remove_dir_all(pools.dir.path().join("benefactor0")).unwrap();
    let gone = pool.status().await.unwrap().benefactors[0].id;
    wait_until("it is forgotten", async || pool.forget(gone, true).await.is_ok()).await;
    pools.start_benefactor(0);
    pools.wait_online(1).await;

    let pool = pools.connect(WINDOW).await;
    let is_told = |failure: Failure| assert!(failure.message.contains("can't be read"), "{failure}");
    // What would keep some of it.
    let session = pool.write(one).await.unwrap();
    is_told(session.read_at(0, 100).await.unwrap_err());
    session.write_at(16 << 20, b"more").await.unwrap();
    is_told(session.commit(0).await.unwrap_err());
    // What keeps nothing of it.
    session.truncate(0).await.unwrap();
    session.write_at(0, b"over").await.unwrap();
    assert_eq!(session.commit(0).await.unwrap().unwrap().version, 2);
    session.close(false).await.unwrap();
    assert_eq!(&pool.read(one, None).await.unwrap().read_at(0, 100).await.unwrap()[..], b"over");
    let session = pool.write(other).await.unwrap();
    session.write_at(7, b"some").await.unwrap();
    is_told(session.commit(0).await.unwrap_err());
    drop(session.close(false).await);
    wait_until("the sessions are ended", async || pool.status().await.unwrap().sessions == 0).await;
    for (ino, content) in [(other, &b""[..])] {
        let session = pool.replace(ino).await.unwrap();
        session.write_at(0, content).await.unwrap();
        assert_eq!(session.commit(0).await.unwrap().unwrap().version, 2);
        session.close(false).await.unwrap();
        assert_eq!(&pool.read(ino, None).await.unwrap().read_at(0, 100).await.unwrap()[..], content);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_benefactor_that_can_make_nothing_durable_any_more_is_replaced() {
    // Between signs of life nothing is made durable but what is asked for.
    let mut pools = TestPool::start(0).await;
    (0..2).for_each(|number| pools.start_benefactor_beating(number, Duration::from_secs(4)));
    pools.wait_online(2).await;
    let pool = pools.connect(WINDOW).await;
    let ino = file_with(&pool, &[("redundancy", "replicate:1"), ("codec", "store")]).await;
    let content = Random::new(13).bytes(8 << 20);
    let session = pool.write(ino).await.unwrap();
    session.write_at(0, &content).await.unwrap();
    wait_until("all is stored", async || session.stored_bytes() == content.len() as u64).await;
    let segments = pools.dir.path().join("benefactor0/segments");
    std::fs::rename(&segments, segments.with_extension("gone")).unwrap();
    let committed = tokio::time::timeout(PATIENCE, session.commit(0)).await;
    committed.expect("the same sync is asked for without end").unwrap();
    session.close(false).await.unwrap();
    let reader = pool.read(ino, None).await.unwrap();
    assert!(reader.read_at(0, content.len()).await.unwrap() == content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_over_is_not_missed_when_its_benefactor_dies() {
    const CHUNK: usize = 512 << 10;
    let (benefactor_lease_ms, benefactor_lost_ms) = (1000, 2000);
    let timing = Timing { garbage_age_ms: 0, collect_every_ms: 600_000, ..Timing::default() };
    let timing = Timing { benefactor_lease_ms, benefactor_lost_ms, ..timing };
    let mut pools = TestPool::start_with(3, timing).await;
    let (pool, other) = (pools.connect(WINDOW).await, pools.connect(WINDOW).await);
    let ino =
        file_with(&pool, &[("redundancy", "replicate:1"), ("cutter", "fsch:512KiB"), ("codec", "store")])
            .await;
    let session = pool.write(ino).await.unwrap();
    let mut random = Random::new(14);
    session.write_at(0, &random.bytes(24 * CHUNK)).await.unwrap();
    wait_until("all is stored", async || session.stored_bytes() == 24 * CHUNK as u64).await;
    wait_until("all is announced", async || other.status().await.unwrap().chunks == 24).await;
    // With its next sign of life the client tells what it has stored.
    wait_until("the manager keeps it", async || other.collect(true).await.unwrap().chunks == 0).await;
    let content = random.bytes(24 * CHUNK);
    session.write_at(0, &content).await.unwrap();
    pools.stop_benefactor(0).await;
    wait_until("a benefactor is lost", async || {
        let benefactors = other.status().await.unwrap().benefactors;
        benefactors.iter().any(|one| one.state == BenefactorState::Lost)
    })
    .await;
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let reader = pool.read(ino, None).await.unwrap();
    assert!(reader.read_at(0, content.len()).await.unwrap() == content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_further_copy_that_is_lost_before_it_is_durable_is_made_again() {
    let mut pools = TestPool::start(1).await;
    let pool = pools.connect(WINDOW).await;
    let content = Random::new(16).bytes(8 << 20);
    let lax = file_with(&pool, &[("redundancy", "replicate:1")]).await;
    let strict = file_with(&pool, &[("redundancy", "replicate:2"), ("semantics", "pessimistic")]).await;
    write_whole(&pool, lax, &content).await;
    // Between signs of life nothing is made durable but what is asked for.
    pools.start_benefactor_beating(1, Duration::from_secs(4));
    pools.wait_online(2).await;
    let session = pool.write(strict).await.unwrap();
    session.write_at(0, &content).await.unwrap();
    wait_until("the further copies are stored", async || Arc::strong_count(&session) == 1).await;
    assert_eq!(session.stored_bytes(), 0, "the pool had it");
    pools.start_benefactor(2);
    pools.wait_online(3).await;
    pools.stop_benefactor(1).await;
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let reader = pools.connect(WINDOW).await.read(strict, None).await.unwrap();
    assert!(reader.read_at(0, content.len()).await.unwrap() == content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_copies_count_without_a_word_from_their_benefactor() {
    let timing = Timing { benefactor_lease_ms: 60_000, benefactor_lost_ms: 120_000, ..Timing::default() };
    let mut pools = TestPool::start_with(1, timing).await;
    let pool = pools.connect(WINDOW).await;
    let content = Random::new(17).bytes(8 << 20);
    let lax = file_with(&pool, &[("redundancy", "replicate:1")]).await;
    let strict = file_with(&pool, &[("redundancy", "replicate:2"), ("semantics", "pessimistic")]).await;
    write_whole(&pool, lax, &content).await;
    pools.start_benefactor_beating(1, Duration::from_secs(60));
    pools.wait_online(2).await;
    write_whole(&pool, strict, &content).await;
}

async fn write_whole(pool: &Pool, ino: Ino, content: &[u8]) {
    let session = pool.write(ino).await.unwrap();
    session.write_at(0, content).await.unwrap();
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
}
