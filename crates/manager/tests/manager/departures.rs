//! Benefactors whose machines are said to go soon: what they have is made elsewhere, the most endangered first, and nothing is deleted.

use crate::harness::{Pool, chunk, empty_load, session};
use stdchk_model::message::benefactor::{BenefactorLoad, Command, FailedCopy, Goes, Notice, OwnerWish};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ErrorCode, Incarnation, Ino, MachineId};

/// Time after which nothing is young any more, milliseconds.
const AGE_MS: u64 = 61_000;

/// A pool with a file in a folder that is kept so.
fn pool(benefactors: u32, pairs: &[(&str, &str)]) -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(benefactors);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let file = pool.make(folder, "a", FileKind::File);
    (pool, file)
}

/// Chunk 1 lies at these, with all copies that are wanted and no more.
fn stored_at(benefactors: u32, at: &[u32]) -> Pool {
    let (mut pool, file) = pool(benefactors, &[("redundancy", &format!("replicate:{}", at.len()))]);
    pool.write(1, file, &[1], at);
    at.iter().for_each(|at| drop(pool.beat(*at, &[1], &[])));
    let all: Vec<u32> = (0..benefactors).collect();
    pool.pass_alive(AGE_MS, &all);
    pool
}

/// What a heartbeat orders to be made, as numbers of chunks with where to.
fn made(commands: &[Command]) -> Vec<(u32, u32)> {
    let makes = commands.iter().filter_map(|command| match command {
        Command::Make(make) => Some(make),
        _ => None,
    });
    let number = |make: &stdchk_model::message::benefactor::Make| {
        (1..100).find(|number| chunk(*number) == make.chunk).unwrap()
    };
    makes
        .flat_map(|make| make.blocks.iter().map(|block| (number(make), block.to.0)).collect::<Vec<_>>())
        .collect()
}

fn told(commands: &[Command]) -> Option<Goes> {
    commands.iter().find_map(|command| match command {
        Command::Goes(goes) => Some(*goes),
        _ => None,
    })
}

/// What a benefactor is told whose machine goes: it says so, and once more when the manager has looked at all that it has.
fn asked(pool: &mut Pool, number: u32) -> Goes {
    pool.beat(number, &[], &[]);
    told(&pool.beat(number, &[], &[])).unwrap()
}

