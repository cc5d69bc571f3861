//! A FUSE file system that passes everything on to local files: bindfs. As fast as it can, it is the paper's "FUSE to local
//! I/O" (stdchk, Table 1); held to a rate, it stands for a parallel file system that many share (mcrEngine, figures 12 and 13).

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::Error;
use crate::ends::AtEnd;

/// Longest wait for it to appear.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// A bindfs that runs; it is taken off when dropped.
pub struct LocalFuse {
    // Before the mount point, which it needs.
    _unmount: AtEnd,
    pid: u32,
    mount_point: tempfile::TempDir,
}

impl LocalFuse {
    /// Starts it over the files in `files`, mounted below `below`; `None`, with a line that says so, where bindfs is not
    /// installed or can't mount.
    pub fn start(files: &Path, below: &Path) -> Result<Option<Self>, Error> {
        Self::with(&[], files, below)
    }

    /// Starts it for reads and writes of so many bytes per second each. It caches like a client of a parallel file
    /// system: what was written or read once is not fetched again, until it is mounted anew.
    pub fn at_rate(bytes_per_second: u64, files: &Path, below: &Path) -> Result<Option<Self>, Error> {
        let rates = [format!("--read-rate={bytes_per_second}"), format!("--write-rate={bytes_per_second}")];
        let [read, write] = &rates;
        Self::with(&[read, write, "-o", "kernel_cache"], files, below)
    }

    fn with(options: &[&str], files: &Path, below: &Path) -> Result<Option<Self>, Error> {
        let mount_point = tempfile::Builder::new().prefix("bindfs-").tempdir_in(below)?;
        let mut command = Command::new("bindfs");
        command.args(["-f", "--no-allow-other"]).args(options).args([files, mount_point.path()]);
        // A Ctrl-C is for the benchmark, which takes it off.
        let process = match command.process_group(0).spawn() {
            Ok(process) => process,
            Err(error) => {
                eprintln!("stdchk-bench: rows are missing, as bindfs can't be started: {error}");
                return Ok(None);
            }
        };
        let (pid, place) = (process.id(), mount_point.path().to_owned());
        let local = Self { _unmount: AtEnd::new(move || end(process, &place)), pid, mount_point };
        let give_up = Instant::now() + APPEARS_WITHIN;
        let outside = rustix::fs::stat(below)?.st_dev;
        while rustix::fs::stat(local.path())?.st_dev == outside {
            if Instant::now() > give_up {
                eprintln!("stdchk-bench: rows are missing, as bindfs did not mount");
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(local))
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

/// Takes bindfs off, upon which it ends.
fn end(mut process: Child, mount_point: &Path) {
    let unmounted = Command::new("fusermount3").args(["-u", "-z"]).arg(mount_point).status();
    if !unmounted.is_ok_and(|status| status.success()) {
        eprintln!("stdchk-bench: bindfs could not be taken off {}", mount_point.display());
        let _ = process.kill();
    }
    let _ = process.wait();
}
