//! The pool's processes: started once, found again, mended after kills, and gone after `down`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use rustix::process::geteuid;
use stdchk_tests::{Pool, command, is_running, outcome, wait_until};

use crate::mistakes::{as_nobody, home_of_nobody};

fn is_mounted(pool: &Pool) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = format!(" {} ", pool.mount_point().display());
    table.lines().any(|line| line.contains(&point))
}

#[test]
fn a_second_up_starts_nothing_and_down_leaves_nothing() {
    let pool = Pool::mounted(2);
    let before = pool.pids();
    assert_eq!(before.len(), 4);
    pool.ok(&["up"]);
    assert_eq!(pool.pids(), before);
    fs::create_dir(pool.mount_point().join("app")).unwrap();
    fs::write(pool.mount_point().join("app/x"), "content").unwrap();
    pool.ok(&["down"]);
    assert!(pool.pids().is_empty());
    assert!(before.iter().all(|(_, pid)| !is_running(*pid)));
    assert!(!is_mounted(&pool));
    assert!(pool.ok(&["down"]).contains("was not running"));
    pool.fails(&["ls"], 5, &["stdchk up"]);
    pool.ok(&["up"]);
    assert_eq!(fs::read(pool.mount_point().join("app/x")).unwrap(), b"content");
}

#[test]
fn the_folder_of_a_mount_is_removed_by_down_or_by_whoever_unmounts() {
    let pool = Pool::mounted(1);
    let point = pool.mount_point();
    assert!(pool.ok(&["down"]).contains("--remove-mountpoint"));
    assert!(point.is_dir());
    assert!(!pool.ok(&["down", "--remove-mountpoint"]).contains("--remove-mountpoint"));
    assert!(!point.exists());
    pool.ok(&["down", "--remove-mountpoint"]);
    pool.ok(&["up"]);
    assert!(is_mounted(&pool));
    let unmount = match geteuid().is_root() {
        true => Command::new("umount").arg(&point).status(),
        false => Command::new("fusermount3").arg("-u").arg(&point).status(),
    };
    assert!(unmount.unwrap().success());
    wait_until("the folder can be removed", || fs::remove_dir(&point).is_ok());
}

#[test]
fn up_starts_exactly_what_was_killed() {
    let pool = Pool::mounted(2);
    pool.run_with(&["put", "-", "app/x"], b"content");
    for killed in [&["manager"][..], &["benefactor-1"], &["mount"], &["mount", "manager", "benefactor-0"]] {
        let before = pool.pids();
        killed.iter().for_each(|role| pool.kill(role));
        pool.ok(&["up"]);
        let after = pool.pids();
        for ((role, old), (_, new)) in before.iter().zip(&after) {
            assert_eq!(old != new, killed.contains(&role.as_str()), "{role}, killed: {killed:?}");
        }
        assert_eq!(fs::read(pool.mount_point().join("app/x")).unwrap(), b"content", "killed: {killed:?}");
    }
}

