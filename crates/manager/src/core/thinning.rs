//! Versions of files that belong to no checkpoint set: the newest stay, as many as the folder's `versions` says ([0712]).
//!
//! A file is looked at after a version of it was closed, after it got a name, after the policy of a folder above it changed, and after a start of
//! the manager. Versions are counted that are closed and *whole*, as with sets ([`super::look`]): what is older than the last that counts goes. So
//! a version goes only if others can take its place, and nobody reads it. A file that has as many closed versions, of which one isn't whole or
//! is read, is looked at again. What was replaced a moment ago stays for a minute: somebody may have replaced it by mistake. Where a writer finds
//! no room ([`super::collection`]), it goes at once.
//!
//! Only versions go. Their chunks stay for whatever else names them: sessions and files in spools that build on them, and backups.
//!
//! [0712]: ../../../../docs/design/0712-versions-of-files.md

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Bound;

use stdchk_model::Ino;
use stdchk_model::exact::to_usize;
use stdchk_model::message::manager::VersionState;
use stdchk_model::policy::Versions;

use super::inode::{Body, Inode, Version};
use super::namespace::Namespace;
use super::{Core, Now};

/// A version stays for so long after a newer one took its place, unless a writer finds no room, milliseconds of the manager's life.
const REPLACED_MS: u64 = 60_000;
/// A file is looked at again after this time if versions of it are not whole, or are read, milliseconds.
const WAIT_MS: u64 = 5_000;

/// Versions of a file that are looked at beside those that are to stay, for others that are whole.
const LOOKED_AT_BEYOND: usize = 8;
/// Time between two looks at what can be forgotten, milliseconds.
const TIDY_MS: u64 = 10_000;
/// Most names of a file of which versions go: each is read with the patterns of all folders above it, after each commit.
const NAMES_MAX: usize = 64;

/// The files and directories that are to be looked at.
#[derive(Debug, Default)]
pub(super) struct Thinning {
    /// Directories that are gone through with all below, each with the entry behind which to go on.
    directories: VecDeque<(Ino, Option<String>)>,
    files: VecDeque<Ino>,
    /// The same files.
    queued: HashSet<Ino>,
    /// Files that wait for copies or readers, by the time at which they are looked at again.
    waiting: BTreeSet<(u64, Ino)>,
    /// That time of each of them.
    due: HashMap<Ino, u64>,
    /// Until then nothing goes of what was found in directories, unless a writer finds no room, milliseconds of the manager's life since its start.
    not_before_ms: u64,
    tidied_ms: u64,
}

impl Thinning {
    /// Has all files at and below a directory looked at, of which other rules hold from now on. Somebody may have set them by mistake.
    pub fn search(&mut self, directory: Ino, now_ms: u64) {
        self.not_before_ms = now_ms.saturating_add(REPLACED_MS);
        self.directories.push_back((directory, None));
    }

    fn add(&mut self, file: Ino) {
        if self.queued.insert(file) {
            self.files.push_back(file);
        }
    }

    fn next(&mut self) -> Option<Ino> {
        let file = self.files.pop_front()?;
        self.queued.remove(&file);
        Some(file)
    }

    /// Has a file looked at again after this time, milliseconds.
    fn wait(&mut self, file: Ino, now_ms: u64, wait_ms: u64) {
        let due = now_ms.saturating_add(wait_ms);
        if let Some(before) = self.due.insert(file, due) {
            self.waiting.remove(&(before, file));
        }
        self.waiting.insert((due, file));
    }

    fn waits(&self, file: Ino) -> bool {
        self.due.contains_key(&file)
    }

    /// Has those looked at that have waited.
    fn end_waiting(&mut self, now_ms: u64) {
        while let Some((_, file)) = self.waiting.first().copied().filter(|(due, _)| *due <= now_ms) {
            self.waiting.pop_first();
            self.due.remove(&file);
            self.add(file);
        }
    }

    /// Has all looked at that wait: a writer needs room.
    pub fn hurry(&mut self) {
        self.end_waiting(u64::MAX);
    }

    /// Whether something is to be looked at now.
    pub fn is_busy(&self) -> bool {
        !self.files.is_empty() || !self.directories.is_empty()
    }
}

