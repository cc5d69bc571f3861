//! Versions that are kept for files which wait in spools.
//!
//! A file in a spool may hold a part of its bytes alone, and lack those of the version that it was written over. As long as its mount
//! lives, a session keeps that version's chunks. Afterwards nobody would: the version may be dropped, by its user or by a lifetime, and with it
//! what was acknowledged. So the version stays on record here, by its map and as far from loss as its folder asked for, from before the
//! application is told that the file is closed.
//!
//! | event | what becomes of the record |
//! |---|---|
//! | `KeepBase` of the session that was first to commit the file | it is made; durable before the answer |
//! | a commit of that session, or of one that took the file up | it goes, in the same step |
//! | `LetBaseGo`: the loss is on record, or somebody gives the spool up | it goes |
//! | somebody takes the file's last name away | it goes with the file |
//! | a lifetime would take a name of the file away | it stays, and so does the name |
//! | the session ends, its client falls silent, the manager starts anew | it stays |
//! | the version is dropped, moves into a container, or gets another number | it stays, with the map that it has |
//! | nobody asked for it in [`KEPT_MS_MAX`] of the manager's life | it goes |

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::limits::{LIST_ENTRIES_MAX, NAME_BYTES_MAX};
use stdchk_model::message::manager::{KeptBase, ManagerReply, Need, VersionInfo, VersionState};
use stdchk_model::shares::{Payer, Shares};
use stdchk_model::{ErrorCode, Failure, Ino, MapRoot, SessionId};

use super::namespace::{Namespace, Reference};
use super::{Answer, Core, Now};
use crate::record::{BaseRecord, LAYOUT};

/// Most versions that are kept at a time. Each is a file in a spool, of which a mount has as many as half of its descriptors.
const BASES_MAX: u64 = 65_536;
/// How long a version is kept for a spool of which nothing is heard: whoever repairs a machine for longer knows that its disk holds files.
const KEPT_MS_MAX: u64 = 180 * 24 * 3_600_000;

/// The versions, by file and by the session for which they are kept.
#[derive(Debug)]
pub(super) struct Bases {
    all: BTreeMap<(Ino, SessionId), BaseRecord>,
    /// How many each member has.
    places: Shares,
    changed: BTreeSet<(Ino, SessionId)>,
}

impl Default for Bases {
    fn default() -> Self {
        Self { all: BTreeMap::new(), places: Shares::new(BASES_MAX), changed: BTreeSet::new() }
    }
}

fn payer(record: &BaseRecord) -> Payer {
    Payer { member: record.member, user: None }
}

impl Bases {
    pub(super) fn values(&self) -> impl Iterator<Item = &BaseRecord> {
        self.all.values()
    }

    /// Takes in a stored one.
    pub(super) fn load(&mut self, ino: Ino, kept_for: SessionId, record: BaseRecord) {
        self.places.take(payer(&record), 1);
        self.all.insert((ino, kept_for), record);
    }

    /// What changed since the last call: the records as they are now.
    pub(super) fn take_changes(&mut self) -> impl Iterator<Item = ((Ino, SessionId), Option<&BaseRecord>)> {
        let changed = std::mem::take(&mut self.changed);
        let all = &self.all;
        changed.into_iter().map(move |key| (key, all.get(&key)))
    }

    fn of_file(&self, ino: Ino) -> Vec<SessionId> {
        let (first, last) = ((ino, SessionId([0; 16])), (ino, SessionId([0xff; 16])));
        self.all.range(first..=last).map(|((_, kept_for), _)| *kept_for).collect()
    }
}

impl Namespace {
    fn keep_base(&mut self, ino: Ino, kept_for: SessionId, record: BaseRecord) {
        self.references.push(Reference { root: record.root.clone(), wanted: record.wanted, is_new: true });
        self.bases.places.take(payer(&record), 1);
        let before = self.bases.all.insert((ino, kept_for), record);
        assert!(before.is_none(), "a version that is kept is kept once");
        self.bases.changed.insert((ino, kept_for));
    }

    pub(super) fn let_base_go(&mut self, ino: Ino, kept_for: SessionId) {
        if let Some(record) = self.bases.all.remove(&(ino, kept_for)) {
            self.bases.places.give_back(payer(&record), 1);
            let BaseRecord { root, wanted, .. } = record;
            self.references.push(Reference { root, wanted, is_new: false });
            self.bases.changed.insert((ino, kept_for));
        }
    }

    /// Whether a file waits in a spool and keeps parts of a version.
    pub(super) fn is_built_on(&self, ino: Ino) -> bool {
        !self.bases.of_file(ino).is_empty()
    }

    /// The file goes.
    pub(super) fn let_bases_go_of(&mut self, ino: Ino) {
        self.bases.of_file(ino).into_iter().for_each(|kept_for| self.let_base_go(ino, kept_for));
    }

