//! Programs that wait for a pool that doesn't answer can be ended, in whatever call they wait; and signals that ask nobody to
//! end interrupt nothing (`docs/SEMANTICS.md`, "Signals").
//!
//! The roles are stopped, not killed: nothing that is asked of them is refused, and only the mount's patience would
//! end a wait.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use stdchk_tests::{Pool, Setup, random_bytes, send_signal, wait_until, within};

const MIB: usize = 1 << 20;
/// Within this time a program is gone that was told to end; a fraction of the mount's patience of 60 s, and many times
/// what it takes, for a machine under load.
const GONE_WITHIN: Duration = Duration::from_secs(12);
/// Looks in a row at which a program that waits must sleep, and the pause between them.
const LOOKS: u32 = 10;
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// What a program leaves in the page cache, bytes: more than the window of its folder, and so little that the kernel keeps
/// it for all programs at once. It lets one FUSE mount have a five-hundredth of the memory; on a machine of little
/// memory the programs wait in `write()` already.
const CACHED_BYTES: usize = 8 * MIB;
/// What a program hands over in one call, bytes.
const PAGE_BYTES: usize = 4096;

/// A role of a pool that is stopped for as long as this lives.
struct Stopped<'a> {
    pool: &'a Pool,
    role: &'static str,
}

impl<'a> Stopped<'a> {
    fn new(pool: &'a Pool, role: &'static str) -> Self {
        pool.process(role).signal(Signal::STOP);
        Self { pool, role }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.pool.process(self.role).signal(Signal::CONT);
    }
}

/// One way to wait: what a program does while the pool answers, and the call in which it waits then.
struct Call {
    name: &'static str,
    before: &'static str,
    call: &'static str,
}

const fn call(name: &'static str, before: &'static str, call: &'static str) -> Call {
    Call { name, before, call }
}

/// Every call that asks the manager something.
const ASKING: [Call; 20] = [
    call("stat", "", "os.stat('never-seen')"),
    call("readdir", "folder = os.open('folder', os.O_RDONLY)", "os.listdir(folder)"),
    call("readlink", "", "os.readlink('link')"),
    call("statvfs", "here = os.open('.', os.O_RDONLY)", "os.fstatvfs(here)"),
    call("open", "", "os.open('file', os.O_RDONLY)"),
    call("open to write", "", "os.open('file', os.O_WRONLY)"),
    call("open to empty", "", "os.open('file', os.O_WRONLY | os.O_TRUNC)"),
    call("create", "", "os.open('new', os.O_CREAT | os.O_WRONLY)"),
    call("mkdir", "", "os.mkdir('new')"),
    call("symlink", "", "os.symlink('file', 'new')"),
    call("link", "", "os.link('file', 'new')"),
    call("rename", "", "os.rename('file', 'other')"),
    call("rename of an open file", "f = new(b'x' * 100_000)", "os.rename('new', 'other')"),
    call("unlink", "", "os.unlink('file')"),
    call("rmdir", "", "os.rmdir('folder')"),
    call("chmod", "", "os.chmod('file', 0o600)"),
    call("truncate", "", "os.truncate('file', 10)"),
    call("fsync", "f = new(b'x' * 100_000)", "os.fsync(f)"),
    call("close", "f = new(b'x' * 100_000)", "os.close(f)"),
    call("exit", "f = new(b'x' * 100_000)", "os.kill(os.getpid(), signal.SIGKILL)"),
];

/// Every call that moves bytes.
const MOVING: [Call; 11] = [
    call("read", "f = os.open('file', os.O_RDONLY)", "os.pread(f, 1 << 20, 0)"),
    call(
        "read past the cache",
        "f = os.open('file', os.O_RDONLY | os.O_DIRECT)",
        "os.preadv(f, [buffer], 0)",
    ),
    call(
        "page fault",
        "f = os.open('file', os.O_RDONLY); m = mmap.mmap(f, 0, prot=mmap.PROT_READ)",
        "m[70_000]",
    ),
    call("cp", "", "os.execvp('cp', ['cp', 'file', 'copy'])"),
    call(
        "write past the cache",
        "f = os.open('new', os.O_CREAT | os.O_WRONLY | os.O_DIRECT)",
        "while True: buffer[:] = os.urandom(len(buffer)); os.write(f, buffer)",
    ),
    call("fsync of pages", "f = new()", "fill(f); os.fsync(f)"),
    call("close of pages", "f = new()", "fill(f); os.close(f)"),
    call("exit with pages", "f = new()", "fill(f); os.kill(os.getpid(), signal.SIGKILL)"),
    call("SEEK_DATA", "f = new()", "fill(f); os.lseek(f, 0, os.SEEK_DATA)"),
    call("ftruncate", "f = new()", "fill(f); os.ftruncate(f, 10); os.fsync(f)"),
    call("fallocate", "f = new()", "fill(f); os.posix_fallocate(f, 0, 64 << 20); os.fsync(f)"),
];

