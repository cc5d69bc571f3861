//! Every limit of this crate, with its unit and reason.
//!
//! Relies on nothing. The idea: one table of numbers, so that what bounds memory and hostile input is seen at a glance.

/// Smallest budget that is accepted, in bytes: below it blocks become too small to compress.
pub const BUDGET_MIN: u64 = 16 << 20;
/// Budget when none is given, in bytes.
pub const BUDGET_DEFAULT: u64 = 256 << 20;
/// Buffers of a block's size that one block may need at once while it is coded or decoded: raw bytes, the bytes of its
/// base, two steps of its chain, and what a compressor keeps.
pub const BUFFERS_PER_BLOCK: u64 = 6;
/// Smallest block, in bytes: below it headers and lost context cost more than 1 %.
pub const BLOCK_MIN: u64 = 128 << 10;
/// Largest block that a reader accepts, in bytes.
pub const BLOCK_MAX: u64 = 1 << 30;
/// Longest record or table of a container that a reader accepts, in bytes.
pub const RECORD_MAX: u64 = 1 << 30;
/// Smallest variable that is grouped, in bytes (mcrEngine, section VII: 100); smaller ones stay in the residue.
pub const VARIABLE_MIN: u64 = 100;
/// Files of a set: every file has a name in the container's first section, which is held in memory.
pub const FILES_MAX: usize = 4 << 20;
