//! Taking a checkpoint: hold the world still, make what changed durable, and write one line into the index.
//!
//! Order, and why: (1) the changed files, so that the state is really there after a power loss; (2) mapped files, whose
//! changes no call announces, are stated at the start of the new interval; (3) the log, so that what comes later can be
//! undone; (4) the index line, which makes the checkpoint exist; (5) the new interval is opened to the processes. A crash
//! or a full disk before (4) leaves the checkpoint before: the statements of (2) are then its last ones, and earlier
//! statements of the same bytes count. The cost follows what changed since the checkpoint before, never the size of the files.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use stdchk_model::Timestep;

use crate::control::Control;
use crate::durable;
use crate::error::{Error, Result};
use crate::index::{self, Entry};
use crate::log::Statement;
use crate::mapped;
use crate::paths::{Whereabouts, below};
use crate::record::Record;
use crate::store::{self, Store};

/// Takes a checkpoint of the tree, labelled `label`, and returns its index. The caller must not be inside a call.
pub fn take(store: &Store, control: &Control, label: &str) -> Result<u64> {
    take_instead_of(store, control, label, |_| false)
}

/// Takes the file state of the checkpoint set of timestep `step`. Each of the set's files asks for it before its commit;
/// the last one to do so counts, so a state that was taken just before for the same set gives way.
pub fn take_for_set(store: &Store, control: &Control, step: Timestep) -> Result<u64> {
    take_instead_of(store, control, &index::set_label(step), |last| last.set() == Some(step))
}

fn take_instead_of(
    store: &Store,
    control: &Control,
    label: &str,
    gives_way: impl FnOnce(&Entry) -> bool,
) -> Result<u64> {
    let world = control.freeze()?;
    if world.is_between_states() {
        let why = "a restore was cut off, and no checkpoint can be taken until one is completed";
        return Err(Error::Refused(format!("{why}; end the run, then `run --resume` or `files restore`")));
    }
    let mut entries = store.entries()?;
    let index = entries.last().map_or(0, |last| last.index + 1);
    let gives_way = entries.last().is_some_and(gives_way);
    if gives_way {
        entries.pop();
    }
    let before = entries.last().map_or(0, |last| last.position);
    let position = store.log.len()?;
    if position < before {
        let what = "it ends before the last checkpoint".to_owned();
        return Err(Error::Damaged { object: store.path().join("log"), what });
    }
    let (changed, came_in) = changed_paths(store, before, position)?;
    let digest = store.log.digest(before, position)?;
    store.log.begin_sync(before, position);
    match came_in {
        true => durable::sync_all(store)?,
        false => durable::sync(store, &changed)?,
    }
    mapped::save_again(store, control, index)?;
    store.log.sync()?;
    let entry = Entry { index, position, time_ns: now_ns(), digest, label: label.to_owned() };
    let forgotten = forgettable(store, &entries);
    let remaining = entries.split_off(forgotten);
    let oldest = remaining.first().unwrap_or(&entry).clone();
    match gives_way || forgotten > 0 {
        true => {
            let entries = [remaining, vec![entry.clone()]].concat();
            index::replace(store.directory(), &store.path(), &entries)?;
        }
        false => index::append(store.directory(), &store.path(), &remaining, entry.clone())?,
    }
    store.note_durable(&entry);
    control.begin_interval(&world, index);
    if forgotten > 0 {
        store.log.forget_before(oldest.position)?;
        store.remove_kept(|interval| interval < oldest.index)?;
    }
    Ok(index)
}

/// How many of the oldest checkpoints go when one more comes: none from the one on that is being copied.
fn forgettable(store: &Store, entries: &[Entry]) -> usize {
    let surplus = (entries.len() + 1).saturating_sub(store.options.kept());
    let pinned = store.pinned();
    let goes = |entry: &&Entry| pinned.is_none_or(|pinned| entry.index < pinned);
    surplus.min(entries.iter().take_while(goes).count())
}

