//! The memory tier: what lies in memory is enough for a commit where the folder says so, and counts for nothing else.

use crate::harness::{CHUNK_LENGTH, Pool, chunk, empty_load, session};
use stdchk_model::message::benefactor::{BenefactorLoad, Command, Make};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ErrorCode, Ino, Tier};

/// Benefactors with disks are 0 to 2, and these keep blocks in memory.
const MEMORY: [u32; 2] = [3, 4];
const DISKS: [u32; 3] = [0, 1, 2];

/// A pool of these benefactors, and a folder with these values of its policy.
fn pool_with(policy: &[(&str, &str)]) -> (Pool, Ino) {
    let mut pool = Pool::new();
    pool.in_memory.extend(MEMORY);
    (0..5).for_each(|number| assert_eq!(pool.register(None), BenefactorId(number)));
    let folder = folder(&mut pool, "app", policy);
    (pool, folder)
}

fn folder(pool: &mut Pool, name: &str, policy: &[(&str, &str)]) -> Ino {
    let folder = pool.make(Ino::ROOT, name, FileKind::Directory);
    let pairs = policy.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    folder
}

fn file(pool: &mut Pool, folder: Ino, timestep: u32) -> Ino {
    pool.make(folder, &format!("app.N0.T{timestep}"), FileKind::File)
}

fn makes(commands: Vec<Command>) -> Vec<Make> {
    let make = |command| match command {
        Command::Make(make) => Some(make),
        _ => None,
    };
    commands.into_iter().filter_map(make).collect()
}

/// The chunks that a benefactor is told to delete.
fn deleted(commands: Vec<Command>) -> usize {
    let blocks = |command| match command {
        Command::Delete { blocks, .. } => blocks.len(),
        _ => 0,
    };
    commands.into_iter().map(blocks).sum()
}

/// The manager does what is due.
fn work(pool: &mut Pool) {
    pool.pass(300);
    while pool.core.work(pool.now) {}
}

/// How much each of those that keep blocks in memory is told to delete, once the manager has done what is due and they have seen what disks have.
fn emptied(pool: &mut Pool) -> [usize; 2] {
    let mut all = [0; 2];
    for _ in 0..6 {
        work(pool);
        for (all, at) in all.iter_mut().zip(MEMORY) {
            *all += deleted(pool.beat(at, &[], &[]));
        }
    }
    all
}

/// The benefactors of a stripe, by where they keep blocks.
fn stripe(pool: &mut Pool, number: u8) -> (Vec<u32>, Vec<u32>) {
    let bytes = u64::from(CHUNK_LENGTH);
    let request = ManagerRequest::Reserve { session: session(number), bytes, avoid: Vec::new() };
    let ManagerReply::Stripe { benefactors, .. } = pool.ask(request).unwrap() else { panic!("no stripe") };
    let of = |tier| {
        let mut those: Vec<u32> =
            benefactors.iter().filter(|info| info.tier == tier).map(|info| info.id.0).collect();
        those.sort_unstable();
        those
    };
    (of(Tier::Disk), of(Tier::Memory))
}

#[test]
fn enough_copies_in_memory_or_one_on_a_disk_are_enough_for_a_commit_where_the_folder_says_so() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2")]);
    for (at, is_enough) in [(&[3][..], false), (&[3, 4], true), (&[0], true), (&[0, 3], true), (&[], false)] {
        let number = u8::try_from(10 + at.len() + at.iter().sum::<u32>() as usize).unwrap();
        let ino = file(&mut pool, folder, u32::from(number));
        pool.open(number, ino);
        pool.secure(number, &[u32::from(number)], at);
        let committed = pool.commit(number, &[u32::from(number)]);
        assert_eq!(committed.is_ok(), is_enough, "{at:?}: {committed:?}");
        if let Err(failure) = committed {
            assert_eq!(failure.code, ErrorCode::Unavailable);
            assert!(failure.message.contains("memory of 2 benefactors"), "{failure}");
        }
    }
}

