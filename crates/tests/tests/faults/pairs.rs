//! Two things at once that each work alone: encryption and several users of one mount, states of files and users, a host that is shut out
//! while the manager's disk is full, a keeper of the manager's store that stands still and is shut out.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use rustix::process::{Signal, geteuid};
use stdchk_tests::{Machines, Mount, Outcome, Pool, binary, outcome, random_bytes, wait_until};

use crate::permissions::as_user;

const MIB: usize = 1 << 20;
const ALICE: u32 = 4001;
const BOB: u32 = 4002;

fn ok(outcome: &Outcome) {
    assert_eq!(outcome.code, 0, "{outcome:?}");
}

fn denied(outcome: &Outcome) {
    assert!(outcome.code != 0 && outcome.stderr.contains("Permission denied"), "{outcome:?}");
}

/// A pool, and a mount of it that lets all users in, to which the way is open.
fn for_all_users() -> (Pool, Mount) {
    assert!(geteuid().is_root(), "only root lets other users into a mount, and becomes them");
    let pool = Pool::up(2, &[]);
    let open = fs::Permissions::from_mode(0o755);
    pool.work().ancestors().take(2).for_each(|folder| fs::set_permissions(folder, open.clone()).unwrap());
    let mount = Mount::start_with(&pool, "mnt", &["--allow-other"]);
    (pool, mount)
}

fn folder_of(mount: &Mount, name: &str, user: u32, mode: u32) {
    fs::create_dir_all(mount.at(name)).unwrap();
    chown(mount.at(name), Some(user), Some(user)).unwrap();
    fs::set_permissions(mount.at(name), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn users_of_one_mount_share_a_key_and_not_their_files() {
    let (pool, mount) = for_all_users();
    let key = pool.ok(&["key", "create"]).trim().to_owned();
    let encryption = format!("encryption={key}");
    for (app, protocol) in [("sealed", "sw"), ("spooled", "clw")] {
        pool.policy(app, &[&encryption, &format!("protocol={protocol}"), "codec=store"]);
        fs::set_permissions(mount.at(app), fs::Permissions::from_mode(0o755)).unwrap();
        folder_of(&mount, &format!("{app}/alice"), ALICE, 0o700);
        folder_of(&mount, &format!("{app}/bob"), BOB, 0o700);
    }
    let (content, changed) = (random_bytes(2 * MIB + 5, 1), random_bytes(MIB, 2));
    let [source, other] = [("source", &content), ("other", &changed)].map(|(name, content)| {
        let path = pool.file(name, content);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    });
    for app in ["sealed", "spooled"] {
        let at = |name: &str| mount.at(&format!("{app}/{name}")).to_str().unwrap().to_owned();
        ok(&as_user(ALICE, "", &[], &format!("umask 077; cp {source} {}", at("alice/x"))));
        ok(&as_user(BOB, "", &[], &format!("cp {source} {0} && cp {other} {0}", at("bob/x"))));
        ok(&as_user(ALICE, "", &[], &format!("cmp {source} {}", at("alice/x"))));
        ok(&as_user(BOB, "", &[], &format!("cmp {other} {}", at("bob/x"))));
        denied(&as_user(BOB, "", &[], &format!("cat {}", at("alice/x"))));
        denied(&as_user(BOB, "", &[], &format!("cp {other} {}", at("alice/x"))));
        wait_until("all is in the pool", || {
            ["alice", "bob"].iter().all(|user| pool.get(&format!("{app}/{user}/x")).len() > MIB - 1)
        });
        let owner = |path: &str| fs::metadata(mount.at(&format!("{app}/{path}"))).unwrap().uid();
        assert_eq!((owner("alice/x"), owner("bob/x")), (ALICE, BOB));
        assert!(
            pool.get(&format!("{app}/alice/x")) == content && pool.get(&format!("{app}/bob/x")) == changed
        );
        let stat = pool.json(&["stat", &format!("{app}/bob/x"), "--json"]);
        assert_eq!(stat["version"]["key"], key.as_str(), "{stat}");
    }
    // Neither the spool, in which they lay in the clear, nor the key is there for users of the machine.
    let found =
        as_user(BOB, "", &[], &format!("find {} -type f -readable", pool.data().parent().unwrap().display()));
    let is_content = |path: &str| {
        ["spool", "keys", "manager/", "benefactors/"]
            .iter()
            .any(|kept| path.contains(&format!("pool/{kept}")))
    };
    assert!(!found.text().lines().any(is_content), "{found:?}");
    // A new key is for what is written from then on, and the owners stay.
    pool.ok(&["key", "rotate", "sealed"]);
    let at = mount.at("sealed/alice/x");
    ok(&as_user(ALICE, "", &[], &format!("cmp {source} {0} && cp {other} {0}", at.display())));
    denied(&as_user(BOB, "", &[], &format!("cat {}", at.display())));
    assert!(pool.get("sealed/alice/x") == changed);
}

#[test]
fn a_user_goes_back_to_a_state_of_files_and_others_come_to_none_of_what_was_kept() {
    let (pool, mount) = for_all_users();
    // On the mount, and on a disk beside it.
    fs::create_dir(pool.path("disk")).unwrap();
    fs::create_dir(mount.at("app")).unwrap();
    for place in [pool.path("disk"), mount.at("app")] {
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
        chown(&place, Some(ALICE), Some(ALICE)).unwrap();
        let script = "umask 022; echo first > open; (umask 077; echo secret > closed); kill -USR1 $PPID; \
                      timeout 60 sh -c \"until grep -q signal .stdchk-files/index; do sleep .05; done\"; \
                      echo second > open; echo others > closed; rm -f gone; exit 3";
        let run = format!(
            "cd {} && {} run --mode write-through -- sh -c '{script}'",
            place.display(),
            binary().display()
        );
        let ended = as_user(ALICE, "", &[], &run);
        assert_eq!(ended.code, 3, "{ended:?}");
        let path = |name: &str| place.join(name).display().to_string();
        denied(&as_user(BOB, "", &[], &format!("cat {}", path("closed"))));
        // What was kept of the closed file is nobody else's.
        let found = as_user(BOB, "", &[], &format!("grep -rls secret {}", place.display()));
        assert_eq!(found.text(), "", "{found:?}");
        let restore = format!("cd {} && {} files restore", place.display(), binary().display());
        let refused = as_user(BOB, "", &[], &restore);
        assert!(refused.code != 0 && refused.stderr.contains("Permission denied"), "{refused:?}");
        ok(&as_user(ALICE, "", &[], &restore));
        assert_eq!(fs::read_to_string(path("open")).unwrap(), "first\n");
        assert_eq!(fs::read_to_string(path("closed")).unwrap(), "secret\n");
        let about = fs::metadata(path("closed")).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o777), (ALICE, 0o600));
        denied(&as_user(BOB, "", &[], &format!("cat {}", path("closed"))));
    }
}

