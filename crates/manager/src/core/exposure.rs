//! How exposed what was committed is: which versions have chunks with fewer copies than their folder asks for.
//!
//! A chunk remembers its [`Span`]: the folder of the versions that refer to it, and when the oldest and the newest of them
//! were committed. All members of a checkpoint set count as committed when the set was begun, so that a set is one
//! position in time, and sets have an order. A chunk that lacks copies is counted at both ends of its span. The chunks of
//! a set are then those whose span began by then and has not ended before: two sums, without a look at any chunk. Spans
//! only grow while a chunk is referred to, so a set may seem more exposed than it is, and never less.
//!
//! A chunk is *movable* if a copy of it is being made or can be made now: a holder is on-line, and so is a benefactor with
//! room for the copy. Writers wait for movable chunks only, so nobody waits for what can't happen.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, Range, RangeInclusive};

use stdchk_model::Ino;
use stdchk_model::message::manager::TimeNs;

/// Stands for the folder of chunks to which versions of several folders refer: they count in each folder. No inode has
/// this number.
pub const SHARED: Ino = Ino(0);

/// Which versions refer to a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Their folder, or [`SHARED`].
    pub folder: Ino,
    /// Position of the oldest.
    pub first: TimeNs,
    /// Position of the newest.
    pub last: TimeNs,
}

impl Span {
    /// The span of one version.
    pub fn at(folder: Ino, position: TimeNs) -> Self {
        Self { folder, first: position, last: position }
    }

    /// The smallest span that covers both.
    pub fn join(self, other: Self) -> Self {
        let folder = if self.folder == other.folder { self.folder } else { SHARED };
        Self { folder, first: self.first.min(other.first), last: self.last.max(other.last) }
    }
}

/// The span that covers both, if there is one.
pub fn joined(one: Option<Span>, other: Option<Span>) -> Option<Span> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.join(other)),
        (one, other) => one.or(other),
    }
}

/// A chunk that lacks copies, as it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lacking {
    /// Who refers to it.
    pub span: Span,
    /// Its plain length.
    pub bytes: u32,
    /// Whether a copy is being made or can be made now.
    pub movable: bool,
    /// Whether it can be read from memory alone.
    pub in_memory: bool,
}

/// Chunks and their plain bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// How many.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that can be read from memory alone.
    pub in_memory: u64,
}

impl Count {
    fn add(&mut self, lacking: &Lacking) {
        self.chunks += 1;
        self.bytes += u64::from(lacking.bytes);
        self.in_memory += u64::from(lacking.in_memory);
    }

    fn remove(&mut self, lacking: &Lacking) {
        self.chunks -= 1;
        self.bytes -= u64::from(lacking.bytes);
        self.in_memory -= u64::from(lacking.in_memory);
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            chunks: self.chunks + other.chunks,
            bytes: self.bytes + other.bytes,
            in_memory: self.in_memory + other.in_memory,
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            chunks: self.chunks - other.chunks,
            bytes: self.bytes - other.bytes,
            in_memory: self.in_memory - other.in_memory,
        }
    }
}

/// What lacks copies, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shortage {
    /// How much.
    pub count: Count,
    /// Since when, at the latest known time of which it is certain that nothing of it lacked a copy before.
    pub since: Option<TimeNs>,
}

impl Shortage {
    fn plus(self, other: Self) -> Self {
        let since = match (self.since, other.since) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self { count: self.count.plus(other.count), since }
    }
}

/// Chunks whose spans begin at one position.
#[derive(Clone, Copy, Debug)]
struct Group {
    count: Count,
    movable: Count,
    /// When the first of them began to lack a copy.
    since: TimeNs,
}

#[derive(Debug, Default)]
struct Folder {
    /// By the beginning of the spans.
    groups: BTreeMap<TimeNs, Group>,
    /// By the end of the spans.
    ends: BTreeMap<TimeNs, Count>,
    /// Positions with movable chunks.
    movable: BTreeSet<TimeNs>,
    /// When the chunks of a position began to lack copies, and that position.
    movable_since: BTreeSet<(TimeNs, TimeNs)>,
    total: Count,
    total_movable: Count,
}

/// All chunks that lack copies, counted.
#[derive(Debug, Default)]
pub struct Exposure {
    folders: HashMap<Ino, Folder>,
    total: Count,
    total_movable: Count,
    /// Rises whenever a wait may be over.
    changes: u64,
}

