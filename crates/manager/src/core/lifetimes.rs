//! Lifetimes of checkpoint sets: which folders are to be looked at when, and what is noted of their sets ([0710]).
//!
//! A folder of sets is an application's folder, or a directory below it with a `naming` or a `lifetime` of its own. It is looked at after
//! anything that may let a set go: a file of it was closed, got a name or lost a writer; a policy changed; a set is old enough; the manager
//! started. Looks ([`super::look`]) take their time in steps, and a folder rests after each, so that commits of a large folder don't have
//! it looked at all the time.
//!
//! Ages are measured by the time for which the manager has lived, which is stored and never set back: what the calendar does, and time without
//! a manager, purges nothing.
//!
//! [0710]: ../../../../docs/design/0710-lifetimes.md

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use stdchk_model::lifetime::{Done, Lifetime, Rules};
use stdchk_model::message::manager::{Attr, Change, ManagerReply, SetState};
use stdchk_model::sets::Taught;
use stdchk_model::{ErrorCode, Failure, Ino, Timestep};

use super::inode::Body;
use super::look::Look;
use super::namespace::Namespace;
use super::{Answer, Core};

/// Most sets of a folder that are sealed at a time: they are one record.
const SEALED_MAX: usize = 4096;
/// While sets can get old, the time for which the manager has lived is stored this often, milliseconds.
const SAVE_EVERY_MS: u64 = 60_000;
/// A folder rests at least so long after a look, milliseconds.
const REST_MS: u64 = 1_000;
/// It rests as much longer for each step of the look, milliseconds: looks take a small part of the time.
const REST_PER_STEP_MS: u64 = 100;
/// A folder whose sets would go once others are whole is looked at again after this time, milliseconds.
const WAIT_MS: u64 = 5_000;

/// What is noted of a folder's checkpoint sets.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Noted {
    /// Timesteps of the sealed ones.
    pub sealed: BTreeSet<Timestep>,
    /// The job has succeeded, and sets may be left that go.
    pub done: Option<Done>,
    /// What those that are gone have taught.
    pub taught: Option<Taught>,
}

/// Folders by the time from which on they are due.
#[derive(Debug, Default)]
struct Agenda {
    at: HashMap<Ino, u64>,
    order: BTreeSet<(u64, Ino)>,
}

impl Agenda {
    /// The folder is due from `ms` on, or from before if it was.
    fn put(&mut self, folder: Ino, ms: u64) {
        let ms = self.remove(folder).map_or(ms, |before| before.min(ms));
        self.at.insert(folder, ms);
        self.order.insert((ms, folder));
    }

    fn remove(&mut self, folder: Ino) -> Option<u64> {
        let ms = self.at.remove(&folder)?;
        self.order.remove(&(ms, folder));
        Some(ms)
    }

    /// Takes the first folder out that is due by `ms`.
    fn take(&mut self, ms: u64) -> Option<Ino> {
        let (_, folder) = self.order.first().copied().filter(|(due, _)| *due <= ms)?;
        self.remove(folder);
        Some(folder)
    }
}

/// What is to be looked at.
#[derive(Debug, Default)]
pub(super) struct Lifetimes {
    /// Directories at and below which folders are to be looked for.
    unsearched: VecDeque<Ino>,
    /// By the manager's time since its start.
    due: Agenda,
    /// By the time for which the manager has lived: then a set may be old enough.
    aging: Agenda,
    /// Folders whose sets get old.
    purging: HashSet<Ino>,
    /// Until when folders rest.
    rests: HashMap<Ino, u64>,
    /// The folder that is being looked at.
    pub look: Option<Look>,
    /// For how long the manager had lived when it started.
    lived_before_ms: u64,
    saved_ms: u64,
}

impl Lifetimes {
    pub fn begin(&mut self, lived_before_ms: u64) {
        (self.lived_before_ms, self.saved_ms) = (lived_before_ms, lived_before_ms);
    }

    /// For how long the manager has lived.
    pub fn lived_ms(&self, now_ms: u64) -> u64 {
        self.lived_before_ms.saturating_add(now_ms)
    }

    /// Whether it is time to store the time, which folders that purge need, and others if `is_needed`.
    pub fn must_save_time(&mut self, lived_ms: u64, is_needed: bool) -> bool {
        let is_due = (is_needed || !self.purging.is_empty())
            && lived_ms.saturating_sub(self.saved_ms) >= SAVE_EVERY_MS;
        if is_due {
            self.saved_ms = lived_ms;
        }
        is_due
    }

