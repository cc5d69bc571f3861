//! The mistakes that are made most: each is told with the object, what is wrong with it, and the next step (I10).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;
use stdchk_tests::{Outcome, Pool, Setup, binary, command, outcome, random_bytes};
use tempfile::TempDir;

/// Fails unless the command ended like this, and its last complaint has all these words and a next step.
fn told(outcome: &Outcome, code: i32, words: &[&str]) {
    assert_eq!(outcome.code, code, "{outcome:?}");
    for word in words {
        assert!(outcome.stderr.contains(word), "`{word}` is missing in: {}", outcome.stderr);
    }
    let complaint = outcome.stderr.lines().rfind(|line| line.starts_with("stdchk: ")).unwrap();
    let (what, next) = complaint.split_once("; ").unwrap();
    assert!(what.len() > 10 && next.len() > 10, "{complaint}");
    assert!(!outcome.stderr.contains("os error"), "{}", outcome.stderr);
}

fn in_pool(pool: &Pool, arguments: &[&str], code: i32, words: &[&str]) {
    told(&pool.run(arguments), code, words);
}

#[test]
fn a_pool_that_is_not_there_not_running_or_elsewhere() {
    let pool = Pool::up(1, &[]);
    in_pool(&pool, &["ls", "--data", "/no/pool"], 4, &["/no/pool", "no local pool", "stdchk up"]);
    in_pool(&pool, &["ls", "--manager", "127.0.0.1:1"], 8, &["127.0.0.1:1", "keys", "join the pool"]);
    in_pool(&pool, &["ls", "--manager", "unix:/no/socket"], 5, &["unix:/no/socket", "check the address"]);
    for bad in ["somewhere", "127.0.0.1", "host:http"] {
        in_pool(&pool, &["ls", "--manager", bad], 2, &[bad, "HOST:PORT", "127.0.0.1:7400"]);
    }
    in_pool(&pool, &["ls", "--config", "/no/config"], 4, &["/no/config", "check the path"]);
    in_pool(&pool, &["ls", "--keys", "/no/keys"], 1, &["/no/keys", "No such file"]);
    pool.ok(&["down"]);
    in_pool(&pool, &["ls"], 5, &["not running", "stdchk up --data"]);
    in_pool(&pool, &["status"], 5, &["not running", "stdchk up --data"]);
}

#[test]
fn up_and_down_leave_the_local_pool_alone_if_another_one_is_named() {
    let pool = Pool::up(1, &[]);
    let before = pool.pids();
    for action in ["up", "down"] {
        in_pool(&pool, &[action, "--manager", "127.0.0.1:1"], 2, &["127.0.0.1:1", "--data DIR"]);
        let mut named = pool.command(&[action]);
        named.env_remove("STDCHK_DATA").env("STDCHK_MANAGER", "127.0.0.1:1");
        told(&outcome(named), 2, &["STDCHK_MANAGER"]);
    }
    assert_eq!(pool.pids(), before);
}

#[test]
fn a_folder_that_can_not_be_mounted_on_is_refused_and_not_kept() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("full/thesis.tex", b"text");
    let full = pool.path("full");
    let full = full.to_str().unwrap();
    in_pool(&pool, &["up", "--mount", full], 2, &[full, "holds files", "empty"]);
    in_pool(&pool, &["up", "--mount", &file], 2, &[&file, "not a folder", "empty"]);
    in_pool(&pool, &["up", "--mount", "/proc/pool"], 1, &["/proc/pool", "can't be made", "~/pool"]);
    in_pool(&pool, &["mount", full], 2, &[full, "holds files"]);
    assert_eq!(pool.status()["mount"], serde_json::Value::Null);
    pool.ok(&["up"]);
}

