//! `stdchk run` where something around the job differs: the tree gets another name, files are limited in length, space is
//! allocated beforehand.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use stdchk_tests::{binary, outcome, preload_library, wait_until};

use crate::files::{run, run_script, stdchk};

#[test]
fn a_tree_that_is_renamed_while_its_job_runs_is_protected_as_before() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("old"), directory.path().join("new"));
    std::fs::create_dir_all(old.join("tree")).unwrap();
    std::fs::write(old.join("tree/a"), "before\n").unwrap();
    std::fs::write(old.join("tree/b"), "before\n").unwrap();
    let script = format!(
        "echo > started; while [ -e '{}' ]; do :; done; echo after > a; sh -c 'rm b; echo > c'",
        old.display()
    );
    let mut job = stdchk(&old.join("tree"), &["run", "--", "sh", "-c", &script]).spawn().unwrap();
    wait_until("the job runs", || old.join("tree/started").exists());
    std::fs::rename(&old, &new).unwrap();
    assert!(job.wait().unwrap().success());
    let tree = new.join("tree");
    assert_eq!(std::fs::read_to_string(tree.join("a")).unwrap(), "after\n");
    let restored = run(&tree, &["files", "restore", "0"]);
    assert_eq!(restored.code, 0, "{restored:?}");
    for name in ["a", "b"] {
        assert_eq!(std::fs::read_to_string(tree.join(name)).unwrap(), "before\n");
    }
    assert!(!tree.join("c").exists() && !tree.join("started").exists());
}

#[test]
fn a_job_under_a_limit_on_the_length_of_files_runs_as_without() {
    let root = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..8).map(|number| format!("file{number}")).collect();
    for name in &names {
        std::fs::write(root.path().join(name), vec![b'a'; 700_000]).unwrap();
    }
    std::fs::write(root.path().join("small"), "before\n").unwrap();
    // 1000 blocks are 512,000 or 1,024,000 bytes, as the shell has it.
    let job = "head -c 400000 /dev/zero > zeros; echo x > small
               for n in 0 1 2 3 4 5 6 7; do dd if=zeros of=file$n bs=100000 conv=notrunc status=none || exit 7; done";
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 1000; exec \"$0\" run -- sh -c \"$1\""]).arg(binary()).arg(job);
    let ended = outcome({
        shell.current_dir(root.path()).env("STDCHK_PRELOAD", preload_library());
        shell
    });
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(root.path().join(".stdchk-files/log").metadata().unwrap().len() < 100_000);
    assert_eq!(run(root.path(), &["files", "restore", "0"]).code, 0);
    for name in &names {
        assert!(std::fs::read(root.path().join(name)).unwrap() == vec![b'a'; 700_000], "{name}");
    }
    assert_eq!(std::fs::read_to_string(root.path().join("small")).unwrap(), "before\n");
}

#[test]
fn space_that_a_job_allocates_in_a_hole_or_behind_the_end_is_given_back() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("file");
    let file = std::fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", 4 << 20).unwrap();
    file.sync_all().unwrap();
    let before = path.metadata().unwrap().blocks();
    let ended = run_script(root.path(), &[], "fallocate -n -l 8M file && fallocate -l 1M file");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(path.metadata().unwrap().blocks() > 16_000, "8 MiB are allocated");
    assert_eq!(run(root.path(), &["files", "restore", "0"]).code, 0);
    let after = path.metadata().unwrap().blocks();
    assert!(after <= before + 64, "{before} blocks before, {after} after");
    assert_eq!(path.metadata().unwrap().len(), (4 << 20) + 3);
}
