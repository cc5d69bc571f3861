//! Benefactors whose owners want their disks back: what is there is copied elsewhere first, then goes, and nobody is told of danger (I6).

use crate::harness::{Pool, chunk, empty_load};
use stdchk_model::message::benefactor::{BenefactorLoad, Command, OwnerWish};
use stdchk_model::message::manager::{Change, FileKind};
use stdchk_model::{BenefactorId, ErrorCode, Ino};

/// Time after which nothing is young any more, milliseconds.
const AGE_MS: u64 = 61_000;

/// A pool with a file in a folder of so many copies.
fn pool(benefactors: u32, replicas: u8) -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(benefactors);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = vec![("redundancy".to_owned(), format!("replicate:{replicas}"))];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let file = pool.make(folder, "a", FileKind::File);
    (pool, file)
}

/// Chunk 1 lies at these, with all copies that are wanted and no more.
fn stored_at(benefactors: u32, at: &[u32]) -> Pool {
    let (mut pool, file) = pool(benefactors, u8::try_from(at.len()).unwrap());
    pool.write(1, file, &[1], at);
    at.iter().for_each(|at| drop(pool.beat(*at, &[1], &[])));
    let all: Vec<u32> = (0..benefactors).collect();
    pool.pass_alive(AGE_MS, &all);
    pool
}

/// Where benefactors are ordered to put copies, asked one after the other.
fn ordered(pool: &mut Pool, benefactors: u32) -> Vec<u32> {
    let mut to = Vec::new();
    for number in 0..benefactors {
        for command in pool.beat(number, &[], &[]) {
            if let Command::Make(make) = command {
                to.extend(make.blocks.iter().map(|block| block.to.0));
            }
        }
    }
    to
}

/// Whether a benefactor is told to delete chunk 1.
fn is_to_delete(pool: &mut Pool, number: u32) -> bool {
    pool.beat(number, &[], &[]).iter().any(|command| {
        matches!(command, Command::Delete { blocks, .. } if blocks.iter().any(|block| block.chunk == chunk(1)))
    })
}

#[test]
fn what_is_drained_is_copied_then_deleted_and_is_never_at_risk() {
    let mut pool = stored_at(3, &[0, 1]);
    pool.wishes.insert(0, OwnerWish::Drain);
    assert_eq!(ordered(&mut pool, 3), [2]);
    let status = pool.status();
    assert_eq!((status.chunks_moving, status.chunks_unmovable), (1, 0));
    assert_eq!((status.chunks_at_risk, status.exposed_chunks, status.chunks_stuck), (0, 0, 0));
    assert_eq!(pool.collect(), Ok(0));
    assert_eq!(pool.locate(1), [0, 1], "nothing goes before the copy is there");
    pool.beat(2, &[1], &[]);
    assert_eq!(pool.status().chunks_moving, 0);
    assert_eq!(pool.trim(&[0, 1, 2]), Ok(0));
    assert_eq!(pool.locate(1), [1, 2]);
    assert_eq!([0, 1, 2].map(|number| is_to_delete(&mut pool, number)), [true, false, false]);
}

#[test]
fn the_only_copy_is_drained_and_what_is_committed_meanwhile_counts() {
    let (mut pool, file) = pool(2, 1);
    pool.wishes.insert(0, OwnerWish::Drain);
    pool.beat(0, &[], &[]);
    pool.write(1, file, &[1], &[0]);
    assert_eq!(ordered(&mut pool, 2), [1]);
    pool.pass_alive(AGE_MS, &[0, 1]);
    assert_eq!(pool.collect(), Ok(0));
    assert_eq!(pool.locate(1), [0]);
    pool.beat(1, &[1], &[]);
    assert_eq!(pool.trim(&[0, 1]), Ok(0));
    assert_eq!(pool.locate(1), [1]);
    assert!(is_to_delete(&mut pool, 0));
}