const PRELUDE: &str = r#"
import mmap, os, signal, sys
os.chdir(sys.argv[1])
bytes_to_write = open(sys.argv[2], 'rb').read()
buffer = mmap.mmap(-1, 1 << 20)
def new(content=b''):
    file = os.open('new', os.O_CREAT | os.O_RDWR)
    os.write(file, content)
    return file
def fill(file):
    for at in range(0, len(bytes_to_write), 4096):
        os.write(file, bytes_to_write[at : at + 4096])
        print(at + 4096, flush=True)
"#;

/// A program that is about to make a call.
struct Program {
    child: Child,
    name: String,
    said: PathBuf,
}

impl Program {
    fn start(pool: &Pool, number: usize, call: &Call, content: &str) -> Self {
        let folder = pool.at(&format!("app/{number}"));
        let said = pool.path(&format!("said-{number}"));
        let script = format!(
            "{PRELUDE}\n{}\nprint('ready', flush=True)\nsys.stdin.readline()\nprint('calls', flush=True)\n{}\nprint('done', flush=True)\n",
            call.before, call.call
        );
        let mut command = Command::new("python3");
        command.args(["-c", &script]).arg(folder).arg(content).stdin(Stdio::piped());
        let child = command.stdout(fs::File::create(&said).unwrap()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, name: call.name.to_owned(), said }
    }

    fn says(&self, what: &str) -> bool {
        fs::read_to_string(&self.said).unwrap().lines().any(|line| line == what)
    }

    /// How many bytes it says to have written.
    fn wrote(&self) -> usize {
        let said = fs::read_to_string(&self.said).unwrap();
        said.lines().filter_map(|line| line.parse().ok()).next_back().unwrap_or(0)
    }

    fn go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Whether it is in the call and waits there. Whoever waits for a FUSE request sleeps as one that can be interrupted (`S`)
    /// until a signal comes, and as one that can't (`D`) after it; behind the call's begin it has nothing else to wait for.
    fn waits(&self) -> bool {
        self.says("calls")
            && (0..LOOKS).all(|_| {
                std::thread::sleep(LOOK_PAUSE);
                let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
                stat.rsplit_once(") ").unwrap().1.starts_with(['S', 'D'])
            })
    }

    /// Whether every signal that was sent to it has reached it.
    fn took_all_signals(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let mut pending =
            status.lines().filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"));
        pending.all(|line| line.ends_with(&format!("\t{}", "0".repeat(16))))
    }

    fn signal(&self, signal: Signal) {
        send_signal(self.child.id(), signal);
    }
}

