//! Versions of files: added by commits, finished by the end of their session, dropped one by one or with the file.

use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::manager::{TimeNs, VersionInfo, VersionState};
use stdchk_model::{ErrorCode, Failure, Ino, KeyId, MapRoot, SessionId};

use super::aggregates::Replaced;
use super::inode::{Body, Version};
use super::lineage::{LineageId, VersionKey};
use super::namespace::{Namespace, Reference, Shown};

/// Versions of a file, the newest first, among which that of a last commit whose answer was lost is looked for: others may have committed since.
const OTHERS_BETWEEN_MAX: usize = 256;

impl Namespace {
    /// The versions of a file, oldest first; only the newest 65,536, if there are more.
    pub fn versions_of(&self, ino: Ino) -> Result<Vec<VersionInfo>, Failure> {
        let versions = &self.file(ino)?.versions;
        let skipped = versions.len().saturating_sub(LIST_ENTRIES_MAX);
        Ok(versions.iter().skip(skipped).map(|(number, version)| version.info(number)).collect())
    }

    /// Position of the version that readers see.
    pub fn position(&self, ino: Ino) -> Result<Option<TimeNs>, Failure> {
        Ok(self.file(ino)?.newest().map(|(_, version)| version.position))
    }

    /// A version with its map root; the newest if none is named, `None` if nothing was ever committed.
    pub fn version(&self, ino: Ino, number: Option<u64>) -> Result<Option<(VersionInfo, MapRoot)>, Failure> {
        let file = self.file(ino)?;
        let Some(number) = number else {
            return Ok(file.newest().map(|(number, version)| (version.info(number), version.root.clone())));
        };
        let version = file.versions.get(number).ok_or_else(|| no_version(ino, number))?;
        if version.state == VersionState::Lost {
            let what =
                format!("version {number} of file {ino} was closed early and never committed: it is lost");
            return Err(Failure::new(ErrorCode::NotFound, what));
        }
        Ok(Some((version.info(number), version.root.clone())))
    }

    /// Makes `version` the newest of the file, in place of what its session committed before; tells its position.
    pub fn commit(&mut self, ino: Ino, version: Version) -> Result<(VersionInfo, TimeNs), Failure> {
        // A session may commit the same once more on purpose, unless it was to be its last commit.
        let looked_at = if version.state == VersionState::Open { 1 } else { OTHERS_BETWEEN_MAX };
        let kept = |(_, known): &(u64, &Version)| known.state != VersionState::Lost;
        let mut newest_first = self.file(ino)?.versions.iter().rev().filter(kept).take(looked_at);
        let repeated = newest_first.find(|(_, known)| is_repeated(known, &version));
        let repeated = repeated.map(|(number, known)| (known.info(number), known.position));
        drop(newest_first);
        if let Some(repeated) = repeated {
            return Ok(repeated);
        }
        let (session, state, mtime, position) =
            (version.session, version.state, version.mtime, version.position);
        self.drop_earlier_of(ino, session);
        self.drop_lost_of(ino, session);
        self.add_version(&version);
        let file = self.file_mut(ino)?;
        let number = file.next_version;
        file.next_version += 1;
        let info = version.info(number);
        file.versions.insert(number, version);
        let place = file.versions.key_of(number);
        let clock = self.clock;
        let inode = self.inode_mut(ino)?;
        inode.mtime = mtime;
        inode.ctime = clock;
        self.changed.versions.insert(place);
        if state == VersionState::Open {
            self.open.insert(session, place);
        }
        self.count_shown(ino);
        Ok((info, position))
    }

    /// The writer of a file was told that it is closed, and no commit followed: that this is missing stays on record.
    pub fn note_lost(&mut self, ino: Ino, session: SessionId, size: u64) {
        let version = Version { size, session, state: VersionState::Lost, ..self.never_written(ino) };
        let Ok(file) = self.file_mut(ino) else { return };
        let number = file.next_version;
        file.next_version += 1;
        file.versions.insert(number, version.clone());
        let place = file.versions.key_of(number);
        self.add_version(&version);
        self.lost.insert((session, place));
        self.changed.versions.insert(place);
    }

