//! A look at the sets of one folder: which go by its lifetime, and their removal, in steps between requests.
//!
//! | stage | does | a step takes |
//! |---|---|---|
//! | gathering | groups the folder's files by timestep | some hundred files |
//! | checking | finds the newest complete sets that are whole | some thousand chunks, at least a file |
//! | removing | removes those that go, the oldest first, each in one step unless it is large | some hundred files |
//!
//! A set is *whole* if blocks of each of its chunks are at benefactors that are on-line, by receipts and inventories, as many as the policy
//! asks for, or as can be at those that are not lost. What was found damaged counts no longer, nor does what is on a machine that goes soon,
//! or where the disk failed or damages blocks. So it isn't a set that merely was whole
//! once: this is looked at before anything goes, and again from the beginning once anything of what benefactors have said counts no longer.
//!
//! Nothing else is remembered of a set between the steps: before a file goes it must be the one that was seen, unwritten since, and before
//! any goes in a step the whole sets that stay must be there as they were. So whatever happens in between, what is removed has a newer
//! set in its place. A restart forgets the look, and begins it anew.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use stdchk_model::exact::{part, part_mut, to_usize};
use stdchk_model::lifetime::{Facts, Fate, Rules};
use stdchk_model::limits::{CHUNK_BYTES_DEFAULT, LIST_ENTRIES_MAX};
use stdchk_model::message::manager::{CheckpointSet, SetFate, SetMember, SetState, TimeNs, VersionState};
use stdchk_model::naming::Naming;
use stdchk_model::sets::{FileVersions, Found, Grouped, Taught};
use stdchk_model::{ErrorCode, Failure, Ino, Timestep};

use super::Core;
use super::inode::{Body, Version};
use super::namespace::Namespace;
use super::walks::Walk;

/// A file takes as long as so many chunks.
const FILE_STEPS: usize = 4;

/// A look at a folder.
#[derive(Debug)]
pub(super) struct Look {
    pub folder: Ino,
    rules: Rules,
    naming: Naming,
    ranks: u32,
    path: String,
    /// Folders of sets above this one: how a path below this one is called there, and read.
    above: Vec<(String, Naming)>,
    /// Steps so far.
    steps: u64,
    /// What counted when it began.
    doubts: u64,
    files: Grouped,
    /// Files that belong to another folder, too.
    shared: HashSet<Ino>,
    sets: Vec<CheckpointSet>,
    facts: Vec<Facts>,
    is_whole: Vec<bool>,
    fates: Vec<Fate>,
    stage: Stage,
    /// Something changed that was to go, and stays: there may be more to do.
    is_cut_off: bool,
}

#[derive(Debug)]
enum Stage {
    /// Directories still to be gone through.
    Gathering(Vec<Place>),
    /// The next member of the next set.
    Checking { set: usize, member: usize },
    /// What goes, the oldest last.
    Removing(Vec<Going>),
}

/// A directory that is being gone through.
#[derive(Debug)]
struct Place {
    ino: Ino,
    /// Its path below the folder, with a slash at its end unless it is empty.
    prefix: String,
    /// The entry behind which to go on.
    after: Option<String>,
    /// It is another folder of sets, or lies in one.
    is_other: bool,
}

/// A set that goes.
#[derive(Debug)]
struct Going {
    timestep: Timestep,
    fate: Fate,
    /// When the last of its files was written or named.
    position: TimeNs,
    is_begun: bool,
    files: Vec<Found>,
    /// To be noted before any of them goes.
    taught: Option<Taught>,
}

impl Look {
    pub fn new(folder: Ino, rules: Rules, namespace: &Namespace) -> Result<Self, Failure> {
        let policy = namespace.policy(folder)?;
        let naming = policy.naming.parse().map_err(|error| {
            Failure::new(ErrorCode::Invalid, format!("`naming` of directory {folder}: {error}"))
        })?;
        namespace.directory(folder)?;
        let place = Place { ino: folder, prefix: String::new(), after: None, is_other: false };
        Ok(Self {
            folder,
            rules,
            naming,
            ranks: policy.ranks,
            path: namespace.path(folder),
            above: above(folder, namespace)?,
            steps: 0,
            doubts: 0,
            files: Grouped::default(),
            shared: HashSet::new(),
            sets: Vec::new(),
            facts: Vec::new(),
            is_whole: Vec::new(),
            fates: Vec::new(),
            stage: Stage::Gathering(vec![place]),
            is_cut_off: false,
        })
    }

