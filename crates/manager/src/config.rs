//! What a manager is told at its start: plain data, filled in by the command line or a test.

use std::path::PathBuf;

use crate::core::Timing;
use crate::etcd::{Login, Place};

/// How to run a manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its data directory; made and marked if it isn't there.
    pub data: PathBuf,
    /// Where to serve: addresses `unix:PATH` and `host:port`, port 0: any free one. With one of the network the pool has an authority,
    /// in the data directory.
    pub listen: Vec<String>,
    /// Where in etcd its store is; `None`: in the data directory.
    pub store: Option<Place>,
    /// With which name and password it is asked; `None`: without.
    pub store_login: Option<Login>,
    /// Leases and intervals.
    pub timing: Timing,
    /// Memory for files that are being written, bytes; `None`: a quarter of what this machine or container has.
    pub sessions_bytes: Option<u64>,
}

impl Config {
    /// A manager with the usual leases.
    pub fn new(data: impl Into<PathBuf>, listen: impl Into<String>) -> Self {
        Self {
            data: data.into(),
            listen: vec![listen.into()],
            store: None,
            store_login: None,
            timing: Timing::default(),
            sessions_bytes: None,
        }
    }
}
