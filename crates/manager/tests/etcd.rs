//! The store in etcd, and who leads, against a real etcd that is killed, slow, compacted, and whose answers are lost.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod conformance;

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::{Records, all, all_of, conforms};
use rustix::process::Signal;
use stdchk_manager::etcd::{Candidacy, Etcd, EtcdStore, Leadership};
use stdchk_manager::store::{Batch, Store, StoreError, Table};
use stdchk_model::limits::{MANAGER_ADDRESS_BYTES_MAX, MANAGERS_MAX};
use stdchk_model::message::handshake::StandingBy;
use stdchk_model::message::manager::{Era, ManagerInfo};
use stdchk_model::{MomentKey, PoolId, cbor};
use stdchk_tests::{EtcdGate, EtcdServer, wait_until};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn info(name: &str) -> ManagerInfo {
    ManagerInfo { addresses: vec![name.to_owned()], host: name.to_owned(), pid: 1, leads: false }
}

/// Leads, as soon as nobody else does.
fn lead(place: &str, name: &str) -> Leadership {
    let etcd = Etcd::new(&place.parse().unwrap(), None).unwrap();
    runtime().block_on(async {
        loop {
            let candidacy = Arc::new(Candidacy::begin(&etcd, info(name)).await);
            if let Some(leadership) = candidacy.elected().await {
                return leadership;
            }
        }
    })
}

fn resign(leadership: &Leadership) {
    runtime().block_on(leadership.resign());
}

/// Hands over to another one, who opens the store.
fn hand_over(place: &str, leadership: &mut Leadership) -> EtcdStore {
    resign(leadership);
    *leadership = lead(place, "next");
    EtcdStore::open(leadership.clone()).unwrap()
}

fn batch_of(number: u64, records: u32) -> Batch {
    let mut batch = Batch::default();
    for key in 0..records {
        batch.put(Table::Inode, &key.to_be_bytes(), number.to_be_bytes().to_vec());
    }
    batch
}

/// The number of the batch that all records are of.
fn newest(store: &dyn Store) -> Option<u64> {
    let records: Records = all(store);
    let numbers: Vec<_> =
        records.values().map(|record| u64::from_be_bytes(record[..].try_into().unwrap())).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]), "half a batch: {numbers:?}");
    numbers.first().copied()
}

#[test]
fn the_store_in_etcd_conforms() {
    let server = EtcdServer::start();
    let place = server.place();
    let leadership = std::cell::RefCell::new(lead(&place, "first"));
    let store = EtcdStore::open(leadership.borrow().clone()).unwrap();
    conforms(Box::new(store), |store| {
        drop(store);
        Box::new(hand_over(&place, &mut leadership.borrow_mut()))
    });
}

#[test]
fn one_leads_at_a_time_and_the_next_one_at_once_when_it_resigns() {
    let server = EtcdServer::start();
    let first = lead(&server.place(), "first");
    let etcd = Etcd::new(&server.place().parse().unwrap(), None).unwrap();
    runtime().block_on(async {
        let second = Arc::new(Candidacy::begin(&etcd, info("second")).await);
        let waits = tokio::time::timeout(Duration::from_secs(6), second.elected()).await;
        assert!(waits.is_err(), "the first renews its lease");
        assert!(first.holds());
        wait_until("both are known", || {
            let names: Vec<_> =
                first.managers().into_iter().map(|manager| (manager.host, manager.leads)).collect();
            names == [("first".to_owned(), true), ("second".to_owned(), false)]
        });
        let begun = Instant::now();
        first.resign().await;
        assert!(!first.holds());
        let led = second.elected().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        assert!(led.holds());
    });
}

/// The record of a pool, as `docs/FORMAT.md` has it.
fn pool_record(managers: &[String], era: Era) -> Vec<u8> {
    let key = MomentKey([7; 32]);
    let record = (5_u16, PoolId([1; 16]), 4098_u64, 3_u64, 4_u64, 6_u64, key, managers.to_vec(), vec![era]);
    cbor::encode(&record)
}