#[test]
fn down_takes_off_the_mount_of_a_killed_process_and_spares_a_process_that_took_the_number() {
    let pool = Pool::mounted(1);
    pool.kill("mount");
    assert!(is_mounted(&pool), "the kernel keeps the dead mount");
    pool.kill("benefactor-0");
    let mut stranger = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let run_file = pool.data().join("run/benefactor-0.pid");
    let target = fs::read_link(&run_file).unwrap();
    let (_, rest) = target.to_str().unwrap().split_once(' ').unwrap();
    fs::remove_file(&run_file).unwrap();
    symlink(format!("{} {rest}", stranger.id()), &run_file).unwrap();
    pool.ok(&["down"]);
    assert!(!is_mounted(&pool));
    assert!(is_running(stranger.id()));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[test]
fn a_pool_grows_and_does_not_shrink() {
    let pool = Pool::up(2, &[]);
    pool.ok(&["up", "--benefactors", "3"]);
    assert_eq!(pool.status()["benefactors"].as_array().unwrap().len(), 3);
    pool.fails(&["up", "--benefactors", "2"], 2, &["the pool has 3"]);
}

#[test]
fn sizes_that_cannot_hold_are_refused_and_those_that_hold_are_told() {
    let pool = Pool::up(2, &[]);
    pool.fails(&["up", "--donate", "3MiB"], 2, &["3MiB", "256 MiB", "stdchk down"]);
    pool.fails(&["up", "--floor", "3MiB"], 2, &["3MiB", "stdchk down"]);
    assert!(pool.ok(&["up", "--donate", "256MiB"]).contains("each takes up to 256 MiB"));
    let donated = |status: serde_json::Value| status["space"]["donated_bytes"].as_u64().unwrap();
    assert_eq!(donated(pool.status()), 512 << 20);
    pool.ok(&["down"]);
    pool.fails(&["up", "--donate", "4000TiB"], 2, &["4000TiB", "the disk has", "give at most"]);
    pool.ok(&["up", "--donate", "128MiB"]);
    assert_eq!(donated(pool.status()), 256 << 20);
    let other = pool.path("other");
    let new = ["up", "--data", other.to_str().unwrap(), "--donate", "4000TiB"];
    pool.fails(&new, 2, &["4000TiB", "the disk has"]);
}

#[test]
fn a_second_manager_and_a_second_benefactor_on_the_same_store_are_refused() {
    let pool = Pool::up(1, &[]);
    let manager = pool.data().join("manager");
    let pid = pool.pids().into_iter().find(|(role, _)| role == "manager").unwrap().1.to_string();
    let second = ["manager", "run", manager.to_str().unwrap()];
    pool.fails(&second, 1, &["in use", &pid]);
    let benefactor = pool.data().join("benefactors/0");
    pool.fails(
        &["benefactor", "run", benefactor.to_str().unwrap(), "--donate", "64MiB", "--floor", "0"],
        1,
        &["in use"],
    );
    pool.fails(
        &["benefactor", "run", manager.to_str().unwrap(), "--donate", "64MiB", "--floor", "0"],
        1,
        &["manager"],
    );
}

#[test]
fn a_manager_that_lost_its_data_begins_no_new_pool_beside_the_old_benefactors() {
    let pool = Pool::up(2, &[]);
    let file = pool.file("x", b"content");
    pool.ok(&["put", &file, "app/x"]);
    pool.ok(&["down"]);
    let (manager, backup) = (pool.data().join("manager"), pool.path("backup"));
    fs::rename(&manager, &backup).unwrap();
    pool.fails(&["up"], 7, &["manager", "backup"]);
    assert!(!manager.exists());
    fs::rename(&backup, &manager).unwrap();
    // A benefactor whose disk was replaced is none that it could miss.
    fs::remove_dir_all(pool.data().join("benefactors/0")).unwrap();
    pool.ok(&["up"]);
    assert!(pool.ok(&["ls", "app"]).contains('x'));
}

#[test]
fn up_does_without_a_benefactor_that_cannot_be_started_and_names_it() {
    let pool = Pool::mounted(3);
    pool.run_with(&["put", "-", "app/x"], b"content");
    wait_until("the file has its copies", || pool.status()["chunks_at_risk"] == 0);
    // A mark that can't be read, and a lock that can't be opened.
    for spoilt in ["STDCHK", "LOCK"] {
        pool.ok(&["down"]);
        let (file, kept) = (pool.data().join("benefactors/1").join(spoilt), pool.path("kept"));
        fs::rename(&file, &kept).unwrap();
        fs::create_dir(&file).unwrap();
        let up = pool.run(&["up"]);
        assert!(up.code == 1 && up.stderr.contains("benefactor-1: ") && up.stderr.contains(spoilt), "{up:?}");
        assert!(
            !up.stderr.contains("benefactor-0")
                && up.text().contains("WITHOUT 1 benefactor: 4 processes started"),
            "{up:?}"
        );
        assert_eq!(fs::read(pool.mount_point().join("app/x")).unwrap(), b"content");
        fs::remove_dir(&file).unwrap();
        fs::rename(&kept, &file).unwrap();
        assert!(pool.ok(&["up"]).contains("1 processes started, 4 were running"));
    }
}

#[test]
fn a_manager_that_lost_its_data_begins_no_new_pool_where_no_benefactor_can_say_so() {
    let pool = Pool::up(1, &[]);
    pool.ok(&["down"]);
    fs::remove_dir_all(pool.data().join("manager")).unwrap();
    let mark = pool.data().join("benefactors/0/STDCHK");
    fs::remove_file(&mark).unwrap();
    fs::create_dir(&mark).unwrap();
    pool.fails(&["up"], 1, &["benefactors/0", "permissions"]);
    assert!(!pool.data().join("manager").exists());
}

#[test]
fn up_mounts_the_pool_while_a_benefactor_stands_still() {
    let pool = Pool::mounted(3);
    let signal = |signal: &str| {
        let pid = pool.pids().into_iter().find(|(role, _)| role == "benefactor-1").unwrap().1.to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    };
    pool.kill("manager");
    pool.kill("mount");
    signal("-STOP");
    let mut up = pool.command(&["up"]).stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the pool is mounted", || fs::create_dir(pool.mount_point().join("new")).is_ok());
    assert_eq!(up.try_wait().unwrap(), None, "it waits for the last one");
    signal("-CONT");
    assert!(up.wait_with_output().unwrap().status.success());
}

#[test]
fn foreign_folders_are_refused_and_left_as_they_are() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("home/thesis.tex", b"text");
    let folder = pool.path("home");
    let folder = folder.to_str().unwrap();
    for arguments in [
        &["up", "--data", folder][..],
        &["manager", "run", folder],
        &["benefactor", "run", folder, "--donate", "64MiB", "--floor", "0"],
        &["mount", folder],
        &["up", "--mount", folder],
    ] {
        let outcome = pool.run(arguments);
        assert!([1, 2].contains(&outcome.code), "{arguments:?}: {outcome:?}");
        assert!(outcome.stderr.contains(folder), "{arguments:?}: {outcome:?}");
    }
    assert_eq!(fs::read(file).unwrap(), b"text");
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
}

