//! Copies beyond what is wanted: they go from the fullest holders, and never one that may be needed (I6).

use std::collections::BTreeSet;

use crate::harness::{GIB, Pool, chunk};
use proptest::prelude::*;
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::{Change, FileKind};
use stdchk_model::{ChunkId, Ino};

/// Time after which nothing is young any more, milliseconds.
const AGE_MS: u64 = 61_000;
const BENEFACTORS: u32 = 5;

fn deleted(commands: &[Command]) -> Vec<ChunkId> {
    let delete = |command: &Command| match command {
        Command::Delete { blocks, .. } => blocks.iter().map(|block| block.chunk).collect(),
        _ => Vec::new(),
    };
    commands.iter().flat_map(delete).collect()
}

fn pool_with_folder(benefactors: u32, replicas: u8) -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(benefactors);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = vec![("redundancy".to_owned(), format!("replicate:{replicas}"))];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    (pool, folder)
}

/// Chunk 1 at benefactors 0 and 1; 1 was lost, 2 got the copy, and 1 is back.
fn one_copy_too_many() -> Pool {
    let (mut pool, folder) = pool_with_folder(3, 2);
    let file = pool.make(folder, "a", FileKind::File);
    pool.write(1, file, &[1], &[0, 1]);
    pool.beat(0, &[1], &[]);
    pool.beat(1, &[1], &[]);
    pool.pass_alive(30_000, &[0, 2]);
    pool.beat(0, &[], &[]);
    pool.beat(2, &[1], &[]);
    assert_eq!(pool.locate(1), [0, 2]);
    assert_eq!(pool.collect().map_err(|failure| failure.code).ok(), None, "too early");
    pool.beat(1, &[], &[]);
    assert_eq!(pool.locate(1).len(), 3);
    pool
}

#[test]
fn when_a_lost_benefactor_is_back_the_fullest_holder_gives_its_copy_up() {
    let mut pool = one_copy_too_many();
    pool.pass_alive(AGE_MS, &[0, 1, 2]);
    pool.beat_with_free(2, GIB / 2);
    assert_eq!(pool.trim(&[0, 1, 2]), Ok(0), "no chunk goes");
    assert_eq!(pool.locate(1), [0, 1]);
    let asked = [0, 1, 2].map(|number| deleted(&pool.beat(number, &[], &[])));
    assert_eq!(asked, [vec![], vec![], vec![chunk(1)]]);
    pool.beat(2, &[], &[1]);
    pool.pass_alive(AGE_MS, &[0, 1, 2]);
    assert_eq!(pool.trim(&[0, 1, 2]), Ok(0));
    assert_eq!((pool.locate(1), pool.status().chunks_at_risk), (vec![0, 1], 0));
}

#[test]
fn a_holder_that_is_away_does_not_count_and_is_left_alone() {
    let mut pool = one_copy_too_many();
    pool.pass_alive(AGE_MS, &[0, 1, 2]);
    pool.pass_alive(6_000, &[0, 2]);
    assert_eq!(pool.trim(&[0, 2]), Ok(0));
    assert_eq!(pool.locate(1).len(), 3, "two are on-line, two are wanted");
    pool.pass_alive(30_000, &[0, 1, 2]);
    assert_eq!(pool.trim(&[0, 1, 2]), Ok(0));
    assert_eq!(pool.locate(1).len(), 2);
}

#[test]
fn a_holder_that_has_not_reported_in_this_life_does_not_count() {
    let mut pool = one_copy_too_many();
    pool.pass_alive(AGE_MS, &[0, 1, 2]);
    pool.register_only(Some(1));
    assert_eq!(pool.collect(), Ok(0));
    assert_eq!(pool.locate(1), [0, 2]);
}

#[test]
fn what_was_in_doubt_goes_as_soon_as_it_is_certain() {
    let (mut pool, folder) = pool_with_folder(4, 1);
    let file = pool.make(folder, "a", FileKind::File);
    pool.write(1, file, &[1], &[0]);
    (0..4).for_each(|holder| drop(pool.beat(holder, &[1], &[])));
    let garbage = pool.make(folder, "b", FileKind::File);
    pool.write(2, garbage, &[2], &[3]);
    pool.beat(3, &[2], &[]);
    pool.change(Change::Unlink { parent: folder, name: "b".to_owned() }).unwrap();
    pool.pass_alive(AGE_MS, &[0, 1, 2, 3]);
    assert_eq!(pool.trim(&[0, 1, 2]), Ok(1));
    assert_eq!(pool.locate(1).len(), 2, "at the last one something is yet to be deleted");
    (0..4).for_each(|holder| drop(pool.beat(holder, &[], &[])));
    assert_eq!(pool.trim(&[0, 1, 2, 3]), Ok(0));
    assert_eq!(pool.locate(1).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn of_what_is_certain_as_many_copies_stay_as_are_wanted(
        replicas in 1u8..=3,
        holders in proptest::collection::vec(proptest::collection::btree_set(0..BENEFACTORS, 1..=5), 1..=6),
        silent in proptest::collection::btree_set(0..BENEFACTORS, 0..=2),
        silence_ms in prop_oneof![Just(6_000u64), Just(31_000)],
        pinned in proptest::collection::btree_set(0u32..6, 0..=2),
    ) {
        let (mut pool, folder) = pool_with_folder(BENEFACTORS, replicas);
        for (number, at) in (0u32..).zip(&holders) {
            let file = pool.make(folder, &number.to_string(), FileKind::File);
            let at: Vec<u32> = at.iter().copied().collect();
            pool.write(1, file, &[number], at.get(..1).unwrap());
            at.iter().for_each(|holder| drop(pool.beat(*holder, &[number], &[])));
        }
        let other = pool.make(folder, "other", FileKind::File);
        pool.open(2, other);
        pinned.iter().for_each(|number| drop(pool.known(2, *number)));
        let all: Vec<u32> = (0..BENEFACTORS).collect();
        let awake: Vec<u32> = all.iter().copied().filter(|number| !silent.contains(number)).collect();
        pool.pass_alive(AGE_MS, &all);
        pool.pass_alive(silence_ms, &awake);
        prop_assert_eq!(pool.trim(&awake), Ok(0));
        let mut gone: BTreeSet<(ChunkId, u32)> = BTreeSet::new();
        for number in &awake {
            gone.extend(deleted(&pool.beat(*number, &[], &[])).into_iter().map(|id| (id, *number)));
        }
        for (number, at) in (0u32..).zip(&holders) {
            let certain = at.iter().filter(|holder| awake.contains(holder)).count();
            let stay = at.iter().filter(|holder| awake.contains(holder) && !gone.contains(&(chunk(number), **holder)));
            let stay = stay.count();
            prop_assert!(stay >= certain.min(usize::from(replicas)), "chunk {}: {} of {}", number, stay, certain);
            if pinned.contains(&number) {
                prop_assert_eq!(stay, certain);
            } else if certain > usize::from(replicas) {
                prop_assert_eq!(stay, usize::from(replicas));
            }
        }
    }
}
