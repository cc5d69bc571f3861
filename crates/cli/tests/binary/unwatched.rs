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
    let built = Command::new("cc").args(["-O2", "-o"]).arg(&binary).arg(&file).args(flags).status();
    assert!(built.unwrap().success());
    binary.display().to_string()
}

const PLAIN: &str = r#"
#include <fcntl.h>
#include <unistd.h>
int main(void) { int f = open("a", O_WRONLY); return write(f, "XXXX", 4) != 4; }"#;
const OWN_CALLS: &str = r#"
extern int open(const char *, int, ...);
extern int close(int);
int main(void) {
    long r, f = open("a", 1);
    __asm__ volatile("mov $1, %%eax\n\tsyscall" : "=a"(r) : "D"(f), "S"("XXXX"), "d"(4L) : "rcx", "r11", "memory");
    close(f);
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

/// Whether this kernel hands calls of such code to a handler.
#[cfg(target_arch = "x86_64")]
fn can_dispatch() -> bool {
    let script = "import ctypes; raise SystemExit(ctypes.CDLL(None).prctl(59, 0, 0, 0, 0) != 0)";
    Command::new("python3").args(["-c", script]).status().unwrap().success()
}

/// Calls of code that is loaded apart from the C library reach the hooks, whatever thread or forked child makes them, and a
/// program's own handlers and masks of signals stay what they are.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_child_and_a_library_with_their_own_system_calls_are_taken_back() {
    if !can_dispatch() {
        return;
    }
    let (directory, root) = tree();
    let own = compile(directory.path(), "own", OWN_CALLS, &[]);
    let refused = run(&root, &["run", "--", &own]);
    assert!(refused.code == 125 && !root.join(".stdchk-files").exists(), "{refused:?}");
    let library = OWN_CALLS.replace("main", "put");
    let library = compile(directory.path(), "library.so", &library, &["-shared", "-fPIC"]);
    let python = |script: &str| format!("python3 -c '{}'", script.replace("LIBRARY", &library));
    let program = "int put(void); int main(void) { return put(); }";
    let jobs = [
        "../own".to_owned(),
        compile(directory.path(), "linked", program, &[&library]),
        python("import ctypes; raise SystemExit(ctypes.CDLL(\"LIBRARY\").put())"),
        python(
            "import ctypes, threading; put = ctypes.CDLL(\"LIBRARY\").put
done = []; thread = threading.Thread(target=lambda: done.append(put())); thread.start(); thread.join()
raise SystemExit(done != [0])",
        ),
        python(
            "import ctypes, threading; go = threading.Event(); done = []
def work(): go.wait(); done.append(ctypes.CDLL(\"LIBRARY\").put())
thread = threading.Thread(target=work); thread.start(); ctypes.CDLL(\"LIBRARY\"); go.set(); thread.join()
raise SystemExit(done != [0])",
        ),
        python(
            "import ctypes, os; put = ctypes.CDLL(\"LIBRARY\").put; child = os.fork()
if child == 0: os._exit(put())
raise SystemExit(os.waitpid(child, 0)[1])",
        ),
        python(
            "import ctypes, os, signal; put = ctypes.CDLL(\"LIBRARY\").put; done = []
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)); assert put() == 0
signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 32))
signal.signal(signal.SIGUSR1, lambda *_: done.append(put())); os.kill(os.getpid(), signal.SIGUSR1)
raise SystemExit(done != [0])",
        ),
    ];
    for job in &jobs {
        let ended = run_script(&root, &[], job);
        assert!(ended.code == 0 && ended.stderr.is_empty(), "{job}: {ended:?}");
        assert!(std::fs::read_to_string(root.join("a")).unwrap().starts_with("XXXX"), "{job}");
        let restored = run(&root, &["files", "restore", "0"]);
        assert_eq!(restored.code, 0, "{job}: {restored:?}");
        assert_eq!(std::fs::read_to_string(root.join("a")).unwrap(), "0000000000\n", "{job}");
        assert_eq!(run(&root, &["files", "discard"]).code, 0);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_library_with_its_own_system_calls_that_is_looked_for_by_name_is_named() {
    let (directory, root) = tree();
    let library = OWN_CALLS.replace("main", "put");
    compile(directory.path(), "library.so", &library, &["-shared", "-fPIC"]);
    let python = "python3 -c 'import ctypes; ctypes.CDLL(\"library.so\").put()'";
    is_named(&root, &format!("LD_LIBRARY_PATH=.. {python}"), "library.so");
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
