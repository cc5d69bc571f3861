//! `up` and `recover` where the etcd with the pool's state doesn't answer.

use std::fs;

use stdchk_tests::{Machines, etcd, etcd_arguments};

const PLACE: &str = "etcd://10.77.0.1:2379/stdchk";

/// An etcd of one member on the first machine.
fn run_etcd(machines: &Machines) {
    let members = [[2379, 2380].map(|port| format!("10.77.0.1:{port}"))];
    let arguments = etcd_arguments(0, &members, &machines.path(1, "etcd"));
    machines.begin_as(1, "etcd", machines.program(1, &etcd(), &arguments));
}

/// A pool whose state is in etcd.
fn pool_in_etcd(machines: &Machines) {
    run_etcd(machines);
    machines.ok(1, &["pool", "init", "--listen", &machines.address(1)]);
    machines.ok(1, &["down"]);
    machines.ok(1, &["up", "--store", PLACE]);
}

#[test]
fn up_and_recover_name_an_etcd_that_does_not_answer_where_the_managers_folder_is_gone() {
    let machines = Machines::start(1);
    pool_in_etcd(&machines);
    machines.ok(1, &["mkdir", "app"]);
    machines.ok(1, &["down"]);
    let (manager, authority) = (machines.path(1, "pool/manager"), machines.path(1, "authority"));
    fs::rename(manager.join("authority"), &authority).unwrap();
    fs::remove_dir_all(&manager).unwrap();
    // Ends etcd as well.
    machines.kill(1);
    let waits = machines.run(1, &["up"]);
    let named = "etcd at 10.77.0.1:2379, which does not answer";
    assert!(waits.code == 5, "{waits:?}");
    assert_eq!(waits.stderr.matches(named).count(), 2, "at first, and in the end: {waits:?}");
    assert!(waits.stderr.contains("start its members"), "{waits:?}");
    machines.ok(1, &["down"]);
    let refused = machines.run(1, &["manager", "recover", "--authority", authority.to_str().unwrap()]);
    assert!(refused.code == 5 && refused.stderr.contains(named), "{refused:?}");
    assert!(!refused.stderr.contains("nothing is lost"), "{refused:?}");
    run_etcd(&machines);
    fs::rename(&authority, manager.join("authority")).unwrap();
    machines.ok(1, &["up"]);
    assert!(machines.ok(1, &["ls"]).text().contains("app"));
    machines.ok(1, &["down"]);
    let refused = machines.run(1, &["manager", "recover"]);
    assert!(refused.code == 2 && refused.stderr.contains("nothing is lost here"), "{refused:?}");
}
