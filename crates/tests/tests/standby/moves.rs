//! A pool whose state moves from one manager's disk into etcd, with managers that are added: its members follow, nothing that was written
//! meanwhile is lost, and whoever comes with the old state is told where the new one is.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use stdchk_model::limits::CLIENT_KEEPALIVE_MS;
use stdchk_tests::{
    EtcdGate, EtcdServer, Machines, Outcome, SetAtEnd, etcd, etcd_arguments, random_bytes, wait_until,
};

use super::shared::{Shared, content};

const LOGIN: usize = 4;

/// A member of etcd on each of the first three machines, as the page starts it.
fn run_etcd(machines: &Machines) {
    let page = page();
    let (_, line) = page.split_once("\n```sh\netcd ").unwrap();
    let (line, _) = line.split_once("\n```").unwrap();
    for (machine, name) in [(1, "a"), (2, "b"), (3, "c")] {
        let own = line
            .replace("--name a ", &format!("--name {name} "))
            .replace("http://10.77.0.1:", &format!("http://10.77.0.{machine}:"))
            .replace("-urls http://a.example.org", &format!("-urls http://{name}.example.org"));
        assert_eq!(own == line, machine == 1, "{own}");
        let mut command =
            machines.program(machine, Path::new("bash"), &["-c", &format!("exec \"$ETCD\" {own}")]);
        command.env("ETCD", etcd()).env("HOME", machines.path(machine, "home"));
        machines.begin_as(machine, "etcd", command);
    }
}

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/MACHINES.md")).unwrap()
}

fn shell(machines: &Machines, machine: usize, line: &str) -> Outcome {
    let outcome = machines.shell(machine, line);
    assert_eq!(outcome.code, 0, "machine {machine}: {line}: {outcome:?}");
    outcome
}

/// A pool as the page on several machines makes it: its manager on `a`, benefactors on `b` and `c`, and a mount on `login`.
fn pool_of_the_page(machines: &Machines) {
    shell(machines, 1, "stdchk pool init --listen a.example.org:7400");
    let token =
        |role| shell(machines, 1, &format!("stdchk pool token --for {role}")).text().trim().to_owned();
    for machine in [2, 3] {
        let token = token("benefactor");
        let terms = "--donate 256MiB --floor 1MiB --tier disk --load-limit 0";
        shell(
            machines,
            machine,
            &format!("stdchk benefactor join a.example.org:7400 --token {token} {terms}"),
        );
    }
    let token = token("client");
    shell(machines, LOGIN, &format!("stdchk pool join a.example.org:7400 --token {token}"));
    shell(machines, LOGIN, "stdchk up --mount ~/pool && mkdir ~/pool/app");
}

/// The commands of the part of the page.
fn lines_of_the_page() -> Vec<(usize, String)> {
    let page = page();
    let (_, part) = page.split_once("\n## From one manager to three\n").unwrap();
    let part = part.split_once("\n## ").map_or(part, |(part, _)| part);
    let lines = part.lines().filter_map(|line| line.split_once("$ "));
    lines.filter_map(|(name, line)| Some((Machines::named(name)?, line.to_owned()))).collect()
}

/// Copies between machines, which have no server for that here.
fn copied(machines: &Machines, line: &str) -> String {
    let Some((what, to)) = line.strip_prefix("scp -r ").and_then(|rest| rest.split_once(' ')) else {
        return line.to_owned();
    };
    let (host, name) = to.split_once(".example.org:").unwrap();
    let to = machines.path(Machines::named(host).unwrap(), "home").join(name);
    format!("cp -r {what} {}", to.display())
}

