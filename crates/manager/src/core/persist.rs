//! Between memory and store: what changed becomes one batch, and a stored namespace becomes memory again.
//!
//! Records are made from the state at the end of a batch of requests, so a directory that a hundred requests touched is
//! written once. Loading refuses records that contradict each other: they mean a damaged or foreign store.

use std::collections::HashSet;

use stdchk_model::message::manager::{FileKind, VersionState};
use stdchk_model::{Ino, SessionId, cbor};

use super::inode::{Body, Directory, File, Inode, Version};
use super::lifetimes::Noted;
use super::lineage::{Lineage, LineageId, NUMBERS, VersionKey};
use super::namespace::{Changed, Namespace};
use crate::record::{
    BaseRecord, EntryRecord, InodeRecord, LAYOUT, NotedRecord, PolicyRecord, VersionRecord, base_key, decode,
    entry_key, ino_key, split_number, version_key,
};
use crate::store::{Batch, StoreError, Table};

impl Namespace {
    /// Adds what changed since the last call to `batch`; tells whether the pool's record changed as well.
    pub fn take_changes(&mut self, batch: &mut Batch) -> bool {
        let changed = std::mem::take(&mut self.changed);
        self.write_inodes(&changed, batch);
        for (parent, name) in &changed.entries {
            let found = self.find(*parent, name).ok().flatten();
            let record = found.map(|ino| cbor::encode(&EntryRecord { layout: LAYOUT, ino }));
            write(batch, Table::Entry, &entry_key(*parent, name), record);
        }
        for place in &changed.versions {
            let version = self.stored_version(*place).map(|(_, _, version)| version);
            let key = version_key(place.lineage.0, place.key);
            write(batch, Table::Version, &key, version.map(version_record));
        }
        for ((ino, kept_for), record) in self.bases.take_changes() {
            write(batch, Table::Base, &base_key(ino, kept_for), record.map(cbor::encode));
        }
        changed.pool
    }

    fn write_inodes(&self, changed: &Changed, batch: &mut Batch) {
        for ino in &changed.inodes {
            let inode = self.inodes.get(ino);
            write(batch, Table::Inode, &ino_key(*ino), inode.map(inode_record));
        }
        for ino in &changed.policies {
            let policy = self.directory(*ino).ok().map(|directory| &directory.policy);
            let record = policy.filter(|policy| !policy.is_empty()).map(|policy| {
                let pairs = policy.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
                cbor::encode(&PolicyRecord { layout: LAYOUT, pairs })
            });
            write(batch, Table::Policy, &ino_key(*ino), record);
        }
        for ino in &changed.noted {
            write(batch, Table::Noted, &ino_key(*ino), self.noted.get(ino).map(noted_record));
        }
    }

    /// Takes in a stored record. Records must come in order of their keys: inodes first.
    pub fn load(&mut self, table: Table, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let (number, rest) = split_number(key)?;
        let ino = Ino(number);
        match table {
            Table::Inode => self.load_inode(ino, &decode(bytes, "an inode")?)?,
            Table::Entry => self.load_entry(ino, rest, &decode(bytes, "a directory entry")?)?,
            Table::Version => {
                self.load_version(LineageId(number), rest, decode(bytes, "a version")?)?;
            }
            Table::Policy => self.load_policy(ino, decode(bytes, "a policy")?)?,
            Table::Base => self.load_base(ino, rest, decode(bytes, "a version that is kept for a spool")?)?,
            Table::Noted => self.load_noted(ino, decode(bytes, "a folder's checkpoint sets")?)?,
            _ => return Err(StoreError::new("reading the namespace", format!("it has no table {table}"))),
        }
        Ok(())
    }

    fn load_inode(&mut self, ino: Ino, record: &InodeRecord) -> Result<(), StoreError> {
        let body = match record.kind {
            FileKind::File => Body::File(self.load_file(ino, record)?),
            FileKind::Directory => Body::Directory(Directory::default()),
            FileKind::Symlink => Body::Symlink(record.target.clone()),
            kind @ (FileKind::Pipe | FileKind::Socket) => Body::Meeting(kind),
        };
        let InodeRecord { mode, uid, gid, links, atime, mtime, ctime, named, .. } = *record;
        self.position = self.position.max(named);
        let blank = self.blank(Ino::ROOT, mode, (uid, gid), body);
        let inode = Inode { links, atime, mtime, ctime, named, ..blank };
        self.inodes.insert(ino, inode);
        Ok(())
    }

