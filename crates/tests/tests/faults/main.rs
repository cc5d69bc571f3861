//! Bad input and faults, on pools of real processes: what is killed, filled, damaged, misused, and what must hold then.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

mod administration;
mod aggregates;
mod benefactors;
mod checkpoints;
mod damage;
mod directories;
mod disk;
mod early;
mod erasure;
mod exposure;
mod full_disk;
mod held;
mod interrupts;
mod lifetimes;
mod loaded;
mod machines;
mod made_up;
mod makers;
mod manager;
mod memory;
mod mounts;
mod names;
mod near;
mod notices;
mod owners;
mod page_cache;
mod pairs;
mod permissions;
mod posix;
mod prepared;
mod program;
mod promises;
mod recovery;
mod repair;
mod sealed;
mod set_back;
mod silent;
mod slow_network;
mod small_files;
mod space;
mod spool;
mod two_mounts;
mod users;
mod views;
mod wire;