#[test]
fn the_page_from_one_manager_to_three_works_as_written_while_a_job_writes() {
    let lines = lines_of_the_page();
    assert!((9..=12).contains(&lines.len()), "{lines:?}");
    let machines = Machines::start(4);
    run_etcd(&machines);
    pool_of_the_page(&machines);
    let app = machines.inside(LOGIN, "home/pool/app");
    let is_over = AtomicBool::new(false);
    let write = |step: u64| {
        fs::write(app.join(format!("a.N0.T{step}")), random_bytes(100_000, step)).unwrap();
    };
    let written = std::thread::scope(|threads| {
        let job = threads.spawn(|| {
            let mut steps = 0;
            while !is_over.load(Ordering::Acquire) {
                steps += 1;
                write(steps);
                std::thread::sleep(Duration::from_millis(20));
            }
            steps
        });
        let _end = SetAtEnd(&is_over);
        let mut token = String::new();
        for (machine, line) in &lines {
            let done = shell(&machines, *machine, &copied(&machines, line).replace("TOKEN", &token));
            if line.starts_with("stdchk pool token") {
                done.text().trim().clone_into(&mut token);
            }
        }
        is_over.store(true, Ordering::Release);
        job.join().unwrap()
    });
    assert!(written > 10, "{written}");
    // The mount asks where managers serve with each sign of life.
    std::thread::sleep(Duration::from_millis(2 * CLIENT_KEEPALIVE_MS));
    let status = shell(&machines, LOGIN, "stdchk status --json").json();
    assert_eq!(status["managers"].as_array().unwrap().len(), 3, "{status}");
    // The first manager's machine is gone, and with it the address that all were given.
    machines.set_link(1, false);
    machines.kill(1);
    wait_until("another manager leads", || {
        let status = machines.shell(LOGIN, "stdchk status --json");
        status.code == 0 && status.json()["benefactors"].to_string().matches("online").count() >= 2
    });
    write(written + 1);
    // Also those that are started now.
    for machine in [2, 3] {
        shell(&machines, machine, "stdchk down && stdchk up");
    }
    shell(&machines, LOGIN, "stdchk down && stdchk up");
    for step in 1..=written + 1 {
        let name = format!("app/a.N0.T{step}");
        assert!(
            fs::read(app.join(format!("a.N0.T{step}"))).unwrap() == random_bytes(100_000, step),
            "{name}"
        );
    }
    write(written + 2);
    shell(&machines, LOGIN, "stdchk down");
}

#[test]
fn members_follow_to_the_addresses_that_the_manager_was_told_and_to_no_list_that_leads_nowhere() {
    let machines = Machines::with_pool(2);
    let (manager, client, stranger) = (machines.address(1), 4, 5);
    let wrong = machines.run(1, &["pool", "set-managers", "10.77.0.5:7400"]);
    assert!(wrong.code != 0 && wrong.stderr.contains("10.77.0.5:7400"), "{wrong:?}");
    for (member, what) in [(client, "client"), (2, "benefactor"), (stranger, "stranger")] {
        let refused =
            machines.run(member, &["pool", "set-managers", &format!("{manager},10.77.0.{stranger}:7400")]);
        assert_ne!(refused.code, 0, "a {what} sets nothing: {refused:?}");
    }
    // The first entry is dead.
    let list = format!("10.77.0.{stranger}:7400,{manager}");
    machines.ok(1, &["pool", "set-managers", &list]);
    let knows = |machine: usize| {
        fs::read_to_string(machines.path(machine, "pool/keys/managers"))
            .is_ok_and(|known| known.starts_with(&list))
    };
    for machine in [2, 3] {
        wait_until("the benefactor has heard", || knows(machine));
    }
    machines.ok(client, &["ls"]);
    assert!(knows(client), "each command learns it");
    let file = machines.path(client, "x");
    fs::write(&file, random_bytes(300_000, 1)).unwrap();
    machines.ok(client, &["put", file.to_str().unwrap(), "app/x"]);
    machines.ok(1, &["down"]);
    machines.ok(1, &["up"]);
    machines.ok(client, &["get", "app/x", "-o", "-"]);
    // An address that nobody knew is meant by whoever gives it.
    let given = machines.run(client, &["ls", "--manager", "10.77.0.3:1"]);
    assert!(given.code == 5 && given.stderr.contains("10.77.0.3:1"), "{given:?}");
}

fn manager_run(pool: &Shared, number: usize, more: &[&str]) -> Outcome {
    let folder = pool.path(&format!("manager-{number}"));
    let address = pool.address(number);
    let mut arguments = vec!["manager", "run", folder.to_str().unwrap(), "--listen", &address];
    arguments.extend(more);
    pool.run(&arguments)
}

#[test]
fn a_folder_whose_state_was_moved_says_where_it_is_and_serves_nothing_old() {
    let etcd = EtcdServer::start();
    let place = etcd.place();
    let mut pool = Shared::start_at(1, etcd, String::new());
    assert_eq!(pool.put("app/file", &content(1, 0)).code, 0);
    pool.signal(0, Signal::TERM);
    assert!(pool.end(0).success());
    let folder = pool.path("manager-0");
    let old = pool.path("old");
    assert!(std::process::Command::new("cp").arg("-a").args([&folder, &old]).status().unwrap().success());
    pool.place.clone_from(&place);
    pool.start_manager(0);
    pool.await_leader();
    pool.signal(0, Signal::TERM);
    assert!(pool.end(0).success());
    let says_where = |outcome: &Outcome| {
        assert!(
            outcome.code != 0 && outcome.stderr.contains(&place) && outcome.stderr.contains("--store"),
            "{outcome:?}"
        );
    };
    says_where(&manager_run(&pool, 0, &[]));
    // As the message about a store that is missing would have people do.
    for name in ["store.redb", "store.log"] {
        fs::copy(old.join(name), folder.join(name)).unwrap();
    }
    says_where(&manager_run(&pool, 0, &[]));
    for name in ["store.redb", "store.log"] {
        fs::remove_file(folder.join(name)).unwrap();
    }
    // An etcd that was emptied, or is another one, is not begun anew, and another pool's is left alone.
    let empty = place.replace("/stdchk", "/other");
    let refused = manager_run(&pool, 0, &["--store", &empty]);
    assert!(
        refused.code != 0
            && refused.stderr.contains("there is no pool in")
            && refused.stderr.contains(&empty),
        "{refused:?}"
    );
    let other = Shared::start_at(1, EtcdServer::start(), String::new());
    let refused = manager_run(&other, 0, &["--store", &place]);
    assert!(refused.stderr.contains("is in use"), "{refused:?}");
    other.kill(0);
    let before = pool.etcd.record(b"\0pool");
    let refused = manager_run(&other, 0, &["--store", &place]);
    assert!(refused.code != 0 && refused.stderr.contains("belongs to pool"), "{refused:?}");
    assert_eq!(pool.etcd.record(b"\0pool"), before);
    assert!(other.path("manager-0/store.redb").exists(), "it was not moved");
    pool.start_manager(0);
    pool.await_leader();
    pool.await_benefactors(3);
    assert!(pool.get("app/file") == content(1, 0));
}

