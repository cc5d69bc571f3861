//! Who may register as which benefactor.

use crate::harness::Pool;
use stdchk_manager::core::Asker;
use stdchk_model::limits::BENEFACTORS_OF_MEMBER_MAX;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{BenefactorSecret, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ErrorCode, Incarnation};

const OTHER: BenefactorSecret = BenefactorSecret([0xbb; 32]);

/// A registration as benefactor 0 in a life that nobody has had.
fn registration(pool: &Pool, life: u64) -> stdchk_model::message::manager::Registration {
    pool.registration(Some(0), Incarnation(life), None)
}

fn refused(pool: &mut Pool, request: ManagerRequest) -> ErrorCode {
    pool.ask(request).unwrap_err().code
}

#[test]
fn nobody_registers_as_a_benefactor_whose_secret_he_does_not_know() {
    let mut pool = Pool::new();
    assert_eq!(pool.register(None), BenefactorId(0));
    let secret = pool.secrets[&0].clone();
    for _ in 0..2 {
        let stranger = registration(&pool, 90).proved(&OTHER);
        assert_eq!(refused(&mut pool, stranger), ErrorCode::Denied);
        let stranger = registration(&pool, 90).introduced(&OTHER);
        assert_eq!(refused(&mut pool, stranger), ErrorCode::Denied);
        // A proof that was heard holds for what was said with it alone.
        let ManagerRequest::Register { proof, .. } = registration(&pool, 91).proved(&secret) else {
            unreachable!()
        };
        let mut changed = registration(&pool, 91);
        changed.address = "127.0.0.1:2".to_owned();
        let changed = ManagerRequest::Register { registration: changed, secret: None, proof };
        assert_eq!(refused(&mut pool, changed), ErrorCode::Denied);
        // The one that is there goes on.
        pool.inventory(0, &[1]);
        pool.restart();
        assert_eq!(pool.register(Some(0)), BenefactorId(0));
    }
    let request = registration(&pool, 92).proved(&secret);
    assert!(matches!(pool.ask(request), Ok(ManagerReply::Registered { id: BenefactorId(0), .. })));
}

#[test]
fn a_manager_that_does_not_know_a_benefactor_is_told_its_secret_and_holds_it_to_that() {
    let mut pool = Pool::new();
    let unknown = registration(&pool, 90).proved(&OTHER);
    assert_eq!(refused(&mut pool, unknown), ErrorCode::NotFound);
    let request = registration(&pool, 90).introduced(&OTHER);
    assert!(matches!(pool.ask(request), Ok(ManagerReply::Registered { id: BenefactorId(0), .. })));
    let request = registration(&pool, 91).introduced(&BenefactorSecret([1; 32]));
    assert_eq!(refused(&mut pool, request), ErrorCode::Denied);
}

#[test]
fn whoever_did_not_hear_which_number_it_was_given_is_given_the_same() {
    let mut pool = Pool::new();
    for life in 0..2 {
        let request = pool.registration(None, Incarnation(life), None).introduced(&OTHER);
        let answer = pool.ask(request).unwrap();
        assert!(matches!(answer, ManagerReply::Registered { id: BenefactorId(0), .. }), "{answer:?}");
    }
}

#[test]
fn a_member_registers_as_many_benefactors_as_one_may_and_those_again_after_a_restart() {
    let mut pool = Pool::new();
    let of = |number: u8| Asker { member: Some(MemberId([number; 16])), user: None };
    let secret = |number: usize| BenefactorSecret(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let register = |pool: &mut Pool, id: Option<u32>, number: usize, asker: &Asker| {
        let request = pool.registration(id, Incarnation(7), None).introduced(&secret(number));
        pool.ask_as(asker, request).map_err(|failure| failure.code)
    };
    for number in 0..BENEFACTORS_OF_MEMBER_MAX {
        register(&mut pool, None, number, &of(1)).unwrap();
    }
    let one_more = BENEFACTORS_OF_MEMBER_MAX;
    assert_eq!(register(&mut pool, None, one_more, &of(1)), Err(ErrorCode::Denied));
    register(&mut pool, None, one_more, &of(2)).unwrap();
    pool.restart();
    assert_eq!(register(&mut pool, None, one_more + 1, &of(1)), Err(ErrorCode::Denied), "it is written down");
    register(&mut pool, Some(3), 3, &of(1)).unwrap();
    // One of another member doesn't become the 65th; a host that has joined anew takes its own along.
    assert_eq!(register(&mut pool, Some(64), one_more, &of(1)), Err(ErrorCode::Denied));
    register(&mut pool, Some(3), 3, &of(2)).unwrap();
    register(&mut pool, None, one_more + 2, &of(1)).unwrap();
    // Those of the manager's machine are its own affair.
    for number in 0..=BENEFACTORS_OF_MEMBER_MAX {
        register(&mut pool, None, 1000 + number, &Asker::default()).unwrap();
    }
}
