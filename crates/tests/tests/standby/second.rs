//! A second manager of a pool, made of a copy of the state from before it moved into etcd.

use std::fs;

use serde_json::Value;
use stdchk_tests::{Machines, Outcome, etcd, etcd_arguments, outcome, random_bytes, wait_until};

const FIRST: usize = 1;
const SECOND: usize = 2;
const CLIENT: usize = 4;
const ETCD: usize = 5;

fn run_etcd(machines: &Machines) {
    let members = [[2379, 2380].map(|port| format!("10.77.0.{ETCD}:{port}"))];
    let arguments = etcd_arguments(0, &members, &machines.path(ETCD, "etcd"));
    machines.begin_as(ETCD, "etcd", machines.program(ETCD, &etcd(), &arguments));
}

/// A command at the second manager's socket, by whoever runs it.
fn at_second(machines: &Machines, arguments: &[&str]) -> Outcome {
    let socket = format!("unix:{}", machines.path(SECOND, "second.sock").display());
    let mut command = machines.command(SECOND, &[&["--manager", &socket], arguments].concat());
    command.env("STDCHK_DATA", machines.path(SECOND, "nothing"));
    outcome(command)
}

fn run_second(machines: &Machines) {
    let folder = machines.path(SECOND, "copy");
    let socket = format!("unix:{}", machines.path(SECOND, "second.sock").display());
    let address = machines.address(SECOND);
    machines.begin(
        SECOND,
        &["manager", "run", folder.to_str().unwrap(), "--listen", &socket, "--listen", &address],
    );
}

fn health(outcome: &Outcome) -> String {
    let status: Value = serde_json::from_slice(&outcome.stdout).unwrap_or_default();
    status["health"].as_str().unwrap_or_default().to_owned()
}

/// Whether the manager that a client reaches shares the state, and has all benefactors.
fn first_serves(machines: &Machines) -> bool {
    let outcome = machines.run(CLIENT, &["status", "--json"]);
    outcome.code == 0 && {
        let status = outcome.json();
        let online =
            status["benefactors"].as_array().unwrap().iter().filter(|one| one["state"] == "online").count();
        !status["managers"].as_array().unwrap().is_empty() && online == 2
    }
}

#[test]
fn a_second_manager_with_an_older_state_is_refused_until_it_is_accepted() {
    let machines = Machines::with_pool(2);
    run_etcd(&machines);
    let file = machines.path(CLIENT, "x");
    fs::write(&file, random_bytes(300_000, 1)).unwrap();
    let put = |name: &str| machines.run(CLIENT, &["put", file.to_str().unwrap(), name]);
    assert_eq!(put("app/x").code, 0);
    machines.ok(FIRST, &["down"]);
    let (folder, copy) = (machines.path(FIRST, "pool/manager"), machines.path(SECOND, "copy"));
    assert!(std::process::Command::new("cp").arg("-a").args([&folder, &copy]).status().unwrap().success());
    let place = format!("etcd://10.77.0.{ETCD}:2379/stdchk");
    machines.ok(FIRST, &["up", "--store", &place]);
    let both = [FIRST, SECOND].map(|machine| machines.address(machine));
    machines.ok(FIRST, &["pool", "set-managers", &both.join(",")]);
    assert_eq!(put("app/y").code, 0);
    wait_until("the benefactors know of both", || {
        [2, 3].into_iter().all(|machine| {
            fs::read_to_string(machines.path(machine, "pool/keys/managers"))
                .is_ok_and(|known| known.contains(&both[1]))
        })
    });
    run_second(&machines);
    wait_until("the second manager serves", || at_second(&machines, &["status"]).code == 0);
    // Whichever greets first, everybody works with the first one, and the second one is named.
    for number in 0..5 {
        let stored = put(&format!("app/z{number}"));
        assert_eq!(stored.code, 0, "{stored:?}");
    }
    let status = machines.ok(CLIENT, &["status", "--json"]);
    let reasons = status.json()["reasons"].to_string();
    let refused = format!("the manager at {} has an older state of this pool than {}", both[1], both[0]);
    assert!(reasons.contains(&refused), "{reasons}");
    assert!(first_serves(&machines));
    // Also alone it is not the pool's manager.
    machines.kill(FIRST);
    let alone = machines.run(CLIENT, &["ls"]);
    assert!(alone.code == 5 && alone.stderr.contains(&refused), "{alone:?}");
    // Benefactors tell it that there is a newer state, and leave it when that one is back.
    wait_until("it is set back", || health(&at_second(&machines, &["status", "--json"])) == "set-back");
    let written = at_second(&machines, &["mkdir", "other"]);
    assert!(written.code != 0 && written.stderr.contains("another manager of this pool"), "{written:?}");
    machines.ok(FIRST, &["up"]);
    wait_until("the first one serves", || first_serves(&machines));
    assert_eq!(put("app/later").code, 0);
    // The newer state is lost for good.
    machines.kill(FIRST);
    machines.kill(ETCD);
    wait_until("the second one serves", || {
        // A benefactor that comes later brings up what it remembers of the first one, and then the question comes again.
        let accepted = at_second(&machines, &["accept-older-store"]);
        assert_eq!(accepted.code, 0, "{accepted:?}");
        put("app/again").code == 0
    });
    assert_eq!(machines.run(CLIENT, &["get", "app/x", "-o", "-"]).code, 0);
    wait_until("what came later is given up", || {
        // Another benefactor may bring the question up once more.
        machines.run(CLIENT, &["get", "app/later", "-o", "-"]).code == 4
            || at_second(&machines, &["accept-older-store"]).code != 0
    });
    // Should the other one come back after all, it is the older one.
    run_etcd(&machines);
    let folder = folder.to_str().unwrap();
    machines.begin(FIRST, &["manager", "run", folder, "--listen", &both[0], "--store", &place]);
    let refused = format!("the manager at {} has an older state of this pool than {}", both[0], both[1]);
    wait_until("the first one is refused", || {
        let status = machines.run(CLIENT, &["status", "--json"]);
        status.code == 0 && status.json()["reasons"].to_string().contains(&refused)
    });
    assert_eq!(machines.run(CLIENT, &["get", "app/again", "-o", "-"]).code, 0);
}