    /// What becomes of the sets, once that is known.
    pub fn told(&self) -> Vec<SetFate> {
        let told = self.sets.iter().zip(&self.fates).map(|(set, fate)| SetFate {
            timestep: set.timestep,
            state: set.state,
            files: self.files.files(set.timestep).len() as u64,
            bytes: set.members.iter().map(|member| member.bytes).fold(0, u64::saturating_add),
            goes: fate.goes(),
            reason: fate.to_string(),
        });
        told.take(LIST_ENTRIES_MAX).collect()
    }

    /// The sets that are complete and whole, and stay: others go because of these.
    fn counted_on(&self) -> impl Iterator<Item = &CheckpointSet> {
        let sets = self.sets.iter().zip(&self.is_whole).zip(&self.fates);
        sets.filter(|((_, whole), fate)| **whole && !fate.goes()).map(|((set, _), _)| set)
    }

    /// Takes in some entries of a directory, at least one; how many steps that took, and the directories among them.
    fn gather(&mut self, place: &mut Place, steps: usize, namespace: &Namespace) -> (usize, Vec<Place>) {
        assert!(steps > 0, "it comes to an end");
        let (mut done, mut below) = (0, Vec::new());
        let from = place.after.take();
        let Ok(directory) = namespace.directory(place.ino) else { return (1, below) };
        let start = from.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut last: Option<&String> = None;
        for (name, ino) in directory.entries.range::<str, _>((start, Bound::Unbounded)) {
            if done >= steps {
                place.after = last.cloned();
                break;
            }
            last = Some(name);
            done += 1;
            let path = format!("{}{name}", place.prefix);
            match namespace.inode(*ino).map(|inode| (inode, &inode.body)) {
                Ok((_, Body::Directory(_))) => {
                    let is_other = place.is_other || namespace.is_folder_of_sets(*ino);
                    below.push(Place { ino: *ino, prefix: format!("{path}/"), after: None, is_other });
                }
                Ok((inode, Body::File(file))) => {
                    done += file.versions.len();
                    let is_shared = place.is_other
                        || self
                            .above
                            .iter()
                            .any(|(prefix, naming)| naming.read(&format!("{prefix}{path}")).is_some());
                    let by_version = self.naming.read(&path).is_some_and(|reading| reading.step.is_none());
                    if is_shared || by_version && inode.links > 1 {
                        self.shared.insert(*ino);
                    }
                    let versions = file.versions.iter().map(|(number, version)| version.info(number));
                    let file = FileVersions { path, ino: *ino, versions: versions.collect() };
                    self.files.add(&file, &self.naming);
                }
                _ => {}
            }
        }
        (done, below)
    }
}

/// The folders of sets above a folder: how a path below it is called there, and read.
fn above(folder: Ino, namespace: &Namespace) -> Result<Vec<(String, Naming)>, Failure> {
    let (mut above, mut prefix, mut at) = (Vec::new(), String::new(), folder);
    loop {
        let inode = namespace.inode(at)?;
        if inode.parent == Ino::ROOT || at == Ino::ROOT {
            return Ok(above);
        }
        prefix = format!("{}/{prefix}", inode.name);
        at = inode.parent;
        if namespace.is_folder_of_sets(at)
            && let Ok(naming) = namespace.policy(at)?.naming.parse()
        {
            above.push((prefix.clone(), naming));
        }
    }
}

/// How long it takes to remove a file: about as long as so many chunks.
fn steps_for(found: &Found) -> usize {
    let chunks = found.version.as_ref().map_or(0, |info| info.size / CHUNK_BYTES_DEFAULT as u64);
    to_usize(chunks).saturating_add(FILE_STEPS)
}