#[test]
fn a_move_that_is_cut_off_goes_on_where_it_began_and_nowhere_else() {
    let etcd = EtcdServer::start();
    let gate = EtcdGate::open(etcd.port());
    let place = gate.place();
    let mut pool = Shared::start_at(1, etcd, String::new());
    assert_eq!(pool.put("app/file", &content(1, 0)).code, 0);
    pool.kill(0);
    let folder = pool.path("manager-0");
    // Killed before anything is in etcd.
    fs::write(folder.join("moved"), format!("{place}\n")).unwrap();
    let refused = manager_run(&pool, 0, &[]);
    assert!(refused.code != 0 && refused.stderr.contains(&place), "{refused:?}");
    let elsewhere = place.replace("/stdchk", "/elsewhere");
    let refused = manager_run(&pool, 0, &["--store", &elsewhere]);
    assert!(refused.code != 0 && refused.stderr.contains("was being moved into"), "{refused:?}");
    // Killed when all is in etcd, and nobody knows.
    gate.lose(u64::MAX);
    pool.place.clone_from(&place);
    pool.start_manager(0);
    wait_until("the state is in etcd", || pool.etcd.record(b"\0pool").is_some());
    pool.kill(0);
    assert!(folder.join("store.redb").exists());
    gate.lose(0);
    pool.start_manager(0);
    pool.await_leader();
    pool.await_benefactors(3);
    assert!(!folder.join("store.redb").exists());
    assert!(pool.get("app/file") == content(1, 0));
    assert_eq!(pool.put("app/later", b"later").code, 0);
}

#[test]
fn up_starts_the_manager_with_the_store_into_which_somebody_moved_the_state_by_hand() {
    let machines = Machines::start(1);
    let members = [[2379, 2380].map(|port| format!("10.77.0.1:{port}"))];
    let arguments = etcd_arguments(0, &members, &machines.path(1, "etcd"));
    machines.begin_as(1, "etcd", machines.program(1, &etcd(), &arguments));
    let (address, place) = (machines.address(1), "etcd://10.77.0.1:2379/stdchk");
    machines.ok(1, &["pool", "init", "--listen", &address]);
    machines.ok(1, &["mkdir", "app"]);
    machines.ok(1, &["down"]);
    let folder = machines.path(1, "pool/manager");
    let mut by_hand =
        machines.command(1, &["manager", "run", folder.to_str().unwrap(), "--listen", &address]);
    let mut by_hand = by_hand.args(["--store", place]).spawn().unwrap();
    let keys = machines.path(1, "pool/keys");
    let at = ["--manager", &address, "--keys", keys.to_str().unwrap()];
    wait_until("it leads", || machines.run(1, &[&at[..], &["mkdir", "later"]].concat()).code == 0);
    by_hand.kill().unwrap();
    by_hand.wait().unwrap();
    let up = machines.ok(1, &["up"]);
    assert!(up.stderr.contains("was moved into") && up.stderr.contains(place), "{up:?}");
    let listed = machines.ok(1, &["ls"]).text();
    assert!(listed.contains("app") && listed.contains("later"), "{listed}");
    assert_eq!(machines.ok(1, &["status", "--json"]).json()["managers"].as_array().unwrap().len(), 1);
    // Nothing of the pool is lost, so nothing is made anew.
    machines.ok(1, &["down"]);
    let refused = machines.run(1, &["manager", "recover"]);
    assert!(refused.code == 2 && refused.stderr.contains(place), "{refused:?}");
    machines.ok(1, &["up"]);
    machines.ok(1, &["down"]);
}
