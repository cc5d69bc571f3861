//! Folders, files and sockets that another user of the machine prepared: they are refused with a message, nothing outside them is
//! changed, and nobody is talked to who isn't named.
//!
//! The tests run as root, whom others would like to lead somewhere; the other user is `nobody`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stdchk_tests::{Outcome, Pool, binary, wait_until};

/// The user `nobody` and the group `nogroup`.
const NOBODY: u32 = 65534;
/// What a file holds that is nobody's business.
const PRECIOUS: &[u8] = b"precious bytes of root";

/// A folder of this owner and mode.
fn folder(path: PathBuf, owner: u32, mode: u32) -> PathBuf {
    fs::create_dir(&path).unwrap();
    chown(&path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// Runs a benefactor in a folder until it ends.
fn benefactor(pool: &Pool, folder: &Path) -> Outcome {
    pool.run(&["benefactor", "run", folder.to_str().unwrap(), "--donate", "64MiB", "--floor", "0"])
}

/// Mounts with a spool there.
fn mount(pool: &Pool, spool: &Path) -> Outcome {
    let point = pool.path("elsewhere");
    fs::create_dir_all(&point).unwrap();
    pool.run(&["mount", point.to_str().unwrap(), "--spool", spool.to_str().unwrap()])
}

/// Refused with all of this, and the precious file is as it was.
#[track_caller]
fn refused(outcome: &Outcome, precious: &Path, says: &[&str]) {
    assert_ne!(outcome.code, 0, "{outcome:?}");
    for words in says {
        assert!(outcome.stderr.contains(words), "`{words}` is missing in: {outcome:?}");
    }
    assert_eq!(fs::read(precious).unwrap(), PRECIOUS);
}

#[test]
fn a_lock_that_is_a_link_leads_to_no_file_of_root() {
    let pool = Pool::up(1, &[]);
    let precious = PathBuf::from(pool.file("precious", PRECIOUS));
    for (name, owner) in [("of-nobody", NOBODY), ("of-root", 0)] {
        let prepared = folder(pool.path(name), owner, 0o755);
        symlink(&precious, prepared.join("LOCK")).unwrap();
        let says = if owner == NOBODY { "it belongs to user 65534" } else { "it is a link" };
        refused(&benefactor(&pool, &prepared), &precious, &[says, "is not used"]);
        refused(&mount(&pool, &prepared), &precious, &[says, "is not used"]);
        assert_eq!(fs::read_dir(&prepared).unwrap().count(), 1, "something was left there");
    }
}

#[test]
fn a_folder_to_which_others_may_write_and_a_link_in_place_of_one_are_not_used() {
    let pool = Pool::up(1, &[]);
    let precious = PathBuf::from(pool.file("precious", PRECIOUS));
    let open = folder(pool.path("open"), 0, 0o777);
    symlink(&precious, open.join("LOCK")).unwrap();
    refused(&benefactor(&pool, &open), &precious, &["other users may write to it", "chmod go-w"]);
    let target = folder(pool.path("target"), 0, 0o700);
    let theirs = folder(pool.path("theirs"), NOBODY, 0o755);
    symlink(&target, theirs.join("data")).unwrap();
    rustix::fs::chownat(
        rustix::fs::CWD,
        theirs.join("data"),
        Some(rustix::fs::Uid::from_raw(NOBODY)),
        None,
        rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
    )
    .unwrap();
    refused(&benefactor(&pool, &theirs.join("data")), &precious, &["it is a link"]);
    refused(&benefactor(&pool, &theirs.join("data/below")), &precious, &["is a link of user 65534"]);
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "another user led root there");
}

/// A manager of the other user, in a folder of theirs, that serves at a socket.
struct Impostor(Child);

impl Impostor {
    fn at(socket: &Path, program: &Path, data: &Path) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
        command.args(["manager", "run", "--listen", &address_of(socket)]).arg(data);
        let quiet = command
            .env_clear()
            .env("STDCHK_DATA", data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = quiet.spawn().unwrap();
        wait_until("it serves", || socket.exists());
        Self(child)
    }
}

fn address_of(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

impl Drop for Impostor {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn root_talks_at_a_socket_only_to_root_and_to_the_user_in_whose_folder_it_is() {
    let pool = Pool::up(1, &[]);
    let open = fs::Permissions::from_mode(0o755);
    pool.work().ancestors().take(2).for_each(|folder| fs::set_permissions(folder, open.clone()).unwrap());
    let shared = folder(pool.path("shared"), 0, 0o1777);
    let theirs = folder(pool.path("theirs"), NOBODY, 0o755);
    let program = theirs.join("stdchk");
    fs::copy(binary(), &program).unwrap();
    let ask = |socket: &Path| pool.run(&["ls", "--manager", &address_of(socket)]);
    let _first = Impostor::at(&shared.join("manager.sock"), &program, &theirs.join("first"));
    let outcome = ask(&shared.join("manager.sock"));
    assert_ne!(outcome.code, 0, "{outcome:?}");
    assert!(outcome.stderr.contains("a process of user 65534 serves there"), "{outcome:?}");
    let _second = Impostor::at(&theirs.join("manager.sock"), &program, &theirs.join("second"));
    let outcome = ask(&theirs.join("manager.sock"));
    assert_eq!(outcome.code, 0, "root named a pool of that user: {outcome:?}");
}
