//! How far writers may get ahead of the copies, and what is said of sets that lack them (I6).

use crate::harness::{CHUNK_LENGTH, Pool, chunk, number, rename, session};
use stdchk_model::message::benefactor::{Command, FailedCopy, NewBlock};
use stdchk_model::message::manager::{Change, FileKind, Hold, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ChunkId, Incarnation, Ino};

fn pool_with_folder(benefactors: u32) -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(benefactors);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    (pool, folder)
}

fn set_policy(pool: &mut Pool, folder: Ino, key: &str, value: &str) {
    let pairs = vec![(key.to_owned(), value.to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
}

fn file(pool: &mut Pool, folder: Ino, rank: u32, timestep: u32) -> Ino {
    pool.make(folder, &format!("app.N{rank}.T{timestep}"), FileKind::File)
}

fn copied(commands: &[Command]) -> Vec<ChunkId> {
    let copy = |command: &Command| match command {
        Command::Make(make) => Some(make.chunk),
        _ => None,
    };
    commands.iter().filter_map(copy).collect()
}

/// The benefactor could not make the copies of these chunks.
fn fail(pool: &mut Pool, benefactor: u32, chunks: &[u32]) {
    let failed = ManagerRequest::Heartbeat {
        id: BenefactorId(benefactor),
        registration: pool.first_registration(benefactor),
        load: crate::harness::empty_load(),
        durable_sequence: 0,
        added: Vec::new(),
        removed: Vec::new(),
        damaged: 0,
        copies_failed: chunks.iter().map(|number| FailedCopy { chunk: chunk(*number), to: None }).collect(),
        put_sequence: crate::harness::TOLD,
        decoded: Vec::new(),
        seen: Vec::new(),
        disk: None,
    };
    pool.ask(failed).unwrap();
}

fn chunks_of(exposed: &[(u64, Option<stdchk_model::message::manager::Exposed>)]) -> Vec<u64> {
    exposed.iter().map(|(_, exposed)| exposed.unwrap().chunks).collect()
}

// --- order

#[test]
fn sets_get_their_copies_one_after_the_other_the_oldest_first() {
    let (mut pool, folder) = pool_with_folder(2);
    for timestep in 1..=8 {
        for rank in 0..4 {
            let ino = file(&mut pool, folder, rank, timestep);
            let number = timestep * 10 + rank;
            pool.write(u8::try_from(number).unwrap(), ino, &[number], &[0]);
        }
    }
    let order = copied(&pool.beat(0, &[], &[]));
    let of_set = |timestep: u32| (0..4).map(|rank| chunk(timestep * 10 + rank)).collect::<Vec<_>>();
    for (timestep, part) in (1..).zip(order.chunks(4)) {
        let mut part = part.to_vec();
        let mut expected = of_set(timestep);
        part.sort_unstable();
        expected.sort_unstable();
        assert_eq!(part, expected, "timestep {timestep}");
    }
    assert_eq!(order.len(), 32);
}

#[test]
fn a_benefactor_that_asks_for_orders_gets_what_it_can_copy() {
    let (mut pool, folder) = pool_with_folder(2);
    let ino = file(&mut pool, folder, 0, 1);
    pool.write(1, ino, &[1, 2], &[0]);
    let orders = |pool: &mut Pool, number: u32| {
        let (id, registration) = (BenefactorId(number), pool.first_registration(number));
        match pool.ask(ManagerRequest::Orders { id, registration }).unwrap() {
            ManagerReply::Commands(commands) => copied(&commands).len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([orders(&mut pool, 1), orders(&mut pool, 0), orders(&mut pool, 0)], [0, 2, 0]);
}

#[test]
fn what_had_no_room_is_copied_once_there_is_some() {
    let (mut pool, folder) = pool_with_folder(2);
    pool.beat_with_free(1, 0);
    let ino = file(&mut pool, folder, 0, 1);
    pool.write(1, ino, &[1, 2, 3], &[0]);
    assert!(copied(&pool.beat(0, &[], &[])).is_empty());
    assert_eq!(pool.status().chunks_stuck, 3);
    pool.beat(1, &[], &[]);
    assert_eq!(copied(&pool.beat(0, &[], &[])).len(), 3);
    assert_eq!(pool.status().chunks_stuck, 0);
}

#[test]
fn space_that_a_file_being_written_has_reserved_keeps_no_copy_from_being_made() {
    let (mut pool, folder) = pool_with_folder(2);
    let ino = file(&mut pool, folder, 0, 1);
    pool.write(1, ino, &[1], &[0]);
    let large = pool.make(folder, "large", FileKind::File);
    pool.open(2, large);
    let bytes = 2 * crate::harness::GIB;
    pool.ask(ManagerRequest::Reserve { session: session(2), bytes, avoid: Vec::new() }).unwrap();
    assert_eq!(copied(&pool.beat(0, &[], &[])).len(), 1);
}

#[test]
fn the_order_of_sets_is_that_of_their_commits_also_when_the_clock_is_set_back() {
    let (mut pool, folder) = pool_with_folder(2);
    let hour = 3_600_000_000_000;
    pool.now.wall += hour;
    let files: Vec<Ino> = (1..=3).map(|timestep| file(&mut pool, folder, 0, timestep)).collect();
    pool.write(1, files[0], &[1], &[0]);
    pool.now.wall -= hour;
    pool.write(2, files[1], &[2], &[0]);
    pool.restart();
    for number in [0, 1] {
        pool.register_only(Some(number));
        pool.inventory(number, if number == 0 { &[1, 2] } else { &[] });
    }
    pool.write(3, files[2], &[3], &[0]);
    assert_eq!(copied(&pool.beat_as(0, Incarnation(3), &[], &[]).unwrap()), [chunk(1), chunk(2), chunk(3)]);
}

// --- waiting

#[test]
fn a_timestep_waits_until_the_earlier_ones_have_their_copies() {
    let (mut pool, folder) = pool_with_folder(2);
    let files: Vec<Ino> = (1..=3).map(|timestep| file(&mut pool, folder, 0, timestep)).collect();
    assert_eq!(pool.write_held(1, files[0], &[1, 2], &[0]), None, "nothing came before");
    let hold = pool.write_held(2, files[1], &[3], &[0]).unwrap();
    assert_eq!(pool.waiting(files[1], hold), Some(2));
    pool.beat(0, &[], &[]);
    assert_eq!(pool.waiting(files[1], hold), Some(2), "copies that are being made are waited for");
    pool.beat(1, &[1], &[]);
    assert_eq!(pool.waiting(files[1], hold), Some(1));
    pool.beat(1, &[2], &[]);
    assert_eq!(pool.waiting(files[1], hold), None, "its own copies may follow");
    let late = file(&mut pool, folder, 1, 1);
    assert_eq!(pool.write_held(3, late, &[4], &[0]), None, "later ones are none of its affair");
    let hold = pool.write_held(4, files[2], &[5], &[0]).unwrap();
    assert_eq!(pool.waiting(files[2], hold), Some(2), "also for what came to the first late");
    pool.beat(1, &[3, 4], &[]);
    assert_eq!(pool.waiting(files[2], hold), None);
}

#[test]
fn where_nothing_lacks_a_copy_the_answer_to_a_commit_says_so() {
    let (mut pool, folder) = pool_with_folder(2);
    for timestep in 1..=3 {
        let ino = file(&mut pool, folder, 0, timestep);
        let number = u8::try_from(timestep).unwrap();
        assert_eq!(pool.write_held(number, ino, &[timestep], &[0, 1]), None);
    }
    set_policy(&mut pool, folder, "redundancy", "replicate:1");
    for timestep in 4..=6 {
        let ino = file(&mut pool, folder, 0, timestep);
        let number = u8::try_from(timestep).unwrap();
        assert_eq!(pool.write_held(number, ino, &[timestep], &[0]), None);
    }
}

#[test]
fn a_file_without_a_timestep_waits_for_its_version_before_and_for_no_other_file() {
    let (mut pool, folder) = pool_with_folder(2);
    let log = pool.make(folder, "log", FileKind::File);
    let other = pool.make(folder, "other", FileKind::File);
    assert_eq!(pool.write_held(1, log, &[1], &[0]), None);
    assert_eq!(pool.write_held(2, other, &[2], &[0]), None);
    let hold = pool.write_held(3, log, &[3], &[0]).unwrap();
    assert_eq!(pool.waiting(log, hold), Some(1));
    pool.beat(1, &[1], &[]);
    assert_eq!(pool.waiting(log, hold), None);
}

#[test]
fn a_rename_to_the_name_of_a_timestep_waits_like_a_commit_of_it() {
    let (mut pool, folder) = pool_with_folder(2);
    let write = |pool: &mut Pool, number: u8, name: &str| {
        let temporary = pool.make(folder, "tmp", FileKind::File);
        assert_eq!(pool.write_held(number, temporary, &[u32::from(number)], &[0]), None);
        let held = match pool.change(rename(folder, "tmp", folder, name)).unwrap() {
            ManagerReply::Held { hold, .. } => Some(hold),
            _ => None,
        };
        (temporary, held)
    };
    assert_eq!(write(&mut pool, 1, "app.N0.T1").1, None);
    let (second, hold) = write(&mut pool, 2, "app.N0.T2");
    assert_eq!(pool.waiting(second, hold.unwrap()), Some(1));
    pool.beat(1, &[1], &[]);
    assert_eq!(pool.waiting(second, hold.unwrap()), None);
    assert_eq!(chunks_of(&pool.exposed(folder)), [0, 1]);
}

#[test]
fn an_early_close_waits_before_its_commit() {
    let (mut pool, folder) = pool_with_folder(2);
    let (first, second) = (file(&mut pool, folder, 0, 1), file(&mut pool, folder, 0, 2));
    pool.write(1, first, &[1], &[0]);
    pool.open(2, second);
    let closing = ManagerRequest::Closing { session: session(2), size: 1, changes: 1 };
    let ManagerReply::Held { hold, .. } = pool.ask(closing.clone()).unwrap() else {
        panic!("it should wait")
    };
    assert_eq!(pool.waiting(second, hold), Some(1));
    pool.beat(1, &[1], &[]);
    assert_eq!(pool.ask(closing), Ok(ManagerReply::Done));
}

#[test]
fn exposure_can_be_bounded_by_bytes_or_time_or_not_at_all() {
    let (mut pool, folder) = pool_with_folder(2);
    let files: Vec<Ino> = (1..=6).map(|timestep| file(&mut pool, folder, 0, timestep)).collect();
    set_policy(&mut pool, folder, "exposure", &(2 * CHUNK_LENGTH).to_string());
    assert_eq!(pool.write_held(1, files[0], &[1], &[0]), None);
    assert_eq!(pool.write_held(2, files[1], &[2], &[0]), None);
    let hold = pool.write_held(3, files[2], &[3], &[0]).unwrap();
    assert!(pool.waiting(files[2], hold).is_some());
    pool.beat(1, &[1], &[]);
    assert_eq!(pool.waiting(files[2], hold), None);
    set_policy(&mut pool, folder, "exposure", "3s");
    assert_eq!(pool.write_held(4, files[3], &[4], &[0]), None);
    pool.pass_alive(4_000, &[1]);
    pool.beat(0, &[], &[]);
    assert!(pool.write_held(5, files[4], &[5], &[0]).is_some());
    set_policy(&mut pool, folder, "exposure", "none");
    assert_eq!(pool.write_held(6, files[5], &[6], &[0]), None);
}

/// A folder of which timestep 1 lacks a copy of chunk 1, which is at benefactor 0, and a file of timestep 2.
fn exposed_folder(benefactors: u32) -> (Pool, Ino, Ino) {
    let (mut pool, folder) = pool_with_folder(benefactors);
    let (first, second) = (file(&mut pool, folder, 0, 1), file(&mut pool, folder, 0, 2));
    pool.write(1, first, &[1], &[0]);
    (pool, folder, second)
}

#[test]
fn nobody_waits_for_copies_that_cannot_be_made() {
    let (mut pool, _, second) = exposed_folder(1);
    assert_eq!(pool.write_held(2, second, &[2], &[0]), None, "there is nowhere to copy to");

    let (mut pool, _, second) = exposed_folder(2);
    pool.beat_with_free(1, 1);
    assert_eq!(pool.write_held(2, second, &[2], &[0]), None, "there is no room");

    let (mut pool, _, second) = exposed_folder(3);
    pool.pass_alive(5_000, &[1, 2]);
    assert_eq!(pool.write_held(2, second, &[2], &[1]), None, "who has it is away");
    assert_eq!(pool.status().chunks_stuck, 1);

    let (mut pool, _, second) = exposed_folder(2);
    let hold = pool.write_held(2, second, &[2], &[0]).unwrap();
    pool.beat(0, &[], &[]);
    fail(&mut pool, 0, &[1]);
    assert_eq!(pool.waiting(second, hold), None, "the copy failed");
}

#[test]
fn a_wait_is_over_when_what_it_waits_for_goes_away() {
    let wait = || -> (Pool, Ino, Ino, Hold) {
        let (mut pool, folder, second) = exposed_folder(3);
        let hold = pool.write_held(2, second, &[2], &[1]).unwrap();
        assert!(pool.waiting(second, hold).is_some());
        (pool, folder, second, hold)
    };
    let (mut pool, _, second, hold) = wait();
    pool.pass_alive(5_000, &[1, 2]);
    assert_eq!(pool.waiting(second, hold), None, "the only holder is away");

    let (mut pool, folder, second, hold) = wait();
    set_policy(&mut pool, folder, "exposure", "none");
    assert_eq!(pool.waiting(second, hold), None, "the policy has changed");

    let (mut pool, _, second, hold) = wait();
    pool.restart();
    assert_eq!(pool.waiting(second, hold), None, "after a restart nobody knows yet");
}

#[test]
fn a_copy_that_its_destination_took_away_with_it_is_made_elsewhere() {
    let (mut pool, _, _) = exposed_folder(3);
    let [Command::Make(make)] = &pool.beat(0, &[], &[])[..] else { panic!("one copy") };
    let [NewBlock { to, .. }] = &make.blocks[..] else { panic!("one copy") };
    let other = if to.0 == 1 { 2 } else { 1 };
    pool.pass_alive(5_000, &[0, other]);
    let status = pool.status();
    assert_eq!((status.chunks_at_risk, status.repairs_pending), (1, 1));
    pool.beat(other, &[1], &[]);
    let status = pool.status();
    assert_eq!((status.chunks_at_risk, status.repairs_done), (0, 1), "it was ordered of the other one");
}

// --- telling

#[test]
fn a_set_is_as_exposed_as_everything_that_it_shares() {
    let (mut pool, folder) = pool_with_folder(3);
    for (timestep, chunks) in [(1, [1, 10]), (2, [1, 20]), (3, [3, 30])] {
        let ino = file(&mut pool, folder, 0, timestep);
        pool.write(u8::try_from(timestep).unwrap(), ino, &chunks, &[0, 1]);
    }
    assert_eq!(chunks_of(&pool.exposed(folder)), [0, 0, 0]);
    assert_eq!(pool.status().exposed, []);
    pool.beat(1, &[], &[1, 20]);
    assert_eq!(chunks_of(&pool.exposed(folder)), [1, 2, 0]);
    let status = pool.status();
    let told: Vec<(Option<u64>, u64)> =
        status.exposed.iter().map(|set| (set.timestep.map(number), set.exposed.chunks)).collect();
    assert_eq!(told, [(Some(1), 1), (Some(2), 2)]);
    assert_eq!((status.exposed_chunks, status.exposed_bytes), (2, 2 * u64::from(CHUNK_LENGTH)));
    pool.beat(0, &[], &[1]);
    assert_eq!(chunks_of(&pool.exposed(folder)), [1, 2, 0], "what has no copy left is exposed as well");
}

#[test]
fn since_when_a_set_lacks_copies_is_told_and_never_too_late() {
    let (mut pool, folder) = pool_with_folder(2);
    let ino = file(&mut pool, folder, 0, 1);
    pool.pass(1_000);
    pool.write(1, ino, &[1], &[0]);
    let committed_at = pool.versions(ino)[0].committed_at;
    let since = |pool: &mut Pool| pool.exposed(folder)[0].1.unwrap().since.unwrap();
    assert!(since(&mut pool) <= committed_at);
    pool.pass_alive(3_000, &[0]);
    assert!(since(&mut pool) <= committed_at);
    pool.restart();
    for (number, chunks) in [(0, &[1][..]), (1, &[])] {
        assert_eq!(pool.exposed(folder)[0].1, None, "nobody knows before all benefactors have reported");
        pool.register_only(Some(number));
        pool.inventory(number, chunks);
    }
    assert_eq!(pool.exposed(folder)[0].1.unwrap().chunks, 1);
    assert!(since(&mut pool) <= committed_at, "it may never have had a copy");
    pool.beat_as(1, Incarnation(4), &[1], &[]).unwrap();
    assert_eq!(pool.exposed(folder)[0].1.unwrap().since, None);
}

#[test]
fn a_folder_that_asks_for_more_says_what_its_sets_lack_and_holds_up_no_other_folder() {
    let (mut pool, folder) = pool_with_folder(2);
    set_policy(&mut pool, folder, "redundancy", "replicate:1");
    for timestep in 1..=2u32 {
        let ino = file(&mut pool, folder, 0, timestep);
        pool.write(u8::try_from(timestep).unwrap(), ino, &[timestep], &[0]);
    }
    let other = pool.make(Ino::ROOT, "other", FileKind::Directory);
    set_policy(&mut pool, folder, "redundancy", "replicate:2");
    assert_eq!(pool.status().exposed_chunks, 2);
    assert_eq!(chunks_of(&pool.exposed(folder)), [1, 1]);
    for timestep in 3..=4u32 {
        let ino = file(&mut pool, other, 0, timestep);
        let number = u8::try_from(timestep).unwrap();
        let held = pool.write_held(number, ino, &[timestep], &[0, 1]);
        assert_eq!(held, None, "nothing of its own folder lacks a copy");
    }
}

#[test]
fn a_benefactor_that_ends_each_time_before_it_is_heard_stops_no_repair() {
    let (mut pool, folder) = pool_with_folder(3);
    let ino = file(&mut pool, folder, 0, 1);
    pool.write(1, ino, &[1], &[0]);
    let mut ordered = Vec::new();
    for _ in 0..6 {
        pool.register_only(Some(2));
        pool.pass_alive(10_000, &[0, 1]);
        ordered.extend(copied(&pool.beat(0, &[], &[])));
    }
    assert!(pool.status().chunks_at_risk == 1 && pool.status().repairs_pending == 1);
    assert!(!pool.status().counting, "nobody waits for it any more: {ordered:?}");
}