#[test]
fn what_is_in_memory_counts_for_nothing_in_other_folders() {
    let (mut pool, app) = pool_with(&[("semantics", "memory:2")]);
    let ino = file(&mut pool, app, 1);
    pool.write(1, ino, &[1], &MEMORY);
    for (number, semantics) in [(2, "optimistic"), (3, "pessimistic")] {
        let other = folder(&mut pool, semantics, &[("semantics", semantics)]);
        let ino = file(&mut pool, other, 1);
        pool.open(number, ino);
        let found = pool.known(number, 1);
        let in_memory = found.at.iter().filter(|at| at.tier == Tier::Memory).count();
        assert_eq!((in_memory, found.at.len()), (2, usize::from(number)), "its writer is told what it found");
        pool.secure(number, &[1], &MEMORY);
        assert_eq!(pool.commit(number, &[1]).unwrap_err().code, ErrorCode::Unavailable, "{semantics}");
        pool.secure(number, &[1], if number == 2 { &[0] } else { &[0, 1] });
        assert_eq!(pool.commit(number, &[1]), Ok(1));
    }
}

#[test]
fn disks_follow_and_memory_is_empty_then() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2")]);
    let ino = file(&mut pool, folder, 1);
    pool.write(1, ino, &[1], &MEMORY);
    let status = pool.status();
    assert_eq!((status.memory.chunks_alone, status.chunks_at_risk, status.chunks_lost), (1, 1, 0));
    assert_eq!(pool.exposed(folder)[0].1.unwrap().in_memory, 1);
    work(&mut pool);
    assert_eq!(deleted(pool.beat(3, &[], &[])), 0, "nobody else has it");
    assert_eq!(pool.locate(1).len(), 2);

    let (mut pool, folder) = pool_with(&[("semantics", "memory:2")]);
    let ino = file(&mut pool, folder, 1);
    pool.write(1, ino, &[1], &MEMORY);
    let made = makes(pool.beat(3, &[], &[]));
    let to: Vec<u32> = made[0].blocks.iter().map(|block| block.to.0).collect();
    assert_eq!((made.len(), to.len()), (1, 2));
    assert!(to.iter().all(|to| DISKS.contains(to)), "copies that count lie on disks: {to:?}");
    assert!(makes(pool.beat(4, &[], &[])).is_empty(), "one makes them");
    pool.beat(to[0], &[1], &[]);
    let status = pool.status();
    assert_eq!((status.memory.chunks_alone, status.chunks_at_risk), (0, 1));
    assert_eq!(pool.exposed(folder)[0].1.unwrap().in_memory, 0);
    let order = pool.locate(1);
    assert!(
        order[..2].iter().all(|at| MEMORY.contains(at)) && order[2] == to[0],
        "memory is read first: {order:?}"
    );
    work(&mut pool);
    assert_eq!(deleted(pool.beat(3, &[], &[])), 0, "a disk lacks it still");
    pool.beat(to[1], &[1], &[]);
    assert_eq!(pool.status().chunks_at_risk, 0);
    assert_eq!(emptied(&mut pool), [1, 1]);
    let mut left = pool.locate(1);
    left.sort_unstable();
    let mut expected = to;
    expected.sort_unstable();
    assert_eq!(left, expected);
}

#[test]
fn memory_is_not_emptied_for_disks_that_are_in_doubt() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2"), ("redundancy", "replicate:1")]);
    let ino = file(&mut pool, folder, 1);
    pool.write(1, ino, &[1], &MEMORY);
    pool.beat(0, &[1], &[]);
    // It has fewer blocks than it said: which, nobody knows.
    pool.beat_with(0, BenefactorLoad { blocks: 0, ..empty_load() });
    assert_eq!(emptied(&mut pool)[0], 0);
    pool.beat_with(0, BenefactorLoad { disk_failed: true, ..empty_load() });
    assert_eq!(emptied(&mut pool)[0], 0);
    pool.beat(0, &[], &[]);
    assert_eq!(emptied(&mut pool)[0], 1);
}

