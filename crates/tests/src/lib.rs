//! The harness of black-box tests: pools of real processes, started and ended by the built `stdchk` itself.
//!
//! Relies on the binary beside the running test and on nothing else of the project. Everything is bounded in time, and
//! a pool is always brought down, also when its test fails; then the logs of all its processes are shown first.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod bytes;
mod command;
mod disk;
mod etcd;
pub mod lies;
mod machines;
mod mount;
mod object_store;
mod pool;
mod process;
mod wait;

pub use bytes::{random_bytes, with_bit_flipped};
pub use command::{COMMAND_PATIENCE, Outcome, binary, command, outcome, outcome_with, preload_library};
pub use disk::Disk;
pub use etcd::{EtcdGate, EtcdServer, etcd, etcd_arguments};
pub use machines::{LINK_BURST_BYTES, Machines};
pub use mount::{Mount, uncover};
pub use object_store::{ACCESS_KEY, Asked, BUCKET, Deed, Gate, ObjectStore, SECRET_KEY};
pub use pool::{Pool, Setup, has_all_copies};
pub use process::{Process, is_running, send_signal};
pub use wait::{PATIENCE, SetAtEnd, wait_until, within};