    /// Versions go that were kept for too long.
    pub(super) fn let_old_bases_go(&mut self) {
        let now = self.lived_ms;
        let old =
            self.bases.all.iter().filter(|(_, record)| now.saturating_sub(record.lived_ms) >= KEPT_MS_MAX);
        let old: Vec<_> = old.map(|(key, record)| (*key, record.host.clone())).collect();
        for ((ino, kept_for), host) in old {
            tracing::error!(%ino, %kept_for, host, "a version was kept for a spool of which nothing was heard for half a year: it goes");
            self.let_base_go(ino, kept_for);
        }
    }

    /// The version that is kept for a file in a spool.
    pub(super) fn kept_base(&self, ino: Ino, kept_for: SessionId) -> Option<(VersionInfo, MapRoot)> {
        let record = self.bases.all.get(&(ino, kept_for))?;
        Some((record.info.clone(), record.root.clone()))
    }
}

/// Whether two descriptions are of one version. Its number, its state and the place of its content may change.
fn is_same(one: &VersionInfo, other: &VersionInfo) -> bool {
    (one.session, one.size, one.mtime, one.committed_at)
        == (other.session, other.size, other.mtime, other.committed_at)
}

impl Core {
    /// Keeps the version that a session builds on.
    pub(super) fn keep_base(
        &mut self,
        id: SessionId,
        base: VersionInfo,
        (host, bytes): (String, u64),
        now: Now,
    ) -> Answer {
        if host.len() > NAME_BYTES_MAX {
            return Err(super::commit::invalid(format!(
                "the name of a host has at most {NAME_BYTES_MAX} bytes"
            )));
        }
        let session = self.sessions.get_mut(id, now.ms)?;
        let (ino, kept_for) = (session.ino, session.taken_up.unwrap_or(id));
        if self.namespace.kept_base(ino, kept_for).is_some_and(|(kept, _)| is_same(&kept, &base)) {
            return Ok(ManagerReply::Done);
        }
        let own = session.begun_with.as_ref().filter(|begun_with| is_same(begun_with, &base));
        let root = match own {
            Some(_) => session.base.clone(),
            None => self.root_of(ino, &base),
        };
        let Some(root) = root else {
            let what = format!("the version that file {ino} was written over is gone");
            return Err(Failure::new(ErrorCode::NotFound, what));
        };
        let payer = Payer { member: self.asking, user: None };
        let places = &self.namespace.bases.places;
        let renews = self.namespace.bases.all.contains_key(&(ino, kept_for));
        if !renews && !places.may_take(payer, 1) {
            let (own, all) = (places.held_by(payer), self.namespace.bases.all.len());
            let message = format!(
                "{own} files of this member wait in spools already that keep parts of versions, and {all} of all members"
            );
            return Err(
                Failure::new(ErrorCode::NoSpace, message).then("push some: mount the pool where they wait")
            );
        }
        let wanted = self.namespace.policy(ino)?.redundancy.distance();
        let (since, lived_ms, info) = (self.namespace.clock, self.namespace.lived_ms, base);
        let record = BaseRecord {
            layout: LAYOUT,
            info,
            root,
            wanted,
            host,
            bytes,
            since,
            lived_ms,
            member: self.asking,
        };
        self.namespace.let_base_go(ino, kept_for);
        self.namespace.keep_base(ino, kept_for, record);
        Ok(ManagerReply::Done)
    }

    /// Where the map of a version lies that the file still has.
    fn root_of(&self, ino: Ino, base: &VersionInfo) -> Option<MapRoot> {
        let mut newest_first = self.namespace.file(ino).ok()?.versions.iter().rev();
        let is_it = |(number, version): &(u64, &super::inode::Version)| {
            version.state != VersionState::Lost && is_same(&version.info(*number), base)
        };
        newest_first.find(is_it).map(|(_, version)| version.root.clone())
    }

    /// What is kept for spools, the oldest first; of files that the present asker may come to.
    pub(super) fn kept_bases(&self) -> Vec<KeptBase> {
        let is_seen = |ino: Ino| self.namespace.allow_user(Need::Reach(ino)).is_ok();
        let all = self.namespace.bases.all.iter().filter(|((ino, _), _)| is_seen(*ino));
        let kept = |(&(ino, kept_for), record): (&(Ino, SessionId), &BaseRecord)| {
            let (version, size, since) = (record.info.version, record.info.size, record.since);
            let (path, host, bytes) = (self.namespace.path(ino), record.host.clone(), record.bytes);
            KeptBase { kept_for, ino, path, version, size, host, bytes, since }
        };
        let mut bases: Vec<KeptBase> = all.map(kept).collect();
        bases.sort_by_key(|base| base.since);
        bases.truncate(LIST_ENTRIES_MAX);
        bases
    }
}
