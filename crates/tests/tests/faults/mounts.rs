//! A mount that is killed with files open, and two mounts of one pool.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use stdchk_tests::{Mount, Pool, Setup, random_bytes, wait_until, within};

use crate::program::{Reader, Writer, run};

const MIB: usize = 1 << 20;

/// Copies a file of this content to a path, in a process of its own.
fn copy(pool: &Pool, content: &[u8], target: &Path) {
    let source = PathBuf::from(pool.file("source", content));
    let copied = run("cp", &[&source, target]);
    assert_eq!(copied.code, 0, "{copied:?}");
}

/// Waits until a file reads as this: another mount may be behind by the time for which the kernel believes names.
fn wait_for(path: &Path, content: &[u8]) {
    let what = format!("{} has its new content", path.display());
    wait_until(&what, || fs::read(path).is_ok_and(|bytes| bytes == content));
}

fn wait_for_absence(path: &Path) {
    let what = format!("{} is gone", path.display());
    wait_until(&what, || fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound));
}

/// Leases that are over soon; short garbage is fine where nobody writes any more.
fn with_short_leases(setup: Setup) -> Setup {
    setup.with("STDCHK_CLIENT_LEASE_MS", 6000).with("STDCHK_GARBAGE_AGE_MS", 3000)
}

/// Whether this process is kept from writing to a folder: root needs an attribute for that which not all file systems have.
fn can_be_kept_out(folder: &Path) -> bool {
    let folder = fs::File::open(folder).unwrap();
    !rustix::process::geteuid().is_root() || rustix::fs::ioctl_getflags(folder).is_ok()
}

#[test]
fn nothing_is_written_below_a_mount_point_while_the_pool_is_not_mounted_there() {
    let pool = Pool::mounted(1);
    if !can_be_kept_out(&pool.work()) {
        eprintln!("not tested: root can't be kept out of folders on this file system");
        return;
    }
    fs::create_dir(pool.at("app")).unwrap();
    let refuses = |when: &str| {
        assert!(fs::create_dir(pool.at("app")).is_err(), "{when}");
        assert!(fs::write(pool.at("file"), b"unprotected").is_err(), "{when}");
        assert_eq!(fs::read_dir(pool.mount_point()).unwrap().count(), 0, "{when}");
    };
    for content in [b"one", b"two"] {
        fs::write(pool.at("app/x"), content).unwrap();
        pool.ok(&["down"]);
        refuses("after `down`");
        pool.ok(&["up"]);
        assert_eq!(fs::read(pool.at("app/x")).unwrap(), content);
        pool.kill("mount");
        rustix::mount::unmount(pool.mount_point(), rustix::mount::UnmountFlags::DETACH).unwrap_or_else(
            |_| {
                assert_eq!(run("fusermount3", &[Path::new("-uz"), &pool.mount_point()]).code, 0);
            },
        );
        refuses("after its process was killed");
        pool.ok(&["up"]);
        assert_eq!(fs::read(pool.at("app/x")).unwrap(), content);
    }
}

#[test]
fn a_mount_killed_with_files_open_leaves_what_was_committed_and_its_space_comes_back() {
    let pool = with_short_leases(Setup::of(3)).up();
    let [old, orphan, synced] = [8, 24, 3].map(|size| random_bytes(size * MIB, size as u64));
    fs::create_dir(pool.at("app")).unwrap();
    copy(&pool, &old, &pool.at("app/old"));
    let mut overwriting = Writer::start(&pool.at("app/old"), &["conv=notrunc"]);
    let mut syncing = Writer::start(&pool.at("app/synced"), &["conv=notrunc", "oflag=dsync"]);
    overwriting.feed(&orphan);
    syncing.feed(&synced);
    wait_until("the file is synced", || {
        pool.run(&["ls", "app/synced", "--versions", "--json"]).code == 0
            && pool.versions("app/synced").last().is_some_and(|version| version["size"] == synced.len())
    });
    let sent = &orphan[..MIB];
    wait_until("a part of the other one is stored", || pool.holder_of(sent).is_some());
    let status = pool.status();
    assert!(status["sessions"] == 2 && status["space"]["reserved_bytes"].as_u64().unwrap() > 0, "{status}");

    pool.kill("mount");
    for (mut writer, more) in [(overwriting, &orphan), (syncing, &synced)] {
        let written = within("a writer is told that its mount is gone", {
            let more = more[..MIB].to_vec();
            move || {
                writer.feed(&more);
                writer.finish()
            }
        });
        assert!(!written.accepted && !written.message.is_empty(), "{written:?}");
    }
    assert!(pool.get("app/old") == old, "the committed version is intact");
    assert!(pool.get("app/synced") == synced, "so is what was synced");
    wait_until("the sessions expire and their space comes back", || {
        pool.shows(|status| status["sessions"] == 0 && status["space"]["reserved_bytes"] == 0)
    });
    let state = |name: &str| pool.versions(name).last().unwrap()["state"].clone();
    assert_eq!((state("app/old"), state("app/synced")), (json!("closed"), json!("interrupted")));
    wait_until("what was never committed is collected", || {
        pool.run(&["gc"]);
        pool.holder_of(sent).is_none()
    });

    pool.ok(&["up"]);
    assert!(fs::read(pool.at("app/old")).unwrap() == old);
    assert!(fs::read(pool.at("app/synced")).unwrap() == synced);
    copy(&pool, &orphan, &pool.at("app/old"));
    assert!(pool.get("app/old") == orphan && pool.get("app/old@1") == old);
    assert_eq!(pool.json(&["verify", "--json"])["bad"], json!([]));
}

