//! A manager's term is above all that its store and its benefactors know, durably, before it answers a registration.

use crate::harness::Pool;
use stdchk_model::message::manager::{Era, FileKind, ManagerRequest, Term};
use stdchk_model::{BenefactorId, ErrorCode, Ino};

fn told(pool: &Pool) -> Term {
    pool.terms[&0]
}

#[test]
fn every_start_has_a_greater_term() {
    let mut pool = Pool::with_benefactors(1);
    let mut before = told(&pool);
    for _ in 0..3 {
        pool.restart();
        pool.register(Some(0));
        assert!(told(&pool).number > before.number);
        before = told(&pool);
    }
    // The same one again: nothing is above it.
    pool.register(Some(0));
    assert_eq!(told(&pool), before);
}

#[test]
fn a_manager_whose_benefactor_knows_a_greater_term_takes_one_above_it_for_ever() {
    let mut pool = Pool::with_benefactors(1);
    let greater = Term { era: Era::FIRST, number: 1000, start: 7 };
    pool.terms.insert(0, greater);
    pool.register(Some(0));
    assert_eq!(told(&pool).number, 1001);
    pool.restart();
    pool.terms.clear();
    pool.register(Some(0));
    assert_eq!(told(&pool).number, 1002, "that is durable");
}

#[test]
fn of_two_terms_with_one_number_both_are_not_obeyed_by_the_same_benefactor() {
    let mut pool = Pool::with_benefactors(1);
    let own = told(&pool);
    pool.terms.insert(0, Term { start: u64::MAX, ..own });
    pool.register(Some(0));
    assert_eq!(told(&pool).number, own.number + 1);
}

#[test]
fn while_set_back_the_term_stays_and_once_that_is_accepted_it_is_above_all_that_were_told() {
    let mut pool = Pool::with_benefactors(2);
    let old = pool.make(Ino::ROOT, "old", FileKind::File);
    pool.write(1, old, &[1], &[0]);
    let copy = pool.store.copy();
    for _ in 0..5 {
        pool.restart();
    }
    let (_, moment) = pool.register_remembering(Some(0), None);
    let greatest = told(&pool);
    pool.store = copy;
    pool.restart();
    pool.register_remembering(Some(0), moment);
    assert_eq!(told(&pool), greatest, "it rises above nothing while nothing may be written");
    assert_eq!(pool.status().set_back, [BenefactorId(0)]);
    pool.ask(ManagerRequest::AcceptOlderStore).unwrap();
    let registration = pool.registration_in(0, pool.last_life());
    let orders = ManagerRequest::Orders { id: BenefactorId(0), registration };
    assert_eq!(
        pool.ask(orders).unwrap_err().code,
        ErrorCode::Stale,
        "it registers anew, and learns the term"
    );
    pool.register(Some(0));
    assert!(told(&pool) > greatest, "it is of a later era");
}

#[test]
fn a_benefactor_that_knows_another_state_sets_the_manager_back_and_once_that_is_accepted_its_era_is_later() {
    let mut pool = Pool::with_benefactors(2);
    let own = told(&pool);
    assert_eq!(own.era, Era::FIRST);
    // It was moved, and is led from elsewhere.
    let other = Term { era: Era { number: 3, id: 9 }, number: 1, start: 5 };
    pool.terms.insert(0, other);
    pool.register(Some(0));
    assert_eq!(told(&pool), other, "it obeys the other one");
    assert_eq!(pool.status().set_back, [BenefactorId(0)]);
    let make = ManagerRequest::SetManagers(vec!["a:1".to_owned()]);
    assert_eq!(pool.ask(make.clone()).unwrap_err().code, ErrorCode::Denied);
    pool.ask(ManagerRequest::AcceptOlderStore).unwrap();
    pool.register(Some(0));
    assert_eq!(told(&pool).era.number, 4);
    assert!(pool.status().set_back.is_empty());
    pool.ask(make).unwrap();
    let era = told(&pool).era;
    pool.restart();
    pool.terms.clear();
    pool.register(Some(0));
    assert_eq!(told(&pool).era, era, "that is durable");
    // The same number, and another way.
    pool.terms.insert(0, Term { era: Era { id: era.id ^ 1, ..era }, ..other });
    pool.register(Some(0));
    assert_eq!(pool.status().set_back, [BenefactorId(0)]);
}