    /// Has folders at and below this directory looked for.
    pub fn search(&mut self, directory: Ino) {
        self.unsearched.push_back(directory);
    }

    /// Has folders at and below this directory looked for, for which something else holds now. The present look begins anew.
    fn begin_anew(&mut self, directory: Ino) {
        self.search(directory);
        if let Some(look) = self.look.take() {
            self.due.put(look.folder, 0);
        }
    }

    /// Has a folder looked at once it has rested.
    fn mark(&mut self, folder: Ino, now_ms: u64) {
        let rested_ms = self.rests.get(&folder).map_or(now_ms, |rested| now_ms.max(*rested));
        self.due.put(folder, rested_ms);
    }

    /// A look has ended after so many steps. `old_in_ms`: then a set is old enough; `waits`: sets would go if others were whole.
    pub fn looked(
        &mut self,
        (folder, rules): (Ino, &Rules),
        steps: u64,
        (old_in_ms, waits): (Option<u64>, bool),
        now_ms: u64,
    ) {
        let rest_ms = REST_MS.saturating_add(steps.saturating_mul(REST_PER_STEP_MS));
        let rested_ms = now_ms.saturating_add(rest_ms);
        self.rests.insert(folder, rested_ms);
        // What happened during the look.
        if let Some(due_ms) = self.due.remove(folder) {
            self.due.put(folder, due_ms.max(rested_ms));
        }
        if waits {
            self.due.put(folder, now_ms.saturating_add(rest_ms.max(WAIT_MS)));
        }
        self.aging.remove(folder);
        if let Some(ms) = old_in_ms {
            self.aging.put(folder, self.lived_ms(now_ms).saturating_add(ms));
        }
        match rules.lifetime {
            Lifetime::Keeping(kept) if kept.within_ms.is_some() => self.purging.insert(folder),
            _ => self.purging.remove(&folder),
        };
    }

    fn forget(&mut self, folder: Ino) {
        self.aging.remove(folder);
        self.purging.remove(&folder);
        self.rests.remove(&folder);
    }
}

impl Namespace {
    /// What is noted of a folder's sets, for a change.
    pub(super) fn note(&mut self, folder: Ino) -> &mut Noted {
        self.changed.noted.insert(folder);
        self.noted.entry(folder).or_default()
    }

    /// Lets a folder have no note that says nothing.
    pub(super) fn tidy_note(&mut self, folder: Ino) {
        if self.noted.get(&folder) == Some(&Noted::default()) {
            self.noted.remove(&folder);
        }
    }

    pub(super) fn seal(&mut self, folder: Ino, timestep: Timestep, sealed: bool) -> Result<(), Failure> {
        self.directory(folder)?;
        let many = self.noted.get(&folder).map_or(0, |noted| noted.sealed.len());
        if sealed && many >= SEALED_MAX {
            let message = format!("{SEALED_MAX} sets of this folder are sealed already");
            return Err(Failure::new(ErrorCode::TooLong, message).then("take the seal off some of them"));
        }
        let noted = self.note(folder);
        match sealed {
            true => noted.sealed.insert(timestep),
            false => noted.sealed.remove(&timestep),
        };
        self.tidy_note(folder);
        Ok(())
    }

    /// Whether checkpoint sets of their own are looked for in this directory.
    pub(super) fn is_folder_of_sets(&self, ino: Ino) -> bool {
        let Ok(inode) = self.inode(ino) else { return false };
        let Body::Directory(directory) = &inode.body else { return false };
        let has_own = ["naming", "lifetime"].iter().any(|key| directory.policy.contains_key(*key));
        ino != Ino::ROOT && (inode.parent == Ino::ROOT || has_own)
    }

    /// The folder of whose sets the files in a directory are, unless the way there leads through one that was `seen`.
    fn folder_of_sets(&self, mut at: Ino, seen: &mut HashSet<Ino>) -> Option<Ino> {
        while at != Ino::ROOT && seen.insert(at) {
            if self.is_folder_of_sets(at) {
                return Some(at);
            }
            at = self.inode(at).ok()?.parent;
        }
        None
    }

