//! `README.md` and `docs/OPERATIONS.md`: every command line of their `console` examples runs, from the first to the last,
//! as written, in an empty home directory.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stdchk_tests::{ObjectStore, binary, command, outcome, preload_library};

/// The command lines of all `console` blocks: behind `$ `, continued where a line ends with a backslash.
fn command_lines(document: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut inside = false;
    let mut continued = false;
    for line in document.lines() {
        match line.strip_prefix("```") {
            Some(word) => inside = word == "console",
            None if inside && continued => {
                lines.last_mut().map(|last: &mut String| last.push_str(line)).unwrap()
            }
            None if inside && line.starts_with("$ ") => lines.push(line[2..].to_owned()),
            None => continue,
        }
        continued = inside && lines.last().is_some_and(|last| last.ends_with('\\'));
        if continued {
            lines.last_mut().unwrap().pop();
        }
    }
    lines
}

/// Takes the pool of the examples down however they ended; one that is down stays so.
struct Down(PathBuf);

impl Drop for Down {
    fn drop(&mut self) {
        // A failure here must not hide the one before.
        let _ = command(&["down", "--data"]).arg(&self.0).output();
    }
}

/// Runs the examples of a document, which must have at least so many.
fn run_examples(document: &str, at_least: usize) {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let lines = command_lines(&fs::read_to_string(document).unwrap());
    assert!(lines.len() >= at_least, "the examples were found: {}", lines.len());
    let home = tempfile::tempdir().unwrap();
    let binaries = home.path().join("bin");
    fs::create_dir(&binaries).unwrap();
    symlink(binary(), binaries.join("stdchk")).unwrap();
    let script = format!("set -euo pipefail\n{}\n", lines.join("\n"));
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell.args(["-x", "-c", &script]).current_dir(home.path()).stdin(Stdio::null());
    // For what the documents say of object stores.
    let store = ObjectStore::start();
    shell
        .env_clear()
        .envs(ObjectStore::variables(&store.endpoint()))
        .env("PATH", path)
        .env("HOME", home.path())
        .env("STDCHK_PRELOAD", preload_library());
    let down = Down(home.path().join(".local/state/stdchk"));
    let ended = outcome(shell);
    drop(down);
    assert_eq!(ended.code, 0, "{}\n{}", ended.text(), ended.stderr);
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(home.path().to_str().unwrap()));
}

#[test]
fn every_command_line_of_the_first_steps_runs() {
    run_examples("README.md", 10);
}

#[test]
fn every_command_line_of_the_operations_document_runs() {
    run_examples("docs/OPERATIONS.md", 40);
}
