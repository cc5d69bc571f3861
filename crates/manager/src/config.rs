//! What a manager is told at its start: plain data, filled in by the command line or a test.

use std::path::PathBuf;

use crate::core::Timing;

/// How to run a manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its data directory; made and marked if it isn't there.
    pub data: PathBuf,
    /// Where to serve, `host:port`; port 0: any free one. Loopback only.
    pub listen: String,
    /// The pool's shared token.
    pub token: Vec<u8>,
    /// Leases and intervals.
    pub timing: Timing,
}

impl Config {
    /// A manager with the usual leases.
    pub fn new(data: impl Into<PathBuf>, listen: impl Into<String>, token: Vec<u8>) -> Self {
        Self { data: data.into(), listen: listen.into(), token, timing: Timing::default() }
    }
}
