//! Which commits wait for copies of what was committed before, and how exposed checkpoint sets are.
//!
//! The folder's `exposure` bounds how far writers may get ahead of the copies (paper, section IV.A: optimistic writes). A
//! commit is never refused or kept waiting here: its answer says for what the writer should wait before it tells the
//! application, and the writer asks until that is over. Nobody waits for copies that can't be made now: while fewer
//! benefactors are on-line with room than copies are wanted, while benefactors have yet to report after a restart, and for
//! chunks whose holders are away or whose last copy failed.
//!
//! `exposure=previous` by states of a version that is committed:
//!
//! | version | waits for |
//! |---|---|
//! | of timestep T of its folder | all of the folder that was committed before the first file of T was |
//! | of a file that fits no naming | what came with the version on which its session builds |
//! | the first one of such a file | nothing |
//! | gets its name of timestep T by a rename | at the rename, as if it was committed then |

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use stdchk_model::limits::CHUNK_BYTES_DEFAULT;
use stdchk_model::message::manager::{
    CheckpointSet, Exposed, ExposedSet, Hold, ManagerReply, SetMember, TimeNs,
};
use stdchk_model::naming::Naming;
use stdchk_model::policy::Exposure;
use stdchk_model::sets::FileVersions;
use stdchk_model::{Failure, Ino, MapRoot, Policy, SessionId, Timestep};

use super::exposure::{Count, SHARED, Shortage, Span};
use super::inode::Body;
use super::namespace::Namespace;
use super::{Answer, Core};
use crate::store::StoreError;

/// Most sets that the state of the pool names as exposed: the oldest of them.
const EXPOSED_SHOWN: usize = 32;

/// Timesteps of a folder of which nobody asks whether they are still there.
const TIMESTEPS_MIN: usize = 1024;

/// Where a version stands among those of its folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Milestone {
    folder: Ino,
    position: TimeNs,
    /// It belongs to a timestep.
    in_set: bool,
}

impl Milestone {
    pub(super) fn span(&self) -> Span {
        Span::at(self.folder, self.position)
    }
}

/// Positions of the timesteps of one folder.
#[derive(Debug, Default)]
struct Timesteps {
    positions: HashMap<Timestep, TimeNs>,
    by_position: BTreeMap<TimeNs, Timestep>,
    /// How many were left when it was looked last which of them are still there.
    left: usize,
}

/// When the first file of each timestep was committed: the position of the timestep's set.
#[derive(Debug, Default)]
pub(super) struct Begun(HashMap<Ino, Timesteps>);

impl Begun {
    /// A file of a timestep was committed at `at`; the position of its set.
    pub(super) fn note(&mut self, folder: Ino, timestep: Timestep, at: TimeNs) -> TimeNs {
        let Timesteps { positions, by_position, .. } = self.0.entry(folder).or_default();
        let known = *positions.entry(timestep).or_insert(at);
        if at < known {
            by_position.remove(&known);
            positions.insert(timestep, at);
        }
        let position = at.min(known);
        by_position.insert(position, timestep);
        position
    }

    fn get(&self, folder: Ino, timestep: Timestep) -> Option<TimeNs> {
        self.0.get(&folder)?.positions.get(&timestep).copied()
    }

    fn timestep_at(&self, folder: Ino, position: TimeNs) -> Option<Timestep> {
        self.0.get(&folder)?.by_position.get(&position).copied()
    }

    /// Whether so many timesteps came to a folder that it is worth a look which of them are still there.
    fn is_overgrown(&self, folder: Ino) -> bool {
        self.0.get(&folder).is_some_and(|known| known.positions.len() > 2 * known.left + TIMESTEPS_MIN)
    }

    /// Forgets timesteps of a folder of which nothing is left.
    fn retain(&mut self, folder: Ino, alive: &HashSet<Timestep>) {
        let Some(known) = self.0.get_mut(&folder) else { return };
        known.positions.retain(|timestep, _| alive.contains(timestep));
        known.by_position.retain(|_, timestep| alive.contains(timestep));
        known.left = known.positions.len();
    }
}

/// Files of one directory, as their names are read.
#[derive(Clone, Debug)]
pub(super) struct NamedBelow {
    folder: Ino,
    /// Path of the directory below the folder, with a slash at its end unless it is empty.
    prefix: String,
    naming: Option<Naming>,
}

