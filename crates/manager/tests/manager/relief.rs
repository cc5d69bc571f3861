//! Benefactors whose owners need space for files of their own: as much as that goes, once others have it, and nothing else (I6, I9).

use std::collections::BTreeSet;

use crate::harness::{CHUNK_LENGTH, Pool, chunk, empty_load};
use stdchk_model::message::benefactor::{BenefactorLoad, Command, OwnerWish};
use stdchk_model::message::manager::{Change, FileKind};
use stdchk_model::{ChunkId, Ino};

/// Time after which nothing is young any more, milliseconds.
const AGE_MS: u64 = 61_000;
const BLOCK: u64 = CHUNK_LENGTH as u64;

/// Stores chunks as one file of a folder that keeps as many copies.
fn store(pool: &mut Pool, name: &str, chunks: &[u32], at: &[u32]) {
    let folder = pool.make(Ino::ROOT, name, FileKind::Directory);
    let pairs = vec![("redundancy".to_owned(), format!("replicate:{}", at.len()))];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let file = pool.make(folder, "a", FileKind::File);
    pool.write(1, file, chunks, at);
    at.iter().for_each(|at| drop(pool.beat(*at, chunks, &[])));
}

/// The load of a benefactor that has so many blocks and owes so many bytes.
fn owing(blocks: u64, owed_bytes: u64) -> BenefactorLoad {
    BenefactorLoad { blocks, owed_bytes, free_bytes: 0, ..empty_load() }
}

/// Which chunks are ordered to be copied, and which to be deleted.
fn orders(commands: &[Command]) -> (BTreeSet<ChunkId>, BTreeSet<ChunkId>) {
    let (mut copied, mut deleted) = (BTreeSet::new(), BTreeSet::new());
    for command in commands {
        match command {
            Command::Make(make) => _ = copied.insert(make.chunk),
            Command::Delete { blocks, .. } => deleted.extend(blocks.iter().map(|block| block.chunk)),
            _ => {}
        }
    }
    (copied, deleted)
}

/// Heartbeats of benefactor 0 with this load, for so long, and the others alive; what it is told.
fn beat_for(
    pool: &mut Pool,
    ms: u64,
    load: BenefactorLoad,
    others: &[u32],
) -> (BTreeSet<ChunkId>, BTreeSet<ChunkId>) {
    let mut told = Vec::new();
    for _ in 0..ms.div_ceil(1_000) {
        told.extend(pool.beat_with(0, load));
        pool.pass_alive(1_000, others);
    }
    told.extend(pool.beat_with(0, load));
    orders(&told)
}

#[test]
fn as_many_blocks_go_as_are_owed_once_others_have_them_and_no_more() {
    let mut pool = Pool::with_benefactors(2);
    let all: Vec<u32> = (1..=9).collect();
    store(&mut pool, "app", &all, &[0]);
    pool.pass_alive(AGE_MS, &[0, 1]);
    let (copied, deleted) = beat_for(&mut pool, 6_000, owing(9, 2 * BLOCK + 1), &[1]);
    assert_eq!((copied.len(), deleted.len()), (3, 0), "as many as make up what is owed");
    let status = pool.status();
    assert_eq!((status.chunks_moving, status.chunks_at_risk, status.exposed_chunks), (3, 0, 0));
    assert_eq!(pool.collect(), Ok(0));
    assert!(
        all.iter().all(|number| pool.locate(*number).contains(&0)),
        "nothing goes before the copy is there"
    );
    let moved: Vec<u32> = all.iter().copied().filter(|number| copied.contains(&chunk(*number))).collect();
    pool.beat(1, &moved, &[]);
    assert_eq!(pool.collect(), Ok(0));
    // It owes as much as before, until it has done what it was told.
    let (others, deleted) = beat_for(&mut pool, 5_000, owing(9, 2 * BLOCK + 1), &[1]);
    assert_eq!((others, deleted), (BTreeSet::new(), copied));
    let (others, deleted) = beat_for(&mut pool, 5_000, owing(6, 0), &[1]);
    assert_eq!((others.len(), deleted.len(), pool.status().chunks_moving), (0, 0, 0));
    assert!(all.iter().all(|number| pool.locate(*number).len() == 1));
}

