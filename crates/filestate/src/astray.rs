//! Files that a restore cannot take back: they were at the checkpoint, and somebody outside the run removed or replaced
//! them since.
//!
//! The one idea: a statement about a file that is found nowhere says nothing yet, since most such files came into being
//! after the checkpoint and were deleted again. Going back through the log follows their names as it follows those of all
//! files; one that came into being after the checkpoint meets the statement that its name was absent before. What is left
//! in the end was at the checkpoint.

use std::collections::BTreeMap;

use crate::paths::below;
use crate::record::{Inode, Record, RelativePath};

/// Behind the name of a file that had none, as the kernel writes it.
const NAMELESS: &[u8] = b" (deleted)";

/// The files not found so far, with the names that they had at the statement reached.
#[derive(Debug, Default)]
pub(crate) struct Astray(BTreeMap<Inode, RelativePath>);

impl Astray {
    /// Takes a statement into account that was made true, or, where `found` is false, whose file was nowhere.
    pub(crate) fn follow(&mut self, record: &Record, found: bool) {
        match record {
            Record::Absent { path } => self.0.retain(|_, name| name != path && below(name, path).is_none()),
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
        if found || path.is_empty() || path.ends_with(NAMELESS) {
            self.0.remove(&inode);
        } else {
            self.0.insert(inode, path.to_vec());
        }
    }

    fn follow_directory(&mut self, from: &[u8], to: &[u8]) {
        for name in self.0.values_mut() {
            if let Some(before) = below(name, to).map(|rest| [from, rest].concat()) {
                *name = before;
            }
        }
    }

    /// What was not found in the end, by the names at the checkpoint.
    pub(crate) fn into_names(self) -> impl Iterator<Item = (Inode, RelativePath)> {
        self.0.into_iter()
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
        astray.into_names().map(|(inode, name)| (inode.0, String::from_utf8(name).unwrap())).collect()
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
        assert_eq!(astray.into_names().count(), 0);
    }
}
