//! A connection to a pool: every operation of the library by its name.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use stdchk_operations::{
    Depth, Error, LatestSet, NewVersion, Opening, Options, PolicyChange, Put, Remove, Rename, Restore,
    Restored, Result, Settings, Source, Sources, Target, Verify, Watch, WhenAway,
};

use crate::error::exception;
use crate::file::{Reader, Writer};
use crate::owned::Owned;
use crate::work::{How, json, plain, run, runtime};

/// A connection to a pool, which a process that was forked makes anew.
#[pyclass(frozen, module = "stdchk._stdchk")]
pub struct Pool {
    options: Options,
    /// Where the agent of this user and pool serves.
    agent_socket: PathBuf,
    connection: Mutex<Arc<Owned<stdchk_operations::Pool>>>,
}

/// The result of an operation, or an object for the one that is under way.
type Given = PyResult<Py<PyAny>>;

impl Pool {
    /// The connection of this process. The mutex is held by whoever has the interpreter's lock, and never while it waits.
    pub fn connection(&self, py: Python<'_>) -> PyResult<stdchk_operations::Pool> {
        let known = Arc::clone(&self.connection.lock());
        if let Some(pool) = known.here() {
            return Ok(pool.clone());
        }
        let pool = connect(py, self.options.clone())?;
        *self.connection.lock() = Arc::new(Owned::new(pool.clone()));
        Ok(pool)
    }

    fn run<T, F>(
        &self,
        py: Python<'_>,
        how: How,
        work: impl FnOnce(stdchk_operations::Pool, Watch) -> F,
        give: fn(Python<'_>, T) -> Given,
    ) -> Given
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let pool = self.connection(py)?;
        run(py, how, |watch| work(pool, watch), give)
    }
}

fn connect(py: Python<'_>, options: Options) -> PyResult<stdchk_operations::Pool> {
    let runtime = runtime(py)?;
    let connected = py.detach(|| runtime.block_on(runtime.spawn(stdchk_operations::Pool::connect(options))));
    let connected =
        connected.map_err(|error| pyo3::exceptions::PyRuntimeError::new_err(error.to_string()))?;
    connected.map_err(|error| exception(py, &error, &[]))
}

/// The text of a target, read; an error of it is one of the operation.
fn target(py: Python<'_>, text: &str) -> PyResult<Target> {
    Target::parse(text).map_err(|error| exception(py, &error, &[]))
}

fn plain_target(py: Python<'_>, text: &str) -> PyResult<Target> {
    Target::parse_plain(text).map_err(|error| exception(py, &error, &[]))
}

