//! Files that a restore cannot take back: they were at the checkpoint, and somebody outside the run removed or replaced
//! them since.
//!
//! The one idea: a statement about a file that is found nowhere says nothing yet, since most such files came into being
//! after the checkpoint and were deleted again. Going back through the log follows their names as it follows those of all
//! files; one that came into being after the checkpoint meets the statement that its name was absent before. What is left
//! in the end was at the checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use crate::paths::below;
use crate::record::{Inode, Record, RelativePath};
use crate::store;

/// Behind the name of a file that had none, as the kernel writes it.
const NAMELESS: &[u8] = b" (deleted)";

/// The files not found so far, with the names that they had at the statement reached.
#[derive(Debug, Default)]
pub(crate) struct Astray {
    names: BTreeMap<Inode, RelativePath>,
    /// The files of `names` ordered by name, so that what a directory holds lies together.
    by_name: BTreeSet<(RelativePath, Inode)>,
}

impl Astray {
    /// Takes a statement into account that was made true, or, where `found` is false, whose file was nowhere.
    pub(crate) fn follow(&mut self, record: &Record, found: bool) {
        match record {
            Record::Absent { path } => {
                for (_, inode) in self.at_and_below(path) {
                    self.remove(inode);
                }
            }
            Record::Moved { inode, from, to, directory } => {
                if *directory {
                    self.follow_directory(from, to);
                }
                self.set(*inode, from, found);
            }
            Record::Size { inode, path, .. } | Record::Mode { inode, path, .. } => {
                self.set(*inode, path, found);
            }
            Record::Data { .. } | Record::Hole { .. } | Record::Cloned { .. } => {}
        }
    }

    fn set(&mut self, inode: Inode, path: &[u8], found: bool) {
        self.remove(inode);
        // What came from outside the tree is said to come from the store.
        if !found && !path.is_empty() && !path.ends_with(NAMELESS) && !store::is_own(path) {
            self.names.insert(inode, path.to_vec());
            self.by_name.insert((path.to_vec(), inode));
        }
    }

    fn remove(&mut self, inode: Inode) {
        if let Some(name) = self.names.remove(&inode) {
            self.by_name.remove(&(name, inode));
        }
    }

    fn at_and_below(&self, path: &[u8]) -> Vec<(RelativePath, Inode)> {
        let (path, inside) = (path.to_vec(), [path, b"/"].concat());
        let at = self.by_name.range((path.clone(), Inode(0))..=(path, Inode(u64::MAX)));
        let below = self.by_name.range((inside.clone(), Inode(0))..);
        at.chain(below.take_while(|(name, _)| name.starts_with(&inside))).cloned().collect()
    }

    fn follow_directory(&mut self, from: &[u8], to: &[u8]) {
        for (name, inode) in self.at_and_below(to) {
            if let Some(rest) = below(&name, to) {
                self.set(inode, &[from, rest].concat(), false);
            }
        }
    }

    /// What was not found in the end, by the names at the checkpoint.
    pub(crate) fn names(&self) -> impl Iterator<Item = (Inode, &RelativePath)> {
        self.names.iter().map(|(inode, name)| (*inode, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(inode: u64, path: &str) -> Record {
        Record::Size { inode: Inode(inode), path: path.into(), size: 1, modified_ns: 0 }
    }

    fn moved(inode: u64, from: &str, to: &str, directory: bool) -> Record {
        Record::Moved { inode: Inode(inode), from: from.into(), to: to.into(), directory }
    }

    /// What is astray after going back over `log`, of which nothing is found.
    fn astray(log: &[Record]) -> Vec<(u64, String)> {
        let mut astray = Astray::default();
        log.iter().rev().for_each(|record| astray.follow(record, false));
        astray.names().map(|(inode, name)| (inode.0, String::from_utf8(name.clone()).unwrap())).collect()
    }

    #[test]
    fn what_came_into_being_since_is_not_missed_whatever_it_was_called() {
        let absent = |path: &str| Record::Absent { path: path.into() };
        assert_eq!(astray(&[absent("a"), size(1, "a")]), []);
        assert_eq!(astray(&[absent("a.new"), moved(1, "a.new", "a", false), size(1, "a")]), []);
        let in_new_directory =
            [absent("d"), absent("d/a"), size(1, "d/a"), moved(2, "d", "e", true), size(1, "e/a")];
        assert_eq!(astray(&in_new_directory), []);
        assert_eq!(astray(&[size(3, "#3 (deleted)")]), []);
    }

    #[test]
    fn what_was_there_is_missed_under_the_name_that_it_had() {
        assert_eq!(astray(&[size(1, "a")]), [(1, "a".into())]);
        assert_eq!(astray(&[moved(1, "a", "b", false), size(1, "b")]), [(1, "a".into())]);
        let in_moved_directory = astray(&[moved(2, "d", "e", true), size(1, "e/a")]);
        assert_eq!(in_moved_directory, [(1, "d/a".into()), (2, "d".into())]);
    }

    #[test]
    fn what_is_found_further_back_is_not_missed() {
        let mut astray = Astray::default();
        astray.follow(&size(1, "b"), false);
        astray.follow(&size(1, "a"), true);
        assert_eq!(astray.names().count(), 0);
    }
}
