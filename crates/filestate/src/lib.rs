//! Checkpoints of the files that a job writes, and the way back to any of them.
//!
//! The one idea: before a call changes the protected tree, a *statement about the state before it* is appended to
//! one log ("this name was absent", "this file had 4096 bytes", "these bytes stood here"). A checkpoint is a position
//! in that log; restoring an index makes the statements true again, newest first, back to its position. The files
//! themselves are always ordinary files, and descriptors are always the kernel's.
//!
//! | module | holds | touches |
//! |---|---|---|
//! | [`extents`] | the interval map of a file (the AML of Metamori, section 4.3.3) | nothing |
//! | [`record`] | the statements and their bytes in the log | nothing |
//! | [`paths`] | where a file was at each record, from the moves in the log | nothing |
//! | [`locks`] | files opened without a loss to the program's record locks | files |
//! | [`log`], [`index`], [`store`] | the log, the checkpoint index and the directory they live in | files |
//! | `space` | what a store takes of the disk, and sets aside | files |
//! | [`control`] | what the processes of a run share: generation, gate, freeze | shared memory |
//! | `pieces` | mapped files, of which a checkpoint keeps what changed | files |
//! | `clones` | old contents that share their blocks, where the file system can | files |
//! | [`watch`] | what must be stated before which call: the decisions of the preload library | files |
//! | [`checkpoint`], [`restore`] | taking an index, going back to one | files |
//! | `reach` | files without a name, files and directories closed to their owner | files |
//! | `progress` | how far a restore got | files |
//! | `astray`, `outside`, `summary` | files that a restore misses, what it must leave; what it did | nothing |
//! | [`snapshot`], `overlay` | the tree as it was at a checkpoint, read while the job goes on | files |
//! | [`history`] | what changed between two indices | the log |
//! | [`trigger`] | files whose renaming or closing takes a checkpoint | files |
//! | [`program`] | which programs a preload library cannot watch | executables |
//! | [`unwatched`] | programs of the run that nobody watched | files |
//! | [`driver`] | `run`: start a program, checkpoint it, recover what it left | processes |
//!
//! The preload library (`stdchk-preload`) is the other consumer, inside other people's processes: everything that it
//! uses here speaks to the kernel through `rustix` and never through the C library, whose names it replaces.

mod astray;
pub mod checkpoint;
mod clones;
pub mod control;
pub mod driver;
pub mod durable;
pub mod error;
pub mod extents;
pub mod history;
pub mod index;
pub mod locks;
pub mod log;
pub mod mapped;
mod outside;
mod overlay;
pub mod paths;
mod pieces;
pub mod program;
mod progress;
mod reach;
pub mod record;
pub mod restore;
pub mod snapshot;
mod space;
pub mod store;
mod summary;
pub mod trigger;
pub mod unwatched;
pub mod watch;

pub use error::{Error, Result};
