//! Checkpoint sets: which files of which timestep belong together, and whether one can restart from them (I5).
//!
//! Pure: files with their versions, the folder's patterns and its declared ranks in; sets out. A member is known by its
//! pattern, what its path says for `{name}` and `{ranks}`, and its rank. Members that differ in their rank alone are a
//! group. How many members a group needs, the first of these says:
//!
//! | says | a group is whole with |
//! |---|---|
//! | `{ranks}` in the paths | so many ranks, whatever their numbers |
//! | `ranks=N` of the folder | N ranks, whatever their numbers |
//! | the largest earlier set | the ranks that were there |
//!
//! A set is complete once it has all groups of earlier sets, each group is whole, and all members are committed and their
//! files closed.

use std::collections::{BTreeMap, BTreeSet};

use minicbor::{Decode, Encode};

use crate::exact::to_usize;
use crate::id::Ino;
use crate::message::manager::{CheckpointSet, SetMember, SetState, VersionInfo, VersionState};
use crate::naming::{Naming, Pattern, Reading};
use crate::timestep::Timestep;

/// Runs of ranks, and patterns, that a reason lists before it only counts.
const GROUPS_SHOWN: usize = 8;

/// A file as the rules look at it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileVersions {
    /// Path below the application's folder.
    pub path: String,
    /// The file.
    pub ino: Ino,
    /// Its versions, oldest first; none: it was never committed.
    pub versions: Vec<VersionInfo>,
}

/// What members have in common that differ in their rank alone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Group {
    pattern: usize,
    /// What stands for `{name}`.
    name: String,
    /// How many ranks there are, as the paths say.
    of: Option<u64>,
}

/// A member: its group and rank.
type Key = (Group, Option<u64>);

/// First and last of a run of ranks; `None` for the member of a pattern without ranks.
type Ranks = Option<(u64, u64)>;

/// A file of a timestep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    key: Key,
    /// Path below the application's folder.
    pub path: String,
    /// The file.
    pub ino: Ino,
    /// The version that belongs to the timestep; `None`: never committed.
    pub version: Option<VersionInfo>,
    /// The timestep is that version's number: the file has other ones for others.
    pub is_by_version: bool,
}

/// What earlier timesteps taught.
#[derive(Default)]
struct Learned {
    largest: BTreeSet<Key>,
    groups: BTreeSet<Group>,
}

/// What sets that are gone have taught of the members of later ones.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Taught {
    /// The patterns by which their files were read: for others it says nothing.
    #[n(0)]
    naming: String,
    /// It holds from this timestep on.
    #[n(1)]
    from: Timestep,
    /// The members of the largest set.
    #[n(2)]
    members: Vec<Members>,
}

/// Members of one group.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
struct Members {
    #[n(0)]
    pattern: u64,
    #[n(1)]
    ranks: Ranks,
    #[n(2)]
    name: String,
    #[n(3)]
    of: Option<u64>,
}

/// What is wrong with a set, per pattern and name.
#[derive(Default)]
struct Faults {
    faults: BTreeMap<(usize, String, String), Vec<Ranks>>,
}

/// The sets of a folder, newest timestep first.
///
/// `folder` is its name in messages; `ranks` the number declared, 0 if it must be learned; `taught` what sets that are gone have taught.
pub fn checkpoint_sets(
    folder: &str,
    files: &[FileVersions],
    naming: &Naming,
    ranks: u32,
    taught: Option<&Taught>,
) -> Vec<CheckpointSet> {
    let mut grouped = Grouped::default();
    files.iter().for_each(|file| grouped.add(file, naming));
    grouped.sets(folder, naming, ranks, taught)
}

/// The files of a folder by timestep.
#[derive(Clone, Debug, Default)]
pub struct Grouped {
    steps: BTreeMap<Timestep, Vec<Found>>,
}

