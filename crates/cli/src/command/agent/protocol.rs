//! The protocol of a trainer and the agent of its host: lines of JSON on a Unix socket, one answer for each request.
//!
//! The answers `region` and `held` bring the descriptor of a region's memory along (`SCM_RIGHTS`).

use serde::{Deserialize, Serialize};
use stdchk_operations::{Code, Error};

/// Longest line. A piece takes up to 60 bytes of it, so that 280,000 pieces fit.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// Longest wait that one request asks for; a trainer asks again.
pub const WAIT_S_MAX: f64 = 60.0;

/// A request of a trainer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The region of this name, with so many bytes. It belongs to this connection until that ends.
    Region { key: String, bytes: u64 },
    /// The region is going to be filled: what it holds counts no longer. The answer has the number of this filling.
    Begin { key: String },
    /// The filling of this number is whole: store it as this file of `length` bytes, with holes where no piece lies.
    Staged { key: String, filling: u64, file: String, length: u64, pieces: Vec<Piece> },
    /// How far the storing of the region's content has come; waits up to so many seconds for its end.
    Wait { key: String, save: u64, seconds: f64 },
    /// The region that holds this version of a file. It is not written to until this connection says `release` or ends.
    Held { file: String, version: u64 },
    /// This connection reads no region any more.
    Release {},
    /// All regions.
    Status {},
    /// End once all is stored.
    Stop {},
}

/// A run of bytes: where it lies in the file and in the region, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Piece(pub u64, pub u64, pub u64);

/// An answer of the agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// It is done.
    Done {},
    /// The region, with its descriptor.
    Region { bytes: u64 },
    /// The region may be filled; the number to quote once it is whole.
    Filling { filling: u64 },
    /// The agent stores it; the number of this save.
    Saving { save: u64 },
    /// It is being stored.
    Storing { bytes: u64, of: u64 },
    /// It is stored, as this version of its file.
    Durable { version: u64, seconds: f64 },
    /// It can't be stored.
    Failed { code: String, object: String, cause: String, next_step: String },
    /// The region that holds the file, with its descriptor and the pieces of the file in it.
    Held { bytes: u64, length: u64, pieces: Vec<Piece> },
    /// All regions.
    Status(Status),
    /// The request can't be met; `code` is one of the codes of errors.
    Refused { code: String, object: String, cause: String, next_step: String },
}

impl Answer {
    /// A refusal.
    pub fn refused(code: &str, object: &str, cause: impl ToString, next_step: &str) -> Self {
        let (code, object, next_step) = (code.to_owned(), object.to_owned(), next_step.to_owned());
        Self::Refused { code, object, cause: cause.to_string(), next_step }
    }

    /// The answer about a save that failed.
    pub fn failed(error: &Error) -> Self {
        let Error { code, object, cause, next } = error.clone();
        Self::Failed { code: word(code), object, cause, next_step: next }
    }
}

/// A code as JSON has it.
pub fn word(code: Code) -> String {
    match serde_json::to_value(code) {
        Ok(serde_json::Value::String(word)) => word,
        other => unreachable!("a code is a word, not {other:?}"),
    }
}

/// The state of an agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub process: u32,
    /// Connections now.
    pub connections: usize,
    /// It was told to end.
    pub stopping: bool,
    /// By name.
    pub regions: Vec<RegionStatus>,
}

/// A region.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionStatus {
    /// Its name.
    pub key: String,
    /// Its memory.
    pub bytes: u64,
    /// `empty`, `filling`, `storing`, `durable` or `failed`.
    pub state: String,
    /// The file that its content is, or becomes.
    pub file: Option<String>,
    /// Why it could not be stored.
    pub cause: Option<String>,
    /// The process that fills it.
    pub process: Option<u32>,
}