#[test]
fn an_owner_who_needs_the_space_no_more_leaves_all_as_it_was() {
    let mut pool = Pool::with_benefactors(2);
    store(&mut pool, "app", &[1, 2, 3, 4], &[0]);
    pool.pass_alive(AGE_MS, &[0, 1]);
    // For a moment.
    pool.beat_with(0, owing(4, 2 * BLOCK));
    let (copied, _) = beat_for(&mut pool, 5_000, owing(4, 0), &[1]);
    assert_eq!((copied.len(), pool.status().chunks_moving), (0, 0), "free space goes up and down");
    // Until copies are ordered.
    let (copied, _) = beat_for(&mut pool, 4_000, owing(4, 4 * BLOCK), &[1]);
    assert_eq!((copied.len(), pool.status().chunks_moving), (4, 4));
    beat_for(&mut pool, 4_000, owing(4, BLOCK), &[1]);
    assert_eq!(pool.status().chunks_moving, 1, "less is owed");
    beat_for(&mut pool, 4_000, owing(4, 0), &[1]);
    assert_eq!(pool.status().chunks_moving, 0);
    assert_eq!((pool.collect(), pool.locate(1)), (Ok(0), vec![0]));
}

#[test]
fn what_nobody_needs_goes_first() {
    let mut pool = Pool::with_benefactors(2);
    store(&mut pool, "app", &[1], &[0]);
    store(&mut pool, "twice", &[2], &[0, 1]);
    // From now on one copy of it is enough.
    let ino = pool.attr("twice").unwrap().ino;
    let pairs = vec![("redundancy".to_owned(), "replicate:1".to_owned())];
    pool.change(Change::SetPolicy { ino, pairs }).unwrap();
    pool.pass_alive(AGE_MS, &[1]);
    pool.beat_with(0, owing(2, BLOCK));
    assert_eq!(pool.collect(), Ok(0));
    let (copied, deleted) = beat_for(&mut pool, 1_000, owing(2, BLOCK), &[1]);
    assert_eq!((copied.len(), deleted), (0, BTreeSet::from([chunk(2)])));
    let (copied, _) = beat_for(&mut pool, 5_000, owing(1, 0), &[1]);
    assert_eq!((copied.len(), pool.locate(1), pool.locate(2)), (0, vec![0], vec![1]));
}

#[test]
fn what_nobody_has_room_for_stays_and_others_go_in_its_place() {
    let mut pool = Pool::with_benefactors(2);
    store(&mut pool, "both", &[1, 2, 3], &[0, 1]);
    store(&mut pool, "one", &[4], &[0]);
    pool.pass_alive(AGE_MS, &[0, 1]);
    let (copied, _) = beat_for(&mut pool, 5_000, owing(4, BLOCK), &[1]);
    let status = pool.status();
    assert_eq!((copied.len(), status.chunks_unmovable, status.chunks_at_risk), (0, 1, 0));
    let (copied, _) = beat_for(&mut pool, 250_000, owing(4, BLOCK), &[1]);
    assert_eq!(copied, BTreeSet::from([chunk(4)]));
    pool.beat(1, &[4], &[]);
    assert_eq!(pool.collect(), Ok(0));
    let (_, deleted) = beat_for(&mut pool, 1_000, owing(4, BLOCK), &[1]);
    assert_eq!(deleted, copied);
    assert_eq!((pool.locate(1), pool.locate(2), pool.locate(3)), (vec![0, 1], vec![0, 1], vec![0, 1]));
}

#[test]
fn who_drains_owes_nothing_beside_and_who_is_forgotten_nothing_at_all() {
    let mut pool = Pool::with_benefactors(2);
    store(&mut pool, "app", &[1, 2], &[0]);
    pool.pass_alive(AGE_MS, &[0, 1]);
    beat_for(&mut pool, 4_000, owing(2, BLOCK), &[1]);
    assert_eq!(pool.status().chunks_moving, 1);
    let drains = BenefactorLoad { wish: OwnerWish::Drain, ..owing(2, BLOCK) };
    beat_for(&mut pool, 4_000, drains, &[1]);
    assert_eq!(pool.status().chunks_moving, 2);
    pool.beat(1, &[1, 2], &[]);
    assert_eq!(pool.collect(), Ok(0));
    let (_, deleted) = beat_for(&mut pool, 1_000, drains, &[1]);
    assert_eq!(deleted.len(), 2);
    pool.beat_with(0, BenefactorLoad { wish: OwnerWish::Leave, ..owing(0, BLOCK) });
    assert_eq!((pool.status().benefactors.len(), pool.status().chunks_moving), (1, 0));
}
