//! What somebody outside the run did to the tree, as far as a restore must not undo it, or can't. Pure.
//!
//! Files of the checkpoint that were removed or replaced are missing ([`Astray`]). The other way round, names that were
//! absent at the checkpoint may stay: everything that the run made is taken away before the directory that it was made in,
//! so a directory that is not empty then holds what the run did not make. The one idea, for both: statements say what
//! stood where *then*; the tree says in the end what stands there by now. So a restore that was cut off needs to leave
//! nothing behind for the one that completes it: that one goes through the same statements.

use std::collections::BTreeSet;

use stdchk_model::exact::part;

use crate::astray::Astray;
use crate::paths::below;
use crate::record::{Inode, Record, RelativePath};
use crate::store::{self, TRASH};

/// What is put behind the name of a file that was in the way.
const SET_ASIDE: &[u8] = b".by-hand";
/// How long a name may be, in bytes: `NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;

/// What a restore has met so far, by the names at the statement reached.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    astray: Astray,
    left: BTreeSet<RelativePath>,
}

impl Outside {
    /// Takes a statement into account that was made true, or, where `found` is false, whose file was nowhere.
    pub(crate) fn follow(&mut self, record: &Record, found: bool) {
        self.astray.follow(record, found);
        if let Record::Moved { from, to, directory, .. } = record {
            if from.starts_with(TRASH.as_bytes()) && !found {
                self.leave(to);
            }
            if *directory {
                self.follow_directory(from, to);
            }
            self.left.remove(from);
        }
    }

    /// Takes a statement into account that a restore made true which was cut off: whatever that met is still there.
    pub(crate) fn follow_again(&mut self, record: &Record) {
        if let Record::Absent { path } = record {
            self.leave(path);
        }
        self.follow(record, false);
        if let Record::Moved { from, .. } = record {
            asides(from).take(1).for_each(|name| self.leave(&name));
        }
    }

    /// `path` was absent, and something may stand there that is not the run's.
    pub(crate) fn leave(&mut self, path: &[u8]) {
        if !store::is_own(path) {
            self.take_below(path);
            self.left.insert(path.to_vec());
        }
    }

    fn take_below(&mut self, path: &[u8]) -> Vec<RelativePath> {
        let inside = [path, b"/"].concat();
        let names = self.left.range(inside.clone()..).take_while(|name| name.starts_with(&inside));
        let taken: Vec<RelativePath> = names.cloned().collect();
        for name in &taken {
            self.left.remove(name);
        }
        taken
    }

    fn follow_directory(&mut self, from: &[u8], to: &[u8]) {
        let moved = self.take_below(to);
        self.left.extend(moved.iter().filter_map(|name| Some([from, below(name, to)?].concat())));
    }

    /// What was not found in the end, by the names at the checkpoint.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (Inode, &RelativePath)> {
        self.astray.names()
    }

    /// The names that were absent at the checkpoint, where something may stand.
    pub(crate) fn left(&self) -> impl Iterator<Item = &RelativePath> {
        self.left.iter()
    }
}

/// Where that goes which stands in the way at `path`: the first of these names that is free.
pub(crate) fn asides(path: &[u8]) -> impl Iterator<Item = RelativePath> {
    let name_at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    (1u64..).map(move |number| {
        let number = if number > 1 { format!(".{number}") } else { String::new() };
        let end = path.len().min(name_at + NAME_BYTES_MAX - SET_ASIDE.len() - number.len());
        [part(path, ..end), SET_ASIDE, number.as_bytes()].concat()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absent(path: &str) -> Record {
        Record::Absent { path: path.into() }
    }

    fn moved(from: &str, to: &str, directory: bool) -> Record {
        Record::Moved { inode: Inode(1), from: from.into(), to: to.into(), directory }
    }

    /// Where something may be left after going back over `log` once more.
    fn left_again(log: &[Record]) -> Vec<String> {
        let mut outside = Outside::default();
        log.iter().rev().for_each(|record| outside.follow_again(record));
        let names = outside.left().map(|name| String::from_utf8(name.clone()).unwrap());
        names.filter(|name| !name.ends_with(".by-hand")).collect()
    }

    #[test]
    fn names_that_were_absent_are_those_of_the_checkpoint() {
        assert_eq!(left_again(&[absent("d"), absent("d/a"), absent("b")]), ["b", "d"]);
        assert_eq!(left_again(&[moved("d", "e", true), absent("e/a"), absent("d")]), ["d/a"]);
        assert_eq!(left_again(&[moved("a", ".stdchk-files/kept/0.1", false), absent("a")]), [] as [&str; 0]);
        assert_eq!(left_again(&[moved(".stdchk-files/trash/1", "a", false)]), ["a"]);
    }

    #[test]
    fn what_is_set_aside_has_a_name_that_fits() {
        let names: Vec<RelativePath> = asides(b"d/log").take(2).collect();
        assert_eq!(names, [b"d/log.by-hand".to_vec(), b"d/log.by-hand.2".to_vec()]);
        let long = ["d/", &"x".repeat(255)].concat();
        for name in asides(long.as_bytes()).take(20) {
            assert!(name.len() == 2 + 255 && name.starts_with(b"d/xxx"), "{}", name.len());
        }
    }
}
