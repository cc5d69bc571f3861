//! Programs that use a mount, each a process of its own, as a test process that holds files of a mount open would wait for
//! the mount whenever it starts a program. `dd` is fed by the test and says what `write`, `fsync` and `close` answered;
//! a reader opens its file at once and reads it when told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use stdchk_tests::{Outcome, outcome};

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

/// Runs a program to its end, with messages in English.
pub fn run(program: &str, arguments: &[&Path]) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
    outcome(command)
}

/// A process that has a file open for reading.
pub struct Reader {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Reader {
    /// Opens the file.
    pub fn start(file: &Path) -> Self {
        // Not `cat`: that asks for attributes, and reads beyond the end of the file.
        let script = "exec 3<\"$1\" && echo open && read size && exec head -c \"$size\" <&3";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Self { child, output }
    }

    /// Reads so many bytes of the open file.
    pub fn finish(mut self, size: usize) -> Vec<u8> {
        self.child.stdin.take().unwrap().write_all(format!("{size}\n").as_bytes()).unwrap();
        let mut content = Vec::new();
        self.output.read_to_end(&mut content).unwrap();
        assert!(self.child.wait().unwrap().success());
        content
    }
}
