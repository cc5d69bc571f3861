//! What a restore did, and what it could not do, in numbers and in words.

use crate::record::RelativePath;

/// Files named one by one; a tree that was moved by hand has many.
const COMPLAINTS_MAX: usize = 20;
const LEFT: &str = "and stays: it came from outside the run, or holds what did";
const REPLACED: &str = "it was removed or replaced from outside the run, and can't be taken back";

/// What a restore did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The index restored.
    pub index: u64,
    /// Records made true again.
    pub records: u64,
    /// Old contents written back, in bytes.
    pub bytes: u64,
    /// Files of the checkpoint that somebody outside the run removed or replaced since: they can't be taken back.
    pub astray: Vec<RelativePath>,
    /// Names that were absent at the checkpoint and stay: somebody outside the run put there, or into that directory, what is
    /// there.
    pub left: Vec<RelativePath>,
    /// Programs that were not watched, and whose changes are not undone: a line each.
    pub unwatched: Vec<String>,
}

impl Summary {
    /// What the user must know of it: a line for each file that could not be taken back and for each name that stays, up to
    /// [`COMPLAINTS_MAX`] of each; and each program that was not watched.
    pub fn complaints(&self) -> Vec<String> {
        let index = self.index;
        let astray = |name: &str| format!("{name} is not as at checkpoint {index}: {REPLACED}");
        let left = |name: &str| format!("{name} was not there at checkpoint {index} {LEFT}");
        let unwatched =
            self.unwatched.iter().map(|line| format!("{line}; what it changed is not taken back"));
        [lines(&self.astray, astray), lines(&self.left, left), unwatched.collect()].concat()
    }
}

fn lines(paths: &[RelativePath], line: impl Fn(&str) -> String) -> Vec<String> {
    let line = |path: &RelativePath| line(&String::from_utf8_lossy(path));
    let mut lines: Vec<String> = paths.iter().take(COMPLAINTS_MAX).map(line).collect();
    match paths.len().saturating_sub(COMPLAINTS_MAX) {
        0 => {}
        more => lines.push(format!("the same is true of {more} more")),
    }
    lines
}