impl NamedBelow {
    /// The timestep that a version of the file belongs to, which is its number where the file is written again and again.
    pub(super) fn timestep(&self, name: &str, version: u64) -> Option<Timestep> {
        let path = format!("{}{name}", self.prefix);
        let reading = self.naming.as_ref().filter(|_| !name.is_empty())?.read(&path)?;
        Some(reading.step.unwrap_or_else(|| version.into()))
    }
}

impl Namespace {
    /// How files in a directory are named: below the nearest directory that has a naming of its own, or else below the
    /// application's folder.
    pub(super) fn named_below(&self, directory: Ino) -> Result<NamedBelow, Failure> {
        let mut names: Vec<&str> = Vec::new();
        let mut at = directory;
        while at != Ino::ROOT {
            let inode = self.inode(at)?;
            let has_naming =
                matches!(&inode.body, Body::Directory(directory) if directory.policy.contains_key("naming"));
            if has_naming || inode.parent == Ino::ROOT {
                break;
            }
            names.push(&inode.name);
            at = inode.parent;
        }
        let prefix = names.iter().rev().map(|name| format!("{name}/")).collect();
        let naming = self.policy(at)?.naming.parse::<Naming>().ok();
        Ok(NamedBelow { folder: at, prefix, naming })
    }

    /// The folder of a file, and the timestep that a version of it belongs to, if any.
    fn timestep(&self, ino: Ino, version: u64) -> (Ino, Option<Timestep>) {
        let found = self.inode(ino).and_then(|inode| Ok((inode, self.named_below(inode.parent)?)));
        // A file without a name may have outlived its folder.
        let Ok((inode, below)) = found else { return (SHARED, None) };
        (below.folder, below.timestep(&inode.name, version))
    }
}

impl Core {
    /// Where a version stands that was committed at `at`.
    pub(super) fn milestone(&mut self, ino: Ino, version: u64, at: TimeNs, policy: &Policy) -> Milestone {
        if !policy.may_lack() {
            // It never lacks a copy.
            let folder = self.namespace.inode(ino).map_or(SHARED, |inode| inode.parent);
            return Milestone { folder, position: at, in_set: false };
        }
        match self.namespace.timestep(ino, version) {
            (folder, Some(timestep)) => {
                let position = self.begun.note(folder, timestep, at);
                if self.begun.is_overgrown(folder) {
                    let alive = self.timesteps_of(folder);
                    self.begun.retain(folder, &alive);
                }
                Milestone { folder, position, in_set: true }
            }
            (folder, None) => Milestone { folder, position: at, in_set: false },
        }
    }

    /// Has the chunks of so many of a file's newest versions counted in the folder where it is now, where the policy asks for copies.
    pub(super) fn place_versions(&mut self, ino: Ino, newest: usize) {
        let (Ok(policy), Ok(inode)) = (self.namespace.policy(ino), self.namespace.inode(ino)) else { return };
        let Body::File(file) = &inode.body else { return };
        if !policy.may_lack() {
            return;
        }
        let (named, versions) = (inode.named, file.versions.iter().rev().take(newest));
        let versions: Vec<(u64, TimeNs, MapRoot)> =
            versions.map(|(number, version)| (number, version.position, version.root.clone())).collect();
        for (number, position, root) in versions.into_iter().rev() {
            // What got its name after it was committed stands where it was committed.
            let span = match named <= position {
                true => self.milestone(ino, number, position, &policy).span(),
                false => Span::at(self.namespace.timestep(ino, number).0, position),
            };
            self.references.extend(&root, span, &mut self.locations, &self.registry);
        }
    }

    /// The timesteps of a folder of which there are files.
    fn timesteps_of(&self, folder: Ino) -> HashSet<Timestep> {
        let Ok(naming) = self.namespace.policy(folder).map(|policy| policy.naming.parse::<Naming>()) else {
            return HashSet::new();
        };
        let mut files = Vec::new();
        // Without its folder nothing of it is left.
        if self.collect_files(folder, "", &|_| true, &mut files).is_err() {
            return HashSet::new();
        }
        let read = |file: &FileVersions| naming.as_ref().ok()?.read(&file.path).map(|reading| reading.step);
        let timesteps = |file: FileVersions| {
            let step = read(&file);
            file.versions
                .into_iter()
                .filter_map(move |info| Some(step?.unwrap_or_else(|| info.version.into())))
        };
        files.into_iter().flat_map(timesteps).collect()
    }

