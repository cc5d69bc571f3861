//! A FUSE file system that passes everything on to local files (the paper's "FUSE to local I/O", Table 1): bindfs.

use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::Error;

/// Longest wait for it to appear.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// A bindfs that runs; it is taken off when dropped.
pub struct LocalFuse {
    process: Child,
    mount_point: tempfile::TempDir,
    _files: tempfile::TempDir,
}

impl LocalFuse {
    /// Starts it below `below`; `None`, with a line that says so, where bindfs is not installed or can't mount.
    pub fn start(below: &Path) -> Result<Option<Self>, Error> {
        let files = tempfile::Builder::new().prefix("local-").tempdir_in(below)?;
        let mount_point = tempfile::Builder::new().prefix("bindfs-").tempdir_in(below)?;
        let folders = [files.path(), mount_point.path()];
        let process = match Command::new("bindfs").args(["-f", "--no-allow-other"]).args(folders).spawn() {
            Ok(process) => process,
            Err(error) => {
                eprintln!(
                    "stdchk-bench: no row for FUSE to a local file, as bindfs can't be started: {error}"
                );
                return Ok(None);
            }
        };
        let mut local = Self { process, mount_point, _files: files };
        let give_up = Instant::now() + APPEARS_WITHIN;
        let outside = rustix::fs::stat(below)?.st_dev;
        while rustix::fs::stat(local.path())?.st_dev == outside {
            if Instant::now() > give_up || local.process.try_wait()?.is_some() {
                eprintln!("stdchk-bench: no row for FUSE to a local file, as bindfs did not mount");
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
        self.process.id()
    }
}

impl Drop for LocalFuse {
    fn drop(&mut self) {
        // Without its mount, bindfs ends by itself.
        let unmounted = Command::new("fusermount3").args(["-u", "-z"]).arg(self.mount_point.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("stdchk-bench: bindfs could not be taken off {}", self.mount_point.path().display());
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