    fn load_file(&mut self, ino: Ino, record: &InodeRecord) -> Result<File, StoreError> {
        let (id, next_version) = (LineageId(record.lineage), record.next_version);
        let versions = Lineage::stored(id, record.shift).filter(|_| (1..NUMBERS).contains(&next_version));
        let versions =
            versions.ok_or_else(|| contradiction(ino, "it has impossible numbers of versions".to_owned()))?;
        if id != LineageId::of(ino) && self.lineages.insert(id, ino).is_some() {
            return Err(contradiction(ino, "its versions are those of another file, too".to_owned()));
        }
        Ok(File { versions, next_version, counted: None })
    }

    fn load_entry(&mut self, parent: Ino, name: &[u8], record: &EntryRecord) -> Result<(), StoreError> {
        let name = std::str::from_utf8(name).map_err(|error| contradiction(parent, error.to_string()))?;
        let Some(inode) = self.inodes.get_mut(&record.ino) else {
            return Err(contradiction(parent, format!("its entry `{name}` leads to no inode")));
        };
        let is_directory = inode.is_directory();
        if is_directory && (record.ino == Ino::ROOT || !inode.name.is_empty()) {
            return Err(contradiction(
                record.ino,
                "it is a directory with two names, or the root with one".to_owned(),
            ));
        }
        inode.add_name(parent, name, inode.name.is_empty());
        match self.inodes.get_mut(&parent).map(|inode| &mut inode.body) {
            Some(Body::Directory(directory)) => {
                directory.entries.insert(name.to_owned(), record.ino);
                directory.subdirectories += u32::from(is_directory);
                Ok(())
            }
            _ => Err(contradiction(parent, "it has entries and is no directory".to_owned())),
        }
    }

    /// All was read. Every directory must lie below the root, since walks upwards end there.
    pub fn check_tree(&self) -> Result<(), StoreError> {
        let mut below_root = HashSet::from([Ino::ROOT]);
        for (ino, _) in self.inodes.iter().filter(|(_, inode)| inode.is_directory()) {
            let (mut way, mut at) = (Vec::new(), *ino);
            while !below_root.contains(&at) {
                way.push(at);
                let Some(inode) = self.inodes.get(&at).filter(|_| way.len() <= self.inodes.len()) else {
                    return Err(contradiction(
                        *ino,
                        "it is a directory that doesn't lie below the root".to_owned(),
                    ));
                };
                at = inode.parent;
            }
            below_root.extend(way);
        }
        self.check_lineages()
    }

    /// Each lineage must be that of one file.
    fn check_lineages(&self) -> Result<(), StoreError> {
        for id in self.lineages.keys() {
            let made_with = self.file(Ino(id.0)).ok().filter(|file| file.versions.id() == *id);
            if made_with.is_some() {
                return Err(contradiction(
                    Ino(id.0),
                    "its versions are those of another file, too".to_owned(),
                ));
            }
        }
        Ok(())
    }

    fn load_version(
        &mut self,
        lineage: LineageId,
        rest: &[u8],
        record: VersionRecord,
    ) -> Result<(), StoreError> {
        let (key, _) = split_number(rest)?;
        let ino = self.file_of(lineage);
        let file = match self.inodes.get_mut(&ino).map(|inode| &mut inode.body) {
            Some(Body::File(file)) if file.versions.id() == lineage => file,
            _ => return Err(contradiction(ino, "there are versions of it and it has none".to_owned())),
        };
        let number = file.versions.number_of(key);
        let number = number
            .ok_or_else(|| contradiction(ino, "a version of it has an impossible number".to_owned()))?;
        let place = VersionKey { lineage, key };
        match record.state {
            VersionState::Open => drop(self.open.insert(record.session, place)),
            VersionState::Lost => drop(self.lost.insert((record.session, place))),
            VersionState::Closed | VersionState::Interrupted => {}
        }
        let VersionRecord {
            size,
            mtime,
            committed_at,
            state,
            stored_bytes,
            session,
            root,
            hole_bytes,
            position,
            lived_ms,
            key,
            written_ms,
            maker,
            ..
        } = record;
        self.position = self.position.max(position);
        self.lived_ms = self.lived_ms.max(lived_ms);
        // What its folder asks for was not read yet.
        let wanted = 0;
        let version = Version {
            size,
            mtime,
            committed_at,
            position,
            state,
            stored_bytes,
            session,
            root,
            hole_bytes,
            wanted,
            lived_ms,
            key,
            written_ms,
            maker,
        };
        let (state, size) = (version.state, version.size);
        file.versions.insert(number, version);
        file.next_version = file.next_version.max(number.saturating_add(1));
        self.count_version(state, size);
        self.count_shown(ino);
        Ok(())
    }

