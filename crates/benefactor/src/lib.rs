//! A benefactor: a content-addressed chunk store on donated space, and its server.
//!
//! It stores, serves, verifies, copies on request, reports and removes blocks; it knows nothing of files. [`store`] is
//! synchronous and holds the thinking about the disk; the rest is an async shell around it: [`service`] answers
//! requests, `link` keeps the manager informed and takes its commands, `copy` and `remake` carry them out beside the clients' work,
//! `care` looks for damage, [`memory`] keeps what finds out a manager that was set back, [`journal`] what makes a lost manager's
//! store anew, [`wish`] does what the owner decides, [`pace`] keeps the rates that the owner sets.

mod care;
mod copy;
mod damages;
pub mod hours;
pub mod journal;
mod labels;
mod link;
pub mod load;
pub mod memory;
pub mod pace;
mod permits;
pub mod priority;
mod reach;
mod remake;
mod run;
pub mod service;
pub mod store;
pub mod wish;

pub use pace::RATE_MIN;
pub use run::{ADDRESS_FILE, Config, Error, run, run_warned};
pub use store::disk::is_in_memory;

/// Mode of small files in a benefactor's folder: an owner may decide as another user than the one that the process runs as.
const READABLE: u32 = 0o644;
