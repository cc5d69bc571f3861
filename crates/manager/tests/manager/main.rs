//! Tests of the manager: its core with a clock that the test moves, and what the core stands on. One binary, since each one repeats what it takes from the crates below: minutes of compiling.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod aggregates;
mod bases;
mod care;
mod coded;
mod creation;
mod damage;
mod departures;
mod drain;
mod exposure;
mod forget;
mod harness;
mod history;
mod lifetimes;
mod loads;
mod members;
mod memory;
mod namespace_model;
mod pasts;
mod permissions;
mod permits;
mod placing;
mod receipts;
mod registration;
mod relief;
mod repair;
mod sealed;
mod service;
mod sessions;
mod surplus;
mod terms;
