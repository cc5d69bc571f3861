//! The pasts of hosts: what the manager notes of benefactors and of machines on which clients write, over restarts and damage.

use crate::harness::{CLIENT, Pool};
use stdchk_manager::core::HostKey;
use stdchk_manager::store::{Batch, Store, Table};
use stdchk_model::message::manager::ManagerRequest;
use stdchk_model::{BenefactorId, ClientId, MachineId};
use stdchk_placement::history::State;

const MACHINE: MachineId = MachineId([7; 16]);
const SECOND: u64 = 1_000;

fn benefactor(number: u32) -> HostKey {
    HostKey::Benefactor(BenefactorId(number))
}

/// Seconds that a host has spent in a state.
fn spent(pool: &Pool, host: HostKey, state: State) -> u64 {
    let past = pool.core.past(host).unwrap();
    past.spans(0, u64::MAX).filter(|span| span.state == state).map(|span| span.to - span.from).sum()
}

fn state(pool: &Pool, host: HostKey) -> State {
    pool.core.past(host).map_or(State::Unknown, |past| past.state())
}

/// The one compute host of which there is a past, as its client is seen.
fn attend(pool: &mut Pool, client: ClientId) {
    pool.ask(ManagerRequest::Attend { client, machine: MACHINE, sent: Vec::new() }).unwrap();
}

fn computing(pool: &mut Pool) -> HostKey {
    pool.core.host_of_machine(MACHINE)
}

/// Passes time in which the benefactor 0, which registered last, shows signs of life.
fn pass_with_last(pool: &mut Pool, seconds: u32) {
    for _ in 0..seconds {
        pool.pass(SECOND);
        pool.beat_last(0, &[]);
    }
}

#[test]
fn what_was_seen_of_benefactors_survives_a_restart_and_the_time_without_a_manager_is_unknown() {
    let mut pool = Pool::with_benefactors(2);
    pool.pass_alive(300 * SECOND, &[0, 1]);
    // One of them is away for two minutes.
    pool.pass_alive(120 * SECOND, &[0]);
    assert_eq!(state(&pool, benefactor(1)), State::Unavailable);
    pool.pass_alive(700 * SECOND, &[0, 1]);
    let away = spent(&pool, benefactor(1), State::Unavailable);
    assert!((110..=120).contains(&away), "{away}");
    // The manager is gone for a day, and one benefactor meanwhile for good.
    let stored = pool.records(Table::Past);
    assert_eq!(stored, 3, "two pasts, and until when they are known");
    pool.now.wall += 86_400 * 1_000_000_000;
    pool.restart();
    pool.register(Some(0));
    pass_with_last(&mut pool, 60);
    assert_eq!([0, 1].map(|number| state(&pool, benefactor(number))), [State::Running, State::Unavailable]);
    assert_eq!(spent(&pool, benefactor(0), State::Unavailable), 0);
    let unknown = spent(&pool, benefactor(0), State::Unknown);
    // What wasn't stored yet when the manager was killed is unknown, too.
    assert!((86_400..=86_400 + 600).contains(&unknown), "{unknown}");
    assert!(spent(&pool, benefactor(0), State::Running) >= 1_120 - 600);
    let away = spent(&pool, benefactor(1), State::Unavailable);
    assert!((110..=120 + 60).contains(&away), "{away}");
}

#[test]
fn a_damaged_past_begins_anew_and_harms_nothing_else() {
    let mut pool = Pool::with_benefactors(2);
    pool.pass_alive(700 * SECOND, &[0, 1]);
    let mut batch = Batch::default();
    batch.put(Table::Past, &[&[1][..], &0u32.to_be_bytes()].concat(), b"junk".to_vec());
    batch.put(Table::Past, b"nobody's", b"junk".to_vec());
    pool.store.commit(&batch).unwrap();
    pool.restart();
    assert!(pool.core.past(benefactor(0)).unwrap().is_empty());
    assert!(spent(&pool, benefactor(1), State::Running) >= 600);
    pool.register(Some(0));
    pass_with_last(&mut pool, 100);
    let anew = spent(&pool, benefactor(0), State::Running);
    assert!((99..=100).contains(&anew), "{anew}");
    pool.restart();
    assert!(!pool.core.past(benefactor(0)).unwrap().is_empty());
}

