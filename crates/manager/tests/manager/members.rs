//! Tokens let one host join each, also after a start of the manager and whatever store is put back.

use crate::harness::Pool;
use stdchk_manager::core::NewMember;
use stdchk_manager::store::Table;
use stdchk_model::ErrorCode;
use stdchk_model::message::handshake::{Grant, MemberId, Role, TokenId};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, MemberInfo};

/// The second at which the tokens of a test end.
const END: u64 = 3_600;

fn grant(number: u8, made: u64) -> Grant {
    Grant { token: TokenId([number; 8]), roles: vec![Role::Client], made, end: END, user: None, uses: 1 }
}

/// A host that shows a token.
fn host(number: u8, grant: Grant) -> NewMember {
    NewMember {
        grant,
        id: MemberId([number; 16]),
        host: format!("host{number}"),
        address: "10.0.0.1:1".to_owned(),
    }
}

fn refused(pool: &mut Pool, new: NewMember) -> (ErrorCode, String) {
    let failure = pool.admit(new).unwrap_err();
    (failure.code, failure.message)
}

fn members(pool: &mut Pool) -> Vec<MemberInfo> {
    match pool.ask(ManagerRequest::Members).unwrap() {
        ManagerReply::Members(members) => members,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_token_is_good_for_one_host_and_for_its_second_try_also_after_a_start_of_the_manager() {
    let mut pool = Pool::new();
    assert_eq!(pool.admit(host(1, grant(1, 0))), Ok(ManagerReply::Done));
    for _ in 0..2 {
        assert_eq!(pool.admit(host(1, grant(1, 0))), Ok(ManagerReply::Done), "the answer may have been lost");
        let (code, message) = refused(&mut pool, host(2, grant(1, 0)));
        assert!(code == ErrorCode::Denied && message.contains("used before"), "{message}");
        pool.restart();
    }
    pool.pass(1_000);
    pool.admit(host(2, grant(2, 0))).unwrap();
    let hosts: Vec<String> = members(&mut pool).into_iter().map(|member| member.host).collect();
    assert_eq!(hosts, ["host1", "host2"]);
}

#[test]
fn a_token_for_several_hosts_is_good_for_as_many_and_their_second_tries_also_after_starts_of_the_manager() {
    let mut pool = Pool::new();
    let token = || Grant { uses: 3, ..grant(1, 0) };
    for number in 1..=3 {
        for _ in 0..2 {
            assert_eq!(pool.admit(host(number, token())), Ok(ManagerReply::Done));
            pool.restart();
            (1..=number).for_each(|before| drop(pool.admit(host(before, token())).unwrap()));
        }
    }
    for _ in 0..2 {
        let (code, message) = refused(&mut pool, host(4, token()));
        assert!(code == ErrorCode::Denied && message.contains("good for 3 hosts"), "{message}");
        pool.restart();
    }
    assert_eq!(members(&mut pool).len(), 3);
    pool.pass(END * 1_000);
    pool.admit(host(5, Grant { end: 2 * END + 10, ..grant(5, END) })).unwrap();
    assert_eq!(pool.records(Table::Token), 2, "one, and that the other is over");
}

#[test]
fn a_token_that_is_over_opens_nothing_even_if_its_use_is_forgotten_and_the_calendar_goes_back() {
    let mut pool = Pool::new();
    pool.admit(host(1, grant(1, 0))).unwrap();
    pool.pass(END * 1_000);
    assert!(refused(&mut pool, host(2, grant(1, 0))).1.contains("too old"));
    // Another one is made, and what is over is forgotten.
    pool.admit(host(3, Grant { end: 2 * END + 10, ..grant(3, END) })).unwrap();
    assert_eq!(pool.records(Table::Token), 2, "one, and that the other is over");
    pool.now.wall = 1_000;
    pool.restart();
    assert!(refused(&mut pool, host(2, grant(1, 0))).1.contains("too old"));
    pool.admit(host(4, Grant { end: 2 * END, ..grant(4, 0) })).unwrap();
}

#[test]
fn keys_that_were_revoked_join_no_more_and_stand_in_the_list() {
    let mut pool = Pool::new();
    pool.admit(host(1, grant(1, 0))).unwrap();
    pool.ask(ManagerRequest::Revoke { member: MemberId([1; 16]) }).unwrap();
    assert!(refused(&mut pool, host(1, grant(2, 0))).1.contains("revoked"));
    pool.restart();
    assert!(refused(&mut pool, host(1, grant(2, 0))).1.contains("revoked"));
    assert!(members(&mut pool)[0].revoked);
}

#[test]
fn while_benefactors_may_remember_more_than_the_store_only_tokens_count_that_were_made_since() {
    let mut pool = Pool::with_benefactors(1);
    pool.pass(10_000);
    pool.restart();
    let (code, _) = refused(&mut pool, host(1, grant(1, 9)));
    assert_eq!(code, ErrorCode::Unavailable);
    pool.admit(host(2, grant(2, 10))).unwrap();
    pool.register(Some(0));
    pool.inventory(0, &[]);
    pool.admit(host(1, grant(1, 9))).unwrap();
}