impl Grouped {
    /// Adds a file to the timesteps that it belongs to, if any.
    pub fn add(&mut self, file: &FileVersions, naming: &Naming) {
        let Some(reading) = naming.read(&file.path) else { return };
        let Reading { pattern, step, rank, ranks: of, name } = reading;
        let key = (Group { pattern, name, of }, rank);
        match step {
            Some(step) => self.push(step, found(file, key, version_of_choice(file), false)),
            None => file.versions.iter().for_each(|version| {
                self.push(version.version.into(), found(file, key.clone(), Some(version), true));
            }),
        }
    }

    fn push(&mut self, step: Timestep, found: Found) {
        self.steps.entry(step).or_default().push(found);
    }

    /// The sets, newest timestep first, as [`checkpoint_sets`] has them.
    pub fn sets(
        &self,
        folder: &str,
        naming: &Naming,
        ranks: u32,
        taught: Option<&Taught>,
    ) -> Vec<CheckpointSet> {
        let mut taught = taught.filter(|taught| taught.naming == text_of(naming));
        let mut learned = Learned::default();
        let mut sets = Vec::with_capacity(self.steps.len());
        let mut following = self.steps.values().skip(1);
        for (timestep, found) in &self.steps {
            if let Some(taught) = taught.take_if(|taught| taught.from <= *timestep) {
                learned.take_in(taught.keys());
            }
            let next = following.next().map(|found| keys(found));
            let rules = Rules { folder, naming, ranks: u64::from(ranks), learned: &learned };
            let (state, reason) = rules.judge(found, next.as_ref());
            sets.push(set(*timestep, found, state, reason));
            learned.take_in(keys(found));
        }
        sets.reverse();
        sets
    }

    /// The files of a timestep.
    pub fn files(&self, timestep: Timestep) -> &[Found] {
        self.steps.get(&timestep).map_or(&[], Vec::as_slice)
    }

    /// What is to be known before each of these sets begins to go, in ascending order, beside what was known: for the judgement of later ones,
    /// and of what is left of it itself.
    pub fn taught_by(
        &self,
        going: &[Timestep],
        naming: &Naming,
        before: Option<&Taught>,
    ) -> Vec<Option<Taught>> {
        assert!(going.is_sorted(), "the oldest go first");
        let naming = text_of(naming);
        let mut pending = before.filter(|taught| taught.naming == naming);
        let (mut learned, mut known) = (Learned::default(), BTreeSet::new());
        let mut steps = self.steps.iter().peekable();
        let taught = going.iter().map(|timestep| {
            while let Some((step, found)) = steps.next_if(|(step, _)| *step <= timestep) {
                if let Some(taught) = pending.take_if(|taught| taught.from <= *step) {
                    known = taught.keys();
                    learned.take_in(known.clone());
                }
                learned.take_in(keys(found));
            }
            // What is older than all that is gone already teaches nothing about what is newer.
            (pending.is_none() && learned.largest != known).then(|| {
                known.clone_from(&learned.largest);
                Taught { naming: naming.clone(), from: *timestep, members: members(&known) }
            })
        });
        taught.collect()
    }
}

/// Most members of a set: more than anybody has files.
const MEMBERS_MAX: u64 = 1 << 24;

impl Taught {
    /// Whether a set can have these members.
    pub fn is_possible(&self) -> bool {
        let mut counts = self.members.iter().map(|members| match members.ranks {
            None => Some(1),
            Some((from, to)) => to.checked_sub(from)?.checked_add(1),
        });
        let sum = counts.try_fold(0u64, |sum, count| sum.checked_add(count?));
        sum.is_some_and(|sum| sum <= MEMBERS_MAX)
    }

    fn keys(&self) -> BTreeSet<Key> {
        let keys = self.members.iter().flat_map(|members| {
            let (pattern, name) = (to_usize(members.pattern), members.name.clone());
            let group = Group { pattern, name, of: members.of };
            let ranks = members.ranks.map(|(from, to)| from..=to).into_iter().flatten();
            let alone = members.ranks.is_none().then(|| (group.clone(), None));
            ranks.map(move |rank| (group.clone(), Some(rank))).chain(alone)
        });
        keys.collect()
    }
}

