//! The preload library: puts file-state checkpoints under any dynamically linked program.
//!
//! It relies on `stdchk-filestate` for every decision; here are only the C-ABI hooks that ask before the real call,
//! and what a host process forces: no async runtime, no threads, an allocator of its own (a signal handler may write
//! while the host is inside `malloc`), signals held back while a decision is made, `errno` untouched.
//!
//! Two ideas keep it small. The descriptors that the program sees are the kernel's, so only calls that *change* files
//! are hooked at all. And the whole of stdio, wide and unlocked forms, inlined macros and the flush at exit
//! included, goes through two function pointers of the C library's stream table, which are redirected once
//! ([`streams`]), instead of through ninety entry points.
//!
//! | module | holds |
//! |---|---|
//! | [`active`] | start-up, and asking the watch around a real call |
//! | [`real`] | the functions that the hooks stand before |
//! | [`hooks`] | the hooks |
//! | [`objects`] | loaded objects that call the kernel by themselves |
//! | [`streams`] | the stream table |
//! | [`descriptors`] | descriptors and streams as they stood at a checkpoint (Metamori's FIT), and back |
//! | [`api`] | `stdchk_checkpoint` and `stdchk_restore` |

pub mod active;
pub mod api;
pub mod descriptors;
pub mod hooks;
pub mod objects;
pub mod real;
pub mod streams;

/// Memory that shares nothing with the host's `malloc`.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;
