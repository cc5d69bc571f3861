//! Mount points: is something mounted there, does it answer, and how it is taken off when its process is gone.
//!
//! A mount whose process died answers every call with ENOTCONN; one whose process hangs, or waits for the manager,
//! doesn't answer for long or at all. So the kernel's table is read instead of the directory, and the directory is asked
//! by a process that may be left behind: one of our own threads would keep us from ending.
//!
//! A folder that a pool was mounted on can't be written to while nothing is mounted there: else a job that goes on after
//! `down` would keep its checkpoints unprotected in an ordinary folder, and the next mount would be refused for them. A user who
//! unmounts it by hand gets an ordinary folder back ([`uncover`]).

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::mount::UnmountFlags;
use stdchk_net::Retry;

use crate::exit::{About, CommandError, Exit, Outcome};

/// Time in which a mount that works answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Write permission of a folder's owner, and of everybody; and all bits that permissions have.
const OWNER_WRITES: u32 = 0o200;
const ANYBODY_WRITES: u32 = 0o222;
const MODE_BITS: u32 = 0o7777;
/// Pause between two looks at the process that asks.
const ANSWER_POLL: Duration = Duration::from_millis(5);

/// Whether a FUSE file system is mounted at `path`.
pub fn is_mounted(path: &Path) -> Outcome<bool> {
    stdchk_mount::is_mounted(path).about("/proc/self/mountinfo")
}

/// Whether the file system at `path` answers within [`ANSWER_TIMEOUT`].
pub fn answers(path: &Path) -> bool {
    let mut command = Command::new("stat");
    command.args(["--file-system", "--"]).arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return false };
    match ended_within(&mut child, ANSWER_TIMEOUT) {
        Some(status) => status.success(),
        None => {
            // It ends with its question's answer, whenever that comes. Nobody waits for it.
            let _ = child.kill();
            false
        }
    }
}

fn ended_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let mut retry = Retry::every(ANSWER_POLL, limit);
    loop {
        match child.try_wait() {
            Ok(None) if retry.pause_thread() => {}
            Ok(ended) => return ended,
            Err(_) => return None,
        }
    }
}

/// The path of a mount point as the kernel's table shows it. It may not exist yet, or not answer.
pub fn real(path: &Path) -> Outcome<PathBuf> {
    match stdchk_mount::full_path(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => std::path::absolute(path).about(path.display()),
        full => full.about(path.display()),
    }
}

/// The folder below a mount: it can be written to while this value lives and by nobody afterwards, whatever becomes of
/// the mount and its process. Root is not kept out by permissions, and is kept out by the folder's attribute "immutable"
/// where its file system has one.
pub struct Covered {
    folder: File,
}

impl Covered {
    /// Opens the folder at `path` before something is mounted there.
    pub fn open(path: &Path) -> Outcome<Self> {
        let covered = Self { folder: File::open(path).about(path.display())? };
        // Only on a folder that they may write to are users let mount. One that isn't theirs is refused by the mount itself.
        if !is_root()
            && covered.folder.metadata().about(path.display())?.uid() == rustix::process::geteuid().as_raw()
        {
            change_mode(&covered.folder, |mode| mode | OWNER_WRITES).about(path.display())?;
        }
        Ok(covered)
    }

    fn close(&self) -> io::Result<()> {
        let attributes = if is_root() { ioctl_getflags(&self.folder).ok() } else { None };
        if attributes.is_some_and(|attributes| attributes.contains(IFlags::IMMUTABLE)) {
            return Ok(());
        }
        change_mode(&self.folder, |mode| mode & !ANYBODY_WRITES)?;
        if let Some(attributes) = attributes {
            ioctl_setflags(&self.folder, attributes | IFlags::IMMUTABLE)?;
        }
        Ok(())
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::debug!(%error, "the folder below the mount stays as writable as it is");
        }
    }
}

fn change_mode(folder: &File, change: impl FnOnce(u32) -> u32) -> io::Result<()> {
    let before = folder.metadata()?.mode();
    let after = change(before);
    if after == before {
        return Ok(());
    }
    folder.set_permissions(Permissions::from_mode(after & MODE_BITS))
}

/// Makes the folder at `path`, where nothing is mounted any more, one that its owner can write to and remove.
pub fn uncover(path: &Path) -> Outcome {
    let folder = File::open(path).about(path.display())?;
    if is_root()
        && let Ok(attributes) = ioctl_getflags(&folder)
        && attributes.contains(IFlags::IMMUTABLE)
    {
        ioctl_setflags(&folder, attributes - IFlags::IMMUTABLE).about(path.display())?;
    }
    change_mode(&folder, |mode| mode | OWNER_WRITES).about(path.display())
}

/// Removes the folder at `path`, where nothing is mounted any more. False: there is none.
pub fn remove(path: &Path) -> Outcome<bool> {
    if !path.exists() {
        return Ok(false);
    }
    uncover(path)?;
    fs::remove_dir(path).about(path.display())?;
    Ok(true)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes `path` a directory on which can be mounted; takes off what a mount that died left there.
///
/// # Errors
/// Something that works is mounted there, or the directory holds files that a mount would hide.
pub fn make_ready(path: &Path) -> Outcome {
    let refuse = |cause: &str, next: &str| Err(CommandError::usage(path.display(), cause, next));
    if is_mounted(path)? {
        if answers(path) {
            return refuse("a file system is mounted there already", "take it off, or choose another folder");
        }
        detach(path)?;
    }
    if path.exists() && !path.is_dir() {
        return refuse("it is not a folder", "choose an empty or a new folder");
    }
    let made = fs::create_dir_all(path);
    made.map_err(|error| not_made(path, &error))?;
    match fs::read_dir(path).about(path.display())?.next() {
        None => Ok(()),
        Some(_) => refuse("it holds files, which a mount would hide", "choose an empty or a new folder"),
    }
}

fn not_made(path: &Path, error: &std::io::Error) -> CommandError {
    let next = "choose a folder where you may make one, such as ~/pool";
    CommandError::new(Exit::Other, path.display(), format_args!("the folder can't be made: {error}"), next)
}

/// Takes off whatever FUSE file system is mounted at `path`, even one in use; open files in it fail from then on.
pub fn detach(path: &Path) -> Outcome {
    if is_root() {
        let detached = rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        return if is_mounted(path)? { detached.about(path.display()) } else { Ok(()) };
    }
    let mut command = Command::new("fusermount3");
    command.arg("-uz").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let next = format!("`umount -l {}` as root takes it off", path.display());
    let refuse = |cause: String| CommandError::new(Exit::Other, path.display(), cause, &next);
    let output = command.output().map_err(|error| refuse(format!("can't run fusermount3: {error}")))?;
    match output.status.success() || !is_mounted(path)? {
        true => Ok(()),
        false => Err(refuse(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_directory_is_not_mounted_and_answers() {
        let directory = tempfile::tempdir().unwrap();
        assert!(!is_mounted(directory.path()).unwrap());
        assert!(answers(directory.path()));
    }
}