#[test]
fn one_copy_on_a_disk_is_made_where_one_is_asked_for_and_writers_wait_for_it_as_exposure_says() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:1"), ("redundancy", "replicate:1")]);
    let first = file(&mut pool, folder, 1);
    assert_eq!(pool.write_held(1, first, &[1], &[3]), None);
    let second = file(&mut pool, folder, 2);
    let hold = pool.write_held(2, second, &[2], &[3]).unwrap();
    assert_eq!(pool.waiting(second, hold), Some(1));
    let made = makes(pool.beat(3, &[], &[]));
    assert_eq!(
        made.iter().map(|make| make.chunk).collect::<Vec<_>>(),
        [chunk(1), chunk(2)],
        "the oldest first"
    );
    assert!(made.iter().all(|make| make.blocks.len() == 1));
    pool.beat(made[0].blocks[0].to.0, &[1], &[]);
    assert_eq!(pool.waiting(second, hold), None);
}

#[test]
fn a_code_has_as_many_copies_on_disks_as_it_survives_losses_and_one() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2"), ("redundancy", "erasure:2,1")]);
    let ino = file(&mut pool, folder, 1);
    pool.write(1, ino, &[1], &MEMORY);
    let made = makes(pool.beat(3, &[], &[]));
    assert_eq!(made[0].blocks.len(), 2);
}

#[test]
fn a_stripe_has_memory_only_where_it_is_enough_for_a_commit_and_enough_of_it_has_room() {
    let (mut pool, app) = pool_with(&[("semantics", "memory:2")]);
    let ino = file(&mut pool, app, 1);
    pool.open(1, ino);
    assert_eq!(stripe(&mut pool, 1), (DISKS.to_vec(), MEMORY.to_vec()));
    let plain = folder(&mut pool, "plain", &[]);
    let other = file(&mut pool, plain, 1);
    pool.open(2, other);
    assert_eq!(stripe(&mut pool, 2), (DISKS.to_vec(), vec![]));
    pool.beat_with_free(3, 1 << 20);
    assert_eq!(stripe(&mut pool, 1), (DISKS.to_vec(), vec![]), "two are needed, and one is full");
    pool.beat(3, &[], &[]);
    // Those of one machine are lost together, but there are no others.
    assert_eq!(stripe(&mut pool, 1).1, MEMORY);
    let space = pool.status().space;
    assert_eq!(space.donated_bytes, 3 * crate::harness::GIB, "memory is no part of the space");
    assert_eq!((pool.status().memory.benefactors, pool.core.keepers().count()), (2, 3));
}

#[test]
fn what_was_only_in_memory_is_lost_with_it_and_nobody_waits_for_it() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2")]);
    let ino = file(&mut pool, folder, 1);
    pool.write(1, ino, &[1], &MEMORY);
    // One comes back with nothing: the other has it still.
    pool.register(Some(3));
    assert_eq!(pool.locate(1), [4]);
    assert_eq!((pool.status().chunks_lost, pool.status().memory.chunks_alone), (0, 1));
    pool.register(Some(4));
    let found = pool.one_location(ManagerRequest::Locate { chunks: vec![chunk(1)] });
    assert!(found.at.is_empty() && found.away.is_empty() && !found.pending, "{found:?}");
    let status = pool.status();
    assert_eq!((status.chunks_lost, status.chunks_away, status.memory.chunks_alone), (1, 0, 0));
}

#[test]
fn memory_of_a_benefactor_that_is_lost_is_given_up_and_a_disk_is_not() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:1"), ("redundancy", "replicate:1")]);
    for (number, at) in [(1, 3), (2, 0)] {
        let ino = file(&mut pool, folder, number);
        pool.write(u8::try_from(number).unwrap(), ino, &[number], &[at]);
    }
    pool.pass_alive(10_000, &[1, 2, 4]);
    let away = |pool: &mut Pool, number| {
        let found = pool.one_location(ManagerRequest::Locate { chunks: vec![chunk(number)] });
        (found.at.len(), found.away)
    };
    assert_eq!([away(&mut pool, 1).0, away(&mut pool, 2).0], [1, 1], "silence may mean nothing yet");
    assert_eq!((pool.status().chunks_lost, pool.status().chunks_away), (0, 2));
    pool.pass_alive(25_000, &[1, 2, 4]);
    assert_eq!(away(&mut pool, 1), (0, vec![]));
    assert_eq!(away(&mut pool, 2), (0, vec![BenefactorId(0)]));
    assert_eq!((pool.status().chunks_lost, pool.status().chunks_away), (1, 1));
}