fn when_away(wait: Option<f64>, or_older: bool) -> WhenAway {
    match wait {
        _ if or_older => WhenAway::PassOver,
        Some(seconds) => WhenAway::Wait(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
        None => WhenAway::Fail,
    }
}

#[pymethods]
impl Pool {
    /// Connects as the settings say: arguments before `STDCHK_*` variables before the configuration file.
    #[new]
    #[pyo3(signature = (*, data, manager, keys, encryption_keys, window, config, patience))]
    #[expect(clippy::too_many_arguments, reason = "the settings, by their names")]
    fn new(
        py: Python<'_>,
        data: Option<PathBuf>,
        manager: Option<String>,
        keys: Option<PathBuf>,
        encryption_keys: Option<PathBuf>,
        window: Option<String>,
        config: Option<PathBuf>,
        patience: f64,
    ) -> PyResult<Self> {
        let sources = Sources { data, manager, keys, encryption_keys, window, config };
        let found =
            Settings::load(&sources).and_then(|settings| Ok((settings.options()?, settings.agent_socket()?)));
        let (options, agent_socket) = found.map_err(|error| exception(py, &error, &[]))?;
        let patience = Duration::try_from_secs_f64(patience).unwrap_or(Duration::MAX);
        let options = Options { patience, ..options };
        let pool = connect(py, options.clone())?;
        Ok(Self { options, agent_socket, connection: Mutex::new(Arc::new(Owned::new(pool))) })
    }

    /// Where the manager is.
    #[getter]
    fn manager(&self) -> &str {
        &self.options.manager
    }

    /// Where the agent of this user and pool serves.
    #[getter]
    fn agent_socket(&self) -> PathBuf {
        self.agent_socket.clone()
    }

    #[pyo3(signature = (*, done=None))]
    fn close(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> Given {
        let known = Arc::clone(&self.connection.lock());
        let Some(pool) = known.here().cloned() else { return Ok(py.None()) };
        let close = |_| async move {
            pool.close().await;
            Ok(())
        };
        run(py, How::silent(done), close, plain)
    }

    #[pyo3(signature = (path, *, done=None))]
    fn read(slf: &Bound<'_, Self>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let py = slf.py();
        let target = target(py, path)?;
        let owner: Py<Self> = slf.clone().unbind();
        slf.get().run(
            py,
            How::silent(done),
            |pool, _| async move {
                let file = pool.open(&target).await?;
                Ok(Reader::new(owner, target, file))
            },
            |py, reader| Ok(Py::new(py, reader)?.into_any()),
        )
    }

    /// Begins a version: `wb` in place of the one before, `ab` behind its bytes, `xb` only if there is no such file.
    #[pyo3(signature = (path, mode, *, permissions=0o644, done=None))]
    fn write(
        &self,
        py: Python<'_>,
        path: &str,
        mode: &str,
        permissions: u32,
        done: Option<Py<PyAny>>,
    ) -> Given {
        let target = plain_target(py, path)?;
        let opening = match mode {
            "ab" => Opening::Append,
            "xb" => Opening::New,
            _ => Opening::Replace,
        };
        let begin = |pool: stdchk_operations::Pool, _| async move {
            pool.create(&target, permissions, opening).await
        };
        self.run(py, How::silent(done), begin, |py, version: NewVersion| {
            Ok(Py::new(py, Writer::new(version))?.into_any())
        })
    }

    #[pyo3(signature = (source, path, into_folder, recursive, *, progress=None, done=None))]
    #[expect(clippy::too_many_arguments, reason = "what is stored where, and how it is told")]
    fn put(
        &self,
        py: Python<'_>,
        source: PathBuf,
        path: &str,
        into_folder: bool,
        recursive: bool,
        progress: Option<Py<PyAny>>,
        done: Option<Py<PyAny>>,
    ) -> Given {
        let target = plain_target(py, path)?;
        let put = Put { sources: vec![Source::Path(source)], target, into_folder, recursive };
        self.run(
            py,
            How { progress, done },
            |pool, watch| async move {
                let stored = pool.put(&put, &watch).await?;
                stored.tally.outcome(put.target.shown())?;
                Ok(stored)
            },
            json,
        )
    }

    #[pyo3(signature = (path, output, *, progress=None, done=None))]
    fn get(
        &self,
        py: Python<'_>,
        path: &str,
        output: PathBuf,
        progress: Option<Py<PyAny>>,
        done: Option<Py<PyAny>>,
    ) -> Given {
        let target = target(py, path)?;
        self.run(
            py,
            How { progress, done },
            |pool, watch| async move { pool.get(&target, &output, &watch).await },
            json,
        )
    }

    #[pyo3(signature = (path, *, done=None))]
    fn entry(&self, py: Python<'_>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let target = plain_target(py, path)?;
        self.run(py, How::silent(done), |pool, _| async move { pool.entry(&target).await }, json)
    }

    #[pyo3(signature = (path, *, done=None))]
    fn list(&self, py: Python<'_>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let target = plain_target(py, path)?;
        self.run(py, How::silent(done), |pool, _| async move { pool.list(&target).await }, json)
    }

    #[pyo3(signature = (path, *, done=None))]
    fn versions(&self, py: Python<'_>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let target = plain_target(py, path)?;
        self.run(py, How::silent(done), |pool, _| async move { pool.versions(&target).await }, json)
    }

    #[pyo3(signature = (path, *, done=None))]
    fn sets(&self, py: Python<'_>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let target = plain_target(py, path)?;
        self.run(py, How::silent(done), |pool, _| async move { pool.sets(&target).await }, json)
    }

    /// The newest complete set; `None` if the folder has no complete one, or isn't there.
    #[pyo3(signature = (path, wait, or_older, check, *, done=None))]
    fn latest(
        &self,
        py: Python<'_>,
        path: &str,
        wait: Option<f64>,
        or_older: bool,
        check: bool,
        done: Option<Py<PyAny>>,
    ) -> Given {
        let target = plain_target(py, path)?;
        let depth = if check { Depth::Read } else { Depth::Known };
        let when = when_away(wait, or_older);
        self.run(
            py,
            How::silent(done),
            |pool, watch| async move {
                let found = pool.latest(&target, when, depth, &watch).await;
                none_if_missing(found.and_then(|found| found.required(&target)))
            },
            json,
        )
    }

    #[pyo3(signature = (path, timestep, output, wait, or_older, *, progress=None, done=None))]
    #[expect(clippy::too_many_arguments, reason = "what is restored where, and how it is told")]
    fn restore(
        &self,
        py: Python<'_>,
        path: &str,
        timestep: Option<&str>,
        output: PathBuf,
        wait: Option<f64>,
        or_older: bool,
        progress: Option<Py<PyAny>>,
        done: Option<Py<PyAny>>,
    ) -> Given {
        let app = plain_target(py, path)?;
        let read = |text: &str| {
            text.parse().map_err(|error| Error::invalid(text, error, "give a timestep as `sets` lists it"))
        };
        let timestep = timestep.map(read).transpose().map_err(|error| exception(py, &error, &[]))?;
        let restore = Restore { app, timestep, when_away: when_away(wait, or_older), output };
        self.run(
            py,
            How { progress, done },
            |pool, watch| async move {
                let restored: Restored = pool.restore(&restore, &watch).await?;
                restored.tally.outcome(restore.app.shown())?;
                Ok(restored)
            },
            json,
        )
    }

    #[pyo3(signature = (path, recursive, *, done=None))]
    fn remove(&self, py: Python<'_>, path: &str, recursive: bool, done: Option<Py<PyAny>>) -> Given {
        let remove = Remove { target: target(py, path)?, recursive, dry_run: false };
        self.run(py, How::silent(done), |pool, _| async move { pool.remove(&remove).await.map(drop) }, plain)
    }

    #[pyo3(signature = (path, *, done=None))]
    fn remove_folder(&self, py: Python<'_>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let target = plain_target(py, path)?;
        self.run(py, How::silent(done), |pool, _| async move { pool.remove_folder(&target).await }, plain)
    }

    #[pyo3(signature = (path, to, replace, *, done=None))]
    fn rename(&self, py: Python<'_>, path: &str, to: &str, replace: bool, done: Option<Py<PyAny>>) -> Given {
        let (source, target) = (plain_target(py, path)?, plain_target(py, to)?);
        let rename = Rename { source, target, into_folder: false, no_replace: !replace };
        self.run(py, How::silent(done), |pool, _| async move { pool.rename(&rename).await }, plain)
    }

    #[pyo3(signature = (path, *, done=None))]
    fn make_folder(&self, py: Python<'_>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let target = plain_target(py, path)?;
        self.run(py, How::silent(done), |pool, _| async move { pool.make_folder(&target).await }, plain)
    }

    #[pyo3(signature = (path, *, done=None))]
    fn policy(&self, py: Python<'_>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let target = plain_target(py, path)?;
        self.run(
            py,
            How::silent(done),
            |pool, _| async move { Ok(pool.policy(&target).await?.pairs()) },
            json,
        )
    }

    #[pyo3(signature = (path, pairs, *, done=None))]
    fn set_policy(
        &self,
        py: Python<'_>,
        path: &str,
        pairs: Vec<(String, String)>,
        done: Option<Py<PyAny>>,
    ) -> Given {
        let change = PolicyChange { folder: plain_target(py, path)?, pairs };
        self.run(
            py,
            How::silent(done),
            |pool, _| async move { pool.set_policy(&change).await.map(drop) },
            plain,
        )
    }

    #[pyo3(signature = (path, timestep, sealed, *, done=None))]
    fn seal(
        &self,
        py: Python<'_>,
        path: &str,
        timestep: &str,
        sealed: bool,
        done: Option<Py<PyAny>>,
    ) -> Given {
        let app = plain_target(py, path)?;
        let read = timestep
            .parse()
            .map_err(|error| Error::invalid(timestep, error, "give a timestep as `sets` lists it"));
        let timestep = read.map_err(|error| exception(py, &error, &[]))?;
        self.run(
            py,
            How::silent(done),
            |pool, _| async move { pool.seal(&app, timestep, sealed).await },
            plain,
        )
    }

    /// The job has succeeded: what becomes of its sets.
    #[pyo3(signature = (path, dry_run, *, done=None))]
    fn done(&self, py: Python<'_>, path: &str, dry_run: bool, done: Option<Py<PyAny>>) -> Given {
        let app = plain_target(py, path)?;
        self.run(py, How::silent(done), |pool, _| async move { pool.done(&app, dry_run).await }, json)
    }

    #[pyo3(signature = (path, *, progress=None, done=None))]
    fn verify(
        &self,
        py: Python<'_>,
        path: &str,
        progress: Option<Py<PyAny>>,
        done: Option<Py<PyAny>>,
    ) -> Given {
        let verify = Verify { target: plain_target(py, path)?, repair: false };
        self.run(
            py,
            How { progress, done },
            |pool, watch| async move { pool.verify(&verify, &watch).await },
            json,
        )
    }

    #[pyo3(signature = (path, *, done=None))]
    fn usage(&self, py: Python<'_>, path: &str, done: Option<Py<PyAny>>) -> Given {
        let target = plain_target(py, path)?;
        self.run(py, How::silent(done), |pool, _| async move { pool.usage(&target).await }, json)
    }

    #[pyo3(signature = (*, done=None))]
    fn status(&self, py: Python<'_>, done: Option<Py<PyAny>>) -> Given {
        self.run(py, How::silent(done), |pool, _| async move { pool.status().await }, json)
    }
}

/// That there is no complete set is an answer, not an error; sets that are damaged or away are one.
fn none_if_missing(found: Result<LatestSet>) -> Result<Option<LatestSet>> {
    match found {
        Err(error) if error.code == stdchk_operations::Code::NotFound => Ok(None),
        found => found.map(Some),
    }
}
