//! Real benefactors on real sockets and files, and a manager that writes down what it is told.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::*;
use stdchk_model::message::benefactor::{
    BenefactorReply, BenefactorRequest, BlockState, Command, Decoded, FailedCopy, Unreached,
};
use stdchk_model::message::manager::ManagerRequest;
use stdchk_model::{BenefactorId, BlockId, ChunkId, ChunkRef, Code, Encoding, EncodingId, ErrorCode, Maker};
use stdchk_net::Bytes;
use stdchk_protect::Blocks;
use stdchk_reduce::{Compressor, Effort};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_put_is_served_reported_and_still_there_after_a_restart() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    let contents: Vec<Vec<u8>> = [1, 3936, 3937, 1 << 20, 4 << 20]
        .into_iter()
        .enumerate()
        .map(|(seed, length)| bytes(seed as u64, length))
        .collect();
    for content in &contents {
        assert!(!put(&running.connection, content).await.unwrap());
        assert!(put(&running.connection, content).await.unwrap(), "known at the second time");
        let receipt = sync(&running.connection, &[whole(content).0]).await;
        assert_eq!(receipt.blocks.len(), 1);
    }
    for content in &contents {
        let block = whole(content).0;
        assert!(get(&running.connection, block).await.unwrap()[..] == content[..]);
        manager.wait("the report", |told| told.added(block)).await;
    }
    running.stop().await;
    manager.told.lock().requests.clear();
    let running = Running::start(config(place.path(), &manager.address())).await;
    for content in &contents {
        let block = whole(content).0;
        assert!(get(&running.connection, block).await.unwrap()[..] == content[..]);
        manager.wait("the inventory", |told| told.added(block)).await;
    }
    let again = |told: &Told| matches!(told.requests.first(), Some(ManagerRequest::Register { registration, .. }) if registration.id == Some(BenefactorId(1)));
    assert!(again(&manager.told.lock()), "it registers under its number");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_give_bytes_a_name_that_is_not_theirs() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    let (good, bad) = (bytes(1, 100_000), bytes(2, 100_000));
    let (block, encoding) = whole(&good);
    let bad_encoding = whole(&bad).1;
    let mut attempts = vec![(block, encoding.clone()), (block, bad_encoding.clone())];
    attempts.push((whole(&bad).0, Encoding { plain_length: 1, ..bad_encoding.clone() }));
    attempts.push((block, Encoding { cipher: Some(1), ..bad_encoding.clone() }));
    // Under a name that fits the lie about its bytes.
    attempts.push((bad_encoding.block(block.chunk, 0), bad_encoding.clone()));
    let made = fragments(&good);
    for index in 0..5 {
        attempts.push((made.encoding.block(block.chunk, index), made.encoding.clone()));
    }
    for (block, encoding) in attempts {
        let put = put_block(&running.connection, block, encoding, &bad);
        assert_eq!(code(&put.await.unwrap_err()), ErrorCode::Invalid);
    }
    let (fragment, stored) = made.iter().last().unwrap();
    let other = Encoding { codec: 1, ..made.encoding.clone() };
    let put = put_block(&running.connection, fragment, other, stored);
    assert_eq!(code(&put.await.unwrap_err()), ErrorCode::Invalid, "a fragment of another encoding");
    assert!(!put_block(&running.connection, fragment, made.encoding.clone(), stored).await.unwrap());
    assert_eq!(code(&get(&running.connection, block).await.unwrap_err()), ErrorCode::NotFound);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_block_is_stored_as_it_is_and_only_under_its_own_name() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    let content = b"abcdefgh".repeat(5_000);
    let (codec, stored) = Compressor::new(Effort::Lz4).unwrap().compress(&content);
    let (BlockId { chunk, .. }, plain) = whole(&content);
    let length = u32::try_from(stored.len()).unwrap();
    let encoding = Encoding::copy(plain.plain_length, codec.number(), length, ChunkId::of(&stored));
    let other = ChunkId::of(b"something else");
    let short = Encoding { plain_length: encoding.plain_length - 1, ..encoding.clone() };
    let unknown = Encoding { codec: 99, ..encoding.clone() };
    for (chunk, encoding) in [(other, &encoding), (chunk, &short), (chunk, &unknown)] {
        let block = encoding.block(chunk, 0);
        let put = put_block(&running.connection, block, encoding.clone(), &stored);
        assert_eq!(code(&put.await.unwrap_err()), ErrorCode::Invalid);
    }
    let block = encoding.block(chunk, 0);
    put_block(&running.connection, block, encoding, &stored).await.unwrap();
    assert!(get(&running.connection, block).await.unwrap()[..] == stored[..]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_names_what_is_there_and_durable_and_the_manager_hears_what_is_not() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    let (here, never) = (whole(b"here").0, whole(b"never").0);
    // An inventory tells by itself what isn't there.
    manager.wait("the first inventory", |told| told.inventories() > 0).await;
    put(&running.connection, b"here").await.unwrap();
    let receipt = sync(&running.connection, &[never, here]).await;
    assert_eq!(receipt.blocks.iter().map(|stored| stored.block).collect::<Vec<_>>(), [here]);
    manager.wait("the missing block", |told| told.removed(never)).await;
    assert!(receipt.is_genuine(&manager.told.lock().receipt_key()));
    // A deletion that was decided before the receipt leaves the block, a later one takes it.
    let delete = |put_sequence| Command::Delete { blocks: vec![here], put_sequence };
    let inventories = manager.told.lock().inventories();
    manager.order(1, delete(receipt.sequence - 1));
    manager.order(1, Command::SendInventory);
    manager.wait("the inventory", |told| told.inventories() > inventories).await;
    let receipt = sync(&running.connection, &[here]).await;
    assert_eq!(receipt.blocks.len(), 1);
    manager.order(1, delete(receipt.sequence));
    manager.wait("the removal", |told| told.removed(here)).await;
    assert!(sync(&running.connection, &[here]).await.blocks.is_empty());
    running.stop().await;
    let before = manager.told.lock().receipt_key();
    let running = Running::start(config(place.path(), &manager.address())).await;
    manager.wait("another key", |told| told.receipt_key() != before).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_reported_durable_without_anybody_asking() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    put(&running.connection, b"left alone").await.unwrap();
    manager.wait("the report", |told| told.added(whole(b"left alone").0)).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_removes_what_was_not_put_again_since() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    let blocks = [b"stays", b"goes!"].map(|content| whole(content).0);
    for content in [b"stays", b"goes!"] {
        put(&running.connection, content).await.unwrap();
    }
    manager.wait("the report", |told| blocks.iter().all(|block| told.added(*block))).await;
    // They may have come with the inventory, which has no such number.
    manager.wait("a heartbeat", |told| told.durable_sequence().is_some()).await;
    let put_sequence = manager.told.lock().durable_sequence().unwrap();
    assert!(put(&running.connection, b"stays").await.unwrap());
    manager.order(1, Command::Delete { blocks: blocks.to_vec(), put_sequence });
    manager.wait("the removal", |told| told.removed(blocks[1])).await;
    assert_eq!(code(&get(&running.connection, blocks[1]).await.unwrap_err()), ErrorCode::NotFound);
    assert_eq!(&get(&running.connection, blocks[0]).await.unwrap()[..], b"stays");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_of_an_earlier_manager_is_refused_also_after_a_restart() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    manager.told.lock().term = 7;
    let running = Running::start(config(place.path(), &manager.address())).await;
    put(&running.connection, b"stays").await.unwrap();
    let block = whole(b"stays").0;
    manager.wait("the report", |told| told.added(block)).await;
    running.stop().await;
    // The same one as it was before, as if it had stood still: it leads no more, and doesn't know it.
    manager.told.lock().term = 6;
    let before = manager.told.lock().inventories();
    let running = Running::start(config(place.path(), &manager.address())).await;
    manager.wait("a registration", |told| told.inventories() > before).await;
    manager.order(1, Command::Delete { blocks: vec![block], put_sequence: u64::MAX });
    manager.wait("the order to be taken", |told| told.commands.is_empty()).await;
    let beats = manager.told.lock().requests.len();
    manager.wait("another heartbeat", |told| told.requests.len() > beats + 1).await;
    assert_eq!(&get(&running.connection, block).await.unwrap()[..], b"stays");
    // One that leads now is obeyed.
    let before = manager.told.lock().inventories();
    (manager.told.lock().term, manager.told.lock().stale) = (8, true);
    manager.wait("a registration", |told| told.inventories() > before).await;
    manager.order(1, Command::Delete { blocks: vec![block], put_sequence: u64::MAX });
    manager.wait("the removal", |told| told.removed(block)).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_copied_to_another_benefactor_on_order_and_failures_are_reported() {
    let (places, manager) =
        ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Manager::start().await);
    let one = Running::start(config(places[0].path(), &manager.address())).await;
    manager.wait("the first", |told| told.inventories() == 1).await;
    let two = Running::start(config(places[1].path(), &manager.address())).await;
    let contents: Vec<Vec<u8>> = (0..40).map(|seed| bytes(seed, 100_000)).collect();
    for content in &contents {
        put(&one.connection, content).await.unwrap();
        let (from, to) = ((0, one.address()), (Some(0), 2, two.address()));
        manager.order(1, make(ChunkId::of(content), EncodingId::PLAIN, &[from], &[to]));
    }
    let nowhere = ChunkId::of(&contents[0]);
    let to = (Some(0), 9, "127.0.0.1:1".to_owned());
    manager.order(1, make(nowhere, EncodingId::PLAIN, &[(0, one.address())], &[to]));
    for content in &contents {
        manager.wait("the copy's report", |told| reported_by(told, 2, whole(content).0)).await;
        assert!(get(&two.connection, whole(content).0).await.unwrap()[..] == content[..]);
    }
    manager.wait("the failure", |told| failed(told) == [FailedCopy { chunk: nowhere, to: id(9) }]).await;
    // What isn't here can't be copied to anybody, and the manager hears why.
    let never = whole(b"never").0;
    let order = make(never.chunk, EncodingId::PLAIN, &[(0, one.address())], &[(Some(0), 2, two.address())]);
    manager.order(1, order);
    manager.wait("the other failure", |told| failed(told).len() == 2).await;
    assert_eq!(failed(&manager.told.lock())[1], FailedCopy { chunk: never.chunk, to: None });
    manager.wait("the missing block", |told| told.removed(never)).await;
    one.stop().await;
    two.stop().await;
}