    fn drop_earlier_of(&mut self, ino: Ino, session: SessionId) {
        let Some((holder, number)) = self.open_version(session) else { return };
        if holder != ino {
            // The file was replaced meanwhile: its history belongs to another now, and this version of it comes to no end there.
            self.finish(session, VersionState::Interrupted);
            return;
        }
        self.take_version(ino, number);
    }

    /// Takes a version out of its file.
    pub(super) fn take_version(&mut self, ino: Ino, number: u64) {
        if let Ok(file) = self.file_mut(ino)
            && let Some(version) = file.versions.remove(number)
        {
            let place = file.versions.key_of(number);
            self.forget_version(place, &version);
            self.count_shown(ino);
        }
    }

    /// What was on record as missing has come after all: its client was only silent for long.
    fn drop_lost_of(&mut self, ino: Ino, session: SessionId) {
        let of_session = (session, VersionKey::FIRST)..=(session, VersionKey::LAST);
        let places = self.lost.range(of_session).filter_map(|(_, place)| self.stored_version(*place));
        let its = places.filter(|(holder, _, _)| *holder == ino).map(|(_, number, _)| number);
        let its: Vec<u64> = its.collect();
        its.into_iter().for_each(|number| self.take_version(ino, number));
    }

    /// The last commit of a session that ended is final, or torn; the file, if it was still open.
    pub fn finish(&mut self, session: SessionId, state: VersionState) -> Option<Ino> {
        let (ino, number) = self.open_version(session)?;
        let place = self.open.remove(&session)?;
        if let Ok(file) = self.file_mut(ino)
            && let Some(version) = file.versions.get_mut(number)
        {
            version.state = state;
            self.changed.versions.insert(place);
        }
        Some(ino)
    }

    /// The file whose versions are a lineage, if there is one.
    pub(super) fn file_of(&self, lineage: LineageId) -> Ino {
        self.lineages.get(&lineage).copied().unwrap_or(Ino(lineage.0))
    }

    /// The version whose record lies at this place: its file, its number, and itself.
    pub(super) fn stored_version(&self, place: VersionKey) -> Option<(Ino, u64, &Version)> {
        let ino = self.file_of(place.lineage);
        let Body::File(file) = &self.inodes.get(&ino)?.body else { return None };
        let number = file.versions.number_of(place.key).filter(|_| file.versions.id() == place.lineage)?;
        Some((ino, number, file.versions.get(number)?))
    }

    /// The version that a session has committed last and not finished: its file and its number.
    pub(super) fn open_version(&self, session: SessionId) -> Option<(Ino, u64)> {
        let place = self.open.get(&session)?;
        let (ino, number, _) = self.stored_version(*place)?;
        Some((ino, number))
    }

    /// Whether a session has committed a version that isn't final.
    pub fn is_unfinished(&self, session: SessionId) -> bool {
        self.open.contains_key(&session)
    }

    /// Sessions with committed versions that nobody has ended.
    pub fn unfinished(&self) -> Vec<SessionId> {
        let mut unfinished: Vec<SessionId> = self.open.keys().copied().collect();
        unfinished.sort_unstable();
        unfinished
    }

