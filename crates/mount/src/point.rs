//! The mount point: what it must be before, how it is mounted, and how it is unmounted.
//!
//! A folder on which a pool is mounted is never touched here, not even by `stat`: it answers when the manager does, and who
//! waits for it may be who starts the manager. What is mounted where stands in the kernel's table.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fuser::{Config, MountOption, SessionACL};
use rustix::fs::Access;
use rustix::mount::UnmountFlags;
use stdchk_model::exact::narrow;
use stdchk_net::Retry;

/// The kernel's FUSE device.
const DEVICE: &str = "/dev/fuse";
/// What mounts and unmounts for those who aren't root.
const HELPER: &str = "fusermount3";
/// The type of a mounted pool in the kernel's table.
const TYPE: &str = "fuse.stdchk";
/// How long a mount point that is in use is asked for again before it is detached.
const BUSY_PATIENCE: Duration = Duration::from_secs(2);
/// Links that are followed to a mount point, as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Pause between two tries.
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// What the kernel reads ahead of a sequential reader, KiB: a request of the largest size. Its own default of 128 KiB
/// costs a quarter of the rate (docs/design/0002).
const READ_AHEAD_KIB: u32 = 1024;

/// Why a pool could not be mounted, or a mount did not end well.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mount point can't be one.
    #[error("can't mount at {}: {why}", point.display())]
    Point {
        /// The mount point.
        point: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The machine lacks what FUSE needs.
    #[error("FUSE isn't available: {0}")]
    NoFuse(String),
    /// The pool doesn't answer.
    #[error("the pool can't be mounted: {0}")]
    Pool(#[source] stdchk_model::Failure),
    /// Files that were closed early could not be stored, and no program was told.
    #[error(
        "{files} files that were closed early are lost: `stdchk ls FOLDER --versions` shows which, the log says why"
    )]
    Lost {
        /// How many.
        files: usize,
    },
    /// The kernel or the helper refused, or a system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, source: io::Error) -> Self {
        Self::System { what: what.into(), source }
    }
}

/// Checks that something can be mounted at `point`, and returns its full path.
pub(crate) fn check(point: &Path) -> Result<PathBuf, Error> {
    let refuse = |why: String| Err(Error::Point { point: point.to_owned(), why });
    let missing = || refuse("there is no such directory: make it first".to_owned());
    let full = match full_path(point) {
        Ok(full) => full,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return missing(),
        Err(error) => return refuse(error.to_string()),
    };
    let mounted = is_mount_point(&full).map_err(|error| Error::system("reading what is mounted", error))?;
    if mounted {
        return refuse(format!(
            "something is mounted there already: unmount it, if its process is gone by `{HELPER} -u -z {}`, or choose \
             another directory",
            full.display()
        ));
    }
    match std::fs::read_dir(&full).map(|mut entries| entries.next().is_some()) {
        Ok(false) => {}
        Ok(true) => {
            return refuse(
                "the directory isn't empty: its files would be hidden; choose an empty one".to_owned(),
            );
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return missing(),
        Err(error) => return refuse(error.to_string()),
    }
    if !is_root()
        && let Err(error) = rustix::fs::access(&full, Access::WRITE_OK)
    {
        return refuse(format!(
            "{}; choose an empty folder of your own, such as ~/pool",
            io::Error::from(error)
        ));
    }
    check_fuse()?;
    Ok(full)
}

/// The path of a mount point as the kernel's table has it: without links. What is mounted there isn't asked, and it need
/// not exist.
///
/// # Errors
/// The folder that it lies in can't be found, or the path ends in `..`.
pub fn full_path(point: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(point)?;
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path must end in the folder's name",
            ));
        };
        let parent = parent.canonicalize()?;
        let full = parent.join(name);
        if is_mount_point(&full)? {
            return Ok(full);
        }
        match std::fs::read_link(&full) {
            Ok(target) => path = parent.join(target),
            Err(_no_link) => return Ok(full),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_mount_point(point: &Path) -> io::Result<bool> {
    Ok(device_at(point)?.is_some())
}

/// Whether a FUSE file system is mounted at `point`, which isn't asked.
///
/// # Errors
/// The kernel's table can't be read.
pub fn is_mounted(point: &Path) -> io::Result<bool> {
    let mounts = mounts("self")?;
    Ok(mounts.lines().filter_map(MountLine::parse).any(|mount| mount.point == point && mount.is_fuse()))
}

/// The kernel's table of the mounts that a task sees, a character for each byte: paths may be of any bytes.
pub(crate) fn mounts(task: &str) -> io::Result<String> {
    std::fs::read(format!("/proc/{task}/mountinfo")).map(table)
}

fn table(bytes: Vec<u8>) -> String {
    bytes.into_iter().map(char::from).collect()
}

/// One line of `mountinfo`. (proc_pid_mountinfo(5))
pub(crate) struct MountLine<'a> {
    pub id: &'a str,
    /// `major:minor`.
    pub device: &'a str,
    pub point: PathBuf,
    /// `fuse.stdchk` for a mounted pool.
    pub kind: &'a str,
}