impl Exposure {
    /// Counts a chunk that lacks copies since `since`.
    pub fn add(&mut self, lacking: Lacking, since: TimeNs) {
        let Lacking { span, movable, .. } = lacking;
        let folder = self.folders.entry(span.folder).or_default();
        folder.ends.entry(span.last).or_default().add(&lacking);
        folder.total.add(&lacking);
        self.total.add(&lacking);
        let fresh = Group { count: Count::default(), movable: Count::default(), since };
        let group = folder.groups.entry(span.first).or_insert(fresh);
        group.count.add(&lacking);
        if movable {
            group.movable.add(&lacking);
            folder.movable.insert(span.first);
            folder.movable_since.insert((group.since, span.first));
            folder.total_movable.add(&lacking);
            self.total_movable.add(&lacking);
        }
    }

    /// Counts a chunk no longer that was counted so.
    pub fn remove(&mut self, lacking: Lacking) {
        let Lacking { span, movable, .. } = lacking;
        let Some(folder) = self.folders.get_mut(&span.folder) else { return };
        folder.total.remove(&lacking);
        self.total.remove(&lacking);
        if let Some(count) = folder.ends.get_mut(&span.last) {
            count.remove(&lacking);
            if count.chunks == 0 {
                folder.ends.remove(&span.last);
            }
        }
        let Some(group) = folder.groups.get_mut(&span.first) else { return };
        group.count.remove(&lacking);
        if movable {
            self.changes += 1;
            self.total_movable.remove(&lacking);
            folder.total_movable.remove(&lacking);
            group.movable.remove(&lacking);
            if group.movable.chunks == 0 {
                folder.movable.remove(&span.first);
                folder.movable_since.remove(&(group.since, span.first));
            }
        }
        if group.count.chunks == 0 {
            folder.groups.remove(&span.first);
        }
        if folder.total.chunks == 0 {
            self.folders.remove(&span.folder);
        }
    }

    /// All that lacks copies.
    pub fn total(&self) -> Count {
        self.total
    }

    /// All that lacks copies which can't be made now.
    pub fn stuck(&self) -> Count {
        self.total.minus(self.total_movable)
    }

    /// Rises whenever a wait may be over.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn of(&self, folder: Ino) -> impl Iterator<Item = &Folder> {
        let own = (folder != SHARED).then(|| self.folders.get(&folder)).flatten();
        own.into_iter().chain(self.folders.get(&SHARED))
    }

    /// Whether something movable is at a position in `range`.
    pub fn is_movable(&self, folder: Ino, range: &Range<TimeNs>) -> bool {
        range.start < range.end
            && self.of(folder).any(|folder| folder.movable.range(range.clone()).next().is_some())
    }

    /// How many movable chunks are at positions in `range`.
    pub fn movable_in(&self, folder: Ino, range: &Range<TimeNs>) -> u64 {
        if range.start >= range.end {
            return 0;
        }
        let groups = self.of(folder).flat_map(|folder| folder.groups.range(range.clone()));
        groups.map(|(_, group)| group.movable.chunks).sum()
    }

    /// All that is movable in a folder.
    pub fn movable_of(&self, folder: Ino) -> Count {
        self.of(folder).map(|folder| folder.total_movable).fold(Count::default(), Count::plus)
    }

    /// Since when something movable of a folder has lacked a copy.
    pub fn movable_since(&self, folder: Ino) -> Option<TimeNs> {
        self.of(folder).filter_map(|folder| folder.movable_since.first()).map(|(since, _)| *since).min()
    }

    /// What lacks copies of the versions at these positions.
    pub fn exposed(&self, folder: Ino, positions: &RangeInclusive<TimeNs>) -> Shortage {
        self.of(folder).map(|folder| folder.exposed(positions)).fold(Shortage::default(), Shortage::plus)
    }

    /// All that lacks copies in each folder, with the positions at which spans begin, oldest first.
    pub fn by_folder(&self) -> impl Iterator<Item = (Ino, Count, impl Iterator<Item = TimeNs> + '_)> {
        self.folders.iter().map(|(ino, folder)| (*ino, folder.total, folder.groups.keys().copied()))
    }
}