/// Waits until all of them are gone, and says which are not in time.
fn all_gone(programs: &mut [Program]) -> Vec<String> {
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let left: Vec<String> = programs
            .iter_mut()
            .filter_map(|program| program.child.try_wait().unwrap().is_none().then(|| program.name.clone()))
            .collect();
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A pool with a folder for each of the calls, whose files have one copy and a small window.
fn pool_with_folders(calls: &[Call]) -> Pool {
    let pool = Setup { donate: "1GiB".to_owned(), ..Setup::of(1) }.up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1", "window=4MiB"]);
    for number in 0..calls.len() {
        let folder = pool.at(&format!("app/{number}"));
        fs::create_dir_all(folder.join("folder")).unwrap();
        fs::write(folder.join("other"), "other").unwrap();
        std::os::unix::fs::symlink("other", folder.join("link")).unwrap();
        pool.put(&random_bytes(2 * MIB, number as u64 + 1), &format!("app/{number}/file"));
    }
    pool
}

/// Has a program wait in each of the calls while a role is stopped, and kills them all; how many bytes each of them had
/// written.
fn kill_in(pool: &Pool, role: &'static str, calls: &[Call], content: &str) -> Vec<usize> {
    let mut programs: Vec<Program> =
        calls.iter().enumerate().map(|(number, call)| Program::start(pool, number, call, content)).collect();
    for program in &programs {
        wait_until(&format!("{} is ready", program.name), || program.says("ready"));
    }
    let stopped = Stopped::new(pool, role);
    programs.iter_mut().for_each(Program::go);
    for program in &programs {
        wait_until(&format!("{} waits", program.name), || {
            assert!(!program.says("done"), "{} did not wait", program.name);
            // Who kills itself may be gone already.
            program.waits() || program.says("calls") && program.name.starts_with("exit")
        });
    }
    programs
        .iter()
        .filter(|program| !program.name.starts_with("exit"))
        .for_each(|one| one.signal(Signal::KILL));
    let left = all_gone(&mut programs);
    drop(stopped);
    for program in &mut programs {
        let _ = program.child.kill();
        assert!(!program.says("done"), "{}", program.name);
        program.child.wait().unwrap();
    }
    assert!(left.is_empty(), "still there after {GONE_WITHIN:?}: {left:?}");
    programs.iter().map(Program::wrote).collect()
}

fn states(pool: &Pool, name: &str) -> Vec<(String, u64)> {
    let of = |version: &serde_json::Value| {
        (version["state"].as_str().unwrap().to_owned(), version["size"].as_u64().unwrap())
    };
    pool.versions(name).iter().map(of).collect()
}

#[test]
fn a_killed_program_is_gone_at_once_from_whatever_it_asks_of_a_manager_that_is_stopped() {
    let pool = pool_with_folders(&ASKING);
    let content = pool.file("content", b"");
    kill_in(&pool, "manager", &ASKING, &content);
    // What was asked of the manager before its program went is done or is not; nothing is asked any more.
    wait_until("the pool answers again", || pool.shows(|status| status["health"] != "unknown"));
    for (number, call) in ASKING.iter().enumerate() {
        let folder = pool.at(&format!("app/{number}"));
        let listed = within("listing", move || fs::read_dir(folder).map(Iterator::count));
        assert!(listed.unwrap() >= 3, "{}", call.name);
        if matches!(call.name, "fsync" | "close" | "exit") {
            let name = format!("app/{number}/new");
            let state = if call.name == "close" { "closed" } else { "interrupted" };
            wait_until(call.name, || states(&pool, &name) == [(state.to_owned(), 100_000)]);
        }
        // Nobody closed what an `open()` made or emptied for a program that is gone.
        for name in ["file", "new"].map(|name| format!("app/{number}/{name}")) {
            let emptied = pool.at(&name).exists() && states(&pool, &name).contains(&("closed".to_owned(), 0));
            assert!(!emptied, "{name} after {}", call.name);
        }
    }
}

#[test]
fn a_killed_program_is_gone_at_once_while_a_benefactor_is_stopped_and_loses_nothing_that_it_had_written() {
    let pool = pool_with_folders(&MOVING);
    let bytes = random_bytes(CACHED_BYTES, 99);
    let content = pool.file("content", &bytes);
    let wrote = kill_in(&pool, "benefactor-0", &MOVING, &content);
    for (number, (call, wrote)) in MOVING.iter().zip(wrote).enumerate() {
        if matches!(call.name, "fsync of pages" | "close of pages" | "exit with pages" | "SEEK_DATA") {
            let name = format!("app/{number}/new");
            // Who was in `close()` had written all there is; whether the kernel says that it closed is up to the kernel.
            let may_be_closed = call.name == "close of pages" && wrote == CACHED_BYTES;
            let is_left = |state: &str| state == "interrupted" || state == "closed" && may_be_closed;
            wait_until(call.name, || states(&pool, &name).first().is_some_and(|(state, _)| is_left(state)));
            let content = pool.get(&name);
            // The last `write()` may have taken its bytes and not returned any more.
            let whole = [wrote, wrote + PAGE_BYTES].contains(&content.len());
            assert!(whole && bytes.starts_with(&content), "{}: {} of {wrote}", call.name, content.len());
        }
    }
}

#[test]
fn control_c_ends_the_programs_that_people_use() {
    let pool = pool_with_folders(&[call("any", "", "")]);
    // It enters the folder while the pool answers: that asks the manager, too.
    let start = |name: String, script: &str| {
        let said = pool.path("said");
        // Whoever runs the tests may ignore SIGINT.
        let script = format!(
            "echo ready; read; echo calls; exec env --default-signal=INT {script} > /dev/null 2> /dev/null"
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(pool.at("app/0")).stdin(Stdio::piped());
        let child = command.stdout(fs::File::create(&said).unwrap()).spawn().unwrap();
        Program { child, name, said }
    };
    // What one of them reads may be in memory afterwards, and what it removes may be gone: each has a file of its own.
    // `dd` that is interrupted in `write()` closes its file, which waits again, and is gone by the next Ctrl-C.
    for (number, (role, script, times)) in [
        ("manager", "ls -l folder", 1),
        ("manager", "cat FILE", 1),
        ("manager", "rm FILE", 1),
        ("manager", "dd if=/dev/zero of=FILE bs=1M count=1", 1),
        ("benefactor-0", "cat FILE", 1),
        ("benefactor-0", "cp FILE /dev/shm/stdchk-control-c", 1),
        ("benefactor-0", "dd if=FILE of=/dev/null bs=1M iflag=direct", 1),
        ("benefactor-0", "dd if=/dev/urandom of=new bs=1M count=64 oflag=direct", 2),
    ]
    .into_iter()
    .enumerate()
    {
        let file = format!("file-{number}");
        pool.put(&random_bytes(2 * MIB, 100 + number as u64), &format!("app/0/{file}"));
        let mut program = start(format!("{role} {script}"), &script.replace("FILE", &file));
        wait_until(&format!("{script} is ready"), || program.says("ready"));
        let stopped = Stopped::new(&pool, role);
        program.go();
        for _ in 0..times {
            wait_until(&format!("{script} waits"), || program.took_all_signals() && program.waits());
            program.signal(Signal::INT);
        }
        let left = all_gone(std::slice::from_mut(&mut program));
        drop(stopped);
        let _ = program.child.kill();
        program.child.wait().unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
    let _ = fs::remove_file("/dev/shm/stdchk-control-c");
}

/// Writes a file, reads it back and copies names, with a timer that strikes a thousand times a second; any call that
/// fails ends it with an error.
const UNDER_SIGNALS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>
static volatile long struck;
static void strike(int signal) { struck++; }
#define MUST(call) do { if ((long)(call) < 0) { fprintf(stderr, "%s: %s\n", #call, strerror(errno)); exit(1); } } while (0)
int main(int count, char **arguments) {
    int restart = atoi(arguments[3]) ? SA_RESTART : 0, direct = atoi(arguments[4]) ? O_DIRECT : 0;
    struct sigaction action = { .sa_handler = strike, .sa_flags = restart };
    sigaction(SIGALRM, &action, 0);
    static char *bytes, *back;
    posix_memalign((void **)&bytes, 4096, 24 << 20);
    posix_memalign((void **)&back, 4096, 1 << 20);
    FILE *content = fopen(arguments[2], "r");
    size_t size = fread(bytes, 1, 24 << 20, content);
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } };
    setitimer(ITIMER_REAL, &often, 0);
    for (int round = 0; round < 2; round++) {
        int file;
        struct stat stat_of;
        MUST(file = open(arguments[1], O_CREAT | O_TRUNC | O_RDWR | direct, 0644));
        for (size_t at = 0; at < size;) {
            ssize_t written;
            MUST(written = write(file, bytes + at, size - at < 1 << 19 ? size - at : 1 << 19));
            at += written;
        }
        MUST(fsync(file));
        for (size_t at = 0; at < size;) {
            ssize_t got;
            MUST(got = pread(file, back, 1 << 20, at));
            if (got == 0 || memcmp(back, bytes + at, got)) { fprintf(stderr, "other bytes at %zu\n", at); exit(1); }
            at += got;
        }
        MUST(lseek(file, 0, SEEK_DATA));
        MUST(close(file));
        MUST(stat(arguments[1], &stat_of));
        MUST(rename(arguments[1], "other"));
        MUST(rename("other", arguments[1]));
    }
    if (struck < 10) { fprintf(stderr, "struck %ld times\n", struck); exit(1); }
    return 0;
}
"#;

fn compile(folder: &Path, source: &str) -> PathBuf {
    let (path, program) = (folder.join("signals.c"), folder.join("signals"));
    fs::write(&path, source).unwrap();
    assert!(Command::new("cc").arg("-o").arg(&program).arg(&path).status().unwrap().success());
    program
}

#[test]
fn a_signal_that_asks_nobody_to_end_makes_no_call_fail_and_no_byte_differ() {
    let pool = pool_with_folders(&[call("any", "", "")]);
    let program = compile(&pool.work(), UNDER_SIGNALS);
    let bytes = random_bytes(24 * MIB, 7);
    let content = pool.file("content", &bytes);
    for (restarts, direct) in [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")] {
        let name = format!("signals-{restarts}-{direct}");
        let mut command = Command::new(&program);
        command.args([&name, &content, restarts, direct]).current_dir(pool.at("app/0"));
        let output = within("writing under signals", move || command.output().unwrap());
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(pool.get(&format!("app/0/{name}")) == bytes, "{name}");
    }
}

#[test]
fn who_has_files_open_starts_programs_while_the_manager_is_stopped() {
    let pool = pool_with_folders(&[call("any", "", "")]);
    let path = pool.at("app/0/open");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"before ").unwrap();
    // A shell that writes to the pool: it opens the file, copies the descriptor and closes the first one.
    let (log, go, gone_on) = (pool.at("app/0/log"), pool.path("go"), pool.path("gone-on"));
    let script = "exec >\"$1\"; echo begun; touch \"$2.ready\"; while [ ! -e \"$2\" ]; do sleep 0.05; done; \
                  /bin/true; (true); touch \"$3\"; echo done";
    let mut shell = Command::new("sh");
    let mut shell = shell.args(["-c", script, "sh"]).arg(&log).arg(&go).arg(&gone_on).spawn().unwrap();
    wait_until("the shell is ready", || pool.path("go.ready").exists());
    let stopped = Stopped::new(&pool, "manager");
    fs::write(&go, "").unwrap();
    let began = Instant::now();
    assert!(Command::new("true").status().unwrap().success());
    wait_until("the shell goes on", || gone_on.exists());
    assert!(began.elapsed() < GONE_WITHIN, "{:?}", began.elapsed());
    drop(stopped);
    file.write_all(b"and after").unwrap();
    drop(file);
    assert!(shell.wait().unwrap().success());
    assert_eq!(pool.get("app/0/open"), b"before and after");
    assert_eq!(pool.get("app/0/log"), b"begun\ndone\n");
}