    /// Whether sets of a folder may go: a cheap question, which every commit asks.
    fn has_lifetime(&self, folder: Ino) -> bool {
        if self.noted.get(&folder).is_some_and(|noted| noted.done.is_some()) {
            return true;
        }
        let mut at = folder;
        while let Ok(inode) = self.inode(at) {
            let has_own = matches!(&inode.body, Body::Directory(directory) if directory.policy.contains_key("lifetime"));
            if has_own || at == Ino::ROOT {
                return has_own;
            }
            at = inode.parent;
        }
        false
    }

    /// Whether an inode is this directory or lies below it.
    fn is_below(&self, mut at: Ino, directory: Ino) -> bool {
        while at != directory {
            match self.inode(at) {
                Ok(inode) if at != Ino::ROOT => at = inode.parent,
                _ => return false,
            }
        }
        true
    }

    /// What decides about the sets of a folder.
    pub(super) fn rules_of(&self, folder: Ino) -> Result<Rules, Failure> {
        let done = self.noted.get(&folder).and_then(|noted| noted.done);
        Ok(Rules { lifetime: self.policy(folder)?.lifetime, done })
    }
}

impl Core {
    /// Something happened to a file that may let a set of its folders go.
    pub(super) fn sets_changed(&mut self, ino: Ino) {
        self.thin_later(ino);
        let Ok(inode) = self.namespace.inode(ino) else { return };
        let parents: Vec<Ino> = std::iter::once(inode.parent).chain(inode.other_parents()).collect();
        // Each folder on the way is looked at once, however many names lead through it.
        let mut seen = HashSet::new();
        for parent in parents {
            self.sets_in_changed(parent, &mut seen);
        }
    }

    /// Something happened in a directory that may let a set of its folder go.
    fn sets_in_changed(&mut self, directory: Ino, seen: &mut HashSet<Ino>) {
        let Some(folder) = self.namespace.folder_of_sets(directory, seen) else { return };
        if self.namespace.has_lifetime(folder) {
            self.lifetimes.mark(folder, self.locations.now_ms);
        }
    }

    /// A change of the namespace may let sets go.
    pub(super) fn sets_changed_by(&mut self, change: &Change, entry: Option<&Attr>) {
        match (change, entry) {
            (Change::SetPolicy { ino, pairs }, _) if pairs.iter().any(|(key, _)| key == "versions") => {
                self.thinning.search(*ino, self.locations.now_ms);
                if pairs.len() > 1 {
                    self.lifetimes.begin_anew(*ino);
                }
            }
            (Change::SetPolicy { ino, pairs }, _)
                if pairs.iter().any(|(key, _)| {
                    ["lifetime", "naming", "ranks", "redundancy"].contains(&key.as_str())
                }) =>
            {
                self.lifetimes.begin_anew(*ino);
                self.thinning.search(*ino, self.locations.now_ms);
            }
            (Change::Seal { ino, .. } | Change::Finish { ino }, _) => self.lifetimes.begin_anew(*ino),
            (Change::Rename { parent, name, new_parent, .. }, Some(moved)) => {
                let mut seen = HashSet::new();
                [*parent, *new_parent]
                    .into_iter()
                    .for_each(|directory| self.sets_in_changed(directory, &mut seen));
                // Something is where it was only if they changed places.
                let other = self.namespace.find(*parent, name).ok().flatten();
                for ino in [Some(moved.ino), other].into_iter().flatten() {
                    self.moved(ino);
                    self.thin_moved(ino);
                }
            }
            (Change::Link { parent, .. }, Some(named)) => {
                self.thin_later(named.ino);
                self.sets_in_changed(*parent, &mut HashSet::new());
            }
            _ => {}
        }
    }

    /// Other policies may hold for the folders of sets at and below a directory. A look at one of these begins anew.
    fn moved(&mut self, directory: Ino) {
        if self.namespace.directory(directory).is_err() {
            return;
        }
        let look = self.lifetimes.look.as_ref();
        match look.is_some_and(|look| self.namespace.is_below(look.folder, directory)) {
            true => self.lifetimes.begin_anew(directory),
            false => self.lifetimes.search(directory),
        }
    }

    /// Refuses to seal what isn't there.
    pub(super) fn check_sealed(&self, change: &Change) -> Result<(), Failure> {
        let Change::Seal { ino, timestep, sealed } = change else { return Ok(()) };
        self.check_folder_of_sets(*ino)?;
        if !*sealed {
            return Ok(());
        }
        match self.all_sets(*ino)?.iter().any(|set| set.timestep == *timestep) {
            true => Ok(()),
            false => Err(Failure::new(ErrorCode::NotFound, format!("it has no set of timestep {timestep}"))),
        }
    }

