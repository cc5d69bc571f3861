//! One more mount of a pool, in the foreground, as `stdchk mount DIR` makes it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;

use crate::pool::Pool;
use crate::process::send_signal;
use crate::wait::wait_until;

/// A mount beside the one that `up` made. Ends with the value, also when its test fails.
pub struct Mount {
    child: Child,
    point: PathBuf,
}

impl Mount {
    /// Mounts the pool at a path of the test; what the process says goes to `NAME.log` beside it.
    pub fn start(pool: &Pool, name: &str) -> Self {
        Self::start_with(pool, name, &[])
    }

    /// The same with more arguments.
    pub fn start_with(pool: &Pool, name: &str, more: &[&str]) -> Self {
        let point = pool.path(name);
        let log = pool.path(&format!("{name}.log"));
        // The tests may run with SIGHUP ignored, and a mount that is started so does as well.
        let stdchk = pool.command(&["mount", point.to_str().unwrap()]);
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(stdchk.get_program()).args(stdchk.get_args());
        for (name, value) in stdchk.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.args(more).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        let mut mount = Self { child: command.spawn().unwrap(), point };
        wait_until("the pool is mounted once more", || {
            let ended = mount.child.try_wait().unwrap();
            let said = || std::fs::read_to_string(&log).unwrap();
            assert!(ended.is_none(), "stdchk mount ended: {}", said());
            said().contains("is mounted at")
        });
        mount
    }

    /// A path below the mount point.
    pub fn at(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }

    /// The mount point.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// SIGKILL; what was mounted stays as a dead mount point.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the mount as a user would, by SIGTERM; whether it ended well.
    pub fn end(&mut self) -> bool {
        self.end_by(Signal::TERM)
    }

    /// Ends the mount by a signal; whether it ended well.
    pub fn end_by(&mut self, signal: Signal) -> bool {
        send_signal(self.child.id(), signal);
        wait_until("the mount ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().success()
    }
}

/// Makes a folder ordinary again on which a pool was mounted by root: else it could not be removed.
pub fn uncover(point: &Path) {
    let Ok(folder) = File::open(point) else { return };
    // A file system without the attribute has nothing to take away.
    if let Ok(attributes) = ioctl_getflags(&folder)
        && attributes.contains(IFlags::IMMUTABLE)
    {
        ioctl_setflags(&folder, attributes - IFlags::IMMUTABLE).unwrap();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Both fail if the mount has ended well.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = unmount(&self.point, UnmountFlags::DETACH);
        uncover(&self.point);
    }
}
