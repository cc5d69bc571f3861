//! The set against which another was coded.
//!
//! Relies on [`Container`]. The idea: a base never has a base itself, so a restore needs at most one other set; files
//! correspond when their names differ in numbers only, because iterations are part of names. A base is known by its
//! identity, not by its name, so one that lies beside what needs it is found whatever it is called.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use stdchk_formats::{Extent, Source};

use super::Container;
use crate::container::{FileEntry, hash};
use crate::error::{AggregateError, Result};
use crate::key::without_numbers;
use crate::new_file::folder_of;
use crate::pack::Chains;

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
        Ok(Self::of(Container::open(path)?))
    }

    /// Opens a base set that lies anywhere; `name` is for messages.
    ///
    /// # Errors
    /// When it can't be opened, or is itself coded against another set.
    pub fn open_source(name: &Path, source: Box<dyn Source + Send + Sync>) -> Result<Self> {
        Ok(Self::of(Container::open_source_with_base(name, source, |_| Ok(None))?))
    }

    fn of(container: Container) -> Self {
        let identity = container.identity_as_base();
        Self { container, identity }
    }

    /// Opens the base set of this identity, if a file `*.pack` of `folder` is it.
    fn beside(folder: &Path, identity: [u8; 16]) -> Result<Option<Self>> {
        for entry in fs::read_dir(folder).map_err(AggregateError::io("list", folder))? {
            let path = entry.map_err(AggregateError::io("list", folder))?.path();
            // To open a pipe would wait for whoever writes to it.
            if path.extension() != Some(OsStr::new("pack")) || !path.is_file() {
                continue;
            }
            // What can't be opened, or needs a base itself, is none.
            if let Some(base) = Self::open(&path).ok().filter(|base| base.identity == identity) {
                return Ok(Some(base));
            }
        }
        Ok(None)
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
            let as_is = !self.container.files.unfolded.contains_key(&index);
            let file = files.get(index).filter(|file| as_is && file.size == size);
            file.is_some_and(|file| without_numbers(&file.name) == pattern)
        };
        let only = || {
            let mut fitting = (0..files.len()).filter(|index| fits(*index));
            fitting.next().filter(|_| fitting.next().is_none())
        };
        let found = if fits(position) { Some(position) } else { only() };
        found.and_then(|index| u32::try_from(index).ok())
    }

    /// Its bytes, as a share of those before packing.
    pub(crate) fn stored_share(&self) -> f64 {
        let files = &self.container.files.files;
        let raw = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size));
        self.container.source.size() as f64 / raw.max(1) as f64
    }

    pub(crate) fn append(&self, file: u32, extents: &[Extent], buffer: &mut Vec<u8>) -> Result<()> {
        extents.iter().try_for_each(|extent| self.container.read(file as usize, *extent, buffer))
    }
}

/// What a container's tables say of it, without its base.
pub(crate) struct Described {
    pub(crate) files: Vec<FileEntry>,
    pub(crate) identity: [u8; 16],
    /// Identity of the set that it needs.
    pub(crate) base: Option<[u8; 16]>,
    /// What coded it.
    pub(crate) chains: Chains,
}

impl Container {
    /// Opens a container, with the base set that it needs if one of the folder's containers is it.
    ///
    /// # Errors
    /// When the file can't be read, is no container, or needs a base that is not beside it.
    pub fn open_beside_base(path: &Path) -> Result<Self> {
        let mut container = Self::read_tables(path)?;
        if let Some(needed) = container.files.base {
            let base = BaseSet::beside(folder_of(path), needed)?.ok_or_else(|| base_missing(needed))?;
            container.base = Some(Arc::new(base));
        }
        Ok(container)
    }

    /// Opens a container that lies anywhere, with the base set that `find_base` gives for the identity that it needs;
    /// `name` is for messages.
    ///
    /// # Errors
    /// When the source can't be read, is no container, or no such base is found.
    pub fn open_source_with_base(
        name: &Path,
        source: Box<dyn Source + Send + Sync>,
        find_base: impl FnOnce([u8; 16]) -> Result<Option<BaseSet>>,
    ) -> Result<Self> {
        let mut container = Self::tables_alone(name, source)?;
        if let Some(needed) = container.files.base {
            let base = find_base(needed)?.filter(|base| base.identity == needed);
            container.base = Some(Arc::new(base.ok_or_else(|| base_missing(needed))?));
        }
        Ok(container)
    }

    pub(crate) fn describe(name: &Path, source: Box<dyn Source + Send + Sync>) -> Result<Described> {
        let container = Self::tables_alone(name, source)?;
        let identity = container.identity_as_base();
        let chains = container.chains();
        Ok(Described { identity, base: container.files.base, files: container.files.files, chains })
    }

    /// What coded each group of its members.
    #[must_use]
    pub fn chains(&self) -> Chains {
        Chains::of(self.blocks.values().map(|block| (&block.record, block.payload.length)))
    }

    fn identity_as_base(&self) -> [u8; 16] {
        let mut identity = Vec::new();
        for (number, block) in &self.blocks {
            identity.extend(number.to_le_bytes());
            identity.extend(block.record.raw_hash);
        }
        hash(&identity)
    }
}

pub(super) fn base_missing(identity: [u8; 16]) -> AggregateError {
    AggregateError::BaseMissing { base: identity.iter().map(|byte| format!("{byte:02x}")).collect() }
}
