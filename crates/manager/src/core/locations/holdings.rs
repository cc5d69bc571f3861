//! Chunks that no version refers to any more, and that a state names to which somebody may return.
//!
//! | state to return to | it names a chunk if |
//! |---|---|
//! | a registered backup | versions named the chunk before the backup began, and at least one did when it began |
//! | the oldest commit that a recovery from keepers may bring back | the last version went after that commit |
//!
//! Backups are numbered in the order in which they began. A chunk remembers how many there were when a version first named it, and a
//! held chunk how many there were when its last version went: the backups in between hold it. What is written and removed between
//! two backups isn't held. A held chunk goes on wanting the distance to loss that its last version wanted, so it is copied, moved and
//! trimmed like all others once a backup holds it. Keepers hold for seconds: meanwhile nothing is copied or moved. Each held chunk stands in one of two lists, by what it waits for, so letting go costs as much as what goes.
//!
//! | a chunk | event | it is |
//! |---|---|---|
//! | referred to | its last version goes, a state names it | held |
//! | referred to | its last version goes, no state names it | unnamed |
//! | unnamed, or not in the index | an inventory brings up a block of it, states are there of before | held, with the distance that inventories show |
//! | held | a version refers to it | referred to |
//! | held | the last state that names it is given up | unnamed |
//! | held | its last block is gone | not in the index |

use std::collections::{BTreeSet, HashMap};

use super::{Locations, Registry, Slot};

/// How far a held chunk of unknown past is wanted from loss before its blocks are counted.
const UNCOUNTED: u8 = 1;

/// Why a chunk is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holding {
    /// Backups that had begun when a version first named it.
    born: u32,
    /// Backups that had begun when its last version went.
    freed: u32,
    /// The last durable commit when its last version went: that commit's state may name it.
    commit: u64,
    /// The distance to loss that it is wanted at.
    wanted: u8,
    /// The manager wasn't there when its last version went, so nobody knows what that wanted.
    is_unknown: bool,
    waits_for: State,
}

/// What a held chunk waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Keepers have later commits.
    Keepers,
    /// This backup is given up.
    Backup(u32),
}

/// Chunks and the bytes of their blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HeldSum {
    /// How many.
    pub chunks: u64,
    /// Bytes of all their blocks.
    pub bytes: u64,
}

/// The states to return to, and the chunks that they hold.
#[derive(Debug, Default)]
pub struct Holdings {
    chunks: HashMap<Slot, Holding>,
    /// Chunks that wait for keepers, by the commit that these must go beyond.
    by_commit: BTreeSet<(u64, Slot)>,
    /// Chunks that wait for a backup, by the newest that names them.
    by_backup: BTreeSet<(u32, Slot)>,
    /// Sums of the chunks by the backups that had begun when they were first named, and when their last version went.
    sums: HashMap<(u32, u32), HeldSum>,
    /// Backups that are registered.
    registered: BTreeSet<u32>,
    /// Backups that were given up, and may hold chunks still.
    given_up: BTreeSet<u32>,
    /// Backups that have begun.
    begun: u32,
    /// The last durable commit.
    commit: u64,
    /// The oldest commit that a recovery from keepers may bring back; `None`: there are no keepers.
    kept: Option<u64>,
    /// Backups that may name a chunk of unknown past: those that had begun when the last version of one went of which no block was known.
    unknown_freed: u32,
    /// The last commit whose state may name a chunk of unknown past: as with backups.
    unknown_commit: u64,
}

impl Holdings {
    /// The store was read: its last commit is `commit`, and the backups that are registered in it are of these commits, in order.
    pub fn begin(&mut self, commit: u64, backups: impl Iterator<Item = u64>) {
        // What nothing refers to now, nothing referred to in the state that was read.
        (self.commit, self.unknown_commit) = (commit, commit.saturating_sub(1));
        for of in backups {
            self.register();
            self.unknown_freed = if of < commit { self.begun } else { self.unknown_freed };
        }
    }

    /// A backup begins; its number.
    pub fn register(&mut self) -> u32 {
        self.begun += 1;
        self.registered.insert(self.begun);
        self.begun
    }

    /// A backup is given up.
    pub fn give_up(&mut self, backup: u32) {
        if self.registered.remove(&backup) {
            self.given_up.insert(backup);
        }
    }

