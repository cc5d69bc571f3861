//! A local pool of a test: `stdchk up` in a temporary folder, and always brought down at the end.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;

use crate::command::{Outcome, clean, command, outcome, outcome_with};
use crate::mount::uncover;
use crate::process::Process;
use crate::wait::wait_until;

/// Lines of each process's log that a failed test shows.
const LOG_LINES_SHOWN: usize = 40;

/// How a pool shall be.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of benefactors.
    pub benefactors: u16,
    /// What each of them may take, as `up` reads it.
    pub donate: String,
    /// What stays free on the disk.
    pub floor: String,
    /// Whether it is mounted at [`Pool::mount_point`].
    pub mounted: bool,
    /// Variables of all its processes and commands.
    pub variables: Vec<(&'static str, String)>,
}

impl Default for Setup {
    fn default() -> Self {
        let (donate, floor) = ("256MiB".to_owned(), "1MiB".to_owned());
        Self { benefactors: 3, donate, floor, mounted: true, variables: Vec::new() }
    }
}

impl Setup {
    /// A mounted pool of so many benefactors.
    pub fn of(benefactors: u16) -> Self {
        Self { benefactors, ..Self::default() }
    }

    /// With another value of a lease or interval of the manager, such as `STDCHK_CLIENT_LEASE_MS`.
    pub fn with(mut self, variable: &'static str, value: impl ToString) -> Self {
        self.variables.push((variable, value.to_string()));
        self
    }

    /// Starts it.
    pub fn up(self) -> Pool {
        Pool::start(self, &[])
    }
}

/// A local pool.
pub struct Pool {
    home: tempfile::TempDir,
    variables: Vec<(&'static str, String)>,
    mounted: bool,
}

impl Pool {
    /// A pool of so many benefactors, not mounted, with more arguments for `up`.
    pub fn up(benefactors: u16, more: &[&str]) -> Self {
        Self::start(Setup { mounted: false, ..Setup::of(benefactors) }, more)
    }

    /// A pool of so many benefactors that is mounted.
    pub fn mounted(benefactors: u16) -> Self {
        Setup::of(benefactors).up()
    }

    fn start(setup: Setup, more: &[&str]) -> Self {
        let Setup { benefactors, donate, floor, mounted, variables } = setup;
        let pool = Self { home: tempfile::tempdir().unwrap(), variables, mounted };
        let count = benefactors.to_string();
        let mount = pool.mount_point();
        let mut arguments = vec!["up", "--benefactors", &count];
        for (flag, value) in [("--donate", &donate), ("--floor", &floor)] {
            if !more.contains(&flag) {
                arguments.extend([flag, value]);
            }
        }
        if mounted {
            arguments.extend(["--mount", mount.to_str().unwrap()]);
        }
        arguments.extend(more);
        pool.ok(&arguments);
        pool
    }

    /// The directory of the pool.
    pub fn data(&self) -> PathBuf {
        self.home.path().join("pool")
    }

    /// Where it is mounted, if it is.
    pub fn mount_point(&self) -> PathBuf {
        self.home.path().join("mnt")
    }

    /// A path below the mount point.
    pub fn at(&self, path: &str) -> PathBuf {
        self.mount_point().join(path)
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
        self.apply_to(&mut command);
        command
    }

    /// Gives the settings of this pool, and no others, to a command that runs the binary by itself.
    pub fn apply_to(&self, command: &mut Command) {
        clean(command);
        command.env("STDCHK_DATA", self.data()).current_dir(self.work());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
    }

    /// Runs a command.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        outcome(self.command(arguments))
    }