#[test]
fn a_manager_that_was_started_again_knows_who_keeps_blocks_in_memory() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2")]);
    let ino = file(&mut pool, folder, 1);
    pool.write(1, ino, &[1], &MEMORY);
    pool.restart();
    assert_eq!(pool.core.keepers().count(), 3);
    DISKS.iter().for_each(|number| _ = pool.register(Some(*number)));
    let found = pool.one_location(ManagerRequest::Locate { chunks: vec![chunk(1)] });
    assert_eq!((found.at.len(), found.away.len()), (0, 2), "they may have it still");
    for _ in 0..40 {
        pool.pass(1_000);
        DISKS.iter().for_each(|number| _ = pool.register(Some(*number)));
    }
    let found = pool.one_location(ManagerRequest::Locate { chunks: vec![chunk(1)] });
    assert!(found.at.is_empty() && found.away.is_empty(), "{found:?}");
    assert_eq!((pool.status().chunks_lost, pool.status().chunks_away), (1, 0));
    // One comes back after all, in the life that it had.
    pool.register_only(Some(3));
    pool.inventory(3, &[1]);
    assert_eq!(pool.locate(1), [3]);
    assert_eq!((pool.status().chunks_lost, pool.status().memory.chunks_alone), (0, 1));
}

#[test]
fn a_benefactor_keeps_its_blocks_in_one_place_for_all_of_its_life() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2")]);
    let ino = file(&mut pool, folder, 1);
    pool.write(1, ino, &[1], &MEMORY);
    pool.in_memory.remove(&4);
    let again = pool.registration(Some(4), pool.last_life(), None).introduced(&pool.secrets[&4].clone());
    assert_eq!(pool.ask(again).unwrap_err().code, ErrorCode::Invalid);
    assert_eq!(pool.locate(1).len(), 2);
    // Another life may have another place; what it had before counts for nothing there.
    pool.register(Some(4));
    assert_eq!(pool.locate(1), [3]);
    let other = file(&mut pool, folder, 2);
    pool.write(2, other, &[2], &[4]);
    assert_eq!(pool.status().memory.chunks_alone, 1);
}

#[test]
fn while_memory_is_emptied_a_receipt_counts_that_says_nothing_new() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2")]);
    let (before, after) = (file(&mut pool, folder, 1), file(&mut pool, folder, 2));
    pool.write(1, before, &[1], &MEMORY);
    // The next timestep is on its way: its receipts are there, and the benefactors tell of its blocks themselves.
    pool.open(2, after);
    let receipts: Vec<_> = MEMORY.into_iter().map(|at| pool.receipt(at, &[2])).collect();
    let unheard = pool.receipt(3, &[3]);
    pool.told = pool.receipts;
    let made = makes(MEMORY.into_iter().flat_map(|at| pool.beat(at, &[2], &[])).collect());
    made[0].blocks.iter().for_each(|block| drop(pool.beat(block.to.0, &[1], &[])));
    assert_eq!(emptied(&mut pool), [1, 1], "the first timestep goes");
    let told = ManagerRequest::Receipts { session: session(2), receipts };
    assert!(pool.ask(told).is_ok(), "they name what is there");
    assert_eq!(pool.commit(2, &[2]), Ok(1));
    let told = ManagerRequest::Receipts { session: session(2), receipts: vec![unheard] };
    assert_eq!(pool.ask(told).unwrap_err().code, ErrorCode::Outdated, "it may have been deleted since");
}

