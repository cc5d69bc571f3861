//! `stdchk run` and `stdchk files` on real programs: what is left after kills, how a run ends, and what is refused.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use stdchk_tests::{Outcome, binary, command, outcome, preload_library, wait_until};

/// The binary in `root`, with the preload library that this build made.
pub fn stdchk(root: &Path, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.current_dir(root).env("STDCHK_PRELOAD", preload_library());
    command
}

pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    outcome(stdchk(root, arguments))
}

/// Runs a shell script under `stdchk run` with these flags.
pub fn run_script(root: &Path, flags: &[&str], script: &str) -> Outcome {
    run(root, &[&["run"], flags, &["--", "sh", "-c", script]].concat())
}

pub fn json(root: &Path, arguments: &[&str]) -> Value {
    let ended = run(root, arguments);
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.json()
}

/// Permissions and contents of every file below `root`, the store left out.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with(".stdchk-files") {
            continue;
        } else if path.is_dir() {
            found.extend(tree(&path));
        } else {
            let bits = path.metadata().unwrap().permissions().mode();
            found.insert(path.clone(), (bits, std::fs::read(&path).unwrap()));
        }
    }
    found
}

/// As [`tree`], by paths relative to `root`.
pub fn files(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    tree(root).into_iter().map(|(path, what)| (path.strip_prefix(root).unwrap().to_owned(), what)).collect()
}

/// A job of real programs that restarts from its own checkpoint, `state`: it appends, overwrites in place, edits, deletes
/// and creates again, and keeps a database. `$1` is the step at which the machine goes down.
const JOB: &str = r#"
step=$(cat state 2>/dev/null || echo 0)
[ -e field ] || { head -c 200000 /dev/zero > field; echo none > status; }
[ -e runs.db ] || sqlite3 runs.db 'create table runs(step integer primary key, text)'
while [ $step -lt 12 ]; do
    step=$((step + 1))
    echo "step $step" >> log
    python3 -c "
import sys
step = int(sys.argv[1])
with open('trajectory', 'ab') as out: out.write(bytes(range(step)) * 1000)
with open('field', 'r+b') as field: field.seek(step * 7000); field.write(b'%08d' % step)" $step
    yes $step | head -c 3000 | dd of=field bs=1000 seek=$((step * 11)) conv=notrunc status=none
    sed -i "s/.*/step $step/" status
    rm -f scratch; seq $step 1000 | tee scratch | gzip -n > scratch.gz
    sqlite3 runs.db "insert into runs values ($step, 'row $step'); delete from runs where step % 4 = 1"
    if [ $((step % 3)) = 0 ]; then echo $step > state.new; mv state.new state; fi
    if [ $step = $1 ]; then kill -9 $PPID; kill -9 $$; fi
done
echo "done" >> results
"#;

#[test]
fn a_job_killed_three_times_and_resumed_leaves_the_files_of_an_uninterrupted_one() {
    let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let job = |root: &Path, flags: &[&str], kill_at: &str| {
        run(root, &[&["run"], flags, &["--", "sh", "-c", JOB, "job", kill_at]].concat())
    };
    let plain =
        Command::new("sh").args(["-c", JOB, "job", "never"]).current_dir(whole.path()).status().unwrap();
    assert!(plain.success());
    let killed = job(broken.path(), &["--when-renamed", "state"], "5");
    assert_eq!(killed.code, -1, "the driver was killed as well: {killed:?}");
    for kill_at in ["7", "11"] {
        wait_until("the job is gone", || job_is_gone(broken.path()));
        assert_eq!(job(broken.path(), &["--resume"], kill_at).code, -1);
    }
    wait_until("the job is gone", || job_is_gone(broken.path()));
    let ended = job(broken.path(), &["--resume=auto"], "never");
    assert_eq!(ended.code, 0, "{ended:?}");
    let (expected, left) = (files(whole.path()), files(broken.path()));
    assert!(left.keys().eq(expected.keys()), "{:?}", left.keys());
    for (path, what) in &left {
        assert!(what == &expected[path], "{} differs", path.display());
    }
}

/// Whether no process of the run is left: then a restore to the last checkpoint is not refused.
pub fn job_is_gone(root: &Path) -> bool {
    let tried = run(root, &["files", "restore"]);
    assert!(tried.code == 0 || tried.stderr.contains("still runs"), "{tried:?}");
    tried.code == 0
}

#[test]
fn a_failed_transaction_is_undone_and_the_exit_code_is_the_programs() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "before\n").unwrap();
    let before = files(root.path());
    let ended = run_script(root.path(), &["--mode", "single"], "echo more >> file; echo x > new; exit 7");
    assert_eq!(ended.code, 7);
    assert!(ended.stderr.contains("back at checkpoint 0"), "{ended:?}");
    assert_eq!(files(root.path()), before);
    let reported = ["--resume", "--report", "report.json"];
    assert_eq!(run_script(root.path(), &reported, "echo x > new; kill -TERM $$").code, 143);
    let report = std::fs::read(root.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!((&report["signal"], &report["rolled_back_to"]), (&15.into(), &0.into()));
}

