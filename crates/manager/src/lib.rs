//! The metadata manager: namespace, versions, sessions, chunk locations, repair and collection.
//!
//! Three layers. [`core`] thinks and knows no I/O: requests and time in, answers and changes out. [`store`] makes changes
//! durable behind a small trait. The shell ([`Manager`]) joins them to the network: one thread owns the core, takes what
//! requests have queued up, applies them, commits their changes in one transaction, and only then answers (I7).

pub mod backup;
pub mod config;
pub mod core;
pub mod etcd;
pub mod journal;
mod listening;
mod moved;
mod owner;
pub mod ranking;
mod record;
pub mod recover;
mod server;
pub mod store;
mod telling;
mod turns;
mod waiting;

pub use config::Config;
pub use moved::moved_to;
pub use server::{AUTHORITY, Manager, ManagerError, run};

/// Name of the store in the data directory.
const STORE_FILE: &str = "store.redb";
