//! Programs under `stdchk run` that nobody watches: each is named at the end, in the record, and by a restore.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use stdchk_tests::wait_until;

use crate::files::{json, run, run_script, stdchk};

/// Compiles a C program that writes XXXX into `a`.
fn compile(root: &Path, name: &str, source: &str, flags: &[&str]) -> String {
    let file = root.join(format!("{name}.c"));
    std::fs::write(&file, source).unwrap();
    let binary = root.join(name);
    let built = Command::new("cc").args(flags).arg("-O2").arg("-o").arg(&binary).arg(&file).status();
    assert!(built.unwrap().success());
    binary.display().to_string()
}

const PLAIN: &str = r#"
#include <fcntl.h>
#include <unistd.h>
int main(void) { int f = open("a", O_WRONLY); return write(f, "XXXX", 4) != 4; }"#;
const OWN_CALLS: &str = r#"
extern int open(const char *, int, ...);
int main(void) {
    long r, f = open("a", 1);
    __asm__ volatile("mov $1, %%eax\n\tmov %1, %%rdi\n\tsyscall" : "=a"(r) : "r"(f), "S"("XXXX"), "d"(4L) : "rdi", "rcx", "r11", "memory");
    return r != 4;
}"#;

fn tree() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("tree");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("a"), "0000000000\n").unwrap();
    (directory, root)
}

/// Runs the command as a child, and expects that it is named everywhere.
fn is_named(root: &Path, command: &str, name: &str) {
    let ended = run_script(root, &["--report", "../report"], &format!("{command}; true"));
    assert!(ended.code == 0 && ended.stderr.contains("not watched"), "{ended:?}");
    assert!(ended.stderr.contains(name), "{ended:?}");
    let report = std::fs::read_to_string(root.join("../report")).unwrap();
    assert!(report.contains("not watched"), "{report}");
    still_named(root, name);
}

fn still_named(root: &Path, name: &str) {
    let log = json(root, &["files", "log", "--json"]);
    let notes = log["notes"].to_string();
    assert!(notes.contains(name) && notes.contains("not watched"), "{log}");
    let restored = run(root, &["files", "restore", "0"]);
    assert!(restored.code == 3 && restored.stderr.contains("is not taken back"), "{restored:?}");
    assert!(restored.stderr.contains(name), "{restored:?}");
}

#[test]
fn a_script_whose_interpreter_is_static_is_named() {
    let (directory, root) = tree();
    let interpreter = compile(directory.path(), "interpreter", PLAIN, &["-static"]);
    let script = directory.path().join("script");
    std::fs::write(&script, format!("#!{interpreter}\n")).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    is_named(&root, "../script", "../script");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_child_and_a_library_with_their_own_system_calls_are_named() {
    let (directory, root) = tree();
    let own = compile(directory.path(), "own", OWN_CALLS, &[]);
    let refused = run(&root, &["run", "--", &own]);
    assert!(refused.code == 125 && !root.join(".stdchk-files").exists(), "{refused:?}");
    is_named(&root, "../own", "own");
    let library = OWN_CALLS.replace("main", "put");
    let library = compile(directory.path(), "library.so", &library, &["-shared", "-fPIC"]);
    is_named(&root, &format!("python3 -c 'import ctypes; ctypes.CDLL(\"{library}\").put()'"), "library.so");
}

/// A program that gets an environment of its own, by way of one that no library is in.
#[test]
fn an_environment_without_the_library_is_told_of_and_nothing_is_said_of_the_others() {
    let (directory, root) = tree();
    let plain = compile(directory.path(), "plain", PLAIN, &[]);
    let script = format!(
        "env -i {plain}; python3 -c 'import subprocess; subprocess.run([\"{plain}\"], env={{}})'; true"
    );
    let ended = run_script(&root, &[], &script);
    assert!(ended.code == 0 && ended.stderr.is_empty(), "{ended:?}");
    assert_eq!(run(&root, &["files", "restore", "0"]).code, 0);
    let source = r#"
        #include <unistd.h>
        int main(int n, char **words) { char *none[] = {0}; return execve(words[1], words + 1, none); }"#;
    let launcher = compile(directory.path(), "launcher", source, &["-static"]);
    is_named(&root, &format!("{launcher} {plain}"), "launcher");
}

#[test]
fn a_kill_of_the_run_does_not_make_it_forgotten() {
    let (directory, root) = tree();
    let interpreter = compile(directory.path(), "interpreter", PLAIN, &["-static"]);
    let script = directory.path().join("script");
    std::fs::write(&script, format!("#!{interpreter}\n")).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let killed = stdchk(&root, &["run", "--", "sh", "-c", "../script; kill -9 $PPID; kill -9 $$"]).status();
    assert!(!killed.unwrap().success());
    let still_runs = || run(&root, &["files", "restore", "0"]).stderr.contains("still runs");
    wait_until("the job is gone", || !still_runs());
    still_named(&root, "../script");
}

#[test]
fn a_run_inside_a_run_is_refused_before_its_program_starts() {
    let (_directory, root) = tree();
    std::fs::create_dir(root.join("in")).unwrap();
    let binary = stdchk_tests::binary();
    let script = format!("cd in; '{}' run -- sh -c 'echo j > f'; echo $? > ../code", binary.display());
    let ended = run_script(&root, &[], &script);
    assert!(ended.stderr.contains("runs inside of runs"), "{ended:?}");
    assert_eq!(std::fs::read_to_string(root.join("code")).unwrap(), "125\n");
    assert!(!root.join("in/f").exists() && !root.join("in/.stdchk-files").exists());
}
