//! What a restore did, and what it could not do, in numbers and in words.

use crate::record::RelativePath;

/// Files named one by one; a tree that was moved by hand has many.
const COMPLAINTS_MAX: usize = 20;
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
}

impl Summary {
    /// What the user must know of it: a line for each file that could not be taken back, up to [`COMPLAINTS_MAX`].
    pub fn complaints(&self) -> Vec<String> {
        let name = |path: &RelativePath| String::from_utf8_lossy(path).into_owned();
        let line = |path| format!("{} is not as at checkpoint {}: {REPLACED}", name(path), self.index);
        let mut lines: Vec<String> = self.astray.iter().take(COMPLAINTS_MAX).map(line).collect();
        match self.astray.len().saturating_sub(COMPLAINTS_MAX) {
            0 => {}
            more => lines.push(format!("so are {more} more files")),
        }
        lines
    }
}
