//! Two managers on machines of their own, with certificates, over an etcd of three members: the machine of the leading manager is lost with
//! its member of etcd, and the job goes on; so it does when a host is killed and a link is cut after that. Who was shut out stays out, and
//! copies are permitted, whichever manager leads (I12, I13).

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use stdchk_tests::{Machines, etcd, etcd_arguments, has_all_copies, random_bytes, wait_until};

use super::shared::SWITCH_MAX;

const MIB: usize = 1 << 20;
/// The two managers, each beside a member of etcd.
const MANAGERS: [usize; 2] = [1, 2];
/// Of these the first has the third member of etcd.
const BENEFACTORS: [usize; 4] = [3, 4, 5, 6];
const CLIENT: usize = 7;
const OPERATOR: usize = 8;
/// A client that is shut out.
const OTHER: usize = 9;
/// Another one.
const STOLEN: usize = 10;

fn run_etcd(machines: &Machines, machine: usize) {
    let members = [1, 2, 3].map(|one| [2379, 2380].map(|port| format!("10.77.0.{one}:{port}")));
    let arguments = etcd_arguments(machine - 1, &members, &machines.path(machine, "etcd"));
    machines.begin_as(machine, "etcd", machines.program(machine, &etcd(), &arguments));
}

fn run_manager(machines: &Machines, machine: usize) {
    let folder = machines.path(machine, "pool/manager");
    let store = "etcd://10.77.0.1:2379,10.77.0.2:2379,10.77.0.3:2379/stdchk";
    let address = machines.address(machine);
    let arguments = ["manager", "run", folder.to_str().unwrap(), "--listen", &address, "--store", store];
    machines.begin_as(machine, "manager", machines.command(machine, &arguments));
}

/// What clients and benefactors are told.
fn managers(machines: &Machines) -> String {
    MANAGERS.map(|machine| machines.address(machine)).join(",")
}

fn token(machines: &Machines, manager: usize, role: &str) -> String {
    token_for(machines, manager, role, "1")
}

/// A token for so many hosts.
fn token_for(machines: &Machines, manager: usize, role: &str, uses: &str) -> String {
    let folder = machines.path(manager, "pool/manager");
    let arguments = ["pool", "token", "--for", role, "--uses", uses, "--folder", folder.to_str().unwrap()];
    let mut token = String::new();
    wait_until("there is an authority", || {
        let made = machines.run(manager, &arguments);
        token = made.text().trim().to_owned();
        made.code == 0
    });
    token
}