#[test]
fn space_that_is_no_space_is_refused_and_not_kept() {
    let pool = Pool::up(1, &[]);
    let record = fs::read(pool.data().join("pool.json")).unwrap();
    for (arguments, words) in [
        (["--donate", "1KiB"], ["1KiB", "at least 64KiB"]),
        (["--donate", "lots"], ["lots", "64MiB"]),
        (["--floor", "8000000TiB"], ["8000000TiB", "the whole disk"]),
    ] {
        in_pool(&pool, &[&["up"], &arguments[..]].concat(), 2, &words);
    }
    assert_eq!(fs::read(pool.data().join("pool.json")).unwrap(), record);
    let folder = pool.path("b");
    let donate = ["benefactor", "run", folder.to_str().unwrap(), "--donate", "1KiB"];
    in_pool(&pool, &donate, 2, &["1KiB", "at least 64KiB"]);
    let big = pool.file("big", &random_bytes(300 << 20, 1));
    in_pool(&pool, &["put", &big, "app/big"], 6, &["app/big", "no space", "256 MiB", "remove files"]);
}

#[test]
fn names_that_are_not_there() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("x", b"content");
    pool.ok(&["put", &file, "app/x"]);
    for arguments in
        [["get", "app/y"], ["ls", "nothing"], ["rm", "app/y"], ["du", "nothing"], ["latest", "nothing"]]
    {
        in_pool(&pool, &arguments, 4, &[arguments[1], "no such file or folder in the pool", "stdchk ls"]);
    }
    for action in ["get", "stat", "rm", "diff"] {
        in_pool(
            &pool,
            &[action, "app/x@7"],
            4,
            &["app/x@7", "no such version", "stdchk ls app/x --versions"],
        );
    }
    in_pool(&pool, &["get", "app/x", "-o", "no/such/x"], 4, &["no/such/x", "mkdir -p no/such"]);
    in_pool(&pool, &["get", "app"], 2, &["app", "it is a folder", "stdchk ls"]);
    in_pool(&pool, &["put", "/no/such/file", "app/"], 4, &["/no/such/file", "check the path"]);
    in_pool(&pool, &["put", &file], 2, &[&file, "APP/"]);
}

#[test]
fn no_complete_timestep_for_latest_and_restore() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("sim.N0.T7", b"content");
    pool.ok(&["policy", "set", "sim", "ranks=2"]);
    pool.ok(&["put", &file, "sim/"]);
    for arguments in [&["latest", "sim"][..], &["restore", "sim", "-o", "r"]] {
        in_pool(
            &pool,
            arguments,
            4,
            &["timestep 7", "rank 1", "stdchk ls sim --sets", "stdchk policy get sim"],
        );
    }
    in_pool(&pool, &["restore", "sim", "--set", "8", "-o", "r"], 4, &["timestep 8"]);
}

#[test]
fn values_of_a_policy_that_can_not_be() {
    let pool = Pool::up(1, &[]);
    for (pair, word) in [
        ("colour=red", "redundancy, semantics"),
        ("redundancy=replicate:99", "1 to 16"),
        ("semantics=eager", "`optimistic`"),
        ("cutter=scissors", "fsch:1MiB"),
        ("window=wide", "MiB"),
        ("naming=r.{colour}", "{step}"),
        ("redundancy", "key=value"),
    ] {
        in_pool(&pool, &["policy", "set", "app", pair], 2, &[pair, word]);
    }
}

#[test]
fn a_collection_that_comes_too_early_says_when_it_may() {
    let pool = Pool::up(1, &[]);
    in_pool(&pool, &["gc"], 5, &["started a short while ago", "collect again in"]);
}

#[test]
fn an_address_that_is_taken_or_is_none() {
    let pool = Pool::up(1, &[]);
    let address = pool.status()["manager"]["address"].as_str().unwrap().to_owned();
    let folder = pool.path("manager");
    let manager = ["manager", "run", folder.to_str().unwrap(), "--listen"];
    in_pool(&pool, &[&manager[..], &[&address]].concat(), 1, &[&address, "in use", "listen elsewhere"]);
    in_pool(&pool, &[&manager[..], &["7400"]].concat(), 2, &["7400", "HOST:PORT"]);
}