impl Folder {
    fn exposed(&self, positions: &RangeInclusive<TimeNs>) -> Shortage {
        let begun = self.groups.range(..=*positions.end());
        let ended = self.ends.range((Bound::Unbounded, Bound::Excluded(*positions.start())));
        let (mut count, mut since) = (Count::default(), None::<TimeNs>);
        for (_, group) in begun {
            count = count.plus(group.count);
            since = Some(since.map_or(group.since, |since| since.min(group.since)));
        }
        let count = ended.fold(count, |count, (_, ended)| count.minus(*ended));
        let own = self.groups.range(positions.clone());
        let (of_own, own_since) =
            own.fold((Count::default(), None::<TimeNs>), |(count, since), (_, group)| {
                let since = since.map_or(group.since, |since| since.min(group.since));
                (count.plus(group.count), Some(since))
            });
        match count {
            Count { chunks: 0, .. } => Shortage::default(),
            // All of it began with these versions.
            count if count == of_own => Shortage { count, since: own_since },
            count => Shortage { count, since },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: Ino = Ino(2);

    fn lacking(first: TimeNs, last: TimeNs, movable: bool) -> Lacking {
        Lacking { span: Span { folder: APP, first, last }, bytes: 10, movable, in_memory: false }
    }

    #[test]
    fn a_set_is_exposed_by_every_chunk_whose_span_covers_it() {
        let mut exposure = Exposure::default();
        for (first, last) in [(10, 10), (10, 30), (20, 20), (30, 30)] {
            exposure.add(lacking(first, last, true), 100 + first);
        }
        let chunks = |position| exposure.exposed(APP, &(position..=position)).count.chunks;
        assert_eq!([5, 10, 20, 30, 40].map(chunks), [0, 2, 2, 2, 0]);
        assert_eq!(exposure.exposed(APP, &(10..=10)).since, Some(110));
        assert_eq!(
            exposure.exposed(APP, &(30..=30)).since,
            Some(110),
            "what it shares has lacked copies longest"
        );
        assert_eq!(exposure.exposed(Ino(3), &(10..=30)), Shortage::default());
    }

    #[test]
    fn only_what_can_be_copied_now_is_waited_for() {
        let mut exposure = Exposure::default();
        exposure.add(lacking(10, 10, false), 1);
        exposure.add(lacking(20, 20, true), 2);
        assert!(!exposure.is_movable(APP, &(TimeNs::MIN..20)));
        assert!(exposure.is_movable(APP, &(TimeNs::MIN..21)));
        assert_eq!((exposure.stuck().chunks, exposure.movable_since(APP)), (1, Some(2)));
        exposure.remove(lacking(20, 20, true));
        assert_eq!(exposure.changes(), 1);
        assert!(!exposure.is_movable(APP, &(TimeNs::MIN..TimeNs::MAX)));
    }

    #[test]
    fn chunks_of_several_folders_count_in_each() {
        let mut exposure = Exposure::default();
        let span = Span::at(APP, 10).join(Span::at(Ino(3), 20));
        exposure.add(Lacking { span, bytes: 1, movable: true, in_memory: false }, 5);
        assert_eq!(exposure.exposed(APP, &(10..=10)).count.chunks, 1);
        assert_eq!(exposure.exposed(Ino(3), &(20..=20)).count.chunks, 1);
    }

    #[test]
    fn what_is_in_memory_alone_is_counted_beside_the_rest() {
        let mut exposure = Exposure::default();
        exposure.add(Lacking { in_memory: true, ..lacking(10, 20, true) }, 1);
        exposure.add(lacking(10, 10, true), 1);
        let in_memory = |position| exposure.exposed(APP, &(position..=position)).count.in_memory;
        assert_eq!([5, 10, 20, 30].map(in_memory), [0, 1, 1, 0]);
        assert_eq!((exposure.total().chunks, exposure.total().in_memory), (2, 1));
    }

    #[test]
    fn counts_come_back_to_nothing() {
        let mut exposure = Exposure::default();
        let in_memory = Lacking { in_memory: true, ..lacking(2, 2, true) };
        let all = [lacking(1, 5, true), lacking(1, 1, false), lacking(3, 4, true), in_memory];
        all.iter().for_each(|lacking| exposure.add(*lacking, 7));
        all.iter().for_each(|lacking| exposure.remove(*lacking));
        assert_eq!((exposure.total(), exposure.stuck()), (Count::default(), Count::default()));
        assert!(exposure.folders.is_empty());
    }
}
