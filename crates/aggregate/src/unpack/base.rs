//! The set against which another was coded.
//!
//! Relies on [`Container`]. The idea: a base never has a base itself, so a restore needs at most one other set; files
//! correspond when their names differ in numbers only, because iterations are part of names.

use std::path::Path;

use stdchk_formats::Extent;

use super::Container;
use crate::container::hash;
use crate::error::Result;
use crate::key::without_numbers;

/// An opened container that needs no other.
pub struct BaseSet {
    container: Container,
    identity: [u8; 16],
}

impl BaseSet {
    /// Opens a base set.
    ///
    /// # Errors
    /// When it can't be opened, or is itself coded against another set.
    pub fn open(path: &Path) -> Result<Self> {
        let container = Container::open(path)?;
        let mut identity = Vec::new();
        for (number, block) in &container.blocks {
            identity.extend(number.to_le_bytes());
            identity.extend(block.record.raw_hash);
        }
        Ok(Self { container, identity: hash(&identity) })
    }

    /// What tells this set from every other: a hash over the hashes of its blocks.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        self.identity
    }

    /// The file that corresponds to one of another set: at the same position or, failing that, the only one whose name
    /// differs in numbers alone; it must have the same length.
    pub(crate) fn counterpart(&self, position: usize, name: &str, size: u64) -> Option<u32> {
        let pattern = without_numbers(name);
        let files = &self.container.files.files;
        let fits = |index: usize| {
            files.get(index).is_some_and(|file| file.size == size && without_numbers(&file.name) == pattern)
        };
        let only = || {
            let mut fitting = (0..files.len()).filter(|index| fits(*index));
            fitting.next().filter(|_| fitting.next().is_none())
        };
        let found = if fits(position) { Some(position) } else { only() };
        found.and_then(|index| u32::try_from(index).ok())
    }

    pub(crate) fn append(&self, file: u32, extents: &[Extent], buffer: &mut Vec<u8>) -> Result<()> {
        let file = usize::try_from(file).unwrap_or(usize::MAX);
        extents.iter().try_for_each(|extent| self.container.read(file, *extent, buffer))
    }
}
