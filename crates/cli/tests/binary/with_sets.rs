//! `stdchk run --with-sets`: the files of a job go back to exactly the checkpoint set that it restarts from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use stdchk_tests::{Outcome, Pool, outcome, preload_library, wait_until};

/// A job of two ranks, whose states are its own files, so that a restart can compare: `$1` is the folder of its sets,
/// `$2` where the machine goes down.
const JOB: &str = r#"
folder=$1; down_at=$2; step=${STDCHK_STEP:-0}
down() { [ "$down_at" != "$1" ] || { kill -9 $PPID; kill -9 $$; }; }
if [ $step != 0 ]; then
    cmp log $folder/job.N0.T$step && cmp field $folder/job.N1.T$step || exit 9
fi
while [ $step -lt 12 ]; do
    step=$((step + 1))
    echo "step $step" >> log
    yes $step | head -c 3000 | dd of=field bs=1000 seek=$((step % 4)) conv=notrunc status=none
    rm -f scratch; echo "scratch of $step" > scratch
    down "in step $step"
    if [ $((step % 3)) = 0 ]; then
        cat log > $folder/job.N0.T$step
        down "between the ranks of $step"
        cp field $folder/part; mv $folder/part $folder/job.N1.T$step
    fi
done
echo "done" >> results
"#;

fn files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.is_file());
    files.map(|path| (path.file_name().unwrap().into(), std::fs::read(&path).unwrap())).collect()
}

/// A mounted pool with a folder for sets of two ranks.
fn pool_with_folders(apps: &[&str]) -> Pool {
    let pool = Pool::mounted(2);
    for app in apps {
        pool.policy(app, &["ranks=2", "redundancy=replicate:1"]);
    }
    pool
}

fn stdchk(pool: &Pool, root: &Path, arguments: &[&str]) -> Outcome {
    let mut command = pool.command(arguments);
    command.current_dir(root).env("STDCHK_PRELOAD", preload_library());
    outcome(command)
}

fn job(pool: &Pool, root: &Path, flags: &[&str], app: &str, down_at: &str) -> Outcome {
    let folder = pool.at(app);
    let command = ["--", "sh", "-c", JOB, "job", folder.to_str().unwrap(), down_at];
    stdchk(pool, root, &[&["run"], flags, &command].concat())
}

/// Resumes once no process of the killed job is left.
fn resume(pool: &Pool, root: &Path, flag: &str, down_at: &str) -> Outcome {
    let mut last = None;
    wait_until("the killed job is gone", || {
        let ended = job(pool, root, &[flag], "sim", down_at);
        let goes_on = ended.stderr.contains("still runs") || ended.stderr.contains("another run");
        last = Some(ended);
        !goes_on
    });
    last.unwrap()
}

fn sets(pool: &Pool, root: &Path) -> Vec<String> {
    let log = stdchk(pool, root, &["files", "log", "--json"]).json();
    let label = |checkpoint: &Value| checkpoint["label"].as_str().unwrap().to_owned();
    let labels = log["checkpoints"].as_array().unwrap().iter().map(label);
    labels.filter(|label| label.starts_with("set ")).collect()
}

#[test]
fn a_job_killed_three_times_goes_on_from_the_files_of_the_newest_complete_set() {
    let pool = pool_with_folders(&["sim", "whole"]);
    let (whole, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = broken.path();
    let undisturbed = job(&pool, whole.path(), &[], "whole", "never");
    assert_eq!(undisturbed.code, 0, "{undisturbed:?}");

    let folder = pool.at("sim");
    let killed = job(&pool, root, &["--with-sets", folder.to_str().unwrap()], "sim", "in step 5");
    assert_eq!((killed.code, sets(&pool, root)), (-1, vec!["set 3".to_owned()]), "{killed:?}");
    let killed = resume(&pool, root, "--resume", "between the ranks of 6");
    // The file state of the set that did not become complete is there; nobody asks for it.
    assert_eq!(
        (killed.code, sets(&pool, root)),
        (-1, ["set 3", "set 6"].map(str::to_owned).to_vec()),
        "{killed:?}"
    );
    assert_eq!(pool.json(&["latest", "sim", "--json"])["timestep"], 3);
    let killed = resume(&pool, root, "--resume=auto", "in step 10");
    assert_eq!(killed.code, -1, "{killed:?}");
    assert_eq!(pool.json(&["latest", "sim", "--json"])["timestep"], 9);
    let ended = resume(&pool, root, "--resume", "never");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(files(root), files(whole.path()));

    let back = stdchk(&pool, root, &["files", "restore", "--set", "9"]);
    assert_eq!(back.code, 0, "{back:?}");
    assert_eq!(std::fs::read(root.join("log")).unwrap(), std::fs::read(pool.at("sim/job.N0.T9")).unwrap());
    assert_eq!(stdchk(&pool, root, &["files", "restore", "--set", "12"]).code, 4);
}

#[test]
fn a_job_that_has_no_complete_set_yet_starts_again_with_its_first_files() {
    let pool = pool_with_folders(&["sim"]);
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("log"), "begun before\n").unwrap();
    let folder = pool.at("sim");
    let killed = job(&pool, root.path(), &["--with-sets", folder.to_str().unwrap()], "sim", "in step 2");
    assert_eq!(killed.code, -1, "{killed:?}");
    let killed = resume(&pool, root.path(), "--resume", "in step 1");
    assert_eq!(killed.code, -1, "{killed:?}");
    assert_eq!(std::fs::read_to_string(root.path().join("log")).unwrap(), "begun before\nstep 1\n");
}

#[test]
fn folders_that_cannot_say_their_sets_are_refused_before_the_program_starts() {
    let pool = pool_with_folders(&["sim"]);
    pool.policy("rewritten", &["naming=state.cpt"]);
    let root = tempfile::tempdir().unwrap();
    for (folder, says) in [
        (pool.at("rewritten"), "{step}"),
        (pool.mount_point(), "no folder of an application"),
        (root.path().to_owned(), "no pool is mounted there"),
    ] {
        let ended = job(&pool, root.path(), &["--with-sets", folder.to_str().unwrap()], "sim", "never");
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains(says), "`{says}` is missing in: {}", ended.stderr);
    }
    let folder = pool.at("sim");
    let one = ["--mode", "single", "--with-sets", folder.to_str().unwrap()];
    assert_eq!(job(&pool, root.path(), &one, "sim", "never").code, 2);
    assert!(files(root.path()).is_empty());
}
