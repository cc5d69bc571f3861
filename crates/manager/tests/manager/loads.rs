//! How busy benefactors say that they are, and what clients reach when they send there: choices, pasts, rankings, explanations.

use crate::harness::{CLIENT, Pool, empty_load, session};
use stdchk_manager::core::{Asker, HostKey};
use stdchk_model::message::benefactor::{BenefactorLoad, Command, StorageState};
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{
    Change, FileKind, ManagerReply, ManagerRequest, PlacedHost, Placement, Sent,
};
use stdchk_model::{BenefactorId, ClientId, Ino, MachineId};
use stdchk_placement::history::State;

const SECOND: u64 = 1_000;
const MACHINE: MachineId = MachineId([7; 16]);

fn load(state: StorageState) -> BenefactorLoad {
    BenefactorLoad { state, ..empty_load() }
}

fn file_under(pool: &mut Pool, policy: &[(&str, &str)]) -> Ino {
    let app = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = policy.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    pool.change(Change::SetPolicy { ino: app, pairs }).unwrap();
    pool.make(app, "app.N0.T1", FileKind::File)
}

fn stripe(pool: &mut Pool, number: u8, ino: Ino) -> Vec<u32> {
    pool.open(number, ino);
    let reserve = ManagerRequest::Reserve { session: session(number), bytes: 1 << 20, avoid: Vec::new() };
    match pool.ask(reserve).unwrap() {
        ManagerReply::Stripe { benefactors, .. } => benefactors.iter().map(|info| info.id.0).collect(),
        other => panic!("{other:?}"),
    }
}

fn attend(pool: &mut Pool, sent: Vec<Sent>) {
    pool.ask(ManagerRequest::Attend { client: CLIENT, machine: MACHINE, sent }).unwrap();
}

fn explain(pool: &mut Pool, ino: Ino) -> Placement {
    match pool.ask(ManagerRequest::Explain { ino, machine: MACHINE }).unwrap() {
        ManagerReply::Placement(placement) => placement,
        other => panic!("{other:?}"),
    }
}

fn host(placement: &Placement, number: u32) -> PlacedHost {
    placement.hosts.iter().find(|host| host.id.0 == number).unwrap().clone()
}

#[test]
fn busy_benefactors_get_nothing_while_there_are_enough_others_for_each_chunk() {
    for policy in ["round-robin", "random", "falcon", "learned"] {
        let mut pool = Pool::with_benefactors(6);
        let placement = ("placement", policy);
        let file = file_under(&mut pool, &[placement, ("redundancy", "replicate:3"), ("stripe", "4")]);
        pool.beat_with(1, load(StorageState::Refusing));
        pool.beat_with(2, load(StorageState::Refusing));
        pool.beat_with(3, load(StorageState::Loaded));
        for number in 1..8 {
            let mut chosen = stripe(&mut pool, number, file);
            chosen.sort_unstable();
            assert_eq!(chosen, [0, 3, 4, 5], "{policy}");
            pool.rank();
        }
        // Three are free: as many as a chunk has copies.
        pool.beat_with(0, load(StorageState::Refusing));
        let chosen = stripe(&mut pool, 8, file);
        assert!(chosen.len() == 3 && chosen.iter().all(|id| [3, 4, 5].contains(id)), "{policy}: {chosen:?}");
        // Two are left, and one that is busy comes last.
        pool.beat_with(5, load(StorageState::Refusing));
        let chosen = stripe(&mut pool, 9, file);
        assert!(
            chosen.len() == 3 && chosen[..2].iter().all(|id| [3, 4].contains(id)),
            "{policy}: {chosen:?}"
        );
        (0..6).for_each(|id| drop(pool.beat_with(id, load(StorageState::Refusing))));
        assert_eq!(stripe(&mut pool, 10, file).len(), 3, "{policy}: all are busy");
        pool.beat_with(1, load(StorageState::Running));
        assert_eq!(stripe(&mut pool, 11, file)[0], 1, "{policy}: it is free again");
    }
}

