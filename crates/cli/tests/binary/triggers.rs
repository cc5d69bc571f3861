//! `stdchk run --when-closed` and `--when-renamed`: which events take a checkpoint, and what is said when none does.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::files::{json, run_script, stdchk};

fn labels(root: &Path) -> Vec<String> {
    let log = json(root, &["files", "log", "--json"]);
    let entries = log["checkpoints"].as_array().unwrap().iter();
    entries.map(|entry| entry["label"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_file_is_closed_when_its_last_writer_has_closed_it() {
    let root = tempfile::tempdir().unwrap();
    let script = r#"
        exec 3> ck.1; echo one >&3; sh -c 'exec 3>&-'; echo two >&3; exec 3>&-
        echo other > data; cat ck.1 > /dev/null
        python3 -c 'import os; os.write(1, b"left to the kernel"); os._exit(0)' > ck.2
        python3 -c 'import os; os.open("ck.3", os.O_WRONLY | os.O_CREAT); os.execvp("true", ["true"])'
        echo done > ck.new; mv ck.new kept"#;
    let flags = ["--when-closed", "ck.[0-9]", "--when-renamed", "k*"];
    assert_eq!(run_script(root.path(), &flags, script).code, 0);
    let expected = ["start", "closed ck.1", "closed ck.2", "closed ck.3", "renamed to kept", "end"];
    assert_eq!(labels(root.path()), expected);
    assert!(json(root.path(), &["files", "log", "--json"])["notes"].as_array().unwrap().is_empty());
    assert_eq!(json(root.path(), &["files", "restore", "1", "--json"])["index"], 1);
    assert_eq!(std::fs::read_to_string(root.path().join("ck.1")).unwrap(), "one\ntwo\n");
    assert!(!root.path().join("data").exists());
}

#[test]
fn a_pattern_that_matched_nothing_is_named_with_what_was_written_also_after_a_kill() {
    let root = tempfile::tempdir().unwrap();
    let flags = ["--when-closed", "chk*", "--when-renamed", "state"];
    let ended = run_script(root.path(), &flags, "mkdir out; echo > out/chk7; echo x > state");
    assert_eq!(ended.code, 0);
    let expect = |text: &str| {
        for word in
            ["--when-closed chk* took no checkpoint", "--when-renamed state took no", "out/chk7, state"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
    };
    expect(&ended.stderr);
    std::fs::remove_dir_all(root.path().join("out")).unwrap();
    let killed = stdchk(root.path(), &["run", flags[0], flags[1], flags[2], flags[3], "--", "sh", "-c"])
        .arg("mkdir out; echo > out/chk7; echo x > state; kill -9 $PPID; kill -9 $$")
        .status();
    assert!(!killed.unwrap().success());
    let log = json(root.path(), &["files", "log", "--json"]);
    assert_eq!(log["state"], "interrupted");
    let notes = log["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<Vec<_>>();
    expect(&notes.join("\n"));
}

#[test]
fn what_a_process_holds_back_is_written_once_though_its_child_closes_a_file() {
    let root = tempfile::tempdir().unwrap();
    let program = r#"
        #include <fcntl.h>
        #include <stdio.h>
        #include <sys/wait.h>
        #include <unistd.h>
        int main(void) {
            int fd = open("ck.1", O_WRONLY | O_CREAT, 0644);
            FILE *log = fopen("log", "w");
            fputs("once\n", log);
            if (fork() == 0) { close(fd); _exit(0); }
            wait(0);
            if (fork() == 0) { close(open("ck.2", O_WRONLY | O_CREAT, 0644)); _exit(0); }
            wait(0);
            close(fd);
            if (fork() == 0) { fputs("discarded\n", log); _exit(0); }
            wait(0);
            return fclose(log);
        }"#;
    let sources = tempfile::tempdir().unwrap();
    let (source, binary) = (sources.path().join("program.c"), sources.path().join("program"));
    std::fs::write(&source, program).unwrap();
    assert!(Command::new("gcc").arg("-o").arg(&binary).arg(&source).status().unwrap().success());
    let script = binary.to_str().unwrap();
    assert_eq!(run_script(root.path(), &["--when-closed", "ck.*"], script).code, 0);
    assert_eq!(std::fs::read_to_string(root.path().join("log")).unwrap(), "once\n");
    assert_eq!(labels(root.path()), ["start", "closed ck.2", "closed ck.1", "end"]);
}
