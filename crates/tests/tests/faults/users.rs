//! A pool of a user other than root: mounted by way of `fusermount3`, used, found again after its mount was killed, and
//! closed to everybody else.
//!
//! The tests usually run as root. So that another user can mount on any machine, a mount namespace of the test's own has a
//! `/dev/fuse` that is open to all, as udev makes it; nobody else sees that, nor the pool's mount.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;
use stdchk_tests::{Outcome, binary, outcome};

/// The user `nobody` and the group `nogroup`.
const NOBODY: u32 = 65534;

/// Makes `theirs` run a script as the user, in an environment of theirs; `$1` is the folder of the test.
const AS_USER: &str = r#"
    set -eu
    home=$1
    as_user() { "$@"; }
    if [ "$(id -u)" = 0 ]; then
        as_user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
        if ! as_user test -r /dev/fuse -a -w /dev/fuse; then
            mkdir "$home/dev"
            mount -t tmpfs none "$home/dev"
            mknod -m 666 "$home/dev/fuse" c 10 229
            mount --bind "$home/dev/fuse" /dev/fuse
        fi
    fi
    theirs() {
        as_user env -i HOME="$home/home" PATH="$home:$PATH" STDCHK_DATA="$home/home/data" sh -euc "cd; $1"
    }
    trap 'theirs "stdchk down" >&2 || true' EXIT
"#;

/// Runs a script that has `theirs`, where mounts are its own.
fn run(script: &str) -> Outcome {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(binary(), home.path().join("stdchk")).unwrap();
    let theirs = home.path().join("home");
    fs::create_dir(&theirs).unwrap();
    let mut command = Command::new(if geteuid().is_root() { "unshare" } else { "env" });
    if geteuid().is_root() {
        chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
        command.arg("--mount");
    }
    command.args(["sh", "-c", &format!("{AS_USER}\n{script}"), "sh"]).arg(home.path());
    outcome(command)
}

/// Whether this process and its children may gain rights by a program such as `fusermount3`, which mounts for others
/// than root.
fn may_gain_rights() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    !status.lines().any(|line| line.starts_with("NoNewPrivs:") && line.ends_with('1'))
}

#[test]
fn another_user_than_root_mounts_a_pool_that_is_theirs_alone() {
    assert!(may_gain_rights(), "where nobody may gain rights, only root can mount: run the tests elsewhere");
    assert!(Path::new("/dev/fuse").exists());
    let outcome = run(r#"
        theirs 'stdchk --quiet up --benefactors 2 --donate 64MiB --floor 1MiB --mount pool'
        theirs 'mkdir pool/app && printf content > pool/app/x && cp pool/app/x copy && stdchk get app/x -o -; echo'
        theirs 'test "$(stat -c %u:%g pool/app/x)" = "$(id -u):$(id -g)" && echo owned'
        theirs 'python3 -c "import os; f = open(\"pool/app/y\", \"wb\", 0); f.write(b\"half\"); os.kill(os.getpid(), 9)" || true'
        theirs 'until stdchk ls app/y --versions | grep -E "closed|interrupted" > y; do sleep 0.1; done; grep -o interrupted y'
        [ "$(id -u)" != 0 ] || ! ls "$home/home/pool" || echo "root came in"
        theirs 'kill -KILL $(readlink data/run/mount.pid | cut -d" " -f1)'
        theirs 'stdchk --quiet up && cmp pool/app/x copy && echo found again'
        theirs 'stdchk --quiet down && ls pool'
        grep " $home/home/pool " /proc/self/mounts || echo unmounted
    "#);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(outcome.text(), "content\nowned\ninterrupted\nfound again\nunmounted\n", "{outcome:?}");
}
