//! Tests of containers and their codecs. One binary, since each one repeats what it takes from the crates below: minutes of compiling.
#![allow(clippy::indexing_slicing, clippy::unwrap_used, reason = "a test fails by panicking")]

mod bases;
mod codecs;
mod container;
mod damage;
mod elsewhere;
mod folded;
mod names;
mod removal;
mod repeats;
mod same_everywhere;
mod sparse;
mod timesteps;
mod unknown_files;