impl Namespace {
    /// How many of the newest versions of a file stay; `None`: all, since a folder of it says so or it may belong to a set.
    fn versions_to_keep(&self, ino: Ino) -> Option<u32> {
        let inode = self.inode(ino).ok()?;
        if inode.others.len() >= NAMES_MAX {
            return None;
        }
        let mut most = 0;
        for (parent, name) in names_of(inode) {
            if self.may_be_of_set(parent, name) {
                return None;
            }
            match self.policy_from(parent).ok()?.versions {
                Versions::Keep => return None,
                Versions::Newest(newest) => most = most.max(newest),
            }
        }
        (most > 0).then_some(most)
    }

    /// Whether the patterns of a folder above read a name in a directory, or can't be read themselves.
    fn may_be_of_set(&self, directory: Ino, name: &str) -> bool {
        let (mut at, mut path) = (directory, name.to_owned());
        while at != Ino::ROOT {
            let Ok(inode) = self.inode(at) else { return true };
            if self.is_folder_of_sets(at) {
                let naming = self.policy_from(at).ok().and_then(|policy| policy.naming.parse().ok());
                let naming: Option<stdchk_model::naming::Naming> = naming;
                if naming.is_none_or(|naming| naming.read(&path).is_some()) {
                    return true;
                }
            }
            path = format!("{}/{path}", inode.name);
            at = inode.parent;
        }
        false
    }

    /// Drops a version that readers don't see. Nothing else of the file changes.
    fn drop_older(&mut self, ino: Ino, number: u64) {
        let Ok(file) = self.file_mut(ino) else { return };
        if file.newest().is_some_and(|(newest, _)| newest > number) {
            self.take_version(ino, number);
        }
    }
}

/// All names of a file.
fn names_of(inode: &Inode) -> impl Iterator<Item = (Ino, &str)> {
    let first = (inode.links > 0).then_some((inode.parent, inode.name.as_str()));
    first.into_iter().chain(inode.others.iter().map(|(parent, name)| (*parent, name.as_str())))
}

impl Core {
    /// Has a file looked at of which older versions may go. If it waits for that already, no version goes earlier because others follow.
    pub(super) fn thin_later(&mut self, ino: Ino) {
        let has_older = self.namespace.file(ino).is_ok_and(|file| file.versions.len() > 1);
        if has_older && (!self.thinning.waits(ino) || self.makes_room()) {
            self.thinning.add(ino);
        }
    }

    /// Has what now has this name looked at.
    pub(super) fn thin_moved(&mut self, ino: Ino) {
        match self.namespace.directory(ino) {
            Ok(_) => self.thinning.search(ino, self.locations.now_ms),
            Err(_) => self.thin_later(ino),
        }
    }

    /// Drops some of the versions that may go. Tells whether there is more to do at once.
    pub(super) fn thin_on(&mut self, now: Now) -> bool {
        // Whose sessions are still to come back is not known yet, or what is here may be out of date.
        if !self.settled || self.history.check().is_err() {
            return false;
        }
        self.thinning.end_waiting(now.ms);
        if now.ms.saturating_sub(self.thinning.tidied_ms) >= TIDY_MS {
            self.thinning.tidied_ms = now.ms;
            let lived_ms = self.namespace.lived_ms;
            self.namespace.replaced.retain(|_, ms| lived_ms.saturating_sub(*ms) < REPLACED_MS);
        }
        self.search_some();
        let mut left = self.setting.steps;
        while left > 0 {
            let Some(ino) = self.thinning.next() else { break };
            left = left.saturating_sub(self.thin(ino, now).max(1));
        }
        self.settle_references();
        self.thinning.is_busy()
    }

    /// Goes through a part of the directories.
    fn search_some(&mut self) {
        let Some((ino, after)) = self.thinning.directories.pop_front() else { return };
        let Ok(directory) = self.namespace.directory(ino) else { return };
        let start = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let entries = directory.entries.range::<str, _>((start, Bound::Unbounded));
        let mut last = None;
        for (count, (name, below)) in entries.enumerate() {
            if count >= self.setting.steps {
                self.thinning.directories.push_front((ino, last));
                return;
            }
            match self.namespace.inode(*below).map(|inode| &inode.body) {
                Ok(Body::Directory(_)) => self.thinning.directories.push_back((*below, None)),
                Ok(Body::File(file)) if file.versions.len() > 1 => self.thinning.add(*below),
                _ => {}
            }
            last = Some(name.clone());
        }
    }