fn status(machines: &Machines) -> Option<Value> {
    let status = machines.run(OPERATOR, &["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).ok()?;
    (status["manager"]["state"] == "online").then_some(status)
}

/// The machine of the manager that leads.
fn leader(machines: &Machines) -> Option<usize> {
    let status = status(machines)?;
    let leading = status["managers"].as_array()?.iter().find(|one| one["leads"] == true)?;
    let addresses = leading["addresses"].to_string();
    MANAGERS.into_iter().find(|machine| addresses.contains(&machines.address(*machine)))
}

fn await_leader(machines: &Machines, machine: usize) {
    wait_until(&format!("the manager of machine {machine} leads"), || leader(machines) == Some(machine));
}

fn await_managers(machines: &Machines) {
    wait_until("both managers are there", || {
        status(machines).is_some_and(|status| status["managers"].as_array().unwrap().len() == 2)
    });
}

fn await_copies(machines: &Machines) {
    wait_until("all has its copies", || status(machines).is_some_and(|status| has_all_copies(&status)));
}

fn start() -> Machines {
    let machines = Machines::start(10);
    (1..=3).for_each(|machine| run_etcd(&machines, machine));
    run_manager(&machines, MANAGERS[0]);
    let addresses = managers(&machines);
    for (machine, role) in [(OPERATOR, "operator"), (CLIENT, "client"), (STOLEN, "client"), (OTHER, "client")]
    {
        let token = token(&machines, MANAGERS[0], role);
        wait_until("it has joined", || {
            machines.run(machine, &["pool", "join", &addresses, "--token", &token]).code == 0
        });
    }
    let [first, second] = MANAGERS.map(|machine| machines.path(machine, "pool/manager"));
    fs::create_dir_all(&second).unwrap();
    let copied =
        std::process::Command::new("cp").arg("-a").arg(first.join("authority")).arg(&second).status();
    assert!(copied.unwrap().success());
    run_manager(&machines, MANAGERS[1]);
    for machine in BENEFACTORS {
        let token = token(&machines, MANAGERS[0], "benefactor");
        let join = ["benefactor", "join", &addresses, "--token", &token, "--donate", "256MiB"];
        // They all have one disk, and each would take the work of the others for its owner's.
        machines
            .ok(machine, &[&join[..], &["--floor", "1MiB", "--load-limit", "0", "--tier", "disk"]].concat());
    }
    await_managers(&machines);
    machines
}

/// All that was on the machine is gone, and nobody says so to those who wait for its answers.
fn lose(machines: &Machines, machine: usize) {
    machines.set_link(machine, false);
    machines.kill(machine);
}

/// Shuts out two clients while the second manager leads, at which none of them joined; the id of one.
fn shut_two_out(machines: &Machines) -> String {
    machines.ok(OTHER, &["get", "app/a.N0.T1", "-o", "-"]);
    let members = machines.ok(OPERATOR, &["pool", "members", "--json"]).json();
    let clients = members.as_array().unwrap().iter().filter(|member| member["roles"][0] == "client");
    // In the order in which they joined.
    let clients: Vec<&str> = clients.map(|member| member["id"].as_str().unwrap()).collect();
    let [.., stolen, other] = clients[..] else { panic!("{members}") };
    let (stolen, id) = (stolen.to_owned(), other.to_owned());
    machines.ok(OPERATOR, &["pool", "revoke", &id]);
    machines.ok(OPERATOR, &["pool", "revoke", &stolen[..12]]);
    id
}

#[test]
fn a_token_lets_one_host_join_whichever_manager_leads_and_all_know_who_joined() {
    let machines = Machines::start(10);
    (1..=3).for_each(|machine| run_etcd(&machines, machine));
    run_manager(&machines, MANAGERS[0]);
    let addresses = managers(&machines);
    let join =
        |machine: usize, token: &str| machines.run(machine, &["pool", "join", &addresses, "--token", token]);
    let operator = token(&machines, MANAGERS[0], "operator");
    wait_until("it has joined", || join(OPERATOR, &operator).code == 0);
    let [first, second] = MANAGERS.map(|machine| machines.path(machine, "pool/manager"));
    // One token is used before the authority is copied, with all that is known of it; two are not. One of these is for two hosts.
    let used = token(&machines, MANAGERS[0], "client");
    let once = token(&machines, MANAGERS[0], "client");
    let kept = token_for(&machines, MANAGERS[0], "client", "2");
    assert_eq!(join(CLIENT, &used).code, 0);
    fs::create_dir_all(&second).unwrap();
    let copied =
        std::process::Command::new("cp").arg("-a").arg(first.join("authority")).arg(&second).status();
    assert!(copied.unwrap().success());
    run_manager(&machines, MANAGERS[1]);
    await_managers(&machines);
    assert_eq!(join(OTHER, &once).code, 0);
    assert_eq!(join(BENEFACTORS[1], &kept).code, 0);
    let members = || machines.ok(OPERATOR, &["pool", "members", "--json"]).json();
    let before = members();
    assert_eq!(before.as_array().unwrap().len(), 4, "{before}");
    lose(&machines, MANAGERS[0]);
    await_leader(&machines, MANAGERS[1]);
    for token in [&used, &once] {
        let refused = join(STOLEN, token);
        assert!(refused.code != 0 && refused.stderr.contains("used before"), "{refused:?}");
    }
    assert_eq!(members(), before);
    // Tokens that nobody used are good there as well, and so are those that are made there.
    // One that meets the lost machine first may run out of time, and asks again.
    wait_until("it has joined", || join(STOLEN, &kept).code == 0);
    wait_until("a third one is refused", || {
        let refused = join(BENEFACTORS[2], &kept);
        refused.code == 1 && refused.stderr.contains("good for 2 hosts")
    });
    let made = token(&machines, MANAGERS[1], "client");
    wait_until("it has joined", || join(BENEFACTORS[0], &made).code == 0);
    assert_eq!(members().as_array().unwrap().len(), 6);
    // Who joined at the first one is shut out by the second, by the start of its id.
    let id = before[2]["id"].as_str().unwrap();
    machines.ok(OPERATOR, &["pool", "revoke", &id[..12]]);
    assert!(machines.run(OTHER, &["ls"]).stderr.contains("revoked"));
    machines.set_link(MANAGERS[0], true);
    run_etcd(&machines, MANAGERS[0]);
    run_manager(&machines, MANAGERS[0]);
    await_managers(&machines);
    lose(&machines, MANAGERS[1]);
    await_leader(&machines, MANAGERS[0]);
    assert!(machines.run(OTHER, &["ls"]).stderr.contains("revoked"));
    let refused = join(OTHER, &made);
    assert!(refused.code != 0, "{refused:?}");
    assert_eq!(members()[2]["revoked"], true);
}

#[test]
fn a_job_goes_on_when_the_machine_of_the_leading_manager_is_lost_a_host_is_killed_and_a_link_cut() {
    let machines = start();
    let root = machines.mount(CLIENT);
    fs::create_dir(root.join("app")).unwrap();
    machines.ok(CLIENT, &["policy", "set", "app", "semantics=pessimistic"]);
    let content = |step: u64| random_bytes(3 * MIB, step);
    let write = |step: u64| fs::write(root.join(format!("app/a.N0.T{step}")), content(step)).unwrap();
    let intact = |steps: std::ops::RangeInclusive<u64>| {
        for step in steps {
            let name = format!("app/a.N0.T{step}");
            assert!(machines.ok(CLIENT, &["get", &name, "-o", "-"]).stdout == content(step), "{name}");
        }
    };
    (1..=3).for_each(write);
    await_leader(&machines, MANAGERS[0]);
    // The leading manager's machine is lost while the job writes.
    let took = std::thread::scope(|threads| {
        let writing = threads.spawn(|| {
            (4..=6).for_each(write);
            Instant::now()
        });
        std::thread::sleep(Duration::from_millis(30));
        let begun = Instant::now();
        lose(&machines, MANAGERS[0]);
        await_leader(&machines, MANAGERS[1]);
        let took = begun.elapsed();
        println!(
            "another machine's manager leads after {took:.1?}; the job went on after {:.1?}",
            writing.join().unwrap() - begun
        );
        took
    });
    assert!(took < SWITCH_MAX, "{took:?}");
    intact(1..=6);
    // Repair under the manager that follows: its permits count.
    await_copies(&machines);
    lose(&machines, BENEFACTORS[3]);
    (7..=8).for_each(write);
    wait_until("the host is taken for lost", || {
        status(&machines).is_some_and(|status| status["benefactors"].to_string().contains("\"lost\""))
    });
    await_copies(&machines);
    machines.set_link(BENEFACTORS[2], false);
    (9..=10).for_each(write);
    machines.set_link(BENEFACTORS[2], true);
    intact(1..=10);
    // Who is shut out now stays out when the first manager leads again, which never heard of it.
    let id = shut_two_out(&machines);
    let is_refused = || {
        for machine in [OTHER, STOLEN] {
            let refused = machines.run(machine, &["get", "app/a.N0.T1", "-o", "-"]);
            assert!(refused.code != 0 && refused.stderr.contains("revoked"), "{refused:?}");
        }
    };
    is_refused();
    machines.set_link(MANAGERS[0], true);
    run_etcd(&machines, MANAGERS[0]);
    run_manager(&machines, MANAGERS[0]);
    await_managers(&machines);
    is_refused();
    await_copies(&machines);
    lose(&machines, MANAGERS[1]);
    await_leader(&machines, MANAGERS[0]);
    is_refused();
    (11..=12).for_each(write);
    intact(1..=12);
    let latest = machines.ok(CLIENT, &["latest", "app", "--json"]).json();
    assert_eq!(latest["timestep"], 12, "{latest}");
    let members = machines.ok(OPERATOR, &["pool", "members", "--json"]).json();
    let shut_out = members.as_array().unwrap().iter().find(|member| member["id"] == id.as_str()).unwrap();
    assert_eq!(shut_out["revoked"], true, "{members}");
}
