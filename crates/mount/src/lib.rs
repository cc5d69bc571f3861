//! The pool as a file system: an adapter from FUSE to the client library.
//!
//! [`mount`] mounts a pool. Inside, `fuse` translates the kernel's requests, `fs` thinks in inodes and handles over the
//! client library, and neither moves data that the client library could move itself. What the mount promises to programs
//! is in `docs/SEMANTICS.md`; why it does I/O the way it does, in `docs/design/0002-fuse-io-mode.md`.
//!
//! [`mount_null`] is the paper's `/stdchk/null`, a file system that throws its bytes away: the bound that FUSE sets.

// The future of one request to the pool holds those of all steps below, down to the greeting of a manager.
#![recursion_limit = "256"]

mod attr;
mod begun;
mod caller;
mod descriptors;
mod errno;
mod fs;
mod fuse;
mod killed;
mod mount;
mod null;
mod point;
mod proc;
mod user;

pub use mount::{MountConfig, Mounted, SpoolConfig, mount};
pub use null::{NullConfig, NullMode, NullMounted, mount_null};
pub use point::{Error, below_mount, full_path, is_mounted};
