//! A manager that was set back to an older copy of its store notices by what benefactors remember, and touches nothing
//! until it is told to go on (I4, I7).

use crate::harness::{CLIENT, Pool, session};
use stdchk_manager::core::Follows;
use stdchk_manager::store::MemoryStore;
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::{
    BenefactorSecret, FileKind, ManagerReply, ManagerRequest, Moment, VersionState,
};
use stdchk_model::{BenefactorId, ErrorCode, Incarnation, Ino, SessionId};

/// What one benefactor of these tests remembers, as a real one does: what it is ordered to.
fn remembered(commands: &[Command]) -> Option<Moment> {
    commands.iter().find_map(|command| match command {
        Command::Remember(moment) => Some(moment.what),
        _ => None,
    })
}

/// A pool with an old file of chunk 1 and a newer one of chunk 2; the store of before the newer one, and what the
/// benefactor remembers in the end.
fn pool_and_older_copy() -> (Pool, MemoryStore, Moment) {
    let mut pool = Pool::with_benefactors(1);
    let old = pool.make(Ino::ROOT, "old", FileKind::File);
    pool.write(1, old, &[1], &[0]);
    let copy = pool.store.copy();
    pool.restart();
    let (_, moment) = pool.register_remembering(Some(0), None);
    assert!(moment.is_some());
    pool.inventory(0, &[1]);
    let new = pool.make(Ino::ROOT, "new", FileKind::File);
    pool.write(2, new, &[2], &[0]);
    let commands = pool.beat_last(0, &[2]);
    let moment = remembered(&commands).unwrap();
    (pool, copy, moment)
}

fn older(pool: &mut Pool, copy: &MemoryStore) {
    pool.store = copy.copy();
    pool.restart();
}

/// Brings back a benefactor that has both chunks, and passes so much time that garbage is old.
fn come_back(pool: &mut Pool, remembers: Moment) -> Option<Moment> {
    let (_, moment) = pool.register_remembering(Some(0), Some(remembers));
    pool.inventory(0, &[1, 2]);
    for _ in 0..100 {
        pool.pass(1_000);
        let commands = pool.beat_last(0, &[]);
        assert!(!commands.iter().any(|command| matches!(command, Command::Delete { .. })), "{commands:?}");
    }
    moment
}

#[test]
fn an_older_store_is_noticed_at_the_registration_and_nothing_is_deleted_or_written() {
    let (mut pool, copy, moment) = pool_and_older_copy();
    older(&mut pool, &copy);
    assert_eq!(come_back(&mut pool, moment), None, "it is told to remember an older history");
    assert_eq!(pool.status().set_back, [BenefactorId(0)]);
    assert_eq!(pool.collect().unwrap_err().code, ErrorCode::Denied);
    let refused = pool.change(crate::harness::make(Ino::ROOT, "later", FileKind::Directory)).unwrap_err();
    assert!(refused.to_string().contains("accept-older-store"), "{refused}");
    assert!(pool.attr("old").is_ok());
    assert_eq!(pool.attr("new").unwrap_err().code, ErrorCode::Denied, "it is not told to be gone");
    assert_eq!(remembered(&pool.beat_last(0, &[])), None);
}

#[test]
fn the_newer_store_put_back_is_whole_again() {
    let (mut pool, copy, moment) = pool_and_older_copy();
    let newer = pool.store.copy();
    older(&mut pool, &copy);
    come_back(&mut pool, moment);
    older(&mut pool, &newer);
    assert!(come_back(&mut pool, moment).is_some());
    assert!(pool.status().set_back.is_empty());
    assert_eq!(pool.collect().unwrap(), 0);
    assert!(pool.attr("new").is_ok());
}

#[test]
fn an_older_store_that_has_gone_far_since_is_noticed_by_one_that_comes_late() {
    let (mut pool, copy, moment) = pool_and_older_copy();
    older(&mut pool, &copy);
    for number in 0..100 {
        pool.make(Ino::ROOT, &format!("{number}"), FileKind::Directory);
    }
    assert!(moment.commit < 100);
    come_back(&mut pool, moment);
    assert_eq!(pool.status().set_back, [BenefactorId(0)]);
}

#[test]
fn a_copy_from_the_midst_of_a_start_lacks_what_that_start_committed_later() {
    let mut pool = Pool::with_benefactors(1);
    let early = remembered(&pool.beat_whole(0, &[], &[])).unwrap();
    let copy = pool.store.copy();
    pool.make(Ino::ROOT, "later", FileKind::Directory);
    let late = remembered(&pool.beat_whole(0, &[], &[])).unwrap();
    assert_eq!(early.start, late.start);
    older(&mut pool, &copy);
    assert!(pool.register_remembering(Some(0), Some(early)).1.is_some());
    assert!(pool.register_remembering(Some(0), Some(late)).1.is_none());
}