#[test]
fn one_that_stands_by_knows_who_leads_and_where_managers_serve_also_from_a_record_in_pieces() {
    let server = EtcdServer::start();
    let first = lead(&server.place(), "first");
    let mut store = EtcdStore::open(first.clone()).unwrap();
    let etcd = Etcd::new(&server.place().parse().unwrap(), None).unwrap();
    let looks = async {
        let mut standing = etcd.standing();
        // The record lies in one piece, then in several, then in one again.
        for (number, managers, bytes) in
            [(1, 1, 10), (2, MANAGERS_MAX, MANAGER_ADDRESS_BYTES_MAX), (3, 2, 10)]
        {
            let (managers, era) = (vec!["a".repeat(bytes); managers], Era { number, id: 9 });
            let mut batch = Batch::default();
            batch.put(Table::Pool, b"pool", pool_record(&managers, era));
            store.commit(&batch).unwrap();
            let is_news = |seen: &Option<StandingBy>| seen.as_ref().is_some_and(|seen| seen.era == era);
            let seen = standing.wait_for(is_news).await.unwrap().clone().unwrap();
            assert!(seen.managers == managers && seen.pool == PoolId([1; 16]));
            let leader = seen.leader.unwrap();
            assert_eq!((leader.addresses, leader.leadership), (vec!["first".to_owned()], first.number()));
        }
    };
    runtime().block_on(async {
        let second = Arc::new(Candidacy::begin(&etcd, info("second")).await);
        tokio::select! {
            led = second.elected() => panic!("the first one leads, and {:?}", led.map(|led| led.number())),
            () = looks => {}
        }
    });
}

#[test]
fn a_manager_that_stood_still_leads_no_more_and_writes_nothing() {
    let server = EtcdServer::start();
    let gate = EtcdGate::open(server.port());
    let stale = lead(&gate.place(), "stale");
    let mut old = EtcdStore::open(stale.clone()).unwrap();
    for records in [10, 1000] {
        old.commit(&batch_of(1, records)).unwrap();
    }
    // Its questions come to etcd when its lease is over and another one leads.
    let late = Duration::from_secs(8);
    gate.delay_questions(late);
    let begun = Instant::now();
    let writer = std::thread::spawn(move || (old.commit(&batch_of(2, 10)), old));
    let new = lead(&server.place(), "new");
    assert!(!stale.holds(), "it knew before the other one led");
    let mut store = EtcdStore::open(new.clone()).unwrap();
    let before = newest(&store);
    store.commit(&batch_of(3, 1000)).unwrap();
    let (refused, mut old) = writer.join().unwrap();
    assert!(matches!(refused, Err(StoreError::Deposed)), "{refused:?}");
    assert!(!old.is_held());
    gate.delay_questions(Duration::ZERO);
    assert!(old.commit(&batch_of(4, 10)).is_err());
    assert_eq!(before, Some(1));
    std::thread::sleep((late + Duration::from_secs(5)).saturating_sub(begun.elapsed()));
    assert!(gate.late() > 0, "late questions have come to etcd");
    assert_eq!(newest(&store), Some(3));
    store.commit(&batch_of(5, 1000)).unwrap();
    assert_eq!(newest(&store), Some(5));
}

#[test]
fn a_commit_whose_answer_is_lost_is_done_once() {
    let server = EtcdServer::start();
    let gate = EtcdGate::open(server.port());
    let mut leadership = lead(&gate.place(), "first");
    let mut store = EtcdStore::open(leadership.clone()).unwrap();
    for (number, records) in [(1, 100), (2, 100), (3, 1000), (4, 1000)] {
        let (lost, sequence) = (gate.lost(), store.sequence());
        gate.lose(3);
        store.commit(&batch_of(number, records)).unwrap();
        assert!(gate.lost() > lost);
        assert_eq!(store.sequence(), sequence + 1);
        gate.lose(0);
    }
    assert_eq!(newest(&store), Some(4));
    drop(store);
    let store = hand_over(&gate.place(), &mut leadership);
    assert_eq!((newest(&store), store.sequence()), (Some(4), 4));
}