/// The command as a user without rights, in a folder of their own: nobody if this is root, else this user.
pub(crate) fn as_nobody(home: &Path, arguments: &[&str]) -> Command {
    let mut nobody = match geteuid().is_root() {
        true => Command::new("setpriv"),
        false => Command::new("env"),
    };
    if geteuid().is_root() {
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    }
    nobody
        .arg(home.join("stdchk"))
        .args(arguments)
        .env_clear()
        .env("HOME", home.join("home"))
        .env("PATH", std::env::var("PATH").unwrap());
    nobody.env("STDCHK_DATA", home.join("home/pool")).current_dir("/");
    nobody
}

/// A folder that all may look into, with the command in it and a folder `home` that belongs to the user of [`as_nobody`].
pub(crate) fn home_of_nobody() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(binary(), home.path().join("stdchk")).unwrap();
    let theirs = home.path().join("home");
    fs::create_dir(&theirs).unwrap();
    if geteuid().is_root() {
        std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
    }
    home
}

#[test]
fn a_user_without_rights_is_told_what_is_closed_and_what_to_choose() {
    let home = home_of_nobody();
    let closed = home.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    let closed = closed.to_str().unwrap();
    let below = format!("{closed}/pool");
    let up = ["up", "--benefactors", "1", "--donate", "64MiB", "--floor", "1MiB"];
    let run = |more: &[&str]| outcome(as_nobody(home.path(), &[&up[..], more].concat()));
    told(&run(&["--data", &below]), 1, &[&below, "Permission denied", "permissions"]);
    told(&run(&["--mount", &below]), 1, &[&below, "Permission denied", "~/pool"]);
    let refused = run(&["--mount", closed]);
    told(
        &refused,
        1,
        &[closed, "Permission denied", "mount.log", "stdchk down", "an empty folder of your own"],
    );
    assert_eq!(outcome(as_nobody(home.path(), &["down"])).code, 0);
}

#[test]
fn without_the_device_of_fuse_it_is_named() {
    let pool = Pool::up(1, &[]);
    let point = pool.path("point");
    let mut hidden = Command::new("unshare");
    // A `/dev` of its own without anything in it: the child processes see it, and nobody else.
    if !geteuid().is_root() {
        hidden.args(["--user", "--map-root-user"]);
    }
    hidden.args(["--mount", "sh", "-c", "mount -t tmpfs none /dev && : > /dev/null && exec \"$@\"", "sh"]);
    hidden.arg(binary()).arg("mount").arg(&point).env("STDCHK_DATA", pool.data());
    let hidden = outcome(hidden);
    assert_eq!(hidden.code, 1, "{hidden:?}");
    for word in
        ["FUSE isn't available", "/dev/fuse is missing", "modprobe fuse", "give the container the device"]
    {
        assert!(hidden.stderr.contains(word), "{hidden:?}");
    }
}

#[test]
fn bash_completes_commands_and_flags() {
    let script = r#"
        source <("$0" completions bash)
        complete() { COMP_WORDS=(stdchk "$@"); COMP_CWORD=$#; _stdchk stdchk "${!#}" x; echo "${COMPREPLY[*]}"; }
        complete lat; complete restore --ou; complete ""
    "#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).arg(binary());
    let completed = outcome(bash);
    assert_eq!(completed.code, 0, "{completed:?}");
    let text = completed.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["latest", "--output"], "{completed:?}");
    let commands: Vec<&str> = lines[2].split(' ').collect();
    assert!(
        ["up", "put", "restore", "completions"].iter().all(|name| commands.contains(name)),
        "{commands:?}"
    );
    for shell in ["zsh", "fish"] {
        let script = outcome(command(&["completions", shell])).text();
        assert!(["restore", "latest", "donate"].iter().all(|word| script.contains(word)), "{shell}");
    }
}

