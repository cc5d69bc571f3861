//! Renaming: constant time for the name, whatever hangs below it, and the handing on of versions.
//!
//! Write-to-temporary-and-rename is how most codes replace a checkpoint. Here the replaced file's versions become earlier
//! versions of the file that takes its place, so that the history of a name survives the idiom. They are handed on as a whole
//! ([`super::lineage`]), or a file that is replaced a thousand times would have each of its versions written a thousand times.

use stdchk_model::message::manager::{Attr, Existing, VersionState};
use stdchk_model::user::Access;
use stdchk_model::{ChunkMap, ErrorCode, Failure, Ino, Maker, MapRoot, SessionId, name};

use super::inode::{Body, File, Version};
use super::lineage::{Lineage, LineageId};
use super::namespace::{Namespace, exists};

/// Versions that two files may have had together for a rename to hand the earlier ones on.
const HANDED_ON_MAX: u64 = 1 << 40;
/// The session of versions that nobody wrote.
const NOBODY: SessionId = SessionId([0; 16]);

/// A name in a directory.
type Place<'a> = (Ino, &'a str);

impl Namespace {
    pub(super) fn rename(
        &mut self,
        from: Place<'_>,
        to: Place<'_>,
        existing: Existing,
    ) -> Result<Attr, Failure> {
        name::check(to.1)?;
        let moved = self.entry(from.0, from.1)?;
        let target = self.find(to.0, to.1)?;
        self.refuse_loop(moved, to.0)?;
        match (target, existing) {
            (Some(_), Existing::Refuse) => Err(exists(to.1)),
            (Some(target), _) if target == moved => Ok(()),
            (Some(target), Existing::Exchange) => self.exchange((from, moved), (to, target)),
            (None, Existing::Exchange) => self.entry(to.0, to.1).map(|_| ()),
            (Some(target), Existing::Replace | Existing::ReplaceOnCommit) => {
                self.check_replace(moved, target, to.1)?;
                self.hand_on(target, moved, existing)?;
                self.detach(to.0, to.1)?;
                self.relocate(from, to, moved)?;
                self.drop_unused(target);
                Ok(())
            }
            (None, _) => self.relocate(from, to, moved),
        }?;
        self.attr(moved)
    }

    fn relocate(&mut self, from: Place<'_>, to: Place<'_>, moved: Ino) -> Result<(), Failure> {
        self.detach(from.0, from.1)?;
        self.attach(to.0, to.1, moved)
    }

    fn exchange(&mut self, one: (Place<'_>, Ino), other: (Place<'_>, Ino)) -> Result<(), Failure> {
        self.refuse_loop(other.1, one.0.0)?;
        let ((one, first), (other, second)) = (one, other);
        self.detach(one.0, one.1)?;
        self.detach(other.0, other.1)?;
        self.attach(one.0, one.1, second)?;
        self.attach(other.0, other.1, first)
    }

    /// Refuses to move `moved` into itself or below.
    fn refuse_loop(&self, moved: Ino, new_parent: Ino) -> Result<(), Failure> {
        let mut above = new_parent;
        while above != Ino::ROOT {
            if above == moved {
                let name = self.inode(moved)?.name.escape_debug();
                let message = format!("directory `{name}` can't be moved into itself or below");
                return Err(Failure::new(ErrorCode::Loop, message));
            }
            above = self.inode(above)?.parent;
        }
        Ok(())
    }

    fn check_replace(&self, moved: Ino, target: Ino, name: &str) -> Result<(), Failure> {
        let shown = name.escape_debug();
        match (self.inode(moved)?.is_directory(), self.inode(target)?.is_directory()) {
            (true, true) => self.check_empty(target, name),
            (true, false) => {
                let message = format!("`{shown}` is no directory, so a directory can't take its place");
                Err(Failure::new(ErrorCode::NotADirectory, message))
            }
            (false, true) => {
                let message = format!("`{shown}` is a directory, so a file can't take its place");
                Err(Failure::new(ErrorCode::IsADirectory, message))
            }
            (false, false) => Ok(()),
        }
    }