#[test]
fn the_past_of_a_forgotten_benefactor_goes_from_memory_and_store() {
    let mut pool = Pool::with_benefactors(2);
    pool.pass_alive(100 * SECOND, &[0, 1]);
    pool.pass_alive(100 * SECOND, &[0]);
    pool.ask(ManagerRequest::Forget { id: BenefactorId(1), force: true }).unwrap();
    pool.pass_alive(700 * SECOND, &[0]);
    assert!(pool.core.past(benefactor(1)).is_none());
    assert_eq!(pool.records(Table::Past), 2);
}

#[test]
fn nothing_is_stored_of_pasts_more_than_once_a_minute_and_nothing_at_all_while_nothing_changes() {
    let mut pool = Pool::with_benefactors(1);
    pool.pass_alive(120 * SECOND, &[0]);
    let before = pool.store.sequence();
    pool.pass_alive(590 * SECOND, &[0]);
    let commits = pool.store.sequence() - before;
    assert!(commits <= 2, "{commits} commits while nothing happened");
    // One that comes and goes, twenty times in ten minutes.
    let before = pool.store.sequence();
    for _ in 0..20 {
        pool.pass_alive(15 * SECOND, &[]);
        pool.pass_alive(15 * SECOND, &[0]);
    }
    let commits = pool.store.sequence() - before;
    assert!(commits <= 12, "{commits} commits in ten minutes");
}

#[test]
fn a_machine_has_failed_when_its_last_client_falls_silent_and_not_when_it_leaves() {
    let other = ClientId([8; 16]);
    let mut pool = Pool::with_benefactors(1);
    let host = computing(&mut pool);
    attend(&mut pool, CLIENT);
    pool.pass_alive(29 * SECOND, &[0]);
    assert!(pool.core.past(host).is_none(), "a benefactor that runs there may not have registered yet");
    pool.pass_alive(SECOND, &[0]);
    attend(&mut pool, CLIENT);
    attend(&mut pool, other);
    pool.pass_alive(100 * SECOND, &[0]);
    // A process died; its machine didn't, since another one goes on there.
    assert_eq!(state(&pool, host), State::Running);
    pool.ask(ManagerRequest::Leave(CLIENT)).unwrap();
    assert_eq!(state(&pool, host), State::Running, "another command may follow");
    pool.pass(300 * SECOND);
    assert_eq!(state(&pool, host), State::Unknown);
    assert_eq!(spent(&pool, host, State::Unavailable), 0);
    attend(&mut pool, CLIENT);
    (0..40).for_each(|_| pool.pass(SECOND));
    assert_eq!(state(&pool, host), State::Unavailable);
    let (up, away) = (spent(&pool, host, State::Running), spent(&pool, host, State::Unavailable));
    assert!(up >= 130 && (5..=11).contains(&away), "{up} {away}");
    // It comes back, and the manager is started anew: what it knew of the machine, it knows still.
    attend(&mut pool, CLIENT);
    pool.pass_alive(1_300 * SECOND, &[0]);
    pool.restart();
    pool.pass(60 * SECOND);
    assert_eq!(state(&pool, host), State::Unknown, "nobody has seen it since");
    assert!(spent(&pool, host, State::Unavailable) <= 11);
    assert!(spent(&pool, host, State::Running) >= 700);
}

#[test]
fn the_past_of_a_machine_with_a_benefactor_is_that_of_the_benefactor() {
    let mut pool = Pool::new();
    pool.machines.insert(0, MACHINE);
    pool.register(None);
    attend(&mut pool, CLIENT);
    assert_eq!(computing(&mut pool), benefactor(0));
    // A client that dies there is no failure of the benefactor.
    for _ in 0..60 {
        pool.pass(SECOND);
        pool.beat(0, &[], &[]);
    }
    assert_eq!(spent(&pool, benefactor(0), State::Unavailable), 0);
    assert_eq!(pool.records(Table::Past), 1);
}