fn id(number: u32) -> Option<BenefactorId> {
    Some(BenefactorId(number))
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_order_whose_destinations_fail_in_part_the_rest_is_made_and_the_failure_says_where() {
    let (places, manager) =
        ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Manager::start().await);
    let (one, two) = two_benefactors(&manager, &places).await;
    let (copied, made) = (bytes(1, 100_000), store_fragments(2, &[&one, &one, &one]).await);
    let chunk = made.chunk;
    put(&one.connection, &copied).await.unwrap();
    let nowhere = || "127.0.0.1:1".to_owned();
    let copy = make(
        ChunkId::of(&copied),
        EncodingId::PLAIN,
        &[(0, one.address())],
        &[(Some(0), 9, nowhere()), (Some(0), 2, two.address())],
    );
    let from: Vec<(u8, String)> = (0..3).map(|index| (index, one.address())).collect();
    let remake =
        make(chunk, made.encoding.id(chunk), &from, &[(Some(3), 2, two.address()), (Some(4), 9, nowhere())]);
    for (order, chunk, block) in
        [(copy, ChunkId::of(&copied), whole(&copied).0), (remake, chunk, made.encoding.block(chunk, 3))]
    {
        let before = failed(&manager.told.lock()).len();
        manager.order(1, order);
        manager.wait("the block", |told| reported_by(told, 2, block)).await;
        manager.wait("the failure", |told| failed(told).len() > before).await;
        assert_eq!(failed(&manager.told.lock())[before..], [FailedCopy { chunk, to: id(9) }]);
    }
    one.stop().await;
    two.stop().await;
}