impl Core {
    /// Does a step of a look until it is known what goes; `None` once it is.
    pub(super) fn look_step(&mut self, look: &mut Look, steps: usize) -> Option<()> {
        look.steps += 1;
        match std::mem::replace(&mut look.stage, Stage::Removing(Vec::new())) {
            Stage::Gathering(places) => self.gather_some(look, places, steps),
            Stage::Checking { set, member } => self.check_some(look, set, member, steps),
            Stage::Removing(going) => {
                look.stage = Stage::Removing(going);
                look.steps -= 1;
                return None;
            }
        }
        Some(())
    }

    fn gather_some(&mut self, look: &mut Look, mut places: Vec<Place>, mut steps: usize) {
        while steps > 0 {
            let Some(mut place) = places.pop() else { return self.judge(look) };
            let (done, below) = look.gather(&mut place, steps, &self.namespace);
            steps = steps.saturating_sub(done.max(1));
            if place.after.is_some() {
                places.push(place);
            }
            places.extend(below);
        }
        look.stage = Stage::Gathering(places);
    }

    /// All files are known. If nothing would go even if all complete sets were whole, that is the end.
    fn judge(&mut self, look: &mut Look) {
        let noted = self.namespace.noted.get(&look.folder);
        let taught = noted.and_then(|noted| noted.taught.as_ref());
        look.sets = look.files.sets(&look.path, &look.naming, look.ranks, taught);
        look.facts = look.sets.iter().map(|set| self.facts(look, set)).collect();
        let complete: Vec<bool> = look.sets.iter().map(|set| set.state == SetState::Complete).collect();
        look.fates = look.rules.fates(&look.facts, &complete);
        look.doubts = self.doubts();
        look.is_whole = vec![false; look.sets.len()];
        if look.fates.iter().any(|fate| fate.goes()) {
            look.stage = Stage::Checking { set: 0, member: 0 };
        }
    }

    fn facts(&self, look: &Look, set: &CheckpointSet) -> Facts {
        let noted = self.namespace.noted.get(&look.folder);
        let files = look.files.files(set.timestep);
        let lived_ms =
            files.iter().flat_map(|found| self.versions_of(found)).map(|version| version.lived_ms).max();
        Facts {
            timestep: set.timestep,
            state: set.state,
            position: files
                .iter()
                .map(|found| self.position_of(look.folder, found))
                .max()
                .unwrap_or(TimeNs::MAX),
            committed: files.iter().map(|found| self.committed_of(found)).min().unwrap_or(TimeNs::MIN),
            age_ms: lived_ms.map(|lived_ms| self.namespace.lived_ms.saturating_sub(lived_ms)),
            is_sealed: noted.is_some_and(|noted| noted.sealed.contains(&set.timestep)),
            is_shared: files.iter().any(|found| look.shared.contains(&found.ino)),
            is_written: files.iter().any(|found| self.is_written(found)),
        }
    }

    fn version_of(&self, ino: Ino, number: u64) -> Option<&Version> {
        self.namespace.file(ino).ok()?.versions.get(number)
    }

    /// The versions of a file that are of the set: all, unless their numbers are the timesteps.
    fn versions_of(&self, found: &Found) -> impl Iterator<Item = &Version> {
        let only = found.version.as_ref().filter(|_| found.is_by_version).map(|info| info.version);
        let versions = self.namespace.file(found.ino).into_iter().flat_map(|file| file.versions.iter());
        versions
            .filter(move |(number, _)| only.is_none_or(|only| only == *number))
            .map(|(_, version)| version)
    }

    /// When a file of a set was last committed, or it or a directory on the way to it got its name if that was later. What is gone counts as new.
    fn position_of(&self, folder: Ino, found: &Found) -> TimeNs {
        let Ok(inode) = self.namespace.inode(found.ino) else { return TimeNs::MAX };
        let committed = self.versions_of(found).map(|version| version.position).max();
        match committed {
            // A name that is written again and again has older versions than its last name.
            Some(committed) if found.is_by_version => committed,
            Some(committed) => committed.max(inode.named).max(self.way_named(folder, &found.path)),
            None => inode.named.max(self.way_named(folder, &found.path)),
        }
    }

