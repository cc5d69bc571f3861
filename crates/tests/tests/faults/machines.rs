//! A pool of several machines, each a network namespace with an address of its own: hosts join with tokens, and the job goes on when
//! one of them is lost or cut off (I3, I6, I10).

use std::fs;
use std::path::Path;

use serde_json::Value;
use stdchk_tests::{Machines, has_all_copies, random_bytes, wait_until};

const MIB: usize = 1 << 20;
/// The machine of the manager, and the one of the job.
const MANAGER: usize = 1;
const CLIENT: usize = 5;

/// A pool of three benefactors that is mounted on the client's machine.
fn mounted_pool() -> Machines {
    let machines = Machines::with_pool(3);
    let root = machines.mount(CLIENT);
    fs::create_dir(root.join("app")).unwrap();
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
    wait_until("all has its copies", || has_all_copies(&machines.ok(CLIENT, &["status", "--json"]).json()));
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
    // The refusal left no member and did not use the token up.
    let members = || machines.ok(MANAGER, &["pool", "members", "--json"]).json().as_array().unwrap().len();
    let before = members();
    machines.ok(stranger, &["pool", "join", &manager, "--token", &token]);
    assert_eq!(members(), before + 1);
    fs::remove_dir_all(machines.path(stranger, "pool")).unwrap();
    let again = machines.run(stranger, &["pool", "join", &manager, "--token", &token]);
    assert!(again.code == 1 && again.stderr.contains("used before"), "{again:?}");
    let foreign = machines.run(stranger, &["pool", "join", &manager, "--token", &spare.token("client")]);
    assert!(foreign.code == 1 && foreign.stderr.contains("not one of the pool"), "{foreign:?}");
    // A host that never joined.
    let nobody = machines.run(stranger, &["ls", "--manager", &manager]);
    assert!(nobody.code == 8 && nobody.stderr.contains("join the pool"), "{nobody:?}");
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
fn a_copy_of_a_benefactors_machine_is_refused_and_named_until_the_first_is_gone() {
    let machines = Machines::with_pool(2);
    let (first, copy) = (2, 5);
    machines.ok(first, &["down"]);
    let (from, to) = (machines.path(first, "pool"), machines.path(copy, "pool"));
    assert!(std::process::Command::new("cp").arg("-a").arg(&from).arg(&to).status().unwrap().success());
    fs::remove_dir_all(to.join("run")).unwrap();
    machines.ok(first, &["up"]);
    let refused = machines.run(copy, &["up"]);
    let names_both = refused.stderr.contains("10.77.0.2:") && refused.stderr.contains("10.77.0.5:");
    assert!(
        refused.code == 1 && refused.stderr.contains("another copy of the same folder") && names_both,
        "{refused:?}"
    );
    let of_first = || {
        let status = machines.ok(MANAGER, &["status", "--json"]).json();
        let info = status["benefactors"][0].clone();
        (status["health"].clone(), status["reasons"].to_string(), info)
    };
    let (health, reasons, info) = of_first();
    assert!(
        health == "degraded" && reasons.contains("b0 runs twice") && reasons.contains("10.77.0.5:"),
        "{reasons}"
    );
    assert!(
        info["address"].as_str().unwrap().starts_with("10.77.0.2:") && info["state"] == "online",
        "{info}"
    );
    machines.ok(first, &["down"]);
    wait_until("the other one is let in", || {
        let (_, _, info) = of_first();
        info["address"].as_str().unwrap().starts_with("10.77.0.5:") && info["state"] == "online"
    });
}

#[test]
fn a_host_of_which_the_manager_starts_later_waits_for_it_and_says_so() {
    let machines = Machines::with_pool(2);
    let (benefactor, client) = (2, 4);
    let point = machines.path(client, "mnt");
    machines.ok(client, &["up", "--mount", point.to_str().unwrap()]);
    machines.ok(client, &["down"]);
    machines.kill(MANAGER);
    machines.ok(benefactor, &["down"]);
    std::thread::scope(|threads| {
        let both = [benefactor, client].map(|machine| {
            threads.spawn({
                let machines = &machines;
                move || machines.run(machine, &["up"])
            })
        });
        let log = machines.path(client, "pool/log/mount.log");
        wait_until("the mount waits", || {
            fs::read_to_string(&log).is_ok_and(|log| log.contains("the mount waits for the manager"))
        });
        let status = machines.run(client, &["status"]);
        assert!(status.code == 5 && status.text().contains("waiting"), "{status:?}");
        assert!(!status.text().contains("the mount does not answer"), "{status:?}");
        machines.ok(MANAGER, &["up"]);
        for up in both {
            let up = up.join().unwrap();
            let says = format!("waits for the manager at {}", machines.address(MANAGER));
            assert!(up.code == 0 && up.stderr.contains(&says), "{up:?}");
        }
    });
    fs::create_dir(machines.inside(client, "mnt/app")).unwrap();
}

#[test]
fn a_host_that_is_shut_out_gets_nothing_from_anybody_and_stays_out() {
    let machines = Machines::with_pool(3);
    let manager = machines.address(MANAGER);
    let file = machines.path(CLIENT, "x");
    fs::write(&file, random_bytes(3 * MIB, 1)).unwrap();
    let put = |name: &str| machines.run(CLIENT, &["put", file.to_str().unwrap(), name]);
    assert_eq!(put("app/x").code, 0);
    let members = || machines.ok(MANAGER, &["pool", "members", "--json"]).json();
    let id = |benefactor: u64| {
        let members = members();
        let is_it = |member: &&Value| member["benefactors"].as_array().unwrap().contains(&benefactor.into());
        members.as_array().unwrap().iter().find(is_it).unwrap()["id"].as_str().unwrap().to_owned()
    };
    let joined = members();
    assert_eq!(joined.as_array().unwrap().len(), 4, "{joined}");
    let own = joined.as_array().unwrap().iter().find(|member| member["roles"][0] == "client").unwrap();
    let own = own["id"].as_str().unwrap().to_owned();
    // Only who runs the pool says who is in it, and ids are whole words or beginnings of one.
    let refused = machines.run(CLIENT, &["pool", "revoke", &own]);
    assert!(refused.code == 1 && refused.stderr.contains("client may not"), "{refused:?}");
    assert_eq!(machines.run(MANAGER, &["pool", "revoke", "xyz"]).code, 4);
    assert_eq!(machines.run(MANAGER, &["pool", "revoke", ""]).code, 2);
    // A client, while it reads and writes.
    machines.ok(CLIENT, &["up", "--mount", machines.path(CLIENT, "mnt").to_str().unwrap()]);
    let mounted = machines.inside(CLIENT, "mnt/app/x");
    assert!(fs::read(&mounted).unwrap() == fs::read(&file).unwrap());
    machines.ok(MANAGER, &["pool", "revoke", &own[..12]]);
    let refused = put("app/y");
    assert!(refused.code != 0 && refused.stderr.contains("revoked"), "{refused:?}");
    assert!(fs::write(mounted.with_file_name("z"), b"z").is_err(), "its mount is shut out, too");
    // A benefactor: what it has is made anew elsewhere.
    let out = id(1);
    machines.ok(MANAGER, &["pool", "revoke", &out]);
    machines.ok(MANAGER, &["pool", "revoke", &out]);
    let state = |number: usize| {
        let status = machines.ok(MANAGER, &["status", "--json"]).json();
        status["benefactors"][number]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(state(1), "lost", "what it has counts no more");
    // Both its owner and whoever runs the pool are told so, its owner at once.
    let told = machines.ok(MANAGER, &["status"]);
    assert!(
        told.text().contains("b1 (machine3, 10.77.0.3:") && told.text().contains("is shut out"),
        "{told:?}"
    );
    machines.ok(3, &["down"]);
    let refused = machines.run(3, &["up"]);
    assert!(
        refused.code == 1 && refused.stderr.contains("is shut out") && refused.stderr.contains("revoked"),
        "{refused:?}"
    );
    assert_eq!(machines.processes(3).len(), 0, "nothing was started");
    // Benefactors know it also when the manager is away, and after a restart.
    let revoked = machines.path(2, "pool/keys/revoked");
    wait_until("the others have heard", || {
        fs::read_to_string(&revoked).is_ok_and(|known| known.contains(&out))
    });
    assert!(fs::read_to_string(&revoked).unwrap().contains(&own));
    machines.kill(MANAGER);
    machines.kill(2);
    machines.ok(MANAGER, &["up"]);
    machines.ok(2, &["up"]);
    let refused = put("app/y");
    assert!(refused.code != 0 && refused.stderr.contains("revoked"), "{refused:?}");
    wait_until("the lost copies are made anew", || {
        let status = machines.ok(MANAGER, &["status", "--json"]).json();
        status["benefactors"][1]["state"] == "lost" && status["chunks_at_risk"] == 0
    });
    // With new keys it is another member.
    machines.kill(CLIENT);
    fs::remove_dir_all(machines.path(CLIENT, "pool")).unwrap();
    machines.ok(CLIENT, &["pool", "join", &manager, "--token", &machines.token("client")]);
    let back = machines.ok(CLIENT, &["get", "app/x", "-o", "-"]);
    assert!(back.stdout == fs::read(&file).unwrap());
    assert_eq!(members().as_array().unwrap().len(), 5);
}

#[test]
fn a_manager_whose_machine_lost_all_its_disks_is_made_anew_and_who_was_shut_out_stays_out() {
    let machines = Machines::with_pool(3);
    let file = machines.path(CLIENT, "x");
    fs::write(&file, random_bytes(3 * MIB, 1)).unwrap();
    machines.ok(CLIENT, &["put", file.to_str().unwrap(), "app/x"]);
    let members = || machines.ok(MANAGER, &["pool", "members", "--json"]).json();
    machines.ok(CLIENT, &["put", file.to_str().unwrap(), "app/y"]);
    let client = |member: &&Value| member["roles"][0] == "client";
    let id = members().as_array().unwrap().iter().find(client).unwrap()["id"].as_str().unwrap().to_owned();
    machines.ok(MANAGER, &["pool", "revoke", &id]);
    let (pool, saved) = (machines.path(MANAGER, "pool"), machines.path(MANAGER, "saved"));
    let known = pool.join("manager/authority/keepers");
    wait_until("the keepers are written down", || {
        let known = fs::read_to_string(&known).unwrap_or_default();
        known.lines().count() == 3 && known.contains("1 10.77.0.3:")
    });
    let copied =
        std::process::Command::new("cp").arg("-a").arg(pool.join("manager/authority")).arg(&saved).status();
    assert!(copied.unwrap().success());
    // Two of the keepers serve elsewhere since, so that the copy leads to one alone, and what that one keeps leads to the other.
    for machine in [3, 4] {
        machines.ok(machine, &["down"]);
        machines.ok(machine, &["up"]);
    }
    // Keepers lag behind by a moment, longer while they take a base.
    wait_until("all commits can be recovered", || {
        machines.ok(MANAGER, &["status", "--json"]).json()["recovery"]["lacks_commits"] == 0
    });
    machines.ok(MANAGER, &["down"]);
    fs::remove_dir_all(&pool).unwrap();
    machines.kill(4);
    let (listen, authority) = (machines.address(MANAGER), saved.to_str().unwrap());
    let lost = machines.run(MANAGER, &["manager", "recover"]);
    assert!(lost.code == 4 && lost.stderr.contains("--listen"), "{lost:?}");
    let recover = ["manager", "recover", "--authority", authority, "--listen", &listen, "--wait", "20"];
    let told = machines.ok(MANAGER, &recover);
    assert!(told.text().contains("app: 2 files") && told.text().contains("shut out"), "{told:?}");
    let lines = |found: &str, says: &str| {
        told.text().lines().any(|line| line.starts_with(found) && line.contains(says))
    };
    assert!(lines("b0 (10.77.0.2:", "up to commit") && lines("b1 (10.77.0.3:", "up to commit"), "{told:?}");
    assert!(lines("b2 (10.77.0.4:", "no connection"), "{told:?}");
    machines.ok(MANAGER, &["up"]);
    let back = machines.ok(MANAGER, &["get", "app/y", "-o", "-"]);
    assert!(back.stdout == fs::read(&file).unwrap());
    let refused = machines.run(CLIENT, &["get", "app/y", "-o", "-"]);
    assert!(refused.code != 0 && refused.stderr.contains("revoked"), "{refused:?}");
    assert_eq!(members().as_array().unwrap().len(), 4);
}

#[test]
fn the_page_on_several_machines_works_as_written() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/MACHINES.md");
    let page = fs::read_to_string(page).unwrap();
    // That part runs with etcd, in the tests of managers that stand by.
    let (page, _) = page.split_once("\n## From one manager to three\n").unwrap();
    let lines: Vec<(usize, &str)> = page
        .lines()
        .filter_map(|line| line.split_once("$ "))
        .filter_map(|(name, line)| Some((Machines::named(name)?, line)))
        .collect();
    assert!(lines.len() >= 14, "the lines were found: {}", lines.len());
    let machines = Machines::start(4);
    let (mut token, mut member) = (String::new(), String::new());
    for (machine, line) in lines {
        if line.starts_with("stdchk pool revoke") {
            let status = machines.shell(4, "stdchk status --json").json();
            let benefactors = status["benefactors"].as_array().unwrap();
            let all_are_here = benefactors.iter().all(|one| one["state"] == "online");
            assert!(benefactors.len() == 2 && all_are_here, "{status}");
        }
        let outcome = machines.shell(machine, &line.replace("TOKEN", &token).replace("MEMBER", &member));
        assert_eq!(outcome.code, 0, "machine {machine}: {line}: {outcome:?}");
        if line.starts_with("stdchk pool token") {
            outcome.text().trim().clone_into(&mut token);
        }
        if line == "stdchk pool members" {
            member = outcome.text().lines().nth(1).unwrap().split(' ').next().unwrap().to_owned();
        }
    }
    assert_eq!(machines.shell(4, "cat ~/pool/climate/run.N0.T1").text(), "state\n");
    assert_eq!(machines.shell(4, "stdchk down").code, 0);
}
