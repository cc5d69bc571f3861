//! The log of the role processes: one line per event on standard error, filtered by `STDCHK_LOG`.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// What is logged unless `STDCHK_LOG` says otherwise.
const FILTER_DEFAULT: LevelFilter = LevelFilter::INFO;

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