    /// When the last of the directories between a folder and a file below it got its name.
    fn way_named(&self, folder: Ino, path: &str) -> TimeNs {
        let ways = path.match_indices('/').filter_map(|(end, _)| path.get(..end));
        let named = ways.map(|way| {
            let inode = self.named(folder, way).and_then(|(_, _, ino)| self.namespace.inode(ino).ok());
            inode.map_or(TimeNs::MAX, |inode| inode.named)
        });
        named.max().unwrap_or(TimeNs::MIN)
    }

    /// When what a set is made of was committed, of one of its files. What isn't there takes nobody's place.
    fn committed_of(&self, found: &Found) -> TimeNs {
        let version = found.version.as_ref().and_then(|info| self.version_of(found.ino, info.version));
        version.map_or(TimeNs::MIN, |version| version.position)
    }

    fn is_written(&self, found: &Found) -> bool {
        match (&found.version, found.is_by_version) {
            (Some(info), true) => info.state == VersionState::Open,
            _ => self.namespace.held.contains_key(&found.ino),
        }
    }

    /// Rises whenever a set that was whole may be so no longer.
    fn doubts(&self) -> u64 {
        self.registry.doubts() + self.locations.unlearned()
    }

    /// Looks at members of the newest complete sets, until enough of these are known to be whole.
    fn check_some(&mut self, look: &mut Look, mut set: usize, mut member: usize, steps: usize) {
        if look.doubts != self.doubts() {
            // Later: what ceases to count may go on doing so for a while.
            look.is_whole.fill(false);
            look.fates = look.rules.fates(&look.facts, &look.is_whole);
            return;
        }
        let mut left = steps;
        let mut found = look.is_whole.iter().filter(|whole| **whole).count();
        while set < look.sets.len() && found < look.rules.whole_needed() {
            if left == 0 {
                look.stage = Stage::Checking { set, member };
                return;
            }
            let known = part(&look.sets, set);
            let next = known.members.get(member).filter(|_| known.state == SetState::Complete);
            let is_whole = match next {
                None => known.state == SetState::Complete,
                Some(next) => {
                    let (is_whole, done) = self.is_whole(next);
                    left = left.saturating_sub(done);
                    if is_whole {
                        member += 1;
                        continue;
                    }
                    false
                }
            };
            *part_mut(&mut look.is_whole, set) = is_whole;
            found += usize::from(is_whole);
            (set, member) = (set + 1, 0);
        }
        look.fates = look.rules.fates(&look.facts, &look.is_whole);
        self.choose(look);
    }

    /// Whether each chunk of a set's member has its blocks at benefactors that are on-line and keep them; how many chunks were looked at.
    fn is_whole(&mut self, member: &SetMember) -> (bool, usize) {
        self.is_version_whole(member.ino, member.version)
    }

    /// Whether each chunk of a version has its blocks at benefactors that are on-line and keep them; how many chunks were looked at.
    pub(super) fn is_version_whole(&mut self, ino: Ino, number: u64) -> (bool, usize) {
        let Ok(policy) = self.namespace.policy(ino) else { return (false, 1) };
        let root = self.version_of(ino, number).map(|version| version.root.clone());
        let Some(root) = root else { return (false, 1) };
        let wanted = policy.redundancy.distance_with(self.registry.remaining()).max(1);
        let slots = self.references.slots_of(&root, &self.locations);
        let is_safe = |slot| self.locations.at(slot).distance_reliable(&self.registry) >= wanted;
        (slots.iter().all(|slot| is_safe(*slot)), slots.len().max(FILE_STEPS))
    }

