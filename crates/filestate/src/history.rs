//! What changed between two checkpoints, read from the log alone.

use std::collections::BTreeMap;

use crate::error::Result;
use crate::log::Statement;
use crate::paths::Whereabouts;
use crate::record::{Record, RelativePath};
use crate::store::{self, Store};

/// What happened to one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// It came into being.
    pub created: bool,
    /// It was deleted, or replaced by another file.
    pub removed: bool,
    /// It was moved to another name.
    pub moved_to: Option<RelativePath>,
    /// It was written to, cut, or extended.
    pub written: bool,
    /// Bytes of it that were overwritten or cut off and are kept.
    pub kept_bytes: u64,
    /// Its permissions were changed.
    pub mode: bool,
}

/// The changes after checkpoint `from` and up to checkpoint `to` (the present when `None`), by path.
pub fn changes(store: &Store, from: u64, to: Option<u64>) -> Result<BTreeMap<RelativePath, Change>> {
    let start = store.entry(Some(from))?.position;
    let end = match to {
        Some(index) => store.entry(Some(index))?.position,
        None => store.log.len()?,
    };
    let mut changes: BTreeMap<RelativePath, Change> = BTreeMap::new();
    let mut whereabouts = Whereabouts::default();
    for located in store.log.scan(start, end)? {
        match located.statement {
            Statement::Contents { inode, length, .. }
            | Statement::Small(Record::Cloned { inode, length, .. }) => {
                if let Some(path) = whereabouts.path(inode) {
                    changes.entry(path.to_vec()).or_default().kept_bytes += length;
                }
            }
            Statement::Small(record) => {
                note(&mut changes, &record);
                whereabouts.follow(&record);
            }
            Statement::Hole { .. } => {}
        }
    }
    changes.retain(|path, _| !store::is_own(path));
    Ok(changes)
}

fn note(changes: &mut BTreeMap<RelativePath, Change>, record: &Record) {
    match record {
        Record::Absent { path } => changes.entry(path.clone()).or_default().created = true,
        // From outside the tree.
        Record::Moved { from, to, .. } if from.starts_with(store::TRASH.as_bytes()) => {
            changes.entry(to.clone()).or_default().created = true;
        }
        Record::Moved { from, to, .. } => {
            let change = changes.entry(from.clone()).or_default();
            if store::is_own(to) {
                change.removed = true;
            } else {
                change.moved_to = Some(to.clone());
            }
        }
        Record::Size { path, .. } => changes.entry(path.clone()).or_default().written = true,
        Record::Mode { path, .. } => changes.entry(path.clone()).or_default().mode = true,
        Record::Data { .. } | Record::Hole { .. } | Record::Cloned { .. } => {}
    }
}
