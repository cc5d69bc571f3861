//! A pool of real processes for tests: `stdchk up` in a temporary folder, and always `stdchk down` at the end.
//!
//! Relies on the built binary only. `crates/tests` has a larger one of its own, for faults.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time in which whatever a test waits for must have happened.
const PATIENCE: Duration = Duration::from_secs(60);

/// A local pool. It is brought down when dropped.
pub struct Pool {
    home: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Pool {
    /// A pool of so many benefactors of 256 MiB each, with more arguments for `up`.
    pub fn up(benefactors: u16, more: &[&str]) -> Self {
        let pool = Self { home: tempfile::tempdir().unwrap() };
        let count = benefactors.to_string();
        let mut arguments = vec!["up", "--benefactors", &count, "--floor", "1MiB"];
        if !more.contains(&"--donate") {
            arguments.extend(["--donate", "256MiB"]);
        }
        arguments.extend(more);
        pool.ok(&arguments);
        pool
    }

    /// A pool that is mounted at [`Pool::mount_point`].
    pub fn mounted(benefactors: u16) -> Self {
        let pool = Self::up(benefactors, &[]);
        pool.ok(&["up", "--mount", pool.mount_point().to_str().unwrap()]);
        pool
    }

    pub fn data(&self) -> PathBuf {
        self.home.path().join("pool")
    }

    pub fn mount_point(&self) -> PathBuf {
        self.home.path().join("mnt")
    }

    /// Where the test keeps its files, and where its commands run.
    pub fn work(&self) -> PathBuf {
        let folder = self.home.path().join("work");
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A path for a file of the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.work().join(name)
    }

    /// A file of the test with this content.
    pub fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// The command, ready to be started in the folder of the test's files.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.env("STDCHK_DATA", self.data()).current_dir(self.work());
        command
    }

    /// Runs a command.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        outcome(self.command(arguments))
    }

    /// Runs a command with this standard input.
    pub fn run_with(&self, arguments: &[&str], input: &[u8]) -> Outcome {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        of_output(child.wait_with_output().unwrap())
    }

    /// Runs a command that must succeed; what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, 0, "stdchk {}: {outcome:?}", arguments.join(" "));
        outcome.text()
    }

    /// Runs a command that must succeed and print JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    /// Runs a command that must fail with this code and say something about all of this.
    pub fn fails(&self, arguments: &[&str], code: i32, says: &[&str]) -> Outcome {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, code, "stdchk {}: {outcome:?}", arguments.join(" "));
        for word in says {
            assert!(outcome.stderr.contains(word), "`{word}` is missing in: {}", outcome.stderr);
        }
        outcome
    }

    pub fn status(&self) -> Value {
        self.json(&["status", "--json"])
    }

    /// Process numbers of manager, benefactors and mount as recorded, by role.
    pub fn pids(&self) -> Vec<(String, u32)> {
        let mut pids: Vec<(String, u32)> = std::fs::read_dir(self.data().join("run"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "pid"))
            .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), pid_in(&path)))
            .collect();
        pids.sort();
        pids
    }

    /// SIGKILL to a role's process.
    pub fn kill(&self, role: &str) {
        let pid = pid_in(&self.data().join("run").join(format!("{role}.pid")));
        assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
        wait_until(&format!("{role} is gone"), || !is_running(pid));
    }

    /// Flips one bit in every stored copy of a block that holds `content`; how many there were.
    pub fn damage(&self, content: &[u8]) -> usize {
        let needle = &content[content.len() / 2..content.len() / 2 + 64];
        let mut damaged = 0;
        for file in files_below(&self.data().join("benefactors")) {
            let mut bytes = std::fs::read(&file).unwrap();
            let Some(position) = bytes.windows(64).position(|window| window == needle) else { continue };
            bytes[position] ^= 1;
            let writer = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&writer, &bytes[position..=position], position as u64)
                .unwrap();
            damaged += 1;
        }
        damaged
    }

    /// Waits until every chunk has all its copies.
    pub fn wait_for_copies(&self) {
        wait_until("all copies are made", || {
            let status = self.status();
            status["chunks_at_risk"] == 0 && status["repairs_pending"] == 0
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let down = self.run(&["down"]);
        if down.code != 0 && !std::thread::panicking() {
            panic!("the pool did not come down: {down:?}");
        }
    }
}

/// The binary with a clean environment of settings.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
    for variable in ["STDCHK_DATA", "STDCHK_MANAGER", "STDCHK_TOKEN_FILE", "STDCHK_WINDOW", "STDCHK_CONFIG"] {
        command.env_remove(variable);
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub fn outcome(mut command: Command) -> Outcome {
    of_output(command.output().unwrap())
}

fn of_output(output: std::process::Output) -> Outcome {
    Outcome {
        code: output.status.code().unwrap_or(-1),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Waits until `done`; fails the test if that takes too long.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process runs; one that waits for its parent doesn't.
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

fn pid_in(path: &Path) -> u32 {
    let text = std::fs::read_to_string(path).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Bytes that no codec shrinks and no other seed gives (splitmix64).
pub fn random_bytes(length: usize, seed: u64) -> Vec<u8> {
    // Not a multiple of the increment below: seeds must not give shifted copies of each other.
    let mut state = (seed + 1).wrapping_mul(0xd134_2543_de82_ef95);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
