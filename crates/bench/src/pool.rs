//! A local pool for a measurement, started and stopped by the binary that users run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stdchk_model::limits::HEARTBEAT_MS;

use crate::Error;
use crate::cpu;
use crate::ends::AtEnd;

/// Time after which heartbeats have told the manager what benefactors store: three intervals.
const REPORTED_AFTER: Duration = Duration::from_millis(3 * HEARTBEAT_MS);

/// Longest wait for a commit that comes after `close`.
const COMMITTED_WITHIN: Duration = Duration::from_secs(300);
/// Time between two questions whether it came: short beside the seconds that are measured with it, and long beside what a
/// question takes from the transfer.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A running pool with a mount. Stops, and removes its data, when dropped.
pub struct LocalPool {
    binary: PathBuf,
    // Before `home`, which it needs.
    _down: AtEnd,
    home: tempfile::TempDir,
}

impl LocalPool {
    /// Starts a pool of `benefactors` with a window of `window_bytes`, its data below `below`.
    pub fn up(binary: &Path, below: &Path, benefactors: usize, window_bytes: u64) -> Result<Self, Error> {
        let home = tempfile::Builder::new().prefix("stdchk-bench-").tempdir_in(below)?;
        let (stopped, its_home) = (binary.to_owned(), home.path().to_owned());
        let down = AtEnd::new(move || stop(&stopped, &its_home));
        let pool = Self { binary: binary.to_owned(), _down: down, home };
        std::fs::create_dir(pool.mount_point())?;
        let mount = pool.mount_point().to_string_lossy().into_owned();
        let count = benefactors.to_string();
        let window = window_bytes.to_string();
        let donate = donation(below, benefactors)?.to_string();
        let up = ["up", "--benefactors", &count, "--mount", &mount, "--floor", "0", "--window", &window];
        pool.run(&[&up[..], &["--donate", &donate]].concat())?;
        Ok(pool)
    }

    /// Where the pool is mounted.
    pub fn mount_point(&self) -> PathBuf {
        mount_point_below(self.home.path())
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        data(self.home.path())
    }

    /// Process ids of the pool's roles whose name starts with `role`; all of them for the empty text.
    pub fn pids(&self, role: &str) -> Vec<u32> {
        let entries = std::fs::read_dir(self.data().join("run")).into_iter().flatten().flatten();
        let records = entries.map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(role) && name.ends_with(".pid")
        });
        let targets = records.filter_map(|path| std::fs::read_link(path).ok());
        targets.filter_map(|target| target.to_str()?.split_whitespace().next()?.parse().ok()).collect()
    }

    /// A folder with a policy.
    pub fn folder(&self, name: &str, policy: &[&str]) -> Result<PathBuf, Error> {
        let folder = self.mount_point().join(name);
        std::fs::create_dir(&folder)?;
        let mut set = vec!["policy", "set", name];
        set.extend(policy);
        self.run(&set)?;
        Ok(folder)
    }

    /// Runs a command of the binary on this pool and returns what it printed.
    pub fn run(&self, arguments: &[&str]) -> Result<String, Error> {
        run(&self.binary, self.home.path(), arguments)
    }

    /// Waits until a file of so many bytes is committed, which may be after its `close` returned. The CPU seconds that the
    /// asking took, which are no part of what storing costs.
    pub fn wait_committed(&self, name: &str, bytes: u64) -> Result<f64, Error> {
        let give_up = Instant::now() + COMMITTED_WITHIN;
        let before = cpu::seconds_with(&[]);
        while !self.is_committed(name, bytes)? {
            if Instant::now() > give_up {
                let seconds = COMMITTED_WITHIN.as_secs();
                return Err(Error(format!("{name} was not committed {seconds} s after its close")));
            }
            std::thread::sleep(ASK_AGAIN);
        }
        Ok(cpu::seconds_with(&[]) - before)
    }

    fn is_committed(&self, name: &str, bytes: u64) -> Result<bool, Error> {
        let listing: serde_json::Value =
            serde_json::from_str(&self.run(&["ls", name, "--versions", "--json"])?)?;
        let newest = listing.pointer("/0/versions").and_then(|versions| versions.as_array()?.last());
        let size = newest.and_then(|version| version.get("size")?.as_u64());
        Ok(size == Some(bytes))
    }

    /// Bytes that the pool's blocks take, replicas counted, once what was written last has been reported.
    pub fn stored_bytes(&self) -> Result<u64, Error> {
        std::thread::sleep(REPORTED_AFTER);
        let status: serde_json::Value = serde_json::from_str(&self.run(&["status", "--json"])?)?;
        let benefactors =
            status.get("benefactors").and_then(|list| list.as_array()).cloned().unwrap_or_default();
        Ok(benefactors.iter().filter_map(|one| one.get("used_bytes")?.as_u64()).sum())
    }
}

/// Bytes for each benefactor: a measurement writes more than an owner would spare, since what it removes is collected later.
fn donation(below: &Path, benefactors: usize) -> Result<u64, Error> {
    let disk = rustix::fs::statvfs(below)?;
    Ok(disk.f_bavail * disk.f_frsize / 10 * 9 / benefactors.max(1) as u64)
}

/// Data directory of the pool that lives in `home`.
fn data(home: &Path) -> PathBuf {
    home.join("data")
}

fn run(binary: &Path, home: &Path, arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new(binary).args(arguments).env("STDCHK_DATA", data(home)).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error(format!("`stdchk {}` failed: {}", arguments.join(" "), said.trim())))
}

fn mount_point_below(home: &Path) -> PathBuf {
    home.join("mnt")
}

/// Stops the pool, and removes its data, which nobody else does at a signal.
fn stop(binary: &Path, home: &Path) {
    let stopped = run(binary, home, &["down"]);
    // Of root's mount point; other folders have no such attribute, and some file systems don't know it.
    let _ = Command::new("chattr").arg("-i").arg(mount_point_below(home)).stderr(Stdio::null()).status();
    let removed = stopped.and_then(|_| Ok(std::fs::remove_dir_all(home)?));
    if let Err(error) = removed {
        eprintln!("stdchk-bench: the pool in {} did not stop: {error}", home.display());
    }
}
