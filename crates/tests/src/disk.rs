//! A benefactor on a small disk of its own, which the test fills and works on like its owner would.
//!
//! The disk is a file system in a mount namespace that the benefactor alone lives in, and vanishes with the process, however the test
//! ends. The test reaches it through `/proc/PID/root`. Making one in memory takes no rights that a user hasn't; a real one, whose
//! requests the kernel counts, is a loop device and takes root.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::command::binary;
use crate::pool::Pool;
use crate::wait::wait_until;

/// Mounts a disk of `$2` MiB at `$1`, and becomes the command behind.
const SCRIPT: &str = "mount -t tmpfs -o size=$2m stdchk \"$1\" && shift 2 && exec \"$@\"";
/// Makes a file system of `$2` MiB on a loop device, mounts it at `$1`, and becomes the command behind. The device goes with the mount.
const LOOP_SCRIPT: &str = "\
truncate -s \"$2M\" \"$1.img\" && mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 \"$1.img\" &&
device=$(losetup --find --show --direct-io=on \"$1.img\") && { mount \"$device\" \"$1\"; losetup --detach \"$device\"; } &&
mountpoint -q \"$1\" && shift 2 && exec \"$@\"";
/// What the owner writes at once, bytes.
const PIECE_BYTES: usize = 64 << 10;

/// A small disk and its benefactor.
pub struct Disk {
    benefactor: Child,
    directory: PathBuf,
    mebibytes: u64,
}

impl Disk {
    /// A disk of so many MiB whose owner keeps `floor` of it; its benefactor joins the pool and is on-line.
    pub fn start(pool: &Pool, name: &str, mebibytes: u64, floor: &str) -> Self {
        Self::start_with(pool, name, (mebibytes, floor), &[])
    }

    /// The same, with more arguments for the benefactor.
    pub fn start_with(pool: &Pool, name: &str, (mebibytes, floor): (u64, &str), more: &[&str]) -> Self {
        // More than there is, so that the disk is the limit.
        let more = [&["--donate", "1GiB", "--floor", floor], more].concat();
        Self::start_in(
            pool,
            &["--map-root-user", "--mount", "sh", "-c", SCRIPT, "sh"],
            name,
            mebibytes,
            &more,
        )
    }

    /// A real disk of so many MiB; its benefactor, with these arguments, joins the pool and is on-line.
    pub fn on_loop(pool: &Pool, name: &str, mebibytes: u64, more: &[&str]) -> Self {
        let more = [&["--floor", "1MiB"], more].concat();
        Self::start_in(pool, &["--mount", "sh", "-c", LOOP_SCRIPT, "sh"], name, mebibytes, &more)
    }

    fn start_in(pool: &Pool, namespaces: &[&str], name: &str, mebibytes: u64, more: &[&str]) -> Self {
        let directory = pool.path(name);
        fs::create_dir(&directory).unwrap();
        let mut command = Command::new("unshare");
        command.args(namespaces);
        command.arg(&directory).arg(mebibytes.to_string()).arg(binary()).args(["benefactor", "run"]);
        command.arg(directory.join("pool")).args(more);
        if !more.contains(&"--tier") {
            // It stands for a disk, whatever it lies on.
            command.args(["--tier", "disk"]);
        }
        // Nobody else sees the disk, and with it a socket on it.
        command.args(["--listen", &format!("unix:{}", pool.path(&format!("{name}.sock")).display())]);
        pool.apply_to(&mut command);
        let log = pool.path(&format!("{name}.log"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let mut disk = Self { benefactor: command.spawn().unwrap(), directory, mebibytes };
        wait_until("the benefactor on its own disk is on-line", || {
            let ended = disk.benefactor.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {}", fs::read_to_string(&log).unwrap());
            pool.shows(|status| disk.shown(status).is_some_and(|benefactor| benefactor["state"] == "online"))
        });
        disk
    }

    /// The benefactor in the status of the pool.
    pub fn shown<'a>(&self, status: &'a Value) -> Option<&'a Value> {
        let benefactors = status["benefactors"].as_array().unwrap();
        benefactors.iter().find(|benefactor| benefactor["pid"] == self.benefactor.id())
    }

    /// Whether the benefactor still runs.
    pub fn is_served(&mut self) -> bool {
        self.benefactor.try_wait().unwrap().is_none()
    }

    fn inside(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.benefactor.id()));
        root.join(self.directory.strip_prefix("/").unwrap())
    }

    /// The directory that was given to the benefactor.
    pub fn donated(&self) -> PathBuf {
        self.inside().join("pool")
    }

    /// A path on the disk, for something else than the benefactor.
    pub fn at(&self, name: &str) -> PathBuf {
        self.inside().join(name)
    }

    fn file_of_owner(&self) -> PathBuf {
        self.inside().join("owner")
    }

    /// The owner writes until nothing is left.
    pub fn fill(&self) {
        assert!(!self.write(u64::MAX), "an endless file fits");
    }

    /// The owner writes so many bytes, as far as they fit.
    pub fn take(&self, bytes: u64) {
        self.write(bytes);
    }

    /// Whether it all fitted.
    fn write(&self, bytes: u64) -> bool {
        // A disk that is missing would fill the one below.
        assert_eq!(self.size() >> 20, self.mebibytes);
        let mut file = OpenOptions::new().append(true).create(true).open(self.file_of_owner()).unwrap();
        for _ in 0..bytes.div_ceil(PIECE_BYTES as u64) {
            match file.write_all(&[7; PIECE_BYTES]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return false,
                Err(error) => panic!("the owner's file: {error}"),
            }
        }
        true
    }

    /// The owner removes what was written.
    pub fn clear(&self) {
        fs::remove_file(self.file_of_owner()).unwrap();
    }

    /// Takes the file system of a real disk down as an error of its journal does: from now on it takes and gives nothing.
    pub fn shut_down(&self) {
        // EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH.
        let script = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587D, struct.pack('I', 2))";
        let status = Command::new("python3").args(["-c", script]).arg(self.inside()).status();
        assert!(status.unwrap().success());
    }

    fn size(&self) -> u64 {
        let disk = space(&self.inside());
        disk.f_blocks * disk.f_frsize
    }

    /// What is free, bytes.
    pub fn free(&self) -> u64 {
        let disk = space(&self.inside());
        disk.f_bavail * disk.f_frsize
    }
}

fn space(path: &Path) -> rustix::fs::StatVfs {
    rustix::fs::statvfs(path).unwrap()
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.benefactor.kill();
        let _ = self.benefactor.wait();
    }
}
