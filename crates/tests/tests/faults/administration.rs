//! A pool as its administrator meets it: tokens for many hosts, fixed ports, logs that say what happened and don't grow without bound, mounts that
//! wait, and errors that name their cause.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stdchk_tests::{Machines, Pool, Setup, command, outcome, random_bytes, wait_until};

const MANAGER: usize = 1;
const MIB: usize = 1 << 20;

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Whether a line of a text has all of these words.
fn has_line(text: &str, words: &[&str]) -> bool {
    text.lines().any(|line| words.iter().all(|word| line.contains(word)))
}

#[test]
fn a_token_for_several_hosts_lets_so_many_join_and_one_that_was_interrupted_once_more() {
    let machines = Machines::start(5);
    let manager = machines.address(MANAGER);
    machines.ok(MANAGER, &["pool", "init", "--listen", &manager]);
    let token = machines.ok(MANAGER, &["pool", "token", "--for", "client", "--uses", "3"]).text();
    let join = |machine| machines.run(machine, &["pool", "join", &manager, "--token", token.trim()]);
    let members = || machines.ok(MANAGER, &["pool", "members", "--json"]).json().as_array().unwrap().len();
    assert_eq!(join(2).code, 0);
    // The manager has its word, and the host can't write its keys down.
    let in_the_way = machines.path(3, "pool").join("keys/certificate.pem");
    fs::create_dir_all(&in_the_way).unwrap();
    let interrupted = join(3);
    assert!(interrupted.code == 1 && interrupted.stderr.contains("certificate.pem"), "{interrupted:?}");
    assert_eq!(members(), 2);
    fs::remove_dir(&in_the_way).unwrap();
    let again = join(3);
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(members(), 2, "it is the same member");
    assert!(!machines.path(3, "pool").join("keys/joining").exists());
    machines.kill(MANAGER);
    machines.ok(MANAGER, &["up"]);
    assert_eq!(join(4).code, 0);
    let refused = join(5);
    assert!(refused.code == 1 && refused.stderr.contains("good for 3 hosts"), "{refused:?}");
    assert!(!refused.stderr.contains("try again"), "{refused:?}");
    machines.ok(3, &["status"]);
    assert_eq!(machines.run(MANAGER, &["pool", "token", "--uses", "0"]).code, 2);
}

