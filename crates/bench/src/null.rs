//! The do-nothing mount (the paper's /stdchk/null) as a process of its own, like the real one.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use stdchk_mount::{NullConfig, NullMode};

use crate::Error;
use crate::ends::AtEnd;

/// Threads of the do-nothing mount, as many as the real one has.
const THREADS: usize = 4;
/// Longest wait for it to appear.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// Serves a mount that throws bytes away until standard input ends.
pub fn serve(mount_point: &Path, mode: NullMode) -> Result<(), Error> {
    let config = NullConfig { mount_point: mount_point.to_owned(), mode, threads: THREADS };
    let mounted = stdchk_mount::mount_null(&config)?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(mounted.unmount()?)
}

/// A do-nothing mount that runs; it ends when dropped, with its standard input.
pub struct NullMount {
    // Before the mount point, which it needs.
    _unmount: AtEnd,
    pid: u32,
    mount_point: tempfile::TempDir,
}

impl NullMount {
    /// Starts `own`, this program, as a mount below `below`.
    pub fn start(own: &Path, below: &Path, mode: &str) -> Result<Self, Error> {
        let mount_point = tempfile::Builder::new().prefix("null-").tempdir_in(below)?;
        let arguments = ["null", "--mode", mode];
        let mut command = Command::new(own);
        // A Ctrl-C is for the benchmark, which takes it off.
        command.args(arguments).arg(mount_point.path()).stdin(Stdio::piped()).process_group(0);
        let process = command.spawn()?;
        let pid = process.id();
        let null = Self { _unmount: AtEnd::new(move || end(process)), pid, mount_point };
        let give_up = Instant::now() + APPEARS_WITHIN;
        let outside = rustix::fs::stat(below)?.st_dev;
        while rustix::fs::stat(null.mount_point.path())?.st_dev == outside {
            if Instant::now() > give_up {
                return Err(Error("the do-nothing mount did not appear within 10 s".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(null)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.mount_point.path()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

fn end(mut process: Child) {
    drop(process.stdin.take());
    let ended = process.wait();
    if !ended.is_ok_and(|status| status.success()) {
        eprintln!("stdchk-bench: the do-nothing mount did not end well");
    }
}