fn members(keys: &BTreeSet<Key>) -> Vec<Members> {
    let mut members: Vec<Members> = Vec::new();
    let mut before: Option<&Group> = None;
    for (group, rank) in keys {
        match (members.last_mut(), rank) {
            (Some(Members { ranks: Some((_, to)), .. }), Some(rank))
                if before == Some(group) && to.checked_add(1) == Some(*rank) =>
            {
                *to = *rank;
            }
            _ => members.push(Members {
                pattern: group.pattern as u64,
                ranks: rank.map(|rank| (rank, rank)),
                name: group.name.clone(),
                of: group.of,
            }),
        }
        before = Some(group);
    }
    members
}

fn text_of(naming: &Naming) -> String {
    naming.patterns().iter().map(Pattern::text).collect::<Vec<_>>().join(" ")
}

/// The newest version that its writer finished; else the newest.
fn version_of_choice(file: &FileVersions) -> Option<&VersionInfo> {
    let closed = file.versions.iter().rev().find(|version| version.state == VersionState::Closed);
    closed.or(file.versions.last())
}

fn found(file: &FileVersions, key: Key, version: Option<&VersionInfo>, is_by_version: bool) -> Found {
    Found { key, path: file.path.clone(), ino: file.ino, version: version.cloned(), is_by_version }
}

impl Found {
    fn member(&self) -> Option<SetMember> {
        let version = self.version.as_ref()?;
        Some(SetMember {
            name: self.path.clone(),
            rank: self.key.1,
            ino: self.ino,
            version: version.version,
            bytes: version.size,
            aggregated: version.aggregated,
        })
    }
}

fn keys(found: &[Found]) -> BTreeSet<Key> {
    found.iter().map(|found| found.key.clone()).collect()
}

fn set(timestep: Timestep, found: &[Found], state: SetState, reason: String) -> CheckpointSet {
    let mut members: Vec<SetMember> = found.iter().filter_map(Found::member).collect();
    members.sort_by(|one, other| one.name.cmp(&other.name));
    let committed = found.iter().filter_map(|found| found.version.as_ref());
    let committed_at = committed.map(|version| version.committed_at).max().unwrap_or(0);
    CheckpointSet { timestep, state, reason, members, committed_at, exposed: None, sealed: false }
}

impl Learned {
    fn take_in(&mut self, keys: BTreeSet<Key>) {
        self.groups.extend(keys.iter().map(|(group, _)| group.clone()));
        if keys.len() >= self.largest.len() {
            self.largest = keys;
        }
    }
}

struct Rules<'a> {
    folder: &'a str,
    naming: &'a Naming,
    ranks: u64,
    learned: &'a Learned,
}