#[test]
fn one_with_as_many_clients_as_may_is_chosen_as_before() {
    let mut pool = Pool::with_benefactors(3);
    let file = file_under(&mut pool, &[("redundancy", "replicate:1"), ("stripe", "3")]);
    pool.beat_with(1, load(StorageState::Full));
    assert_eq!(stripe(&mut pool, 1, file).len(), 3);
}

#[test]
fn the_busy_benefactor_beside_who_writes_is_the_last_resort() {
    for placement in ["falcon", "learned", "pessimistic"] {
        let mut pool = Pool::new();
        pool.machines.insert(0, MACHINE);
        pool.register(None);
        attend(&mut pool, Vec::new());
        let file = file_under(&mut pool, &[("placement", placement), ("redundancy", "replicate:1")]);
        for round in 1..4 {
            pool.beat_with(0, load(StorageState::Refusing));
            assert_eq!(stripe(&mut pool, round, file), [0], "{placement}: the pool has no other one");
            pool.rank();
        }
        pool.register(None);
        assert_eq!(stripe(&mut pool, 4, file), [1], "{placement}: now it has");
    }
}

#[test]
fn what_a_member_sends_is_believed_of_its_own_benefactors_machine_and_of_machines_without() {
    let mut pool = Pool::new();
    pool.machines.insert(0, MACHINE);
    pool.register(None);
    pool.register(None);
    let file = file_under(&mut pool, &[("stripe", "2")]);
    let sent = |bytes| vec![Sent { to: BenefactorId(1), bytes, ms: 1000 }];
    attend(&mut pool, sent(5_000_000));
    let other = MemberId([9; 16]);
    let lie = ManagerRequest::Attend { client: ClientId([9; 16]), machine: MACHINE, sent: sent(1) };
    pool.ask_as(&Asker { member: Some(other), ..Asker::default() }, lie).unwrap();
    assert_eq!(host(&explain(&mut pool, file), 1).bandwidth, Some(5_000_000));
}

#[test]
fn loads_are_in_the_pasts_and_survive_a_restart_of_the_manager() {
    let mut pool = Pool::with_benefactors(2);
    pool.pass_alive(100 * SECOND, &[0, 1]);
    let pass = |pool: &mut Pool, state: StorageState, seconds: u64| {
        for _ in 0..seconds {
            pool.pass(SECOND);
            pool.beat_with(0, load(state));
            pool.beat(1, &[], &[]);
        }
    };
    pass(&mut pool, StorageState::Loaded, 50);
    pass(&mut pool, StorageState::Refusing, 30);
    // A state that passes counts as running.
    pass(&mut pool, StorageState::Full, 700);
    let spent = |pool: &Pool, state: State| -> u64 {
        let past = pool.core.past(HostKey::Benefactor(BenefactorId(0))).unwrap();
        past.spans(0, u64::MAX).filter(|span| span.state == state).map(|span| span.to - span.from).sum()
    };
    let seen = (spent(&pool, State::Loaded), spent(&pool, State::Refusing));
    assert!((49..=51).contains(&seen.0) && (29..=31).contains(&seen.1), "{seen:?}");
    assert!(spent(&pool, State::Running) > 790);
    // What was said before the restart counts no more; what was noted does.
    pool.beat_with(0, load(StorageState::Refusing));
    pool.pass_alive(70 * SECOND, &[1]);
    pool.restart();
    pool.register(Some(0));
    pool.register(Some(1));
    assert_eq!(spent(&pool, State::Loaded), seen.0);
    let refusing = spent(&pool, State::Refusing);
    assert!((seen.1..seen.1 + 10).contains(&refusing), "until it was off-line: {refusing}");
    let file = file_under(&mut pool, &[("redundancy", "replicate:1"), ("stripe", "2")]);
    assert_eq!(stripe(&mut pool, 1, file).len(), 2, "the new life says that it is free");
    let of_first = host(&explain(&mut pool, file), 0);
    assert!(of_first.loaded_week_ppm.is_some_and(|share| (80_000..110_000).contains(&share)), "{of_first:?}");
    pool.beat_with(0, load(StorageState::Loaded));
    assert_eq!(host(&explain(&mut pool, file), 0).state, StorageState::Loaded);
}

