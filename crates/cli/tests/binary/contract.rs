//! The contract: shapes of JSON, exit codes, help, and what is refused with which words.

use std::io::Read;
use std::process::{Command, Stdio};

use serde_json::Value;

use stdchk_tests::{Pool, command, outcome, random_bytes, wait_until};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_status_has_the_keys_that_scripts_rely_on() {
    let pool = Pool::up(3, &[]);
    let status = pool.status();
    assert_eq!(status["health"], "healthy");
    assert_eq!(status["manager"]["state"], "online");
    assert_eq!(status["manager"]["pid"], pool.pids().iter().find(|(role, _)| role == "manager").unwrap().1);
    let benefactors = status["benefactors"].as_array().unwrap();
    assert_eq!(benefactors.len(), 3);
    for benefactor in benefactors {
        for key in ["id", "pid", "address", "state", "donated_bytes", "used_bytes"] {
            assert!(keys(benefactor).contains(&key), "{key}");
        }
        assert_eq!(benefactor["state"], "online");
        assert_eq!(benefactor["donated_bytes"], 256 << 20);
    }
    for key in
        ["space", "savings", "chunks_at_risk", "chunks_lost", "repairs_pending", "repairs_done", "sessions"]
    {
        assert!(keys(&status).contains(&key), "{key}");
    }
    assert_eq!(
        keys(&status["savings"]),
        ["logical_bytes", "older_bytes", "older_versions", "ratio", "stored_bytes", "unique_bytes"]
    );
    assert!(pool.ok(&["status"]).contains("healthy"));
}

#[test]
fn savings_tell_what_was_written_what_is_distinct_and_what_is_stored() {
    let pool = Pool::up(2, &[]);
    let file = pool.file("x", &random_bytes(3 << 20, 1));
    let first = pool.json(&["put", &file, "app/x", "--json"]);
    assert_eq!((&first["bytes"], &first["files"][0]["version"]), (&Value::from(3 << 20), &Value::from(1)));
    let again = pool.json(&["put", &file, "app/x", "--json"]);
    assert_eq!((&again["stored_bytes"], &again["files"][0]["version"]), (&Value::from(0), &Value::from(2)));
    pool.wait_for_copies();
    let savings = &pool.status()["savings"];
    assert_eq!(savings["logical_bytes"], 6 << 20);
    assert_eq!((&savings["older_bytes"], &savings["older_versions"]), (&(3 << 20).into(), &1.into()));
    assert!(pool.ok(&["status"]).contains("older     3.00 MiB of it in 1 older version;"));
    assert_eq!(savings["unique_bytes"], 3 << 20);
    assert!(savings["stored_bytes"].as_u64().unwrap() >= 6 << 20);
}

#[test]
fn listings_have_their_shapes() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("x", b"content");
    pool.ok(&["put", &file, "app/"]);
    let listing = pool.json(&["ls", "app", "--json"]);
    assert_eq!(keys(&listing["entries"][0]), ["kind", "mode", "mtime", "name", "size", "version"]);
    assert_eq!((&listing["entries"][0]["name"], &listing["entries"][0]["size"]), (&"x".into(), &7.into()));
    let versions = pool.json(&["ls", "app/x", "--versions", "--json"]);
    assert_eq!(versions[0]["versions"][0]["state"], "closed");
    let stat = pool.json(&["stat", "app/x", "--json"]);
    assert_eq!(
        (&stat["kind"], &stat["size"], &stat["health"]["lost"]),
        (&"file".into(), &7.into(), &0.into())
    );
    let policy = pool.json(&["policy", "get", "app", "--json"]);
    assert_eq!((&policy["redundancy"], &policy["semantics"]), (&"replicate:2".into(), &"optimistic".into()));
    let usage = pool.json(&["du", "--json"]);
    assert_eq!((&usage["total"]["files"], &usage["entries"][0]["path"]), (&1.into(), &"app".into()));
    assert!(pool.json(&["verify", "--json"])["bad"].as_array().unwrap().is_empty());
    assert!(pool.ok(&["ls"]).contains("app/"));
}

#[test]
fn every_command_explains_itself() {
    let commands = [
        "up",
        "down",
        "status",
        "put",
        "get",
        "ls",
        "stat",
        "rm",
        "mv",
        "du",
        "diff",
        "latest",
        "restore",
        "policy",
        "verify",
        "forget",
        "gc",
        "run",
        "files",
        "mount",
        "manager",
        "benefactor",
        "pool",
        "completions",
    ];
    for name in commands {
        let help = outcome(command(&[name, "--help"]));
        assert_eq!(help.code, 0, "{name}");
        assert!(help.text().contains("Example:"), "{name}");
    }
    assert_eq!(outcome(command(&["--version"])).code, 0);
    assert_eq!(outcome(command(&["shred"])).code, 2);
    assert_eq!(outcome(command(&["get"])).code, 2);
}

