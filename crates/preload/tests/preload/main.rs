//! Tests of the preload library under real programs. One binary, since each one repeats what it takes from the crates below: minutes of compiling.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod crashes;
mod differential;
mod exerciser;
mod habits;
mod outside;
mod real_programs;
mod runs;
mod support;
mod verification;
