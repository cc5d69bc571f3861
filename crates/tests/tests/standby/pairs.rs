//! What goes on in a pool while the manager that leads changes: drains, space that goes back to owners, placement by pasts and racks. Each
//! lives partly in the manager's memory, which the next one doesn't have.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stdchk_tests::{EtcdServer, wait_until};

use super::shared::{SWITCH_MAX, Shared, content};

const FILES: usize = 30;

/// A pool of four benefactors, in which what was written counts as settled after two seconds.
fn pool_of_four() -> Shared {
    let etcd = EtcdServer::start();
    let place = etcd.place();
    let mut pool = Shared::prepare(2, etcd, place);
    pool.variables = vec![("STDCHK_GARBAGE_AGE_MS", "2000")];
    pool.begin(4);
    pool
}

/// Stores files and waits for their copies.
fn fill(pool: &Shared) {
    for number in 0..FILES {
        let stored = pool.put(&format!("app/file{number}"), &content(9, number));
        assert_eq!(stored.code, 0, "{stored:?}");
    }
    await_copies(pool);
}

fn await_copies(pool: &Shared) {
    wait_until("all copies are made", || {
        pool.status().is_some_and(|status| {
            status["counting"] == false && status["chunks_at_risk"] == 0 && status["repairs_pending"] == 0
        })
    });
}

/// Everything reads as it was written, with all its copies.
fn check(pool: &Shared) {
    await_copies(pool);
    for number in 0..FILES {
        assert!(pool.get(&format!("app/file{number}")) == content(9, number), "file {number}");
    }
    let verified = pool.run(&["verify", "--json"]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

/// The line of a benefactor in `status`.
fn entry(pool: &Shared, number: usize) -> Option<Value> {
    let pid = pool.others[number].id();
    let status = pool.status()?;
    status["benefactors"].as_array().unwrap().iter().find(|entry| entry["pid"] == pid).cloned()
}

/// Kills who leads, waits for the other one, and starts the first again.
fn change_managers(pool: &Shared) {
    let leader = pool.await_leader();
    pool.kill(leader);
    let took = pool.await_other(leader);
    assert!(took < SWITCH_MAX, "{took:?}");
    pool.start_manager(leader);
    pool.await_managers(2);
}

#[test]
fn a_drain_and_space_for_an_owner_go_on_when_another_manager_leads() {
    let mut pool = pool_of_four();
    fill(&pool);
    let folder = pool.benefactor(0);
    let drained = pool.run(&["benefactor", "drain", folder.to_str().unwrap()]);
    assert_eq!(drained.code, 0, "{drained:?}");
    for pause in [50, 400] {
        std::thread::sleep(Duration::from_millis(pause));
        change_managers(&pool);
    }
    wait_until("nothing is left there", || {
        entry(&pool, 0).is_some_and(|entry| entry["wish"] == "drain" && entry["blocks"] == 0)
    });
    check(&pool);
    // It takes blocks again, under a manager that never heard of the wish.
    let resumed = pool.run(&["benefactor", "resume", folder.to_str().unwrap()]);
    assert_eq!(resumed.code, 0, "{resumed:?}");
    change_managers(&pool);
    wait_until("it serves", || entry(&pool, 0).is_some_and(|entry| entry["wish"] == "serve"));
    // The owner of another one gives less than it holds.
    let used = entry(&pool, 1).unwrap()["used_bytes"].as_u64().unwrap();
    assert!(used > 4 << 20, "{used} bytes are there");
    pool.kill_benefactor(1);
    pool.start_benefactor(1, &["--donate", "2MiB"]);
    wait_until("the manager knows", || {
        entry(&pool, 1).is_some_and(|entry| entry["owed_bytes"].as_u64() > Some(0))
    });
    let begun = Instant::now();
    change_managers(&pool);
    wait_until("nothing is owed", || {
        entry(&pool, 1).is_some_and(|entry| {
            entry["state"] == "online"
                && entry["owed_bytes"] == 0
                && entry["used_bytes"].as_u64() <= Some(2 << 20)
        })
    });
    let took = begun.elapsed();
    println!("the owner has the space after {took:.1?}, with a change of managers");
    assert!(took < Duration::from_secs(60) + SWITCH_MAX, "{took:?}");
    check(&pool);
}

#[test]
fn racks_and_pasts_of_hosts_are_known_to_the_manager_that_follows() {
    let etcd = EtcdServer::start();
    let place = etcd.place();
    let mut pool = Shared::prepare(2, etcd, place);
    pool.begin(0);
    for number in 0..4 {
        let rack = format!("rack={}", number / 2);
        pool.start_benefactor(number, &["--donate", "256MiB", "--label", &rack]);
    }
    pool.await_benefactors(4);
    let set = pool.run(&["policy", "set", "app", "placement=learned", "semantics=pessimistic"]);
    assert_eq!(set.code, 0, "{set:?}");
    let explain = |pool: &Shared| pool.run(&["placement", "explain", "app", "--json"]);
    let racks = |pool: &Shared| {
        let status = pool.status().unwrap();
        let labels = |entry: &Value| entry["labels"].to_string();
        let mut racks: Vec<String> = status["benefactors"].as_array().unwrap().iter().map(labels).collect();
        racks.sort();
        racks
    };
    let known = racks(&pool);
    assert!(known.iter().all(|labels| labels.contains("rack")), "{known:?}");
    for round in 0..2 {
        let first = round * FILES / 2;
        for number in first..first + FILES / 2 {
            let stored = pool.put(&format!("app/file{number}"), &content(9, number));
            assert_eq!(stored.code, 0, "{stored:?}");
        }
        let leader = pool.await_leader();
        pool.await_managers(2);
        let before = explain(&pool);
        assert_eq!(before.code, 0, "{before:?}");
        // The past of a host is stored with what follows.
        if round == 0 {
            pool.kill(leader);
        } else {
            pool.signal(leader, Signal::TERM);
            assert!(pool.end(leader).success());
        }
        let took = pool.await_other(leader);
        assert!(took < SWITCH_MAX, "{took:?}");
        pool.start_manager(leader);
        pool.await_benefactors(4);
        assert_eq!(racks(&pool), known, "round {round}");
        let after = explain(&pool);
        assert_eq!(after.code, 0, "{after:?}");
        let hosts = |explained: &Value| explained["hosts"].as_array().unwrap().len();
        assert_eq!(hosts(&after.json()), hosts(&before.json()), "{after:?}");
        for host in after.json()["hosts"].as_array().unwrap() {
            assert_eq!(host["failures_week"], 0, "a change of managers is no failure of a host: {after:?}");
        }
    }
    check(&pool);
    // A rack may go, by which each chunk has a copy in the other one.
    pool.kill_benefactor(0);
    pool.kill_benefactor(1);
    for number in 0..FILES {
        assert!(pool.get(&format!("app/file{number}")) == content(9, number), "file {number}");
    }
}
