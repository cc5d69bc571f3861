//! The hooks: C-ABI functions with the C library's names. Each asks the watch and calls the real function; none decides.

pub mod data;
pub mod descriptors;
pub mod listing;
pub mod names;
pub mod process;
pub mod roundabout;
pub mod variadic;