#[test]
fn what_was_accepted_stays_accepted_and_is_collected() {
    let (mut pool, copy, moment) = pool_and_older_copy();
    let newer = pool.attr("new").unwrap().ino;
    older(&mut pool, &copy);
    come_back(&mut pool, moment);
    pool.ask(ManagerRequest::AcceptOlderStore).unwrap();
    assert!(pool.status().set_back.is_empty());
    // The manager has a term above what it was told: everybody has to hear of that.
    come_back(&mut pool, moment);
    let now = remembered(&pool.beat_last(0, &[])).unwrap();
    assert_ne!(now.start, moment.start);
    let later = pool.make(Ino::ROOT, "later", FileKind::Directory);
    assert!(later.0 > newer.0 + 1_000_000, "numbers of files that were given up are not used again");
    assert_eq!(pool.collect().unwrap(), 1, "the newer chunk");
    let commands = pool.beat_last(0, &[]);
    assert!(commands.iter().any(|command| matches!(command, Command::Delete { .. })), "{commands:?}");
    // Another one that remembers what was given up comes after a start.
    pool.restart();
    let (_, told) = pool.register_remembering(None, Some(Moment { commit: moment.commit + 100, ..moment }));
    assert!(told.is_some());
}

#[test]
fn deletions_that_were_decided_before_it_was_noticed_are_not_carried_out() {
    let (mut pool, copy, moment) = pool_and_older_copy();
    older(&mut pool, &copy);
    // The first one's memory is lost, the other one comes later.
    pool.register(Some(0));
    pool.inventory(0, &[1, 2]);
    let life = pool.last_life();
    for _ in 0..100 {
        pool.pass(1_000);
        pool.beat_as(0, life, &[], &[]).unwrap();
    }
    assert_eq!(pool.collect().unwrap(), 1, "the newer chunk");
    let (late, _) = pool.register_remembering(None, Some(moment));
    assert_eq!(pool.status().set_back, [late]);
    assert!(pool.beat_as(0, life, &[], &[]).unwrap().is_empty());
}

#[test]
fn starts_without_number_are_forgotten_oldest_first() {
    let mut pool = Pool::with_benefactors(1);
    let first = remembered(&pool.beat_whole(0, &[], &[])).unwrap();
    (0..500).for_each(|_| pool.restart());
    let (_, told) = pool.register_remembering(Some(0), Some(first));
    let middle = told.unwrap();
    (0..700).for_each(|_| pool.restart());
    assert!(pool.register_remembering(Some(0), Some(middle)).1.is_some());
    assert!(pool.register_remembering(Some(0), Some(first)).1.is_none());
}

/// Whether a benefactor that keeps the journal up to a moment gets more of it.
fn may_follow(pool: &mut Pool, number: u32, has: Option<Moment>) -> bool {
    let registration = pool.registration_in(number, pool.last_life());
    let has = has.map(|has| pool.signed(number, has));
    pool.core.may_follow(BenefactorId(number), registration, has).unwrap() == Follows::Now
}

#[test]
fn a_journal_that_has_more_than_the_store_sets_it_back_and_is_not_replaced() {
    let (mut pool, copy, moment) = pool_and_older_copy();
    older(&mut pool, &copy);
    pool.register_remembering(Some(0), None);
    pool.inventory(0, &[1, 2]);
    assert!(!may_follow(&mut pool, 0, Some(moment)));
    assert_eq!(pool.status().set_back, [BenefactorId(0)]);
    pool.ask(ManagerRequest::AcceptOlderStore).unwrap();
    // The manager has a term above what it was told: everybody has to hear of that.
    pool.register_remembering(Some(0), None);
    pool.inventory(0, &[1, 2]);
    assert!(may_follow(&mut pool, 0, Some(moment)), "what it has more was given up");
}

#[test]
fn nobody_follows_a_start_that_has_changed_nothing_or_not_heard_of_everybody() {
    let (mut pool, _, moment) = pool_and_older_copy();
    assert!(may_follow(&mut pool, 0, None));
    pool.register_remembering(None, None);
    pool.inventory(1, &[]);
    pool.restart();
    pool.register_remembering(Some(0), None);
    pool.inventory(0, &[1, 2]);
    pool.make(Ino::ROOT, "later", FileKind::Directory);
    assert!(!may_follow(&mut pool, 0, Some(moment)), "the other one has not come yet");
    pool.register_remembering(Some(1), None);
    pool.inventory(1, &[]);
    assert!(may_follow(&mut pool, 1, Some(moment)));
    pool.restart();
    for number in [0, 1] {
        pool.register_remembering(Some(number), None);
        pool.inventory(number, &[]);
    }
    assert!(!may_follow(&mut pool, 1, None), "the copy of the store from before this start is as good");
    assert!(pool.status().set_back.is_empty());
}

