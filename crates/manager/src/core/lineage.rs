//! A lineage: the versions of a name through all files that had it, under keys that a rename doesn't change.
//!
//! A program that replaces a file by a rename makes a new inode each time, and the versions of the replaced file become earlier versions of
//! the new one. The records of versions therefore lie under the lineage, and the inode says which lineage is its own: so a rename hands on
//! ten thousand versions by a change of two inodes. Only the shorter one of two lineages moves, record by record, into the longer one. A
//! version that moves is in a lineage at least twice as long afterwards, so it moves at most once for each doubling.
//!
//! A version's number is what users see; it is counted from 1, and a lineage that is handed on comes first. Where the lineage that comes first
//! is the shorter one, the numbers of all versions of the other rise. So keys differ from numbers by a [`Lineage::shift`], which stands in the
//! inode's record, and keys begin in the middle of their range: there is always room before the first.

use std::collections::BTreeMap;
use std::ops::RangeToInclusive;

use stdchk_model::Ino;

use super::inode::Version;

/// The key of a version whose number is the shift. Keys before it are those of a lineage that was put in front.
const MIDDLE: u64 = 1 << 63;
/// Numbers of versions are smaller: a manager that commits a million versions a second takes a hundred thousand years to get there.
pub const NUMBERS: u64 = 1 << 62;

/// Which lineage: the number of the inode that it was made with, which is given out once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LineageId(pub u64);

impl LineageId {
    /// The lineage that a new inode begins.
    pub fn of(ino: Ino) -> Self {
        Self(ino.0)
    }
}

/// Where the record of a version lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VersionKey {
    pub lineage: LineageId,
    pub key: u64,
}

impl VersionKey {
    /// Before all others.
    pub const FIRST: Self = Self { lineage: LineageId(0), key: 0 };
    /// Behind all others.
    pub const LAST: Self = Self { lineage: LineageId(u64::MAX), key: u64::MAX };
}

/// The versions of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Lineage {
    id: LineageId,
    /// Number of the version with the key [`MIDDLE`], whether there is one or not.
    shift: u64,
    versions: BTreeMap<u64, Version>,
    /// How far from loss all versions want their chunks; `None`: they may differ, or there are none.
    all_want: Option<u8>,
}

impl Lineage {
    /// A lineage without versions.
    pub fn new(id: LineageId) -> Self {
        Self { id, shift: 0, versions: BTreeMap::new(), all_want: None }
    }

    /// A stored lineage, before its versions are read; `None`: there can be no such shift.
    pub fn stored(id: LineageId, shift: u64) -> Option<Self> {
        (shift < NUMBERS).then(|| Self { shift, ..Self::new(id) })
    }

    pub fn id(&self) -> LineageId {
        self.id
    }

    pub fn shift(&self) -> u64 {
        self.shift
    }

    /// The key of a version; `None`: there can be no such number.
    fn key(&self, number: u64) -> Option<u64> {
        (number < NUMBERS).then(|| MIDDLE + number - self.shift)
    }

    fn number(&self, key: u64) -> u64 {
        key + self.shift - MIDDLE
    }

    /// Where the version with this number lies, whether there is one or not.
    pub fn key_of(&self, number: u64) -> VersionKey {
        assert!((1..NUMBERS).contains(&number) && self.shift < NUMBERS, "versions are counted from 1");
        VersionKey { lineage: self.id, key: MIDDLE + number - self.shift }
    }

    /// Number of the version with a key that was stored; `None`: no version has such a key.
    pub fn number_of(&self, key: u64) -> Option<u64> {
        let number = key.checked_add(self.shift)?.checked_sub(MIDDLE)?;
        (1..NUMBERS).contains(&number).then_some(number)
    }

    pub fn len(&self) -> usize {
        self.versions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    pub fn get(&self, number: u64) -> Option<&Version> {
        self.versions.get(&self.key(number)?)
    }

    /// The version, for a change of anything but how far from loss it wants its chunks.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Version> {
        let key = self.key(number)?;
        self.versions.get_mut(&key)
    }

    pub fn insert(&mut self, number: u64, version: Version) {
        self.all_want = match self.all_want {
            _ if self.versions.is_empty() => Some(version.wanted),
            all_want => all_want.filter(|wanted| *wanted == version.wanted),
        };
        let before = self.versions.insert(self.key_of(number).key, version);
        assert!(before.is_none(), "a number is given once");
    }

    pub fn remove(&mut self, number: u64) -> Option<Version> {
        let key = self.key(number)?;
        self.versions.remove(&key)
    }

    /// All versions with their numbers, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Version)> + ExactSizeIterator {
        self.versions.iter().map(|(key, version)| (self.number(*key), version))
    }

    /// The versions up to this number, oldest first.
    pub fn range(&self, numbers: RangeToInclusive<u64>) -> impl DoubleEndedIterator<Item = (u64, &Version)> {
        let versions = self.versions.range(..=self.key_of(numbers.end).key);
        versions.map(|(key, version)| (self.number(*key), version))
    }

    pub fn values(&self) -> impl Iterator<Item = &Version> {
        self.versions.values()
    }

    /// All versions with the places of their records.
    pub fn into_records(self) -> impl Iterator<Item = (VersionKey, Version)> {
        let lineage = self.id;
        self.versions.into_iter().map(move |(key, version)| (VersionKey { lineage, key }, version))
    }

    /// Whether some version wants its chunks otherwise than this far from loss.
    pub fn wants_other(&self, wanted: u8) -> bool {
        !self.versions.is_empty() && self.all_want != Some(wanted)
    }

    /// Lets all versions want their chunks so far from loss; `changed` sees each for which that is new, before.
    pub fn want(&mut self, wanted: u8, mut changed: impl FnMut(&Version)) {
        if !self.wants_other(wanted) {
            return;
        }
        for version in self.versions.values_mut().filter(|version| version.wanted != wanted) {
            changed(version);
            version.wanted = wanted;
        }
        self.all_want = Some(wanted);
    }

    /// Lets one version want its chunks so far from loss.
    pub fn want_of(&mut self, number: u64, wanted: u8) {
        let is_only = self.versions.len() == 1;
        if let Some(version) = self.get_mut(number) {
            version.wanted = wanted;
            self.all_want = is_only.then_some(wanted);
        }
    }

    /// Puts a lineage whose next number is `next` in front of this one. Returns the one that is left without versions, and for each version
    /// that has moved the place of its record before and now.
    pub fn put_in_front(&mut self, front: Self, next: u64) -> (Self, Vec<(VersionKey, VersionKey)>) {
        let shift = next - 1;
        let mut behind = std::mem::replace(self, front);
        let mut moved = Vec::new();
        if self.len() >= behind.len() {
            // The front takes in what comes behind.
            let emptied = Self::new(behind.id);
            for (key, version) in std::mem::take(&mut behind.versions) {
                let number = behind.number(key) + shift;
                moved.push((VersionKey { lineage: behind.id, key }, self.key_of(number)));
                self.insert(number, version);
            }
            return (emptied, moved);
        }
        let mut front = std::mem::replace(self, behind);
        self.shift += shift;
        let emptied = Self::new(front.id);
        for (key, version) in std::mem::take(&mut front.versions) {
            let number = front.number(key);
            moved.push((VersionKey { lineage: front.id, key }, self.key_of(number)));
            self.insert(number, version);
        }
        (emptied, moved)
    }
}
