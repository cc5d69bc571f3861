//! What a `close()` of a file that is being written means: the kernel tells of each, and neither whether it was the last nor
//! whether its program meant it.
//!
//! **The program holds another descriptor to go on writing with.** Programs that redirect output (every shell's
//! `command > file`, `dd of=file`) open the file, copy the descriptor to where they want it, and close the first one
//! before a byte is written. Of a file that was emptied so far and nothing more, such a close must not make a version:
//! the content is still to come. `/proc` knows the descriptors of the task; the one being closed is no longer among them.
//! (proc_pid_fdinfo(5): `ino` since Linux 5.14)
//!
//! **The program only inherited the descriptor.** Descriptors are closed in every child process, before or while it begins
//! another program, and the child runs nothing before that is answered. If it waited for the pool for as long as others do,
//! nobody who has a file of the pool open could start the role that the pool waits for. So such a close waits for
//! [`INHERITED_PATIENCE`], and what it saves is saved all the same; then it is answered, as long as the program that opened
//! the file holds it, or is closing it and waits for all that was written: that one's close waits
//! ([`crate::fs::Handle::is_inherited`]). A child may have inherited many: once one was answered so, others are at once
//! ([`Silence`]). Of a file that was only emptied, such a close makes no version either: the program that opened it has yet to write, or
//! to choose a protocol, and its own close is still to come, or the end of the handle.
//!
//! A process that can't be seen counts as holding nothing: then the close commits, which is never wrong, only one version
//! too many should the rest fail.

use std::fs;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::point::{MountLine, mounts};
use crate::proc::text_of;

/// Descriptors that are looked at, at most: looking at one takes some microseconds.
const DESCRIPTORS_MAX: usize = 4096;
/// How long the look may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a close of an inherited descriptor waits for the pool.
const INHERITED_PATIENCE: Duration = Duration::from_secs(2);
/// How long the pool counts as silent after such a close was answered without it.
const SILENCE: Duration = Duration::from_secs(5);

/// Whether the pool has let the closes of this mount wait of late.
#[derive(Default)]
pub(crate) struct Silence(Mutex<Option<Instant>>);

impl Silence {
    /// How long a close of an inherited descriptor waits now.
    pub fn patience(&self) -> Duration {
        let is_silent = self.0.lock().is_some_and(|noted| noted.elapsed() < SILENCE);
        if is_silent { Duration::ZERO } else { INHERITED_PATIENCE }
    }

    /// A close was answered without the pool.
    pub fn note(&self) {
        *self.0.lock() = Some(Instant::now());
    }
}

/// Who opened a file.
#[derive(Clone, Copy)]
pub(crate) struct Opener {
    /// The task of the kernel.
    pub task: u32,
    /// Its process: of who writes, and where it can be seen.
    pub process: Option<u32>,
}

impl Opener {
    /// A task that opens a file, to write it or not.
    pub fn of(task: u32, writable: bool) -> Self {
        Self { task, process: writable.then(|| process_of(task)).flatten() }
    }
}

/// The process of a task; asking never waits. (proc_pid_status(5))
pub(crate) fn process_of(task: u32) -> Option<u32> {
    let status = text_of(task, "status")?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Whether the task has a descriptor open for writing of the inode `number` of a mounted pool.
pub(crate) async fn holds(task: u32, number: u64) -> bool {
    let looked = tokio::task::spawn_blocking(move || look(task, number).unwrap_or(false));
    matches!(tokio::time::timeout(PATIENCE, looked).await, Ok(Ok(true)))
}

fn look(task: u32, number: u64) -> Option<bool> {
    let descriptors = fs::read_dir(format!("/proc/{task}/fdinfo")).ok()?;
    let mut found = descriptors.take(DESCRIPTORS_MAX).filter_map(|entry| {
        // One may be closed while it is looked at.
        let info = fs::read_to_string(entry.ok()?.path()).ok()?;
        writes_to(&info, number)
    });
    let mounts = mounts(&task.to_string()).ok()?;
    Some(found.any(|mount| is_pool(&mounts, &mount)))
}

/// The mount through which a descriptor writes to the inode `number`, if it does.
fn writes_to(info: &str, number: u64) -> Option<String> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let inode: u64 = field("ino:")?.parse().ok()?;
    let flags = i32::from_str_radix(field("flags:")?, 8).ok()?;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    (inode == number && writes).then(|| field("mnt_id:").map(str::to_owned))?
}

/// Whether a mount is one of a pool.
fn is_pool(mounts: &str, mount: &str) -> bool {
    let line = mounts.lines().filter_map(MountLine::parse).find(|line| line.id == mount);
    line.is_some_and(|line| line.is_pool())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        40 21 0:45 / /mnt/a\\040b rw,nosuid shared:3 - fuse.stdchk stdchk rw,user_id=0\n";

    #[test]
    fn only_a_descriptor_of_this_inode_that_may_write_counts() {
        let info = |flags: &str, inode: u64| {
            format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t40\nino:\t{inode}\nlock:\t1: POSIX\n")
        };
        assert_eq!(writes_to(&info("0100001", 7), 7).as_deref(), Some("40"));
        assert_eq!(writes_to(&info("02100002", 7), 7).as_deref(), Some("40"));
        assert_eq!(writes_to(&info("0100000", 7), 7), None);
        assert_eq!(writes_to(&info("0100001", 8), 7), None);
        assert_eq!(writes_to("pos:\t0\nflags:\t01\nmnt_id:\t40\n", 7), None);
    }

    #[test]
    fn a_terminal_with_the_same_inode_number_is_not_in_the_pool() {
        assert!(is_pool(MOUNTS, "40"));
        assert!(!is_pool(MOUNTS, "21") && !is_pool(MOUNTS, "4"));
    }

    #[tokio::test]
    async fn a_task_that_is_gone_holds_nothing() {
        assert!(!holds(u32::MAX, 1).await);
        assert_eq!(process_of(u32::MAX), None);
        assert_eq!(process_of(std::process::id()), Some(std::process::id()));
    }
}
