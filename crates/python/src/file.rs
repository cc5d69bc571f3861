//! Files of the pool, read and written piece by piece: what the file objects of the package stand on.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use stdchk_operations::{NewVersion, OpenFile, Target};
use tokio::sync::Mutex as Turn;

use crate::buffer::Lent;
use crate::owned::Owned;
use crate::pool::Pool;
use crate::work::{How, plain, run};

/// One version of a file, which stays the same whatever is written meanwhile. A process that was forked opens it anew.
#[pyclass(frozen, module = "stdchk._stdchk")]
pub struct Reader {
    pool: Py<Pool>,
    /// With the version that was opened.
    target: Target,
    size: u64,
    version: Option<u64>,
    file: Mutex<Arc<Owned<OpenFile>>>,
}

impl Reader {
    /// A reader of what was opened as `target`.
    pub fn new(pool: Py<Pool>, target: Target, file: OpenFile) -> Self {
        let (size, version) = (file.size(), file.version());
        let target = version.map_or(target.clone(), |version| target.at(version));
        Self { pool, target, size, version, file: Mutex::new(Arc::new(Owned::new(file))) }
    }

    fn file(&self, py: Python<'_>) -> PyResult<OpenFile> {
        let known = Arc::clone(&self.file.lock());
        if let Some(file) = known.here() {
            return Ok(file.clone());
        }
        let pool = self.pool.get().connection(py)?;
        let file: OpenFile = crate::work::block_on(py, {
            let target = self.target.clone();
            async move { pool.open(&target).await }
        })?;
        *self.file.lock() = Arc::new(Owned::new(file.clone()));
        Ok(file)
    }
}

#[pymethods]
impl Reader {
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    #[getter]
    fn version(&self) -> Option<u64> {
        self.version
    }

    /// Fills `buffer` from `offset` on. The number of bytes: fewer than it takes only where the file ends.
    #[pyo3(signature = (offset, buffer, *, done=None))]
    fn read_into(
        &self,
        offset: u64,
        buffer: &Bound<'_, PyAny>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let py = buffer.py();
        let (file, mut lent) = (self.file(py)?, Lent::to_write(buffer)?);
        run(py, How::silent(done), |_| async move { file.read_into(offset, lent.bytes_mut()).await }, plain)
    }

    /// Up to `length` bytes from `offset` on.
    #[pyo3(signature = (offset, length, *, done=None))]
    fn read(&self, py: Python<'_>, offset: u64, length: u64, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let file = self.file(py)?;
        let length = usize::try_from(length.min(self.size.saturating_sub(offset)))?;
        run(
            py,
            How::silent(done),
            |_| async move { file.read_at(offset, length).await },
            |py, bytes| Ok(PyBytes::new(py, &bytes).into_any().unbind()),
        )
    }
}

/// A version that is being written. Nobody sees it before `commit`.
#[pyclass(frozen, module = "stdchk._stdchk")]
pub struct Writer {
    version: Owned<Arc<Turn<Option<NewVersion>>>>,
}

impl Writer {
    /// A writer of this version.
    pub fn new(version: NewVersion) -> Self {
        Self { version: Owned::new(Arc::new(Turn::new(Some(version)))) }
    }

    fn turn(&self) -> PyResult<Arc<Turn<Option<NewVersion>>>> {
        self.version.required("a file that is being written").map(Arc::clone)
    }
}

#[pymethods]
impl Writer {
    /// Bytes that the version has so far.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        let turn = self.turn()?;
        let held = py.detach(|| turn.blocking_lock());
        held.as_ref().map(NewVersion::length).ok_or_else(closed)
    }

    /// Writes the bytes of `buffer` at `offset`.
    #[pyo3(signature = (offset, buffer, *, done=None))]
    fn write(&self, offset: u64, buffer: &Bound<'_, PyAny>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let (py, lent, turn) = (buffer.py(), Lent::to_read(buffer)?, self.turn()?);
        run(
            py,
            How::silent(done),
            |_| async move {
                let mut held = turn.lock().await;
                let version = held.as_mut().ok_or_else(ended)?;
                version.write_at(offset, lent.bytes()).await.map(|()| lent.len())
            },
            plain,
        )
    }

    #[pyo3(signature = (size, *, done=None))]
    fn truncate(&self, py: Python<'_>, size: u64, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let turn = self.turn()?;
        run(
            py,
            How::silent(done),
            |_| async move { turn.lock().await.as_mut().ok_or_else(ended)?.truncate(size).await },
            plain,
        )
    }

    /// Makes all of it durable and the newest version; its number.
    #[pyo3(signature = (*, done=None))]
    fn commit(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let turn = self.turn()?;
        run(
            py,
            How::silent(done),
            |_| async move {
                let version = turn.lock().await.take().ok_or_else(ended)?;
                version.commit(stdchk_operations::now()).await
            },
            plain,
        )
    }

    /// Gives it up; does nothing if it has ended already, or belongs to another process.
    #[pyo3(signature = (*, done=None))]
    fn discard(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        let Ok(turn) = self.turn() else { return Ok(py.None()) };
        run(
            py,
            How::silent(done),
            |_| async move {
                let version = turn.lock().await.take();
                if let Some(version) = version {
                    version.discard().await;
                }
                Ok::<_, stdchk_operations::Error>(())
            },
            plain,
        )
    }
}

fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

fn ended() -> stdchk_operations::Error {
    stdchk_operations::Error::invalid("the file", "it is closed", "open it anew")
}
