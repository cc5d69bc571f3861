//! Files whose renaming or closing takes a checkpoint.
//!
//! A file counts as closed when a writer has closed it and no process of the run has it open for writing: the descriptors of
//! all of them are looked at *after* the close, so of several writers the last one sees nobody. Descriptors that a process
//! leaves to the kernel, at its end or at an `exec`, are looked at just before.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::Watch;
use super::place::descriptor_path;
use crate::control::own_pid;
use crate::index::read_whole;
use crate::record::RelativePath;
use crate::store::names_in;
use crate::trigger::{self, Event};

/// A file that a trigger waits for to be closed, and that is being closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Closing {
    /// Its path.
    pub path: RelativePath,
    /// The number of the trigger.
    pub trigger: usize,
    /// Inode and device.
    file: (u64, u64),
}

impl Watch {
    /// Whether closing files can take checkpoints.
    #[inline]
    pub fn waits_for_closing(&self) -> bool {
        self.waits_for_closing
    }

    /// The trigger that a rename to `path` is one for, and where the file stands.
    pub fn renames_trigger(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Option<(usize, RelativePath)> {
        let triggers = &self.store.options.triggers;
        if !triggers.iter().any(|trigger| trigger.event == Event::Renamed) {
            return None;
        }
        let path = self.place(directory, path)?.path;
        Some((trigger::find(triggers, Event::Renamed, &path)?, path))
    }

    /// The descriptor `number` is about to be closed: its file, if a trigger waits for that. A descriptor that nothing was
    /// changed through is no writer's.
    pub fn closes_trigger(&self, fd: BorrowedFd<'_>, number: RawFd) -> Option<Closing> {
        if !self.waits_for_closing || !self.is_looked_at(number) {
            return None;
        }
        let stat = rustix::fs::fstat(fd).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || stat.st_dev != self.device || stat.st_nlink == 0 {
            return None;
        }
        let path = self.relative(&descriptor_path(fd).ok()?)?;
        let trigger = trigger::find(&self.store.options.triggers, Event::Closed, &path)?;
        Some(Closing { path, trigger, file: (stat.st_ino, stat.st_dev) })
    }

    /// The watched descriptors among `first..=last`.
    pub fn watched_in(&self, first: RawFd, last: RawFd) -> Vec<RawFd> {
        self.state().descriptors.keys().copied().filter(|number| (first..=last).contains(number)).collect()
    }

    /// Whether no process of the run has the file open for writing, this one left out where `but_own` says so.
    pub fn is_closed(&self, closing: &Closing, but_own: bool) -> bool {
        let own = own_pid();
        let others = self.control.processes().into_iter().filter(|pid| *pid != own);
        others.chain((!but_own).then_some(own)).all(|pid| !self.writes(pid, closing.file))
    }

    fn writes(&self, pid: u32, file: (u64, u64)) -> bool {
        let directory = format!("/proc/{pid}/fd");
        // A process that can't be looked at has ended, or is another user's.
        let Ok(numbers) = names_in(self.store.root(), directory.as_bytes()) else { return false };
        let prefix = self.prefix();
        numbers.iter().any(|number| {
            let number = String::from_utf8_lossy(number);
            let link = format!("{directory}/{number}");
            // A look at a file of another file system might wait for a server.
            let is_below = rustix::fs::readlink(link.as_str(), Vec::new())
                .is_ok_and(|target| target.as_bytes().starts_with(&prefix));
            let stat = || rustix::fs::statat(self.store.root(), link.as_str(), AtFlags::empty());
            is_below && stat().is_ok_and(|stat| (stat.st_ino, stat.st_dev) == file) && is_writer(pid, &number)
        })
    }
}

/// Whether the descriptor was opened for writing: what the kernel says of its flags, in octal.
fn is_writer(pid: u32, number: &str) -> bool {
    let about = rustix::fs::open(
        format!("/proc/{pid}/fdinfo/{number}"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let Ok(text) = about.and_then(|file| read_whole(&file)) else { return false };
    let text = String::from_utf8_lossy(&text);
    let flags =
        text.lines().find_map(|line| u32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_some_and(|flags| OFlags::from_bits_retain(flags) & OFlags::ACCMODE != OFlags::RDONLY)
}
