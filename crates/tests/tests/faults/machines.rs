//! A pool of several machines, each a network namespace with an address of its own: hosts join with tokens, and the job goes on when
//! one of them is lost or cut off (I3, I6, I10).

use std::fs;
use std::path::Path;

use stdchk_tests::{Machines, random_bytes, wait_until};

const MIB: usize = 1 << 20;
/// The machine of the manager, and the one of the job.
const MANAGER: usize = 1;
const CLIENT: usize = 5;

/// A pool of three benefactors that is mounted on the client's machine.
fn mounted_pool() -> Machines {
    let machines = Machines::with_pool(3);
    let point = machines.path(CLIENT, "mnt");
    machines.begin(CLIENT, &["mount", point.to_str().unwrap()]);
    let root = machines.inside(CLIENT, "mnt");
    wait_until("the pool is mounted", || fs::create_dir(root.join("app")).is_ok());
    machines
}

fn online(machines: &Machines) -> usize {
    let status = machines.run(CLIENT, &["status", "--json"]);
    if status.code != 0 {
        return 0;
    }
    let benefactors = status.json()["benefactors"].as_array().unwrap().clone();
    benefactors.iter().filter(|one| one["state"] == "online").count()
}

fn wait_for_copies(machines: &Machines) {
    wait_until("all has its copies", || {
        let status = machines.ok(CLIENT, &["status", "--json"]).json();
        status["exposed"]["chunks"] == 0 && status["repairs_pending"] == 0
    });
}

#[test]
fn a_job_goes_on_when_a_host_is_lost_a_link_is_cut_and_the_manager_is_killed() {
    let machines = mounted_pool();
    let root = machines.inside(CLIENT, "mnt");
    let content = |step: u64| random_bytes(3 * MIB, step);
    let write = |step: u64| fs::write(root.join(format!("app/a.N0.T{step}")), content(step)).unwrap();
    let intact = |steps: std::ops::RangeInclusive<u64>| {
        for step in steps {
            let name = format!("app/a.N0.T{step}");
            assert!(machines.ok(CLIENT, &["get", &name, "-o", "-"]).stdout == content(step), "{name}");
        }
    };
    (1..=4).for_each(write);
    wait_for_copies(&machines);
    // A host is gone.
    machines.kill(2);
    (5..=6).for_each(write);
    intact(1..=6);
    // It comes back after its reboot.
    machines.ok(2, &["up"]);
    wait_until("it is back", || online(&machines) == 3);
    wait_for_copies(&machines);
    // A link is cut: whoever is behind it is as good as gone.
    machines.set_link(3, false);
    (7..=8).for_each(write);
    intact(1..=8);
    machines.set_link(3, true);
    wait_until("it is back", || online(&machines) == 3);
    // The manager is killed; the job waits for it.
    machines.kill(MANAGER);
    std::thread::scope(|threads| {
        let writing = threads.spawn(|| (9..=10).for_each(write));
        machines.ok(MANAGER, &["up"]);
        writing.join().unwrap();
    });
    intact(1..=10);
    let latest = machines.ok(CLIENT, &["latest", "app", "--json"]).json();
    assert_eq!(latest["timestep"], 10, "{latest}");
}