#[test]
fn falcon_prefers_who_is_less_loaded_and_who_is_reached_faster() {
    let mut pool = Pool::with_benefactors(6);
    pool.pass_alive(31 * SECOND, &[0, 1, 2, 3, 4, 5]);
    attend(&mut pool, Vec::new());
    // Loaded half of the time, and free just now.
    for step in 0..60 {
        pool.pass(SECOND);
        let state = if step % 4 < 2 { StorageState::Loaded } else { StorageState::Running };
        [0, 1].iter().for_each(|id| drop(pool.beat_with(*id, load(state))));
        (2..6).for_each(|id| drop(pool.beat(id, &[], &[])));
        attend(&mut pool, Vec::new());
    }
    let file =
        file_under(&mut pool, &[("placement", "falcon"), ("stripe", "4"), ("redundancy", "replicate:2")]);
    stripe(&mut pool, 1, file);
    pool.rank();
    let mut chosen = stripe(&mut pool, 2, file);
    chosen.sort_unstable();
    assert_eq!(chosen, [2, 3, 4, 5]);
    let why = explain(&mut pool, file);
    assert!(host(&why, 0).score_ppm < host(&why, 2).score_ppm, "the load indicator is part of the score");
    assert!(host(&why, 0).loaded_week_ppm > Some(100_000) && host(&why, 2).loaded_week_ppm == Some(0));
    // Two of the others are behind slow links.
    let sent = |to: u32, bytes| Sent { to: BenefactorId(to), bytes, ms: 1000 };
    let all = [10_000_000, 10_000_000, 50_000, 50_000, 10_000_000, 10_000_000];
    attend(&mut pool, (0..).zip(all).map(|(to, bytes)| sent(to, bytes)).collect());
    attend(&mut pool, vec![sent(99, 1_000_000)]);
    pool.pass_alive(11 * SECOND, &[0, 1, 2, 3, 4, 5]);
    pool.rank();
    let mut chosen = stripe(&mut pool, 3, file);
    chosen.sort_unstable();
    assert_eq!(chosen, [0, 1, 4, 5]);
    let why = explain(&mut pool, file);
    assert_eq!((host(&why, 0).bandwidth, host(&why, 2).bandwidth), (Some(10_000_000), Some(50_000)));
    let many = vec![sent(0, 1); stdchk_model::limits::SENT_ENTRIES_MAX + 1];
    pool.ask(ManagerRequest::Attend { client: CLIENT, machine: MACHINE, sent: many }).unwrap_err();
}

#[test]
fn copies_come_from_a_busy_benefactor_only_where_nobody_else_has_them() {
    let mut pool = Pool::with_benefactors(4);
    let file = file_under(&mut pool, &[("redundancy", "replicate:3"), ("semantics", "pessimistic")]);
    pool.beat_with(0, load(StorageState::Refusing));
    pool.beat_with(3, load(StorageState::Refusing));
    pool.write(1, file, &[1], &[0, 1, 2]);
    // One of three holders is lost: a copy is missing, which no free benefactor can take, and two are left.
    for _ in 0..60 {
        pool.pass(SECOND);
        pool.beat_with(0, load(StorageState::Refusing));
        pool.beat_with(3, load(StorageState::Refusing));
        let commands = pool.beat(1, &[], &[]);
        assert!(!commands.iter().any(|command| matches!(command, Command::Make(_))), "{commands:?}");
    }
    pool.beat_with(3, load(StorageState::Running));
    let makes =
        |commands: Vec<Command>| commands.into_iter().any(|command| matches!(command, Command::Make(_)));
    pool.pass(SECOND);
    let by_busy = makes(pool.beat_with(0, load(StorageState::Refusing)));
    pool.pass(SECOND);
    let by_free = makes(pool.beat(1, &[], &[]));
    assert_eq!((by_busy, by_free), (false, true));
}