#[test]
fn what_a_failed_program_left_behind_ends_before_its_files_go_back() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "before\n").unwrap();
    let before = files(root.path());
    for deaf in ["", "trap '' TERM; "] {
        let writer = format!("({deaf}while :; do echo more >> file; echo x > new; done) &");
        let script = format!("{writer} while [ ! -e new ]; do sleep 0.01; done; exit 7");
        let ended = run_script(root.path(), &["--mode", "single"], &script);
        assert_eq!(ended.code, 7, "{ended:?}");
        assert!(ended.stderr.contains("left behind were ended"), "{ended:?}");
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(files(root.path()), before);
        assert_eq!(run(root.path(), &["files", "discard"]).code, 0);
    }
}

#[test]
fn checkpoints_are_listed_compared_and_gone_back_to() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "before\n").unwrap();
    let script = "echo one >> file; echo > part.new; mv part.new part; rm file; echo two > other";
    assert_eq!(run_script(root.path(), &["--when-renamed", "part"], script).code, 0);
    let log = json(root.path(), &["files", "log", "--json"]);
    assert_eq!((&log["state"], &log["mode"]), (&"ended".into(), &"write-through".into()));
    let labels: Vec<&str> =
        log["checkpoints"].as_array().unwrap().iter().map(|entry| entry["label"].as_str().unwrap()).collect();
    assert_eq!(labels, ["start", "renamed to part", "end"]);
    assert!(run(root.path(), &["files", "log"]).text().contains("renamed to part"));
    let diff = json(root.path(), &["files", "diff", "1", "2", "--json"]);
    let change = |path: &str| {
        let all = diff["changes"].as_array().unwrap();
        all.iter().find(|change| change["path"] == path).cloned().unwrap_or_default()
    };
    assert_eq!((&change("file")["removed"], &change("other")["created"]), (&true.into(), &true.into()));
    assert_eq!(change("part"), Value::Null);
    assert_eq!(json(root.path(), &["files", "restore", "1", "--json"])["index"], 1);
    assert_eq!(std::fs::read_to_string(root.path().join("file")).unwrap(), "before\none\n");
    assert!(!root.path().join("other").exists());
    let missing = run(root.path(), &["files", "restore", "2"]);
    assert_eq!(missing.code, 4, "{missing:?}");
    let nothing = run(&root.path().join(".."), &["files", "log"]);
    assert!(nothing.code == 4 && nothing.stderr.contains("stdchk run"), "{nothing:?}");
}

#[test]
fn signals_reach_the_program_and_one_takes_a_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let script = "trap 'exit 9' INT; echo > ready; while :; do sleep 0.02; done";
    let mut driver = stdchk(root.path(), &["run", "--", "sh", "-c", script]).spawn().unwrap();
    let send = |signal: &str| {
        let sent = Command::new("kill").args([signal, &driver.id().to_string()]).status().unwrap();
        assert!(sent.success());
    };
    wait_until("the program is ready", || root.path().join("ready").exists());
    send("-USR1");
    let log = || run(root.path(), &["files", "log"]).text();
    wait_until("the checkpoint is taken", || log().contains("signal"));
    assert!(log().contains("goes on"), "{}", log());
    let second = run_script(root.path(), &[], "true");
    assert!(second.code == 125 && second.stderr.contains("another run"), "{second:?}");
    send("-INT");
    assert_eq!(driver.wait().unwrap().code(), Some(9));
}