#[test]
fn a_benefactor_keeps_its_port_and_others_reach_it_at_the_address_that_its_owner_says() {
    /// Passes connections to port 9401 on to port 7401.
    const GATEWAY: &str = "
import asyncio
async def carry(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
async def take(reader, writer):
    to = await asyncio.open_connection('127.0.0.1', 7401)
    await asyncio.gather(carry(reader, to[1]), carry(to[0], writer), return_exceptions=True)
async def main():
    async with await asyncio.start_server(take, '10.77.0.2', 9401) as server:
        await server.serve_forever()
asyncio.run(main())
";
    let machines = Machines::start(3);
    let manager = machines.address(MANAGER);
    machines.ok(MANAGER, &["pool", "init", "--listen", &manager]);
    machines.begin_as(2, "gateway", machines.program(2, Path::new("python3"), &["-c", GATEWAY]));
    let token = machines.token("benefactor");
    let join = ["benefactor", "join", &manager, "--token", &token, "--donate", "64MiB", "--floor", "1MiB"];
    let refused = machines.run(2, &[&join[..], &["--advertise", "10.77.0.2:9401"]].concat());
    assert!(refused.code == 2 && refused.stderr.contains("--listen"), "{refused:?}");
    // It listens where nobody else of the network comes.
    let serving = ["--listen", "127.0.0.1:7401", "--advertise", "10.77.0.2:9401", "--tier", "disk"];
    let labels = ["--label", "rack=3"];
    machines.ok(2, &[&join[..], &serving, &labels].concat());
    machines.ok(3, &["pool", "join", &manager, "--token", &machines.token("client")]);
    let content = random_bytes(3 * MIB, 1);
    let file = machines.path(3, "x");
    fs::write(&file, &content).unwrap();
    for round in 0..2 {
        let status = machines.ok(3, &["status", "--json"]).json();
        let own = &status["benefactors"][0];
        assert_eq!(own["address"], "10.77.0.2:9401", "{own}");
        assert_eq!(own["labels"]["rack"], "3", "{own}");
        let name = format!("app/x{round}");
        machines.ok(3, &["put", file.to_str().unwrap(), &name]);
        assert!(machines.ok(3, &["get", &name, "-o", "-"]).stdout == content);
        machines.ok(2, &["down"]);
        machines.ok(2, &["up"]);
    }
}

#[test]
fn the_managers_log_says_who_came_and_went_with_host_address_and_cause() {
    let machines = Machines::start(4);
    let manager = machines.address(MANAGER);
    let mut init = machines.command(MANAGER, &["pool", "init", "--listen", &manager]);
    init.env("STDCHK_BENEFACTOR_LEASE_MS", "2000").env("STDCHK_BENEFACTOR_LOST_MS", "5000");
    assert_eq!(outcome(init).code, 0);
    for machine in [2, 3] {
        let token = machines.token("benefactor");
        let join =
            ["benefactor", "join", &manager, "--token", &token, "--donate", "64MiB", "--floor", "1MiB"];
        machines.ok(machine, &[&join[..], &["--tier", "disk", "--load-limit", "0"]].concat());
    }
    let log = || text(&machines.path(MANAGER, "pool").join("log/manager.log"));
    let says = |words: &[&str]| has_line(&log(), words);
    assert!(says(&["this manager serves", &manager, "term=1"]), "{}", log());
    assert!(says(&["a host has joined", "machine2", "10.77.0.2:"]), "{}", log());
    assert!(says(&["a benefactor has registered", "b1", "machine3", "10.77.0.3:"]), "{}", log());
    machines.kill(2);
    wait_until("its silence is said", || says(&["a benefactor is silent", "b0", "machine2", "10.77.0.2:"]));
    wait_until("its loss is said", || says(&["a benefactor is lost", "b0", "machine2", "silent"]));
    machines.ok(2, &["up"]);
    wait_until("its return is said", || says(&["a benefactor is back", "b0", "machine2"]));
    let folder = machines.path(2, "pool").join("benefactors/0");
    machines.ok(2, &["benefactor", "drain", folder.to_str().unwrap()]);
    wait_until("its drain is said", || says(&["the owner of a benefactor", "b0", "Drain"]));
    let members = machines.ok(MANAGER, &["pool", "members", "--json"]).json();
    let is_it = |member: &&serde_json::Value| member["host"] == "machine3";
    let id = members.as_array().unwrap().iter().find(is_it).unwrap()["id"].as_str().unwrap().to_owned();
    machines.ok(MANAGER, &["pool", "revoke", &id]);
    assert!(says(&["are revoked", &id, "machine3"]), "{}", log());
    assert!(says(&["a benefactor is lost", "b1", "shut out"]), "{}", log());
    wait_until("its calls are said", || says(&["a caller is turned away", "10.77.0.3", "revoked"]));
    std::thread::sleep(Duration::from_secs(5));
    let lines = log().lines().filter(|line| line.contains("turned away")).count();
    assert!(lines <= 2, "it calls twice a second: {lines}\n{}", log());
    machines.ok(3, &["down"]);
    machines.ok(MANAGER, &["forget", "b1", "--force"]);
    assert!(says(&["taken out of the pool", "b1", "machine3", "forgotten by force"]), "{}", log());
    // A benefactor that loses the manager says so once, and when it is there again.
    let own = || text(&machines.path(2, "pool").join("log/benefactor-0.log"));
    let missed = || own().lines().filter(|line| line.contains("can't be informed")).count();
    let before = missed();
    machines.kill(MANAGER);
    std::thread::sleep(Duration::from_secs(12));
    let after = missed();
    machines.ok(MANAGER, &["up"]);
    wait_until("it says that the manager is there", || has_line(&own(), &["the manager is there again"]));
    assert!((1..=3).contains(&(after - before)), "{before} {after} {}", own());
    assert!(says(&["this manager serves", "term=2"]), "{}", log());
}

#[test]
fn a_log_is_set_aside_when_it_is_long_and_opened_anew_when_the_process_is_told() {
    let pool = Pool::up(1, &[]);
    let log = pool.data().join("log/manager.log");
    let moved = pool.path("moved.log");
    fs::rename(&log, &moved).unwrap();
    pool.process("manager").signal(Signal::HUP);
    wait_until("the log is opened anew", || text(&log).contains("opened anew"));
    assert!(text(&moved).contains("this manager serves"));
    // As if it had said so much.
    fs::OpenOptions::new().write(true).open(&log).unwrap().set_len((16 << 20) + 1).unwrap();
    let old = pool.data().join("log/manager.log.old");
    wait_until("the log is set aside", || {
        old.exists() && fs::metadata(&log).is_ok_and(|about| about.len() < 1 << 20)
    });
    pool.kill("benefactor-0");
    pool.ok(&["up"]);
    wait_until("it goes on in the new one", || text(&log).contains("a benefactor has registered"));
    let links = fs::read_dir(pool.data().join("log")).unwrap().count();
    assert_eq!(links, 3, "two of the manager and one of the benefactor");
}

#[test]
fn a_hard_mount_waits_for_its_manager_longer_than_others_do_and_keeps_that_over_restarts() {
    const PATIENCE_MS: u64 = 1_000;
    let pool = Setup::of(2).with("STDCHK_PATIENCE_MS", PATIENCE_MS).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.kill("manager");
    assert!(fs::write(pool.at("app/soft"), b"soft").is_err(), "it has waited for a second");
    pool.ok(&["up"]);
    let refused = pool.fails(&["up", "--hard"], 2, &["stdchk down"]);
    assert!(!refused.stderr.contains("WITHOUT"), "{refused:?}");
    pool.ok(&["down"]);
    pool.ok(&["up", "--hard"]);
    pool.ok(&["down"]);
    pool.ok(&["up"]);
    pool.kill("manager");
    std::thread::scope(|threads| {
        let begun = Instant::now();
        let written = threads.spawn(|| fs::write(pool.at("app/hard"), b"hard"));
        std::thread::sleep(Duration::from_millis(6 * PATIENCE_MS));
        assert!(!written.is_finished(), "it waits");
        pool.ok(&["up"]);
        written.join().unwrap().unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(6 * PATIENCE_MS));
    });
    assert_eq!(pool.get("app/hard"), b"hard");
    let log = pool.log("mount");
    assert!(has_line(&log, &["the manager gives no answer"]), "{log}");
    assert!(has_line(&log, &["the manager answers again"]), "{log}");
    pool.ok(&["down"]);
    pool.ok(&["up", "--hard=false"]);
    pool.kill("manager");
    assert!(fs::write(pool.at("app/soft"), b"soft").is_err());
}

