//! A pool on one machine: where its files are, which processes it consists of, how they are started and found again.
//!
//! `stdchk up` and `stdchk down` are made of these parts; other commands use them to find the pool's manager.

pub mod disk;
pub mod home;
pub mod managers;
pub mod mountpoint;
pub mod process;
pub mod shared;
pub mod start;
pub mod waiting;

pub use home::{Home, PoolRecord, Role};
pub use managers::Answers;
pub use process::ProcessRecord;
pub use waiting::WaitingFiles;
