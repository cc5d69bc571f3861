//! A program that writes a file and is fed by the test: `dd`, because it says what `write`, `fsync` and `close` answered.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A `dd` that writes what it is fed to a file.
pub struct Writer {
    child: Child,
}

/// How a writer ended.
#[derive(Debug)]
pub struct Written {
    /// Whether every `write`, `fsync` and `close` succeeded.
    pub accepted: bool,
    /// What it complained about.
    pub message: String,
}

impl Writer {
    /// Starts to write a file, emptied before; `more`: arguments such as `conv=fsync`.
    pub fn start(file: &Path, more: &[&str]) -> Self {
        let mut command = Command::new("dd");
        command.arg(format!("of={}", file.display())).args(["bs=1M", "iflag=fullblock", "status=none"]);
        command.args(more).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self { child: command.env("LC_ALL", "C").spawn().unwrap() }
    }

    /// Gives it more to write; one that has ended with an error takes no more.
    pub fn feed(&mut self, bytes: &[u8]) {
        // A closed pipe means that it failed, which `finish` tells.
        let _ = self.child.stdin.as_mut().unwrap().write_all(bytes);
    }

    /// SIGKILL, in the middle of its work.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Lets it close the file, and waits for its end.
    pub fn finish(mut self) -> Written {
        drop(self.child.stdin.take());
        let mut message = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        Written { accepted: self.child.wait().unwrap().success(), message }
    }
}
