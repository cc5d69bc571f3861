//! What there is: folders, files, their versions, and an application's checkpoint sets.

use std::collections::HashMap;

use serde::Serialize;
use stdchk_client::Pool as Client;
use stdchk_model::layout::{self, Proposal};
use stdchk_model::lifetime::Lifetime;
use stdchk_model::message::manager::{
    Attr, CheckpointSet, FileKind, SetFate, SetMember, SetState, TimeNs, VersionInfo, VersionState,
};
use stdchk_model::naming::{Naming, Pattern};
use stdchk_model::{KeyId, Timestep, sets};

use crate::error::{About, Code, Error, Result};
use crate::latest::Exposed;
use crate::namespace;
use crate::policy::PolicyChange;
use crate::pool::Pool;
use crate::target::Target;
use crate::text::{in_octal, in_time};

/// Something in a folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entry {
    /// Its name in the folder.
    pub name: String,
    /// What it is.
    pub kind: FileKind,
    /// Its size, bytes.
    pub size: u64,
    /// The newest version; 0: there is none.
    pub version: u64,
    /// Its permission bits.
    #[serde(serialize_with = "in_octal")]
    pub mode: u32,
    /// When it was changed.
    #[serde(serialize_with = "in_time")]
    pub mtime: TimeNs,
}

/// What is in a folder, or the file itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Entries {
    /// The folder or the file.
    pub path: String,
    /// In the order of the names.
    pub entries: Vec<Entry>,
}

/// A version of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Version {
    /// Its number.
    pub version: u64,
    /// Its size, bytes.
    pub size: u64,
    /// How far it got.
    pub state: VersionState,
    /// When it was committed.
    #[serde(serialize_with = "in_time")]
    pub committed_at: TimeNs,
    /// When the file was changed.
    #[serde(serialize_with = "in_time")]
    pub mtime: TimeNs,
    /// Bytes of its chunks that were new to the pool.
    pub stored_bytes: u64,
    /// Whether it lies in a container with others of its set.
    pub aggregated: bool,
    /// The key with which it is encrypted.
    pub key: Option<KeyId>,
}

impl From<&VersionInfo> for Version {
    fn from(info: &VersionInfo) -> Self {
        Self {
            version: info.version,
            size: info.size,
            state: info.state,
            committed_at: info.committed_at,
            mtime: info.mtime,
            stored_bytes: info.stored_bytes,
            aggregated: info.aggregated,
            key: info.key,
        }
    }
}

/// The versions of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FileVersions {
    /// The file.
    pub path: String,
    /// Oldest first.
    pub versions: Vec<Version>,
}

/// A file of a checkpoint set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Member {
    /// Its path below the application's folder.
    pub name: String,
    /// The rank that wrote it, if its name says so.
    pub rank: Option<u64>,
    /// The version that belongs to the set.
    pub version: u64,
    /// Its size, bytes.
    pub bytes: u64,
    /// Whether it lies in a container with others of the set.
    pub aggregated: bool,
}

impl From<&SetMember> for Member {
    fn from(member: &SetMember) -> Self {
        Self {
            name: member.name.clone(),
            rank: member.rank,
            version: member.version,
            bytes: member.bytes,
            aggregated: member.aggregated,
        }
    }
}

/// A checkpoint set: the files of one timestep.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Set {
    /// The timestep.
    pub timestep: Timestep,
    /// Whether all its files are there.
    pub state: SetState,
    /// Why not; empty if they are.
    pub reason: String,
    /// When the last of its files was committed.
    #[serde(serialize_with = "in_time")]
    pub committed_at: TimeNs,
    /// What of it has fewer copies than the folder asks for; `None`: the manager has just started and doesn't know yet.
    pub exposed: Option<Exposed>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Whether no lifetime removes it.
    pub sealed: bool,
    /// Whether it goes by the lifetime of the folder, as soon as the manager comes to it.
    pub goes: bool,
    /// Why it goes or stays; empty if the folder keeps all sets.
    pub fate: String,
    /// Its files.
    pub members: Vec<Member>,
}

impl From<&CheckpointSet> for Set {
    fn from(set: &CheckpointSet) -> Self {
        Self {
            timestep: set.timestep,
            state: set.state,
            reason: set.reason.clone(),
            committed_at: set.committed_at,
            exposed: set.exposed.map(Exposed::from),
            bytes: bytes_of(set),
            sealed: set.sealed,
            goes: false,
            fate: String::new(),
            members: set.members.iter().map(Member::from).collect(),
        }
    }
}

/// The checkpoint sets of an application's folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Sets {
    /// The folder.
    pub app: String,
    /// Newest timestep first.
    pub sets: Vec<Set>,
}

/// Why a folder has no checkpoint sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WhyNoSets {
    /// It has no files.
    NoFiles,
    /// No name fits its `naming`.
    NoName {
        /// What the names would look like.
        patterns: Vec<String>,
        /// A file that is there, by its path below the folder.
        example: String,
        /// A layout or patterns that would fit.
        proposal: Option<Proposal>,
    },
}

/// Bytes of all members of a set.
pub(crate) fn bytes_of(set: &CheckpointSet) -> u64 {
    set.members.iter().map(|member| member.bytes).sum()
}

impl Pool {
    /// What is in a folder, or the file itself.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such thing.
    pub async fn list(&self, target: &Target) -> Result<Entries> {
        let attr = namespace::resolve(&self.client, target).await?;
        let entries = match (attr.kind, target.name()) {
            (FileKind::Directory, _) => {
                let found = namespace::entries(&self.client, attr.ino).await.about(target.shown())?;
                found.into_iter().map(|found| entry(found.name, &found.attr)).collect()
            }
            (_, Some(name)) => vec![entry(name.to_owned(), &attr)],
            (_, None) => return Err(Error::defect("/", "the root of the pool is no folder")),
        };
        Ok(Entries { path: target.path(), entries })
    }