#[test]
fn a_program_started_in_the_midst_of_a_file_leaves_one_version_and_a_number_that_nothing_has() {
    let pool = pool_with_folders(&[call("any", "", "")]);
    pool.policy("app/0", &["versions=keep"]);
    let mut file = fs::File::create(pool.at("app/0/open")).unwrap();
    file.write_all(b"before ").unwrap();
    assert!(Command::new("true").status().unwrap().success());
    let begun = pool.versions("app/0/open");
    assert_eq!(begun.len(), 1, "{begun:?}");
    assert_eq!((&begun[0]["state"], &begun[0]["size"]), (&json!("open"), &json!(7)));
    file.write_all(b"and after").unwrap();
    drop(file);
    assert_eq!(pool.get("app/0/open"), b"before and after");
    let closed = pool.versions("app/0/open");
    assert_eq!(closed.len(), 1, "one session leaves one version: {closed:?}");
    let number = |versions: &[Value]| versions[0]["version"].as_u64().unwrap();
    assert!(number(&closed) > number(&begun), "{begun:?} {closed:?}");
    let before = format!("app/0/open@{}", number(&begun));
    pool.fails(&["get", &before, "-o", "-"], 4, &["no such version"]);
}

/// Closes its files in threads while it starts a program that closes its copies of them after that.
const CLOSES_WHILE_IT_STARTS: &str = r#"
import subprocess, sys, threading, time
files = [open(f'{sys.argv[1]}/closed{number}', 'wb') for number in range(6)]
for number, file in enumerate(files):
    file.write(b'%d' % number * 1000)
