//! Where each file of the log stood at each record. Pure.
//!
//! The one idea: every move inside the tree is in the log, so a file's path needs to be stated once; walking the
//! log forward and following the moves gives its path at any later record, and the bulk records (old contents) need
//! only the inode.

use std::collections::HashMap;
use std::sync::Arc;

use crate::record::{Inode, Record};

/// The paths of the files seen so far, at the record reached.
#[derive(Debug, Default)]
pub struct Whereabouts {
    of: HashMap<Inode, Arc<[u8]>>,
    /// Where each file was last said to stand, moves not followed: right again when a stated move did not happen.
    stated: HashMap<Inode, Arc<[u8]>>,
}

impl Whereabouts {
    /// Takes the next record of the log into account.
    pub fn follow(&mut self, record: &Record) {
        match record {
            Record::Size { inode, path, .. } | Record::Mode { inode, path, .. } => {
                let path: Arc<[u8]> = path.as_slice().into();
                self.of.insert(*inode, path.clone());
                self.stated.insert(*inode, path);
            }
            Record::Moved { inode, from, to, directory } => {
                if *directory {
                    self.follow_directory(from, to);
                }
                self.of.insert(*inode, to.as_slice().into());
            }
            Record::Absent { .. } | Record::Data { .. } | Record::Hole { .. } | Record::Cloned { .. } => {}
        }
    }

    fn follow_directory(&mut self, from: &[u8], to: &[u8]) {
        for path in self.of.values_mut() {
            if let Some(moved) = below(path, from).map(|rest| [to, rest].concat()) {
                *path = moved.into();
            }
        }
    }

    /// Where the file stands at the record reached, if the log has said so.
    pub fn path(&self, inode: Inode) -> Option<Arc<[u8]>> {
        self.of.get(&inode).cloned()
    }

    /// The places where the file may stand at the record reached, the likeliest first. A move that was stated and then
    /// failed, or whose process was killed in between, makes the first one wrong.
    pub fn places(&self, inode: Inode) -> Vec<Arc<[u8]>> {
        self.of.get(&inode).into_iter().chain(self.stated.get(&inode)).cloned().collect()
    }
}

/// The rest of `path` behind the directory `directory`, with its leading slash.
pub(crate) fn below<'path>(path: &'path [u8], directory: &[u8]) -> Option<&'path [u8]> {
    path.strip_prefix(directory).filter(|rest| rest.first() == Some(&b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(inode: u64, from: &str, to: &str, directory: bool) -> Record {
        Record::Moved { inode: Inode(inode), from: from.into(), to: to.into(), directory }
    }

    #[test]
    fn a_file_is_followed_through_its_own_moves_and_those_of_its_directory() {
        let mut whereabouts = Whereabouts::default();
        whereabouts.follow(&Record::Size {
            inode: Inode(1),
            path: b"run/a".to_vec(),
            size: 0,
            modified_ns: 0,
        });
        whereabouts.follow(&Record::Size {
            inode: Inode(2),
            path: b"runner".to_vec(),
            size: 0,
            modified_ns: 0,
        });
        whereabouts.follow(&moved(1, "run/a", "run/b", false));
        whereabouts.follow(&moved(7, "run", "old", true));
        assert_eq!(&*whereabouts.path(Inode(1)).unwrap(), b"old/b");
        assert_eq!(&*whereabouts.path(Inode(2)).unwrap(), b"runner");
        assert_eq!(whereabouts.path(Inode(3)), None);
    }
}