/// A pool on a small disk at `$1`, whose manager listens at `$4`. `$2`: the binary, `$3`: a folder elsewhere. Members are shut out while the
/// disk has no free byte, and the manager is killed then.
const FULL: &str = r#"
set -eu
disk=$1 stdchk=$2 elsewhere=$3 address=$4
mount -t tmpfs -o size=100m stdchk "$disk"
fail() { echo "$*"; exit 99; }
operate() { STDCHK_DATA="$disk/pool" "$stdchk" "$@"; }
as() { local host=$1; shift; STDCHK_DATA="$elsewhere/$host" "$stdchk" "$@"; }
refused() { ! as "$1" get app/b0 -o - > "$elsewhere/said" 2>&1 && grep -q revoked "$elsewhere/said"; }
fill() { cat /dev/zero >> "$disk/rest" 2> /dev/null || true; test "$(stat --file-system --format %a "$disk")" = 0; }
kill_manager() { kill -9 $(readlink "$disk/pool/run/manager.pid" | cut -d ' ' -f 1); }
shut_out() { operate pool revoke "$(sed -n "$(($1 + 1))p" "$elsewhere/members")"; }
operate pool init --listen "$address"
trap 'operate down' EXIT
operate up --benefactors 1 --donate 16MiB --floor 20MiB
for host in b0 b1 b2; do
    as $host pool join "$address" --token "$(operate pool token --for client)"
    echo content | as $host put - app/$host