    /// It is known what goes.
    fn choose(&self, look: &mut Look) {
        let sets = look.facts.iter().zip(&look.fates).rev().filter(|(_, fate)| fate.goes());
        let (timesteps, facts): (Vec<Timestep>, Vec<(Fate, TimeNs)>) =
            sets.map(|(set, fate)| (set.timestep, (*fate, set.position))).unzip();
        let before = self.namespace.noted.get(&look.folder).and_then(|noted| noted.taught.as_ref());
        let taught = look.files.taught_by(&timesteps, &look.naming, before);
        let going =
            timesteps.into_iter().zip(facts).zip(taught).map(|((timestep, (fate, position)), taught)| {
                let files = look.files.files(timestep).to_vec();
                Going { timestep, fate, position, is_begun: false, files, taught }
            });
        let mut going: Vec<Going> = going.collect();
        going.reverse();
        look.stage = Stage::Removing(going);
    }

    // --- removing

    /// Removes some of what goes. Tells whether there is more.
    pub(super) fn remove_some(&mut self, look: &mut Look) -> bool {
        let Stage::Removing(mut going) = std::mem::replace(&mut look.stage, Stage::Removing(Vec::new()))
        else {
            unreachable!("it is known what goes")
        };
        if going.is_empty() {
            return false;
        }
        look.steps += 1;
        if !self.may_go(look) {
            look.stage = Stage::Removing(going);
            return false;
        }
        let mut left = self.setting.steps;
        let mut is_begun = false;
        while left > 0 {
            let Some(set) = going.last_mut() else { break };
            // A set goes in one step, unless it takes more than one.
            let steps = set.files.iter().map(steps_for).fold(0, usize::saturating_add);
            if is_begun && steps > left && steps <= self.setting.steps {
                break;
            }
            is_begun = true;
            if !set.is_begun
                && !set.files.iter().all(|found| self.is_as_seen(look.folder, found, set.position))
            {
                look.is_cut_off = true;
                left = left.saturating_sub(steps);
                going.pop();
                continue;
            }
            set.is_begun = true;
            if let Some(taught) = set.taught.take() {
                self.namespace.note(look.folder).taught = Some(taught);
            }
            while let Some(found) = set.files.pop_if(|_| left > 0) {
                left = left.saturating_sub(steps_for(&found));
                look.is_cut_off |= !self.is_as_seen(look.folder, &found, set.position);
                self.remove_member(look.folder, &found, set.position);
            }
            self.settle_references();
            if set.files.is_empty() {
                let (folder, timestep, why) = (&look.path, set.timestep.to_string(), set.fate.to_string());
                tracing::info!(folder, timestep, why, "removed a checkpoint set");
                going.pop();
            }
        }
        look.stage = Stage::Removing(going);
        true
    }

    /// Whether the whole sets that stay are there as they were, and known to be whole still.
    fn may_go(&self, look: &Look) -> bool {
        assert!(look.counted_on().next().is_some(), "nothing goes without a set that is whole");
        look.doubts == self.doubts()
            && look.counted_on().flat_map(|set| &set.members).all(|member| {
                let named = self.named(look.folder, &member.name).map(|(_, _, ino)| ino);
                let state = self.version_of(member.ino, member.version).map(|version| version.state);
                named == Some(member.ino) && state == Some(VersionState::Closed)
            })
    }

