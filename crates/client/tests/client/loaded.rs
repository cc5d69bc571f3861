//! Benefactors that take no new blocks: others do, and where there are too few others they do all the same.

use std::time::{Duration, Instant};

use crate::common::{Random, TestPool, make, wait_until};
use stdchk_benefactor::load::Thresholds;
use stdchk_client::Pool;
use stdchk_model::Ino;
use stdchk_model::message::benefactor::StorageState;
use stdchk_model::message::manager::{BenefactorInfo, Change, FileKind};

/// Far less than clients wait when nobody takes a block.
const SOON: Duration = Duration::from_secs(8);

/// Their owners' work always needs the disk.
const REFUSES: Thresholds = Thresholds { loaded_from: 0.4, refusing_from: Some(0.0), clients_max: None };
/// As many clients as may always send there.
const IS_FULL: Thresholds = Thresholds { loaded_from: 0.4, refusing_from: None, clients_max: Some(0) };

/// A pool in which as many benefactors take blocks as are `free`, and others never do unless somebody insists.
async fn pool_with(free: usize, busy: usize) -> TestPool {
    pool_of(free, busy, REFUSES).await
}

async fn pool_of(free: usize, busy: usize, thresholds: Thresholds) -> TestPool {
    let mut pools = TestPool::start(free).await;
    (free..free + busy).for_each(|number| pools.start_benefactor_with(number, thresholds));
    pools.wait_online(free + busy).await;
    pools
}

/// Writes a file with this number under a policy and reads it back. Each has content of its own.
async fn write(pool: &Pool, number: u64, policy: &[(&str, &str)]) {
    let folder = make(pool, Ino::ROOT, &format!("app{number}"), FileKind::Directory).await.ino;
    let pairs = policy.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    pool.change(Change::SetPolicy { ino: folder, pairs }).await.unwrap();
    let ino = make(pool, folder, "a.N0.T1", FileKind::File).await.ino;
    let content = Random::new(number).bytes(5_000_000);
    let began = Instant::now();
    let session = pool.write(ino).await.unwrap();
    session.write_at(0, &content).await.unwrap();
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let took = began.elapsed();
    assert!(took < SOON, "it took {took:?}");
    let reader = pool.read(ino, None).await.unwrap();
    assert!(reader.read_at(0, content.len() + 1).await.unwrap() == content);
}

/// Blocks at those that take them, and at those that don't, by what they say.
async fn blocks(pool: &Pool) -> (u64, u64) {
    let status = pool.status().await.unwrap();
    let (free, busy): (Vec<_>, Vec<_>) = status.benefactors.iter().partition(|one| one.load.state.accepts());
    let sum = |some: Vec<&BenefactorInfo>| some.iter().map(|one| one.load.blocks).sum();
    (sum(free), sum(busy))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_and_copies_go_to_those_that_take_them() {
    let pools = pool_with(3, 2).await;
    let pool = pools.connect(8 << 20).await;
    write(&pool, 11, &[("redundancy", "replicate:2"), ("stripe", "5"), ("codec", "store")]).await;
    wait_until("all copies are made", async || blocks(&pool).await.0 >= 10).await;
    write(&pool, 12, &[("redundancy", "erasure:2,1"), ("semantics", "pessimistic"), ("codec", "store")])
        .await;
    // Each of five chunks has three fragments.
    wait_until("all fragments are told", async || blocks(&pool).await.0 >= 25).await;
    assert_eq!(blocks(&pool).await.1, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_all_are_busy_everything_is_stored_all_the_same_and_at_once() {
    for thresholds in [REFUSES, IS_FULL] {
        let pools = pool_of(0, 5, thresholds).await;
        let pool = pools.connect(8 << 20).await;
        for (number, redundancy) in (1..).step_by(2).zip(["replicate:1", "replicate:3", "erasure:3,2"]) {
            for (number, semantics) in (number..).zip(["optimistic", "pessimistic"]) {
                let policy = [("redundancy", redundancy), ("semantics", semantics), ("codec", "store")];
                write(&pool, number, &policy).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_leaves_the_stripe_for_others_than_those_that_took_nothing() {
    // The manager doesn't hold it against them that they have as many clients as may.
    let pools = pool_of(2, 3, IS_FULL).await;
    let pool = pools.connect(8 << 20).await;
    write(&pool, 17, &[("redundancy", "replicate:1"), ("stripe", "1"), ("codec", "store")]).await;
    write(&pool, 18, &[("redundancy", "replicate:1"), ("stripe", "5"), ("codec", "store")]).await;
    wait_until("all blocks are told", async || {
        let status = pool.status().await.unwrap();
        let blocks = |full: bool| -> u64 {
            let of = status.benefactors.iter().filter(|one| (one.load.state == StorageState::Full) == full);
            of.map(|one| one.load.blocks).sum()
        };
        assert_eq!(blocks(true), 0);
        blocks(false) >= 10
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_too_few_take_blocks_the_others_of_a_code_take_only_what_is_left() {
    let pools = pool_with(3, 2).await;
    let pool = pools.connect(8 << 20).await;
    write(&pool, 13, &[("redundancy", "erasure:3,2"), ("semantics", "pessimistic"), ("codec", "store")])
        .await;
    // Each of five chunks has five fragments.
    wait_until("all fragments are told", async || {
        let (free, busy) = blocks(&pool).await;
        free >= 15 && busy >= 10
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_survives_a_loss_waits_for_those_that_are_busy_and_a_single_one_does_not() {
    let pools = pool_with(1, 1).await;
    let pool = pools.connect(8 << 20).await;
    write(&pool, 14, &[("redundancy", "replicate:2"), ("codec", "store")]).await;
    wait_until("the second copies are made", async || blocks(&pool).await.1 >= 5).await;
    let pools = pool_with(2, 1).await;
    let pool = pools.connect(8 << 20).await;
    write(&pool, 15, &[("redundancy", "replicate:3"), ("codec", "store")]).await;
    wait_until("the second copies are made", async || blocks(&pool).await.0 >= 10).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(blocks(&pool).await.1, 0);
}