#[test]
fn what_cannot_be_protected_is_refused_before_it_starts() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("static.c"), "int main(void) { return 0; }\n").unwrap();
    let built =
        Command::new("cc").args(["-static", "-o", "static", "static.c"]).current_dir(root.path()).status();
    assert!(built.unwrap().success());
    let refused = |arguments: &[&str], why: &str| {
        let ended = run(root.path(), arguments);
        assert!(ended.code == 125 && ended.stderr.contains(why), "{ended:?}");
    };
    refused(&["run", "--", "./static"], "statically linked");
    refused(&["run", "--", "./absent"], "No such file");
    refused(&["run", "--", "no-such-program"], "PATH");
    refused(&["run", "--resume", "--", "true"], "no checkpoints");
    assert!(!root.path().join(".stdchk-files").exists(), "nothing was begun");
    for wrong in [
        &["run"] as &[&str],
        &["run", "--every", "10", "--", "true"],
        &["run", "--resume", "--synced", "--", "true"],
    ] {
        assert_eq!(run(root.path(), wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn the_library_is_found_beside_the_binary_and_where_an_installation_has_it() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().canonicalize().unwrap();
    for directory in ["bin", "lib/stdchk", "work"] {
        std::fs::create_dir_all(home.join(directory)).unwrap();
    }
    let copy = home.join("bin/stdchk");
    std::fs::copy(binary(), &copy).unwrap();
    let try_run = || {
        let mut command = Command::new(&copy);
        command.args(["run", "--", "true"]).current_dir(home.join("work")).env_remove("STDCHK_PRELOAD");
        outcome({
            command.stdin(Stdio::null());
            command
        })
    };
    let missing = try_run();
    assert!(missing.code == 125 && missing.stderr.contains("libstdchk_preload.so"), "{missing:?}");
    let installed = home.join("lib/stdchk/libstdchk_preload.so");
    std::fs::copy(preload_library(), &installed).unwrap();
    assert_eq!(try_run().code, 0);
    std::fs::rename(&installed, home.join("bin/libstdchk_preload.so")).unwrap();
    assert_eq!(try_run().code, 0);
}

/// On a disk of 8 MiB of its own: a job fills it, and stops.
const FULL_DISK: &str = r#"
mount -t tmpfs -o size=8m stdchk "$1" && cd "$1" && seq 300000 > part && cp part deleted && cksum part deleted > sums
"$2" run -- sh -c 'rm deleted; : > part; echo x > new; cat /dev/zero > fill' 2> said && exit 10
test "$(df --output=avail . | tail -1)" -eq 0 || exit 11
"$2" files log --json | grep -q '"kept_since_bytes": [0-9]\{7\}' || exit 12
"$2" files restore || exit 14
test ! -e fill && test ! -e new && cksum part deleted | cmp - sums
"#;

#[test]
fn a_run_that_filled_the_disk_goes_back() {
    let root = tempfile::tempdir().unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--map-root-user", "--mount", "sh", "-c", FULL_DISK, "sh"]).arg(root.path());
    shell.arg(binary()).env("STDCHK_PRELOAD", preload_library());
    let ended = outcome(shell);
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn files_that_were_replaced_by_hand_are_named_and_the_exit_code_says_so() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "before\n").unwrap();
    std::fs::write(root.path().join("log"), "before\n").unwrap();
    assert_eq!(run_script(root.path(), &[], "echo more >> log; echo more >> file; exit 1").code, 1);
    std::fs::write(root.path().join("log.new"), "by hand\n").unwrap();
    std::fs::rename(root.path().join("log.new"), root.path().join("log")).unwrap();
    let restored = run(root.path(), &["files", "restore", "--json"]);
    assert_eq!((restored.code, &restored.json()["astray"][0]), (3, &"log".into()), "{restored:?}");
    assert!(restored.stderr.contains("log is not as at checkpoint 0"), "{restored:?}");
    assert_eq!(std::fs::read_to_string(root.path().join("file")).unwrap(), "before\n");
}

#[test]
fn a_report_that_cannot_be_written_is_found_out_before_the_program_runs() {
    let root = tempfile::tempdir().unwrap();
    let ended = run_script(root.path(), &["--report", "missing/report.json"], "echo x > ran");
    assert_eq!(ended.code, 125, "{ended:?}");
    assert!(ended.stderr.contains("missing/report.json") && !root.path().join("ran").exists(), "{ended:?}");
}

/// The binary in `root`, bound by the permissions of files as every user is.
fn run_without_privileges(root: &Path, arguments: &[&str]) -> Outcome {
    let plain = stdchk(root, arguments);
    if !rustix::process::geteuid().is_root() {
        return outcome(plain);
    }
    let mut bound = Command::new("setpriv");
    bound.args(["--bounding-set=-dac_override,-dac_read_search", "--"]).arg(plain.get_program());
    bound.args(plain.get_args()).current_dir(root);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    outcome(bound)
}

#[test]
fn what_its_owner_may_not_read_or_write_goes_back_all_the_same() {
    let root = tempfile::tempdir().unwrap();
    let writable_only = root.path().join("writable only");
    std::fs::write(&writable_only, "before\n").unwrap();
    std::fs::set_permissions(&writable_only, std::fs::Permissions::from_mode(0o200)).unwrap();
    let program = "import os\nos.makedirs('made/below')\nopen('made/below/file', 'w').close()\nos.chmod('made/below', 0o500)
os.mkdir('closed', 0o500)\nfd = os.open('writable only', os.O_WRONLY)\nos.pwrite(fd, b'after', 0)\nos._exit(7)";
    assert_eq!(run_without_privileges(root.path(), &["run", "--", "python3", "-c", program]).code, 7);
    let bits = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((bits(&writable_only), bits(&root.path().join("closed"))), (0o200, 0o500));
    let restored = run_without_privileges(root.path(), &["files", "restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert!(!root.path().join("made").exists() && !root.path().join("closed").exists());
    assert_eq!(bits(&writable_only), 0o200);
    std::fs::set_permissions(&writable_only, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(std::fs::read_to_string(&writable_only).unwrap(), "before\n");
}

#[test]
fn a_directory_closed_to_its_owner_that_the_job_removed_or_replaced_comes_back_closed() {
    let root = tempfile::tempdir().unwrap();
    let closed = ["removed", "replaced", "below/replaced"].map(|name| root.path().join(name));
    for directory in &closed {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o555)).unwrap();
    }
    let bits = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let of_root = bits(root.path());
    let program = "import os\nos.rmdir('removed')\nfor name in ['replaced', 'below/replaced']: os.mkdir('new'); os.rename('new', name)
assert not os.path.exists('new') and not os.path.exists('removed')\nos.chmod('.', 0o500)\nos._exit(7)";
    let ended = run_without_privileges(root.path(), &["run", "--", "python3", "-c", program]);
    assert_eq!(ended.code, 7, "{ended:?}");
    let restored = run_without_privileges(root.path(), &["files", "restore"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    assert_eq!(bits(root.path()), of_root);
    for directory in &closed {
        assert_eq!(bits(directory), 0o555, "{}", directory.display());
    }
}

/// Eight processes wait for each other, then overwrite one file that they may not read; and the next one.
const OVERWRITING_TOGETHER: &str = "
import os, sys
FILES, PROCESSES = 300, 8
go = [os.pipe() for _ in range(PROCESSES)]
done = os.pipe()
for number in range(PROCESSES):
    if os.fork() == 0:
        for name in range(FILES):
            fd = os.open(f'file{name}', os.O_WRONLY)
            os.read(go[number][0], 1)
            try: os.pwrite(fd, b'after', 0)
            except OSError: os.write(done[1], b'failed')
            os.write(done[1], b'd')
        os._exit(0)
for name in range(FILES):
    for number in range(PROCESSES): os.write(go[number][1], b'g')
    for number in range(PROCESSES): assert os.read(done[0], 1) == b'd', 'an overwrite failed'
";

#[test]
fn processes_that_overwrite_a_file_together_which_they_may_not_read_leave_its_mode() {
    let root = tempfile::tempdir().unwrap();
    let names: Vec<PathBuf> = (0..300).map(|number| root.path().join(format!("file{number}"))).collect();
    for name in &names {
        std::fs::write(name, "before").unwrap();
        std::fs::set_permissions(name, std::fs::Permissions::from_mode(0o200)).unwrap();
    }
    let ended = run_without_privileges(root.path(), &["run", "--", "python3", "-c", OVERWRITING_TOGETHER]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let lifted = |name: &&PathBuf| name.metadata().unwrap().permissions().mode() & 0o777 != 0o200;
    assert_eq!(names.iter().find(lifted), None);
}

#[test]
fn what_was_put_by_hand_into_a_directory_of_the_run_stays_and_is_told_of() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(run_script(root.path(), &[], "mkdir out; echo x > out/x; exit 7").code, 7);
    std::fs::write(root.path().join("out/notes"), "by hand").unwrap();
    let restored = run(root.path(), &["files", "restore", "--json"]);
    assert_eq!((restored.code, &restored.json()["left"][0]), (3, &"out".into()), "{restored:?}");
    assert!(restored.stderr.contains("out was not there at checkpoint 0 and stays"), "{restored:?}");
    assert!(root.path().join("out/notes").exists() && !root.path().join("out/x").exists());
}

/// On a disk of its own: a directory of the tree is covered by another one, whose files have the same inodes.
const COVERED: &str = r#"
mount -t tmpfs stdchk "$1" && cd "$1" && mkdir out && echo before > out/data && echo before > kept || exit 10
"$2" run -- sh -c 'echo more >> out/data; echo more >> kept; echo x > out/new; exit 7'
test $? = 7 && mkdir other && mount -t tmpfs stdchk other || exit 11
wanted=$(stat -c %i out/data)
while :; do echo theirs, longer > other/new; test "$(stat -c %i other/new)" -lt "$wanted" || break; mv other/new other/$((n = n + 1)); done
test "$(stat -c %i other/new)" = "$wanted" && mv other/new other/data && echo theirs > other/new || exit 12
mount --move other out && "$2" files restore
test $? = 3 && test "$(cat kept)" = before && test "$(cat out/data)" = "theirs, longer" && test "$(cat out/new)" = theirs
"#;

#[test]
fn what_another_disk_holds_that_was_mounted_in_the_tree_since_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["--map-root-user", "--mount", "sh", "-c", COVERED, "sh"]).arg(root.path()).arg(binary());
    shell.env("STDCHK_PRELOAD", preload_library());
    let ended = outcome(shell);
    assert_eq!(ended.code, 0, "{ended:?}");
}