/// Benefactors of the numbers 1 and 2.
async fn two_benefactors(manager: &Manager, places: &[tempfile::TempDir; 2]) -> (Running, Running) {
    let one = Running::start(config(places[0].path(), &manager.address())).await;
    manager.wait("the first", |told| told.inventories() == 1).await;
    (one, Running::start(config(places[1].path(), &manager.address())).await)
}

/// Stores the fragments 0, 1, ... of a content of this seed at one benefactor each.
async fn store_fragments(seed: u64, at: &[&Running]) -> Blocks {
    let made = fragments(&bytes(seed, 300_000));
    for ((block, stored), at) in made.iter().zip(at) {
        put_block(&at.connection, block, made.encoding.clone(), stored).await.unwrap();
    }
    made
}

/// An order to make the fragment 4 at `to` from the fragments 0, 1, ... at these addresses.
fn remake(made: &Blocks, from: &[&str], to: (u32, &str)) -> Command {
    let from: Vec<(u8, String)> = (0..).zip(from.iter().map(|at| (*at).to_owned())).collect();
    make(made.chunk, made.encoding.id(made.chunk), &from, &[(Some(4), to.0, to.1.to_owned())])
}

/// Nothing is done by then that waits until silence counts as an answer.
const SOON: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread")]
async fn destinations_that_do_not_answer_hold_up_only_what_goes_to_them() {
    let (places, manager) =
        ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Manager::start().await);
    let (one, two) = two_benefactors(&manager, &places).await;
    let silent = [(8, silent().await), (9, silent().await)];
    let own = one.address();
    let content = bytes(100, 100_000);
    put(&one.connection, &content).await.unwrap();
    let copy = |(to, address): (u32, String)| {
        make(ChunkId::of(&content), EncodingId::PLAIN, &[(0, own.clone())], &[(Some(0), to, address)])
    };
    let start = Instant::now();
    for (seed, (to, address)) in (0..).zip(silent.iter().cycle().take(6)) {
        let made = store_fragments(seed, &[&one, &one, &one]).await;
        manager.order(1, remake(&made, &[&own, &own, &own], (*to, address)));
    }
    (0..100).for_each(|_| silent.iter().for_each(|silent| manager.order(1, copy(silent.clone()))));
    let made = store_fragments(50, &[&one, &one, &one]).await;
    manager.order(1, remake(&made, &[&own, &own, &own], (2, &two.address())));
    manager.order(1, copy((2, two.address())));
    for block in [made.encoding.block(made.chunk, 4), whole(&content).0] {
        manager.wait("a block elsewhere", |told| reported_by(told, 2, block)).await;
    }
    // What is not under way goes back, for others to take it.
    for (to, _) in silent {
        let handed_back = |told: &Told| failed(told).iter().filter(|failed| failed.to == id(to)).count();
        manager.wait("what goes back", |told| handed_back(told) >= 50).await;
    }
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    one.stop().await;
    two.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sources_that_do_not_answer_are_passed_over_and_hold_up_only_what_needs_them() {
    let (places, manager) =
        ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Manager::start().await);
    let (one, two) = two_benefactors(&manager, &places).await;
    let (own, other, silent) = (one.address(), two.address(), silent().await);
    let start = Instant::now();
    // Of these the silent one alone is said to have the fragment 1.
    for seed in 0..6 {
        let made = store_fragments(seed, &[&one, &two, &two]).await;
        manager.order(1, remake(&made, &[&own, &silent, &other], (2, &other)));
    }
    let healthy = store_fragments(50, &[&one, &two, &two]).await;
    manager.order(1, remake(&healthy, &[&own, &other, &other], (2, &other)));
    let spare = store_fragments(51, &[&one, &two, &two, &two]).await;
    manager.order(1, remake(&spare, &[&own, &silent, &other, &other], (2, &other)));
    for made in [&healthy, &spare] {
        let block = made.encoding.block(made.chunk, 4);
        manager.wait("a fragment", |told| reported_by(told, 2, block)).await;
    }
    // Two wait on, and nobody beside them.
    manager.wait("the failures", |told| failed(told).len() >= 4).await;
    assert!(failed(&manager.told.lock()).iter().all(|failed| failed.to.is_none()));
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    one.stop().await;
    two.stop().await;
}