fn reserve(pool: &mut Pool, number: u8) -> Result<Vec<u32>, stdchk_model::Failure> {
    let request = ManagerRequest::Reserve { session: session(number), bytes: 4096, avoid: Vec::new() };
    match pool.ask(request)? {
        ManagerReply::Stripe { benefactors, .. } => {
            Ok(benefactors.into_iter().map(|benefactor| benefactor.id.0).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_on_a_machine_that_goes_is_copied_elsewhere_and_stays_there() {
    let mut pool = stored_at(3, &[0, 1]);
    pool.going.insert(0);
    let commands = pool.beat(0, &[], &[]);
    assert_eq!(told(&commands), Some(Goes { may_end: false, takes: false }), "it still has to be looked at");
    let mut orders = made(&commands);
    orders.extend(made(&pool.beat(0, &[], &[])));
    orders.extend(made(&pool.beat(1, &[], &[])));
    assert_eq!(orders, [(1, 2)]);
    assert_eq!(told(&pool.beat(0, &[], &[])), Some(Goes { may_end: false, takes: false }));
    let status = pool.status();
    assert_eq!((status.chunks_moving, status.chunks_at_risk, status.exposed_chunks), (1, 0, 0));
    pool.beat(2, &[1], &[]);
    assert_eq!(told(&pool.beat(0, &[], &[])), Some(Goes { may_end: true, takes: false }));
    // It is served from there for as long as the machine is there, and nothing is deleted in vain.
    pool.pass_alive(AGE_MS, &[0, 1, 2]);
    assert_eq!((pool.collect(), pool.locate(1)), (Ok(0), vec![0, 1, 2]));
    // The machine stays after all: one of the three copies is too much, whichever.
    pool.going.clear();
    assert_eq!(told(&pool.beat(0, &[], &[])), None);
    pool.pass_alive(AGE_MS, &[0, 1, 2]);
    assert_eq!(pool.trim(&[0, 1, 2]), Ok(0));
    assert_eq!(pool.locate(1).len(), 2);
}

#[test]
fn what_would_be_lost_with_the_machine_is_copied_before_all_else() {
    let (mut pool, file) = pool(4, &[("redundancy", "replicate:2")]);
    // Each second one has a copy elsewhere; those that are at benefactor 0 alone were committed last.
    let (safe, alone): (Vec<u32>, Vec<u32>) = ((1..6).collect(), (20..24).collect());
    pool.write(1, file, &safe, &[0, 1]);
    pool.beat(0, &safe, &[]);
    pool.beat(1, &safe, &[]);
    pool.going.insert(0);
    // The notice comes with what was put at the same time.
    pool.write(2, file, &[&safe[..], &alone].concat(), &[0]);
    pool.pass(1_000);
    let mut orders = Vec::new();
    for _ in 0..3 {
        orders.extend(made(&pool.beat(0, &[], &[])));
    }
    let first: Vec<u32> = orders.iter().take(alone.len()).map(|(chunk, _)| *chunk).collect();
    assert!(first.iter().all(|chunk| alone.contains(chunk)), "{orders:?}");
    assert!(orders.iter().all(|(_, to)| *to != 0));
}

#[test]
fn the_next_checkpoint_avoids_the_machine_unless_too_few_others_are_left() {
    let (mut pool, file) = pool(3, &[("redundancy", "replicate:2"), ("semantics", "pessimistic")]);
    pool.open(1, file);
    pool.going.insert(1);
    pool.beat(1, &[], &[]);
    for _ in 0..3 {
        let stripe = reserve(&mut pool, 1).unwrap();
        assert!(!stripe.contains(&1) && stripe.len() == 2, "{stripe:?}");
    }
    assert!(!asked(&mut pool, 1).takes);
    // A pessimistic commit needs two: one that goes stands in, and hears of it.
    pool.going.insert(0);
    pool.beat(0, &[], &[]);
    let stripe = reserve(&mut pool, 1).unwrap();
    assert_eq!((stripe.len(), stripe[0]), (2, 2));
    assert!(asked(&mut pool, stripe[1]).takes && !asked(&mut pool, 1 - stripe[1]).takes);
    // All go at once.
    pool.going.insert(2);
    pool.beat(2, &[], &[]);
    assert_eq!(reserve(&mut pool, 1).unwrap().len(), 2);
    let space = pool.status().space;
    assert!(space.free_bytes == 0 && !space.is_full, "{space:?}");
    // One stays after all.
    pool.going.remove(&0);
    pool.beat(0, &[], &[]);
    assert_eq!(reserve(&mut pool, 1).unwrap()[0], 0);
    pool.pass_alive(AGE_MS, &[0, 1, 2]);
    assert!(!asked(&mut pool, 1).takes, "nobody asked for a long time");
}

#[test]
fn an_optimistic_folder_has_no_use_for_one_that_goes_while_one_other_is_there() {
    let (mut pool, file) = pool(2, &[("redundancy", "replicate:2")]);
    pool.open(1, file);
    pool.going.insert(0);
    pool.beat(0, &[], &[]);
    assert_eq!(reserve(&mut pool, 1).unwrap(), [1]);
    // The last one is full: then the one that goes is better than none.
    pool.beat_with_free(1, 0);
    assert_eq!(reserve(&mut pool, 1).unwrap(), [0]);
    // It refuses what comes before it hears of that: no reason to fail the writer.
    let avoid = vec![BenefactorId(0)];
    let request = ManagerRequest::Reserve { session: session(1), bytes: 4096, avoid };
    assert_eq!(pool.ask(request).unwrap_err().code, ErrorCode::Unavailable);
    assert!(asked(&mut pool, 0).takes);
    // Its owner has paused it: that holds.
    let paused = BenefactorLoad {
        wish: OwnerWish::Pause,
        free_bytes: 0,
        notice: Some(Notice::default()),
        ..empty_load()
    };
    pool.beat_with(0, paused);
    assert_eq!(reserve(&mut pool, 1).unwrap_err().code, ErrorCode::NoSpace);
}

#[test]
fn where_nothing_can_be_moved_nobody_is_waited_for() {
    // All have a notice at once; the other one is full; there is no other one.
    let mut pool = stored_at(3, &[0, 1]);
    pool.going.extend([0, 1, 2]);
    // The one that could take a copy says so first: nothing is on its way to it.
    for number in [2, 0, 1] {
        pool.beat(number, &[], &[]);
    }
    for number in [0, 1, 2] {
        assert!(asked(&mut pool, number).may_end, "{number}");
    }
    let mut pool = stored_at(2, &[0]);
    pool.going.insert(0);
    pool.beat_with_free(1, 0);
    assert!(asked(&mut pool, 0).may_end);
    // It has room again: what could not be moved is ordered, and waited for.
    pool.beat_with_free(1, 1 << 30);
    assert_eq!(made(&pool.beat(0, &[], &[])), [(1, 1)]);
    assert!(!asked(&mut pool, 0).may_end);
    let mut pool = stored_at(1, &[0]);
    pool.going.insert(0);
    assert!(asked(&mut pool, 0).may_end);
}

#[test]
fn what_is_committed_while_others_are_moved_is_waited_for_as_well() {
    let (mut pool, file) = pool(2, &[("redundancy", "replicate:1")]);
    pool.write(1, file, &[1], &[0]);
    pool.beat(0, &[1], &[]);
    pool.going.insert(0);
    pool.beat(0, &[], &[]);
    assert!(!asked(&mut pool, 0).may_end);
    // What a writer had put there before the notice, above what is moved in the list of the benefactor.
    pool.write(2, file, &[1, 2], &[0]);
    pool.beat(1, &[1], &[]);
    assert!(!asked(&mut pool, 0).may_end);
    pool.beat(1, &[2], &[]);
    assert!(asked(&mut pool, 0).may_end);
}

#[test]
fn a_question_how_benefactors_are_chosen_lends_nobody() {
    let (mut pool, file) = pool(1, &[]);
    pool.going.insert(0);
    pool.beat(0, &[], &[]);
    let request = ManagerRequest::Explain { ino: file, machine: MachineId([1; 16]) };
    assert!(matches!(pool.ask(request).unwrap(), ManagerReply::Placement(told) if told.hosts.len() == 1));
    assert!(!asked(&mut pool, 0).takes);
    pool.open(1, file);
    reserve(&mut pool, 1).unwrap();
    assert!(asked(&mut pool, 0).takes);
}

#[test]
fn a_manager_that_is_started_again_goes_on_and_one_that_comes_back_is_as_all_others() {
    let mut pool = stored_at(3, &[0, 1]);
    pool.going.insert(0);
    pool.beat(0, &[], &[]);
    pool.restart();
    for number in 0..3 {
        let life = Incarnation(u64::from(number) + 1);
        pool.register_as(Some(number), life, None);
        if number == 1 {
            assert_eq!(asked(&mut pool, 0), Goes::default(), "others have yet to say what they have");
        }
        pool.inventory_as(number, life, if number < 2 { &[1] } else { &[] }).unwrap();
    }
    let mut orders = Vec::new();
    for number in [0, 1, 0, 1] {
        orders.extend(made(&pool.beat(number, &[], &[])));
    }
    assert_eq!(orders, [(1, 2)], "{orders:?}");
}

#[test]
fn an_owners_wish_to_leave_holds_beside_a_notice() {
    let mut pool = stored_at(3, &[0, 1]);
    let load = |blocks, notice| {
        let wish = OwnerWish::Leave;
        BenefactorLoad { wish, free_bytes: 0, blocks, notice, ..empty_load() }
    };
    pool.beat_with(0, load(1000, Some(Notice::default())));
    pool.beat_with(0, load(1000, Some(Notice::default())));
    pool.beat(1, &[], &[]);
    pool.beat(2, &[1], &[]);
    pool.pass_alive(AGE_MS, &[1, 2]);
    pool.beat_with(0, load(1000, Some(Notice::default())));
    assert_eq!((pool.trim(&[0, 1, 2]), pool.locate(1)), (Ok(0), vec![1, 2]), "it gives back what it has");
    assert!(pool.beat_with(0, load(0, Some(Notice::default()))).contains(&Command::Forgotten));
}

/// A heartbeat of a benefactor with a notice, which could not put a chunk at another one.
fn beat_failed(pool: &mut Pool, number: u32, chunk_number: u32, to: u32) {
    let copies_failed = vec![FailedCopy { chunk: chunk(chunk_number), to: Some(BenefactorId(to)) }];
    let request = ManagerRequest::Heartbeat {
        id: BenefactorId(number),
        registration: pool.first_registration(number),
        load: BenefactorLoad { notice: Some(Notice::default()), ..empty_load() },
        durable_sequence: pool.told,
        added: Vec::new(),
        removed: Vec::new(),
        damaged: 0,
        copies_failed,
        put_sequence: pool.receipts,
        decoded: Vec::new(),
        seen: Vec::new(),
        disk: None,
    };
    pool.ask(request).unwrap();
}

#[test]
fn what_failed_a_moment_ago_is_waited_for_and_what_nobody_can_take_is_not() {
    let mut pool = stored_at(2, &[0]);
    pool.going.insert(0);
    let mut orders = made(&pool.beat(0, &[], &[]));
    orders.extend(made(&pool.beat(0, &[], &[])));
    assert_eq!(orders, [(1, 1)]);
    beat_failed(&mut pool, 0, 1, 1);
    for _ in 0..4 {
        assert!(!asked(&mut pool, 0).may_end, "the only one with room is avoided for some seconds");
        pool.pass(1_000);
        pool.beat(1, &[], &[]);
    }
    pool.pass(1_000);
    assert_eq!(made(&pool.beat(0, &[], &[])), [(1, 1)]);
    assert!(!asked(&mut pool, 0).may_end);
    beat_failed(&mut pool, 0, 1, 1);
    pool.beat_with_free(1, 0);
    assert!(asked(&mut pool, 0).may_end, "the other one is full");
    pool.beat_with_free(1, 1 << 30);
    assert!(!asked(&mut pool, 0).may_end);
}

#[test]
fn what_another_one_is_asked_to_copy_is_waited_for() {
    let mut pool = stored_at(3, &[0, 1]);
    // Its owner has paused it: others make copies where they can.
    pool.wishes.insert(0, OwnerWish::Pause);
    pool.going.insert(0);
    pool.beat(0, &[], &[]);
    for _ in 0..3 {
        assert!(!asked(&mut pool, 0).may_end);
    }
    assert_eq!(made(&pool.beat(1, &[], &[])), [(1, 2)]);
    assert!(!asked(&mut pool, 0).may_end);
    pool.beat(2, &[1], &[]);
    assert!(asked(&mut pool, 0).may_end);
}