#[test]
fn a_mount_by_hand_waits_for_a_manager_that_comes_later_and_says_so() {
    let machines = Machines::with_pool(1);
    let client = 3;
    machines.kill(MANAGER);
    let point = machines.path(client, "mnt");
    let mut mount = machines.command(client, &["mount", point.to_str().unwrap()]);
    mount.env("STDCHK_PATIENCE_MS", "1000");
    machines.begin_as(client, "mount", mount);
    let log = machines.path(client, "mount.log");
    let manager = machines.address(MANAGER);
    wait_until("it says what it waits for", || {
        has_line(&text(&log), &["the mount waits for the manager", &manager])
    });
    std::thread::sleep(Duration::from_secs(10));
    let lines = text(&log).lines().filter(|line| line.contains("waits for the manager")).count();
    assert!(lines <= 3, "{}", text(&log));
    machines.ok(MANAGER, &["up"]);
    wait_until("it is mounted", || text(&log).contains("the pool is mounted"));
}

#[test]
fn a_host_with_other_keys_and_one_at_the_address_of_another_pool_are_told_so() {
    let machines = Machines::with_pool(1);
    let (client, manager) = (3, machines.address(MANAGER));
    // Another pool, at the address of the first.
    let others = Machines::start(2);
    others.ok(MANAGER, &["pool", "init", "--listen", &manager]);
    others.ok(2, &["pool", "join", &manager, "--token", &others.token("client")]);
    let foreign = others.path(2, "pool").join("keys");
    let with_foreign = ["status", "--keys", foreign.to_str().unwrap()];
    let refused = machines.run(client, &with_foreign);
    assert!(refused.code == 8 && refused.stderr.contains("another pool"), "{refused:?}");
    assert!(!refused.stderr.contains("try again") && refused.stderr.contains(&manager), "{refused:?}");
    // The pool has a new authority; what runs here has the old keys.
    machines.ok(MANAGER, &["down"]);
    fs::remove_dir_all(machines.path(MANAGER, "pool").join("manager/authority")).unwrap();
    fs::remove_dir_all(machines.path(MANAGER, "pool").join("keys")).unwrap();
    machines.ok(MANAGER, &["up"]);
    let begun = Instant::now();
    for refused in [machines.run(client, &["status"]), machines.run(2, &["up"])] {
        assert!(refused.code == 8 && refused.stderr.contains("older authority"), "{refused:?}");
    }
    // A program reads the same.
    let told = machines.run(client, &["status", "--json"]);
    let status = told.json();
    assert_eq!(
        (told.code, &status["health"], &status["manager"]["state"]),
        (8, &"down".into(), &"refuses".into())
    );
    assert!(status["reasons"].to_string().contains("older authority"), "{status}");
    let point = machines.path(client, "mnt");
    let refused = machines.run(client, &["mount", point.to_str().unwrap()]);
    assert!(refused.code == 8 && refused.stderr.contains("older authority"), "{refused:?}");
    // So it is said where managers serve at several addresses, of which the others don't answer.
    let record = machines.path(2, "pool/pool.json");
    let one = format!("\"{manager}\"");
    let several = format!("\"{manager},10.77.0.2:7400\"");
    fs::write(&record, text(&record).replace(&one, &several)).unwrap();
    for what in ["up", "status"] {
        let refused = machines.run(2, &[what]);
        assert!(refused.code == 8 && refused.stderr.contains("older authority"), "{what}: {refused:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn down_ends_an_up_that_waits() {
    let machines = Machines::with_pool(1);
    let client = 3;
    machines.kill(MANAGER);
    let point = machines.path(client, "mnt");
    std::thread::scope(|threads| {
        let up = threads.spawn(|| machines.run(client, &["up", "--mount", point.to_str().unwrap()]));
        let log = machines.path(client, "pool").join("log/mount.log");
        wait_until("the mount waits", || text(&log).contains("waits for the manager"));
        let begun = Instant::now();
        let down = machines.ok(client, &["down"]);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?} {down:?}", begun.elapsed());
        let up = up.join().unwrap();
        assert!(up.code == 130 && up.stderr.contains("stdchk down"), "{up:?}");
    });
    assert_eq!(machines.processes(client).len(), 0);
    machines.ok(MANAGER, &["up"]);
    machines.ok(client, &["up"]);
}

#[test]
fn a_file_system_of_its_own_is_an_empty_folder_for_the_pool_and_for_a_spool() {
    let work = tempfile::tempdir().unwrap();
    let fresh = |name: &str| {
        let path = work.path().join(name);
        fs::create_dir_all(path.join("lost+found")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (data, manager, benefactor, spool) = (fresh("data"), fresh("m"), fresh("b"), fresh("spool"));
    let up = ["up", "--benefactors", "1", "--donate", "64MiB", "--floor", "0", "--data", &data];
    let up = outcome(command(&up));
    assert_eq!(up.code, 0, "{up:?}");
    let point = work.path().join("mnt");
    let mount = ["mount", point.to_str().unwrap(), "--spool", &spool, "--data", &data];
    let address = format!("unix:{manager}/socket");
    let roles: [&[&str]; 3] = [
        &["manager", "run", &manager],
        &["benefactor", "run", &benefactor, "--manager", &address, "--donate", "64MiB", "--floor", "0"],
        &mount,
    ];
    let mut running: Vec<_> = roles.map(|role| command(role).spawn().unwrap()).into();
    for folder in [&manager, &benefactor, &spool] {
        wait_until("the folder is taken", || Path::new(folder).join("STDCHK").exists());
        assert!(Path::new(folder).join("lost+found").is_dir());
    }
    for role in running.iter_mut().rev() {
        assert!(Command::new("kill").arg(role.id().to_string()).status().unwrap().success());
        role.wait().unwrap();
    }
    assert_eq!(outcome(command(&["down", "--data", &data])).code, 0);
}

/// The record of what a machine has of the pool.
fn record(machines: &Machines, machine: usize) -> serde_json::Value {
    serde_json::from_str(&text(&machines.path(machine, "pool/pool.json"))).unwrap()
}

#[test]
fn a_host_that_joins_again_keeps_what_was_set_before() {
    let machines = Machines::with_pool(2);
    let (host, manager) = (2, machines.address(MANAGER));
    let refused = machines.run(host, &["up", "--label", "rack=3"]);
    assert!(refused.code == 2 && refused.stderr.contains("--label"), "{refused:?}");
    machines.ok(host, &["down"]);
    let set =
        ["--donate", "128MiB", "--io-limit", "50MiB", "--hours", "mon-sun 00:00-24:00", "--label", "rack=3"];
    let serving = ["--benefactor-listen", "0.0.0.0:7401"];
    machines.ok(host, &[&["up"][..], &set, &serving].concat());
    let before = record(&machines, host);
    let join = |machine: usize, role: &str, more: &[&str]| {
        let token = machines.token(role);
        let how = if role == "client" { ["pool", "join"] } else { ["benefactor", "join"] };
        machines.run(machine, &[&how[..], &[manager.as_str(), "--token", token.as_str()], more].concat())
    };
    let key = machines.path(host, "pool/keys/key.pem");
    // With keys, while it runs, and in another role it doesn't join.
    assert!(join(host, "benefactor", &[]).stderr.contains("remove `keys/key.pem`"));
    fs::remove_file(&key).unwrap();
    let runs = join(host, "benefactor", &[]);
    assert!(runs.code == 2 && runs.stderr.contains("stdchk down"), "{runs:?}");
    machines.ok(host, &["down"]);
    let other = join(host, "client", &[]);
    assert!(other.code == 2 && other.stderr.contains("--for benefactor"), "{other:?}");
    let joined = join(host, "benefactor", &["--net-limit", "20MiB"]);
    assert_eq!(joined.code, 0, "{joined:?}");
    let mut wanted = before;
    wanted["terms"]["net_bytes_per_second"] = (20 << 20).into();
    assert_eq!(record(&machines, host), wanted);
    let status = machines.ok(MANAGER, &["status", "--json"]).json();
    let one = &status["benefactors"][0];
    assert_eq!((&one["address"], &one["labels"]["rack"]), (&"10.77.0.2:7401".into(), &"3".into()), "{one}");
    assert_eq!(status["benefactors"].as_array().unwrap().len(), 2, "it is the one that it was");
    // Terms that nobody set are not quoted.
    let runs = machines.run(3, &["up", "--floor", "2MiB"]);
    assert!(runs.code == 2 && runs.stderr.contains("a floor of 1.00 MiB"), "{runs:?}");
    machines.ok(MANAGER, &["up", "--benefactors", "1", "--floor", "0"]);
    let runs = machines.run(MANAGER, &["up", "--floor", "2MiB"]);
    assert!(runs.code == 2 && !runs.stderr.contains("``"), "{runs:?}");
}

#[test]
fn whoever_forgets_a_benefactor_is_told_how_its_host_is_shut_out_for_good() {
    let machines = Machines::with_pool(2);
    let members = machines.ok(MANAGER, &["pool", "members", "--json"]).json();
    let is_it = |member: &&serde_json::Value| member["host"] == "machine2";
    let id = members.as_array().unwrap().iter().find(is_it).unwrap()["id"].as_str().unwrap().to_owned();
    machines.ok(2, &["down"]);
    let mut told = String::new();
    wait_until("it is forgotten", || {
        let forgotten = machines.run(MANAGER, &["forget", "b0"]);
        told = forgotten.text();
        forgotten.code == 0
    });
    assert!(told.contains("machine2") && told.contains(&format!("stdchk pool revoke {id}")), "{told}");
    // It comes back, as it is said.
    machines.ok(2, &["up"]);
    machines.ok(MANAGER, &["pool", "revoke", &id]);
    let told = machines.ok(MANAGER, &["forget", "b0", "--force"]).text();
    assert!(!told.contains("revoke"), "{told}");
}
