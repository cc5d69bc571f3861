//! `status` names each trouble of etcd, and of the managers that share it: where etcd is, since when, and why.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stdchk_tests::{EtcdServer, wait_until};

use super::shared::{Shared, content};

/// The reasons that `status` gives, whether a manager leads or not, with its exit code.
fn reasons(pool: &Shared) -> (i32, String) {
    let outcome = pool.run(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let reasons = status["reasons"].as_array().unwrap().iter().map(|reason| reason.as_str().unwrap());
    (outcome.code, Vec::from_iter(reasons).join("\n"))
}

fn await_reason(pool: &Shared, code: i32, said: &[&str]) -> String {
    let mut last = (0, String::new());
    wait_until(&format!("status says {said:?}"), || {
        last = reasons(pool);
        last.0 == code && said.iter().all(|said| last.1.contains(said))
    });
    last.1
}

#[test]
fn status_names_an_etcd_that_is_gone_and_the_mount_is_not_at_fault() {
    let mut pool = Shared::start(2);
    let mnt = pool.mount();
    std::fs::create_dir(mnt.join("app")).unwrap();
    pool.await_managers(2);
    let names = pool.etcd.names();
    assert_eq!(pool.status().unwrap()["etcd"]["members"][0], names, "it is named while all is well");
    pool.etcd.kill();
    let waits = format!("waits for etcd at {names}, for ");
    let reasons = await_reason(&pool, 5, &[&waits, "s so far: etcd doesn't answer", "Connection refused"]);
    assert!(!reasons.contains("mount"), "{reasons}");
    // A command that asks for files is told as well.
    let told = pool.run(&["ls"]);
    assert!(told.code == 5 && told.stderr.contains(&waits), "{told:?}");
    pool.etcd.restart();
    pool.await_leader();
    pool.await_benefactors(3);
    assert_eq!(pool.put("app/file", &content(1, 0)).code, 0);
    assert_eq!(pool.status().unwrap()["etcd"]["trouble"], Value::Null);
}

#[test]
fn status_names_an_etcd_that_has_lost_its_quorum() {
    let etcd = EtcdServer::start_members(3);
    let place = etcd.place();
    let pool = Shared::start_at(1, etcd, place);
    let names = pool.etcd.names();
    pool.etcd.kill_member(0);
    pool.etcd.kill_member(1);
    await_reason(&pool, 5, &[&format!("waits for etcd at {names}, for "), "s so far: etcd doesn't answer"]);
    pool.etcd.go_on();
    pool.await_leader();
}

#[test]
fn an_etcd_whose_room_is_used_up_is_named_and_the_pool_goes_on_by_itself_once_there_is_room() {
    let etcd = EtcdServer::start_small(16 << 20);
    let place = etcd.place();
    let pool = Shared::start_at(1, etcd, place);
    assert_eq!(pool.put("app/before", &content(1, 0)).code, 0);
    pool.etcd.fill();
    let names = pool.etcd.names();
    // As long as nothing is to be committed the manager leads, and what is there can be read.
    wait_until("status names etcd", || {
        let (code, reasons) = reasons(&pool);
        let leads = code == 0
            && reasons.contains(&format!("etcd at {names}, for "))
            && reasons.contains("nothing new can be written");
        let waits = code == 5 && reasons.contains(&format!("waits for etcd at {names}, for "));
        (leads || waits) && reasons.contains("etcdctl alarm disarm")
    });
    // A removal is a commit, too.
    assert_ne!(pool.run(&["rm", "app/before"]).code, 0);
    await_reason(
        &pool,
        5,
        &[&format!("waits for etcd at {names}, for "), "space exceeded", "etcdctl alarm disarm"],
    );
    pool.etcd.make_room();
    pool.await_leader();
    pool.await_benefactors(3);
    assert_eq!(pool.put("app/after", &content(2, 0)).code, 0);
    assert!(pool.get("app/after") == content(2, 0) && pool.get("app/before") == content(1, 0));
}

#[test]
fn status_says_that_the_last_manager_that_stood_by_is_gone() {
    let pool = Shared::start(2);
    pool.await_managers(2);
    let (leader, other) = (pool.await_leader(), 1 - pool.await_leader());
    pool.signal(other, Signal::TERM);
    pool.end(other);
    let said = ["no other manager has stood by for", &format!("socket-{other}"), &pool.etcd.names()];
    await_reason(&pool, 0, &said);
    assert_eq!(pool.status().unwrap()["health"], "degraded");
    pool.start_manager(other);
    wait_until("all is well", || pool.status().is_some_and(|status| status["health"] == "healthy"));
    // The one that follows was not alone either.
    pool.await_managers(2);
    pool.kill(leader);
    await_reason(&pool, 0, &["no other manager has stood by for", &format!("socket-{leader}")]);
    // A manager alone that is started again never had another one.
    pool.signal(other, Signal::TERM);
    pool.end(other);
    std::thread::sleep(Duration::from_secs(1));
    pool.start_manager(other);
    pool.await_leader();
    wait_until("all is well", || pool.status().is_some_and(|status| status["health"] == "healthy"));
}

#[test]
fn status_soon_says_in_short_lines_that_etcd_is_gone_and_what_to_do() {
    let etcd = EtcdServer::start_members(3);
    let place = etcd.place();
    let pool = Shared::start_at(3, etcd, place);
    pool.await_managers(3);
    pool.etcd.kill();
    let waits = "waits for etcd at";
    wait_until("all managers say so", || reasons(&pool).1.matches(waits).count() == 3);
    let begun = Instant::now();
    let told = pool.run(&["status"]);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    let lines = told.text();
    let of_managers = Vec::from_iter(lines.lines().filter(|line| line.contains(waits)));
    assert_eq!(of_managers.len(), 3, "{lines}");
    assert!(of_managers.iter().all(|line| line.len() < 250), "{lines}");
    assert!(told.stderr.contains("start the members of etcd") && told.stderr.len() < 250, "{told:?}");
    // Without managers it is another one.
    (0..3).for_each(|manager| pool.kill(manager));
    let begun = Instant::now();
    let told = pool.run(&["status"]);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    assert!(
        told.code == 5 && told.stderr.contains("no manager leads") && !told.stderr.contains("etcd"),
        "{told:?}"
    );
}

#[test]
fn status_names_a_member_of_etcd_that_is_gone_while_the_others_go_on() {
    let etcd = EtcdServer::start_members(3);
    let place = etcd.place();
    let pool = Shared::start_at(1, etcd, place);
    wait_until("all is well", || pool.status().is_some_and(|status| status["health"] == "healthy"));
    pool.etcd.kill_member(1);
    let member = format!("127.0.0.1:{}", pool.etcd.ports()[1]);
    await_reason(
        &pool,
        0,
        &[&format!("the member of etcd at {member} has not answered for "), "Connection refused"],
    );
    let status = pool.status().unwrap();
    assert_eq!(
        (&status["health"], &status["etcd"]["silent"][0]["member"]),
        (&"degraded".into(), &member.into())
    );
    pool.etcd.go_on();
    wait_until("all is well again", || pool.status().is_some_and(|status| status["health"] == "healthy"));
}

#[test]
fn a_manager_that_was_killed_while_it_led_is_not_said_to_stand_by() {
    let pool = Shared::start(3);
    pool.await_managers(3);
    for _ in 0..2 {
        let leader = pool.await_leader();
        let killed = pool.status().unwrap()["manager"]["pid"].clone();
        pool.kill(leader);
        let mut status = Value::Null;
        wait_until("another one leads", || {
            status = pool.status().unwrap_or_default();
            status["manager"]["pid"].is_u64() && status["manager"]["pid"] != killed
        });
        let known = status["managers"].as_array().unwrap().iter().map(|manager| manager["pid"].clone());
        assert!(!Vec::from_iter(known).contains(&killed), "{}", status["managers"]);
        pool.start_manager(leader);
        pool.await_managers(3);
    }
}