/// The time that people are shown beside a checkpoint, in nanoseconds since 1970. A clock that says an earlier year counts as
/// 1970, and one that says a later year than 64 bits hold as the last of these.
fn now_ns() -> u64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => {
            since.as_secs().saturating_mul(1_000_000_000).saturating_add(since.subsec_nanos().into())
        }
        Err(_) => 0,
    }
}

/// The changed files and the directories whose names changed, as they stand at `to`, among names that they had before; and
/// whether a directory came in from outside, with files of which nothing is known.
fn changed_paths(store: &Store, from: u64, to: u64) -> Result<(BTreeSet<Arc<[u8]>>, bool)> {
    let mut whereabouts = Whereabouts::default();
    let mut changed = BTreeSet::new();
    let mut inodes = BTreeSet::new();
    let mut came_in = false;
    for located in store.log.scan(from, to)? {
        let Statement::Small(record) = located.statement else { continue };
        whereabouts.follow(&record);
        match &record {
            Record::Absent { path } => {
                changed.extend([durable::parent(path), path.as_slice().into()]);
            }
            Record::Moved { from, to, directory, .. } => {
                follow_move(&mut changed, from, to);
                changed.extend([durable::parent(from), durable::parent(to)]);
                if from.starts_with(store::TRASH.as_bytes()) {
                    // Of what comes from outside, nobody has made anything durable.
                    changed.insert(to.as_slice().into());
                    came_in |= *directory;
                }
            }
            Record::Size { inode, .. } | Record::Mode { inode, .. } => drop(inodes.insert(*inode)),
            // Old contents, too, must be there after a power loss.
            Record::Cloned { kept, .. } => {
                changed.extend([durable::parent(kept), kept.as_slice().into()]);
            }
            Record::Data { .. } | Record::Hole { .. } => {}
        }
    }
    changed.extend(inodes.into_iter().filter_map(|inode| whereabouts.path(inode)));
    Ok((changed, came_in))
}

/// What was created is made durable under the name that it has in the end. It keeps the one before as well: a move that is
/// stated may not have happened.
fn follow_move(changed: &mut BTreeSet<Arc<[u8]>>, from: &[u8], to: &[u8]) {
    let of = |path: &Arc<[u8]>| match path.as_ref() == from {
        true => Some(to.into()),
        false => below(path, from).map(|rest| [to, rest].concat().into()),
    };
    let moved: Vec<Arc<[u8]>> = changed.iter().filter_map(of).collect();
    changed.extend(moved);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Inode;
    use crate::store::{Mode, Options};

    #[test]
    fn what_was_created_is_made_durable_under_the_name_that_it_has_in_the_end() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path(), &Options::default()).unwrap();
        let moved = |from: &str, to: &str, directory| Record::Moved {
            inode: Inode(7),
            from: from.into(),
            to: to.into(),
            directory,
        };
        for record in [
            Record::Absent { path: b"run.new".into() },
            Record::Absent { path: b"run.new/state.new".into() },
            moved("run.new/state.new", "run.new/state", false),
            moved("run.new", "run", true),
        ] {
            store.log.append(&record).unwrap();
        }
        let changed = changed_paths(&store, 0, store.log.len().unwrap()).unwrap();
        for path in [".", "run", "run/state"] {
            assert!(changed.0.contains(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_pinned_checkpoint_and_those_after_it_stay_until_it_is_unpinned() {
        let root = tempfile::tempdir().unwrap();
        let options = Options { mode: Mode::Single, ..Options::default() };
        let store = Store::create(root.path(), &options).unwrap();
        let control = Control::open(&store).unwrap();
        let take_and_list = || {
            take(&store, &control, "test").unwrap();
            store.entries().unwrap().iter().map(|entry| entry.index).collect::<Vec<_>>()
        };
        assert_eq!(take_and_list(), [0]);
        assert_eq!(take_and_list(), [1]);
        store.pin(1).unwrap();
        assert_eq!(take_and_list(), [1, 2]);
        assert_eq!(take_and_list(), [1, 2, 3]);
        store.pin(3).unwrap();
        assert_eq!(take_and_list(), [3, 4]);
        store.unpin().unwrap();
        assert_eq!(take_and_list(), [5]);
    }
}