    /// What a path below a folder leads to: directory, name, inode.
    fn named<'a>(&self, folder: Ino, path: &'a str) -> Option<(Ino, &'a str, Ino)> {
        let (parents, name) = path.rsplit_once('/').map_or((None, path), |(above, name)| (Some(above), name));
        let mut at = folder;
        for parent in parents.into_iter().flat_map(|parents| parents.split('/')) {
            at = self.namespace.find(at, parent).ok().flatten()?;
        }
        Some((at, name, self.namespace.find(at, name).ok().flatten()?))
    }

    /// Whether a file of a set is there, and neither written nor named since the set was judged, whose position was this.
    fn is_as_seen(&self, folder: Ino, found: &Found, position: TimeNs) -> bool {
        let is_there = self.named(folder, &found.path).is_some_and(|(_, _, ino)| ino == found.ino);
        let is_changed = self.is_written(found) || self.position_of(folder, found) > position;
        let has_version = match (&found.version, found.is_by_version) {
            (Some(info), true) => self.version_of(found.ino, info.version).is_some(),
            _ => true,
        };
        is_there && has_version && !is_changed
    }

    /// Removes a file or a version as its user would, if it is as it was seen.
    fn remove_member(&mut self, folder: Ino, found: &Found, position: TimeNs) {
        let Some((parent, name, ino)) = self.named(folder, &found.path) else { return };
        if !self.is_as_seen(folder, found, position) {
            return;
        }
        match (&found.version, found.is_by_version) {
            (Some(info), true) => self.drop_old_version(ino, info.version),
            _ => self.unlink_member(folder, (parent, name), ino),
        }
    }

    /// Drops a version that readers don't see, of a file with one name.
    fn drop_old_version(&mut self, ino: Ino, number: u64) {
        let (Ok(file), Ok(inode)) = (self.namespace.file(ino), self.namespace.inode(ino)) else { return };
        let is_old = file.newest().is_some_and(|(newest, _)| newest > number);
        if is_old && inode.links == 1 && self.namespace.drop_version(ino, number).is_err() {
            tracing::debug!(%ino, number, "a version stays that its writer has not finished");
        }
    }

    fn unlink_member(&mut self, folder: Ino, place: (Ino, &str), ino: Ino) {
        if self.namespace.is_built_on(ino) {
            tracing::debug!(%ino, "a file stays of which a newer version waits in a spool");
            return;
        }
        if self.namespace.unlink(place).is_err() {
            return;
        }
        // Other names of it may want less.
        if self.namespace.wants_other(ino) {
            self.walk(Walk::Grade(ino, usize::MAX));
        }
        self.remove_emptied(folder, place.0);
    }

    /// Removes a directory that held nothing but files of a set, and those above it.
    fn remove_emptied(&mut self, folder: Ino, mut at: Ino) {
        while at != folder && !self.namespace.is_folder_of_sets(at) {
            let Ok(inode) = self.namespace.inode(at) else { return };
            let (parent, name) = (inode.parent, inode.name.clone());
            let has_policy =
                matches!(&inode.body, Body::Directory(directory) if !directory.policy.is_empty());
            if has_policy || self.namespace.rmdir((parent, &name)).is_err() {
                return;
            }
            at = parent;
        }
    }

    /// A look is over: when the folder is to be looked at again.
    pub(super) fn end_look(&mut self, look: &Look, now_ms: u64) {
        let in_ms = |fate: &Fate| match fate {
            Fate::For(ms) => Some(*ms),
            _ => None,
        };
        let old_in_ms = look.fates.iter().filter_map(in_ms).min();
        // Less went than would have if all complete sets were whole.
        let complete: Vec<bool> = look.sets.iter().map(|set| set.state == SetState::Complete).collect();
        let wished = look.rules.fates(&look.facts, &complete);
        let by_timestep: BTreeMap<Timestep, bool> =
            look.facts.iter().zip(&look.fates).map(|(facts, fate)| (facts.timestep, fate.goes())).collect();
        let is_gone = |timestep: &Timestep| by_timestep.get(timestep) == Some(&true);
        let waits =
            look.facts.iter().zip(&wished).any(|(facts, fate)| fate.goes() && !is_gone(&facts.timestep));
        let is_left = matches!(&look.stage, Stage::Removing(going) if !going.is_empty());
        let is_cut_off = is_left || look.is_cut_off;
        self.clear_done(look, waits || is_cut_off);
        self.lifetimes.looked(
            (look.folder, &look.rules),
            look.steps,
            (old_in_ms, waits || is_cut_off),
            now_ms,
        );
    }

    /// Nothing is left to do for a job that is done.
    fn clear_done(&mut self, look: &Look, waits: bool) {
        let written = || look.fates.contains(&Fate::Written);
        let noted = self.namespace.noted.get(&look.folder).is_some_and(|noted| noted.done == look.rules.done);
        if look.rules.done.is_some() && noted && !waits && !written() {
            self.namespace.note(look.folder).done = None;
            self.namespace.tidy_note(look.folder);
        }
    }
}