    fn load_base(&mut self, ino: Ino, rest: &[u8], record: BaseRecord) -> Result<(), StoreError> {
        let kept_for = <[u8; 16]>::try_from(rest).map_err(|error| StoreError::new("reading a key", error))?;
        if !self.inodes.get(&ino).is_some_and(|inode| matches!(inode.body, Body::File(_))) {
            return Err(contradiction(ino, "a version of it is kept and it is no file".to_owned()));
        }
        self.bases.load(ino, SessionId(kept_for), record);
        Ok(())
    }

    fn load_noted(&mut self, ino: Ino, record: NotedRecord) -> Result<(), StoreError> {
        if !self.inodes.get(&ino).is_some_and(Inode::is_directory) {
            return Err(contradiction(ino, "it has checkpoint sets and is no directory".to_owned()));
        }
        let NotedRecord { sealed, done, taught, .. } = record;
        if taught.as_ref().is_some_and(|taught| !taught.is_possible()) {
            return Err(contradiction(ino, "its sets had more members than there can be".to_owned()));
        }
        self.position = done.map_or(self.position, |done| self.position.max(done.position));
        self.noted.insert(ino, Noted { sealed: sealed.into_iter().collect(), done, taught });
        Ok(())
    }

    fn load_policy(&mut self, ino: Ino, record: PolicyRecord) -> Result<(), StoreError> {
        match self.inodes.get_mut(&ino).map(|inode| &mut inode.body) {
            Some(Body::Directory(directory)) => {
                directory.policy = record.pairs.into_iter().collect();
                Ok(())
            }
            _ => Err(contradiction(ino, "it has a policy and is no directory".to_owned())),
        }
    }
}

fn contradiction(ino: Ino, cause: String) -> StoreError {
    StoreError::new(format!("reading inode {ino} from the store"), cause)
}

fn write(batch: &mut Batch, table: Table, key: &[u8], record: Option<Vec<u8>>) {
    match record {
        Some(record) => batch.put(table, key, record),
        None => batch.remove(table, key),
    }
}

fn inode_record(inode: &Inode) -> Vec<u8> {
    let (target, next_version, lineage, shift) = match &inode.body {
        Body::Symlink(target) => (target.clone(), 0, 0, 0),
        Body::File(File { versions, next_version, counted: _ }) => {
            (String::new(), *next_version, versions.id().0, versions.shift())
        }
        Body::Directory(_) | Body::Meeting(_) => (String::new(), 0, 0, 0),
    };
    let Inode { mode, uid, gid, links, atime, mtime, ctime, named, .. } = *inode;
    let kind = inode.kind();
    let layout = LAYOUT;
    cbor::encode(&InodeRecord {
        layout,
        kind,
        mode,
        uid,
        gid,
        links,
        atime,
        mtime,
        ctime,
        target,
        next_version,
        named,
        lineage,
        shift,
    })
}

fn noted_record(noted: &Noted) -> Vec<u8> {
    let Noted { sealed, done, taught } = noted.clone();
    cbor::encode(&NotedRecord { layout: LAYOUT, sealed: sealed.into_iter().collect(), done, taught })
}

fn version_record(version: &Version) -> Vec<u8> {
    let Version {
        size,
        mtime,
        committed_at,
        position,
        state,
        stored_bytes,
        session,
        ref root,
        hole_bytes,
        wanted: _,
        lived_ms,
        key,
        written_ms,
        maker,
    } = *version;
    let root = root.clone();
    cbor::encode(&VersionRecord {
        layout: LAYOUT,
        size,
        mtime,
        committed_at,
        state,
        stored_bytes,
        session,
        root,
        hole_bytes,
        position,
        lived_ms,
        key,
        written_ms,
        maker,
    })
}
