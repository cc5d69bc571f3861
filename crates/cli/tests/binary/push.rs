//! `stdchk run --push` and `stdchk files fetch`: a job moves to another machine with its files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use stdchk_tests::{Outcome, Pool, outcome, preload_library, random_bytes, wait_until};

/// A job that restarts from its own checkpoint, `state`. `$1` is a folder outside: at step `$2` the job waits there for
/// the file `go`.
const JOB: &str = r#"
outside=$1; wait_at=$2; step=$(cat state 2>/dev/null || echo 0)
while [ $step -lt 12 ]; do
    step=$((step + 1))
    echo "step $step" >> log
    yes $step | head -c 3000 | dd of=field bs=1000 seek=$((step * 7)) conv=notrunc status=none
    rm -f scratch; echo "scratch of $step" > scratch; mkdir -p out; echo $step > out/$step
    if [ $((step % 3)) = 0 ]; then echo $step > state.new; mv state.new state; fi
    if [ $step = $wait_at ]; then echo torn >> log; rm out/1; while [ ! -e $outside/go ]; do sleep 0.05; done; fi
done
echo "done" >> results
"#;

fn stdchk(pool: &Pool, root: &Path, arguments: &[&str]) -> Command {
    let mut command = pool.command(arguments);
    command.current_dir(root).env("STDCHK_PRELOAD", preload_library());
    command
}

fn run(pool: &Pool, root: &Path, arguments: &[&str]) -> Outcome {
    outcome(stdchk(pool, root, arguments))
}

/// A run of [`JOB`] in a process group of its own, so that all of it can be killed.
fn start(pool: &Pool, root: &Path, flags: &[&str], outside: &Path, wait_at: &str) -> Child {
    use std::os::unix::process::CommandExt;
    let job = ["--", "sh", "-c", JOB, "job", outside.to_str().unwrap(), wait_at];
    let mut command = stdchk(pool, root, &[&["run"], flags, &job].concat());
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills the driver and all of its job at once, as the end of a machine does.
fn kill_all(mut driver: Child) {
    let killed = Command::new("kill").args(["-9", "--", &format!("-{}", driver.id())]).status().unwrap();
    assert!(killed.success());
    driver.wait().unwrap();
}

/// Kind, permissions and contents of everything below `root`, the store left out.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    use std::os::unix::fs::MetadataExt;
    let (mut found, mut to_visit) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = to_visit.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.ends_with(".stdchk-files") {
                continue;
            }
            let about = path.symlink_metadata().unwrap();
            let content = if about.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
            if about.is_dir() {
                to_visit.push(path.clone());
            }
            found.insert(path.strip_prefix(root).unwrap().to_owned(), (about.mode(), content));
        }
    }
    found
}

fn assert_same(one: &Path, other: &Path, what: &str) {
    let (one, other) = (tree(one), tree(other));
    assert!(one.keys().eq(other.keys()), "{what}: {:?}, {:?}", one.keys(), other.keys());
    for (path, found) in &one {
        assert!(found == &other[path], "{what}: {} differs", path.display());
    }
}

/// The checkpoints that the pool has, oldest first.
fn pushed(pool: &Pool, app: &str) -> Vec<u64> {
    let listed = pool.run(&["files", "fetch", app, "--list", "--json"]);
    if listed.code != 0 {
        return Vec::new();
    }
    listed.json().as_array().unwrap().iter().map(|copy| copy["index"].as_u64().unwrap()).collect()
}

fn fetch(pool: &Pool, arguments: &[&str], to: &Path) {
    pool.ok(&[&["files", "fetch"], arguments, &["-o", to.to_str().unwrap()]].concat());
}