    /// What there is under a name; the root has none.
    ///
    /// # Errors
    /// [`Code::NotFound`]: nothing.
    pub async fn entry(&self, target: &Target) -> Result<Entry> {
        let attr = namespace::resolve(&self.client, target).await?;
        Ok(entry(target.name().unwrap_or_default().to_owned(), &attr))
    }

    /// The versions of a file, or of every file in a folder. A file that is removed meanwhile is left out.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such thing. [`Code::WrongKind`]: it has no versions.
    pub async fn versions(&self, target: &Target) -> Result<Vec<FileVersions>> {
        let attr = namespace::resolve(&self.client, target).await?;
        if attr.kind != FileKind::Directory {
            return Ok(vec![versions_of(&self.client, target).await?]);
        }
        let mut all = Vec::new();
        for entry in namespace::entries(&self.client, attr.ino).await.about(target.shown())? {
            if entry.attr.kind == FileKind::File {
                let file = target.join(&entry.name).about(target.shown())?;
                all.extend(namespace::if_still_there(versions_of(&self.client, &file).await)?);
            }
        }
        Ok(all)
    }

    /// The checkpoint sets of a folder, newest timestep first.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such folder. [`Code::WrongKind`]: it is no folder.
    pub async fn sets(&self, app: &Target) -> Result<Sets> {
        let folder = self.folder(app).await?;
        let sets = self.client.sets(folder.ino).await.about(app.shown())?;
        let mut sets: Vec<Set> = sets.iter().map(Set::from).collect();
        if self.client.policy(folder.ino).await.about(app.shown())?.lifetime != Lifetime::Keep {
            let fates = self.client.fates(folder.ino, None, false).await.about(app.shown())?;
            let fates: HashMap<Timestep, SetFate> =
                fates.into_iter().map(|fate| (fate.timestep, fate)).collect();
            for set in &mut sets {
                if let Some(fate) = fates.get(&set.timestep) {
                    (set.goes, set.fate) = (fate.goes, fate.reason.clone());
                }
            }
        }
        Ok(Sets { app: app.path(), sets })
    }

    /// Why a folder has no checkpoint sets, for people who expected some.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such folder.
    pub async fn why_no_sets(&self, app: &Target) -> Result<WhyNoSets> {
        let files = namespace::files(&self.client, app).await?;
        let Some(example) = files.first() else { return Ok(WhyNoSets::NoFiles) };
        let naming: Naming = self.policy(app).await?.naming.parse().map_err(|error| {
            Error::new(Code::Invalid, app.shown(), error, "set `naming` anew with `stdchk policy set`")
        })?;
        let patterns = naming.patterns().iter().map(Pattern::text).map(str::to_owned).collect();
        let example = namespace::path_below(app, example);
        let paths: Vec<String> = files.iter().map(|found| namespace::path_below(app, found)).collect();
        let proposal = layout::proposed(&paths.iter().map(String::as_str).collect::<Vec<_>>());
        Ok(WhyNoSets::NoName { patterns, example, proposal })
    }

    /// The checkpoint sets that a folder would have with other `naming`, `ranks` or `layout`, and what `layout` stands for. Nothing is changed.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such folder. [`Code::Invalid`]: the pairs can't be used.
    pub async fn sets_with(&self, change: &PolicyChange) -> Result<(Sets, Option<Proposal>)> {
        let app = &change.folder;
        let folder = self.folder(app).await?;
        let (pairs, proposal) = self.without_layout(change).await?;
        let mut policy = self.client.policy(folder.ino).await.about(app.shown())?;
        for (key, value) in &pairs {
            // An empty value takes it back to its default.
            let value = if key == "ranks" && value.is_empty() { "0" } else { value };
            policy.set(key, value)?;
        }
        let naming: Naming = policy.naming.parse().map_err(|error| {
            Error::new(Code::Invalid, app.shown(), error, "such as `restart.{step}.{rank}`")
        })?;
        let mut files = Vec::new();
        for found in namespace::files(&self.client, app).await? {
            let path = namespace::path_below(app, &found);
            if naming.read(&path).is_some() {
                let ino = found.attr.ino;
                let versions = self.client.versions(ino).await.about(found.target.shown());
                files.extend(namespace::if_still_there(versions)?.map(|versions| sets::FileVersions {
                    path,
                    ino,
                    versions,
                }));
            }
        }
        let sets = sets::checkpoint_sets(&app.path(), &files, &naming, policy.ranks, None);
        Ok((Sets { app: app.path(), sets: sets.iter().map(Set::from).collect() }, proposal))
    }
}

fn entry(name: String, attr: &Attr) -> Entry {
    let (kind, size, version, mtime) = (attr.kind, attr.size, attr.version, attr.mtime);
    Entry { name, kind, size, version, mode: attr.mode & 0o7777, mtime }
}

async fn versions_of(pool: &Client, target: &Target) -> Result<FileVersions> {
    let mut file = namespace::FileLooks::new(pool, target);
    let versions = loop {
        let attr = file.look().await?;
        match pool.versions(attr.ino).await.about(target.shown()) {
            Err(error) if file.is_replaced(&error).await? => {}
            versions => break versions?,
        }
    };
    Ok(FileVersions { path: target.path(), versions: versions.iter().map(Version::from).collect() })
}
