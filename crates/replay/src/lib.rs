//! Replays traces of availability against the selection policies of `stdchk-placement`.
//!
//! Relies on nothing but the trace's files. [`trace`] reads them, [`world`] also makes some up, [`run`] replays jobs and
//! their checkpoints, [`summary`] says what was lost, with intervals of confidence.

use std::fmt;

pub mod experiment;
pub mod run;
pub mod summary;
pub mod trace;
pub mod world;

/// Something that keeps a trace from being replayed.
#[derive(Debug)]
pub struct Error(pub String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
