//! Hosts that know one address of a manager: off while an administrator sets more, or without a moment to hear of them before that manager is lost.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stdchk_tests::{Machines, SetAtEnd, etcd, etcd_arguments, random_bytes, wait_until};

use super::shared::SWITCH_MAX;

/// The machines of the managers; the second one has a benefactor as well.
const FIRST: usize = 1;
const SECOND: usize = 2;
const BENEFACTOR: usize = 3;
const CLIENT: usize = 4;
const ETCD: usize = 5;

/// A pool whose state is in etcd. One manager serves, and all know its address.
fn start() -> Machines {
    let machines = Machines::with_pool(2);
    let members = [[2379, 2380].map(|port| format!("10.77.0.{ETCD}:{port}"))];
    let arguments = etcd_arguments(0, &members, &machines.path(ETCD, "etcd"));
    machines.begin_as(ETCD, "etcd", machines.program(ETCD, &etcd(), &arguments));
    machines.ok(FIRST, &["down"]);
    machines.ok(FIRST, &["up", "--store", &place()]);
    machines
}

fn place() -> String {
    format!("etcd://10.77.0.{ETCD}:2379/stdchk")
}

fn add_second(machines: &Machines) {
    let authority = machines.path(FIRST, "pool/manager/authority");
    let (authority, address) = (authority.to_str().unwrap(), machines.address(SECOND));
    machines.ok(SECOND, &["up", "--listen", &address, "--authority", authority, "--store", &place()]);
}

fn both(machines: &Machines) -> String {
    [FIRST, SECOND].map(|machine| machines.address(machine)).join(",")
}

/// Whether this machine has heard of both.
fn knows(machines: &Machines, machine: usize) -> bool {
    let known = fs::read_to_string(machines.path(machine, "pool/keys/managers"));
    known.is_ok_and(|known| known.starts_with(&both(machines)))
}

/// The address of the manager that leads, as `machine` is told that asks the manager at `address`.
fn leader(machines: &Machines, machine: usize, address: &str) -> Option<String> {
    let status = machines.run(machine, &["--manager", address, "status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).ok()?;
    let leading = status["managers"].as_array()?.iter().find(|one| one["leads"] == true)?;
    Some(leading["addresses"].to_string())
}

fn await_leader(machines: &Machines, machine: usize) {
    wait_until(&format!("the manager of machine {machine} leads"), || {
        leader(machines, SECOND, &both(machines))
            .is_some_and(|said| said.contains(&machines.address(machine)))
    });
}

#[test]
fn a_host_that_was_off_while_managers_were_set_comes_back_through_one_that_stands_by() {
    let machines = start();
    machines.ok(BENEFACTOR, &["down"]);
    add_second(&machines);
    machines.ok(FIRST, &["pool", "set-managers", &both(&machines)]);
    // The second one leads, and the first one stands by.
    machines.ok(FIRST, &["down"]);
    await_leader(&machines, SECOND);
    machines.ok(FIRST, &["up"]);
    for machine in [BENEFACTOR, CLIENT] {
        assert!(!knows(&machines, machine), "machine {machine} was off");
    }
    machines.ok(BENEFACTOR, &["up"]);
    wait_until("the benefactor has learned where managers serve", || knows(&machines, BENEFACTOR));
    let file = machines.path(CLIENT, "x");
    fs::write(&file, random_bytes(300_000, 1)).unwrap();
    machines.ok(CLIENT, &["put", file.to_str().unwrap(), "app/x"]);
    assert!(knows(&machines, CLIENT));
    let (standing, leading) = (machines.address(FIRST), machines.address(SECOND));
    let said = leader(&machines, CLIENT, &standing).unwrap();
    assert!(said.contains(&leading), "status at one that stands by names the leader: {said}");
    // A list in which nobody leads is refused as before, though one of them says who does.
    let refused = machines.run(FIRST, &["pool", "set-managers", &standing]);
    assert!(refused.code != 0 && refused.stderr.contains("stands by"), "{refused:?}");
    assert!(refused.stderr.contains(&leading), "{refused:?}");
    // While nobody leads, that is said as well.
    machines.freeze(SECOND, true);
    wait_until("the first one leads", || {
        leader(&machines, CLIENT, &standing).is_some_and(|said| said.contains(&standing))
    });
    machines.freeze(SECOND, false);
    machines.ok(CLIENT, &["get", "app/x", "-o", "-"]);
}

#[test]
fn a_mount_that_writes_while_managers_are_set_goes_on_when_the_first_one_is_lost_at_once() {
    let machines = start();
    let root = machines.mount(CLIENT);
    fs::create_dir(root.join("app")).unwrap();
    add_second(&machines);
    let is_over = AtomicBool::new(false);
    let path = |step: u64| -> PathBuf { root.join(format!("app/a.N0.T{step}")) };
    let (written, longest) = std::thread::scope(|threads| {
        let job = threads.spawn(|| {
            let (mut step, mut longest) = (0, Duration::ZERO);
            while !is_over.load(Ordering::Acquire) {
                step += 1;
                let begun = Instant::now();
                fs::write(path(step), random_bytes(50_000, step)).unwrap();
                longest = longest.max(begun.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            (step, longest)
        });
        let _end = SetAtEnd(&is_over);
        wait_until("the job writes", || path(10).exists());
        machines.ok(FIRST, &["pool", "set-managers", &both(&machines)]);
        machines.set_link(FIRST, false);
        machines.kill(FIRST);
        let before = (1..).find(|step| !path(*step).exists()).unwrap();
        wait_until("the job goes on", || path(before + 20).exists() || job.is_finished());
        is_over.store(true, Ordering::Release);
        job.join().unwrap()
    });
    println!("{written} files; the longest took {longest:?}");
    assert!(longest < 2 * SWITCH_MAX, "{longest:?}");
    for step in 1..=written {
        assert!(fs::read(path(step)).unwrap() == random_bytes(50_000, step), "file {step}");
    }
    for machine in [BENEFACTOR, CLIENT] {
        assert!(knows(&machines, machine), "machine {machine}");
    }
}
