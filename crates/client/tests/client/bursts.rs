//! A burst into a file that is closed early waits in the window and is pushed once it is over, whatever ends it.

use std::sync::Arc;

use crate::common::{PATIENCE, Random, TestPool, file_with, make, wait_until};
use stdchk_client::{Pool, Session};
use stdchk_model::Ino;
use stdchk_model::message::manager::FileKind;

const MIB: usize = 1 << 20;
const WINDOW: u64 = 16 << 20;

async fn early_file(pool: &Pool) -> Ino {
    file_with(pool, &[("redundancy", "replicate:1"), ("close", "early"), ("codec", "store")]).await
}

async fn reads_back(pool: &Pool, ino: Ino, content: &[u8]) {
    let reader = pool.read(ino, None).await.unwrap();
    assert_eq!(reader.size(), content.len() as u64);
    assert!(reader.read_at(0, content.len()).await.unwrap() == content);
}

/// Writes the same mebibyte eight times, each time other bytes; what that sent.
async fn rewrite(session: &Arc<Session>, random: &mut Random) -> u64 {
    let before = session.stored_bytes();
    for _ in 0..8 {
        session.write_at(0, &random.bytes(MIB)).await.unwrap();
    }
    session.commit(0).await.unwrap();
    session.stored_bytes() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_burst_overwrites_is_never_sent() {
    let tests = TestPool::start(2).await;
    let pool = tests.connect(WINDOW).await;
    let session = pool.write(early_file(&pool).await).await.unwrap();
    let mut random = Random::new(1);
    // A machine that stops for a moment ends a burst.
    wait_until("a burst is held back", async || rewrite(&session, &mut random).await == MIB as u64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_back_is_sent_when_nothing_more_is_written() {
    let tests = TestPool::start(2).await;
    let pool = tests.connect(WINDOW).await;
    let ino = early_file(&pool).await;
    let session = pool.write(ino).await.unwrap();
    let content = Random::new(2).bytes(5 * MIB);
    // Two bursts, with a pause between them.
    for (written, part) in [(3, &content[..3 * MIB]), (5, &content[3 * MIB..])] {
        session.write_at(session.size(), part).await.unwrap();
        wait_until("it is sent", async || session.stored_bytes() == written * MIB as u64).await;
    }
    session.commit(0).await.unwrap();
    reads_back(&pool, ino, &content).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_committed_after_its_close() {
    let tests = TestPool::start(2).await;
    let pool = tests.connect(WINDOW).await;
    let ino = early_file(&pool).await;
    let session = pool.write(ino).await.unwrap();
    let content = Random::new(3).bytes(7 * MIB + 5);
    session.write_at(0, &content).await.unwrap();
    session.flush(0).await.unwrap();
    wait_until("it is committed", async || !session.is_closing()).await;
    reads_back(&pool, ino, &content).await;
    assert_eq!(session.stored_bytes(), content.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_files_at_once_of_more_than_the_window_get_through() {
    const FILES: u64 = 6;
    let tests = TestPool::start(2).await;
    let pool = tests.connect(WINDOW).await;
    early_file(&pool).await;
    let folder = pool.resolve("app3").await.unwrap().ino;
    let mut writers = Vec::new();
    for number in 0..FILES {
        let name = format!("a.N{number}.T2");
        let file = make(&pool, folder, &name, FileKind::File).await;
        let pool = pool.clone();
        writers.push(tokio::spawn(async move {
            let content = Random::new(10 + number).bytes(12 * MIB);
            let session = pool.write(file.ino).await.unwrap();
            for (place, part) in content.chunks(100_000).enumerate() {
                session.write_at((place * 100_000) as u64, part).await.unwrap();
            }
            session.commit(0).await.unwrap();
            (file.ino, content)
        }));
    }
    for writer in writers {
        let (ino, content) = tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap();
        reads_back(&pool, ino, &content).await;
    }
}