#[test]
fn the_benefactors_with_the_lowest_numbers_are_keepers() {
    let mut pool = Pool::new();
    for number in 0..10 {
        pool.register_remembering(None, None);
        pool.inventory(number, &[]);
    }
    pool.make(Ino::ROOT, "folder", FileKind::Directory);
    for number in 0..10 {
        pool.register_remembering(Some(number), None);
        pool.inventory(number, &[]);
        assert_eq!(may_follow(&mut pool, number, None), number < 7, "{number}");
    }
    assert!(pool.core.may_follow(BenefactorId(0), 0, None).is_err(), "it must register");
}

/// A pool whose store is an older copy that has a file with a version of session 1 which nobody has ended; the file, and what benefactor 0
/// remembers.
fn older_with_open_file() -> (Pool, Ino, Moment) {
    let mut pool = Pool::with_benefactors(1);
    let file = pool.make(Ino::ROOT, "old", FileKind::File);
    pool.open(1, file);
    pool.secure(1, &[1], &[0]);
    pool.commit(1, &[1]).unwrap();
    let copy = pool.store.copy();
    pool.make(Ino::ROOT, "new", FileKind::Directory);
    let moment = remembered(&pool.beat_whole(0, &[1], &[])).unwrap();
    older(&mut pool, &copy);
    (pool, file, moment)
}

fn state(pool: &mut Pool, file: Ino) -> VersionState {
    pool.versions(file).last().unwrap().state
}

fn sessions(pool: &mut Pool) -> Vec<SessionId> {
    match pool.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap() {
        ManagerReply::Sessions(sessions) => sessions,
        other => panic!("{other:?}"),
    }
}

#[test]
fn writers_have_their_lease_to_come_back_from_the_decision_on() {
    for comes_back in [true, false] {
        let (mut pool, file, moment) = older_with_open_file();
        come_back(&mut pool, moment);
        assert_eq!(state(&mut pool, file), VersionState::Open, "nothing is written");
        pool.ask(ManagerRequest::AcceptOlderStore).unwrap();
        pool.pass(29_000);
        assert_eq!(state(&mut pool, file), VersionState::Open);
        if comes_back {
            pool.open(1, file);
        }
        pool.pass_alive(3_000, &[]);
        let expected = if comes_back { VersionState::Open } else { VersionState::Interrupted };
        assert_eq!(state(&mut pool, file), expected);
    }
}

#[test]
fn sessions_outlive_a_silence_while_set_back_and_one_that_is_closed_leaves_its_version_as_it_is() {
    let (mut pool, file, moment) = older_with_open_file();
    for number in [1, 2] {
        pool.open(number, file);
    }
    come_back(&mut pool, moment);
    let close = ManagerRequest::CloseSession { session: session(1), interrupted: false };
    assert_eq!(pool.ask(close).unwrap_err().code, ErrorCode::Denied);
    assert_eq!((state(&mut pool, file), sessions(&mut pool)), (VersionState::Open, vec![session(2)]));
    pool.pass(100_000);
    pool.ask(ManagerRequest::AcceptOlderStore).unwrap();
    pool.pass(29_000);
    assert_eq!(sessions(&mut pool), [session(2)]);
    pool.pass_alive(2_000, &[]);
    assert_eq!((state(&mut pool, file), sessions(&mut pool)), (VersionState::Interrupted, vec![session(2)]));
}

#[test]
fn a_benefactor_whose_number_an_older_store_has_given_again_gets_another_one_and_is_a_witness() {
    let (mut pool, copy, _) = pool_and_older_copy();
    pool.register(None);
    pool.inventory(1, &[2]);
    let moment = remembered(&pool.beat_last(1, &[])).unwrap();
    let (of_old, own) = (pool.registration(Some(1), Incarnation(90), Some(moment)), pool.secrets[&1].clone());
    older(&mut pool, &copy);
    // Another one comes first.
    let new = pool.registration(None, Incarnation(91), None).introduced(&BenefactorSecret([0xcc; 32]));
    assert!(matches!(pool.ask(new), Ok(ManagerReply::Registered { id: BenefactorId(1), .. })));
    let refused = pool.ask(of_old.clone().proved(&own)).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound, "its secret must come along");
    let stranger = of_old.clone().proved(&own);
    let ManagerRequest::Register { registration, proof, .. } = stranger else { unreachable!() };
    let secret = Some(BenefactorSecret([0xdd; 32]));
    let stranger = pool.ask(ManagerRequest::Register { registration, secret, proof }).unwrap_err();
    assert_eq!(stranger.code, ErrorCode::Denied, "the proof is by another secret");
    for _ in 0..2 {
        let answer = pool.ask(of_old.clone().introduced(&own)).unwrap();
        assert!(matches!(answer, ManagerReply::Registered { id: BenefactorId(2), .. }), "{answer:?}");
        assert_eq!(pool.status().set_back, [BenefactorId(2)]);
    }
}
