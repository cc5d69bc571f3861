//! Objects that belong to the process that made them.
//!
//! A process that was forked has a copy of all memory and none of the threads: a connection there would wait for ever, and dropping
//! it would tell the pool something in the parent's name. So it is neither used nor dropped in another process.

use std::mem::ManuallyDrop;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A value of one process.
pub struct Owned<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> Owned<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { process: std::process::id(), value: ManuallyDrop::new(value) }
    }

    /// Whether this process made it.
    pub fn is_here(&self) -> bool {
        self.process == std::process::id()
    }

    /// The value, if this process made it.
    pub fn here(&self) -> Option<&T> {
        self.is_here().then_some(&*self.value)
    }

    /// The value.
    ///
    /// # Errors
    /// `ValueError`: another process made it.
    pub fn required(&self, what: &str) -> PyResult<&T> {
        self.here().ok_or_else(|| {
            PyValueError::new_err(format!(
                "{what} belongs to the process that opened it; open it anew after a fork"
            ))
        })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: the value is dropped once, here, and not used after it.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
