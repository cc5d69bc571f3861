//! Memory that a Python object lends: `bytes`, a `memoryview`, an array.
//!
//! CPython's stable ABI has the buffer protocol from 3.11 on, so PyO3 leaves it out for 3.10. Its functions and the layout of
//! `Py_buffer` are the same in 3.10 (Include/cpython/object.h there, Include/pybuffer.h later), so they are declared here.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

/// `Py_buffer`.
#[repr(C)]
struct View {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: ffi::Py_ssize_t,
    itemsize: ffi::Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut ffi::Py_ssize_t,
    strides: *mut ffi::Py_ssize_t,
    suboffsets: *mut ffi::Py_ssize_t,
    internal: *mut c_void,
}

const SIMPLE: c_int = 0;
const WRITABLE: c_int = 1;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut ffi::PyObject, view: *mut View, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut View);
}

/// Contiguous memory of a Python object, which neither moves nor goes away while this is held.
pub struct Lent {
    /// Boxed: an exporter may keep pointers into the view.
    view: Box<View>,
}

// SAFETY: the memory is held by a reference to the exporter, which `Drop` gives back with the interpreter attached; the pointers
// are only followed through `bytes` and `bytes_mut`.
unsafe impl Send for Lent {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Lent {}

impl Lent {
    /// Borrows the memory of `object` for reading.
    ///
    /// # Errors
    /// `TypeError`: it lends none; `BufferError`: its memory is not contiguous.
    pub fn to_read(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(object, SIMPLE)
    }

    /// Borrows the memory of `object` for writing.
    ///
    /// # Errors
    /// Also `BufferError`: it can't be written to.
    pub fn to_write(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(object, WRITABLE)
    }

    fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(View {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        });
        // SAFETY: the object is alive and the interpreter attached; the view is ours and large enough.
        match unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } {
            0 => Ok(Self { view }),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    /// Its length, bytes.
    pub fn len(&self) -> usize {
        self.view.len.unsigned_abs()
    }

    /// The memory.
    pub fn bytes(&self) -> &[u8] {
        if self.len() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `len` bytes at `buf` until the view is released. That nobody changes them meanwhile is the
        // caller's part, as it is with files of Python's own.
        unsafe { std::slice::from_raw_parts(self.view.buf.cast(), self.len()) }
    }

    /// The memory, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len() == 0 || self.view.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as for `bytes`; the exporter says that it can be written to.
        unsafe { std::slice::from_raw_parts_mut(self.view.buf.cast(), self.len()) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let released = Python::try_attach(|_| {
            // SAFETY: the view was filled by `PyObject_GetBuffer` and is released once; the interpreter is attached.
            unsafe { PyBuffer_Release(&raw mut *self.view) }
        });
        // An interpreter that ends takes the memory with it.
        let _ = released;
    }
}