    /// Counts all versions of the store for their chunks.
    pub(super) fn count_versions(&mut self) -> Result<(), StoreError> {
        let mut folders: HashMap<Ino, (u8, Option<NamedBelow>)> = HashMap::new();
        let mut files: Vec<Ino> = self.namespace.inodes.keys().copied().collect();
        files.sort_unstable();
        // First of all, so that the members of a set have one position.
        for note in [true, false] {
            for ino in &files {
                let Ok(inode) = self.namespace.inode(*ino) else { continue };
                let Body::File(file) = &inode.body else { continue };
                let (wanted, below) = match folders.entry(inode.parent) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(unknown) => {
                        let policy = self.namespace.policy_from(inode.parent);
                        let policy =
                            policy.map_err(|error| StoreError::new("reading the policy of a file", error))?;
                        // A file without a name may have outlived its folder.
                        let below = self.namespace.named_below(inode.parent).ok();
                        unknown.insert((policy.redundancy.distance(), below))
                    }
                };
                let several = (!inode.others.is_empty()).then(|| self.namespace.policy(*ino)).transpose();
                let several = several.map_err(|error| StoreError::new("reading policies", error))?;
                let wanted = several.map_or(*wanted, |policy| policy.redundancy.distance());
                let (name, named) = (&inode.name, inode.named);
                for (number, version) in file.versions.iter() {
                    // What got its name after it was committed stands where it was committed.
                    let timestep = below.as_ref().and_then(|below| below.timestep(name, number));
                    let folder = below.as_ref().map_or(SHARED, |below| below.folder);
                    let position = match timestep {
                        Some(timestep) if note || named <= version.position => {
                            self.begun.note(folder, timestep, version.position)
                        }
                        _ => version.position,
                    };
                    if !note {
                        let span = Span::at(folder, position);
                        self.references.load_version(&version.root, wanted, span, &mut self.locations)?;
                    }
                }
                if let Some(Body::File(file)) =
                    self.namespace.inodes.get_mut(ino).map(|inode| &mut inode.body)
                {
                    file.versions.want(wanted, |_| ());
                }
            }
        }
        for base in self.namespace.bases.values() {
            self.references.load_kept(&base.root, base.wanted, &mut self.locations)?;
        }
        self.references.loaded(&mut self.locations)
    }

    /// For what the writer of a version should wait, if for anything. `base_at`: position of the version on which its session
    /// builds.
    pub(super) fn hold(
        &self,
        milestone: Milestone,
        base_at: Option<TimeNs>,
        policy: &Policy,
    ) -> Option<Hold> {
        let hold = match policy.exposure {
            Exposure::Unbounded => return None,
            Exposure::Previous if milestone.in_set => Hold { from: TimeNs::MIN, before: milestone.position },
            Exposure::Previous => base_at.map(|at| Hold { from: at, before: at.saturating_add(1) })?,
            Exposure::Milliseconds(_) | Exposure::Bytes(_) => Hold { from: TimeNs::MIN, before: TimeNs::MAX },
        };
        self.is_held(milestone.folder, &hold, policy).then_some(hold)
    }

    /// For what the writer should wait whose session is about to commit, if for anything.
    pub(super) fn hold_closing(&self, session: SessionId, ino: Ino) -> Result<Option<Hold>, Failure> {
        let policy = self.namespace.policy(ino)?;
        let (folder, timestep) = self.namespace.timestep(ino, self.namespace.file(ino)?.next_version);
        let begun = timestep.and_then(|timestep| self.begun.get(folder, timestep));
        let position = begun.unwrap_or(self.namespace.position);
        let milestone = Milestone { folder, position, in_set: timestep.is_some() };
        Ok(self.hold(milestone, self.sessions.get(session)?.base_at, &policy))
    }

    /// For what a rename should wait, if for anything: the newest version of the file may belong to a timestep now.
    pub(super) fn hold_renamed(&mut self, ino: Ino) -> Option<Hold> {
        let (version, at) = {
            let (number, version) = self.namespace.file(ino).ok()?.newest()?;
            (number, version.position)
        };
        let policy = self.namespace.policy(ino).ok()?;
        let milestone = self.milestone(ino, version, at, &policy);
        if milestone.in_set { self.hold(milestone, None, &policy) } else { None }
    }

    fn is_held(&self, folder: Ino, hold: &Hold, policy: &Policy) -> bool {
        let exposure = self.locations.exposure();
        let exceeds = match policy.exposure {
            Exposure::Unbounded => false,
            Exposure::Previous => exposure.is_movable(folder, &(hold.from..hold.before)),
            Exposure::Bytes(bytes) => exposure.movable_of(folder).bytes > bytes,
            Exposure::Milliseconds(ms) => exposure.movable_since(folder).is_some_and(|since| {
                let late = since.saturating_add_unsigned(ms.saturating_mul(1_000_000));
                late <= self.namespace.clock
            }),
        };
        // What is in memory alone waits for its first disk; whether that can take it, `movable` says.
        let hosts = if policy.at_commit().in_memory.is_some() { 1 } else { policy.redundancy.hosts() };
        exceeds && policy.may_lack() && !self.registry.is_pending() && self.has_room(hosts)
    }

    /// Whether so many benefactors are on-line and have room.
    fn has_room(&self, wanted: u8) -> bool {
        let hosts = self.registry.hosts();
        let with_room =
            hosts.iter().filter(|host| host.online && host.free_bytes >= CHUNK_BYTES_DEFAULT as u64);
        with_room.count() >= usize::from(wanted)
    }

    /// Answers a writer that waits: done, or how far it has come.
    pub(super) fn await_copies(&self, ino: Ino, hold: &Hold) -> Answer {
        let policy = self.namespace.policy(ino)?;
        let folder = self.namespace.named_below(self.namespace.inode(ino)?.parent)?.folder;
        if !self.is_held(folder, hold, &policy) {
            return Ok(ManagerReply::Done);
        }
        let exposure = self.locations.exposure();
        let progress = match policy.exposure {
            Exposure::Previous => exposure.movable_in(folder, &(hold.from..hold.before)),
            // Others may add to what lacks copies meanwhile.
            _ => self.copies.done,
        };
        Ok(ManagerReply::Waiting { progress })
    }

    // --- telling

    /// Says of each set how exposed it is, as far as that is known.
    pub(super) fn tell_exposure(&self, sets: &mut [CheckpointSet]) {
        if self.is_counting() {
            return;
        }
        let mut known = HashMap::new();
        for set in sets {
            set.exposed = self.exposure_of(&set.members, &mut known);
        }
    }

    fn exposure_of(&self, members: &[SetMember], known: &mut HashMap<Ino, NamedBelow>) -> Option<Exposed> {
        let mut positions = Vec::with_capacity(members.len());
        let mut folder = None;
        for member in members {
            let inode = self.namespace.inode(member.ino).ok()?;
            let below = match known.entry(inode.parent) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => unknown.insert(self.namespace.named_below(inode.parent).ok()?),
            };
            let Body::File(file) = &inode.body else { return None };
            let position = file.versions.get(member.version)?.position;
            let timestep = below.timestep(&inode.name, member.version);
            let begun = timestep.and_then(|timestep| self.begun.get(below.folder, timestep));
            // What got its name after it was committed stands where it was committed.
            let begun = begun.filter(|_| inode.named <= position);
            positions.push(begun.unwrap_or(position));
            folder.get_or_insert(below.folder);
        }
        let Some((first, last)) = positions.iter().min().zip(positions.iter().max()) else {
            return Some(told(Shortage::default()));
        };
        Some(told(self.locations.exposure().exposed(folder?, &(*first..=*last))))
    }

    /// The sets that lack copies, oldest first, and what else does in each folder.
    pub(super) fn exposed_sets(&self) -> Vec<ExposedSet> {
        let mut sets = Vec::new();
        for (folder, total, positions) in self.locations.exposure().by_folder() {
            if folder == SHARED {
                continue;
            }
            let path = self.namespace.path(folder);
            let named = positions.filter_map(|at| Some((at, self.begun.timestep_at(folder, at)?)));
            let of_sets: Vec<ExposedSet> = named
                .take(EXPOSED_SHOWN)
                .map(|(at, timestep)| ExposedSet {
                    folder: path.clone(),
                    timestep: Some(timestep),
                    exposed: told(self.locations.exposure().exposed(folder, &(at..=at))),
                })
                .collect();
            if of_sets.is_empty() {
                let all = self.locations.exposure().exposed(folder, &(TimeNs::MIN..=TimeNs::MAX));
                debug_assert!(all.count.chunks >= total.chunks, "what is shared counts, too");
                sets.push(ExposedSet { folder: path, timestep: None, exposed: told(all) });
            }
            sets.extend(of_sets);
        }
        sets.sort_by_key(|set| set.exposed.since);
        sets.truncate(EXPOSED_SHOWN);
        sets
    }

    /// Whether it isn't known yet what lacks copies.
    pub(super) fn is_counting(&self) -> bool {
        self.registry.is_pending() || self.is_walking()
    }
}

fn told(shortage: Shortage) -> Exposed {
    let Shortage { count: Count { chunks, bytes, in_memory }, since } = shortage;
    Exposed { chunks, bytes, since, in_memory }
}