    /// Makes the versions of `from`, which is about to lose its last name, the earlier versions of `to`. Not if who renames may not read
    /// them: they would show to those who may read `to`.
    fn hand_on(&mut self, from: Ino, to: Ino, existing: Existing) -> Result<(), Failure> {
        let last_name = self.inode(from)?.links == 1;
        let (Ok(old), Ok(_)) = (self.file(from), self.file(to)) else { return Ok(()) };
        let replaced = old.newest().map(|(_, version)| version.session);
        // The numbers of both add up: two files that replace each other in turn, held open, would double them each time.
        let numbers = old.next_version.saturating_add(self.file(to)?.next_version);
        if !last_name || replaced.is_none() || !self.lets(from, Access::READ) || numbers > HANDED_ON_MAX {
            return Ok(());
        }
        // Versions that nobody wrote are of no session.
        if let Some(replaced) = replaced.filter(|session| *session != NOBODY) {
            self.replaced.insert(replaced, self.lived_ms);
        }
        if self.file(to)?.newest().is_none() && existing != Existing::ReplaceOnCommit {
            let empty = self.never_written(to);
            self.add_version(&empty);
            let new = self.file_mut(to)?;
            let number = new.next_version;
            new.versions.insert(number, empty);
            new.next_version += 1;
            let place = new.versions.key_of(number);
            self.changed.versions.insert(place);
        }
        self.join(from, to)?;
        // A walk through the folder may have been meant to grade them where they were.
        self.grade(to);
        Ok(())
    }

    /// Puts the versions of `from` in front of those of `to`. The shorter lineage goes over into the longer one, which is then that of `to`;
    /// `from` has the emptied one, in case that sessions still have it open.
    fn join(&mut self, from: Ino, to: Ino) -> Result<(), Failure> {
        let old = self.file_mut(from)?;
        let next = old.next_version;
        let front = std::mem::replace(&mut old.versions, Lineage::new(LineageId::of(from)));
        let new = self.file_mut(to)?;
        new.next_version += next - 1;
        let (emptied, moved) = new.versions.put_in_front(front, next);
        let joined = new.versions.id();
        self.count_shown(to);
        self.set_lineage(to, joined);
        self.set_lineage(from, emptied.id());
        self.file_mut(from)?.versions = emptied;
        self.count_shown(from);
        for (before, now) in moved {
            self.changed.versions.extend([before, now]);
            let Some((_, _, version)) = self.stored_version(now) else {
                unreachable!("it has just moved here")
            };
            let session = version.session;
            if let Some(place) = self.open.get_mut(&session).filter(|place| **place == before) {
                *place = now;
            }
            if self.lost.remove(&(session, before)) {
                self.lost.insert((session, now));
            }
        }
        Ok(())
    }

    fn set_lineage(&mut self, ino: Ino, lineage: LineageId) {
        match lineage == LineageId::of(ino) {
            true => self.lineages.remove(&lineage),
            false => self.lineages.insert(lineage, ino),
        };
    }

    /// What readers see of a file that was never committed: nothing. It stands in front of the versions that such a file
    /// inherits, or they would show through.
    pub(super) fn never_written(&self, ino: Ino) -> Version {
        // It has no chunks that could be lost, and wants what the others want: they are looked at one by one only where they differ.
        let wanted = self.policy(ino).map_or(1, |policy| policy.redundancy.distance());
        Version {
            size: 0,
            mtime: self.clock,
            committed_at: self.clock,
            position: self.position,
            state: VersionState::Closed,
            stored_bytes: 0,
            session: NOBODY,
            root: MapRoot::Inline { map: ChunkMap::default().encode() },
            hole_bytes: 0,
            wanted,
            lived_ms: self.lived_ms,
            written_ms: None,
            key: None,
            maker: Maker::LOCAL,
        }
    }

    pub(super) fn file_mut(&mut self, ino: Ino) -> Result<&mut File, Failure> {
        self.file(ino)?;
        match &mut self.inode_mut(ino)?.body {
            Body::File(file) => Ok(file),
            _ => Err(super::namespace::absent(ino)),
        }
    }
}
