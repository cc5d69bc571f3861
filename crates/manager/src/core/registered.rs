//! Backups that are registered: what their states name stays until each of them is given up.
//!
//! A backup is registered in the commit that its copy shows, so the copy knows of itself. Its time is that of the manager's life, which no
//! calendar sets forward, as with lifetimes.
//!
//! | a registered backup | event | it is |
//! |---|---|---|
//! | being read | nobody reads on, another one begins, its reader gives it up | given up |
//! | read | its reader or an operator gives it up | given up |
//! | either | its time is over | given up |
//! | either | the manager is started again | what it was |

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::message::manager::{ManagerReply, RegisteredBackup};
use stdchk_model::{ErrorCode, Failure, cbor};

use super::{Answer, Core};
use crate::record::{BackupRecord, LAYOUT, backup_key, decode, split_number};
use crate::store::{Batch, StoreError, Table};

/// Backups that are registered at most: they are listed in one message, and each chunk that is let go asks whether one names it. An
/// hourly one that is kept for a month fits.
const REGISTERED_MAX: usize = 1024;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Registered {
    /// The start of the manager that made its last commit.
    start: u64,
    /// How long the pool's managers will have lived when it ends, milliseconds.
    ends_lived_ms: u64,
    /// Its number in the index.
    number: u32,
}

/// All of them, by the commits that they show.
#[derive(Debug, Default)]
pub(super) struct RegisteredBackups {
    known: BTreeMap<u64, Registered>,
    /// Those to be written or removed with the next commit to the store.
    changed: BTreeSet<u64>,
}

impl RegisteredBackups {
    /// Takes in a stored one.
    pub fn load(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let (commit, _) = split_number(key)?;
        let BackupRecord { start, ends_lived_ms, .. } = decode(bytes, "a registered backup")?;
        self.known.insert(commit, Registered { start, ends_lived_ms, number: 0 });
        Ok(())
    }

    /// All were read: they get numbers in the order of their commits, from 1 on.
    pub fn begin(&mut self) -> impl Iterator<Item = u64> {
        for (number, registered) in (1..).zip(self.known.values_mut()) {
            registered.number = number;
        }
        self.known.keys().copied()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Adds what changed since the last call to `batch`.
    pub fn take_changes(&mut self, batch: &mut Batch) {
        for commit in std::mem::take(&mut self.changed) {
            match self.known.get(&commit) {
                Some(Registered { start, ends_lived_ms, .. }) => {
                    let (layout, start, ends_lived_ms) = (LAYOUT, *start, *ends_lived_ms);
                    let record = BackupRecord { layout, start, ends_lived_ms };
                    batch.put(Table::Backup, &backup_key(commit), cbor::encode(&record));
                }
                None => batch.remove(Table::Backup, &backup_key(commit)),
            }
        }
    }
}

impl Core {
    /// Registers a backup of the state that the next commit makes, for `keep_ms` of the manager's life; the number of that commit.
    ///
    /// # Errors
    /// `Denied`: the manager is set back. `Unavailable`: another one begins with the same commit. `TooLong`: there are too many.
    pub fn register_backup(&mut self, keep_ms: u64) -> Result<u64, Failure> {
        self.history.check()?;
        let commit = self.history.commit() + 1;
        if self.backups.known.contains_key(&commit) {
            return Err(super::unavailable("another backup is being begun: try again"));
        }
        if self.backups.known.len() >= REGISTERED_MAX {
            let message = format!("{REGISTERED_MAX} backups are registered");
            let next = "`stdchk status` lists them; give some up with `stdchk manager backup --release`";
            return Err(Failure::new(ErrorCode::TooLong, message).then(next));
        }
        let ends_lived_ms = self.namespace.lived_ms.saturating_add(keep_ms);
        let (start, number) = (self.setting.start, self.locations.holdings.register());
        self.backups.known.insert(commit, Registered { start, ends_lived_ms, number });
        self.backups.changed.insert(commit);
        // Its time counts from the time that is stored with it.
        self.pool_changed = true;
        Ok(commit)
    }

    /// Gives up the backup that shows a commit. What it alone names is collected from now on.
    pub(super) fn release_backup(&mut self, commit: u64) -> Answer {
        match self.give_up_backup(commit) {
            true => Ok(ManagerReply::Done),
            false => {
                let message = format!("no backup of commit {commit} is registered");
                let next = "`stdchk status` lists those that are";
                Err(Failure::new(ErrorCode::NotFound, message).then(next))
            }
        }
    }

    /// Gives up the backup that shows a commit, if it is registered.
    pub fn give_up_backup(&mut self, commit: u64) -> bool {
        let Some(registered) = self.backups.known.remove(&commit) else { return false };
        self.backups.changed.insert(commit);
        self.locations.holdings.give_up(registered.number);
        true
    }

    /// Gives up backups whose time is over.
    pub(super) fn end_backups(&mut self) {
        let lived_ms = self.namespace.lived_ms;
        let is_over = |(_, one): &(&u64, &Registered)| one.ends_lived_ms <= lived_ms;
        let over: Vec<u64> = self.backups.known.iter().filter(is_over).map(|(commit, _)| *commit).collect();
        for commit in over {
            tracing::info!(commit, "the time of a registered backup is over: what it alone names may go");
            self.give_up_backup(commit);
        }
    }

    /// The registered backups, with what they hold.
    pub(super) fn registered_backups(&self) -> Vec<RegisteredBackup> {
        let lived_ms = self.namespace.lived_ms;
        let told = |(commit, one): (&u64, &Registered)| {
            let sum = self.locations.holdings.sum_of(one.number);
            RegisteredBackup {
                commit: *commit,
                start: one.start,
                ends_in_ms: one.ends_lived_ms.saturating_sub(lived_ms),
                chunks: sum.chunks,
                bytes: sum.bytes,
            }
        };
        self.backups.known.iter().map(told).collect()
    }
}