#[test]
fn where_too_few_stay_nothing_goes_and_a_change_of_mind_leaves_all_as_it_was() {
    let mut pool = stored_at(2, &[0, 1]);
    pool.wishes.insert(0, OwnerWish::Leave);
    for _ in 0..3 {
        assert_eq!(ordered(&mut pool, 2), [] as [u32; 0]);
        pool.pass_alive(1_000, &[0, 1]);
    }
    let status = pool.status();
    assert_eq!((status.chunks_moving, status.chunks_unmovable, status.chunks_stuck), (1, 1, 0));
    assert_eq!((pool.collect(), pool.locate(1)), (Ok(0), vec![0, 1]));
    pool.wishes.clear();
    pool.beat(0, &[], &[]);
    let status = pool.status();
    assert_eq!((status.chunks_moving, status.chunks_unmovable), (0, 0));
    assert_eq!((pool.collect(), pool.locate(1)), (Ok(0), vec![0, 1]));
}

#[test]
fn of_two_that_drain_none_counts_for_the_other() {
    let mut pool = stored_at(4, &[0, 1]);
    pool.wishes.extend([(0, OwnerWish::Drain), (1, OwnerWish::Drain)]);
    pool.beat(0, &[], &[]);
    // The other one says its wish, and is the first to get an order.
    let mut to: Vec<u32> = Vec::new();
    for command in pool.beat(1, &[], &[]) {
        if let Command::Make(make) = command {
            to.extend(make.blocks.iter().map(|block| block.to.0));
        }
    }
    to.sort_unstable();
    assert_eq!(to, [2, 3]);
    pool.beat(2, &[1], &[]);
    assert_eq!((pool.collect(), pool.locate(1)), (Ok(0), vec![0, 1, 2]), "one of those that stay is too few");
    pool.beat(3, &[1], &[]);
    assert_eq!((pool.trim(&[0, 1, 2, 3]), pool.locate(1)), (Ok(0), vec![2, 3]));
}

#[test]
fn one_that_dies_while_it_drains_is_missed_and_repaired_like_any_other() {
    let mut pool = stored_at(3, &[0, 1]);
    pool.wishes.insert(0, OwnerWish::Drain);
    pool.beat(0, &[], &[]);
    pool.pass_alive(31_000, &[1, 2]);
    let status = pool.status();
    assert_eq!((status.chunks_moving, status.chunks_at_risk), (0, 1));
    // The copy was ordered while it drained.
    pool.beat(2, &[1], &[]);
    assert_eq!((pool.status().chunks_at_risk, pool.locate(1)), (0, vec![1, 2]));
}

#[test]
fn who_leaves_is_forgotten_once_it_has_nothing_by_its_own_word_and_by_the_index() {
    let mut pool = stored_at(2, &[0]);
    let load = |blocks| BenefactorLoad { wish: OwnerWish::Leave, free_bytes: 0, blocks, ..empty_load() };
    assert!(!pool.beat_with(0, load(0)).contains(&Command::Forgotten), "the index has a block there");
    pool.beat(1, &[1], &[]);
    pool.beat_with(0, load(1));
    assert_eq!(pool.trim(&[0, 1]), Ok(0));
    assert_eq!(pool.locate(1), [1]);
    assert!(!pool.beat_with(0, load(1)).contains(&Command::Forgotten), "it has a block by its own word");
    assert_eq!(pool.beat_with(0, load(0)), [Command::Forgotten]);
    assert_eq!(pool.status().benefactors.len(), 1);
    // A receipt that it gave before counts no longer.
    let (_, receipt) = pool.receipt(0, &[2]);
    let file = pool.attr("app/a").unwrap().ino;
    pool.open(2, file);
    let request = stdchk_model::message::manager::ManagerRequest::Receipts {
        session: crate::harness::session(2),
        receipts: vec![(BenefactorId(0), receipt)],
    };
    assert_eq!(pool.ask(request).unwrap_err().code, ErrorCode::Outdated);
    // It may come back under its number.
    assert_eq!(pool.register(Some(0)), BenefactorId(0));
    assert_eq!(pool.status().benefactors.len(), 2);
}
