//! The built binary, run to its end with a limit on its time.

use std::fmt;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time for one command: more than `down` grants a mount that has to commit what is open.
pub const COMMAND_PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two looks at a command that runs.
const PAUSE: Duration = Duration::from_millis(5);

/// How a command ended.
pub struct Outcome {
    /// Exit code; -1: a signal ended it.
    pub code: i32,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained about.
    pub stderr: String,
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// As much as a person reads.
        const SHOWN_BYTES: usize = 4000;
        let printed = self.stdout.get(..SHOWN_BYTES).unwrap_or(&self.stdout);
        let (code, length, printed) = (self.code, self.stdout.len(), String::from_utf8_lossy(printed));
        write!(f, "exit code {code}, stderr {:?}, {length} bytes on stdout: {printed:?}", self.stderr)
    }
}

impl Outcome {
    /// What it printed, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// What it printed, as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The binary of the build that the running test, or program, belongs to.
pub fn binary() -> PathBuf {
    let running = std::env::current_exe().unwrap();
    // Tests lie in a folder below it.
    let found =
        running.ancestors().skip(1).take(2).map(|folder| folder.join("stdchk")).find(|path| path.is_file());
    found.unwrap_or_else(|| {
        panic!(
            "there is no stdchk beside {}: build it first with `cargo build --workspace --bins`",
            running.display()
        )
    })
}

/// The preload library that was built together with the running test.
pub fn preload_library() -> PathBuf {
    let built = std::env::current_exe().unwrap().parent().unwrap().join("libstdchk_preload.so");
    assert!(built.is_file(), "{} was not built", built.display());
    built
}

/// The binary with arguments and a clean environment of settings.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    clean(&mut command);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Keeps the settings of whoever runs the tests away from a command.
pub(crate) fn clean(command: &mut Command) {
    let is_setting = |name: &str| {
        ["STDCHK_", "AWS_"].iter().any(|prefix| name.starts_with(prefix))
            || name.to_uppercase().ends_with("_PROXY")
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent");
}

/// Runs a command to its end.
pub fn outcome(command: Command) -> Outcome {
    outcome_with(command, &[])
}

/// Runs a command with this standard input; fails the test if it takes longer than [`COMMAND_PATIENCE`].
pub fn outcome_with(mut command: Command, input: &[u8]) -> Outcome {
    let shown = format!("{:?}", command.get_args().collect::<Vec<_>>());
    if !input.is_empty() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout, mut stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|threads| {
        let written = threads.spawn(move || stdin.as_mut().map(|stdin| stdin.write_all(input)));
        let printed = threads.spawn(move || read_all(stdout.as_mut()));
        let complained = threads.spawn(move || read_all(stderr.as_mut()));
        let code = code_within(&mut child, &shown);
        // A command may end without reading its input.
        let _ = written.join().unwrap();
        let stderr = String::from_utf8_lossy(&complained.join().unwrap()).into_owned();
        Outcome { code, stdout: printed.join().unwrap(), stderr }
    })
}

fn read_all(stream: Option<&mut impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn code_within(child: &mut Child, shown: &str) -> i32 {
    let deadline = Instant::now() + COMMAND_PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or(-1);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("stdchk {shown}: not done within {COMMAND_PATIENCE:?}");
        }
        std::thread::sleep(PAUSE);
    }
}