#[test]
fn devices_are_written_to_and_never_replaced() {
    let pool = Pool::up(1, &[]);
    let file = &pool.file("file", b"content");
    let pipe = pool.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    pool.ok(&["put", file, "app/"]);
    let reader = std::thread::spawn({
        let pipe = pipe.to_owned();
        move || fs::read(pipe).unwrap()
    });
    pool.ok(&["get", "app/file", "-o", pipe]);
    assert_eq!(reader.join().unwrap(), b"content");
    in_pool(&pool, &["pack", file, "-o", pipe], 2, &["pipe", "no regular file"]);
    in_pool(&pool, &["pack", file, "-o", "-"], 2, &["standard output"]);
    in_pool(&pool, &["pack", file, "-o", "/"], 2, &["it is a folder"]);
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&fs::metadata(pipe).unwrap().file_type()));
}

#[test]
fn a_path_of_the_mount_is_told_as_the_pool_names_it() {
    let pool = Setup::of(1).up();
    pool.put(b"content", "app/x");
    let seen = pool.at("app/x");
    let seen = seen.to_str().unwrap();
    for command in [&["get", seen, "-o", "-"][..], &["stat", seen], &["latest", seen]] {
        pool.fails(command, 4, &["`app/x`", "leave out where the pool is mounted"]);
    }
}

#[test]
fn a_path_through_a_file_names_the_file() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("x", b"content");
    pool.ok(&["put", &file, "app/x"]);
    let said = pool.run(&["ls", "app/x/y"]).stderr;
    assert!(said.contains("`app/x` is not a folder") && !said.contains("inode"), "{said}");
}

#[test]
fn what_is_silent_or_empty_says_why() {
    let pool = Pool::up(1, &[]);
    assert!(pool.run(&["policy", "set", "new", "ranks=4"]).stderr.contains("created folder new"));
    assert!(pool.ok(&["verify", "new"]).contains("nothing to verify"));
    assert!(pool.run(&["ls", "new", "--sets"]).stderr.contains("no files"));
    in_pool(&pool, &["latest", "new"], 4, &["new", "no checkpoint sets", "--sets"]);
    let file = pool.file("restart.9.0", b"content");
    pool.ok(&["put", &file, "new/"]);
    let said = pool.run(&["ls", "new", "--sets"]).stderr;
    assert!(said.contains("restart.9.0") && said.contains("naming="), "{said}");
    let said = pool.run(&["policy", "set", "new", "naming=restart"]).stderr;
    assert!(said.contains("exactly that name") && !said.contains("created"), "{said}");
}

#[test]
fn numbers_and_benefactors_that_cannot_be_meant() {
    let pool = Pool::up(1, &[]);
    for (arguments, words) in [
        (&["up", "--benefactors", "0"][..], "from 1 to 64"),
        (&["restore", "app", "--set", "abc", "-o", "r"], "a timestep is a number"),
        (&["policy", "set", "app", "redundancy=replicate:0"], "give `replicate:N` with 1 to 16 copies"),
        (&["policy", "set", "app", "close=never"], "give close one of `durable`"),
    ] {
        let refused = pool.run(arguments);
        assert!(refused.code == 2 && refused.stderr.contains(words), "{refused:?}");
    }
    in_pool(&pool, &["forget", "b0"], 1, &["b0 is on-line", "stop its process"]);
    in_pool(&pool, &["forget", "b9"], 4, &["no benefactor b9", "stdchk status"]);
    let file = pool.file("file", b"");
    in_pool(&pool, &["ls", "--data", &file], 2, &["not a folder", "--data DIR"]);
}

#[test]
fn many_failures_alike_are_told_by_their_number() {
    let pool = Pool::up(1, &[]);
    let names: Vec<String> = (0..40).map(|number| format!("app/none{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let outcome = pool.run(&[&["rm"], &names[..]].concat());
    assert_eq!((outcome.code, outcome.stderr.lines().count()), (4, 11), "{outcome:?}");
    assert!(outcome.stderr.contains("30 more failed in the same way"), "{outcome:?}");
}