impl<'a> MountLine<'a> {
    /// `None` for a line that is none.
    pub fn parse(line: &'a str) -> Option<Self> {
        // Behind the dash, and a varying number of fields before it, stands the type.
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ');
        let (id, _parent, device) = (fields.next()?, fields.next()?, fields.next()?);
        let point = path_of(fields.nth(1)?);
        Some(Self { id, device, point, kind: kind.split(' ').next()? })
    }

    fn is_fuse(&self) -> bool {
        self.kind.starts_with("fuse") && self.kind != "fusectl"
    }

    /// Whether a pool is mounted there.
    pub fn is_pool(&self) -> bool {
        self.kind == TYPE
    }
}

/// The device, as `major:minor`, of what is mounted at `point`, above all else that is mounted there.
fn device_at(point: &Path) -> io::Result<Option<String>> {
    let mounts = mounts("self")?;
    let mut there = mounts.lines().filter_map(MountLine::parse).filter(|mount| mount.point == point);
    Ok(there.next_back().map(|mount| mount.device.to_owned()))
}

/// What of `path` lies below a mounted pool, as the pool names it: for users who name a file by where they see it. The pool
/// isn't asked. Nothing where the kernel's table can't be read.
pub fn below_mount(path: &Path) -> Option<PathBuf> {
    mounts("self").ok()?.lines().find_map(|line| below_mount_of(line, path))
}

fn below_mount_of(line: &str, path: &Path) -> Option<PathBuf> {
    let mount = MountLine::parse(line).filter(MountLine::is_pool)?;
    let below = path.strip_prefix(mount.point).ok()?;
    (below != Path::new("")).then(|| below.to_owned())
}

/// The path in a field of the table: white space and `\` stand there as codes.
fn path_of(field: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let field = escapes.iter().fold(field.to_owned(), |field, (code, text)| field.replace(code, text));
    OsString::from_vec(field.chars().map(|byte| narrow(u32::from(byte))).collect()).into()
}

fn check_fuse() -> Result<(), Error> {
    if !Path::new(DEVICE).exists() {
        let hint = format!(
            "{DEVICE} is missing: load the module (`modprobe fuse`), or give the container the device"
        );
        return Err(Error::NoFuse(hint));
    }
    if !is_root() && find_helper().is_none() {
        let hint =
            format!("{HELPER} is missing and only root can mount without it: install the package fuse3");
        return Err(Error::NoFuse(hint));
    }
    // The helper would do without, but what talks to it doesn't.
    let opened = std::fs::File::options().read(true).write(true).open(DEVICE);
    opened.map(drop).map_err(|error| {
        Error::NoFuse(format!(
            "{DEVICE} can't be opened: {error}; root lets all users in by `chmod a+rw {DEVICE}`"
        ))
    })
}

/// What the kernel or the helper said when it refused to mount, with what to do about it.
pub(crate) fn refused(point: &Path, error: io::Error) -> Error {
    let said = error.to_string().trim().to_owned();
    if said.contains("user_allow_other") {
        let why = format!("{said}: leave `--allow-other` out, or ask root to add that line");
        return Error::Point { point: point.to_owned(), why };
    }
    Error::system(format!("mounting at {}", point.display()), io::Error::new(error.kind(), said))
}

fn find_helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(HELPER)).find(|helper| helper.is_file())
}

/// What the kernel is told about a mount: shown by `mount` and `df -T` as `name`, of type `fuse.name`.
pub(crate) fn options(name: &str, read_only: bool, allow_other: bool, threads: usize) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(name.to_owned()),
        // As an option of the kernel: without the helper, fuser drops its own.
        MountOption::CUSTOM(format!("subtype={name}")),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        if read_only { MountOption::RO } else { MountOption::RW },
    ];
    config.acl = if allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(threads);
    config.clone_fd = threads > 1;
    config
}

