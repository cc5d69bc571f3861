//! Files of checkpoint sets: whose closing, or renaming, commits them to the pool.
//!
//! The one idea: the file state of a set is taken *before* its last file is committed. A kill between the two leaves a
//! state without its set, which nobody asks for; the other order would leave a set without its state. Which files belong
//! to which set is said by the names alone (the folder's patterns), so no question goes to the pool.

use std::os::fd::{AsFd, BorrowedFd, RawFd};

use rustix::fs::OFlags;
use stdchk_model::Timestep;
use stdchk_model::naming::Naming;

use super::Watch;
use super::place::descriptor_path;
use crate::error::{Error, Result};
use crate::store;

/// The folder of a mounted pool in which an application writes its checkpoint sets.
#[derive(Debug)]
pub(super) struct SetFolder {
    /// Its canonical path, ending with a slash.
    prefix: Vec<u8>,
    naming: Naming,
}

impl SetFolder {
    pub(super) fn new(options: &store::Sets) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let wrong = |error| Error::Refused(format!("the patterns of {}: {error}", options.app));
        let naming = options.naming.parse().map_err(wrong)?;
        Ok(Self { prefix: [options.folder.as_os_str().as_bytes(), b"/"].concat(), naming })
    }

    fn step_of_path(&self, canonical: &[u8]) -> Option<Timestep> {
        let below = std::str::from_utf8(canonical.strip_prefix(self.prefix.as_slice())?).ok()?;
        self.naming.read(below)?.step
    }

    /// The timestep of the file behind `fd`, if that can write to it.
    pub(super) fn step_of(&self, fd: BorrowedFd<'_>) -> Option<Timestep> {
        let flags = rustix::fs::fcntl_getfl(fd).ok()?;
        let writes = !flags.contains(OFlags::PATH) && flags & OFlags::ACCMODE != OFlags::RDONLY;
        if writes { self.step_of_path(&descriptor_path(fd).ok()?) } else { None }
    }
}

impl Watch {
    /// Whether the run takes file states together with checkpoint sets.
    #[inline]
    pub fn follows_sets(&self) -> bool {
        self.sets.is_some()
    }

    /// The descriptor `fd` is about to be closed: the timestep of its file, if that is one of a set.
    /// Takes no lock: dropping a descriptor of our own, also in the midst of a decision, comes by here.
    pub fn closes_member(&self, fd: RawFd) -> Option<Timestep> {
        let step = self.table.member(fd)?;
        self.table.set_member(fd, None);
        Some(step)
    }

    /// A file is about to get this name: the timestep, if that makes it one of a set.
    pub fn names_member(&self, directory: BorrowedFd<'_>, path: &[u8]) -> Option<Timestep> {
        let sets = self.sets.as_ref()?;
        sets.step_of_path(&self.canonical(directory, path)?)
    }

    /// In a child: files of sets that its parent has open are committed by the parent.
    pub fn forget_members(&self) {
        self.table.clear_members(0, RawFd::MAX);
    }

    /// `number` is a new descriptor.
    pub(super) fn note_member(&self, fd: impl AsFd, number: RawFd) {
        if let Some(sets) = &self.sets {
            self.table.set_member(number, sets.step_of(fd.as_fd()));
        }
    }

    /// `copy` is now the same open file as `original`.
    pub(super) fn copy_member(&self, original: RawFd, copy: RawFd) {
        self.table.set_member(copy, self.table.member(original));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_below_the_folder_says_its_timestep_and_others_say_none() {
        let options = store::Sets {
            folder: "/mnt/pool/run".into(),
            app: "run".into(),
            naming: "step{step}/rank{rank}.dat".into(),
        };
        let folder = SetFolder::new(&options).unwrap();
        assert_eq!(folder.step_of_path(b"/mnt/pool/run/step0040/rank2.dat"), Some(40.into()));
        assert_eq!(folder.step_of_path(b"/mnt/pool/run/step0040/rank2.dat.tmp"), None);
        assert_eq!(folder.step_of_path(b"/mnt/pool/runs/step0040/rank2.dat"), None);
        assert!(SetFolder::new(&store::Sets { naming: "{".into(), ..options }).is_err());
    }
}