#[test]
fn a_dead_mount_that_is_in_use_is_replaced_by_mounting_again() {
    let pool = Setup::of(1).up();
    pool.put(b"content", "app/x");
    let mut second = Mount::start(&pool, "second");
    for point in [pool.mount_point(), second.point().to_owned()] {
        // Somebody who works below the mount point, and a reader, hold the dead mount.
        let mut worker = std::process::Command::new("sleep");
        let mut worker = worker.arg("600").current_dir(point.join("app")).spawn().unwrap();
        let reader = Reader::start(&point.join("app/x"));
        if point == second.point() {
            second.kill();
        } else {
            pool.kill("mount");
        }
        // While the process ends, whoever is waiting for it gets another error.
        wait_until("the mount is dead", || {
            let path = point.join("app/x");
            let asked = within("asking a dead mount", move || fs::metadata(path));
            asked.is_err_and(|error| error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error()))
        });
        let mut again = None;
        if point == second.point() {
            again = Some(Mount::start(&pool, "second"));
        } else {
            pool.ok(&["up"]);
        }
        assert_eq!(fs::read(point.join("app/x")).unwrap(), b"content");
        fs::write(point.join("app/x"), "content").unwrap();
        assert!(again.as_mut().is_none_or(Mount::end));
        drop(reader);
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
}

#[test]
fn what_one_mount_commits_another_mount_sees_and_open_readers_keep_their_version() {
    let pool = Pool::mounted(2);
    let mut second = Mount::start(&pool, "second");
    fs::create_dir(pool.at("app")).unwrap();
    let contents: Vec<Vec<u8>> = (0..4).map(|seed| random_bytes(3 * MIB + 7, 30 + seed)).collect();
    // Turn by turn, each time over what the other one wrote; sizes are equal, so that only content can tell.
    for (turn, content) in contents.iter().enumerate() {
        let (writes, reads) = match turn % 2 {
            0 => (pool.at("app/x"), second.at("app/x")),
            _ => (second.at("app/x"), pool.at("app/x")),
        };
        let reader = (turn > 0).then(|| Reader::start(&reads));
        wait_until("the writer's mount knows the newest version", || {
            turn == 0 || fs::read(&writes).unwrap() == contents[turn - 1]
        });
        copy(&pool, content, &writes);
        assert!(pool.get("app/x") == *content);
        wait_for(&reads, content);
        if let Some(reader) = reader {
            let before = &contents[turn - 1];
            let size = before.len();
            let kept = within("reading what was opened before", move || reader.finish(size));
            assert!(kept == *before, "turn {turn}");
        }
    }
    assert!(second.end());
    assert_eq!(pool.get("app/x"), contents[3]);
}