/// Lets the kernel read further ahead. Only root may; without it reads are slower and nothing else.
pub(crate) fn raise_read_ahead(point: &Path) {
    let raise = || {
        let device = device_at(point)?.ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), READ_AHEAD_KIB.to_string())
    };
    if let Err(error) = raise() {
        tracing::debug!(%error, "the kernel's read-ahead stays as it is");
    }
}

/// Unmounts; a mount point that stays in use is detached: it vanishes from the tree, and open files fail once the
/// process that serves them ends.
pub(crate) fn unmount(point: &Path) -> Result<Left, Error> {
    let mut retry = Retry::every(BUSY_PAUSE, BUSY_PATIENCE);
    loop {
        match unmount_once(point, false) {
            Ok(()) => return Ok(Left::Unmounted),
            Err(_) if matches!(is_mount_point(point), Ok(false)) => return Ok(Left::Unmounted),
            Err(_) if retry.pause_thread() => {}
            Err(_) => break,
        }
    }
    tracing::warn!(point = %point.display(), "files are still open below the mount point: it is detached");
    let failed = |error| Error::system(format!("unmounting {}", point.display()), error);
    unmount_once(point, true).map(|()| Left::Detached).map_err(failed)
}

/// How a mount point was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// The kernel let go of it.
    Unmounted,
    /// It is out of the tree; the kernel keeps it for the files that are open.
    Detached,
}

fn unmount_once(point: &Path, detach: bool) -> io::Result<()> {
    if is_root() {
        let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return rustix::mount::unmount(point, flags).map_err(Into::into);
    }
    let mut helper = Command::new(HELPER);
    helper.args(if detach { &["-u", "-z", "-q"][..] } else { &["-u", "-q"][..] }).arg(point);
    let ended = helper.output()?;
    let why = || String::from_utf8_lossy(&ended.stderr).trim().to_owned();
    if ended.status.success() { Ok(()) } else { Err(io::Error::other(why())) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_directory_with_files_is_refused_because_they_would_be_hidden() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("precious"), "").unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("isn't empty"));
    }

    #[test]
    fn a_missing_directory_and_a_used_mount_point_are_told_apart() {
        assert!(check(Path::new("/no/such/place")).unwrap_err().to_string().contains("make it first"));
        assert!(check(Path::new("/proc")).unwrap_err().to_string().contains("mounted there already"));
    }

    #[test]
    fn a_full_path_follows_links_and_needs_no_folder_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("to", folder.path().join("from")).unwrap();
        assert_eq!(full_path(&folder.path().join("from")).unwrap(), real.join("to"));
        std::os::unix::fs::symlink("from", folder.path().join("to")).unwrap();
        assert!(full_path(&folder.path().join("from")).is_err(), "links in a circle");
        assert!(full_path(&folder.path().join("no/such")).is_err());
        assert!(full_path(&folder.path().join("x/..")).is_err());
        assert_eq!(full_path(Path::new("/proc")).unwrap(), Path::new("/proc"));
    }

    #[test]
    fn what_lies_below_a_mounted_pool_is_named_as_the_pool_names_it() {
        let line = r"36 35 0:54 / /mnt/my\040pool rw shared:1 - fuse.stdchk stdchk rw,user_id=0";
        let below = |path| below_mount_of(line, Path::new(path));
        assert_eq!(below("/mnt/my pool/app/x"), Some(PathBuf::from("app/x")));
        assert_eq!((below("/mnt/my pool"), below("/mnt/my pools/x"), below("/home/x")), (None, None, None));
        let other = line.replace("fuse.stdchk", "ext4");
        assert_eq!(below_mount_of(&other, Path::new("/mnt/my pool/x")), None);
    }

    #[test]
    fn mount_points_of_any_bytes_are_recognised() {
        let table = table(
            b"36 35 0:54 / /a\\040b\\134\xe9 rw - fuse.sshfs x rw\n37 35 0:9 / /c rw - fusectl x rw".into(),
        );
        let mounts: Vec<MountLine<'_>> = table.lines().filter_map(MountLine::parse).collect();
        let found = mounts.iter().map(|mount| (mount.point.as_os_str().as_bytes(), mount.is_fuse()));
        assert!(found.eq([(&b"/a b\\\xe9"[..], true), (b"/c", false)]));
        assert!(!is_mounted(Path::new("/proc")).unwrap() && is_mount_point(Path::new("/proc")).unwrap());
    }
}
