//! A small file that was just made is put without a question: it is stored once all the same, and committed whatever becomes of the
//! put meanwhile.

use std::sync::Arc;

use crate::common::{Gate, Random, TestPool, make, wait_until};
use stdchk_client::{NewFile, Pool, Writer};
use stdchk_manager::core::Timing;
use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, FileKind};

const MIB: usize = 1 << 20;

async fn folder(pool: &Pool) -> Ino {
    let folder = make(pool, Ino::ROOT, "app", FileKind::Directory).await.ino;
    let pairs = [("redundancy", "replicate:1"), ("codec", "store")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
    pool.change(Change::SetPolicy { ino: folder, pairs: pairs.to_vec() }).await.unwrap();
    folder
}

async fn create(pool: &Pool, parent: Ino, name: &str) -> Arc<Writer> {
    let (name, mode, uid, gid, exclusive) = (name.to_owned(), 0o644, 0, 0, false);
    pool.create(NewFile { parent, name, mode, uid, gid, exclusive }, None).await.unwrap()
}

/// Blocks at all benefactors.
async fn blocks(pool: &Pool) -> u64 {
    pool.status().await.unwrap().benefactors.iter().map(|one| one.load.blocks).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_small_files_of_several_clients_are_stored_once() {
    const FILES: usize = 12;
    let pools = TestPool::start(3).await;
    let clients = [pools.connect(4 << 20).await, pools.connect(4 << 20).await, pools.connect(4 << 20).await];
    let folder = folder(&clients[0]).await;
    let mut stored = 0;
    for (number, client) in clients.iter().enumerate() {
        for file in 0..FILES {
            let content = Random::new(file as u64 + 1).bytes(1000 + 5000 * file);
            let writer = create(client, folder, &format!("{number}.{file}")).await;
            writer.write_at(0, &content).await.unwrap();
            stored += writer.commit(0).await.unwrap().unwrap().stored_bytes;
            writer.close(false).await.unwrap();
            let reader = client.read(writer.ino(), None).await.unwrap();
            assert!(reader.read_at(0, content.len() + 1).await.unwrap() == content);
        }
    }
    let once: usize = (0..FILES).map(|file| 1000 + 5000 * file).sum();
    assert_eq!(stored, once as u64, "each content counts as stored with one file");
    wait_until("benefactors tell what they have", async || blocks(&clients[0]).await >= FILES as u64).await;
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(blocks(&clients[0]).await, FILES as u64);
    assert_eq!(clients[0].status().await.unwrap().space.reserved_bytes, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_file_takes_two_questions_to_the_manager() {
    let pools = TestPool::start(2).await;
    let gate = Gate::to(&pools.manager).await;
    let client = gate.connect(4 << 20).await;
    let (folder, mut fewest) = (folder(&client).await, u64::MAX);
    for file in 0..3 {
        let before = gate.requests();
        let writer = create(&client, folder, &format!("small{file}")).await;
        writer.write_at(0, &Random::new(file).bytes(5000)).await.unwrap();
        writer.commit(0).await.unwrap();
        // A sign of life may come between.
        fewest = fewest.min(gate.requests() - before);
        writer.close(false).await.unwrap();
    }
    assert_eq!(fewest, 2, "to make it and to commit it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_collected_between_put_and_commit_is_put_again_also_if_the_window_has_lost_it() {
    let timing =
        Timing { client_lease_ms: 6000, garbage_age_ms: 0, collect_every_ms: 600_000, ..Timing::default() };
    let pools = TestPool::start_with(1, timing).await;
    let (gate, near) = (Gate::to(&pools.manager).await, pools.connect(4 << 20).await);
    let far = gate.connect(4 << 20).await;
    let folder = folder(&near).await;
    let (writer, other) = (create(&far, folder, "small").await, create(&far, folder, "other").await);
    let content = Random::new(1).bytes(5000);
    writer.write_at(0, &content).await.unwrap();
    gate.set_open(false);
    let committing = tokio::spawn({
        let writer = Arc::clone(&writer);
        async move { writer.commit(0).await }
    });
    // The manager wasn't asked before.
    wait_until("it is put", async || blocks(&near).await == 1).await;
    // Another file takes the whole window.
    let filling = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.write_at(0, &Random::new(2).bytes(12 * MIB)).await }
    });
    wait_until("the lease is over", async || near.status().await.unwrap().sessions == 0).await;
    wait_until("it is collected", async || {
        near.collect(false).await.unwrap();
        blocks(&near).await == 0
    })
    .await;
    gate.set_open(true);
    committing.await.unwrap().unwrap();
    filling.await.unwrap().unwrap();
    let reader = near.read(writer.ino(), None).await.unwrap();
    assert!(reader.read_at(0, content.len() + 1).await.unwrap() == content);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_that_are_synced_and_stay_open_take_nothing_of_the_window() {
    const FILES: usize = 70;
    let pools = TestPool::start(2).await;
    let client = pools.connect(4 << 20).await;
    let folder = folder(&client).await;
    let mut open = Vec::new();
    for number in 0..FILES {
        let writer = create(&client, folder, &format!("small{number}")).await;
        writer.write_at(0, &Random::new(number as u64).bytes(60_000)).await.unwrap();
        writer.commit(0).await.unwrap();
        open.push(writer);
    }
    let large = create(&client, folder, "large").await;
    let content = Random::new(99).bytes(8 * MIB);
    let written = tokio::time::timeout(std::time::Duration::from_secs(60), large.write_at(0, &content)).await;
    written.expect("the window has room").unwrap();
    large.commit(0).await.unwrap();
    for writer in open {
        writer.close(false).await.unwrap();
    }
}
