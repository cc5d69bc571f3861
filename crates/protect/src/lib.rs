//! Protection of a chunk: its blocks, the chunk of blocks that suffice, and what the holders of its blocks are worth.
//!
//! Everybody who deals with redundancy asks here and nowhere else. Who writes makes blocks ([`Blocks`]); who reads, repairs or
//! verifies puts the chunk together ([`Assembly`]); and who knows where blocks are asks how far from loss the chunk is
//! ([`distance`]), what should be made anew from what ([`plan`]), and what is too much ([`surplus`]). Copies and erasure codes
//! (FALCON, section IV) differ in [`Code`](stdchk_model::Code) alone.
//!
//! Who encrypts what they store seals the encoded bytes before blocks are made of them ([`seal`]).
//!
//! Pure: no clock, no randomness, no files, no sockets.

mod assembly;
mod blocks;
mod coder;
mod favour;
mod holders;
pub mod seal;

pub use assembly::{Assembly, BadFragments, Gathered, Remaking};
pub use blocks::{Blocks, genuine};
pub use favour::{favoured, in_favour_of};
pub use holders::{
    Held, Plan, copies_in_memory, distance, distance_among, distance_at, distance_at_best, distance_trusted,
    is_readable, is_readable_at, missing, plan, plan_at, suffices, suffices_at, surplus, taken,
};
