//! Context mixing: every bit is predicted by several models at once, their predictions are mixed by weights that learn,
//! and an arithmetic coder spends on the bit what the mixed prediction left open (after Mahoney's lpaq).
//!
//! Pure. The idea: it is the densest coder here and the slowest by far, for when only size counts. All arithmetic that
//! decides a bit is integer, and the one predictor in floating point uses only additions, multiplications,
//! divisions and square roots in a fixed order, so that every machine that follows IEEE 754 decodes the same.

mod bytes;
pub(in crate::codec) mod coder;
pub(in crate::codec) mod echo;
pub(in crate::codec) mod least_squares;
pub(in crate::codec) mod mixer;
mod numbers;
mod stencil;
pub(in crate::codec) mod view;

pub(crate) use bytes::{compress_bytes, decompress_bytes};
pub(crate) use numbers::{compress_numbers, decompress_numbers};