    /// This commit is durable.
    pub fn committed(&mut self, commit: u64) {
        self.commit = commit;
    }

    /// A recovery from keepers brings back this commit or a later one; `None`: there are no keepers.
    pub fn keepers_have(&mut self, kept: Option<u64>) {
        self.kept = kept;
    }

    /// Backups that have begun.
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// What a backup holds.
    pub fn sum_of(&self, backup: u32) -> HeldSum {
        self.sum(|born, freed| born < backup && backup <= freed)
    }

    /// What backups hold, all together.
    pub fn sum_of_backups(&self) -> HeldSum {
        self.sum(|born, freed| self.newest(born, freed).is_some())
    }

    fn sum(&self, counts: impl Fn(u32, u32) -> bool) -> HeldSum {
        let counted = self.sums.iter().filter(|((born, freed), _)| counts(*born, *freed));
        counted.fold(HeldSum::default(), |all, (_, sum)| HeldSum {
            chunks: all.chunks + sum.chunks,
            bytes: all.bytes + sum.bytes,
        })
    }

    /// The commit that keepers must go beyond before the next of the chunks goes that wait for them.
    pub fn waits_for_keepers(&self) -> Option<u64> {
        self.by_commit.first().map(|(commit, _)| *commit).filter(|commit| self.may_return_to(*commit))
    }

    /// Whether a backup is registered.
    pub fn is_any_registered(&self) -> bool {
        !self.registered.is_empty()
    }

    /// Whether a recovery from keepers may bring back the state of this commit or an earlier one.
    fn may_return_to(&self, commit: u64) -> bool {
        self.kept.is_some_and(|kept| kept <= commit)
    }

    /// The newest registered backup that began behind `born` others and not behind more than `freed`.
    fn newest(&self, born: u32, freed: u32) -> Option<u32> {
        self.registered.range(..=freed).next_back().copied().filter(|backup| *backup > born)
    }

    /// What a chunk has to wait for.
    /// Whether a chunk waits for keepers that lag: no blocks are made of it meanwhile, and none are moved.
    pub fn is_for_keepers(&self, slot: Slot) -> bool {
        self.chunks.get(&slot).is_some_and(|holding| holding.waits_for == State::Keepers)
    }

    fn state(&self, born: u32, freed: u32, commit: u64) -> Option<State> {
        if self.may_return_to(commit) {
            return Some(State::Keepers);
        }
        self.newest(born, freed).map(State::Backup)
    }

    fn insert(&mut self, slot: Slot, holding: Holding, bytes: u64) {
        match holding.waits_for {
            State::Keepers => self.by_commit.insert((holding.commit, slot)),
            State::Backup(backup) => self.by_backup.insert((backup, slot)),
        };
        let sum = self.sums.entry((holding.born, holding.freed)).or_default();
        (sum.chunks, sum.bytes) = (sum.chunks + 1, sum.bytes + bytes);
        let before = self.chunks.insert(slot, holding);
        assert_eq!(before, None, "a chunk is held once");
    }

    fn remove(&mut self, slot: Slot, bytes: u64) -> Holding {
        let Some(holding) = self.chunks.remove(&slot) else { unreachable!("{slot:?} is not held") };
        let was_listed = match holding.waits_for {
            State::Keepers => self.by_commit.remove(&(holding.commit, slot)),
            State::Backup(backup) => self.by_backup.remove(&(backup, slot)),
        };
        assert!(was_listed, "a held chunk waits for something");
        let key = (holding.born, holding.freed);
        let Some(sum) = self.sums.get_mut(&key) else { unreachable!("a held chunk is counted") };
        (sum.chunks, sum.bytes) = (sum.chunks - 1, sum.bytes - bytes);
        if *sum == HeldSum::default() {
            self.sums.remove(&key);
        }
        holding
    }

    /// The blocks of a held chunk took `before` bytes and take `now`.
    pub(super) fn resize(&mut self, slot: Slot, before: u64, now: u64) {
        let key = self.chunks.get(&slot).map(|holding| (holding.born, holding.freed));
        let Some(sum) = key.and_then(|key| self.sums.get_mut(&key)) else {
            unreachable!("a held chunk is counted")
        };
        sum.bytes = sum.bytes - before + now;
    }

