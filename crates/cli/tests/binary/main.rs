//! The binary as its users meet it: every test runs real commands against a pool of real processes.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod across_time;
mod aggregate;
mod contract;
mod document;
mod files;
mod install;
mod lifecycle;
mod memory;
mod mistakes;
mod names;
mod object_faults;
mod objects;
mod pack;
mod placement;
mod push;
mod ranks;
mod sets;
mod surroundings;
mod transfer;
mod triggers;
mod unwatched;
mod with_sets;