#[test]
fn what_is_not_there_and_what_can_not_be_reached_have_their_own_codes() {
    let pool = Pool::up(1, &[]);
    for arguments in [["get", "app/x"], ["ls", "app"], ["stat", "app/x"], ["rm", "app/x"], ["latest", "app"]]
    {
        pool.fails(&arguments, 4, &["app"]);
    }
    let file = pool.file("x", b"content");
    pool.ok(&["put", &file, "app/x"]);
    pool.fails(&["get", "app/x@9"], 4, &["app/x@9"]);
    pool.fails(&["put", "/no/such/file", "app/"], 4, &["/no/such/file"]);
    pool.fails(&["restore", "app", "--set", "3", "-o", "r"], 4, &["timestep 3"]);
    let elsewhere = ["status", "--manager", "unix:/no/socket", "--json"];
    let status = pool.fails(&elsewhere, 5, &["unix:/no/socket"]);
    assert_eq!(status.json()["health"], "down");
    pool.fails(&["ls", "--data", "/no/pool/here"], 4, &["/no/pool/here", "stdchk up"]);
}

#[test]
fn names_that_can_not_be_are_usage_errors() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("x", b"content");
    let long = format!("app/{}", "n".repeat(256));
    for bad in ["app/../x", "app/./x", "..", long.as_str()] {
        pool.fails(&["put", &file, bad], 2, &["can't be used"]);
        pool.fails(&["get", bad], 2, &["can't be used"]);
    }
    pool.fails(&["put", &file, "app/x@3"], 2, &["version"]);
    pool.fails(&["put", &file, "/"], 2, &["APP/"]);
    pool.fails(&["put", "-", "app/"], 2, &["no name"]);
    pool.fails(&["rm", "/"], 2, &["root"]);
    pool.fails(&["policy", "set", "app", "redundancy=replicate:99"], 2, &["1 to 16"]);
    pool.fails(&["policy", "set", "app", "naming=restart.{colour}"], 2, &["colour"]);
    pool.fails(&["ls", "--window", "1KiB"], 2, &["window"]);
    assert!(pool.ok(&["ls"]).is_empty(), "nothing of this made a folder");
}

#[test]
fn a_part_that_fails_does_not_stop_the_others() {
    let pool = Pool::up(1, &[]);
    let good = pool.file("good", b"content");
    pool.fails(&["put", &good, "/no/such/file", "app/"], 3, &["/no/such/file"]);
    assert_eq!(pool.ok(&["get", "app/good", "-o", "-"]), "content");
    pool.fails(&["rm", "app/good", "app/bad"], 3, &["app/bad"]);
    pool.fails(&["stat", "app/good"], 4, &["app/good"]);
}

#[test]
fn a_pool_that_is_full_says_so_and_keeps_no_trace() {
    let pool = Pool::up(1, &["--donate", "64MiB"]);
    let file = pool.file("big", &random_bytes(80 << 20, 2));
    pool.fails(&["put", &file, "app/big"], 6, &["app/big"]);
    assert!(pool.ok(&["ls", "app"]).is_empty());
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("x", &random_bytes(8 << 20, 3));
    pool.ok(&["put", &file, "app/x"]);
    let mut get = pool.command(&["get", "app/x", "-o", "-"]);
    let mut child = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(141), &b""[..]));
}

#[test]
fn an_interrupted_put_leaves_nothing_and_an_interrupted_version_keeps_the_old_one() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("old", b"old");
    pool.ok(&["put", &file, "app/old"]);
    for name in ["app/new", "app/old"] {
        let mut put = pool.command(&["put", "-", name]);
        let mut child = put.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        wait_until("the session is open", || pool.status()["sessions"] != 0);
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let ended = child.wait_with_output().unwrap();
        drop(input);
        assert_eq!(ended.status.code(), Some(130));
        wait_until("its session has ended", || pool.status()["sessions"] == 0);
    }
    pool.fails(&["stat", "app/new"], 4, &[]);
    assert_eq!(pool.ok(&["get", "app/old", "-o", "-"]), "old");
}

#[test]
fn an_interrupted_put_of_a_new_name_leaves_what_another_one_has_stored_there_meanwhile() {
    let pool = Pool::up(1, &[]);
    let mut put = pool.command(&["put", "-", "app/x"]);
    let mut child = put.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let input = child.stdin.take().unwrap();
    wait_until("the session is open", || pool.status()["sessions"] != 0);
    pool.put(b"of another one", "app/x");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(ended.status.code(), Some(130));
    assert_eq!(pool.get("app/x"), b"of another one");
}