    /// Runs a command with this standard input.
    pub fn run_with(&self, arguments: &[&str], input: &[u8]) -> Outcome {
        outcome_with(self.command(arguments), input)
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

    /// Stores a file of this content under a name of the pool.
    pub fn put(&self, content: &[u8], name: &str) {
        let outcome = self.run_with(&["put", "-", name], content);
        assert_eq!(outcome.code, 0, "stdchk put - {name}: {outcome:?}");
    }

    /// The content of a file of the pool.
    pub fn get(&self, name: &str) -> Vec<u8> {
        let outcome = self.run(&["get", name, "-o", "-"]);
        assert_eq!(outcome.code, 0, "stdchk get {name}: {}", outcome.stderr);
        outcome.stdout
    }

    /// Sets values of a policy.
    pub fn policy(&self, app: &str, pairs: &[&str]) {
        self.ok(&[&["policy", "set", app], pairs].concat());
    }

    /// What `status` says.
    pub fn status(&self) -> Value {
        self.json(&["status", "--json"])
    }

    /// Whether `holds` of the status; for conditions that are waited for.
    pub fn shows(&self, holds: impl Fn(&Value) -> bool) -> bool {
        let outcome = self.run(&["status", "--json"]);
        outcome.code == 0 && holds(&outcome.json())
    }

    /// The versions of a file, oldest first, as `ls --versions` has them.
    pub fn versions(&self, name: &str) -> Vec<Value> {
        self.json(&["ls", name, "--versions", "--json"])[0]["versions"].as_array().unwrap().clone()
    }

    /// The process of a role: `manager`, `benefactor-0`, `mount`.
    pub fn process(&self, role: &str) -> Process {
        let recorded = Process::recorded_in(&self.run_file(role));
        recorded.unwrap_or_else(|| panic!("{role} is not recorded"))
    }

    fn run_file(&self, role: &str) -> PathBuf {
        self.data().join("run").join(format!("{role}.pid"))
    }

    /// Process numbers of manager, benefactors and mount as recorded, by role.
    pub fn pids(&self) -> Vec<(String, u32)> {
        self.processes().into_iter().map(|(role, process)| (role, process.pid)).collect()
    }

    fn processes(&self) -> Vec<(String, Process)> {
        let Ok(entries) = std::fs::read_dir(self.data().join("run")) else { return Vec::new() };
        let run_files = entries.map(|entry| entry.unwrap().path());
        let run_files = run_files.filter(|path| path.extension().is_some_and(|extension| extension == "pid"));
        let named = |path: PathBuf| Some((stem(&path), Process::recorded_in(&path)?));
        let mut processes: Vec<(String, Process)> = run_files.filter_map(named).collect();
        processes.sort_by(|one, other| one.0.cmp(&other.0));
        processes
    }

    /// SIGKILL to a role's process.
    pub fn kill(&self, role: &str) {
        self.process(role).kill();
    }

    /// The log of a role.
    pub fn log(&self, role: &str) -> String {
        let log = std::fs::read(self.data().join("log").join(format!("{role}.log")));
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    /// Flips one bit in every stored copy of a block that holds `content`; how many there were.
    pub fn damage(&self, content: &[u8]) -> usize {
        self.damage_below(&self.data().join("benefactors"), content)
    }

    /// Flips one bit in the copies of a block that holds `content`, as far as they lie below a directory.
    pub fn damage_below(&self, directory: &Path, content: &[u8]) -> usize {
        let needle = &content[content.len() / 2..content.len() / 2 + 64];
        let mut damaged = 0;
        for file in files_below(directory) {
            // A file that was renamed meanwhile is another one's.
            let Ok(bytes) = std::fs::read(&file) else { continue };
            let Some(position) = find(&bytes, needle) else { continue };
            let writer = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
            writer.write_all_at(&[bytes[position] ^ 1], position as u64).unwrap();
            writer.sync_all().unwrap();
            damaged += 1;
        }
        damaged
    }

    /// Index of a benefactor that stores a block with `content`, if any does.
    pub fn holder_of(&self, content: &[u8]) -> Option<u16> {
        self.holders_of(content).first().copied()
    }

    /// Indices of the benefactors that store a block with `content`.
    pub fn holders_of(&self, content: &[u8]) -> Vec<u16> {
        let needle = &content[content.len() / 2..content.len() / 2 + 64];
        let benefactors = self.data().join("benefactors");
        let holds = |index: &u16| {
            let files = files_below(&benefactors.join(index.to_string()));
            files.iter().any(|file| std::fs::read(file).is_ok_and(|bytes| find(&bytes, needle).is_some()))
        };
        let indices = std::fs::read_dir(&benefactors).unwrap().map(|entry| stem(&entry.unwrap().path()));
        let mut indices: Vec<u16> = indices.map(|index| index.parse().unwrap()).collect();
        indices.sort_unstable();
        indices.into_iter().filter(holds).collect()
    }

    /// Waits until every chunk has all its copies.
    pub fn wait_for_copies(&self) {
        wait_until("all copies are made", || self.shows(has_all_copies));
    }

    /// Waits until keepers have all that the manager committed.
    pub fn wait_for_recovery(&self) {
        wait_until("all commits can be recovered", || {
            self.shows(|status| status["recovery"]["lacks_commits"] == 0)
        });
    }

    /// Waits until so many benefactors are in this state.
    pub fn wait_for_state(&self, state: &str, count: usize) {
        wait_until(&format!("{count} benefactors are {state}"), || {
            self.shows(|status| in_state(status, state).len() == count)
        });
    }

    /// The benefactors in this state, by name.
    pub fn benefactors_in(&self, state: &str) -> Vec<String> {
        in_state(&self.status(), state)
    }

    fn show_logs(&self) {
        let Ok(entries) = std::fs::read_dir(self.data().join("log")) else { return };
        for path in entries.map(|entry| entry.unwrap().path()) {
            let log = self.log(&stem(&path));
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- {}", path.display());
            lines
                .iter()
                .skip(lines.len().saturating_sub(LOG_LINES_SHOWN))
                .for_each(|line| eprintln!("{line}"));
        }
    }

    /// Ends whatever still runs, without waiting for it to end well.
    fn destroy(&self) {
        for (_, process) in self.processes() {
            process.signal(rustix::process::Signal::KILL);
        }
        if self.mounted {
            // Nothing is mounted there if the mount ended well.
            let _ = unmount(self.mount_point(), UnmountFlags::DETACH);
            uncover(&self.mount_point());
        }
    }
}

/// Whether every chunk has all its copies, by what `status` says.
pub fn has_all_copies(status: &Value) -> bool {
    status["counting"] == false && status["chunks_at_risk"] == 0 && status["repairs_pending"] == 0
}

fn in_state(status: &Value, state: &str) -> Vec<String> {
    let benefactors = status["benefactors"].as_array().unwrap();
    let found = benefactors.iter().filter(|benefactor| benefactor["state"] == state);
    found.map(|benefactor| format!("b{}", benefactor["id"])).collect()
}

impl Drop for Pool {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
            return self.destroy();
        }
        let down = self.run(&["down"]);
        self.destroy();
        assert_eq!(down.code, 0, "the pool did not come down: {down:?}");
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_str().unwrap().to_owned()
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}
