//! The log of the role processes: one line per event on standard error, filtered by `STDCHK_LOG`.
//!
//! Of a process that `up` started, standard error is a file in `DATA/log`. It is set aside when it has grown long, so that it and the one before take
//! a bounded part of the disk. A process that is told SIGHUP opens the file anew, as logrotate wants it after it has moved the file away.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::fstat;
use rustix::stdio::{dup2_stderr, stderr};
use stdchk_net::own::{self, Access};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// What is logged unless `STDCHK_LOG` says otherwise.
const FILTER_DEFAULT: LevelFilter = LevelFilter::INFO;
/// A log that is longer than this is set aside as `NAME.log.old`, bytes.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// Time between two looks at how long it is.
const LOOK: Duration = Duration::from_secs(5);

/// Starts logging for this process.
pub fn start() {
    // What of it makes no sense is told on standard error.
    let filter = EnvFilter::builder().with_default_directive(FILTER_DEFAULT.into());
    let filter = filter.with_env_var("STDCHK_LOG").from_env_lossy();
    let color = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(color);
    // Told of a line that can't be written, on the same standard error, a process whose log is on a full disk would panic.
    let log = log.log_internal_errors(false);
    // A second start can only happen within one process, where the first log is as good.
    drop(log.try_init());
}

/// Opens a log at its end; one that has grown long is set aside first.
///
/// # Errors
/// The system's.
pub fn open(path: &Path) -> io::Result<fs::File> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_added_extension("old"))?;
    }
    own::file(path, Access::Append)
}

/// Keeps the log of this process, which is its standard error, at `path` and within bounds from now on.
///
/// # Errors
/// The system has no thread for it.
pub fn keep(path: PathBuf) -> io::Result<()> {
    // Caught before this returns: SIGHUP ends a process that doesn't.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut told = {
        let _entered = runtime.enter();
        signal(SignalKind::hangup())?
    };
    std::thread::Builder::new().name("stdchk-log".to_owned()).spawn(move || {
        runtime.block_on(async {
            loop {
                let is_told = tokio::time::timeout(LOOK, told.recv()).await.is_ok();
                let is_long =
                    fstat(stderr()).is_ok_and(|about| about.st_size.cast_unsigned() > LOG_BYTES_MAX);
                if !is_told && !is_long {
                    continue;
                }
                // On a disk that refuses, the log goes on where it is.
                if let Err(error) = open(&path).and_then(|log| Ok(dup2_stderr(&log)?)) {
                    tracing::warn!(path = %path.display(), %error, "the log can't be opened anew");
                } else if is_told {
                    tracing::info!("SIGHUP: the log was opened anew");
                }
            }
        });
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manager.log");
        open(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
        assert_eq!(open(&path).unwrap().metadata().unwrap().len(), 0);
        assert!(directory.path().join("manager.log.old").exists());
    }
}
