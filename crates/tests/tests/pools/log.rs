//! What happened in a life, in words, and what went wrong.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Lines that a message shows of a history.
const LINES_SHOWN: usize = 200;

#[derive(Default)]
struct Lines {
    now: Duration,
    lines: Vec<String>,
    failure: Option<String>,
}

/// The log of one life, shared by all that happens in it.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Lines>>);

impl Log {
    pub fn pass(&self, time: Duration) {
        self.0.lock().unwrap().now += time;
    }

    pub fn now(&self) -> Duration {
        self.0.lock().unwrap().now
    }

    pub fn say(&self, line: impl Display) {
        let mut log = self.0.lock().unwrap();
        let line = format!("{:9.3} s  {line}", log.now.as_secs_f64());
        if std::env::var_os("STDCHK_POOL_SAYS").is_some() {
            eprintln!("{line}");
        }
        log.lines.push(line);
    }

    /// Something that must not happen; the first one counts.
    pub fn fail(&self, cause: impl Display) {
        self.say(format_args!("WRONG: {cause}"));
        self.0.lock().unwrap().failure.get_or_insert_with(|| cause.to_string());
    }

    pub fn failure(&self) -> Option<String> {
        self.0.lock().unwrap().failure.clone()
    }

    /// The last lines.
    pub fn history(&self) -> String {
        let log = self.0.lock().unwrap();
        log.lines[log.lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }

    /// One number for all that happened.
    pub fn hash(&self) -> String {
        blake3::hash(self.0.lock().unwrap().lines.join("\n").as_bytes()).to_hex().to_string()
    }
}
