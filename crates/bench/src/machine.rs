//! What was measured on: figures without a machine mean nothing.

use std::fs;
use std::process::Command;

use serde::Serialize;

/// The machine and the state of the sources.
#[derive(Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
    commit: String,
    date: String,
}

impl Machine {
    /// Looks around.
    pub fn look() -> Self {
        let field = |path: &str, name: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let line = text.lines().find(|line| line.starts_with(name)).and_then(|line| line.split_once(':'));
            line.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let kilobytes = field("/proc/meminfo", "MemTotal");
        Self {
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kilobytes.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            commit: said_by("git", &["describe", "--always", "--dirty"]),
            date: said_by("date", &["--utc", "--iso-8601=seconds"]),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{} x {}, {} memory, Linux {}, commit {}, {}",
            self.cores,
            self.cpu,
            stdchk_model::size::human(self.memory_bytes),
            self.kernel,
            self.commit,
            self.date
        )
    }
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let said = Command::new(program).args(arguments).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&said).trim().to_owned()
}