    /// Refuses a directory whose sets are another one's: what was noted of it would hold for none.
    fn check_folder_of_sets(&self, directory: Ino) -> Result<(), Failure> {
        if self.namespace.directory(directory).is_ok() && !self.namespace.is_folder_of_sets(directory) {
            let message = "it is no folder of checkpoint sets: its files belong to those of a folder above";
            let failure = Failure::new(ErrorCode::Invalid, message);
            return Err(failure.then("name that folder, or set `naming` or `lifetime` on this one"));
        }
        Ok(())
    }

    /// With what the job of a folder has succeeded by a change.
    pub(super) fn done_with(&self, change: &Change) -> Result<Option<Done>, Failure> {
        let Change::Finish { ino } = change else { return Ok(None) };
        self.done_now(*ino).map(Some)
    }

    fn done_now(&self, folder: Ino) -> Result<Done, Failure> {
        self.check_folder_of_sets(folder)?;
        let sets = self.all_sets(folder)?;
        let newest = sets.iter().find(|set| set.state == SetState::Complete);
        let position = self.namespace.position;
        newest.map(|set| Done { timestep: set.timestep, position }).ok_or_else(|| {
            Failure::new(ErrorCode::NotFound, "it has no complete set, so all that it has stays")
        })
    }

    /// What would become of the sets of a folder now.
    pub(super) fn fates(&mut self, folder: Ino, lifetime: Option<&str>, done: bool) -> Answer {
        let mut rules = self.namespace.rules_of(folder)?;
        if let Some(lifetime) = lifetime {
            rules.lifetime = if lifetime.is_empty() { Lifetime::Keep } else { lifetime.parse()? };
        }
        if done {
            rules.done = Some(self.done_now(folder)?);
        }
        let mut look = Look::new(folder, rules, &self.namespace)?;
        while self.look_step(&mut look, usize::MAX).is_some() {}
        Ok(ManagerReply::Fates(look.told()))
    }

    /// Does a part of a look. Tells whether there is more to do at once.
    pub(super) fn look_on(&mut self, now: super::Now) -> bool {
        // Who has files open is not known yet, or what is here may be out of date.
        if !self.settled || self.history.check().is_err() {
            return false;
        }
        if self.lifetimes.look.is_none() && !self.begin_look(now.ms) {
            return !self.lifetimes.unsearched.is_empty();
        }
        let Some(mut look) = self.lifetimes.look.take() else { return false };
        if self.look_step(&mut look, self.setting.steps).is_some() || self.remove_some(&mut look) {
            self.lifetimes.look = Some(look);
            return true;
        }
        self.end_look(&look, now.ms);
        true
    }

    /// Begins to look at the next folder, if one is due. Looks for folders as well.
    fn begin_look(&mut self, now_ms: u64) -> bool {
        self.search_folders(now_ms);
        while let Some(folder) = self.lifetimes.aging.take(self.namespace.lived_ms) {
            self.lifetimes.mark(folder, now_ms);
        }
        let Some(folder) = self.lifetimes.due.take(now_ms) else { return false };
        let is_folder = self.namespace.is_folder_of_sets(folder);
        let rules = self.namespace.rules_of(folder).ok().filter(|rules| is_folder && rules.any_goes());
        let look = rules.and_then(|rules| Look::new(folder, rules, &self.namespace).ok());
        if look.is_none() {
            self.lifetimes.forget(folder);
        }
        self.lifetimes.look = look;
        self.lifetimes.look.is_some()
    }

    /// Goes through some directories, for folders of sets that can go.
    fn search_folders(&mut self, now_ms: u64) {
        let mut steps = 0;
        while steps < self.setting.steps {
            let Some(ino) = self.lifetimes.unsearched.pop_front() else { return };
            let Ok(directory) = self.namespace.directory(ino) else { continue };
            steps += 1;
            if directory.subdirectories > 0 {
                steps += directory.entries.len();
                let below = directory.entries.values();
                let below = below.filter(|ino| self.namespace.directory(**ino).is_ok());
                self.lifetimes.unsearched.extend(below);
            }
            let is_folder = self.namespace.is_folder_of_sets(ino);
            if is_folder && self.namespace.has_lifetime(ino) {
                self.lifetimes.mark(ino, now_ms);
            }
        }
    }
}