#[test]
fn hosts_may_do_what_they_joined_for_and_strangers_nothing() {
    let machines = Machines::with_pool(2);
    let (manager, client, stranger) = (machines.address(MANAGER), 4, 5);
    let spare = Machines::with_pool(1);
    let file = machines.path(client, "x");
    fs::write(&file, b"content").unwrap();
    machines.ok(client, &["put", file.to_str().unwrap(), "app/x"]);
    // A client is no operator.
    let refused = machines.run(client, &["gc"]);
    assert!(refused.code == 1 && refused.stderr.contains("client may not"), "{refused:?}");
    machines.ok(MANAGER, &["get", "app/x", "-o", "-"]);
    // A benefactor's keys open no file.
    let refused = machines.run(2, &["ls"]);
    assert!(refused.code == 1 && refused.stderr.contains("benefactor may not"), "{refused:?}");
    // A host starts what it joined for.
    let point = machines.path(2, "mnt");
    let refused = machines.run(2, &["up", "--mount", point.to_str().unwrap()]);
    assert!(refused.code == 2 && refused.stderr.contains("--for client"), "{refused:?}");
    let refused = machines.run(client, &["up", "--benefactors", "1"]);
    assert!(refused.code == 2 && refused.stderr.contains("--for benefactor"), "{refused:?}");
    machines.ok(2, &["up"]);
    // Tokens: for one host, for one role, and not those of another pool.
    let token = machines.token("client");
    // The manager's host gives its own disk as well, and the disk is shared by those that it gives.
    machines.ok(MANAGER, &["up", "--benefactors", "2", "--floor", "0"]);
    let status = machines.ok(client, &["status", "--json"]).json();
    assert_eq!(status["benefactors"].as_array().unwrap().len(), 4, "{status}");
    let refused = machines.run(MANAGER, &["up", "--benefactors", "3", "--donate", "4000TiB"]);
    assert!(refused.code == 2 && refused.stderr.contains("4000TiB"), "{refused:?}");
    let as_benefactor = machines.run(stranger, &["benefactor", "join", &manager, "--token", &token]);
    assert!(
        as_benefactor.code == 2 && as_benefactor.stderr.contains("it is for a client"),
        "{as_benefactor:?}"
    );
    let again = machines.run(stranger, &["pool", "join", &manager, "--token", &token]);
    assert!(again.code == 1 && again.stderr.contains("used before"), "{again:?}");
    let foreign = machines.run(stranger, &["pool", "join", &manager, "--token", &spare.token("client")]);
    assert!(foreign.code == 5, "{foreign:?}");
    // A host that never joined.
    let nobody = machines.run(stranger, &["ls", "--manager", &manager]);
    assert!(nobody.code == 5 && nobody.stderr.contains("join the pool"), "{nobody:?}");
    // Two joins at once into one folder: one of them is too late, and the other one holds.
    let tokens = [machines.token("client"), machines.token("client")];
    let joined: Vec<_> = std::thread::scope(|threads| {
        let join = |token| machines.run(stranger, &["pool", "join", &manager, "--token", token]).code;
        let both = tokens.each_ref().map(|token| threads.spawn(move || join(token)));
        both.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(joined.contains(&0) && joined.contains(&2), "{joined:?}");
    assert_eq!(machines.ok(stranger, &["get", "app/x", "-o", "-"]).stdout, b"content");
}

#[test]
fn the_page_on_several_machines_works_as_written() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/MACHINES.md");
    let page = fs::read_to_string(page).unwrap();
    let lines: Vec<(usize, &str)> = page
        .lines()
        .filter_map(|line| line.split_once("$ "))
        .filter_map(|(name, line)| Some((Machines::named(name)?, line)))
        .collect();
    assert!(lines.len() >= 14, "the lines were found: {}", lines.len());
    let machines = Machines::start(4);
    let mut token = String::new();
    for (machine, line) in lines {
        let outcome = machines.shell(machine, &line.replace("TOKEN", &token));
        assert_eq!(outcome.code, 0, "machine {machine}: {line}: {outcome:?}");
        if line.starts_with("stdchk pool token") {
            outcome.text().trim().clone_into(&mut token);
        }
    }
    let status = machines.shell(4, "stdchk status --json").json();
    let benefactors = status["benefactors"].as_array().unwrap();
    assert!(benefactors.len() == 2 && benefactors.iter().all(|one| one["state"] == "online"), "{status}");
    assert_eq!(machines.shell(4, "cat ~/pool/climate/run.N0.T1").text(), "state\n");
    assert_eq!(machines.shell(4, "stdchk down").code, 0);
}
