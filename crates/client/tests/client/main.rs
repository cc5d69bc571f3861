//! Tests of the client on real pools in this process. One binary, since each one repeats what it takes from the crates below: minutes of compiling.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "a test fails by panicking")]

mod aggregates;
mod auto;
mod budgets;
mod bursts;
mod codecs;
mod common;
mod differential;
mod faults;
mod fragments;
mod leases;
mod loaded;
mod near;
mod pieces;
mod protocols;
mod receipts;
mod sealed;
mod small;
mod together;
