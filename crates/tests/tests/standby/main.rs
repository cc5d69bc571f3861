//! Several managers share the pool's state in etcd: one leads, and another one follows when that one ends, stands still, is cut off or is
//! told to stop.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod ends;
mod follows;
mod machines;
mod moves;
mod named;
mod pairs;
mod refused;
mod second;
mod shared;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use stdchk_tests::{EtcdGate, EtcdServer, wait_until};

use shared::{SWITCH_MAX, Shared, content};

#[test]
fn a_manager_that_stands_still_and_goes_on_does_not_act_any_more() {
    let pool = Shared::start(2);
    assert_eq!(pool.put("app/before", b"before").code, 0);
    pool.await_managers(2);
    let stale = pool.await_leader();
    pool.signal(stale, Signal::STOP);
    // A client that has asked the one that stands still turns to the other one.
    let begun = Instant::now();
    assert_eq!(pool.put("app/meanwhile", b"meanwhile").code, 0);
    assert!(begun.elapsed() < 2 * SWITCH_MAX, "{:?}", begun.elapsed());
    let leader = pool.await_leader();
    assert_ne!(leader, stale);
    wait_until("the benefactors have turned to it", || {
        pool.status().is_some_and(|status| {
            status["benefactors"].as_array().unwrap().iter().all(|benefactor| benefactor["state"] == "online")
        })
    });
    let outcome = pool.run(&["rm", "app/before"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    pool.signal(stale, Signal::CONT);
    wait_until("it notices", || pool.log(stale).contains("leads no more"));
    pool.await_managers(2);
    assert_eq!(pool.await_leader(), leader);
    pool.kill(leader);
    let took = pool.await_other(leader);
    assert!(took < SWITCH_MAX, "{took:?}");
    assert_eq!(pool.leader(), Some(stale), "it has read everything anew");
    assert_eq!(pool.get("app/meanwhile"), b"meanwhile");
    assert_ne!(pool.run(&["get", "app/before", "-o", "-"]).code, 0, "it was removed");
}

#[test]
fn a_pool_moves_from_the_disk_of_its_manager_into_an_etcd_with_a_password() {
    let etcd = EtcdServer::start();
    etcd.protect("secret: it is");
    let place = etcd.place();
    let mut pool = Shared::start_at(1, etcd, String::new());
    for number in 0..200 {
        let name = format!("app/file{number}");
        let content = content(5, number);
        let stored = match number {
            0..20 => pool.put(&name, &content),
            // More records than go into one transaction of etcd.
            _ => pool.run(&["mkdir", &format!("app/folder{number}")]),
        };
        assert_eq!(stored.code, 0, "{name}: {stored:?}");
    }
    let listed = pool.run(&["ls", "app", "--json"]).text();
    pool.signal(0, Signal::TERM);
    assert!(pool.end(0).success());
    pool.place = place;
    pool.login = Some("root:wrong".to_owned());
    pool.start_manager(0);
    wait_until("etcd refuses", || pool.log(0).contains("authentication failed"));
    pool.kill(0);
    assert!(pool.path("manager-0/store.redb").exists());
    pool.login = Some("root:secret: it is".to_owned());
    pool.start_manager(0);
    pool.await_leader();
    assert_eq!(pool.run(&["ls", "app", "--json"]).text(), listed);
    let intact = |pool: &Shared| {
        for number in 0..20 {
            assert!(pool.get(&format!("app/file{number}")) == content(5, number), "file {number}");
        }
    };
    intact(&pool);
    assert!(!pool.path("manager-0/store.redb").exists() && pool.path("manager-0/store.redb.moved").exists());
    assert_eq!(pool.put("app/later", b"later").code, 0);
    // The older state is taken for the pool's no more, wherever it comes from.
    pool.kill(0);
    let swap = |pool: &Shared, from: &str, to: &str| {
        let path = |name: &str, end: &str| pool.path(&format!("manager-0/{name}{end}"));
        for file in ["store.redb", "store.log"] {
            std::fs::rename(path(file, from), path(file, to)).unwrap();
        }
    };
    swap(&pool, ".moved", "");
    pool.start_manager(0);
    wait_until("it refuses", || pool.log(0).contains("one of the two is old"));
    pool.kill(0);
    swap(&pool, "", ".moved");
    pool.start_manager(0);
    pool.await_leader();
    assert_eq!(pool.get("app/later"), b"later");
    intact(&pool);
}

#[test]
fn a_manager_that_is_told_to_stop_hands_over_at_once() {
    let pool = Shared::start(2);
    assert_eq!(pool.put("app/file", b"content").code, 0);
    pool.await_managers(2);
    let leader = pool.await_leader();
    pool.signal(leader, Signal::TERM);
    let took = pool.await_other(leader);
    // A lease takes four seconds to end by itself.
    assert!(took < Duration::from_millis(3500), "{took:?}");
    assert!(pool.end(leader).success());
    assert_eq!(pool.get("app/file"), b"content");
}

#[test]
fn etcd_that_ends_and_is_started_again_costs_a_pause() {
    let pool = Shared::start(2);
    assert_eq!(pool.put("app/before", &content(1, 0)).code, 0);
    pool.etcd.kill();
    let (first, second) = std::thread::scope(|scope| {
        let put = scope.spawn(|| pool.put("app/meanwhile", &content(2, 0)));
        wait_until("nobody leads", || pool.status().is_none());
        pool.etcd.restart();
        (put.join().unwrap(), pool.put("app/after", &content(3, 0)))
    });
    assert_eq!((first.code, second.code), (0, 0), "{first:?}, {second:?}");
    for (name, seed) in [("before", 1), ("meanwhile", 2), ("after", 3)] {
        assert!(pool.get(&format!("app/{name}")) == content(seed, 0), "{name}");
    }
}

#[test]
fn answers_of_etcd_that_are_slow_or_lost_cost_nothing_that_was_acknowledged() {
    let etcd = EtcdServer::start();
    let gate = EtcdGate::open(etcd.port());
    let place = gate.place();
    let pool = Shared::start_at(1, etcd, place);
    gate.delay(Duration::from_millis(150));
    for (number, loses) in (0..12).zip((0..3).cycle()) {
        gate.lose(loses);
        let outcome = pool.put(&format!("app/file{number}"), &content(5, number));
        assert_eq!(outcome.code, 0, "{outcome:?}");
    }
    assert!(gate.lost() > 0);
    for number in 0..12 {
        assert!(pool.get(&format!("app/file{number}")) == content(5, number), "file {number}");
    }
}
