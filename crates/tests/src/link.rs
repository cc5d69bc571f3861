//! A slow network for a pool: a network namespace whose loopback carries no more than a set rate.
//!
//! Making it takes no rights that a user hasn't. It lives as long as a process that waits for the end of the test, and
//! the processes of the pool in it: nothing of it stays, however the test ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Shapes the loopback to `$1` Mbit/s (tc-tbf(8)), says so, and waits for the end of its input.
const SCRIPT: &str = "ip link set lo up && tc qdisc add dev lo root tbf rate \"$1mbit\" burst 256kb latency 200ms \
    && echo shaped && exec cat";
/// Bytes that the link takes at once after it was idle: the burst above.
pub const LINK_BURST_BYTES: u64 = 256 << 10;

/// The network of one pool.
#[derive(Debug)]
pub struct Link {
    holder: Child,
}

impl Link {
    /// A network of so many Mbit/s.
    pub fn start(mbit: u32) -> Self {
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
    pub fn within(&self, command: &Command) -> Command {
        let mut entering = Command::new("nsenter");
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
