//! Codecs as chains of steps: every step turns bytes into bytes, and its inverse turns them back exactly.
//!
//! Pure. Relies on one module per family of steps. The idea: a block's recipe is plain data that stands in the
//! container, so that a reader needs no choice and no search, and new chains cost no new format. Steps work on bit
//! patterns: NaN payloads, signed zeros and subnormals come back as they were.

mod changed;
mod distinct;
mod fpc;
mod general;
mod lane;
mod lorenzo;
mod numbers;
mod planes;
mod ragged;
pub(crate) mod scratch;
mod shuffle;
mod step;
pub(crate) mod wide;

pub(crate) use distinct::{likeness_4, likeness_8};
pub(crate) use general::{Search, with_zstd};
pub use lane::Lane;
pub(crate) use planes::Repeats;
pub(crate) use ragged::applies as records_apply;
pub(crate) use shuffle::{bit_shuffle, bit_unshuffle, shuffle, unshuffle};
pub use step::{CodecError, Shape, Side, Step, decode, encode};
pub(crate) use step::{gives_back, put_number, put_signed, take_number, take_signed};