#[test]
fn a_pool_can_be_made_of_roles_in_the_foreground() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name).to_str().unwrap().to_owned();
    let (manager, benefactor) = (path("manager"), path("benefactor"));
    let address = format!("unix:{manager}/socket");
    let spawn = |arguments: &[&str]| command(arguments).stderr(Stdio::null()).spawn().unwrap();
    let mut roles = vec![spawn(&["manager", "run", &manager])];
    let access = ["--manager", &address];
    let join = ["benefactor", "run", &benefactor, "--donate", "64MiB", "--floor", "1MiB", "--tier", "disk"];
    roles.push(spawn(&[&join[..], &access].concat()));
    let status = || outcome(command(&[&["status", "--json"], &access[..]].concat()));
    wait_until("the pool is healthy", || status().code == 0 && status().json()["health"] == "healthy");
    for mut role in roles.into_iter().rev() {
        assert!(Command::new("kill").arg(role.id().to_string()).status().unwrap().success());
        assert!(role.wait().unwrap().success(), "SIGTERM is an orderly end");
    }
    assert_eq!(status().code, 5);
}

#[test]
fn a_local_pool_may_lie_at_a_long_path() {
    let work = tempfile::tempdir().unwrap();
    // No address of a socket has room for it.
    let data = work.path().join("x".repeat(120));
    let up =
        ["up", "--benefactors", "1", "--donate", "64MiB", "--floor", "0", "--data", data.to_str().unwrap()];
    let on_it = |arguments: &[&str]| outcome(command(&[arguments, &up[7..]].concat()));
    for _ in 0..2 {
        let started = outcome(command(&up));
        assert_eq!(started.code, 0, "{started:?}");
        let address = on_it(&["status", "--json"]).json()["manager"]["address"].as_str().unwrap().to_owned();
        assert_eq!(address, format!("unix:{}/run/manager.sock", data.display()));
        assert_eq!(on_it(&["down"]).code, 0);
        assert!(!fs::exists(data.join("run/manager.sock")).unwrap(), "nothing of it stays");
    }
}

#[test]
fn processes_of_another_user_are_not_let_in() {
    let home = home_of_nobody();
    let data = home.path().join("pool").to_str().unwrap().to_owned();
    let up = ["up", "--benefactors", "1", "--donate", "64MiB", "--floor", "0", "--data", &data];
    assert_eq!(outcome(command(&up)).code, 0);
    // Somebody has opened the folders and the socket to all.
    let socket = format!("{data}/run/manager.sock");
    for path in [&data, &format!("{data}/run"), &socket] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let address = format!("unix:{socket}");
    let ask = ["status", "--manager", &address];
    assert_eq!(outcome(command(&ask)).code, 0);
    let other = outcome(as_nobody(home.path(), &ask));
    match geteuid().is_root() {
        true => assert!(other.code == 5 && other.stderr.contains("user"), "{other:?}"),
        false => assert_eq!(other.code, 0, "it is the same user"),
    }
    let down = ["down", "--data", &data];
    let refused = outcome(command(&down));
    assert!(refused.code == 1 && refused.stderr.contains("chmod"), "{refused:?}");
    for path in [&data, &format!("{data}/run")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
    }
    assert_eq!(outcome(command(&down)).code, 0);
}

#[test]
fn roles_take_all_descriptors_that_they_may_have() {
    let pool = Pool::mounted(1);
    pool.ok(&["down"]);
    let up = pool.command(&["up"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -Sn 256 && exec \"$0\" \"$@\""]).arg(up.get_program()).args(up.get_args());
    for (name, value) in up.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    assert_eq!(outcome(limited).code, 0);
    for (role, pid) in pool.pids() {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[3], words[4], "{role}: {line}");
        assert_ne!(words[3], "256", "this machine allows no more");
    }
}
