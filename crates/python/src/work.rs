//! Operations run on threads of their own; a caller waits for them without the interpreter's lock, or is told when they end.
//!
//! An operation is a task of one runtime. A blocking caller looks up from its wait ten times a second, so that Ctrl-C ends it and
//! progress is told on the caller's thread. An asynchronous caller gets an [`Underway`] and a call of `done` once the task has ended.
//!
//! A process that was forked has none of the runtime's threads: it gets a runtime of its own with its first operation, and what
//! belongs to the old one is neither used nor dropped there.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::BoundObject;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Serialize;
use stdchk_operations::{Error, Event, Result, Watch};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use crate::error::exception;

/// How often a caller that waits looks for signals and tells of progress.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The runtime of this process, with the process that made it.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime of this process. Called with the interpreter's lock, so that no other thread has the mutex while a process forks.
///
/// # Errors
/// The system gives no threads.
pub fn runtime(_: Python<'_>) -> PyResult<&'static Runtime> {
    let mut known = RUNTIME.lock();
    let process = std::process::id();
    match *known {
        Some((owner, runtime)) if owner == process => Ok(runtime),
        _ => {
            let runtime = Builder::new_multi_thread().enable_all().thread_name("stdchk").build()?;
            let runtime: &'static Runtime = Box::leak(Box::new(runtime));
            *known = Some((process, runtime));
            Ok(runtime)
        }
    }
}

/// The callbacks of an operation.
pub struct How {
    /// Called with bytes done and bytes to do, 0 if that isn't known.
    pub progress: Option<Py<PyAny>>,
    /// Called with result and exception when it has ended; the caller doesn't wait then.
    pub done: Option<Py<PyAny>>,
}

impl How {
    /// Without progress.
    pub fn silent(done: Option<Py<PyAny>>) -> Self {
        Self { progress: None, done }
    }
}

/// Progress and failures of an operation so far.
#[derive(Default)]
struct Told {
    done: u64,
    total: u64,
    failures: Vec<Error>,
}

/// An operation that goes on while its caller does something else.
#[pyclass(frozen, module = "stdchk._stdchk")]
pub struct Underway {
    task: AbortHandle,
}

#[pymethods]
impl Underway {
    /// Ends it: what it had not finished did not happen.
    fn cancel(&self) {
        self.task.abort();
    }
}

/// Runs an operation on the runtime as `how` says; `give` makes its result an object of Python.
pub fn run<T, F>(
    py: Python<'_>,
    how: How,
    work: impl FnOnce(Watch) -> F,
    give: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
) -> PyResult<Py<PyAny>>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let runtime = runtime(py)?;
    let told = Arc::new(Mutex::new(Told::default()));
    let task = runtime.spawn(work(watch(&told)));
    match how.done {
        None => wait(py, runtime, task, &told, how.progress.as_ref()).and_then(|value| give(py, value)),
        Some(done) => {
            let underway = Underway { task: task.abort_handle() };
            runtime.spawn(tell_end(task, told, how.progress, done, give));
            Ok(Py::new(py, underway)?.into_any())
        }
    }
}

fn watch(told: &Arc<Mutex<Told>>) -> Watch {
    let told = Arc::clone(told);
    Watch::new(move |event| match event {
        Event::Began { bytes, .. } => told.lock().total += bytes,
        Event::Moved { bytes } => told.lock().done += bytes,
        Event::Failed(error) => told.lock().failures.push((*error).clone()),
        _ => {}
    })
}

/// The result of an operation that is short, for a caller that waits.
pub fn block_on<T: Send + 'static>(
    py: Python<'_>,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> PyResult<T> {
    let runtime = runtime(py)?;
    wait(py, runtime, runtime.spawn(work), &Mutex::default(), None)
}

/// Waits for a task. If an exception ends the wait, the task is stopped before this returns: it may read memory of its caller.
fn wait<T: Send + 'static>(
    py: Python<'_>,
    runtime: &Runtime,
    mut task: JoinHandle<Result<T>>,
    told: &Mutex<Told>,
    progress: Option<&Py<PyAny>>,
) -> PyResult<T> {
    let mut last = (0, 0);
    loop {
        let ended =
            py.detach(|| runtime.block_on(async { tokio::time::timeout(LOOK_EVERY, &mut task).await.ok() }));
        let looked = match progress {
            Some(progress) => tell_progress(py, progress, told, &mut last),
            None => Ok(()),
        };
        if let Some(ended) = ended {
            let outcome = outcome(py, ended, told)?;
            return looked.map(|()| outcome);
        }
        if let Err(error) = looked.and_then(|()| py.check_signals()) {
            task.abort();
            let _ = py.detach(|| runtime.block_on(task));
            return Err(error);
        }
    }
}

fn outcome<T>(py: Python<'_>, ended: Result<Result<T>, JoinError>, told: &Mutex<Told>) -> PyResult<T> {
    match ended {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(exception(py, &error, &told.lock().failures)),
        Err(error) => Err(PyRuntimeError::new_err(format!("a task of stdchk ended: {error}"))),
    }
}

/// Calls `progress` if there is something new to tell.
fn tell_progress(
    py: Python<'_>,
    progress: &Py<PyAny>,
    told: &Mutex<Told>,
    last: &mut (u64, u64),
) -> PyResult<()> {
    let now = {
        let told = told.lock();
        (told.done, told.total)
    };
    if now == *last {
        return Ok(());
    }
    *last = now;
    progress.call1(py, now).map(drop)
}

/// Tells the end of a task to `done`, and meanwhile of its progress. Exceptions of these calls are Python's to print: nobody waits.
async fn tell_end<T: Send + 'static>(
    mut task: JoinHandle<Result<T>>,
    told: Arc<Mutex<Told>>,
    progress: Option<Py<PyAny>>,
    done: Py<PyAny>,
    give: fn(Python<'_>, T) -> PyResult<Py<PyAny>>,
) {
    let mut last = (0, 0);
    let ended = loop {
        let ended = tokio::time::timeout(LOOK_EVERY, &mut task).await.ok();
        if let Some(progress) = &progress {
            tokio::task::block_in_place(|| {
                Python::try_attach(|py| {
                    tell_progress(py, progress, &told, &mut last)
                        .unwrap_or_else(|error| error.write_unraisable(py, None));
                })
            });
        }
        if let Some(ended) = ended {
            break ended;
        }
    };
    if ended.as_ref().is_err_and(JoinError::is_cancelled) {
        return;
    }
    tokio::task::block_in_place(|| {
        Python::try_attach(|py| {
            let called = match outcome(py, ended, &told).and_then(|value| give(py, value)) {
                Ok(value) => done.call1(py, (value, py.None())),
                Err(error) => done.call1(py, (py.None(), error.into_value(py))),
            };
            called.map(drop).unwrap_or_else(|error| error.write_unraisable(py, None));
        })
    });
}

/// A result as the text of its JSON, which is that of `--json`.
pub fn json<T: Serialize>(py: Python<'_>, value: T) -> PyResult<Py<PyAny>> {
    let text = serde_json::to_string(&value).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    Ok(text.into_pyobject(py)?.into_any().unbind())
}

/// A result as it is.
pub fn plain<T: for<'py> IntoPyObject<'py>>(py: Python<'_>, value: T) -> PyResult<Py<PyAny>> {
    let object = value.into_pyobject(py).map_err(Into::into)?;
    Ok(object.into_any().unbind())
}