#[test]
fn a_job_that_lost_its_machine_goes_on_elsewhere_to_the_same_files() {
    let pool = Pool::up(2, &[]);
    let (whole, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let job = ["-c", JOB, "job", outside.path().to_str().unwrap(), "never"];
    assert!(Command::new("sh").args(job).current_dir(whole.path()).status().unwrap().success());

    let first = tempfile::tempdir().unwrap();
    let flags = ["--when-renamed", "state", "--push", "heat"];
    let driver = start(&pool, first.path(), &flags, outside.path(), "8");
    wait_until("the second checkpoint is in the pool", || pushed(&pool, "heat").contains(&2));
    kill_all(driver);
    first.close().unwrap();

    let place = tempfile::tempdir().unwrap();
    let (second, third) = (place.path().join("second"), place.path().join("third"));
    fetch(&pool, &["heat"], &second);
    assert_eq!(std::fs::read_to_string(second.join("state")).unwrap(), "6\n");
    assert_eq!(std::fs::read_to_string(second.join("log")).unwrap().lines().last(), Some("step 6"));
    let driver = start(&pool, &second, &["--resume", "--push", "heat"], outside.path(), "10");
    wait_until("the third checkpoint is in the pool", || pushed(&pool, "heat").contains(&3));
    kill_all(driver);

    fetch(&pool, &["heat"], &third);
    let driver = start(&pool, &third, &["--resume=auto", "--push", "heat"], outside.path(), "never");
    assert!(driver.wait_with_output().unwrap().status.success());
    assert_same(&third, whole.path(), "after the moves");

    let last = *pushed(&pool, "heat").last().unwrap();
    fetch(&pool, &["heat"], &place.path().join("last"));
    assert_same(&place.path().join("last"), &third, "the last state");
    let log = run(&pool, &place.path().join("last"), &["files", "log", "--json"]).json();
    assert_eq!((&log["state"], &log["checkpoints"][0]["index"]), (&"ended".into(), &last.into()));
}

/// A job that changes its files in every way, with a checkpoint at each turn, until `$1/enough` is there.
const BUSY: &str = r"
import os, sys, random
turn, pick = 0, random.Random(7)
while not os.path.exists(sys.argv[1] + '/enough') or turn < 12:
    turn += 1
    with open('large', 'r+b') as large:
        for _ in range(50):
            large.seek(pick.randrange(6 << 20)); large.write(bytes([turn % 251]) * 5000)
    with open('large', 'ab') as large: large.write(b'more' * turn)
    if turn % 5 == 0: os.truncate('large', 5 << 20)
    for name in pick.sample(sorted(os.listdir('many')), 20):
        path = 'many/' + name
        choice = pick.randrange(4)
        if choice == 0: os.remove(path)
        elif choice == 1: os.rename(path, 'many/' + name + 'x')
        elif choice == 2: open(path, 'w').write('new %d' % turn)
        else: open('many/n%d' % pick.randrange(10 ** 9), 'w').write('born %d' % turn)
    os.rename('moving%d' % ((turn + 1) % 2), 'moving%d' % (turn % 2))
    open('state.new', 'w').write(str(turn)); os.rename('state.new', 'state')
";

#[test]
fn a_copy_is_exactly_the_checkpoint_though_the_job_overwrites_moves_and_deletes() {
    let pool = Pool::up(2, &[]);
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(root.path().join("large"), random_bytes(8 << 20, 1)).unwrap();
    for directory in ["many", "moving0"] {
        std::fs::create_dir(root.path().join(directory)).unwrap();
    }
    for number in 0..300 {
        std::fs::write(root.path().join(format!("many/{number}")), format!("file {number}")).unwrap();
        std::fs::write(root.path().join(format!("moving0/{number}")), format!("moved {number}")).unwrap();
    }
    let job = ["--", "python3", "-c", BUSY, outside.path().to_str().unwrap()];
    let flags = ["run", "--when-renamed", "state", "--push", "busy"];
    let driver = stdchk(&pool, root.path(), &[&flags[..], &job].concat()).spawn().unwrap();
    wait_until("copies were made beside the job", || pushed(&pool, "busy").len() >= 3);
    std::fs::write(outside.path().join("enough"), "").unwrap();
    assert!(driver.wait_with_output().unwrap().status.success());

    let copies = pushed(&pool, "busy");
    assert!(copies.len() >= 4, "the last checkpoint is pushed as well: {copies:?}");
    let place = tempfile::tempdir().unwrap();
    for index in copies.iter().rev().map(u64::to_string) {
        assert_eq!(run(&pool, root.path(), &["files", "restore", &index]).code, 0);
        let fetched = place.path().join(&index);
        fetch(&pool, &["busy", "--index", &index], &fetched);
        assert_same(&fetched, root.path(), &format!("checkpoint {index}"));
    }
}

#[test]
fn what_did_not_change_is_in_the_pool_already_and_as_many_states_stay_as_the_run_keeps() {
    let pool = Pool::up(2, &[]);
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("large"), random_bytes(16 << 20, 2)).unwrap();
    let script = "echo begun > large.log; for step in 1 2 3 4; do echo $step >> large.log; done";
    let flags = ["run", "--keep", "2", "--push", "kept", "--", "sh", "-c", script];
    for _ in 0..3 {
        let ended = run(&pool, root.path(), &flags);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let listed = pool.ok(&["files", "fetch", "kept", "--list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let new: Vec<u64> =
        listed.as_array().unwrap().iter().map(|copy| copy["stored_bytes"].as_u64().unwrap()).collect();
    assert!(new.len() == 2 && new.iter().all(|new| *new < 2 << 20), "{listed}");
}

#[test]
fn a_pool_that_is_gone_harms_no_job_and_gets_the_state_when_it_is_back() {
    let pool = Pool::up(1, &[]);
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    pool.ok(&["down"]);
    std::fs::write(outside.path().join("go"), "").unwrap();
    let report = outside.path().join("report");
    let flags = ["--when-renamed", "state", "--push", "later", "--push-wait", "2s", "--report"];
    let job = ["--", "sh", "-c", JOB, "job", outside.path().to_str().unwrap(), "4"];
    let ended = run(&pool, root.path(), &[&["run"], &flags[..], &[report.to_str().unwrap()], &job].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ended.stderr.matches("a file state did not reach the pool").count(), 1, "{ended:?}");
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["pushed"], Value::Null);

    pool.ok(&["up", "--benefactors", "1"]);
    let again = run(&pool, root.path(), &["run", "--resume", "--push", "later", "--", "true"]);
    assert_eq!(again.code, 0, "{again:?}");
    let place = tempfile::tempdir().unwrap();
    fetch(&pool, &["later"], &place.path().join("there"));
    assert_same(&place.path().join("there"), root.path(), "pushed when the pool was back");
}

#[test]
fn a_pool_that_dies_in_the_midst_of_a_copy_leaves_no_half_copy() {
    let pool = Pool::up(1, &[]);
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(root.path().join("large"), random_bytes(64 << 20, 3)).unwrap();
    let flags = ["--when-renamed", "state", "--push", "dying", "--push-wait", "1s"];
    let driver = start(&pool, root.path(), &flags, outside.path(), "4");
    let stored = || pool.status()["space"]["stored_bytes"].as_u64().unwrap_or(0) > 0;
    wait_until("the copy has begun", || stored() || !pushed(&pool, "dying").is_empty());
    pool.kill("manager");
    std::fs::write(outside.path().join("go"), "").unwrap();
    assert!(driver.wait_with_output().unwrap().status.success());
    pool.ok(&["up"]);
    let place = tempfile::tempdir().unwrap();
    for index in pushed(&pool, "dying").iter().rev().map(u64::to_string) {
        assert_eq!(run(&pool, root.path(), &["files", "restore", &index]).code, 0);
        fetch(&pool, &["dying", "--index", &index], &place.path().join(&index));
        assert_same(&place.path().join(&index), root.path(), &format!("checkpoint {index}"));
    }
    let again = run(&pool, root.path(), &["run", "--resume", "--push", "dying", "--", "true"]);
    assert_eq!(again.code, 0, "{again:?}");
    fetch(&pool, &["dying"], &place.path().join("there"));
    assert_same(&place.path().join("there"), root.path(), "pushed when the pool was back");
}

/// A job whose sets are in a mounted pool. `$1` is the folder of its sets, `$2` one outside where it waits in step 5.
const WITH_SETS: &str = r#"
folder=$1; outside=$2; step=${STDCHK_STEP:-0}
if [ $step != 0 ]; then cmp log $folder/sim.N0.T$step || exit 9; fi
while [ $step -lt 6 ]; do
    step=$((step + 1))
    echo "step $step" >> log
    if [ $((step % 2)) = 0 ]; then cp log $folder/sim.N0.T$step; fi
    if [ $step = 5 ]; then while [ ! -e $outside/go ]; do sleep 0.05; done; fi
done
"#;

#[test]
fn a_job_with_checkpoint_sets_moves_to_the_newest_complete_one() {
    let pool = Pool::mounted(2);
    pool.policy("sim", &["ranks=1", "redundancy=replicate:1"]);
    let (folder, outside) = (pool.at("sim"), tempfile::tempdir().unwrap());
    let job = |root: &Path, flags: &[&str]| {
        let places = [folder.to_str().unwrap(), outside.path().to_str().unwrap()];
        stdchk(&pool, root, &[&["run"], flags, &["--", "sh", "-c", WITH_SETS, "job"], &places].concat())
    };
    let first = tempfile::tempdir().unwrap();
    let driver = {
        use std::os::unix::process::CommandExt;
        let flags = ["--with-sets", folder.to_str().unwrap(), "--push", "sim"];
        job(first.path(), &flags).process_group(0).stderr(Stdio::null()).spawn().unwrap()
    };
    let has_set = || pool.run(&["files", "fetch", "sim", "--list"]).text().contains("set 4");
    wait_until("the state of the second set is in the pool", has_set);
    assert_eq!(pool.json(&["latest", "sim", "--json"])["timestep"], 4);
    kill_all(driver);
    first.close().unwrap();

    let place = tempfile::tempdir().unwrap();
    fetch(&pool, &["sim"], &place.path().join("there"));
    std::fs::write(outside.path().join("go"), "").unwrap();
    let ended = outcome(job(&place.path().join("there"), &["--resume", "--push", "sim"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    let log = std::fs::read_to_string(place.path().join("there/log")).unwrap();
    assert_eq!(log.lines().count(), 6, "{log}");
    fetch(&pool, &["sim", "--set", "4"], &place.path().join("back"));
    assert_eq!(std::fs::read_to_string(place.path().join("back/log")).unwrap().lines().count(), 4);
}

#[test]
fn what_cannot_be_fetched_is_said_and_nothing_is_left() {
    let pool = Pool::up(1, &[]);
    let root = tempfile::tempdir().unwrap();
    pool.fails(&["files", "fetch", "none", "-o", "there"], 4, &["no file state"]);
    assert_eq!(run(&pool, root.path(), &["run", "--push", "one", "--", "true"]).code, 0);
    pool.fails(&["files", "fetch", "one", "--index", "9", "-o", "there"], 4, &["checkpoint 9", "--list"]);
    pool.fails(&["files", "fetch", "one", "--set", "9", "-o", "there"], 4, &["set 9"]);
    std::fs::create_dir(pool.path("full")).unwrap();
    std::fs::write(pool.path("full/file"), "").unwrap();
    pool.fails(&["files", "fetch", "one", "-o", "full"], 2, &["not empty"]);
    pool.put(b"no file state", "other/.files/tree.tar");
    pool.fails(&["files", "fetch", "other", "-o", "there"], 7, &["does not begin with a file state"]);
    pool.fails(&["run", "--push", "/", "--", "true"], 2, &["application's folder"]);
    let left: Vec<_> =
        std::fs::read_dir(pool.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name == "there" || name.to_string_lossy().ends_with(".stdchk-part")));
}
