//! The operations of stdchk for CPython. The package `stdchk` stands on this module; its functions take and give plain data.
//!
//! Every operation takes `done`: with `None` it blocks, without the interpreter's lock, and Ctrl-C ends it; else it returns an
//! [`Underway`](work::Underway) at once and calls `done(result, exception)` once it has ended, on a thread of its own. Results are what the
//! command prints with `--json`, as text.

mod buffer;
mod error;
mod file;
mod owned;
mod pool;
mod work;

/// The module.
#[pyo3::pymodule]
mod _stdchk {
    #[pymodule_export]
    use crate::file::{Reader, Writer};
    #[pymodule_export]
    use crate::pool::Pool;
    #[pymodule_export]
    use crate::work::Underway;
}