#[test]
fn what_is_in_memory_alone_has_its_place_on_disks() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2")]);
    let free = |pool: &mut Pool| pool.status().space.free_bytes;
    let before = free(&mut pool);
    for timestep in 1..=3 {
        let ino = file(&mut pool, folder, timestep);
        pool.write(u8::try_from(timestep).unwrap(), ino, &[timestep], &MEMORY);
    }
    assert_eq!(before - free(&mut pool), 3 * u64::from(CHUNK_LENGTH));
    pool.beat(0, &[1], &[]);
    assert_eq!(before - free(&mut pool), 2 * u64::from(CHUNK_LENGTH), "a disk has one of them");
    MEMORY.into_iter().for_each(|at| drop(pool.beat(at, &[], &[2])));
    assert_eq!(before - free(&mut pool), u64::from(CHUNK_LENGTH), "and one is lost");
}

#[test]
fn writers_wait_for_a_first_disk_although_there_are_too_few_for_all_copies() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2"), ("redundancy", "replicate:3")]);
    for at in [1, 2] {
        pool.beat_with_free(at, 0);
    }
    let (first, second) = (file(&mut pool, folder, 1), file(&mut pool, folder, 2));
    assert!(pool.write_held(1, first, &[1], &MEMORY).is_none());
    let hold = pool.write_held(2, second, &[2], &MEMORY).expect("the timestep before is in memory alone");
    assert!(pool.waiting(second, hold).is_some());
    pool.beat(0, &[1], &[]);
    assert!(pool.waiting(second, hold).is_none(), "no more can be made");
}

#[test]
fn memory_is_emptied_as_well_where_disks_can_take_no_more() {
    for (policy, is_away) in [("replicate:4", false), ("erasure:3,3", false), ("replicate:3", true)] {
        let (mut pool, folder) = pool_with(&[("semantics", "memory:2"), ("redundancy", policy)]);
        let ino = file(&mut pool, folder, 1);
        pool.write(1, ino, &[1], &MEMORY);
        assert_eq!(emptied(&mut pool)[0], 0, "no disk has it");
        let on_disks: &[u32] = if is_away { &[0, 1] } else { &[0, 1, 2] };
        for (at, before) in on_disks.iter().zip(0..) {
            assert_eq!(emptied(&mut pool)[0], 0, "{before} disks have it, and others take it");
            pool.beat(*at, &[1], &[]);
        }
        if is_away {
            pool.pass_alive(10_000, &[0, 1, 3, 4]);
            assert_eq!(emptied(&mut pool)[0], 0, "the third one may be back soon");
            pool.pass_alive(40_000, &[0, 1, 3, 4]);
        }
        assert_eq!(emptied(&mut pool)[0], 1, "{policy}");
        assert_eq!(pool.status().chunks_at_risk, 1, "what lacks is told all the same");
    }
}

#[test]
fn disks_that_are_full_keep_nothing_in_memory() {
    for is_full in [false, true] {
        let (mut pool, folder) = pool_with(&[("semantics", "memory:2"), ("redundancy", "replicate:3")]);
        let full: &[u32] = if is_full { &[1, 2] } else { &[1] };
        full.iter().for_each(|at| drop(pool.beat_with_free(*at, 0)));
        let ino = file(&mut pool, folder, 1);
        pool.write(1, ino, &[1], &MEMORY);
        assert_eq!(makes(pool.beat(3, &[], &[]))[0].blocks.len(), 3 - full.len());
        pool.beat(0, &[1], &[]);
        assert_eq!(emptied(&mut pool)[0], usize::from(is_full), "another one takes it");
    }
}

#[test]
fn memory_is_not_emptied_for_few_disks_of_which_one_is_in_doubt() {
    let (mut pool, folder) = pool_with(&[("semantics", "memory:2"), ("redundancy", "replicate:3")]);
    pool.beat_with_free(2, 0);
    let ino = file(&mut pool, folder, 1);
    pool.write(1, ino, &[1], &MEMORY);
    pool.beat(3, &[], &[]);
    pool.beat(0, &[1], &[]);
    pool.beat(1, &[1], &[]);
    pool.beat_with(1, BenefactorLoad { blocks: 0, ..empty_load() });
    assert_eq!(emptied(&mut pool)[0], 0);
    pool.beat(1, &[], &[]);
    assert_eq!(emptied(&mut pool)[0], 1);
}