/// The fragments of `content` under (3, 2).
fn fragments(content: &[u8]) -> Blocks {
    let chunk = ChunkRef { id: ChunkId::of(content), length: u32::try_from(content.len()).unwrap() };
    Blocks::of(chunk, 0, Bytes::copy_from_slice(content), Code::erasure(3, 2).unwrap(), Maker::LOCAL)
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_fragments_are_made_anew_from_enough_others_even_if_one_is_damaged() {
    let places: Vec<_> = (0..6).map(|_| tempfile::tempdir().unwrap()).collect();
    let manager = Manager::start().await;
    let mut running = Vec::new();
    for (number, place) in places.iter().enumerate() {
        running.push(Running::start(config(place.path(), &manager.address())).await);
        manager.wait("its inventory", |told| told.inventories() == number + 1).await;
    }
    let content = bytes(4, 300_000);
    let (made, chunk) = (fragments(&content), ChunkId::of(&content));
    let id = made.encoding.id(chunk);
    // Fragment 4 is lost, and what the benefactor of fragment 1 serves is damaged.
    for (index, (block, stored)) in made.iter().take(4).enumerate() {
        put_block(&running[index].connection, block, made.encoding.clone(), stored).await.unwrap();
        sync(&running[index].connection, &[block]).await;
    }
    flip(&places[1].path().join("segments"), &made.stored(1).unwrap()[5_000..5_064]);
    let from: Vec<(u8, String)> =
        (0..4).map(|index| (index, running[usize::from(index)].address())).collect();
    let to = [(Some(4), 5, running[4].address()), (Some(1), 6, running[5].address())];
    manager.order(1, make(chunk, id, &from, &to));
    for (index, at) in [(4, 4u32), (1, 5)] {
        let block = made.encoding.block(chunk, index);
        manager.wait("the fragment", |told| reported_by(told, at + 1, block)).await;
        assert!(
            get(&running[at as usize].connection, block).await.unwrap()[..]
                == made.stored(index).unwrap()[..]
        );
    }
    manager.wait("the damage", |told| told.removed(made.encoding.block(chunk, 1))).await;
    // Two are not enough for another; a copy of all of it can be made of three.
    manager.order(1, make(chunk, id, &from[..2], &[(Some(3), 5, running[4].address())]));
    manager.wait("the failure", |told| failed(told) == [FailedCopy { chunk, to: None }]).await;
    manager.order(1, make(chunk, id, &from, &[(None, 5, running[4].address())]));
    manager.wait("the copy", |told| told.added(BlockId::plain(chunk))).await;
    assert!(get(&running[4].connection, BlockId::plain(chunk)).await.unwrap()[..] == content[..]);
    for running in running {
        running.stop().await;
    }
}

/// Fragments under (3, 2) whose hashes are those of other bytes, from this one on, under the name of `content`.
async fn store_made_up(content: &[u8], first: u8, at: &[&Running]) -> Encoding {
    let (made, chunk) = (fragments(content), ChunkId::of(content));
    let length = made.encoding.block_length() as usize;
    let stored = |index: u8| match index < first {
        true => made.stored(index).unwrap().to_vec(),
        false => bytes(900 + u64::from(index), length),
    };
    let hashes = (0..5).map(|index| ChunkId::of(&stored(index))).collect();
    let encoding = Encoding { hashes, ..made.encoding.clone() };
    for (index, at) in (0u8..).zip(at) {
        put_block(&at.connection, encoding.block(chunk, index), encoding.clone(), &stored(index))
            .await
            .unwrap();
    }
    encoding
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoding_is_checked_on_order_by_who_has_none_some_or_all_of_it() {
    let (places, manager) =
        ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Manager::start().await);
    let (one, two) = two_benefactors(&manager, &places).await;
    let mut said = 0;
    for (round, at) in [[&two, &two, &two], [&one, &two, &two], [&one, &one, &one]].into_iter().enumerate() {
        let content = bytes(70 + u64::try_from(round).unwrap(), 300_000);
        let (good, chunk) = (fragments(&content), ChunkId::of(&content));
        for ((block, stored), at) in good.iter().zip(at) {
            put_block(&at.connection, block, good.encoding.clone(), stored).await.unwrap();
        }
        // All is made up; or parity is, which nobody gathers.
        let (all, parity) = (store_made_up(&content, 0, &at).await, store_made_up(&content, 3, &at).await);
        for (encoding, is_right) in [(&good.encoding, true), (&all, false), (&parity, false)] {
            let id = encoding.id(chunk);
            let from: Vec<(u8, String)> = (0..).zip(at.iter().map(|at| at.address())).collect();
            manager.order(1, check(chunk, id, &from));
            said += 1;
            manager.wait("the verdict", |told| decoded(told).len() == said).await;
            let expected = Decoded { chunk, encoding: id, is_right };
            assert_eq!(decoded(&manager.told.lock()).last(), Some(&expected), "round {round}");
        }
    }
    // Too few can be had: that is no verdict.
    let content = bytes(80, 300_000);
    let made = store_fragments(80, &[&one, &one]).await;
    let chunk = ChunkId::of(&content);
    let from = [(0, one.address()), (1, one.address()), (2, "127.0.0.1:1".to_owned())];
    manager.order(1, check(chunk, made.encoding.id(chunk), &from));
    manager.wait("the failure", |told| failed(told) == [FailedCopy { chunk, to: None }]).await;
    assert_eq!(decoded(&manager.told.lock()).len(), said);
    one.stop().await;
    two.stop().await;
}

fn decoded(told: &Told) -> Vec<Decoded> {
    let decoded = told.requests.iter().filter_map(|request| match request {
        ManagerRequest::Heartbeat { decoded, .. } => Some(decoded),
        _ => None,
    });
    decoded.flatten().copied().collect()
}

fn reported_by(told: &Told, number: u32, wanted: BlockId) -> bool {
    told.requests.iter().any(|request| match request {
        ManagerRequest::Heartbeat { id, added, .. } => {
            *id == BenefactorId(number) && added.iter().any(|stored| stored.block == wanted)
        }
        // What comes before the first report is in that.
        ManagerRequest::Inventory { id, blocks, .. } => {
            *id == BenefactorId(number) && blocks.iter().any(|stored| stored.block == wanted)
        }
        _ => false,
    })
}

fn failed(told: &Told) -> Vec<FailedCopy> {
    let failed = told.requests.iter().filter_map(|request| match request {
        ManagerRequest::Heartbeat { copies_failed, .. } => Some(copies_failed),
        _ => None,
    });
    failed.flatten().copied().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_forgot_gets_registration_and_inventory_again() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    manager.wait("the inventory", |told| told.inventories() == 1).await;
    manager.order(1, Command::SendInventory);
    manager.wait("the ordered inventory", |told| told.inventories() == 2).await;
    manager.told.lock().stale = true;
    manager.wait("the inventory after `stale`", |told| told.inventories() == 3).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_that_is_looked_at_is_set_aside_and_reported_at_once() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    let content = bytes(5, 50_000);
    let block = whole(&content).0;
    put(&running.connection, &content).await.unwrap();
    manager.wait("the report", |told| told.added(block)).await;
    flip(&place.path().join("segments"), &content[20_000..20_064]);
    assert!(get(&running.connection, block).await.unwrap()[..] != content[..], "the reader's to find");
    let request = BenefactorRequest::Verify { blocks: vec![block, whole(b"never").0] };
    let (reply, _) =
        running.connection.call::<_, BenefactorReply>(&request, Bytes::new(), LIMIT).await.unwrap();
    let BenefactorReply::Verified { states } = reply else { panic!("{reply:?}") };
    assert_eq!(states, [BlockState::Damaged, BlockState::Missing]);
    manager.wait("the removal", |told| told.removed(block)).await;
    assert_eq!(code(&get(&running.connection, block).await.unwrap_err()), ErrorCode::NotFound);
    assert!(!put(&running.connection, &content).await.unwrap(), "it can be put again");
    assert!(get(&running.connection, block).await.unwrap()[..] == content[..]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_serves_on_without_its_manager_and_a_second_one_is_refused() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    put(&running.connection, b"kept").await.unwrap();
    manager.wait("the registration", |told| told.inventories() == 1).await;
    let second =
        stdchk_benefactor::run(config(place.path(), &manager.address()), std::future::pending()).await;
    assert!(second.unwrap_err().to_string().contains("in use by process"));
    running.stop().await;
    let nobody = "unix:/no/manager";
    let running = Running::start(config(place.path(), nobody)).await;
    assert_eq!(&get(&running.connection, whole(b"kept").0).await.unwrap()[..], b"kept");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_donation_is_kept() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let small =
        stdchk_benefactor::Config { donated_bytes: 1 << 20, ..config(place.path(), &manager.address()) };
    let running = Running::start(small).await;
    let mut refused = None;
    for seed in 0..20 {
        if let Err(error) = put(&running.connection, &bytes(seed, 100_000)).await {
            refused = Some(error);
            break;
        }
    }
    let refused = refused.unwrap();
    assert_eq!(code(&refused), ErrorCode::NoSpace);
    assert!(refused.to_string().contains("of 1.00 MiB are taken"), "{refused}");
    assert!(put(&running.connection, &bytes(0, 100_000)).await.unwrap(), "what is there needs no room");
    running.stop().await;
}

fn unreached(told: &Told, by: u32) -> Option<Vec<Unreached>> {
    told.requests.iter().rev().find_map(|request| match request {
        ManagerRequest::Unreached { id, unreached, .. } if *id == BenefactorId(by) => Some(unreached.clone()),
        _ => None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_a_benefactor_does_not_reach_it_says_until_it_does() {
    let (places, manager) =
        ([tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()], Manager::start().await);
    let one = Running::start(config(places[0].path(), &manager.address())).await;
    manager.wait("its inventory", |told| told.inventories() == 1).await;
    let content = bytes(90, 50_000);
    let chunk = ChunkId::of(&content);
    put(&one.connection, &content).await.unwrap();
    let to = config(places[1].path(), &manager.address()).listen;
    let order = || make(chunk, EncodingId::PLAIN, &[(0, one.address())], &[(None, 2, to.clone())]);
    manager.order(1, order());
    manager
        .wait("the failure", |told| failed(told) == [FailedCopy { chunk, to: Some(BenefactorId(2)) }])
        .await;
    manager.wait("its word", |told| unreached(told, 1).is_some()).await;
    let said = unreached(&manager.told.lock(), 1).unwrap();
    assert_eq!(said.len(), 1);
    assert_eq!((said[0].to, &said[0].address, said[0].is_slow), (BenefactorId(2), &to, false));
    // It has to say so to each manager.
    manager.told.lock().stale = true;
    let words = |told: &Told| {
        told.requests.iter().filter(|request| matches!(request, ManagerRequest::Unreached { .. })).count()
    };
    manager
        .wait("its word to a manager that forgot", |told| told.inventories() == 2 && words(told) >= 2)
        .await;
    let two = Running::start(config(places[1].path(), &manager.address())).await;
    manager.wait("that it is reached", |told| unreached(told, 1) == Some(Vec::new())).await;
    manager.order(1, order());
    // The manager gave a number at each of three registrations.
    manager.wait("the copy", |told| reported_by(told, 3, BlockId::plain(chunk))).await;
    one.stop().await;
    two.stop().await;
}