print('ready', flush=True)
sys.stdin.readline()
threads = [threading.Timer(0.3, file.close) for file in files]
for thread in threads:
    thread.start()
began = time.monotonic()
subprocess.run(['true'], check=True, preexec_fn=lambda: time.sleep(0.8))
print('took', time.monotonic() - began, flush=True)
for thread in threads:
    thread.join()
"#;

#[test]
fn who_is_closing_files_starts_programs_while_the_manager_is_stopped() {
    let pool = pool_with_folders(&[call("any", "", "")]);
    let said = pool.path("said");
    let mut command = Command::new("python3");
    command.args(["-c", CLOSES_WHILE_IT_STARTS]).arg(pool.at("app/0")).stdin(Stdio::piped());
    let child = command.stdout(fs::File::create(&said).unwrap()).spawn().unwrap();
    let mut program = Program { child, name: "python3".to_owned(), said };
    wait_until("it is ready", || program.says("ready"));
    let stopped = Stopped::new(&pool, "manager");
    program.go();
    let took = || {
        let said = fs::read_to_string(&program.said).unwrap();
        said.lines().find_map(|line| line.strip_prefix("took ")?.parse::<f64>().ok())
    };
    wait_until("the program has run", || took().is_some());
    assert!(took().unwrap() < GONE_WITHIN.as_secs_f64(), "{:?} s", took());
    drop(stopped);
    assert!(program.child.wait().unwrap().success());
    for number in 0..6 {
        assert_eq!(pool.get(&format!("app/0/closed{number}")), number.to_string().repeat(1000).as_bytes());
    }
}
