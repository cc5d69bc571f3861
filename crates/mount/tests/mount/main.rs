//! Tests of real mounts: the kernel, real programs, and a pool in this process. One binary, since each one repeats what it takes from the crates below: minutes of compiling.
#![allow(
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod changing_names;
mod common;
mod holes;
mod operations;
mod programs;
mod protocol;
mod questions;
mod semantics;