impl Rules<'_> {
    fn judge(&self, found: &[Found], next: Option<&BTreeSet<Key>>) -> (SetState, String) {
        let present = keys(found);
        let mut faults = Faults::default();
        found.iter().for_each(|found| faults.add_state(found));
        self.missing(&present, &mut faults);
        if !faults.faults.is_empty() {
            return (SetState::Incomplete, faults.text(self.naming));
        }
        let first = self.learned.largest.is_empty();
        let untold = present.iter().any(|(group, rank)| match rank {
            Some(_) => self.count_of(group).is_none(),
            None => self.ranks == 0 && !group.name.is_empty(),
        });
        let followed = next.is_some_and(|next| next.is_superset(&present));
        if first && untold && !followed {
            return (SetState::Unknown, self.unknown());
        }
        (SetState::Complete, String::new())
    }

    fn unknown(&self) -> String {
        format!(
            "nothing tells how many ranks there are: declare it with `stdchk policy set {} ranks=N`, or wait until \
             the next timestep begins",
            self.folder
        )
    }

    /// How many ranks a group needs, if its paths or the folder say so.
    fn count_of(&self, group: &Group) -> Option<u64> {
        let has_rank = self.naming.patterns().get(group.pattern).is_some_and(Pattern::has_rank);
        group.of.or((self.ranks > 0).then_some(self.ranks)).filter(|_| has_rank)
    }

    fn missing(&self, present: &BTreeSet<Key>, faults: &mut Faults) {
        let groups: BTreeSet<&Group> = present.iter().map(|(group, _)| group).collect();
        for group in
            groups.iter().copied().chain(self.learned.groups.iter().filter(|known| !groups.contains(known)))
        {
            // Files of another number of ranks may stand for those of earlier sets.
            let is_renumbered = group.of.is_some()
                && !groups.contains(group)
                && groups.iter().any(|other| (other.pattern, &other.name) == (group.pattern, &group.name));
            match self.count_of(group) {
                _ if is_renumbered => {}
                Some(count) => self.missing_of_count(group, count, present, faults),
                None if self.ranks > 0 => {
                    if !groups.contains(group) {
                        faults.add_range(group, "missing", None);
                    }
                }
                None => self
                    .learned
                    .largest
                    .range((group.clone(), None)..=(group.clone(), Some(u64::MAX)))
                    .filter(|key| !present.contains(key))
                    .for_each(|key| faults.add(key, "missing")),
            }
        }
    }

    /// What a group lacks to its number of ranks: the ranks, where the others' numbers tell; else how many.
    fn missing_of_count(&self, group: &Group, count: u64, present: &BTreeSet<Key>, faults: &mut Faults) {
        let ranks_in = |keys: &BTreeSet<Key>| -> BTreeSet<u64> {
            let keys = keys.range((group.clone(), None)..=(group.clone(), Some(u64::MAX)));
            keys.filter_map(|(_, rank)| *rank).collect()
        };
        let (there, earlier) = (ranks_in(present), ranks_in(&self.learned.largest));
        let lacking = count.saturating_sub(there.len() as u64);
        if lacking == 0 {
            return;
        }
        let first = match (earlier.first(), earlier.len() as u64 == count) {
            (Some(first), true) => Some(*first),
            _ if there.contains(&0) => Some(0),
            _ if there.contains(&count) => Some(1),
            _ => None,
        };
        let gaps = first.map(|first| gaps(first, count, &there)).unwrap_or_default();
        if gaps.iter().map(|(from, to)| to - from + 1).sum::<u64>() == lacking {
            gaps.into_iter().for_each(|gap| faults.add_range(group, "missing", Some(gap)));
        } else {
            faults.add_range(group, &format!("{lacking} of {count} files missing"), None);
        }
    }
}

/// Runs of numbers among the `count` from `first` on that are not there, however large `count` is.
fn gaps(first: u64, count: u64, there: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let (mut expected, end) = (first, first.saturating_add(count));
    for rank in there.range(first..end) {
        if *rank > expected {
            gaps.push((expected, rank - 1));
        }
        expected = rank + 1;
    }
    if expected < end {
        gaps.push((expected, end - 1));
    }
    gaps
}

impl Faults {
    fn add_state(&mut self, found: &Found) {
        match found.version.as_ref().map(|version| version.state) {
            Some(VersionState::Closed) => {}
            Some(VersionState::Open) => self.add(&found.key, "still open"),
            Some(VersionState::Interrupted) => self.add(&found.key, "interrupted"),
            Some(VersionState::Lost) => self.add(&found.key, "closed early and lost"),
            None => self.add(&found.key, "not committed"),
        }
    }

    fn add(&mut self, (group, rank): &Key, what: &str) {
        self.add_range(group, what, rank.map(|rank| (rank, rank)));
    }

    fn add_range(&mut self, group: &Group, what: &str, range: Ranks) {
        self.faults.entry((group.pattern, group.name.clone(), what.to_owned())).or_default().push(range);
    }

