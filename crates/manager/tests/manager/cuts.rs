//! Benefactors that can't send to each other: who makes the copies then, where new blocks go, and for whom the word of one counts.

use crate::harness::{Pool, session};
use stdchk_model::limits::UNREACHED_MAX;
use stdchk_model::message::benefactor::{Command, Make, Unreached};
use stdchk_model::message::manager::{BenefactorInfo, Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Ino};

/// A pool with a folder that is kept in this way.
fn pool(benefactors: u32, redundancy: &str) -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(benefactors);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = vec![("redundancy".to_owned(), redundancy.to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    (pool, folder)
}

fn file(pool: &mut Pool, folder: Ino, timestep: u32) -> Ino {
    pool.make(folder, &format!("app.N0.T{timestep}"), FileKind::File)
}

fn infos(pool: &mut Pool) -> Vec<BenefactorInfo> {
    pool.status().benefactors
}

/// The benefactor says that it can't send to these, and to no others. Those that it should try, too.
fn say(pool: &mut Pool, at: u32, to: &[u32]) -> Vec<u32> {
    let others = tell(pool, at, to, false, false).unwrap();
    others.iter().map(|other| other.id.0).collect()
}

fn tell(
    pool: &mut Pool,
    at: u32,
    to: &[u32],
    is_slow: bool,
    reaches_none: bool,
) -> Result<Vec<BenefactorInfo>, Failure> {
    let infos = infos(pool);
    let address = |to: u32| {
        let known = infos.iter().find(|info| info.id.0 == to);
        known.map_or_else(|| "nowhere:1".to_owned(), |info| info.address.clone())
    };
    let one = |to: &u32| Unreached { to: BenefactorId(*to), address: address(*to), for_ms: 2_000, is_slow };
    let unreached = to.iter().map(one).collect();
    let registration = pool.first_registration(at);
    let told = ManagerRequest::Unreached { id: BenefactorId(at), registration, unreached, reaches_none };
    match pool.ask(told)? {
        ManagerReply::Benefactors(others) => Ok(others),
        other => panic!("{other:?}"),
    }
}

/// Where the orders lead to that a benefactor gets now.
fn destinations(pool: &mut Pool, at: u32) -> Vec<u32> {
    let makes = pool.beat(at, &[], &[]).into_iter().filter_map(|command| match command {
        Command::Make(make) => Some(make),
        _ => None,
    });
    makes.flat_map(|Make { blocks, .. }| blocks).map(|block| block.to.0).collect()
}

/// The stripe of a new session on a file, and of whom it is said that others can't get copies.
fn stripe(pool: &mut Pool, number: u8, ino: Ino) -> (Vec<u32>, Vec<u32>) {
    pool.open(number, ino);
    let ask = ManagerRequest::Reserve { session: session(number), bytes: 1 << 20, avoid: Vec::new() };
    let ManagerReply::Stripe { benefactors, .. } = pool.ask(ask).unwrap() else { panic!("no stripe") };
    pool.close(number);
    let ids = |some: Vec<&BenefactorInfo>| {
        let mut ids: Vec<u32> = some.iter().map(|info| info.id.0).collect();
        ids.sort_unstable();
        ids
    };
    let cut_off = benefactors.iter().filter(|info| info.is_cut_off).collect();
    (ids(benefactors.iter().collect()), ids(cut_off))
}

// --- copies

#[test]
fn copies_go_where_the_source_reaches_or_come_from_another_source() {
    let (mut pool, folder) = pool(4, "replicate:2");
    for (number, [one, other]) in (1u8..).zip([[1, 2], [2, 3], [1, 3]]) {
        let ino = file(&mut pool, folder, number.into());
        say(&mut pool, 0, &[one, other]);
        pool.write(number, ino, &[number.into()], &[0]);
        assert_eq!(destinations(&mut pool, 0), [6 - one - other], "not over a way that is cut");
    }
    // All that lacks a third copy: the first holder reaches nobody who could take it.
    let (mut pool, folder) = self::pool(3, "replicate:3");
    let ino = file(&mut pool, folder, 1);
    say(&mut pool, 0, &[2]);
    pool.write(1, ino, &[1], &[0, 1]);
    assert_eq!(destinations(&mut pool, 0), [0_u32; 0]);
    assert_eq!(destinations(&mut pool, 1), [2], "another holder makes it");
}

#[test]
fn nobody_waits_for_copies_that_cannot_be_sent_and_they_are_made_once_they_can() {
    let (mut pool, folder) = pool(3, "replicate:2");
    let files = [file(&mut pool, folder, 1), file(&mut pool, folder, 2)];
    pool.pass_alive(3_000, &[0, 1, 2]);
    pool.write(1, files[0], &[1], &[0]);
    let hold = pool.write_held(2, files[1], &[2], &[0]).unwrap();
    assert!(pool.waiting(files[1], hold).is_some());
    assert_eq!(say(&mut pool, 0, &[1]), [2], "it should try the other one, too");
    assert!(pool.waiting(files[1], hold).is_some(), "one is left");
    assert_eq!(say(&mut pool, 0, &[1, 2]), [0_u32; 0]);
    pool.pass_alive(10, &[0, 1, 2]);
    assert_eq!(destinations(&mut pool, 0), [0_u32; 0]);
    assert_eq!(pool.waiting(files[1], hold), None);
    assert_eq!(pool.status().chunks_stuck, 2);
    let told = infos(&mut pool);
    assert_eq!(told[0].unreached, [BenefactorId(1), BenefactorId(2)]);
    assert!(told[0].unreached_ms >= 2_000 && told[0].is_cut_off && !told[1].is_cut_off);
    say(&mut pool, 0, &[2]);
    pool.pass_alive(10, &[0, 1, 2]);
    assert_eq!(destinations(&mut pool, 0), [1, 1]);
    assert_eq!(pool.status().chunks_stuck, 0);
}

#[test]
fn a_slow_way_is_used_where_there_is_no_other_and_nobody_waits_for_it() {
    let (mut pool, folder) = pool(3, "replicate:2");
    let files = [1, 2].map(|timestep| file(&mut pool, folder, timestep));
    tell(&mut pool, 0, &[1], true, false).unwrap();
    pool.write(1, files[0], &[1], &[0]);
    assert_eq!(destinations(&mut pool, 0), [2]);
    pool.beat(2, &[1], &[]);
    tell(&mut pool, 0, &[1, 2], true, false).unwrap();
    pool.write(2, files[0], &[2], &[0]);
    let hold = pool.write_held(3, files[1], &[3], &[0]);
    assert_eq!(destinations(&mut pool, 0).len(), 2, "slowly is better than not at all");
    assert!(hold.is_none_or(|hold| pool.waiting(files[1], hold).is_none()));
}

// --- new blocks

#[test]
fn what_the_pool_has_to_copy_is_not_stored_first_at_one_that_cannot_send_it_on() {
    let (mut pool, folder) = pool(4, "replicate:2");
    let ino = file(&mut pool, folder, 1);
    say(&mut pool, 0, &[1, 2]);
    assert_eq!(stripe(&mut pool, 1, ino), (vec![0, 1, 2, 3], vec![]), "it reaches one");
    say(&mut pool, 0, &[1, 2, 3]);
    assert_eq!(stripe(&mut pool, 2, ino), (vec![1, 2, 3], vec![]));
    tell(&mut pool, 0, &[1], false, true).unwrap();
    assert_eq!(stripe(&mut pool, 3, ino), (vec![1, 2, 3], vec![]), "none of several that it tried");
    // Where there are no others the writer hears that it has to store all copies itself.
    for at in 1..4 {
        let others: Vec<u32> = (0..4).filter(|other| *other != at).collect();
        say(&mut pool, at, &others);
    }
    let (some, cut_off) = stripe(&mut pool, 4, ino);
    assert_eq!((some.len(), cut_off), (2, some));
}

#[test]
fn a_folder_with_more_copies_needs_more_ways() {
    let (mut pool, folder) = pool(4, "replicate:3");
    let ino = file(&mut pool, folder, 1);
    say(&mut pool, 0, &[1, 2]);
    assert_eq!(stripe(&mut pool, 1, ino).1, [0], "it reaches one, and two are to get copies");
    say(&mut pool, 0, &[1]);
    assert_eq!(stripe(&mut pool, 2, ino).1, [0_u32; 0]);
}

// --- whose word counts for what

#[test]
fn the_word_of_one_keeps_nothing_from_others_and_ends_with_its_registration() {
    let (mut pool, folder) = pool(4, "replicate:2");
    let ino = file(&mut pool, folder, 1);
    tell(&mut pool, 3, &[0, 1, 2], false, true).unwrap();
    assert_eq!(stripe(&mut pool, 1, ino).0, [0, 1, 2], "it harms itself");
    say(&mut pool, 0, &[1, 2]);
    pool.write(2, ino, &[1], &[0]);
    assert_eq!(destinations(&mut pool, 0), [3], "others send to it as before");
    let registration = pool.first_registration(0);
    let many = (1..=UNREACHED_MAX + 1).map(|to| Unreached {
        to: BenefactorId(u32::try_from(to).unwrap()),
        address: "nowhere:1".to_owned(),
        for_ms: 0,
        is_slow: false,
    });
    let unreached = many.collect();
    let told =
        ManagerRequest::Unreached { id: BenefactorId(0), registration, unreached, reaches_none: false };
    assert_eq!(pool.ask(told).unwrap_err().code, ErrorCode::Invalid);
    pool.register(Some(3));
    assert_eq!(stripe(&mut pool, 3, ino).0, [0, 1, 2, 3], "it has to say so anew");
}

#[test]
fn what_is_said_of_one_that_is_away_or_serves_elsewhere_counts_for_nothing() {
    let (mut pool, folder) = pool(3, "replicate:2");
    let ino = file(&mut pool, folder, 1);
    let registration = pool.first_registration(0);
    let elsewhere = |to: u32| Unreached {
        to: BenefactorId(to),
        address: "192.0.2.1:1".to_owned(),
        for_ms: 60_000,
        is_slow: false,
    };
    let unreached = vec![elsewhere(0), elsewhere(1), elsewhere(2), elsewhere(77)];
    pool.ask(ManagerRequest::Unreached { id: BenefactorId(0), registration, unreached, reaches_none: true })
        .unwrap();
    assert!(infos(&mut pool)[0].unreached.is_empty());
    pool.write(1, ino, &[1], &[0]);
    assert_eq!(destinations(&mut pool, 0).len(), 1);
    // A benefactor that is away is missing anyway.
    say(&mut pool, 0, &[1]);
    pool.pass_alive(6_000, &[0, 2]);
    assert!(infos(&mut pool)[0].unreached.is_empty());
    assert_eq!(pool.locate(1), [0]);
}
