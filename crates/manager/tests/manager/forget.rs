//! Benefactors whose disk is gone for ever: out of the books, their chunks copied anew, their numbers never given again.

use crate::harness::{Pool, session};
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::{FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Ino};

fn forget(pool: &mut Pool, number: u32, force: bool) -> Result<ManagerReply, Failure> {
    pool.ask(ManagerRequest::Forget { id: BenefactorId(number), force })
}

fn numbers(pool: &mut Pool) -> Vec<u32> {
    pool.status().benefactors.iter().map(|info| info.id.0).collect()
}

/// A pool of three with a file at the first two, the second of which has been silent for so long.
fn pool_with_silence(ms: u64) -> Pool {
    let mut pool = Pool::with_benefactors(3);
    let file = pool.make(Ino::ROOT, "app.N0.T1", FileKind::File);
    pool.write(1, file, &[1, 2], &[0, 1]);
    pool.pass_alive(ms, &[0, 2]);
    pool
}

#[test]
fn who_is_on_line_or_unknown_is_not_forgotten() {
    let mut pool = pool_with_silence(1_000);
    assert_eq!(forget(&mut pool, 1, true).unwrap_err().code, ErrorCode::Denied);
    assert_eq!(forget(&mut pool, 3, true).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(numbers(&mut pool), [0, 1, 2]);
}

#[test]
fn its_chunks_are_copied_at_once_and_nobody_waits_for_it_any_more() {
    let mut pool = pool_with_silence(6_000);
    assert_eq!(pool.status().chunks_at_risk, 0, "silent for some seconds, it may come back");
    forget(&mut pool, 1, false).unwrap();
    forget(&mut pool, 1, false).unwrap(); // the answer was lost
    assert_eq!(numbers(&mut pool), [0, 2]);
    assert_eq!((pool.status().chunks_at_risk, pool.locate(1)), (2, vec![0]));
    let planned = pool.beat(0, &[], &[]);
    let to_the_other = |command: &Command| match command {
        Command::Make(make) => make.blocks.iter().all(|new| new.to == BenefactorId(2)),
        _ => false,
    };
    assert!(planned.iter().all(to_the_other));
    assert_eq!(planned.len(), 2);
}

#[test]
fn the_only_copy_is_given_up_only_when_told_to() {
    let mut pool = pool_with_silence(6_000);
    pool.beat(0, &[], &[1]);
    let refused = forget(&mut pool, 1, false).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Denied);
    assert!(refused.message.contains("1 chunks have no copy"), "{refused}");
    forget(&mut pool, 1, true).unwrap();
    assert_eq!(pool.status().chunks_lost, 1);
}

#[test]
fn after_a_restart_it_is_forgotten_once_the_others_have_reported() {
    let mut pool = pool_with_silence(31_000);
    pool.restart();
    pool.register_only(Some(0));
    pool.register(Some(2));
    let refused = forget(&mut pool, 1, false).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable, "b0 may hold what b1 held: {refused}");
    assert!(pool.status().counting);
    pool.register(Some(0));
    pool.inventory(0, &[1]);
    pool.pass_alive(31_000, &[]);
    assert_eq!(forget(&mut pool, 1, false).unwrap_err().code, ErrorCode::Denied, "chunk 2 was at b1 alone");
    forget(&mut pool, 1, true).unwrap();
    assert!(!pool.status().counting);
    pool.restart();
    assert_eq!(numbers(&mut pool), [0, 2]);
}

#[test]
fn its_number_is_never_given_again_and_it_may_return_with_what_it_holds() {
    let mut pool = Pool::with_benefactors(2);
    let file = pool.make(Ino::ROOT, "app.N0.T1", FileKind::File);
    pool.write(1, file, &[1], &[0, 1]);
    pool.pass_alive(6_000, &[0]);
    forget(&mut pool, 1, false).unwrap();
    pool.restart();
    pool.register(Some(0));
    assert_eq!(pool.register(None), BenefactorId(2));
    assert_eq!(pool.register_only(Some(1)), BenefactorId(1));
    pool.inventory(1, &[1]);
    assert_eq!(pool.locate(1), [1]);
}

#[test]
fn what_a_session_stored_there_before_is_no_reason_to_fail_it() {
    let mut pool = Pool::with_benefactors(2);
    let file = pool.make(Ino::ROOT, "app.N0.T1", FileKind::File);
    pool.open(1, file);
    pool.pass_alive(6_000, &[0]);
    forget(&mut pool, 1, false).unwrap();
    let receipts = vec![pool.receipt(1, &[1])];
    let refused = pool.ask(ManagerRequest::Receipts { session: session(1), receipts }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Outdated, "the client asks, gets no answer, and stores it elsewhere");
    pool.secure(1, &[1], &[0]);
    pool.commit(1, &[1]).unwrap();
    assert_eq!(pool.locate(1), [0]);
}