    /// Drops versions of a file that may go; how many steps that took.
    fn thin(&mut self, ino: Ino, now: Now) -> usize {
        let Some(newest) = self.namespace.versions_to_keep(ino) else { return 1 };
        let Ok(file) = self.namespace.file(ino) else { return 1 };
        let newest = to_usize(u64::from(newest));
        // An empty one takes the place of no content: files are often truncated before they are written.
        let is_closed =
            |(_, version): &(u64, &Version)| version.state == VersionState::Closed && version.size > 0;
        let closed = file.versions.iter().rev().filter(is_closed).map(|(number, _)| number);
        let closed: Vec<u64> = closed.take(newest.saturating_add(LOOKED_AT_BEYOND)).collect();
        let (mut whole, mut steps, mut last) = (0, 1, None);
        // One after the other lacks copies: that takes time, and others need the manager.
        for number in &closed {
            let (is_whole, done) = self.is_version_whole(ino, *number);
            (whole, steps) = (whole + usize::from(is_whole), steps + done);
            if whole == newest {
                last = Some(*number);
                break;
            }
        }
        let Some(last) = last else {
            if closed.len() > newest {
                self.thinning.wait(ino, now.ms, WAIT_MS);
            }
            return steps;
        };
        let Older { going, wait_ms } = self.older_than(ino, last, now);
        if !going.is_empty() {
            tracing::debug!(%ino, versions = going.len(), "older versions of a file go");
        }
        steps += going.len();
        going.into_iter().for_each(|number| self.namespace.drop_older(ino, number));
        match wait_ms {
            Some(0) => self.thinning.add(ino),
            Some(wait_ms) => self.thinning.wait(ino, now.ms, wait_ms),
            None => {}
        }
        steps
    }

    /// Versions of a file that are older than this one and may go now, the oldest first.
    fn older_than(&self, ino: Ino, last: u64, now: Now) -> Older {
        let (mut going, mut wait_ms): (Vec<u64>, Option<u64>) = (Vec::new(), None);
        let mut wait = |left_ms: u64| wait_ms = Some(wait_ms.map_or(left_ms, |before| before.min(left_ms)));
        let Ok(file) = self.namespace.file(ino) else { return Older { going, wait_ms: None } };
        let mut versions = file.versions.range(..=last).peekable();
        while let (Some((number, version)), Some((_, newer))) = (versions.next(), versions.peek()) {
            if matches!(version.state, VersionState::Open | VersionState::Lost) {
                continue;
            }
            if self.readers.is_read(version.session) {
                wait(WAIT_MS);
                continue;
            }
            let by_rename_ms = self.namespace.replaced.get(&version.session).copied();
            let replaced_ms = newer.lived_ms.max(by_rename_ms.unwrap_or(0));
            let due_ms = replaced_ms.saturating_add(REPLACED_MS).saturating_sub(self.namespace.lived_ms);
            let left_ms = due_ms.max(self.thinning.not_before_ms.saturating_sub(now.ms));
            if left_ms > 0 && !self.makes_room() {
                // The versions behind it were replaced later, but for those that a renamed file had before: these may wait as long.
                wait(left_ms);
                break;
            }
            if going.len() >= self.setting.steps {
                wait(0);
                break;
            }
            going.push(number);
        }
        Older { going, wait_ms }
    }
}

/// Versions that may go.
struct Older {
    going: Vec<u64>,
    /// After what time others may, milliseconds, if there are some.
    wait_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_again_and_again_waits_once() {
        let mut thinning = Thinning::default();
        for ms in 0..100 {
            thinning.wait(Ino(7), ms, 60_000);
        }
        thinning.wait(Ino(8), 0, 5_000);
        assert_eq!((thinning.waiting.len(), thinning.due.len()), (2, 2));
        thinning.end_waiting(60_000);
        assert_eq!((thinning.waiting.len(), thinning.next(), thinning.next()), (1, Some(Ino(8)), None));
        thinning.hurry();
        assert_eq!((thinning.next(), thinning.waiting.len(), thinning.due.len()), (Some(Ino(7)), 0, 0));
    }
}
