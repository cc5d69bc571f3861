//! Files that are made in one step with their session: what a crash of the manager may forget, and what comes back.

use crate::harness::{CLIENT, Pool, chunk, map_of, session};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, VersionState};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Ino, MapRoot};

fn create(number: u8, name: &str, exclusive: bool, again: Option<Ino>) -> ManagerRequest {
    ManagerRequest::Create {
        session: session(number),
        client: CLIENT,
        parent: Ino::ROOT,
        name: name.to_owned(),
        mode: 0o640,
        uid: 5,
        gid: 6,
        exclusive,
        again,
        durability: None,
    }
}

fn made(answer: Result<ManagerReply, Failure>) -> Ino {
    match answer.unwrap() {
        ManagerReply::Session { attr, base: None, .. } => attr.ino,
        other => panic!("{other:?}"),
    }
}

/// Space that came with the making of a file, and all that is reserved.
fn room(pool: &mut Pool, request: ManagerRequest) -> (u64, usize, u64) {
    match pool.ask(request).unwrap() {
        ManagerReply::Session { benefactors, room_bytes, .. } => {
            (room_bytes, benefactors.len(), pool.status().space.reserved_bytes)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_file_gets_a_little_space_unless_the_pool_is_nearly_full_and_gives_it_back() {
    const SMALL: u64 = 64 << 10;
    let mut pool = Pool::with_benefactors(2);
    assert_eq!(room(&mut pool, create(1, "a", false, None)), (SMALL, 2, SMALL));
    assert_eq!(room(&mut pool, create(1, "a", false, None)), (SMALL, 2, SMALL), "its answer was lost");
    assert_eq!(room(&mut pool, create(2, "b", false, None)), (SMALL, 2, 2 * SMALL));
    let ino = pool.attr("a").unwrap().ino;
    let open = ManagerRequest::OpenSession { session: session(3), client: CLIENT, ino, durability: None };
    assert_eq!(room(&mut pool, open), (0, 0, 2 * SMALL), "a file that is merely opened");
    pool.close(2);
    assert_eq!(pool.status().space.reserved_bytes, SMALL);
    [0, 1].into_iter().for_each(|number| drop(pool.beat_with_free(number, 20 << 20)));
    assert_eq!(room(&mut pool, create(4, "c", false, None)), (0, 0, SMALL), "others may need it");
}

fn open(pool: &mut Pool, number: u8, ino: Ino) -> Result<ManagerReply, Failure> {
    pool.ask(ManagerRequest::OpenSession { session: session(number), client: CLIENT, ino, durability: None })
}

/// A pool whose manager has forgotten a file that it had made.
fn with_a_forgotten_file() -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(2);
    pool.make(Ino::ROOT, "other", FileKind::File);
    let ino = made(pool.ask_in_memory(create(1, "file", false, None)));
    pool.restart();
    (pool, ino)
}

#[test]
fn a_file_that_the_manager_forgot_is_made_again_under_its_number_and_committed() {
    let (mut pool, ino) = with_a_forgotten_file();
    assert_eq!(pool.attr("file").unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(open(&mut pool, 1, ino).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(made(pool.ask(create(1, "file", false, Some(ino)))), ino);
    assert_eq!(made(pool.ask(create(1, "file", false, Some(ino)))), ino, "its answer was lost");
    pool.register_only(Some(0));
    pool.inventory(0, &[1]);
    pool.secure(1, &[1], &[0]);
    assert_eq!(pool.commit(1, &[1]), Ok(1));
    pool.restart();
    let attr = pool.attr("file").unwrap();
    assert_eq!((attr.ino, attr.mode, attr.uid, attr.gid, attr.version), (ino, 0o640, 5, 6, 1));
}

#[test]
fn a_number_that_was_given_to_a_forgotten_file_is_given_to_no_other() {
    let (mut pool, ino) = with_a_forgotten_file();
    let next = pool.make(Ino::ROOT, "next", FileKind::File);
    assert_ne!(next, ino);
    let unknown = Ino(next.0 + 1);
    assert_eq!(pool.ask(create(1, "file", false, Some(unknown))).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn a_name_that_was_taken_meanwhile_is_not_given_twice() {
    let (mut pool, ino) = with_a_forgotten_file();
    pool.make(Ino::ROOT, "file", FileKind::File);
    assert_eq!(pool.ask(create(1, "file", false, Some(ino))).unwrap_err().code, ErrorCode::Exists);
}

#[test]
fn what_was_removed_while_its_writer_was_away_does_not_come_back() {
    let mut pool = Pool::with_benefactors(2);
    let ino = made(pool.ask(create(1, "file", false, None)));
    pool.restart();
    pool.change(Change::Unlink { parent: Ino::ROOT, name: "file".to_owned() }).unwrap();
    // The writer can go on, and the name stays away.
    assert!(open(&mut pool, 1, ino).is_ok());
    assert_eq!(made(pool.ask(create(1, "file", false, Some(ino)))), ino);
    assert_eq!(pool.attr("file").unwrap_err().code, ErrorCode::NotFound);
    pool.close(1);
    pool.pass(31_000);
    assert_eq!(pool.attr("file").unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(open(&mut pool, 2, ino).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn after_a_lease_nothing_is_made_again() {
    let mut pool = Pool::with_benefactors(2);
    let ino = made(pool.ask(create(1, "file", false, None)));
    pool.restart();
    pool.change(Change::Unlink { parent: Ino::ROOT, name: "file".to_owned() }).unwrap();
    pool.pass(31_000);
    assert_eq!(pool.ask(create(1, "file", false, Some(ino))).unwrap_err().code, ErrorCode::NotFound);
}

#[test]
fn an_exclusive_file_is_made_once_by_one_client_however_often_its_answer_is_lost() {
    let mut pool = Pool::with_benefactors(2);
    let ino = made(pool.ask(create(1, "lock", true, None)));
    assert_eq!(made(pool.ask(create(1, "lock", true, None))), ino);
    pool.restart();
    assert_eq!(made(pool.ask(create(1, "lock", true, None))), ino);
    assert_eq!(pool.ask(create(2, "lock", true, None)).unwrap_err().code, ErrorCode::Exists);
}

#[test]
fn a_settled_file_is_there_after_a_crash_and_a_forgotten_session_is_told_so() {
    let mut pool = Pool::with_benefactors(2);
    let ino = made(pool.ask_in_memory(create(1, "file", false, None)));
    assert_eq!(pool.ask(ManagerRequest::Settle(session(1))), Ok(ManagerReply::Done));
    pool.restart();
    assert_eq!(pool.attr("file").unwrap().ino, ino);
    assert_eq!(pool.ask(ManagerRequest::Settle(session(1))).unwrap_err().code, ErrorCode::Stale);
}

#[test]
fn a_commit_counts_the_chunks_that_it_reports_itself() {
    let mut pool = Pool::with_benefactors(2);
    let ino = made(pool.ask(create(1, "file", false, None)));
    let map = map_of(&[chunk(1)]);
    let receipt = pool.receipt(0, &[1]);
    let commit = |receipts| ManagerRequest::Commit {
        session: session(1),
        root: MapRoot::Inline { map: map.encode() },
        size: map.size(),
        mtime: 5,
        stored_bytes: 0,
        named: Vec::new(),
        named_before: 0,
        state: VersionState::Open,
        hole_bytes: 0,
        receipts,
        key: None,
        changes: 0,
    };
    assert_eq!(
        pool.ask(commit(Vec::new())).unwrap_err().code,
        ErrorCode::Unavailable,
        "it is durable nowhere"
    );
    let others = vec![(BenefactorId(9), receipt.1.clone())];
    assert_eq!(pool.ask(commit(others)).unwrap_err().code, ErrorCode::Outdated);
    pool.ask(commit(vec![receipt])).unwrap();
    assert_eq!(pool.versions(ino).len(), 1);
}

#[test]
fn the_question_for_chunks_brings_room_and_is_answered_also_without() {
    let mut pool = Pool::with_benefactors(1);
    made(pool.ask(create(1, "file", false, None)));
    let question =
        |room_bytes| ManagerRequest::Known { session: session(1), chunks: vec![chunk(1)], room_bytes };
    let Ok(ManagerReply::Known { found, benefactors, room_bytes }) = pool.ask(question(1000)) else {
        panic!()
    };
    assert_eq!((found.len(), benefactors.len(), room_bytes), (1, 1, 1000));
    pool.pass(6_000);
    let Ok(ManagerReply::Known { found, benefactors, room_bytes }) = pool.ask(question(1000)) else {
        panic!()
    };
    assert_eq!((found.len(), benefactors.len(), room_bytes), (1, 0, 0));
}

#[test]
fn a_file_that_was_never_written_is_taken_back_only_while_nobody_else_has_it() {
    let mut pool = Pool::with_benefactors(1);
    let take_back = |pool: &mut Pool, ino: Ino| {
        let change = Change::UnlinkUnwritten { parent: Ino::ROOT, name: "file".to_owned(), ino };
        assert_eq!(pool.change(change), Ok(ManagerReply::Done));
        pool.attr("file").is_ok()
    };
    let first = pool.make(Ino::ROOT, "file", FileKind::File);
    assert!(!take_back(&mut pool, first));
    assert!(!take_back(&mut pool, first), "it was taken back before");
    let file = pool.make(Ino::ROOT, "file", FileKind::File);
    assert!(take_back(&mut pool, first), "another file has the name");
    pool.open(1, file);
    assert!(take_back(&mut pool, file), "somebody writes it");
    pool.secure(1, &[1], &[0]);
    pool.commit(1, &[1]).unwrap();
    pool.close(1);
    assert!(take_back(&mut pool, file), "it has a version");
}