#[test]
fn two_mounts_that_write_one_file_at_once_leave_one_of_both_contents_whole() {
    let pool = Pool::mounted(2);
    let second = Mount::start(&pool, "second");
    fs::create_dir(pool.at("app")).unwrap();
    let (before, one, other) =
        (random_bytes(2 * MIB, 40), random_bytes(6 * MIB, 41), random_bytes(9 * MIB, 42));
    copy(&pool, &before, &pool.at("app/x"));
    wait_for(&second.at("app/x"), &before);
    let mut writers =
        [pool.at("app/x"), second.at("app/x")].map(|path| Writer::start(&path, &["conv=notrunc"]));
    for part in 0..3 {
        writers[0].feed(&one[part * 2 * MIB..][..2 * MIB]);
        writers[1].feed(&other[part * 3 * MIB..][..3 * MIB]);
    }
    // Both write before either is finished.
    for (path, size) in [(pool.at("app/x"), one.len()), (second.at("app/x"), other.len())] {
        wait_until("the writer has written", || fs::metadata(&path).unwrap().len() == size as u64);
    }
    for writer in writers {
        let written = within("closing a file that another mount writes, too", || writer.finish());
        assert!(written.accepted, "{written:?}");
    }
    assert!(pool.get("app/x") == other, "the last commit is the newest version");
    assert!(pool.get("app/x@1") == before && pool.get("app/x@2") == one, "the others are the older ones");
    wait_for(&pool.at("app/x"), &other);
    wait_for(&second.at("app/x"), &other);
}

#[test]
fn names_changed_in_one_mount_are_seen_in_the_other() {
    let pool = Pool::mounted(2);
    let second = Mount::start(&pool, "second");
    fs::create_dir_all(pool.at("app/folder")).unwrap();
    let [moved, replaced, removed] = [50, 51, 52].map(|seed| random_bytes(MIB, seed));
    for (name, content) in [("moved", &moved), ("replaced", &replaced), ("removed", &removed)] {
        copy(&pool, content, &pool.at("app/folder").join(name));
        wait_for(&second.at("app/folder").join(name), content);
    }
    let reader = Reader::start(&second.at("app/folder/removed"));
    let rename = |from: &Path, to: &Path| assert_eq!(run("mv", &[Path::new("-T"), from, to]).code, 0);
    rename(&pool.at("app/folder/moved"), &pool.at("app/elsewhere"));
    wait_for(&second.at("app/elsewhere"), &moved);
    wait_for_absence(&second.at("app/folder/moved"));
    rename(&second.at("app/elsewhere"), &second.at("app/folder/replaced"));
    wait_for(&pool.at("app/folder/replaced"), &moved);
    wait_for_absence(&pool.at("app/elsewhere"));
    rename(&pool.at("app/folder"), &pool.at("app/renamed"));
    wait_for(&second.at("app/renamed/replaced"), &moved);
    wait_for_absence(&second.at("app/folder"));
    fs::remove_file(pool.at("app/renamed/removed")).unwrap();
    wait_for_absence(&second.at("app/renamed/removed"));
    let kept = within("reading what was removed elsewhere", || reader.finish(MIB));
    assert!(kept == removed);
    assert!(pool.get("app/renamed/replaced@1") == replaced, "the replaced content is an older version");
}

#[test]
fn a_mount_by_hand_whose_terminal_is_gone_commits_what_is_open_and_leaves_no_dead_mount_point() {
    let pool = Pool::mounted(1);
    let mut mount = Mount::start(&pool, "by-hand");
    fs::create_dir(mount.at("app")).unwrap();
    fs::write(mount.at("app/closed"), b"closed").unwrap();
    let mut open = fs::File::create(mount.at("app/open")).unwrap();
    std::io::Write::write_all(&mut open, b"what was written").unwrap();
    assert!(mount.end_by(Signal::HUP), "it ends in order");
    // A dead mount point can't be looked into.
    assert_eq!(fs::read_dir(mount.point()).unwrap().count(), 0);
    drop(open);
    assert_eq!(pool.get("app/closed"), b"closed");
    assert!(pool.ok(&["ls", "app/open", "--versions"]).contains("interrupted"));
}

#[test]
fn down_waits_for_no_copy_of_the_mount_in_another_namespace() {
    let pool = Pool::mounted(1);
    fs::create_dir(pool.at("app")).unwrap();
    fs::write(pool.at("app/x"), b"content").unwrap();
    // As a container or a service has one that is started meanwhile.
    let mut other =
        Command::new("unshare").args(["--map-root-user", "--mount", "sleep", "60"]).spawn().unwrap();
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    wait_until("the copy is there", || {
        let name = fs::read_to_string(format!("/proc/{}/comm", other.id())).unwrap();
        name == "sleep\n" && namespace(&other.id().to_string()) != namespace("self")
    });
    let begun = Instant::now();
    pool.ok(&["down"]);
    let took = begun.elapsed();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(took < Duration::from_secs(6), "{took:?}");
    pool.ok(&["up"]);
    assert_eq!(fs::read(pool.at("app/x")).unwrap(), b"content");
}
