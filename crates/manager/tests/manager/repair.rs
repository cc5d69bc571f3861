//! What becomes of orders to make blocks that fail: who is avoided, what is tried next, and when (I6).

use crate::harness::{CHUNK_LENGTH, Pool, chunk, empty_load, session};
use stdchk_model::limits::BESIDE_BLOCK_BYTES_MAX;
use stdchk_model::message::benefactor::{Command, FailedCopy, Make, OwnerWish};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, StoredBlock};
use stdchk_model::{BenefactorId, BlockId, Code, EncodingId, Incarnation, Ino, Maker};

/// A pool with a file in a folder that is kept in this way.
fn pool(benefactors: u32, redundancy: &str) -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(benefactors);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = vec![("redundancy".to_owned(), redundancy.to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let file = pool.make(folder, "app.N0.T1", FileKind::File);
    (pool, file)
}

/// Commits chunk 1, of which the fragment number `index` lies at the benefactor number `index` of these.
fn write_coded(pool: &mut Pool, file: Ino, code: (u8, u8), at: &[u32]) {
    pool.open(1, file);
    for (index, at) in (0u8..).zip(at) {
        let receipts = vec![pool.receipt_of(*at, vec![fragment(code, index)])];
        pool.ask(ManagerRequest::Receipts { session: session(1), receipts }).unwrap();
    }
    pool.commit(1, &[1]).unwrap();
    pool.close(1);
}

fn fragment((data, parity): (u8, u8), index: u8) -> StoredBlock {
    let encoding =
        EncodingId { code: Code::erasure(data, parity).unwrap(), tag: [7; 16], maker: Maker::LOCAL };
    let block = BlockId { chunk: chunk(1), encoding, index };
    StoredBlock { block, plain_length: crate::harness::CHUNK_LENGTH, stored_length: 500 }
}

fn makes(commands: Vec<Command>) -> Vec<Make> {
    let make = |command| match command {
        Command::Make(make) => Some(make),
        _ => None,
    };
    commands.into_iter().filter_map(make).collect()
}

/// Where the only order leads to that a benefactor gets now; nowhere if it gets none.
fn destinations(pool: &mut Pool, at: u32) -> Vec<u32> {
    destinations_after(pool, at, &[])
}

/// Where the only order leads to that a benefactor gets when it reports that it has these chunks.
fn destinations_after(pool: &mut Pool, at: u32, added: &[u32]) -> Vec<u32> {
    let made = makes(pool.beat(at, added, &[]));
    assert!(made.len() <= 1, "{made:?}");
    made.iter().flat_map(|make| &make.blocks).map(|block| block.to.0).collect()
}

/// The benefactor could not put a block of the chunk at `to`, or could not make it at all. What it is to make now.
fn fail(pool: &mut Pool, at: u32, number: u32, to: Option<u32>) -> Vec<Make> {
    report(pool, at, &[], FailedCopy { chunk: chunk(number), to: to.map(BenefactorId) })
}

/// The benefactor reports that blocks are gone and what failed. What it is to make now.
fn report(pool: &mut Pool, at: u32, removed: &[BlockId], failed: FailedCopy) -> Vec<Make> {
    let report = ManagerRequest::Heartbeat {
        id: BenefactorId(at),
        registration: pool.first_registration(at),
        load: empty_load(),
        durable_sequence: 0,
        added: Vec::new(),
        removed: removed.to_vec(),
        damaged: 0,
        copies_failed: vec![failed],
        put_sequence: crate::harness::TOLD,
        decoded: Vec::new(),
        seen: Vec::new(),
        disk: None,
    };
    match pool.ask(report).unwrap() {
        ManagerReply::Commands(commands) => makes(commands),
        other => panic!("{other:?}"),
    }
}

// --- destinations

#[test]
fn of_several_destinations_only_the_one_that_failed_is_avoided_and_what_arrived_counts() {
    let (mut pool, file) = pool(5, "replicate:4");
    pool.write(1, file, &[1], &[0]);
    let first = destinations(&mut pool, 0);
    let [good, bad, late] = first[..] else { panic!("{first:?}") };
    pool.beat(good, &[1], &[]);
    assert_eq!(fail(&mut pool, 0, 1, Some(bad)), [], "one is still under way");
    let other = (1..5).find(|number| !first.contains(number)).unwrap();
    let next = destinations_after(&mut pool, late, &[1]);
    assert_eq!(pool.status().repairs_done, 2);
    assert!(matches!(next[..], [to] if to == other || to == bad), "at once: {next:?}");
    // The first source does without the one that failed, and goes on using the others.
    pool.write(2, file, &[2], &[0]);
    let mut next = destinations(&mut pool, 0);
    next.sort_unstable();
    let mut healthy = vec![good, late, other];
    healthy.sort_unstable();
    assert_eq!(next, healthy);
}

#[test]
fn a_destination_that_failed_is_tried_again_if_there_is_no_other() {
    let (mut pool, file) = pool(2, "replicate:2");
    pool.write(1, file, &[1], &[0]);
    assert_eq!(destinations(&mut pool, 0), [1]);
    assert_eq!(fail(&mut pool, 0, 1, Some(1)), []);
    for _ in 0..4 {
        pool.pass_alive(1_000, &[1]);
        assert_eq!(destinations(&mut pool, 0), [0_u32; 0]);
    }
    pool.pass_alive(1_000, &[1]);
    assert_eq!(destinations(&mut pool, 0), [1]);
}

#[test]
fn what_goes_to_another_benefactor_goes_on_when_one_goes_away() {
    let (mut pool, file) = pool(5, "replicate:3");
    pool.write(1, file, &[1], &[0]);
    let first = destinations(&mut pool, 0);
    let [gone, slow] = first[..] else { panic!("{first:?}") };
    let others: Vec<u32> = (0..5).filter(|number| *number != gone).collect();
    pool.pass_alive(6_000, &others);
    assert_eq!(destinations(&mut pool, 0), [0_u32; 0], "one is still under way");
    let next = destinations_after(&mut pool, slow, &[1]);
    assert!(matches!(next[..], [next] if next != 0 && !first.contains(&next)), "{next:?}");
}

// --- sources

#[test]
fn what_cannot_be_made_is_tried_again_ever_more_rarely() {
    let (mut pool, file) = pool(3, "replicate:3");
    pool.write(1, file, &[1], &[0]);
    let mut pauses = Vec::new();
    let mut since = 0;
    while pauses.len() < 9 {
        pool.pass(1_000);
        pool.beat(1, &[], &[]);
        pool.beat(2, &[], &[]);
        if !destinations(&mut pool, 0).is_empty() {
            pauses.push(since);
            since = 0;
            assert_eq!(fail(&mut pool, 0, 1, None), []);
        }
        since += 1;
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
    // Another holder may do better, or have made it better.
    assert_eq!(destinations_after(&mut pool, 1, &[1]), [2]);
    fail(&mut pool, 1, 1, None);
    pool.pass_alive(1_000, &[2]);
    assert_eq!(destinations(&mut pool, 0), [2], "as if it had failed for the first time");
}

#[test]
fn what_one_holder_cannot_copy_another_one_copies() {
    let (mut pool, file) = pool(3, "replicate:3");
    pool.write(1, file, &[1], &[0, 1]);
    assert_eq!(destinations(&mut pool, 0), [2]);
    fail(&mut pool, 0, 1, None);
    assert_eq!(destinations(&mut pool, 1), [0_u32; 0], "the cause may pass");
    pool.pass_alive(1_000, &[2]);
    assert_eq!(destinations(&mut pool, 0), [0_u32; 0]);
    assert_eq!(destinations(&mut pool, 1), [2]);
    fail(&mut pool, 1, 1, None);
    pool.pass_alive(2_000, &[2]);
    assert_eq!(destinations(&mut pool, 0), [2], "there is no other way");
}

#[test]
fn fragments_that_cannot_be_made_by_one_are_made_by_another() {
    let (mut pool, file) = pool(5, "erasure:3,2");
    write_coded(&mut pool, file, (3, 2), &[0, 1, 2, 3]);
    let mut tried = Vec::new();
    for _ in 0..4 {
        let asked: Vec<u32> = (0..4).filter(|at| !destinations(&mut pool, *at).is_empty()).collect();
        assert_eq!(asked.len(), 1);
        fail(&mut pool, asked[0], 1, None);
        tried.extend(asked);
        pool.pass_alive(4_000, &[4]);
    }
    tried.sort_unstable();
    assert_eq!(tried, [0, 1, 2, 3]);
}

#[test]
fn copies_are_made_of_a_copy_and_not_of_fragments_that_nobody_has_decoded() {
    let (mut pool, file) = pool(8, "erasure:3,2");
    write_coded(&mut pool, file, (3, 2), &[0, 1, 2, 3]);
    let made = makes(pool.beat(7, &[1], &[]));
    assert_eq!((made[0].from.len(), made[0].blocks.len()), (1, 2));
    assert!(made[0].from[0].encoding == EncodingId::PLAIN);
    for at in 0..4 {
        assert_eq!(destinations(&mut pool, at), [0_u32; 0], "it is on order");
    }
}

#[test]
fn what_a_benefactor_had_on_order_is_ordered_anew_when_it_starts_again() {
    let (mut pool, file) = pool(2, "replicate:2");
    pool.write(1, file, &[1], &[0]);
    assert_eq!(destinations(&mut pool, 0), [1]);
    pool.register_only(Some(0));
    pool.inventory(0, &[1]);
    assert_eq!(makes(pool.beat_last(0, &[])).len(), 1);
}

#[test]
fn what_a_benefactor_had_on_order_is_ordered_anew_when_its_connection_broke() {
    let (mut pool, file) = pool(3, "replicate:3");
    pool.write(1, file, &[1], &[0]);
    assert_eq!(destinations(&mut pool, 0).len(), 2);
    // Of a destination nothing is asked anew.
    pool.register_as(Some(1), Incarnation(2), None);
    pool.inventory_as(1, Incarnation(2), &[]).unwrap();
    assert_eq!(destinations(&mut pool, 0), [0_u32; 0]);
    pool.register_as(Some(0), Incarnation(1), None);
    pool.inventory_as(0, Incarnation(1), &[1]).unwrap();
    assert_eq!(destinations(&mut pool, 0).len(), 2, "the order may have been lost with the connection");
}

// --- too few benefactors for a code

#[test]
fn copies_stand_in_for_fragments_that_can_never_be_spread() {
    let (mut pool, file) = pool(3, "erasure:6,2");
    write_coded(&mut pool, file, (6, 2), &[0, 1, 2, 0, 1, 2, 0, 1]);
    assert_eq!(pool.status().chunks_at_risk, 1);
    let made: Vec<Make> = (0..3).flat_map(|at| makes(pool.beat(at, &[], &[]))).collect();
    assert_eq!(made.len(), 1);
    assert!(made[0].blocks.iter().all(|block| block.index.is_none()), "{made:?}");
    for at in 0..3 {
        pool.beat(at, &[1], &[]);
    }
    assert_eq!(pool.status().chunks_at_risk, 0);
}

#[test]
fn fragments_wait_for_a_benefactor_that_is_away_unless_the_next_loss_would_take_the_chunk() {
    let (mut pool, file) = pool(5, "erasure:3,2");
    write_coded(&mut pool, file, (3, 2), &[0, 1, 2, 3, 4]);
    pool.pass_alive(31_000, &[0, 1, 2, 3]);
    assert_eq!((pool.status().chunks_at_risk, pool.status().chunks_stuck), (1, 1));
    pool.pass_alive(29_000, &[0, 1, 2]);
    pool.pass(1_500);
    assert_eq!(copies_made(&mut pool), 3);
}

#[test]
fn copies_stand_in_for_fragments_that_only_a_full_benefactor_could_have() {
    let (mut pool, file) = pool(5, "erasure:3,2");
    pool.beat_with_free(4, 0);
    // Two lie at one benefactor.
    write_coded(&mut pool, file, (3, 2), &[0, 1, 0, 2, 3]);
    assert_eq!((copies_made(&mut pool), pool.status().chunks_at_risk), (3, 1));
    (0..3).for_each(|at| drop(pool.beat(at, &[1], &[])));
    assert_eq!(pool.status().chunks_at_risk, 0);
}

#[test]
fn one_whose_room_is_as_large_as_a_chunk_is_asked_for_nothing() {
    let (mut pool, file) = pool(2, "replicate:2");
    let length = u64::from(CHUNK_LENGTH);
    pool.beat_with_free(1, length);
    pool.write(1, file, &[1], &[0]);
    assert_eq!(destinations(&mut pool, 0), [0_u32; 0], "the head of its record has no room there");
    pool.beat_with_free(1, length + BESIDE_BLOCK_BYTES_MAX);
    assert_eq!(destinations(&mut pool, 0), [1]);
}

#[test]
fn who_leaves_does_not_wait_for_one_that_is_full() {
    let (mut pool, file) = pool(6, "replicate:3");
    pool.beat_with_free(5, 0);
    write_coded(&mut pool, file, (3, 2), &[0, 1, 2, 3, 4]);
    assert_eq!((copies_made(&mut pool), pool.status().chunks_at_risk), (0, 0));
    pool.wishes.insert(4, OwnerWish::Leave);
    pool.beat(4, &[], &[]);
    assert_eq!((copies_made(&mut pool), pool.status().chunks_moving), (3, 1));
    (0..3).for_each(|at| drop(pool.beat(at, &[1], &[])));
    assert_eq!((pool.status().chunks_moving, pool.status().chunks_at_risk), (0, 0), "copies are enough");
}

#[test]
fn fragments_that_can_be_placed_come_before_copies_in_their_place() {
    let (mut pool, file) = pool(6, "erasure:3,2");
    write_coded(&mut pool, file, (3, 2), &[0, 1, 2, 3, 4]);
    pool.pass_alive(29_000, &[0, 1, 2, 5]);
    pool.pass(1_500);
    let made = makes(pool.beat(0, &[], &[]));
    let indices: Vec<_> = made.iter().flat_map(|make| &make.blocks).map(|block| block.index).collect();
    assert!(matches!(indices[..], [Some(3 | 4)]), "{made:?}");
}

/// How many copies of fragments the first three benefactors are to make.
fn copies_made(pool: &mut Pool) -> usize {
    let made: Vec<Make> = (0..3).flat_map(|at| makes(pool.beat(at, &[], &[]))).collect();
    assert!(made.iter().flat_map(|make| &make.blocks).all(|block| block.index.is_none()), "{made:?}");
    made.iter().flat_map(|make| &make.blocks).count()
}

#[test]
fn fragments_wait_for_benefactors_that_are_silent_for_a_moment() {
    let (mut pool, file) = pool(5, "erasure:3,2");
    pool.pass_alive(6_000, &[0, 1, 2]);
    write_coded(&mut pool, file, (3, 2), &[0, 1, 2]);
    assert_eq!((copies_made(&mut pool), pool.status().chunks_stuck), (0, 1));
    pool.pass_alive(22_000, &[0, 1, 2]);
    assert_eq!(copies_made(&mut pool), 0);
    pool.pass(3_000);
    assert_eq!(copies_made(&mut pool), 3);
}

#[test]
fn what_failed_for_a_block_that_is_gone_is_made_at_once_without_it() {
    let (mut pool, file) = pool(4, "replicate:3");
    pool.write(1, file, &[1], &[0, 1]);
    assert_eq!(destinations(&mut pool, 0).len(), 1);
    let failed = FailedCopy { chunk: chunk(1), to: None };
    let made = report(&mut pool, 0, &[BlockId::plain(chunk(1))], failed);
    assert_eq!(made, [], "it has none to copy");
    assert_eq!(destinations(&mut pool, 1).len(), 2);
}