#[test]
fn etcd_may_be_slow_stand_still_for_a_moment_and_be_started_again() {
    let server = EtcdServer::start();
    let gate = EtcdGate::open(server.port());
    let leadership = lead(&gate.place(), "first");
    let mut store = EtcdStore::open(leadership.clone()).unwrap();
    store.commit(&batch_of(1, 10)).unwrap();
    gate.delay(Duration::from_millis(400));
    for number in 2..8 {
        store.commit(&batch_of(number, 10)).unwrap();
    }
    gate.delay(Duration::ZERO);
    server.signal(Signal::STOP);
    let going_on = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(1));
            server.signal(Signal::CONT);
        });
        store.commit(&batch_of(8, 10))
    });
    going_on.unwrap();
    server.restart();
    // Whether its lease outlives that depends on how long it took: if not, it begins anew.
    match store.commit(&batch_of(9, 10)) {
        Ok(()) => assert_eq!(newest(&store), Some(9)),
        Err(StoreError::Deposed) => {
            let store = EtcdStore::open(lead(&server.place(), "again")).unwrap();
            assert!([Some(8), Some(9)].contains(&newest(&store)));
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_manager_that_ends_within_a_large_commit_leaves_all_of_it_or_nothing() {
    let server = EtcdServer::start();
    let mut newest_before = 0;
    for round in 0..8 {
        let gate = EtcdGate::open(server.port());
        let leadership = lead(&gate.place(), "first");
        let mut store = EtcdStore::open(leadership.clone()).unwrap();
        assert_eq!(newest(&store).unwrap_or(0), newest_before);
        // Fifty steps of carrying it out take a while: the manager ends within, each round at another step.
        let number = newest_before + 1;
        gate.delay(Duration::from_millis(20));
        let writer = std::thread::spawn(move || store.commit(&batch_of(number, 6000)));
        std::thread::sleep(Duration::from_millis(30 + 90 * round));
        resign(&leadership);
        let ended = writer.join().unwrap();
        let next = lead(&server.place(), "next");
        let store = EtcdStore::open(next.clone()).unwrap();
        let found = newest(&store).unwrap_or(0);
        assert!(found == number || found == newest_before && ended.is_err(), "{found} after {ended:?}");
        newest_before = found;
        resign(&next);
    }
    assert!(newest_before > 0, "no round got as far as that");
}

#[test]
fn etcd_may_forget_what_was_written_over_and_a_copy_of_before_ends_in_an_error() {
    let server = EtcdServer::start();
    let mut leadership = lead(&server.place(), "first");
    let mut store = EtcdStore::open(leadership.clone()).unwrap();
    store.commit(&batch_of(1, 1000)).unwrap();
    let copy = store.snapshot().unwrap();
    assert_eq!(all_of(&*copy, 5000).len(), 1000);
    store.commit(&batch_of(2, 1000)).unwrap();
    server.compact();
    let gone = copy.read(&[], 5000);
    assert!(gone.is_err_and(|error| error.to_string().contains("compacted")));
    assert_eq!(newest(&store), Some(2));
    drop(store);
    let store = hand_over(&server.place(), &mut leadership);
    assert_eq!(newest(&store), Some(2));
    assert_eq!(all_of(&*store.snapshot().unwrap(), 5000).len(), 1000);
}

#[test]
fn what_somebody_else_writes_is_noticed() {
    let server = EtcdServer::start();
    let leadership = lead(&server.place(), "first");
    let mut store = EtcdStore::open(leadership.clone()).unwrap();
    store.commit(&batch_of(1, 3)).unwrap();
    let key: String = ["stdchk/r/", "\u{1}\0\0\0\u{2}"].concat();
    server.put(&key, &[0; 30]);
    let damaged = store.load(&mut |_, _| Ok(()));
    assert!(damaged.is_err_and(|error| error.to_string().contains("damaged")));
    server.put("stdchk/sequence", &[9; 12]);
    let refused = store.commit(&batch_of(2, 3)).unwrap_err();
    assert!(refused.to_string().contains("somebody else writes there"), "{refused}");
}

#[test]
fn an_etcd_whose_room_is_used_up_is_told_of_takes_nothing_and_goes_on_once_there_is_room() {
    let server = EtcdServer::start_small(16 << 20);
    let leadership = lead(&server.place(), "first");
    let mut store = EtcdStore::open(leadership.clone()).unwrap();
    let mut batch = Batch::default();
    batch.put(Table::Inode, &[1], vec![7]);
    store.commit(&batch).unwrap();
    assert!(store.has_room(1) && store.etcd().unwrap().trouble.is_none());
    server.fill();
    // Nothing was to be committed meanwhile.
    wait_until("it is noticed", || !store.has_room(1));
    let trouble = store.etcd().unwrap().trouble.unwrap();
    assert!(trouble.cause.contains("room is used up"), "{trouble:?}");
    batch.put(Table::Inode, &[2], vec![7]);
    assert!(matches!(store.commit(&batch), Err(StoreError::EtcdFull { .. })));
    assert!(leadership.holds(), "what is there can be read");
    server.make_room();
    wait_until("there is room", || leadership.has_room());
    let mut store = EtcdStore::open(leadership).unwrap();
    assert_eq!(store.sequence(), 1, "nothing of the other commit is there");
    store.commit(&batch).unwrap();
}
