//! What goes on in a pool while the manager that leads changes: drains, space that goes back to owners, placement by pasts and racks. Each
//! lives partly in the manager's memory, which the next one doesn't have.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stdchk_tests::{EtcdServer, has_all_copies, wait_until};

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
    wait_until("all copies are made", || pool.status().is_some_and(|status| has_all_copies(&status)));
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
    pool.await_benefactors(4);
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

/// Starts a benefactor in the rack that it shares with another one.
fn start_in_rack(pool: &mut Shared, number: usize) {
    let rack = format!("rack={}", number / 2);
    pool.start_benefactor(number, &["--donate", "256MiB", "--label", &rack]);
}

/// What `placement explain` says of a folder.
fn explain(pool: &Shared, folder: &str) -> Value {
    let explained = pool.run(&["placement", "explain", folder, "--json"]);
    assert_eq!(explained.code, 0, "{explained:?}");
    explained.json()
}

/// How often each benefactor failed, by its number.
fn failures(pool: &Shared) -> Vec<(u64, u64)> {
    let explained = explain(pool, "all");
    let of = |host: &Value| (host["id"].as_u64().unwrap(), host["failures_week"].as_u64().unwrap());
    let mut failures: Vec<(u64, u64)> = explained["hosts"].as_array().unwrap().iter().map(of).collect();
    failures.sort_unstable();
    failures
}

/// Has a benefactor fail, and starts it again once etcd knows; its number.
fn fail_once(pool: &mut Shared, number: usize) -> u64 {
    let id = entry(pool, number).unwrap()["id"].as_u64().unwrap();
    pool.kill_benefactor(number);
    wait_until("it is missed", || entry(pool, number).is_some_and(|entry| entry["state"] != "online"));
    // The key of a benefactor's past.
    let key = [&[11, 1][..], &u32::try_from(id).unwrap().to_be_bytes()].concat();
    let before = pool.etcd.record(&key);
    // Pasts are stored once a minute.
    wait_until("its past is stored", || pool.etcd.record(&key) != before);
    start_in_rack(pool, number);
    pool.await_benefactors(4);
    id
}

#[test]
fn racks_and_pasts_of_hosts_are_known_to_the_manager_that_follows() {
    let etcd = EtcdServer::start();
    let place = etcd.place();
    let mut pool = Shared::prepare(2, etcd, place);
    pool.begin(0);
    (0..4).for_each(|number| start_in_rack(&mut pool, number));
    pool.await_benefactors(4);
    for policy in
        [["app", "placement=learned", "semantics=pessimistic"], ["all", "placement=round-robin", "stripe=4"]]
    {
        let set = pool.run(&[&["policy", "set"][..], &policy].concat());
        assert_eq!(set.code, 0, "{set:?}");
    }
    let racks = |pool: &Shared| {
        let status = pool.status().unwrap();
        let labels = |entry: &Value| entry["labels"].to_string();
        let mut racks: Vec<String> = status["benefactors"].as_array().unwrap().iter().map(labels).collect();
        racks.sort();
        racks
    };
    let known = racks(&pool);
    assert!(known.iter().all(|labels| labels.contains("rack")), "{known:?}");
    let failed = fail_once(&mut pool, 3);
    let pasts = failures(&pool);
    assert_eq!(pasts.len(), 4, "{pasts:?}");
    assert!(pasts.iter().all(|(id, failures)| *failures == u64::from(*id == failed)), "{failed}: {pasts:?}");
    for round in 0..2 {
        let first = round * FILES / 2;
        for number in first..first + FILES / 2 {
            let stored = pool.put(&format!("app/file{number}"), &content(9, number));
            assert_eq!(stored.code, 0, "{stored:?}");
        }
        wait_until("hosts are ranked", || {
            let explained = explain(&pool, "app");
            // One of the four stands for the machine that all of this runs on.
            explained["ranked"] == true && explained["hosts"].as_array().unwrap().len() == 3
        });
        let leader = pool.await_leader();
        pool.await_managers(2);
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
        assert_eq!(failures(&pool), pasts, "a change of managers is no failure of a host, and undoes none");
    }
    check(&pool);
    // A rack may go, by which each chunk has a copy in the other one.
    pool.kill_benefactor(0);
    pool.kill_benefactor(1);
    for number in 0..FILES {
        assert!(pool.get(&format!("app/file{number}")) == content(9, number), "file {number}");
    }
}
