//! A pool on a slow network: a network namespace whose loopback carries no more than a set rate.
//!
//! Making it takes no rights that a user hasn't. It lives as long as a process that waits for the end of the test, and
//! the processes of the pool in it: nothing of it stays, however the test ends.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::command::{Outcome, clean, command, outcome};
use crate::wait::wait_until;

/// Shapes the loopback to `$1` Mbit/s (tc-tbf(8)), says so, and waits for the end of its input.
const SCRIPT: &str = "ip link set lo up && tc qdisc add dev lo root tbf rate \"$1mbit\" burst 256kb latency 200ms \
    && echo shaped && exec cat";
/// Bytes that the link takes at once after it was idle: the burst above.
pub const LINK_BURST_BYTES: u64 = 256 << 10;

/// The network of one pool.
#[derive(Debug)]
struct Link {
    holder: Child,
}

impl Link {
    /// A network of so many Mbit/s.
    fn start(mbit: u32) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "sh", "-c", SCRIPT, "sh", &mbit.to_string()]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let output = holder.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut said).unwrap();
        let link = Self { holder };
        assert_eq!(said, "shaped\n", "no slow network could be made; the message of `ip` or `tc` is above");
        link
    }

    /// The same command, to run in this network.
    fn within(&self, command: &Command) -> Command {
        let mut entering = Command::new("nsenter");
        clean(&mut entering);
        entering.arg(format!("--target={}", self.holder.id()));
        entering.args(["--user", "--net", "--preserve-credentials", "--"]);
        entering.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        entering
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A pool whose processes were started one by one, and speak over the network with each other and with commands.
pub struct LinkedPool {
    roles: Vec<Child>,
    link: Link,
    home: tempfile::TempDir,
}

impl LinkedPool {
    /// Where its manager serves, in a network of its own.
    const ADDRESS: &str = "127.0.0.1:7400";

    /// A pool of so many benefactors on a network of so many Mbit/s.
    pub fn start(benefactors: usize, mbit: u32) -> Self {
        let mut pool =
            Self { roles: Vec::new(), link: Link::start(mbit), home: tempfile::tempdir().unwrap() };
        pool.start_role(&["manager", &pool.path("manager"), "--listen", Self::ADDRESS]);
        wait_until("the token is made", || std::fs::exists(pool.path("token")).unwrap());
        for number in 0..benefactors {
            let folder = pool.path(&number.to_string());
            let manager = ["--manager", Self::ADDRESS];
            pool.start_role(
                &[&["benefactor", &folder, "--donate", "256MiB", "--floor", "1MiB"][..], &manager].concat(),
            );
        }
        let is_online = |entry: &Value| entry["state"] == "online";
        let all_online = |status: Value| {
            status["benefactors"].as_array().unwrap().iter().filter(|one| is_online(one)).count()
        };
        wait_until("all are on-line", || {
            let status = pool.run(&["status", "--json"]);
            status.code == 0 && all_online(status.json()) == benefactors
        });
        pool
    }

    /// A path for a file of the test.
    pub fn path(&self, name: &str) -> String {
        let path: PathBuf = self.home.path().join(name);
        path.to_str().unwrap().to_owned()
    }

    fn start_role(&mut self, arguments: &[&str]) {
        let token = self.path("token");
        let arguments = [arguments, &["--token-file", &token]].concat();
        let mut role = self.link.within(&command(&arguments));
        self.roles.push(role.stderr(Stdio::null()).spawn().unwrap());
    }

    /// Runs a command of this pool.
    pub fn run(&self, arguments: &[&str]) -> Outcome {
        let token = self.path("token");
        let access = ["--manager", Self::ADDRESS, "--token-file", &token];
        outcome(self.link.within(&command(&[arguments, &access].concat())))
    }

    /// What a command prints that must succeed.
    pub fn ok(&self, arguments: &[&str]) -> Outcome {
        let outcome = self.run(arguments);
        assert_eq!(outcome.code, 0, "{arguments:?}: {outcome:?}");
        outcome
    }
}

impl Drop for LinkedPool {
    fn drop(&mut self) {
        for role in self.roles.iter_mut().rev() {
            // Both fail if it has ended.
            let _ = role.kill();
            let _ = role.wait();
        }
    }
}