done
operate pool members --json | python3 -c '
import json, sys
print(*[member["id"] for member in json.load(sys.stdin) if member["roles"] == ["client"]], sep="\n")' > "$elsewhere/members"
fill || fail "the disk is not full"
code=0
shut_out 0 || code=$?
echo "while the disk is full: $code"
let_in_as_told() {
    if [ $code = 0 ]; then refused b0; else as b0 get app/b0 -o -; fi || fail "$1: $(cat "$elsewhere/said")"
}
let_in_as_told "at once"
kill_manager
operate up
let_in_as_told "after a kill"
as b1 get app/b1 -o - || fail "b1 is shut out"
rm "$disk/rest"
for number in 0 1; do shut_out $number; done
refused b0 && refused b1 || fail "somebody is let in: $(cat "$elsewhere/said")"
kill_manager
operate up
refused b0 && refused b1 || fail "somebody is let in after a kill"
as b2 get app/b2 -o -
"#;

#[test]
fn who_is_shut_out_while_the_managers_disk_is_full_stays_out_or_the_answer_says_that_it_is_not() {
    let other = Pool::up(1, &[]);
    let (place, elsewhere) = (other.path("disk"), other.path("elsewhere"));
    [&place, &elsewhere].into_iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "bash", "-c", FULL, "bash"]);
    command.arg(&place).arg(binary()).arg(&elsewhere).arg(free);
    other.apply_to(&mut command);
    command.env_remove("STDCHK_DATA");
    let outcome = outcome(command);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    println!("{}", outcome.text());
}

#[test]
fn a_keeper_that_stands_still_and_is_shut_out_is_no_part_of_a_recovery() {
    const MANAGER: usize = 1;
    let machines = Machines::with_pool(4);
    let client = 6;
    let content = |number: u64| random_bytes(700_000, number);
    let put = |number: u64| {
        let file = machines.path(client, "file");
        fs::write(&file, content(number)).unwrap();
        machines.ok(client, &["put", file.to_str().unwrap(), &format!("app/x{number}")]);
    };
    let status = || machines.ok(MANAGER, &["status", "--json"]).json();
    (0..3).for_each(put);
    wait_until("all commits can be recovered", || status()["recovery"]["lacks_commits"] == 0);
    // It stands still, and others go on without it.
    let still = machines.processes(2)[0];
    still.signal(Signal::STOP);
    (3..6).for_each(put);
    wait_until("the others have it", || status()["recovery"]["lacks_commits"] == 0);
    let members = machines.ok(MANAGER, &["pool", "members", "--json"]).json();
    let number =
        status()["benefactors"].as_array().unwrap().iter().find(|one| one["pid"] == still.pid).unwrap()["id"]
            .clone();
    let is_it = |member: &&serde_json::Value| member["benefactors"].as_array().unwrap().contains(&number);
    let id = members.as_array().unwrap().iter().find(is_it).unwrap()["id"].as_str().unwrap().to_owned();
    machines.ok(MANAGER, &["pool", "revoke", &id]);
    // It goes on, and takes what clients bring until these hear of others: nothing may rest on it.
    still.signal(Signal::CONT);
    (6..9).for_each(put);
    wait_until("the others have it all", || status()["recovery"]["lacks_commits"] == 0);
    // The manager's disk is lost.
    let addresses: Vec<String> = status()["benefactors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["address"].as_str().unwrap().to_owned())
        .collect();
    let (pool, saved) = (machines.path(MANAGER, "pool"), machines.path(MANAGER, "saved"));
    let mut copy = Command::new("cp");
    copy.arg("-a").arg(pool.join("manager/authority")).arg(&saved);
    ok(&outcome(copy));
    machines.kill(MANAGER);
    fs::remove_dir_all(&pool).unwrap();
    let listen = machines.address(MANAGER);
    let mut recover = vec![
        "manager",
        "recover",
        "--authority",
        saved.to_str().unwrap(),
        "--listen",
        &listen,
        "--wait",
        "20",
        "--json",
    ];
    addresses.iter().for_each(|address| recover.extend(["--from", address]));
    let told = machines.ok(MANAGER, &recover);
    println!("{}", told.text());
    machines.ok(MANAGER, &["up"]);
    for number in 0..9 {
        let back = machines.ok(client, &["get", &format!("app/x{number}"), "-o", "-"]);
        assert!(back.stdout == content(number), "x{number}");
    }
}
