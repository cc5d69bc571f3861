//! What follows from an event for many chunks, done in steps between requests.
//!
//! A benefactor that is lost or comes back, an inventory, a policy that changes: each concerns all chunks of a benefactor or of a
//! folder. What must hold at once holds at once, by state and number (`Holder::is_known`, `Registry::counts`): commits, readers, repair and
//! collection look at these. The rest (what lacks copies, queues, sums) follows by walks, a thousand chunks at a time.

use std::collections::VecDeque;

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
    /// Versions of this file, or below this folder, may be wanted further from loss than before, or less far.
    Grade(Ino),
}

impl Walk {
    fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Benefactor(one, _), Self::Benefactor(other, _)) => one == other,
            (Self::Owed(one), Self::Owed(other)) => one.id == other.id,
            (Self::Grade(one), Self::Grade(other)) => one == other,
            (Self::All(_), Self::All(_)) | (Self::AtRisk(_), Self::AtRisk(_)) => true,
            _ => false,
        }
    }
}

/// Walks that have not come to their end.
#[derive(Debug, Default)]
pub(super) struct Walks(VecDeque<Walk>);

impl Core {
    /// Begins a walk; one that is under way begins anew.
    pub(super) fn walk(&mut self, walk: Walk) {
        self.walks.0.retain(|other| !walk.is_like(*other));
        self.walks.0.push_back(walk);
    }

    /// Does a part of what is due, in a few milliseconds. Tells whether there is more to do at once.
    pub fn work(&mut self, now: Now) -> bool {
        self.set_clock(now);
        self.walk_on() || self.look_on(now) || self.empty_memory(now) || self.collect_by_itself(now)
    }

    /// Whether what happened was not counted yet for all chunks that it concerns.
    pub fn is_walking(&self) -> bool {
        !self.walks.0.is_empty()
    }

    /// Goes on with a walk; false if none is under way.
    pub fn walk_on(&mut self) -> bool {
        let Some(walk) = self.walks.0.pop_front() else { return false };
        if let Walk::Owed(look) = walk {
            let rest = self.look_at_owed(look);
            self.walks.0.extend(rest.map(Walk::Owed));
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
            Walk::Grade(ino) => {
                self.grade_some(ino);
                None
            }
        };
        if let Some(rest) = rest {
            self.walks.0.push_front(rest);
        }
        true
    }

    /// Looks at some of the files and folders that are to be looked at.
    fn grade_some(&mut self, first: Ino) {
        self.grade(first);
        // The versions of each may have many chunks.
        for _ in 1..self.setting.steps.div_ceil(16) {
            let Some(Walk::Grade(ino)) = self.walks.0.front().copied() else { return };
            self.walks.0.pop_front();
            self.grade(ino);
        }
    }

    /// Looks at a file's versions, or lets the entries of a folder be looked at.
    fn grade(&mut self, ino: Ino) {
        let Ok(inode) = self.namespace.inode(ino) else { return };
        match &inode.body {
            Body::Directory(directory) => {
                let below: Vec<Ino> = directory.entries.values().copied().collect();
                below.into_iter().for_each(|ino| self.walks.0.push_front(Walk::Grade(ino)));
            }
            Body::File(_) => {
                self.namespace.grade(ino);
                self.settle_references();
                self.place_versions(ino);
            }
            Body::Symlink(_) | Body::Meeting(_) => {}
        }
    }
}
