//! What follows from an event for many chunks, done in steps between requests.
//!
//! A benefactor that is lost or comes back, an inventory, a policy that changes: each concerns all chunks of a benefactor or of a
//! folder. What must hold at once holds at once, by state and number (`Holder::is_known`, `Registry::counts`): commits, readers, repair and
//! collection look at these. The rest (what lacks copies, queues, sums) follows by walks, a thousand chunks at a time.

use std::collections::{HashSet, VecDeque};

use stdchk_model::message::manager::Change;
use stdchk_model::{BenefactorId, Ino};

use super::inode::Body;
use super::locations::Key;
use super::relief::Look;
use super::{Core, Now};

/// Something to be gone through, and how far that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Walk {
    /// All chunks, after all benefactors have reported.
    All(usize),
    /// What a benefactor has, or is known to have no longer.
    Benefactor(BenefactorId, Option<usize>),
    /// What a benefactor has, as far as its owner needs the space.
    Owed(Look),
    /// All chunks that are at risk: others can make copies of them.
    AtRisk(Option<Key>),
    /// Versions of this file, or below this folder, may be wanted further from loss than before, or less far; and so many of the newest of
    /// each file are in another folder than before.
    Grade(Ino, usize),
}

impl Walk {
    fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Benefactor(one, _), Self::Benefactor(other, _)) => one == other,
            (Self::Owed(one), Self::Owed(other)) => one.id == other.id,
            (Self::Grade(one, _), Self::Grade(other, _)) => one == other,
            (Self::All(_), Self::All(_)) | (Self::AtRisk(_), Self::AtRisk(_)) => true,
            _ => false,
        }
    }

    /// This one, which does the work of another one like it, too.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Grade(ino, newest), Self::Grade(_, before)) => Self::Grade(ino, newest.max(before)),
            (walk, _) => walk,
        }
    }

    /// Whether a part of it was done.
    fn is_begun(self) -> bool {
        match self {
            Self::All(from) => from > 0,
            Self::Benefactor(_, from) => from.is_some(),
            Self::AtRisk(after) => after.is_some(),
            // Whoever owes space is looked at as it is by now.
            Self::Owed(_) | Self::Grade(..) => false,
        }
    }
}

/// Kinds of work beside requests.
const KINDS: u8 = 5;

/// Walks that have not come to their end.
#[derive(Debug, Default)]
pub(super) struct Walks {
    queue: VecDeque<Walk>,
    /// Files with several names at whose versions the present walks have looked: they come by another name each time.
    graded: HashSet<Ino>,
    /// The kind of work that is next: all take turns, so that none of them is held up by another that always has something to do.
    turn: u8,
}

impl Core {
    /// Has something gone through. A walk that is under way goes on to its end, and another one follows: if it began anew each time, what
    /// happens again and again would let none come to an end.
    pub(super) fn walk(&mut self, walk: Walk) {
        if matches!(walk, Walk::Grade(..)) {
            self.walks.graded.clear();
        }
        let mut waiting = self.walks.queue.iter_mut();
        match waiting.find(|other| !other.is_begun() && walk.is_like(**other)) {
            Some(same) => *same = walk.and(*same),
            None => self.walks.queue.push_back(walk),
        }
    }

    /// How many of the newest versions of what a change moves are to be counted where it will be: not those of a file whose place it takes,
    /// unless they are still to be counted there themselves.
    pub(super) fn versions_to_place(&self, change: &Change) -> usize {
        let Change::Rename { parent, name, new_parent, new_name, .. } = change else { return usize::MAX };
        let find = |parent: &Ino, name: &str| self.namespace.find(*parent, name).ok().flatten();
        let is_waiting = |ino: Ino| {
            self.walks.queue.iter().any(|walk| matches!(walk, Walk::Grade(waiting, _) if *waiting == ino))
        };
        let moved = find(parent, name).and_then(|ino| self.namespace.file(ino).ok());
        match moved.filter(|_| !find(new_parent, new_name).is_some_and(is_waiting)) {
            // One more may stand for a file that was never written.
            Some(file) => file.versions.len() + 1,
            None => usize::MAX,
        }
    }