    /// A chunk that waits for something that is over.
    fn next_over(&self) -> Option<Slot> {
        let waited = self.by_commit.first().filter(|(commit, _)| !self.may_return_to(*commit));
        let of = |backup: &u32| {
            self.by_backup.range((*backup, Slot(0))..=(*backup, Slot(u32::MAX))).next().map(|(_, slot)| *slot)
        };
        waited.map(|(_, slot)| *slot).or_else(|| self.given_up.iter().find_map(of))
    }
}

impl Locations {
    /// The last of those that refer to a chunk goes, and wanted this distance: holds the chunk if a state names it.
    pub(super) fn hold(&mut self, slot: Slot, wanted: u8) -> bool {
        let (chunk, held) = (self.at(slot), &self.holdings);
        let (born, freed, commit) = (chunk.born, held.begun, held.commit);
        if chunk.holders.is_empty() {
            // If an inventory brings it up, nobody knows any more that it was named until now.
            (self.holdings.unknown_freed, self.holdings.unknown_commit) = (freed, commit);
            return false;
        }
        let Some(waits_for) = held.state(born, freed, commit) else { return false };
        self.hold_as(slot, Holding { born, freed, commit, wanted, is_unknown: false, waits_for });
        true
    }

    /// An inventory brings up a block that the index lacked: a state of before may name the chunk, whatever is known of it.
    pub(super) fn hold_unknown(&mut self, slot: Slot) {
        let chunk = self.at_mut(slot);
        chunk.born = 0;
        if !chunk.wants.is_empty() {
            return;
        }
        let (born, freed, commit) = (0, self.holdings.unknown_freed, self.holdings.unknown_commit);
        let Some(waits_for) = self.holdings.state(born, freed, commit) else { return };
        self.at_mut(slot).wants.add(UNCOUNTED);
        let wanted = UNCOUNTED;
        self.hold_as(slot, Holding { born, freed, commit, wanted, is_unknown: true, waits_for });
    }

    fn hold_as(&mut self, slot: Slot, holding: Holding) {
        let bytes = self.sizes(slot).map_or(0, |(_, stored)| stored);
        self.holdings.insert(slot, holding, bytes);
        self.at_mut(slot).is_held = true;
    }

    /// A chunk isn't held any more; the distance that it wanted for that.
    pub(super) fn unhold(&mut self, slot: Slot) -> u8 {
        let bytes = self.sizes(slot).map_or(0, |(_, stored)| stored);
        self.at_mut(slot).is_held = false;
        self.holdings.remove(slot, bytes).wanted
    }

    /// The last block of a held chunk is gone. If one is brought up again, its past is unknown.
    pub(super) fn unhold_gone(&mut self, slot: Slot) {
        self.at_mut(slot).is_held = false;
        let Holding { freed, commit, wanted, .. } = self.holdings.remove(slot, 0);
        let held = &mut self.holdings;
        held.unknown_freed = held.unknown_freed.max(freed);
        held.unknown_commit = held.unknown_commit.max(commit);
        self.at_mut(slot).wants.remove(wanted);
    }

    /// A held chunk of unknown past is as far from loss as this: it is to stay so.
    pub(super) fn want_as_found(&mut self, slot: Slot, distance: u8) {
        let Some(holding) = self.holdings.chunks.get_mut(&slot) else { unreachable!("{slot:?} is not held") };
        if holding.is_unknown && holding.wanted < distance {
            let before = std::mem::replace(&mut holding.wanted, distance);
            self.at_mut(slot).wants.change(before, distance);
        }
    }

    /// Lets go of held chunks that no state names any more, at most `steps`; how many were looked at.
    pub fn release(&mut self, steps: usize, registry: &Registry) -> usize {
        for looked_at in 0..steps {
            let Some(slot) = self.holdings.next_over() else {
                // They hold nothing any more.
                self.holdings.given_up.clear();
                return looked_at;
            };
            let bytes = self.sizes(slot).map_or(0, |(_, stored)| stored);
            let holding = self.holdings.remove(slot, bytes);
            let Holding { born, freed, commit, wanted, .. } = holding;
            match self.holdings.state(born, freed, commit) {
                Some(waits_for) => {
                    self.holdings.insert(slot, Holding { waits_for, ..holding }, bytes);
                    self.count(slot, registry);
                }
                None => {
                    self.at_mut(slot).is_held = false;
                    self.at_mut(slot).wants.remove(wanted);
                    self.count(slot, registry);
                    self.place(slot);
                }
            }
        }
        steps
    }
}