    pub(super) fn drop_version(&mut self, ino: Ino, number: u64) -> Result<(), Failure> {
        let file = self.file(ino)?;
        let Some(version) = file.versions.get(number) else { return Err(no_version(ino, number)) };
        let kept = file.versions.values().filter(|version| version.state != VersionState::Lost);
        let newest_alone = kept.take(2).count() == 1;
        if newest_alone && version.state != VersionState::Lost {
            let message = format!("version {number} is the only one of file {ino}: remove the file instead");
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        if version.state == VersionState::Open {
            let message = format!("version {number} of file {ino} is still being written: try again later");
            return Err(Failure::new(ErrorCode::Unavailable, message));
        }
        self.take_version(ino, number);
        self.show_newest(ino)
    }

    fn show_newest(&mut self, ino: Ino) -> Result<(), Failure> {
        let mtime = self.file(ino)?.newest().map(|(_, version)| version.mtime);
        let clock = self.clock;
        let inode = self.inode_mut(ino)?;
        inode.mtime = mtime.unwrap_or(clock);
        inode.ctime = clock;
        Ok(())
    }

    /// Where the map of the version is that a session committed last and didn't finish, the bytes that were new with it, and its key.
    pub(super) fn committed_by(&self, session: SessionId) -> Result<(MapRoot, u64, Option<KeyId>), Failure> {
        let version = self.open.get(&session).and_then(|place| self.stored_version(*place));
        let (_, _, version) = version.ok_or_else(|| {
            Failure::new(ErrorCode::NotFound, format!("session {session} has not committed anything"))
        })?;
        Ok((version.root.clone(), version.stored_bytes, version.key))
    }

    pub(super) fn size_of(&self, ino: Ino, number: u64) -> Result<u64, Failure> {
        let version = self.file(ino)?.versions.get(number).ok_or_else(|| no_version(ino, number))?;
        Ok(version.size)
    }

    pub(super) fn key_of(&self, ino: Ino, number: u64) -> Result<Option<KeyId>, Failure> {
        let version = self.file(ino)?.versions.get(number).ok_or_else(|| no_version(ino, number))?;
        Ok(version.key)
    }

    pub(super) fn is_replaced(&self, member: &Replaced) -> bool {
        let version = self.file(member.ino).ok().and_then(|file| file.versions.get(member.version));
        version.is_some_and(|version| version.root == member.root)
    }

    /// Lets a version lie elsewhere. All that its readers see stays.
    pub(super) fn replace(&mut self, member: Replaced) -> Result<(), Failure> {
        let Replaced { ino, version: number, root, stored_bytes, key } = member;
        let file = self.file_mut(ino)?;
        let version = file.versions.get_mut(number).ok_or_else(|| no_version(ino, number))?;
        let new = Reference { root: root.clone(), wanted: version.wanted, is_new: true };
        let old = Reference { root: std::mem::replace(&mut version.root, root), is_new: false, ..new };
        (version.stored_bytes, version.key) = (stored_bytes, key);
        let place = file.versions.key_of(number);
        self.references.extend([new, old]);
        self.changed.versions.insert(place);
        Ok(())
    }

    /// A session has the file open.
    pub fn hold(&mut self, ino: Ino) {
        *self.held.entry(ino).or_insert(0) += 1;
    }

    /// A session has the file open no longer.
    pub fn release(&mut self, ino: Ino) {
        if let Some(count) = self.held.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.held.remove(&ino);
                self.drop_unused(ino);
            }
        }
    }

    /// Removes what has neither a name nor a session: left by sessions that ended while no manager ran.
    pub fn drop_all_unused(&mut self) {
        let unnamed = |(ino, inode): (&Ino, &super::inode::Inode)| (inode.links == 0).then_some(*ino);
        let mut unnamed: Vec<Ino> = self.inodes.iter().filter_map(unnamed).collect();
        // In a fixed order: a chunk that is held stays as far from loss as the last of them wanted it.
        unnamed.sort_unstable();
        for ino in unnamed.into_iter().filter(|ino| *ino != Ino::ROOT) {
            self.drop_unused(ino);
        }
    }

    /// Lets the versions of a file want their chunks as far from loss as its folder asks for now.
    pub(super) fn grade(&mut self, ino: Ino) {
        let Ok(policy) = self.policy(ino) else { return };
        let wanted = policy.redundancy.distance();
        let Some(Body::File(file)) = self.inodes.get_mut(&ino).map(|inode| &mut inode.body) else { return };
        file.versions.want(wanted, |version| self.references.extend(regraded(version, wanted)));
    }

    /// Whether the policy asks for another distance to loss than a version of this file wants.
    pub(super) fn wants_other(&self, ino: Ino) -> bool {
        let Ok(Body::File(file)) = self.inode(ino).map(|inode| &inode.body) else { return false };
        let Ok(policy) = self.policy(ino) else { return false };
        file.versions.wants_other(policy.redundancy.distance())
    }

    /// Lets the version that a session committed want its chunks at least so far from loss.
    pub(super) fn want(&mut self, session: SessionId, wanted: u8) -> Result<(), Failure> {
        self.committed_by(session)?;
        let Some((ino, number)) = self.open_version(session) else { return Ok(()) };
        let versions = &mut self.file_mut(ino)?.versions;
        let version = versions.get(number).ok_or_else(|| no_version(ino, number))?;
        if version.wanted < wanted {
            let moved = regraded(version, wanted);
            versions.want_of(number, wanted);
            self.references.extend(moved);
        }
        Ok(())
    }

    /// Accounts for a version that was put into its file.
    pub(super) fn add_version(&mut self, version: &Version) {
        self.count_version(version.state, version.size);
        self.references.push(Reference { root: version.root.clone(), wanted: version.wanted, is_new: true });
    }

    pub(super) fn count_version(&mut self, state: VersionState, size: u64) {
        if state != VersionState::Lost {
            self.versions += 1;
            self.logical_bytes = self.logical_bytes.saturating_add(size);
        }
    }

    /// Accounts for the version of a file that readers see, once versions came to the file or went.
    pub(super) fn count_shown(&mut self, ino: Ino) {
        let Some(Body::File(file)) = self.inodes.get_mut(&ino).map(|inode| &mut inode.body) else { return };
        let size = file.newest().map(|(_, version)| version.size);
        let before = std::mem::replace(&mut file.counted, size);
        self.shown.change(before, size);
    }

    /// How many versions are kept beside those that readers see, and their bytes.
    pub(super) fn older_versions(&self) -> (u64, u64) {
        (
            self.versions.saturating_sub(self.shown.versions),
            self.logical_bytes.saturating_sub(self.shown.bytes),
        )
    }

    /// Accounts for a version that was taken out of its file.
    pub(super) fn forget_version(&mut self, place: VersionKey, version: &Version) {
        self.changed.versions.insert(place);
        self.references.push(Reference { root: version.root.clone(), wanted: version.wanted, is_new: false });
        if version.state == VersionState::Lost {
            self.lost.remove(&(version.session, place));
            return;
        }
        self.versions = self.versions.saturating_sub(1);
        self.logical_bytes = self.logical_bytes.saturating_sub(version.size);
        if self.open.get(&version.session) == Some(&place) {
            self.open.remove(&version.session);
        }
    }
}

impl Shown {
    /// A file shows a version of this size now, and showed one of that size before.
    pub(super) fn change(&mut self, before: Option<u64>, now: Option<u64>) {
        self.versions = self.versions.saturating_sub(u64::from(before.is_some())) + u64::from(now.is_some());
        self.bytes = self.bytes.saturating_sub(before.unwrap_or(0)).saturating_add(now.unwrap_or(0));
    }
}

/// The references of a version that wants its chunks so far from loss from now on.
fn regraded(version: &Version, wanted: u8) -> [Reference; 2] {
    let new = Reference { root: version.root.clone(), wanted, is_new: true };
    let old = Reference { wanted: version.wanted, is_new: false, ..new.clone() };
    [new, old]
}

/// Whether a commit was answered before and the answer lost.
fn is_repeated(known: &Version, version: &Version) -> bool {
    known.session == version.session
        && known.state == version.state
        && (known.size, known.mtime) == (version.size, version.mtime)
        && known.root == version.root
}

fn no_version(ino: Ino, number: u64) -> Failure {
    Failure::new(ErrorCode::NotFound, format!("file {ino} has no version {number} (any more)"))
}