    /// Does a part of what is due, in a few milliseconds. Tells whether there is more to do at once.
    pub fn work(&mut self, now: Now) -> bool {
        self.set_clock(now);
        (0..KINDS).any(|_| {
            let kind = self.walks.turn;
            self.walks.turn = (kind + 1) % KINDS;
            match kind {
                0 => self.walk_on(),
                1 => self.look_on(now),
                2 => self.empty_memory(now),
                3 => self.thin_on(now),
                _ => self.collect_by_itself(now),
            }
        })
    }

    /// Whether what happened was not counted yet for all chunks that it concerns.
    pub fn is_walking(&self) -> bool {
        !self.walks.queue.is_empty()
    }

    /// Goes on with a walk; false if none is under way.
    pub fn walk_on(&mut self) -> bool {
        let Some(walk) = self.walks.queue.pop_front() else { return false };
        if let Walk::Owed(look) = walk {
            let rest = self.look_at_owed(look);
            self.walks.queue.extend(rest.map(Walk::Owed));
            return true;
        }
        let (locations, registry, steps) = (&mut self.locations, &self.registry, self.setting.steps);
        let rest = match walk {
            Walk::All(from) => locations.walk_all(from, steps, registry).map(Walk::All),
            Walk::Benefactor(id, from) => {
                let rest = locations.walk_benefactor(id, from, steps, registry);
                rest.map(|from| Walk::Benefactor(id, Some(from)))
            }
            Walk::AtRisk(after) => {
                locations.walk_at_risk(after, steps, registry).map(|after| Walk::AtRisk(Some(after)))
            }
            Walk::Owed(_) => unreachable!("it was looked at"),
            Walk::Grade(ino, newest) => {
                self.grade_some(ino, newest);
                None
            }
        };
        if let Some(rest) = rest {
            self.walks.queue.push_front(rest);
        }
        true
    }

    /// Looks at some of the files and folders that are to be looked at.
    fn grade_some(&mut self, first: Ino, newest: usize) {
        self.grade(first, newest);
        // The versions of each may have many chunks.
        for _ in 1..self.setting.steps.div_ceil(16) {
            let Some(Walk::Grade(ino, newest)) = self.walks.queue.front().copied() else {
                self.walks.graded = HashSet::new();
                return;
            };
            self.walks.queue.pop_front();
            self.grade(ino, newest);
        }
    }

    /// Looks at a file's versions, or lets the entries of a folder be looked at.
    fn grade(&mut self, ino: Ino, newest: usize) {
        let Ok(inode) = self.namespace.inode(ino) else { return };
        match &inode.body {
            Body::Directory(directory) => {
                let below: Vec<Ino> = directory.entries.values().copied().collect();
                let below = below.into_iter().map(|ino| Walk::Grade(ino, newest));
                below.for_each(|walk| self.walks.queue.push_front(walk));
            }
            Body::File(_) => {
                // A caller that counts some versions only has not looked at the others.
                let all = newest == usize::MAX;
                if all && inode.other_parents().next().is_some() && !self.walks.graded.insert(ino) {
                    return;
                }
                self.namespace.grade(ino);
                self.settle_references();
                self.place_versions(ino, newest);
            }
            Body::Symlink(_) | Body::Meeting(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use stdchk_model::message::manager::StoredBlock;
    use stdchk_model::{BlockId, ChunkId, MomentKey, PoolId};

    use super::*;
    use crate::core::locations::BlockAge;
    use crate::core::{Setting, Timing};

    #[test]
    fn a_walk_that_is_asked_for_at_each_step_comes_to_its_end() {
        let (new_pool, owner, timing) = (PoolId([7; 16]), (0, 0), Timing::default());
        let new_key = MomentKey([7; 32]);
        let mut core = Core::empty(Setting { new_pool, new_key, owner, pid: 1, start: 1, timing, steps: 2 });
        let at = core.registry.add_for_test();
        for number in 0..10_u8 {
            let block = BlockId::plain(ChunkId([number; 32]));
            core.locations.confirm(
                &StoredBlock { block, plain_length: 10, stored_length: 10 },
                at,
                0,
                BlockAge::New,
                0,
            );
        }
        let mut ends = 0;
        for _ in 0..60 {
            core.walk(Walk::Benefactor(at, None));
            let before = core.walks.queue.len();
            core.walk_on();
            ends += usize::from(core.walks.queue.len() < before);
            assert!(core.walks.queue.len() <= 2, "one is under way, and one follows");
        }
        assert_eq!(ends, 10, "each has five steps, and a last one that finds nothing");
        while core.walk_on() {}
        assert!(!core.is_walking());
    }
}