    /// `of restart.{step}.{rank}: ranks 1, 4-7 missing, rank 2 still open`; of `{name}`: `of processor{rank}/{time}/{name} (U): …`.
    fn text(self, naming: &Naming) -> String {
        let mut by_group: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
        for ((pattern, name, what), ranges) in self.faults {
            let ranges = merged(ranges.into_iter().flatten().collect());
            let text = if ranges.is_empty() { what } else { format!("{} {what}", listed(&ranges)) };
            by_group.entry((pattern, name)).or_default().push(text);
        }
        let rest = by_group.len().saturating_sub(GROUPS_SHOWN);
        let texts = by_group.into_iter().take(GROUPS_SHOWN).map(|((pattern, name), texts)| {
            let pattern = naming.patterns().get(pattern).map_or("", |pattern| pattern.text());
            let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
            format!("of {pattern}{name}: {}", texts.join(", "))
        });
        let mut text = texts.collect::<Vec<_>>().join("; ");
        if rest > 0 {
            text += &format!("; and of {rest} more");
        }
        text
    }
}

fn merged(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in ranges {
        match merged.last_mut() {
            Some((_, last)) if from <= last.saturating_add(1) => *last = to.max(*last),
            _ => merged.push((from, to)),
        }
    }
    merged
}

fn listed(ranges: &[(u64, u64)]) -> String {
    let shown = ranges.iter().take(GROUPS_SHOWN).map(|(from, to)| match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if ranges.len() > GROUPS_SHOWN {
        text += &format!(" and {} more groups", ranges.len() - GROUPS_SHOWN);
    }
    let one = ranges.len() == 1 && ranges.iter().all(|(from, to)| from == to);
    if one { format!("rank {text}") } else { format!("ranks {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::manager::TimeNs;

    /// `c` closed, `o` open, `i` interrupted, `l` lost; oldest version first.
    fn file(path: &str, states: &str) -> FileVersions {
        let versions = (1..).zip(states.chars()).map(|(version, state)| {
            let state = match state {
                'c' => VersionState::Closed,
                'o' => VersionState::Open,
                'l' => VersionState::Lost,
                _ => VersionState::Interrupted,
            };
            let committed_at = TimeNs::try_from(version).unwrap();
            VersionInfo {
                version,
                size: 10,
                mtime: 0,
                committed_at,
                state,
                stored_bytes: 10,
                session: Default::default(),
                aggregated: false,
                key: None,
                maker: crate::Maker::LOCAL,
            }
        });
        FileVersions { path: path.to_owned(), ino: Ino(2), versions: versions.collect() }
    }

    /// Sets by timestep, oldest first: state and reason.
    fn judged(naming: &str, ranks: u32, files: &[(&str, &str)]) -> Vec<(Timestep, SetState, String)> {
        let files: Vec<FileVersions> = files.iter().map(|(path, states)| file(path, states)).collect();
        let sets = checkpoint_sets("app", &files, &naming.parse().unwrap(), ranks, None);
        let mut judged: Vec<_> = sets.into_iter().map(|set| (set.timestep, set.state, set.reason)).collect();
        judged.reverse();
        judged
    }

    fn states(naming: &str, ranks: u32, files: &[(&str, &str)]) -> Vec<(u64, SetState)> {
        let number = |step: Timestep| step.name().parse().unwrap();
        judged(naming, ranks, files).into_iter().map(|(step, state, _)| (number(step), state)).collect()
    }

    use SetState::{Complete, Incomplete, Unknown};

    #[test]
    fn a_first_set_is_unknown_until_the_next_timestep_begins_with_the_same_members() {
        let first = [("a.N0.T1", "c"), ("a.N1.T1", "c")];
        assert_eq!(states("", 0, &first), [(1, Unknown)]);
        let reason = &judged("", 0, &first)[0].2;
        assert!(reason.contains("stdchk policy set app ranks=N"), "{reason}");
        let begun = [&first[..], &[("a.N0.T2", "o")]].concat();
        assert_eq!(states("", 0, &begun), [(1, Unknown), (2, Incomplete)]);
        let same = [&first[..], &[("a.N0.T2", "c"), ("a.N1.T2", "o")]].concat();
        assert_eq!(states("", 0, &same), [(1, Complete), (2, Incomplete)]);
    }

    #[test]
    fn members_are_learned_from_the_largest_earlier_set() {
        let files =
            [("a.N0.T1", "c"), ("a.N1.T1", "c"), ("a.N0.T2", "c"), ("a.N1.T2", "c"), ("a.N0.T3", "c")];
        assert_eq!(states("", 0, &files), [(1, Complete), (2, Complete), (3, Incomplete)]);
        assert_eq!(judged("", 0, &files)[2].2, "of *.N{rank}.T{step}: rank 1 missing");
    }

    #[test]
    fn declared_ranks_decide_from_the_first_set_on() {
        let files = [("a.N0.T1", "c"), ("a.N2.T1", "c")];
        assert_eq!(states("", 3, &files), [(1, Incomplete)]);
        assert_eq!(judged("", 3, &files)[0].2, "of *.N{rank}.T{step}: rank 1 missing");
        assert_eq!(states("", 3, &[&files[..], &[("a.N1.T1", "c")]].concat()), [(1, Complete)]);
        let most = judged("", u32::MAX, &files);
        assert_eq!(most[0].2, "of *.N{rank}.T{step}: ranks 1, 3-4294967294 missing");
    }

    #[test]
    fn so_many_ranks_are_a_set_whatever_their_numbers() {
        let naming = "r.{step}.tile{rank}.nc";
        let named = |step: u32, tiles: &[u64]| -> Vec<String> {
            tiles.iter().map(|tile| format!("r.{step}.tile{tile}.nc")).collect()
        };
        let judged_with = |ranks, tiles: &[u64], more: &[u64]| {
            let names = [named(1, tiles), named(2, more)].concat();
            let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "c")).collect();
            judged(naming, ranks, &files)
                .into_iter()
                .map(|(_, state, reason)| (state, reason))
                .collect::<Vec<_>>()
        };
        let whole = (Complete, String::new());
        let lacks = |what: &str| (Incomplete, format!("of {naming}: {what}"));
        assert_eq!(judged_with(3, &[1, 2, 3], &[2, 5, 9]), [whole.clone(), whole.clone()]);
        assert_eq!(judged_with(3, &[1, 2, 3], &[1, 3]), [whole.clone(), lacks("rank 2 missing")]);
        assert_eq!(judged_with(3, &[1, 2], &[]), [lacks("1 of 3 files missing")]);
        assert_eq!(judged_with(3, &[2, 3], &[]), [lacks("rank 1 missing")], "3 of them begin at 1");
        assert_eq!(judged_with(6, &[7], &[]), [lacks("5 of 6 files missing")]);
        assert_eq!(judged_with(u32::MAX, &[u64::MAX], &[0])[1], lacks("ranks 1-4294967294 missing"));
    }

    #[test]
    fn names_that_say_how_many_ranks_there_are_decide_alone() {
        let naming = "{step}/{name}-{rank}-of-{ranks} {step}/done";
        let files = ["1/model-00001-of-00002", "1/model-00002-of-00002"].map(|name| (name, "c"));
        assert_eq!(states(naming, 0, &files), [(1, Complete)]);
        assert_eq!(states(naming, 5, &files), [(1, Complete)], "they know better than the folder");
        assert_eq!(
            judged(naming, 0, &files[1..])[0].2,
            "of {step}/{name}-{rank}-of-{ranks} (model): rank 1 missing"
        );
        // A job that goes on with another number of ranks is measured by that; one that leaves the file out is not whole.
        let three = ["2/model-1-of-3", "2/model-2-of-3", "2/model-3-of-3"].map(|name| (name, "c"));
        assert_eq!(states(naming, 0, &[&files[..], &three].concat()), [(1, Complete), (2, Complete)]);
        assert_eq!(states(naming, 0, &[&files[..], &three[..2]].concat()), [(1, Complete), (2, Incomplete)]);
        assert_eq!(
            states(naming, 0, &[&files[..], &[("2/done", "c")]].concat()),
            [(1, Complete), (2, Incomplete)]
        );
        // Two numbers in one timestep: both must be whole.
        let mixed = [&files[..], &[("1/model-1-of-3", "c")]].concat();
        assert_eq!(states(naming, 0, &mixed), [(1, Incomplete)]);
    }

    #[test]
    fn files_that_a_name_tells_apart_are_needed_of_each_rank() {
        let naming = "p{rank}/{time}/{name}";
        let first = ["p0/0.5/U", "p1/0.5/U", "p0/0.5/p", "p1/0.5/p"].map(|name| (name, "c"));
        assert_eq!(judged(naming, 2, &first)[0].1, Complete);
        assert_eq!(judged(naming, 2, &first[..3])[0].2, "of p{rank}/{time}/{name} (p): rank 1 missing");
        let begun = [&first[..], &[("p0/0.75/U", "c"), ("p1/0.75/U", "c")]].concat();
        let second = &judged(naming, 2, &begun)[1];
        assert_eq!(
            (second.0.name(), second.2.as_str()),
            ("0.75", "of p{rank}/{time}/{name} (p): ranks 0-1 missing")
        );
        // Without a number of ranks, nothing tells whether a first set is whole.
        assert_eq!(judged(naming, 0, &first)[0].1, Unknown);
        assert_eq!(judged("{time}/{name}", 0, &[("0.5/U", "c")])[0].1, Unknown);
        let two = [("0.5/U", "c"), ("0.5/p", "c"), ("0.75/p", "c"), ("0.75/U", "c")];
        assert_eq!(judged("{time}/{name}", 0, &two)[0].1, Complete);
    }

    #[test]
    fn every_pattern_with_ranks_needs_all_of_them_and_others_their_one() {
        let naming = "mesh.{step}.{rank} field.{step}.{rank} head.{step}";
        let first =
            [("mesh.1.0", "c"), ("mesh.1.1", "c"), ("field.1.0", "c"), ("field.1.1", "c"), ("head.1", "c")];
        assert_eq!(states(naming, 2, &first), [(1, Complete)]);
        let second = [&first[..], &[("mesh.2.0", "c"), ("mesh.2.1", "c")]].concat();
        let reason = &judged(naming, 2, &second)[1].2;
        assert_eq!(reason, "of field.{step}.{rank}: ranks 0-1 missing; of head.{step}: missing");
    }

    #[test]
    fn a_single_file_without_ranks_is_a_set_of_its_own() {
        let files = [("restart.100", "c"), ("restart.200", "o"), ("restart.300", "i")];
        let expected = [(100, Complete), (200, Incomplete), (300, Incomplete)];
        assert_eq!(states("restart.{step}", 0, &files), expected);
        let reasons: Vec<String> =
            judged("restart.{step}", 0, &files).into_iter().map(|(_, _, reason)| reason).collect();
        let expected = ["", "of restart.{step}: still open", "of restart.{step}: interrupted"];
        assert_eq!(reasons, expected);
    }

    #[test]
    fn an_older_finished_version_stands_in_for_a_torn_one() {
        let naming: Naming = "restart.{step}".parse().unwrap();
        let sets = checkpoint_sets("app", &[file("restart.1", "cci")], &naming, 0, None);
        assert_eq!((sets[0].state, sets[0].members[0].version, sets[0].committed_at), (Complete, 2, 2));
        assert_eq!(states("restart.{step}", 0, &[("restart.1", "")]), [(1, Incomplete)]);
    }

    #[test]
    fn versions_are_the_timesteps_of_a_name_that_is_written_again_and_again() {
        let files = [("state.0", "ccc"), ("state.1", "cco")];
        assert_eq!(states("state.{rank}", 0, &files), [(1, Complete), (2, Complete), (3, Incomplete)]);
        assert_eq!(judged("state.{rank}", 0, &files)[2].2, "of state.{rank}: rank 1 still open");
    }

    #[test]
    fn names_that_fit_no_pattern_take_no_part() {
        assert!(judged("", 0, &[("log.txt", "c"), ("a.N0.T1.tmp", "o")]).is_empty());
    }

    #[test]
    fn a_set_lists_its_members_by_name() {
        let files = [file("a.N1.T5", "c"), file("a.N0.T5", "cc"), file("a.N2.T5", "")];
        let sets = checkpoint_sets("app", &files, &"".parse().unwrap(), 3, None);
        let names: Vec<&str> = sets[0].members.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["a.N0.T5", "a.N1.T5"]);
        assert_eq!(sets[0].reason, "of *.N{rank}.T{step}: rank 2 not committed");
    }

    #[test]
    fn what_sets_taught_holds_when_they_are_gone() {
        let names = |steps: &[u64], ranks: u64| -> Vec<FileVersions> {
            let name = |step: &u64, rank| file(&format!("a.N{rank}.T{step}"), "c");
            steps.iter().flat_map(|step| (0..ranks).map(move |rank| name(step, rank))).collect()
        };
        let naming: Naming = "".parse().unwrap();
        let mut all = Grouped::default();
        names(&[1, 2], 4).iter().for_each(|file| all.add(file, &naming));
        let taught = all.taught_by(&[1, 2].map(Timestep::from), &naming, None);
        assert_eq!(
            taught.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, false],
            "2 teaches nothing new"
        );
        let taught = taught[0].clone().unwrap();
        let set =
            |step, ranks, taught| checkpoint_sets("app", &names(&[step], ranks), &naming, 0, taught)[0].state;
        assert_eq!(set(3, 4, None), Unknown);
        assert_eq!(set(3, 4, Some(&taught)), Complete);
        assert_eq!(set(3, 3, Some(&taught)), Incomplete);
        // Nor is what is left of a set that goes taken for a whole one.
        let half = [names(&[1], 3), names(&[2], 4)].concat();
        let states = |taught| {
            let sets = checkpoint_sets("app", &half, &naming, 0, taught);
            sets.iter().map(|set| set.state).collect::<Vec<_>>()
        };
        assert_eq!((states(None), states(Some(&taught))), (vec![Complete; 2], vec![Complete, Incomplete]));
        // It holds until there is something new.
        let mut more = Grouped::default();
        [names(&[3], 4), names(&[5], 6)].concat().iter().for_each(|file| more.add(file, &naming));
        let again = more.taught_by(&[3, 5].map(Timestep::from), &naming, Some(&taught));
        assert_eq!(again.iter().flatten().map(|taught| taught.from).collect::<Vec<_>>(), [Timestep::from(5)]);
        // What stayed from before teaches nothing of what came later.
        assert_eq!(all.taught_by(&[Timestep::from(1)], &naming, again[1].as_ref()), [None]);
        assert_eq!(taught.members.len(), 1, "however many ranks there are");
        let with = |ranks| Taught {
            members: vec![Members { pattern: 0, ranks, name: String::new(), of: None }],
            ..taught.clone()
        };
        assert!(taught.is_possible() && with(None).is_possible());
        assert!(
            ![(0, u64::MAX), (5, 4), (0, 1 << 30)].into_iter().any(|ranks| with(Some(ranks)).is_possible())
        );
        // Other patterns say nothing of these.
        let other = all.taught_by(&[Timestep::from(1)], &"a.N{rank}.T{step}".parse().unwrap(), None);
        assert_eq!(set(3, 4, other[0].as_ref()), Unknown);
        let naming: Naming = "restart.{step}".parse().unwrap();
        let mut all = Grouped::default();
        all.add(&file("restart.7", "c"), &naming);
        assert_eq!(
            all.taught_by(&[Timestep::from(7)], &naming, None)[0].as_ref().unwrap().keys(),
            BTreeSet::from([(Group { pattern: 0, name: String::new(), of: None }, None)])
        );
    }
}
